r"""Log probabilities of intervals under Student's t in one dimension, in any tail.

With u = sqrt(df) sinh(y) the density of t becomes cosh(y)^-df up to a constant, so that

.. math:: P(a \le T \le b) = \frac{\int_{y_a}^{y_b} \cosh(y)^{-\nu}\, dy}
    {2 \int_0^\infty \cosh(y)^{-\nu}\, dy}, \qquad y_x = \operatorname{arsinh}(x / \sqrt\nu).

Both integrals are taken by one rule, from the end nearer to 0, relative to the integrand there:

.. math:: \cosh(y + s) / \cosh(y) = \cosh s + \tanh(y) \sinh s.

References:
    Takahasi and Mori (1974), Double exponential formulas for numerical integration.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.special.logspace import log_sum_exp
from truncgauss.special.tails import Interval

FALL = 42.0  # log of the height at the near end over that where the integral is cut
_T = np.linspace(-3.2, 3.2, 97)
_NODES, _BEYOND = (1.0 / (1.0 + np.exp(np.pi * np.sinh(sign * _T))) for sign in (-1.0, 1.0))
_WEIGHTS = (_T[1] - _T[0]) * np.pi * np.cosh(_T) * _NODES * _BEYOND


def log_t_mass(df: Array, interval: Interval) -> Array:
    """The log probability of standardised intervals under Student's t with df degrees of freedom.

    Args:
        df: positive and finite; it and the limits broadcast.
        interval: limits in scales from the location, see `standardize`.

    Returns:
        The logs, relative errors of the probability being below 1e-11 (1e-5 in float32) for df from
        0.05 on; -inf for an empty interval, NaN for an inverted one.
    """
    df, low, high, width = jnp.broadcast_arrays(df, *interval)
    proper = width > 0
    low, high, width = (jnp.where(proper, x, 1.0) for x in (low, high, width))
    mirrored = -low > high
    near, far = jnp.where(mirrored, -high, low), jnp.where(mirrored, -low, high)
    crosses = near < 0
    zero, one = jnp.zeros_like(near), jnp.ones_like(near)
    # From the near end or from 0 to the far one; back from 0 to the near end; all positive numbers.
    starts = jnp.stack([jnp.where(crosses, zero, near), zero, zero])
    lengths = [jnp.where(crosses, far, width), jnp.where(crosses, -near, one), jnp.inf * one]
    ahead, back, half = _log_integral(df, starts, jnp.stack(lengths))
    part = log_sum_exp(jnp.stack([ahead, jnp.where(crosses, back, -jnp.inf)]), axis=0)
    empty = jnp.where(interval.width == 0, -jnp.inf, jnp.nan)
    return jnp.where(proper, part - half - math.log(2.0), empty)


def _log_integral(df: Array, a: Array, w: Array) -> Array:
    """The log of the integral of cosh(y)^-df from t = a >= 0 to t = a + w, w > 0 or infinite."""
    endless = jnp.isinf(w)
    root = jnp.sqrt(df)
    a, w = a / root, jnp.where(endless, 1.0, w) / root
    b = a + w
    (near, level), (far, _) = _cosh_at(a), _cosh_at(b)
    slope = a / near  # the hyperbolic tangent of the near end
    # The integrand has fallen by exp(-FALL) there, as follows from the last equation above.
    fall = FALL / df
    rise = jnp.expm1(jnp.minimum(fall, 30.0))
    square = rise * (2.0 + rise)
    reach = (rise + square / (jnp.sqrt(square + slope**2) + slope)) / (1.0 + slope)
    reach = jnp.where(fall > 30.0, fall + jnp.log(2.0 / (1.0 + slope)), jnp.log1p(reach))
    reach = jax.lax.stop_gradient(reach)
    # arsinh(b) - arsinh(a) without a difference.
    length = jnp.arcsinh(w / near * ((a + b) / (b + a * (far / near))))
    length = jnp.where(endless, reach, jnp.minimum(length, reach))
    nodes, weights = jnp.asarray(_NODES, length.dtype), jnp.asarray(_WEIGHTS, length.dtype)
    s, slope = length[..., None] * nodes, slope[..., None]
    small = s < 1.0
    inner, outer = jnp.where(small, s, 0.5), jnp.where(small, 1.0, s)
    inner = jnp.log1p(2.0 * jnp.sinh(0.5 * inner) ** 2 + slope * jnp.sinh(inner))
    outer = outer + jnp.log(0.5 * (1.0 + slope) + 0.5 * (1.0 - slope) * jnp.exp(-2.0 * outer))
    heights = jnp.exp(-df[..., None] * jnp.where(small, inner, outer))
    return jnp.log(length) + jnp.log(jnp.sum(weights * heights, axis=-1)) - df * level


def _cosh_at(a: Array) -> tuple[Array, Array]:
    """cosh(arsinh(a)) = sqrt(1 + a^2) for a >= 0, and its log; `hypot` has no second derivative
    where its arguments are equal."""
    close = a < 1.0
    inner, outer = jnp.where(close, a, 0.0), jnp.where(close, 1.0, a)
    square = jnp.where(close, inner, 1.0 / outer) ** 2
    return outer * jnp.sqrt(1.0 + square), jnp.log(outer) + 0.5 * jnp.log1p(square)
