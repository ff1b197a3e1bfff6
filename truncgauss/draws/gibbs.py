"""Gibbs chains for the draws that accept-reject could not make.

Reference:
    Geweke (1991), Efficient simulation from the multivariate normal and Student-t distributions
    subject to linear constraints and the evaluation of constraint probabilities.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.pytrees import varying_like
from truncgauss.draws.proposals import Sampler, fresh_uniforms
from truncgauss.separation.kernel import Constraints, crossings, intersection
from truncgauss.special.normal import separation_step

# Parallel chains, sweeps between two draws of a chain, and draws left out at the beginning.
NUM_CHAINS, THINNING, WARM_UP = 64, 8, 8


class Rounds(NamedTuple):
    """The state of accept-reject after some rounds of proposals.

    Attributes:
        buffer: whose first `num_accepted` rows are draws.
        num_accepted, num_tried, num_rounds: accepted proposals, all proposals, and rounds.
        bound: of the log weights; raised, and the draws begun again, where a weight exceeds it.
        paths, log_weights: some proposals of the last round that had one inside the region, as
            starting points of chains.
    """

    buffer: Array
    num_accepted: Array
    num_tried: Array
    num_rounds: Array
    bound: Array
    paths: Array
    log_weights: Array


def accepted(rounds: Rounds, num_samples: int) -> tuple[Array, Array]:
    """The accepted draws, NaN where there are too few, and their number."""
    is_accepted = jnp.arange(num_samples, dtype=jnp.int32)[:, None] < rounds.num_accepted
    samples = jnp.where(is_accepted, rounds.buffer[:num_samples], jnp.nan)
    return samples, jnp.minimum(rounds.num_accepted, num_samples).astype(samples.dtype)


def filled(sampler: Sampler, rounds: Rounds, num_samples: int, key: Array) -> tuple[Array, Array]:
    """The accepted draws, completed by Gibbs chains, and the effective sample size of all."""
    samples, count = rounds.buffer[:num_samples], rounds.num_accepted
    is_accepted = jnp.arange(num_samples, dtype=jnp.int32)[:, None] < count
    whole = jnp.asarray(num_samples, samples.dtype)

    def fill(state: Any) -> tuple[Array, Array, Array]:
        samples, _, index = state
        # With the index as an input XLA cannot move the chains out of the loop.
        others, efficiency = _chains(sampler, rounds, num_samples, key, index)
        # Chains without a starting point add nothing.
        added = jnp.where(jnp.isnan(efficiency), 0.0, efficiency) * (num_samples - count)
        effective = count + added
        return jnp.where(is_accepted, samples, others), effective, index + 1

    # A loop of at most one step: unlike `lax.cond` it is skipped under vmap if no row needs it.
    unfilled = lambda state: (count < num_samples) & (state[-1] < 1)
    start = varying_like((samples, whole, jnp.uint32(0)), rounds)
    samples, effective, _ = lax.while_loop(unfilled, fill, start)
    return samples, effective


def _chains(
    sampler: Sampler, rounds: Rounds, num_samples: int, key: Array, index: Array
) -> tuple[Array, Array]:
    """Draws of parallel Gibbs chains, shape (num_samples, d), and the efficiency of one of them.

    The chains run in the whitened coordinates z, a truncated standard normal vector. There they mix
    whatever the correlations of x, a singular covariance or more constraints than variables need no
    special treatment, and each conditional distribution is a normal truncated to one interval.
    """
    # One starting path for each chain, resampled systematically by weight.
    cumulated = jnp.cumsum(jnp.exp(rounds.log_weights - jnp.max(rounds.log_weights)))
    middles = (jnp.arange(NUM_CHAINS) + 0.5) / NUM_CHAINS
    chosen = jnp.searchsorted(cumulated, (middles * cumulated[-1]).astype(cumulated.dtype))
    start = rounds.paths[:, chosen]
    start = jnp.where(jnp.any(rounds.log_weights > -jnp.inf), start, jnp.nan)
    num_sweeps = max(16, -(-num_samples // NUM_CHAINS))
    per_sweep, others = THINNING * sampler.num_draws, sampler.num_uniforms - sampler.num_draws
    first, extra = sampler.constraints, sampler.extra
    first = first._replace(factor=jnp.tril(first.factor))
    constraints = Constraints(*(jnp.concatenate(pair) for pair in zip(first, extra)))

    def one(state: Any, index: Array) -> tuple[tuple[Array, Array], Array]:
        draws, before = state
        uniforms = fresh_uniforms(key, index, (per_sweep + others, NUM_CHAINS), draws.dtype)
        sweeps = uniforms[:per_sweep].reshape(THINNING, *draws.shape)
        draws, _ = lax.scan(partial(_sweep, constraints), draws, sweeps)
        points = sampler.points(draws, sampler.values(draws), uniforms[per_sweep:])
        points = jnp.where(sampler.inside(points), points, before)
        return (draws, points), points.T

    middle = jnp.full((others, NUM_CHAINS), 0.5, start.dtype)
    state = start, sampler.points(start, sampler.values(start), middle)
    # Indices that no round of proposals reaches.
    indices = jnp.uint32(2**31) + index + jnp.arange(WARM_UP + num_sweeps, dtype=jnp.uint32)
    _, points = lax.scan(one, state, indices)
    points = points[WARM_UP:]
    # The means of C chains of K independent draws have the variance of one draw over K; the ratio
    # of that to the variance of the chains' means is the efficiency. The smallest of all
    # coordinates counts, and at most 1 - 1/C, which is all that C chains can establish.
    centred = points - points.mean((0, 1))
    of_one, of_mean = jnp.mean(centred**2, (0, 1)), jnp.var(centred.mean(0), axis=0, ddof=1)
    still = of_one == 0
    share = of_one / (len(points) * jnp.where(still, 1.0, of_mean))
    least = jnp.min(jnp.where(still, jnp.inf, share))
    efficiency = jnp.minimum(1.0 - 1.0 / NUM_CHAINS, least)
    return points.reshape(-1, sampler.dimension)[-num_samples:], efficiency


def _sweep(constraints: Constraints, draws: Array, uniforms: Array) -> tuple[Array, None]:
    def step(state: Any, row: Any) -> tuple[tuple[Array, Array], None]:
        draws, means = state
        k, column, uniform = row
        old = draws[k]
        others = means - column[:, None] * old
        below, above, width = intersection(crossings(constraints, column, column != 0, others))
        # Only by rounding, since the old value lies in the interval.
        empty = ~(below < above)
        low, high, width = (
            jnp.where(empty, some, x) for some, x in ((0.0, below), (1.0, above), (1.0, width))
        )
        new = jnp.where(empty, old, separation_step(low, high, uniform, width)[0])
        # Without the barrier XLA would compute it again for each of the means.
        new = lax.optimization_barrier(new)
        draws = lax.dynamic_update_index_in_dim(draws, new, k, 0)
        return (draws, others + column[:, None] * new), None

    rows = jnp.arange(len(draws)), constraints.factor.T, uniforms
    (draws, _), _ = lax.scan(step, (draws, constraints.factor @ draws), rows)
    return draws, None
