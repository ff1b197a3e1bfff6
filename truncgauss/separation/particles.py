"""Sequential Monte Carlo over the constraints, with adaptive resampling.

References:
    Ridgway (2016), Computation of Gaussian orthant probabilities in high dimension. L'Ecuyer, Lecot
    and Tuffin (2008), A randomized quasi-Monte Carlo simulation method for Markov chains.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.pytrees import varying_like
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.separation.kernel import Constraints, paths
from truncgauss.separation.plan import Proposal, input_rounding
from truncgauss.separation.twisting import Twist, log_site_mean, sites_for, twisted
from truncgauss.special.logspace import effective_sample_size, log_sum_exp
from truncgauss.special.normal import separation_step
from truncgauss.special.tails import standardize

BLOCK = 32
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


def twist_of(limits: GaussianLimits, least_share: float) -> Twist:
    """Sites as of `sites_for` with the rounding of the inputs."""
    limits = lax.stop_gradient(limits)
    sites = sites_for(limits, least_share)
    rounding = jnp.hypot(input_rounding(limits, sites.force), sites.rounding)
    return replace(sites.twist(), rounding=rounding)


def chain_of(limits: GaussianLimits, twist: Twist | None) -> Proposal:
    """The twisted distribution for limits, differentiable in the limits at fixed sites, without a
    tilt; without sites these have precision 0.

    It is NaN if the covariance is not symmetric positive semi-definite.
    """
    loc = limits.loc
    constraints = Constraints(limits.low, limits.high, loc, limits.scale_tril)
    if twist is None:
        nothing = jnp.zeros_like(loc)
        twist, log_start = Twist(nothing, loc, nothing[0]), nothing[0]
    else:
        twist = lax.stop_gradient(twist)
        constraints, log_start = twisted(constraints, twist)
    extra = Constraints(*(x[:0] for x in constraints))
    return Proposal(constraints, extra, jnp.zeros_like(loc), twist, log_start)


def log_weights(chain: Proposal, uniforms: Array) -> Array:
    """The log importance weights of paths, shape (n,), from uniforms of shape (m - 1, n)."""
    constraints, _, tilt, twist, log_start = chain
    assert twist is not None
    path = paths(constraints, tilt, uniforms)
    loc, scale, precision, center = (
        x[:, None] for x in (constraints.loc, constraints.scale, twist.precision, twist.center)
    )
    site = log_site_mean(precision, center, loc + path.means, scale)
    return log_start + jnp.sum(path.log_mass - site, axis=0)


class ParticleRun(NamedTuple):
    """The estimate of one run, and the genealogy of its particles.

    Attributes:
        log_prob: log of the estimate.
        least_effective: the smallest effective sample size at any step.
        log_weights: of the particles at the end, shape (n,).
        uniforms: the uniform of each particle's draw at each step, shape (m, n).
        parents: index of each particle's parent at each step, shape (m, n).
        log_probs, least_so_far: as the first two, up to each step and without the weights there in
            the second; without sites the first is of the constraints so far, shape (m,).
    """

    log_prob: Array
    least_effective: Array
    log_weights: Array
    uniforms: Array
    parents: Array
    log_probs: Array
    least_so_far: Array


def surviving(record: ParticleRun) -> Array:
    """The uniforms along the path of each final particle, but for the last variable: (m - 1, n)."""

    def back(particle: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        uniforms, parents = step
        return parents[particle], uniforms[particle]

    start = varying_like(jnp.arange(len(record.log_weights)), record)
    _, uniforms = lax.scan(back, start, (record.uniforms, record.parents), reverse=True)
    return uniforms[:-1]


class _Cloud(NamedTuple):
    """The particles within a block of variables.

    Attributes:
        z: their draws in the block, shape (block, n).
        base: contribution of earlier blocks to the conditional means, shape (block, n).
        source: index of each particle's ancestor when the block began, by which the draws of
            earlier blocks are reordered at its end, shape (n,).
        log_weights: shape (n,).
        log_prob: log of the estimate up to the last resampling.
        least: the smallest effective sample size so far.
    """

    z: Array
    base: Array
    source: Array
    log_weights: Array
    log_prob: Array
    least: Array


def particles(chain: Proposal, key: Array, num_particles: int) -> ParticleRun:
    """One run of sequential Monte Carlo over all constraints, in blocks of variables."""
    (low, high, loc, factor), twist = chain.constraints, chain.twist
    assert twist is not None
    m, n, size = len(loc), num_particles, min(BLOCK, len(loc))
    dtype, blocks = loc.dtype, -(-m // size)
    padding = blocks * size - m
    rows = tuple(
        jnp.pad(x, (0, padding), constant_values=value)
        for x, value in (
            (low, -jnp.inf),
            (high, jnp.inf),
            (loc, 0.0),
            (jnp.diagonal(factor), 1.0),
            (twist.precision, 0.0),
            (twist.center, 0.0),
        )
    )
    strict = jnp.pad(jnp.tril(factor, -1), ((0, padding), (0, padding)))
    shifts = jax.random.uniform(key, (blocks * size, 2), dtype)
    lanes = varying_like(jnp.arange(n), chain)

    def blocked(x: Array) -> Array:
        return x.reshape(blocks, size, *x.shape[1:])

    def block(carry: Any, part: Any) -> Any:
        z, *rest = carry
        start, weights, rows, shifts = part
        within = lax.dynamic_slice_in_dim(weights, start, size, axis=1)
        draws = varying_like(jnp.zeros((size, n), dtype), chain)
        cloud = _Cloud(draws, weights @ z, lanes, *rest)
        steps = (jnp.arange(size), within, rows, shifts)
        cloud, history = lax.scan(_advance, cloud, steps)
        moved = jnp.any(cloud.source != lanes)
        z = lax.cond(moved, lambda: jnp.take(z, cloud.source, axis=1), lambda: z)
        z = lax.dynamic_update_slice_in_dim(z, cloud.z, start, axis=0)
        rest = cloud.log_weights, cloud.log_prob, cloud.least
        return (z, *rest), history

    nothing = jnp.zeros((), dtype)
    carry = (jnp.zeros((blocks * size, n), dtype), jnp.zeros(n, dtype), nothing, nothing + n)
    carry = varying_like(carry, chain)
    parts = (size * jnp.arange(blocks), *jax.tree.map(blocked, (strict, rows, shifts)))
    (_, log_weight, log_prob, least), history = lax.scan(block, carry, parts)
    least = jnp.minimum(least, effective_sample_size(log_weight))
    log_prob = chain.log_start + log_prob + log_sum_exp(log_weight) - math.log(n)
    uniforms, parents, sums, lows = (x.reshape(-1, *x.shape[2:])[:m] for x in history)
    sums = chain.log_start + sums - math.log(n)
    return ParticleRun(log_prob, least, log_weight, uniforms, parents, sums, lows)


def _advance(cloud: _Cloud, step: Any) -> tuple[_Cloud, tuple[Array, ...]]:
    """The particles after one step: resampling if it is due, and one variable drawn for each."""
    k, weights, (low, high, loc, scale, precision, center), (shift, offset) = step
    lanes = varying_like(jnp.arange(len(cloud.log_weights)), cloud)
    means = cloud.base[k] + weights @ cloud.z
    order = jnp.argsort(means)
    effective = effective_sample_size(cloud.log_weights)
    due = effective < 0.5 * len(lanes)
    cloud = cloud._replace(least=jnp.minimum(cloud.least, effective))

    def resampled() -> tuple[_Cloud, Array, Array, Array]:
        ordered = jnp.take(cloud.log_weights, order)
        # Systematically: the cumulated weights at fractions of their sum.
        cumulated = jnp.cumsum(jnp.exp(ordered - jnp.max(ordered)))
        chosen = jnp.searchsorted(cumulated, fractions * cumulated[-1], side="right")
        parents = jnp.take(order, jnp.minimum(chosen, len(cumulated) - 1))
        total = log_sum_exp(cloud.log_weights) - math.log(len(lanes))

        take = partial(jnp.take, indices=parents, axis=-1)
        after = _Cloud(
            take(cloud.z),
            take(cloud.base),
            take(cloud.source),
            jnp.zeros_like(cloud.log_weights),
            cloud.log_prob + total,
            cloud.least,
        )
        return after, take(means), parents, lanes

    # Not in the branches: there JAX 0.10 refuses constants under vmap and shard_map.
    fractions = (lanes.astype(offset.dtype) + offset) / len(lanes)
    identity_rank = jnp.zeros_like(lanes).at[order].set(lanes)

    kept = cloud, means, lanes, identity_rank
    cloud, means, parents, rank = lax.cond(due, resampled, lambda: kept)
    # A golden lattice over the particles in the order of their means; each alone is uniform.
    turned = (rank.astype(float) * GOLDEN).astype(shift.dtype)
    uniform = (turned + shift).astype(means.dtype) % 1.0
    tiny = float(jnp.finfo(means.dtype).eps)
    uniform = jnp.clip(uniform, 0.25 * tiny, 1.0 - 0.5 * tiny)
    interval = standardize(low, high, loc + means, scale)
    draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
    gain = log_mass - log_site_mean(precision, center, loc + means, scale)
    z = lax.dynamic_update_index_in_dim(cloud.z, draw, k, 0)
    cloud = cloud._replace(z=z, log_weights=cloud.log_weights + gain)
    return cloud, (uniform, parents, cloud.log_prob + log_sum_exp(cloud.log_weights), cloud.least)
