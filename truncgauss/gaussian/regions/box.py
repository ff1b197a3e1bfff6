"""Boxes: limits on the coordinates."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays.linalg import is_symmetric, product, row_norms
from truncgauss.arrays.pytrees import as_float_input, check_limits, common_shape, frozen_pytree
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.regions.region import (
    GaussianLimits,
    LinearPrediction,
    LinearRegion,
    Released,
    decided_limits,
    smallest_log_mass,
)
from truncgauss.special.tails import standardize, undefined
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Box(LinearRegion):
    """All x with low <= x <= high, coordinate by coordinate.

    Args:
        low: lower limits, shape (d,), or (k, d) for k boxes; -inf leaves a side open. A number
            is the limit of every coordinate, if `high` is an array of shape (d,) or (k, d).
        high: upper limits, likewise; inf leaves a side open.

    Limits given as JAX arrays are kept as such; few numbers of NumPy or Python as NumPy arrays that
    can't be written to.

    Raises:
        ValueError: if the shapes do not broadcast, or low >= high anywhere. While tracing, values
            are unknown: an empty box then has log probability -inf, an inverted one NaN, and NaN
            are all its derivatives.

    Example:
        >>> tg.Box([0.0, -jnp.inf], [1000.0, 2.0]).contains(jnp.array([1.0, 1.0]))
        Array(True, dtype=bool)
    """

    low: Float[Array, "*batch d"]
    high: Float[Array, "*batch d"]

    event_ranks = {"low": 1, "high": 1}
    is_box = True

    def __init__(
        self,
        low: Real[ArrayLike, "*#limits"] | Sequence[Any],
        high: Real[ArrayLike, "*#limits"] | Sequence[Any],
    ) -> None:
        for name, side, infinity in (("low", low, "-jnp.inf"), ("high", high, "jnp.inf")):
            if side is None or (isinstance(side, list | tuple) and None in side):
                raise ValueError(
                    f"Box: {name} must be numbers; where there is no bound write {infinity} "
                    f"(got {side})."
                )
        labels: list[Any] = []
        if hasattr(low, "iloc") or hasattr(high, "iloc"):
            low, high, labels = without_labels(low, high)
        lower, upper = as_float_input(low, "Box: low"), as_float_input(high, "Box: high")
        try:
            shape = common_shape(lower.shape, upper.shape) or (1,)
        except ValueError:
            raise ValueError(
                f"Box: low has shape {lower.shape} and high {upper.shape}; they must broadcast to "
                "(d,), or (k, d) for k boxes."
            ) from None
        # Numbers of NumPy stay there, where nothing is compiled for a new shape.
        xp: Any = np if isinstance(lower, np.ndarray) and isinstance(upper, np.ndarray) else jnp
        lower = lower if lower.shape == shape else xp.broadcast_to(lower, shape)
        upper = upper if upper.shape == shape else xp.broadcast_to(upper, shape)
        self._set(low=lower, high=upper)
        check_limits("Box", self.low, self.high)
        object.__setattr__(self, "coordinate_names", labels)  # which trees do not keep

    @property
    def dimension(self) -> int:
        return self.low.shape[-1]

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        x, low, high = jnp.broadcast_arrays(self.as_points(x), self.low, self.high)
        return jnp.all((x >= low) & (x <= high), axis=-1)

    def scaled(self, by: Array) -> "Box":
        return Box(self.low * by, self.high * by)

    def rows(self, x: Array) -> Array:
        return x

    def moved(self, by: ArrayLike) -> "Box":
        return Box(self.low + by, self.high + by)

    @property
    def bounded(self) -> Array:
        return jnp.isfinite(self.low) & jnp.isfinite(self.high)

    @property
    def middle(self) -> Array:
        sides = np.stack([self.low, self.high])  # of numbers, of which nothing is compiled
        return jnp.asarray(np.where(np.isfinite(sides).all(axis=0), sides, np.nan).mean(axis=0))

    def log_bound(self, loc: Array, covariance: Covariance) -> Array:
        return smallest_log_mass(self.low, self.high, loc, covariance.variances)

    def limits_in(self, loc: Array, covariance: Covariance) -> GaussianLimits:
        """The limits on x itself; NaN if a covariance matrix is not symmetric."""
        if covariance.is_matrix:
            matrix = covariance.covariance_matrix
            matrix = undefined(~is_symmetric(matrix), matrix)
            return GaussianLimits(self.low, self.high, loc, matrix, None)
        root = covariance.root
        return GaussianLimits(
            self.low, self.high, loc, product(root, root.T), root, row_norms(root)
        )

    def released(self, loc: Array, covariance: Covariance, unit: Array, still: Array) -> Released:
        low, high, known = decided_limits(still, self.low, self.high, loc)
        return covariance.released(still), Box(low, high), unit, known

    def regression(
        self,
        loc: Array,
        covariance: Covariance,
        order: Array,
        factors: tuple[Array, Array],
        point: Array,
    ) -> LinearPrediction:
        """The regression of all coordinates on those in order[:r], which determine the others."""
        rank = len(point)
        factor, below = factors
        gain = jax.scipy.linalg.solve_triangular(factor.T, below.T, lower=False).T
        follow = loc[order[rank:]] + gain @ (point - loc[order[:rank]])
        matrix = jnp.concatenate([jnp.eye(rank, dtype=loc.dtype), gain])
        back = jnp.argsort(order)
        nothing = jnp.zeros((len(loc), len(loc)), loc.dtype)
        return LinearPrediction(jnp.append(point, follow)[back], matrix[back], nothing)

    def lift(self, covariance: Covariance, first: Array, factor: Array) -> tuple[None, None]:
        return None, None

    def clipped(self, mean: Float[Array, " d"]) -> Float[Array, " d"]:
        # The derivative stays that of the mean, not that of the limit.
        low, high = (jnp.broadcast_to(x, mean.shape) for x in (self.low, self.high))
        return mean + lax.stop_gradient(jnp.clip(mean, low, high) - mean)

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """Distances from x to the 2 d faces, positive inside: shape (..., 2 d), lower first."""
        below, above, _ = standardize(self.low, self.high, self.as_points(x))
        return jnp.concatenate([-below, above], axis=-1)


def without_labels(low: Any, high: Any) -> tuple[Any, Any, list[Any]]:
    """Limits of pandas in one order, and the names of their coordinates.

    Raises:
        ValueError: for rows with labels other than their positions, which no region keeps.
    """
    from truncgauss.arrays.alignment import in_one_order
    from truncgauss.arrays.coordinates import coordinate_labels

    if np.ndim(low) == np.ndim(high):
        low, high = in_one_order("Box", low=low, high=high)
    for side in (low, high):
        labels = side.index.to_list() if np.ndim(side) == 2 and hasattr(side, "iloc") else []
        if labels != list(range(len(labels))):
            raise ValueError("Box: does not keep the labels of rows; give arrays in their order.")
    return low, high, coordinate_labels(low) or coordinate_labels(high)
