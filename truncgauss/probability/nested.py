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
from truncgauss.quadrature.nested import log_boxes, log_mass


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
        one = (x[None] for x in (box.low, box.high, loc, factor))
        return jax.tree.map(lambda x: x[0], in_boxes(*one))


@jax.custom_jvp
def in_boxes(low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array) -> Estimate:
    """log P(low < x < high) of each x with this mean, all (u, l), and Cholesky factor (u, l, l)."""
    integrals = log_boxes(low, high, loc, factor)
    return Estimate(integrals.log_prob, integrals.error)


@in_full_precision
def _in_boxes_jvp(boxes: tuple[Any, ...], changes: tuple[Any, ...]) -> tuple[Estimate, Estimate]:
    integrals = log_boxes(*boxes)
    slopes: tuple[Any, ...] = (None, None, integrals.by_loc, integrals.by_factor)
    if not all(isinstance(change, SymbolicZero) for change in changes[:2]):
        slopes = jax.vmap(jax.grad(log_mass, argnums=(0, 1, 2, 3)))(*boxes)
    moved = [
        jnp.sum(slope * change, axis=tuple(range(1, slope.ndim)))
        for slope, change in zip(slopes, changes)
        if not isinstance(change, SymbolicZero)
    ]
    estimate = Estimate(integrals.log_prob, integrals.error)
    change = sum(moved, jnp.zeros_like(estimate.log_prob))
    return estimate, Estimate(change, jnp.zeros_like(estimate.stderr))


in_boxes.defjvp(_in_boxes_jvp, symbolic_zeros=True)
