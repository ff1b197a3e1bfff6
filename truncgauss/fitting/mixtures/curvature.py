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

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Compiled
from truncgauss.fitting.mixtures.likelihood import (
    Mixture,
    component_key,
    component_terms,
    held_of,
    log_mean,
    row_weights,
)
from truncgauss.fitting.mixtures.loss import MixtureLoss, summed
from truncgauss.fitting.mixtures.prior import derivatives
from truncgauss.fitting.optimization.newton import Point
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood import RowTerms, row_slopes

STEP = 2e-5  # of differences of gradients
MANY = 120  # coordinates from which on these are one-sided, right to 1e-5 in place of 1e-8


class Scores(NamedTuple):
    """What one backward pass tells of a mixture's rows; v is the number of weights and coordinates
    of all components, K (1 + p), each component's weight first.

    Attributes:
        value: the log-likelihood.
        total: the sum of the scores, (v,).
        squares: the sum of their outer products, (v, v), each row as often as it counts.
        products: the part of the Hessian that first derivatives make, (v, v).
        slopes: the sum of r g - s h with the gradients g and h by a component's own coordinates,
            (K, p).
        responsibilities, region_shares: r and s, (n, K).
    """

    value: jax.Array
    total: jax.Array
    squares: jax.Array
    products: jax.Array
    slopes: jax.Array
    responsibilities: jax.Array
    region_shares: jax.Array


class CurvatureSums(NamedTuple):
    """The first of these, of all rows of a sample."""

    value: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    products: np.ndarray


def point(loss: MixtureLoss, x: np.ndarray) -> Point:
    """The loss at x with its gradient and Hessian."""
    sums, second = summed("derivatives", _derivatives, loss, jnp.asarray(x))
    total = CurvatureSums(*sums)
    curvature, p = np.array(total.products), second.shape[-1]
    for k, block in enumerate(second):
        own = slice(k * (1 + p) + 1, (k + 1) * (1 + p))
        curvature[own, own] += (block + block.T) / 2
    return _point(loss, x, total, -_gathered(loss, curvature) / float(loss.size))


def rough_point(loss: MixtureLoss, x: np.ndarray) -> Point:
    """The loss at x with its gradient, and the products of scores for its Hessian, which they
    approach as rows become many and the mixture theirs."""
    found = scores_at(loss, x)
    return _point(loss, x, found, _gathered(loss, found.squares) / float(loss.size))


def score_products(loss: MixtureLoss, x: np.ndarray) -> np.ndarray:
    """The sum of the outer products of the scores of all rows, (q, q)."""
    return _gathered(loss, scores_at(loss, x).squares)


def scores_at(loss: MixtureLoss, x: np.ndarray) -> CurvatureSums:
    """What all rows together tell at x; kept where fits are resumable."""
    return CurvatureSums(*summed("scores", _sums, loss, jnp.asarray(x)))


def _sums(part: MixtureLoss, x: jax.Array) -> tuple[Any, ...]:
    return tuple(_scores(part, x)[: len(CurvatureSums._fields)])


def _derivatives(part: MixtureLoss, x: jax.Array) -> tuple[tuple[Any, ...], Any]:
    """The `Sums` of a part, and its second derivatives."""
    here = _scores(part, x)
    shares = here.responsibilities, here.region_shares
    second = _second(part, x, *shares, here.slopes)
    return tuple(here[: len(CurvatureSums._fields)]), second


def _point(loss: MixtureLoss, x: np.ndarray, found: CurvatureSums, hessian: np.ndarray) -> Point:
    size = float(loss.size)
    value, gradient = -float(found.value) / size, -_gathered(loss, found.total) / size
    if loss.prior_rows is not None:
        share = float(loss.prior_rows) / size
        prior = derivatives(loss.coordinates, x)
        value, gradient = value - share * prior[0], gradient - share * prior[1]
        hessian = hessian - share * prior[2]
    return Point(np.asarray(x), value, gradient, hessian)


