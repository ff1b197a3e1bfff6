"""Fits of shifts, limits and whole Gaussians to truncated data."""
