"""Conditioning on the exact entries of rows: their log density, and the Gaussian of the others
given them.

Reference:
    Eaton (1983), Multivariate Statistics, proposition 3.13, for the conditional Gaussian.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.batches import mapped
from truncgauss.arrays.linalg import product
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, ScaleTril
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.polyhedron import Polyhedron
from truncgauss.gaussian.regions.region import LinearRegion, Region, as_linear
from truncgauss.gaussian.regions.section import Section
from truncgauss.likelihood.patterns import Pattern, RowOrders

FEW_FACES = 2  # of a polyhedron whose probability is that of a box, by a closed form or quadrature


@frozen_pytree
class ConditionedRows:
    """A Gaussian vector for each row, with its limits.

    Attributes:
        loc: (d,) or (n, d).
        covariance: of batch shape () or (n,).
        lower, upper: (n, d), equal where an entry is exact.
        region: a region that constrains the entries too, or the last ones, of batch shape () or
            (n,), or None. It is no `Box`, whose limits are those of the rows.
    """

    loc: jax.Array
    covariance: Covariance
    lower: jax.Array
    upper: jax.Array
    region: Region | None


class Integrals(NamedTuple):
    """Probabilities in the likelihood of rows: u Gaussians with a region each.

    Attributes:
        loc: (u, l).
        covariance: of batch shape () or (u,).
        region: of batch shape (u,), or () if it has no numbers.
        keys: a random key for each, (u,).
        empty: whether the limits contradict each other, (u,); the region is then all of space.
    """

    loc: jax.Array
    covariance: Covariance
    region: Region
    keys: jax.Array
    empty: jax.Array


def conditioned(
    rows: ConditionedRows, pattern: Pattern, key: jax.Array
) -> tuple[jax.Array, Integrals | None]:
    """The log density (g,) of the exact entries of a pattern's rows, and the integrals over the
    limited ones given these; None if nothing is limited.

    With E the exact entries and L the limited, X_L given X_E = x has mean
    mu_L + S_LE S_EE^-1 (x - mu_E) and covariance S_LL - S_LE S_EE^-1 S_EL. Both come from the one
    Cholesky factor of (E, L), whose last block is the factor of that covariance.
    """
    assert pattern.exact is not None
    first, e = pattern.representatives, len(pattern.exact)
    order = jnp.array(pattern.exact + pattern.limited, int)
    loc = rows.loc[first] if rows.loc.ndim == 2 else rows.loc
    loc = jnp.broadcast_to(loc[..., order], (len(first), len(order)))
    lower, upper = rows.lower[first][:, order], rows.upper[first][:, order]
    values, lower, upper = lower[:, :e], lower[:, e:], upper[:, e:]
    covariance, density = rows.covariance, jnp.zeros(len(first), loc.dtype)
    batched = covariance.batch_shape != ()
    if batched or pattern.limited != tuple(range(covariance.dimension)):
        matrix = covariance.covariance_matrix[first] if batched else covariance.covariance_matrix
        covariance = CovarianceMatrix(matrix[..., order[:, None], order])
    if e:
        loc, covariance, density = _conditional(values, loc, covariance.covariance_matrix)
    if not pattern.limited:
        # With the probability that rows of exact entries are kept, where it is known.
        if rows.region is not None and rows.region.answers_points:
            point, regions = _with_zeros(rows, pattern, values), _regions(rows.region, pattern)
            kept = jax.vmap(lambda region, x: region.kept(x))(regions, point)
            log_kept = jnp.log(jnp.where(kept == 0, 1.0, kept))
            density += jnp.where(kept == 0, -jnp.inf, log_kept)
        return density, None
    region, empty = _open_region(rows, pattern, values, lower, upper)
    if region.is_linear and not region.is_box and as_linear(region).num_constraints <= FEW_FACES:
        loc, covariance, region = _across_faces(loc, covariance, as_linear(region))
        empty |= jnp.any(region.low >= region.high, axis=-1)
    keys = _keys(pattern, key)
    return pattern.for_rows(density), Integrals(loc, covariance, region, keys, empty)


class EachConditioned(NamedTuple):
    """Rows conditioned on their exact entries, each with its entries in an order of its own.

    Attributes:
        density: the log density of the exact entries, (n,).
        loc: mean of the others given these, in the place of all, (n, d).
        factor: the Cholesky factor of all entries, (n, d, d), whose last block is that of the last
            ones given the others.
        lower, upper: (n, d).
    """

    density: jax.Array
    loc: jax.Array
    factor: jax.Array
    lower: jax.Array
    upper: jax.Array


def conditioned_each(rows: ConditionedRows, orders: RowOrders) -> EachConditioned:
    """Rows limited by boxes, given their exact entries. Entries that are neither exact nor limited
    are made independent of all others, so that they tell nothing of these."""
    n, d = rows.lower.shape
    dtype = rows.loc.dtype
    lower, upper = (jnp.take_along_axis(x, orders.entries, 1) for x in (rows.lower, rows.upper))
    exact = orders.exact
    limited = (jnp.isfinite(lower) | jnp.isfinite(upper)) & ~exact
    # As products with matrices, whose derivatives are quicker to compile than those of indexing.
    turn = jax.nn.one_hot(orders.entries, d, dtype=dtype)
    loc = jnp.einsum("nij,nj->ni", turn, jnp.broadcast_to(rows.loc, (n, d)))
    matrix = jnp.broadcast_to(rows.covariance.covariance_matrix, (n, d, d))

    def one(turn: Any, matrix: Any, rest: Any, exact: Any, free: Any) -> tuple[Any, ...]:
        matrix = turn @ matrix @ turn.T
        matrix = jnp.where(free[:, None] | free[None, :], jnp.eye(d, dtype=dtype), matrix)
        factor = jnp.linalg.cholesky(matrix)
        white = solve_triangular(factor, rest, lower=True)
        white = jnp.where(exact, white, 0.0)
        logs = jnp.log(jnp.diagonal(factor)) + 0.5 * math.log(2.0 * math.pi)
        density = -jnp.sum(jnp.where(exact, 0.5 * white**2 + logs, 0.0))
        return density, factor @ white, factor

    rest = jnp.where(exact, lower - loc, 0.0)
    inputs = turn, matrix, rest, exact, ~exact & ~limited
    density, move, factor = mapped(one, inputs, (0, 0, 0, 0, 0))
    return EachConditioned(density, loc + move, factor, lower, upper)


def of_conditioned(rows: EachConditioned, pattern: Pattern, key: jax.Array) -> Integrals:
    """The integrals over the limited entries of the rows of a pattern, which are the last ones."""
    first, m = pattern.representatives, pattern.limited[0]
    loc, factor = rows.loc[first, m:], rows.factor[first, m:, m:]
    lower, upper, empty = _opened(rows.lower[first, m:], rows.upper[first, m:])
    return Integrals(loc, ScaleTril(factor), Box(lower, upper), _keys(pattern, key), empty)


def _keys(pattern: Pattern, key: jax.Array) -> jax.Array:
    """The random keys of a pattern's integrals, (u,)."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, pattern.key_numbers)


