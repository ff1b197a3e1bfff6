"""Gaussian vectors and regions: covariances, edges, limits and their standardisation."""
