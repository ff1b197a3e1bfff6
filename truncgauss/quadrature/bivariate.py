r"""Bivariate box probabilities: the density of X1 times the conditional probability of X2.

With X1 = loc1 + s Z and X2 = loc2 + slope (X1 - loc1) + c Y, Z and Y standard normal,

.. math:: P = \int_{l_1}^{h_1} p(x_1) \left[\Phi\left(\frac{h_2 - m(x_1)}{c}\right)
    - \Phi\left(\frac{l_2 - m(x_1)}{c}\right)\right] dx_1, \quad m(x) = \mu_2 + \beta (x - \mu_1)

A nearly singular covariance makes two differences cancel, c and low2 - m(x1); both are computed in
twice the working precision, about an anchor near the mode.

References:
    Drezner and Wesolowsky (1990), On the computation of the bivariate normal integral.
    Genz (2004), Numerical computation of rectangular bivariate and trivariate normal and t
    probabilities.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.gaussian.covariances import Covariance, ScaleTril
from truncgauss.gaussian.linalg import is_symmetric
from truncgauss.quadrature import log_concave
from truncgauss.quadrature.double_double import difference_of_products, line
from truncgauss.special import (
    Interval,
    log_interval_mass,
    standardize,
    truncated_mean_and_variance,
)
from truncgauss.special.tails import LOG_SQRT_2PI


class BivariateRegression(NamedTuple):
    """A bivariate normal distribution as the scale of X1 and the regression of X2 on it.

    `slope_rest` is the rounding error of `slope`; it carries no derivative.
    """

    scale: jax.Array
    slope: jax.Array
    residual_scale: jax.Array
    slope_rest: jax.Array


def regression(covariance: Covariance) -> BivariateRegression:
    """The regression of X2 on X1, from a covariance matrix or, with no cancellation, a factor."""
    if isinstance(covariance, ScaleTril):
        factor = covariance.scale_tril
        slope, rest = ratio(factor[1, 0], factor[0, 0])
        return BivariateRegression(factor[0, 0], slope, factor[1, 1], rest)
    matrix = covariance.covariance_matrix
    matrix = jnp.where(is_symmetric(matrix), matrix, jnp.nan)
    return regression_of(matrix[0, 0], 0.5 * (matrix[0, 1] + matrix[1, 0]), matrix[1, 1])


def regression_of(first: jax.Array, product: jax.Array, second: jax.Array) -> BivariateRegression:
    """The regression of X2 on X1, from the variances of both and their covariance."""
    determinant = difference_of_products(first, second, product, product)
    # Products of a factor with itself are singular only to their own rounding.
    slack = 64 * jnp.finfo(first.dtype).eps * first * second
    singular = (determinant <= 0) & (determinant >= -slack)
    # The square root of this 0 has a derivative of NaN, as it should.
    residual = jnp.sqrt(jnp.where(singular, 0.0 * determinant, determinant) / first)
    slope, rest = ratio(product, first)
    return BivariateRegression(jnp.sqrt(first), slope, residual, rest)


def ratio(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """x / y, rounded, and the rounding error, which carries no derivative."""
    quotient = x / y
    rest = difference_of_products(x, jnp.ones_like(x), quotient, y) / y
    return quotient, jax.lax.stop_gradient(rest)


MAX_PANELS = 10


class PanelPlan(NamedTuple):
    """Panels for the integral over X1.

    Attributes:
        anchor: a value of X1 near the mode.
        breakpoints: ends of the panels, as offsets from the anchor.
        num_panels: how many of the panels are in use.
    """

    anchor: jax.Array
    breakpoints: jax.Array
    num_panels: jax.Array


class Span(NamedTuple):
    """The part of an interval for X1 where the integrand counts.

    Attributes:
        anchor: a value of X1 near the mode.
        centre: the anchor less the mean, in standard deviations of X1.
        left, right: the ends, as offsets from the anchor.
        at_low, at_high: whether these ends are the limits.
    """

    anchor: jax.Array
    centre: jax.Array
    left: jax.Array
    right: jax.Array
    at_low: jax.Array
    at_high: jax.Array


def span(
    log_density: Callable[[jax.Array], jax.Array],
    loc: jax.Array,
    scale: jax.Array,
    low: jax.Array,
    high: jax.Array,
) -> Span:
    """The part of the limits in which a log-concave density of the standardised X1 counts."""
    outer = standardize(low, high, loc, scale)
    support = log_concave.support(log_density, outer.low, outer.high)
    limits = jnp.stack([outer.low, outer.high])
    at_low, at_high = log_concave.touches(log_density, support.mode, limits)
    anchor = jnp.clip(loc + scale * support.mode, low, high)
    ends = standardize(low, high, anchor)
    centre = (anchor - loc) / scale
    left = jnp.where(at_low, ends.low, scale * (support.left - centre))
    right = jnp.where(at_high, ends.high, scale * (support.right - centre))
    return Span(anchor, centre, left, right, at_low, at_high)


def plan(loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array) -> PanelPlan:
    """Panels for the integral over X1; no derivative goes through their positions.

    They are laid out for the density at the most likely X2 given x1, which approximates the
    integrand up to a factor. It falls from its maximum over the scale of X1, and near the ends of
    the support, where X2 is at a limit, over residual_scale / |slope|.
    """
    loc, form, low, high = jax.lax.stop_gradient((loc, form, low, high))
    rate = form.slope * form.scale / form.residual_scale
    # Beyond 1e9 it is the root of 1 + rate^2 to the last digit, and the square may overflow.
    size = jnp.abs(rate)
    norm = jnp.maximum(size, jnp.sqrt(1.0 + jnp.square(jnp.minimum(size, 1e9))))
    anchor, left, right, at_low, at_high = strip_span(loc, form, low, high, rate, norm)
    width = right - left
    edge = jnp.minimum(log_concave.END_DEPTH * form.scale / size, 0.5 * width)
    long, short = log_concave.REACH * form.scale, log_concave.REACH * form.scale / norm
    cost, middle = edge / short, (width - 2.0 * edge) / long
    count, parts = log_concave.shared_out(2.0 * cost + middle, MAX_PANELS)
    within = jnp.clip(parts - cost, 0.0, middle)
    offsets = jnp.minimum(parts, cost) + jnp.maximum(parts - cost - middle, 0.0)
    used = np.arange(MAX_PANELS + 1, dtype=count.dtype) < count
    breakpoints = jnp.where(used, left + (within * long + offsets * short), right)
    return PanelPlan(anchor, log_concave.reaching(breakpoints, at_low, at_high), count.astype(int))


def strip_span(
    loc: jax.Array,
    form: BivariateRegression,
    low: jax.Array,
    high: jax.Array,
    rate: jax.Array,
    norm: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    r"""The part of the limits on X1 in which the density at the most likely X2 counts.

    With z and y the standardised X1 and residual of X2, that density is exp(-(z^2 + y^2)/2) at the
    y nearest 0 in [l - r z, h - r z]: on each piece of it the square is a parabola, and where it is
    more by 2 DROP than at the mode is the root of a quadratic equation.

    Args:
        loc, form, low, high: as of `log_probability`.
        rate, norm: r, and the root of 1 + r^2.

    Returns:
        Anchor, ends as offsets from it, and whether these are the limits: see `Span`.
    """
    outer = standardize(low[0], high[0], loc[0], form.scale)
    inner = standardize(low[1], high[1], loc[1], form.residual_scale)

    def nearest(z: jax.Array) -> jax.Array:
        return jnp.clip(0.0, inner.low - rate * z, inner.high - rate * z)

    mode = jnp.clip(rate / norm * (nearest(jnp.zeros_like(rate)) / norm), outer.low, outer.high)
    y = nearest(mode)
    # To the left and to the right of the mode, as distances t from it.
    right = np.asarray([False, True])
    sign = jnp.where(right, 1.0, -1.0).astype(rate.dtype)
    reach = _larger_root(sign * mode, 2.0 * log_concave.DROP + y * y)
    below, above = inner.low - rate * mode, rate * mode - inner.high
    by_low, by_high = below - sign * rate * reach > 0, above + sign * rate * reach > 0
    excess, change = jnp.where(by_low, below, above), jnp.where(by_low, -rate, rate) * sign
    slope = sign * mode / norm / norm + change / norm * (excess / norm)
    fall = 2.0 * log_concave.DROP / norm / norm + (y - excess) / norm * ((y + excess) / norm)
    reach = jnp.where(by_low | by_high, jnp.minimum(_larger_root(slope, fall), reach), reach)
    # By the value at a limit, not by its distance: the density may fall within a fraction of that.
    limits = jnp.where(right, outer.high, outer.low)
    finite = jnp.isfinite(limits)
    limits = jnp.where(finite, limits, mode)
    y_there = nearest(limits)
    drop = (limits - mode) * (limits + mode) + (y_there - y) * (y_there + y)
    at_limit = finite & (drop <= 2.0 * (log_concave.DROP + log_concave.SLACK))
    anchor = jnp.clip(loc[0] + form.scale * mode, low[0], high[0])
    ends = standardize(low[0], high[0], anchor)
    offsets = jnp.where(right, ends.high, ends.low)
    offsets = jnp.where(at_limit, offsets, jnp.clip(form.scale * sign * reach, ends.low, ends.high))
    return anchor, offsets[0], offsets[1], at_limit[0], at_limit[1]


def _larger_root(g: jax.Array, k: jax.Array) -> jax.Array:
    """The larger root of t^2 + 2 g t = k."""
    root = jnp.sqrt(jnp.maximum(g * g + k, 0.0))
    return jnp.where(g > 0, k / (g + root), root - g)


def log_probability(
    loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array
) -> jax.Array:
    """log P(low <= X <= high), limits and loc of shape (2,), each low below its high.

    A coordinate without limits drops out. Where the two coordinates determine each other
    (residual_scale = 0) one interval remains, and derivatives with respect to a covariance matrix
    are NaN.
    """
    singular = form.residual_scale == 0
    safe = form._replace(residual_scale=jnp.where(singular, 1.0, form.residual_scale))
    second_scale = jnp.hypot(form.slope * form.scale, safe.residual_scale)
    each = standardize(low, high, loc, jnp.stack([form.scale, second_scale]))
    line, empty = interval_on_line(loc, form, low, high)
    # One call for all three: its operations are most of the program.
    *marginal, on_line = log_interval_mass(*map(jnp.append, each, line))
    nan_propagator = 0.0 * (loc.sum() + second_scale)
    inside = (low[1] <= loc[1]) & (loc[1] <= high[1])
    alone = jnp.where(inside, marginal[0], -jnp.inf)
    on_line = jnp.where(form.slope == 0, alone, jnp.where(empty, -jnp.inf, on_line))
    on_line = on_line + 0.0 * (loc[0] + loc[1] + form.scale + form.slope)
    free = jnp.isinf(low) & jnp.isinf(high)
    full = jnp.where(singular, on_line, log_integral(loc, safe, low, high))
    drop = jnp.where(free[1], marginal[0], marginal[1]) + nan_propagator
    return jnp.where((free[0] & ~singular) | free[1], drop, full)


Inputs = tuple[jax.Array, BivariateRegression, jax.Array, jax.Array]  # loc, form, low, high


def integrand_nodes(
    inputs: Inputs, anchor: jax.Array, breakpoints: jax.Array
) -> log_concave.IntegrandNodes:
    """The integrand at the nodes of some panels, for residual_scale > 0."""
    loc, form, low, high = inputs
    ends = standardize(low[0], high[0], anchor)
    breakpoints = log_concave.between(breakpoints, ends.low, ends.high)
    offsets, weights = log_concave.rule(breakpoints)
    mean, rest = line(anchor, loc[0], loc[1], form.slope, form.slope_rest)
    inner = standardize(low[1], high[1], mean, form.residual_scale)
    shifts = form.slope * offsets + rest
    shift = shifts / form.residual_scale
    log_mass = log_interval_mass(inner.low - shift, inner.high - shift, inner.width)
    base, steps = (anchor - loc[0]) / form.scale, offsets / form.scale
    log_values = log_mass - (base + 0.5 * steps) * steps
    constant = -0.5 * base * base - jnp.log(form.scale)
    return log_concave.IntegrandNodes(anchor, mean, offsets, shifts, log_values, constant, weights)


def log_panel(inputs: Inputs, panel: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The log of the integral over one panel."""
    anchor, breakpoints = panel
    nodes = integrand_nodes(inputs, anchor, breakpoints)
    return nodes.constant + log_concave.log_weighted_sum(nodes.log_values, nodes.weights)


