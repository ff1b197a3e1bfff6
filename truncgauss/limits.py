"""Limits on a Gaussian vector: what regions with linear constraints come down to."""

from typing import NamedTuple

from jax import Array

from truncgauss.linalg import factored, triangle


class GaussianLimits(NamedTuple):
    """low <= y <= high for y ~ Normal(loc, covariance), one entry a constraint.

    Attributes:
        low, high, loc: shape (m,).
        covariance: shape (m, m).
        root: a matrix of shape (m, q) with root @ root.T = covariance, where one is known from
            which the covariance was formed, else None. Forming it squares the condition number, so
            triangular factors are taken from the root.
    """

    low: Array
    high: Array
    loc: Array
    covariance: Array
    root: Array | None

    @property
    def num_constraints(self) -> int:
        return len(self.low)

    @property
    def scale_tril(self) -> Array:
        """The lower-triangular factor of the covariance, shape (m, m)."""
        if self.root is None or self.root.shape[0] > self.root.shape[1]:
            return factored(self.covariance)
        return triangle(self.root)[0]

    def reordered(self, order: Array) -> "GaussianLimits":
        """The constraints that `order` names, in that order."""
        low, high, loc = self.low[order], self.high[order], self.loc[order]
        root = None if self.root is None else self.root[order]
        return GaussianLimits(low, high, loc, self.covariance[order][:, order], root)


class Regression(NamedTuple):
    """x = origin + matrix @ (y - point) + e for constrained values y; e has covariance `rest`."""

    origin: Array
    matrix: Array
    rest: Array


class Released(NamedTuple):
    """A Gaussian and a region whose constraints all vary, in units of about one.

    Attributes:
        covariance, region: what cannot vary is released from its limits.
        row_unit: the unit of each constraint, shape (m,).
        known: the log probability of the constraints that cannot vary: 0 if all are met, else
            -inf; NaN if their limits are inverted or a number is NaN.
    """

    covariance: object
    region: object
    row_unit: Array
    known: Array
