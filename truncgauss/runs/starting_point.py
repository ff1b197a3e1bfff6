"""The files to begin with: configs of tables and of built-in experiments, or one's own code."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from truncgauss.execution import files
from truncgauss.runs import config as settings


def write(name: str, folder: Path = Path(), overwrite: bool = False) -> list[Path]:
    """Write NAME.yaml, with the data or the NAME.py that it names, and return their paths.

    Raises:
        ValueError: the name cannot be that of a Python file, or one of the files is there already
            and not to be overwritten.
    """
    if not name.isidentifier():
        raise ValueError(f"a name must be letters, digits and underscores (got {name!r})")
    contents: dict[str, str | bytes] = {}
    if name in settings.names():
        contents = _built_in(name)
    else:
        template = settings.folder("configs") / "template"
        for kind in ("yaml", "py"):
            text = (template / f"experiment.{kind}").read_text("utf-8")
            contents[f"{name}.{kind}"] = text.replace("experiment.py", f"{name}.py")
    return _written({folder / file: content for file, content in contents.items()}, overwrite)


def is_table(name: str) -> bool:
    """Whether a name is that of a table, by its ending.

    Example:
        >>> from truncgauss.runs import starting_point
        >>> starting_point.is_table("folder/my data.csv"), starting_point.is_table("tobin")
        (True, False)
    """
    return Path(name).suffix in (".csv", ".npz", ".parquet")


def write_of_table(table: Path, wanted: Mapping[str, Any], overwrite: bool = False) -> list[Path]:
    """Write the config of a fit of a table, under the table's name in the current folder.

    The experiment with a module `start` fits tables; its function `config` says what may be wanted.

    Args:
        table: the file.
        wanted: options, by name.
        overwrite: whether a config of that name is replaced.

    Raises:
        ValueError: something else is wanted than the table has, or the config is there already and
            not to be overwritten.
        OSError: the table cannot be read.
    """
    [module] = settings.folder("experiments").glob("*/start.py")
    experiment, path = module.parent.name, Path(f"{table.stem}.yaml")
    _refuse_present([path], overwrite)
    text = settings.function(experiment, "config", "start")(table, path.name, wanted)
    return _written({path: settings.with_schema(text, experiment)}, overwrite)


def _written(texts: Mapping[Path, str | bytes], overwrite: bool) -> list[Path]:
    _refuse_present(texts, overwrite)
    for path, text in texts.items():
        files.write(path, text)
    return list(texts)


def _refuse_present(paths: Iterable[Path], overwrite: bool) -> None:
    for path in paths:
        if path.exists() and not overwrite:
            raise ValueError(
                f"{path} is there already, and nothing was written: --overwrite replaces it"
            )


def _built_in(name: str) -> dict[str, str | bytes]:
    """The config of a built-in experiment and its data, by the names of their files."""
    configs = settings.folder("configs")
    shipped = configs / f"{name}.yaml"
    text, data = settings.with_schema(shipped.read_text("utf-8"), name), dict[str, str | bytes]()
    for path in settings.files(settings.load(shipped)):
        text = text.replace(Path(os.path.relpath(path, configs)).as_posix(), path.name)
        data[path.name] = path.read_bytes()
    return {shipped.name: text, **data}
