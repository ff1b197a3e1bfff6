"""The true values behind noisy, incomplete rows, given a mixture.

Reference:
    Bovy, Hogg and Roweis (2011), Extreme deconvolution: inferring complete distribution functions
    from noisy, heterogeneous and incomplete observations.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.keys import as_key, checked_key
from truncgauss.fits.mixtures.likelihood import log_mean, of_filled, prepared_mixture
from truncgauss.fits.mixtures.parameters import Mixture
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import row_terms
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method


class Posterior(NamedTuple):
    """Posterior of rows' true values, without noise; NaN for rows that are impossible.

    Attributes:
        mean: of the true values, (n, d).
        covariance: likewise, (n, d, d).
        responsibilities: P(component | row), (n, K).
        component_means: given a row and its component, (n, K, d).
        component_covariances: likewise, (n, K, d, d).
    """

    mean: jax.Array
    covariance: jax.Array
    responsibilities: jax.Array
    component_means: jax.Array
    component_covariances: jax.Array


def posterior(
    observations: Observations,
    weights: Any,
    locs: Any,
    covariances: Any,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> Posterior:
    r"""Mean and covariance of the true values of rows under a mixture, and their components.

    Exact wherever the likelihood is: with f_k what component k says of a row,

    .. math::

        E(x \mid row, k) = \mu_k + \Sigma_k \frac{\partial \log f_k}{\partial \mu_k}, \qquad
        C(x \mid row, k) = \Sigma_k + \Sigma_k
            \frac{\partial^2 \log f_k}{\partial \mu_k \, \partial \mu_k^T} \Sigma_k

    where the second derivative comes from the first one by the covariance. Arguments as in
    `mixture_log_likelihood`; weights of rows do not matter.

    Example:
        >>> noise = 0.5 * jnp.eye(2)
        >>> rows = tg.Observations.exact([[1.0, jnp.nan]], nan_is_missing=True, noise=noise)
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> tg.mixtures.posterior(rows, [1.0], jnp.zeros((1, 2)), covariance[None]).mean.round(4)
        Array([[0.6667, 0.3333]], dtype=float64)
    """
    observations, mixture = prepared_mixture(observations, weights, locs, covariances)
    return of_filled(_posterior, observations, mixture, method, as_key(key))


@Compiled
def _posterior(
    observations: Observations, mixture: Mixture, method: Method, key: jax.Array
) -> Posterior:
    n, d = observations.lower.shape
    known = observations.lower == observations.upper
    if observations.noise is not None:
        known &= jnp.diagonal(jnp.broadcast_to(observations.noise, (n, d, d)), 0, 1, 2) == 0
    free = ~(known[:, :, None] | known[:, None, :])  # what is known exactly does not vary

    def one(component: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        number, loc, matrix = component
        own_key = jax.random.fold_in(key, number)

        def total(loc: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
            covariance = CovarianceMatrix(matrix)
            data = row_terms(observations, loc, covariance, method, own_key).data
            return jnp.sum(jnp.where(data == -jnp.inf, 0.0, data)), data

        rows = jnp.broadcast_to(loc, (n, d)), jnp.broadcast_to(matrix, (n, d, d))
        (by_loc, by_matrix), data = jax.grad(total, (0, 1), has_aux=True)(*rows)
        shift = by_loc @ matrix
        by_matrix = by_matrix + jnp.swapaxes(by_matrix, 1, 2)
        spread = matrix + matrix @ by_matrix @ matrix - shift[:, :, None] * shift[:, None, :]
        return data, loc + shift, jnp.where(free, spread, 0.0)

    numbers = jnp.arange(len(mixture.weights))
    parts = numbers, mixture.locs, mixture.covariance.covariance_matrix
    data, means, spreads = jax.lax.map(one, parts)
    means, spreads = jnp.moveaxis(means, 0, 1), jnp.moveaxis(spreads, 0, 1)
    total, shares = log_mean(data.T, mixture.weights)
    unknown = jnp.where(total == -jnp.inf, jnp.nan, 0.0)
    mean = jnp.einsum("nk,nkd->nd", shares, means) + unknown[:, None]
    gaps = means - mean[:, None]
    squares = spreads + gaps[..., :, None] * gaps[..., None, :] * free[:, None]
    covariance = jnp.einsum("nk,nkij->nij", shares, squares)
    return Posterior(mean, covariance, shares + unknown[:, None], means, spreads)


def completed(
    key: jax.Array, observations: Observations, fitted: Posterior, num_samples: int
) -> jax.Array:
    """Draws of the true values of rows from their posterior, (num_samples, n, d).

    Raises:
        ValueError: for rows with censored or interval entries, or missing ones that a region
            limits: given these the true values are no mixture of Gaussians.
    """
    if any(pattern.limited for pattern in observations.patterns or ()):
        raise ValueError(
            "completed samples are drawn for entries that are exact or missing without a bound; "
            "some of these are censored, in intervals, or missing inside a region. Use the mean "
            "and covariance of the posterior."
        )
    choice, normal = jax.random.split(checked_key(key))
    n, k = fitted.responsibilities.shape
    d = fitted.mean.shape[1]
    logs = jnp.log(fitted.responsibilities)
    labels = jax.random.categorical(choice, logs, shape=(num_samples, n))
    values, vectors = jnp.linalg.eigh(fitted.component_covariances)
    roots = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
    noise = jax.random.normal(normal, (num_samples, n, d), fitted.mean.dtype)
    rows = jnp.arange(n)
    return fitted.component_means[rows, labels] + jnp.einsum(
        "snij,snj->sni", roots[rows, labels], noise
    )
