"""Tables of numbers, read strictly and by name, from memory or a file."""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