def _opened(
    lower: jax.Array, upper: jax.Array, broken: jax.Array | bool = False
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Limits (u, m), and which of these regions have no inside, (u,), or are `broken`: they are
    replaced by all of space, which any method can answer."""
    empty = jnp.any(lower >= upper, axis=-1) | broken
    lower = jnp.where(empty[:, None], -jnp.inf, lower)
    return lower, jnp.where(empty[:, None], jnp.inf, upper), empty


def _conditional(
    values: jax.Array, loc: jax.Array, matrix: jax.Array
) -> tuple[jax.Array, Covariance, jax.Array]:
    """Mean and covariance of the others given the values (u, e) of the first, and their density.

    Rows are factorised a few at a time, see `rows`.
    """
    e = values.shape[1]
    batched = matrix.ndim == 3
    factor = matrix if batched else jnp.linalg.cholesky(matrix)
    # LAPACK solves for many rows on all processors, which wait for each other longer than they
    # work: of a factor that rows share the inverse is applied to them.
    unit = jnp.eye(e, dtype=factor.dtype)
    inverse = None if batched else solve_triangular(factor[:e, :e], unit, lower=True)

    def one(values: Any, loc: Any, factor: Any, inverse: Any) -> tuple[jax.Array, ...]:
        factor = jnp.linalg.cholesky(factor) if batched else factor
        head, below, rest = factor[:e, :e], factor[e:, :e], values - loc[:e]
        solved = solve_triangular(head, rest, lower=True) if batched else product(inverse, rest)
        density = -0.5 * jnp.sum(solved**2) - jnp.sum(jnp.log(jnp.diagonal(head)))
        mean = loc[e:] + below @ solved
        return mean, density, *([factor[e:, e:]] if batched else [])

    axes = 0, 0, 0 if batched else None, None
    mean, density, *rest = mapped(one, (values, loc, factor, inverse), axes)
    density = density - 0.5 * e * math.log(2.0 * math.pi)
    return mean, ScaleTril(rest[0] if batched else factor[e:, e:]), density


def _with_zeros(rows: ConditionedRows, pattern: Pattern, values: jax.Array) -> jax.Array:
    """The entries that the region constrains, (u, d), with 0 for what is not exact."""
    point = jnp.zeros((len(values), rows.lower.shape[-1]), values.dtype)
    point = point.at[:, jnp.array(pattern.exact, int)].set(values)
    return point if rows.region is None else point[:, -rows.region.dimension :]


def _regions(region: Any, pattern: Pattern) -> Any:
    """The regions of the rows that ask, one each."""
    if region.batch_shape == ():
        return region.broadcast_to((len(pattern.representatives),))
    return jax.tree.map(lambda leaf: leaf[pattern.representatives], region)


def _open_region(
    rows: ConditionedRows, pattern: Pattern, values: jax.Array, lower: jax.Array, upper: jax.Array
) -> tuple[Region, jax.Array]:
    """The region of the limited entries of each row, and which are empty, see `_opened`."""
    limited, broken = jnp.array(pattern.limited, int), jnp.asarray(False)
    if rows.region is not None and not rows.region.is_linear:
        regions: Any = _regions(rows.region, pattern)
        lower, upper, empty = _opened(lower, upper)
        before = rows.lower.shape[-1] - rows.region.dimension  # entries that it does not know
        if not pattern.exact and not pattern.bounded and not before:
            return regions, empty
        alone = len(pattern.limited) == 1
        if regions.is_quadratic and not before and (alone or not pattern.bounded):
            known = () if pattern.exact is None else pattern.exact
            parts, broken = jax.vmap(lambda region, x: region.section(known, x))(regions, values)
            if not alone:
                return parts, empty | broken
            reach = jax.vmap(lambda part: part.root[0])(parts)
            low, high = parts.center - reach, parts.center + reach
            ends = jnp.maximum(lower, low), jnp.minimum(upper, high)
            lower, upper, empty = _opened(*ends, empty | broken)
            return Box(lower, upper), empty
        where = tuple(max(coordinate - before, -1) for coordinate in pattern.limited)
        point = _with_zeros(rows, pattern, values)
        return Section(regions, point, where, lower, upper), empty
    if rows.region is not None:
        region = _regions(rows.region, pattern)
        unknown = rows.lower.shape[-1] - region.dimension
        whole = jnp.pad(region.matrix, ((0, 0), (0, 0), (unknown, 0)))
        matrix, low, high = whole[..., limited], region.low, region.high
        if pattern.exact:
            moved = whole[..., jnp.array(pattern.exact, int)]
            moved = jnp.einsum("ume,ue->um", moved, values)
            low, high = low - moved, high - moved
        if pattern.bounded:
            unit = jnp.eye(len(limited), dtype=matrix.dtype)
            unit = jnp.broadcast_to(unit, (len(matrix), *unit.shape))
            matrix = jnp.concatenate([matrix, unit], axis=1)
            low, high = jnp.append(low, lower, axis=1), jnp.append(high, upper, axis=1)
        # Faces that constrain no limited entry are without limits; exact entries may break them.
        idle = jnp.all(matrix == 0, axis=-1)
        broken = jnp.any(idle & ((low > 0) | (high < 0)), axis=-1)
        lower, upper = jnp.where(idle, -jnp.inf, low), jnp.where(idle, jnp.inf, high)
        if len(limited) > 1:
            lower, upper, empty = _opened(lower, upper, broken)
            return Polyhedron(matrix, lower, upper), empty
        lower, upper = _on_one_entry(matrix[..., 0], lower, upper)
    lower, upper, empty = _opened(lower, upper, broken)
    return Box(lower, upper), empty


def _across_faces(
    loc: jax.Array, covariance: Covariance, region: LinearRegion
) -> tuple[jax.Array, Covariance, Box]:
    """The Gaussian (u, m) of A x, and the box in which a polyhedron of one or two faces holds it.

    A face that constrains nothing becomes a variable of its own; of two that are parallel the
    second does, and its limits are put on the first.
    """
    matrix, low, high = region.matrix, region.low, region.high
    if covariance.is_factor:
        root = matrix @ covariance.matrix
        whole = root @ jnp.swapaxes(root, -1, -2)
    else:
        whole = matrix @ covariance.covariance_matrix @ jnp.swapaxes(matrix, -1, -2)
    idle = jnp.all(matrix == 0, axis=-1)
    if matrix.shape[1] == 2:
        first, second = matrix[:, 0], matrix[:, 1]
        squares = jnp.sum(first**2, axis=-1), jnp.sum(second**2, axis=-1)
        inner = jnp.sum(first * second, axis=-1)
        close = 1.0 - 64.0 * float(jnp.finfo(matrix.dtype).eps)
        parallel = (inner**2 >= close * squares[0] * squares[1]) & ~jnp.any(idle, axis=-1)
        slopes = jnp.where(parallel, inner / jnp.where(parallel, squares[0], 1.0), 0.0)
        below, above = _on_one_entry(slopes[:, None], low[:, 1:], high[:, 1:])
        low = low.at[:, :1].max(jnp.where(parallel[:, None], below, -jnp.inf))
        high = high.at[:, :1].min(jnp.where(parallel[:, None], above, jnp.inf))
        idle = idle.at[:, 1].set(idle[:, 1] | parallel)
    low, high = jnp.where(idle, -jnp.inf, low), jnp.where(idle, jnp.inf, high)
    still = idle[..., None] | idle[..., None, :]
    unit = jnp.eye(idle.shape[1], dtype=whole.dtype)[None]
    whole = jnp.where(still, jnp.where(idle[..., None], unit, 0.0), whole)
    return jnp.einsum("uml,ul->um", matrix, loc), CovarianceMatrix(whole), Box(low, high)


def _on_one_entry(
    slopes: jax.Array, lower: jax.Array, upper: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The interval of x with lower <= slope x <= upper for all of m slopes, (u, 1) each."""
    safe = jnp.where(slopes == 0, 1.0, slopes)
    falling = slopes < 0
    low = jnp.where(falling, upper, lower) / safe
    high = jnp.where(falling, lower, upper) / safe
    return jnp.max(low, axis=-1, keepdims=True), jnp.min(high, axis=-1, keepdims=True)
