"""Mean and covariance by the laws of total mean and total covariance, with standard errors.

The components are quadrature nodes, weighted points or replicates. A mixture's covariance is a sum
of positive semi-definite matrices, hence itself positive semi-definite. Deviations are counted from
a point inside the region, so that a narrow region in a tail keeps its digits.

References:
    Owen (2013), Monte Carlo theory, methods and examples, chapters 8 (control variates) and 9
    (importance sampling, ratio estimates).
    Kish (1965), Survey Sampling: the effective sample size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array

from truncgauss.gaussian.problem import Moments
from truncgauss.gaussian.regions.region import LinearPrediction
from truncgauss.special.logspace import effective_sample_size, log_sum_exp, standard_error

MIN_EFFECTIVE_POINTS = 10.0


class Pieces(NamedTuple):
    """R components of a mixture, such as replicates, along a leading axis.

    Attributes:
        log_shares: logs of their weights, which need not add up to one, shape (R,).
        means, covariances: shapes (R, d) and (R, d, d).
        num_effective: effective sample size of each, shape (R,).
    """

    log_shares: Array
    means: Array
    covariances: Array
    num_effective: Array


class Nodes(NamedTuple):
    """A truncated distribution as a mixture over quadrature nodes.

    Each component has independent coordinates.

    Attributes:
        point: a point inside the region that deviations are counted from, shape (d,).
        deviations: means of the components, less the point, shape (n, d).
        variances: of the components, 0 for a coordinate that the node fixes, shape (n, d).
        log_values: logs of the integrand, shape (n,).
        weights: of the quadrature, shape (n,).
    """

    point: Array
    deviations: Array
    variances: Array
    log_values: Array
    weights: Array


def total_moments(nodes: Nodes) -> tuple[Array, Array]:
    """Mean less the nodes' point, and covariance, of a mixture over quadrature nodes."""
    top = lax.stop_gradient(jnp.max(jnp.where(nodes.weights > 0, nodes.log_values, -jnp.inf)))
    sizes = nodes.weights / lax.stop_gradient(jnp.max(nodes.weights))
    sizes = sizes * jnp.exp(nodes.log_values - top)
    weights = sizes / sizes.sum()
    mean = weights @ nodes.deviations
    gaps = nodes.deviations - mean[None]
    return mean, (weights[:, None] * gaps).T @ gaps + jnp.diag(weights @ nodes.variances)


def weighted_pieces(
    log_weights: Array, deviations: Array, last_variance: Array | None = None
) -> Pieces:
    """Mean and covariance of each replicate of weighted points.

    Args:
        log_weights: logs of the importance weights, shape (R, n).
        deviations: the points, less a common origin, shape (R, k, n).
        last_variance: variance of the last coordinate given the others, shape (R, n), if
            `deviations` holds its conditional mean instead of draws.
    """
    log_total = log_sum_exp(log_weights, axis=1)
    weights = jnp.exp(log_weights - jnp.where(jnp.isfinite(log_total), log_total, 0.0)[:, None])
    means = jnp.einsum("rn,rkn->rk", weights, deviations)
    gaps = deviations - means[:, :, None]
    matrices = (weights[:, None, :] * gaps) @ jnp.swapaxes(gaps, 1, 2)
    if last_variance is not None:
        matrices = matrices.at[:, -1, -1].add(jnp.sum(weights * last_variance, axis=1))
    effective = effective_sample_size(log_weights, axis=1)
    return Pieces(log_total, means, matrices, effective)


def merged(one: Pieces, other: Pieces) -> Pieces:
    """The pieces, replicate by replicate, of two sets of weighted points pooled."""
    log_shares = jnp.logaddexp(one.log_shares, other.log_shares)
    whole = jnp.where(log_shares == -jnp.inf, 0.0, log_shares)
    first, second = jnp.exp(one.log_shares - whole), jnp.exp(other.log_shares - whole)
    inverse = first**2 / one.num_effective + second**2 / other.num_effective
    gaps = other.means - one.means
    first, second = first[:, None], second[:, None]
    between = (first * second)[..., None] * gaps[:, :, None] * gaps[:, None, :]
    within = first[..., None] * one.covariances + second[..., None] * other.covariances
    means = one.means + second * gaps
    return Pieces(log_shares, means, within + between, 1.0 / inverse)


