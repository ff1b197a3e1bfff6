"""Mean and variance of a truncated normal variable by one quadrature, in few operations.

The functions of `moments` keep their relative accuracy and that of all derivatives in any regime,
by some five hundred operations, which cost more to compile than a solver that needs only a proposal
takes to run. Here the density, divided by its maximum, is integrated by the Gauss-Legendre rule
where it exceeds exp(-30): the result is accurate to about 1e-12 of a standard deviation, and far
limits have an effect of that order instead of their true, smaller one.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from truncgauss.special.normal import Interval

# 2n nodes integrate exp(-x^2/2) over (-r, r) with an error of about exp(-r^2/4) I_2n(r^2/4), I_n
# being modified Bessel functions: below 1e-15 for these.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_FALL = 30.0


class QuickMoments(NamedTuple):
    """The mean as the mode and an offset from it, and the variance."""

    mode: Float[Array, "*shape"]
    offset: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]

    @property
    def mean(self) -> Float[Array, "*shape"]:
        """The mean, with the digits that the mode leaves to it."""
        return self.mode + self.offset


def quick_moments(interval: Interval) -> QuickMoments:
    """Mean and variance of a standard normal variable truncated to an interval.

    Args:
        interval: standardised limits, infinite values welcome; see `standardize`.

    Returns:
        The moments, the offset and the variance with an error of about 1e-12 (1e-6 in float32)
        relative to the standard deviation after truncation and to its square. NaN where an argument
        is NaN.

    Reference:
        Golub and Welsch (1969), Calculation of Gauss quadrature rules.
    """
    low, high, width = interval
    mode = jnp.clip(0.0, low, high)
    # The density falls by exp(-30) over this distance, on either side where the mode is inside.
    reach = 2.0 * _FALL / (jnp.abs(mode) + jnp.hypot(mode, (2.0 * _FALL) ** 0.5))
    ahead = jnp.where(low < mode, high - mode, width)
    behind = jnp.where(mode < high, mode - low, width)
    right, left = jnp.minimum(ahead, reach), -jnp.minimum(behind, reach)
    right, left = jnp.where(mode == high, 0.0, right), jnp.where(mode == low, 0.0, left)
    nodes, weights = (jnp.asarray(x, low.dtype) for x in (0.5 * (1.0 + _NODES), _WEIGHTS))
    offsets = left[..., None] + (right - left)[..., None] * nodes.reshape((1,) * low.ndim + (-1,))
    weights = weights.reshape((1,) * low.ndim + (-1,)) * jnp.exp(
        -offsets * (mode[..., None] + 0.5 * offsets)
    )
    normalized = weights / jnp.sum(weights, -1, keepdims=True)
    offset = jnp.sum(normalized * offsets, -1)
    variance = jnp.sum(normalized * jnp.square(offsets - offset[..., None]), -1)
    return QuickMoments(mode, offset, variance)
