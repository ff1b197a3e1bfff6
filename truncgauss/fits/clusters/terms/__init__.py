"""Terms of the covariance of clusters of rows, one class a file."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
