r"""log P of independent coordinates, as a function of all entries of their covariance matrix.

At a diagonal matrix log P is a sum over coordinates. It is a function of the covariances
nevertheless, of which 0 is one value. Since a Gaussian density solves the heat equation,

.. math:: d \log P = \frac{1}{2} \sum_{i \neq j} d\Sigma_{ij} \left( \partial_i \partial_j \log P
    + \partial_i \log P \; \partial_j \log P \right)

along a change of the covariances, with derivatives in the mean, which the sum has. Every derivative
of these terms in a covariance is of this form again, so that those of all orders follow.

Reference:
    Plackett (1954), A reduction formula for normal multivariate integrals, for the derivative in a
    covariance as a second derivative in the mean.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from truncgauss.arrays.linalg import beyond_rounding, in_full_precision
from truncgauss.arrays.pytrees import Estimate
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import standardize


def log_masses_of(loc: Array, variance: Array, low: Array, high: Array) -> Array:
    """The log masses of intervals of one variable each, which is inside or outside where its
    variance is 0; elementwise."""
    known = variance == 0
    met = jnp.where((low <= loc) & (loc <= high), 0.0, -jnp.inf) + 0.0 * loc
    limits = standardize(low, high, loc, jnp.sqrt(jnp.where(known, 1.0, variance)))
    return jnp.where(known, met, log_interval_mass(*limits))


def estimates_of(loc: Array, variance: Array, low: Array, high: Array) -> Estimate:
    """`log_masses_of` intervals, and their errors from the rounding of the inputs; elementwise."""
    log_prob = log_masses_of(loc, variance, low, high)
    error = last_digit_of_one(log_prob, loc, variance, low, high)
    return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, error))


def last_digit_of_one(
    log_prob: Array, loc: Array, variance: Array, low: Array, high: Array
) -> Array:
    """A bound on the change of log P if every input of one coordinate changes by one unit in its
    last place, as of `conditioning.last_digit` for three; elementwise, 0 for a variance of 0."""
    inputs = log_prob, loc, variance, low, high
    log_prob, loc, variance, low, high = jax.lax.stop_gradient(inputs)
    still = variance == 0
    variance = jnp.where(still, 1.0, variance)
    nearest = jnp.where(still, loc, jnp.clip(loc, low, high))
    size = jnp.abs(nearest - loc) / variance
    bound = size * (0.5 * variance * size + jnp.abs(loc) + jnp.abs(nearest))
    return beyond_rounding(float(np.finfo(loc.dtype).eps) * bound, log_prob)


def log_probability(
    loc: Float[Array, " d"],
    matrix: Float[Array, "d d"],
    low: Float[Array, " d"],
    high: Float[Array, " d"],
) -> Array:
    """log P of a box under a diagonal covariance matrix; NaN where it is not diagonal."""
    identity = jnp.eye(len(loc), dtype=bool)
    covariances = jnp.where(identity, 0.0, matrix)
    log_prob = _of_all(jnp.concatenate([loc, jnp.diagonal(matrix), low, high]), covariances)
    return jnp.where(jnp.any(covariances != 0), jnp.nan, log_prob)


def _of_all(numbers: Array, covariances: Array) -> Array:
    """log P, from the means, variances and limits one after the other, and the covariances."""
    return log_masses_of(*jnp.split(numbers, 4)).sum() + _zeros(0, numbers, covariances)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _zeros(order: int, numbers: Array, covariances: Array) -> Array:
    """Zeros in place of the derivatives of this order of log P in the numbers, which the sum has;
    their own derivatives in the covariances are those that it lacks."""
    return jnp.zeros((len(numbers),) * order, numbers.dtype)


@partial(_zeros.defjvp, symbolic_zeros=True)
@in_full_precision
def _zeros_jvp(order: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (numbers, covariances), (moved, change) = primals, tangents
    zeros, slope = _zeros(order, *primals), jnp.zeros((len(numbers),) * order, numbers.dtype)
    if not isinstance(moved, SymbolicZero):
        slope = _zeros(order + 1, *primals) @ moved
    if not isinstance(change, SymbolicZero):
        function: Any = lambda numbers: _along(numbers, covariances, change)
        for _ in range(order):
            function = jax.jacfwd(function)
        slope = slope + function(numbers)
    return zeros, slope


def _along(numbers: Array, covariances: Array, change: Array) -> Array:
    """The derivative of log P along a change of the covariances."""
    d = len(change)

    def slopes(loc: Array) -> tuple[Array, Array]:
        of_mean = lambda loc: _of_all(jnp.concatenate([loc, numbers[d:]]), covariances)
        gradient = jax.grad(of_mean)(loc)
        return gradient, gradient

    curve, gradient = jax.jacfwd(slopes, has_aux=True)(numbers[:d])
    return 0.5 * jnp.sum(change * (curve + gradient[:, None] * gradient[None, :]))
