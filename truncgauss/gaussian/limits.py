"""Limits on a Gaussian vector: the form that every region with linear constraints has."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from truncgauss.gaussian.linalg import factored, rounding, rounding_of_root, triangle


class GaussianLimits(NamedTuple):
    """low <= y <= high for y ~ Normal(loc, covariance), one entry a constraint.

    Attributes:
        low, high, loc: shape (m,).
        covariance: shape (m, m).
        root: a matrix of shape (m, q) with root @ root.T = covariance, if the covariance was
            formed from one, else None. The product squares the condition number, so triangular
            factors are taken from the root.
        size: the norms of the rows of the root, or of the terms that their entries are sums of, of
            which their rounding is a fraction; shape (m,), or None without a root.
    """

    low: Float[Array, " m"]
    high: Float[Array, " m"]
    loc: Float[Array, " m"]
    covariance: Float[Array, "m m"]
    root: Float[Array, "m q"] | None
    size: Float[Array, " m"] | None = None

    @property
    def num_constraints(self) -> int:
        """The number m of limited variables."""
        return len(self.low)

    @property
    def scale_tril(self) -> Float[Array, "m m"]:
        """The lower-triangular factor of the covariance, shape (m, m)."""
        if self.root is None or self.root.shape[0] > self.root.shape[1]:
            return factored(self.covariance)
        return triangle(self.root)[0]

    def reordered(self, order: Int[Array, " k"]) -> "GaussianLimits":
        """The constraints with the indices `order`, in that order."""
        low, high, loc = self.low[order], self.high[order], self.loc[order]
        root = None if self.root is None else self.root[order]
        size = None if self.size is None else self.size[order]
        return GaussianLimits(low, high, loc, self.covariance[order][:, order], root, size)

    @property
    def residual_rounding(self) -> Float[Array, " m"]:
        """The standard deviation that a constraint may have by rounding where it is determined."""
        if self.root is None or self.size is None:
            return jnp.sqrt(rounding(self.covariance))
        return rounding_of_root(self.root.shape, self.root.dtype) * self.size


class LinearPrediction(NamedTuple):
    """x = origin + matrix @ (y - point) + e for constrained values y; e has covariance `rest`."""

    origin: Array
    matrix: Array
    rest: Array
