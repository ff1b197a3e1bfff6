"""The order of integration of the variables."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.execution.pytrees import varying_like
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import UNDETERMINED, diagonal_of, nearly_determined, rounding
from truncgauss.special.normal import fixed_interval, quick_moments

BLOCK = 32
LARGEST_ROOT = 2**18  # entries; a larger root takes too long to read in every step


class Order(NamedTuple):
    """An order of integration.

    Attributes:
        order: indices of the variables, the outermost integral first, shape (d,).
        point: in that order, the conditional means of the truncated standard normal variables,
            shape (d,): a point inside the region.
    """

    order: Array
    point: Array


def smallest_mass_first(limits: GaussianLimits, rank: int | None = None) -> Order:
    """The order of increasing conditional mass, which makes the integrand vary least.

    Each step takes the variable whose interval has the smallest probability given that the earlier
    variables are at their truncated means. A root of the covariance, where there is one,
    distinguishes conditional standard deviations below 1e-8 from zero. If the rank is less than the
    number of variables, those that are nearly determined come last.

    Reference:
        Gibson, Glasbey and Elston (1994), Monte Carlo evaluation of multivariate normal integrals
        and sensitivity to variate ordering.
    """
    low, high, _ = fixed_interval(limits.low, limits.high, limits.loc)
    covariance_matrix, root, d = limits.covariance, limits.root, len(low)
    if root is not None and root.size <= LARGEST_ROOT:
        rounded = UNDETERMINED**0.5 * limits.residual_rounding
        if rank is not None and rank < d:
            spread = jnp.sqrt(diagonal_of(covariance_matrix))
            rounded = jnp.maximum(rounded, d**0.5 * nearly_determined(spread.dtype) * spread)
        return _smallest_mass_first(root, rounded, low, high)
    num_blocks = -(-d // BLOCK)
    block = -(-d // num_blocks)
    variances = diagonal_of(covariance_matrix)
    floor = UNDETERMINED * rounding(covariance_matrix)

    def step(state: Any, position: Array) -> Any:
        remainder, columns, left, residual, mean = state
        known, scale, chosen, draw = _next(residual, floor, mean, left, low, high)
        column = (remainder[chosen] - columns[:, chosen] @ columns) / scale[chosen]
        left = left & (jnp.arange(d) != chosen)
        column = jnp.where(left & ~known[chosen], column, 0.0)
        columns = lax.dynamic_update_index_in_dim(columns, column, position, 0)
        state = remainder, columns, left, residual - column * column, mean + column * draw
        return state, (chosen, draw)

    def block_step(state: Any, _: None) -> Any:
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


def _smallest_mass_first(root: Array, rounded: Array, low: Array, high: Array) -> Order:
    """The same from a root, from which each step projects out the chosen variable.

    Variables of smaller conditional deviations than `rounded`, shape (d,), are determined.
    """
    d = len(low)
    floor = rounded**2

    def step(state: Any, _: None) -> Any:
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


def _next(
    residual: Array, floor: Array, mean: Array, left: Array, low: Array, high: Array
) -> tuple[Array, Array, Array, Array]:
    """Flags of the determined variables, conditional scales, the next variable and its mean."""
    known = residual <= floor
    scale = jnp.sqrt(jnp.maximum(residual, floor))
    scale = jnp.where(scale > 0, scale, 1.0)
    cut = quick_moments(fixed_interval(low, high, mean, scale))
    # A determined variable needs no integral, so it comes last.
    chosen = jnp.argmin(jnp.where(left, jnp.where(known, 1.0, cut.log_mass), jnp.inf))
    return known, scale, chosen, cut.mean[chosen]
