"""A problem, its answer, and the rows of a batch.

What is asked is a Gaussian and a region; what is answered is a log probability with its standard
error. Dimensions, dtypes and leading axes are checked here, once, and batches are mapped over here.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.covariances import Covariance, as_covariance
from truncgauss.limits import GaussianLimits
from truncgauss.pytrees import (
    Batched,
    as_dtype,
    as_float_array,
    frozen_pytree,
    on_mesh_of,
    varying_like,
)
from truncgauss.regions import Box, LinearRegion, Region
from truncgauss.rows import mapped


class Estimate(NamedTuple):
    """A log probability and what is known of its error.

    Attributes:
        log_prob: log P(X in region), shape of the broadcast leading axes.
        stderr: standard error of log_prob, so a relative error of the probability. 0 means exact
            to rounding, nan that it is unknown, inf that the estimate rests on nothing. It carries
            no gradient.
    """

    log_prob: jax.Array
    stderr: jax.Array


class Problem(NamedTuple):
    """A Gaussian and a region with agreeing dimension and dtype; leading axes may differ."""

    loc: jax.Array
    covariance: Covariance
    region: Region

    @property
    def limits(self) -> GaussianLimits:
        """What the region limits, and its distribution; for one row with a linear region."""
        return self.region.limits_in(self.loc, self.covariance)

    @property
    def batch_shapes(self) -> tuple[tuple[int, ...], ...]:
        return self.loc.shape[:-1], self.covariance.batch_shape, self.region.batch_shape

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return jnp.broadcast_shapes(*self.batch_shapes)


def as_problem(loc: Any, covariance: Any, region: Region) -> Problem:
    """The inputs as arrays of one dtype, checked for shape and, where possible, for sense.

    Raises:
        ValueError: if dimensions disagree or are 0, leading axes do not broadcast, the covariance
            is none, or the dtype has too few digits.
    """
    if not isinstance(region, Region):
        raise TypeError(
            "region must be a tg.Box, tg.Polyhedron, tg.Ball or tg.Ellipsoid, got "
            f"{type(region).__name__}. For limits write tg.Box(low, high)."
        )
    region = region.linear() or region
    loc, covariance = as_float_array(loc), as_covariance(covariance)
    d = covariance.dimension
    if loc.ndim == 0 or loc.shape[-1] != d or region.dimension != d:
        raise ValueError(
            f"dimensions disagree: loc has shape {loc.shape}, the covariance dimension {d}, the "
            f"region dimension {region.dimension}. The last axis of each must be d; for one "
            "dimension write [mean], [[variance]] and Box([low], [high])."
        )
    if d == 0:
        raise ValueError(
            "the dimension is 0: without coordinates there is nothing to limit, and P = 1. Leave "
            "such a problem out."
        )
    if isinstance(region, LinearRegion) and region.num_constraints == 0:
        everywhere = jnp.full((*region.batch_shape, d), jnp.inf, region.low.dtype)
        region = Box(-everywhere, everywhere)
    dtype = jnp.result_type(loc, *jax.tree.leaves(covariance), *jax.tree.leaves(region))
    if jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{dtype} has too few digits for a covariance: pass float32 or float64, as in "
            "loc.astype(jnp.float32)."
        )
    problem = Problem(*jax.tree.map(lambda leaf: as_dtype(leaf, dtype), (loc, covariance, region)))
    problem.covariance.check()
    loc_batch, covariance_batch, region_batch = problem.batch_shapes
    try:
        jnp.broadcast_shapes(loc_batch, covariance_batch, region_batch)
    except ValueError:
        raise ValueError(
            f"the leading axes do not broadcast: loc {loc_batch}, covariance {covariance_batch}, "
            f"region {region_batch}."
        ) from None
    return problem


def as_key(key: Any) -> jax.Array:
    """The key itself, or jax.random.key(0) for None.

    Raises:
        TypeError: if it is no JAX random key.
    """
    if key is None:
        return _default_key(jax.config.jax_default_prng_impl)
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and not (dtype == jnp.uint32 and jnp.ndim(key) >= 1):
        raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {key!r}.")
    return key


@frozen_pytree
class LocRows(Batched):
    """Means, one a row."""

    loc: jax.Array

    event_ranks = {"loc": 1}


@functools.lru_cache
def _default_key(implementation: str) -> jax.Array:
    with jax.ensure_compile_time_eval():
        return jax.random.key(0, impl=implementation)


def over_rows(function: Callable, problem: Problem, *others: Any) -> Any:
    """`function(row, *others)` for every row of a problem; others may hold one thing a row too.

    Others have, as covariances and regions do, a `batch_shape` and `broadcast_to`.
    """
    parts = (LocRows(problem.loc), problem.covariance, problem.region, *others)
    # All alike, so that whatever is made of some of it may meet what is made of the rest.
    parts = tuple(varying_like(part, parts) for part in parts)
    batches = [part.batch_shape for part in parts]
    batch_shape = jnp.broadcast_shapes(*batches)

    def of_row(loc, covariance, region, *others):
        with on_mesh_of((loc, covariance, region)):
            return function(Problem(loc.loc, covariance, region), *others)

    if batch_shape == ():
        return of_row(*parts)
    flat = lambda leaf: leaf.reshape((-1, *leaf.shape[len(batch_shape) :]))
    rows = [
        jax.tree.map(flat, part.broadcast_to(batch_shape)) if own else part
        for part, own in zip(parts, batches)
    ]
    if 0 in batch_shape:
        one = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
        rows = [jax.tree.map(one, row) if own else row for row, own in zip(rows, batches)]
        nothing = lambda leaf: jnp.zeros(batch_shape + leaf.shape, leaf.dtype)
        return jax.tree.map(nothing, jax.eval_shape(of_row, *rows))
    results = mapped(of_row, tuple(rows), tuple(0 if own else None for own in batches))
    return jax.tree.map(lambda leaf: leaf.reshape(batch_shape + leaf.shape[1:]), results)
