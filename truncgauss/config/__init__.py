"""The settings of an experiment: a YAML file read into frozen, strict models, without JAX."""

from truncgauss.config.loading import (
    EXPERIMENTS,
    Experiment,
    dump,
    load,
    override,
    schema,
)
from truncgauss.config.sections import suggestion
from truncgauss.config.yaml import ConfigError

__all__ = [
    "EXPERIMENTS",
    "ConfigError",
    "Experiment",
    "dump",
    "load",
    "override",
    "schema",
    "suggestion",
]
