"""Importance weights of the paths of a proposal, and the estimates from them.

Reference:
    Owen (2013), Monte Carlo theory, methods and examples, chapter 9.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.gaussian.linalg import in_full_precision
from truncgauss.gaussian.problem import Estimate
from truncgauss.gaussian.total_moments import MIN_EFFECTIVE_POINTS
from truncgauss.separation.kernel import Constraints, intersected_paths, paths
from truncgauss.separation.lattice import GrowingLattice, over_pieces, shifted_uniforms
from truncgauss.separation.plan import Proposal
from truncgauss.separation.twisting import log_site_mean
from truncgauss.special import log_sum_exp
from truncgauss.special.logspace import less_level

MIN_POINTS_IN_LAYER = 30.0
HEAVIEST_TAIL = 0.7  # the largest tail index of weights whose sum says something of their error


def log_weights(proposal: Proposal, uniforms: Array) -> tuple[Array, Array]:
    """The log importance weights of paths, shape (n,), less a common level; and the level."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        draws, log_mass = intersected_paths(constraints, extra, tilt, uniforms)
        return weighed(proposal, draws, None, log_mass)
    return weighed(proposal, *paths(constraints, tilt, uniforms))


def weighed(
    proposal: Proposal, draws: Array, means: Array | None, log_mass: Array
) -> tuple[Array, Array]:
    """The log importance weights, less a common level, from draws and log masses; and the level.

    Args:
        proposal: what the paths were drawn from.
        draws: shape (d - 1, n).
        means: conditional means less loc, shape (d, n); needed if the proposal has sites.
        log_mass: shape (d, n).
    """
    constraints, _, tilt, twist, log_start = proposal
    tilt = tilt[: len(draws), None]
    # mu^2/2 - mu z, written around the draw z - mu so that large tilts do not cancel.
    correction = -tilt * (draws - tilt) - 0.5 * tilt * tilt
    terms = log_mass + jnp.pad(correction, ((0, len(log_mass) - len(correction)), (0, 0)))
    if twist is not None:
        if means is None:
            raise ValueError("paths of a proposal with sites need their conditional means.")
        columns = (twist.precision, twist.center, constraints.loc, constraints.scale)
        precision, center, loc, scale = (x[:, None] for x in columns)
        terms = terms - log_site_mean(precision, center, loc + means, scale)
    log_weights, level = less_level(terms)
    return log_weights, level + log_start


def unseen_share(constraints: Constraints, num_points: Array | int) -> Array:
    """The fraction of the mass that the points may have missed; 0 if all features are wide enough.

    The weight of a variable that is nearly determined by earlier ones varies only in a layer along
    its limits as thin as its conditional standard deviation. If fewer than thirty points are
    expected in that layer, nearly equal weights are no evidence that the layer does not matter:
    two additional points of weight 0 are assumed in it.
    """
    low, high, _, factor = lax.stop_gradient(constraints)
    share = constraints.scale / jnp.linalg.norm(factor, axis=1)
    limited = jnp.isfinite(low) | jnp.isfinite(high)
    thinnest = jnp.min(jnp.where(limited, lax.stop_gradient(share), 1.0))
    return jnp.where(thinnest * num_points < MIN_POINTS_IN_LAYER, 2.0 / num_points, 0.0)


class Sums(NamedTuple):
    """Sums of the importance weights of R replicates.

    Attributes:
        log_total: log of the sum of the weights, less the level, shape (R,).
        inverse: one over the effective sample size, (sum w^2) / (sum w)^2, shape (R,).
        largest: the largest weight over their sum, shape (R,).
        level: the common level of the log weights, shape ().
    """

    log_total: Array
    inverse: Array
    largest: Array
    level: Array

    def plus(self, other: "Sums") -> "Sums":
        """The sums over the points of both."""
        moved = other.log_total + (other.level - self.level)
        log_total = jnp.logaddexp(self.log_total, moved)
        whole = jnp.where(log_total == -jnp.inf, 0.0, log_total)
        first, second = jnp.exp(self.log_total - whole), jnp.exp(moved - whole)
        inverse = first**2 * self.inverse + second**2 * other.inverse
        largest = jnp.maximum(first * self.largest, second * other.largest)
        return Sums(log_total, inverse, largest, self.level)


def summed(log_weights: Array, level: Array, num_replicates: int) -> Sums:
    """The sums over the n points of each of R replicates; log weights of shape (R * n,)."""
    log_weights = log_weights.reshape(num_replicates, -1)
    log_total = log_sum_exp(log_weights, axis=1)
    fixed, whole = lax.stop_gradient((log_weights, log_total))
    shares = jnp.exp(fixed - jnp.where(whole == -jnp.inf, 0.0, whole)[:, None])
    return Sums(log_total, jnp.sum(shares * shares, axis=1), jnp.max(shares, axis=1), level)


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
        slope: derivatives in every number of the proposal, with a leading axis of R.
    """

    sums: Sums
    slope: Proposal

    def plus(self, other: "Slopes") -> "Slopes":
        """The sums over the points of both."""
        sums = self.sums.plus(other.sums)
        whole = jnp.where(sums.log_total == -jnp.inf, 0.0, sums.log_total) + sums.level
        ours = jnp.exp(self.sums.log_total + self.sums.level - whole)
        theirs = jnp.exp(other.sums.log_total + other.sums.level - whole)

        def mean(x: Array, y: Array) -> Array:
            return jax.vmap(lambda a, x, b, y: a * x + b * y)(ours, x, theirs, y)

        return Slopes(sums, jax.tree.map(mean, self.slope, other.slope))


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def sums_over(proposal: Proposal, lattice: GrowingLattice, keys: Array, num_points: int) -> Sums:
    """The sums over all pieces, of num_points each, of a lattice with the shifts of R keys."""

    def part(j: Array) -> Sums:
        points = lattice.piece(j, num_points, len(proposal.tilt) - 1)
        uniforms = shifted_uniforms(points, keys, proposal.tilt.dtype)
        sums = summed(*log_weights(proposal, uniforms), len(keys))
        return sums._replace(level=jnp.broadcast_to(sums.level, keys.shape))

    return over_pieces(lattice, part, Sums.plus)


@sums_over.defjvp
@in_full_precision
def _sums_over_jvp(
    num_points: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Sums, Sums]:
    proposal, lattice, keys = primals

    def of_key(points: Array, key: Array) -> Slopes:
        def total(proposal: Proposal) -> tuple[Array, Sums]:
            uniforms = shifted_uniforms(points, key[None], proposal.tilt.dtype)
            sums = summed(*log_weights(proposal, uniforms), 1)
            return sums.log_total[0] + sums.level, jax.tree.map(jnp.squeeze, sums)

        (_, sums), slope = jax.value_and_grad(total, has_aux=True)(proposal)
        return Slopes(sums, slope)

    def part(j: Array) -> Slopes:
        points = lattice.piece(j, num_points, len(proposal.tilt) - 1)
        if len(keys) > 1:
            return jax.vmap(partial(of_key, points))(keys)
        return jax.tree.map(lambda x: x[None], of_key(points, keys[0]))

    sums, slope = over_pieces(lattice, part, Slopes.plus)

    def along(slope: Array, change: Array) -> Array:
        return jnp.tensordot(slope, change, jnp.ndim(change), precision="highest")

    change: Any = sum(jax.tree.leaves(jax.tree.map(along, slope, tangents[0])))
    return sums, jax.tree.map(jnp.zeros_like, sums)._replace(log_total=change)
