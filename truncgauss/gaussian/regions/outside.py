"""Complements of regions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.regions.region import LinearRegion, Region
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Outside(Region):
    """All x that are not inside of a region: of a box, a polyhedron, a ball or an ellipsoid.

    Its probability is computed directly, not as 1 - P, which has no digits where P is nearly 1.

    Args:
        region: `Box`, `Polyhedron`, `Ball`, `Ellipsoid`, or another one with linear constraints.

    Raises:
        TypeError: for any other region. The complement of a `Selection` is another `Selection`.

    Example:
        >>> log_prob, stderr = tg.log_probability(
        ...     [0.0, 0.0], jnp.eye(2), tg.Outside(tg.Ball([0.0, 0.0], 30.0))
        ... )
        >>> log_prob.round(8), stderr  # exactly -30^2 / 2
        (Array(-450., dtype=float64), Array(0., dtype=float64))
    """

    region: Region

    event_ranks = {}
    is_outside = True

    @property
    def enclosed(self) -> Region:
        return self.region

    def __post_init__(self) -> None:
        linear = self.region.linear() if isinstance(self.region, Region) else None
        if linear is None and not getattr(self.region, "is_quadratic", False):
            raise TypeError(
                "Outside: a tg.Box, Polyhedron, Ball or Ellipsoid is expected, got "
                f"{type(self.region).__name__}. The complement of a Selection of s(x) is one of "
                "1 - s(x)."
            )
        names = getattr(self.region, "coordinate_names", ())
        object.__setattr__(self, "coordinate_names", names)
        object.__setattr__(self, "region", linear or self.region)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.region.batch_shape

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> "Outside":
        return Outside(self.region.broadcast_to(batch_shape))

    @property
    def dimension(self) -> int:
        return self.region.dimension

    def moved(self, by: ArrayLike) -> "Outside":
        region: Any = self.region
        return Outside(region.moved(by))

    @property
    def middle(self) -> Array:
        return self.region.middle

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return self.region.is_proper

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        """Whether each point x, shape (..., d), lies outside of the region; not on its faces."""
        return ~self.region.contains(x)

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """The distance from x, shape (..., d), to the farthest face it is beyond, (..., 1)."""
        return -self.region.margins(x).min(-1, keepdims=True)

    def carried(
        self, x: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n d"], Float[Array, ""]] | None:
        return self.region.carried(x)


def pieces_outside(region: LinearRegion) -> tuple[LinearRegion, Bool[Array, "*rows"]]:
    """The complement of m linear limits, divided into 2 m disjoint regions.

    In piece j the constraints before j are met, and that of number j is not: it lies below its
    lower limit, in the first m pieces, or above its upper one.

    Returns:
        The pieces along a first axis, and whether each is empty, as its limit is infinite; it is
        then all of space.
    """
    m = region.num_constraints
    axes = (slice(None), *(None,) * (region.low.ndim - 1))
    first, before = np.eye(m, dtype=bool)[axes], np.tri(m, m, -1, dtype=bool)[axes]
    low = jnp.where(before, region.low, -jnp.inf)
    high = jnp.where(before, region.high, jnp.inf)
    empty = jnp.concatenate([region.low == -jnp.inf, region.high == jnp.inf], axis=-1)
    empty = jnp.moveaxis(empty, -1, 0)
    lows = jnp.concatenate([low, jnp.where(first, region.high, low)])
    highs = jnp.concatenate([jnp.where(first, region.low, high), high])
    limits = (
        jnp.where(empty[..., None], -jnp.inf, lows),
        jnp.where(empty[..., None], jnp.inf, highs),
    )
    others = jax.tree.leaves(region)[:-2]  # the matrix of a polyhedron
    others = [jnp.broadcast_to(leaf, (2 * m, *leaf.shape)) for leaf in others]
    return jax.tree.unflatten(jax.tree.structure(region), [*others, *limits]), empty
