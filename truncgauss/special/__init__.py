"""The normal distribution on one interval, and sums of exponentials, with own derivative rules."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
