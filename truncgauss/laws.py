"""Mean, variance, entropy, density and short draws of the normal law truncated to [a, a + w].

The end a is the one nearer zero. Three regimes: *narrow* (quadrature about the midpoint, nothing
cancels), *tail* (ratios of moments at both ends, from Mills ratios) and *centre* (one less two
tails).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.masses import is_short, masses, relative_log, short_parts
from truncgauss.mills import FAR, LOG_SQRT_2PI, density, moment_ratio, tail_mass


class Law(NamedTuple):
    """In units of the width if the interval is narrow, else of the standard deviation.

    That keeps every field smooth as the width goes to 0, derivatives included.
    """

    excess: Array  # the mean less `origin`
    variance: Array
    entropy: Array


# Gauss-Legendre on (-1, 1), for a mean: the weights add to 1.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_WEIGHTS = 0.5 * _WEIGHTS


def _quadrature(dtype: jnp.dtype) -> tuple[Array, Array]:
    return jnp.asarray(_NODES, dtype), jnp.asarray(_WEIGHTS, dtype)


def _narrow_law(a: Array, w: Array) -> Law:
    """Quadrature about the midpoint: T = mid + x w/2 with weight exp(-slope x - bend x^2)."""
    half = 0.5 * w
    mid = a + half
    slope, bend = half * mid, 0.5 * half * half
    x, weights = _quadrature(a.dtype)
    terms = weights * jnp.exp(-x * (slope[..., None] + bend[..., None] * x))
    mass = jnp.sum(terms, -1)
    above = jnp.sum((1.0 + x) * terms, -1) / mass
    centre = above - 1.0
    spread = jnp.sum(jnp.square(x - centre[..., None]) * terms, -1) / mass
    return Law(
        excess=0.5 * above,
        variance=0.25 * spread,
        entropy=jnp.log(mass) + slope * centre + bend * (spread + centre * centre),
    )


def _tail_law(a: Array, w: Array) -> Law:
    """Moments of T - a from Mills ratios at both ends, for a >= 0."""
    w = jnp.minimum(w, FAR)
    b = a + w
    first, far_first = moment_ratio(a, 1), moment_ratio(b, 1)
    # The share of the tail beyond a that also lies beyond b.
    beyond = jnp.exp(-w * (a + 0.5 * w)) * (a + first) / (b + far_first)
    inside = 1.0 - beyond
    excess = (first - beyond * (w + far_first)) / inside
    far_second = w * (w + 2.0 * far_first) + far_first * moment_ratio(b, 2)
    second = (first * moment_ratio(a, 2) - beyond * far_second) / inside
    return Law(
        excess=excess,
        variance=second - excess * excess,
        entropy=jnp.log(inside / (a + first)) + a * excess + 0.5 * second,
    )


def _centre_law(a: Array, w: Array) -> Law:
    b = jnp.minimum(a + w, FAR)
    outside = tail_mass(-a) + tail_mass(b)
    mass = 1.0 - outside
    near, edge = density(a) / mass, density(b) / mass
    mean = -jnp.expm1(-0.5 * (b - a) * (b + a)) * near
    deficit = b * edge - a * near
    return Law(
        excess=mean,
        variance=1.0 - deficit - mean * mean,
        entropy=jnp.log1p(-outside) + LOG_SQRT_2PI + 0.5 - 0.5 * deficit,
    )


@jax.jit
def law(a: Array, w: Array) -> Law:
    """The truncated law on [a, a + w], where a is the end nearer zero."""
    a = jnp.where(a < -FAR, -FAR, a)
    narrow = is_narrow(a, w)
    tail = ~narrow & (a >= 0)
    centre = ~narrow & ~tail
    laws = (
        _narrow_law(jnp.where(narrow, a, 0.0), jnp.where(narrow & (w > 0), w, 1.0)),
        _tail_law(jnp.where(tail, a, 1.0), jnp.where(tail, w, 4.0)),
        _centre_law(jnp.where(centre, a, -1.0), jnp.where(centre, w, 4.0)),
    )
    chosen = (jnp.where(narrow, x, jnp.where(tail, y, z)) for x, y, z in zip(*laws))
    return Law(*(jnp.where(w > 0, value, jnp.nan) for value in chosen))


def is_narrow(a: Array, w: Array) -> Array:
    return (w < 2.0) & (w * a < 4.0)


@jax.custom_jvp
@jax.jit
def _wide_log_size(a: Array, w: Array) -> Array:
    return relative_log(masses(a, w), a, w) + LOG_SQRT_2PI


@_wide_log_size.defjvp
def _wide_log_size_jvp(primals, tangents):
    (a, w), (da, dw) = primals, tangents
    m, narrow = masses(a, w), is_narrow(a, w)
    excess = law(a, w).excess * jnp.where(narrow, w, 1.0)
    excess = excess + jnp.where(narrow & (a < 0), a, 0.0)
    return _wide_log_size(a, w), m.density_b / m.inside * dw - excess * da


@jax.jit
def log_size(a: Array, w: Array) -> Array:
    """Log of mass over density at max(a, 0), in units of the width if the interval is short."""
    short = is_short(a, w)
    series, fall = short_parts(jnp.where(short, a, 0.0), jnp.where(short, w, 0.1))
    wide = _wide_log_size(jnp.where(short, 0.0, a), jnp.where(short, 1.0, w))
    return jnp.where(short, jnp.where(w > 0, jnp.log(series) - fall, jnp.nan), wide)


def _mean_fall(t: Array, a: Array) -> Array:
    """The mean of exp(-a s - s^2/2) over (0, t), for t and a t below 1."""
    x, weights = _quadrature(a.dtype)
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
