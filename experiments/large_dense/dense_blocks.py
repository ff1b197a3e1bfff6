"""The probability of a box under a dense covariance of thousands of dimensions, by blocks.

`DenseBlocks` is a method of a user's own: copy this file, and pass the method by name. Of an
installed truncgauss it can be imported, too:

```python
from truncgauss.experiments.large_dense.dense_blocks import DenseBlocks

estimate = tg.log_probability(loc, covariance, tg.Box(low, high), DenseBlocks())
```

From the package it takes the contract of a method and the parts that CONTRIBUTING lists.

A symmetric matrix is stored by its square blocks on and below the diagonal, of an n x n
arrangement: the rows of one array, shape (n (n + 1) / 2, b, b), block (i, j) at i (i + 1) / 2 + j.
Half of the matrix is stored, and a loop replaces blocks in place. Over a mesh the rows within each
block are spread: every device has its part of every block, as much to do as the others at every
step, and only blocks that multiply from the right travel.

References:
    Golub and Van Loan (2013), Matrix Computations, section 4.2, for the blocked factorisation.
    Murray (2016), Differentiation of the Cholesky decomposition, for its reverse.
"""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero
from jax.scipy.sparse.linalg import cg
from jax.sharding import NamedSharding, PartitionSpec

import truncgauss as tg
from truncgauss.arrays.linalg import in_full_precision, product
from truncgauss.arrays.pytrees import Batched, frozen_pytree, static_field
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.problem import over_rows
from truncgauss.probability.method import check_counts, check_held
from truncgauss.separation.kernel import (
    end_tangents,
    in_batches,
    interval_slopes,
    substitution,
    sweep,
)
from truncgauss.separation.lattice import lattice_points, open_uniforms, shifted_uniforms
from truncgauss.separation.tilting import saddle_of
from truncgauss.special.logspace import less_level

LARGEST_BLOCK = 1024  # rows of a block, whose products then run at nearly full speed
GRAIN = 64  # rows of a block are a multiple of it, which the devices of a mesh divide
PANEL = 64  # columns of a block that are factorised at once
LATTICE_DIMENSION = 256  # variables whose draws are from a lattice; those of the others are random
PASS_SIZE = 2**24  # numbers in an array of one pass
POINTS_IN_LAYER = 30  # with fewer near a limit they may have missed mass
EFFECTIVE_POINTS = 10  # of a replicate, on average, below which its weights tell no error
PRECISE = 1e-3  # gain in log P by another Newton step for the tilt; a proposal needs few digits
RESIDUAL = 1e-2  # of the linear systems for it, relative
MOST_PRODUCTS = 60


