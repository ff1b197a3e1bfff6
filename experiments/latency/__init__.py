"""What a first and a warm call cost in a fresh process, for us, an earlier version and SciPy."""
