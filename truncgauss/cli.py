"""The command line: `truncgauss run | check | schema`.

Exit codes: 0 fine, 1 the run failed numerically, 2 usage or settings, 130 and 143 interrupted.

JAX is imported when an experiment starts, not before: settings decide precision and devices.
"""

import contextlib
import datetime
import importlib
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

import tyro

from truncgauss import config as settings, runs
from truncgauss.config import ConfigError, Experiment

FINE, FAILED, USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
ERROR = "truncgauss: error"
HOME = Path(__file__).resolve().parent


# ---------------------------------------------------------------- what may be typed


@dataclass(frozen=True)
class Run:
    """Run an experiment; further options are its settings: --section.field value ...

    `truncgauss run config.yaml --help` lists them.
    """

    config: tyro.conf.Positional[Path | None] = None
    """A YAML file, or the name of an experiment, for the settings that it comes with."""
    runs: Path = Path("runs")
    """Where the run folder goes."""
    figures: Path | None = None
    """Also put the figure, with its values, here under the experiment's name."""
    resume: Path | None = None
    """Continue the interrupted run in this folder instead."""
    traceback: bool = False
    """Show where in the code a refusal came from."""


@dataclass(frozen=True)
class Check:
    """Check files without running them."""

    configs: tyro.conf.Positional[tuple[Path, ...]]
    """YAML files, or names of experiments."""


@dataclass(frozen=True)
class Schema:
    """Print the JSON schema of the settings."""

    experiment: tyro.conf.Positional[str | None] = None
    """An experiment; all of them if left out."""


