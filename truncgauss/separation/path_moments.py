"""Sums of the moments of paths over the points of a lattice, with their importance weights."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.gaussian.total_moments import Pieces, Surprises, merged
from truncgauss.separation.draw_offsets import DrawOffsets, draw_offsets, intersected_draws
from truncgauss.separation.kernel import paths
from truncgauss.separation.plan import Proposal
from truncgauss.separation.weights import weighed


class PathMoments(NamedTuple):
    """The moments and control variates of a number of pieces of a lattice.

    Attributes:
        pieces: moments of each replicate.
        surprises: control variates of each replicate.
        level: the common level of the log weights.
        num_pieces: of the lattice.
    """

    pieces: Pieces
    surprises: Surprises
    level: Array
    num_pieces: Array

    def plus(self, other: "PathMoments") -> "PathMoments":
        """The moments over the points of both."""
        log_shares = other.pieces.log_shares + (other.level - self.level)
        pieces = merged(self.pieces, other.pieces._replace(log_shares=log_shares))
        total = self.num_pieces + other.num_pieces

        def mean(x: Array, y: Array) -> Array:
            return (self.num_pieces * x + other.num_pieces * y) / total

        averages = jax.tree.map(mean, self.surprises, other.surprises)
        return PathMoments(pieces, averages, self.level, total)


def weighted_draws(
    proposal: Proposal, uniforms: Array, point: Array
) -> tuple[Array, Array, DrawOffsets]:
    """The log weights of paths less a common level, the level, and the draws as offsets."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        draws, log_mass = intersected_draws(constraints, extra, tilt, uniforms)
        deviations = (constraints.loc - point)[:, None] + constraints.factor @ draws
        # Intervals from several constraints have only their draws, no conditional moments.
        drawn = DrawOffsets(deviations, deviations, jnp.zeros_like(deviations))
        return *weighed(proposal, draws, None, log_mass), drawn
    path = paths(constraints, tilt, uniforms)
    drawn = draw_offsets(constraints, tilt, uniforms, path.means, point)
    return *weighed(proposal, *path), drawn
