"""Limits in standard deviations, and a tail relative to the density where it begins: Mills ratios.

The hazard h(x) = phi(x)/Phi(-x), the inverse of Mills' ratio, and its excess h(x) - x neither
overflow nor underflow in any tail, so everything else is written in them. For x >= 0 the excess is
one polynomial over (x + 3), without a switch; for x < 0 the hazard is the density over one minus a
tail.

References:
    Mills (1926), Table of the ratio: area to bounding ordinate, for any portion of normal curve.
    Cody (1969), Rational Chebyshev approximations for the error function.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
SQRT_2PI = math.sqrt(2.0 * math.pi)
# Beyond this many standard deviations from zero the density is exactly 0 in either precision.
FAR = 64.0

# Chebyshev interpolants, computed with 50 digits. Of (x + 3) (h(x) - x), in (x - 3)/(x + 3); and of
# the sixth ratio of moments times (x + sqrt(x^2 + 48))/12, in 2x/sqrt(x^2 + 48) - 1.
_EXCESS_64 = (
    1.698591929582619, -0.8415387946870332, 0.017163146774306772, 0.18569957991791414,
    -0.025434750641395026, -0.05463860594437267, 0.0076997623131083125, 0.01843122499803153,
    -0.0009428858599653566, -0.006371543766967961, -0.0006340017207229711, 0.002043526201883026,
    0.0006121208123174968, -0.0005421554740408016, -0.00032285880822024613,
    9.18695053838498e-05, 0.00012218931093341685, 5.390023173300267e-06, -3.27380512577405e-05,
    -1.0473473071291055e-05, 4.893400531331622e-06, 3.6670617217901106e-06,
    3.35127025973943e-07, -4.5554003408036604e-07, -3.808769188259553e-07,
    -1.2186714103688495e-07, 8.75111536130135e-08, 5.980396769850392e-08,
    -7.669217745994272e-09, -7.963712369097434e-09,
)  # fmt: skip
_EXCESS_32 = (
    1.69859193, -0.841538794, 0.0171632883, 0.185699537, -0.0254377693, -0.0546377019,
    0.00772466392, 0.0184240451, -0.00104582985, -0.00634374911, -0.000395343046, 0.0019860876,
    0.000287072269, -0.000479562414, -6.1170262e-05, 6.32974377e-05,
)  # fmt: skip
_SIXTH_64 = (
    1.134644501811281, -0.17159085086877665, 0.04401853258834431, -0.0074337824906693115,
    -3.553436442339061e-05, 0.0005985969393558869, -0.0002538265441284744,
    5.6334117848039575e-05, -3.7921929110179086e-07, -5.763799583272545e-06,
    2.8494495867081186e-06, -7.743614060539616e-07, 6.912686508409609e-08,
    5.273280829677571e-08, -3.485297405239566e-08, 1.1963287136319479e-08,
    -2.3158737716536555e-09, -1.8595437726800543e-10, 4.490731901495724e-10,
    -2.0317738441321092e-10, 1.9916403146651974e-11, 7.89177246948059e-12,
)  # fmt: skip
_SIXTH_32 = (
    1.13464451, -0.171590852, 0.0440182522, -0.00743372411, -3.3288934e-05, 0.000598123258,
    -0.00026012279, 5.770048e-05, 6.82281605e-06, -7.42275946e-06,
)  # fmt: skip
# 2 atanh(s)/s^3 - 2/s^2 in s^2, for |s| <= (sqrt 2 - 1)/(sqrt 2 + 1).
_LOG_64 = (
    0.666666666666667, 0.39999999999899505, 0.28571428625975487, 0.22222211134795078,
    0.1818288912526188, 0.1533172160055169, 0.14616449685088906,
)  # fmt: skip
Arrays = tuple[Array, ...]  # arguments of a derivative rule, or their tangents
# Arguments broadcast, and results have their common shape.
Reals = Real[ArrayLike, "*#shape"]
_LOG_2 = math.log(2.0)
_BITS_OF_SQRT_HALF = 0x3FE6A09E667F3BCD


def as_floats(*values: ArrayLike) -> list[Array]:
    """The values as arrays of one shape and one floating dtype.

    Raises:
        ValueError: for complex numbers and for text.
    """
    for value in values:
        dtype = getattr(value, "dtype", None)
        kind = dtype.kind if isinstance(dtype, np.dtype) else "O"
        if kind in "OUSVMmc" and not isinstance(value, float | int) or hasattr(value, "mask"):
            from truncgauss.words.misfits import refuse_no_numbers

            refuse_no_numbers("real numbers are expected", value)
    values = tuple(jnp.asarray(v) if isinstance(v, list | tuple) else v for v in values)
    dtype = jnp.result_type(*values, 0.0)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"real numbers are expected, got dtype {dtype}.")
    with np.errstate(over="ignore"):  # a number beyond this precision is infinite
        return list(jnp.broadcast_arrays(*(jnp.asarray(v, dtype) for v in values)))


@jax.custom_jvp
def with_slopes_where(sound: Array, *values: Array) -> Arrays:
    """The values, with derivatives that are NaN where they are not `sound`, as of a width of 0."""
    return values


@with_slopes_where.defjvp
def _with_slopes_where_jvp(primals: Arrays, tangents: tuple[Any, ...]) -> tuple[Arrays, Arrays]:
    # The tangent of a truth value, the first, is an array of NumPy's without numbers (`float0`).
    factor = jnp.where(primals[0], 1.0, jnp.nan)
    return primals[1:], tuple(change * factor.astype(change.dtype) for change in tangents[1:])


@jax.custom_jvp
def ratio(x: Array, scale: Array) -> Array:
    """x / scale, with a derivative in the scale that avoids its square, which may underflow."""
    return x / scale


@ratio.defjvp
def _ratio_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    value = ratio(*primals)
    return value, ratio(tangents[0] - value * tangents[1], primals[1])


def undefined(where: Array, value: Array) -> Array:
    """The value; NaN, and its derivatives too, which a NaN chosen by `where` would leave at 0."""
    return value * jnp.where(where, jnp.nan, 1.0).astype(value.dtype)


class Interval(NamedTuple):
    """A standardised interval; `width` is more accurate than `high - low` where the two are close.

    Attributes:
        low, high: limits in standard deviations from the mean, infinite values included.
        width: `high - low`, computed from the limits before standardisation.
    """

    low: Float[Array, "*shape"]
    high: Float[Array, "*shape"]
    width: Float[Array, "*shape"]


def standardize(low: Reals, high: Reals, loc: Reals = 0.0, scale: Reals = 1.0) -> Interval:
    r"""Limits in standard deviations from the mean, and the width between them.

    .. math:: a = (l - \mu)/\sigma, \qquad b = (h - \mu)/\sigma, \qquad w = (h - l)/\sigma

    Every derivative with respect to an infinite limit, and of an infinite limit with respect to loc
    and scale, is exactly 0. Where a limit may be infinite and a derivative may be taken, no other
    function subtracts from it.

    Args:
        low, high: limits, infinite values welcome; all arguments broadcast.
        loc, scale: mean and standard deviation, finite, the scale positive.

    Returns:
        `Interval(low, high, width)`; the width of equal limits is 0, of inverted ones negative or
        NaN.

    Example:
        >>> [float(v) for v in tg.special.standardize(1.0, jnp.inf, 0.0, 2.0)]
        [0.5, inf, inf]
    """
    low, high, loc, scale = as_floats(low, high, loc, scale)
    if not isinstance(scale, jax.core.Tracer) and jnp.any(scale < 0.0):
        raise ValueError(f"scale must be positive, got {float(jnp.min(scale)):g}.")
    # 0 for proper loc and scale; otherwise NaN, which an infinite limit would hide.
    proper = (scale > 0) & jnp.isfinite(loc)
    nan_propagator = jax.lax.stop_gradient(jnp.where(proper, 0.0, jnp.nan))
    low_far, high_far = jnp.isinf(low), jnp.isinf(high)
    either = low_far | high_far
    # The subtrahend of a hidden branch is finite, so that its derivative is 0 and not NaN.
    finite_low, finite_high = jnp.where(low_far, loc, low), jnp.where(high_far, loc, high)
    fixed_low, fixed_high = jax.lax.stop_gradient((low, high))
    infinite = jnp.where(low == high, 0.0, jnp.where(low < high, jnp.inf, jnp.nan))
    difference = jnp.where(either, loc, high) - jnp.where(either, loc, low)
    return Interval(
        jnp.where(low_far, fixed_low + nan_propagator, ratio(finite_low - loc, scale)),
        jnp.where(high_far, fixed_high + nan_propagator, ratio(finite_high - loc, scale)),
        jnp.where(either, infinite + nan_propagator, ratio(difference, scale)),
    )


def fixed_interval(low: Array, high: Array, loc: Array, scale: Array | float = 1.0) -> Interval:
    """The limits as by `standardize`, in few operations and for values only.

    A derivative in loc or scale would be wrong where a limit is infinite.
    """
    scale = jnp.asarray(scale, loc.dtype)
    low, high, loc, scale = jax.lax.stop_gradient(jnp.broadcast_arrays(low, high, loc, scale))
    return Interval((low - loc) / scale, (high - loc) / scale, (high - low) / scale)


def horner(coefficients: tuple[float, ...], t: Array) -> Array:
    """The value of a polynomial with these coefficients, the constant first."""
    if len(coefficients) > 8:
        # Two independent chains of multiplications, which a processor overlaps.
        square = t * t
        return horner(coefficients[::2], square) + t * horner(coefficients[1::2], square)
    value = jnp.full_like(t, coefficients[-1])
    for c in coefficients[-2::-1]:
        value = value * t + c
    return value


def value_log(x: Array) -> Array:
    """The natural logarithm, by operations that XLA vectorises; subnormal numbers are not handled.

    Inside a larger loop XLA on a CPU calls the float64 logarithm one element at a time, some
    12 ns each; these few operations take 1 ns. The power of two is read off the bits: it is
    piecewise constant, so the derivative of the remaining operations is that of the logarithm. That
    matters even inside functions with a custom rule, since a reverse pass through a loop may ignore
    such rules.
    """
    if x.dtype != jnp.float64:
        return jnp.log(x)
    bits = jax.lax.bitcast_convert_type(x, jnp.int64)
    exponent = (bits - _BITS_OF_SQRT_HALF) >> 52
    # In two halves, because 2^-1024 is not a normal number.
    half = exponent >> 1

    def power_of_two(n: Array) -> Array:
        return jax.lax.bitcast_convert_type((1023 + n) << 52, jnp.float64)

    mantissa = x * power_of_two(-half) * power_of_two(half - exponent)
    k = exponent.astype(jnp.int32).astype(jnp.float64)
    f = mantissa - 1.0
    s = f / (mantissa + 1.0)
    # 2 atanh(s) + k log 2 over one denominator: it ends in a division, see `moment_ratio`.
    atanh = f * (2.0 + s * s * horner(_LOG_64, s * s))
    value = (k * _LOG_2 * (mantissa + 1.0) + atanh) / (mantissa + 1.0)
    special = jnp.where(x == 0, -jnp.inf, jnp.where(x == jnp.inf, jnp.inf, jnp.nan))
    return jnp.where((x > 0) & (x < jnp.inf), value, special)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def moment_ratio(x: Array, order: int) -> Array:
    """The ratio E[t^k]/E[t^(k-1)] under the density prop. to exp(-x t - t^2/2), t > 0, for x >= 0.

    It obeys r_k = k/(x + r_(k+1)), a recursion that is stable downwards; r_1 is the excess of the
    hazard, h(x) - x.
    """
    wide = x.dtype == jnp.float64
    # Every branch ends in a division: XLA fuses a copy of anything cheaper into each consumer.
    if order == 1:
        coefficients = _EXCESS_64 if wide else _EXCESS_32
        inverse = 1.0 / (x + 3.0)
        return horner(coefficients, 1.0 - 6.0 * inverse) * inverse
    if order > 6:
        return (order - 1) / moment_ratio(x, order - 1) - x
    # The square overflows for huge x, where the ratio is 6/x to the last digit.
    safe = jnp.minimum(x, 1e8)
    root = jnp.sqrt(safe * safe + 48.0)
    ratio = horner(_SIXTH_64 if wide else _SIXTH_32, 2.0 * safe / root - 1.0)
    ratio = ratio * 12.0 / (x + jnp.maximum(root, x))
    for k in range(5, order - 1, -1):
        ratio = k / (x + ratio)
    return ratio


@moment_ratio.defjvp
def _moment_ratio_jvp(order: int, primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    ratio = moment_ratio(x, order)
    return ratio, -ratio * (moment_ratio(x, order + 1) - ratio) * dx


def density(x: Array) -> Array:
    """The standard normal density, with derivative 0 where it is 0."""
    x = jnp.clip(x, -FAR, FAR)
    return jnp.exp(-0.5 * x * x) / SQRT_2PI


def tail_mass(x: Array) -> Array:
    """P(X > x) for x >= 0."""
    return density(x) / (x + moment_ratio(x, 1))


@jax.custom_jvp
def _hazard(x: Array) -> Array:
    y = jnp.abs(x)
    upper = y + moment_ratio(y, 1)
    at_y = density(y)
    return jnp.where(x < 0, at_y / (1.0 - at_y / upper), upper)


@jax.custom_jvp
@jax.jit  # the branch not taken may be NaN, on which `jax_debug_nans` would stop outside of jit
def _hazard_excess(x: Array) -> Array:
    return jnp.where(x < 0, _hazard(x) - x, moment_ratio(jnp.abs(x), 1))


@_hazard.defjvp
def _hazard_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    # At either infinity the product would be 0 times inf; far left it is 0 long before.
    y = jnp.where(x == jnp.inf, 0.0, jnp.maximum(x, -FAR))
    slope = jnp.where(x == jnp.inf, 1.0, _hazard(y) * _hazard_excess(y))
    return _hazard(x), slope * dx


@_hazard_excess.defjvp
def _hazard_excess_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    upper, lower = jnp.where(x < 0, 0.0, x), jnp.clip(x, -FAR, 0.0)
    first = moment_ratio(upper, 1)
    tail = first * (moment_ratio(upper, 2) - first)
    variance = jnp.where(x < 0, 1.0 - _hazard(lower) * _hazard_excess(lower), tail)
    return _hazard_excess(x), -variance * dx


@jax.custom_jvp
@jax.jit
def _log_ndtr(x: Array) -> Array:
    y = jnp.abs(x)
    upper = y + moment_ratio(y, 1)
    tail = density(y) / upper
    argument = jnp.where(x < 0, upper, 1.0 - tail)
    log = value_log(argument)
    # The last term restores the rounding error of 1 - tail.
    right = log + ((1.0 - argument) - tail) / argument
    return jnp.where(x < 0, -0.5 * x * x - LOG_SQRT_2PI - log, right)


_log_ndtr.defjvps(lambda dx, value, x: _hazard(-x) * dx)


@jax.custom_jvp
def _ndtr(x: Array) -> Array:
    tail = tail_mass(jnp.abs(x))
    return jnp.where(x < 0, tail, 1.0 - tail)


_ndtr.defjvps(lambda dx, value, x: density(x) * dx)


def log_ndtr(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""Log of the standard normal distribution function, accurate in either tail.

    .. math:: \log \Phi(x), \qquad \frac{d}{dx} = h(-x), \quad h(x) = \phi(x)/\Phi(-x)

    Args:
        x: array of any shape, infinite values welcome.

    Returns:
        The logs; NaN where x is NaN. The derivative at inf is exactly 0.

    Reference:
        Cody (1969), Rational Chebyshev approximations for the error function.

    Example:
        >>> float(tg.special.log_ndtr(-1e4))
        -50000010.12927891
        >>> round(float(jax.grad(tg.special.log_ndtr)(-1e4)), 9)
        10000.0001
    """
    return _log_ndtr(*as_floats(x))


def ndtr(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""The standard normal distribution function.

    .. math:: \Phi(x) = \int_{-\infty}^x \phi(t)\, dt

    Args:
        x: array of any shape, infinite values welcome.

    Example:
        >>> round(float(tg.special.ndtr(1.96)), 6)
        0.975002
    """
    return _ndtr(*as_floats(x))


def hazard(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""Hazard of the standard normal distribution, the inverse of Mills' ratio.

    .. math:: h(x) = \phi(x) / \Phi(-x), \qquad h' = h\,(h - x)

    It is the mean of a standard normal variable truncated to (x, inf).

    Args:
        x: array of any shape.

    Reference:
        Mills (1926), Table of the ratio: area to bounding ordinate, for any portion of normal
        curve.

    Example:
        >>> round(float(tg.special.hazard(10.0)), 6)
        10.098093
    """
    return _hazard(*as_floats(x))


def hazard_excess(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""The hazard minus its argument, computed without cancellation in the tail.

    .. math:: h(x) - x \approx 1/x \text{ for large } x

    Args:
        x: array of any shape.

    Example:
        >>> round(float(tg.special.hazard_excess(1e8)) * 1e8, 12)
        1.0
    """
    return _hazard_excess(*as_floats(x))
