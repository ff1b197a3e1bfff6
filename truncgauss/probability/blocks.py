"""The log probability of independent blocks by held methods, as a function of all inputs.

Called with numbers, the default method separates independent blocks, recognises structure, chooses
methods and numbers of points for every row. Its derivative is that of these choices, plans and
counts held fixed; what `Automatic.hold` returns joins them to a method for any matrix. In a
covariance matrix whose structure was recognised it is the derivative in a general matrix, since a
step may leave the structure: with g and H the gradient and the Hessian of log P in the mean,

    d log P = tr{ (H + g g^T) dSigma } / 2,   H + g g^T = K (E{(x - mu)(x - mu)^T} - Sigma) K,

where K is the inverse of Sigma, and the expectation is under the truncated distribution.

Reference:
    Plackett (1954), A reduction formula for normal multivariate integrals, for the derivative in a
    covariance as a second derivative in the mean.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import flattened, joined, problem_rows, undifferentiated, with_slopes
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import frozen_pytree, is_concrete, static_field, values_of
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, numbers_of
from truncgauss.gaussian.problem import Estimate, Moments, Problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.probability.method import Chooser, Method, average, estimate
from truncgauss.probability.refinement import PROBABILITY, WITH_GRADIENT, Recipe, answer
from truncgauss.probability.structure import Part, combined, independent_parts, is_recognised

RECOGNISED = (
    "a second derivative in a covariance matrix whose structure (independent blocks, a chain, a "
    "common factor) was recognised is not known. Pass the structure itself, such as tg.LowRank or "
    "tg.Markov, differentiate under jax.jit, or use tg.Separation()."
)
ROUNDING = 8.0  # units in the last place of the product of two standard deviations
Inputs = tuple[Array, Region, Array]  # mean, region, covariance matrix


@frozen_pytree
class Block:
    """An independent block of coordinates, with the held methods that serve it.

    Attributes:
        covariance: of its coordinates, with the structure that was recognised.
        methods: each for some rows of the flattened problem.
        rows: the indices of these rows, None for all.
        result: the estimate and its gradient, if they are known.
        coordinates: the indices of its coordinates, None for all (static).
    """

    covariance: Covariance
    methods: tuple[Method, ...]
    rows: tuple[np.ndarray | None, ...] = (None,)
    result: tuple[Estimate, Problem] | None = None
    coordinates: tuple[int, ...] | None = static_field(default=None)

    @property
    def is_plain(self) -> bool:
        """Whether it is differentiated in its own matrix: without structure, or if it was sampled.

        The moments of draws carry sampling errors, which the inverse covariance would multiply
        twice.
        """
        sampled = any(method.growth is not None for method in self.methods)
        return sampled or self.covariance.is_matrix

    def indices(self, dimension: int) -> np.ndarray:
        return np.arange(dimension) if self.coordinates is None else np.array(self.coordinates)

    def part_of(self, problem: Problem, matrix: Array | None = None) -> Problem:
        """The block of a problem, with its covariance as recognised, or as a block of a matrix."""
        loc, covariance = problem.loc, self.covariance
        chosen = self.indices(loc.shape[-1])
        if matrix is not None:
            covariance = CovarianceMatrix(matrix[np.ix_(chosen, chosen)])
        if self.coordinates is None:
            return problem._replace(covariance=covariance)
        box = as_linear(problem.region)
        # A NaN anywhere in a mean makes the row NaN.
        nan_propagator = lax.stop_gradient(0.0 * jnp.sum(loc, axis=-1, keepdims=True))
        limits = Box(box.low[..., chosen], box.high[..., chosen])
        return Problem(loc[..., chosen] + nan_propagator, covariance, limits)

    def estimate(self, problem: Problem, key: Array) -> Estimate:
        if self.result is None:
            return self._computed(problem, key)
        known = self.result
        computed = lambda problem: self._computed(problem, key)
        return with_slopes(lambda _: known[0], lambda *_: known, problem, traced=computed)

    def _computed(self, problem: Problem, key: Array) -> Estimate:
        shape = problem.batch_shape
        if self.rows[0] is None:  # one method for all
            (method,) = self.methods
            if method.batch_shape in ((), shape):
                return estimate(method, problem, key)
            # The plans are one a row, along one axis.
            whole = estimate(method, flattened(problem), key)
            return jax.tree.map(lambda x: x.reshape(shape), whole)
        flat = flattened(problem)
        rows = [np.asarray(rows) for rows in self.rows]
        results = [
            estimate(x, problem_rows(flat, some), key) for x, some in zip(self.methods, rows)
        ]
        return joined(results, rows, shape)


def _along(inputs: Inputs, blocks: list[Block], keys: list[Array]) -> Estimate:
    """The estimate as a function of the mean, the limits and the matrix of plain blocks."""
    loc, region, matrix = inputs
    problem = Problem(loc, CovarianceMatrix(matrix), region)
    parts = [block.part_of(problem, matrix if block.is_plain else None) for block in blocks]
    return combined([block.estimate(part, key) for block, part, key in zip(blocks, parts, keys)])


by_blocks = jax.custom_jvp(_along)  # with its derivatives in a general matrix


@partial(by_blocks.defjvp, symbolic_zeros=True)
@in_full_precision
def _by_blocks_jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Estimate, Estimate]:
    (inputs, blocks, keys), change = primals, tangents[0]
    whole = lambda primal, tangent: jnp.zeros_like(primal) if _is_zero(tangent) else tangent
    moved = jax.tree.map(whole, inputs, change, is_leaf=_is_zero)
    loc, region, matrix = inputs
    inputs = loc, region, undifferentiated(matrix, RECOGNISED)
    result, slopes = jax.jvp(lambda inputs: _along(inputs, blocks, keys), (inputs,), (moved,))
    slope = slopes.log_prob
    (_, _, matrix_change), (_, _, matrix_moved) = change, moved
    if not _is_zero(matrix_change):
        none = lax.stop_gradient(result.log_prob == -jnp.inf)
        slope = slope + _along_matrix(inputs, blocks, keys, matrix_moved, none)
    return result, Estimate(slope, jnp.zeros_like(result.stderr))


def _is_zero(x: object) -> bool:
    return isinstance(x, SymbolicZero)


def _along_matrix(
    inputs: Inputs, blocks: list[Block], keys: list[Array], change: Array, none: Array
) -> Array:
    """The derivative of log P along a change of the matrix, less that within plain blocks; 0 in
    rows of `none`, of probability 0, which have no moments."""
    loc, region, matrix = inputs
    problem, total = Problem(loc, CovarianceMatrix(matrix), region), jnp.zeros((), matrix.dtype)
    slope = jnp.zeros(problem.batch_shape + loc.shape[-1:], loc.dtype)
    for block, key in zip(blocks, keys):
        chosen = block.indices(len(matrix))
        row, inner = block.part_of(problem), change[np.ix_(chosen, chosen)]
        if block.is_plain:
            gradient = _mean_slope(block, row, key)
        else:
            from truncgauss.probability.row_moments import row_moments  # of few problems

            slopes = _slopes(row_moments(block.methods[0], row, key), row)
            gradient, second = (
                jnp.where(jnp.expand_dims(none, range(none.ndim, x.ndim)), 0.0, x) for x in slopes
            )
            total = total + 0.5 * jnp.einsum("...ij,ij->...", second, inner)
        # The sum after the loop leaves products of the gradients of two different blocks.
        total = total - 0.5 * jnp.einsum("...i,ij,...j->...", gradient, inner, gradient)
        slope = slope.at[..., chosen].set(gradient)
    return total + 0.5 * jnp.einsum("...i,ij,...j->...", slope, change, slope)


def _mean_slope(block: Block, row: Problem, key: Array) -> Array:
    total = lambda loc: jnp.sum(block.estimate(row._replace(loc=loc), key).log_prob)
    full = jnp.broadcast_to(row.loc, row.batch_shape + row.loc.shape[-1:])
    return jax.grad(total)(full)


@jax.jit
def _slopes(moments: Moments, row: Problem) -> tuple[Array, Array]:
    """g and H + g g^T of a block with recognised structure."""
    factor = jnp.linalg.cholesky(lax.stop_gradient(row.covariance.covariance_matrix))
    inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(factor), dtype=factor.dtype))
    gap = moments.mean - row.loc
    excess = moments.covariance - factor @ factor.T + gap[..., :, None] * gap[..., None, :]
    return gap @ inverse, inverse @ excess @ inverse


@frozen_pytree
class HeldParts(Method):
    """The sum of log probabilities over the independent blocks of a box, with held plans.

    `Automatic.hold` returns it where it separates blocks, leaves out coordinates without limits, or
    recognises a Markov chain or a common factor. With B the log P of the blocks, D its derivative
    in the matrix, and W log P by a method for any matrix, at another matrix S than the held S_0

        log P = B + D (S - S_0) + W(S) - W(S_0) - W'(S_0) (S - S_0),

    one smooth function of all inputs, of which value and first derivatives at S_0 are those of the
    blocks. Elsewhere stderr has the errors of both W, and what its derivative is seen to err. Where
    a coordinate that was left out has limits now, the method for all coordinates replaces the
    blocks.

    Args:
        blocks: each with its covariance and its held method.
        matrix: the covariance matrix of all coordinates, shape (d, d).
        whole: the held method of all coordinates, None where none is left out.
        general: the held method for other matrices; None where the matrix does not change, and the
            estimate for another one is NaN.

    Raises:
        ValueError: for anything but a `Box` and one covariance matrix of the same dimension.
    """

    blocks: tuple[Block, ...]
    matrix: Array
    whole: Method | None = None
    general: Method | None = None

    own_units = False  # each block has units of its own

    @property
    def batch_shape(self) -> tuple[int, ...]:
        every = [method for block in self.blocks for method in block.methods]
        every += [method for method in (self.whole, self.general) if method is not None]
        return jnp.broadcast_shapes(*(method.batch_shape for method in every))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "HeldParts":
        def spread(leaf: Array) -> Array:
            return jnp.broadcast_to(leaf, batch_shape + leaf.shape)

        def of_rows(method: Method) -> Method:
            held = bool(method.batch_shape)
            return method.broadcast_to(batch_shape) if held else jax.tree.map(spread, method)

        def of_block(block: Block) -> Block:
            covariance = jax.tree.map(spread, block.covariance)
            return replace(block, covariance=covariance, methods=tuple(map(of_rows, block.methods)))

        others = self.whole, self.general
        whole, general = (None if other is None else of_rows(other) for other in others)
        return HeldParts(tuple(map(of_block, self.blocks)), spread(self.matrix), whole, general)

    def for_problem(self, problem: Problem) -> Method:
        """The method of all coordinates or that of the blocks, where the limits are numbers, and
        for this matrix alone, where it is the held one."""
        _, covariance, region = problem
        d = self.matrix.shape[-1]
        if not region.is_box or covariance.dimension != d:
            raise ValueError(
                f"the plan that is held was made for a tg.Box and a covariance matrix in {d} "
                f"dimensions, this problem has a {type(region).__name__} in "
                f"{covariance.dimension}. Hold the method for this problem: "
                "method.hold(loc, covariance, region)."
            )
        if self.general is not None and is_concrete((covariance, self.matrix)):
            asked = covariance.covariance_matrix
            if asked.ndim == self.matrix.ndim == 2 and self._is_held(asked):
                return replace(self, general=None).for_problem(problem)
        box = values_of(as_linear(region))
        if self.whole is None or box is None:
            return self
        limited = self._limits_left_out(np.asarray(box.low), np.asarray(box.high))
        if not limited.any():
            return replace(self, whole=None)
        return self.whole.for_problem(problem) if limited.all() else self

    def _limits_left_out(self, low: Any, high: Any) -> Any:
        """Whether each row has limits on coordinates that are in no block."""
        used = np.concatenate([np.array(block.coordinates) for block in self.blocks])
        others = np.setdiff1d(np.arange(self.matrix.shape[-1]), used)
        return ((low[..., others] != -np.inf) | (high[..., others] != np.inf)).any(-1)

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        box, whole = as_linear(region), self.whole
        if whole is None:
            return self._over_blocks(loc, covariance, box, key)
        return lax.cond(
            self._limits_left_out(box.low, box.high),
            lambda row: average(whole, row, key),
            lambda row: self._over_blocks(row.loc, row.covariance, row.region, key),
            Problem(loc, covariance, box),
        )

    def _over_blocks(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        matrix, blocks = covariance.covariance_matrix, list(self.blocks)
        keys = list(key[None] if len(blocks) == 1 else jax.random.split(key, len(blocks)))
        same = self._is_held(lax.stop_gradient(matrix))
        general = self.general
        if general is None:
            log_prob, stderr = by_blocks((loc, region, matrix), blocks, keys)
            # A product, so that derivatives are NaN too.
            log_prob = log_prob * jnp.where(same, 1.0, jnp.nan)
            return Estimate(log_prob, jnp.where(same, stderr, jnp.nan))

        def of_blocks(matrix: Array) -> Estimate:
            return by_blocks((loc, region, matrix), blocks, keys)

        def of_general(matrix: Array) -> Estimate:
            return average(general, Problem(loc, CovarianceMatrix(matrix), region), key)

        change = (matrix - self.matrix,)
        (log_prob, stderr), (slope, _) = jax.jvp(of_blocks, (self.matrix,), change)
        (start, first), (rise, _) = jax.jvp(of_general, (self.matrix,), change)
        end, last = of_general(matrix)
        gap = slope - rise
        log_prob = log_prob + gap + (end - start)
        others = jnp.sqrt(stderr**2 + first**2 + last**2 + gap**2)
        return Estimate(log_prob, jnp.where(same, stderr, lax.stop_gradient(others)))

    def _is_held(self, matrix: Array) -> Any:
        """Whether this is the held matrix, to rounding."""
        scale = jnp.sqrt(jnp.diagonal(self.matrix))
        gap = ROUNDING * float(jnp.finfo(matrix.dtype).eps) * scale[:, None] * scale[None, :]
        return jnp.all(jnp.abs(matrix - self.matrix) <= gap)


def at_held_matrix(method: Method) -> Method:
    """The held method for problems that all have the covariance matrix that it was held for."""
    return replace(method, general=None) if isinstance(method, HeldParts) else method


# --- The default method's blocks ------------------------------------------------------------------


def estimate_of_parts(automatic: Chooser, problem: Problem, key: Array) -> Estimate:
    """The estimate of `Automatic` for every row: the sum over independent blocks of coordinates."""
    # Inside a derivative at concrete numbers these decide, as outside of it.
    values = values_of(problem)
    known = problem if values is None or not is_concrete(key) else values
    parts = parts_of(automatic, known, key)
    if known is problem:
        answers = [answer(method, part.problem, key, PROBABILITY) for method, part, key in parts]
        return combined([each.result for each in answers])
    blocks, keys = [], []
    for method, part, key in parts:
        # Where `Separation` alone serves a block, its methods come with the estimate and its
        # gradient: the number of points is determined by the program of both, and that of the
        # value is not compiled.
        spread = parallel.plan().replicates is not None or 0 in part.problem.batch_shape
        sampled = method.choice(part.problem).grows_by_pieces
        both = sampled and not spread and not is_recognised(part, known)
        goal = WITH_GRADIENT if both else PROBABILITY
        found = answer(method, part.problem, key, goal, wanted=False)
        blocks.append(block_of(part, found.recipe, found.result if both else None))
        keys.append(key)
    whole = len(parts) == 1 and parts[0][1].coordinates is None
    if whole and not is_recognised(parts[0][1], known):
        return blocks[0].estimate(problem, key)
    covariance = problem.covariance
    if is_concrete(covariance) or not covariance.is_matrix:
        pairs = zip(blocks, keys)
        return combined([block.estimate(block.part_of(problem), key) for block, key in pairs])
    if len(blocks) == covariance.dimension:  # of which it knows all derivatives
        from truncgauss.probability.exact import Exact

        return estimate(Exact(), problem, key)
    return by_blocks((problem.loc, problem.region, covariance.covariance_matrix), blocks, keys)


def parts_of(automatic: Chooser, problem: Problem, key: Array) -> list[tuple[Chooser, Part, Array]]:
    """The independent blocks of a problem, each with its method and key.

    The methods are `Automatic` with fractions of its max_draws.
    """
    parts = independent_parts(problem)
    if len(parts) == 1:
        return [(automatic, parts[0], key)]
    # With one key for all, errors of equal blocks would not be independent.
    keys = jax.random.split(key, len(parts))
    return [
        (automatic.of_part(part.problem, problem), part, part_key)
        for part, part_key in zip(parts, keys)
    ]


def held_parts(automatic: Chooser, problem: Problem) -> Method:
    """The method that `Automatic.hold` returns for a problem."""
    form = problem.covariance
    if form.is_factor and form.batch_shape == () and is_concrete(form):
        matrix = numbers_of(form)
        if np.array_equal(matrix, np.diag(np.diagonal(matrix))):  # which is recognised
            problem = problem._replace(covariance=CovarianceMatrix(jnp.asarray(matrix)))
    whole = _held_parts(automatic, problem, independent_parts(problem, all_coordinates=True), None)
    parts = independent_parts(problem)
    used = sum(part.problem.covariance.dimension for part in parts)
    if used == problem.covariance.dimension:
        return whole
    return _held_parts(automatic, problem, parts, whole)


def _held_parts(
    automatic: Chooser, problem: Problem, parts: list[Part], whole: Method | None
) -> Method:
    if not any(part.coordinates is not None or is_recognised(part, problem) for part in parts):
        return automatic.choice(problem).planned(problem)

    def held(part: Part) -> Block:
        method = automatic.of_part(part.problem, problem).choice(part.problem).planned(part.problem)
        return block_of(part, ((method, None),))

    from truncgauss.probability.exact import Exact

    candidates = automatic.candidates(problem)
    dense = problem.covariance.dimension > 3
    # Of larger matrices `Exact` knows those whose numbers are special.
    methods = (method for method in candidates if not (dense and isinstance(method, Exact)))
    general = next(methods).planned(problem)
    matrix = problem.covariance.covariance_matrix
    return HeldParts(tuple(map(held, parts)), matrix, whole, general)


def block_of(part: Part, recipe: Recipe, result: tuple[Estimate, Problem] | None = None) -> Block:
    methods, rows = zip(*recipe)
    indices = None if part.coordinates is None else tuple(part.coordinates.tolist())
    return Block(part.problem.covariance, methods, rows, result, indices)