# --- The method -----------------------------------------------------------------------------------


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
class DenseBlocks(tg.Method):
    """The probability of a box in thousands of dimensions, under a dense covariance.

    It is the importance sampling of `tg.Separation` with the minimax tilt, the variables of
    smallest marginal probability first: the covariance is factorised by blocks, half of the factor
    is stored, the means of a block given all earlier draws are products of matrices, and the tilt
    is solved for by products of the factor with vectors. The first 256 variables are drawn from a
    randomly shifted lattice, the others at random. Within `tg.parallel.replicates(mesh)` the
    devices share one factorisation, each with its part of every block, and divide the points.

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
    plan: TiltPlan | None = None

    own_units = False  # a factorisation by rows has the same digits in all units
    held_fields = ("plan",)
    is_held = True  # always: a value and its gradient, from one factorisation, have one tilt

    def __post_init__(self):
        check_counts(self, "num_points", "num_replicates")

    def for_problem(self, problem):
        _, covariance, region = problem
        if not isinstance(covariance, CovarianceMatrix) or not isinstance(region, tg.Box):
            raise ValueError(
                "DenseBlocks applies to a tg.Box and a covariance matrix, got a "
                f"{type(region).__name__} and a {type(covariance).__name__}. Use tg.Separation()."
            )
        if self.plan is not None:
            counts = {"dimensions": (self.plan.tilt.shape[-1], covariance.dimension)}
            check_held("DenseBlocks", self.plan, counts, problem)
        return self

    def planned(self, problem):
        """The method with its tilt solved for every row of a problem."""
        plan_of = lambda row: self.prepared(*row).plan
        return replace(self, plan=jax.jit(lambda problem: over_rows(plan_of, problem))(problem))

    def prepared(self, loc, covariance, region):
        """Quantities that all points have in common."""
        if self.plan is not None:
            order = self.plan.order
        else:
            # It did as well as the order by conditional probability, which costs d^3, in three
            # random problems of 300 variables.
            interval = tg.special.standardize(
                region.low, region.high, loc, jnp.sqrt(covariance.variances)
            )
            mass = tg.special.log_interval_mass(*lax.stop_gradient(interval))
            order = jnp.argsort(mass, stable=True)
        factor = cholesky(blocks_of(covariance.covariance_matrix, order))
        bounds = (region.low, -jnp.inf), (region.high, jnp.inf), (loc, 0.0)
        limits = BlockLimits(*(in_blocks(x[order], fill) for x, fill in bounds))
        if self.plan is not None:
            plan = lax.stop_gradient(self.plan)
        elif self.tilted:
            solved = tilt_of(*lax.stop_gradient((factor, limits)))
            plan = TiltPlan(order, solved.tilt[: len(order)], solved.converged)
        else:
            plan = TiltPlan(order, jnp.zeros_like(loc), order[0] >= 0)
        # The weight of a variable that is nearly determined by earlier ones varies only in a layer
        # along its limits, as thin as its conditional standard deviation.
        share = scales(factor) / jnp.sqrt(in_blocks(covariance.variances[order], 1.0))
        limited = jnp.isfinite(limits.low) | jnp.isfinite(limits.high)
        thinnest = jnp.min(jnp.where(limited, share, 1.0))
        number = self.num_replicates * self.num_points
        unseen = jnp.where(thinnest * number < POINTS_IN_LAYER, 2.0 / number, 0.0)
        return Prepared(plan, factor, limits, in_blocks(plan.tilt, 0.0), lax.stop_gradient(unseen))

    def replicates(self, loc, covariance, region, keys):
        """One estimate for each key, as many at a time as fit a pass."""
        shared = self.prepared(loc, covariance, region)
        some = lambda keys: self.summed(*log_weights(shared, self.uniforms(shared, keys))[:2])
        return self.estimates(shared, lax.map(some, self.passes(keys, covariance.dimension)))

    def averaged(self, row, key):
        """The log of the mean of the replicates, whose derivative is by `value_and_slopes`."""
        low, high = row.region.low, row.region.high
        empty = lax.stop_gradient(low == high)  # which nothing meets
        region = tg.Box(jnp.where(empty, -jnp.inf, low), jnp.where(empty, jnp.inf, high))
        log_prob, stderr = _averaged(self, row._replace(region=region), key)
        none = jnp.any(empty)
        return tg.Estimate(jnp.where(none, -jnp.inf, log_prob), jnp.where(none, 0.0, stderr))

    def value_and_slopes(self, row, key, of_matrix=True):
        """The estimate of a row, and the derivatives of its log P, at a fixed order and tilt.

        They are in loc, covariance matrix (None unless `of_matrix`), and lower and upper limits.

        The gradient of the log of a mean of weights is the mean of those of their logs, by weight.
        Each pass over replicates adds its part to the gradient in the factor, of which there is
        one, after what is there has been reduced to its share; from it the gradient in the
        covariance is made in its place.
        """
        shared = self.prepared(*row)

        def some(carry, keys):
            gradient, log_total = carry
            uniforms = self.uniforms(shared, keys)
            total, level, path = log_weights(shared, uniforms)
            whole = jnp.logaddexp(log_total, tg.special.log_sum_exp(total) + level)
            size = jnp.where(whole == -jnp.inf, 0.0, whole)  # all weights are 0: so is the gradient
            gradient = jax.tree.map(lambda x: x * jnp.exp(log_total - size), gradient)
            weights = jnp.exp(total + (level - size))
            gradient = with_gradient_of(weights, path, shared, uniforms, gradient)
            return (gradient, whole), self.summed(total, level)

        empty = spread(jnp.zeros_like(shared.factor), 1) if of_matrix else None
        nothing = jnp.full((), -jnp.inf, row.loc.dtype)
        start = (empty, jax.tree.map(jnp.zeros_like, shared.limits)), nothing
        passes = self.passes(self.keys(key), len(row.loc))
        ((slope, limits), _), sums = lax.scan(some, start, passes)
        result = self.combined(self.estimates(shared, sums))
        order = shared.plan.order
        matrix = matrix_of(cholesky_reversed(shared.factor, slope), order) if of_matrix else None
        low, high, loc = (x.ravel()[jnp.argsort(order)] for x in limits)
        return result, (loc, matrix, low, high)

    def keys(self, key):
        """The keys of the replicates."""
        return key[None] if self.num_replicates == 1 else jax.random.split(key, self.num_replicates)

    def passes(self, keys, dimension):
        """The keys in equal parts, each as large as fits a pass."""
        devices = num_sharing()
        most = max(1, PASS_SIZE * devices // (self.num_points * dimension))
        counts = np.arange(1, len(keys) + 1)
        fitting = counts[(len(keys) % counts == 0) & (counts * self.num_points % devices == 0)]
        if not len(fitting):
            raise ValueError(
                f"DenseBlocks: {devices} devices do not divide {len(keys)} replicates of "
                f"{self.num_points} points. Take a power of two of points."
            )
        at_once = max(fitting[fitting <= most], default=fitting[0])
        return keys.reshape(len(keys) // at_once, at_once)

    def uniforms(self, shared, keys):
        """Uniforms of block k, shape (b, R * n): of a lattice in front, then random."""
        pairs, b, dtype = jax.vmap(jax.random.split)(keys), shared.tilt.shape[1], shared.tilt.dtype
        dimension = min(LATTICE_DIMENSION, b)
        points = lattice_points(self.num_points, dimension)
        front = shifted_uniforms(points, pairs[:, 0], dtype)
        front = jnp.pad(front, ((0, b - dimension), (0, 0)))
        bits_of = lambda key: jax.random.bits(key, (b, self.num_points), jnp.uint32)

        def block(k):
            own = jax.vmap(jax.random.fold_in, (0, None))(pairs[:, 1], k)
            random = open_uniforms(jax.vmap(bits_of, out_axes=1)(own).reshape(b, -1), dtype)
            return jnp.where((jnp.arange(b)[:, None] < dimension) & (k == 0), front, random)

        return block

    def summed(self, total, level):
        """The logs of the sums of weights of each replicate, and of the squares of all weights."""
        each = tg.special.log_sum_exp(total.reshape(-1, self.num_points), axis=1)
        return each, level, tg.special.log_sum_exp(2.0 * lax.stop_gradient(total))

    def estimates(self, shared, sums):
        """One estimate for each key from the sums of every pass.

        Effective points are counted over all replicates: in one of few points whether there are
        enough is a matter of chance, and goes with the estimate. Of 100 estimates from 16 x 16
        points the 26 whose replicates had 10 effective points lay one standard error too high.
        """
        totals, levels, squares = sums
        log_probs = (totals - np.log(self.num_points)) + levels[:, None]
        whole = tg.special.log_sum_exp((totals + levels[:, None]).ravel())
        effective = jnp.exp(2.0 * whole - tg.special.log_sum_exp(squares + 2.0 * levels))
        few = ~(effective >= EFFECTIVE_POINTS * totals.size)
        stderr = jnp.where(few, jnp.inf, shared.unseen)
        return tg.Estimate(log_probs.ravel(), lax.stop_gradient(jnp.full(totals.size, stderr)))

    def combined(self, parts):
        """The estimate from those of the replicates; one can show no more than too few points."""
        return tg.Estimate(tg.special.log_mean_exp(parts.log_prob), self.combined_stderr(*parts))

    def combined_stderr(self, log_probs, alone):
        """The standard error from the replicates and from mass that no point may have sampled."""
        unseen = jnp.where(jnp.isinf(alone[0]), 0.0, alone[0])
        return jnp.hypot(super().combined_stderr(log_probs, alone), unseen)

    def numbers_held(self, dimension):
        return 8 * min(self.num_points * self.num_replicates * dimension, PASS_SIZE) + dimension**2

    def account(self, problem, key):
        """The blocks, and whether the tilt converged."""
        held = self if self.plan is not None else self.hold(*problem)
        n, b = layout_of(problem.covariance.dimension)
        return [
            f"factor   {n} blocks of {b} variables in a row",
            f"tilt     {'converged' if bool(held.plan.converged) else 'none found'}",
        ]


@jax.custom_jvp
def _averaged(method, row, key):
    return method.combined(method.replicates(*row, method.keys(key)))


def _averaged_jvp(primals, tangents):
    changes = jax.tree.leaves(tangents[1])  # of loc, matrix, lower and upper limits
    estimate, slopes = _sloped(*primals, not isinstance(changes[1], SymbolicZero))
    total = jnp.zeros_like(estimate.log_prob)
    for slope, change in zip(slopes, changes, strict=True):
        if not isinstance(change, SymbolicZero):
            total = total + jnp.sum(slope * change)
    return estimate, tg.Estimate(total, jnp.zeros_like(estimate.stderr))


_averaged.defjvp(in_full_precision(_averaged_jvp), symbolic_zeros=True)


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def _sloped(method, row, key, of_matrix):
    return method.value_and_slopes(row, key, of_matrix)


@_sloped.defjvp
@in_full_precision
def _sloped_jvp(of_matrix, primals, tangents):
    method, row, key = primals
    # Of two equal entries one is read: half of a derivative belongs to each.
    halves = lambda x: x if x.ndim < 2 else 0.5 * (x + x.T)
    change = jax.tree.map(halves, tangents[1])
    return jax.jvp(lambda row: method.value_and_slopes(row, key, of_matrix), (row,), (change,))


# --- Devices --------------------------------------------------------------------------------------


def sharing():
    """The mesh whose devices share one estimate; None for one device and in the part of one."""
    inside = jax.sharding.get_abstract_mesh().manual_axes
    return None if inside else tg.parallel.plan().replicates


def num_sharing():
    """The number of devices that share one estimate."""
    return 1 if (mesh := sharing()) is None else mesh.size


def spread(array, axis=None):
    """The array with one axis divided over the devices; whole on each of them without an axis.

    A constraint for XLA: the numbers are the same, each device holds and computes its part.
    """
    if (mesh := sharing()) is None:
        return array
    split = () if axis is None else (*[None] * axis, mesh.axis_names)
    return lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*split)))


def each_part(function, axis, parts, shared):
    """`function(parts, shared)`, of which each device computes its part along an axis."""
    if (mesh := sharing()) is None:
        return function(parts, shared)
    split, whole = PartitionSpec(*[None] * axis, mesh.axis_names), PartitionSpec()
    specs = {"in_specs": (split, whole), "out_specs": split}
    return jax.shard_map(function, mesh=mesh, **specs, check_vma=False)(parts, shared)


def over_lanes(function, shared, *lanes):
    """`function(shared, *lanes)`, the lanes divided over the devices and on each into batches."""
    return each_part(
        lambda parts, rest: in_batches(partial(function, rest), *parts), 1, lanes, shared
    )


# --- Blocks ---------------------------------------------------------------------------------------


def layout_of(dimension):
    """The number n of blocks in a row and b of rows in a block, for every number of devices."""
    grain, n = min(GRAIN, LARGEST_BLOCK), -(-dimension // LARGEST_BLOCK)
    b = -(-dimension // (n * grain)) * grain
    if b % num_sharing():
        raise ValueError(
            f"a large estimate is shared by a power of two of at most {grain} devices, got "
            f"{num_sharing()}. Make a mesh of fewer: tg.parallel.device_mesh(...)."
        )
    return n, b


def in_blocks(vector, fill):
    """The numbers of a vector, shape (d,), in blocks, shape (n, b)."""
    n, b = layout_of(len(vector))
    return jnp.pad(vector, (0, n * b - len(vector)), constant_values=fill).reshape(n, b)


def num_blocks_of(blocks):
    """The number n of blocks in a row, from the number n (n + 1) / 2 of those stored."""
    return (int(np.sqrt(8 * len(blocks) + 1)) - 1) // 2


def block_at(blocks, i, j):
    """Block (i, j), i >= j."""
    return lax.dynamic_index_in_dim(blocks, i * (i + 1) // 2 + j, keepdims=False)


def with_block(blocks, i, j, new):
    """The blocks with another one at (i, j)."""
    blocks = lax.dynamic_update_index_in_dim(blocks, spread(new, 0), i * (i + 1) // 2 + j, 0)
    return spread(blocks, 1)


def transposed(x):
    """The last two axes exchanged in memory: a product that reads them so takes half the time."""
    return lax.optimization_barrier(jnp.swapaxes(x, -1, -2))


def blocks_of(matrix, order):
    """The blocks of a symmetric matrix in an order, filled up by the identity."""
    (n, b), orders = layout_of(len(order)), in_blocks(order, len(order))

    def row(i, blocks):
        rows = matrix.at[orders[i]].get(mode="fill", fill_value=0)  # whole ones, which lie together

        def one(j, blocks):
            return with_block(blocks, i, j, rows.at[:, orders[j]].get(mode="fill", fill_value=0))

        return lax.fori_loop(0, i + 1, one, blocks)

    empty = spread(jnp.zeros((n * (n + 1) // 2, b, b), matrix.dtype), 1)
    blocks = lax.fori_loop(0, n, row, empty)
    missing = jnp.arange(b) >= len(order) - (n - 1) * b
    corner = block_at(blocks, n - 1, n - 1) + jnp.diag(missing.astype(matrix.dtype))
    return with_block(blocks, n - 1, n - 1, corner)


def matrix_of(blocks, order):
    """The gradient in a symmetric matrix, shape (d, d), from that in its blocks.

    Half of a derivative belongs to each of two equal entries. The matrix is filled row by row. Its
    rows are spread over the devices of a process; of several processes each gets all of it.
    """
    d, (n, b) = len(order), layout_of(len(order))
    orders, positions = in_blocks(order, d), jnp.argsort(order)

    def row(i, matrix):
        def one(j, rows):
            block = block_at(blocks, jnp.maximum(i, j), jnp.minimum(i, j))
            block = jnp.where(i == j, block, 0.5 * jnp.where(i > j, block, block.T))
            return lax.dynamic_update_index_in_dim(rows, block, j, 1)

        rows = lax.fori_loop(0, n, one, jnp.zeros((b, n, b), blocks.dtype))
        rows = rows.reshape(b, -1)[:, positions]
        return spread(matrix.at[orders[i]].set(rows, mode="drop", unique_indices=True), 0)

    matrix = lax.fori_loop(0, n, row, spread(jnp.zeros((d, d), blocks.dtype), 0))
    several = num_sharing() > 1 and sharing().is_multi_process
    return spread(matrix) if several else matrix


# --- The factor -----------------------------------------------------------------------------------


def cholesky(blocks):
    """The Cholesky factor of a symmetric matrix, in its place; NaN if it is not definite."""
    n = num_blocks_of(blocks)

    def column(k, blocks):
        def earlier(j, blocks):
            right = spread(block_at(blocks, k, j)).T

            def one(i, blocks):
                rest = block_at(blocks, i, k) - product(block_at(blocks, i, j), right)
                return with_block(blocks, i, k, rest)

            return lax.fori_loop(k, n, one, blocks)

        blocks = lax.fori_loop(0, k, earlier, blocks)
        corner = factored(spread(block_at(blocks, k, k)))

        def below(i, blocks):
            return with_block(blocks, i, k, divided(block_at(blocks, i, k), corner, transpose=True))

        return lax.fori_loop(k + 1, n, below, with_block(blocks, k, k, corner))

    return lax.fori_loop(0, n, column, blocks)


def cholesky_reversed(factor, slope):
    """The gradient in a symmetric matrix from that in its Cholesky factor, in the latter's place.

    The steps of `cholesky` in reverse order. With L the factor, D its block k on the diagonal, bars
    for derivatives and Phi the lower triangle less half of the diagonal,

        R_ik = L_ik-bar D^-1,  D-bar -= sum_i R_ik^T L_ik,  S = D^-T Phi(D^T D-bar) D^-1,
        L_ij-bar -= R_ik L_kj,  L_kj-bar -= sum_i R_ik^T L_ij + (S + S^T) L_kj,  j < k < i,

    and R_ik and (S + S^T) / 2 are the derivatives in the blocks of the matrix. Of a sum of x^T y
    over rows that are spread every device adds up its part, and these are added at the end.
    """
    n, devices, b = num_blocks_of(factor), num_sharing(), factor.shape[-1]
    none = spread(jnp.zeros((devices, b, b), factor.dtype), 0)

    def added(total, x, y):
        left, right = (x.reshape(devices, -1, b) for x in (x, y))
        return spread(total + product(transposed(left), right), 0)

    def column(step, slope):
        k = n - 1 - step
        corner = spread(block_at(factor, k, k))

        def below(i, carry):
            slope, total = carry
            new = divided(block_at(slope, i, k), corner)
            return with_block(slope, i, k, new), added(total, new, block_at(factor, i, k))

        slope, total = lax.fori_loop(k + 1, n, below, (slope, none))
        slope_block = spread(block_at(slope, k, k)) - spread(jnp.sum(total, axis=0))
        inner = jnp.tril(product(corner.T, slope_block))
        inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
        inner = spread(divided(divided(inner, corner).T, corner))
        both = inner + inner.T
        slope = with_block(slope, k, k, 0.5 * both)

        def earlier(j, slope):
            right = spread(block_at(factor, k, j))

            # Two loops, because in one XLA would copy all blocks for what it reads of them.
            def sum_of(i, total):
                return added(total, block_at(slope, i, k), block_at(factor, i, j))

            def one(i, slope):
                rest = block_at(slope, i, j) - product(block_at(slope, i, k), right)
                return with_block(slope, i, j, rest)

            total = spread(jnp.sum(lax.fori_loop(k + 1, n, sum_of, none), axis=0))
            rest = block_at(slope, k, j) - (total + product(both, right))
            return lax.fori_loop(k + 1, n, one, with_block(slope, k, j, rest))

        return lax.fori_loop(0, k, earlier, slope)

    return lax.fori_loop(0, n, column, slope)


def factored(symmetric):
    """The Cholesky factor of a block by panels of columns, of a multiple of PANEL rows or fewer.

    Without LAPACK: beside another program OpenBLAS, whose threads wait for each other, takes twenty
    times as long.
    """
    width, index = min(PANEL, len(symmetric)), jnp.arange(len(symmetric))

    def panel(k, factor):
        rows = lax.dynamic_slice_in_dim(factor, k * width, width, 0)
        columns = lax.dynamic_slice_in_dim(symmetric, k * width, width, 1)
        columns = columns - product(factor, rows.T)

        def one(i, done):
            corner = k * width + i
            column = columns[:, i] - product(done, done[corner])
            column = jnp.where(index < corner, 0.0, column / jnp.sqrt(column[corner]))
            return done.at[:, i].set(column)

        done = lax.fori_loop(0, width, one, jnp.zeros_like(columns))
        return lax.dynamic_update_slice_in_dim(factor, done, k * width, 1)

    return lax.fori_loop(0, len(symmetric) // width, panel, jnp.zeros_like(symmetric))


def divided(right, triangle, transpose=False):
    """x with x @ triangle = right, or with the transposed triangle, each device for its rows.

    XLA alone would make every device solve for all of them.
    """

    def solved(right, triangle):
        return lax.linalg.triangular_solve(triangle, right, lower=True, transpose_a=transpose)

    return each_part(solved, 0, right, triangle)


def scales(factor):
    """The diagonal of the factor, in blocks, shape (n, b)."""
    n = num_blocks_of(factor)
    return jnp.diagonal(factor, axis1=1, axis2=2)[np.arange(n) * (np.arange(n) + 3) // 2]


# --- The tilt -------------------------------------------------------------------------------------


class UnitTriangle(NamedTuple):
    """The unit triangle diag(L)^-1 L of a factor in blocks, for `saddle_of`.

    Its linear systems, whose matrix is the identity plus a positive semi-definite one, are solved
    by conjugate gradients to a few digits, which an iteration that corrects itself can do with. A
    step is then of order d^2 rather than d^3.

    Attributes:
        factor: L.
        scale: its diagonal, in blocks, shape (n, b).

    Reference:
        Nocedal and Wright (2006), Numerical Optimization, section 7.1, inexact Newton methods.
    """

    factor: Array
    scale: Array

    def times(self, x):
        rows, columns = np.tril_indices(len(self.scale))
        x = x.reshape(self.scale.shape)[columns]
        parts = jnp.einsum("trs,ts->tr", self.factor, x, precision="highest")
        total = jax.ops.segment_sum(parts, rows, len(self.scale), indices_are_sorted=True)
        return (total / self.scale).ravel()

    def transposed_times(self, x):
        rows, columns = np.tril_indices(len(self.scale))
        x = (x.reshape(self.scale.shape) / self.scale)[rows]
        parts = jnp.einsum("trs,tr->ts", self.factor, x, precision="highest")
        return jax.ops.segment_sum(parts, columns, len(self.scale)).ravel()

    def strict_times(self, x):
        return self.times(x) - x

    def strict_transposed_times(self, x):
        return self.transposed_times(x) - x

    def solve(self, root, right):
        system = lambda x: x + root * self.times(self.transposed_times(root * x))
        return cg(system, right, tol=RESIDUAL, maxiter=MOST_PRODUCTS)[0]


def tilt_of(factor, limits):
    """The minimax tilt of all variables, shape (n * b,), from a point inside of the limits.

    There each variable is at its mean given its limits and the variables before it.
    """
    unit = UnitTriangle(factor, scales(factor))
    # One path on every device.
    none = jnp.zeros_like(unit.scale)
    start = paths(factor, limits, none, lambda k: None, num_sharing()).draws[:, :, 0]
    interval = tg.special.standardize(*limits, unit.scale)
    return saddle_of(unit, jax.tree.map(jnp.ravel, interval), start.ravel(), PRECISE)


# --- Paths ----------------------------------------------------------------------------------------


class BlockLimits(NamedTuple):
    """Limits low <= loc + L z <= high in blocks, each of shape (n, b).

    They are infinite for the variables that fill up the last block.
    """

    low: Array
    high: Array
    loc: Array


class Prepared(NamedTuple):
    """A problem's plan, factor, limits and tilt in blocks, and the mass that may be unseen."""

    plan: TiltPlan
    factor: Array
    limits: BlockLimits
    tilt: Array
    unseen: Array


