r"""Masses of boxes for the rows of fits: iterated quadratures that compile in a second.

Their errors are below 4e-6 of a mass of 1e-4 where the standard deviation of each variable given
the others is not below `RESOLVED`; `quadrature.bivariate` and `trivariate` are exact to rounding at
any correlation, and take ten times as long.
"""

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.special import log_interval_mass, standardize
from truncgauss.special.tails import LOG_SQRT_2PI

NODES = {2: 40, 3: 32, 4: 20}  # a dimension, of integrals over so many variables
RESOLVED = {1: 0.0, 2: 0.08, 3: 0.13, 4: 0.21}
DEPTH = 30.0  # by how many nats a density falls within the part that is integrated
FARTHEST = 39.0  # standard deviations from 0, beyond which no mass is left


def log_box(low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array) -> jax.Array:
    """log P(low < x < high) of x with this mean, all (l,), and Cholesky factor (l, l):
    Gauss-Legendre over all coordinates but the last."""
    size = len(low)
    nodes, weights = np.polynomial.legendre.leggauss(NODES.get(size, 1))
    z, weight = jnp.zeros((1, 0)), jnp.ones(1)
    for k in range(size - 1):
        ends = standardize(low[k], high[k], loc[k] + z @ factor[k, :k], factor[k, k])
        left, right = part_that_counts(ends.low, ends.high)
        half = 0.5 * (right - left)
        at = 0.5 * (left + right)[:, None] + half[:, None] * nodes
        density = jnp.exp(-0.5 * at**2 - LOG_SQRT_2PI) * weights * half[:, None]
        weight = (weight[:, None] * density).ravel()
        z = jnp.concatenate([jnp.repeat(z, len(nodes), axis=0), at.reshape(-1, 1)], axis=1)
    ends = standardize(low[-1], high[-1], loc[-1] + z @ factor[-1, :-1], factor[-1, -1])
    return jnp.log(jnp.sum(weight * interval(ends.low, ends.high)))


def log_of_independent(
    low: jax.Array, high: jax.Array, exact: jax.Array, loc: jax.Array, scale: jax.Array
) -> jax.Array:
    """The log probability (density) of rows of independent entries.

    Args:
        low, high: limits, (n, d).
        exact: where these are one value, (n, d).
        loc: (n, d).
        scale: standard deviations, (d,) or (n, d).
    """
    z = (jnp.where(exact, low, loc) - loc) / scale
    density = -0.5 * z**2 - jnp.log(scale) - LOG_SQRT_2PI
    low, high = jnp.where(exact, -jnp.inf, low), jnp.where(exact, jnp.inf, high)
    masses = log_interval_mass(*standardize(low, high, loc, scale))
    return jnp.sum(jnp.where(exact, density, masses), axis=1)


def interval(low: jax.Array, high: jax.Array) -> jax.Array:
    """The mass of an interval of a standard normal variable, from the tail closer to it."""
    low, high = (jnp.clip(end, -FARTHEST, FARTHEST) / 2.0**0.5 for end in (low, high))
    erfc, upper = jax.lax.erfc, low > 0  # a sixth of the time of ndtr
    return 0.5 * (erfc(jnp.where(upper, low, -high)) - erfc(jnp.where(upper, high, -low)))


def part_that_counts(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The part of an interval within which a standard normal density falls by DEPTH."""
    above = jnp.maximum(jnp.where(jnp.isfinite(low), low, 0.0), 0.0)
    below = jnp.minimum(jnp.where(jnp.isfinite(high), high, 0.0), 0.0)
    right = jnp.minimum(high, jnp.sqrt(above**2 + 2.0 * DEPTH))
    left = jnp.maximum(low, -jnp.sqrt(below**2 + 2.0 * DEPTH))
    return jnp.where(left < right, left, right), right
