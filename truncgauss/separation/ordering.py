"""The order in which to integrate the variables."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.limits import GaussianLimits
from truncgauss.linalg import rounding
from truncgauss.pytrees import varying_like
from truncgauss.special import log_interval_mass, standardize, truncated_mean

BLOCK = 32
LARGEST_ROOT = 2**18  # numbers of a root that each step may read


class Order(NamedTuple):
    """An order of integration.

    Attributes:
        order: the variables, the one to integrate first in front, shape (d,).
        point: in that order, the conditional means of the truncated standard-normal variables,
            shape (d,): a point inside the region.
    """

    order: Array
    point: Array


def smallest_mass_first(limits: GaussianLimits) -> Order:
    """The variables in the order of their conditional masses, the smallest first.

    Each step takes the variable whose interval has the least mass given that those taken before lie
    at their truncated means. What is left to integrate then varies least. Where a root of the
    covariance is known, conditional standard deviations below 1e-8 are told from zero.

    Reference:
        Gibson, Glasbey and Elston (1994), Monte Carlo evaluation of multivariate normal integrals
        and sensitivity to variate ordering.
    """
    low, high, _ = standardize(limits.low, limits.high, limits.loc)
    covariance_matrix, root, d = limits.covariance, limits.root, len(low)
    if root is not None and root.size <= LARGEST_ROOT:
        return _smallest_mass_first(root, low, high)
    num_blocks = -(-d // BLOCK)
    block = -(-d // num_blocks)
    variances = jnp.diagonal(covariance_matrix)
    floor = rounding(covariance_matrix)

    def step(state, position):
        remainder, columns, left, residual, mean = state
        known, scale, chosen, draw = _next(residual, floor, mean, left, low, high)
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


def _smallest_mass_first(root: Array, low: Array, high: Array) -> Order:
    """The same from a root, of which each step takes the direction of the variable it chooses."""
    d = len(low)
    rounding = 4.0 * max(root.shape) * float(jnp.finfo(root.dtype).eps)
    floor = rounding**2 * jnp.sum(root * root, axis=1)

    def step(state, _):
        root, left, mean = state
        residual = jnp.sum(root * root, axis=1)
        known, scale, chosen, draw = _next(residual, floor, mean, left, low, high)
        direction = root[chosen] / scale[chosen]
        left = left & (jnp.arange(d) != chosen)
        column = jnp.where(left & ~known[chosen], root @ direction, 0.0)
        root = root - column[:, None] * direction[None, :]
        return (root, left, mean + column * draw), (chosen, draw)

    state = root, jnp.ones(d, bool), jnp.zeros(d, low.dtype)
    state = varying_like(state, root, low, high)
    _, (order, point) = jax.lax.scan(step, state, length=d)
    return Order(order, point)


def _next(residual: Array, floor: Array, mean: Array, left: Array, low: Array, high: Array):
    """Which variables are known already, conditional scales, the next variable and its mean."""
    known = residual <= floor
    scale = jnp.where(known, 1.0, jnp.sqrt(jnp.maximum(residual, floor)))
    interval = standardize(low, high, mean, scale)
    log_mass = log_interval_mass(*interval)
    # What is known already has nothing to integrate, so it comes last of all.
    chosen = jnp.argmin(jnp.where(left, jnp.where(known, 1.0, log_mass), jnp.inf))
    draw = truncated_mean(0.0, 1.0, interval.low[chosen], interval.high[chosen])
    draw = jnp.where(known[chosen] | (log_mass[chosen] == -jnp.inf), 0.0, draw)
    return known, scale, chosen, draw
