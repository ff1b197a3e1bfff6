"""log P(X in region) for a Gaussian X: one method, one file."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
