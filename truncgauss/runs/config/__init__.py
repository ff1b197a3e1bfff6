"""Settings of experiments: a YAML file read into frozen, strict models, without JAX.

An experiment of your own derives its `Settings` from `Experiment` and may use the sections that are
listed here. A validator that looks at several keys raises `problem(message, *keys, got=...)`; the
error is then reported at the line of the key that it names.
"""

from truncgauss.runs.config.experiment import (
    Experiment,
    folder,
    function,
    is_file,
    line_of,
    lost_schema,
    names,
    stem,
    with_schema,
)
from truncgauss.runs.config.loading import dump, files, load, members, override, schema
from truncgauss.runs.config.sections import (
    Bounds,
    Chains,
    Count,
    DataFile,
    Dtype,
    Gaussian,
    Grid,
    Limit,
    Limits,
    LogGrid,
    Matrix,
    Model,
    Number,
    Positive,
    Seed,
    Share,
    Vector,
    columns_of,
    problem,
    problems,
)
from truncgauss.runs.config.yaml import ConfigError
from truncgauss.tables.names import suggestion

__all__ = [
    "Bounds",
    "Chains",
    "ConfigError",
    "Count",
    "DataFile",
    "Dtype",
    "Experiment",
    "Gaussian",
    "Grid",
    "Limit",
    "Limits",
    "LogGrid",
    "Matrix",
    "Model",
    "Number",
    "Positive",
    "Seed",
    "Share",
    "Vector",
    "columns_of",
    "dump",
    "files",
    "folder",
    "function",
    "is_file",
    "line_of",
    "load",
    "lost_schema",
    "members",
    "names",
    "override",
    "problem",
    "problems",
    "schema",
    "stem",
    "suggestion",
    "with_schema",
]
