"""Probability of an interval [a, a + w] under the standard normal distribution, and one draw.

Masses are relative to exp(-max(a, 0)^2/2), so that they neither underflow nor overflow. The end a
is the one nearer zero, and the width w is given by itself, free of the rounding of a + w - a.
A short interval is integrated by a series about its midpoint, where nothing cancels; any other
by Mills ratios at both ends, subtracted from each other in the tail and from one in the centre.

References:
    Genz (1992), Numerical computation of multivariate normal probabilities: the draw.
    Botev (2017), The normal law under linear restrictions: tail-safe differences.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.special.tails import (
    FAR,
    LOG_SQRT_2PI,
    SQRT_2PI,
    Arrays,
    horner,
    moment_ratio,
    value_log,
)


class Masses(NamedTuple):
    """Masses and densities relative to exp(-c^2/2), c = max(a, 0); masses times sqrt(2 pi)."""

    inside: Array
    above_a: Array
    above_b: Array
    below_a: Array  # meant for a < 0 only
    excess_a: Array  # of the hazard, for a >= 0
    excess_b: Array
    density_a: Array
    density_b: Array
    fall: Array  # density_a - density_b


# E[exp(-slope x - bend x^2)] for x uniform on (-1, 1) in even powers of the slope (inner tuples)
# and powers of the bend, as far as slope^2 <= 0.02 and bend <= 0.008 need them.
_SERIES = tuple(
    tuple(
        (-1) ** j / (math.factorial(2 * i) * math.factorial(j) * (2 * i + 2 * j + 1))
        for i in range(6)
        if 0.02**i * 0.008**j / (math.factorial(2 * i) * math.factorial(j)) > 1e-17
    )
    for j in range(6)
)


@jax.custom_jvp
def _fall(x: Array) -> Array:
    return -jnp.expm1(-x)


# Not 1 - fall, as the derivative of expm1 has it: that is 0 long before the exponential is.
_fall.defjvps(lambda dx, value, x: jnp.exp(-x) * dx)


def is_short(a: Array, w: Array) -> Array:
    """Whether the series about the midpoint is accurate."""
    return (w < 0.25) & (w * a < 0.25)


@jax.jit
def masses(a: Array, w: Array) -> Masses:
    """The masses of [a, a + w] and of what lies beyond its ends."""
    # Both ends infinite, or an empty interval at infinity.
    a = jnp.where(a < -FAR, -FAR, jnp.where(a == jnp.inf, 1.0, a))
    w = jnp.minimum(w, 2.0 * FAR)
    narrow = is_short(a, w)
    straddles = a < 0
    up, down = jnp.where(straddles, 0.0, a), jnp.where(straddles, -a, 0.0)
    b = jnp.abs(a + w)
    density_a = jnp.exp(-0.5 * down * down)
    density_b = jnp.exp(jnp.where(straddles, -0.5 * b * b, -w * (up + 0.5 * w)))
    end = up + down
    excess_a, excess_b = moment_ratio(end, 1), moment_ratio(b, 1)
    mills_a, above_b = 1.0 / (end + excess_a), density_b / (b + excess_b)
    below_a = density_a * mills_a
    above_a = jnp.where(straddles, SQRT_2PI - below_a, mills_a)
    # The narrow mass, by the series of the mean density over that at the midpoint.
    short_a, half = jnp.where(narrow, a, 0.0), 0.5 * jnp.where(narrow, w, 0.1)
    mid = short_a + half
    slope, bend = jnp.square(half * mid), 0.5 * half * half
    series = jnp.zeros_like(w)
    for row in reversed(_SERIES):
        series = series * bend + horner(row, slope)
    # Minus the log of the density at the midpoint over the one at c.
    depth = jnp.where(short_a < 0, 0.5 * mid * mid, half * (short_a + 0.5 * half))
    # XLA makes a product of a quotient by an exponential, and copies that into each of its uses.
    short_mass = half * series / (0.5 * jnp.exp(depth))
    fall = _fall(w * (a + 0.5 * w)) * density_a
    inside = jnp.where(narrow, short_mass, above_a - above_b)
    return Masses(inside, above_a, above_b, below_a, excess_a, excess_b, density_a, density_b, fall)


# With s = y^2 + 2 log h(y): y itself for small s, and h(y)^2/(s + 2) beyond, both to 1e-4, in
# sqrt(s + 2) and in its inverse. Only the start of a fourth-order correction, so short.
_START_CENTRAL = (
    -0.58183133, -1.0772282, 1.3061588, -0.056691891, 0.0028960226, 0.00084945861, -0.00011708018,
)  # fmt: skip
_START_FAR = (1.0000561, -0.046076333, -6.3039624, 29.302033, -92.107697, 171.43129, -135.52265)


def _beyond(c: Array, mass: Array) -> Array:
    """The t > 0 with P(X > c + t) equal to the mass, relative to exp(-c^2/2), for c >= 0."""
    level = -2.0 * value_log(mass)
    huge = c > 1e8
    safe = jnp.where(huge, 1e8, c)
    s = jnp.maximum(safe * safe + level, -0.4516)
    root = jnp.sqrt(s + 2.0)
    inverse = 1.0 / root
    # One logarithm and one division for either kind of tail: they cost more than all else here.
    log = value_log(jnp.where(huge, c * mass, (s + 2.0) * horner(_START_FAR, inverse)))
    gap = level - log
    middle = safe + jnp.sqrt(jnp.maximum(safe * safe + gap, 0.0))
    far = jnp.where(huge, -log, gap) / jnp.where(huge, c, middle)
    central = horner(_START_CENTRAL, jnp.minimum(root, 3.0)) * inverse - safe
    start = jnp.where(s < 6.7, central, far)
    y = safe + start
    excess = moment_ratio(jnp.maximum(y, 0.0), 1)
    rate = y + excess
    # The mass beyond y over the mass wanted, less one; then the series of the inverse function.
    relative_rate = 1.0 / (rate * mass)
    error = jnp.exp(-start * (safe + 0.5 * start)) * relative_rate - 1.0
    e = error * (1.0 - error * (0.5 - error * (1.0 / 3.0 - 0.25 * error)))
    move = e * relative_rate * mass
    cubic = (2.0 * excess * excess + 1.0 - rate * excess) / 6.0
    t = jnp.where(huge, far, start + move * (1.0 - move * (0.5 * excess - move * cubic)))
    return jnp.where(mass == 0, jnp.inf, jnp.maximum(t, 0.0))


def relative_log(m: Masses, a: Array, w: Array) -> Array:
    """Log mass of the interval plus c^2/2."""
    straddles = a < 0
    mass = jnp.where(straddles, m.inside / SQRT_2PI, m.inside)
    log = value_log(mass)
    # In the centre the mass is one less two tails: add back the rounding error of that.
    outside = (m.below_a + m.above_b) / SQRT_2PI
    correction = jnp.where(mass > 0.25, ((1.0 - mass) - outside) / mass, 0.0)
    return jnp.where(w < 0, jnp.nan, jnp.where(straddles, log + correction, log - LOG_SQRT_2PI))


def _anchor(a: Array) -> Array:
    # Not `maximum`, of which the slope at a = 0 is one half: there draws are counted from a.
    return jnp.where(a < 0, 0.0, jnp.where(a == jnp.inf, 1.0, a))


def _sides(m: Masses, a: Array, u: Array, v: Array) -> tuple[Array, Array]:
    """Whether the draw is below the median of the whole line, and the smaller mass beyond it."""
    upper = v * m.above_a + u * m.above_b
    lower = jnp.where(a < 0, v * m.below_a + u * (SQRT_2PI - m.above_b), jnp.inf)
    return lower < upper, jnp.where(lower < upper, lower, upper)


@jax.custom_jvp
@jax.jit
def step(a: Array, w: Array, u: Array, v: Array) -> tuple[Array, Array]:
    """The draw less max(a, 0) at the uniform u = 1 - v, and the log mass of [a, a + w]."""
    m, c = masses(a, w), _anchor(a)
    below, mass = _sides(m, a, u, v)
    side, mass = sign_beside(below, mass)
    t = _beyond(c, mass) + nan_slope(a, w, u)
    return side * t, relative_log(m, a, w) - 0.5 * c * c


def sign_beside(negative: Array, x: Array) -> tuple[Array, Array]:
    """-1 where `negative`, else 1, in the dtype of x; and x, both stored by XLA as floats on a CPU.

    Otherwise XLA stores the mask, in bytes. Of a loop that reads bytes, LLVM makes vectors of 16
    float64, for which XLA has no exponential: it is then called one element at a time, and a step
    takes 53 ns where it can take 33. On a GPU what is stored costs more than what is computed.
    """
    sign = jnp.where(negative, -1.0, 1.0).astype(x.dtype)
    return jax.lax.optimization_barrier((sign, x)) if jax.default_backend() == "cpu" else (sign, x)


def nan_slope(*inputs: Array) -> Array:
    """Zero, with derivative NaN, so that only a custom rule can differentiate a result.

    The second of two derivatives through a loop, the first in reverse mode, ignores custom rules of
    what is computed in it. It would differentiate the series of a draw, which gives wrong numbers.
    """
    moved = sum(jnp.where(jnp.isinf(x), 0.0, x) for x in inputs)
    return jnp.sqrt(jnp.square(moved - jax.lax.stop_gradient(moved)))


@jax.custom_jvp
def differentiable_once(x: Array) -> Array:
    """x, of whose derivative 1 the derivative is NaN."""
    return x


@differentiable_once.defjvp
def _differentiable_once_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (change,) = primals, tangents
    return x, change * (1.0 + nan_slope(x))


@step.defjvp
def _step_jvp(primals: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
    a, w, u, v = primals
    da, dw, du, _ = tangents
    t, log_of_mass = step(a, w, u, v)
    m = masses(a, w)
    below, mass = _sides(m, a, u, v)
    distance = jnp.where(below, -t, t)
    y = jnp.where(jnp.isinf(distance), FAR, _anchor(a) + distance)
    excess = moment_ratio(y, 1)
    # phi(y) dy = inside du + (v phi(a) + u phi(b)) da + u phi(b) dw; from this da is taken where
    # the draw is counted from a, which in the tail must not be done by a subtraction.
    w_far = jnp.minimum(w, 2.0 * FAR)
    gains = v * m.above_a * m.excess_a + u * m.above_b * (w_far + m.excess_b)
    tail = gains - (jnp.minimum(distance, FAR) + excess) * mass
    shift = jnp.where(a < 0, v * m.density_a + u * m.density_b, tail)
    dt = (m.inside * du + shift * da + u * m.density_b * dw) / ((y + excess) * mass)
    return (t, log_of_mass), (dt, _log_mass_change(m, a, da, dw))


def _log_mass_slopes(m: Masses, a: Array) -> tuple[Array, Array]:
    """The mean on the interval, minus the derivative by a, and the derivative by w."""
    empty = m.inside == 0
    mean = jnp.where(empty, a, m.fall / jnp.where(empty, 1.0, m.inside))
    return mean, m.density_b / m.inside


def _log_mass_change(m: Masses, a: Array, da: Array, dw: Array) -> Array:
    mean, by_w = _log_mass_slopes(m, a)
    return by_w * dw - mean * da


@jax.custom_jvp
@jax.jit
def log_mass(a: Array, w: Array) -> Array:
    return relative_log(masses(a, w), a, w) - 0.5 * jnp.square(_anchor(a))


@log_mass.defjvp
def _log_mass_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (a, w), (da, dw) = primals, tangents
    m = masses(a, w)
    return log_mass(a, w), _log_mass_change(m, a, da, dw)


@jax.jit
def log_mass_and_slopes(a: Array, w: Array) -> tuple[Array, Array, Array]:
    """`relative_log` of [a, a + w], the mean there, and the density at a + w over its mass."""
    m = masses(a, w)
    return relative_log(m, a, w), *_log_mass_slopes(m, a)