def followed(pieces: Pieces, regression: LinearPrediction) -> Pieces:
    """The pieces of all coordinates, from those of the constrained values by regression."""
    matrix = regression.matrix
    covariances = matrix @ pieces.covariances @ matrix.T + regression.rest[None]
    return pieces._replace(means=pieces.means @ matrix.T, covariances=covariances)


class Surprises(NamedTuple):
    """Averages over each replicate of control variates, whose expectations are known.

    With e_k the draw of variable k less its mean given the earlier ones, and v_k its variance given
    them, the expectations are 0 for e and for e_j e_k, and v_k for the square of e_k.
    """

    means: Array  # of e, shape (R, k)
    squares: Array  # of e e^T less v, shape (R, k, k)
    products: Array  # of the deviations with e, shape (R, k, k)
    variances: Array  # v, shape (R, k)


def surprises(deviations: Array, expected: Array, variances: Array) -> Surprises:
    """The control variates of sequential draws, the last variable of which was not drawn.

    Args:
        deviations: the draws, less a common origin, shape (R, k, n).
        expected, variances: mean and variance of each draw given the earlier ones, same shape.
    """
    count = deviations.shape[-1]
    errors = jnp.swapaxes(deviations - expected, 1, 2)
    mean_variances = variances.mean(-1)
    known = mean_variances.at[:, -1].set(0.0)
    identity = jnp.eye(known.shape[1], dtype=known.dtype)
    squares = jnp.swapaxes(errors, 1, 2) @ errors / count - known[:, :, None] * identity[None]
    gaps = deviations - deviations.mean(-1, keepdims=True)
    return Surprises(errors.mean(1), squares, gaps @ errors / count, mean_variances)


def corrected(pieces: Pieces, variates: Surprises) -> Pieces:
    """The pieces with the control-variate correction of their means and covariances.

    With T the regression of the deviations on e, unit lower triangular, T mean(e) is subtracted
    from the means and T mean(e e^T - v) T^T from the covariances. Both have expectation 0, and are
    most of the error if the importance weights are nearly equal. The correction is scaled down
    where it would bring a variance of the mixture, in any direction, below half of what it was.
    """
    variances = variates.variances.mean(0)
    divisor = jnp.where(variances > 0, variances, 1.0)[None, :]
    response = jnp.tril(variates.products.mean(0) / divisor, -1)
    response = response + jnp.eye(len(variances), dtype=variances.dtype)
    means = variates.means @ response.T
    matrices = response @ variates.squares @ response.T
    fixed = lax.stop_gradient((_mixture(pieces)[1], pieces.log_shares, matrices))
    before, log_shares, subtracted = fixed
    scale = jnp.sqrt(jnp.diagonal(before))
    taken = jnp.einsum("r,rkl->kl", jax.nn.softmax(log_shares), subtracted)
    # One division after the other: the product of two scales may underflow.
    factor = jnp.linalg.cholesky(before / scale[:, None] / scale[None, :])
    half = solve_triangular(factor, taken / scale[:, None] / scale[None, :], lower=True)
    inner = solve_triangular(factor, half.T, lower=True)
    sound = jnp.all(jnp.isfinite(inner))
    most = jnp.linalg.eigvalsh(jnp.where(sound, inner, 0.0))[-1]
    extent = jnp.where(sound, 0.5 / jnp.maximum(most, 0.5), 0.0)
    return pieces._replace(
        means=pieces.means - extent * means, covariances=pieces.covariances - extent * matrices
    )


def _mixture(pieces: Pieces) -> tuple[Array, ...]:
    """Mean and covariance of a mixture; each piece's gap from the mean and moment about it."""
    weights = jax.nn.softmax(pieces.log_shares)
    mean = weights @ pieces.means
    gaps = pieces.means - mean[None]
    each = pieces.covariances + gaps[:, :, None] * gaps[:, None, :]
    return mean, jnp.einsum("r,rkl->kl", weights, each), gaps, each


def pooled_moments(pieces: Pieces, origin: Array) -> Moments:
    """Moments of the mixture of replicates; standard errors as of a ratio of two means."""
    weights = jax.nn.softmax(pieces.log_shares)
    mean, matrix, gaps, each = _mixture(pieces)
    count = len(weights)
    few = jnp.where(pieces.num_effective >= MIN_EFFECTIVE_POINTS, 0.0, weights).sum() > 0.5

    def error(x: Array) -> Array:
        terms = count * weights.reshape(-1, *(1,) * (x.ndim - 1)) * x
        return jnp.where(few | jnp.isnan(few), jnp.inf, standard_error(terms))

    return Moments(origin + mean, matrix, error(gaps), error(each - matrix[None]))


