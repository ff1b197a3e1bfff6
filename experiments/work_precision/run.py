"""Error against time on one processor, for our methods and for SciPy.

Every time is that of a compiled call and of solving its plan; the first call, which compiles, is
reported apart. Every error is the root mean square error of log P over keys, against a closed form,
an exact method that uses a structure which the measured one does not see, or a long run with
another key.
"""

import time

import jax
import numpy as np

from truncgauss import fitting

from .clock import load, one_processor
from .curves import curves, curves_table
from .default_call import shared, shared_table
from .gradients import gradients, gradients_table

PARTS = {
    "curves": (curves, curves_table),
    "gradients": (gradients, gradients_table),
    "shared": (shared, shared_table),
}


def run(config):
    """All measurements, by part and problem, and their tables."""
    device = jax.devices()[0].device_kind
    results = {"summary": []}
    with one_processor() as where:
        results["summary"] += [where, f"{device}, {config.dtype}, processor seconds{load()}."]
        for part in config.parts:
            measure, table = PARTS[part]
            measured = fitting.computed(part, measured_part, measure, config)
            results[part], wall, cpu = (measured[name] for name in ("found", "wall", "cpu"))
            results["summary"] += ["", f"{part} ({wall:.0f} s, {cpu / wall:.0%} of a processor)"]
            results["summary"] += table(results[part])
    # Estimates may fail, which the tables show.
    known = np.all([np.isfinite(curve["truth"]) for curve in results.get("curves", {}).values()])
    return results | {"failed": "" if known else "a truth is not finite"}


def measured_part(measure, config):
    """What was found, and the seconds that it took by the clock and on the processor."""
    start, spent = time.perf_counter(), time.process_time()
    found = measure(config)
    wall, cpu = time.perf_counter() - start, time.process_time() - spent
    return {"found": found, "wall": wall, "cpu": cpu}
