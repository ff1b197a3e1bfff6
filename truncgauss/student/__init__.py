"""Multivariate t distributions, quantiles of regions, and the largest coordinate."""
