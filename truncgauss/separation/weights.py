"""Importance weights of the paths that a proposal draws."""

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.problem import Estimate
from truncgauss.separation.kernel import Constraints, intersected_paths, paths
from truncgauss.separation.plan import Proposal
from truncgauss.separation.twisting import log_site_mean
from truncgauss.special import effective_sample_size, log_mean_exp

MIN_EFFECTIVE_POINTS = 10.0
MIN_POINTS_IN_LAYER = 30.0


def log_weights(proposal: Proposal, uniforms: Array) -> tuple[Array, Array]:
    """The log weight of the path through each point, shape (n,), less a common level; the level."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        draws, log_mass = intersected_paths(constraints, extra, tilt, uniforms)
        return weighed(proposal, draws, None, log_mass)
    return weighed(proposal, *paths(constraints, tilt, uniforms))


def weighed(
    proposal: Proposal, draws: Array, means: Array | None, log_mass: Array
) -> tuple[Array, Array]:
    """The log weights of paths of which this is known, less a common level; and that level.

    The weights differ by little and their logs may be in the thousands: float32 keeps the digits of
    the differences by leaving out of the sum, step by step, what the paths have in common.
    """
    constraints, _, tilt, twist, log_start = proposal
    tilt = tilt[: len(draws), None]
    # mu^2/2 - mu z, written around the draw z - mu so that large tilts do not cancel.
    correction = -tilt * (draws - tilt) - 0.5 * tilt * tilt
    terms = log_mass + jnp.pad(correction, ((0, len(log_mass) - len(correction)), (0, 0)))
    if twist is not None:
        columns = (twist.precision, twist.center, constraints.loc, constraints.scale)
        precision, center, loc, scale = (x[:, None] for x in columns)
        terms = terms - log_site_mean(precision, center, loc + means, scale)
    fixed = lax.stop_gradient(terms)
    level = jnp.mean(fixed, axis=1, where=jnp.isfinite(fixed), keepdims=True)
    level = jnp.where(jnp.isfinite(level), level, 0.0)
    return jnp.sum(terms - level, axis=0), jnp.sum(level) + log_start


def unseen_share(constraints: Constraints, num_points: int) -> Array:
    """The share of paths that no point may have seen, 0 if every feature is wide enough.

    Where a variable is all but determined by earlier ones, paths lose their weight only in a layer
    along its limits as thin as its conditional standard deviation. While fewer than thirty points
    are to be expected in that layer, equal weights do not mean that it is empty: two imaginary
    points of no weight stand for it.
    """
    low, high, _, factor = lax.stop_gradient(constraints)
    share = constraints.scale / jnp.linalg.norm(factor, axis=1)
    limited = jnp.isfinite(low) | jnp.isfinite(high)
    thinnest = jnp.min(jnp.where(limited, lax.stop_gradient(share), 1.0))
    return jnp.where(thinnest * num_points < MIN_POINTS_IN_LAYER, 2.0 / num_points, 0.0)


def summary(log_weights: Array, level: Array, num_replicates: int, unseen: Array) -> Estimate:
    """The log mean weight of each replicate; stderr inf where a few points carry it all."""
    log_weights = log_weights.reshape(num_replicates, -1)
    log_probs = log_mean_exp(log_weights, axis=1) + level
    effective = effective_sample_size(log_weights)
    stderr = jnp.where(effective < MIN_EFFECTIVE_POINTS, jnp.inf, unseen)
    return Estimate(log_probs, stderr)
