"""Sequential Monte Carlo: separation of variables with resampling, in natural order."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.probability.method import Method, check_held
from truncgauss.problem import Estimate, Problem, Region, as_problem, over_rows
from truncgauss.pytrees import frozen_pytree, static_field, varying_like
from truncgauss.regions import Box, Polyhedron
from truncgauss.separation.limits import linear_of
from truncgauss.separation.twisting import (
    Chain,
    Twist,
    chain_of,
    log_site_mean,
    log_weights,
    twist_of,
)
from truncgauss.special import separation_step, standardize
from truncgauss.special.logspace import log_sum_exp
from truncgauss.units import standardized

BLOCK = 32
LEAST_SHARE = 1 / 3  # of a site's precision
MIN_EFFECTIVE_PARTICLES = 10.0
MIN_EFFECTIVE_REPLICATES = 0.4  # of all replicates
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@frozen_pytree
class SequentialMonteCarlo(Method):
    """Particles that meet the constraints one after the other, in their natural order.

    With y the Gaussian vector of constrained coordinates, each particle draws y_k inside its limits
    given its earlier draws and is weighted by the mass there was; particles are resampled when
    fewer than half are effective, so that in long chains and fields the error grows with the length
    and not exponentially. With w_k the incremental weights,

        P_hat = prod_k mean_i w_k^(i)   is unbiased for P.

    If `twisted`, the draws look ahead through the sites of expectation propagation (see the module
    `twisting`), which removes most of the variance and costs that method's solves. Within a step
    the particles, ranked by where they stand, share one randomly shifted golden lattice.

    The value jumps where resampling changes its mind, so its derivative says little. What `grad`
    returns is an *estimate of the gradient of log P* with an error of its own: the smoothed score,
    the mean over surviving paths of d log w. It is of no use to HMC or to a line search. Early
    variables of a long chain have few distinct surviving ancestors: use many replicates.

    stderr is inf where fewer than ten particles were effective at some step, or where a few
    replicates outweigh the others.

    Args:
        num_particles: particles a replicate (static).
        num_replicates: independent repetitions; their spread is the standard error (static).
        twisted: whether to look ahead (static).
        twist: fixed sites, from `hold`.

    Raises:
        ValueError: for a `Ball`, or a count that is not positive.

    Reference:
        Ridgway (2016), Computation of Gaussian orthant probabilities in high dimension. L'Ecuyer,
        Lecot and Tuffin (2008), A randomized quasi-Monte Carlo simulation method for Markov chains.

    Example:
        >>> lag = jnp.abs(jnp.arange(40)[:, None] - jnp.arange(40))
        >>> orthant = tg.Box(jnp.zeros(40), jnp.inf)
        >>> method = tg.SequentialMonteCarlo(num_particles=256)
        >>> estimate = tg.log_probability(jnp.zeros(40), 0.7**lag, orthant, method)
        >>> bool(abs(estimate.log_prob + 9.81) < 0.05)
        True
    """

    num_particles: int = static_field(default=2048)
    num_replicates: int = static_field(default=16)
    twisted: bool = static_field(default=True)
    twist: Twist | None = None

    def __post_init__(self) -> None:
        for name in ("num_particles", "num_replicates"):
            count = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise ValueError(
                    f"SequentialMonteCarlo: {name} must be a positive int, got {count!r}."
                )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of a twist held for many problems."""
        return () if self.twist is None else self.twist.batch_shape

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "SequentialMonteCarlo":
        """The method with a twist for every row."""
        return self._with(None if self.twist is None else self.twist.broadcast_to(batch_shape))

    def scaled(self, by: Array) -> "SequentialMonteCarlo":
        """The method with its twist made to fit constraints multiplied by `by`."""
        return self if self.twist is None else self._with(self.twist.scaled(by))

    def _with(self, twist: Twist | None) -> "SequentialMonteCarlo":
        return SequentialMonteCarlo(self.num_particles, self.num_replicates, self.twisted, twist)

    def check(self, loc: Array, covariance: Covariance, region: Region) -> None:
        if not isinstance(region, (Box, Polyhedron)):
            raise ValueError(
                f"SequentialMonteCarlo answers for a Box or a Polyhedron, got a "
                f"{type(region).__name__}. Use tg.SoftMonteCarlo for other regions."
            )
        if self.twist is not None:
            counts = {"constraints": (self.twist.precision.shape[-1], region.low.shape[-1])}
            problem = Problem(loc, covariance, region)
            check_held("SequentialMonteCarlo", self.twist, counts, problem)

    def hold(self, loc: Array, covariance: Covariance, region: Region) -> "SequentialMonteCarlo":
        """The method with its twist solved. It still resamples: the value stays discontinuous."""
        problem = as_problem(loc, covariance, region)
        self._with(None).check(*problem)
        return self._with(_twists(problem)) if self.twisted else self

    def replicate(self, loc, covariance: Covariance, region: Region, key) -> Estimate:
        """One independent set of particles."""
        return jax.tree.map(lambda x: x[0], self.replicates(loc, covariance, region, key[None]))

    def replicates(self, loc, covariance: Covariance, region: Region, keys) -> Estimate:
        """Independent sets of particles, one after the other; the twist is solved once."""
        linear, twist = linear_of(loc, covariance, region), self.twist
        if self.twisted and twist is None:
            twist = twist_of(linear, LEAST_SHARE).twist
        chain = chain_of(linear, twist)
        one = jax.checkpoint(lambda key: _run(chain, key, self.num_particles))
        log_probs, least = lax.map(one, keys)
        baseless = least < min(MIN_EFFECTIVE_PARTICLES, self.num_particles)
        # A few replicates that outweigh the others show that most have missed what matters.
        if len(keys) > 1:
            baseless = baseless | (_effective(log_probs) < MIN_EFFECTIVE_REPLICATES * len(keys))
        stderr = jnp.where(lax.stop_gradient(baseless), jnp.inf, jnp.nan)
        return Estimate(log_probs, stderr.astype(log_probs.dtype))


