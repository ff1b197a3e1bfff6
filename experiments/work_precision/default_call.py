"""The call with default settings over families whose probability is known."""

import math

import jax
import numpy as np

import truncgauss as tg

from .clock import clock_of
from .curves import HONEST, columns
from .problems import problem_of, truth_of

ROUNDING = 1e-11  # of log P, relative to max(1, |log P|), granted to a stderr of 0


def shared(config, part, peers):
    """The call with no settings, eagerly, over families whose truth is known."""
    clock, rows, names = clock_of(config), [], []
    for family, d, (limits, (low, high)) in (
        (family, d, limits)
        for family in config.shared.families
        for d in config.shared.dimensions
        for limits in config.shared.limits.items()
    ):
        if family.family == "tridiagonal" and (low != 0 or high < 100):
            continue  # no closed form
        truth, _ = truth_of(family, d, low, high, config)
        problem = problem_of(family, d, low, high, config.seed)
        seconds = []
        for _ in range(2):
            start = clock()
            result = jax.block_until_ready(tg.log_probability(*problem))
            seconds.append(clock() - start)
        log_prob, stderr = float(result.log_prob), float(result.stderr)
        allowed = HONEST * stderr + ROUNDING * max(1.0, abs(truth))
        names.append(f"{family.family} {d} {limits}")
        rows.append(
            {
                "dimension": d,
                "truth": truth,
                "error": abs(math.expm1(min(log_prob - truth, 700.0))),
                "stderr": stderr,
                "honest": abs(log_prob - truth) <= allowed,
                "first_seconds": seconds[0],
                "seconds": seconds[1],
            }
        )
    return columns(rows) | {"name": np.array(names)}


def shared_table(found):
    row = "{:<24}{:>9}{:>14}{:>11}{:>11}{:>15}{:>12}{:>14}".format
    lines = [
        row("", "problems", "median error", "largest", "in 3 s.e.", "median seconds", "largest",
            "largest first")
    ]  # fmt: skip
    families = np.array([name.split()[0] for name in found["name"]])
    chosen = {name: families == name for name in dict.fromkeys(families)}
    chosen |= {f"d = {d}": found["dimension"] == d for d in np.unique(found["dimension"])}
    for name, mine in (chosen | {"all": np.full(len(families), True)}).items():
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
