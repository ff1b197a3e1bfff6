"""Error against time on one processor, for our methods and for SciPy and R.

Every time is that of a compiled call and of solving its plan; the first call, which compiles, is
reported apart. Every error is the root mean square error of log P over keys, against a closed form,
an exact method that uses a structure which the measured one does not see, or a long run with
another key.
"""

import time

import numpy as np

from truncgauss import fitting

from .batches import batches, batches_table
from .clock import machine, one_processor
from .curves import cases_table, curves_table, measured_cases
from .default_call import shared, shared_table
from .gradients import gradients, gradients_table
from .low_rank import low_rank, low_rank_table
from .peers import r_has_mvtnorm, r_mvtnorm, scipy_mvn

PARTS = {
    "curves": (measured_cases, curves_table),
    "ordering": (measured_cases, cases_table),
    "chain": (measured_cases, cases_table),
    "gradients": (gradients, gradients_table),
    "batches": (batches, batches_table),
    "low_rank": (low_rank, low_rank_table),
    "shared": (shared, shared_table),
}


def run(config):
    """All measurements, by part and problem, and their tables."""
    results = {"summary": []}
    with one_processor() as where:
        results["summary"] += [where, *machine(config)]
        peers = [scipy_mvn]
        if r_has_mvtnorm():
            peers.append(r_mvtnorm)
        else:
            results["summary"].append("R with its package mvtnorm is not installed: left out.")
        for part in config.parts:
            measure, table = PARTS[part]
            measured = fitting.computed(part, measured_part, measure, config, part, peers)
            results[part], wall, cpu = (measured[name] for name in ("found", "wall", "cpu"))
            results["summary"] += ["", f"{part} ({wall:.0f} s, {cpu / wall:.0%} of a processor)"]
            results["summary"] += table(results[part])
    results["failed"] = failure(results)
    return results


def measured_part(measure, config, part, peers):
    """What was found, and the seconds that it took by the clock and on the processor."""
    start, spent = time.perf_counter(), time.process_time()
    found = measure(config, part, peers)
    wall, cpu = time.perf_counter() - start, time.process_time() - spent
    return {"found": found, "wall": wall, "cpu": cpu}


def failure(results):
    """A true value that is not finite, if any; estimates may fail, which the tables show."""
    truths = [
        curve["truth"]
        for part in ("curves", "ordering", "chain")
        for curve in results.get(part, {}).values()
    ]
    return "" if np.all(np.isfinite(truths)) else "a truth is not finite"
