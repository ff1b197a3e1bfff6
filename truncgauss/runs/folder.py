"""The folder of a run: its settings, results and provenance.

A run works in `<experiment>-<UTC time>.partial`, which gets its final name when every file is
written. Whatever interrupts it, a folder without that ending is complete.

    config.yaml       the settings, resolved: they rerun the experiment
    result.npz        every array of the result
    summary.json      how it ended, the summary's lines, the scalars
    metrics.jsonl     one line for each reported step, if there are any
    provenance.json   command, versions, devices, dtype, seed, commit
    <experiment>.png  the figure, with an .svg beside it, and a .gif if it moves
    inputs.json       digests of the data files, if there are any
    <experiment>.py   a copy of the experiment, if it is a file of the user's own
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.arrays.archive import archive
from truncgauss.execution import writing
from truncgauss.runs import config as settings
from truncgauss.runs.config.experiment import Experiment
from truncgauss.runs.results import arrays, jsonable, nested, outcome

PACKAGES = ("truncgauss", "jax", "jaxlib", "numpy", "scipy", "numpyro", "optax", "matplotlib")
SUMMARY = ("experiment", "status", "reason", "summary", "values")  # keys of summary.json
PARTIAL = ".partial"
CHECKPOINT, LOCK, INPUTS = "checkpoint/work.npz", ".lock", "inputs.json"


def begin(runs: Path, config: Experiment, name: str | None = None) -> Path:
    """A new folder for a run in progress, its own even if two start in the same second: with the
    settings, digests of the data files, and a copy of an experiment of the user's own.

    Args:
        runs: where run folders are.
        config: the settings.
        name: of the folder; by default the experiment and the time.

    Raises:
        ValueError: there is a folder of that name.
    """
    experiment, inputs = config.experiment, settings.files(config)
    stem = f"{settings.stem(experiment)}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}"
    later = (f"{stem}-{number}" for number in itertools.count(2))
    for final in [name] if name else itertools.chain([stem], later):
        try:
            # Claim first and look afterwards: a run that ends meanwhile gives up its claim.
            (folder := runs / f"{final}{PARTIAL}").mkdir(parents=True)
        except FileExistsError:
            if not runs.is_dir():
                raise
            continue
        if not (runs / final).exists():
            break
        folder.rmdir()
    else:
        raise ValueError(f"{runs / final} is there already")
    try:
        if settings.is_file(experiment):
            writing.write(folder / Path(experiment).name, Path(experiment).read_bytes())
        if inputs:
            _write_json(folder / INPUTS, {str(path): _digest(path) for path in inputs})
        # Last and in one step: a folder with settings is a run that can be continued.
        text = settings.with_schema(settings.dump(config), experiment)
        writing.write(folder / "config.yaml", text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def writable(folder: Path) -> None:
    """Try to write to a folder or, if it is not there yet, to the one that it will be made in.

    Raises:
        OSError: that is not possible.
    """
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:  # without the name of the file that was tried
        raise type(error)(error.errno, error.strerror, str(folder)) from error


def unfinished(folder: Path) -> Path:
    """The folder of an interrupted run, named with or without its ending.

    Raises:
        ValueError: the run is complete, or there is none.
    """
    partial = folder if folder.suffix == PARTIAL else folder.with_name(f"{folder.name}{PARTIAL}")
    if not (partial / "config.yaml").is_file():
        complete = folder.with_name(folder.name.removesuffix(PARTIAL))
        if (complete / "summary.json").is_file():
            raise ValueError(f"that run is complete, its results are in {complete}")
        raise ValueError(f"no such run (got {folder}); `truncgauss list` shows those there are")
    return partial


def check_unchanged(folder: Path, config: Experiment) -> None:
    """Compare the data files of an interrupted run, and the file of an experiment of the user's
    own, with what they were when it began.

    Raises:
        ValueError: one has changed, or is gone.
    """
    source = Path(config.experiment)
    if settings.is_file(config.experiment) and (
        source.read_bytes() != (folder / source.name).read_bytes()
    ):
        raise ValueError(
            f"{source} has changed since the run began: put back what is in {folder}, or start a "
            "new run"
        )
    noted = folder / INPUTS
    digests = json.loads(noted.read_text("utf-8")) if noted.is_file() else {}
    for name, digest in digests.items():
        path = Path(name)
        if not path.is_file() or _digest(path) != digest:
            what = "has changed" if path.is_file() else "is gone"
            raise ValueError(f"{name} {what} since the run began: put it back, or start a new run")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Within this context the run in a folder belongs to this process alone.

    Where the system has no such locks, as on Windows, nothing is claimed.

    Raises:
        ValueError: another process is running it.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / LOCK).open("w") as file:
        for attempt in (1, 2):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == 2:
                    what = f"another process is running {folder}: wait for its end"
                    raise ValueError(what) from error
                time.sleep(0.1)  # `is_running` holds the lock for a moment
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def is_running(folder: Path) -> bool:
    """Whether a process is running the run in a folder; no where the system has no locks."""
    try:
        import fcntl

        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False


def finish(
    folder: Path, experiment: str, results: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Path:
    """Write what came out into a folder from `begin`, which may have the figure already, and give
    it its final name, which is returned.

    Results are arrays, numbers and texts by name, and dictionaries of them. `summary` (lines),
    `metrics` (dictionaries) and `failed` (a reason) are kept apart from the numbers.

    Raises:
        TypeError: a result that is none of these.
    """
    numbers: dict[str, Any] = dict(arrays(results))
    writing.write_arrays(folder / "result.npz", numbers, np.savez_compressed)
    if "metrics" in results:
        rows = (json.dumps(jsonable(row), allow_nan=False) for row in results["metrics"])
        writing.write(folder / "metrics.jsonl", "".join(f"{row}\n" for row in rows))
    _write_json(folder / "provenance.json", provenance)
    _write_json(folder / "summary.json", {"experiment": experiment, **outcome(results)})
    (folder / LOCK).unlink(missing_ok=True)
    final = folder.rename(folder.with_name(folder.name.removesuffix(PARTIAL)))
    # Not before the result has its name.
    shutil.rmtree((final / CHECKPOINT).parent, ignore_errors=True)
    return final


class CompletedRun(NamedTuple):
    """The contents of the folder of a run; see above.

    Attributes:
        folder: where it is.
        results: what the experiment returned, as it reaches `plot`.
        summary: how it ended.
        provenance: how it was made.
    """

    folder: Path
    results: dict[str, Any]
    summary: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def experiment(self) -> str:
        """The name under which the figure is stored."""
        return str(self.summary["experiment"])


def read(folder: Path) -> CompletedRun:
    """The run in a folder.

    Raises:
        ValueError: there is none, it is not complete, or one of its files cannot be read.
    """
    if not (folder / "summary.json").is_file():
        begun = folder if folder.suffix == PARTIAL else folder.with_name(f"{folder.name}{PARTIAL}")
        if begun.is_dir():
            raise ValueError(
                f"that run is not complete; to finish it: truncgauss run --resume {begun} "
                f"(got {folder})"
            )
        if folder.suffix in (".yaml", ".yml") and folder.is_file():
            raise ValueError(
                f"{folder} is a config: give the folder of a run, which `truncgauss run {folder}` "
                "makes"
            )
        what = "a folder, but not of a run" if folder.is_dir() else "no such run"
        raise ValueError(f"{what} (got {folder}); `truncgauss list` shows those there are")
    names = ("summary.json", "provenance.json", "result.npz")
    ended, provenance, numbers = (_contents(folder / name) for name in names)
    results = nested(numbers)
    if (metrics := folder / "metrics.jsonl").is_file():
        results["metrics"] = _contents(metrics)
    results |= {"summary": ended["summary"], "failed": ended["reason"]}
    return CompletedRun(folder, results, ended, provenance)


def _contents(path: Path) -> Any:
    """The contents of a file of a run: arrays by name, or values of JSON.

    Raises:
        ValueError: it cannot be read; with what to do.
    """
    try:
        if path.suffix == ".npz":
            with archive(path) as stored:
                return {name: stored[name] for name in stored.files}
        text = path.read_text("utf-8")
        try:
            if path.suffix == ".jsonl":
                return [json.loads(line) for line in text.splitlines()]
            content = json.loads(text)
        except ValueError as error:
            raise ValueError("it is torn, or no JSON") from error
        if not isinstance(content, dict):
            raise ValueError("it should hold an object of JSON")
        missing = [key for key in SUMMARY if key not in content]
        if path.name == "summary.json" and missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return content
    except (OSError, ValueError) as error:
        why = writing.said(error) if isinstance(error, OSError) else f"{path}: {error}"
        raise ValueError(
            f"the run cannot be read: {why}. Put back a copy of that file, or make the run again: "
            f"truncgauss run {path.with_name('config.yaml')}"
        ) from error


def publish(figures: Path, run: CompletedRun) -> None:
    """Copy the figure of a complete run, with a JSON file of what it shows and how it was made."""
    figures.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg", "gif"):
        for picture in run.folder.glob(f"{run.experiment}.{suffix}"):
            writing.write(figures / picture.name, picture.read_bytes())
    kept = ("versions", "devices", "dtype", "seed", "commit", "dirty")
    about = {
        "experiment": run.experiment,
        "summary": run.summary["summary"],
        "values": run.summary["values"],
        **{key: run.provenance[key] for key in kept if key in run.provenance},
    }
    _write_json(figures / f"{run.experiment}.json", about)


def circumstances(root: Path, command: Sequence[str], devices: Sequence[Any]) -> dict[str, Any]:
    """Provenance: the words typed, versions, machine, devices as JAX lists them, and the commit of
    a checkout at `root`, the folder that holds the package, and whether files differ from it."""

    def git(*words: str) -> str:
        command = ("git", "-C", str(root), *words)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    commit, dirty = None, None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # An environment inside somebody's repository is not a checkout of this project.
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root.resolve():
            commit, dirty = git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": list(command),
        "versions": versions,
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
        "commit": commit,
        "dirty": dirty,
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(jsonable(content), indent=2, allow_nan=False, ensure_ascii=False)
    writing.write(path, f"{text}\n")
