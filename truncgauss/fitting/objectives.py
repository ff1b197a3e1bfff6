"""The losses: of observed fractions, and of rows that were seen only inside a region.

A loss is a callable pytree, so that data of equal shape share a compilation. It holds its method's
plan and its key: one smooth function, on which a line search and a Hessian may rely.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

from truncgauss.covariances import Covariance, ScaleTril
from truncgauss.probability.method import Method, estimate
from truncgauss.problem import Estimate, Problem
from truncgauss.pytrees import frozen_pytree
from truncgauss.regions import Box
from truncgauss.special import log1mexp


@frozen_pytree
class Held:
    """A method with its plan fixed, for each row of a problem if that has rows, and its key."""

    method: Method
    key: jax.Array

    def estimate(self, problem: Problem) -> Estimate:
        return estimate(self.method, problem, self.key)

    @property
    def planned(self) -> bool:
        """Whether there may be a plan, made for other parameters than those in use."""
        return bool(jax.tree.leaves(self.method))


def hold(method: Method, key: jax.Array | None, problem: Problem) -> Held:
    """The method, with its plan made for a problem.

    Raises:
        ValueError: if the method cannot answer for such a problem.
    """
    method.check(*problem)
    return Held(method.hold(*problem), jax.random.key(0) if key is None else key)


@frozen_pytree
class FractionLoss:
    """The mean half-deviance of k observed fractions f_k with weights w_k that sum to 1,

        sum_k w_k [ f_k log(f_k / p_k) + (1 - f_k) log((1 - f_k) / (1 - p_k)) ],

    which for counts out of n_k trials is, up to a constant, the negative binomial log-likelihood
    over the number of trials. It is 0 where the fractions are met. `problem` says what the
    parameters are: `ShiftProblem` or `LimitsProblem`.
    """

    problem: Any
    fractions: jax.Array
    weights: jax.Array
    held: Held

    def log_probs(self, params: Any) -> Estimate:
        """The estimated log probabilities of the k fractions."""
        return self.held.estimate(self.problem.rows(params))

    def of(self, log_prob: jax.Array) -> jax.Array:
        """The loss of k log probabilities."""
        inside, outside = self.fractions, 1.0 - self.fractions
        entropy = xlogy(inside, inside) + xlogy(outside, outside)
        seen = jnp.where(inside > 0, log_prob, 0.0)
        unseen = log1mexp(-jnp.where(outside > 0, log_prob, -1.0))
        return self.weights @ (entropy - inside * seen - outside * unseen)

    def __call__(self, params: Any) -> jax.Array:
        return self.of(self.log_probs(params).log_prob)


@frozen_pytree
class ShiftProblem:
    """k regions seen through one Gaussian, whose mean is shifted by parameters x scale."""

    loc: jax.Array  # (k, d)
    covariance: Covariance
    region: Any
    scale: jax.Array  # (d,)

    def rows(self, params: jax.Array) -> Problem:
        return Problem(self.loc + params * self.scale, self.covariance, self.region)


@frozen_pytree
class LimitsProblem:
    """k Gaussians seen through one box, which is the parameter."""

    loc: jax.Array  # (k, d)
    covariance: Covariance

    def rows(self, params: Box) -> Problem:
        return Problem(self.loc, self.covariance, params)


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
