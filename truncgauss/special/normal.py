"""The normal distribution on one interval: log masses, densities, moments, quantiles and draws.

Values and derivatives keep their relative accuracy in any tail. An interval with ends a < b is
mirrored so that a is the end nearer zero, and is then described by a and its width w = b - a, which
is carried by itself. Infinite limits are met by `standardize` alone. The module builds on `tails`
(one tail), `intervals` (the mass of an interval, and one draw) and `moments`, which is imported
where moments or quantiles are asked for: most users of this module need limits and masses.

References:
    Johnson, Kotz and Balakrishnan (1994), Continuous Univariate Distributions 1, section 13.10.1.
    Genz (1992), Numerical computation of multivariate normal probabilities.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from truncgauss.special import intervals
from truncgauss.special.intervals import is_short, log_mass, sign_beside, step
from truncgauss.special.tails import (
    FAR,
    LOG_SQRT_2PI,
    Interval,
    Reals,
    as_floats,
    ratio,
    standardize,
    undefined,
)

if TYPE_CHECKING:
    from truncgauss.special.moments import IntervalMoments

Floats = Float[Array, "*#shape"]  # of the common shape of the arguments, which broadcast


def _nearer(interval: Interval) -> tuple[Array, Array]:
    """Whether the interval is mirrored so that its nearer end is on the left, and that end."""
    mirrored = -interval.low > interval.high
    return mirrored, jnp.where(mirrored, -interval.high, interval.low)


def log_interval_mass(low: Reals, high: Reals, width: Reals | None = None) -> Floats:
    r"""Log probability that a standard normal variable falls into an interval.

    .. math:: \log Z = \log\{\Phi(b) - \Phi(a)\}, \qquad
        d \log Z = -(e_a - e_b)\, da + e_b\, dw, \quad e_x = \phi(x)/Z

    Args:
        low, high: standardised limits, infinite values welcome; they broadcast.
        width: `high - low`, if it is known more accurately than that difference; see `standardize`.

    Returns:
        The logs: -inf for an empty interval, NaN for an inverted one and where an argument is NaN.

    Example:
        >>> float(tg.special.log_interval_mass(1000.0, 1000.5))
        -500007.82669481216
    """
    interval = _interval(low, high, width)
    _, a = _nearer(interval)
    return undefined(interval.width < 0, log_mass(a, interval.width))


class MassSlopes(NamedTuple):
    """The log mass Z of an interval [a, b] and its derivatives, of the shape of the ends.

    Attributes:
        relative_log: log Z + c^2/2, where c is the distance of the interval from 0.
        mean: the mean on the interval, phi(a)/Z - phi(b)/Z, without cancellation: minus the
            derivative by a shift of the interval.
        spread: a phi(a)/Z - b phi(b)/Z, minus the derivative by the log of its scale.
        at_low, at_high: the densities phi(a)/Z and phi(b)/Z.
    """

    relative_log: Array
    mean: Array
    spread: Array
    at_low: Array
    at_high: Array


def log_mass_and_slopes(low: Array, high: Array, width: Array) -> MassSlopes:
    """The log mass of intervals, relative to the density at their points nearest to 0, and its
    derivatives, which are 0 by infinite limits."""
    mirrored, a = _nearer(Interval(low, high, width))
    log, mean, at_far = intervals.log_mass_and_slopes(a, width)
    at_near = mean + at_far
    near, w = (jnp.where(jnp.isinf(x), 0.0, x) for x in (a, width))
    return MassSlopes(
        log,
        jnp.where(mirrored, -mean, mean),
        near * mean - w * at_far,
        jnp.where(mirrored, at_far, at_near),
        jnp.where(mirrored, at_near, at_far),
    )


def _interval(low: ArrayLike, high: ArrayLike, width: ArrayLike | None) -> Interval:
    """Standardised limits as an interval, with their difference where no width is given."""
    width = standardize(low, high).width if width is None else width
    return Interval(*as_floats(low, high, width))


def separation_step(
    low: Reals, high: Reals, uniform: Reals, width: Reals | None = None
) -> tuple[Floats, Floats]:
    r"""One step of separation of variables: a draw from the interval, and the interval's log mass.

    .. math:: y = \Phi^{-1}\{(1 - u)\,\Phi(a) + u\,\Phi(b)\}, \qquad
        dy = \frac{Z}{\phi(y)} \{du + (1 - u)\, e_a\, da + u\, e_b\, db\}

    Both come from the same two Mills ratios, in the tail nearer the interval; no derivative goes
    through an inverse distribution function.

    Args:
        low, high: standardised limits, infinite values welcome; all arguments broadcast.
        uniform: in (0, 1).
        width: `high - low`, if it is known more accurately than that difference; see `standardize`.

    Returns:
        The draw, never outside the limits, to rounding of a standard deviation (nearer to an end
        `truncated_quantile` is more accurate), and the log mass as `log_interval_mass` gives it.

    References:
        Genz (1992), Numerical computation of multivariate normal probabilities.

    Example:
        >>> draw, log_mass = tg.special.separation_step(9.0, jnp.inf, 0.5)
        >>> round(float(draw), 6), round(float(log_mass), 6)
        (9.075787, -43.628149)
    """
    low, high, width, uniform = as_floats(*_interval(low, high, width), uniform)
    interval = Interval(low, high, width)
    mirrored, a = _nearer(interval)
    sign, a = sign_beside(mirrored, a)
    u = jnp.where(sign < 0, 1.0 - uniform, uniform)
    t, log_z = step(a, width, u, jnp.where(sign < 0, uniform, 1.0 - uniform))
    y = jnp.where(a >= 0, a, 0.0) + t
    return moved_inside(sign * y, interval.low, interval.high), log_z


@jax.custom_jvp
def moved_inside(x: Array, low: Array, high: Array) -> Array:
    """A draw, or the limit if rounding took the draw beyond it."""
    return jnp.where(x < low, low, jnp.where(x > high, high, x))


# Only rounding takes a draw out of its interval, so its derivative is that of the draw.
moved_inside.defjvps(lambda dx, value, x, low, high: dx, None, None)


class _Frame(NamedTuple):
    """The mirrored interval, in standard deviations and in the user's units."""

    a: Array
    w: Array
    origin: Array  # the end nearer the mean, or the mean if that lies inside and far from both
    sign: Array
    narrow: Array
    scale: Array
    start: Array  # a and w in the user's units
    width: Array

    @property
    def unit(self) -> Array:
        """The width of the interval if it is narrow, else the scale."""
        return jnp.where(self.narrow, self.width, self.scale)


