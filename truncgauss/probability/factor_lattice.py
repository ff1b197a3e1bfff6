"""Boxes under a low-rank covariance: quasi-Monte Carlo over its common factors."""

import math
from dataclasses import replace
from typing import cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.covariances import Covariance, LowRank
from truncgauss.gaussian.problem import Estimate, Moments, Problem, over_rows, standardized
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.gaussian.total_moments import Pieces, pooled_moments, weighted_pieces
from truncgauss.probability.method import (
    NUM_REPLICATES,
    Growth,
    Method,
    check_counts,
    check_held,
    effective_share,
)
from truncgauss.quadrature.factor_integrand import (
    FactorPlan,
    Integrand,
    about,
    combined,
    mean_at,
    solve_plan,
)
from truncgauss.separation.lattice import lattice_points, open_uniforms
from truncgauss.special.logspace import effective_sample_size, log_mean_exp
from truncgauss.special.normal import truncated_mean_and_variance
from truncgauss.special.tails import standardize
from truncgauss.words.arguments import explained_class

MIN_EFFECTIVE_POINTS = 10.0
# The scale of a logistic density with standard deviation 1.18, wider than the integrand.
WIDTH = 0.65


@explained_class
@frozen_pytree
class FactorLattice(Method):
    """The probability of a box by importance sampling of the factors of a `LowRank` covariance.

    It replaces `Separation` where a box has many coordinates for each factor. Only the factors are
    drawn, by a randomly shifted lattice: f = anchor + scale t with independent logistic t, and

        P = E[ phi(f) det(scale) prod_j mass_j(f) / prod_k q(t_k) ].

    Here mass_j is the probability of coordinate j between its limits given f. Anchor and scale are
    near the mean and a factor of the covariance of the integrand, which is log-concave: its tails
    decrease at least exponentially, those of the logistic density q exactly so.

    Args:
        num_points: lattice points per replicate; a power of two is best (static).
        num_replicates: random shifts; their spread is the standard error (static).
        plan: anchor and scale, from `hold`.

    Raises:
        ValueError: for anything but a `Box` with a `LowRank` covariance.

    Reference:
        Genz and Bretz (2009), Computation of Multivariate Normal and t Probabilities, section 2.3,
        for the reduction to the factors. Anchor and scale are found by expectation propagation,
        Minka (2001).
    """

    num_points: int = static_field(default=1024)
    num_replicates: int = static_field(default=NUM_REPLICATES)
    plan: FactorPlan | None = None

    growth = Growth("num_points", 1.0)
    starts_full = True
    held_fields = ("plan",)

    def __post_init__(self) -> None:
        check_counts(self, "num_points", "num_replicates")

    def reason(self, problem: Problem) -> str:
        return "many coordinates for each common factor: only the factors are integrated"

    def for_problem(self, problem: Problem) -> "FactorLattice":
        _, covariance, region = problem
        if not covariance.num_factors or not region.is_box:
            raise ValueError(
                "FactorLattice applies to a tg.Box and a tg.LowRank covariance with factors, got a "
                f"{type(region).__name__} and a {type(covariance).__name__}. Use tg.Separation(), "
                "or, if a plan is held, hold the method for this problem: "
                "method.hold(loc, covariance, region)."
            )
        if self.plan is not None:
            counts = {"factors": (self.plan.anchor.shape[-1], covariance.num_factors)}
            check_held("FactorLattice", self.plan, counts, problem)
        return self

    def planned(self, problem: Problem) -> "FactorLattice":
        return replace(self, plan=_plans(problem))

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One estimate for each key; stderr is inf for fewer than ten effective points."""
        low, high = as_linear(region).low, as_linear(region).high
        invalid = jnp.any(jnp.isnan(low) | jnp.isnan(high) | (low > high))
        # An integrand that is 0 everywhere has no plan.
        box = Box(jnp.where(invalid, -jnp.inf, low), jnp.where(invalid, jnp.inf, high))
        integrand, plan = self._integrand(Problem(loc, covariance, box))
        uniforms = lattice(keys, self.num_points, plan)
        weights, level = log_weights(integrand, plan, uniforms)
        weights = weights.reshape(len(keys), self.num_points)
        log_probs = log_mean_exp(weights, axis=1) + level
        log_probs = jnp.where(invalid, jnp.nan, log_probs)
        # If all points miss the bulk of the integrand their weights may be nearly equal, but much
        # smaller than that of a point at the mode.
        offset = plan.mode - plan.anchor
        spread = solve_triangular(plan.scale, offset, lower=True) / WIDTH
        log_density = jnp.sum(jax.nn.log_sigmoid(spread) + jax.nn.log_sigmoid(-spread))
        log_density = log_density - len(offset) * math.log(WIDTH)
        height = lax.stop_gradient(integrand).heights(offset[None])[0][0]
        at_mode = height - log_density + jnp.sum(jnp.log(jnp.diagonal(plan.scale)))
        at_mode = jnp.broadcast_to(at_mode, (len(keys), 1))
        effective = effective_sample_size(jnp.concatenate([weights, at_mode], axis=1))
        alone = jnp.where(effective < MIN_EFFECTIVE_POINTS, jnp.inf, jnp.nan)
        return Estimate(log_probs, alone.astype(loc.dtype))

    def moments(self, row: Problem, key: Array) -> Moments:
        """Mean and covariance as of a mixture over the factors.

        Given the factors the coordinates are independent, so their conditional variances add to the
        diagonal of the covariance of their conditional means.
        """
        loc, covariance = row.loc, as_low_rank(row.covariance)
        low, high = as_linear(row.region).low, as_linear(row.region).high
        broken = jnp.any(~(low < high))
        low, high = jnp.where(broken, -jnp.inf, low), jnp.where(broken, jnp.inf, high)
        integrand, plan = self._integrand(row._replace(region=Box(low, high)))
        mean, rest = mean_at(plan.anchor, loc, covariance.cov_factor)
        point = lax.stop_gradient(jnp.clip(mean, low, high))
        near = standardize(low, high, point)

        def one(key: Array) -> Pieces:
            uniforms = lattice(key[None], self.num_points, plan)
            weights, level = log_weights(integrand, plan, uniforms)
            moved = combined(covariance.cov_factor, offsets(plan, uniforms)) + rest[None]
            given = (mean - point)[None] + moved, jnp.sqrt(covariance.cov_diag), near.low, near.high
            means, variances = truncated_mean_and_variance(*given)
            pieces = weighted_pieces(weights[None], means.T[None])
            own = jnp.diag(jax.nn.softmax(weights) @ variances)
            pieces = jax.tree.map(lambda x: x[0], pieces)
            return pieces._replace(
                log_shares=pieces.log_shares + level, covariances=pieces.covariances + own
            )

        pieces = parallel.each_replicate(one, jax.random.split(key, self.num_replicates))
        moments = pooled_moments(pieces, point)
        return jax.tree.map(lambda x: jnp.where(broken, jnp.nan, x), moments)

    def numbers_held(self, dimension: int) -> int:
        return 8 * self.num_points * self.num_replicates * dimension

    def effective_share(self, problem: Problem, key: Array) -> Array:
        integrand, plan = self._integrand(standardized(*problem).problem)
        uniforms = lattice(key[None], self.num_points, plan)
        return effective_sample_size(log_weights(integrand, plan, uniforms)[0]) / self.num_points

    def account(self, problem: Problem, key: Array) -> list[str]:
        rank = as_low_rank(problem.covariance).rank
        return [
            f"factors  {rank} integrated, coordinates in closed form",
            f"points   {float(effective_share(self, problem, key)):.0%} effective",
        ]

    def _integrand(self, row: Problem) -> tuple[Integrand, FactorPlan]:
        """The integrand about the anchor of the plan that is held, or of that for this problem."""
        plan = lax.stop_gradient(plan_of(row) if self.plan is None else self.plan)
        low, high = as_linear(row.region).low, as_linear(row.region).high
        return about(plan.anchor, row.loc, as_low_rank(row.covariance), low, high), plan


def as_low_rank(covariance: Covariance) -> LowRank:
    if covariance.num_factors is None:
        raise TypeError(f"a tg.LowRank is expected, got {type(covariance).__name__}.")
    return cast(LowRank, covariance)


def plan_of(row: Problem) -> FactorPlan:
    box = as_linear(row.region)
    return solve_plan(row.loc, as_low_rank(row.covariance), box.low, box.high)


@jax.jit
def _plans(problem: Problem) -> FactorPlan:
    """The plan of every row of a problem. Factors have no units, so it serves all units."""
    return over_rows(lambda row: plan_of(standardized(*row).problem), problem)


def lattice(keys: Array, num_points: int, plan: FactorPlan) -> Array:
    """Uniforms of shape (R * n, r): a lattice with a new random shift for each key.

    It is not folded, because the integrand vanishes with all derivatives on the cube's faces.
    """
    rank = len(plan.anchor)
    points = lattice_points(num_points, rank)
    shifts = jax.vmap(lambda key: jax.random.bits(key, (rank,), jnp.uint32))(keys)
    bits = points[None] + shifts[:, None, :]
    return open_uniforms(bits.reshape(-1, rank), plan.anchor.dtype)


def offsets(plan: FactorPlan, uniforms: Array) -> Array:
    """The factors less the anchor at points (n, r) of the unit cube, shape (n, r)."""
    spread = WIDTH * (jnp.log(uniforms) - jnp.log1p(-uniforms))
    return jnp.matmul(spread, plan.scale.T, precision="highest")


def log_weights(integrand: Integrand, plan: FactorPlan, uniforms: Array) -> tuple[Array, Array]:
    """The log weights of points of shape (n, r), shape (n,), less a common level; and the level."""
    heights, level = integrand.heights(offsets(plan, uniforms))
    log_density = jnp.sum(jnp.log(uniforms) + jnp.log1p(-uniforms) - math.log(WIDTH), axis=-1)
    return heights - log_density + jnp.sum(jnp.log(jnp.diagonal(plan.scale))), level
