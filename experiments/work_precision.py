"""Error against time on one processor: separation of variables, its kin, and the peers beside it.

Every time is that of a compiled call and of solving its plan, after a first call told apart; every
error is that of log P, root mean square over keys, against a closed form, an exact method that sees
the structure which the measured one does not, or a long run with a key of its own.
"""

import contextlib
import ctypes
import dataclasses
import itertools
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import multivariate_normal

import truncgauss as tg
from truncgauss import cli, plotting

TARGETS = (1e-3, 1e-4, 1e-6)  # relative errors of P
REACH = 1e4  # times the longest measured time: no line is continued further
HONEST = 3.0  # standard errors
ROUNDING = 1e-11  # of log P, relative to max(1, |log P|), granted to a stderr of 0

PMVNORM = """
suppressMessages(library(mvtnorm))
x <- scan(file("stdin"), quiet = TRUE)
d <- x[1]; keys <- x[2]; set.seed(x[3])
settings <- GenzBretz(maxpts = x[4], abseps = 1e-15, releps = 0)
low <- x[4 + 1:d]; high <- x[4 + d + 1:d]; sigma <- matrix(x[4 + 2 * d + 1:(d * d)], d)
for (i in 1:keys) {
  start <- Sys.time()
  p <- pmvnorm(low, high, sigma = sigma, algorithm = settings)
  cat(sprintf("%.17g %.17g\\n", as.numeric(Sys.time() - start, units = "secs"), p))
}
"""


def run(config):
    """Everything measured, by part and problem, and the table of it."""
    results = {"summary": []}
    with one_processor() as where:
        results["summary"] += [where, *machine(config)]
        peers = [scipy_mvn]
        if r_has_mvtnorm():
            peers.append(r_mvtnorm)
        else:
            told = "R with its package mvtnorm is not installed: it is not beside ours."
            results["summary"].append(told)
        for part in config.parts:
            measure, told = PARTS[part]
            start, spent = time.perf_counter(), time.process_time()
            results[part] = measure(config, part, peers)
            wall, cpu = time.perf_counter() - start, time.process_time() - spent
            results["summary"] += ["", f"{part} ({wall:.0f} s, {cpu / wall:.0%} of a processor)"]
            results["summary"] += told(results[part])
    results["failed"] = failure(results)
    return results


@contextlib.contextmanager
def one_processor() -> Iterator[str]:
    """All threads of the process on one processor, and a sentence that says whether they are."""
    tasks = Path("/proc/self/task")
    if not hasattr(os, "sched_setaffinity") or not tasks.is_dir():
        yield "The threads could not be bound to one processor: only Linux lets a program do that."
        return
    jnp.zeros(1).block_until_ready()  # the threads of the backend are there from now on
    before = {}
    chosen = max(os.sched_getaffinity(0))
    for task in tasks.iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            before[int(task.name)] = os.sched_getaffinity(int(task.name))
            os.sched_setaffinity(int(task.name), {chosen})
    try:
        with one_blas_thread():
            yield f"All {len(before)} threads of the process are bound to one processor."
    finally:
        for task, processors in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, processors)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """OpenBLAS, where it is loaded, with one thread.

    Its threads wait for each other by spinning: several on one processor are 25 times slower than
    one.
    """
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    found = []
    for library in [ctypes.CDLL(name) for name in sorted(names) if "openblas" in name]:
        for prefix, suffix in itertools.product(("scipy_", ""), ("", "64_")):
            get, put = (
                getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}", None)
                for verb in ("get", "set")
            )
            if get and put:
                found.append((put, get()))
                put(1)
    try:
        yield
    finally:
        for put, num_threads in found:
            put(num_threads)


def machine(config):
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    device = jax.devices()[0].device_kind
    return [f"{device}, {config.dtype}, seconds of the {clock_name(config)}{load}."]


def clock_name(config):
    return "processor" if config.clock == "cpu" and jax.default_backend() == "cpu" else "wall"


def clock_of(config):
    return time.process_time if clock_name(config) == "processor" else time.perf_counter


