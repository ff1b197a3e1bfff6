"""Fits of shifts, limits and whole Gaussians to truncated data."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
