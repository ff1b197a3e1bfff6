r"""Gaussian probabilities of polygons: the density along one direction times an interval's mass.

With z standard normal in the plane, t and s its coordinates along two orthogonal directions, and
low_i <= p_i t + q_i s <= high_i for every row i, s lies between a maximum and a minimum of lines,

.. math:: P = \int \phi(t) [\Phi(h(t)) - \Phi(l(t))] dt, \quad
    l(t) = \max_i \frac{low_i - p_i t}{q_i}, \quad h(t) = \min_i \frac{high_i - p_i t}{q_i}.

The direction of t is as far as possible from the normal of every row, so that no line is steep,
whatever the covariance. Panels end where the active lines change.

Reference:
    Genz and Bretz (2009), Computation of Multivariate Normal and t Probabilities, section 2.2, for
    probabilities of polygons by quadrature over one variable.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.linalg import in_full_precision, product, triangle
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.regions.region import LinearRegion
from truncgauss.quadrature import log_concave
from truncgauss.special.normal import log_interval_mass, truncated_mean_and_variance
from truncgauss.special.tails import LOG_SQRT_2PI, Interval, standardize

SUPPORT = 2.0 * (2.0 * log_concave.DROP) ** 0.5  # its greatest length


class Lines(NamedTuple):
    """Limits on s, slopes * t + limits.low <= s <= slopes * t + limits.high, shape (m,) each."""

    slopes: Array
    limits: Interval


class Panels(NamedTuple):
    """Breakpoints of panels for t, shape (k,), less a value of t near the mode."""

    anchor: Array
    breakpoints: Array


def turned(rows: Array, used: Array) -> Array:
    """Directions of t and s, the columns of an orthogonal matrix; no derivative.

    That of t lies in the middle of the largest gap between normals of rows, modulo pi.
    """
    rows = lax.stop_gradient(rows)
    angles = jnp.where(used, jnp.arctan2(rows[:, 1], rows[:, 0]) % math.pi, 0.0)
    angles = jnp.sort(jnp.where(used, angles, jnp.max(angles)))
    gaps = jnp.append(jnp.diff(angles), angles[0] + math.pi - angles[-1])
    widest = jnp.argmax(gaps)
    angle = angles[widest] + 0.5 * gaps[widest]
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.stack([jnp.stack([cosine, -sine]), jnp.stack([sine, cosine])])


def lines_of(
    loc: Array, rows: Array, region: LinearRegion, directions: Array, used: Array
) -> Lines:
    """The limits on s; rows that are not used have none."""
    p, q = product(rows, directions).T
    p, q = jnp.where(used, p, 0.0), jnp.where(used, q, 1.0)
    falling, mean = q < 0, region.rows(loc)
    low = jnp.where(falling, -region.high, region.low)
    high = jnp.where(falling, -region.low, region.high)
    low, high = jnp.where(used, low, -jnp.inf), jnp.where(used, high, jnp.inf)
    mean = jnp.where(falling, -mean, mean)
    return Lines(-p / q, standardize(low, high, mean, jnp.abs(q)))


def largest(x: Array) -> Array:
    """The largest entry along the last axis, without a comparison of x with it in the derivative.

    A compiler that computes x twice, rounded differently, would find none equal: 0/0.
    """
    where = jnp.argmax(lax.stop_gradient(x), axis=-1)
    return jnp.take_along_axis(x, where[..., None], axis=-1)[..., 0]


def bounds(lines: Lines, t: Array) -> Interval:
    """The interval of s at values of t, shape (n,)."""
    low, high, width = lines.limits
    shift = lines.slopes[:, None] * t[None]
    below = jnp.argmax(lax.stop_gradient(low[:, None] + shift), axis=0)
    above = jnp.argmin(lax.stop_gradient(high[:, None] + shift), axis=0)
    left, right = low[below] + lines.slopes[below] * t, high[above] + lines.slopes[above] * t
    finite = jnp.isfinite(left) & jnp.isfinite(right)
    gap = jnp.where(finite, right, 1.0) - jnp.where(finite, left, 0.0)
    apart = jnp.where(finite, gap, jnp.inf)
    return Interval(left, right, jnp.where(below == above, width[below], apart))


def crossings(lines: Lines, low: Array, high: Array) -> tuple[Array, Array]:
    """t where line i through `low` meets line j through `high`, and its slope less that of j."""
    steeper = lines.slopes[:, None] - lines.slopes[None, :]
    proper = jnp.isfinite(low)[:, None] & jnp.isfinite(high)[None, :] & (steeper != 0)
    low, high = jnp.where(jnp.isfinite(low), low, 0.0), jnp.where(jnp.isfinite(high), high, 0.0)
    meet = (high[None, :] - low[:, None]) / jnp.where(proper, steeper, 1.0)
    return meet, jnp.where(proper, steeper, 0.0)


def tips(lines: Lines) -> tuple[Array, Array, Array]:
    """The smallest and the largest t of the polygon, and whether it is empty."""
    low, high, _ = lines.limits
    meet, steeper = crossings(lines, low, high)
    first = largest(jnp.where(steeper < 0, meet, -jnp.inf).ravel())
    last = -largest(jnp.where(steeper > 0, -meet, -jnp.inf).ravel())
    parallel = lines.slopes[:, None] == lines.slopes[None, :]
    apart = jnp.any(parallel & (low[:, None] >= high[None, :]))
    empty = apart | ~(first < last)
    return jnp.where(empty, -jnp.inf, first), jnp.where(empty, jnp.inf, last), empty


def panels_of(lines: Lines) -> Panels:
    """Panels for the integral over t; those that end at a vertex move with it."""
    fixed = lax.stop_gradient(lines)

    def log_density(t: Array) -> Array:
        """The log density at the most likely s, which is the integrand up to a factor."""
        low, high, _ = bounds(fixed, t[None])
        below, above = jnp.maximum(low[0], 0.0), jnp.maximum(-high[0], 0.0)
        return -0.5 * (t * t + below * below + above * above)

    first, last, _ = tips(lines)
    laid = log_concave.support(
        log_concave.with_slopes(log_density), *lax.stop_gradient((first, last))
    )
    left, mode, right, (at_first, at_last) = lax.stop_gradient(laid)
    first, last = jnp.where(at_first, first, left), jnp.where(at_last, last, right)
    m = len(lines.slopes)
    # By the turn no line is steeper than the cotangent of pi / 2m.
    count = 1 + int(SUPPORT / (log_concave.REACH * math.sin(math.pi / (2 * m))))
    even = left + (right - left) * jnp.arange(1, count, dtype=left.dtype) / count
    # All values of t at which active lines change are among these.
    kinks = []
    for intercepts, sign in ((lines.limits.low, 1.0), (lines.limits.high, -1.0)):
        meet, steeper = crossings(lines, intercepts, intercepts)
        kinks.append(largest(jnp.where(sign * steeper > 0, meet, -jnp.inf)))
    inner = jnp.concatenate([*kinks, even])
    inner = jnp.sort(jnp.where((inner > left) & (inner < right), inner, first))
    breakpoints = jnp.concatenate([first[None], inner, last[None]])
    return Panels(mode, breakpoints - mode)


class PolygonNodes(NamedTuple):
    """The integrand at quadrature nodes: t, the interval of s, logs of values and weights (n,).

    The logs are less `constant`, and -inf where rounding leaves no interval; `inner` is some then.
    """

    t: Array
    inner: Interval
    log_values: Array
    weights: Array
    constant: Array


def nodes_of(lines: Lines, panels: Panels) -> PolygonNodes:
    anchor, breakpoints = panels
    offsets, weights = log_concave.rule(breakpoints)
    t = anchor + offsets
    inner = bounds(lines, t)
    outside = ~(inner.width > 0)
    inner = Interval(*(jnp.where(outside, x, y) for x, y in zip((-1.0, 1.0, 2.0), inner)))
    log_values = log_interval_mass(*inner) - (anchor + 0.5 * offsets) * offsets
    log_values = jnp.where(outside, -jnp.inf, log_values)
    return PolygonNodes(t, inner, log_values, weights, -0.5 * anchor * anchor - LOG_SQRT_2PI)


def integrated(function: Callable[[Lines, Panels], Any]) -> Callable[[Lines], Any]:
    """A function of integrals over t, at the panels of the lines.

    First derivatives are those at fixed panels, since integrands are continuous: the position of a
    vertex of nearly parallel rows is mostly rounding. Derivatives of these move the panels too.
    """

    @jax.custom_jvp
    def value(lines: Lines) -> Any:
        return function(lines, panels_of(lines))

    @value.defjvp
    @in_full_precision
    def value_jvp(primals: tuple[Lines], tangents: tuple[Lines]) -> tuple[Any, Any]:
        panels = panels_of(*primals)
        return jax.jvp(lambda lines: function(lines, panels), primals, tangents)

    return value


@integrated
def log_integral(lines: Lines, panels: Panels) -> Array:
    nodes = nodes_of(lines, panels)
    return nodes.constant + log_concave.log_weighted_sum(nodes.log_values, nodes.weights)


@integrated
def plane_moments(lines: Lines, panels: Panels) -> tuple[Array, Array]:
    """Mean and covariance of (t, s)."""
    nodes = nodes_of(lines, panels)
    mean, variance = truncated_mean_and_variance(0.0, 1.0, nodes.inner.low, nodes.inner.high)
    means = jnp.stack([nodes.t, mean], axis=-1)
    second_only = jnp.diag(jnp.array([0.0, 1.0], mean.dtype))
    components = log_concave.ComponentMoments(
        nodes.log_values, means, variance[:, None, None] * second_only
    )
    mixed = log_concave.mixed(components, nodes.weights)
    return mixed.mean, mixed.covariance


def polygon_of(
    loc: Array, covariance: Covariance, region: LinearRegion
) -> tuple[Lines, Array, Array]:
    """The lines, factor and directions of a region in up to two dimensions.

    Its points are x = loc + factor @ directions @ (t, s).
    """
    # A factor of the covariance, shape (d, 2), and the rows in z, shape (m, 2).
    root = covariance.root
    factor = root if root.shape[1] <= 2 else triangle(root)[0]
    factor = jnp.pad(factor, ((0, 0), (0, 2 - factor.shape[1])))
    rows = region.rows(factor)
    used = lax.stop_gradient(jnp.isfinite(region.low) | jnp.isfinite(region.high))
    used = used & jnp.any(lax.stop_gradient(rows) != 0, axis=1)
    directions = turned(rows, used)
    return lines_of(loc, rows, region, directions, used), factor, directions


def log_probability(loc: Array, covariance: Covariance, region: LinearRegion) -> Array:
    """log P(X in the polygon), in up to two dimensions; -inf, without slope, if it is empty."""
    lines, factor, _ = polygon_of(loc, covariance, region)
    _, _, empty = tips(lax.stop_gradient(lines))
    nan_propagator = 0.0 * (jnp.sum(region.rows(loc)) + jnp.sum(region.rows(factor)))
    return jnp.where(empty, -jnp.inf, log_integral(lines)) + nan_propagator


def moments(loc: Array, covariance: Covariance, region: LinearRegion) -> tuple[Array, Array]:
    """Mean and covariance of X in the polygon; NaN if it is empty."""
    lines, factor, directions = polygon_of(loc, covariance, region)
    _, _, empty = tips(lax.stop_gradient(lines))
    mean, matrix = plane_moments(lines)
    lift = product(factor, directions)
    nan_propagator = jnp.where(empty, jnp.nan, 0.0)
    return loc + lift @ mean + nan_propagator, lift @ matrix @ lift.T + nan_propagator
