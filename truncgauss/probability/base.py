"""The estimate, the contract of a method, and the average of its replicates.

A method answers for one Gaussian and one region. Batching, broadcasting, the average over
independent randomisations and its standard error are written once, here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.covariances import Covariance, as_covariance
from truncgauss.probability.units import Standardized, standardized
from truncgauss.pytrees import Batched, as_float_array, frozen_pytree, on_mesh_of, varying_like
from truncgauss.regions import Box, Polyhedron
from truncgauss.special import log_mean_exp

Region = Any  # Box, Polyhedron or Ball: whatever has contains, margins, dimension, batch_shape


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


class Method:
    """What every method offers; "The house" in the README says how to add one.

    A method is a frozen pytree: counts are static, so that equal settings share a compilation.
    `replicate` is one independent randomisation for one unbatched problem; its own `stderr` is what
    it can say alone (nan if nothing). A deterministic method has one replicate.
    """

    num_replicates: int = 1
    batch_shape: tuple[int, ...] = ()  # of a held plan, if it has one for each of many rows
    own_units = True  # whether boxes and polyhedra come with standard deviations of about one

    def check(self, loc: jax.Array, covariance: Covariance, region: Region) -> None:
        """Raise ValueError if this method cannot answer for such inputs."""

    def settled(self, loc, covariance: Covariance, region: Region) -> "Method":
        """The method with those choices made that need numbers; called outside of a trace too."""
        return self

    def hold(self, loc: jax.Array, covariance: Covariance, region: Region) -> "Method":
        """The method with its plan fixed, so that for one key it is one smooth function."""
        return self

    def scaled(self, by: jax.Array) -> "Method":
        """The method with what it holds made to fit constraints multiplied by `by`, shape (m,)."""
        return self

    def replicate(self, loc, covariance: Covariance, region: Region, key) -> Estimate:
        raise TypeError(f"{type(self).__name__} does not define replicate.")

    def replicates(self, loc, covariance: Covariance, region: Region, keys) -> Estimate:
        """One replicate for each key, by default one after the other, in the memory of one."""
        one = jax.checkpoint(lambda key: self.replicate(loc, covariance, region, key))
        return jax.lax.map(one, keys)

    def combined_stderr(self, log_probs: jax.Array, alone: jax.Array) -> jax.Array:
        """The standard error of the log of the replicates' mean, given what each says alone."""
        return spread(log_probs, alone)


class Problem(NamedTuple):
    """A Gaussian and a region with agreeing dimension and dtype; leading axes may differ."""

    loc: jax.Array
    covariance: Covariance
    region: Region

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
    if not hasattr(region, "margins") or isinstance(region, type):
        raise TypeError(
            f"region must be a tg.Box, tg.Polyhedron or tg.Ball, got {type(region).__name__}. "
            "For limits write tg.Box(low, high)."
        )
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
    if isinstance(region, Polyhedron) and region.low.shape[-1] == 0:
        everywhere = jnp.full((*region.batch_shape, d), jnp.inf, region.low.dtype)
        region = Box(-everywhere, everywhere)
    dtype = jnp.result_type(loc, *jax.tree.leaves(covariance), *jax.tree.leaves(region))
    if jnp.finfo(dtype).bits < 32:
        raise ValueError(
            f"{dtype} has too few digits for a covariance: pass float32 or float64, as in "
            "loc.astype(jnp.float32)."
        )
    problem = Problem(*jax.tree.map(lambda leaf: leaf.astype(dtype), (loc, covariance, region)))
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


