"""Boxes under a large dense covariance: separation of variables as products of matrices."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Float

from truncgauss.execution import parallel
from truncgauss.execution.compiling import Cost
from truncgauss.execution.pytrees import Batched, frozen_pytree, static_field
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.linalg import in_full_precision
from truncgauss.gaussian.problem import (
    CovarianceLike,
    Estimate,
    Loc,
    Problem,
    as_problem,
    over_rows,
)
from truncgauss.gaussian.regions import Box, Region, as_linear
from truncgauss.gaussian.regions.region import decided_limits
from truncgauss.gaussian.total_moments import Moments
from truncgauss.probability.method import (
    Method,
    check_counts,
    check_held,
    decided,
    spread_and_common,
)
from truncgauss.separation.block_factor import (
    Layout,
    blocks_of,
    cholesky,
    cholesky_reversed,
    empty_blocks,
    layout_of,
    matrix_of,
    scales,
)
from truncgauss.separation.block_paths import (
    BlockGradient,
    BlockLimits,
    Uniforms,
    log_weights,
    with_gradient_of,
)
from truncgauss.separation.block_tilt import tilt_of
from truncgauss.separation.lattice import lattice_points, open_uniforms, shifted_uniforms
from truncgauss.separation.weights import Sums, summary, summed, unseen_share_of
from truncgauss.special import log_interval_mass, log_mean_exp, standardize
from truncgauss.special.logspace import log_sum_exp

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

    The cost is d^3 / 3 multiplications and additions for the factor, d^2 for each point, and about
    three times as much for a value with its gradient, which is that of the value at a fixed tilt.
    Besides the matrix and its gradient, half a matrix is held for a value and a whole one for a
    value with its gradient. Of two equal entries of the matrix one is read. A covariance that is
    singular, or not positive definite, gives NaN.

    Second derivatives are forward derivatives of the gradient, such as
    `jax.jvp(jax.grad(f), (x,), (v,))` or `jax.hessian(f)`. The reverse derivative of a derivative
    ends in JAX's error about loops.

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

    def plan_of(self, order: Array, factor: Array, limits: BlockLimits) -> TiltPlan:
        """The plan that is held, or else the one for a problem in such an order."""
        if self.plan is not None:
            return lax.stop_gradient(self.plan)
        if not self.tilted:
            return TiltPlan(order, jnp.zeros_like(limits.loc.ravel()[: len(order)]), order[0] >= 0)
        tilt = tilt_of(*lax.stop_gradient((factor, limits)))
        return lax.stop_gradient(TiltPlan(order, tilt.tilt[: len(order)], tilt.converged))

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One estimate for each key, as many at a time as fit a pass."""
        begun = self._begun(Problem(loc, covariance, region))

        def some(keys: Array) -> Sums:
            uniforms = _uniforms(keys, self.num_points, begun.layout, loc.dtype)
            num_lanes = len(keys) * self.num_points
            total, level, _ = log_weights(*begun.sampled, uniforms, num_lanes)
            return summed(total, level, len(keys))

        return self._summary(begun, lax.map(some, self._passes(keys, covariance.dimension)))

    def averaged(self, row: Problem, key: Array) -> Estimate:
        """The log of the mean of the replicates, whose derivative is by `value_and_slopes`."""
        box = as_linear(row.region)
        varying = jnp.zeros_like(box.low, bool)
        low, high, known = decided_limits(varying, box.low, box.high, row.loc)
        return decided(known, _averaged(self, row._replace(region=Box(low, high)), key))

    def value_and_slopes(
        self, row: Problem, key: Array, of_matrix: bool = True
    ) -> tuple[Estimate, tuple[Array, Array | None, Array, Array]]:
        """The estimate of a row, and the derivatives of its log P, at a fixed order and tilt.

        They are in loc, covariance matrix (None unless `of_matrix`), and lower and upper limits.

        The gradient of the log of a mean of weights is the mean of those of their logs, by weight.
        Each pass over replicates adds its part to the gradient in the factor, of which there is
        one, after what is there has been reduced to its share; from it the gradient in the
        covariance is made in its place.
        """
        begun, dtype = self._begun(row), row.loc.dtype

        def some(
            carry: tuple[BlockGradient, Array], keys: Array
        ) -> tuple[tuple[BlockGradient, Array], Sums]:
            gradient, log_total = carry
            uniforms = _uniforms(keys, self.num_points, begun.layout, dtype)
            num_lanes = len(keys) * self.num_points
            total, level, sums = log_weights(*begun.sampled, uniforms, num_lanes)
            whole = jnp.logaddexp(log_total, log_sum_exp(total) + level)
            size = jnp.where(whole == -jnp.inf, 0.0, whole)  # all weights are 0: so is the gradient
            gradient = jax.tree.map(lambda x: x * jnp.exp(log_total - size), gradient)
            weights = jnp.exp(total + (level - size))
            moved = with_gradient_of(weights, sums, *begun.sampled, uniforms, gradient)
            return (moved, whole), summed(total, level, len(keys))

        keys = self._keys(key)
        empty = empty_blocks(begun.layout, dtype) if of_matrix else None
        start = BlockGradient(empty, jax.tree.map(jnp.zeros_like, begun.limits))
        nothing = jnp.full((), -jnp.inf, dtype)
        passes = self._passes(keys, row.covariance.dimension)
        (slope, _), sums = lax.scan(some, (start, nothing), passes)
        result = self._combined(self._summary(begun, sums))
        matrix = None
        if slope.factor is not None:
            matrix = matrix_of(cholesky_reversed(begun.factor, slope.factor), begun.order)
        place = jnp.argsort(begun.order)
        low, high, loc = (x.ravel()[place] for x in slope.limits)
        return result, (loc, matrix, low, high)

    def _keys(self, key: Array) -> Array:
        """The keys of the replicates."""
        return key[None] if self.num_replicates == 1 else jax.random.split(key, self.num_replicates)

    def _combined(self, parts: Estimate) -> Estimate:
        """The estimate from those of the replicates, which share the work among the devices."""
        if self.num_replicates == 1:
            few = jnp.isinf(parts.stderr[0])  # which is all that one replicate can show
            return Estimate(parts.log_prob[0], jnp.where(few, jnp.inf, jnp.nan))
        return Estimate(log_mean_exp(parts.log_prob, axis=0), self.combined_stderr(*parts))

    def _begun(self, problem: Problem) -> "_Begun":
        """Quantities that all points have in common."""
        order = self.order_of(problem)
        layout, factor, limits = _factorised(problem, order)
        tilt = layout.padded(self.plan_of(order, factor, limits).tilt, 0.0)
        thinnest = _thinnest(
            layout.padded(problem.covariance.variances[order], 1.0), factor, limits
        )
        unseen = unseen_share_of(thinnest, self.num_replicates * self.num_points)
        return _Begun(layout, order, factor, limits, tilt, unseen)

    def _summary(self, begun: "_Begun", sums: Sums) -> Estimate:
        """One estimate for each key from the sums of every pass."""
        at_once = sums.log_total.shape[1]
        levels = jnp.repeat(sums.level, at_once)
        sums = jax.tree.map(jnp.ravel, sums)._replace(level=levels)
        return summary(sums, self.num_points, begun.unseen, together=True)

    def _passes(self, keys: Array, dimension: int) -> Array:
        """The keys in equal parts, each as large as fits a pass."""
        at_once = self._at_once(len(keys), dimension)
        return keys.reshape(len(keys) // at_once, at_once)

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
        return spread_and_common(log_probs, alone)

    def moments(self, row: Problem, key: Array) -> Moments:
        """The moments by the method that this one replaces."""
        return super().moments(row, key) if self.whole is None else self.whole.moments(row, key)

    def numbers_held(self, dimension: int) -> int:
        return 8 * min(self.num_points * self.num_replicates * dimension, PASS_SIZE) + dimension**2

    def cost(self, problem: Problem) -> Cost:
        """None to a compiler: no fusion makes products of matrices faster."""
        return Cost(0)

    def account(self, problem: Problem, key: Array) -> list[str]:
        """The blocks, and whether the tilt converged."""
        held = self if self.plan is not None else self.hold(*problem)
        layout = layout_of(problem.covariance.dimension)
        converged = held.plan is not None and bool(held.plan.converged)
        return [
            f"factor   {layout.num_blocks} blocks of {layout.block} variables in a row",
            f"tilt     {'converged' if converged else 'none found'}",
        ]


def serves(covariance: Covariance, region: Region) -> bool:
    """Whether a problem is too large for the dense algebra of `Separation`."""
    dense = isinstance(covariance, CovarianceMatrix) and isinstance(region, Box)
    return dense and covariance.dimension >= LEAST_DIMENSION


class _Begun(NamedTuple):
    """A problem's factor with its limits and tilt in blocks, and the mass that may be unseen."""

    layout: Layout
    order: Array
    factor: Array
    limits: BlockLimits
    tilt: Array
    unseen: Array

    @property
    def sampled(self) -> tuple[Array, BlockLimits, Array]:
        return self.factor, self.limits, self.tilt


@jax.custom_jvp
def _averaged(method: DenseBlocks, row: Problem, key: Array) -> Estimate:
    return method._combined(method.replicates(*row, method._keys(key)))


def _averaged_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Estimate, Estimate]:
    changes = jax.tree.leaves(tangents[1])  # of loc, matrix, lower and upper limits
    estimate, slopes = _sloped(*primals, not isinstance(changes[1], SymbolicZero))
    total = jnp.zeros_like(estimate.log_prob)
    for slope, change in zip(slopes, changes, strict=True):
        if not isinstance(change, SymbolicZero):
            total = total + jnp.sum(slope * change)
    return estimate, Estimate(total, jnp.zeros_like(estimate.stderr))


