"""The call with default settings over families whose probability is known."""

import itertools
import math
import time

import numpy as np

import truncgauss as tg

from ..timing import timed
from .curves import HONEST, columns
from .problems import problem_of, truth_of

ROUNDING = 1e-11  # of log P, relative to max(1, |log P|), granted to a stderr of 0


def shared(config):
    """The call with no settings, eagerly, over families whose truth is known."""
    rows, given = [], config.shared
    for family, d, (limits, (low, high)) in itertools.product(
        given.families, given.dimensions, given.limits.items()
    ):
        if family.family == "tridiagonal" and (low != 0 or high < 100):
            continue  # no closed form
        truth, _ = truth_of(family, d, low, high, config)
        problem = problem_of(family, d, low, high, config.seed)
        cost = timed(tg.log_probability, problem, 1, time.process_time)
        log_prob, stderr = map(float, cost["output"])
        allowed = HONEST * stderr + ROUNDING * max(1.0, abs(truth))
        rows.append(
            {
                "name": f"{family.family} {d} {limits}",
                "family": family.family,
                "dimension": d,
                "truth": truth,
                "error": abs(math.expm1(min(log_prob - truth, 700.0))),
                "stderr": stderr,
                "honest": abs(log_prob - truth) <= allowed,
                "first_seconds": cost["first_seconds"],
                "seconds": cost["seconds"],
            }
        )
    return columns(rows)


def shared_table(found):
    row = "{:<24}{:>9}{:>14}{:>11}{:>11}{:>15}{:>12}{:>14}".format
    lines = [
        row("", "problems", "median error", "largest", "in 3 s.e.", "median seconds", "largest",
            "largest first")
    ]  # fmt: skip
    families, sizes = found["family"], found["dimension"]
    chosen = {name: families == name for name in dict.fromkeys(families)}
    chosen |= {f"d = {d}": sizes == d for d in np.unique(sizes)}
    for name, mine in (chosen | {"all": sizes > 0}).items():
        x = {key: column[mine] for key, column in found.items()}
        lines.append(
            row(
                name, mine.sum(), f"{np.median(x['error']):.2g}", f"{np.max(x['error']):.2g}",
                f"{np.mean(x['honest']):.0%}", f"{np.median(x['seconds']):.2g}",
                f"{np.max(x['seconds']):.2g}", f"{np.max(x['first_seconds']):.2g}",
            )
        )  # fmt: skip
    for i in np.argsort(-found["error"])[:5]:
        errors = f"error {found['error'][i]:.2g}, reported {found['stderr'][i]:.2g}"
        lines.append(f"  {found['name'][i]}: {errors}, {found['seconds'][i]:.2g} s")
    dishonest = ", ".join(found["name"][~found["honest"]])
    return [*lines, f"beyond three standard errors: {dishonest or 'none'}"]
