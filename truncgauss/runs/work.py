"""Runs of an experiment, one or those of a sweep: devices and cache; results, figure and files.

JAX is imported when an experiment starts, not before: settings decide precision and devices.
"""

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.execution import writing
from truncgauss.runs import config as settings
from truncgauss.runs import folder as run_folder
from truncgauss.runs.config.experiment import Experiment
from truncgauss.runs.config.yaml import ConfigError
from truncgauss.runs.results import as_stored, outcome

ROOT = Path(__file__).resolve().parents[2]


class MistakeInCode(Exception):
    """A mistake in the file of an experiment of the user's own, with its line."""


def prepare(config: Experiment, others: Sequence[Any] | None = None) -> None:
    """Set precision, devices and cache, which JAX takes before its first computation only; and
    share the run with other processes, by what `distributed.join` takes.

    Raises:
        ValueError: there are fewer devices than the settings ask for, or the experiment does not
            spread its work, which others are to share.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    import jax

    from truncgauss.arrays import compiling

    if config.cached and compiling.cache_folder():
        try:
            compiling.use_compilation_cache()
        except PermissionError as error:
            print(f"truncgauss: programs are not kept: {error}", file=sys.stderr)
    jax.config.update("jax_enable_x64", config.dtype == "float64")
    # JAX refuses once it has started, as in a notebook; there the count may be right already.
    with contextlib.suppress(RuntimeError):
        if config.devices > 1:
            jax.config.update("jax_num_cpu_devices", config.devices)
    if others is not None:
        if not config.spreads:
            raise ValueError(
                "--distributed: this experiment does not spread its work, so that every process "
                "would do all of it"
            )
        from truncgauss.execution import distributed

        distributed.join(*others)
        which = f"process {jax.process_index()} of {jax.process_count()}"
        print(f"truncgauss: {which}", file=sys.stderr)
    here = jax.local_devices()
    if len(here) < config.devices:
        raise ValueError(
            f"devices: there are {len(here)} {here[0].platform} (got {config.devices}); devices of "
            "the host need JAX_PLATFORMS=cpu and a process of their own"
        )
    name = settings.stem(config.experiment)
    what = f"{name}, {config.dtype}, {jax.device_count()} x {here[0].device_kind}"
    print(f"truncgauss: {what}", file=sys.stderr)


def assist(config: Experiment, save_every: float) -> str:
    """Do this process's part of a run of which another one writes the files; why it failed."""
    with tempfile.TemporaryDirectory() as scratch:
        results = _results(config, Path(scratch) / run_folder.CHECKPOINT, save_every)
        return str(outcome(results)["reason"])


