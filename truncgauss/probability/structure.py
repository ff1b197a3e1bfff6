"""The structure of a covariance matrix: independent blocks, a Markov chain, or a common factor.

A structure is recognised if it reproduces every entry of the matrix to a few units of rounding. It
depends on the numbers, so in a trace no structure is recognised.

Reference:
    Rue and Held (2005), Gaussian Markov Random Fields, section 2.2: a chain has a tridiagonal
    precision matrix, so that its correlations are products of those of neighbours.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import is_concrete
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, LowRank, Markov
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.region import as_linear

ROUNDING = 16.0  # units in the last place of the product of two standard deviations
SAMPLE = 64  # variables by which a large matrix is judged first
LEAST_NOISE = 1e-4, 1e5  # smallest fraction of a variance, also in eps: below, it has no digits


class Part(NamedTuple):
    """An independent block of a problem, and the indices of its coordinates, None for all."""

    problem: Problem
    coordinates: np.ndarray | None


def independent_parts(problem: Problem, all_coordinates: bool = False) -> list[Part]:
    """The independent blocks of a problem, each with its structure.

    The log probability of a box is the sum of theirs. Coordinates without limits are left out,
    unless `all_coordinates` are asked for. A problem in a trace, with a covariance for each row, or
    with a region other than a box, is a single block. A NaN anywhere in the mean of a row makes
    that row NaN in every block.
    """
    loc, covariance, region = problem
    if not region.is_box or not covariance.is_matrix:
        return [Part(problem, None)]
    if covariance.batch_shape != () or not is_concrete(problem):
        return [Part(problem, None)]
    # NumPy throughout: each of some forty small operations of JAX would be compiled.
    matrix, mean = np.asarray(covariance.matrix), np.asarray(loc)
    low, high = (np.asarray(side) for side in (as_linear(region).low, as_linear(region).high))
    free = np.all(np.isinf(low) & np.isinf(high), axis=tuple(range(low.ndim - 1)))
    free = free & (not all_coordinates)
    sound = np.all(np.isfinite(matrix)) and not np.any(np.isinf(mean)) and not free.all()
    if not sound or np.any(np.diagonal(matrix) < 0):
        return [Part(problem, None)]
    limited = np.flatnonzero(~free)
    linked = (matrix if len(limited) == len(matrix) else matrix[np.ix_(limited, limited)]) != 0
    count, labels = 1, np.zeros(len(limited), int)
    if not linked.all():
        from scipy.sparse import csgraph  # a fifth of a second to import, for few problems

        count, labels = csgraph.connected_components(linked, directed=False)
    if count == 1 and len(limited) == len(matrix):
        return [Part(problem._replace(covariance=structured(covariance)), None)]
    mean = np.where(np.any(np.isnan(mean), axis=-1, keepdims=True), np.nan, mean)
    parts = []
    for block in range(count):
        kept = limited[labels == block]
        part = CovarianceMatrix(jnp.asarray(matrix[np.ix_(kept, kept)]))
        # Not by `Box`, which refuses equal limits: they may stand in a derivative.
        box = jax.tree.map(lambda x, kept=kept: jnp.asarray(np.asarray(x)[..., kept]), region)
        problem = Problem(jnp.asarray(mean[..., kept]), structured(part), box)
        parts.append(Part(problem, kept))
    return parts


def combined(results: list[Estimate]) -> Estimate:
    """The log probability of independent blocks together, with their errors in quadrature."""
    if len(results) == 1:
        return results[0]
    log_prob: Any = sum(result.log_prob for result in results)
    square: Any = sum(result.stderr**2 for result in results)
    return Estimate(log_prob, square**0.5)


def is_recognised(part: Part, whole: Problem) -> bool:
    """Whether the covariance of a block is of another kind than that of the problem."""
    return type(part.problem.covariance) is not type(whole.covariance)


def structured(covariance: Covariance, smallest: int = 4) -> Covariance:
    """The Markov chain or common-factor form of a known covariance matrix, or what there is."""
    if not covariance.is_matrix or covariance.batch_shape != ():
        return covariance
    if not is_concrete(covariance):
        return covariance
    matrix = np.asarray(covariance.matrix)
    if len(matrix) < smallest or np.any(np.diagonal(matrix) <= 0):
        return covariance
    if len(matrix) > SAMPLE:
        # A principal block of a chain or of one factor is one too: most others fail here already.
        some = np.linspace(0, len(matrix) - 1, SAMPLE).astype(int)
        block = matrix[np.ix_(some, some)]
        if not (_chain(block) or common_factor(block)):
            return covariance
    return _chain(matrix) or common_factor(matrix) or covariance


def least_noise(matrix: np.ndarray) -> float:
    """The smallest conditional variance, relative to the variance, that a structure may have."""
    return max(LEAST_NOISE[0], LEAST_NOISE[1] * float(np.finfo(matrix.dtype).eps))


def _gives_back(candidate: np.ndarray, matrix: np.ndarray) -> bool:
    scale = np.sqrt(np.diagonal(matrix))
    gap = np.abs(candidate - matrix)
    return bool(np.all(gap <= ROUNDING * np.finfo(matrix.dtype).eps * np.outer(scale, scale)))


def _chain(matrix: np.ndarray) -> Markov | None:
    """The Markov chain with the same variances and covariances of neighbours, if it fits."""
    variances, beside = np.diagonal(matrix), np.diagonal(matrix, 1)
    transition = beside / variances[:-1]
    noise = variances[1:] - transition * beside
    if np.any(noise < least_noise(matrix) * variances[1:]):
        return None
    candidate = np.diag(variances)
    for t, share in enumerate(transition):
        candidate[: t + 1, t + 1] = candidate[t + 1, : t + 1] = share * candidate[: t + 1, t]
    if not _gives_back(candidate, matrix):
        return None
    arrays = transition, np.sqrt(noise), np.sqrt(variances[0])
    return Markov(*(jnp.asarray(x, matrix.dtype) for x in arrays))


def common_factor(matrix: np.ndarray) -> LowRank | None:
    """The one-factor form, if it fits: entry ij is the product of loadings i and j for i != j."""
    variances = np.diagonal(matrix)
    scale = np.sqrt(variances)
    correlation = matrix / np.outer(scale, scale) - np.eye(len(matrix))
    first = np.argmax(np.abs(correlation).sum(0))
    second, third = np.argsort(-np.abs(correlation[first]))[:2]
    pairs = correlation[first, second], correlation[first, third], correlation[second, third]
    if 0 in pairs or pairs[0] * pairs[1] / pairs[2] <= 0:
        return None
    loading = np.sqrt(pairs[0] * pairs[1] / pairs[2])
    loadings = correlation[first] / loading
    loadings[first] = loading
    noise = 1.0 - loadings**2
    if np.any(noise < least_noise(matrix)):
        return None
    factor, diagonal = (scale * loadings)[:, None], variances * noise
    if not _gives_back(factor @ factor.T + np.diag(diagonal), matrix):
        return None
    return LowRank(jnp.asarray(factor, matrix.dtype), jnp.asarray(diagonal, matrix.dtype))
