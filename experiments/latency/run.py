"""Fresh processes, one for each task and dimension, measured one after the other."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from truncgauss import fitting

PROBE = Path(__file__).with_name("probe.py")
FIELDS = ("first", "wall", "warm", "compilations", "later", "error")
MOST_OF_A_BATCH = 3  # dimensions; rectangles of more are not integrated to rounding


def run(settings):
    """Processor seconds of first calls, seconds of warm ones, and compilations.

    JAX is imported before a clock starts, and so are the names of the library; what belongs to a
    name is imported when it is first asked for, as part of the first call, from byte code as
    installations have it. `later` counts compilations of warm calls. `kept` are the processor
    seconds of a fit's first call in a process after one that has kept its programs. `error` is the
    root mean square error of log P of values, over `num_calls` keys; NaN of other tasks.
    """
    results, fits = {}, {}
    for name, interpreter, folder in versions_of(settings):
        row(["value"], 1, settings, interpreter, folder)  # writes byte code where there is none
        for task in settings.tasks:
            costs = [
                row([task], d, settings, interpreter, folder)
                if d <= MOST_OF_A_BATCH or not task.endswith("batch")
                else dict.fromkeys(FIELDS, np.nan)
                for d in settings.dimensions
            ]
            results[f"{name}, {task}"] = columns(costs, FIELDS)
        costs = [
            row([fit], 0, settings, interpreter, folder)
            | fitting.computed("kept", kept, fit, settings, interpreter, folder)
            for fit in settings.fits
        ]
        if costs:
            fits[name] = columns(costs, (*FIELDS, "kept", "read"))
    if "value" in settings.tasks:
        costs = [
            row(["scipy", "value"], d, settings, sys.executable, None) for d in settings.dimensions
        ]
        results["SciPy, value"] = columns(costs, FIELDS)
    return {
        "dimensions": np.array(settings.dimensions),
        "costs": results,
        "fits": list(settings.fits),
        "fit_costs": fits,
        "summary": [*summary(settings.dimensions, results), *summary_of_fits(settings.fits, fits)],
    }


def versions_of(settings):
    """Name, interpreter and folder of each version that is measured; None for the installed one."""
    versions = [("truncgauss", sys.executable, None)]
    if settings.baseline is not None:
        folder = Path(settings.baseline).resolve()
        if not (folder / "truncgauss" / "__init__.py").is_file():
            raise ValueError(f"baseline: no truncgauss/__init__.py in {settings.baseline}.")
        versions.append(("baseline", sys.executable, folder))
    for name, interpreter in settings.interpreters.items():
        if shutil.which(interpreter) is None:
            raise ValueError(f"interpreters: {name}: {interpreter} cannot be executed.")
        versions.append((name, interpreter, Path(fitting.__file__).parents[2]))
    return versions


def row(*asked):
    """What `measured` returns, once."""
    return fitting.computed("process", measured, *asked)


def measured(task, dimension, settings, interpreter, folder, cache=None):
    """What `probe` says of one task; programs are kept in the folder `cache`, or nowhere."""
    environment = os.environ | {
        "JAX_ENABLE_COMPILATION_CACHE": "false" if cache is None else "true",
        "JAX_COMPILATION_CACHE_DIR": cache or "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    words = [*task, str(dimension), str(settings.num_calls)]
    done = subprocess.run(
        [interpreter, str(PROBE), *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"latency: {' '.join(words)} failed: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def kept(fit, *version):
    """Processor seconds of a fit in the second of two processes that share a folder of programs,
    and how many programs it read there."""
    with tempfile.TemporaryDirectory() as cache:
        _, second = (measured([fit], 0, *version, cache) for _ in range(2))
    return {"kept": second["first"], "read": second["read"]}


def columns(costs, fields):
    """One array for each field."""
    return {field: np.array([cost[field] for cost in costs], float) for field in fields}


def summary(dimensions, results):
    """A table: processor seconds of the first call, compilations, milliseconds of a warm one."""
    yield "first call in processor seconds (compilations), then a warm call in milliseconds"
    yield " " * 36 + "".join(f"{f'd = {d}':>20}" for d in dimensions)
    for name, cost in results.items():
        cells = zip(cost["first"], cost["compilations"], cost["warm"], strict=True)
        shown = (
            f"{first:.2f} ({count:.0f}) {1e3 * warm:.2f}" if np.isfinite(first) else "-"
            for first, count, warm in cells
        )
        yield f"{name:36}" + "".join(f"{cell:>20}" for cell in shown)
    for name, cost in results.items():
        if np.isfinite(cost["error"]).all():
            yield f"{f'{name}: error of log P':36}" + "".join(f"{x:20.1e}" for x in cost["error"])


def summary_of_fits(names, fits):
    """A table: processor seconds of the first fit, of one with programs kept, of a warm one."""
    if fits:
        yield "first fit in processor seconds (compilations), with programs kept, a warm one"
    for version, cost in fits.items():
        for j, name in enumerate(names):
            first, count, warm, kept = (
                cost[field][j] for field in ("first", "compilations", "warm", "kept")
            )
            yield f"{f'{version}, {name}':44}{first:8.2f} ({count:.0f}){kept:8.2f}{warm:8.2f}"
