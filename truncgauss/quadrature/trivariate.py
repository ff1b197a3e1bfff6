r"""Trivariate box probabilities: the density of X1 times the bivariate probability given it.

.. math:: P = \int_{l_1}^{h_1} p(x_1) \, P(l_2 < X_2 < h_2, l_3 < X_3 < h_3 \mid x_1) \, dx_1

The first coordinate is the one given which the other two are least correlated.

References:
    Genz (2004), Numerical computation of rectangular bivariate and trivariate normal and t
    probabilities.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.flatten_util import ravel_pytree

from truncgauss.arrays.linalg import is_symmetric, rounding
from truncgauss.gaussian.covariances import Covariance
from truncgauss.quadrature import bivariate, by_parts, log_concave
from truncgauss.quadrature.double_double import difference_of_products, line
from truncgauss.special.tails import LOG_SQRT_2PI, Interval, fixed_interval, undefined

MAX_PANELS = 40


class Conditional(NamedTuple):
    """The scale of X1, and the conditional distribution of (X2, X3) given it."""

    scale: Array
    slopes: Array  # shape (2,)
    slope_rests: Array  # rounding errors of the slopes
    variances: Array  # shape (2,), given X1
    covariance: Array  # of X2 and X3 given X1

    @property
    def correlation(self) -> Array:
        """Correlation of X2 and X3 given X1."""
        return self.covariance / jnp.sqrt(self.variances[0] * self.variances[1])


def conditional(matrix: Array) -> Conditional:
    """The distribution of (X2, X3) given X1, from a covariance matrix of shape (3, 3); a variance
    of NaN where X1 determines one of them up to rounding."""
    first, products = matrix[0, 0], 0.5 * (matrix[0, 1:] + matrix[1:, 0])
    diagonal = jnp.diagonal(matrix)[1:]
    slopes, rests = bivariate.ratio(products, jnp.full(2, first))
    variances = difference_of_products(diagonal, jnp.full(2, first), products, products) / first
    variances = jnp.where(
        variances > jax.lax.stop_gradient(rounding(matrix)[1:]), variances, jnp.nan
    )
    product = 0.5 * (matrix[1, 2] + matrix[2, 1])
    covariance = difference_of_products(product, first, products[0], products[1]) / first
    return Conditional(jnp.sqrt(first), slopes, rests, variances, covariance)


def best_order(matrix: Array) -> tuple[Array, Conditional]:
    """The cyclic order with the last two coordinates least correlated given the first, and them."""
    orders = (np.arange(3)[:, None] + np.arange(3)[None, :]) % 3
    forms = jax.vmap(conditional)(matrix[orders[:, :, None], orders[:, None, :]])
    size = jnp.abs(jax.vmap(lambda form: form.correlation)(jax.lax.stop_gradient(forms)))
    best = jnp.argmin(jnp.where(jnp.isnan(size), jnp.inf, size))
    return jnp.asarray(orders)[best], jax.tree.map(lambda x: x[best], forms)


def plan(loc: Array, form: Conditional, low: Array, high: Array) -> bivariate.PanelPlan:
    """Panels for the integral over X1, laid out for the density at the most likely (X2, X3)."""
    loc, form, low, high = jax.lax.stop_gradient((loc, form, low, high))
    scales = jnp.sqrt(form.variances)
    inner = fixed_interval(low[1:], high[1:], loc[1:], scales)
    rates = form.slopes * form.scale / scales
    correlation = form.correlation
    free = free_of(correlation)
    per_free = 1.0 / free

    def heights(z: Array) -> tuple[Array, Array, Array]:
        """Minus half the smallest squared distance from 0 of a point of the box with X1 at z, and
        its derivatives: one of (X2, X3) is nearest 0, and the other given it."""
        below, above = inner.low - rates * z, inner.high - rates * z
        first = jnp.where(below > 0, below, jnp.where(above < 0, above, 0.0))
        first_rate = jnp.where(first != 0, rates, 0.0)
        below, above = (x[::-1] - correlation * first for x in (below, above))
        other = jnp.where(below > 0, below, jnp.where(above < 0, above, 0.0))
        other_rate = jnp.where(other != 0, rates[::-1] - correlation * first_rate, 0.0)
        square = first * first + other * other * per_free
        slope = first * first_rate + other * other_rate * per_free - z
        bend = -first_rate * first_rate - other_rate * other_rate * per_free - 1.0
        nearer = square[0] < square[1]
        value, slope, bend = (jnp.where(nearer, x[0], x[1]) for x in (square, slope, bend))
        return -0.5 * (value + z * z), slope, bend

    outer = fixed_interval(low[0], high[0], loc[0], form.scale)
    support = log_concave.support(heights, outer.low, outer.high)
    at_low, at_high = support.at_limit
    anchor = jnp.clip(loc[0] + form.scale * support.mode, low[0], high[0])
    centre = (anchor - loc[0]) / form.scale
    left = jnp.where(at_low, low[0] - anchor, form.scale * (support.left - centre))
    right = jnp.where(at_high, high[0] - anchor, form.scale * (support.right - centre))
    # Where both others are at a limit, they act on X1 together.
    pull = jnp.square(rates[1] - correlation * rates[0]) / free
    steepest = jnp.append(jnp.abs(rates), jnp.sqrt(jnp.square(rates[0]) + pull))
    # Each of these factors falls from 1 to 0 near an end, because the function is negligible some
    # ten such lengths further, and eight lengths inwards the factor is 1 to the last digit; the
    # panel that leaves the zone begins no more than REACH before its end.
    lengths = form.scale / steepest
    depth = log_concave.END_DEPTH * lengths
    begin, end = jnp.broadcast_to(left, depth.shape), jnp.broadcast_to(right, depth.shape)
    positions, width = crossings(correlation, rates, inner)
    positions = form.scale * (positions - centre)
    half = (8.0 + log_concave.REACH) * form.scale * width
    windows = jnp.broadcast_to(form.scale * width, positions.shape)
    zones = log_concave.Zones(
        jnp.concatenate([begin, right - depth, positions - half]),
        jnp.concatenate([left + depth, end, positions + half]),
        jnp.concatenate([lengths, lengths, windows]),
    )
    breakpoints, num_panels = log_concave.mesh(left, right, form.scale, zones, MAX_PANELS)
    return bivariate.PanelPlan(
        anchor, log_concave.reaching(breakpoints, at_low, at_high), num_panels
    )


def free_of(correlation: Array) -> Array:
    """1 - correlation^2, not below its rounding: where (X2, X3) determine each other given X1, the
    panels are laid out as if they nearly did."""
    return jnp.maximum((1.0 - correlation) * (1.0 + correlation), jnp.finfo(correlation.dtype).eps)


def crossings(correlation: Array, rates: Array, inner: Interval) -> tuple[Array, Array]:
    """Values of X1 where limits on X2 and X3 cross, and over what width, in units of X1's scale.

    If the other two nearly determine each other given X1, only the tighter of their limits matters,
    and which one that is changes there.
    """
    falling = correlation < 0
    rate = jnp.where(falling, -rates[1], rates[1]) - rates[0]
    limits3 = jnp.stack([inner.low[1], inner.high[1]])
    limits3 = jnp.where(falling, -limits3, limits3)
    limits2 = jnp.stack([inner.low[0], inner.high[0]])
    free = jnp.sqrt(free_of(correlation))
    return ((limits3[:, None] - limits2[None, :]) / rate).ravel(), free / jnp.abs(rate)


class Reduced(NamedTuple):
    """A problem in the best order, with X2 and X3 given X1, and X3 given both.

    Where both determine X3 up to rounding, its residual variance is that rounding.
    """

    loc: Array
    form: Conditional
    rest: bivariate.BivariateRegression
    low: Array
    high: Array


def reduced(loc: Array, matrix: Array, low: Array, high: Array) -> tuple[Array, Reduced]:
    """The best order, and the problem in that order."""
    matrix = undefined(~is_symmetric(matrix), matrix)
    order, form = best_order(matrix)
    least = jax.lax.stop_gradient(rounding(matrix)[order[2]])
    rest = bivariate.regression_of(form.variances[0], form.covariance, form.variances[1], least)
    return order, Reduced(loc[order], form, rest, low[order], high[order])


class ConditionalNodes(NamedTuple):
    """X1 at quadrature nodes, and the conditional means of (X2, X3) there.

    Attributes:
        offsets: the nodes less the anchor, shape (n,).
        z: the standardised nodes, shape (n,).
        means: shape (n, 2).
        log_prior: log density of X1 at the nodes, times sqrt(2 pi).
        weights: of the quadrature, shape (n,).
    """

    offsets: Array
    z: Array
    means: Array
    log_prior: Array
    weights: Array


def integrand_nodes(
    problem: Reduced, anchor: Array, breakpoints: Array, with_ends: bool = False
) -> ConditionalNodes:
    """The log density of X1 at the nodes of some panels, and the means of the others given it.

    With weight 0 at the two ends, if these are asked for.
    """
    loc, form, _, low, high = problem
    breakpoints = log_concave.between(breakpoints, low[0] - anchor, high[0] - anchor)
    offsets, weights = log_concave.rule(breakpoints, with_ends=with_ends)
    means, mean_rests = line(anchor, loc[0], loc[1:], form.slopes, form.slope_rests)
    means = means[None] + (mean_rests[None] + form.slopes[None] * offsets[:, None])
    base, steps = (anchor - loc[0]) / form.scale, offsets / form.scale
    constant = -0.5 * base * base - jnp.log(form.scale)
    log_prior = constant - (base + 0.5 * steps) * steps
    return ConditionalNodes(offsets, base + steps, means, log_prior, weights)


Panel = tuple[Array, Array]  # anchor, and two ends as offsets from it


def log_panel(problem: Reduced, panel: Panel) -> Array:
    """The log of the integral over one panel."""
    nodes = integrand_nodes(problem, *panel)

    def log_mass(means: Array) -> Array:
        return bivariate.log_probability(means, problem.rest, problem.low[1:], problem.high[1:])

    log_values = jax.vmap(log_mass)(nodes.means) + nodes.log_prior
    return log_concave.log_weighted_sum(log_values, nodes.weights)


def scores(problem: Reduced, panel: Panel) -> tuple[Array, Array]:
    """The log of the integral over a panel, and means over its nodes, weighted by the integrand.

    They are of the derivatives of the bivariate log mass, shape (10,); of those by the two
    conditional means, times the standardised node z, shape (2,); of z and of z^2 - 1; and the
    integrand at the limits of X1 over the integral, 0 at others.
    """
    nodes = integrand_nodes(problem, *panel, with_ends=True)

    def log_mass(means: Array) -> tuple[Array, Array]:
        others = problem.rest, problem.low[1:], problem.high[1:]
        return bivariate.log_probability_and_gradient(means, *others)

    values, by = jax.vmap(log_mass)(nodes.means)
    z = nodes.z[:, None]
    rows = jnp.concatenate([by, by[:, :2] * z, z, z * z - 1.0], axis=1)
    log_values = values + nodes.log_prior
    return log_concave.log_weighted_means(log_values, nodes.weights, list(rows.T), panel[1])


def gradient(problem: Reduced, means: Array) -> Reduced:
    """The derivatives of the log of the integral."""
    form = problem.form
    by_loc, by_rest, by_low, by_high, along, by_first = jnp.split(means, [2, 6, 8, 10, 12])
    nothing = jnp.zeros_like(form.slopes)
    return Reduced(
        jnp.append(by_first[0] / form.scale - jnp.sum(form.slopes * by_loc), by_loc),
        Conditional(by_first[1] / form.scale, form.scale * along, nothing, nothing, nothing[0]),
        bivariate.BivariateRegression(*by_rest),
        jnp.append(-by_first[2], by_low),
        jnp.append(by_first[3], by_high),
    )


GRADIENT = log_concave.GradientRule(16, scores, gradient)


def thickness(matrix: Array) -> Array:
    """The residual deviation of a coordinate that the others determine up to rounding, over its
    own; 0 where none is determined."""
    matrix = jax.lax.stop_gradient(matrix)
    nothing = jnp.zeros_like(matrix[0])
    order, problem = reduced(nothing, matrix, nothing, nothing)
    share = jnp.square(problem.rest.residual_scale) / matrix[order[2], order[2]]
    least = rounding(matrix)[order[2]] / matrix[order[2], order[2]]
    return jnp.where(share < 1.5 * least, jnp.sqrt(share), 0.0)


@jax.jit  # traced once for all its uses
def log_probability(loc: Array, matrix: Array, low: Array, high: Array) -> Array:
    """log P(low <= X <= high), limits and loc of shape (3,), each low below its high."""
    _, problem = reduced(loc, matrix, low, high)
    laid = plan(problem.loc, problem.form, problem.low, problem.high)
    return log_concave.log_total(log_panel, problem, *laid, GRADIENT) - LOG_SQRT_2PI


def moments_panel(
    problem: Reduced, panel: tuple[tuple[Array, Array], Array]
) -> log_concave.ComponentMoments:
    """Weight, mean and covariance of the part of X within one panel; the mean is less `point`."""
    (anchor, point), breakpoints = panel
    nodes = integrand_nodes(problem, anchor, breakpoints)
    low, high = problem.low[1:], problem.high[1:]

    def others(means: Array) -> log_concave.ComponentMoments:
        return bivariate.moments(means, problem.rest, low, high, point[1:])

    log_mass, mean, covariance = jax.vmap(others)(nodes.means)
    first = (anchor - point[0]) + nodes.offsets
    means = jnp.concatenate([first[:, None], mean], axis=-1)
    covariances = jnp.pad(covariance, ((0, 0), (1, 0), (1, 0)))
    components = log_concave.ComponentMoments(log_mass + nodes.log_prior, means, covariances)
    return log_concave.mixed(components, nodes.weights)


def moments(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, Array, Array]:
    """A point of the region; mean less that point, and covariance, of X given low <= X <= high."""
    order, problem = reduced(loc, covariance.covariance_matrix, low, high)
    anchor, breakpoints, num_panels = plan(problem.loc, problem.form, problem.low, problem.high)
    nearest = integrand_nodes(problem, anchor, jnp.zeros(2, loc.dtype)).means[0]
    others = bivariate.inner_point(nearest, problem.rest, problem.low[1:], problem.high[1:])
    point = jnp.concatenate([anchor[None], others])
    points = anchor, point
    result = log_concave.total_moments(moments_panel, problem, points, breakpoints, num_panels, 3)
    back = jnp.argsort(order)
    return point[back], result.mean[back], result.covariance[back][:, back]


# --- Many rows ------------------------------------------------------------------------------------

# Under `jax.vmap` a condition for each row computes both sides for every row, and a loop makes as
# many steps for every row as the slowest takes: the rows that need a function are gathered, and
# computed so many at a time.
AT_ONCE = 16
Scalar = Callable[[Array], Array]


def log_probability_of_many(loc: Array, matrix: Array, low: Array, high: Array) -> Array:
    """`log_probability` of one of many problems, by `by_parts` where that answers.

    The program is larger by half, and several times as quick where it answers for most of them.
    """
    quick, counts = by_parts.log_probability(loc, matrix, low, high)
    flat, unravel = ravel_pytree((loc, matrix, low, high))
    full = where_needed(lambda x: log_probability(*unravel(x)), ~counts, flat)
    return jnp.where(counts, quick, full)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def where_needed(function: Scalar, needed: Array, x: Array) -> Array:
    """`function` of a vector where it is needed, else 0; with derivatives of every mode up to the
    second, which are computed along with it."""
    return _gathered(function)(needed, x)


@where_needed.defjvp
def _where_needed_jvp(function: Scalar, primals: Any, tangents: Any) -> tuple[Array, Array]:
    value, gradient = _with_gradient(function, *primals)
    return value, gradient @ tangents[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_gradient(function: Scalar, needed: Array, x: Array) -> tuple[Array, Array]:
    return _gathered(jax.value_and_grad(function))(needed, x)


@_with_gradient.defjvp
def _with_gradient_jvp(function: Scalar, primals: Any, tangents: Any) -> tuple[Any, Any]:
    def gradient(x: Array) -> tuple[Array, tuple[Array, Array]]:
        value, slopes = jax.value_and_grad(function)(x)
        return slopes, (value, slopes)

    hessian, (value, slopes) = _gathered(jax.jacfwd(gradient, has_aux=True))(*primals)
    return (value, slopes), (slopes @ tangents[1], hessian @ tangents[1])


def _gathered(function: Callable[[Array], Any]) -> Any:
    """`function(x)` where `needed`, else zeros, as a function of (needed, x)."""

    def zeros(x: Array, *batch: int) -> Any:
        shapes = jax.eval_shape(function, x)
        return jax.tree.map(lambda leaf: jnp.zeros((*batch, *leaf.shape), leaf.dtype), shapes)

    @custom_vmap
    def one(needed: Array, x: Array) -> Any:
        return jax.lax.cond(needed, function, zeros, x)

    @one.def_vmap
    def many(count: int, batched: Any, needed: Array, x: Array) -> tuple[Any, Any]:
        x = jnp.asarray(x) if batched[1] else jnp.broadcast_to(x, (count, *x.shape))
        every = jax.vmap(function)
        if not batched[0]:
            results = _gathered(every)(needed, x)
            return results, jax.tree.map(lambda _: True, results)
        order = jnp.argsort(~needed)
        total = jnp.sum(needed)

        def step(k: Array, results: Any) -> Any:
            positions = k * AT_ONCE + jnp.arange(AT_ONCE)
            rows = order.at[positions].get(mode="clip")
            new, to = every(x[rows]), jnp.where(positions < total, rows, count)
            return jax.tree.map(lambda old, n: old.at[to].set(n, mode="drop"), results, new)

        steps = (total + AT_ONCE - 1) // AT_ONCE
        results = jax.lax.fori_loop(0, steps, step, zeros(x[0], count))
        return results, jax.tree.map(lambda _: True, results)

    return one
