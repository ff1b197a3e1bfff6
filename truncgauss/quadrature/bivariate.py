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

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.linalg import is_symmetric
from truncgauss.gaussian.covariances import Covariance
from truncgauss.quadrature import log_concave
from truncgauss.quadrature.double_double import (
    difference_of_products,
    exact_sum,
    line,
    products,
    together,
)
from truncgauss.special.normal import (
    log_interval_mass,
    log_mass_and_slopes,
    truncated_mean_and_variance,
)
from truncgauss.special.tails import LOG_SQRT_2PI, Arrays, Interval, standardize, undefined


class BivariateRegression(NamedTuple):
    """A bivariate normal distribution as the scale of X1 and the regression of X2 on it.

    `slope_rest` is the rounding error of `slope`; it carries no derivative. `residual_scale` is NaN
    where X1 determines X2.
    """

    scale: Array
    slope: Array
    residual_scale: Array
    slope_rest: Array


def regression(covariance: Covariance, apart: Array | bool = False) -> BivariateRegression:
    """The regression of X2 on X1, from a covariance matrix or, with no cancellation, a factor; that
    of independent coordinates of these variances where they are to be taken `apart`."""
    if covariance.is_factor:
        factor = covariance.scale_tril
        slope, rest = ratio(jnp.where(apart, 0.0, factor[1, 0]), factor[0, 0])
        residual = jnp.where(apart, jnp.hypot(factor[1, 0], factor[1, 1]), factor[1, 1])
        residual = jnp.where(residual > 0, residual, jnp.nan)
        return BivariateRegression(factor[0, 0], slope, residual, rest)
    matrix = covariance.covariance_matrix
    matrix = undefined(~is_symmetric(matrix), matrix)
    product = jnp.where(apart, 0.0, 0.5 * (matrix[0, 1] + matrix[1, 0]))
    return regression_of(matrix[0, 0], product, matrix[1, 1])


@jax.custom_jvp
def regression_of(
    first: Array, product: Array, second: Array, least: Array | float = 0.0
) -> BivariateRegression:
    """The regression of X2 on X1, from the variances of both and their covariance.

    Both the rounding error of the slope and the residual variance are differences y - slope x. A
    residual variance within `least` of 0, the rounding of these inputs, is raised to it.
    """
    slope = product / first
    to = together(product, second), together(first, product)
    value, remainder = exact_sum([to[0], *products(-slope, to[1])])
    error, variance = value + remainder
    rest = error / first
    variance = variance - rest * product
    variance = jnp.where(variance > -least, jnp.maximum(variance, least), jnp.nan)
    return BivariateRegression(jnp.sqrt(first), slope, jnp.sqrt(variance), rest)


@regression_of.defjvp
def _regression_of_jvp(
    primals: Arrays, tangents: Arrays
) -> tuple[BivariateRegression, BivariateRegression]:
    (first, *_), (dfirst, dproduct, dsecond, *_) = primals, tangents
    form = regression_of(*primals)
    scale, slope, residual, _ = form
    dslope = (dproduct - slope * dfirst) / first
    dvariance = dsecond - slope * (2.0 * dproduct - slope * dfirst)
    dscale, dresidual = 0.5 * dfirst / scale, 0.5 * dvariance / residual
    return form, BivariateRegression(dscale, dslope, dresidual, jnp.zeros_like(slope))


def ratio(x: Array, y: Array) -> tuple[Array, Array]:
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

    anchor: Array
    breakpoints: Array
    num_panels: Array


