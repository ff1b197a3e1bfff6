"""Fresh processes, one for each task and dimension, measured one after the other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from truncgauss import fitting

PROBE = Path(__file__).with_name("probe.py")
FIELDS = ("first", "wall", "warm", "compilations", "later")


def run(settings):
    """Processor seconds of first calls, seconds of warm ones, and compilations.

    JAX is imported before a clock starts, and so are the names of the library; what belongs to a
    name is imported when it is first asked for, as part of the first call, from byte code as
    installations have it. `later` counts compilations of warm calls.
    """
    versions = {"truncgauss": None}
    if settings.baseline is not None:
        folder = Path(settings.baseline).resolve()
        if not (folder / "truncgauss" / "__init__.py").is_file():
            raise ValueError(f"baseline: no truncgauss/__init__.py in {settings.baseline}.")
        versions["baseline"] = folder
    results = {}
    for name, folder in versions.items():
        row(["value"], 1, settings, folder)  # writes byte code where there is none
        for task in settings.tasks:
            found = [row([task], d, settings, folder) for d in settings.dimensions]
            results[f"{name}, {task}"] = columns(found)
    if "value" in settings.tasks:
        found = [row(["scipy", "value"], d, settings, None) for d in settings.dimensions]
        results["SciPy, value"] = columns(found)
    return {
        "dimensions": np.array(settings.dimensions),
        "costs": results,
        "summary": list(summary(settings.dimensions, results)),
    }


def row(*asked):
    """What `measured` returns, once."""
    return fitting.computed("process", measured, *asked)


def measured(task, dimension, settings, folder):
    """What `probe` says of one task."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if folder is not None:
        environment["PYTHONPATH"] = str(folder)
    words = [*task, str(dimension), str(settings.num_calls)]
    done = subprocess.run(
        [sys.executable, str(PROBE), *words], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"latency: {' '.join(words)} failed: {last[0]}")
    return json.loads(done.stdout.splitlines()[-1])


def columns(found):
    """One array for each field."""
    return {field: np.array([one[field] for one in found], float) for field in FIELDS}


def summary(dimensions, results):
    """A table: processor seconds of the first call, compilations, milliseconds of a warm one."""
    yield "first call in processor seconds (compilations), then a warm call in milliseconds"
    yield " " * 24 + "".join(f"{f'd = {d}':>22}" for d in dimensions)
    for name, cost in results.items():
        cells = zip(cost["first"], cost["compilations"], cost["warm"], strict=True)
        shown = (f"{first:.2f} ({count:.0f}) {1e3 * warm:.2f}" for first, count, warm in cells)
        yield f"{name:24}" + "".join(f"{cell:>22}" for cell in shown)
