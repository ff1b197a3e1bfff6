"""A problem in units in which every standard deviation is about one.

Quadratures, plans and weights then meet numbers of one size, whatever units the user works in:
multiplying a coordinate by a constant changes no digit of a probability. The units are powers of
two, so that changing to them and back rounds nothing, and constants: no derivative goes through
them. Coordinates and constraints without variance are decided here, and meet no method.
"""

from typing import NamedTuple

from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.linalg import power_of_two
from truncgauss.problem import Problem
from truncgauss.regions import LinearRegion


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
    region: LinearRegion
    unit: Array
    row_unit: Array
    still: Array
    known: Array

    @property
    def problem(self) -> Problem:
        return Problem(self.loc, self.covariance, self.region)


def standardized(loc: Array, covariance: Covariance, region: LinearRegion) -> Standardized:
    """The problem for one Gaussian and one region, in its own units."""
    variances = lax.stop_gradient(covariance.variances)
    still = variances == 0
    unit = power_of_two(variances)
    covariance = covariance.scaled(1.0 / unit)
    loc, region = loc / unit, region.scaled(1.0 / unit)
    covariance, region, row_unit, known = region.released(loc, covariance, unit, still)
    return Standardized(loc, covariance, region, unit, row_unit, still, known)