def run(
    config: Experiment,
    command: list[str],
    save_every: float,
    parent: Path,
    resumed: Path | None = None,
    name: str | None = None,
) -> run_folder.CompletedRun:
    """Begin a run, or continue one; compute it, draw its figure and write all files. `prepare` has
    been called with its settings.

    Args:
        command: the words typed, for the provenance.
        save_every: seconds between two checkpoints.
        parent: the folder of run folders.
        resumed: the folder of an interrupted run of these settings.
        name: of the new folder; by default the experiment and the time.

    Raises:
        ValueError: the run cannot be continued, since another process runs it, or since its data or
            code have changed.
    """
    import jax

    from truncgauss.arrays.progress import bar

    stem = settings.stem(config.experiment)
    if resumed:
        run_folder.check_unchanged(resumed, config)
    folder = resumed or run_folder.begin(parent, config, name)
    said, show = list[str](), warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        said.append(f"{category.__name__}: {message}")
        show(message, category, *where, **more)

    with run_folder.claimed(folder):
        started, clock = datetime.datetime.now(datetime.UTC), time.perf_counter()
        try:
            with warnings.catch_warnings(), bar(None, "", True):
                warnings.showwarning = note
                results = _results(config, folder / run_folder.CHECKPOINT, save_every)
            provenance = {
                **run_folder.circumstances(ROOT, command, jax.local_devices()),
                "dtype": config.dtype,
                "seed": config.seed,
                "started": started.isoformat(timespec="seconds"),
                "seconds": round(time.perf_counter() - clock, 3),
                "warnings": said,
            }
            try:
                if not outcome(results)["reason"]:
                    with bar(None, "drawing the figure", True):
                        _draw(config, results, folder)
            except Exception:
                final = run_folder.finish(folder, stem, results, provenance)
                print(
                    f"truncgauss: the numbers are in {final}, but plot failed. Correct it, and "
                    f"then: truncgauss plot {final}",
                    file=sys.stderr,
                )
                raise
            return run_folder.read(run_folder.finish(folder, stem, results, provenance))
        except BaseException as error:
            stopped, advice = isinstance(error, KeyboardInterrupt), ""
            refused = isinstance(error, ValueError | OSError)  # in words of its own
            if (folder / run_folder.CHECKPOINT).is_file():
                advice = f"to continue: truncgauss run --resume {folder}"
            elif folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                if stopped or (jax.process_count() > 1 and not refused):
                    advice = "nothing was saved yet; start the run again"
            if name and stopped:
                advice = "the same command goes on from this run"
            if advice:
                print(f"truncgauss: {advice}", file=sys.stderr)
            raise


def sweep_folder(parent: Path, config: Experiment) -> Path:
    """The folder of the runs of a sweep."""
    digest = hashlib.sha256(settings.dump(config).encode()).hexdigest()[:8]
    return parent / f"{settings.stem(config.experiment)}-sweep-{digest}"


def sweep(
    folder: Path,
    config: Experiment,
    command: list[str],
    save_every: float,
    index: int | None = None,
) -> bool:
    """Make the runs of a sweep that are not complete yet, or one of them; whether one has failed,
    now or before.

    Args:
        folder: from `sweep_folder`, made if it is not there yet.
        command, save_every: as of `run`.
        index: which run to make alone, 0 for the first.

    Raises:
        ValueError: there is no such run, or settings or data of one cannot be used.
    """
    members = settings.members(config)
    if index is not None and not 0 <= index < len(members):
        raise ValueError(
            f"--index must be 0 to {len(members) - 1}, as the sweep has {len(members)} runs (got "
            f"{index})"
        )
    folder.mkdir(parents=True, exist_ok=True)
    text = settings.with_schema(settings.dump(config), config.experiment)
    writing.write(folder / "config.yaml", text)
    for number in range(len(members)) if index is None else (index,):
        changes, member = members[number]
        final = folder / f"{number:03d}"
        if (final / "summary.json").is_file():
            continue
        partial = final.with_name(f"{final.name}{run_folder.PARTIAL}")
        shown = ", ".join(f"{name} = {value}" for name, value in changes.items())
        print(f"truncgauss: run {number + 1} of {len(members)}: {shown}", file=sys.stderr)
        prepare(member)
        there = partial if (partial / "config.yaml").is_file() else None
        run(member, command, save_every, folder, resumed=there, name=final.name)
    which = "*" if index is None else f"{index:03d}"
    ended = (json.loads(path.read_text("utf-8")) for path in folder.glob(f"{which}/summary.json"))
    return any(each["reason"] for each in ended)


def redraw(run: run_folder.CompletedRun) -> list[str]:
    """Draw the figure of a complete run again; the paths of its files.

    Raises:
        ValueError: the run failed, so that it has no figure.
        ConfigError: its experiment is not there any more.
    """
    if run.summary["reason"]:
        raise ValueError(f"that run failed and has no figure: {run.summary['reason']}")
    os.environ.setdefault("MPLBACKEND", "Agg")
    import jax

    config = settings.load(run.folder / "config.yaml")
    jax.config.update("jax_enable_x64", config.dtype == "float64")
    return _draw(config, run.results, run.folder)


