"""The normal law on one interval: values and derivative rules together, in logs, right in any tail.

An interval with ends a < b is first mirrored so that a is the end nearer zero, and is then known by
(a, w) with the width w = b - a a number of its own: rounding of a and b never touches it. Each
quantity has three regimes: *narrow* (Gauss-Legendre quadrature about the midpoint, nothing
cancels), *tail* (Mills ratios relative to the density at a, so nothing underflows) and *centre*
(tail probabilities subtracted from one). Only `standardize` meets a limit that may be infinite.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_2PI = math.sqrt(2.0 * math.pi)
# Beyond this many standard deviations from zero the density is exactly 0 in either precision.
_FAR = 64.0

# Polynomials in t = 1 - 6/(x + 3) for (x + 3) times the excess of the hazard, x >= 0, and in
# t = 2x/sqrt(x^2 + 48) - 1 for the sixth ratio of moments: Chebyshev interpolation in 50 digits.
_EXCESS_64 = (
    1.698591929582619,
    -0.8415387946870332,
    0.017163146774306772,
    0.18569957991791414,
    -0.025434750641395026,
    -0.05463860594437267,
    0.0076997623131083125,
    0.01843122499803153,
    -0.0009428858599653566,
    -0.006371543766967961,
    -0.0006340017207229711,
    0.002043526201883026,
    0.0006121208123174968,
    -0.0005421554740408016,
    -0.00032285880822024613,
    9.18695053838498e-05,
    0.00012218931093341685,
    5.390023173300267e-06,
    -3.27380512577405e-05,
    -1.0473473071291055e-05,
    4.893400531331622e-06,
    3.6670617217901106e-06,
    3.35127025973943e-07,
    -4.5554003408036604e-07,
    -3.808769188259553e-07,
    -1.2186714103688495e-07,
    8.75111536130135e-08,
    5.980396769850392e-08,
    -7.669217745994272e-09,
    -7.963712369097434e-09,
)
_EXCESS_32 = (
    1.6985919200089248,
    -0.841538786282496,
    0.01716409026251277,
    0.18569875496927446,
    -0.025450280288346578,
    -0.05462530003982554,
    0.007798286431865264,
    0.018350130416991343,
    -0.001252971984720509,
    -0.0061336991424795284,
    -9.530159897270812e-05,
    0.00167937581670898,
    7.110424283556352e-05,
    -0.0002573239979680544,
)
_RATIO_64 = (
    1.134644501811281,
    -0.17159085086877665,
    0.04401853258834431,
    -0.0074337824906693115,
    -3.553436442339061e-05,
    0.0005985969393558869,
    -0.0002538265441284744,
    5.6334117848039575e-05,
    -3.7921929110179086e-07,
    -5.763799583272545e-06,
    2.8494495867081186e-06,
    -7.743614060539616e-07,
    6.912686508409609e-08,
    5.273280829677571e-08,
    -3.485297405239566e-08,
    1.1963287136319479e-08,
    -2.3158737716536555e-09,
    -1.8595437726800543e-10,
    4.490731901495724e-10,
    -2.0317738441321092e-10,
    1.9916403146651974e-11,
    7.89177246948059e-12,
)
_RATIO_32 = (
    1.134644507418985,
    -0.17159085203329805,
    0.04401825215465083,
    -0.007433724106734912,
    -3.328893399811842e-05,
    0.0005981232584817575,
    -0.0002601227897616808,
    5.770048000088612e-05,
    6.822816046745057e-06,
    -7.4227594636472834e-06,
)


class Interval(NamedTuple):
    """A standardised interval; `width` is known better than `high - low` when the two are close."""

    low: Array
    high: Array
    width: Array


class _Law(NamedTuple):
    log_mass: Array
    mean: Array
    excess: Array  # the mean beyond max(a, 0)
    edge: Array  # the truncated density at the far end, b
    variance: Array
    entropy: Array


def _as_floats(*values: ArrayLike) -> list[Array]:
    dtype = jnp.result_type(*values, 0.0)
    return jnp.broadcast_arrays(*(jnp.asarray(v, dtype) for v in values))


def _horner(coefficients: tuple[float, ...], t: Array) -> Array:
    value = jnp.full_like(t, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * t + c
    return value


# --- Mills ratios ---------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _moment_ratio(x: Array, order: int) -> Array:
    """Ratio of successive moments of the law exp(-x t - t^2/2) on t > 0, for x >= 0.

    r_k = E[t^k]/E[t^(k-1)] obeys r_k = k/(x + r_(k+1)); r_1 is the excess of the hazard over x.
    """
    wide = x.dtype == jnp.float64
    if order == 1:
        s = 1.0 / (x + 3.0)
        return s * _horner(_EXCESS_64 if wide else _EXCESS_32, 1.0 - 6.0 * s)
    if order > 6:
        return (order - 1) / _moment_ratio(x, order - 1) - x
    # Beyond 1e8 the square would overflow in float32; there the ratio is 6/x to the last digit.
    safe = jnp.minimum(x, 1e8)
    root = jnp.sqrt(safe * safe + 48.0)
    ratio = _horner(_RATIO_64 if wide else _RATIO_32, 2.0 * safe / root - 1.0) * 12.0 / (x + root)
    for k in range(5, order - 1, -1):
        ratio = k / (x + ratio)
    return ratio


@_moment_ratio.defjvp
def _moment_ratio_jvp(order, primals, tangents):
    (x,), (dx,) = primals, tangents
    ratio = _moment_ratio(x, order)
    return ratio, -ratio * (_moment_ratio(x, order + 1) - ratio) * dx


def _density(x: Array) -> Array:
    x = jnp.clip(x, -_FAR, _FAR)
    return jnp.exp(-0.5 * x * x) / _SQRT_2PI


def _tail_mass(x: Array) -> Array:
    """P(X > x) for x >= 0, at most `_FAR`."""
    return _density(x) / (x + _moment_ratio(x, 1))


@jax.custom_jvp
def _hazard(x: Array) -> Array:
    y = jnp.abs(x)
    upper = y + _moment_ratio(y, 1)
    density = _density(y)
    return jnp.where(x < 0, density / (1.0 - density / upper), upper)


@jax.custom_jvp
def _hazard_excess(x: Array) -> Array:
    return jnp.where(x < 0, _hazard(x) - x, _moment_ratio(jnp.abs(x), 1))


def _one_sided_variance(x: Array) -> Array:
    upper, lower = jnp.where(x < 0, 0.0, x), jnp.where(x < 0, x, 0.0)
    first = _moment_ratio(upper, 1)
    tail = first * (_moment_ratio(upper, 2) - first)
    return jnp.where(x < 0, 1.0 - _hazard(lower) * _hazard_excess(lower), tail)


@_hazard.defjvp
def _hazard_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    hazard = _hazard(x)
    return hazard, hazard * _hazard_excess(x) * dx


@_hazard_excess.defjvp
def _hazard_excess_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _hazard_excess(x), -_one_sided_variance(x) * dx


@jax.custom_jvp
def _log_ndtr(x: Array) -> Array:
    y = jnp.abs(x)
    upper = y + _moment_ratio(y, 1)
    tail = _density(y) / upper
    far = -0.5 * x * x - _LOG_SQRT_2PI - jnp.log(upper)
    return jnp.where(x < 0, far, jnp.log1p(-tail))


@_log_ndtr.defjvp
def _log_ndtr_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log_ndtr(x), _hazard(-x) * dx


@jax.custom_jvp
def _ndtr(x: Array) -> Array:
    y = jnp.abs(x)
    tail = _density(y) / (y + _moment_ratio(y, 1))
    return jnp.where(x < 0, tail, 1.0 - tail)


@_ndtr.defjvp
def _ndtr_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _ndtr(x), _density(x) * dx


def log_ndtr(x: ArrayLike) -> Array:
    return _log_ndtr(*_as_floats(x))


def ndtr(x: ArrayLike) -> Array:
    return _ndtr(*_as_floats(x))


def hazard(x: ArrayLike) -> Array:
    return _hazard(*_as_floats(x))


def hazard_excess(x: ArrayLike) -> Array:
    return _hazard_excess(*_as_floats(x))


# --- One interval ---------------------------------------------------------------------------------


def standardize(
    low: ArrayLike, high: ArrayLike, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0
) -> Interval:
    low, high, loc, scale = _as_floats(low, high, loc, scale)
    # 0 for proper loc and scale; NaN otherwise, so that an infinite limit does not hide it.
    blemish = jax.lax.stop_gradient(0.0 * (loc / scale))

    def ratio(far, difference):
        return jnp.where(far, 0.0, difference) / scale

    low_far, high_far = jnp.isinf(low), jnp.isinf(high)
    near_low, near_high = jnp.where(low_far, loc, low), jnp.where(high_far, loc, high)
    either = low_far | high_far
    width = (jnp.where(either, loc, high) - jnp.where(either, loc, low)) / scale
    endless = jnp.where(low == high, 0.0, jnp.where(low < high, jnp.inf, jnp.nan)) + blemish
    return Interval(
        jnp.where(low_far, low + blemish, (near_low - loc) / scale),
        jnp.where(high_far, high + blemish, (near_high - loc) / scale),
        jnp.where(either, jax.lax.stop_gradient(endless), width),
    )


_NODES, _WEIGHTS = ([float(v) for v in part] for part in np.polynomial.legendre.leggauss(12))


def _narrow(a: Array, w: Array) -> _Law:
    """Quadrature about the midpoint: t = mid + x w/2 with weight exp(-slope x - bend x^2)."""
    mid, half = a + 0.5 * w, 0.5 * w
    slope, bend = half * mid, 0.5 * half * half
    terms = [0.5 * g * jnp.exp(-x * (slope + bend * x)) for x, g in zip(_NODES, _WEIGHTS)]
    mass = sum(terms)
    above = sum((1.0 + x) * e for x, e in zip(_NODES, terms)) / mass
    centre = above - 1.0
    spread = sum(jnp.square(x - centre) * e for x, e in zip(_NODES, terms)) / mass
    log_width = jnp.log(w * mass)
    mean = mid + half * centre
    return _Law(
        log_mass=log_width - 0.5 * mid * mid - _LOG_SQRT_2PI,
        mean=mean,
        excess=jnp.where(a < 0, mean, half * above),
        edge=jnp.exp(-slope - bend) / (w * mass),
        variance=half * half * spread,
        entropy=log_width + slope * centre + bend * (spread + centre * centre),
    )


def _tail(a: Array, w: Array) -> _Law:
    """Moments of t = T - a from Mills ratios at both ends, relative to the density at a >= 0."""
    w = jnp.minimum(w, _FAR)
    b = a + w
    first, far_first = _moment_ratio(a, 1), _moment_ratio(b, 1)
    # The share of the tail beyond a that also lies beyond b.
    fall = jnp.exp(-w * (a + 0.5 * w))
    beyond = fall * (a + first) / (b + far_first)
    inside = 1.0 - beyond
    excess = (first - beyond * (w + far_first)) / inside
    far_second = w * (w + 2.0 * far_first) + far_first * _moment_ratio(b, 2)
    second = (first * _moment_ratio(a, 2) - beyond * far_second) / inside
    log_ratio = jnp.log(inside / (a + first))
    return _Law(
        log_mass=log_ratio - 0.5 * a * a - _LOG_SQRT_2PI,
        mean=a + excess,
        excess=excess,
        edge=fall * (a + first) / inside,
        variance=second - excess * excess,
        entropy=log_ratio + a * excess + 0.5 * second,
    )


def _centre(a: Array, w: Array) -> _Law:
    b = jnp.minimum(a + w, _FAR)
    outside = _tail_mass(-a) + _tail_mass(b)
    mass = 1.0 - outside
    near, edge = _density(a) / mass, _density(b) / mass
    mean = -jnp.expm1(-0.5 * (b - a) * (b + a)) * near
    deficit = b * edge - a * near
    log_mass = jnp.log1p(-outside)
    return _Law(
        log_mass=log_mass,
        mean=mean,
        excess=mean,
        edge=edge,
        variance=1.0 - deficit - mean * mean,
        entropy=log_mass + _LOG_SQRT_2PI + 0.5 - 0.5 * deficit,
    )


@jax.jit
def _law(a: Array, w: Array) -> _Law:
    """The truncated law on [a, a + w], where a is the end nearer zero."""
    # Both ends infinite, or an empty interval at infinity.
    a = jnp.where(a < -_FAR, -_FAR, jnp.where(jnp.isinf(a), 1.0, a))
    narrow = (w < 2.0) & (w * a < 4.0)
    tail = ~narrow & (a >= 0)
    centre = ~narrow & ~tail
    laws = (
        _narrow(jnp.where(narrow, a, 0.0), jnp.where(narrow & (w > 0), w, 1.0)),
        _tail(jnp.where(tail, a, 1.0), jnp.where(tail, w, 4.0)),
        _centre(jnp.where(centre, a, -1.0), jnp.where(centre, w, 4.0)),
    )
    return _Law(*(jnp.where(narrow, x, jnp.where(tail, y, z)) for x, y, z in zip(*laws)))


@jax.custom_jvp
def _log_mass(a: Array, w: Array) -> Array:
    invalid = jnp.where(w == 0, -jnp.inf, jnp.nan)
    return jnp.where(w > 0, _law(a, w).log_mass, invalid)


@_log_mass.defjvp
def _log_mass_jvp(primals, tangents):
    (a, w), (da, dw) = primals, tangents
    law = _law(a, w)
    return _log_mass(a, w), law.edge * dw - law.mean * da


def _nearer(interval: Interval) -> tuple[Array, Array]:
    """Whether the interval is mirrored so that its nearer end is on the left, and that end."""
    mirrored = -interval.low > interval.high
    return mirrored, jnp.where(mirrored, -interval.high, interval.low)


def log_interval_mass(low: ArrayLike, high: ArrayLike, width: ArrayLike | None = None) -> Array:
    interval = standardize(low, high)
    if width is not None:
        low, high, width = _as_floats(low, high, width)
        interval = Interval(low, high, width)
    _, a = _nearer(interval)
    return _log_mass(a, interval.width)


def truncated_log_density(
    x: ArrayLike, loc: ArrayLike, scale: ArrayLike, low: ArrayLike, high: ArrayLike
) -> Array:
    x, loc, scale, low, high = _as_floats(x, loc, scale, low, high)
    interval = standardize(low, high, loc, scale)
    _, a = _nearer(interval)
    inside = (low <= x) & (x <= high)
    outside = jnp.where(jnp.isnan(x), jnp.nan, -jnp.inf)
    z = (jnp.where(inside, x, loc) - loc) / scale
    log_density = -0.5 * z * z - _LOG_SQRT_2PI - jnp.log(scale) - _log_mass(a, interval.width)
    return jnp.where(inside, log_density, outside)


def _truncated(loc, scale, low, high):
    interval = standardize(low, high, loc, scale)
    mirrored, a = _nearer(interval)
    law = _law(a, interval.width)
    valid = interval.width > 0
    return interval, mirrored, a, law, valid


def truncated_mean(loc: ArrayLike, scale: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    loc, scale, low, high = _as_floats(loc, scale, low, high)
    _, mirrored, a, law, valid = _truncated(loc, scale, low, high)
    end = jnp.where(mirrored, high, low)
    base = jnp.where(a >= 0, jnp.where(jnp.isinf(end), loc, end), loc)
    mean = base + jnp.where(mirrored, -scale, scale) * law.excess
    return jnp.where(valid, mean, jnp.nan)


def truncated_variance(loc: ArrayLike, scale: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    loc, scale, low, high = _as_floats(loc, scale, low, high)
    *_, law, valid = _truncated(loc, scale, low, high)
    return jnp.where(valid, scale * scale * law.variance, jnp.nan)


def truncated_entropy(loc: ArrayLike, scale: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    loc, scale, low, high = _as_floats(loc, scale, low, high)
    *_, law, valid = _truncated(loc, scale, low, high)
    return jnp.where(valid, jnp.log(scale) + law.entropy, jnp.nan)


# --- One step of separation of variables ----------------------------------------------------------


@jax.custom_jvp
def _draw(a, w, u, v):
    """The draw from [a, a + w] at the uniform u = 1 - v, a being the end nearer zero."""
    c = jnp.maximum(jnp.where(jnp.isinf(a), -1.0, a), 0.0)
    upper, lower, *_ = _shares(a, w, u, v)
    below = lower < upper
    target = jnp.minimum(lower, upper)
    rho = -jnp.log(target * (c + _moment_ratio(c, 1)))
    rho = jnp.maximum(rho, 0.0)
    t = 2.0 * rho / (c + jnp.sqrt(c * c + 2.0 * rho))
    for _ in range(7):
        y = c + t
        hazard = y + _moment_ratio(y, 1)
        excess = t * (c + 0.5 * t) + jnp.log(hazard / (c + _moment_ratio(c, 1))) - rho
        t = jnp.where(target > 0, jnp.maximum(t - excess / hazard, 0.0), t)
    return jnp.where(below, -(c + t), c + t)


def _shares(a, w, u, v):
    """Masses above and below the draw, and of the interval, relative to exp(-max(a, 0)^2/2)."""
    a = jnp.where(a < -_FAR, -_FAR, jnp.where(jnp.isinf(a), 1.0, a))
    negative = a < 0
    down = jnp.where(negative, a, 0.0)
    up = jnp.where(negative, 0.0, a)
    w = jnp.minimum(w, 2.0 * _FAR)
    b = a + w
    near = jnp.exp(-0.5 * down * down)
    far = jnp.exp(-jnp.where(negative, 0.5 * b * b, w * (up + 0.5 * w)))
    mills_a = 1.0 / (jnp.abs(a) + _moment_ratio(jnp.abs(a), 1))
    above_a = jnp.where(negative, _SQRT_2PI - near * mills_a, mills_a)
    below_a = jnp.where(negative, near * mills_a, jnp.inf)
    above_b = far / (b + _moment_ratio(b, 1))
    below_b = jnp.where(negative, _SQRT_2PI - above_b, jnp.inf)
    upper = v * above_a + u * above_b
    lower = jnp.where(negative, v * jnp.where(negative, below_a, 0) + u * below_b, jnp.inf)
    return upper, lower, near, far


@_draw.defjvp
def _draw_jvp(primals, tangents):
    a, w, u, v = primals
    da, dw, du, _ = tangents
    y = _draw(*primals)
    upper, lower, near, far = _shares(*primals)
    c = jnp.maximum(jnp.where(jnp.isinf(a), -1.0, a), 0.0)
    mass = jnp.exp(_log_mass(a, w) + 0.5 * c * c + _LOG_SQRT_2PI)
    mills = 1.0 / (jnp.abs(y) + _moment_ratio(jnp.abs(y), 1))
    rate = mills / jnp.minimum(lower, upper)
    return y, rate * (mass * du + (v * near + u * far) * da + u * far * dw)


def separation_step(
    low: ArrayLike, high: ArrayLike, uniform: ArrayLike, width: ArrayLike | None = None
) -> tuple[Array, Array]:
    interval = standardize(low, high)
    if width is not None:
        low, high, width, uniform = _as_floats(low, high, width, uniform)
        interval = Interval(low, high, width)
    else:
        *interval, uniform = _as_floats(*interval, uniform)
        interval = Interval(*interval)
    mirrored, a = _nearer(interval)
    u = jnp.where(mirrored, 1.0 - uniform, uniform)
    y = _draw(a, interval.width, u, 1.0 - u)
    y = jnp.where(mirrored, -y, y)
    y = jnp.where(y < interval.low, interval.low, jnp.where(y > interval.high, interval.high, y))
    return y, _log_mass(a, interval.width)


def truncated_quantile(
    uniform: ArrayLike, loc: ArrayLike, scale: ArrayLike, low: ArrayLike, high: ArrayLike
) -> Array:
    uniform, loc, scale, low, high = _as_floats(uniform, loc, scale, low, high)
    interval = standardize(low, high, loc, scale)
    y, _ = separation_step(interval.low, interval.high, uniform, interval.width)
    return jnp.clip(loc + scale * y, low, high)


# --- Sums in logs and their kin -------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_sum_exp(x: Array, axis) -> Array:
    top = jnp.max(x, axis, keepdims=True)
    top = jnp.where(jnp.isinf(top), 0.0, top)
    return jnp.log(jnp.sum(jnp.exp(x - top), axis)) + jnp.squeeze(top, axis)


@_log_sum_exp.defjvp
def _log_sum_exp_jvp(axis, primals, tangents):
    (x,), (dx,) = primals, tangents
    total = _log_sum_exp(x, axis)
    level = jnp.expand_dims(total, axis)
    endless = jnp.isinf(level)
    # All terms 0: every share is 0. Some infinite: they share the derivative.
    ties = jnp.isposinf(x)
    shares = jnp.where(
        endless,
        jnp.where(ties, 1.0 / jnp.maximum(jnp.sum(ties, axis, keepdims=True), 1), 0.0),
        jnp.exp(x - jnp.where(endless, 0.0, level)),
    ).astype(x.dtype)
    return total, jnp.sum(shares * dx, axis)


def _axes(x: Array, axis) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(k % x.ndim for k in (axis if isinstance(axis, tuple) else (axis,)))


def log_sum_exp(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array:
    (x,) = _as_floats(x)
    return _log_sum_exp(x, _axes(x, axis))


def log_mean_exp(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Array:
    (x,) = _as_floats(x)
    axes = _axes(x, axis)
    return _log_sum_exp(x, axes) - math.log(math.prod(x.shape[k] for k in axes))


@jax.custom_jvp
def _sigmoid(x: Array) -> Array:
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x < 0, small, 1.0) / (1.0 + small)


@_sigmoid.defjvp
def _sigmoid_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    value = _sigmoid(x)
    return value, value * _sigmoid(-x) * dx


@jax.custom_jvp
def _log1pexp(x: Array) -> Array:
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_log1pexp.defjvp
def _log1pexp_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log1pexp(x), _sigmoid(x) * dx


@jax.custom_jvp
def _inverse_expm1(x: Array) -> Array:
    return 1.0 / jnp.expm1(x)


@_inverse_expm1.defjvp
def _inverse_expm1_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    value = _inverse_expm1(x)
    return value, -value * (1.0 + value) * dx


@jax.custom_jvp
def _log1mexp(x: Array) -> Array:
    near = x < math.log(2.0)
    inner, outer = jnp.where(near, x, 1.0), jnp.where(near, 1.0, x)
    return jnp.where(near, jnp.log(-jnp.expm1(-inner)), jnp.log1p(-jnp.exp(-outer)))


@_log1mexp.defjvp
def _log1mexp_jvp(primals, tangents):
    (x,), (dx,) = primals, tangents
    return _log1mexp(x), _inverse_expm1(x) * dx


def sigmoid(x: ArrayLike) -> Array:
    return _sigmoid(*_as_floats(x))


def log_sigmoid(x: ArrayLike) -> Array:
    return -_log1pexp(-_as_floats(x)[0])


def log1pexp(x: ArrayLike) -> Array:
    return _log1pexp(*_as_floats(x))


def log1mexp(x: ArrayLike) -> Array:
    """log(1 - exp(-x)) for x > 0, in the convention of `jax.nn.log1mexp`."""
    return _log1mexp(*_as_floats(x))