def _gathered(loss: MixtureLoss, parts: Any) -> np.ndarray:
    """Parts by the numbers of all components, (v,) or (v, v), as those by free coordinates."""
    place, parts = loss.coordinates, np.asarray(parts)
    k = place.num_components
    where = np.hstack([np.arange(k)[:, None], place.own])
    where[-1, 0] = place.size  # the last weight is no free coordinate
    result = np.zeros((place.size + 1,) * parts.ndim)
    np.add.at(result, np.ix_(*[where.ravel()] * parts.ndim), parts)
    return result[(slice(-1),) * parts.ndim]


@Compiled
def _scores(loss: MixtureLoss, x: jax.Array) -> Scores:
    place, rows = loss.coordinates, loss.observations

    def one(part: Any) -> tuple[RowTerms, jax.Array, jax.Array]:
        number, own, held = part
        loc, matrix = place.gaussian(own)
        by_loc, by_matrix = jax.jacfwd(place.gaussian)(own)
        key = component_key(loss.key, number)
        terms, *both = row_slopes(rows, loc, matrix, held or loss.method, key)
        data, region = (
            slopes.by_loc @ by_loc + jnp.einsum("nij,ijp->np", slopes.by_matrix, by_matrix)
            for slopes in both
        )
        return terms, data, region

    weights = place.mixture(x).weights
    parts = jnp.arange(len(weights)), x[place.own], held_of(loss.method)
    terms, data, region = jax.lax.map(one, parts)
    log_data, r = log_mean(terms.data.T, weights)
    log_region, s = log_mean(terms.region.T, weights)
    counts = row_weights(rows, x.dtype)
    value = jnp.sum(jnp.where(counts == 0, 0.0, counts * (log_data - log_region)))
    value += 0.0 * jnp.sum(x)  # NaN stays
    by_data, data_products = _products(r, jnp.moveaxis(data, 0, 1), counts)
    by_region, region_products = _products(s, jnp.moveaxis(region, 0, 1), counts)
    scores = by_data - by_region
    total = counts @ scores
    return Scores(
        value=value,
        total=total,
        squares=(counts[:, None] * scores).T @ scores,
        products=data_products - region_products,
        slopes=total.reshape(len(weights), -1)[:, 1:],
        responsibilities=r,
        region_shares=s,
    )


def _products(
    shares: jax.Array, slopes: jax.Array, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """m_i of each row, (n, v), and the sum of sum_k r_ik c_ik c_ik^T - m_i m_i^T, (v, v).

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
    return mean, whole - (counts[:, None] * mean).T @ mean


@Compiled
def _second(
    loss: MixtureLoss, x: jax.Array, r: jax.Array, s: jax.Array, here: jax.Array
) -> jax.Array:
    """The sums of r second derivatives of log f less s those of log P, (K, p, p).

    Args:
        loss, x: where.
        r, s: shares of the components, (n, K), which are held.
        here: the sums of first derivatives, (K, p).
    """
    place, rows = loss.coordinates, loss.observations
    counts, weights = row_weights(rows, x.dtype)[:, None], place.mixture(x).weights

    def total(own: jax.Array) -> jax.Array:
        locs, matrices = jax.vmap(place.gaussian)(own)
        mixture = Mixture(weights, locs, CovarianceMatrix(matrices))
        terms = component_terms(rows, mixture, loss.method, loss.key)
        data = jnp.where(r > 0, counts * r * terms.data.T, 0.0)
        return jnp.sum(data - jnp.where(s > 0, counts * s * terms.region.T, 0.0))

    own, slope = x[place.own], jax.grad(total)

    def along(direction: jax.Array) -> jax.Array:
        ahead = slope(own + STEP * direction[None])
        if len(x) > MANY:
            return (ahead - here) / STEP
        return (ahead - slope(own - STEP * direction[None])) / (2 * STEP)

    return jnp.moveaxis(jax.lax.map(along, jnp.eye(own.shape[1], dtype=x.dtype)), 0, 1)
