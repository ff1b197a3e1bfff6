"""The contract of a region: what a method may ask of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import Covariance
from truncgauss.limits import GaussianLimits, Regression, Released
from truncgauss.pytrees import Batched, is_concrete


class Region(Batched):
    """A set of points x in d dimensions. A new region is a subclass of this, in one file.

    It names its leaves in `event_ranks` (see `Batched`), is decorated with `frozen_pytree`, and
    defines `dimension`, `contains` and `margins`. `SoftMonteCarlo` and the draws then serve it. A
    region that can be written as limits on linear functions of x also defines `linear`, and every
    method for a `Box` or `Polyhedron` serves it.

    Example:
        >>> from truncgauss.pytrees import frozen_pytree
        >>> @frozen_pytree
        ... class HalfSpace(tg.regions.Region):
        ...     normal: jax.Array
        ...     offset: jax.Array
        ...     event_ranks = {"normal": 1, "offset": 0}
        ...
        ...     @property
        ...     def dimension(self):
        ...         return self.normal.shape[-1]
        ...
        ...     def linear(self):
        ...         rows, low = self.normal[..., None, :], self.offset[..., None]
        ...         return tg.Polyhedron(rows, low, jnp.full_like(low, jnp.inf))
        >>> half = HalfSpace(jnp.array([1.0, 1.0]), jnp.array(0.0))
        >>> tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), half)
        Array(0.5, dtype=float64)
    """

    @property
    def dimension(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not define dimension.")

    def contains(self, x: Array) -> Array:
        """Whether each point x, shape (..., d), lies inside; faces included."""
        linear = self.linear()
        if linear is None:
            raise NotImplementedError(f"{type(self).__name__} does not define contains.")
        return linear.contains(x)

    def margins(self, x: Array) -> Array:
        """Signed distances of x, shape (..., d), inside each face, positive inside: (..., f).

        A face at infinity is infinitely far away; its margin is inf and takes no part in any
        gradient.
        """
        linear = self.linear()
        if linear is None:
            raise NotImplementedError(f"{type(self).__name__} does not define margins.")
        return linear.margins(x)

    def linear(self) -> "LinearRegion | None":
        """The same set as limits on linear functions of x, a `Box` or a `Polyhedron`, or None."""
        return None

    @property
    def is_proper(self) -> Array:
        """Whether the numbers of one region describe a region, for values that were traced: no
        inverted limits, no negative radius. Where they do not, draws are NaN."""
        return jnp.asarray(True)

    def clipped(self, mean: Array) -> Array:
        """A mean of points inside, moved back where only rounding takes it out."""
        return mean


class LinearRegion(Region):
    """All x with low <= rows(x) <= high for linear functions `rows`: a `Box` or a `Polyhedron`."""

    low: Array
    high: Array

    def linear(self) -> "LinearRegion":
        return self

    @property
    def num_constraints(self) -> int:
        return self.low.shape[-1]

    @property
    def is_everything(self) -> Array:
        """Whether no constraint limits anything."""
        return jnp.all((self.low == -jnp.inf) & (self.high == jnp.inf))

    @property
    def is_proper(self) -> Array:
        return jnp.all(self.low <= self.high)

    def rows(self, x: Array) -> Array:
        """The limited functions of x, along its first axis: (d, ...) -> (m, ...)."""
        raise NotImplementedError

    def scaled(self, by: Array) -> "LinearRegion":
        """The region of by * x for x in this one; positive factors of shape (..., d)."""
        raise NotImplementedError

    def limits_in(self, loc: Array, covariance: Covariance) -> GaussianLimits:
        """The limits on rows(x) and its distribution, for x ~ Normal(loc, covariance)."""
        raise NotImplementedError

    def released(self, loc: Array, covariance: Covariance, unit: Array, still: Array) -> Released:
        """The problem without constraints on what cannot vary, and what these amount to.

        Args:
            loc, covariance: in units in which standard deviations are about one.
            unit: these units, shape (d,).
            still: the coordinates without variance, shape (d,).
        """
        raise NotImplementedError

    def regression(
        self,
        loc: Array,
        covariance: Covariance,
        order: Array,
        factors: tuple[Array, Array],
        point: Array,
    ) -> Regression:
        """How x follows from the values of the constraints order[:r], of which `point` is one.

        Args:
            loc, covariance: of x.
            order: constraints, shape (m,).
            factors: the factor of the values of order[:r] and, from the same variables, the rows
                for the rest, shapes (r, r) and (m - r, r).
            point: shape (r,).
        """
        raise NotImplementedError

    def lift(
        self, covariance: Covariance, first: Array, factor: Array
    ) -> tuple[Array | None, Array | None]:
        """The regression of x on the standard-normal variables z of the constraints `first`.

        Returns:
            Its matrix, shape (d, r), and a factor of the covariance that it leaves over; None
            where the values of the constraints are the coordinates, or where nothing is left.
        """
        raise NotImplementedError


def check_limits(owner: str, low: Array, high: Array) -> None:
    """Raise ValueError naming the first place where low < high does not hold (NaN passes)."""
    if not is_concrete((low, high)):
        return
    wrong = np.argwhere(np.asarray(low) >= np.asarray(high))
    if len(wrong):
        where = tuple(int(i) for i in wrong[0])
        index: Any = where[0] if len(where) == 1 else where
        raise ValueError(
            f"{owner}: low must be below high in every coordinate, got low={low[where]} and "
            f"high={high[where]} at index {index} ({len(wrong)} such place(s)). Use -inf and inf "
            "for an open side; condition on a coordinate that is known exactly."
        )


def log_probability_of_constants(still: Array, low: Array, high: Array, loc: Array) -> Array:
    """The log probability of those constraints that cannot vary, without derivative."""
    low, high, loc = lax.stop_gradient((low, high, loc))
    unsound = jnp.any(still & ~(low <= high))
    unmet = jnp.any(still & ~((low <= loc) & (loc <= high)))
    value = jnp.where(unsound, jnp.nan, jnp.where(unmet, -jnp.inf, 0.0)).astype(loc.dtype)
    return value + 0.0 * jnp.sum(loc)