def failure(results):
    """The table tells of estimates that failed; what must not fail are the truths."""
    truths = [
        curve["truth"]
        for part in ("curves", "ordering", "chain")
        for curve in results.get(part, {}).values()
    ]
    return "" if np.all(np.isfinite(truths)) else "a truth is not finite"


# ---------------------------------------------------------------- problems and their truths


def structured(family, d, seed):
    """The covariance of a family; a few factors show themselves to the exact method."""
    rho = family.correlation
    match family.family:
        case "identity":
            return jnp.eye(d)
        case "equicorrelated":
            return tg.LowRank(jnp.full((d, 1), math.sqrt(rho)), jnp.full(d, 1 - rho))
        case "autoregressive":
            return rho ** jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
        case "one_factor":
            grid = np.linspace(0, 1, len(family.loadings))
            loadings = jnp.asarray(np.interp(np.linspace(0, 1, d), grid, family.loadings))
            return tg.LowRank(loadings[:, None], 1 - loadings**2)
        case "tridiagonal":
            return 2 * jnp.eye(d) - jnp.eye(d, k=1) - jnp.eye(d, k=-1)
        case "wishart":
            return correlations(jax.random.normal(jax.random.key(seed), (d, 2 * d)))


def correlations(draws):
    """The correlation matrix of rows, shape (..., d, n) -> (..., d, d)."""
    scatter = draws @ jnp.swapaxes(draws, -1, -2)
    scale = jnp.sqrt(jnp.diagonal(scatter, axis1=-2, axis2=-1))
    return scatter / (scale[..., :, None] * scale[..., None, :])


def problem_of(family, d, low, high, seed):
    """loc, dense covariance and box."""
    covariance = structured(family, d, seed)
    dense = getattr(covariance, "covariance_matrix", covariance)
    return jnp.zeros(d), dense, tg.Box(jnp.full(d, low), jnp.full(d, high))


def truth_of(family, d, low, high, config):
    """log P and its standard error, by a route that the measured methods do not take."""
    problem = problem_of(family, d, low, high, config.seed)
    if family.family == "tridiagonal":
        if low != 0 or high < 100:
            raise ValueError(
                "tridiagonal: the truth is known where low is 0 and high is 100 or more, got "
                f"{low:g} and {high:g}."
            )
        return -math.lgamma(d + 2), 0.0
    if family.family == "autoregressive":
        return chain_log_probability(d, family.correlation, low, high), 0.0
    if family.family == "wishart":
        method = tg.Separation(num_points=config.truth_points)
        result = answered(*problem, method, jax.random.key(config.seed + 1))
    else:
        loc, _, region = problem
        result = tg.log_probability(loc, structured(family, d, 0), region, method=tg.Exact())
    return float(result.log_prob), float(result.stderr)


def chain_log_probability(d, correlation, low, high, num_nodes=400):
    """log P of a stationary autoregression, one transition of its density after the other.

    Gauss-Legendre nodes reach 12 standard deviations into a tail; 12 digits agree with values from
    elsewhere.
    """
    low = max(low, -12.0)
    high = min(high, max(low, 0.0) + 12.0)
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    nodes = low + 0.5 * (high - low) * (nodes + 1)
    weights = 0.5 * (high - low) * weights / math.sqrt(2 * math.pi)
    variance = 1 - correlation**2
    density = weights * np.exp(-0.5 * nodes**2)
    step = (nodes[:, None] - correlation * nodes) ** 2
    step = weights[:, None] * np.exp(-0.5 * step / variance) / math.sqrt(variance)
    log_prob = 0.0
    for _ in range(d - 1):
        mass = density.sum()
        log_prob += math.log(mass)
        density = step @ (density / mass)
    return log_prob + math.log(density.sum())


@jax.jit
def answered(loc, covariance, region, method, key):
    """The public function as it runs inside a compiled model."""
    return tg.log_probability(loc, covariance, region, method=method, key=key)


# ---------------------------------------------------------------- error against time


