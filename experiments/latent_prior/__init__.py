"""Truncated normal priors of unobserved quantities: a share in [0, 1] and a vector with limits."""
