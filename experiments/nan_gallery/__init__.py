"""Five ways to a NaN gradient: the naive formula beside the safe one."""
