"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
