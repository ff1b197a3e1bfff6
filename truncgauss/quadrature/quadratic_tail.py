r"""Tails of quadratic forms of Gaussian variables, by a contour integral.

The form is a sum of independent noncentral chi-squares with weights of any sign,

.. math:: Q = \sum_j w_j \chi^2_{\nu_j}(\delta_j), \qquad
    K(t) = \log E e^{t Q} = \sum_j \Bigl( -\tfrac{\nu_j}{2} \log(1 - 2 w_j t)
        + \frac{w_j \delta_j t}{1 - 2 w_j t} \Bigr),

.. math:: P(Q > q) = \frac{1}{2 \pi i} \int e^{f(t)} dt, \qquad f(t) = K(t) - t q - \log t,

on a path from below to above that crosses the real axis between 0 and the first singularity, at
1 / (2 max w). There f is convex; the path crosses it at the minimum t_0, along the parabola

.. math:: t(y) = t_0 + i y + \kappa y^2

of steepest descent, turned to the side on which exp(-t q) falls: nothing cancels, however small P
is. With y a multiple of sinh x the trapezoidal rule in x converges exponentially. Below the mean
the lower tail, which is the upper tail of -Q, is computed, and P(Q > q) is 1 less that.

References:
    Imhof (1961), Computing the distribution of quadratic forms in normal variables. Rice (1980),
    Distribution of quadratic forms in normal random variables: evaluation by numerical
    integration. Helstrom (1996), Calculating the distribution of detection statistics by
    saddlepoint integration, for the parabola.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.arrays.linalg import in_full_precision, negligible
from truncgauss.special.logspace import log1mexp
from truncgauss.special.tails import LOG_SQRT_2PI

FACTORS = {
    8: 4,
    4: 2,
}  # by the size of a number; of equal degrees of freedom, of which one logarithm is taken
HALVINGS, NEWTON_STEPS = 16, 4  # towards the minimum of f
BISECTIONS = 8  # towards the end of a path
NOTHING = -1000.0  # logarithm of a lower tail that makes no difference to the upper one
MOST_ROUNDING = 0.02  # of the terms on a path; with more, only the saddle point is used
ROUNDINGS = 4.0  # times that a number is rounded between the inputs and an exponent


# A bend is the curvature of a path times the distance of t_0 from the pole or singularity on its
# inner side. Of large noncentralities, or weights of several sizes, the best is small.
BENDS = (0.05, 0.25)
MORE_BENDS = (1e-4, 1e-3, 0.01, 0.05, 0.15, 0.5)
NUM_STEPS, MORE_STEPS = 56, 256  # of the rule, in x; half as many for its error
COMPARED = 0.75 * np.arange(7)  # x at which paths are compared


def _arctangent_series() -> list[float]:
    """Coefficients of arctan(v) / v in v^2 up to tan(pi / 8), by interpolation, highest first."""
    highest = math.tan(math.pi / 8) ** 2
    nodes = 0.5 * highest * (1.0 + np.cos(math.pi * (np.arange(12) + 0.5) / 12))
    values = np.arctan(np.sqrt(nodes)) / np.sqrt(nodes)
    return np.polynomial.Polynomial.fit(nodes, values, 11).convert().coef[::-1].tolist()


ARCTANGENT = _arctangent_series()


class QuadraticForm(NamedTuple):
    """A weighted sum of noncentral chi-squares.

    Attributes:
        weights: w, shape (d,).
        df: degrees of freedom, shape (d,), or () if they are equal.
        shifts: w times the noncentralities, or squares of constants where w is 0; shape (d,).
    """

    weights: Array
    df: Array
    shifts: Array


class TailPath(NamedTuple):
    """Nodes of one half of a path, the other half being its mirror image.

    Attributes:
        nodes: t, complex, shape (n,), the first one real; negative for a lower tail.
        factors: each node's weight over t, by which exp(K - t q) is multiplied; shape (n,).
        leading: the log of the tail by the curvature at t_0 alone, less K - t q there.
        rounding: the relative rounding error of a term, that of the exponents.
        is_rest: whether the probability is 1 less the tail.
        certain: whether that tail is 0.
    """

    nodes: Array
    factors: Array
    leading: Array
    rounding: Array
    is_rest: Array
    certain: Array


@jax.custom_jvp
def log_moments(t: Array, form: QuadraticForm) -> Array:
    """K(t) at complex t, none of them on a cut, shape (n,)."""
    return lax.complex(*_moment_sums(jnp.real(t), jnp.imag(t), form))


def _moment_sums(x: Array, y: Array, form: QuadraticForm, angles: bool = True) -> list[Array]:
    """The real part of K(x + i y), and the imaginary one unless it is not wanted."""
    count = 1 if form.df.ndim else FACTORS[x.dtype.itemsize]
    df = jnp.broadcast_to(form.df, form.weights.shape)
    # Factors are divided by what they are about, where their product would overflow.
    about = jnp.abs(form.weights) * jnp.max(jnp.abs(x))
    about = jnp.where(about > float(jnp.finfo(x.dtype).max) ** (0.25 / count), about, 1.0)
    size = -0.5 * jnp.sum(df * jnp.log(about))
    parts = 1.0 / about, form.weights / about, df, form.shifts / about
    groups = [
        jnp.pad(part, (0, -len(part) % count), constant_values=empty).reshape(-1, count)
        for part, empty in zip(parts, (1, 0, 0, 0))
    ]

    def added(sums: list[Array], group: list[Array]) -> tuple[list[Array], None]:
        """The sums with the logs of 1 - 2 w t, whose product is reduced by whole turns, added."""
        size, *angle = sums
        real, imag, turns = jnp.ones_like(x), jnp.zeros_like(x), jnp.zeros_like(x)
        squares = jnp.ones_like(x)
        for one, weight, shift in zip(group[0], group[1], group[3]):
            a, b = one - 2.0 * weight * x, -2.0 * weight * y
            square = a * a + b * b
            # t / z = t conj(z) / |z|^2
            inverse = shift / square
            size = size + (x * a + y * b) * inverse
            if not angles:
                squares = squares * square
                continue
            angle = [angle[0] + (y * a - x * b) * inverse]
            above, below = (imag >= 0) & (b >= 0), (imag < 0) & (b < 0)
            real, imag = real * a - imag * b, real * b + imag * a
            turns = turns + jnp.where(above & (imag < 0), 1.0, 0.0)
            turns = turns - jnp.where(below & (imag >= 0), 1.0, 0.0)
        df = group[2][0]
        squares = real * real + imag * imag if angles else squares
        size = size - 0.25 * df * jnp.log(squares)
        if angles:
            angle = [angle[0] - df * (0.5 * _angle(real, imag) + math.pi * turns)]
        return [size, *angle], None

    start = 0.0 * (x + jnp.sum(form.weights))
    sums = lax.scan(added, [start, start] if angles else [start], groups)[0]
    return [sums[0] + size, *sums[1:]]


@functools.partial(log_moments.defjvp, symbolic_zeros=True)
@in_full_precision
def _log_moments_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    t, form = primals
    z = 1.0 - 2.0 * t[:, None] * form.weights.astype(t.dtype)
    ratio = t[:, None] / z
    slopes: tuple[Callable[[], Array], ...] = (
        lambda: form.df * ratio + 2.0 * form.shifts * ratio * ratio,
        lambda: -0.5 * jnp.log(z),
        lambda: ratio,
    )
    total = jnp.zeros_like(t)
    for slope, change in zip(slopes, tangents[1]):
        if not isinstance(change, jax.custom_derivatives.SymbolicZero):
            total = total + jnp.sum(slope() * change.astype(t.dtype), 1)
    return log_moments(t, form), total


def _angle(x: Array, y: Array) -> Array:
    """`jnp.arctan2(y, x)` by arithmetic alone, of which a processor does several at a time."""
    width, height = jnp.abs(x), jnp.abs(y)
    less, more = jnp.minimum(width, height), jnp.maximum(width, height)
    steep = less > math.tan(math.pi / 8) * more
    v = jnp.where(steep, less - more, less) / jnp.where(steep, less + more, more)
    square, series = v * v, jnp.zeros_like(v)
    for coefficient in ARCTANGENT:
        series = series * square + coefficient
    angle = v * series + jnp.where(steep, 0.25 * math.pi, 0.0)
    angle = jnp.where(height > width, 0.5 * math.pi - angle, angle)
    angle = jnp.where(x < 0, math.pi - angle, angle)
    return jnp.where(y < 0, -angle, angle)


# --- The path -------------------------------------------------------------------------------------


class Saddle(NamedTuple):
    """The minimum t_0 of f between 0 and `end`, with the second derivative there."""

    point: Array
    end: Array
    bend: Array


def saddle(form: QuadraticForm, q: Array) -> Saddle:
    """The minimum, by bisection in the logarithm of t / (end - t) and Newton steps.

    Without positive weights there is no singularity; `end` then is twice a bound of t_0.
    """
    weights, df, shifts = form
    df = jnp.broadcast_to(df, weights.shape)
    top = jnp.max(weights)
    bounded = top > 0
    q_size = jnp.abs(q)
    ratios = jnp.where(weights == 0, 0.0, shifts / jnp.where(weights == 0, 1.0, weights))
    free = (jnp.sum(df) + 0.25 * jnp.sum(ratios) + 2.0) / (-(q - _constant(form)))
    end = jnp.where(bounded, 0.5 / jnp.where(bounded, top, 1.0), free)
    rise = jnp.sum(jnp.where(weights > 0, 2.0 * df * weights + 4.0 * shifts, jnp.abs(shifts)))
    fall = jnp.sum(jnp.where(weights > 0, 0.0, df * jnp.abs(weights) + jnp.abs(shifts)))
    low = jnp.minimum(0.5 * end, 1.0 / (rise + q_size))
    share = 0.5 * jnp.sum(jnp.where(weights == top, df, 0.0)) / (fall + q_size + 2.0 / end)
    # Closer to the singularity than a few roundings, 1 - 2 w t would be 0.
    gap = jnp.maximum(jnp.minimum(0.5 * end, share), 8.0 * float(jnp.finfo(q.dtype).eps) * end)
    gap = jnp.where(bounded, gap, 0.5 * end)

    def point(theta: Array) -> Array:
        return end / (1.0 + jnp.exp(-theta))

    def slopes(t: Array) -> tuple[Array, Array]:
        inverse = 1.0 / (1.0 - 2.0 * t * weights)
        part = shifts * inverse * inverse
        slope = jnp.sum(df * weights * inverse + part) - q - 1.0 / t
        share = weights * inverse
        return slope, jnp.sum(2.0 * df * share * share + 4.0 * share * part) + 1.0 / t / t

    def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        up = slopes(point(middle))[0] > 0
        return jnp.where(up, ends[0], middle), jnp.where(up, middle, ends[1])

    def newton(_: Array, theta: Array) -> Array:
        t = point(theta)
        slope, bend = slopes(t)
        return jnp.clip(theta - slope / bend / (t * (1.0 - t / end)), *around)

    ends = jnp.log(low / (end - low)), jnp.log((end - gap) / gap)
    around = lax.fori_loop(0, HALVINGS, halved, ends)
    t = point(lax.fori_loop(0, NEWTON_STEPS, newton, 0.5 * (around[0] + around[1])))
    return Saddle(t, end, slopes(t)[1])


def _constant(form: QuadraticForm) -> Array:
    """The part of the form that is constant."""
    return jnp.sum(jnp.where(form.weights == 0, form.shifts, 0.0))


def _is_nothing(form: QuadraticForm, q: Array) -> Array:
    """Whether P(Q < q) makes no difference to the upper tail, by Chernoff's bound.

    It is less than any number, or, where numbers would overflow, less than rounding.
    """
    top, positive = jnp.max(-form.weights), jnp.max(form.weights)

    def bound(t: Array) -> Array:
        spread = 1.0 + 2.0 * form.weights * t
        logs = -0.5 * form.df * jnp.log(jnp.abs(spread)) - form.shifts * t / spread
        return jnp.sum(logs) + t * q

    halfway = bound(0.25 / jnp.where(top > 0, top, 1.0))
    finite = jnp.finfo(q.dtype)
    least = 100.0 * float(finite.tiny) ** (0.5 / FACTORS[q.dtype.itemsize]) * positive
    is_small = (top <= 0) & (q > 0) & (q < least)
    share = 0.5 * jnp.sum(form.df + 0.0 * form.weights)
    few = bound(jnp.minimum(share / jnp.where(is_small, q, 1.0), 0.1 * float(finite.max)))
    return (top > 0) & (halfway < NOTHING) | is_small & (few < math.log(0.1 * float(finite.eps)))


def tail_path(
    form: QuadraticForm, q: Array, bends: Array, count: int, lower: bool = False
) -> TailPath:
    """The best path by its size alone for the upper tail, or for what it leaves of 1 if that is the
    tail on the side of q away from the mean; for the lower tail itself if it is asked for."""
    is_lower = lower | (q < jnp.sum(form.weights * form.df + form.shifts))
    is_rest = is_lower & (not lower)
    sign = jnp.where(is_lower, -1.0, 1.0).astype(q.dtype)
    # Nothing lies beyond the constant without weights of that sign.
    beyond = sign * (q - _constant(form))
    certain = (jnp.max(sign * form.weights) <= 0) & (beyond >= 0) | jnp.isinf(q)
    certain = certain | is_rest & _is_nothing(form, q)
    weights = jnp.where(certain, 1.0, sign * form.weights)
    shifts = jnp.where(certain, 0.0, sign * form.shifts)
    target = jnp.where(certain, 2.0 * jnp.sum(form.df + 0.0 * weights), sign * q)
    nodes, factors, leading, rounding = _upper_path(
        QuadraticForm(weights, form.df, shifts), target, bends, count
    )
    return TailPath(sign.astype(nodes.dtype) * nodes, factors, leading, rounding, is_rest, certain)


def _upper_path(
    form: QuadraticForm, q: Array, bends: Array, count: int
) -> tuple[Array, Array, Array, Array]:
    """Nodes, factors, leading term and rounding for an upper tail."""
    point, end, bend = saddle(form, q)
    eps, scale = float(jnp.finfo(q.dtype).eps), 1.0 / jnp.sqrt(bend)
    curvatures = bends / jnp.where(q > _constant(form), end - point, -point)

    def at(x: Array, curvature: Array) -> tuple[Array, Array]:
        """t, and its derivative in x over i."""
        y, dy = scale * jnp.sinh(x), scale * jnp.cosh(x)
        return lax.complex(point + curvature * y * y, y), lax.complex(dy, -2.0 * curvature * y * dy)

    def size(t: Array) -> Array:
        """The log of the modulus of the integrand."""
        x, y = jnp.real(t), jnp.imag(t)
        return _moment_sums(x, y, form, angles=False)[0] - x * q - 0.5 * jnp.log(x * x + y * y)

    # On the path of steepest descent the integral of the modulus is least.
    x = jnp.asarray(COMPARED, q.dtype)[None]
    tried, slope = at(x, curvatures[:, None])
    sizes = size(tried.reshape(-1)).reshape(tried.shape)
    slope = jnp.abs(jnp.real(slope)) + jnp.abs(jnp.imag(slope))
    mass = jnp.sum(jnp.exp(sizes - sizes[:, :1]) * slope, axis=1)
    curvature = curvatures[jnp.argmin(mass)]
    least = sizes[0, 0] + math.log(eps) - 2.0

    def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        middle = 0.5 * (ends[0] + ends[1])
        alive = size(at(middle[None], curvature)[0])[0] > least
        return jnp.where(alive, middle, ends[0]), jnp.where(alive, ends[1], middle)

    # exp(-t q) alone has fallen so far there, or, of a form that is nearly constant, f.
    farthest = jnp.sqrt(45.0 * jnp.maximum(1.0 / jnp.abs(q), point) / jnp.abs(curvature) + 1.0)
    farthest = jnp.arcsinh(jnp.minimum(farthest / scale, 1e15))
    last = lax.fori_loop(0, BISECTIONS, halved, (jnp.zeros_like(farthest), farthest))[1]
    t, slope = at(last * jnp.asarray(np.arange(count + 1) / count, q.dtype), curvature)
    weight = np.where(np.arange(count + 1) == 0, 0.5, 1.0) / (math.pi * count)
    spread = 1.0 - 2.0 * point * form.weights
    sizes = form.df * jnp.abs(form.weights) + jnp.abs(form.shifts) / jnp.minimum(spread, 1.0)
    rounding = ROUNDINGS * eps * (1.0 + jnp.sum(sizes * point / spread) + point * jnp.abs(q))
    # 1 - 2 w t is rounded before df / 2 multiplies its logarithm.
    rounding = rounding + 0.125 * eps * jnp.sum(form.df + 0.0 * form.weights)
    leading = jnp.log(scale / point) - LOG_SQRT_2PI
    factors = slope / t * (last * jnp.asarray(weight, q.dtype)).astype(t.dtype)
    return t, factors, leading, rounding


# --- The probability ------------------------------------------------------------------------------


def best_path(
    form: QuadraticForm,
    q: Array,
    bends: tuple[float, ...] = MORE_BENDS,
    count: int = MORE_STEPS,
    lower: bool = False,
) -> TailPath:
    """The path with many nodes on which half of them agree best, see `tail_path`."""

    def with_error(bend: Array) -> tuple[TailPath, Array]:
        path = tail_path(form, q, bend[None], count, lower)
        exponents = log_moments(path.nodes, form) - path.nodes * q.astype(path.nodes.dtype)
        return path, total_of(path, exponents)[-1]

    paths, errors = jax.vmap(with_error)(jnp.asarray(bends, q.dtype))
    best = jnp.argmin(jnp.where(jnp.isnan(errors), jnp.inf, errors))
    return jax.tree.map(lambda leaf: leaf[best], paths)


class TailSlopes(NamedTuple):
    """log P(Q > q), a bound of its error, 0 where that is within ordinary rounding, and the
    derivatives of log P in the form and in q."""

    log_prob: Array
    error: Array
    by_form: QuadraticForm
    by_q: Array


def tail_slopes(
    form: QuadraticForm, q: Array, wanted: tuple[bool, bool, bool], quick: bool = False
) -> TailSlopes:
    """The upper tail and its derivatives, by the same nodes.

    Args:
        form: without leading axes.
        q: shape ().
        wanted: whether derivatives in weights, df and shifts are computed; others are 0.
        quick: whether to try few paths with few nodes.
    """
    fixed = lax.stop_gradient((form, q))
    bends = jnp.asarray(BENDS, q.dtype)
    path = lax.stop_gradient(tail_path(*fixed, bends, NUM_STEPS) if quick else best_path(*fixed))
    target = jnp.where(path.certain, 0.0, q)
    exponents = log_moments(path.nodes, form) - path.nodes * target
    log_prob, error, shares = log_tail(path, exponents)
    x, y = jnp.real(path.nodes)[:, None], jnp.imag(path.nodes)[:, None]
    u, v = jnp.real(shares)[:, None], jnp.imag(shares)[:, None]
    a, b = 1.0 - 2.0 * form.weights * x, -2.0 * form.weights * y
    size = a * a + b * b
    real, imag = (x * a + y * b) / size, (y * a - x * b) / size  # t / (1 - 2 w t)
    first = jnp.sum(u * real - v * imag, 0)
    slopes = QuadraticForm(*(jnp.zeros_like(part) for part in form))
    if wanted[0]:
        second = jnp.sum(u * (real * real - imag * imag) - 2.0 * v * real * imag, 0)
        slopes = slopes._replace(weights=form.df * first + 2.0 * form.shifts * second)
    if wanted[1]:
        by_df = jnp.sum(0.5 * v * _angle(a, b) - 0.25 * u * jnp.log(size), 0)
        slopes = slopes._replace(df=by_df if form.df.ndim else jnp.sum(by_df))
    if wanted[2]:
        slopes = slopes._replace(shifts=first)
    return TailSlopes(log_prob, error, slopes, -jnp.sum(u * x - v * y))


def total_of(path: TailPath, exponents: Array) -> tuple[Array, Array, Array, Array]:
    """The nodes' parts of the tail over exp(level), their sum, level, and relative error."""
    level = lax.stop_gradient(jnp.real(exponents[0]))
    parts = jnp.exp(exponents - level.astype(exponents.dtype)) * path.factors
    terms = jnp.real(parts)
    total = jnp.sum(terms)
    error = jnp.abs(2.0 * jnp.sum(terms[::2]) / total - 1.0)
    cut = len(terms) * jnp.abs(parts[-1]) / total
    # Terms of both signs that cancel, as of degrees of freedom near 0, converge slowly.
    cancels = jnp.sum(jnp.abs(terms)) > 2.0 * total
    error = jnp.where(cancels, 2.0 * error, jnp.minimum(error, 1e3 * error**1.5)) + cut
    return parts, total, level, jnp.where(total > 0, error, jnp.inf)


