"""The files to begin with: configs of tables and of built-in experiments, or one's own code."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from truncgauss.execution import writing
from truncgauss.runs import config as settings

ELSEWHERE = (".xls", ".dta", ".sav", ".sas", ".rds", ".RData")  # how files of other programs end


def is_table(name: str) -> bool:
    """Whether a name is that of a table, by its ending.

    Example:
        >>> from truncgauss.runs import starting_point
        >>> starting_point.is_table("folder/my data.csv"), starting_point.is_table("tobin")
        (True, False)
    """
    return Path(name).suffix in (".csv", ".npz", ".parquet")


def write(name: str, wanted: Mapping[str, Any], overwrite: bool = False) -> list[Path]:
    """Write files to begin with into the current folder, and return their paths: the config of a
    fit of a table; that of a built-in experiment, with its data; or else NAME.yaml and the NAME.py
    that it names.

    Args:
        name: of a table, of a built-in experiment, or of one to be written.
        wanted: options of a table, for the function `config` of the experiment that fits them,
            which has a module `start`.
        overwrite: whether files of these names are replaced.

    Raises:
        ValueError: the name cannot be that of a Python file, something else is wanted than the
            table has, or one of the files is there already and not to be overwritten.
        OSError: the table cannot be read.
    """
    contents, configs = dict[str, str | bytes](), settings.folder("configs")
    if is_table(name):
        [module] = settings.folder("experiments").glob("*/start.py")
        experiment, config = module.parent.name, f"{Path(name).stem}.yaml"
        text = settings.function(experiment, "config", "start")(Path(name), config, wanted)
        contents[config] = settings.with_schema(text, experiment)
    elif suffix := Path(name).suffix:
        of_another = "a file of another program: save its table as CSV there"
        what = of_another if suffix.startswith(ELSEWHERE) else "no table that is read"
        raise ValueError(
            f"{name} is {what}; tables are .csv, .parquet or .npz, and a new experiment is a name "
            "without an ending"
        )
    elif options := [key.replace("_", "-") for key, value in wanted.items() if value]:
        raise ValueError(f"new: --{options[0]} is for a table, such as data.csv (got {name})")
    elif not name.isidentifier():
        raise ValueError(f"a name must be letters, digits and underscores (got {name!r})")
    elif name in settings.names():
        shipped = configs / f"{name}.yaml"
        text = settings.with_schema(shipped.read_text("utf-8"), name)
        for path in settings.files(settings.load(shipped)):
            text = text.replace(Path(os.path.relpath(path, configs)).as_posix(), path.name)
            contents[path.name] = path.read_bytes()
        contents = {shipped.name: text, **contents}
    else:
        for kind in ("yaml", "py"):
            text = (configs / "template" / f"experiment.{kind}").read_text("utf-8")
            contents[f"{name}.{kind}"] = text.replace("experiment.py", f"{name}.py")
    paths = [Path(file) for file in contents]
    for path in paths:
        if path.exists() and not overwrite:
            raise ValueError(
                f"{path} is there already, and nothing was written: --overwrite replaces it"
            )
    for path, content in zip(paths, contents.values()):
        writing.write(path, content)
    return paths
