"""A problem in units in which every standard deviation is about one.

Quadratures, plans and weights then meet numbers of one size, whatever units the user works in:
multiplying a coordinate by a constant changes no digit of a probability. The units are powers of
two, so that changing to them and back rounds nothing, and constants: no derivative goes through
them. Coordinates and constraints without variance are decided here, and meet no method.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.regions import Box, Polyhedron


class Standardized(NamedTuple):
    """A Gaussian and a region in units of their own.

    Attributes:
        loc, covariance, region: the problem, what cannot vary released from its limits.
        unit: of each coordinate, shape (d,): x = unit * (x in these units).
        row_unit: likewise of each constraint, shape (m,); for a box the same.
        still: the coordinates that do not vary, shape (d,).
        known: the log probability of constraints that cannot vary: 0 if all are met, else -inf;
            NaN if their limits are inverted or a number is NaN.
    """

    loc: Array
    covariance: Covariance
    region: Box | Polyhedron
    unit: Array
    row_unit: Array
    still: Array
    known: Array

    @property
    def problem(self) -> tuple[Array, Covariance, Box | Polyhedron]:
        return self.loc, self.covariance, self.region


def standardized(loc: Array, covariance: Covariance, region: Box | Polyhedron) -> Standardized:
    """The problem for one Gaussian and one region, in its own units."""
    variances = lax.stop_gradient(covariance.variances)
    still = variances == 0
    unit = power_of_two(variances)
    covariance = covariance.scaled(1.0 / unit)
    loc, region = loc / unit, region.scaled(1.0 / unit)
    if isinstance(region, Box):
        known = _verdict(still, region.low, region.high, loc)
        low, high = jnp.where(still, -jnp.inf, region.low), jnp.where(still, jnp.inf, region.high)
        covariance = covariance.released(still)
        return Standardized(loc, covariance, Box(low, high), unit, unit, still, known)
    fixed = lax.stop_gradient((region.matrix, covariance.root))
    spread = jnp.sum(product(*fixed) ** 2, axis=1)
    rounding = 4.0 * len(loc) * float(jnp.finfo(loc.dtype).eps)
    size = jnp.sum((jnp.abs(fixed[0]) @ jnp.abs(fixed[1])) ** 2, axis=1)
    flat = spread <= rounding**2 * size
    row_unit = jnp.where(flat, 1.0, power_of_two(spread))
    matrix, low, high = (
        region.matrix / row_unit[:, None], region.low / row_unit, region.high / row_unit
    )  # fmt: skip
    image = product(matrix, loc)
    slack = rounding * (jnp.abs(matrix) @ jnp.abs(loc))
    known = _verdict(flat, low - slack, high + slack, image)
    low, high = jnp.where(flat, -jnp.inf, low), jnp.where(flat, jnp.inf, high)
    region = Polyhedron(matrix, low, high)
    return Standardized(loc, covariance, region, unit, row_unit, still, known)


def power_of_two(variances: Array) -> Array:
    """About the square roots of variances, as powers of two; 1 for 0 and what is not finite."""
    sound = jnp.isfinite(variances) & (variances > 0)
    _, exponent = jnp.frexp(lax.stop_gradient(jnp.where(sound, variances, 1.0)))
    return jnp.ldexp(jnp.ones_like(variances), (exponent + 1) // 2)


def product(x: Array, y: Array) -> Array:
    """x @ y in full precision on any device."""
    return jnp.matmul(x, y, precision="highest")


def _verdict(still: Array, low: Array, high: Array, loc: Array) -> Array:
    """The log probability of those constraints that cannot vary, without derivative."""
    low, high, loc = lax.stop_gradient((low, high, loc))
    unsound = jnp.any(still & ~(low <= high))
    unmet = jnp.any(still & ~((low <= loc) & (loc <= high)))
    value = jnp.where(unsound, jnp.nan, jnp.where(unmet, -jnp.inf, 0.0)).astype(loc.dtype)
    return value + 0.0 * jnp.sum(loc)
