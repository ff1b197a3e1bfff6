"""The order in which to integrate the variables, and the structure that makes a problem smaller."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.pytrees import varying_like
from truncgauss.special import log_interval_mass, standardize, truncated_mean

BLOCK = 32


class Order(NamedTuple):
    """An order of integration.

    Attributes:
        order: the variables, the one to integrate first in front, shape (d,).
        point: in that order, the conditional means of the truncated standard-normal variables,
            shape (d,): a point inside the region.
    """

    order: Array
    point: Array


def smallest_mass_first(covariance_matrix: Array, low: Array, high: Array) -> Order:
    """The variables in the order of their conditional masses, the smallest first.

    Each step takes the variable whose interval has the least mass given that those taken before lie
    at their truncated means. What is left to integrate then varies least.

    Args:
        covariance_matrix: shape (d, d).
        low: limits less the mean, shape (d,); likewise high.

    Reference:
        Gibson, Glasbey and Elston (1994), Monte Carlo evaluation of multivariate normal integrals
        and sensitivity to variate ordering.
    """
    d = len(low)
    num_blocks = -(-d // BLOCK)
    block = -(-d // num_blocks)
    variances = jnp.diagonal(covariance_matrix)
    floor = rounding(covariance_matrix)

    def step(state, position):
        remainder, columns, left, residual, mean = state
        known = residual <= floor
        scale = jnp.where(known, 1.0, jnp.sqrt(jnp.maximum(residual, floor)))
        interval = standardize(low, high, mean, scale)
        log_mass = log_interval_mass(*interval)
        # What is known already has nothing to integrate, so it comes last of all.
        chosen = jnp.argmin(jnp.where(left, jnp.where(known, 1.0, log_mass), jnp.inf))
        draw = truncated_mean(0.0, 1.0, interval.low[chosen], interval.high[chosen])
        draw = jnp.where(known[chosen] | (log_mass[chosen] == -jnp.inf), 0.0, draw)
        column = (remainder[chosen] - columns[:, chosen] @ columns) / scale[chosen]
        left = left & (jnp.arange(d) != chosen)
        column = jnp.where(left & ~known[chosen], column, 0.0)
        columns = columns.at[position].set(column)
        state = remainder, columns, left, residual - column * column, mean + column * draw
        return state, (chosen, draw)

    def block_step(state, _):
        remainder, left, residual, mean = state
        columns = varying_like(jnp.zeros((block, d), low.dtype), low)
        state = remainder, columns, left, residual, mean
        (_, columns, left, residual, mean), taken = jax.lax.scan(step, state, jnp.arange(block))
        return (remainder - columns.T @ columns, left, residual, mean), taken

    state = covariance_matrix, jnp.ones(d, bool), variances, jnp.zeros(d, low.dtype)
    state = varying_like(state, low)
    if num_blocks == 1:
        _, (order, point) = block_step(state, None)
        return Order(order, point)
    _, (order, point) = jax.lax.scan(block_step, state, None, length=num_blocks)
    return Order(order.ravel()[:d], point.ravel()[:d])


def rounding(covariance_matrix: Array) -> Array:
    """What a variance that should be zero may amount to after elimination, shape (d,)."""
    d = covariance_matrix.shape[-1]
    variances = jnp.diagonal(covariance_matrix)
    return 4.0 * d * float(jnp.finfo(variances.dtype).eps) * variances


def numerical_rank(covariance_matrix: np.ndarray) -> int:
    """The largest rank of covariances, shape (..., d, d), up to rounding.

    NaN counts as full rank, and so does a batch without rows.
    """
    d = covariance_matrix.shape[-1]
    scale = np.sqrt(np.diagonal(covariance_matrix, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    correlation = covariance_matrix / scale[..., :, None] / scale[..., None, :]
    least = 4.0 * d * np.finfo(covariance_matrix.dtype).eps
    if not np.all(np.isfinite(correlation)) or 0 in correlation.shape:
        return d
    return int(np.max(np.sum(np.linalg.eigvalsh(correlation) > least, axis=-1)))
