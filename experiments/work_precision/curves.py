"""Error against time: our methods and the peers on problems of known probability."""

import dataclasses
import math

import jax
import numpy as np

import truncgauss as tg
from truncgauss import fitting

from ..timing import timed
from .clock import clock_of
from .peers import PEERS
from .problems import answered, problem_of, truth_of

TARGETS = (1e-3, 1e-4, 1e-6)  # relative errors of P
REACH = 1e4  # times the longest measured time: nothing is extrapolated further
HONEST = 3.0  # reported standard errors within which an error should be


def measured_cases(config, part, peers):
    """Ours and the peers' error against time for each case of a part."""
    return {
        case.name: fitting.computed(f"{part}, {case.name}", measured_case, case, config, peers)
        for case in getattr(config, part)
    }


def measured_case(case, config, peers):
    """The truth of a case, and error against time for each of ours and of the peers."""
    clock = clock_of(config)
    problem = problem_of(case, case.dimension, case.low, case.high, config.seed)
    truth, truth_stderr = truth_of(case, case.dimension, case.low, case.high, config)
    curve = {"truth": truth, "truth_stderr": truth_stderr}
    for name, methods in ways_of(case).items():
        curve[name] = columns(measured_each(problem, truth, methods, config, clock))
    for peer in peers if case.peers else ():
        curve[PEERS[peer.__name__]] = peer_curve(peer, problem, truth, config, clock)
    return curve


def ways_of(case):
    """The methods to measure, by name, the cheapest first."""
    ways = {}
    for r in case.num_replicates:
        share = [n * case.num_replicates[0] // r for n in case.num_points]
        name = "Separation" if r == 16 else f"Separation, {r} replicates"
        ways[name] = [tg.Separation(num_points=n, num_replicates=r) for n in share]
    ways["SequentialMonteCarlo"] = [
        tg.SequentialMonteCarlo(num_particles=n) for n in case.num_particles
    ]
    return {name: methods for name, methods in ways.items() if methods}


def columns(rows):
    """Rows of equal keys as one array for each key."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def measured_each(problem, truth, methods, config, clock):
    """Methods that differ in their counts alone, with one plan for all of them."""
    plan = timed(planned, (methods[0], *problem), config.num_calls, clock)
    rows = []
    for method in methods:
        counts = {key: getattr(method, key) for key in ("num_points", "num_particles")
                  if hasattr(method, key)}  # fmt: skip
        held = dataclasses.replace(plan["output"], **counts)
        rows.append(measured(problem, truth, held, plan["seconds"], config, clock))
    return rows


@jax.jit
def planned(method, loc, covariance, region):
    """The method with its plan solved."""
    return method.hold(loc, covariance, region)


def measured(problem, truth, method, plan_seconds, config, clock):
    """Error, reported standard error and seconds of a method that holds its plan, over all keys."""
    keys = jax.random.split(jax.random.key(config.seed + 2), config.num_keys)
    start = clock()
    jax.block_until_ready(answered(*problem, method, keys[0]))
    first = clock() - start
    estimates, seconds = [], []
    for key in keys:
        start = clock()
        estimates.append(jax.block_until_ready(answered(*problem, method, key)))
        seconds.append(clock() - start)
    log_probs, stderrs = np.array(estimates).T
    error = log_probs - truth
    size = getattr(method, "num_points", None) or method.num_particles
    return {
        "size": size * method.num_replicates,
        "first_seconds": first,
        "plan_seconds": plan_seconds,
        "seconds": plan_seconds + np.median(seconds),
        "rms": np.sqrt(np.mean(error**2)),
        "mean_error": np.mean(error),
        "stated": np.median(stderrs),
        "honest": np.mean(np.abs(error) <= HONEST * stderrs),
    }


def peer_curve(peer, problem, truth, config, clock):
    """A peer's error with more and more points, until it takes too long."""
    rows = []
    for num_points in config.peer_points:
        probabilities, seconds = peer(problem, num_points, config, clock)
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
        if np.sum(seconds) > config.peer_seconds or len(seconds) < config.num_keys:
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
    """Seconds to each target, ours and the peers', their ratio; then every measurement."""
    row = "{:<34}{:>14}{:>14}{:>14}".format
    lines = [row("seconds to a relative error of", *(f"{x:g}" for x in TARGETS))]
    for name, curve in found.items():
        ways = {way: part for way, part in curve.items() if isinstance(part, dict)}
        times = {
            way: [time_to_reach(part["seconds"], part["rms"], x) for x in TARGETS]
            for way, part in ways.items()
        }
        lines += [name]
        lines += [row(f"  {way}", *(as_seconds(*x) for x in part)) for way, part in times.items()]
        best = [min((x for x in at if x > 0), default=math.nan) for at in (
            [times[way][i][0] for way in times if way not in PEERS.values()] for i in range(3)
        )]  # fmt: skip
        for peer in PEERS.values():
            if peer in times:
                ratios = [
                    f"{there / here:.3g}" if there / here > 0 else "-"
                    for (there, _), here in zip(times[peer], best, strict=True)
                ]
                lines.append(row(f"  {peer}, times the least of ours", *ratios))
    return [*lines, *cases_table(found)]


def as_seconds(seconds, mark):
    return "-" if math.isnan(seconds) else f"{mark}{seconds:.2g}"


def cases_table(found):
    """Every measurement of every case."""
    row = "{:<34}{:>9}{:>10}{:>10}{:>10}{:>10}{:>9}{:>9}{:>9}".format
    head = ("points", "rms error", "mean", "stderr", "in 3 s.e.", "seconds", "plan", "first")
    lines = [row("", *head)]
    for name, curve in found.items():
        error = f" ± {curve['truth_stderr']:.1g}" if curve["truth_stderr"] else ""
        lines.append(f"{name}: log P = {curve['truth']:.6f}{error}")
        for way, part in curve.items():
            for i in range(len(part["size"]) if isinstance(part, dict) else 0):
                cells = [f"{part['rms'][i]:.2g}", f"{part['mean_error'][i]:.2g}"]
                cells += [f"{part['stated'][i]:.2g}", f"{part['honest'][i]:.0%}"] if (
                    "stated" in part
                ) else [f"{part['num_keys'][i]} keys", ""]  # fmt: skip
                cells += [
                    f"{part[key][i]:.2g}" if key in part else ""
                    for key in ("seconds", "plan_seconds", "first_seconds")
                ]
                lines.append(row(f"  {way}", part["size"][i], *cells))
    return lines
