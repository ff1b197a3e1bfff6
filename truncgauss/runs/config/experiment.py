"""The contract of an experiment, and where experiments are found.

An experiment brings three things: `Settings`, a subclass of `Experiment` with its own keys;
`run(settings)`, which computes; and `plot(results)`, which draws. A built-in one is a folder of
`experiments/` with the modules `settings`, `run` and `plot`; one of your own is a single Python
file. What `run` returns and `plot` takes is described in `experiments/__init__.py`.
"""

import importlib
import importlib.util
import os
import re
import sys
import urllib.parse
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from pydantic import field_validator

from truncgauss.runs.config.sections import Count, Dtype, Model, Seed, Swept, problem
from truncgauss.runs.config.yaml import ConfigError
from truncgauss.words.names import suggestion

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "truncgauss.experiments"
SCHEMA = "# yaml-language-server: $schema="  # how the first line of a config begins, for editors


class Experiment(Model):
    """The settings that every experiment has; `Settings` of each adds its own.

    Example:
        >>> from truncgauss import config
        >>> class Settings(config.Experiment):
        ...     limits: config.Limits
        >>> given = {"experiment": "mine.py", "seed": 1, "limits": {"low": (0.0,), "high": (1.0,)}}
        >>> Settings.model_validate(given).limits.high
        (1.0,)
    """

    cached: ClassVar[bool] = True
    """Whether compiled functions may come from the cache of an earlier run: not where compilation
    is timed."""
    spreads: ClassVar[bool] = False
    """Whether `run` spreads its work over `devices`; more than one is refused elsewhere."""

    experiment: str
    """The name of a built-in experiment, or the path of a Python file of your own."""
    seed: Seed = 0
    """The only source of randomness."""
    devices: Count = 1
    """Devices to split the host into; more than 1 only where an experiment can share its work."""
    dtype: Dtype = "float64"
    """The precision of the run."""
    sweep: Swept | None = None
    """Values for some settings, as `section.field: [value, ...]`; their product is run."""

    def read_data(self) -> Any:
        """The contents of the data files that the settings name; `check` reads them too. Here none.

        Raises:
            ValueError: a file that cannot be used, or a value in it; the sentence has the place.
            OSError: a file that cannot be read.
        """
        return None

    @field_validator("devices")
    @classmethod
    def _are_used(cls, devices: int) -> int:
        """Refuse devices that would stand idle."""
        if devices > 1 and not cls.spreads:
            raise problem("must be 1: this experiment does not spread its work", got=devices)
        return devices


def folder(name: str) -> Path:
    """`experiments/` or `configs/`: inside an installed package, beside it in a checkout."""
    inside = ROOT / name
    return inside if inside.is_dir() else ROOT.parent / name


def names() -> list[str]:
    """The built-in experiments, in alphabetical order."""
    return sorted(path.parent.name for path in folder("experiments").glob("*/settings.py"))


def is_file(experiment: str) -> bool:
    """Whether an experiment is a file of the user's own, and not the name of a built-in one."""
    return experiment.endswith(".py")


def stem(experiment: str) -> str:
    """The name under which an experiment's runs and figures are stored: of folder/mine.py mine."""
    return Path(experiment).stem if is_file(experiment) else experiment


def settings_of(experiment: str) -> type[Experiment]:
    """The settings model of an experiment, by its name, or the path of your own file, which is
    executed; a built-in `run` is not.

    Raises:
        ConfigError: no such experiment, or one that breaks the contract, in a sentence.
    """
    if not is_file(experiment):
        if experiment not in names():
            raise ConfigError(f"unknown; {suggestion(experiment, names())}")
        return _built_in(experiment, "settings").Settings
    module = _executed(Path(experiment))
    model = getattr(module, "Settings", None)
    if not (isinstance(model, type) and issubclass(model, Experiment)):
        raise ConfigError("needs a class Settings, derived from truncgauss.runs.config.Experiment")
    for name in ("run", "plot"):
        if not callable(getattr(module, name, None)):
            raise ConfigError(f"needs a function {name}")
    return model


def function(experiment: str, name: str, part: str = "") -> Callable[..., Any]:
    """`run` or `plot` of an experiment whose settings have been loaded, or a function of another
    part of a built-in one."""
    if is_file(experiment):
        return getattr(sys.modules[_module_name(Path(experiment))], name)
    return getattr(_built_in(experiment, part or name), name)


def _built_in(experiment: str, part: str) -> ModuleType:
    """A module of a built-in experiment; in a checkout their package lies outside of ours."""
    if PACKAGE not in sys.modules:
        _execute(PACKAGE, folder("experiments") / "__init__.py")
    return importlib.import_module(f"{PACKAGE}.{experiment}.{part}")


def _executed(path: Path) -> ModuleType:
    """The module in a user's file, executed anew if the file has changed since."""
    if not os.path.isfile(path):
        raise ConfigError("no such file")
    name, stamp = _module_name(path), (path.stat().st_mtime_ns, path.stat().st_size)
    if name in sys.modules and vars(sys.modules[name]).get("__stamp__") == stamp:
        return sys.modules[name]
    try:
        module = _execute(name, path)
        vars(module)["__stamp__"] = stamp
        return module
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        line = line_of(error, path)
        own = isinstance(error, SyntaxError)  # its own text has the line
        raise ConfigError(
            f"cannot be loaded: {what}{'' if own or line is None else f' (line {line})'}"
        ) from error


def line_of(error: BaseException, path: Path) -> int | None:
    """The innermost line of a file through which an error came, if it did."""
    line, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _module_name(path: Path) -> str:
    """A name that no other module has, so that a file called jax.py is in nobody's way."""
    return f"experiment_{path.stem}_{zlib.crc32(str(path).encode()):08x}"


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, f"{path} is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not from bytecode, which is known by the size and second of a file that may be edited.
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


# ---------------------------------------------------------------- the schema of a config


def schema_line(experiment: str) -> str:
    """The line of a config of a built-in experiment, valid wherever the config lies on this
    machine; none for an experiment of the user's own, whose schema changes with its file."""
    if is_file(experiment):
        return ""
    return f"{SCHEMA}{(folder('configs') / 'schema.json').as_uri()}\n"


def with_schema(text: str, experiment: str) -> str:
    """The text of a config with the line of `schema_line`, in place of one that it may have."""
    return schema_line(experiment) + re.sub(rf"\A{re.escape(SCHEMA)}.*\n", "", text)


def lost_schema(path: Path, experiment: str) -> str:
    """Advice about the line of a config that was copied away from its schema; empty otherwise."""
    match = re.match(rf"{re.escape(SCHEMA)}(\S+)", path.read_text("utf-8"))
    place = match[1] if match else ""
    name = urllib.parse.unquote(place.removeprefix("file://"))
    if not place or (path.parent / name).exists() or "://" in name:
        return ""
    line = schema_line(experiment).strip()
    instead = f"write {line}" if line else "leave the line out"
    return f"{path}:1: editors do not find the schema {place}; {instead}"
