"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""