def log_tail(path: TailPath, exponents: Array) -> tuple[Array, Array, Array]:
    """The log of the probability, a bound of its error, and its derivative in each node's exponent.

    Args:
        path: without derivatives.
        exponents: K - t q at its nodes.
    """
    parts, total, level, error = total_of(path, exponents)
    alone = ~(path.rounding <= MOST_ROUNDING)
    summed = ~alone & (total > 0)
    value = jnp.log(jnp.where(summed, total, 1.0)) + level
    leading = jnp.where(alone, jnp.real(exponents[0]) + path.leading, jnp.nan)
    value = jnp.where(summed, value, leading)
    value = value - lax.stop_gradient(jnp.maximum(value, 0.0))
    partial = path.is_rest & (value < 0)
    log_prob = jnp.where(path.is_rest, log1mexp(-jnp.where(partial, value, -1.0)), value)
    log_prob = jnp.where(path.is_rest & ~partial, jnp.nan, log_prob)
    # Below the mean the error is that of the complement.
    odds = jnp.where(path.is_rest, jnp.exp(jnp.minimum(value - log_prob, 300.0)), 1.0)
    error = lax.stop_gradient(odds * (jnp.where(alone, 1.0, error) + path.rounding))
    error = jnp.where(jnp.isnan(log_prob), jnp.nan, error)
    size = jnp.maximum(1.0, jnp.abs(lax.stop_gradient(log_prob)))
    error = jnp.where(error <= negligible(total.dtype) * size, 0.0, error)
    known = jnp.where(path.is_rest, 0.0, -jnp.inf).astype(total.dtype)
    log_prob = jnp.where(path.certain, known, log_prob)
    first = jnp.asarray(np.arange(len(parts)) == 0, parts.dtype)
    shares = jnp.where(alone, first, parts / jnp.where(summed, total, 1.0).astype(parts.dtype))
    sign = jnp.where(path.certain, 0.0, jnp.where(path.is_rest, -odds, 1.0))
    shares = shares * sign.astype(parts.dtype)
    return log_prob, jnp.where(path.certain, 0.0, error), shares
