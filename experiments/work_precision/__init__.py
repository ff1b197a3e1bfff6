"""Error against time on one processor, for our methods and for SciPy."""
