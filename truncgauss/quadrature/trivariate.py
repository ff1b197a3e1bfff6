"""Three dimensions: the law of one coordinate, times the bivariate probability given it.

    P = integral over low1 < x1 < high1 of p(x1) P(low2 < X2 < high2, low3 < X3 < high3 | x1).

The coordinate in front is the one given which the other two are least correlated.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.covariances import Covariance
from truncgauss.linalg import is_symmetric
from truncgauss.quadrature import bivariate, log_concave
from truncgauss.quadrature.double_double import difference_of_products, line
from truncgauss.special import standardize

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
MAX_PANELS = 40


class Conditional(NamedTuple):
    """The law of X1, and that of (X2, X3) given it."""

    scale: jax.Array
    slopes: jax.Array  # shape (2,)
    slope_rests: jax.Array
    variances: jax.Array  # shape (2,), given X1
    covariance: jax.Array  # of X2 and X3 given X1

    @property
    def correlation(self) -> jax.Array:
        return self.covariance / jnp.sqrt(self.variances[0] * self.variances[1])


def conditional(matrix: jax.Array) -> Conditional:
    """(X2, X3) given X1, from a covariance matrix of shape (3, 3)."""
    first, products = matrix[0, 0], 0.5 * (matrix[0, 1:] + matrix[1:, 0])
    own = jnp.diagonal(matrix)[1:]
    slopes, rests = bivariate.ratio(products, jnp.full(2, first))
    variances = difference_of_products(own, jnp.full(2, first), products, products) / first
    product = 0.5 * (matrix[1, 2] + matrix[2, 1])
    covariance = difference_of_products(product, first, products[0], products[1]) / first
    return Conditional(jnp.sqrt(first), slopes, rests, variances, covariance)


def best_order(matrix: jax.Array) -> jax.Array:
    """The cyclic order that leaves the last two coordinates least correlated given the first."""
    matrix = jax.lax.stop_gradient(matrix)
    orders = (jnp.arange(3)[:, None] + jnp.arange(3)) % 3
    forms = jax.vmap(lambda order: conditional(matrix[order][:, order]))(orders)
    size = jnp.abs(jax.vmap(lambda form: form.correlation)(forms))
    return orders[jnp.argmin(jnp.where(jnp.isnan(size), jnp.inf, size))]


def most_likely(form: Conditional, low: jax.Array, high: jax.Array) -> jax.Array:
    """Minus half the smallest squared distance of a box from 0, given standardised limits (2,)."""
    correlation = form.correlation
    free = jnp.maximum((1.0 - correlation) * (1.0 + correlation), jnp.finfo(low.dtype).tiny)
    nearest = jnp.clip(0.0, low, high)
    pull = correlation * nearest
    other = jnp.clip(pull, low[::-1], high[::-1]) - pull
    return -0.5 * jnp.min(nearest * nearest + other * other / free)


def plan(loc: jax.Array, form: Conditional, low, high) -> bivariate.Plan:
    """Panels for the integral over X1, laid by the most likely (X2, X3) given x1."""
    loc, form, low, high = jax.lax.stop_gradient((loc, form, low, high))
    outer = standardize(low[0], high[0], loc[0], form.scale)
    scales = jnp.sqrt(form.variances)
    inner = standardize(low[1:], high[1:], loc[1:], scales)
    rates = form.slopes * form.scale / scales

    def log_density(z):
        return most_likely(form, inner.low - rates * z, inner.high - rates * z) - 0.5 * z * z

    found = log_concave.support(log_density, outer.low, outer.high)
    limits = jnp.stack([outer.low, outer.high])
    at_low, at_high = log_concave.touches(log_density, found.mode, limits)
    anchor = jnp.clip(loc[0] + form.scale * found.mode, low[0], high[0])
    ends = standardize(low[0], high[0], anchor)
    centre = (anchor - loc[0]) / form.scale
    left = jnp.where(at_low, ends.low, form.scale * (found.left - centre))
    right = jnp.where(at_high, ends.high, form.scale * (found.right - centre))
    correlation = form.correlation
    free = (1.0 - correlation) * (1.0 + correlation)
    # Where both others are held at a limit, the two together pull at X1.
    pull = jnp.square(rates[1] - correlation * rates[0]) / jnp.maximum(free, 0.0)
    steepest = jnp.append(jnp.abs(rates), jnp.sqrt(jnp.square(rates[0]) + pull))
    ends = log_concave.end_zones(left, right, form.scale / steepest)
    places, width = crossings(form, rates, inner)
    places, half = form.scale * (places - centre), (8.0 + log_concave.REACH) * form.scale * width
    lengths = jnp.broadcast_to(form.scale * width, places.shape)
    windows = log_concave.Zones(places - half, places + half, lengths)
    zones = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), ends, windows)
    breakpoints, count = log_concave.mesh(left, right, form.scale, zones, MAX_PANELS)
    return bivariate.Plan(anchor, log_concave.reaching(breakpoints, at_low, at_high), count)


def crossings(form: Conditional, rates: jax.Array, inner) -> tuple[jax.Array, jax.Array]:
    """Where a limit on X2 hands over to one on X3, and how abruptly, in units of X1's scale.

    Given X1 the other two may nearly determine each other; the tighter of their limits rules then.
    """
    correlation = form.correlation
    falling = correlation < 0
    rate = jnp.where(falling, -rates[1], rates[1]) - rates[0]
    limits3 = jnp.stack([inner.low[1], inner.high[1]])
    limits3 = jnp.where(falling, -limits3, limits3)
    limits2 = jnp.stack([inner.low[0], inner.high[0]])
    free = jnp.sqrt(jnp.maximum((1.0 - correlation) * (1.0 + correlation), 0.0))
    return ((limits3[:, None] - limits2) / rate).ravel(), free / jnp.abs(rate)


class Reduced(NamedTuple):
    """A problem in the best order: X1, the others given it, and X3 given both."""

    loc: jax.Array
    form: Conditional
    rest: bivariate.Regression
    low: jax.Array
    high: jax.Array


def reduced(loc: jax.Array, covariance: Covariance, low, high) -> tuple[jax.Array, Reduced]:
    """The best order, and the problem in it."""
    matrix = covariance.covariance_matrix
    matrix = jnp.where(is_symmetric(matrix), matrix, jnp.nan)
    order = best_order(matrix)
    form = conditional(matrix[order][:, order])
    rest = bivariate.regression_of(form.variances[0], form.covariance, form.variances[1])
    return order, Reduced(loc[order], form, rest, low[order], high[order])


class Along(NamedTuple):
    """X1 at nodes of its quadrature, and the means of (X2, X3) there, of shape (n, 2)."""

    offsets: jax.Array
    means: jax.Array
    log_prior: jax.Array
    weights: jax.Array


def along(problem: Reduced, anchor: jax.Array, breakpoints: jax.Array) -> Along:
    """The law of X1 at the nodes of some panels, and that of the others given it."""
    loc, form, _, low, high = problem
    ends = standardize(low[0], high[0], anchor)
    breakpoints = log_concave.between(breakpoints, ends.low, ends.high)
    offsets, weights = log_concave.rule(breakpoints)
    means, mean_rests = line(anchor, loc[0], loc[1:], form.slopes, form.slope_rests)
    means = means + (mean_rests + form.slopes * offsets[:, None])
    base, steps = (anchor - loc[0]) / form.scale, offsets / form.scale
    constant = -0.5 * base * base - jnp.log(form.scale)
    return Along(offsets, means, constant - (base + 0.5 * steps) * steps, weights)


def log_panel(problem: Reduced, given) -> jax.Array:
    """The log of one panel's share of the integral."""
    found = along(problem, *given)

    def log_mass(means):
        return bivariate.log_integral(means, problem.rest, problem.low[1:], problem.high[1:])

    log_values = jax.vmap(log_mass)(found.means) + found.log_prior
    return log_concave.log_weighted_sum(log_values, found.weights)


