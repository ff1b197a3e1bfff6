"""Seconds, memory and errors of dense problems of thousands of dimensions.

All correlations are 1/2 and all variables positive: P = 1 / (d + 1), and the derivative of log P in
the correlation is known from one common factor. The covariance is given as a dense matrix, whose
structure `DenseBlocks` does not look for. The factor costs d^3 / 3 operations, the points n d^2.

References:
    Gupta (1963), Probability integrals of multivariate normal and multivariate t, for the orthant.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

import truncgauss as tg
from truncgauss import fitting

from ..timing import compiled
from .dense_blocks import DenseBlocks

KINDS = ("value", "gradient")


def run(config):
    """Processor seconds and bytes of values and gradients in every dimension."""
    found = {name: [] for name in KINDS}
    with tg.parallel.replicates(tg.parallel.device_mesh(config.devices)):
        for dimension in config.dimensions:
            for name in KINDS[: 1 + (dimension <= config.largest_gradient)]:
                asked = f"{name} {dimension}", measured, name, dimension, config
                found[name].append(fitting.computed(*asked))
    results = {"dimensions": np.array(config.dimensions)}
    for name, rows in found.items():
        results[name] = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        # The power of the dimension; in smaller ones the points, of order d^2, take most.
        d, work = results[name]["dimension"], results[name]["work"]
        large = d >= config.least_of_exponent
        several = np.sum(large) > 1
        results[name]["exponent"] = (
            float(np.polyfit(np.log(d[large]), np.log(work[large]), 1)[0]) if several else np.nan
        )
    z = np.abs(results["value"]["error"] / results["value"]["stderr"])
    failed = "" if np.all(z < 4.5) else f"an error is {z.max():.1f} times its standard error"
    return results | {"summary": list(summary(results, config)), "failed": failed}


def measured(name, dimension, config):
    """What one compiled call takes, and its error against the closed form."""
    region, loc = tg.Box(jnp.zeros(dimension), jnp.inf), jnp.zeros(dimension)
    method = DenseBlocks(config.num_points, config.num_replicates)
    # Of its own: with one key for all dimensions their errors would be nearly the same.
    key = jax.random.fold_in(jax.random.key(config.seed), dimension)

    def value(matrix):
        found = tg.log_probability(loc, matrix, region, method, key)
        return found.log_prob, found.stderr

    def gradient(matrix):
        return jax.value_and_grad(value, has_aux=True)(matrix)

    index = jnp.arange(dimension)
    matrix = jax.jit(lambda: jnp.where(index[:, None] == index, 1.0, 0.5))()
    function = jax.jit({"value": value, "gradient": gradient}[name])
    cost = compiled(function, (matrix,), 0, time.process_time)
    result = cost["output"]
    log_prob, stderr = result if name == "value" else result[0]
    errors = {"error": float(log_prob) + np.log(dimension + 1), "stderr": float(stderr)}
    if name == "gradient":
        slope = jax.jit(lambda g: jnp.sum(g) - jnp.trace(g))(result[1])
        errors["slope_error"] = float(slope) / exact_slope(dimension) - 1.0
    return {"dimension": dimension, "work": cost["seconds"], "memory": cost["held"], **errors}


def exact_slope(dimension):
    """The derivative of log P in the correlation, by quadrature over the common factor."""

    def log_prob(rho):
        ones = jnp.ones(dimension)
        factor = tg.LowRank(jnp.sqrt(rho) * ones[:, None], (1.0 - rho) * ones)
        return tg.log_probability(0.0 * ones, factor, tg.Box(0.0 * ones, jnp.inf)).log_prob

    return float(jax.grad(log_prob)(0.5))


def summary(results, config):
    """A line for each dimension."""
    yield (
        f"{config.num_points * config.num_replicates} points; exponents of processor seconds in "
        f"the dimension, from {config.least_of_exponent} on:"
    )
    yield ", ".join(f"{name} {results[name]['exponent']:.2f}" for name in KINDS)
    yield "dimension: processor seconds, GB, error of log P, its standard error"
    for name in KINDS:
        rows = results[name]
        for i, d in enumerate(rows["dimension"]):
            extra = f"  slope off by {rows['slope_error'][i]:.1%}" if name == "gradient" else ""
            yield (
                f"{name:8} {d:6}: {rows['work'][i]:8.1f} s {rows['memory'][i] / 1e9:6.2f} GB "
                f"{rows['error'][i]:9.4f} {rows['stderr'][i]:.4f}{extra}"
            )
