"""Probabilities of boxes in up to four dimensions, for the rows of fits."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.linalg import in_full_precision
from truncgauss.gaussian.problem import Estimate
from truncgauss.gaussian.regions import Region, as_linear
from truncgauss.probability.method import Method
from truncgauss.quadrature.nested import log_box, log_mass


@frozen_pytree
class NestedQuadrature(Method):
    """The probability of a box in up to four dimensions, by quadrature over all but the last.

    It compiles in a tenth of the time of `Exact`. stderr is 0 where log P is right to 1e-7, and as
    a rule to 1e-12; both are NaN where the nodes do not resolve the integrand. See
    `quadrature.nested`.
    """

    def replicate(
        self, loc: jax.Array, covariance: Covariance, region: Region, key: jax.Array
    ) -> Estimate:
        box, factor = as_linear(region), jnp.linalg.cholesky(covariance.covariance_matrix)
        return in_box(box.low, box.high, loc, factor)


@jax.custom_jvp
def in_box(low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array) -> Estimate:
    """log P(low < x < high) of x with this mean, all (l,), and Cholesky factor (l, l)."""
    integral = log_box(low, high, loc, factor)
    return Estimate(integral.log_prob, integral.error)


@in_full_precision
def _in_box_jvp(box: tuple[Any, ...], changes: tuple[Any, ...]) -> tuple[Estimate, Estimate]:
    integral = log_box(*box)
    slopes: tuple[Any, ...] = (None, None, integral.by_loc, integral.by_factor)
    if not all(isinstance(change, SymbolicZero) for change in changes[:2]):
        slopes = jax.grad(log_mass, argnums=(0, 1, 2, 3))(*box)
    moved = [
        jnp.sum(slope * change)
        for slope, change in zip(slopes, changes)
        if not isinstance(change, SymbolicZero)
    ]
    estimate = Estimate(integral.log_prob, integral.error)
    change = sum(moved, jnp.zeros_like(estimate.log_prob))
    return estimate, Estimate(change, jnp.zeros_like(estimate.stderr))


in_box.defjvp(_in_box_jvp, symbolic_zeros=True)
