"""Sequential Monte Carlo: separation of variables with resampling, in natural order."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Moments, Problem, over_rows, standardized
from truncgauss.gaussian.regions.region import GaussianLimits, Region, as_linear
from truncgauss.gaussian.total_moments import Pieces, followed, pooled_moments, weighted_pieces
from truncgauss.probability.method import (
    NUM_REPLICATES,
    Growth,
    Method,
    check_counts,
    check_held,
    check_linear,
)
from truncgauss.probability.separation import is_large
from truncgauss.separation.kernel import paths
from truncgauss.separation.particles import chain_of, log_weights, particles, surviving, twist_of
from truncgauss.separation.plan import Proposal
from truncgauss.separation.twisting import Twist
from truncgauss.separation.weights import draw_offsets, inner_point
from truncgauss.special.logspace import effective_sample_size, log_sum_exp
from truncgauss.words.arguments import explained_class

LEAST_SHARE = 1 / 3  # the smallest fraction of a site's precision, see `twist_of`
MIN_EFFECTIVE_PARTICLES = 10.0
MIN_EFFECTIVE_REPLICATES = 0.4  # as a fraction of all replicates


@explained_class
@frozen_pytree
class SequentialMonteCarlo(Method):
    """Sequential Monte Carlo over the constraints, in their natural order, with resampling.

    With y the Gaussian vector of the constraints' values, each particle draws y_k within its limits
    given its earlier draws, and its weight is multiplied by the mass of the interval. Particles are
    resampled when the effective sample size is below half of their number, so that in long chains
    and fields the error grows with the length, not exponentially. With w_k the incremental weights,

        P_hat = prod_k mean_i w_k^(i)   is unbiased for P.

    If `twisted`, the proposals use the sites of expectation propagation (see the module
    `twisting`), which removes most of the variance at the cost of computing them. Within a step
    the particles, sorted by their conditional means, share one randomly shifted golden lattice.

    The value is discontinuous where resampling changes. `grad` returns an *estimate of the gradient
    of log P* with an error of its own, not the derivative of the value: the smoothed score, the
    mean of d log w over the surviving paths. It does not serve HMC or line searches. Early
    variables of a long chain have few distinct surviving ancestors: use many replicates.

    stderr is inf where the effective sample size was below ten at some step, or where a few
    replicates dominate the mean.

    Args:
        num_particles: particles per replicate (static).
        num_replicates: independent runs, whose variance gives the standard error (static).
        twisted: whether the proposals use sites (static).
        twist: fixed sites, from `hold`.

    Raises:
        ValueError: for a `Ball` or `Ellipsoid`, or a count that is not positive.

    Reference:
        Ridgway (2016), Computation of Gaussian orthant probabilities in high dimension. L'Ecuyer,
        Lecot and Tuffin (2008), A randomized quasi-Monte Carlo simulation method for Markov chains.
        Guarniero, Johansen and Lee (2017), The iterated auxiliary particle filter. Minka (2001),
        Expectation Propagation for Approximate Bayesian Inference, for the sites.

    Example:
        >>> lag = jnp.abs(jnp.arange(40)[:, None] - jnp.arange(40))
        >>> orthant = tg.Box(jnp.zeros(40), jnp.inf)
        >>> method = tg.SequentialMonteCarlo(num_particles=256)
        >>> estimate = tg.log_probability(jnp.zeros(40), 0.7**lag, orthant, method)
        >>> bool(abs(estimate.log_prob + 9.81) < 0.05)
        True
    """

    num_particles: int = static_field(default=2048)
    num_replicates: int = static_field(default=NUM_REPLICATES)
    twisted: bool = static_field(default=True)
    twist: Twist | None = None

    growth = Growth("num_particles", 2.0, price=4)  # resampling sorts the particles
    starts_full = True  # particles are for problems that are too hard for the points of rtol
    held_fields = ("twist",)
    common_error = True  # from what rounding may have moved

    def __post_init__(self) -> None:
        check_counts(self, "num_particles", "num_replicates")

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "SequentialMonteCarlo | None":
        if is_large(problem) or not problem.region.is_linear:
            return None
        return cls(num_particles=2 * num_points)

    def reason(self, problem: Problem) -> str:
        return "separation of variables had a larger error than resampling"

    def numbers_held(self, dimension: int) -> int:
        return 6 * self.num_particles * dimension

    def scaled(self, by: Array) -> "SequentialMonteCarlo":
        return self if self.twist is None else replace(self, twist=self.twist.scaled(by))

    def for_problem(self, problem: Problem) -> "SequentialMonteCarlo":
        check_linear("SequentialMonteCarlo", problem.region)
        if self.twist is not None:
            m = as_linear(problem.region).num_constraints
            counts = {"constraints": (self.twist.precision.shape[-1], m)}
            check_held("SequentialMonteCarlo", self.twist, counts, problem)
        return self

    def planned(self, problem: Problem) -> "SequentialMonteCarlo":
        """The method with its sites held. It still resamples: the value stays discontinuous."""
        return replace(self, twist=_twists(problem)) if self.twisted else self

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """Independent runs with the same sites; their stderr is what rounding may have moved."""
        chain = self._chain(as_linear(region).limits_in(loc, covariance))
        one = jax.checkpoint(lambda key: _run(chain, key, self.num_particles))
        log_probs, least = lax.map(one, keys)
        unsupported = least < min(MIN_EFFECTIVE_PARTICLES, self.num_particles)
        # If a few replicates dominate, most have missed the bulk of the integrand.
        if len(keys) > 1:
            effective = effective_sample_size(log_probs)
            unsupported = unsupported | (effective < MIN_EFFECTIVE_REPLICATES * len(keys))
        assert chain.twist is not None
        stderr = jnp.where(lax.stop_gradient(unsupported), jnp.inf, chain.twist.rounding)
        return Estimate(log_probs, stderr.astype(log_probs.dtype))

    def _chain(self, limits: GaussianLimits) -> Proposal:
        twist = self.twist
        if self.twisted and twist is None:
            twist = twist_of(limits, LEAST_SHARE)
        return chain_of(limits, twist)

    def moments(self, row: Problem, key: Array) -> Moments:
        chain = self._chain(row.limits)
        constraints, extra, tilt = chain.path_inputs
        point = inner_point(constraints, tilt)

        def one(key: Array) -> Pieces:
            record = lax.stop_gradient(particles(chain, key, self.num_particles))
            uniforms = surviving(record)
            means = paths(constraints, tilt, uniforms).means
            moved = log_weights(chain, uniforms)
            weights = record.log_weights + (moved - lax.stop_gradient(moved))
            drawn = draw_offsets(constraints, tilt, uniforms, means, point)
            pieces = weighted_pieces(weights[None], drawn.deviations[None], drawn.variances[-1:])
            pieces = jax.tree.map(lambda x: x[0], pieces)
            effective = jnp.minimum(record.least_effective, pieces.num_effective)
            return pieces._replace(log_shares=record.log_prob, num_effective=effective)

        pieces = parallel.each_replicate(one, jax.random.split(key, self.num_replicates))
        factors = constraints.factor, extra.factor
        region, order = as_linear(row.region), jnp.arange(len(tilt))
        regression = region.regression(row.loc, row.covariance, order, factors, point)
        return pooled_moments(followed(pieces, regression), regression.origin)


@jax.jit
def _twists(problem: Problem) -> Twist:
    def of_row(row: Problem) -> Twist:
        given = standardized(*row)
        return twist_of(given.problem.limits, LEAST_SHARE).scaled(given.row_unit)

    return over_rows(of_row, problem)


# --- Value and gradient ---------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _run(chain: Proposal, key: Array, num_particles: int) -> tuple[Array, Array]:
    """The log of the estimate of one run, and its smallest effective sample size."""
    record = particles(chain, key, num_particles)
    return record.log_prob, record.least_effective


@_run.defjvp
@in_full_precision
def _run_jvp(
    num_particles: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    chain, key = primals
    record = lax.stop_gradient(particles(chain, key, num_particles))
    uniforms = surviving(record)
    shares = record.log_weights - log_sum_exp(record.log_weights)

    def reweighted(chain: Proposal) -> Array:
        """The estimate by the surviving paths, reweighted for another problem."""
        log_weight = log_weights(chain, uniforms)
        return log_sum_exp(shares + log_weight - lax.stop_gradient(log_weight))

    _, change = jax.jvp(reweighted, (chain,), (tangents[0],))
    least = record.least_effective
    return (record.log_prob, least), (change, jnp.zeros_like(least))
