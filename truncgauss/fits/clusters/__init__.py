"""Rows in clusters, whose random effects have a covariance of terms."""
