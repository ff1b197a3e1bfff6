"""The loss of observed fractions: how far probabilities are from the fractions that were seen.

A loss is a callable pytree, so that data of equal shape share a compilation.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.fitting.held import Held, HeldLimited
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions import Box
from truncgauss.special import log1mexp


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
    held: Held | HeldLimited

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
