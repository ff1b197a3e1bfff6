"""Gibbs chains, which make the draws that accept-reject could not."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.pytrees import varying_like
from truncgauss.separation.kernel import Constraints, crossings
from truncgauss.separation.proposals import Sampler, fresh_uniforms
from truncgauss.special import separation_step

# Sweeps between two draws of a chain, and draws left out in the beginning.
NUM_CHAINS, THINNING, WARM_UP = 64, 8, 8


class Rounds(NamedTuple):
    """What accept-reject has so far: the first `count` rows of the buffer.

    Of the last round with a path inside the region some paths and their log weights stay, for
    chains to start from.
    """

    buffer: Array
    count: Array
    tried: Array
    turn: Array
    paths: Array
    log_weights: Array


def accepted(rounds: Rounds, num_samples: int) -> tuple[Array, Array]:
    """The accepted draws, NaN where there are too few, and their number."""
    own = jnp.arange(num_samples, dtype=jnp.int32)[:, None] < rounds.count
    samples = jnp.where(own, rounds.buffer[:num_samples], jnp.nan)
    return samples, jnp.minimum(rounds.count, num_samples).astype(samples.dtype)


def filled(sampler: Sampler, rounds: Rounds, num_samples: int, key: Array) -> tuple[Array, Array]:
    """The accepted draws, the chains' where there are too few; and what all are worth."""
    samples, count = rounds.buffer[:num_samples], rounds.count
    own = jnp.arange(num_samples, dtype=jnp.int32)[:, None] < count
    whole = jnp.asarray(num_samples, samples.dtype)

    def fill(state):
        samples, _, turn = state
        # The turn enters, lest all this be computed before the loop, needed or not.
        others, share = _chains(sampler, rounds, num_samples, key, turn)
        # A chain without a start has nothing to add.
        worth = count + jnp.where(jnp.isnan(share), 0.0, share) * (num_samples - count)
        return jnp.where(own, samples, others), worth, turn + 1

    def unfilled(state):
        return (count < num_samples) & (state[-1] < 1)

    # A loop of at most one turn: unlike a choice it costs nothing under vmap if none needs it.
    samples, worth, _ = lax.while_loop(
        unfilled, fill, varying_like((samples, whole, jnp.uint32(0)), rounds)
    )
    return samples, worth


def _chains(
    sampler: Sampler, rounds: Rounds, num_samples: int, key: Array, turn: Array
) -> tuple[Array, Array]:
    """Draws of parallel Gibbs chains, shape (num_samples, d), and what one of them is worth.

    In the whitened coordinates z the law is a standard normal, limited: correlations of any
    strength are gone, a singular covariance or more constraints than variables make no difference,
    and each conditional law is one interval.
    """
    start = rounds.paths[:, _evenly(rounds.log_weights)]
    start = jnp.where(jnp.any(rounds.log_weights > -jnp.inf), start, jnp.nan)
    num_kept = max(16, -(-num_samples // NUM_CHAINS))
    per_sweep, others = THINNING * sampler.num_draws, sampler.num_uniforms - sampler.num_draws
    constraints = sampler.all_constraints()

    def one(state, turn):
        draws, before = state
        uniforms = fresh_uniforms(key, turn, (per_sweep + others, NUM_CHAINS), draws.dtype)
        sweeps = uniforms[:per_sweep].reshape(THINNING, *draws.shape)
        draws, _ = lax.scan(partial(_sweep, constraints), draws, sweeps)
        points = sampler.points(draws, sampler.values(draws), uniforms[per_sweep:])
        points = jnp.where(sampler.inside(points), points, before)
        return (draws, points), points.T

    middle = jnp.full((others, NUM_CHAINS), 0.5, start.dtype)
    start = start, sampler.points(start, sampler.values(start), middle)
    # Numbers that no round of proposals reaches.
    turns = jnp.uint32(2**31) + turn + jnp.arange(WARM_UP + num_kept, dtype=jnp.uint32)
    _, points = lax.scan(one, start, turns)
    points = points[WARM_UP:]
    return points.reshape(-1, sampler.dimension)[-num_samples:], _worth(points)


def _evenly(log_weights: Array) -> Array:
    """The indices of as many paths as there are chains, in proportion to their weights."""
    shares = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
    middles = (jnp.arange(NUM_CHAINS) + 0.5) / NUM_CHAINS
    return jnp.searchsorted(shares, (middles * shares[-1]).astype(shares.dtype))


def _sweep(constraints: Constraints, draws: Array, uniforms: Array) -> tuple[Array, None]:
    """One new value for each whitened coordinate of each chain, given the others."""

    def step(state, row):
        draws, means = state
        k, column, uniform = row
        old = draws[k]
        others = means - column[:, None] * old
        below, above = crossings(constraints, column, column != 0, others)
        # By rounding alone: the old value lies in the interval.
        empty = ~(below < above)
        below, above = jnp.where(empty, 0.0, below), jnp.where(empty, 1.0, above)
        new = jnp.where(empty, old, separation_step(below, above, uniform)[0])
        # Else it would be computed again for each of the means.
        new = lax.optimization_barrier(new)
        return (draws.at[k].set(new), others + column[:, None] * new), None

    rows = jnp.arange(len(draws)), constraints.factor.T, uniforms
    (draws, _), _ = lax.scan(step, (draws, constraints.factor @ draws), rows)
    return draws, None


def _worth(points: Array) -> Array:
    """How many independent draws one of a chain is worth, from points (turns, chains, d).

    Means of chains of K independent draws would have the variance of one draw over K. The worst
    coordinate counts; beyond 1 - 1/C the means of C chains cannot tell.
    """
    turns, chains, _ = points.shape
    centred = points - points.mean((0, 1))
    of_one, of_mean = jnp.mean(centred**2, (0, 1)), jnp.var(centred.mean(0), axis=0, ddof=1)
    still = of_one == 0
    share = of_one / (turns * jnp.where(still, 1.0, of_mean))
    return jnp.minimum(1.0 - 1.0 / chains, jnp.min(jnp.where(still, jnp.inf, share)))
