"""Boxes under a large dense covariance: separation of variables as products of matrices."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from truncgauss import parallel
from truncgauss.compiling import MEDIUM
from truncgauss.covariances import Covariance, CovarianceMatrix
from truncgauss.points import lattice_points, open_uniforms, shifted_uniforms
from truncgauss.probability.method import Method, check_counts, check_held, spread
from truncgauss.problem import CovarianceLike, Estimate, Loc, Problem, as_problem, over_rows
from truncgauss.pytrees import Batched, frozen_pytree, static_field
from truncgauss.regions import Box, Region, as_linear
from truncgauss.separation.block_factor import (
    Columns,
    Layout,
    cholesky,
    columns_of,
    layout_of,
    scales,
)
from truncgauss.separation.block_paths import BlockLimits, log_weights
from truncgauss.separation.block_tilt import tilt_of
from truncgauss.separation.weights import Sums, summary, summed, unseen_share_of
from truncgauss.special import log_interval_mass, standardize
from truncgauss.total_moments import Moments

LEAST_DIMENSION = 3000  # in fewer dimensions `Separation` finds a better proposal
LATTICE_DIMENSION = 256  # variables whose draws are from a lattice; those of the others are random
PASS_SIZE = 2**24  # numbers in an array of one pass


@frozen_pytree
class TiltPlan(Batched):
    """An order of the variables and a minimax tilt.

    Attributes:
        order: indices of the variables, the first to be drawn in front, shape (d,).
        tilt: in that order, the mean of the proposal of each standardised variable, shape (d,).
        converged: whether the solver converged; if not, the tilt is 0.
    """

    order: Array
    tilt: Array
    converged: Array

    event_ranks = {"order": 1, "tilt": 1, "converged": 0}


@frozen_pytree
class DenseBlocks(Method):
    """The probability of a box in thousands of dimensions, under a dense covariance.

    It replaces `Separation` there. It is the same importance sampling, with the minimax tilt, the
    variables of smallest marginal probability first: the covariance is factorised by blocks, half
    of the factor is stored, the means of a block given all earlier draws are products of matrices,
    and the tilt is solved for by products of the factor with vectors. The first 256 variables are
    drawn from a randomly shifted lattice, the others at random. Within
    `tg.parallel.replicates(mesh)` the devices share one factorisation, each with its part of every
    block, and divide the points.

    The cost is d^3 / 3 multiplications and additions for the factor, d^2 / 2 for each point, and
    about three times as much for a value with its gradient, which is that of the value at a fixed
    tilt. Of two equal entries of the matrix one is read. A covariance that is singular, or not
    positive definite, gives NaN.

    The stderr is inf where the replicates have fewer than ten effective points on average. Where
    that is so for some keys only, those with a finite one are no fair sample: at a third of 24 keys
    they lay 1.3 standard errors too low. Take four times the points there.

    Args:
        num_points: points per replicate (static); a power of two is best.
        num_replicates: random shifts, whose variance gives the standard error (static).
        tilted: whether to use a tilt (static).
        whole: the method for moments, whose algebra is that of dense matrices.
        plan: a fixed tilt, from `hold`.

    Raises:
        ValueError: for anything but a `Box` with a covariance matrix.

    References:
        Genz and Bretz (2009), Computation of Multivariate Normal and t Probabilities, section 4.
        Botev (2017), The normal law under linear restrictions: simulation and estimation via
        minimax tilting. Cao, Genton, Keyes and Turkiyyah (2021), Exploiting low-rank covariance
        structures for computing high-dimensional normal and Student-t probabilities, for
        factorisation and means by blocks.
    """

    num_points: int = static_field(default=1024)
    num_replicates: int = static_field(default=16)
    tilted: bool = static_field(default=True)
    whole: Method | None = None
    plan: TiltPlan | None = None

    own_units = False  # a factorisation by rows has the same digits in all units
    shares_replicates = True
    held_fields = ("plan",)

    def __post_init__(self) -> None:
        check_counts(self, "num_points", "num_replicates")

    @property
    def is_held(self) -> bool:
        """Always: a value and its gradient, from one factorisation, have one tilt."""
        return True

    def reason(self, problem: Problem) -> str:
        return "a dense covariance of thousands of dimensions: by blocks"

    def check(self, loc: Float[Array, "*batch d"], covariance: Covariance, region: Region) -> None:
        if not isinstance(covariance, CovarianceMatrix) or not isinstance(region, Box):
            raise ValueError(
                "DenseBlocks applies to a tg.Box and a covariance matrix, got a "
                f"{type(region).__name__} and a {type(covariance).__name__}. Use tg.Separation()."
            )
        if self.plan is not None:
            counts = {"dimensions": (self.plan.tilt.shape[-1], covariance.dimension)}
            check_held("DenseBlocks", self.plan, counts, Problem(loc, covariance, region))

    def hold(self, loc: Loc, covariance: CovarianceLike, region: Region) -> "DenseBlocks":
        """The method with its tilt solved for this problem, or for each row of a batch."""
        problem = as_problem(loc, covariance, region)
        fresh = replace(self, plan=None)
        fresh.check(*problem)
        return replace(fresh, plan=_plans(fresh, problem))

    def order_of(self, problem: Problem) -> Array:
        """The order that is held, or else that of increasing marginal probability.

        It did as well as the order by conditional probability, which costs d^3, in three random
        problems of 300 variables.
        """
        if self.plan is not None:
            return self.plan.order
        box, scale = as_linear(problem.region), jnp.sqrt(problem.covariance.variances)
        interval = standardize(box.low, box.high, problem.loc, scale)
        return jnp.argsort(lax.stop_gradient(log_interval_mass(*interval)), stable=True)

    def plan_of(self, order: Array, factor: Columns, limits: BlockLimits) -> TiltPlan:
        """The plan that is held, or else the one for a problem in such an order."""
        if self.plan is not None:
            return lax.stop_gradient(self.plan)
        if not self.tilted:
            return TiltPlan(order, jnp.zeros_like(limits.loc.ravel()[: len(order)]), order[0] >= 0)
        found = tilt_of(*lax.stop_gradient((factor, limits)))
        return lax.stop_gradient(TiltPlan(order, found.tilt[: len(order)], found.converged))

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        """One random shift of the lattice."""
        log_probs, alone = self.replicates(loc, covariance, region, key[None])
        return Estimate(log_probs[0], jnp.where(jnp.isinf(alone[0]), jnp.inf, jnp.nan))

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One estimate for each key, as many at a time as fit a pass."""
        problem, d = Problem(loc, covariance, region), covariance.dimension
        order = self.order_of(problem)
        layout, factor, limits = _factorised(problem, order)
        tilt = layout.padded(self.plan_of(order, factor, limits).tilt, 0.0)
        thinnest = _thinnest(layout.padded(covariance.variances[order], 1.0), factor, limits)
        unseen = unseen_share_of(thinnest, self.num_replicates * self.num_points)

        def some(keys: Array) -> Sums:
            uniforms = _uniforms(keys, self.num_points, layout, loc.dtype)
            return summed(*log_weights(factor, limits, tilt, uniforms), len(keys))

        at_once = self._at_once(len(keys), d)
        if at_once == len(keys):
            return summary(some(keys), self.num_points, unseen, together=True)
        passes = keys.reshape(len(keys) // at_once, at_once)
        found = lax.map(jax.checkpoint(some), passes)
        sums = Sums(
            found.log_total.ravel(), found.inverse.ravel(), jnp.repeat(found.level, at_once)
        )
        return summary(sums, self.num_points, unseen, together=True)

    def _at_once(self, num_keys: int, dimension: int) -> int:
        """The number of replicates of a pass."""
        devices = parallel.num_sharing()
        most = max(1, PASS_SIZE * devices // (self.num_points * dimension))
        fitting = [
            count
            for count in range(1, num_keys + 1)
            if num_keys % count == 0 and count * self.num_points % devices == 0
        ]
        if not fitting:
            raise ValueError(
                f"DenseBlocks: {devices} devices do not divide {num_keys} replicates of "
                f"{self.num_points} points. Take a power of two of points."
            )
        return max((count for count in fitting if count <= most), default=fitting[0])

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """The standard error from the replicates and from mass that no point may have sampled."""
        return jnp.hypot(spread(log_probs, alone), jnp.where(jnp.isfinite(alone[0]), alone[0], 0.0))

    def moments(self, row: Problem, key: Array) -> Moments:
        """The moments by the method that this one replaces."""
        return super().moments(row, key) if self.whole is None else self.whole.moments(row, key)

    def numbers_held(self, dimension: int) -> int:
        return 8 * min(self.num_points * self.num_replicates * dimension, PASS_SIZE) + dimension**2

    def effort(self, problem: Problem) -> dict[str, Any]:
        """MEDIUM: the time is spent in products of matrices, which no fusion makes faster."""
        return MEDIUM

    def account(self, problem: Problem, key: Array) -> list[str]:
        """The blocks, and whether the tilt converged."""
        held = self if self.plan is not None else self.hold(*problem)
        layout = layout_of(problem.covariance.dimension)
        found = held.plan is not None and bool(held.plan.converged)
        return [
            f"factor   {layout.num_blocks} blocks of {layout.block} variables in a row",
            f"tilt     {'converged' if found else 'none found'}",
        ]


def serves(covariance: Covariance, region: Region) -> bool:
    """Whether a problem is too large for the dense algebra of `Separation`."""
    dense = isinstance(covariance, CovarianceMatrix) and isinstance(region, Box)
    return dense and covariance.dimension >= LEAST_DIMENSION


@jax.jit
def _plans(method: DenseBlocks, problem: Problem) -> TiltPlan:
    def of_row(row: Problem) -> TiltPlan:
        order = method.order_of(row)
        _, factor, limits = _factorised(row, order)
        return method.plan_of(order, factor, limits)

    return over_rows(of_row, problem)


def _factorised(problem: Problem, order: Array) -> tuple[Layout, Columns, BlockLimits]:
    layout = layout_of(len(order))
    factor = cholesky(columns_of(problem.covariance.covariance_matrix, order, layout))
    box, loc = as_linear(problem.region), layout.padded(problem.loc[order], 0.0)
    low, high = (
        layout.padded(x[order], fill) for x, fill in ((box.low, -jnp.inf), (box.high, jnp.inf))
    )
    return layout, factor, BlockLimits(low, high, loc)


def _thinnest(variances: Array, factor: Columns, limits: BlockLimits) -> Array:
    """The smallest conditional standard deviation of a limited variable, relative to its own."""
    share = lax.stop_gradient(scales(factor) / jnp.sqrt(variances))
    limited = jnp.isfinite(limits.low) | jnp.isfinite(limits.high)
    return jnp.min(jnp.where(limited, share, 1.0))


def _uniforms(keys: Array, num_points: int, layout: Layout, dtype: jnp.dtype) -> Columns:
    """Uniforms for each block, shape (b, R * n): of a lattice in front, then random."""
    pairs = jax.vmap(jax.random.split)(keys)
    dimension = min(LATTICE_DIMENSION, layout.block)
    front = shifted_uniforms(lattice_points(num_points, dimension), pairs[:, 0], dtype)

    def block(k: int) -> Array:
        num_rows = layout.block - (dimension if k == 0 else 0)

        def own(key: Array) -> Array:
            return jax.random.bits(jax.random.fold_in(key, k), (num_rows, num_points), jnp.uint32)

        bits = jnp.moveaxis(jax.vmap(own)(pairs[:, 1]), 0, 1)
        rest = open_uniforms(bits.reshape(num_rows, num_points * len(keys)), dtype)
        return jnp.concatenate([front, rest]) if k == 0 else rest

    return tuple(block(k) for k in range(layout.num_blocks))
