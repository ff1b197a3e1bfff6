"""Balls."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.gaussian.regions.region import QuadraticRegion
from truncgauss.special.safe import safe_norm
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Ball(QuadraticRegion):
    """All x at a distance of at most `radius` from `center`.

    Args:
        center: shape (d,), or (k, d).
        radius: positive, shape () or (k,).

    Raises:
        ValueError: if a radius is not positive (not while tracing) or shapes do not broadcast.

    Example:
        >>> tg.Ball([0.0, 0.0], 2.0).margins(jnp.zeros(2))
        Array([2.], dtype=float64)
    """

    center: Float[Array, "*batch d"]
    radius: Float[Array, "*batch"]

    event_ranks = {"center": 1, "radius": 0}

    def __init__(
        self,
        center: Real[ArrayLike, "*#batch d"] | Sequence[Any],
        radius: Real[ArrayLike, "*#batch"] | Sequence[Any],
    ) -> None:
        centers = as_float_array(center, "Ball: center")
        radii = as_float_array(radius, "Ball: radius")
        if centers.ndim == 0:
            cure = "write [0.0] for d = 1."
            if radii.ndim:
                cure = f"radius, of shape {radii.shape}, comes after it: Ball(center, radius)."
            raise ValueError(f"Ball: center needs shape (d,), got a number; {cure}")
        self._set(center=centers, radius=radii)
        if is_concrete(radii) and np.any(np.asarray(radii) <= 0):
            raise ValueError(f"Ball: radius must be positive, got {radius}.")

    @property
    def root(self) -> Float[Array, "d d"]:
        return self.radius * jnp.eye(self.dimension, dtype=self.center.dtype)

    def section(
        self, known: tuple[int, ...], values: Float[Array, " e"]
    ) -> tuple["Ball", Bool[Array, ""]]:
        away = (values - self.center[jnp.array(known, int)]) / self.radius
        square = 1.0 - jnp.sum(away**2)
        empty = square <= 0
        rest = jnp.array([k for k in range(self.dimension) if k not in known])
        radius = self.radius * jnp.sqrt(jnp.where(empty, 1.0, square))
        return Ball(self.center[rest], radius), empty

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return self.radius >= 0

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self._distance(x) <= self.radius

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """Distance from x, shape (..., d), to the sphere, positive inside: shape (..., 1).

        The distance has a cusp at the centre; its gradient there is taken as 0.
        """
        return (self.radius - self._distance(x))[..., None]

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        center, radius = lax.stop_gradient((self.center, self.radius))
        growth = self.radius / radius
        moved = self.center[None] + growth * (x - center[None])
        # Exactly x but for the derivative.
        return x + (moved - lax.stop_gradient(moved)), x.shape[-1] * jnp.log(growth)

    def _distance(self, x: Array) -> Array:
        x, center = jnp.broadcast_arrays(self.as_points(x), self.center)
        return safe_norm(x - center)
