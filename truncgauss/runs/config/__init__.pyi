from truncgauss.runs.config.experiment import (
    Experiment as Experiment,
    folder as folder,
    function as function,
    is_file as is_file,
    line_of as line_of,
    lost_schema as lost_schema,
    names as names,
    stem as stem,
    with_schema as with_schema,
)
from truncgauss.runs.config.loading import (
    dump as dump,
    files as files,
    load as load,
    members as members,
    override as override,
    schema as schema,
)
from truncgauss.runs.config.sections import (
    Bounds as Bounds,
    Chains as Chains,
    Count as Count,
    DataFile as DataFile,
    Dtype as Dtype,
    Gaussian as Gaussian,
    Grid as Grid,
    Limit as Limit,
    Limits as Limits,
    LogGrid as LogGrid,
    Matrix as Matrix,
    Model as Model,
    Number as Number,
    Positive as Positive,
    Seed as Seed,
    Share as Share,
    Vector as Vector,
    columns_of as columns_of,
    problem as problem,
    problems as problems,
)
from truncgauss.runs.config.yaml import ConfigError as ConfigError
from truncgauss.words.names import suggestion as suggestion
