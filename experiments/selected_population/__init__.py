"""A Gaussian population of which every field shows only the objects inside limits of its own."""
