"""Derivatives of the default method at concrete numbers.

Called with numbers, it separates independent blocks, recognises structure, chooses methods and
numbers of points for every row. The derivative is that of these choices, plans and counts held
fixed. In a covariance matrix whose structure was recognised it is the derivative in a general
matrix, since a step may leave the structure: with g and H the gradient and the Hessian of log P in
the mean,

    d log P = tr{ (H + g g^T) dSigma } / 2,   H + g g^T = K (E{(x - mu)(x - mu)^T} - Sigma) K,

where K is the inverse of Sigma, and the expectation is under the truncated distribution.

Reference:
    Plackett (1954), A reduction formula for normal multivariate integrals, for the derivative in a
    covariance as a second derivative in the mean.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_derivatives import SymbolicZero

from truncgauss.execution.pytrees import is_concrete
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions import Box, Region, as_linear
from truncgauss.probability.method import Method, by_gradient, estimate
from truncgauss.probability.refinement import Found
from truncgauss.probability.row_batches import flattened, taken
from truncgauss.probability.row_moments import row_moments
from truncgauss.probability.structure import Part, is_recognised


class Answer(NamedTuple):
    """The result for one block of a problem, with the key of that block."""

    part: Part
    found: Found
    key: Array


Inputs = tuple[Array, Region, Array]  # mean, region, covariance matrix
Arrays = tuple[Covariance, list[Method], Array]  # of an answer: covariance, methods, key


def combined(results: list[Estimate]) -> Estimate:
    """The log probability of independent blocks together, with their errors in quadrature."""
    if len(results) == 1:
        return results[0]
    log_prob: Any = sum(result.log_prob for result in results)
    square: Any = sum(result.stderr**2 for result in results)
    return Estimate(log_prob, square**0.5)


def differentiable(problem: Problem, values: Problem, answers: list[Answer]) -> Estimate:
    """The estimate found for the numbers behind a problem, as a function of the problem.

    Args:
        problem: with tracers of a derivative.
        values: the numbers behind it.
        answers: the results for these, one for each independent block.

    Raises:
        ValueError: for a second derivative in a covariance matrix whose structure was recognised.
    """
    covariance = problem.covariance
    split = len(answers) > 1 or answers[0].part.places is not None
    if not split and not is_recognised(answers[0].part, values):
        return _replayed(answers[0], problem)
    if is_concrete(covariance) or not isinstance(covariance, CovarianceMatrix):
        return combined([_replayed(answer, _restricted(problem, answer)) for answer in answers])
    result = structured_estimate(answers, problem.loc, problem.region, covariance.covariance_matrix)
    return Estimate(*result)


def _restricted(problem: Problem, answer: Answer, matrix: Array | None = None) -> Problem:
    """A block of the problem, with its covariance as found, or as a block of a matrix."""
    part = answer.part
    found, places = part.problem.covariance, part.places
    if matrix is not None:
        block = matrix if places is None else matrix[np.ix_(places, places)]
        found = CovarianceMatrix(block)
    if places is None:
        return problem._replace(covariance=found)
    loc, region = problem.loc, as_linear(problem.region)
    # A NaN anywhere in a mean makes the row NaN.
    nan_propagator = lax.stop_gradient(0.0 * jnp.sum(loc, axis=-1, keepdims=True))
    box = Box(region.low[..., places], region.high[..., places])
    return Problem(loc[..., places] + nan_propagator, found, box)


def _replayed(answer: Answer, problem: Problem) -> Estimate:
    """The block's estimate by the methods, plans and counts that were found."""
    result, gradient = answer.found.result, answer.found.gradient
    if gradient is None:
        return _repeated(answer, problem)
    return by_gradient(
        lambda _: result,
        lambda _: (result, gradient),
        lambda problem: _repeated(answer, problem),
        problem,
    )


def _repeated(answer: Answer, problem: Problem) -> Estimate:
    """The block's estimate, computed."""
    recipe, shape = answer.found.recipe, problem.batch_shape
    if len(recipe) == 1 and recipe[0][1] is None:
        method, _ = recipe[0]
        if method.batch_shape in ((), shape):
            return estimate(method, problem, answer.key)
        # The plans are one a row, along one axis.
        whole = estimate(method, flattened(problem), answer.key)
        return jax.tree.map(lambda x: x.reshape(shape), whole)
    flat = flattened(problem)
    owned = [(method, rows) for method, rows in recipe if rows is not None]
    results = [estimate(method, taken(flat, rows), answer.key) for method, rows in owned]
    back = np.argsort(np.concatenate([rows for _, rows in owned]))
    return jax.tree.map(lambda *x: jnp.concatenate(x)[back].reshape(shape), *results)


# --- With respect to a covariance matrix ----------------------------------------------------------


