"""The width of a bump, learnt by gradient from inputs inside and far beyond its support."""
