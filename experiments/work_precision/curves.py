"""Error against time: our methods and SciPy's on problems of known probability.

References:
    A. Genz and F. Bretz, "Computation of Multivariate Normal and t Probabilities" (2009), the
    algorithm of `multivariate_normal.cdf`, and of R's mvtnorm.
"""

import dataclasses
import math
import time

import jax
import numpy as np
from scipy.stats import multivariate_normal

import truncgauss as tg
from truncgauss import fitting

from ..timing import calls, timed
from .problems import answered, problem_of, truth_of

TARGETS = (1e-3, 1e-4, 1e-6)  # relative errors of P
REACH = 1e4  # times the longest measured time: nothing is extrapolated further
HONEST = 3.0  # reported standard errors within which an error should be


def curves(config):
    """Our error and SciPy's against time for each case."""
    return {
        case.name: fitting.computed(case.name, measured_case, case, config)
        for case in config.curves
    }


def measured_case(case, config):
    """The truth of a case, and error against time for each of ours and of SciPy."""
    problem = problem_of(case, case.dimension, case.low, case.high, config.seed)
    truth, truth_stderr = truth_of(case, case.dimension, case.low, case.high, config)
    curve = {"truth": truth, "truth_stderr": truth_stderr}
    ways = {}
    for r in case.num_replicates:
        name = "Separation" if r == 16 else f"Separation, {r} replicates"
        share = [n * case.num_replicates[0] // r for n in case.num_points]
        ways[name] = tg.Separation(num_replicates=r), "num_points", share
    ways["SequentialMonteCarlo"] = tg.SequentialMonteCarlo(), "num_particles", case.num_particles
    for name, (method, count, numbers) in ways.items():
        if not numbers:
            continue
        plan, rows = timed(planned, (method, *problem), config.num_calls, time.process_time), []
        for number in numbers:
            held = dataclasses.replace(plan["output"], **{count: number})
            rows.append(measured(problem, truth, held, plan["seconds"], config))
            rows[-1]["size"] = number * method.num_replicates
        curve[name] = columns(rows)
    if case.peers:
        curve["SciPy"] = scipy_curve(problem, truth, config)
    return curve


def columns(rows):
    """Rows of equal keys as one array for each key."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


@jax.jit
def planned(method, loc, covariance, region):
    """The method with its plan solved, which is the same for all counts."""
    return method.hold(loc, covariance, region)


def measured(problem, truth, method, plan_seconds, config):
    """Error, reported standard error and seconds of a method that holds its plan, over all keys."""
    keys = jax.random.split(jax.random.key(config.seed + 2), config.num_keys)
    many = [(*problem, method, key) for key in (keys[0], *keys)]
    estimates, (first, *seconds) = calls(answered, many, time.process_time)
    log_probs, stderrs = np.array(estimates[1:]).T
    error = log_probs - truth
    return {
        "first_seconds": first,
        "plan_seconds": plan_seconds,
        "seconds": plan_seconds + np.median(seconds),
        "rms": np.sqrt(np.mean(error**2)),
        "mean_error": np.mean(error),
        "stated": np.median(stderrs),
        "honest": np.mean(np.abs(error) <= HONEST * stderrs),
    }


def scipy_curve(problem, truth, config):
    """SciPy's error with more and more points, until it takes too long."""
    loc, covariance, region = (jax.tree.map(np.asarray, part) for part in problem)
    rows = []
    for num_points in config.peer_points:
        probabilities, seconds = [], []
        for seed in range(config.num_keys):
            rng = np.random.default_rng([config.seed, seed])
            start = time.process_time()
            probabilities.append(multivariate_normal.cdf(
                region.high, loc, covariance, lower_limit=region.low, maxpts=num_points,
                abseps=1e-15, releps=1e-15, rng=rng,
            ))  # fmt: skip
            seconds.append(time.process_time() - start)
            if np.sum(seconds) > config.peer_seconds:
                break
        with np.errstate(divide="ignore"):
            error = np.log(np.maximum(probabilities, 0.0)) - truth
        rows.append(
            {
                "size": num_points,
                "seconds": np.median(seconds),
                "rms": np.sqrt(np.mean(error**2)),
                "mean_error": np.mean(error),
                "num_keys": len(seconds),
            }
        )
        if np.sum(seconds) > config.peer_seconds:
            break
    return columns(rows)


def time_to_reach(seconds, errors, target):
    """Seconds at which an error falls to a target, by linear interpolation in logs.

    Returns the seconds and a mark: "<" if the cheapest measurement reaches it, "~" if extrapolated
    from the last three, else ""; the seconds are nan if the errors do not fall, or too slowly.
    """
    seconds, errors = np.asarray(seconds, float), np.asarray(errors, float)
    usable = np.isfinite(errors) & (errors > 0)
    x, y = np.log(seconds[usable]), np.log(errors[usable])
    if not len(x):
        return math.nan, ""
    reached = np.flatnonzero(y <= math.log(target))
    if len(reached):
        i = reached[0]
        if i == 0:
            return math.exp(x[0]), "<"
        share = (math.log(target) - y[i - 1]) / (y[i] - y[i - 1])
        return math.exp(x[i - 1] + share * (x[i] - x[i - 1])), ""
    slope = np.polyfit(x[-3:], y[-3:], 1)[0] if len(x) > 1 else 0.0
    if slope > -0.1:
        return math.nan, ""
    further = (math.log(target) - y[-1]) / slope
    return (math.exp(x[-1] + further), "~") if further < math.log(REACH) else (math.nan, "")


def curves_table(found):
    """Seconds to each target, ours and SciPy's, their ratio; then every measurement."""
    row = "{:<34}{:>14}{:>14}{:>14}".format
    lines = [row("seconds to a relative error of", *(f"{x:g}" for x in TARGETS))]
    for name, curve in found.items():
        times = {
            way: [time_to_reach(part["seconds"], part["rms"], x) for x in TARGETS]
            for way, part in curve.items()
            if isinstance(part, dict)
        }
        said = lambda seconds, mark: "-" if math.isnan(seconds) else f"{mark}{seconds:.2g}"
        lines += [name, *(row(f"  {way}", *(said(*x) for x in times[way])) for way in times)]
        ours = [times[way] for way in times if way != "SciPy"]
        best = [min((x for x, _ in at if x > 0), default=math.nan) for at in zip(*ours)]
        if "SciPy" in times:
            ratios = [there / here for (there, _), here in zip(times["SciPy"], best, strict=True)]
            shown = (f"{ratio:.3g}" if ratio > 0 else "-" for ratio in ratios)
            lines.append(row("  SciPy, times the least of ours", *shown))
    shown = {
        "size": "points", "rms": "rms error", "mean_error": "mean", "stated": "stderr",
        "honest": "in 3 s.e.", "num_keys": "keys", "seconds": "seconds", "plan_seconds": "plan",
        "first_seconds": "first",
    }  # fmt: skip
    row = ("{:<34}{:>9}" + "{:>10}" * 4 + "{:>6}{:>10}{:>9}{:>9}").format
    lines.append(row("", *shown.values()))
    for name, curve in found.items():
        error = f" ± {curve['truth_stderr']:.1g}" if curve["truth_stderr"] else ""
        lines.append(f"{name}: log P = {curve['truth']:.6f}{error}")
        for way, part in curve.items():
            for i in range(len(part["size"]) if isinstance(part, dict) else 0):
                kinds = {"size": "d", "num_keys": "d", "honest": ".0%"}
                cells = [
                    f"{part[key][i]:{kinds.get(key, '.2g')}}" if key in part else ""
                    for key in shown
                ]
                lines.append(row(f"  {way}", *cells))
    return lines
