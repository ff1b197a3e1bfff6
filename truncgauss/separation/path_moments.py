"""Moments of paths: their draws as offsets from an interior point, and weighted sums of these.

Offsets avoid cancellation in narrow intervals.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.execution.pytrees import varying_like
from truncgauss.gaussian.total_moments import Pieces, Surprises, merged
from truncgauss.separation.kernel import Constraints, intersected_paths, paths, with_free_end
from truncgauss.separation.plan import Proposal
from truncgauss.separation.weights import Sums, beyond_limits, weighed
from truncgauss.special import standardize, truncated_mean_and_variance, truncated_quantile


class DrawOffsets(NamedTuple):
    """Draws less an interior point, with the moments of the distributions they come from.

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
    rows = jnp.arange(len(tilt)), strict, *constraints[:3], constraints.scale, tilt
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
        """The moments over the points of both."""
        log_shares = other.pieces.log_shares + (other.sums.level - self.sums.level)
        pieces = merged(self.pieces, other.pieces._replace(log_shares=log_shares))
        total = self.num_pieces + other.num_pieces

        def mean(x: Array, y: Array) -> Array:
            return (self.num_pieces * x + other.num_pieces * y) / total

        averages = jax.tree.map(mean, self.surprises, other.surprises)
        return PathMoments(pieces, averages, self.sums.plus(other.sums), total)


def weighted_draws(
    proposal: Proposal, uniforms: Array, point: Array
) -> tuple[DrawOffsets, tuple[Array, Array, Array, Array]]:
    """The draws as offsets, and the results of `weighted_paths`."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        # All variables are drawn.
        draws, log_mass = intersected_paths(*with_free_end(constraints, extra, tilt), uniforms)
        log_mass = log_mass[:-1]
        deviations = (constraints.loc - point)[:, None] + constraints.factor @ draws
        # Intervals from several constraints have only their draws, no conditional moments.
        drawn = DrawOffsets(deviations, deviations, jnp.zeros_like(deviations))
        weights = weighed(proposal, draws, None, log_mass)
        means = jnp.tril(constraints.factor, -1) @ draws
    else:
        path = paths(constraints, tilt, uniforms)
        drawn = draw_offsets(constraints, tilt, uniforms, path.means, point)
        weights, means, log_mass = weighed(proposal, *path), path.means, path.log_mass
    return drawn, (*weights, *beyond_limits(constraints, tilt, means, log_mass))
