"""Quantile residuals of a sample that is Gaussian and of one that is not."""
