"""Problems, each a Gaussian and a region, and the mapping over the rows of a batch.

Dimensions, dtypes and leading axes are checked here, once, and batches are mapped over here.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import along_one_axis, mapped
from truncgauss.arrays.linalg import power_of_two
from truncgauss.arrays.pytrees import (
    AnyArray,
    Batched,
    as_dtype,
    as_float_input,
    as_jax_array,
    check_digits,
    check_numbers,
    common_dtype,
    common_shape,
    frozen_pytree,
    values_of,
    varying_like,
)
from truncgauss.arrays.pytrees import Estimate as Estimate  # which is also known from here
from truncgauss.gaussian.covariances import Covariance, as_covariance
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import GaussianLimits, LinearRegion, Region, as_linear
from truncgauss.words.arguments import refuses_arithmetic

# What public functions take; leading axes broadcast.
Loc: TypeAlias = Real[ArrayLike, "*#batch d"] | Sequence[Any]
CovarianceLike: TypeAlias = Real[ArrayLike, "*#batch d d"] | Covariance | Sequence[Any]


@refuses_arithmetic
class Moments(NamedTuple):
    """Mean and covariance of a truncated distribution, with standard errors.

    Attributes:
        mean: shape (..., d).
        covariance: shape (..., d, d).
        mean_stderr: standard error of each entry of the mean: 0 means exact to rounding, nan
            unknown, inf that too few samples were effective. It carries no gradient.
        covariance_stderr: likewise, of each entry of the covariance.
    """

    mean: Float[Array, "*batch d"]
    covariance: Float[Array, "*batch d d"]
    mean_stderr: Float[Array, "*batch d"]
    covariance_stderr: Float[Array, "*batch d d"]


class Problem(NamedTuple):
    """A Gaussian and a region with agreeing dimension and dtype; leading axes may differ."""

    loc: Float[Array, "*batch d"]
    covariance: Covariance
    region: Region

    @property
    def limits(self) -> GaussianLimits:
        return as_linear(self.region).limits_in(self.loc, self.covariance)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        parts = self.loc.shape[:-1], self.covariance.batch_shape, self.region.batch_shape
        return common_shape(*parts)


def as_problem(loc: Loc, covariance: CovarianceLike, region: Region) -> Problem:
    """The inputs as JAX arrays of one dtype, their shapes checked, and their values if known.

    Raises:
        TypeError, ValueError: as `checked_problem`.
    """
    return on_device(checked_problem(loc, covariance, region))


def on_device(problem: Problem) -> Problem:
    return jax.tree.map(as_jax_array, problem)


def checked_problem(loc: Loc, covariance: CovarianceLike, region: Region) -> Problem:
    """`as_problem`, but a small mean, covariance matrix or box may consist of NumPy arrays still.

    Raises:
        TypeError: if `region` is no region.
        ValueError: for text, if dimensions disagree or are 0, leading axes do not broadcast, the
            covariance is not symmetric positive semi-definite, the dtype has too few digits, or
            labels of pandas name the coordinates in different orders.
    """
    if not isinstance(region, Region):
        from truncgauss.gaussian.disagreement import no_region

        raise no_region(loc, covariance, region)
    from truncgauss.arrays.coordinates import check_one_order

    check_one_order(loc=loc, covariance=covariance, region=region)
    region = region.simplified()
    mean = as_float_input(loc, "loc")
    if mean.ndim > 1 and mean.shape[-2] == mean.shape[-1]:
        from truncgauss.gaussian.disagreement import check_order

        check_order(mean.shape, covariance)
    form = as_covariance(covariance)
    d = form.dimension
    if mean.ndim == 0 or mean.shape[-1] != d or region.dimension != d:
        from truncgauss.gaussian.disagreement import other_dimensions

        raise other_dimensions(mean.shape, d, region.dimension)
    if d == 0:
        raise ValueError(
            "the dimension is 0: without coordinates there is nothing to bound, and P = 1. Leave "
            "such a problem out."
        )
    if isinstance(region, LinearRegion) and region.num_constraints == 0:
        everywhere = jnp.full((*region.batch_shape, d), jnp.inf, region.low.dtype)
        region = Box(-everywhere, everywhere)
    problem = Problem(mean, form, region)
    dtype = common_dtype(*(leaves := jax.tree.leaves(problem)))
    check_digits(*leaves)
    if any(leaf.dtype != dtype for leaf in leaves):
        problem = jax.tree.map(lambda leaf: as_dtype(leaf, dtype), problem)
    problem.covariance.check()
    batches = mean.shape[:-1], form.batch_shape, region.batch_shape
    try:
        common_shape(*batches)
    except ValueError:
        loc_batch, covariance_batch, region_batch = batches
        raise ValueError(
            f"the leading axes do not broadcast: loc {loc_batch}, covariance {covariance_batch}, "
            f"region {region_batch}."
        ) from None
    return problem


NORMAL = float("inf")  # the degrees of freedom where none are said: another object than math.inf


def is_gaussian(df: Any, noncentral: str = "shifted") -> bool:
    """Whether all degrees of freedom of a t are known to be infinite; ValueError for a kind of t
    of which none are said."""
    if df is NORMAL and noncentral != "shifted":
        raise ValueError(
            f"noncentral={noncentral!r} is a kind of a multivariate t: give its degrees of freedom "
            "too, df=...; for the normal distribution leave it out."
        )
    check_numbers(df, "df")
    values = values_of(df)
    return values is not None and bool(np.all(np.isposinf(np.asarray(values, float))))


@frozen_pytree
class LocRows(Batched):
    """Means, one for each row of a batch."""

    loc: Float[AnyArray, "*batch d"]

    event_ranks = {"loc": 1}


def over_rows(function: Callable[..., Any], problem: Problem, *others: Any) -> Any:
    """The results of `function(row, *others)` for every row of a problem, along leading axes.

    Args:
        function: of a problem without leading axes, and of one row of each of the others.
        problem: with any leading axes.
        others: objects with `batch_shape` and `broadcast_to`, as covariances and regions have.
    """
    parts: tuple[Any, ...] = (LocRows(problem.loc), problem.covariance, problem.region, *others)
    # With the same mesh type, so that operations may combine any of them.
    parts = tuple(varying_like(part, parts) for part in parts)
    batches = [part.batch_shape for part in parts]
    batch_shape = jnp.broadcast_shapes(*batches)

    def of_row(loc: LocRows, covariance: Covariance, region: Region, *others: Any) -> Any:
        row = Problem(loc.loc, covariance, region)  # type: ignore[arg-type]  # NumPy's too
        meshes = (jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(row))
        explicit = next((mesh for mesh in meshes if mesh.explicit_axes), None)
        if explicit is None:
            return function(row, *others)
        with jax.sharding.use_abstract_mesh(explicit):  # where new arrays are placed
            return function(row, *others)

    if batch_shape == ():
        if parallel.plan().rows is None:
            return of_row(*parts)
        from truncgauss.arrays.one_row import of_one_row

        return of_one_row(of_row, *parts)
    rows = [along_one_axis(part, batch_shape) for part in parts]
    if 0 in batch_shape:
        one = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        rows = [jax.tree.map(one, row) if batch else row for row, batch in zip(rows, batches)]
        nothing = lambda leaf: jnp.zeros(batch_shape + leaf.shape, leaf.dtype)
        return jax.tree.map(nothing, jax.eval_shape(of_row, *rows))
    results = mapped(of_row, tuple(rows), tuple(0 if batch else None for batch in batches))
    return jax.tree.map(lambda leaf: leaf.reshape(batch_shape + leaf.shape[1:]), results)


class Standardized(NamedTuple):
    """A Gaussian and a region in units in which standard deviations are about one.

    Attributes:
        problem: in these units, decided constraints without limits: those of variance 0, which
            are checked here, and those with equal limits, which nothing meets.
        unit: the unit of each coordinate, shape (d,): x = unit * (x in these units).
        row_unit: the unit of each constraint, shape (m,); for a box the same as `unit`.
        still: whether each coordinate has variance 0, shape (d,).
        known: the log probability of the decided constraints: 0 if all are met, else -inf; NaN if
            limits of one of variance 0 are inverted or a number is NaN.
    """

    problem: Problem
    unit: Float[Array, " d"]
    row_unit: Float[Array, " m"]
    still: Bool[Array, " d"]
    known: Float[Array, ""]


def standardized(loc: Float[Array, " d"], covariance: Covariance, region: Region) -> Standardized:
    """The problem of one Gaussian and one region, in units of its standard deviations.

    Multiplying a coordinate by a constant then changes no digit of a probability, whatever units
    the user works in. The units are powers of two, so that changing to them and back is free of
    rounding, and constants, so that no derivative goes through them.
    """
    variances = lax.stop_gradient(covariance.variances)
    still = variances == 0
    unit = power_of_two(variances)
    covariance = covariance.scaled(1.0 / unit)
    loc, linear = loc / unit, as_linear(region).scaled(1.0 / unit)
    covariance, linear, row_unit, known = linear.released(loc, covariance, unit, still)
    return Standardized(Problem(loc, covariance, linear), unit, row_unit, still, known)
