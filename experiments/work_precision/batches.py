"""Many boxes at once: time for each and errors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import multivariate_normal

import truncgauss as tg

from ..timing import compiled
from .clock import clock_of
from .problems import correlations


@partial(jax.jit, static_argnums=3)
def many(problem, method, key, at_once):
    """log P of many boxes, `at_once` in a pass."""

    def one(row):
        loc, covariance, low, high = row
        region = tg.Box(low, high)
        return tg.log_probability(loc, covariance, region, method=method, key=key).log_prob

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
        truth = np.asarray(many(judged, sure, key, 1))
        for dtype in ("float64", "float32"):
            given = jax.tree.map(lambda x, dtype=dtype: x.astype(dtype), problem)
            method = tg.Separation(batch.num_points, num_replicates=1, tilted=False)
            call = lambda problem, method=method, at_once=batch.at_once: many(
                problem, method, jax.random.key(config.seed), at_once
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
    """SciPy with its own settings, one box after another."""
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


def batches_table(found):
    row = "{:<22}{:>8}{:>14}{:>14}{:>14}{:>9}{:>9}".format
    lines = [row("", "points", "us a problem", "median error", "largest", "first/s", "finite")]
    for name, x in found.items():
        cells = [
            f"{x['microseconds']:.3g}",
            f"{x['median_error']:.2g}",
            f"{x['largest_error']:.2g}",
        ]
        cells += [f"{x['first_seconds']:.2g}", str(x["finite"])]
        lines.append(row(name, x["points"] or "default", *cells))
    return lines
