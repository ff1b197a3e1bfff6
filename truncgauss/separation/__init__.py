"""The sampling kernel of separation of variables, and the plans that steer it."""
