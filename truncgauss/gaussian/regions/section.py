"""Sections of regions: the set of some coordinates, given the others."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, static_field
from truncgauss.gaussian.regions.region import Region


@frozen_pytree
class Section(Region):
    r"""The x in a box that a region keeps when they are put beside, or added to, a fixed point.

    With l coordinates of x and a region in d dimensions, x is kept if low <= x <= high, with the
    probability s(point + E x) that the region gives; E makes coordinate i of x that of number
    where[i]. The integral of a row with known and missing entries is over a section, that of rows
    from which a centre is subtracted over the region moved by as much.

    Args:
        region: without leading axes, or with those of the point.
        point: shape (d,), or (k, d).
        where: the coordinate of the region that each of x is; -1 for one that the region does
            not know (static).
        low, high: limits of x, shape (l,) or (k, l).

    Example:
        >>> disc = tg.Ball([0.0, 0.0], 1.0)
        >>> across = tg.regions.Section(disc, [0.6, 0.0], (1,))  # |x| <= 0.8
        >>> across.contains(jnp.array([[0.79], [0.81]]))
        Array([ True, False], dtype=bool)
    """

    region: Region
    point: Float[Array, "*batch d"]
    low: Float[Array, "*batch l"]
    high: Float[Array, "*batch l"]
    where: tuple[int, ...] = static_field()

    event_ranks = {"point": 1, "low": 1, "high": 1}

    def __init__(
        self,
        region: Region,
        point: Any,
        where: tuple[int, ...],
        low: Any = -jnp.inf,
        high: Any = jnp.inf,
    ) -> None:
        coordinates = as_float_array(point)
        shape = (*coordinates.shape[:-1], len(where))
        limits = (jnp.broadcast_to(as_float_array(side), shape) for side in (low, high))
        self._set(point=coordinates, **dict(zip(("low", "high"), limits)))
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "where", tuple(where))

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Section":
        parts = (
            jnp.broadcast_to(leaf, (*batch_shape, leaf.shape[-1]))
            for leaf in (self.point, self.low, self.high)
        )
        point, low, high = parts
        return Section(self.region.broadcast_to(batch_shape), point, self.where, low, high)

    @property
    def dimension(self) -> int:
        return len(self.where)

    def shape_name(self) -> str:
        return f"sections at {self.where} of {type(self.region).__name__}"

    @property
    def is_convex(self) -> bool:
        return self.region.is_convex

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        return x, jnp.zeros((), x.dtype)  # its numbers are data, of which none is estimated

    def whole(self, x: Array) -> Array:
        """The points of the region that x, shape (..., l), stands for, (..., d)."""
        known = [i for i, coordinate in enumerate(self.where) if coordinate >= 0]
        coordinates = jnp.array([self.where[i] for i in known], int)
        shape = (*x.shape[:-1], self.point.shape[-1])
        point = jnp.broadcast_to(self.point.astype(x.dtype), shape)
        return point.at[..., coordinates].add(x[..., jnp.array(known, int)])

    def kept(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        between = jnp.all((x >= self.low) & (x <= self.high), axis=-1)
        return jnp.where(between, self.region.kept(self.whole(x)), 0.0)

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self.kept(x) > 0

    def closeness(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        gap = jnp.minimum(x - self.low, self.high - x).min(-1)
        return jnp.minimum(self.region.closeness(self.whole(x)), jnp.minimum(gap, 0.0))

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        box_margins = jnp.concatenate([x - self.low, self.high - x], axis=-1)
        return jnp.concatenate([self.region.margins(self.whole(x)), box_margins], axis=-1)
