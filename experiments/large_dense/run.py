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

from .dense_blocks import DenseBlocks

GRADIENT_COST = 2.0  # in values: of each product of matrices forwards two backwards


def run(config):
    """Seconds, processor seconds and bytes of values and gradients in every dimension."""
    found = []
    with tg.parallel.replicates(tg.parallel.device_mesh(config.devices)):
        for dimension in config.dimensions:
            wanted = ("value", "gradient")[: 1 + (dimension <= config.largest_gradient)]
            rows = {
                name: fitting.computed(f"{name} {dimension}", measured, name, dimension, config)
                for name in wanted
            }
            found.append(rows)
    results = {
        "points": config.num_points * config.num_replicates,
        "dimensions": np.array(config.dimensions),
    }
    for name in ("value", "gradient"):
        rows = [row[name] for row in found if name in row]
        results[name] = {key: np.array([row[key] for row in rows]) for key in rows[0]}
        results[name]["exponent"] = exponent(results[name], config.least_of_exponent)
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

    compiled = jax.jit({"value": value, "gradient": gradient}[name])
    matrix = equicorrelated(dimension)
    program = compiled.lower(matrix).compile()
    start, work = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(program(matrix))
    seconds = {"wall": time.perf_counter() - start, "work": time.process_time() - work}
    memory = program.memory_analysis()
    log_prob, stderr = result if name == "value" else result[0]
    errors = {"error": float(log_prob) + np.log(dimension + 1), "stderr": float(stderr)}
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
    if name == "gradient":
        slope = jax.jit(lambda g: jnp.sum(g) - jnp.trace(g))(result[1])
        errors["slope_error"] = float(slope) / exact_slope(dimension) - 1.0
    return {"dimension": dimension, **seconds, "memory": held, **errors}


def equicorrelated(dimension):
    """The covariance with variances 1 and covariances 1/2."""

    @jax.jit
    def made():
        index = jnp.arange(dimension)
        return jnp.where(index[:, None] == index[None, :], 1.0, 0.5)

    return made()


def exact_slope(dimension):
    """The derivative of log P in the correlation, by quadrature over the common factor."""

    def log_prob(rho):
        ones = jnp.ones(dimension)
        factor = tg.LowRank(jnp.sqrt(rho) * ones[:, None], (1.0 - rho) * ones)
        return tg.log_probability(0.0 * ones, factor, tg.Box(0.0 * ones, jnp.inf)).log_prob

    return float(jax.grad(log_prob)(0.5))


def exponent(rows, least):
    """The slope of the log of processor seconds in that of the dimension, by least squares.

    Of the dimensions from `least` on; in smaller ones the points, of order d^2, take most.
    """
    large = rows["dimension"] >= least
    if np.sum(large) < 2:
        return float("nan")
    return float(np.polyfit(np.log(rows["dimension"][large]), np.log(rows["work"][large]), 1)[0])


def operations(dimension, num_points):
    """Additions and multiplications of a value: of the factor, and of the points."""
    return dimension**3 / 3.0 + num_points * dimension**2


def summary(results, config):
    """A line for each dimension, and the arithmetic of a larger problem."""
    yield (
        f"{results['points']} points; exponents of processor seconds in the dimension, from "
        f"{config.least_of_exponent} on:"
    )
    yield ", ".join(f"{name} {results[name]['exponent']:.2f}" for name in ("value", "gradient"))
    yield "dimension: processor seconds, seconds, GB, error of log P, its standard error"
    for name in ("value", "gradient"):
        rows = results[name]
        for i, d in enumerate(rows["dimension"]):
            extra = f"  slope off by {rows['slope_error'][i]:.1%}" if name == "gradient" else ""
            yield (
                f"{name:8} {d:6}: {rows['work'][i]:8.1f} s {rows['wall'][i]:8.1f} s "
                f"{rows['memory'][i] / 1e9:6.2f} GB {rows['error'][i]:9.4f} "
                f"{rows['stderr'][i]:.4f}{extra}"
            )
    last, d = results["value"], int(results["value"]["dimension"][-1])
    rate = operations(d, results["points"]) / last["work"][-1]
    yield f"here {rate / 1e9:.0f} GFLOP a processor second at d = {d}"
    large = config.accelerator
    d, count = large.dimension, operations(large.dimension, results["points"])
    matrix = 8.0 * d * d / 1e9
    held = [results[name]["memory"][-1] / (8.0 * results[name]["dimension"][-1] ** 2)
            for name in ("value", "gradient")]  # fmt: skip
    yield (
        f"d = {d}: matrix {matrix:.1f} GB, half a factor {matrix / 2:.1f} GB; by the matrices held "
        f"here, {held[0]:.2f} and {held[1]:.2f}, value {held[0] * matrix:.0f} GB and gradient "
        f"{held[1] * matrix:.0f} GB of {large.gigabytes:g} GB a device"
    )
    yield (
        f"{count:.2g} operations, {count / large.flops:.0f} s at {large.flops / 1e12:g} TFLOP/s, "
        f"here {count / rate:.0f} processor seconds; about {1.0 + GRADIENT_COST:g} times that with "
        "the gradient"
    )