def structured_estimate(
    answers: list[Answer], loc: Array, region: Region, matrix: Array
) -> tuple[Array, Array]:
    """The estimate by recognised structure, with its derivatives in a general matrix."""
    plain = [_is_plain(answer) for answer in answers]

    def along(inputs: Inputs, given: list[Arrays]) -> tuple[Array, Array]:
        """The estimate as a function of the mean, the limits and the matrix of plain blocks."""
        loc, region, matrix = inputs
        problem = Problem(loc, CovarianceMatrix(matrix), region)
        own = [_with_arrays(*pair) for pair in zip(answers, given)]
        rows = [_restricted(problem, x, matrix if y else None) for x, y in zip(own, plain)]
        found = combined([_replayed(*pair) for pair in zip(own, rows)])
        return found.log_prob, found.stderr

    @jax.custom_jvp
    def value(inputs: Inputs, given: list[Arrays]) -> tuple[Array, Array]:
        return along(inputs, given)

    def rule(
        primals: tuple[Inputs, list[Arrays]], tangents: tuple[Any, Any]
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (inputs, given), (change, _) = primals, tangents
        moved = jax.tree.map(_instantiated, inputs, change, is_leaf=_is_zero)
        of = lambda inputs: along(inputs, given)
        (log_prob, stderr), (slope, still) = jax.jvp(of, (inputs,), (moved,))
        if not _is_zero(change[2]):
            own = [_with_arrays(*pair) for pair in zip(answers, given)]
            slope = slope + _along_matrix(own, plain, inputs, moved[2])
        return (log_prob, stderr), (slope, jnp.zeros_like(still))

    value.defjvp(rule, symbolic_zeros=True)
    return value((loc, region, matrix), [_arrays(answer) for answer in answers])


def _is_plain(answer: Answer) -> bool:
    """Whether a block is differentiated in its own matrix: without structure, or if it was sampled.

    The moments of draws carry sampling errors, which the inverse covariance would multiply twice.
    """
    sampled = any(method.growth is not None for method, _ in answer.found.recipe)
    return sampled or isinstance(answer.part.problem.covariance, CovarianceMatrix)


def _arrays(answer: Answer) -> Arrays:
    """The parts of an answer that may be tracers, which a rule must have as arguments."""
    methods = [method for method, _ in answer.found.recipe]
    return answer.part.problem.covariance, methods, answer.key


def _with_arrays(answer: Answer, arrays: Arrays) -> Answer:
    """The answer with other arrays."""
    covariance, methods, key = arrays
    recipe = tuple((method, rows) for method, (_, rows) in zip(methods, answer.found.recipe))
    part = answer.part._replace(problem=answer.part.problem._replace(covariance=covariance))
    return Answer(part, answer.found._replace(recipe=recipe), key)


def _is_zero(x: object) -> bool:
    return isinstance(x, SymbolicZero)


def _instantiated(primal: Array, tangent: Any) -> Array:
    return jnp.zeros_like(primal) if _is_zero(tangent) else tangent


def _along_matrix(answers: list[Answer], plain: list[bool], inputs: Inputs, change: Array) -> Array:
    """The derivative of log P along a change of the matrix, less that within plain blocks."""
    loc, region, matrix = inputs
    problem, total = Problem(loc, CovarianceMatrix(matrix), region), 0.0 * jnp.sum(_once(matrix))
    slope = jnp.zeros(problem.batch_shape + loc.shape[-1:], loc.dtype)
    for answer, own in zip(answers, plain):
        places = answer.part.places
        places = np.arange(matrix.shape[-1]) if places is None else places
        row = _restricted(problem, answer)
        block = change[np.ix_(places, places)]
        if own:
            of = lambda loc, row=row, answer=answer: jnp.sum(
                _replayed(answer, row._replace(loc=loc)).log_prob
            )
            full = jnp.broadcast_to(row.loc, row.batch_shape + row.loc.shape[-1:])
            gradient = jax.grad(of)(full)
        else:
            gradient, second = _slopes(answer, row)
            total = total + 0.5 * jnp.einsum("...ij,ij->...", second, block)
        # The sum after the loop leaves products of the gradients of two different blocks.
        total = total - 0.5 * jnp.einsum("...i,ij,...j->...", gradient, block, gradient)
        slope = slope.at[..., places].set(gradient)
    return total + 0.5 * jnp.einsum("...i,ij,...j->...", slope, change, slope)


def _slopes(answer: Answer, row: Problem) -> tuple[Array, Array]:
    """g and H + g g^T of a block with recognised structure, from the moments by its method."""
    method = answer.found.recipe[0][0]
    moments = row_moments(method, row, answer.key)
    factor = jnp.linalg.cholesky(lax.stop_gradient(row.covariance.covariance_matrix))
    inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(len(factor), dtype=factor.dtype))
    gap = moments.mean - row.loc
    excess = moments.covariance - factor @ factor.T + gap[..., :, None] * gap[..., None, :]
    return gap @ inverse, inverse @ excess @ inverse


@jax.custom_jvp
def _once(matrix: Array) -> Array:
    """The matrix, with an error for any further derivative."""
    return matrix


def _once_jvp(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    if not _is_zero(tangents[0]):
        raise ValueError(
            "a second derivative in a covariance matrix whose structure (independent blocks, a "
            "chain, a common factor) was recognised is not known. Pass the structure itself, such "
            "as tg.LowRank or tg.Markov, differentiate under jax.jit, or use tg.Separation()."
        )
    return primals[0], tangents[0]


_once.defjvp(_once_jvp, symbolic_zeros=True)