def measured_cases(config, part, peers):
    """Ours and the peers' error against time for each case of a part."""
    clock, found = clock_of(config), {}
    for case in getattr(config, part):
        problem = problem_of(case, case.dimension, case.low, case.high, config.seed)
        truth, truth_stderr = truth_of(case, case.dimension, case.low, case.high, config)
        curve = {"truth": truth, "truth_stderr": truth_stderr}
        for name, methods in ways_of(case).items():
            curve[name] = columns(measured_each(problem, truth, methods, config, clock))
        for peer in peers if case.peers else ():
            curve[PEERS[peer.__name__]] = peer_curve(peer, problem, truth, config, clock)
        found[case.name] = curve
    return found


def ways_of(case):
    """The methods to measure, by name, from cheap to dear."""
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
    """Rows of equal keys as one array a key."""
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
    """Error, stated error and seconds of a method that holds its plan, over all keys."""
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


def timed(function, inputs, num_calls, clock):
    """The output, seconds of the first call and the median of later ones."""
    seconds = []
    for _ in range(1 + num_calls):
        start = clock()
        output = jax.block_until_ready(function(*inputs))
        seconds.append(clock() - start)
    return {"output": output, "first_seconds": seconds[0], "seconds": np.median(seconds[1:])}


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


def scipy_mvn(problem, num_points, config, clock):
    """SciPy's probabilities, one a seed, and the seconds of each."""
    loc, covariance, region = (jax.tree.map(np.asarray, part) for part in problem)
    probabilities, seconds = [], []
    for seed in range(config.num_keys):
        rng = np.random.default_rng([config.seed, seed])
        start = clock()
        probability = multivariate_normal.cdf(
            region.high, loc, covariance, lower_limit=region.low, maxpts=num_points,
            abseps=1e-15, releps=1e-15, rng=rng,
        )  # fmt: skip
        seconds.append(clock() - start)
        probabilities.append(probability)
        if np.sum(seconds) > config.peer_seconds:
            break
    return np.array(probabilities), np.array(seconds)


def r_has_mvtnorm():
    if not shutil.which("Rscript"):
        return False
    words = ["Rscript", "-e", "library(mvtnorm)"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def r_mvtnorm(problem, num_points, config, clock):
    """Those of R's mvtnorm; the seconds are R's own, its start not among them."""
    _, covariance, region = problem
    numbers = [[len(region.low), config.num_keys, config.seed, num_points]]
    numbers += [region.low, region.high, np.ravel(covariance)]
    text = " ".join(f"{x:.17g}" for part in numbers for x in np.asarray(part, float)).title()  # Inf
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "pmvnorm.R")
        script.write_text(PMVNORM)
        words = ["Rscript", str(script)]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"Rscript: {done.stderr.strip()}")
    seconds, probabilities = np.array(done.stdout.split(), float).reshape(-1, 2).T
    return probabilities, seconds


PEERS = {"scipy_mvn": "SciPy", "r_mvtnorm": "R mvtnorm"}