def log_integral(
    loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array
) -> jax.Array:
    """The log of the integral over X1, for residual_scale > 0."""
    anchor, breakpoints, num_panels = plan(loc, form, low, high)
    inputs = loc, form, low, high
    log_sum = log_concave.log_total(log_panel, inputs, anchor, breakpoints, num_panels)
    return log_sum - LOG_SQRT_2PI


def interval_on_line(
    loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array
) -> tuple[Interval, jax.Array]:
    """The standardised interval of X1 where X2 = loc2 + slope (X1 - loc1), and whether it is empty.

    Both pairs of limits hold for one variable. For a slope of 0, and where the interval is empty,
    it is some interval.
    """
    flat, falling = form.slope == 0, form.slope < 0
    # Where this branch is not taken it must still be finite, or derivatives would be NaN.
    slope = jnp.where(flat | (form.residual_scale != 0), 1.0, form.slope)
    first = standardize(low[0], high[0], loc[0], form.scale)
    second = standardize(low[1], high[1], loc[1], form.scale * jnp.abs(slope))
    second_low = jnp.where(falling, -second.high, second.low)
    second_high = jnp.where(falling, -second.low, second.high)
    by_first = first.low >= second_low, first.high <= second_high
    z_low = jnp.where(by_first[0], first.low, second_low)
    z_high = jnp.where(by_first[1], first.high, second_high)
    width = standardize(z_low, z_high).width
    width = jnp.where(by_first[0] & by_first[1], first.width, width)
    width = jnp.where(by_first[0] | by_first[1], width, second.width)
    empty = ~(z_low < z_high)
    z_high, width = jnp.where(empty, jnp.inf, z_high), jnp.where(empty, 1.0, width)
    return Interval(z_low, z_high, width), empty