def with_unseen(moments: Moments, share: Array) -> Moments:
    """The moments with standard errors inflated for mass that no point may have sampled.

    Args:
        moments: with their standard errors from the points.
        share: the fraction of the probability that may have been missed.
    """
    scale = jnp.sqrt(jnp.diagonal(moments.covariance))
    share = jnp.where(jnp.isnan(share), 0.0, share)
    return moments._replace(
        mean_stderr=jnp.hypot(moments.mean_stderr, share * scale),
        covariance_stderr=jnp.hypot(
            moments.covariance_stderr, share * scale[:, None] * scale[None, :]
        ),
    )


# --- Parts of a Gaussian --------------------------------------------------------------------------


def assembled(
    parts: Sequence[Moments], coordinates: Sequence[np.ndarray], loc: Array, matrix: Array
) -> Moments:
    """Moments of a truncated Gaussian from those of independent groups of its coordinates.

    Coordinates in none of the groups have no limits: their moments follow from the others by
    regression, and their standard errors are bounded by those of the others.

    Args:
        parts: with leading axes (...).
        coordinates: those of each part.
        loc: shape (..., d).
        matrix: the covariance before truncation, shape (d, d).
    """
    limited = np.concatenate(coordinates)
    free = np.setdiff1d(np.arange(len(matrix)), limited)
    within, cross = matrix[np.ix_(limited, limited)], matrix[np.ix_(free, limited)]
    factor = jnp.linalg.cholesky(within)
    if np.all(np.isfinite(factor)):
        response = cho_solve((factor, True), cross.T).T
    else:  # singular
        response = cross @ jnp.linalg.pinv(within, hermitian=True)
    return _followed_by(parts, np.concatenate([limited, free]), loc, matrix, response)


@jax.jit
def _followed_by(
    parts: Sequence[Moments], order: Array, loc: Array, matrix: Array, response: Array
) -> Moments:
    """The moments of the parts and of the coordinates after them in `order`, in their own order."""
    mean = jnp.concatenate([part.mean for part in parts], -1)
    mean_stderr = jnp.concatenate([part.mean_stderr for part in parts], -1)
    inner = _block_diagonal([part.covariance for part in parts])
    stderr = _block_diagonal([part.covariance_stderr for part in parts])
    limited, free = order[: mean.shape[-1]], order[mean.shape[-1] :]
    # A NaN in one part, whose probability is then 0, makes all moments NaN.
    nan_propagator = jnp.sum(0.0 * mean, axis=-1)[..., None]
    mean, inner = mean + nan_propagator, inner + nan_propagator[..., None]
    follow = loc[..., free] + (mean - loc[..., limited]) @ response.T
    rest = matrix[free[:, None], free] - response @ matrix[limited[:, None], free]
    back = jnp.argsort(order)

    def bordered(inner: Array, response: Array, rest: Array) -> Array:
        across = response @ inner
        corner = across @ response.T + rest
        upper = jnp.concatenate([inner, jnp.swapaxes(across, -1, -2)], -1)
        whole = jnp.concatenate([upper, jnp.concatenate([across, corner], -1)], -2)
        return 0.5 * (whole + jnp.swapaxes(whole, -1, -2))[..., back, :][..., back]

    size = jnp.abs(response)
    errors = jnp.concatenate([mean_stderr, mean_stderr @ size.T], -1)[..., back]
    mean = jnp.concatenate([mean, jnp.broadcast_to(follow, (*mean.shape[:-1], len(free)))], -1)
    return Moments(
        mean[..., back],
        bordered(inner, response, rest),
        errors,
        bordered(stderr, size, jnp.zeros_like(rest)),
    )


def _block_diagonal(blocks: list[Array]) -> Array:
    ends = np.cumsum([0, *(block.shape[-1] for block in blocks)])
    whole = jnp.zeros((*blocks[0].shape[:-2], ends[-1], ends[-1]), blocks[0].dtype)
    for start, end, block in zip(ends[:-1], ends[1:], blocks):
        whole = whole.at[..., start:end, start:end].set(block)
    return whole
