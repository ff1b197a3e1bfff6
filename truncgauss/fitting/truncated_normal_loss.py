"""The loss of rows seen only inside a region, in the natural parameters of a Gaussian."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.covariances import ScaleTril
from truncgauss.fitting.held import Held
from truncgauss.problem import Estimate, Problem
from truncgauss.pytrees import frozen_pytree


@frozen_pytree
class TruncatedLoss:
    """Minus the mean log-likelihood of rows that were seen only inside a region,

        l(eta, Lambda) = tr(Lambda M) / 2 - eta . m + A(eta, Lambda),
        A = eta . Lambda^-1 eta / 2 - log det(Lambda) / 2 + d log(2 pi) / 2 + log P(X in region),

    with m the rows' mean and M their mean of x x^T, a convex function of the natural parameters
    eta = Lambda loc and Lambda, the inverse covariance (Barndorff-Nielsen, 1978). Both stand in one
    vector, eta first, then the lower triangle of Lambda by rows.
    """

    mean: jax.Array
    second_moment: jax.Array
    region: Any
    held: Held

    def __call__(self, natural: jax.Array) -> jax.Array:
        eta, precision = unpacked(natural, self.mean.shape[0])
        log_prob = self.estimate(natural).log_prob
        factor = jnp.linalg.cholesky(precision)
        whitened = jax.scipy.linalg.solve_triangular(factor, eta, lower=True)
        log_normaliser = (
            0.5 * whitened @ whitened
            - jnp.sum(jnp.log(jnp.diagonal(factor)))
            + 0.5 * len(eta) * math.log(2 * math.pi)
        )
        energy = 0.5 * jnp.sum(precision * self.second_moment) - eta @ self.mean
        return energy + log_normaliser + log_prob

    @jax.jit
    def estimate(self, natural: jax.Array) -> Estimate:
        """The estimated log P(X in region) and its error."""
        loc, covariance = gaussian(natural, self.mean.shape[0])
        covariance = ScaleTril(jnp.linalg.cholesky(covariance))
        return self.held.estimate(Problem(loc, covariance, self.region))


def packed(vector: Any, matrix: Any) -> Any:
    """A vector (d,) and a symmetric matrix (d, d) as one vector: the lower triangle by rows."""
    xp = jnp if isinstance(vector, jax.Array) else np
    return xp.concatenate([vector, matrix[np.tril_indices(len(vector))]])


def unpacked(values: Any, dimension: int) -> tuple[Any, Any]:
    """The vector and the symmetric matrix that `packed` took."""
    order = np.zeros((dimension, dimension), int)
    order[np.tril_indices(dimension)] = np.arange(len(values) - dimension)
    order = np.maximum(order, order.T)
    return values[:dimension], values[dimension:][order]


@jax.jit
def natural_parameters(loc: jax.Array, covariance: jax.Array) -> jax.Array:
    """Packed (eta, Lambda) of a Gaussian."""
    precision = inverse(covariance)
    return packed(precision @ loc, precision)


@functools.partial(jax.jit, static_argnames="dimension")
def gaussian(natural: jax.Array, dimension: int) -> tuple[jax.Array, jax.Array]:
    """loc and covariance matrix of packed (eta, Lambda)."""
    eta, precision = unpacked(natural, dimension)
    covariance = inverse(precision)
    return covariance @ eta, covariance


def inverse(matrix: jax.Array) -> jax.Array:
    """The inverse of a positive definite matrix, symmetric to the bit; NaN for any other."""
    factor = jnp.linalg.cholesky(matrix)
    root = jax.scipy.linalg.solve_triangular(
        factor, jnp.eye(matrix.shape[-1], dtype=matrix.dtype), lower=True
    )
    return root.T @ root
