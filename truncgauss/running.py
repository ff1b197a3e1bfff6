"""One run of an experiment: precision, devices and cache; results, figure and files.

JAX is imported when an experiment starts, not before: settings decide precision and devices.
"""

import contextlib
import datetime
import inspect
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from truncgauss import completed_runs, report, runs
from truncgauss import config as settings
from truncgauss.completed_runs import CompletedRun
from truncgauss.config import ConfigError, Experiment

ROOT = Path(__file__).resolve().parents[1]


def prepare(config: Experiment) -> None:
    """Set precision, devices and cache, which JAX takes before its first computation only.

    Raises:
        ConfigError: there are fewer devices than the settings ask for.
    """
    os.environ.setdefault("MPLBACKEND", "Agg")
    import jax

    if config.cached:
        _keep_compilations()
    jax.config.update("jax_enable_x64", config.dtype == "float64")
    # JAX refuses once it has started, as in a notebook; there the count may be right already.
    with contextlib.suppress(RuntimeError):
        if config.devices > 1:
            jax.config.update("jax_num_cpu_devices", config.devices)
    here = jax.local_devices()
    if len(here) < config.devices:
        raise ConfigError(
            f"truncgauss: error: devices: there are {len(here)} {here[0].platform} "
            f"(got {config.devices}); devices of the host need JAX_PLATFORMS=cpu and a process of "
            "their own"
        )
    name = settings.stem(config.experiment)
    what = f"{name}, {config.dtype}, {config.devices} x {here[0].device_kind}"
    print(f"truncgauss: {what}", file=sys.stderr)


def compute(folder: Path, config: Experiment, command: list[str]) -> tuple[dict[str, Any], Path]:
    """Run an experiment, draw its figure and write all files.

    Args:
        folder: of the run in progress, from `runs.begin`.
        config: the settings; `prepare` has been called with them.
        command: the words typed, for the provenance.

    Returns:
        The summary, see `runs.summary`, and the folder under its final name.
    """
    import jax

    name = settings.stem(config.experiment)
    started, clock = datetime.datetime.now(datetime.UTC), time.perf_counter()
    with _noted_warnings() as said:
        results = completed_runs.as_stored(_results(config, folder / runs.CHECKPOINT))
    provenance = {
        **runs.circumstances(ROOT, command, jax.local_devices()),
        "dtype": config.dtype,
        "seed": config.seed,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.perf_counter() - clock, 3),
        "warnings": said,
    }
    summary = runs.summary(results)
    try:
        if not summary["reason"]:
            _draw(config, results, folder)
    except Exception:
        final = runs.finish(folder, name, results, provenance)
        print(
            f"truncgauss: the numbers are in {final}, but plot failed. Correct it, and then: "
            f"truncgauss plot {final}",
            file=sys.stderr,
        )
        raise
    return summary, runs.finish(folder, name, results, provenance)


def redraw(run: CompletedRun) -> list[str]:
    """Draw the figure of a complete run again and renew its report; the paths of both.

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
    return [*_draw(config, run.results, run.folder), str(report.write(run))]


def _draw(config: Experiment, results: Mapping[str, Any], folder: Path) -> list[str]:
    from truncgauss import plotting

    stem = folder / settings.stem(config.experiment)
    drawn = settings.function(config.experiment, "plot")(results)
    picture, frames = drawn if isinstance(drawn, tuple) else (drawn, None)
    paths = plotting.save(picture, stem)
    return paths if frames is None else [*paths, plotting.animation(frames, f"{stem}.gif")]


def _results(config: Experiment, checkpoint: Path) -> dict[str, Any]:
    """What an experiment returns, its arrays as NumPy's."""
    import jax
    import numpy as np

    run = settings.function(config.experiment, "run")
    more = {"checkpoint": checkpoint} if "checkpoint" in inspect.signature(run).parameters else {}
    try:
        results: Mapping[str, Any] = run(config, **more)
    except ArithmeticError as error:
        return {"failed": str(error) or type(error).__name__}
    as_numpy = lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
    return jax.tree.map(as_numpy, dict(results))


@contextlib.contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """The texts of the warnings that are shown meanwhile."""
    said: list[str] = []
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        said.append(f"{category.__name__}: {message}")
        show(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = note
        yield said


def _keep_compilations() -> None:
    """Let JAX keep compiled functions in the user's cache folder, or where the environment says."""
    import jax

    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    chosen = {
        "jax_compilation_cache_dir": os.path.join(home, "truncgauss", "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    for option, value in chosen.items():
        if option.upper() not in os.environ and os.path.isabs(home):
            jax.config.update(option, value)
