"""Mean, variance and entropy of a normal distribution truncated to [a, a + w], and short draws.

The end a is the one nearer zero. Three regimes: *narrow* (quadrature about the midpoint, nothing
cancels), *tail* (ratios of moments at both ends, from Mills ratios) and *centre* (one less two
tails). Each derivative with respect to a far end is written as a product with the density there,
so that it keeps its relative accuracy where the density is small.

References:
    Johnson, Kotz and Balakrishnan (1994), Continuous Univariate Distributions 1, section 13.10.1.
    Golub and Welsch (1969), Calculation of Gauss quadrature rules.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.special.intervals import masses, relative_log
from truncgauss.special.tails import FAR, LOG_SQRT_2PI, Arrays, density, moment_ratio, tail_mass


class IntervalMoments(NamedTuple):
    """Mean, variance and entropy after truncation, in units that depend on the interval.

    The unit is the width if the interval is narrow, else the standard deviation: then every field
    and its derivatives stay smooth as the width goes to 0.
    """

    excess: Array  # the mean minus the end a, or minus 0 if that lies inside and a far from it
    variance: Array
    entropy: Array


def is_narrow(a: Array, w: Array) -> Array:
    """Whether quadrature about the midpoint is accurate."""
    return (w < 2.0) & (w * a < 4.0)


# --- Narrow: x uniform on (-1, 1), tilted by exp(-slope x - bend x^2) -----------------------------

# Gauss-Legendre: all twelve nodes, and the positive ones, each standing for a pair.
_FULL_NODES, _FULL_WEIGHTS = np.polynomial.legendre.leggauss(12)
_NODES, _WEIGHTS = _FULL_NODES[6:], _FULL_WEIGHTS[6:]


def _along_last(column: np.ndarray, like: Array) -> Array:
    return jnp.asarray(column.reshape((1,) * like.ndim + (-1,)), like.dtype)


def _pairs(slope: Array, bend: Array) -> tuple[Array, Array, Array]:
    """The nodes, and the sums and differences of the integrand over each pair of them.

    In pairs the odd moments go to 0 with the slope, with no rounding error left over.
    """
    x, weights = _along_last(_NODES, slope), _along_last(_WEIGHTS, slope)
    level = weights * jnp.exp(-bend[..., None] * x * x)
    rise = jnp.expm1(slope[..., None] * x)
    fall = rise / (1.0 + rise)
    return x, level * (1.0 + 0.5 * (rise - fall)), -level * 0.5 * (rise + fall)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _power_means(slope: Array, bend: Array, count: int) -> tuple[Array, ...]:
    """E[x], E[x^2], ..., E[x^count]."""
    x, even, odd = _pairs(slope, bend)
    mass = jnp.sum(even, -1)
    return tuple(jnp.sum(x**k * (odd if k % 2 else even), -1) / mass for k in range(1, count + 1))


@_power_means.defjvp
def _power_means_jvp(
    count: int, primals: Arrays, tangents: Arrays
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    dslope, dbend = tangents
    m = _power_means(*primals, count + 2)
    changes = tuple(
        -(m[k + 1] - m[k] * m[0]) * dslope - (m[k + 2] - m[k] * m[1]) * dbend for k in range(count)
    )
    return m[:count], changes


@jax.custom_jvp
def _log_mean(slope: Array, bend: Array) -> Array:
    return jnp.log(jnp.sum(_pairs(slope, bend)[1], -1))


@_log_mean.defjvp
def _log_mean_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    first, second = _power_means(*primals, 2)
    return _log_mean(*primals), -first * tangents[0] - second * tangents[1]


@jax.custom_jvp
def _tilted_entropy(slope: Array, bend: Array) -> Array:
    first, second = _power_means(slope, bend, 2)
    return _log_mean(slope, bend) + slope * first + bend * second


@_tilted_entropy.defjvp
def _tilted_entropy_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    # The derivatives of the log mean cancel those of the two factors, exactly.
    _, (dfirst, dsecond) = jax.jvp(partial(_power_means, count=2), primals, tangents)
    return _tilted_entropy(*primals), primals[0] * dfirst + primals[1] * dsecond


def _tilt(a: Array, w: Array) -> tuple[Array, Array]:
    half = 0.5 * w
    return half * (a + half), 0.5 * half * half


@jax.jit
def narrow_moments(a: Array, w: Array) -> IntervalMoments:
    """Moments on a narrow interval, in units of its width; the excess is over a."""
    tilt = _tilt(a, w)
    first, second = _power_means(*tilt, 2)
    return IntervalMoments(
        0.5 * (1.0 + first), 0.25 * (second - first * first), _tilted_entropy(*tilt)
    )


@jax.jit
def narrow_log_size(a: Array, w: Array) -> Array:
    """Log of the mass over the density at max(a, 0), for a narrow interval, in units of w."""
    half = 0.5 * w
    fall = jnp.where(a < 0, 0.5 * jnp.square(a + half), half * (a + 0.5 * half))
    return _log_mean(*_tilt(a, w)) - fall


# --- Tail and centre ------------------------------------------------------------------------------


class _Slopes(NamedTuple):
    value: IntervalMoments
    by_a: IntervalMoments  # at fixed width
    by_w: IntervalMoments


def _tail_moments(a: Array, w: Array) -> tuple[Array, Array, Array, Array]:
    """E[T - a], E[(T - a)^2], log of mass over density at a, and density at b; for a >= 0."""
    b = a + w
    first, far_first = moment_ratio(a, 1), moment_ratio(b, 1)
    # The fraction of the tail beyond a that also lies beyond b.
    beyond = jnp.exp(-w * (a + 0.5 * w)) * (a + first) / (b + far_first)
    inside = 1.0 - beyond
    excess = (first - beyond * (w + far_first)) / inside
    far_second = w * (w + 2.0 * far_first) + far_first * moment_ratio(b, 2)
    second = (first * moment_ratio(a, 2) - beyond * far_second) / inside
    return excess, second, jnp.log(inside / (a + first)), beyond * (b + far_first) / inside


def _tail_slopes(a: Array, w: Array) -> _Slopes:
    w = jnp.minimum(w, FAR)
    (excess, second, log, at_b), (_, dsecond, _, _) = jax.jvp(
        lambda a: _tail_moments(a, w), (a,), (jnp.ones_like(a),)
    )
    variance = second - excess * excess
    # T - a has the density exp(-a t - t^2/2): moments are derivatives of one another.
    return _Slopes(
        IntervalMoments(excess, variance, log + a * excess + 0.5 * second),
        IntervalMoments(-variance, dsecond + 2.0 * excess * variance, 0.5 * dsecond - a * variance),
        IntervalMoments(
            at_b * (w - excess),
            at_b * (jnp.square(w - excess) - variance),
            at_b * (1.0 + a * (w - excess) + 0.5 * (w * w - second)),
        ),
    )


def _centre_slopes(a: Array, w: Array) -> _Slopes:
    b = jnp.minimum(a + w, FAR)
    outside = tail_mass(-a) + tail_mass(b)
    at_a, at_b = density(a) / (1.0 - outside), density(b) / (1.0 - outside)
    mean = -jnp.expm1(-0.5 * (b - a) * (b + a)) * at_a
    deficit = b * at_b - a * at_a
    second, variance = 1.0 - deficit, 1.0 - deficit - mean * mean

    def gains(end: Array, weight: Array) -> tuple[Array, Array, Array]:
        return (
            weight * (end - mean),
            weight * (jnp.square(end - mean) - variance),
            weight * (1.0 + 0.5 * (end * end - second)),
        )

    by_near_end, by_far_end = gains(a, at_a), gains(b, at_b)
    entropy = jnp.log1p(-outside) + LOG_SQRT_2PI + 0.5 - 0.5 * deficit
    return _Slopes(
        IntervalMoments(mean, variance, entropy),
        IntervalMoments(*(y - x for x, y in zip(by_near_end, by_far_end))),
        IntervalMoments(*by_far_end),
    )


def _wide_slopes(a: Array, w: Array) -> _Slopes:
    a = jnp.where(a < -FAR, -FAR, a)
    tail = a >= 0
    of_tail = _tail_slopes(jnp.where(tail, a, 1.0), jnp.where(tail, w, 4.0))
    of_centre = _centre_slopes(jnp.where(tail, -1.0, a), jnp.where(tail, 4.0, w))
    return jax.tree.map(lambda x, y: jnp.where(tail, x, y), of_tail, of_centre)


def _along(slopes: _Slopes, da: Array, dw: Array) -> IntervalMoments:
    return IntervalMoments(*(x * da + y * dw for x, y in zip(slopes.by_a, slopes.by_w)))


@jax.custom_jvp
def _parts(a: Array, w: Array) -> tuple[_Slopes, Array, Array]:
    """The slopes, and the derivatives by s of s excess(p/s, q/s) and, over s, of s^2 variance."""
    slopes = _wide_slopes(a, w)
    a, w = jnp.maximum(a, -FAR), jnp.minimum(w, 2.0 * FAR)
    change = _along(slopes, a, w)
    value = slopes.value
    return slopes, value.excess - change.excess, 2.0 * value.variance - change.variance


@_parts.defjvp
def _parts_jvp(
    primals: Arrays, tangents: Arrays
) -> tuple[tuple[_Slopes, Array, Array], tuple[_Slopes, Array, Array]]:
    (a, w), (da, dw) = primals, tangents
    parts = _parts(a, w)
    _, bends = jax.jvp(_wide_slopes, primals, tangents)
    change = _along(parts[0], da, dw)
    # The function is homogeneous: a da and w dw cancel, and must do so before they are rounded.
    twist = _along(bends, jnp.maximum(a, -FAR), jnp.minimum(w, 2.0 * FAR))
    return parts, (
        _Slopes(change, bends.by_a, bends.by_w),
        -twist.excess,
        change.variance - twist.variance,
    )


@jax.custom_jvp
@jax.jit
def wide_moments(p: Array, q: Array, s: Array) -> IntervalMoments:
    """Moments on an interval that is not narrow and begins p above the mean, q wide, for scale s.

    The excess is counted from max(p, 0); the entropy is without its term log s.
    """
    value = _wide_slopes(p / s, q / s).value
    return IntervalMoments(s * value.excess, s * s * value.variance, value.entropy)


@wide_moments.defjvp
def _wide_moments_jvp(primals: Arrays, tangents: Arrays) -> tuple[IntervalMoments, IntervalMoments]:
    (p, q, s), (dp, dq, ds) = primals, tangents
    a, w = p / s, q / s
    slopes, excess_by_s, variance_by_s = _parts(a, w)
    change = _along(slopes, dp, dq)
    da, dw = dp - jnp.maximum(a, -FAR) * ds, dq - jnp.minimum(w, 2.0 * FAR) * ds
    return wide_moments(p, q, s), IntervalMoments(
        excess_by_s * ds + change.excess,
        s * (variance_by_s * ds + change.variance),
        _along(slopes, da / s, dw / s).entropy,
    )


@jax.custom_jvp
@jax.jit
def wide_log_size(a: Array, w: Array) -> Array:
    """Log of mass over density at max(a, 0), for an interval that is not narrow."""
    return relative_log(masses(a, w), a, w) + LOG_SQRT_2PI


@wide_log_size.defjvp
def _wide_log_size_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (a, w), (da, dw) = primals, tangents
    m = masses(a, w)
    excess = wide_moments(a, w, jnp.ones_like(a)).excess
    return wide_log_size(a, w), m.density_b / m.inside * dw - excess * da


# --- Draws ----------------------------------------------------------------------------------------


def _mean_fall(t: Array, a: Array) -> Array:
    """The mean of exp(-a s - s^2/2) over (0, t), for t and a t below 1."""
    x, weights = _along_last(_FULL_NODES, a), _along_last(0.5 * _FULL_WEIGHTS, a)
    s = 0.5 * (1.0 + x) * t[..., None]
    return jnp.sum(weights * jnp.exp(-s * (a[..., None] + 0.5 * s)), -1)


def short_mass(a: Array, w: Array) -> Array:
    """Mass of a short interval over the density at a."""
    return w * _mean_fall(w, a)


@jax.custom_jvp
@jax.jit
def short_draw(a: Array, w: Array, u: Array) -> Array:
    """A draw from a short interval as a fraction of its width, at the uniform u.

    Newton's method on the distribution function; four steps reach rounding.
    """
    target = u * _mean_fall(w, a)
    f = u
    for _ in range(4):
        f = f - (f * _mean_fall(f * w, a) - target) * jnp.exp(f * w * (a + 0.5 * f * w))
    return f


@short_draw.defjvp
def _short_draw_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    a, w, u = primals
    f = short_draw(a, w, u)

    def residual(a: Array, w: Array, u: Array) -> Array:
        return u * _mean_fall(w, a) - f * _mean_fall(f * w, a)

    _, change = jax.jvp(residual, primals, tangents)
    return f, change * jnp.exp(f * w * (a + 0.5 * f * w))