def time_to_reach(seconds, errors, target):
    """Seconds at which an error falls to a target, straight between measurements in logs.

    Returns the seconds and a mark: "<" the cheapest measurement is there already, "~" continued
    along the last three, "" between two; nan where the errors do not fall, or too far away to tell.
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


def told_curves(found):
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
                lines.append(row(f"  {peer} / ours", *ratios))
    return [*lines, *told_cases(found)]


def as_seconds(seconds, mark):
    return "-" if math.isnan(seconds) else f"{mark}{seconds:.2g}"


def told_cases(found):
    """Every measurement of every case."""
    row = "{:<34}{:>9}{:>10}{:>10}{:>10}{:>10}{:>9}{:>9}{:>9}".format
    told = ("points", "rms error", "mean", "stated", "in 3 s.e.", "seconds", "plan", "first")
    lines = [row("", *told)]
    for name, curve in found.items():
        error = f" ± {curve['truth_stderr']:.1g}" if curve["truth_stderr"] else ""
        lines.append(f"{name}: log P = {curve['truth']:.6f}{error}")
        for way, part in curve.items():
            for i in range(len(part["size"]) if isinstance(part, dict) else 0):
                told = [f"{part['rms'][i]:.2g}", f"{part['mean_error'][i]:.2g}"]
                told += [f"{part['stated'][i]:.2g}", f"{part['honest'][i]:.0%}"] if (
                    "stated" in part
                ) else [f"{part['num_keys'][i]} keys", ""]  # fmt: skip
                told += [
                    f"{part[key][i]:.2g}" if key in part else ""
                    for key in ("seconds", "plan_seconds", "first_seconds")
                ]
                lines.append(row(f"  {way}", part["size"][i], *told))
    return lines


# ---------------------------------------------------------------- gradients


def gradients(config, part, peers):
    """Value and gradient against value, for a plan that is held, and the memory of either."""
    clock, found = clock_of(config), []
    for case in config.gradients:
        loc, covariance, region = problem_of(case, case.dimension, case.low, case.high, config.seed)
        method = tg.Separation(num_points=case.num_points[0]).hold(loc, covariance, region)
        key = jax.random.key(config.seed)

        def value(loc, covariance, low, high, method=method, key=key):
            region = tg.Box(low, high)
            return tg.log_probability(loc, covariance, region, method=method, key=key).log_prob

        inputs = (loc, covariance, region.low, region.high)
        alone = compiled(jax.jit(value), inputs, config.num_calls, clock)
        gradient = jax.jit(jax.value_and_grad(value, argnums=(0, 1, 2, 3)))
        both = compiled(gradient, inputs, config.num_calls, clock)
        numbers = case.dimension * method.num_points * method.num_replicates
        found.append(
            {
                "dimension": case.dimension,
                "size": method.num_points * method.num_replicates,
                "value_seconds": alone["seconds"],
                "both_seconds": both["seconds"],
                "ratio": both["seconds"] / alone["seconds"],
                "first_seconds": both["first_seconds"],
                "value_bytes": alone["bytes"],
                "both_bytes": both["bytes"],
                "bytes_share": both["bytes"] / (numbers * loc.dtype.itemsize),
                "finite": all(bool(jnp.isfinite(x).all()) for x in both["output"][1]),
            }
        )
    return columns(found)


def compiled(function, inputs, num_calls, clock):
    """As `timed`, compilation in the first call, with the temporary memory in bytes."""
    start = clock()
    ready = function.lower(*inputs).compile()
    spent = clock() - start
    cost = timed(ready, inputs, num_calls, clock)
    memory = ready.memory_analysis()
    size = memory.temp_size_in_bytes if memory else math.nan
    return cost | {"first_seconds": spent + cost["first_seconds"], "bytes": size}


def told_gradients(found):
    row = "{:>5}{:>9}{:>10}{:>12}{:>8}{:>10}{:>12}{:>14}{:>16}{:>9}".format
    lines = [
        row("d", "points", "value/s", "gradient/s", "ratio", "first/s", "value/MiB",
            "gradient/MiB", "of d*n numbers", "finite")
    ]  # fmt: skip
    for i in range(len(found["dimension"])):
        x = {key: column[i] for key, column in found.items()}
        lines.append(
            row(
                x["dimension"], x["size"], f"{x['value_seconds']:.2g}", f"{x['both_seconds']:.2g}",
                f"{x['ratio']:.2f}", f"{x['first_seconds']:.2g}", f"{x['value_bytes'] / 2**20:.2f}",
                f"{x['both_bytes'] / 2**20:.1f}", f"{x['bytes_share']:.2f}", str(x["finite"]),
            )
        )  # fmt: skip
    return lines


# ---------------------------------------------------------------- many boxes


@partial(jax.jit, static_argnums=(3, 4))
def many(problem, method, key, at_once, gradient):
    """log P of many boxes, `at_once` in a pass; with its gradients if wanted."""

    def one(row):
        def value(row):
            loc, covariance, low, high = row
            region = tg.Box(low, high)
            return tg.log_probability(loc, covariance, region, method=method, key=key).log_prob

        return jax.value_and_grad(value)(row) if gradient else value(row)

    return jax.lax.map(one, problem, batch_size=at_once)


def boxes(batch, seed):
    """Gaussians of random correlation, and boxes about where they are."""
    keys = jax.random.split(jax.random.key(seed), 3)
    k, d = batch.num_problems, batch.dimension
    draws = jax.random.normal(keys[0], (k, d, 2 * d))
    low = jax.random.uniform(keys[1], (k, d), minval=-2.0, maxval=0.5)
    width = jax.random.uniform(keys[2], (k, d), minval=0.5, maxval=3.0)
    return jnp.zeros((k, d)), correlations(draws), low, low + width


def batches(config, part, peers):
    """Microseconds a problem and median relative error, in either precision."""
    clock, found = clock_of(config), {}
    for batch in config.batches:
        problem = boxes(batch, config.seed)
        judged = jax.tree.map(lambda x, batch=batch: x[: batch.num_judged], problem)
        key = jax.random.key(config.seed + 1)
        sure = tg.Separation(num_points=config.truth_points)
        truth = np.asarray(many(judged, sure, key, 1, False))
        for dtype in ("float64", "float32"):
            given = jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), problem)
            method = tg.Separation(batch.num_points, num_replicates=1, tilted=False)
            call = lambda problem, method=method, at_once=batch.at_once: many(
                problem, method, jax.random.key(config.seed), at_once, False
            )
            cost = compiled(jax.jit(call), (given,), config.num_calls, clock)
            log_probs = np.asarray(cost["output"], float)
            error = np.abs(np.expm1(log_probs[: batch.num_judged] - truth))
            found[f"d = {batch.dimension}, {dtype}"] = {
                "dimension": batch.dimension,
                "points": batch.num_points,
                "microseconds": 1e6 * cost["seconds"] / batch.num_problems,
                "first_seconds": cost["first_seconds"],
                "median_error": np.median(error),
                "largest_error": np.max(error),
                "finite": bool(np.isfinite(log_probs).all()),
            }
        found[f"d = {batch.dimension}, SciPy"] = scipy_loop(judged, truth, config, clock)
    return found


def scipy_loop(problem, truth, config, clock):
    """SciPy with its own settings, one box after the other."""
    error, seconds = [], []
    for loc, covariance, low, high, expected in zip(*map(np.asarray, (*problem, truth))):
        start = clock()
        p = multivariate_normal.cdf(high, loc, covariance, lower_limit=low, rng=config.seed)
        seconds.append(clock() - start)
        error.append(abs(p / np.exp(expected) - 1))
    return {
        "dimension": len(loc),
        "points": 0,
        "microseconds": 1e6 * np.median(seconds),
        "first_seconds": seconds[0],
        "median_error": np.median(error),
        "largest_error": np.max(error),
        "finite": bool(np.isfinite(error).all()),
    }


def told_batches(found):
    row = "{:<22}{:>8}{:>14}{:>14}{:>14}{:>9}{:>9}".format
    lines = [row("", "points", "us a problem", "median error", "largest", "first/s", "finite")]
    for name, x in found.items():
        told = [f"{x['microseconds']:.3g}", f"{x['median_error']:.2g}", f"{x['largest_error']:.2g}"]
        told += [f"{x['first_seconds']:.2g}", str(x["finite"])]
        lines.append(row(name, x["points"] or "default", *told))
    return lines


# ---------------------------------------------------------------- few factors


def low_rank(config, part, peers):
    """A few factors in very many dimensions, disguised: a product of one-factor problems.

    Loadings in disjoint groups, turned by a rotation, which leaves the covariance as it is.
    """
    case, clock = config.low_rank, clock_of(config)
    d, r = case.dimension, case.rank
    keys = jax.random.split(jax.random.key(config.seed), 2)
    loadings = jax.random.uniform(keys[0], (d,), minval=0.2, maxval=0.8)
    group = jnp.arange(d) % r
    noise = 1 - loadings**2
    truth = 0.0
    for j in range(r):
        mine = group == j
        covariance = tg.LowRank(loadings[mine][:, None], noise[mine])
        region = tg.Box(jnp.full(mine.sum(), case.low), jnp.inf)
        truth += float(tg.log_probability(
            jnp.zeros(region.dimension), covariance, region, method=tg.Exact()
        ).log_prob)  # fmt: skip
    turned = jnp.linalg.qr(jax.random.normal(keys[1], (r, r)))[0]
    factor = (loadings[:, None] * (group[:, None] == jnp.arange(r))) @ turned
    problem = jnp.zeros(d), tg.LowRank(factor, noise), tg.Box(jnp.full(d, case.low), jnp.inf)
    rows, refused = [], ""
    for num_points in case.num_points:
        method = tg.Separation(num_points, case.num_replicates)
        refused = too_large(problem, method, keys[0], case.most_bytes)
        if refused:
            break
        rows += measured_each(problem, truth, [method], config, clock)
    curve = {"truth": truth, "truth_stderr": 0.0, "refused": refused}
    return {f"rank {r}, d = {d:,}": curve | ({"Separation": columns(rows)} if rows else {})}


def too_large(problem, method, key, most_bytes):
    """Why a call should not be attempted, found without running it; empty if it should."""
    d = problem[0].shape[-1]
    lowered = answered.lower(*problem, method, key)
    if f"tensor<{d}x{d}x" in lowered.as_text():
        return f"the method forms a matrix of {d} x {d} numbers"
    memory = lowered.compile().memory_analysis()
    if memory and memory.temp_size_in_bytes > most_bytes:
        return f"it takes {memory.temp_size_in_bytes / 1e9:.3g} GB"
    return ""


def told_low_rank(found):
    refused = [f"not attempted: {curve['refused']}" for curve in found.values() if curve["refused"]]
    return told_cases(found) + refused


# ---------------------------------------------------------------- the default call


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


def told_shared(found):
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
        told = f"error {found['error'][i]:.2g}, stated {found['stderr'][i]:.2g}"
        lines.append(f"  {found['name'][i]}: {told}, {found['seconds'][i]:.2g} s")
    dishonest = ", ".join(found["name"][~found["honest"]])
    return [*lines, f"beyond three standard errors: {dishonest or 'none'}"]


# ---------------------------------------------------------------- an accelerator


def accelerator(config, part, peers):
    """Boxes a second with gradients, where there is an accelerator."""
    if jax.default_backend() == "cpu":
        return {}
    batch, found = config.accelerator, {}
    problem = boxes(batch, config.seed)
    for dtype in ("float64", "float32"):
        given = jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), problem)
        method = tg.Separation(batch.num_points, num_replicates=1, tilted=False)
        for gradient in (False, True):
            call = lambda problem, method=method, gradient=gradient: many(
                problem, method, jax.random.key(config.seed), batch.at_once, gradient
            )
            cost = compiled(jax.jit(call), (given,), config.num_calls, time.perf_counter)
            name = f"{dtype}, {'value and gradient' if gradient else 'value'}"
            finite = all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(cost["output"]))
            found[name] = {
                "points": batch.num_points,
                "boxes_a_second": batch.num_problems / cost["seconds"],
                "first_seconds": cost["first_seconds"],
                "finite": finite,
            }
    return found


def told_accelerator(found):
    if not found:
        return ["There is no accelerator: nothing was measured on one."]
    row = "{:<32}{:>8}{:>18}{:>9}{:>9}".format
    lines = [row("", "points", "boxes a second", "first/s", "finite")]
    for name, x in found.items():
        told = [f"{x['boxes_a_second']:.3g}", f"{x['first_seconds']:.2g}", str(x["finite"])]
        lines.append(row(name, x["points"], *told))
    return lines


PARTS = {
    "curves": (measured_cases, told_curves),
    "ordering": (measured_cases, told_cases),
    "chain": (measured_cases, told_cases),
    "gradients": (gradients, told_gradients),
    "batches": (batches, told_batches),
    "low_rank": (low_rank, told_low_rank),
    "shared": (shared, told_shared),
    "accelerator": (accelerator, told_accelerator),
}


# ---------------------------------------------------------------- the figure


LOOKS = {
    "Separation": 0, "Separation, 4 replicates": 2, "SequentialMonteCarlo": 4, "SciPy": 1,
    "R mvtnorm": 3,
}  # fmt: skip


def plot(results):
    """Error against time for every case, then what gradients cost and how the default call errs."""
    panels = []
    for part in ("curves", "ordering", "chain", "low_rank"):
        for name, curve in results.get(part, {}).items():
            if any(way in curve for way in LOOKS):
                panels.append(partial(work_precision, name, curve))
    if "gradients" in results:
        panels.append(partial(cost_of_gradients, results["gradients"]))
    if "shared" in results:
        panels.append(partial(default_errors, results["shared"]))
    if not panels:
        raise ValueError(
            "Nothing to draw: of parts, batches and accelerator have no picture; add another."
        )
    num_columns = min(len(panels), 3 if len(panels) % 4 else 4)
    num_rows = -(-len(panels) // num_columns)
    picture, axes = plotting.figure(num_rows, num_columns, size=(3.9, 3.0), squeeze=False)
    for ax, draw in zip(axes.flat, panels, strict=False):
        draw(ax)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    return plotting.shared_legend(picture, columns=4)


def work_precision(name, curve, ax):
    """RMS error of log P against seconds; the error that a method itself states, dotted."""
    for way, look in LOOKS.items():
        part = curve.get(way)
        if part is None:
            continue
        seen = np.isfinite(part["rms"])
        x, y = part["seconds"][seen], part["rms"][seen]
        if not len(x):
            plotting.title(f"{name}\n{way}: P = 0 with every number of points", ax=ax)
            continue
        plotting.curves(x, [y], [way], series=(look,), ax=ax)
        plotting.points(x, y, series=look, ax=ax)
        if "stated" in part and np.isfinite(part["stated"][seen]).any():
            stated = part["stated"][seen]
            plotting.points(
                x, stated, label=f"{way}, its own standard error", series=look, filled=False, ax=ax
            )
    ax.set(xscale="log", yscale="log", xlabel="seconds a call", ylabel="rms error of log P")
    ax.set(xlim=a_decade(*ax.get_xlim()), ylim=a_decade(*ax.get_ylim()))
    if not ax.get_title(loc="left"):
        plotting.title(name, ax=ax)


def a_decade(low, high):
    """Limits of a logarithmic axis, no closer than a factor of ten: labels need that much."""
    more = math.sqrt(max(1.0, 10.0 * low / high))
    return low / more, high * more


def cost_of_gradients(found, ax):
    """Time of value and gradient over that of the value, by dimension."""
    x = found["dimension"]
    plotting.curves(x, [found["ratio"]], ["(value + gradient) / value, time"], series=(5,), ax=ax)
    plotting.points(x, found["ratio"], series=5, ax=ax)
    ax.set(xscale="log", xlabel="dimension", ylabel="ratio", ylim=(0, None))
    plotting.title("What a gradient costs", ax=ax)


def default_errors(found, ax):
    """Relative error of the default call, and what it says of it, by how small P is."""
    size, floor = -found["truth"], 1e-16
    seen = np.maximum(found["error"], floor)
    plotting.points(size, seen, label="default call", series=6, ax=ax)
    sure = np.isfinite(found["stderr"]) & (found["stderr"] > 0)
    plotting.points(
        size[sure], found["stderr"][sure], label="default call, its own standard error", series=6,
        filled=False, ax=ax,
    )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="-log P", ylabel="relative error of P")
    plotting.title("The default call, families of known P", ax=ax)


if __name__ == "__main__":
    raise SystemExit(cli.main_experiment(__file__))
