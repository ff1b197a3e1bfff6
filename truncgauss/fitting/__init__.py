"""Fits of shifts, limits and whole Gaussians to truncated data."""

from truncgauss.words.faces import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