class Paths(NamedTuple):
    """Draws, their means given earlier blocks (less loc), and log masses, each (n, b, lanes)."""

    draws: Array
    base: Array
    log_mass: Array


class Block(NamedTuple):
    """Limits on the variables of a block, with its block on the diagonal of the factor."""

    limits: BlockLimits
    corner: Array

    @property
    def columns(self):
        """Limits, mean and conditional standard deviation of each variable, each (b, 1)."""
        return tuple(x[:, None] for x in (*self.limits, jnp.diagonal(self.corner)))

    @property
    def strict(self):
        return jnp.tril(self.corner, -1)


def block_of(factor, limits, k):
    return Block(jax.tree.map(lambda x: x[k], limits), spread(block_at(factor, k, k)))


def log_weights(shared, uniforms):
    """The log importance weights of paths, shape (lanes,), less a common level; that; the paths.

    Args:
        shared: what the paths have in common.
        uniforms: of block k, shape (b, lanes).
    """
    shift, num_lanes = shared.tilt[:, :, None], jax.eval_shape(uniforms, 0).shape[1]
    path = paths(shared.factor, shared.limits, shared.tilt, uniforms, num_lanes)
    # mu^2/2 - mu z, written around the draw so that large tilts do not cancel.
    terms = path.log_mass - shift * (path.draws - shift) - 0.5 * shift * shift
    return *less_level(terms.reshape(-1, num_lanes)), path