def _draw(config: Experiment, results: Mapping[str, Any], folder: Path) -> list[str]:
    from truncgauss import plotting

    stem = folder / settings.stem(config.experiment)
    with _placed(config.experiment):
        drawn = settings.function(config.experiment, "plot")(results)
    picture, *moving = drawn if isinstance(drawn, tuple) and len(drawn) == 2 else (drawn,)
    if not hasattr(picture, "savefig"):
        raise MistakeInCode(
            f"{config.experiment}: plot must return a matplotlib Figure, or a pair of it and the "
            f"bytes of a GIF (got {type(drawn).__name__})"
        )
    for content in moving:
        writing.write(f"{stem}.gif", content)
    return [*plotting.save(picture, stem), *(f"{stem}.gif" for _ in moving)]


def _results(config: Experiment, checkpoint: Path, save_every: float) -> dict[str, Any]:
    """The arrays, numbers and texts that an experiment returns."""
    import jax

    from truncgauss.arrays.progress import bar

    with bar(None, "loading the program", True):
        from truncgauss import fitting
        from truncgauss.arrays import parallel

        run = settings.function(config.experiment, "run")
    alone = jax.process_count() == 1
    if not alone:
        _agree(config, checkpoint)
    mesh = parallel.device_mesh(config.devices if alone else None) if config.spreads else None
    try:
        with parallel.rows(mesh), fitting.resumable(checkpoint, save_every, settings=repr(config)):
            with _placed(config.experiment):
                results = run(config)
                if not isinstance(results, Mapping):
                    raise MistakeInCode(
                        f"{config.experiment}: run must return a dictionary of results by name "
                        f"(got {type(results).__name__})"
                    )
                return as_stored(results)
    except ArithmeticError as error:
        return {"failed": _located(error, config.experiment) or type(error).__name__}


@contextlib.contextmanager
def _placed(experiment: str) -> Iterator[None]:
    """Say of errors in a user's own file where they are; a failed computation stays one.

    Raises:
        ValueError: the code refuses its data or settings.
        MistakeInCode: any other error.
    """
    try:
        yield
    except (ArithmeticError, OSError, ConfigError, MistakeInCode):
        raise
    except ValueError as error:
        raise ValueError(_located(error, experiment)) from error
    except Exception as error:
        if not settings.is_file(experiment):
            raise
        what = f"{type(error).__name__}: {_located(error, experiment)}"
        raise MistakeInCode(f"{what}; --traceback shows more") from error


def _located(error: Exception, experiment: str) -> str:
    """The text of an error, and the line of a user's own file that it came from."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    line = settings.line_of(error, Path(experiment)) if settings.is_file(experiment) else None
    return f"{said} ({Path(experiment).name}, line {line})" if line else said


def _agree(config: Experiment, checkpoint: Path) -> None:
    """Compare settings and programs with those of the other processes, and hand on the first one's
    checkpoint."""
    import jax
    from jax.experimental import multihost_utils

    from truncgauss.arrays import parallel

    own_file = Path(config.experiment) if settings.is_file(config.experiment) else None
    sources = [*sorted(ROOT.glob("truncgauss/**/*.py")), *([own_file] if own_file else [])]
    program = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    versions = jax.__version__, np.__version__
    same = settings.dump(config).replace(config.experiment, "")  # a path may differ
    text = f"{versions}\n{same}"
    parallel.agreed("the settings", np.frombuffer(text.encode(), np.uint8))
    parallel.agreed("the programs", np.uint32(program))
    saved = checkpoint.read_bytes() if checkpoint.is_file() else b""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(saved))))
    assistant = jax.process_index() > 0
    content = np.zeros(size, np.uint8) if assistant else np.frombuffer(saved, np.uint8)
    content = multihost_utils.broadcast_one_to_all(content)
    if size and assistant:
        checkpoint.parent.mkdir(parents=True)
        writing.write(checkpoint, content.tobytes())