_averaged.defjvp(in_full_precision(_averaged_jvp), symbolic_zeros=True)


# Without a rule for the whole JAX forgets those within loops, see `_nan_slope`.
@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _sloped(method: DenseBlocks, row: Problem, key: Array, of_matrix: bool) -> Any:
    return method.value_and_slopes(row, key, of_matrix)


@_sloped.defjvp
@in_full_precision
def _sloped_jvp(of_matrix: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    method, row, key = primals
    return jax.jvp(lambda row: method.value_and_slopes(row, key, of_matrix), (row,), tangents[1:2])


@jax.jit
def _plans(method: DenseBlocks, problem: Problem) -> TiltPlan:
    def of_row(row: Problem) -> TiltPlan:
        order = method.order_of(row)
        _, factor, limits = _factorised(row, order)
        return method.plan_of(order, factor, limits)

    return over_rows(of_row, problem)


def _factorised(problem: Problem, order: Array) -> tuple[Layout, Array, BlockLimits]:
    layout = layout_of(len(order))
    factor = cholesky(blocks_of(problem.covariance.covariance_matrix, order, layout))
    box, loc = as_linear(problem.region), layout.padded(problem.loc[order], 0.0)
    low, high = (
        layout.padded(x[order], fill) for x, fill in ((box.low, -jnp.inf), (box.high, jnp.inf))
    )
    return layout, factor, BlockLimits(low, high, loc)


def _thinnest(variances: Array, factor: Array, limits: BlockLimits) -> Array:
    """The smallest conditional standard deviation of a limited variable, relative to its own."""
    share = lax.stop_gradient(scales(factor) / jnp.sqrt(variances))
    limited = jnp.isfinite(limits.low) | jnp.isfinite(limits.high)
    return jnp.min(jnp.where(limited, share, 1.0))


def _uniforms(keys: Array, num_points: int, layout: Layout, dtype: jnp.dtype) -> Uniforms:
    """Uniforms for each block, shape (b, R * n): of a lattice in front, then random."""
    pairs, b = jax.vmap(jax.random.split)(keys), layout.block
    dimension = min(LATTICE_DIMENSION, b)
    front = shifted_uniforms(lattice_points(num_points, dimension), pairs[:, 0], dtype)
    front = jnp.pad(front, ((0, b - dimension), (0, 0)))

    def block(k: Array) -> Array:
        def bits_of(key: Array) -> Array:
            return jax.random.bits(jax.random.fold_in(key, k), (b, num_points), jnp.uint32)

        bits = jnp.moveaxis(jax.vmap(bits_of)(pairs[:, 1]), 0, 1)
        random = open_uniforms(bits.reshape(b, len(keys) * num_points), dtype)
        in_front = (jnp.arange(b)[:, None] < dimension) & (k == 0)
        return jnp.where(in_front, front, random)

    return block