def _frame(
    loc: Array, scale: Array, low: Array, high: Array, is_narrow: Callable[[Array, Array], Array]
) -> _Frame:
    interval = standardize(low, high, loc, scale)
    mirrored, a = _nearer(interval)
    narrow = is_narrow(a, interval.width)
    end, sign = jnp.where(mirrored, high, low), jnp.where(mirrored, -1.0, 1.0)
    no_end, either = jnp.isinf(end), jnp.isinf(low) | jnp.isinf(high)
    origin = jnp.where(narrow | (a >= 0), jnp.where(no_end, 0.0, end), loc)
    # Beyond this many scales an end has no influence, and no derivative.
    far = jax.lax.stop_gradient(4.0 * FAR * scale)
    start = sign * (jnp.where(no_end, loc, end) - loc)
    width = jnp.where(either, loc, high) - jnp.where(either, loc, low)
    width = jnp.where(narrow, width, jnp.where(either, far, jnp.minimum(width, far)))
    start = jnp.where(no_end, -far, jnp.maximum(start, -far))
    return _Frame(a, interval.width, origin, sign, narrow, scale, start, width)


def _moments(loc: Array, scale: Array, low: Array, high: Array) -> tuple[_Frame, "IntervalMoments"]:
    """Excess over the origin, variance and entropy in the user's units."""
    from truncgauss.special import moments

    frame = _frame(loc, scale, low, high, moments.is_narrow)
    narrow, proper = frame.narrow, frame.w > 0
    width = jnp.where(narrow & proper, frame.width, 1.0)
    a, w = jnp.where(narrow, frame.a, 0.0), jnp.where(narrow & proper, frame.w, 1.0)
    inner = moments.narrow_moments(a, w)
    wide = moments.wide_moments(
        jnp.where(narrow, 0.0, frame.start),
        jnp.where(narrow, 4.0, frame.width),
        jnp.where(narrow, 1.0, scale),
    )
    inner = moments.IntervalMoments(
        width * inner.excess, width * width * inner.variance, jnp.log(width) + inner.entropy
    )
    wide = wide._replace(entropy=jnp.log(scale) + wide.entropy)
    chosen = (jnp.where(narrow, x, y) for x, y in zip(inner, wide))
    # Which depends on both limits, as a value that is not used here may not.
    empty = jnp.where(proper, 0.0, frame.w)
    return frame, moments.IntervalMoments(*(undefined(~proper, value + empty) for value in chosen))