@jax.jit
def _twists(problem) -> Twist:
    def of_row(row):
        row = standardized(*row)
        return twist_of(linear_of(*row.problem), LEAST_SHARE).twist.scaled(row.row_unit)

    return over_rows(of_row, problem)


# --- Value and gradient ---------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _run(chain: Chain, key: Array, num_particles: int) -> tuple[Array, Array]:
    """The log of the estimate, and the least effective number of particles on the way."""
    record = particles(chain, key, num_particles)
    return record.log_prob, record.least_effective


@_run.defjvp
def _run_jvp(num_particles, primals, tangents):
    chain, key = primals
    record = lax.stop_gradient(particles(chain, key, num_particles))
    uniforms = surviving(record)
    shares = record.log_weights - log_sum_exp(record.log_weights)

    def reweighted(chain):
        """The survivors' estimate as the problem moves away from where they were drawn."""
        log_weight = log_weights(chain, uniforms)
        return log_sum_exp(shares + log_weight - lax.stop_gradient(log_weight))

    _, change = jax.jvp(reweighted, (chain,), (tangents[0],))
    least = record.least_effective
    return (record.log_prob, least), (change, jnp.zeros_like(least))


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


# --- The particles --------------------------------------------------------------------------------


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
    least = jnp.minimum(least, _effective(log_weight))
    log_prob = chain.log_start + log_prob + log_sum_exp(log_weight) - math.log(n)
    flat = lambda x: x.reshape(-1, n)[:m]
    return Record(log_prob, least, log_weight, flat(uniforms), flat(parents))


def _advance(cloud: _Cloud, step) -> tuple[_Cloud, tuple[Array, Array]]:
    """Resample if that is due, then draw one variable for every particle."""
    k, weights, (low, high, loc, scale, precision, center), (shift, offset) = step
    lanes = varying_like(jnp.arange(len(cloud.log_weights)), cloud)
    means = cloud.base[k] + weights @ cloud.z
    order = jnp.argsort(means)
    effective = _effective(cloud.log_weights)
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
    shares = (lanes + offset) / len(lanes)
    own_rank = jnp.zeros_like(lanes).at[order].set(lanes)

    def kept():
        return cloud, means, lanes, own_rank

    cloud, means, parents, rank = lax.cond(due, resampled, kept)
    # Neighbours in the order of their means draw far apart; each draw alone is uniform.
    uniform = (rank * _GOLDEN + shift).astype(means.dtype) % 1.0
    tiny = float(jnp.finfo(means.dtype).eps)
    uniform = jnp.clip(uniform, 0.25 * tiny, 1.0 - 0.5 * tiny)
    interval = standardize(low, high, loc + means, scale)
    draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
    gain = log_mass - log_site_mean(precision, center, loc + means, scale)
    cloud = cloud._replace(z=cloud.z.at[k].set(draw), log_weights=cloud.log_weights + gain)
    return cloud, (uniform, parents)


def _effective(log_weights: Array) -> Array:
    """(sum w)^2 / sum w^2; 0 if all weights are 0."""
    top = jnp.max(log_weights)
    shares = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    squares = jnp.sum(shares**2)
    return jnp.where(squares > 0, shares.sum() ** 2 / jnp.where(squares > 0, squares, 1.0), 0.0)


def _systematic(log_weights: Array, shares: Array) -> Array:
    """Indices of these shares of the total, ascending, among the cumulated weights."""
    cumulated = jnp.cumsum(jnp.exp(log_weights - jnp.max(log_weights)))
    points = shares * cumulated[-1]
    return jnp.minimum(jnp.searchsorted(cumulated, points, side="right"), len(cumulated) - 1)