def plan(loc: Array, form: BivariateRegression, low: Array, high: Array) -> PanelPlan:
    r"""Panels for the integral over X1; no derivative goes through their positions.

    They are laid out for the density at the most likely X2 given x1, which approximates the
    integrand up to a factor. With z and y the standardised X1 and residual of X2 it is
    exp(-(z^2 + y^2)/2) at the y nearest 0 in [l - r z, h - r z]. It falls from its maximum over the
    scale of X1, and near the ends of the support, where X2 is at a limit, over 1/r of that. On each
    piece the square is a parabola, and where it is more by 2 DROP than at the mode is the root of a
    quadratic equation.
    """
    loc, form, low, high = jax.lax.stop_gradient((loc, form, low, high))
    scale, residual, across = form.scale, form.residual_scale, form.slope * form.scale
    norm = jnp.sqrt(jnp.square(across) + jnp.square(residual))
    # Products with reciprocals are quicker to compile than quotients.
    parts = 1.0 / together(scale, residual, norm, jnp.abs(across))
    per_scale, per_residual, per_sum, per_across = parts
    share, per_norm, rate = across * per_sum, residual * per_sum, across * per_residual
    first = jnp.stack([low[0], high[0]])
    limits = (first - loc[0]) * per_scale
    inner_low, inner_high = (low[1] - loc[1]) * per_residual, (high[1] - loc[1]) * per_residual

    def nearest(z: Array) -> Array:
        return jnp.clip(0.0, inner_low - rate * z, inner_high - rate * z)

    mode = share * (nearest(jnp.zeros_like(rate)) * per_norm)
    mode = jnp.clip(mode, (low[0] - loc[0]) * per_scale, (high[0] - loc[0]) * per_scale)
    y = nearest(mode)
    # To the left and to the right of the mode, as distances from it: if X2 is within its limits,
    # at the low and at the high one. The first is never too short.
    sign = np.asarray([-1.0, 1.0], rate.dtype)
    within, at_low, _ = np.eye(3, dtype=bool)[:, :, None]
    turn = np.asarray([0.0, -1.0, 1.0], rate.dtype)[:, None] * sign
    below, above = inner_low - rate * mode, rate * mode - inner_high
    excess = jnp.where(within, 0.0, jnp.where(at_low, below, above))
    length = jnp.where(within, 1.0, per_norm)
    half = (sign * mode)[None] * length * length + turn * share * (excess * length)
    fall = 2.0 * log_concave.DROP * length * length
    fall += (y - excess) * length * ((y + excess) * length)
    root = jnp.sqrt(jnp.maximum(half * half + fall, 0.0)) + jnp.abs(half)
    roots = jnp.where(half > 0, fall / root, root)
    there = (roots >= 0) & (excess + turn * rate * roots >= 0)
    # By the value at a limit, not by its distance: the density may fall within a fraction of that.
    finite = jnp.isfinite(limits)
    gaps = jnp.where(finite, limits - mode, 0.0)
    reach = jnp.min(jnp.where(there, roots, jnp.inf), axis=0)
    reach = jnp.where(finite, jnp.minimum(reach, jnp.abs(gaps)), reach)
    y_there = nearest(mode + gaps)
    drop = gaps * (gaps + 2.0 * mode) + (y_there - y) * (y_there + y)
    at_limit = finite & (drop <= 2.0 * (log_concave.DROP + log_concave.SLACK))
    anchor = jnp.clip(loc[0] + scale * mode, low[0], high[0])
    ends = first - anchor
    left, right = jnp.where(at_limit, ends, jnp.clip(sign * (scale * reach), *ends))
    # In standard deviations of X1.
    width = jnp.sum(jnp.where(at_limit, jnp.abs(gaps), reach))
    edge = jnp.minimum(log_concave.END_DEPTH * residual * per_across, 0.5 * width)
    cost, middle = (x / log_concave.REACH for x in (edge * norm * per_residual, width - 2.0 * edge))
    count, parts = log_concave.shared_out(2.0 * cost + middle, MAX_PANELS)
    offsets = jnp.minimum(parts, cost) + jnp.maximum(parts - cost - middle, 0.0)
    steps = jnp.clip(parts - cost, 0.0, middle) + offsets * per_norm
    used = np.arange(MAX_PANELS + 1, dtype=count.dtype) < count
    breakpoints = jnp.where(used, left + steps * (log_concave.REACH * scale), right)
    return PanelPlan(
        anchor, log_concave.reaching(breakpoints, at_limit[0], at_limit[1]), count.astype(int)
    )


