"""A selection with smooth limits: near a limit an object is seen with a probability below one."""