def moments_panel(
    inputs: Inputs, panel: tuple[tuple[jax.Array, jax.Array], jax.Array]
) -> log_concave.ComponentMoments:
    """Weight, mean and covariance of the part of X within one panel; the mean is less `point`."""
    (anchor, point), breakpoints = panel
    loc, form, low, high = inputs
    nodes = integrand_nodes(inputs, anchor, breakpoints)
    centred = standardize(low[1], high[1], point[1])
    second = (nodes.mean - point[1]) + nodes.shifts, form.residual_scale, centred.low, centred.high
    mean, variance = truncated_mean_and_variance(*second)
    means = jnp.stack([(anchor - point[0]) + nodes.offsets, mean], axis=-1)
    second_only = jnp.zeros((2, 2), loc.dtype).at[1, 1].set(1.0)
    variances = variance[:, None, None] * second_only[None]
    components = log_concave.ComponentMoments(nodes.log_values + nodes.constant, means, variances)
    return log_concave.mixed(components, nodes.weights)


def inner_point(
    loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array
) -> jax.Array:
    """A point of the region near the mode, shape (2,)."""
    anchor = plan(loc, form, low, high).anchor
    mean, _ = line(anchor, loc[0], loc[1], form.slope, form.slope_rest)
    return jax.lax.stop_gradient(jnp.stack([anchor, jnp.clip(mean, low[1], high[1])]))


def moments(
    loc: jax.Array, form: BivariateRegression, low: jax.Array, high: jax.Array, point: jax.Array
) -> log_concave.ComponentMoments:
    """log P + log sqrt(2 pi), mean less `point`, and covariance of X given low <= X <= high.

    For residual_scale > 0.
    """
    anchor, breakpoints, num_panels = plan(loc, form, low, high)
    inputs, points = (loc, form, low, high), (anchor, point)
    return log_concave.total_moments(moments_panel, inputs, points, breakpoints, num_panels, 2)
