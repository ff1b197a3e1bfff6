"""Mean, variance, entropy and short draws of the normal law truncated to [a, a + w].

The end a is the one nearer zero. Three regimes: *narrow* (quadrature about the midpoint, nothing
cancels), *tail* (ratios of moments at both ends, from Mills ratios) and *centre* (one less two
tails). Each derivative with respect to a far end is written as the density there times what it
multiplies, so that it is small where the density is, to the last digit.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.special.intervals import masses, relative_log
from truncgauss.special.tails import FAR, LOG_SQRT_2PI, density, moment_ratio, tail_mass


class Law(NamedTuple):
    """In units of the width if the interval is narrow, else of the standard deviation.

    That keeps every field smooth as the width goes to 0, derivatives included.
    """

    excess: Array  # the mean less `origin`
    variance: Array
    entropy: Array


def is_narrow(a: Array, w: Array) -> Array:
    return (w < 2.0) & (w * a < 4.0)


# --- Narrow: x uniform on (-1, 1), tilted by exp(-slope x - bend x^2) -----------------------------

# Gauss-Legendre: the positive nodes of twelve, each standing for a pair.
_NODES, _WEIGHTS = (column[6:] for column in np.polynomial.legendre.leggauss(12))


def _pairs(slope: Array, bend: Array) -> tuple[Array, Array, Array]:
    """The nodes, and the sums and differences of the integrand over each pair of them.

    Pairs, because the odd moments then vanish with the slope instead of leaving rounding behind.
    """
    x, weights = jnp.asarray(_NODES, slope.dtype), jnp.asarray(_WEIGHTS, slope.dtype)
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
def _power_means_jvp(count, primals, tangents):
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
def _log_mean_jvp(primals, tangents):
    first, second = _power_means(*primals, 2)
    return _log_mean(*primals), -first * tangents[0] - second * tangents[1]


@jax.custom_jvp
def _tilted_entropy(slope: Array, bend: Array) -> Array:
    first, second = _power_means(slope, bend, 2)
    return _log_mean(slope, bend) + slope * first + bend * second


@_tilted_entropy.defjvp
def _tilted_entropy_jvp(primals, tangents):
    # What the log gains is what the other terms lose to first order, exactly.
    _, (dfirst, dsecond) = jax.jvp(partial(_power_means, count=2), primals, tangents)
    return _tilted_entropy(*primals), primals[0] * dfirst + primals[1] * dsecond


def _tilt(a: Array, w: Array) -> tuple[Array, Array]:
    half = 0.5 * w
    return half * (a + half), 0.5 * half * half


@jax.jit
def narrow_law(a: Array, w: Array) -> Law:
    """The law on a narrow interval, as a share of the width; the excess is over a."""
    tilt = _tilt(a, w)
    first, second = _power_means(*tilt, 2)
    return Law(0.5 * (1.0 + first), 0.25 * (second - first * first), _tilted_entropy(*tilt))


@jax.jit
def narrow_log_size(a: Array, w: Array) -> Array:
    """Log of the mass over the density at max(a, 0), for a narrow interval, in units of w."""
    half = 0.5 * w
    fall = jnp.where(a < 0, 0.5 * jnp.square(a + half), half * (a + 0.5 * half))
    return _log_mean(*_tilt(a, w)) - fall


# --- Tail and centre ------------------------------------------------------------------------------


class _Slopes(NamedTuple):
    value: Law
    by_a: Law  # at fixed width
    by_w: Law


def _tail_moments(a: Array, w: Array) -> tuple[Array, Array, Array, Array]:
    """E[T - a] and E[(T - a)^2] for a >= 0, the log of mass over density at a, the density at b."""
    b = a + w
    first, far_first = moment_ratio(a, 1), moment_ratio(b, 1)
    # The share of the tail beyond a that also lies beyond b.
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
        Law(excess, variance, log + a * excess + 0.5 * second),
        Law(-variance, dsecond + 2.0 * excess * variance, 0.5 * dsecond - a * variance),
        Law(
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

    def gains(end, weight):
        return (
            weight * (end - mean),
            weight * (jnp.square(end - mean) - variance),
            weight * (1.0 + 0.5 * (end * end - second)),
        )

    near, far = gains(a, at_a), gains(b, at_b)
    entropy = jnp.log1p(-outside) + LOG_SQRT_2PI + 0.5 - 0.5 * deficit
    return _Slopes(
        Law(mean, variance, entropy), Law(*(y - x for x, y in zip(near, far))), Law(*far)
    )


def _wide_slopes(a: Array, w: Array) -> _Slopes:
    a = jnp.where(a < -FAR, -FAR, a)
    tail = a >= 0
    laws = (
        _tail_slopes(jnp.where(tail, a, 1.0), jnp.where(tail, w, 4.0)),
        _centre_slopes(jnp.where(tail, -1.0, a), jnp.where(tail, 4.0, w)),
    )
    return jax.tree.map(lambda x, y: jnp.where(tail, x, y), *laws)


def _along(slopes: _Slopes, da: Array, dw: Array) -> Law:
    return Law(*(x * da + y * dw for x, y in zip(slopes.by_a, slopes.by_w)))


@jax.custom_jvp
def _parts(a: Array, w: Array) -> tuple[_Slopes, Array, Array]:
    """The slopes, and the derivatives by s of s excess(p/s, q/s) and, over s, of s^2 variance."""
    slopes = _wide_slopes(a, w)
    a, w = jnp.maximum(a, -FAR), jnp.minimum(w, 2.0 * FAR)
    change = _along(slopes, a, w)
    value = slopes.value
    return slopes, value.excess - change.excess, 2.0 * value.variance - change.variance


@_parts.defjvp
def _parts_jvp(primals, tangents):
    (a, w), (da, dw) = primals, tangents
    parts = _parts(a, w)
    _, bends = jax.jvp(_wide_slopes, primals, tangents)
    change = _along(parts[0], da, dw)
    # Of a homogeneous function: a da and w dw cancel, and must do so before they are rounded.
    twist = _along(bends, jnp.maximum(a, -FAR), jnp.minimum(w, 2.0 * FAR))
    return parts, (
        _Slopes(change, bends.by_a, bends.by_w),
        -twist.excess,
        change.variance - twist.variance,
    )


@jax.custom_jvp
@jax.jit
def wide_law(p: Array, q: Array, s: Array) -> Law:
    """The law on an interval that is not narrow: p above the mean, q wide, and s the scale.

    The mean is counted from max(p, 0); the entropy lacks log s.
    """
    value = _wide_slopes(p / s, q / s).value
    return Law(s * value.excess, s * s * value.variance, value.entropy)


@wide_law.defjvp
def _wide_law_jvp(primals, tangents):
    (p, q, s), (dp, dq, ds) = primals, tangents
    a, w = p / s, q / s
    slopes, excess_by_s, variance_by_s = _parts(a, w)
    change = _along(slopes, dp, dq)
    da, dw = dp - jnp.maximum(a, -FAR) * ds, dq - jnp.minimum(w, 2.0 * FAR) * ds
    return wide_law(p, q, s), Law(
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
def _wide_log_size_jvp(primals, tangents):
    (a, w), (da, dw) = primals, tangents
    m = masses(a, w)
    excess = wide_law(a, w, jnp.ones_like(a)).excess
    return wide_log_size(a, w), m.density_b / m.inside * dw - excess * da


# --- Draws ----------------------------------------------------------------------------------------

_FULL_NODES, _FULL_WEIGHTS = np.polynomial.legendre.leggauss(12)


def _mean_fall(t: Array, a: Array) -> Array:
    """The mean of exp(-a s - s^2/2) over (0, t), for t and a t below 1."""
    x, weights = jnp.asarray(_FULL_NODES, a.dtype), jnp.asarray(0.5 * _FULL_WEIGHTS, a.dtype)
    s = 0.5 * (1.0 + x) * t[..., None]
    return jnp.sum(weights * jnp.exp(-s * (a[..., None] + 0.5 * s)), -1)


@jax.custom_jvp
@jax.jit
def short_draw(a: Array, w: Array, u: Array) -> Array:
    """Where the draw lies between the ends of a short interval, 0 at a and 1 at b."""
    target = u * _mean_fall(w, a)
    f = u
    for _ in range(4):
        f = f - (f * _mean_fall(f * w, a) - target) * jnp.exp(f * w * (a + 0.5 * f * w))
    return f


@short_draw.defjvp
def _short_draw_jvp(primals, tangents):
    a, w, u = primals
    f = short_draw(a, w, u)

    def residual(a, w, u):
        return u * _mean_fall(w, a) - f * _mean_fall(f * w, a)

    _, change = jax.jvp(residual, primals, tangents)
    return f, change * jnp.exp(f * w * (a + 0.5 * f * w))
