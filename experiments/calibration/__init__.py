"""Simulation-based calibration of the posteriors of a truncated normal model."""