def paths(factor, limits, tilt, uniforms, num_lanes):
    """Draws of the variables one after the other, in truncated conditional distributions."""

    def step(k, path):
        def earlier(j, total):
            return total + product(spread(block_at(factor, k, j)), path.draws[j])

        base = lax.fori_loop(0, k, earlier, jnp.zeros_like(path.draws[0]))
        block = block_of(factor, limits, k)
        draws, log_mass = over_lanes(drawn, (block, tilt[k][:, None]), base, uniforms(k))
        new = Paths(draws, base, log_mass)
        return jax.tree.map(lambda x, y: x.at[k].set(y), path, new)

    nothing = spread(jnp.zeros((*tilt.shape, num_lanes), tilt.dtype), 2)
    return lax.fori_loop(0, len(tilt), step, Paths(nothing, nothing, nothing))


def drawn(shared, base, uniforms):
    """The draws of one block of variables, and the log masses of their intervals."""
    block, tilt = shared

    def step(mean, row):
        columns, tilt, base, uniform = row
        return draw_of(*columns, base + mean, tilt, uniform)

    rows = block.columns, tilt, base, uniforms
    return sweep(block.strict, step, rows, base.shape[1])


def draw_of(low, high, loc, scale, mean, tilt, uniform):
    """The draw of a variable, its mean without uniforms, and the log mass of its interval."""
    interval = tg.special.standardize(low, high, loc + mean + scale * tilt, scale)
    if uniform is None:
        draw = tg.special.truncated_mean(0.0, 1.0, interval.low, interval.high)
        return draw, jnp.zeros_like(draw)
    draw, log_mass = tg.special.separation_step(
        interval.low, interval.high, uniform, interval.width
    )
    return tilt + draw, log_mass


