"""The log-likelihood of observed rows: exact, censored, interval, missing, noisy and truncated."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
