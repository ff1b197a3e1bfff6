"""Sums of importance weights with their derivatives in the proposal, added up over points.

The derivative of the log of a sum is the mean of the derivatives of its parts' logs, weighted by
the parts. So it can be accumulated beside the sum, over any number of parts, without a reverse pass
through their loop.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.separation.plan import Proposal
from truncgauss.separation.weights import Sums, log_weights, summed
from truncgauss.special import log_sum_exp


class Slopes(NamedTuple):
    """Sums of importance weights, and the derivative of the log of their total.

    Attributes:
        sums: those of each replicate.
        log_total: log of the sum over all replicates, shape ().
        slope: its derivative in every number of the proposal.
    """

    sums: Sums
    log_total: Array
    slope: Proposal

    def plus(self, other: "Slopes") -> "Slopes":
        """The sums over the points of both."""
        log_total = jnp.logaddexp(self.log_total, other.log_total)
        whole = jnp.where(log_total == -jnp.inf, 0.0, log_total)
        own, others = jnp.exp(self.log_total - whole), jnp.exp(other.log_total - whole)
        slope = jax.tree.map(lambda x, y: own * x + others * y, self.slope, other.slope)
        return Slopes(self.sums.plus(other.sums), log_total, slope)


def slopes_of(proposal: Proposal, uniforms: Array, num_keys: int) -> Slopes:
    """The sums over some points of each of a number of keys; uniforms of shape (d - 1, lanes)."""

    def total(proposal: Proposal) -> tuple[Array, Sums]:
        sums = summed(*log_weights(proposal, uniforms), num_keys)
        return log_sum_exp(sums.log_total) + sums.level, sums

    (log_total, sums), slope = jax.value_and_grad(total, has_aux=True)(proposal)
    return Slopes(jax.lax.stop_gradient(sums), log_total, slope)