def check_held(owner: str, plan: Batched, counts: dict[str, tuple], problem: Problem) -> None:
    """Raise ValueError unless a held plan can serve a problem, as far as their shapes tell.

    Args:
        owner: the method's name.
        plan: what it holds.
        counts: what was counted -> how many there are in the plan, how many the problem has.
        problem: what is asked.
    """
    remedy = "Hold the method for this problem: method.hold(loc, covariance, region)."
    for what, (planned, asked) in counts.items():
        if planned != asked:
            raise ValueError(
                f"{owner}: the plan that is held was made for {planned} {what}, this problem has "
                f"{asked}. {remedy}"
            )
    rows, batch = plan.batch_shape, problem.batch_shape
    try:
        fits = jnp.broadcast_shapes(rows, batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{owner}: the plan that is held has leading axes {rows}, one plan a row, which do not "
            f"broadcast to the problem's {batch}. {remedy}"
        )


def as_key(key: Any) -> jax.Array:
    """The key itself, or jax.random.key(0) for None.

    Raises:
        TypeError: if it is no JAX random key.
    """
    if key is None:
        return jax.random.key(0)
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed and not (dtype == jnp.uint32 and jnp.ndim(key) >= 1):
        raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {key!r}.")
    return key


def estimate(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    """The method's estimate for every row of a problem, with one key for all rows."""
    if not jax.config.jax_debug_nans:
        return _estimate(method, problem, key)
    with jax.debug_nans(False):  # a stderr of NaN is no failure
        log_prob, stderr = _estimate(method, problem, key)
    return Estimate(log_prob + 0.0, stderr)


@jax.jit
def _estimate(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    return over_rows(lambda row, method: average(method, row, key), problem, method)


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
    results = jax.vmap(of_row, in_axes=tuple(0 if own else None for own in batches))(*rows)
    return jax.tree.map(lambda leaf: leaf.reshape(batch_shape + leaf.shape[1:]), results)


@frozen_pytree
class LocRows(Batched):
    """Means, one a row."""

    loc: jax.Array

    event_ranks = {"loc": 1}


def average(method: Method, problem: Problem, key: jax.Array) -> Estimate:
    """The log of the mean of the replicates' probabilities, and its standard error.

    With p_r the R replicates and p their mean, stderr = sd(p_r) / (sqrt(R) p), computed from
    exp(log p_r - max). A single replicate speaks for itself. If replicates that call their own
    result baseless (stderr inf) carry more than half of the mean, so is the average.
    """
    if method.own_units and isinstance(problem.region, Box | Polyhedron):
        row = standardized(*problem)
        result = _average(method.scaled(1.0 / row.row_unit), row.problem, key)
        return decided(row, result)
    return _average(method, problem, key)


def decided(row: Standardized, result: Estimate) -> Estimate:
    """The estimate together with what constraints without variance say."""
    certain = jax.lax.stop_gradient(row.known != 0)
    stderr = jnp.where(jnp.isnan(row.known), jnp.nan, 0.0)
    return Estimate(
        jnp.where(certain, row.known, result.log_prob), jnp.where(certain, stderr, result.stderr)
    )


def _average(method: Method, problem: tuple, key: jax.Array) -> Estimate:
    if method.num_replicates == 1:
        log_prob, stderr = method.replicate(*problem, key)
        return Estimate(log_prob, jax.lax.stop_gradient(stderr))
    keys = jax.random.split(key, method.num_replicates)
    log_probs, alone = method.replicates(*problem, keys)
    stderr = jax.lax.stop_gradient(method.combined_stderr(log_probs, alone))
    return Estimate(log_mean_exp(log_probs, axis=0), stderr)


def spread(log_probs: jax.Array, alone: jax.Array) -> jax.Array:
    """Standard error of the log of the mean of exp(log_probs), shape (R,) -> ()."""
    size = jnp.max(log_probs)
    shares = jnp.exp(log_probs - jnp.where(jnp.isfinite(size), size, 0.0))
    total = shares.sum()
    stderr = jnp.std(shares, ddof=1) * len(log_probs) ** 0.5 / total
    baseless = jnp.sum(jnp.where(jnp.isinf(alone), shares, 0.0)) > 0.5 * total
    baseless = baseless | (size == -jnp.inf)
    return jnp.where(baseless, jnp.inf, stderr)
