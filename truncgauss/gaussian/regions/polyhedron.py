"""Polyhedra: limits on linear functions of the coordinates."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays.linalg import power_of_two, product, row_norms, semidefinite_factor
from truncgauss.arrays.pytrees import as_float_array, check_limits, frozen_pytree
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.regions.region import (
    GaussianLimits,
    LinearPrediction,
    LinearRegion,
    Released,
    decided_limits,
    smallest_log_mass,
)
from truncgauss.special.tails import standardize
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Polyhedron(LinearRegion):
    """All x with low <= matrix @ x <= high, with any number m of rows.

    Args:
        matrix: shape (m, d), or (k, m, d).
        low: lower limits, shape (m,), or (k, m); -inf leaves a side open. A number is the limit of
            every row.
        high: upper limits, likewise.

    Raises:
        ValueError: if shapes disagree or low >= high anywhere (values: not while tracing).

    Example:
        >>> wedge = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0], [jnp.inf, jnp.inf])
        >>> wedge.contains(jnp.array([1.0, 0.5]))
        Array(True, dtype=bool)
    """

    matrix: Float[Array, "*batch m d"]
    low: Float[Array, "*batch m"]
    high: Float[Array, "*batch m"]

    event_ranks = {"matrix": 2, "low": 1, "high": 1}

    def __init__(
        self,
        matrix: Real[ArrayLike, "*#batch m d"] | Sequence[Any],
        low: Real[ArrayLike, "*#batch m"] | Real[ArrayLike, ""] | Sequence[Any],
        high: Real[ArrayLike, "*#batch m"] | Real[ArrayLike, ""] | Sequence[Any],
    ) -> None:
        matrices = as_float_array(matrix, "Polyhedron: matrix")
        lower = as_float_array(low, "Polyhedron: low")
        upper = as_float_array(high, "Polyhedron: high")
        if matrices.ndim < 2:
            raise ValueError(
                f"Polyhedron: matrix needs shape (m, d), got {matrices.shape}. A single "
                "constraint on two coordinates is [[a, b]]."
            )
        rows = matrices.shape[-2]
        lower = jnp.broadcast_to(lower, (rows,)) if lower.ndim == 0 else lower
        upper = jnp.broadcast_to(upper, (rows,)) if upper.ndim == 0 else upper
        if lower.shape[-1] != rows or upper.shape[-1] != rows:
            raise ValueError(
                f"Polyhedron: matrix of shape {matrices.shape} has {rows} rows, but low has shape "
                f"{lower.shape} and high {upper.shape}; expected one bound a row, shape ({rows},)."
            )
        self._set(matrix=matrices, low=lower, high=upper)
        check_limits("Polyhedron", self.low, self.high)

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        image = jnp.einsum("...md,...d->...m", self.matrix, self.as_points(x))
        image, low, high = jnp.broadcast_arrays(image, self.low, self.high)
        return jnp.all((image >= low) & (image <= high), axis=-1)

    def contains_surely(self, x: Float[Array, "n d"]) -> Bool[Array, " n"]:
        values, size = self.matrix @ x.T, jnp.abs(self.matrix) @ jnp.abs(x.T)
        slack = 2.0 * float(jnp.finfo(x.dtype).eps) * size
        low, high = self.low[:, None], self.high[:, None]
        return jnp.all((values >= low + slack) & (values <= high - slack), axis=0)

    def shape_name(self) -> str:
        return f"{self.num_constraints} half-spaces"

    def scaled(self, by: Array) -> "Polyhedron":
        return Polyhedron(self.matrix / by[..., None, :], self.low, self.high)

    def rows(self, x: Array) -> Array:
        return product(self.matrix, x)

    def moved(self, by: ArrayLike) -> "Polyhedron":
        shift = self.matrix @ jnp.asarray(by)
        return Polyhedron(self.matrix, self.low + shift, self.high + shift)

    @property
    def bounded(self) -> Array:
        """Whether each coordinate lies within the span of constraints with two limits."""
        rows = jnp.where(self._two_sided[..., None], self.matrix, 0.0)
        spanned = jnp.linalg.pinv(rows) @ rows
        return jnp.abs(jnp.diagonal(spanned, axis1=-2, axis2=-1) - 1.0) < 1e-6

    @property
    def middle(self) -> Array:
        """The point in the middle of constraints with two limits; NaN in coordinates beside."""
        both = self._two_sided
        matrix = np.where(both[..., None], self.matrix, 0.0)
        middles = (np.where(both, self.low, 0.0) + np.where(both, self.high, 0.0)) / 2
        solution = (np.linalg.pinv(matrix) @ middles[..., None])[..., 0]
        return jnp.where(np.any(matrix != 0, axis=-2), solution, jnp.nan)

    @property
    def _two_sided(self) -> Array:
        return jnp.isfinite(self.low) & jnp.isfinite(self.high)

    def _variances(self, covariance: Covariance, rounding: float) -> tuple[Array, Array]:
        """The variances of matrix @ X, and what rounding makes of one that is 0; no derivative."""
        matrix, root = lax.stop_gradient((self.matrix, covariance.root))
        size = jnp.sum((jnp.abs(matrix) @ jnp.abs(root)) ** 2, axis=1)
        return jnp.sum(product(matrix, root) ** 2, axis=1), rounding**2 * size

    def log_bound(self, loc: Array, covariance: Covariance) -> Array:
        matrix, loc = lax.stop_gradient((self.matrix, loc))
        rounding = _rounding(loc)
        spread, least = self._variances(covariance, rounding)
        # Left out where fewer than three digits of the standard deviation are known.
        spread = jnp.where(spread > 1e6 * least, spread, 0.0)
        slack = rounding * (jnp.abs(matrix) @ jnp.abs(loc))
        return smallest_log_mass(self.low - slack, self.high + slack, self.rows(loc), spread)

    def limits_in(self, loc: Array, covariance: Covariance) -> GaussianLimits:
        """The limits on matrix @ x, and its distribution from a root of the covariance of x."""
        root = self.rows(covariance.root)
        size = row_norms(product(jnp.abs(self.matrix), jnp.abs(covariance.root)))
        matrix = product(root, root.T)
        return GaussianLimits(self.low, self.high, self.rows(loc), matrix, root, size)

    def released(self, loc: Array, covariance: Covariance, unit: Array, still: Array) -> Released:
        """The problem with every row in a unit of its own, rows of variance 0 without limits."""
        rounding = _rounding(loc)
        spread, least = self._variances(covariance, rounding)
        flat = spread <= least
        row_unit = jnp.where(flat, 1.0, power_of_two(spread))
        low, high, rows = self.low / row_unit, self.high / row_unit, self.matrix / row_unit[:, None]
        slack = rounding * (jnp.abs(rows) @ jnp.abs(loc))
        low, high, known = decided_limits(flat, low, high, product(rows, loc), slack)
        return covariance, Polyhedron(rows, low, high), row_unit, known

    def regression(
        self,
        loc: Array,
        covariance: Covariance,
        order: Array,
        factors: tuple[Array, Array],
        point: Array,
    ) -> LinearPrediction:
        """The regression of x on the rows, by the pseudo-inverse of the rows times a root."""
        rank, root = len(point), covariance.root
        rows = self.matrix[order[:rank]]
        image = rows @ root
        inverse = jnp.linalg.pinv(image)
        matrix = root @ inverse
        left = root - root @ (inverse @ image)
        rest = jnp.zeros((len(loc), len(loc)), loc.dtype) if rank >= len(loc) else left @ left.T
        return LinearPrediction(loc + matrix @ (point - rows @ loc), matrix, rest)

    def lift(
        self, covariance: Covariance, first: Array, factor: Array
    ) -> tuple[Array, Array | None]:
        matrix, rows = covariance.covariance_matrix, self.matrix[first]
        lift = solve_triangular(factor, rows @ matrix, lower=True).T
        if len(first) == len(matrix):
            return lift, None
        root = semidefinite_factor(matrix)
        return lift, root - lift @ solve_triangular(factor, rows @ root, lower=True)

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """Euclidean distances from x to the 2 m faces, positive inside: (..., 2 m), lower first.

        Rows are divided by their length, so that multiplying a constraint by a constant changes no
        margin. A row of zeros has no face and is left as it is.
        """
        from truncgauss.special.safe import safe_norm

        length = safe_norm(self.matrix)
        length = jnp.where(length > 0, length, 1.0)
        image = jnp.einsum("...md,...d->...m", self.matrix, self.as_points(x))
        below, above, _ = standardize(self.low, self.high, image, length)
        return jnp.concatenate([-below, above], axis=-1)


def _rounding(loc: Array) -> float:
    """The relative rounding of a sum of as many terms as a point has coordinates."""
    return 4.0 * len(loc) * float(jnp.finfo(loc.dtype).eps)
