r"""The curvature of a mixture's log-likelihood, by blocks of one component each.

With f_ik and P_ik what component k says of row i and of its region, r_ik and s_ik the shares of the
component in these, and c_ik the gradients of log w_k f_ik by all parameters, the Hessian of
log sum_k w_k f_ik is

.. math:: \sum_k r_{ik} (\nabla^2 \log f_{ik} + c_{ik} c_{ik}^T) - m_i m_i^T, \qquad
    m_i = \sum_k r_{ik} c_{ik},

and likewise that of the region. The second derivatives of log f_ik are by the parameters of its own
component. So one backward pass has all gradients c_ik, and p further ones, which move the p
parameters of all components at once, have the sums of second derivatives: not one for each of the
K p parameters.

References:
    Louis (1982), Finding the observed information matrix when using the EM algorithm. Berndt, Hall,
    Hall and Hausman (1974), Estimation and inference in nonlinear structural models, for steps by
    the products of scores.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from truncgauss import likelihood
from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.fits.mixtures.likelihood import (
    KEPT,
    MixtureLoss,
    MixtureTerms,
    held_of,
    log_mean,
    over_components,
    padded,
    parts_of,
    row_weights,
    summed,
    total_of,
)
from truncgauss.fits.mixtures.parameters import prior_derivatives
from truncgauss.fitting.newton import Point
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.rows import RowTerms, row_slopes, row_terms

STEP = 2e-5  # of differences of gradients
MANY = 120  # coordinates from which on these are one-sided, right to 1e-5 in place of 1e-8


def point(loss: MixtureLoss, x: np.ndarray) -> Point:
    """The loss at x with its gradient and Hessian."""

    def derivatives(part: MixtureLoss, x: jax.Array) -> tuple[tuple[Any, ...], Any]:
        sums, slopes, _, terms = scores_of_part(part, x)
        shares = terms.responsibilities, terms.region_shares
        inputs = padded_parameters(part, np.asarray(x))
        return sums, _second(*inputs, *shares, slopes if len(x) > MANY else None)

    (value, total, _, products), second = summed(derivatives, loss, x)
    curvature, p = np.array(products), second.shape[-1]
    for k, block in enumerate(second):
        block_slice = slice(k * (1 + p) + 1, (k + 1) * (1 + p))
        curvature[block_slice, block_slice] += (block + block.T) / 2
    return _point(loss, x, value, total, -_gathered(loss, curvature) / float(loss.size))


def rough_point(loss: MixtureLoss, x: np.ndarray) -> Point:
    """The loss at x with its gradient, and the products of scores for its Hessian, which they
    approach as rows become many and the mixture theirs."""
    value, total, squares, _ = scores_at(loss, x)
    return _point(loss, x, value, total, _gathered(loss, squares) / float(loss.size))


def score_products(loss: MixtureLoss, x: np.ndarray) -> np.ndarray:
    """The sum of the outer products of the scores of all rows, (q, q)."""
    return _gathered(loss, scores_at(loss, x)[2])


def scores_at(loss: MixtureLoss, x: np.ndarray) -> tuple[Any, ...]:
    """The sums of `scores` over all rows at x."""
    return summed(lambda part, x: scores_of_part(part, x)[0], loss, x)


def scores_of_part(loss: MixtureLoss, x: Any) -> tuple[Any, ...]:
    """The values of `scores` at x, for a loss that is no sum."""
    alike, weights, component_x, numbers = padded_parameters(loss, np.asarray(x))
    result: tuple[Any, ...] = scores(alike, weights, _gaussians(alike, component_x), numbers)
    return result


def shares(loss: MixtureLoss, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The observed weights (K,), which are the mean over rows of the share of each component in
    what can be seen there, and their Jacobian (K, q)."""
    observed, slopes = summed(lambda part, x: scores_of_part(part, x)[2], loss, x)
    k = loss.coordinates.num_components
    jacobian = np.array([_gathered(loss, slope) for slope in slopes[:k]])
    return np.asarray(observed[:k]) / float(loss.size), jacobian / float(loss.size)


def terms_at(loss: MixtureLoss, x: np.ndarray) -> MixtureTerms:
    """The terms of each row at x."""
    k, n, values = loss.coordinates.num_components, loss.observations.num_rows, []
    for part in parts_of(loss):
        terms = scores_of_part(part, x)[3]
        cut = {
            "responsibilities": np.asarray(terms.responsibilities)[:, :k],
            "region_shares": np.asarray(terms.region_shares)[:, :k],
            "components": jax.tree.map(lambda leaf: np.asarray(leaf)[:k].T, terms.components),
        }
        values.append(terms._replace(**cut))
    if not loss.parts:
        return transposed(values[0])
    numbers = np.concatenate([np.asarray(part.numbers) for part in loss.parts])
    real = numbers < n

    def in_order(*leaves: Any) -> np.ndarray:
        joined = np.concatenate(leaves)
        result = np.empty((n, *joined.shape[1:]), joined.dtype)
        result[numbers[real]] = joined[real]
        return result

    return transposed(jax.tree.map(in_order, *values))


