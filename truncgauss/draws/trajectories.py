r"""Chains for the draws that accept-reject could not make: Hamiltonian trajectories that the
constraints reflect.

The chains run in the whitened coordinates z, a truncated standard normal vector. With a velocity w,
drawn from the same normal distribution, the motion without constraints is exact,

.. math:: z(t) = z \cos t + w \sin t, \qquad w(t) = w \cos t - z \sin t.

It keeps |z|^2 + |w|^2 and volume; so does a reflection of w at the plane of a constraint, so that a
trajectory of any fixed length leaves the truncated distribution as it is, and none is rejected. In
tau = tan(t / 2) the value a cos t + b sin t of a constraint meets its limit c where
(c + a) tau^2 - 2 b tau + c - a = 0: the first meeting takes a square root. A quarter of a period
makes a draw independent of the one before where there are no constraints, and nearly so with
hundreds of them. In a tail, where the constraints are met more often, trajectories are shorter.

References:
    Pakman and Paninski (2014), Exact Hamiltonian Monte Carlo for truncated multivariate Gaussians.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import ndtri

from truncgauss.arrays.linalg import diagonal_of
from truncgauss.arrays.pytrees import varying_like
from truncgauss.draws.proposals import Sampler, fresh_uniforms
from truncgauss.gaussian.problem import Problem
from truncgauss.gaussian.regions.region import as_linear

# Parallel chains, trajectories between two draws of a chain, and draws left out at the beginning.
NUM_CHAINS, THINNING, WARM_UP = 128, 2, 8
MIN_REFLECTIONS = 1000  # of a trajectory, before it is left out
DRIFT = 4.0  # standard errors between two halves of the draws, beyond which chains are on their way


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
    """The accepted draws, completed by chains, and the effective sample size of all."""
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
    """Draws of parallel chains, shape (num_samples, d), and the efficiency of one of them.

    They run in the coordinates z, where whatever the correlations of x, a singular covariance or
    more constraints than variables need no special treatment.
    """
    # One starting path for each chain, resampled systematically by weight.
    cumulated = jnp.cumsum(jnp.exp(rounds.log_weights - jnp.max(rounds.log_weights)))
    middles = (jnp.arange(NUM_CHAINS) + 0.5) / NUM_CHAINS
    chosen = jnp.searchsorted(cumulated, (middles * cumulated[-1]).astype(cumulated.dtype))
    start = rounds.paths[:, chosen].T
    start = jnp.where(jnp.any(rounds.log_weights > -jnp.inf), start, jnp.nan)
    r, dtype, walls = sampler.num_draws, start.dtype, _walls(sampler)

    def fresh(count: int, index: Array) -> Array:
        # Indices that no round of proposals reaches.
        return fresh_uniforms(key, jnp.uint32(2**31) + index, (count, NUM_CHAINS), dtype)

    def begun(z: Array, index: Array) -> Motion:
        w = ndtri(fresh(r, index)).T
        return Motion(z, w, z @ walls.factor.T, w @ walls.factor.T)

    def seen(motion: Motion, index: Array, before: Array) -> tuple[Array, Array, Array]:
        points = placed(motion.z, fresh(sampler.num_uniforms - r, index))
        points = jnp.where(sampler.inside(points.T)[:, None], points, before)
        return motion.z, points, jnp.sum(motion.z**2, axis=1)

    def placed(z: Array, uniforms: Array) -> Array:
        return sampler.points(z.T, sampler.values(z.T), uniforms).T

    middle = jnp.full((sampler.num_uniforms - r, NUM_CHAINS), 0.5, dtype)
    first = start, placed(start, middle)
    return _run(walls, first, begun, seen, num_samples, index)


def field_chains(row: Problem, num_samples: int, key: Array) -> tuple[Array, Array]:
    """Draws of parallel chains for a box under a sparse covariance, and the efficiency of one.

    They run in the coordinates x, with the covariance as the inverse of the mass: velocities have
    the covariance S of x, and the reflection at a limit of x_j changes them along column j of S.
    No factor of S is made. All chains begin at one point inside, near the mean.
    """
    loc, covariance, box = row.loc, cast(Any, row.covariance), as_linear(row.region)
    matrix = covariance.covariance_matrix
    squares, none = diagonal_of(matrix), jnp.zeros((len(loc), 0), loc.dtype)
    low, high = box.low - loc, box.high - loc
    walls = Walls(low, high, none, matrix, squares)
    inside = 0.5 * jnp.minimum(jnp.sqrt(squares), high - low)
    middle = jnp.where(jnp.all(low < high), jnp.clip(0.0, low + inside, high - inside), jnp.nan)
    start = jnp.broadcast_to(middle, (NUM_CHAINS, len(loc)))
    nothing = jnp.zeros((NUM_CHAINS, 0), loc.dtype)

    def begun(x: Array, index: Array) -> Motion:
        uniforms = fresh_uniforms(key, index, (covariance.num_normals, NUM_CHAINS), x.dtype)
        return Motion(nothing, nothing, x, covariance.combined(ndtri(uniforms)).T)

    def seen(motion: Motion, index: Array, before: Array) -> tuple[Array, Array, Array]:
        x = jnp.clip(motion.values, low, high)
        return x, x, jnp.sum(x**2 / squares, axis=1)

    points, efficiency = _run(walls, (start, start), begun, seen, num_samples, jnp.uint32(0))
    return jnp.clip(loc + points, box.low, box.high), efficiency


def _run(
    walls: "Walls",
    start: tuple[Array, Array],
    begun: Callable[[Array, Array], "Motion"],
    seen: Callable[["Motion", Array, Array], tuple[Array, Array, Array]],
    num_samples: int,
    index: Array,
) -> tuple[Array, Array]:
    """Draws of parallel chains and the efficiency of one of them.

    Args:
        walls: the constraints.
        start: the chains' states and the points x that these are of.
        begun: of states and an index for random numbers, the motion with fresh velocities.
        seen: of a motion's end, an index and the points before, the states, the points, and a
            number that goes with the log density.
        num_samples: of draws.
        index: of the first random numbers.
    """
    num_chains = len(start[0])
    num_steps = max(4, -(-num_samples // num_chains))
    most = max(MIN_REFLECTIONS, 4 * len(walls.low))
    dtype = start[0].dtype

    def move(state: Any, step: Any) -> tuple[Any, Array]:
        at, before, length = state
        index, warming = step
        motion = begun(at, index)
        end, left = _trajectories(walls, motion, length, most)
        # One with too many reflections is left out: so would be the one back from its end.
        whole = (warming | (left <= 0))[:, None]
        end = jax.tree.map(lambda new, old: jnp.where(whole, new, old), end, motion)
        often = warming & (jnp.mean(left > 0, dtype=dtype) > 0.1)
        length = jnp.where(often, 0.5 * jnp.mean(length - left), length)
        at, points, energy = seen(end, index + 1, before)
        return (at, points, length), energy

    def one(state: Any, steps: Any) -> tuple[Any, tuple[Array, Array]]:
        state, energies = lax.scan(move, state, steps)
        return state, (state[1], energies[-1])

    numbers = jnp.arange((WARM_UP + num_steps) * THINNING, dtype=jnp.uint32)
    steps = index + 2 * numbers, numbers < WARM_UP * THINNING
    steps = jax.tree.map(lambda x: x.reshape(-1, THINNING), steps)
    quarter = varying_like(jnp.asarray(0.5 * math.pi, dtype), start)
    _, (points, energies) = lax.scan(one, (*start, quarter), steps)
    points, energies = points[WARM_UP:], energies[WARM_UP:, :, None]
    # The log density and the mean of all coordinates may mix more slowly than any coordinate.
    each = jnp.concatenate([points, energies, points.mean(-1, keepdims=True)], axis=-1)
    return points.reshape(-1, points.shape[-1])[-num_samples:], _efficiency(each)


def _efficiency(numbers: Array) -> Array:
    """Number of independent draws that one of a chain is worth, for the worst of some numbers.

    The means of C chains of K independent draws have the variance of one draw over K. The ratio of
    their variance to that is at least 1 + 1/C, which is all that C chains can establish. The
    largest of many such estimates is too large: each half of the chains chooses the number, and
    the other half estimates its ratio. Chains that are still on their way from a common start move
    together, which their variance does not show: where the means of all chains over the first and
    the second half of the draws differ by more than `DRIFT` standard errors, the square of half of
    what is beyond counts as an error of the mean.

    Args:
        numbers: shape (K, C, n), K >= 2.
    """
    num_draws, num_chains = numbers.shape[:2]
    centred = numbers - numbers.mean((0, 1))
    of_one = jnp.mean(centred**2, (0, 1))
    still = of_one == 0

    def ratios(half: Array) -> Array:
        of_mean = jnp.var(half.mean(0), axis=0, ddof=1)
        return jnp.where(still, 0.0, num_draws * of_mean / jnp.where(still, 1.0, of_one))

    first, second = ratios(centred[:, ::2]), ratios(centred[:, 1::2])
    ratio = 0.5 * (first[jnp.argmax(second)] + second[jnp.argmax(first)])
    middle = num_draws // 2
    change = 0.5 * jnp.abs(centred[:middle].mean((0, 1)) - centred[middle:].mean((0, 1)))
    change = jnp.where(still, 0.0, change / jnp.sqrt(jnp.where(still, 1.0, of_one)))
    error = DRIFT * jnp.sqrt(0.5 * (first + second) / (num_draws * num_chains))
    drift = jnp.max(jnp.maximum(change - error, 0.0))
    ratio = jnp.maximum(ratio, 1.0 + 1.0 / num_chains) + num_draws * num_chains * drift**2
    return 1.0 / ratio


class Walls(NamedTuple):
    """Constraints low <= F z <= high, with F, F F^T and its diagonal."""

    low: Array
    high: Array
    factor: Array
    gram: Array
    squares: Array


def _walls(sampler: Sampler) -> Walls:
    first, extra = sampler.constraints, sampler.extra
    factor = jnp.concatenate([jnp.tril(first.factor), extra.factor])
    loc = jnp.concatenate([first.loc, extra.loc])
    low, high = jnp.concatenate([first.low, extra.low]), jnp.concatenate([first.high, extra.high])
    squares = jnp.sum(factor**2, axis=1)
    # What does not move meets no limit.
    moves = squares > 0
    low, high = jnp.where(moves, low - loc, -jnp.inf), jnp.where(moves, high - loc, jnp.inf)
    return Walls(low, high, factor, factor @ factor.T, jnp.where(moves, squares, 1.0))


class Motion(NamedTuple):
    """Coordinates z and their velocities w, shape (C, r), and those of the constraints' values."""

    z: Array
    w: Array
    values: Array
    slopes: Array