Inputs = tuple[Array, BivariateRegression, Array, Array]  # loc, form, low, high


def log_probability(loc: Array, form: BivariateRegression, low: Array, high: Array) -> Array:
    """log P(low <= X <= high), limits and loc of shape (2,), each low below its high; NaN where the
    coordinates determine each other."""
    inputs = loc, form, low, high
    return log_concave.log_total(log_panel, inputs, *plan(*inputs), GRADIENT) - LOG_SQRT_2PI


def log_probability_and_gradient(
    loc: Array, form: BivariateRegression, low: Array, high: Array
) -> tuple[Array, Array]:
    """`log_probability`, and its derivatives by all its arguments as a vector."""
    inputs = loc, form, low, high
    total, slopes = log_concave.log_total_and_gradient(inputs, *plan(*inputs), GRADIENT)
    return total - LOG_SQRT_2PI, slopes


class PanelNodes(NamedTuple):
    """X1 at the nodes of a panel, and X2 given it.

    Attributes:
        offsets: the nodes less the anchor, shape (n,).
        weights: of the quadrature, shape (n,).
        mean: conditional mean of X2 at the anchor.
        shifts: the conditional means at the nodes less `mean`, shape (n,).
        at_anchor: the limits of X2, standardised at the anchor.
        steps: `shifts` in standard deviations of X2 given X1.
        inner: the limits of X2, standardised at each node: those at the anchor less `steps`.
        z: the standardised nodes.
        log_prior: log density of X1 at the nodes, less `constant`.
        constant: that at the anchor, times sqrt(2 pi).
    """

    offsets: Array
    weights: Array
    mean: Array
    shifts: Array
    at_anchor: Interval
    steps: Array
    inner: Interval
    z: Array
    log_prior: Array
    constant: Array


def panel_nodes(
    loc: Array,
    form: BivariateRegression,
    low: Array,
    high: Array,
    anchor: Array,
    breakpoints: Array,
    with_ends: bool = False,
) -> PanelNodes:
    """The nodes of a panel, and with weight 0 its two ends."""
    breakpoints = log_concave.between(breakpoints, low[0] - anchor, high[0] - anchor)
    offsets, weights = log_concave.rule(breakpoints, with_ends=with_ends)
    mean, rest = line(anchor, loc[0], loc[1], form.slope, form.slope_rest)
    at_anchor = standardize(low[1], high[1], mean, form.residual_scale)
    shifts = form.slope * offsets + rest
    shift = shifts / form.residual_scale
    # One a node: what depends on a common width alone would be compiled again for each of its uses.
    width = at_anchor.width + 0.0 * shift
    inner = Interval(at_anchor.low - shift, at_anchor.high - shift, width)
    base, steps = (anchor - loc[0]) / form.scale, offsets / form.scale
    log_prior = -(base + 0.5 * steps) * steps
    constant = -0.5 * base * base - jnp.log(form.scale)
    return PanelNodes(
        offsets, weights, mean, shifts, at_anchor, shift, inner, base + steps, log_prior, constant
    )


Panel = tuple[Array, Array]  # anchor, and two ends as offsets from it


def log_panel(inputs: Inputs, panel: Panel) -> Array:
    """The log of the integral over one panel."""
    nodes = panel_nodes(*inputs, *panel)
    log_values = log_interval_mass(*nodes.inner) + nodes.log_prior
    return nodes.constant + log_concave.log_weighted_sum(log_values, nodes.weights)


def falls(nodes: PanelNodes) -> tuple[Array, Array]:
    """(c^2 - c0^2)/2 at the nodes, and c0^2/2, where c and c0 are the distances of the limits of X2
    from its mean, at a node and at the anchor.

    The difference comes from the steps: that of the squares has fewer digits far in a tail.
    """
    (low, high, _), inner = nodes.at_anchor, nodes.inner
    first = jnp.where(low > 0, low, jnp.where(high < 0, -high, 0.0))
    distance = jnp.where(inner.low > 0, inner.low, jnp.where(inner.high < 0, -inner.high, 0.0))
    change = jnp.where((high < 0) & (inner.high < 0), nodes.steps, distance - first)
    change = jnp.where((low > 0) & (inner.low > 0), -nodes.steps, change)
    return (first + 0.5 * change) * change, 0.5 * first * first