def transposed(terms: MixtureTerms) -> MixtureTerms:
    """Terms whose components have the rows' axis first rather than last, or the reverse."""
    return terms._replace(components=jax.tree.map(np.transpose, terms.components))


_total = Compiled(total_of, closed_form)


class MixtureSummary(NamedTuple):
    """The sums over rows of what a mixture says of each.

    Attributes:
        log_prob, stderr: the log-likelihood of all rows, and its sampling error.
        counts: the expected number of rows of each component, (K,).
        inside: the sum over rows of the probability that each component lies in their region, (K,).
        entropy: of the components of all rows, in nats.
        responsibilities: P(component | what a row shows), (n, K).
    """

    log_prob: float
    stderr: float
    counts: np.ndarray
    inside: np.ndarray
    entropy: float
    responsibilities: np.ndarray


def summary_at(loss: MixtureLoss, x: np.ndarray) -> MixtureSummary:
    terms = terms_at(loss, x)
    rows, filled = likelihood.filled_up(loss.observations, transposed(terms))
    value, stderr = map(np.asarray, _total(rows, transposed(filled)))
    weights = np.asarray(row_weights(loss.observations, jnp.float64))
    responsible = np.asarray(terms.responsibilities)
    inside = weights @ np.exp(np.asarray(terms.components.region).T)
    logs = np.log(np.where(responsible > 0, responsible, 1.0))
    entropy = -weights @ np.sum(responsible * logs, axis=1)
    counts = weights @ responsible
    return MixtureSummary(float(value), float(stderr), counts, inside, float(entropy), responsible)


def _point(loss: MixtureLoss, x: np.ndarray, value: Any, total: Any, hessian: np.ndarray) -> Point:
    size = float(loss.size)
    value, gradient = -float(value) / size, -_gathered(loss, total) / size
    if loss.prior_rows is not None:
        share = float(loss.prior_rows) / size
        prior = [*map(np.asarray, prior_derivatives(loss.coordinates, x))]
        value, gradient = value - share * float(prior[0]), gradient - share * prior[1]
        hessian = hessian - share * prior[2]
    return Point(np.asarray(x), value, gradient, hessian)


def _gathered(loss: MixtureLoss, parts: Any) -> np.ndarray:
    """Parts by the numbers of all components, (v,) or (v, v), as those by free coordinates."""
    coordinates, k = loss.coordinates, loss.coordinates.num_components
    count = k * (1 + coordinates.by_component.shape[1])  # without the padding
    parts = np.asarray(parts)[(slice(count),) * np.ndim(parts)]
    where = np.hstack([np.arange(k)[:, None], coordinates.by_component])
    where[-1, 0] = coordinates.size  # the last weight is no free coordinate
    result = np.zeros((coordinates.size + 1,) * parts.ndim)
    np.add.at(result, np.ix_(*[where.ravel()] * parts.ndim), parts)
    return result[(slice(-1),) * parts.ndim]


def padded_parameters(loss: MixtureLoss, x: np.ndarray) -> tuple[MixtureLoss, Any, Any, Any]:
    """The padded loss, with the weights (K,), the coordinates (K, p) and the numbers of its
    components."""
    alike, numbers = padded(loss)
    ratios = np.append(x[: loss.coordinates.num_components - 1], 0.0)
    weights = np.zeros(len(numbers))
    weights[: len(ratios)] = special.softmax(ratios)
    return alike, weights, x[loss.coordinates.by_component][np.maximum(numbers, 0)], numbers


class Gaussians(NamedTuple):
    """Means (K, d) and covariance matrices (K, d, d) of components, with their derivatives by p
    coordinates of each, (K, d, p) and (K, d, d, p)."""

    locs: Any
    matrices: Any
    by_loc: Any
    by_matrix: Any


@functools.partial(Compiled, cost=closed_form)
def _gaussians(loss: MixtureLoss, component_x: jax.Array) -> Gaussians:
    gaussian = loss.coordinates.gaussian
    values, slopes = jax.vmap(gaussian)(component_x), jax.vmap(jax.jacfwd(gaussian))(component_x)
    return Gaussians(*values, *slopes)


