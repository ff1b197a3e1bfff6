"""Regions of space that a Gaussian is truncated to. One region, one file."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