def _trajectories(walls: Walls, start: Motion, length: Array, most: int) -> tuple[Motion, Array]:
    """The ends of the trajectories of all chains, and what is left of their length after `most`
    reflections."""
    lanes = jnp.arange(len(start.z))

    def unfinished(state: Any) -> Array:
        _, left, count = state
        return jnp.any(left > 0) & (count < most)

    def to_next(state: Any) -> Any:
        (z, w, values, slopes), left, count = state
        times = _meetings(walls, values, slopes)
        at = jnp.argmin(times, axis=1)
        tau, end = times[lanes, at], jnp.tan(0.5 * left)
        met = tau < end
        tau = jnp.where(met, tau, end)
        cos, sin = ((1.0 - tau**2) / (1.0 + tau**2))[:, None], (2.0 * tau / (1.0 + tau**2))[:, None]
        z, w = z * cos + w * sin, w * cos - z * sin
        values, slopes = values * cos + slopes * sin, slopes * cos - values * sin
        slope = slopes[lanes, at]
        # Exactly at its limit, which it would else meet again.
        limit = jnp.where(slope > 0, walls.high[at], walls.low[at])
        values = values.at[lanes, at].set(jnp.where(met, limit, values[lanes, at]))
        push = jnp.where(met, 2.0 * slope / walls.squares[at], 0.0)[:, None]
        w, slopes = w - push * walls.factor[at], slopes - push * walls.gram[at]
        left = jnp.where(met, left - 2.0 * jnp.arctan(tau), 0.0)
        return Motion(z, w, values, slopes), left, count + 1

    state = start, jnp.broadcast_to(length, lanes.shape), jnp.int32(0)
    end, left, _ = lax.while_loop(unfinished, to_next, varying_like(state, (walls, start)))
    return end, left


def _meetings(walls: Walls, values: Array, slopes: Array) -> Array:
    """tan(t / 2) at the first time t < pi that each value meets one of its limits, else inf.

    Mirrored, so that b >= 0, a value rises to a maximum of (a^2 + b^2)^(1/2). Where that is beyond
    the limit ahead, it is met at the smaller root. Else the limit behind is met on the way to -a,
    if that is beyond it.
    """
    rising = slopes > 0
    a, b = jnp.where(rising, values, -values), jnp.abs(slopes)
    ahead = jnp.where(rising, walls.high, -walls.low)
    behind = jnp.where(rising, walls.low, -walls.high)
    rest = b * b + (a - ahead) * (a + ahead)
    met = rest >= 0
    root = b + jnp.sqrt(jnp.where(met, rest, jnp.maximum(b * b + (a - behind) * (a + behind), 0.0)))
    times = jnp.where(met, ahead - a, root) / jnp.where(met, root, a + behind)
    return jnp.where(met | (a + behind > 0), jnp.fmax(times, 0.0), jnp.inf)
