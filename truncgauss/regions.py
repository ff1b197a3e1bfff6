"""Regions of space: what a point must satisfy to be seen.

A region knows whether it `contains` a point and the point's `margins`: its signed distances inside
every face, positive inside. A face at infinity is infinitely far away; its margin is inf and takes
no part in any gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.pytrees import Batched, as_float_array, frozen_pytree, is_concrete
from truncgauss.safe import safe_norm
from truncgauss.special import standardize


def check_limits(owner: str, low: jax.Array, high: jax.Array) -> None:
    """Raise ValueError naming the first place where low < high does not hold (NaN passes)."""
    if not is_concrete((low, high)):
        return
    wrong = np.argwhere(np.asarray(low) >= np.asarray(high))
    if len(wrong):
        where = tuple(int(i) for i in wrong[0])
        index = where[0] if len(where) == 1 else where
        raise ValueError(
            f"{owner}: low must be below high in every coordinate, got low={low[where]} and "
            f"high={high[where]} at index {index} ({len(wrong)} such place(s)). Use -inf and inf "
            "for an open side; condition on a coordinate that is known exactly."
        )


@frozen_pytree
class Box(Batched):
    """All x with low <= x <= high, coordinate by coordinate.

    Args:
        low: lower limits, shape (d,), or (k, d) for k boxes; -inf leaves a side open. A number
            stands for all coordinates, if the other limits are an array that says how many.
        high: upper limits, likewise; inf leaves a side open.

    Raises:
        ValueError: if the shapes do not broadcast, or low >= high anywhere. While tracing, values
            cannot be looked at: an empty box then has log probability -inf, an inverted one NaN.

    Example:
        >>> tg.Box([0.0, -jnp.inf], [1000.0, 2.0]).contains(jnp.array([1.0, 1.0]))
        Array(True, dtype=bool)
    """

    low: jax.Array
    high: jax.Array

    event_ranks = {"low": 1, "high": 1}

    def __post_init__(self) -> None:
        low, high = as_float_array(self.low), as_float_array(self.high)
        try:
            shape = jnp.broadcast_shapes(low.shape, high.shape, (1,))
        except ValueError:
            raise ValueError(
                f"Box: low has shape {low.shape} and high {high.shape}; they must broadcast to "
                "(d,), or (k, d) for k boxes."
            ) from None
        self._set(low=jnp.broadcast_to(low, shape), high=jnp.broadcast_to(high, shape))
        check_limits("Box", self.low, self.high)

    @property
    def dimension(self) -> int:
        return self.low.shape[-1]

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether each point x of shape (..., d) lies inside; faces included."""
        return jnp.all((x >= self.low) & (x <= self.high), axis=-1)

    def scaled(self, by: jax.Array) -> "Box":
        """The region of by * x for x in this one; positive factors of shape (..., d)."""
        return Box(self.low * by, self.high * by)

    def margins(self, x: jax.Array) -> jax.Array:
        """Distances of x, shape (..., d), inside the 2 d faces: shape (..., 2 d), lower first."""
        below, above, _ = standardize(self.low, self.high, x)
        return jnp.concatenate([-below, above], axis=-1)


@frozen_pytree
class Polyhedron(Batched):
    """All x with low <= matrix @ x <= high, with any number m of rows.

    Args:
        matrix: shape (m, d), or (k, m, d).
        low: shape (m,), or (k, m); -inf leaves a side open.
        high: likewise.

    Raises:
        ValueError: if shapes disagree or low >= high anywhere (values: not while tracing).

    Example:
        >>> wedge = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0], [jnp.inf, jnp.inf])
        >>> wedge.contains(jnp.array([1.0, 0.5]))
        Array(True, dtype=bool)
    """

    matrix: jax.Array
    low: jax.Array
    high: jax.Array

    event_ranks = {"matrix": 2, "low": 1, "high": 1}

    def __post_init__(self) -> None:
        matrix, low, high = (as_float_array(x) for x in (self.matrix, self.low, self.high))
        if matrix.ndim < 2:
            raise ValueError(f"Polyhedron: matrix needs shape (m, d), got {matrix.shape}.")
        rows = matrix.shape[-2]
        low, high = (jnp.broadcast_to(x, (rows,)) if x.ndim == 0 else x for x in (low, high))
        if low.shape[-1] != rows or high.shape[-1] != rows:
            raise ValueError(
                f"Polyhedron: matrix of shape {matrix.shape} has {rows} rows, but low has shape "
                f"{low.shape} and high {high.shape}; expected one limit a row, shape ({rows},)."
            )
        self._set(matrix=matrix, low=low, high=high)
        check_limits("Polyhedron", self.low, self.high)

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether each point x of shape (..., d) satisfies all rows."""
        image = jnp.einsum("...md,...d->...m", self.matrix, x)
        return jnp.all((image >= self.low) & (image <= self.high), axis=-1)

    def scaled(self, by: jax.Array) -> "Polyhedron":
        """The region of by * x for x in this one; positive factors of shape (..., d)."""
        return Polyhedron(self.matrix / by[..., None, :], self.low, self.high)

    def margins(self, x: jax.Array) -> jax.Array:
        """Euclidean distances of x inside the 2 m faces, shape (..., 2 m), lower faces first.

        Rows are measured by their length, so that writing a constraint twice as large moves no
        face. A row of zeros has no face and is measured by 1.
        """
        length = safe_norm(self.matrix)
        length = jnp.where(length > 0, length, 1.0)
        image = jnp.einsum("...md,...d->...m", self.matrix, x)
        below, above, _ = standardize(self.low, self.high, image, length)
        return jnp.concatenate([-below, above], axis=-1)


@frozen_pytree
class Ball(Batched):
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

    center: jax.Array
    radius: jax.Array

    event_ranks = {"center": 1, "radius": 0}

    def __post_init__(self) -> None:
        center, radius = as_float_array(self.center), as_float_array(self.radius)
        if center.ndim == 0:
            raise ValueError("Ball: center needs shape (d,), got a number; write [0.0] for d = 1.")
        self._set(center=center, radius=radius)
        if is_concrete(radius) and np.any(np.asarray(radius) <= 0):
            raise ValueError(f"Ball: radius must be positive, got {radius}.")

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    def contains(self, x: jax.Array) -> jax.Array:
        """Whether each point x of shape (..., d) lies inside."""
        return safe_norm(x - self.center) <= self.radius

    def margins(self, x: jax.Array) -> jax.Array:
        """Distance of x, shape (..., d), inside the sphere: shape (..., 1).

        The distance has a cusp at the centre; its gradient there is taken as 0.
        """
        return (self.radius - safe_norm(x - self.center))[..., None]