def scores(inputs: Inputs, panel: Panel) -> tuple[Array, Array]:
    """The log of the integral over a panel, and means over its nodes, weighted by the integrand.

    They are, shape (9,), of the standardised X2 within its limits, of that times the standardised
    node z, of the derivative by the log of residual_scale, of the densities at the limits of X2
    over the mass between them, of z and of z^2 - 1; and the integrand at the limits of X1 over the
    integral, 0 at others. Nothing cancels: the mean of X2 within its limits is not computed from
    the densities at both.
    """
    nodes = panel_nodes(*inputs, *panel, with_ends=True)
    slopes, (fall, at_anchor) = log_mass_and_slopes(*nodes.inner), falls(nodes)
    log_values = slopes.relative_log + (nodes.log_prior - fall)
    mean, z = slopes.mean, nodes.z
    rows = [mean, mean * z, slopes.spread, slopes.at_low, slopes.at_high, z, z * z - 1.0]
    total, means = log_concave.log_weighted_means(log_values, nodes.weights, rows, panel[1])
    return nodes.constant - at_anchor + total, means


def gradient(inputs: Inputs, means: Array) -> Inputs:
    """The derivatives of the log of the integral."""
    scale, slope, residual, _ = inputs[1]
    mean, along, spread, at_low, at_high, z, square, first_low, first_high = means
    inner = mean / residual
    by_form = square / scale, scale / residual * along, spread / residual, jnp.zeros_like(inner)
    return (
        jnp.stack([z / scale - slope * inner, inner]),
        BivariateRegression(*by_form),
        jnp.stack([-first_low, -at_low / residual]),
        jnp.stack([first_high, at_high / residual]),
    )


GRADIENT = log_concave.GradientRule(9, scores, gradient)


def moments_panel(
    inputs: Inputs, panel: tuple[tuple[Array, Array], Array]
) -> log_concave.ComponentMoments:
    """Weight, mean and covariance of the part of X within one panel; the mean is less `point`."""
    (anchor, point), breakpoints = panel
    loc, form, low, high = inputs
    nodes = panel_nodes(loc, form, low, high, anchor, breakpoints)
    log_values = log_interval_mass(*nodes.inner) + nodes.log_prior
    centred = standardize(low[1], high[1], point[1])
    second = (nodes.mean - point[1]) + nodes.shifts, form.residual_scale, centred.low, centred.high
    mean, variance = truncated_mean_and_variance(*second)
    means = jnp.stack([(anchor - point[0]) + nodes.offsets, mean], axis=-1)
    second_only = jnp.zeros((2, 2), loc.dtype).at[1, 1].set(1.0)
    variances = variance[:, None, None] * second_only[None]
    components = log_concave.ComponentMoments(log_values + nodes.constant, means, variances)
    return log_concave.mixed(components, nodes.weights)


def inner_point(loc: Array, form: BivariateRegression, low: Array, high: Array) -> Array:
    """A point of the region near the mode, shape (2,)."""
    anchor = plan(loc, form, low, high).anchor
    mean, _ = line(anchor, loc[0], loc[1], form.slope, form.slope_rest)
    return jax.lax.stop_gradient(jnp.stack([anchor, jnp.clip(mean, low[1], high[1])]))


def moments(
    loc: Array, form: BivariateRegression, low: Array, high: Array, point: Array
) -> log_concave.ComponentMoments:
    """log P + log sqrt(2 pi), mean less `point`, and covariance of X given low <= X <= high."""
    anchor, breakpoints, num_panels = plan(loc, form, low, high)
    inputs, points = (loc, form, low, high), (anchor, point)
    return log_concave.total_moments(moments_panel, inputs, points, breakpoints, num_panels, 2)
