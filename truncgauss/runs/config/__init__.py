"""Settings of experiments: a YAML file read into frozen, strict models, without JAX.

An experiment of your own derives its `Settings` from `Experiment` and may use the sections that are
listed here. A validator that looks at several keys raises `problem(message, *keys, got=...)`; the
error is then reported at the line of the key that it names.
"""

from truncgauss.arrays.importing import served

__all__, __getattr__, __dir__ = served(__name__, __file__)
