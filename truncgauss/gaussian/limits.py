"""Limits on a Gaussian vector: the form that every region with linear constraints has."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float, Int

from truncgauss.gaussian.linalg import factored, rounding, rounding_of_root, triangle

MARGIN = 1e-9  # relative to the farthest limit, up to which limits leave no volume


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
        return len(self.low)

    @property
    def scale_tril(self) -> Float[Array, "m m"]:
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


def contradiction(
    low: np.ndarray, high: np.ndarray, loc: np.ndarray, root: np.ndarray
) -> np.ndarray | None:
    """Indices of limits low <= loc + root @ z <= high that no z meets together; None if one does.

    The widest margin that a point can have is found by linear programming, in standard deviations.
    Limits of which it is 0, so that they leave no volume, are taken for a contradiction too.
    """
    spread = np.linalg.norm(root, axis=1)
    unit = np.where(spread > 0, spread, 1.0)
    a, b, rows = (low - loc) / unit, (high - loc) / unit, root / unit[:, None]
    index = np.concatenate([np.flatnonzero(a > -np.inf), np.flatnonzero(b < np.inf)])
    ends = np.concatenate([-a[a > -np.inf], b[b < np.inf]])
    left = np.concatenate([-rows[a > -np.inf], rows[b < np.inf]])
    size = max(1.0, np.abs(ends).max(initial=0.0))
    left = np.column_stack([left, np.ones(len(left))])
    aim = np.zeros(left.shape[1])
    aim[-1] = -1.0
    bounds = [(None, None)] * (len(aim) - 1) + [(None, 1.0)]
    best = scipy.optimize.linprog(aim, A_ub=left, b_ub=ends / size, bounds=bounds, method="highs")
    if best.status != 0 or -best.fun > MARGIN:
        return None
    return np.unique(index[best.ineqlin.marginals < -MARGIN])


class LinearPrediction(NamedTuple):
    """x = origin + matrix @ (y - point) + e for constrained values y; e has covariance `rest`."""

    origin: Array
    matrix: Array
    rest: Array