def _log_size(frame: _Frame) -> Array:
    """Log of mass over density at max(a, 0), in units of `frame.unit`."""
    from truncgauss.special import moments

    narrow = frame.narrow
    inner = moments.narrow_log_size(
        jnp.where(narrow, frame.a, 0.0), jnp.where(narrow, frame.w, 1.0)
    )
    a, w = jnp.maximum(frame.a, -4.0 * FAR), jnp.minimum(frame.w, 4.0 * FAR)
    wide = moments.wide_log_size(jnp.where(narrow, 0.0, a), jnp.where(narrow, 4.0, w))
    return jnp.where(narrow, inner, wide)


@jax.custom_jvp
def _log_ratio(x: Array, y: Array) -> Array:
    return jnp.log(x / y)


# As two terms, so that the mixed second derivative is exactly 0.
_log_ratio.defjvps(lambda dx, value, x, y: dx / x, lambda dy, value, x, y: -dy / y)


def truncated_log_mass(loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Log probability that a normal variable falls into [low, high], in the user's own units.

    .. math:: \log Z = \log\{\Phi((h - \mu)/\sigma) - \Phi((l - \mu)/\sigma)\}

    The value is that of `log_interval_mass` after `standardize`. Second derivatives are accurate
    here for narrow intervals too, where those of the composition are differences of 1/width^2.

    Args:
        loc, scale: mean and standard deviation, the scale positive; all arguments broadcast.
        low, high: limits, infinite values welcome.

    Returns:
        The logs: -inf for an empty interval, NaN for an inverted one.

    Example:
        >>> round(float(tg.special.truncated_log_mass(0.0, 2.0, 18.0, jnp.inf)), 6)
        -43.628149
    """
    from truncgauss.special import moments

    loc, scale, low, high = as_floats(loc, scale, low, high)
    frame = _frame(loc, scale, low, high, moments.is_narrow)
    # Equal limits too: log Z is then -inf, and grows infinitely fast with the width.
    measured = frame.narrow & (frame.w >= 0)
    ratio = _log_ratio(jnp.where(measured, frame.width, 1.0), jnp.where(measured, scale, 1.0))
    c = jnp.where((frame.a >= 0) & ~jnp.isinf(frame.a), frame.a, 0.0)
    log = ratio + (_log_size(frame) - LOG_SQRT_2PI) - 0.5 * c * c
    at_infinity = (frame.w == 0) & jnp.isinf(frame.a)
    return undefined(frame.w < 0, jnp.where(at_infinity, -jnp.inf, log))


def truncated_log_density(x: Reals, loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Log density of a normal variable truncated to [low, high].

    .. math:: \log p(x) = \log \phi\{(x - \mu)/\sigma\} - \log \sigma - \log Z

    Args:
        x: where; all arguments broadcast.
        loc, scale: mean and standard deviation before truncation, the scale positive.
        low, high: limits, infinite values welcome.

    Returns:
        The log density, -inf outside the limits, NaN if these are inverted.

    Example:
        >>> round(float(tg.special.truncated_log_density(9.1, 0.0, 1.0, 9.0, 10.0)), 6)
        1.304278
    """
    from truncgauss.special import moments

    x, loc, scale, low, high = as_floats(x, loc, scale, low, high)
    frame = _frame(loc, scale, low, high, moments.is_narrow)
    empty = ~(frame.w > 0)  # of which the slope in x is NaN too
    inside = (low <= x) & (x <= high) & ~jnp.isinf(x) | empty
    c = jnp.where(frame.a >= 0, frame.a, 0.0)
    base = jnp.where(frame.a >= 0, frame.origin, loc)
    t = ratio(frame.sign * (jnp.where(inside, x, base) - base), scale)
    size = undefined(empty, _log_size(frame)) + jnp.log(frame.unit)
    density = jnp.where(inside, -t * (c + 0.5 * t) - size, -jnp.inf)
    return undefined(jnp.isnan(x + size), density)


def truncated_mean(loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Mean of a normal variable truncated to [low, high].

    .. math:: \mu + \sigma (e_a - e_b), \quad e_x = \phi(x)/Z

    computed as a distance from the nearer limit if the mean before truncation lies outside.

    Args:
        loc, scale: mean and standard deviation before truncation, the scale positive.
        low, high: limits, infinite values welcome; all arguments broadcast.

    Returns:
        The mean; NaN if the limits are equal or inverted.

    Reference:
        Johnson, Kotz and Balakrishnan (1994), Continuous Univariate Distributions 1, section
        13.10.1.

    Example:
        >>> float(tg.special.truncated_mean(0.0, 1.0, 1000.0, jnp.inf))
        1000.000999998
    """
    return truncated_mean_and_variance(loc, scale, low, high)[0]


def truncated_variance(loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Variance of a normal variable truncated to [low, high].

    .. math:: \sigma^2 \{1 + a e_a - b e_b - (e_a - e_b)^2\}, \quad e_x = \phi(x)/Z

    Args:
        loc, scale: mean and standard deviation before truncation, the scale positive.
        low, high: limits, infinite values welcome; all arguments broadcast.

    Returns:
        The variance; NaN if the limits are equal or inverted.

    Reference:
        Johnson, Kotz and Balakrishnan (1994), Continuous Univariate Distributions 1, section
        13.10.1.

    Example:
        >>> round(float(tg.special.truncated_variance(0.0, 1.0, 0.0, jnp.inf)), 6)
        0.36338
    """
    loc, scale, low, high = as_floats(loc, scale, low, high)
    return _moments(loc, scale, low, high)[1].variance


def truncated_mean_and_variance(
    loc: Reals, scale: Reals, low: Reals, high: Reals
) -> tuple[Floats, Floats]:
    """`truncated_mean` and `truncated_variance`, at the cost of one of them.

    Example:
        >>> mean, variance = tg.special.truncated_mean_and_variance(0.0, 1.0, 0.0, jnp.inf)
        >>> round(float(mean), 6), round(float(variance), 6)
        (0.797885, 0.36338)
    """
    loc, scale, low, high = as_floats(loc, scale, low, high)
    frame, moments = _moments(loc, scale, low, high)
    return frame.origin + frame.sign * moments.excess, moments.variance


def truncated_entropy(loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Differential entropy of a normal variable truncated to [low, high], in nats.

    .. math:: \log(\sqrt{2\pi}\, \sigma Z) + \tfrac12 (1 + a e_a - b e_b), \quad e_x = \phi(x)/Z

    Args:
        loc, scale: mean and standard deviation before truncation, the scale positive.
        low, high: limits, infinite values welcome; all arguments broadcast.

    Returns:
        The entropy; NaN if the limits are equal or inverted.

    Example:
        >>> round(float(tg.special.truncated_entropy(0.0, 1.0, -jnp.inf, jnp.inf)), 6)
        1.418939
    """
    loc, scale, low, high = as_floats(loc, scale, low, high)
    return _moments(loc, scale, low, high)[1].entropy


_CLOSE = 2.0**-6  # to an end, in standard deviations or in what the density falls by


def _beside_end(
    frame: _Frame, loc: Array, low: Array, high: Array, u: Array, v: Array
) -> tuple[Array, Array]:
    """Whether a draw lies close to an end, or the interval is short, and then the draw.

    It is counted from that end, to rounding of the distance. Everywhere else draws are counted from
    the mean, or from the nearer end, to rounding of a standard deviation.
    """
    from truncgauss.special import moments

    a, w, short = frame.a, frame.w, frame.narrow
    far = v < jnp.where(short, _CLOSE, 0.5)
    end = jnp.where(far, -(a + w), a)
    uniform, limit = jnp.where(far, v, u), jnp.where(far == (frame.sign < 0), low, high)
    finite = jnp.isfinite(end)
    end, limit = jnp.where(finite, end, 0.0), jnp.where(finite, limit, loc)
    # A short piece of the interval at the end, and the probability within it.
    piece = jax.lax.stop_gradient(_CLOSE / jnp.maximum(jnp.abs(end), 1.0))
    wide_a, wide_w = jnp.where(short, 0.0, a), jnp.where(short, 4.0, w)
    wide_a, wide_w = jnp.maximum(wide_a, -4.0 * FAR), jnp.minimum(wide_w, 4.0 * FAR)
    fall = jnp.where(a < 0, 0.5 * end * end, jnp.where(far, wide_w * (wide_a + 0.5 * wide_w), 0.0))
    whole = moments.wide_log_size(wide_a, wide_w) + jnp.where(finite & ~short, fall, 0.0)
    mass = moments.short_mass(end, piece)
    close = short | (finite & (uniform * jnp.exp(whole) <= mass))
    # Elsewhere the exponential may be infinite, and its derivative NaN.
    share = uniform * jnp.exp(jnp.where(close & ~short, whole, 0.0))
    share = ratio(share, jnp.where(short, 1.0, mass))
    fraction = moments.short_draw(
        jnp.where(close, end, 0.0),
        jnp.where(short, w, jnp.where(close, piece, 0.1)),
        jnp.where(close, share, 0.5),
    )
    side = jnp.where(far, -frame.sign, frame.sign)
    return close, limit + side * jnp.where(short, frame.width, frame.scale * piece) * fraction


def truncated_quantile(uniform: Reals, loc: Reals, scale: Reals, low: Reals, high: Reals) -> Floats:
    r"""Quantile of a normal variable truncated to [low, high]: a draw, if fed a uniform.

    .. math:: \mu + \sigma\, \Phi^{-1}\{(1 - u)\,\Phi(a) + u\,\Phi(b)\}

    Args:
        uniform: from 0 to 1; all arguments broadcast.
        loc, scale: mean and standard deviation before truncation, the scale positive.
        low, high: limits, infinite values welcome.

    Returns:
        The quantile, never outside the limits; NaN if these are inverted, or uniform is below 0 or
        above 1. Close to an end it is right to rounding of its distance from there, and elsewhere
        of a standard deviation.

    Reference:
        Devroye (1986), Non-Uniform Random Variate Generation, section II.2: inversion.

    Example:
        >>> round(float(tg.special.truncated_quantile(0.5, 0.0, 1.0, 9.0, jnp.inf)), 6)
        9.075787
    """
    uniform, loc, scale, low, high = as_floats(uniform, loc, scale, low, high)
    frame = _frame(loc, scale, low, high, is_short)
    u = jnp.where(frame.sign < 0, 1.0 - uniform, uniform)
    v = jnp.where(frame.sign < 0, uniform, 1.0 - uniform)
    t, _ = step(frame.a, frame.w, u, v)
    close, beside = _beside_end(frame, loc, low, high, u, v)
    x = jnp.where(close, beside, frame.origin + frame.sign * scale * t)
    # At the ends the limit itself, which rounding would miss.
    low_end, high_end = jnp.where(uniform == 1, high, low), jnp.where(uniform == 0, low, high)
    known = (low <= high) & (uniform >= 0) & (uniform <= 1)
    return undefined(~known, moved_inside(x, low_end, high_end))


# --- Moments for solvers --------------------------------------------------------------------------

# 2n nodes integrate exp(-x^2/2) over (-r, r) with an error of about exp(-r^2/4) I_2n(r^2/4), I_n
# being modified Bessel functions: below 1e-15 for these.
_QUICK_NODES, _QUICK_WEIGHTS = np.polynomial.legendre.leggauss(40)
# The nodes from 0 to 1; the weights of the integrals of 1, t and t^2 times a function on (0, 1).
_SHARES = 0.5 * (1.0 + _QUICK_NODES)
_POWERS = 0.5 * _QUICK_WEIGHTS[:, None] * _SHARES[:, None] ** np.arange(3)
_FALL = 30.0


class QuickMoments(NamedTuple):
    """The mean as the mode and an offset from it, the variance, and the log of the probability."""

    mode: Float[Array, "*shape"]
    offset: Float[Array, "*shape"]
    variance: Float[Array, "*shape"]
    log_mass: Float[Array, "*shape"]

    @property
    def mean(self) -> Float[Array, "*shape"]:
        """The mean, with the digits that the mode leaves to it."""
        return self.mode + self.offset


def quick_moments(interval: Interval) -> QuickMoments:
    """Moments and probability of a standard normal variable in an interval, in few operations.

    `truncated_mean_and_variance` keeps its relative accuracy and that of all derivatives in any
    regime, by some five hundred operations, which cost more to compile than a solver that needs
    only a proposal takes to run. Here the density, divided by its maximum, is integrated by the
    Gauss-Legendre rule where it exceeds exp(-30): far limits have an effect of that order instead
    of their true, smaller one.

    Args:
        interval: standardised limits, infinite values welcome; see `standardize`.

    Returns:
        The moments, the offset and the variance with an error of about 1e-12 (1e-6 in float32)
        relative to the standard deviation after truncation and to its square, the log mass with
        such an absolute one. NaN where an argument is NaN.

    Reference:
        Golub and Welsch (1969), Calculation of Gauss quadrature rules.
    """
    low, high, width = interval
    # Not `clip`, which shares its slope between the branches where a limit is at the mean.
    mode = jnp.where(low >= 0, low, jnp.where(high <= 0, high, 0.0))
    # The density falls by exp(-30) over this distance, on either side where the mode is inside.
    reach = 2.0 * _FALL / (jnp.abs(mode) + jnp.hypot(mode, (2.0 * _FALL) ** 0.5))
    ahead = jnp.where(low < mode, high - mode, width)
    behind = jnp.where(mode < high, mode - low, width)
    right, left = jnp.minimum(ahead, reach), -jnp.minimum(behind, reach)
    right, left = jnp.where(mode == high, 0.0, right), jnp.where(mode == low, 0.0, left)
    length = right - left
    nodes, powers = jnp.asarray(_SHARES, low.dtype), jnp.asarray(_POWERS, low.dtype)
    offsets = left[..., None] + length[..., None] * nodes.reshape((1,) * low.ndim + (-1,))
    density = jnp.exp(-offsets * (mode[..., None] + 0.5 * offsets))
    mass, first, second = jnp.moveaxis(jnp.matmul(density, powers, precision="highest"), -1, 0)
    share = first / mass
    log_mass = jnp.log(length * mass) - 0.5 * mode * mode - LOG_SQRT_2PI
    variance = jnp.square(length) * (second / mass - share * share)
    return QuickMoments(mode, left + length * share, variance, log_mass)
