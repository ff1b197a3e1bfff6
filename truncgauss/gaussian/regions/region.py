"""The contracts of regions: any region, one of linear constraints, and balls and ellipsoids."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from truncgauss.arrays.linalg import diagonal_of, factored, rounding, rounding_of_root, triangle
from truncgauss.arrays.pytrees import AnyArray, Batched, as_float_input
from truncgauss.gaussian.covariances import Covariance
from truncgauss.special.tails import LOG_SQRT_2PI, standardize


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
    def scale_tril(self) -> Float[Array, "m m"]:
        if self.root is None or self.root.shape[0] > self.root.shape[1]:
            return factored(self.covariance)
        return self.triangle(len(self.root))[0]

    def triangle(self, rank: int) -> tuple[Array, Array]:
        """`linalg.triangle` of the root of the first constraints. One that the others determine
        has a deviation by rounding: with one of 0 it would escape its limits."""
        assert self.root is not None
        factor, q = triangle(self.root[:rank])
        least = lax.stop_gradient(self.residual_rounding[:rank])
        return factor + jnp.diag(jnp.where(diagonal_of(factor) == 0, least, 0.0)), q

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


class Region(Batched):
    """A set of points x in d dimensions. A new region is a subclass of this, in one file.

    It names its leaves in `event_ranks` (see `Batched`), is decorated with `frozen_pytree`, and
    defines `dimension`, `contains` and `margins`. `ImportanceSampling` and the draws then serve it.
    A region that can be written as limits on linear functions of x defines `linear` in their place,
    and every method for a `Box` or `Polyhedron` serves it; a selection by curves of linear scores
    defines `score_selection`, and those for `Selection.probit` or `logistic` do.

    Example:
        >>> from truncgauss.arrays.pytrees import frozen_pytree
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

    is_linear: ClassVar[bool] = False  # whether it is a `LinearRegion`
    is_box: ClassVar[bool] = False  # whether its limits are on the coordinates themselves
    is_quadratic: ClassVar[bool] = False  # whether it is a `QuadraticRegion`
    is_outside: ClassVar[bool] = False  # whether it is the complement of its `enclosed` region

    @property
    def enclosed(self) -> "Region":
        return self

    @property
    def dimension(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} does not define dimension.")

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        """Whether each point x, shape (..., d), lies inside; faces included."""
        same = self.simplified()
        if same is self:
            raise NotImplementedError(f"{type(self).__name__} does not define contains.")
        return same.contains(x)

    def as_points(self, x: Any) -> AnyArray:
        """Points as numbers, (..., d); ValueError for a last axis that would be repeated."""
        kind = type(self).__name__
        if hasattr(x, "iloc"):
            from truncgauss.arrays.coordinates import check_one_order

            check_one_order(**{kind: self, "x": x})
        x = as_float_input(x, "x")
        if x.shape[-1:] != (self.dimension,):
            raise ValueError(f"{kind}: x needs shape (..., {self.dimension}), got {x.shape}.")
        return x

    def contains_surely(self, x: Float[Array, "n d"]) -> Bool[Array, " n"]:
        """Whether each point lies inside in whatever order `contains` may sum."""
        return self.contains(x)

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """Signed distances from x, shape (..., d), to each face, positive inside: (..., faces).

        The margin of a face at infinity is inf, and has gradient 0.
        """
        same = self.simplified()
        if same is self:
            raise NotImplementedError(f"{type(self).__name__} does not define margins.")
        return same.margins(x)

    def linear(self) -> "LinearRegion | None":
        """The same set as limits on linear functions of x, a `Box` or a `Polyhedron`, or None."""
        return None

    def score_selection(self) -> Any:
        """The same selection by curves of linear scores, a `ScoreSelection`, or None."""
        return None

    def simplified(self) -> "Region":
        """The same region in a form that methods know, or else itself."""
        return self.linear() or self.score_selection() or self

    def shape_name(self) -> str:
        """Text that is equal for regions of which one compiled function serves a batch."""
        return type(self).__name__

    def kept(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        """The probability with which each point x, shape (..., d), is kept: 1 inside, 0 outside."""
        scores = self.score_selection()
        return self.contains(x).astype(x.dtype) if scores is None else scores.kept(x)

    answers_points: ClassVar[bool] = True  # of any, or else has the numbers of `Injections`

    @property
    def is_convex(self) -> bool:
        """Whether the region is known to be convex, or its log probability to keep x concave."""
        return False

    def carried(
        self, x: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n d"], Float[Array, ""]] | None:
        """Points as they move with the region's own numbers, and the log of their volume, if known.

        The values are x and 0; the derivatives are those of a map that takes the region at the
        present numbers to the region at others. None where there is no such map.
        """
        return None

    def closeness(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        """A number that grows towards the region and is 0 inside, for each point x."""
        return jnp.minimum(self.margins(x).min(-1), 0.0)

    @property
    def is_proper(self) -> Bool[Array, ""]:
        """Whether the numbers of one region are valid: no inverted limits, no negative radius.

        It serves traced values, which constructors cannot check. Where it is False, draws are NaN.
        """
        return jnp.asarray(True)

    def log_bound(self, loc: Float[Array, " d"], covariance: Covariance) -> Float[Array, ""]:
        """A number that the log probability under a Gaussian does not exceed."""
        return jnp.zeros((), loc.dtype)

    def clipped(self, mean: Float[Array, " d"]) -> Float[Array, " d"]:
        """The mean of points inside, moved back inside where rounding put it outside."""
        return mean

    def moved(self, by: ArrayLike) -> "Region | None":
        """The set of all x + by, for x inside, as a region of the same kind, or None."""
        return None

    @property
    def middle(self) -> Array:
        """The point about which the region, or its limits on both sides, are symmetric;
        NaN in coordinates that have none."""
        return jnp.full((*self.batch_shape, self.dimension), jnp.nan)

    @property
    def bounded(self) -> Bool[Array, "*batch d"]:
        """Whether each coordinate is known to be bounded on both sides."""
        return jnp.zeros((*self.batch_shape, self.dimension), bool)


class LinearRegion(Region):
    """All x with low <= rows(x) <= high for linear functions `rows`: a `Box` or a `Polyhedron`,
    which has their `matrix`."""

    matrix: Float[Array, "*batch m d"]
    low: Float[Array, "*batch m"]
    high: Float[Array, "*batch m"]

    is_linear = True

    def linear(self) -> "LinearRegion":
        return self

    @property
    def is_convex(self) -> bool:
        return True

    @property
    def num_constraints(self) -> int:
        return self.low.shape[-1]

    @property
    def is_everything(self) -> Bool[Array, ""]:
        return jnp.all((self.low == -jnp.inf) & (self.high == jnp.inf))

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(self.low <= self.high)

    def rows(self, x: Array) -> Array:
        """The limited linear functions of x, along the first axis: (d, ...) -> (m, ...)."""
        raise NotImplementedError

    def scaled(self, by: Array) -> "LinearRegion":
        """The region of by * x for x in this region; `by` is positive, shape (..., d)."""
        raise NotImplementedError

    def limits_in(self, loc: Array, covariance: Covariance) -> GaussianLimits:
        """The limits on rows(x), and its distribution for x ~ Normal(loc, covariance)."""
        raise NotImplementedError

    def released(self, loc: Array, covariance: Covariance, unit: Array, still: Array) -> "Released":
        """The problem without constraints that are decided, and the log probability of these.

        They are those of variance 0, and those with equal limits.

        Args:
            loc, covariance: in units in which standard deviations are about one.
            unit: these units, shape (d,).
            still: whether each coordinate has variance 0, shape (d,).

        Returns:
            The covariance and the region, decided constraints without limits; the unit of each
            constraint, shape (m,); and 0 if all decided constraints are met, else -inf, NaN if
            their limits are inverted or a number is NaN.
        """
        raise NotImplementedError

    def regression(
        self,
        loc: Array,
        covariance: Covariance,
        order: Array,
        factors: tuple[Array, Array],
        point: Array,
    ) -> LinearPrediction:
        """The regression of x on the values of the constraints order[:r], centred at `point`.

        Args:
            loc, covariance: mean and covariance of x.
            order: indices of all constraints, shape (m,).
            factors: the triangular factor of the values of order[:r], shape (r, r), and the rows
                of the other constraints in the same standard normal variables, shape (m - r, r).
            point: values of the constraints order[:r], shape (r,).
        """
        raise NotImplementedError

    def lift(
        self, covariance: Covariance, first: Array, factor: Array
    ) -> tuple[Array | None, Array | None]:
        """The regression of x on the standard-normal variables z of the constraints `first`.

        Returns:
            The matrix of the regression, shape (d, r), and a factor of the residual covariance.
            The first is None where the values of the constraints are the coordinates, the second
            where the residual covariance is 0.
        """
        raise NotImplementedError


class QuadraticRegion(Region):
    """All x with |L^-1 (x - center)| <= 1, for a lower-triangular matrix L, its root."""

    center: Float[Array, "*batch d"]

    is_quadratic = True

    @property
    def root(self) -> Float[Array, "d d"]:
        """L, of a region without leading axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define root.")

    def section(
        self, known: tuple[int, ...], values: Float[Array, " e"]
    ) -> tuple["QuadraticRegion", Bool[Array, ""]]:
        """The set of the other coordinates where some are known, of a region without leading axes;
        and whether it has no inside: another one stands for it then."""
        raise NotImplementedError(f"{type(self).__name__} does not define section.")

    def moved(self, by: ArrayLike) -> "QuadraticRegion":
        region: Any = self
        return cast(QuadraticRegion, dataclasses.replace(region, center=region.center + by))

    @property
    def middle(self) -> Array:
        return self.center

    @property
    def bounded(self) -> Bool[Array, "*batch d"]:
        return jnp.ones((*self.batch_shape, self.dimension), bool)

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    @property
    def is_convex(self) -> bool:
        return True


# Covariance, region, units of the constraints, log probability: see `LinearRegion.released`.
Released: TypeAlias = tuple[Covariance, LinearRegion, Array, Array]


def as_linear(region: Region) -> LinearRegion:
    """The region itself, if it consists of limits on linear functions.

    Raises:
        TypeError: if it does not.
    """
    if not isinstance(region, LinearRegion):
        raise TypeError(f"a tg.Box or a tg.Polyhedron is expected, got {type(region).__name__}.")
    return region


def smallest_log_mass(low: Array, high: Array, loc: Array, variances: Array) -> Array:
    """The smallest log probability of the limits on single variables, or a little more.

    With 0 between the ends a < b, P = 1 - Q(b) - Q(-a); else with t the distance of the nearer end
    P < exp(-t^2/2) / 2. In both cases P < (b - a) phi(t). Variables of variance 0 are left out.
    """
    low, high, loc, variances = lax.stop_gradient((low, high, loc, variances))
    limited = variances > 0
    a, b, width = standardize(low, high, loc, jnp.sqrt(jnp.where(limited, variances, 1.0)))
    distance = jnp.maximum(jnp.maximum(a, -b), 0.0)
    tails = 0.5 * (lax.erfc(-math.sqrt(0.5) * a) + lax.erfc(math.sqrt(0.5) * b))
    rounded = 4.0 * float(jnp.finfo(a.dtype).eps)
    inside = jnp.where(distance > 0, -math.log(2.0), jnp.log1p(jnp.minimum(rounded - tails, 0.0)))
    across = jnp.log(width) - LOG_SQRT_2PI
    bound = jnp.minimum(inside, across) - 0.5 * distance * distance
    return jnp.min(jnp.where(limited, bound, 0.0))


def decided_limits(
    still: Array, low: Array, high: Array, loc: Array, slack: Array | float = 0.0
) -> tuple[Array, Array, Array]:
    """Limits without the constraints that a point mass decides, and the log probability of these.

    They are the constraints of variance 0, marked in `still`, whose limits are met to within a
    slack or are not; and others with equal limits, which nothing meets.

    Returns:
        The limits, infinite where decided; and 0 if all decided constraints are met, -inf if one is
        not, NaN if the limits of one are inverted. That carries no derivative.
    """
    fixed_low, fixed_high, loc = lax.stop_gradient((low, high, loc))
    empty = ~still & (fixed_low == fixed_high)
    below, above = fixed_low - slack, fixed_high + slack
    unsound = still & ~(below <= above)
    unmet = empty | (still & ~((below <= loc) & (loc <= above)))
    # As a sum, in which NaN outweighs -inf.
    each = jnp.where(unsound, jnp.nan, jnp.where(unmet, -jnp.inf, 0.0)) + 0.0 * loc
    decided = still | empty
    low, high = jnp.where(decided, -jnp.inf, low), jnp.where(decided, jnp.inf, high)
    return low, high, jnp.sum(each)
