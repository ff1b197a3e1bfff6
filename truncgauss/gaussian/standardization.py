"""A problem in units in which every standard deviation is about one.

Multiplying a coordinate by a constant then changes no digit of a probability, whatever units the
user works in. The units are powers of two, so that changing to them and back is free of rounding,
and constants, so that no derivative goes through them. Constraints of variance 0 are checked here,
and constraints with equal limits, which nothing meets: methods see them without limits.
"""

from typing import NamedTuple

from jax import lax
from jaxtyping import Array, Bool, Float

from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.linalg import power_of_two
from truncgauss.gaussian.problem import Problem
from truncgauss.gaussian.regions import LinearRegion, Region, as_linear


class Standardized(NamedTuple):
    """A Gaussian and a region in units in which standard deviations are about one.

    Attributes:
        loc, covariance, region: the problem in these units, decided constraints without limits:
            those of variance 0, and those with equal limits.
        unit: the unit of each coordinate, shape (d,): x = unit * (x in these units).
        row_unit: the unit of each constraint, shape (m,); for a box the same as `unit`.
        still: whether each coordinate has variance 0, shape (d,).
        known: the log probability of the decided constraints: 0 if all are met, else -inf; NaN if
            limits of one of variance 0 are inverted or a number is NaN.
    """

    loc: Float[Array, " d"]
    covariance: Covariance
    region: LinearRegion
    unit: Float[Array, " d"]
    row_unit: Float[Array, " m"]
    still: Bool[Array, " d"]
    known: Float[Array, ""]

    @property
    def problem(self) -> Problem:
        """The problem in these units."""
        return Problem(self.loc, self.covariance, self.region)


def standardized(loc: Float[Array, " d"], covariance: Covariance, region: Region) -> Standardized:
    """The problem of one Gaussian and one region, in units of its standard deviations."""
    variances = lax.stop_gradient(covariance.variances)
    still = variances == 0
    unit = power_of_two(variances)
    covariance = covariance.scaled(1.0 / unit)
    loc, linear = loc / unit, as_linear(region).scaled(1.0 / unit)
    covariance, linear, row_unit, known = linear.released(loc, covariance, unit, still)
    return Standardized(loc, covariance, linear, unit, row_unit, still, known)