def log_probability(loc: jax.Array, covariance: Covariance, low, high) -> jax.Array:
    """log P(low <= X <= high), limits and loc of shape (3,), each low below its high."""
    _, problem = reduced(loc, covariance, low, high)
    laid = plan(problem.loc, problem.form, problem.low, problem.high)
    return log_concave.log_total(log_panel, problem, *laid) - _LOG_SQRT_2PI


def moments_panel(problem: Reduced, given) -> log_concave.Parts:
    """One panel's share of the truncated law; its mean is counted from a point of the plan's."""
    (anchor, point), breakpoints = given
    found = along(problem, anchor, breakpoints)
    limits = problem.low[1:], problem.high[1:]

    def others(means):
        return bivariate.moments(means, problem.rest, *limits, point[1:])

    log_mass, mean, covariance = jax.vmap(others)(found.means)
    first = (anchor - point[0]) + found.offsets
    means = jnp.concatenate([first[:, None], mean], axis=-1)
    covariances = jnp.pad(covariance, ((0, 0), (1, 0), (1, 0)))
    laws = log_concave.Parts(log_mass + found.log_prior, means, covariances)
    return log_concave.mixed(laws, found.weights)


def moments(loc: jax.Array, covariance: Covariance, low, high) -> tuple[jax.Array, ...]:
    """A point of the region; mean less the point and covariance of X given low <= X <= high."""
    order, problem = reduced(loc, covariance, low, high)
    anchor, breakpoints, count = plan(problem.loc, problem.form, problem.low, problem.high)
    nearest = along(problem, anchor, jnp.zeros(2, loc.dtype)).means[0]
    others = bivariate.inner_point(nearest, problem.rest, problem.low[1:], problem.high[1:])
    point = jnp.concatenate([anchor[None], others])
    given = anchor, point
    found = log_concave.total_moments(moments_panel, problem, given, breakpoints, count, 3)
    back = jnp.argsort(order)
    return point[back], found.mean[back], found.covariance[back][:, back]
