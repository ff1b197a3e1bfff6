"""Particles that meet the constraints one after the other, with resampling."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.pytrees import varying_like
from truncgauss.separation.twisting import Chain, log_site_mean
from truncgauss.special import effective_sample_size, separation_step, standardize
from truncgauss.special.logspace import log_sum_exp

BLOCK = 32
GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


class Record(NamedTuple):
    """A run: its result, and what is needed to trace the surviving paths."""

    log_prob: Array
    least_effective: Array
    log_weights: Array  # of the particles at the end, shape (n,)
    uniforms: Array  # that each particle drew with, shape (m, n)
    parents: Array  # of each particle, before its draw, shape (m, n)


def surviving(record: Record) -> Array:
    """The uniforms along the path of each final particle, last variable left out: (m - 1, n)."""

    def back(particle, step):
        uniforms, parents = step
        return parents[particle], uniforms[particle]

    start = varying_like(jnp.arange(len(record.log_weights)), record)
    _, uniforms = lax.scan(back, start, (record.uniforms, record.parents), reverse=True)
    return uniforms[:-1]


class _Cloud(NamedTuple):
    """Particles within a block of variables; everything else of them waits where `source` says."""

    z: Array  # the block's draws, shape (block, n)
    base: Array  # what earlier blocks contribute to the block's means, shape (block, n)
    source: Array  # where each particle stood when the block began
    log_weights: Array
    log_prob: Array  # of all resampled so far
    least: Array


def particles(chain: Chain, key: Array, num_particles: int) -> Record:
    """Run the particles through all constraints, in blocks of variables."""
    law, m, n = chain.law, len(chain.law.loc), num_particles
    size = min(BLOCK, m)
    dtype, blocks = law.loc.dtype, -(-m // size)
    padding = blocks * size - m
    pad = lambda x, value: jnp.pad(x, (0, padding), constant_values=value)
    rows = tuple(
        pad(x, value)
        for x, value in (
            (law.low, -jnp.inf),
            (law.high, jnp.inf),
            (law.loc, 0.0),
            (jnp.diagonal(law.factor), 1.0),
            (chain.twist.precision, 0.0),
            (chain.twist.center, 0.0),
        )
    )
    strict = jnp.pad(jnp.tril(law.factor, -1), ((0, padding), (0, padding)))
    shifts = jax.random.uniform(key, (blocks * size, 2), dtype)
    blocked = lambda x: x.reshape(blocks, size, *x.shape[1:])
    lanes = varying_like(jnp.arange(n), chain)

    def block(carry, part):
        z, *rest = carry
        start, weights, rows, shifts = part
        within = lax.dynamic_slice_in_dim(weights, start, size, axis=1)
        own = varying_like(jnp.zeros((size, n), dtype), chain)
        cloud = _Cloud(own, weights @ z, lanes, *rest)
        steps = (jnp.arange(size), within, rows, shifts)
        cloud, (uniforms, parents) = lax.scan(_advance, cloud, steps)
        moved = jnp.any(cloud.source != lanes)
        z = lax.cond(moved, lambda: jnp.take(z, cloud.source, axis=1), lambda: z)
        z = lax.dynamic_update_slice_in_dim(z, cloud.z, start, axis=0)
        return (z, *cloud[3:]), (uniforms, parents)

    nothing = jnp.zeros((), dtype)
    carry = (jnp.zeros((blocks * size, n), dtype), jnp.zeros(n, dtype), nothing, nothing + n)
    carry = varying_like(carry, chain)
    parts = (size * jnp.arange(blocks), *jax.tree.map(blocked, (strict, rows, shifts)))
    (_, log_weight, log_prob, least), (uniforms, parents) = lax.scan(block, carry, parts)
    least = jnp.minimum(least, effective_sample_size(log_weight))
    log_prob = chain.log_start + log_prob + log_sum_exp(log_weight) - math.log(n)
    flat = lambda x: x.reshape(-1, n)[:m]
    return Record(log_prob, least, log_weight, flat(uniforms), flat(parents))


def _advance(cloud: _Cloud, step) -> tuple[_Cloud, tuple[Array, Array]]:
    """Resample if that is due, then draw one variable for every particle."""
    k, weights, (low, high, loc, scale, precision, center), (shift, offset) = step
    lanes = varying_like(jnp.arange(len(cloud.log_weights)), cloud)
    means = cloud.base[k] + weights @ cloud.z
    order = jnp.argsort(means)
    effective = effective_sample_size(cloud.log_weights)
    due = effective < 0.5 * len(lanes)
    cloud = cloud._replace(least=jnp.minimum(cloud.least, effective))

    def resampled():
        ordered = jnp.take(cloud.log_weights, order)
        parents = jnp.take(order, _systematic(ordered, shares))
        total = log_sum_exp(cloud.log_weights) - math.log(len(lanes))
        take = lambda x: jnp.take(x, parents, axis=-1)
        after = _Cloud(
            take(cloud.z),
            take(cloud.base),
            take(cloud.source),
            jnp.zeros_like(cloud.log_weights),
            cloud.log_prob + total,
            cloud.least,
        )
        return after, take(means), parents, lanes

    # Not in the branches: there JAX 0.10 refuses indices and constants under vmap and shard_map.
    shares = (lanes.astype(offset.dtype) + offset) / len(lanes)
    own_rank = jnp.zeros_like(lanes).at[order].set(lanes)

    def kept():
        return cloud, means, lanes, own_rank

    cloud, means, parents, rank = lax.cond(due, resampled, kept)
    # Neighbours in the order of their means draw far apart; each draw alone is uniform.
    turned = (rank.astype(float) * GOLDEN).astype(shift.dtype)
    uniform = (turned + shift).astype(means.dtype) % 1.0
    tiny = float(jnp.finfo(means.dtype).eps)
    uniform = jnp.clip(uniform, 0.25 * tiny, 1.0 - 0.5 * tiny)
    interval = standardize(low, high, loc + means, scale)
    draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
    gain = log_mass - log_site_mean(precision, center, loc + means, scale)
    cloud = cloud._replace(z=cloud.z.at[k].set(draw), log_weights=cloud.log_weights + gain)
    return cloud, (uniform, parents)


def _systematic(log_weights: Array, shares: Array) -> Array:
    """Indices of these shares of the total, ascending, among the cumulated weights."""
    cumulated = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
    points = shares * cumulated[-1]
    return jnp.minimum(jnp.searchsorted(cumulated, points, side="right"), len(cumulated) - 1)
