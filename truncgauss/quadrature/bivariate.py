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
    integrand up to a factor.
    """
    loc, form, low, high = jax.lax.stop_gradient((loc, form, low, high))
    inner = standardize(low[1], high[1], loc[1], form.residual_scale)
    rate = form.slope * form.scale / form.residual_scale

    def log_density(z: jax.Array) -> jax.Array:
        nearest = jnp.clip(0.0, inner.low - rate * z, inner.high - rate * z)
        return -0.5 * (nearest * nearest + z * z)

    anchor, _, left, right, at_low, at_high = span(log_density, loc[0], form.scale, low[0], high[0])
    switch = form.residual_scale / jnp.abs(form.slope)
    zones = log_concave.end_zones(left, right, switch[None])
    breakpoints, num_panels = log_concave.mesh(left, right, form.scale, zones, MAX_PANELS)
    return PanelPlan(anchor, log_concave.reaching(breakpoints, at_low, at_high), num_panels)


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
