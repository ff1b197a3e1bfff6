"""Draws of truncated Gaussians, and their moments."""
