"""Importance weights of the paths of a proposal, and the estimates and moments from them.

Reference:
    Owen (2013), Monte Carlo theory, methods and examples, chapter 9.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.batches import slopes_of, with_slopes
from truncgauss.arrays.pytrees import varying_like
from truncgauss.gaussian.problem import Estimate
from truncgauss.gaussian.total_moments import MIN_EFFECTIVE_POINTS, Pieces, Surprises, merged
from truncgauss.separation.kernel import Constraints, intersected_paths, paths, with_free_end
from truncgauss.separation.lattice import GrowingLattice, over_pieces, shifted_uniforms
from truncgauss.separation.plan import Proposal
from truncgauss.separation.twisting import log_site_mean
from truncgauss.special.logspace import less_level, log_sum_exp
from truncgauss.special.normal import truncated_mean_and_variance, truncated_quantile
from truncgauss.special.tails import standardize

MIN_POINTS_BEYOND = 30.0  # effective points that tell how much lies beyond a limit
HEAVIEST_TAIL = 0.7  # the largest tail index of weights whose sum says something of their error
EVERY = 4  # this one of the points is asked how much lies beyond a limit
# A limit that is farther away, in conditional standard deviations, cuts off nothing.
FARTHEST = 1e18


def log_weights(proposal: Proposal, uniforms: Array) -> tuple[Array, Array]:
    """The log importance weights of paths, shape (n,), less a common level; and the level."""
    weights, level, _, _ = weighted_paths(proposal, uniforms)
    return weights, level


def weighted_paths(proposal: Proposal, uniforms: Array) -> tuple[Array, Array, Array, Array]:
    """The log weights as of `log_weights`, and what lies beyond the limits of each variable.

    That is the excess of the conditional means of paths over each limit: the means below the low
    and above the high limits, in conditional standard deviations, shape (2, d, n). And the logs of
    the conditional probability beyond a limit over that of the interval, of the same shape, of the
    density exp(-x^2 / 2) in place of a normal tail.
    """
    constraints, extra, tilt = proposal.path_inputs
    if len(extra.low):
        draws, log_mass = intersected_paths(constraints, extra, tilt, uniforms)
        means = jnp.tril(constraints.factor, -1)[:, :-1] @ draws
    else:
        draws, means, log_mass = paths(constraints, tilt, uniforms)
    return weighed(proposal, draws, means, log_mass)


def weighed(
    proposal: Proposal, draws: Array, means: Array, log_mass: Array
) -> tuple[Array, Array, Array, Array]:
    """The results of `weighted_paths` from the draws, shape (d - 1, n), of paths and their means.

    Conditional means less loc and log masses are of shape (d, n).
    """
    constraints, _, tilts, twist, log_start = proposal
    tilt = tilts[: len(draws), None]
    # mu^2/2 - mu z, written around the draw z - mu so that large tilts do not cancel.
    correction = -tilt * (draws - tilt) - 0.5 * tilt * tilt
    terms = log_mass + jnp.pad(correction, ((0, len(log_mass) - len(correction)), (0, 0)))
    if twist is not None:
        columns = (twist.precision, twist.center, constraints.loc, constraints.scale)
        precision, center, loc, scale = (x[:, None] for x in columns)
        terms = terms - log_site_mean(precision, center, loc + means, scale)
    log_weights, level = less_level(terms)
    constraints, tilts = lax.stop_gradient((constraints, tilts))
    means, log_mass = lax.stop_gradient((means, log_mass))
    scale = constraints.scale[:, None]
    centers = constraints.loc[:, None] + means + scale * tilts[:, None]
    past = constraints.low[:, None] - centers, centers - constraints.high[:, None]
    excess = jnp.stack(past) * (1.0 / scale)[None]
    inside = jnp.maximum(-excess, 0.0)
    log_beyond = -0.5 * inside * inside - jnp.where(log_mass > -jnp.inf, log_mass, 0.0)[None]
    return log_weights, level + log_start, excess, log_beyond


class Sums(NamedTuple):
    """Sums of the importance weights of R replicates.

    Attributes:
        log_total: log of the sum of the weights, less the level, shape (R,).
        inverse: one over the effective sample size, (sum w^2) / (sum w)^2, shape (R,).
        largest: the largest weight over their sum, shape (R,).
        average: of the excess over each limit, see `weighted_paths`, by the weights, shape
            (R, 2, d).
        farthest: the largest excess, shape (R, 2, d).
        beyond: sum over every fourth point of the share of its weight, times the mass beyond each
            limit over that of the interval, shape (R, 2, d).
        squares: sum of the squares of the terms of that.
        level: the common level of the log weights, one for each replicate, shape (R,).
    """

    log_total: Array
    inverse: Array
    largest: Array
    average: Array
    farthest: Array
    beyond: Array
    squares: Array
    level: Array

    def plus(self, other: "Sums") -> "Sums":
        moved = other.log_total + (other.level - self.level)
        log_total = jnp.logaddexp(self.log_total, moved)
        whole = jnp.where(log_total == -jnp.inf, 0.0, log_total)
        first, second = jnp.exp(self.log_total - whole), jnp.exp(moved - whole)
        inverse = first**2 * self.inverse + second**2 * other.inverse
        largest = jnp.maximum(first * self.largest, second * other.largest)
        farthest = jnp.maximum(self.farthest, other.farthest)
        first, second = first[:, None, None], second[:, None, None]
        average = first * self.average + second * other.average
        beyond = first * self.beyond + second * other.beyond
        squares = first**2 * self.squares + second**2 * other.squares
        return Sums(log_total, inverse, largest, average, farthest, beyond, squares, self.level)


def summed(
    log_weights: Array, level: Array, excess: Array, log_beyond: Array, num_replicates: int
) -> Sums:
    """The sums over the n points of each of R replicates; log weights of shape (R * n,)."""
    log_weights = log_weights.reshape(num_replicates, -1)
    log_total = log_sum_exp(log_weights, axis=1)
    fixed, whole = lax.stop_gradient((log_weights, log_total))
    log_shares = fixed - jnp.where(whole == -jnp.inf, 0.0, whole)[:, None]
    shares = jnp.exp(log_shares)
    excess, log_beyond = (
        jnp.moveaxis(x.reshape(*x.shape[:-1], num_replicates, -1), -2, 0)
        for x in (excess, log_beyond)
    )
    each, few = shares[:, None, None], log_shares[:, None, None, ::EVERY]
    # A point far beyond a limit counts as an average point.
    beyond = jnp.minimum(few + log_beyond[..., ::EVERY], -math.log(shares.shape[1]))
    beyond = jnp.exp(beyond)
    return Sums(
        log_total,
        inverse=jnp.sum(shares * shares, axis=1),
        largest=jnp.max(shares, axis=1),
        average=jnp.sum(jnp.where(jnp.isfinite(excess), each * excess, 0.0), axis=-1),
        farthest=jnp.max(excess, axis=-1),
        beyond=jnp.sum(beyond, axis=-1),
        squares=jnp.sum(beyond * beyond, axis=-1),
        level=jnp.broadcast_to(level, log_total.shape),
    )


def unseen_share(sums: Sums, num_points: Array | int, part: float) -> Array:
    """The share of the mass that may lie beyond limits of which no point tells.

    Where a variable is nearly determined by earlier ones, its limit matters in a thin layer only.
    If no point lies there or beyond, the weights are those of the problem without this limit, and
    their being equal is no evidence that it cuts off nothing. Let T be the truncated distribution
    without the limit, and x how far the conditional mean of the variable exceeds it, in
    conditional standard deviations. T is a Gaussian cut to a convex set, and x linear: its density
    is log-concave, and so is S(t) = P(x > t). Of N points the farthest has S(x_N) of about 1 / N.
    At the mean S is 1 / e or more, so that beyond x_N

        S(t) <= S(x_N) exp(-r (t - x_N)),   r = (log N - 1) / (x_N - E x),

    as a concave function is below its chord's continuation. The limit cuts off Phi(x), less than
    exp(-x^2 / 2) below 0, of a path: with g = -x_N > 0, no more than about

        S(x_N) exp(-g^2 / 2) if r > g, else S(x_N) exp(-r g + r^2 / 2),

    the largest value of exp(-(g - t)^2 / 2 - r t) for t >= 0. Of D standard deviations between the
    limit and the mean x_N takes log N at most: what is missed falls at least as exp(1 - D), and
    faster where T ends at another limit.

    Where 30 or more effective points say how much lies beyond a limit, its part of the error is in
    the spread of the replicates. For the others S(x_N) is taken as 2 / N, and so is their sum at
    most.

    Args:
        sums: of the points of all or some of the replicates.
        num_points: N, of all replicates.
        part: of the replicates that the sums are of.

    Reference:
        Lovasz and Vempala (2007), The geometry of logconcave functions and sampling algorithms.
    """
    total = lax.stop_gradient(sums.log_total + sums.level)
    shares = jnp.exp(total - log_sum_exp(total))[:, None, None]
    beyond = jnp.sum(shares * sums.beyond, axis=0)
    squares = jnp.sum(shares * shares * sums.squares, axis=0)
    least = MIN_POINTS_BEYOND / EVERY * part
    known = (squares > 0) & (beyond * beyond >= least * squares)
    farthest = jnp.max(sums.farthest, axis=0)
    spread = farthest - jnp.sum(shares * sums.average, axis=0)
    log_count = jnp.log(jnp.asarray(num_points, farthest.dtype) * part)
    rate = (log_count - 1.0) / jnp.maximum(spread, 1.0 / FARTHEST)
    gap = jnp.clip(-farthest, 0.0, FARTHEST)
    near = jnp.minimum(rate, gap)
    missed = jnp.sum(jnp.where(known, 0.0, jnp.exp(near * (0.5 * near - gap))))
    return jnp.where(missed < 1.0, missed, 1.0) * 2.0 / num_points


def summary(sums: Sums, num_points: Array | int, unseen: Array) -> Estimate:
    """The log mean weight of each replicate; stderr inf for fewer than 10 effective points.

    The effective sample size itself comes from the points. Where the proposal has thinner tails
    than the truncated distribution, as that of a plan held for another problem may have, its points
    rarely see where the weights are large: they add up to too little, and agree on it. Of n weights
    of tail index k, P(w > x) ~ x^(-1/k), the largest is about n^k and the sum n / (1 - k). So
    stderr is inf, too, where the largest has a larger share of the sum than at k = 0.7, beyond
    which standard errors cannot be trusted. Of index 1, as an exponential tilt has towards a limit
    that has moved away, 1,024 points have an effective sample size of 29, and a largest share of
    1/8 or more.

    Args:
        sums: of R replicates; the level may be one for each.
        num_points: of each replicate.
        unseen: the fraction of the mass that the points may have missed.

    Reference:
        Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, for the
        limit of the tail index.
    """
    log_count = jnp.log(jnp.asarray(num_points, sums.log_total.dtype))
    log_probs = (sums.log_total - log_count) + sums.level
    few = (sums.inverse > 1.0 / MIN_EFFECTIVE_POINTS) | (sums.inverse == 0)
    few |= sums.largest > (1.0 - HEAVIEST_TAIL) * jnp.exp((HEAVIEST_TAIL - 1.0) * log_count)
    return Estimate(log_probs, jnp.where(few, jnp.inf, unseen))


class Slopes(NamedTuple):
    """Sums of importance weights, and the derivatives of the logs of their totals.

    The derivative of the log of a sum is the mean of those of the logs of its parts, weighted by
    the parts: it is accumulated beside the sum, over any number of pieces of a lattice.

    Attributes:
        sums: of R replicates, each with a level of its own.
        slopes: derivatives in numbers of the proposal, with a leading axis of R.
    """

    sums: Sums
    slopes: list[Array]

    def plus(self, other: "Slopes") -> "Slopes":
        sums = self.sums.plus(other.sums)
        whole = jnp.where(sums.log_total == -jnp.inf, 0.0, sums.log_total) + sums.level
        ours = jnp.exp(self.sums.log_total + self.sums.level - whole)
        theirs = jnp.exp(other.sums.log_total + other.sums.level - whole)

        def mean(x: Array, y: Array) -> Array:
            return jax.vmap(lambda a, x, b, y: a * x + b * y)(ours, x, theirs, y)

        return Slopes(sums, jax.tree.map(mean, self.slopes, other.slopes))


def sums_over(proposal: Proposal, lattice: GrowingLattice, keys: Array, num_points: int) -> Sums:
    """The sums over all pieces, of num_points each, of a lattice with the shifts of R keys."""

    def part(j: Array, proposal: Proposal, lattice: GrowingLattice, keys: Array) -> Sums:
        points = lattice.piece(j, num_points, len(proposal.tilt) - 1)
        uniforms = shifted_uniforms(points, keys, proposal.tilt.dtype)
        return summed(*weighted_paths(proposal, uniforms), len(keys))

    def sums(proposal: Proposal, lattice: GrowingLattice, keys: Array) -> Sums:
        return over_pieces(lattice, lambda j: part(j, proposal, lattice, keys), Sums.plus)

    def sloped(
        moved: list[int], proposal: Proposal, lattice: GrowingLattice, keys: Array
    ) -> tuple[Sums, list[Array]]:
        def of_key(j: Array, key: Array) -> Slopes:
            def total(proposal: Proposal) -> tuple[Array, Sums]:
                sums = jax.tree.map(lambda x: x[0], part(j, proposal, lattice, key[None]))
                return sums.log_total + sums.level, sums

            (_, sums), slopes = slopes_of(total, moved, proposal)
            return Slopes(sums, slopes)

        def of_keys(j: Array) -> Slopes:
            if len(keys) > 1:
                return jax.vmap(partial(of_key, j))(keys)
            return jax.tree.map(lambda x: x[None], of_key(j, keys[0]))

        result = over_pieces(lattice, of_keys, Slopes.plus)
        return result.sums, result.slopes

    return with_slopes(sums, sloped, proposal, lattice, keys)


# --- Moments --------------------------------------------------------------------------------------


class DrawOffsets(NamedTuple):
    """Draws less an interior point, with the moments of the distributions they come from.

    Offsets avoid cancellation in narrow intervals.

    Attributes:
        deviations: the draws less the point, shape (k, n); the last is its conditional mean.
        expected, variances: mean, less the point, and variance of each draw given the earlier ones,
            shape (k, n).
    """

    deviations: Array
    expected: Array
    variances: Array


def inner_point(constraints: Constraints, tilt: Array) -> Array:
    """A point inside the constraints: the mode of each variable given the earlier ones."""

    def step(z: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        k, weights, low, high, loc, scale, tilt = row
        mean = loc + weights @ z
        y = jnp.clip(mean + scale * tilt, low, high)
        return lax.dynamic_update_index_in_dim(z, (y - mean) / scale, k, 0), y

    strict = jnp.tril(constraints.factor, -1)
    rows = jnp.arange(len(tilt)), strict, *constraints.limits, constraints.scale, tilt
    return lax.stop_gradient(lax.scan(step, varying_like(jnp.zeros_like(tilt), rows), rows)[1])


def draw_offsets(
    constraints: Constraints, tilt: Array, uniforms: Array, means: Array, point: Array
) -> DrawOffsets:
    """The draws of `paths` less a point inside, computed from the same uniforms.

    z itself, which is relative to the mean, has too few digits for a narrow interval in a tail.
    """
    low, high, loc, _ = constraints
    scale = constraints.scale[:, None]
    centred = standardize(low, high, point)
    center = (loc - point)[:, None] + means + scale * tilt[:, None]
    inputs = center, scale, centred.low[:, None], centred.high[:, None]
    expected, variances = truncated_mean_and_variance(*inputs)
    draws = truncated_quantile(uniforms, *(x[:-1] for x in inputs))
    return DrawOffsets(jnp.concatenate([draws, expected[-1:]]), expected, variances)


class PathMoments(NamedTuple):
    """The moments and control variates of a number of pieces of a lattice.

    Attributes:
        pieces: moments of each replicate.
        surprises: control variates of each replicate.
        sums: of the weights of each replicate, with a level for each.
        num_pieces: of the lattice.
    """

    pieces: Pieces
    surprises: Surprises
    sums: Sums
    num_pieces: Array

    def plus(self, other: "PathMoments") -> "PathMoments":
        log_shares = other.pieces.log_shares + (other.sums.level - self.sums.level)
        pieces = merged(self.pieces, other.pieces._replace(log_shares=log_shares))
        total = self.num_pieces + other.num_pieces

        def mean(x: Array, y: Array) -> Array:
            return (self.num_pieces * x + other.num_pieces * y) / total

        averages = jax.tree.map(mean, self.surprises, other.surprises)
        return PathMoments(pieces, averages, self.sums.plus(other.sums), total)


def whole_draws(
    proposal: Proposal, uniforms: Array
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    """Draws of all variables, standardised, shape (d, n), and the results of `weighted_paths`."""
    constraints, extra, tilt = proposal.path_inputs
    draws, log_mass = intersected_paths(*with_free_end(constraints, extra, tilt), uniforms)
    means = jnp.tril(constraints.factor, -1) @ draws
    return draws, weighed(proposal, draws, means, log_mass[:-1])


def log_density(constraints: Constraints, proposal: Proposal, draws: Array) -> Array:
    """The log density of Normal(loc, factor factor^T) at draws of `whole_draws`, shape (n,).

    That is up to a constant.
    """
    loc, factor = proposal.constraints.loc, proposal.constraints.factor
    away = (loc - constraints.loc)[:, None] + factor @ draws
    z = solve_triangular(constraints.factor, away, lower=True)
    return -0.5 * jnp.sum(z * z, axis=0) - jnp.sum(jnp.log(constraints.scale))


def weighted_draws(
    proposal: Proposal, uniforms: Array, point: Array
) -> tuple[DrawOffsets, tuple[Array, Array, Array, Array]]:
    """The draws as offsets, and the results of `weighted_paths`."""
    constraints, extra, tilt = proposal.path_inputs
    if len(extra.low):
        draws, weighted = whole_draws(proposal, uniforms)
        deviations = (constraints.loc - point)[:, None] + constraints.factor @ draws
        # Intervals from several constraints have only their draws, no conditional moments.
        return DrawOffsets(deviations, deviations, jnp.zeros_like(deviations)), weighted
    draws, means, log_mass = paths(constraints, tilt, uniforms)
    drawn = draw_offsets(constraints, tilt, uniforms, means, point)
    return drawn, weighed(proposal, draws, means, log_mass)
