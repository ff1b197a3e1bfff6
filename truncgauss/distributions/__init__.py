"""Truncated normal and t distributions for NumPyro."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