def main(argv: Sequence[str] | None = None, experiment: str | None = None) -> int:
    """Do what the command line says and return the exit code.

    Args:
        argv: the words after the program's name; those of this process by default.
        experiment: the only experiment that may be run, if any.

    Example:
        >>> from truncgauss import cli
        >>> cli.main(["check", "nowhere.yaml"])
        2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _termination():
            return _act(words, experiment)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE
    except (ValueError, OSError) as error:
        # Data or settings that the code below refused, in a sentence of its own.
        if "--traceback" in words:
            raise
        print(f"{ERROR}: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt as stop:
        print("truncgauss: interrupted", *stop.args, file=sys.stderr)
        return TERMINATED if "SIGTERM" in stop.args else INTERRUPTED


def console() -> NoReturn:
    """The command `truncgauss`: `main`, and the end of the process.

    JAX's clean-up at exit frees what a computation that cannot be stopped still uses: after an
    interruption that ended in a segmentation fault, and its exit code. So it is left out then.
    """
    leave(main())


def leave(code: int) -> NoReturn:
    """End the process with an exit code of `main`."""
    if code in (INTERRUPTED, TERMINATED):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main_experiment(file: str) -> NoReturn:
    """The last line of an experiment's module: `python -m experiments.x [configs/x.yaml]`.

    Args:
        file: `__file__` of the experiment; its stem is the only experiment that may be run.
    """
    name = Path(file).stem
    leave(main(["run", *(sys.argv[1:] or [name])], experiment=name))


def _act(words: list[str], experiment: str | None) -> int:
    if words[:1] == ["run"] and words[-1] in ("-h", "--help") and len(words) > 2:
        config, name = settings.load(_file(Path(words[1]))), f"truncgauss run {words[1]}"
        # A section of several kinds shows the one that the file chose.
        tyro.cli(
            type(config), default=config, args=["--help"], prog=name,
            config=(tyro.conf.AvoidSubcommands,),
        )  # fmt: skip
    told, rest = tyro.cli(
        Run | Check | Schema, args=words, prog="truncgauss", return_unknown_args=True
    )
    if rest and not isinstance(told, Run):
        raise ConfigError(f"{ERROR}: unknown {rest[0]} (got {' '.join(rest)})")
    match told:
        case Check():
            for path in told.configs:
                print(f"{path}: fine, {settings.load(_file(path)).experiment}")
        case Schema():
            print(json.dumps(settings.schema(told.experiment), indent=2))
        case Run():
            return _run(told, rest, words, experiment)
    return FINE


def _file(path: Path) -> Path:
    """The config file, be it given by its path or by the name of an experiment."""
    folders = (HOME / "configs", HOME.parent / "configs")
    shipped = [folder / f"{path}.yaml" for folder in folders if str(path) in settings.EXPERIMENTS]
    return next((file for file in shipped if file.is_file() and not path.exists()), path)


@contextlib.contextmanager
def _termination() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt("SIGTERM")

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # only the main thread may; elsewhere SIGTERM keeps its meaning
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# ---------------------------------------------------------------- one run


def _run(told: Run, rest: list[str], words: list[str], only: str | None) -> int:
    if (told.config is None) == (told.resume is None) or (told.resume and rest):
        raise ConfigError(f"{ERROR}: run takes a config, or --resume FOLDER and no settings")
    folder = None
    if told.resume:
        folder = runs.unfinished(told.resume)
        config = settings.load(folder / "config.yaml")
    else:
        config = settings.override(settings.load(_file(told.config)), rest)
    if only not in (None, config.experiment):
        raise ConfigError(f"{told.config}: experiment: must be {only} (got {config.experiment})")
    module = _module(config.experiment)
    _prepare(config)
    folder = folder or runs.begin(told.runs, config.experiment, settings.dump(config))
    try:
        return _compute(folder, module, config, told, words)
    finally:
        if folder.is_dir() and runs.abandon(folder):
            print(f"truncgauss: to continue: truncgauss run --resume {folder}", file=sys.stderr)


def _compute(
    folder: Path, module: ModuleType, config: Experiment, told: Run, words: list[str]
) -> int:
    """Run, draw, write all files and tell the result."""
    import jax

    from truncgauss import plotting

    name = config.experiment
    started, clock = datetime.datetime.now(datetime.UTC), time.perf_counter()
    results = _results(module.run, config, folder / runs.CHECKPOINT)
    provenance = {
        **runs.circumstances(HOME.parent, ["truncgauss", *words], jax.local_devices()),
        "dtype": config.dtype,
        "seed": config.seed,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - clock, 3),
    }
    told_lines = runs.summary(results)
    failed = told_lines["reason"]
    if not failed:
        plotting.save(module.plot(results), folder / name)
    final = runs.finish(folder, name, results, provenance)
    if told.figures and not failed:
        runs.publish(told.figures, name, final)
    print(*told_lines["summary"], *([f"failed: {failed}"] if failed else ()), sep="\n")
    print(f"run folder: {final}")
    return FAILED if failed else FINE


def _results(run: Callable[..., Mapping], config: Experiment, checkpoint: Path) -> dict[str, Any]:
    """What an experiment returns, its arrays as NumPy's."""
    import jax
    import numpy as np

    more = {"checkpoint": checkpoint} if "checkpoint" in inspect.signature(run).parameters else {}
    try:
        results = run(config, **more)
    except ArithmeticError as error:
        return {"failed": str(error) or type(error).__name__}
    as_numpy = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
    return jax.tree.map(as_numpy, dict(results))


def _prepare(config: Experiment) -> None:
    """Precision and devices, which JAX takes before its first computation only."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    import jax

    jax.config.update("jax_enable_x64", config.dtype == "float64")
    # JAX refuses once it has started, as in a notebook; there the count may be right already.
    with contextlib.suppress(RuntimeError):
        if config.devices > 1:
            jax.config.update("jax_num_cpu_devices", config.devices)
    here = jax.local_devices()
    if len(here) < config.devices:
        raise ConfigError(
            f"{ERROR}: devices: there are {len(here)} {here[0].platform} (got {config.devices}); "
            "devices of the host need JAX_PLATFORMS=cpu and a process of their own"
        )
    what = f"{config.experiment}, {config.dtype}, {config.devices} x {here[0].device_kind}"
    print(f"truncgauss: {what}", file=sys.stderr)


def _module(name: str) -> ModuleType:
    """The experiment's code: inside an installed package, beside it in a checkout."""
    package = "experiments"
    if (HOME / package).is_dir():
        package = "truncgauss.experiments"
    elif str(HOME.parent) not in sys.path:
        sys.path.insert(0, str(HOME.parent))
    try:
        return importlib.import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name not in (package, f"{package}.{name}"):
            raise
        raise ConfigError(f"{ERROR}: the code of {name} is not there ({error})") from error


if __name__ == "__main__":
    console()
