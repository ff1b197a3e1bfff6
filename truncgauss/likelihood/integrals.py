"""Many probabilities of one kind, each with its own random key, in chunks of bounded memory."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import rows_undivided
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import Estimate, frozen_pytree
from truncgauss.gaussian.covariances import Covariance, ScaleTril
from truncgauss.gaussian.problem import Problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.nested import NODES, WORTH, NestedQuadrature, in_boxes
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.exact import Exact
from truncgauss.probability.importance import ImportanceSampling
from truncgauss.probability.independence import estimates_of
from truncgauss.probability.method import Method, average, with_derivative
from truncgauss.probability.separation import Separation

CHUNK = {1: 2**16, 2: 2**12, 3: 2**10}  # rows evaluated at a time, by dimension
CHUNK_OF_MANY, CHUNK_OF_ANY = 2**6, 2**2  # of other boxes and polyhedra, of any other region
MOST_AT_ONCE = 2**16  # nodes of nested quadratures
FEW = 64  # rows up to which each is as accurate as one alone
DRAWS = 2**18  # in all for more rows, each with four replicates of a number of points between:
LEAST_POINTS, MOST_POINTS = 32, 1024
# Likewise where points fall in or out of a region, so that errors shrink more slowly.
IMPORTANCE_DRAWS, LEAST_IMPORTANCE, MOST_IMPORTANCE = 2**22, 2**8, 2**11

MOST_DRAWN = 2**23  # numbers, about, of the points that a held method keeps


def kind_of(integrals: Integrals) -> str:
    """Text that is equal for integrals that one compiled function can evaluate."""
    region, covariance = integrals.region, integrals.covariance
    kind = f"{region.dimension}" + ("" if region.is_box else f" in {region.shape_name()}")
    if not covariance.is_dense:
        kind += f" {type(covariance).__name__}"
    return kind


def joined(parts: list[Integrals]) -> Integrals:
    """Integrals of one kind in one batch."""
    if len(parts) == 1:
        return parts[0]
    rest, forms = [], {type(part.covariance) for part in parts}
    for part in parts:  # a covariance for each row, in a form that those of all parts have
        covariance = ScaleTril(part.covariance.scale_tril) if len(forms) > 1 else part.covariance
        rest.append(part._replace(covariance=covariance.broadcast_to((len(part.loc),))))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rest)


def settled(method: Method, integrals: Integrals) -> Method:
    """The method for integrals of one kind, in place of `Automatic`, which sees no numbers here.

    The errors of many rows average out: an error of 0.001 in each, which is what 128 draws leave in
    five dimensions, moves no estimate by more than 0.01 of its standard error.
    """
    d, u = integrals.region.dimension, len(integrals.loc)
    region = integrals.region
    if not isinstance(method, Automatic) or region.is_quadratic or region.is_outside:
        return method
    if not region.is_linear:
        chosen = method.choice(Problem(integrals.loc, integrals.covariance, region))
        if not isinstance(chosen, ImportanceSampling):
            return chosen
        if u <= FEW:
            return ImportanceSampling(num_points=MOST_IMPORTANCE)
        points = 2 ** int(math.log2(max(1, IMPORTANCE_DRAWS // (4 * u))))
        points = min(MOST_IMPORTANCE, max(LEAST_IMPORTANCE, points))
        return ImportanceSampling(num_points=points, num_replicates=4)
    deterministic = d <= (3 if region.is_box else 2)
    deterministic |= not integrals.covariance.is_dense
    if deterministic:
        return Exact() if kind_of(integrals) == "3" else method
    if u <= FEW:
        return Separation()
    affordable = max(1, min(DRAWS, method.max_draws // d) // (4 * u))
    points = min(MOST_POINTS, max(LEAST_POINTS, 2 ** int(math.log2(affordable))))
    return Separation(num_points=points, num_replicates=4, twisted=False)


@frozen_pytree
class HeldMethods(Method):
    """Methods with fixed plans for each kind of integral of a likelihood, which is then smooth.

    Made by `likelihood.hold`.
    """

    methods: dict[str, Method]

    def of(self, kind: str) -> Method:
        """The method for a kind of integral.

        Raises:
            ValueError: if it was held for other observations.
        """
        if kind not in self.methods:
            raise ValueError(
                "log_likelihood: the method was held for observations of another pattern: of "
                f"dimensions {sorted(self.methods)}, not {kind}. Hold it for these."
            )
        return self.methods[kind]


def held(method: Method, integrals: dict[str, Integrals], drawn: bool = False) -> HeldMethods:
    """The method with a plan for each of the integrals, by kind; see `held_for`."""
    return HeldMethods({kind: held_for(method, some, drawn) for kind, some in integrals.items()})


def held_for(method: Method, integrals: Integrals, drawn: bool = False) -> Method:
    """The method with a plan for some integrals, and if `drawn` is asked for with points that are
    drawn with their keys, where these are few enough to be kept.

    `Automatic` chooses by shapes: structure that it would recognise in the numbers, such as a
    correlation of 0, is none of the covariances to come.
    """
    problem = Problem(integrals.loc, integrals.covariance, integrals.region)
    chosen = settled(method, integrals)
    if isinstance(chosen, Automatic):
        chosen = chosen.choice(problem)
    chosen = chosen.hold(*problem)
    if drawn and isinstance(chosen, ImportanceSampling):
        numbers = chosen.num_replicates * chosen.numbers_held(integrals.region.dimension)
        if numbers * len(integrals.loc) <= MOST_DRAWN:
            return chosen.drawn(integrals.region, integrals.keys)
    return chosen


def probabilities(integrals: Integrals, method: Method) -> Estimate:
    """The log probabilities (u,) and their standard errors; -inf where a region is empty."""
    method = settled(method, integrals).for_rows(len(integrals.loc))
    loc, covariance, region, keys, empty = integrals
    of_one = region.is_box and region.dimension == 1
    if of_one and isinstance(method, Automatic | Exact):  # in closed form
        intervals = loc, covariance.broadcast_to((len(loc),)), region
        result = parallel.over_rows(of_intervals, intervals, (0, 0, 0))
        return Estimate(jnp.where(empty, -jnp.inf, result.log_prob), result.stderr)
    if isinstance(method, NestedQuadrature) and region.is_box:
        factors = jnp.broadcast_to(covariance.scale_tril, (*loc.shape, loc.shape[-1]))
        box = as_linear(region)
        boxes = box.low, box.high, loc, factors
        result = parallel.over_rows(of_boxes, boxes, (0, 0, 0, 0))
        return Estimate(jnp.where(empty, -jnp.inf, result.log_prob), result.stderr)
    covariances = covariance if covariance.batch_shape else None
    methods = method if method.batch_shape else None

    def one(row: Any) -> tuple[Any, ...]:
        loc, region, key, row_covariance, planned = row
        row_covariance = covariance if row_covariance is None else row_covariance
        return loc, row_covariance, region, method if planned is None else planned, key

    rows, most = (loc, region, keys, covariances, methods), CHUNK_OF_ANY
    if region.is_linear:
        boxes_of = CHUNK if region.is_box else {}
        most = boxes_of.get(region.dimension, CHUNK_OF_MANY)
    if method.is_drawn:  # of few points, which have their derivative with the value
        each = jax.vmap(lambda row: with_drawn_points(*one(row)))
    else:
        most = min(most, rows_undivided(lambda row: log_probability(*one(row)), (rows,), (0,)))
        each = jax.vmap(lambda row: with_derivative(log_probability, most, *one(row)))
    result = parallel.over_rows(each, (rows,), (0,))
    log_prob = jnp.where(empty, -jnp.inf, result.log_prob)
    return Estimate(log_prob, jnp.where(empty, 0.0, result.stderr))


@in_full_precision
def with_drawn_points(
    loc: jax.Array, covariance: Covariance, region: Region, points: Method, key: jax.Array
) -> Estimate:
    """As `log_probability`, whose checks and choices take longer to trace than this."""
    return average(points, Problem(loc, covariance, region), key)


def of_intervals(loc: jax.Array, covariance: Covariance, region: Box) -> Estimate:
    """The log masses of intervals (u,) of one variable each, and their errors from the rounding of
    the inputs.

    As `log_probability` of each row gives them, in a tenth of the operations to compile.
    """
    inputs = loc, covariance.variances, region.low, region.high
    return estimates_of(*(part[:, 0] for part in inputs))


def of_boxes(low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array) -> Estimate:
    """The log masses of boxes (u, l) and their errors, by nested quadrature."""
    u, d = low.shape
    most = max(1, MOST_AT_ONCE // NODES[d] ** (d - 1))
    return in_chunks(lambda rows: in_boxes(u >= WORTH, *rows), (low, high, loc, factor), most)


def in_chunks(batched: Callable[[Any], Any], rows: Any, size: int) -> Any:
    """A function of rows, of at most `size` of them at a time, in the memory of so many.

    The first row is repeated at the end rather than compile for fewer.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    one = lambda row: batched(jax.tree.map(lambda leaf: leaf[None], row))
    size = min(size, rows_undivided(one, (rows,), (0,))) if size > 1 else 1
    if count <= size:
        return batched(rows)
    num_chunks = -(-count // size)
    short = num_chunks * size - count
    full = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:1].repeat(short, 0)]), rows)
    chunks = jax.tree.map(lambda leaf: leaf.reshape(num_chunks, size, *leaf.shape[1:]), full)
    results = jax.lax.map(batched, chunks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)