def with_gradient_of(weights, path, shared, uniforms, gradient):
    """The gradient plus that of the sum of log weights times the weights, shape (lanes,).

    The blocks of `paths` in reverse order, tilt and uniforms held fixed: with z_j the draws of
    block j, m_k the means of block k given earlier blocks, and bars for derivatives,

        L_kj-bar += m_k-bar z_j^T,  z_j-bar += L_kj^T m_k-bar,  j < k.

    The gradient is that in the factor, None if not wanted, whose blocks are replaced in place, and
    in the limits.
    """
    factor, limits, tilt = shared.factor, shared.limits, shared.tilt

    def step(count, carry):
        (slope, bounds), draws_bar = carry
        k = len(tilt) - 1 - count
        block = block_of(factor, limits, k)
        lanes = path.base[k], uniforms(k), path.draws[k], path.log_mass[k]

        def change_of(change, d_base):
            return over_lanes(moved, (block, change, tilt[k][:, None]), d_base, *lanes)

        still = jax.tree.map(jnp.zeros_like, (block, lanes[0]))
        mass_bar = jnp.broadcast_to(weights, lanes[0].shape)
        change, base_bar = jax.vjp(change_of, *still)[1]((draws_bar[k], mass_bar))
        if slope is not None:
            slope = with_block(slope, k, k, block_at(slope, k, k) + change.corner)
        bounds = jax.tree.map(lambda x, y: x.at[k].add(y), bounds, change.limits)

        def earlier(j, carry):
            slope, draws_bar = carry
            if slope is not None:
                new = block_at(slope, k, j) + product(base_bar, path.draws[j].T)
                slope = with_block(slope, k, j, new)
            right = transposed(spread(block_at(factor, k, j)))
            return slope, draws_bar.at[j].add(product(right, base_bar))

        slope, draws_bar = lax.fori_loop(0, k, earlier, (slope, draws_bar))
        return (slope, bounds), draws_bar

    start = gradient, -tilt[:, :, None] * weights
    return lax.fori_loop(0, len(tilt), step, start)[0]


def moved(shared, d_base, base, uniforms, draws, log_mass):
    """Tangents of draws and log masses of a block, given those of its limits and corner.

    In closed form: within a loop, that of `in_batches`, JAX would take the second derivative
    without the rules of `draw_of`.
    """
    block, change, tilt = shared
    low, high, loc, scale = block.columns
    means = base + product(block.strict, draws)
    interval = tg.special.standardize(low, high, loc + means + scale * tilt, scale)
    slopes = interval_slopes(*interval, log_mass, draws - tilt, uniforms)
    ends = (x / scale for x in change.columns)
    d_draw, d_mass = end_tangents(slopes, interval, tilt, *ends)
    follow = (slopes.draw_low + slopes.draw_high) / scale
    right = d_base + product(change.strict, draws)
    padded = [jnp.pad(x, ((0, 1), (0, 0))) for x in (block.strict, right)]  # no variable follows
    d_draws, d_means = substitution(padded[0], follow, d_draw, padded[1])
    return d_draws, d_mass - slopes.mass_shift / scale * d_means[:-1]
