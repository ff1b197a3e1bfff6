"""Ordered and binary outcomes, and polychoric correlations."""