@Compiled
def scores(
    loss: MixtureLoss, weights: jax.Array, gaussians: Gaussians, numbers: jax.Array
) -> tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, jax.Array], MixtureTerms]:
    """Scores of the rows of a loss that is no sum, from one backward pass; of components that fill
    it up nothing. v is the number of weights and coordinates of all components, K (1 + p), each
    component's weight first.

    Returns:
        Sums over rows: the log-likelihood; the scores, (v,); their outer products, (v, v), each row
        as often as it counts; the part of the Hessian that first derivatives make, (v, v).
        The sum of r g - s h with the gradients g and h by a component's coordinates, (K, p).
        The sum of s, (K,), and its gradients, (K, v).
        The terms of each row, with r and s as `responsibilities` and `region_shares`.
    """
    rows, dtype = loss.observations, gaussians.locs.dtype

    def one(part: Any) -> tuple[RowTerms, jax.Array, jax.Array]:
        number, (loc, matrix, by_loc, by_matrix), held = part
        key = jax.random.fold_in(loss.key, number)
        terms, *both = row_slopes(rows, loc, matrix, held or loss.method, key)
        data, region = (
            slopes.by_loc @ by_loc + jnp.einsum("nij,ijp->np", slopes.by_matrix, by_matrix)
            for slopes in both
        )
        return terms, data, region

    terms, data, region = over_components(one, (numbers, gaussians, held_of(loss.method)))
    log_data, r = log_mean(terms.data.T, weights)
    log_region, s = log_mean(terms.region.T, weights)
    counts = row_weights(rows, dtype)
    value = jnp.sum(jnp.where(counts == 0, 0.0, counts * (log_data - log_region)))
    value += 0.0 * sum(jnp.sum(leaf) for leaf in (weights, *gaussians[:2]))  # NaN stays
    by_data, data_products, _ = _products(r, jnp.moveaxis(data, 0, 1), counts)
    by_region, region_products, sums = _products(s, jnp.moveaxis(region, 0, 1), counts)
    scores = by_data - by_region
    total, shared = counts @ scores, (counts[:, None] * s).T
    blocks = jax.scipy.linalg.block_diag(*sums[:, None])
    squares = (counts[:, None] * scores).T @ scores
    terms_of_rows = MixtureTerms(log_data - log_region, r, s, log_region, terms)
    slopes = total.reshape(len(weights), -1)[:, 1:]
    observed = jnp.sum(shared, axis=1), blocks - shared @ by_region
    return (value, total, squares, data_products - region_products), slopes, observed, terms_of_rows


def _products(
    shares: jax.Array, slopes: jax.Array, counts: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """m_i of each row, (n, v), the sum of sum_k r_ik c_ik c_ik^T - m_i m_i^T, (v, v), and that of
    r_ik c_ik, (K, 1 + p).

    Args:
        shares: r, (n, K).
        slopes: of log f_ik by the component's own coordinates, (n, K, p).
        counts: of the rows, (n,).
    """
    n, k, p = slopes.shape
    slopes = jnp.where((shares > 0)[..., None], slopes, 0.0)
    both = jnp.concatenate([jnp.ones((n, k, 1), slopes.dtype), slopes], axis=-1)
    mean = (shares[..., None] * both).reshape(n, -1)
    blocks = jnp.einsum("n,nk,nki,nkj->kij", counts, shares, both, both)
    whole = jax.scipy.linalg.block_diag(*blocks)
    return mean, whole - (counts[:, None] * mean).T @ mean, (counts @ mean).reshape(k, -1)


@Compiled
def _second(
    loss: MixtureLoss,
    weights: jax.Array,
    component_x: jax.Array,
    numbers: jax.Array,
    r: jax.Array,
    s: jax.Array,
    first_sums: jax.Array | None,
) -> jax.Array:
    """The sums of r second derivatives of log f less s those of log P, (K, p, p).

    Args:
        loss, weights, component_x, numbers: as `padded_parameters` returns them.
        r, s: shares of the components, (n, K), which are held.
        first_sums: of first derivatives, (K, p), for one-sided differences; None for central.
    """
    rows, (n, d) = loss.observations, loss.observations.lower.shape
    counts = row_weights(rows, component_x.dtype)

    def one(part: Any) -> jax.Array:
        number, component_x, held, r, s, first_sums = part
        key = jax.random.fold_in(loss.key, number)

        def terms_of(loc: jax.Array, matrix: jax.Array) -> RowTerms:
            return row_terms(rows, loc, CovarianceMatrix(matrix), held or loss.method, key)

        terms_at = jax.checkpoint(terms_of) if n * d * d > KEPT else terms_of

        def total(component_x: jax.Array) -> jax.Array:
            terms = terms_at(*loss.coordinates.gaussian(component_x))
            data = jnp.where(r > 0, counts * r * terms.data, 0.0)
            return jnp.sum(data - jnp.where(s > 0, counts * s * terms.region, 0.0))

        steps = STEP * jnp.eye(len(component_x), dtype=component_x.dtype)
        x = component_x[None, :]
        if first_sums is not None:
            return (jax.lax.map(jax.grad(total), x + steps) - first_sums[None, :]) / STEP
        both = jnp.stack([x + steps, x - steps])
        ahead, behind = jax.lax.map(lambda side: jax.lax.map(jax.grad(total), side), both)
        return (ahead - behind) / (2 * STEP)

    return over_components(one, (numbers, component_x, held_of(loss.method), r.T, s.T, first_sums))
