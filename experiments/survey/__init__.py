"""A survey that sees an object if its measured brightness passes a limit of its own."""
