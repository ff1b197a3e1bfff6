"""Blocks of points, their neighbours, and the factors of a kernel on them."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular
from jaxtyping import Float

from truncgauss.arrays.pytrees import AnyArray, is_concrete, values_of
from truncgauss.gaussian.covariances import CovarianceMatrix

MOST_DIMENSIONS = 10  # of points that are fewer
SURROUNDINGS = 4  # times so many points are looked at for the nearest ones
COORDINATES, SUBSPACE_STEPS = 8, 20  # of a matrix, by which its rows are put in order
# Of the variance of the noise this share is part of the field: the sum is distributed as before,
# and the field has a factor where points coincide, or nearly so under a smooth kernel.
SHARE = 1e-3
# In the choice of neighbours: a range in extents, and a share of the variance by itself, for points
# that coincide.
RANGE, JITTER = 0.1, 1e-6
WIDEST_STATE, LEAST_FEW = 1536, 8  # places of the guide's state, and neighbours in it
PLACES_EACH = 5  # places of it for each neighbour that is asked for, where these are more


class Arrangement(NamedTuple):
    """The order of points in blocks, and the neighbours of each block.

    Attributes:
        order: the point at each place, shape (n,).
        neighbours: sites of points in earlier blocks, by how much they tell of it, shape (blocks,
            m), filled up with blocks * size.
        size: of a block; the last may have fewer points.
        few: of the neighbours, the first ones, by which the guide of draws goes.
        slots: of each site, and of none, in the guide's state.
        width: of that state.
    """

    order: np.ndarray
    neighbours: np.ndarray
    size: int
    few: int
    slots: np.ndarray
    width: int


def places_of(points: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The points by which neighbours are chosen, as numbers."""
    known = values_of(points)
    if known is None:
        raise ValueError(
            "from_points: neighbours are chosen by numbers, and the points are traced by jax.jit: "
            "pass neighbour_points=, of numbers."
        )
    sites = np.asarray(known, float)
    sites = sites[:, None] if sites.ndim == 1 else sites
    if len(shape) != 2 or sites.ndim != 2 or len(sites) != shape[0] or not len(sites):
        raise ValueError(
            "from_points: points must have shape (n, p) and neighbour_points (n, q), got "
            f"{shape} and {sites.shape}."
        )
    if sites.shape[1] > max(MOST_DIMENSIONS, len(sites)):
        raise ValueError(
            f"from_points: {len(sites)} points in {sites.shape[1]} dimensions are fewer than "
            "these: points are the rows, (n, p). Write points.T where they are the columns."
        )
    if not np.all(np.isfinite(sites)):
        raise ValueError("from_points: points must be finite; leave out those that are not known.")
    return sites


def coordinates_of(matrix: Array) -> np.ndarray:
    """Points, at most 8 numbers each, with squared distances near 2 (1 - r^2), r the correlations.

    r^2 is positive semi-definite (Schur); its leading eigenvectors are by subspace iteration.
    """
    numbers = values_of(matrix)
    if numbers is None or matrix.ndim != 2 or not np.all(np.isfinite(numbers)):
        raise ValueError("from_matrix: covariance must be one finite matrix, not traced.")
    CovarianceMatrix(numbers).check("from_matrix: covariance")
    entries = np.asarray(numbers)
    deviations = np.sqrt(np.maximum(np.diagonal(entries), np.finfo(entries.dtype).tiny))
    squares = np.square(entries / deviations / deviations[:, None])
    basis = np.random.default_rng(0).normal(size=(len(squares), min(COORDINATES, len(squares))))
    for _ in range(SUBSPACE_STEPS):
        basis, _ = np.linalg.qr(squares @ basis)
    values, rotation = np.linalg.eigh(basis.T @ squares @ basis)
    return basis @ rotation * np.sqrt(np.maximum(values, 0.0))


def warn_of_degrees(coordinates: np.ndarray) -> None:
    """Warn of longitudes over more than half of the earth, beside latitudes.

    Fewer degrees cannot be told from those of a plane; whole numbers are taken for pixels.
    """
    if coordinates.shape[1] != 2 or not np.any(coordinates % 1):
        return
    (west, south), (east, north) = coordinates.min(0), coordinates.max(0)
    if east - west > 180 and west >= -180 and east <= 360 and max(-south, north) <= 90:
        warnings.warn(
            f"from_points: points from {west:.4g} to {east:.4g} and {south:.4g} to {north:.4g} may "
            "be degrees of longitude and latitude, and nearness is judged as in a plane: give "
            "points on the unit sphere, of shape (n, 3), or these as neighbour_points=.",
            UserWarning,
            stacklevel=3,
        )


def check_kernel(kernel: Any, points: Array) -> None:
    """Raise TypeError or ValueError for what is no function of two points that gives a number."""
    form = "lambda x, y: jnp.exp(-jnp.sum(jnp.abs(x - y)))"
    if not callable(kernel):
        raise TypeError(f"from_points: kernel must be a function, as {form}, got {kernel!r}.")
    point = jax.ShapeDtypeStruct(points.shape[-1:], points.dtype)
    try:
        shape = jnp.shape(jax.eval_shape(kernel, point, point))
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(f"from_points: write the kernel with jax.numpy, as {form}.") from error
    if shape != ():
        raise ValueError(
            f"from_points: kernel must give one number for two points of shape {point.shape}, got "
            f"shape {shape}. Sum over the coordinates."
        )


def check_distinct(points: AnyArray, noise: Any) -> None:
    """Raise ValueError for two points at one place where neither has noise."""
    known = values_of(points)
    if known is None:
        return
    bare = np.broadcast_to(np.asarray(noise), (len(points),)) == 0
    sites = np.asarray(known)[bare]
    distinct, counts = np.unique(sites, axis=0, return_counts=True)
    if len(distinct) < len(sites):
        raise ValueError(
            f"from_points: {counts.max()} points are at {distinct[np.argmax(counts)].tolist()}, "
            "where the field has one value: give them noise, or keep one of them."
        )


def arranged(points: np.ndarray, neighbours: int, size: int, exact: bool) -> Arrangement:
    """The points in compact blocks along the domain, and for each those of earlier blocks that tell
    most of it; of an exact field, where they guide draws alone, the nearest, which are soon found.

    The guide goes by half of them, or a quarter, and so on, where its state would be too wide.
    """
    from scipy.spatial import cKDTree

    n = len(points)
    for name, count in (("neighbours", neighbours), ("block", size)):
        if not isinstance(count, int | np.integer) or count < 2:
            raise ValueError(f"from_points: {name} must be an int of at least 2, got {count!r}.")
    size = min(size, n)
    order = np.concatenate(_halved(points, np.arange(n), size))
    blocks, most = -(-n // size), max(min(neighbours, n - 1), 2)
    before = np.full((blocks, most), blocks * size)
    points = points[order]
    tree, looked_at = cKDTree(points), min(n, SURROUNDINGS * (2 * most + size))
    for k in range(blocks):
        own = points[k * size : (k + 1) * size]
        found = np.atleast_1d(tree.query(own.mean(0), looked_at)[1])
        earlier, choice = found[found < k * size], _nearest if exact else _telling
        chosen = earlier[choice(own, points[earlier], most)]
        before[k, : len(chosen)] = chosen
    few, (slots, width) = most, slots_of(before, size)
    while width > max(WIDEST_STATE, PLACES_EACH * neighbours) and few > LEAST_FEW:
        few //= 2
        slots, width = slots_of(before[:, :few], size)
    return Arrangement(order, before, size, few, slots, width)


def slots_of(neighbours: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """The slot of each place in a state of all those on which this block or a later one depends.

    A place holds its slot from its own block to the last of which it is a neighbour, and the slots
    of a block are none of those that its neighbours hold. Others have the slot `width`, for none.
    """
    blocks = len(neighbours)
    last, slots = np.full((2, blocks * size + 1), -1)
    for k in range(blocks):
        last[neighbours[k]] = k
    last[-1] = -1
    ending = np.argsort(last, kind="stable")
    free: list[int] = []
    done, width = np.searchsorted(last[ending], 0), 0
    for k in range(blocks):
        while done < len(ending) and last[ending[done]] < k:
            free.append(int(slots[ending[done]]))
            done += 1
        own = k * size + np.flatnonzero(last[k * size : (k + 1) * size] > k)
        missing = max(len(own) - len(free), 0)
        free += range(width, width + missing)
        width += missing
        for place in own:
            slots[place] = free.pop()
    width = max(width, 1)
    return np.where(slots < 0, width, slots), width


def _nearest(sites: np.ndarray, others: np.ndarray, most: int) -> np.ndarray:
    """Positions of those of the others that are nearest to a site, nearest first, shape (most,)."""
    gaps = np.square(others[:, None] - sites[None]).sum(-1).min(1)
    return np.argsort(gaps, kind="stable")[:most]


def _telling(sites: np.ndarray, others: np.ndarray, most: int) -> np.ndarray:
    """Positions of those of the others that tell most of a field at sites, shape (most,).

    One after the other, that one by which the sum of the conditional variances at the sites
    falls the most: of wells with many samples each, most of the nearest ones are of one well, and
    repeat each other. The covariance is Matern's of smoothness 3/2 with a tenth of the extent for
    its range, since the kernel may be traced; with it the divergence from the field was less than
    that by the nearest points for rougher and for smoother kernels, but where both were small. A
    column given the chosen ones is made when it is needed: in all there are (most + points of a
    block) * most * others multiplications.

    Reference:
        Huan, Guinness, Katzfuss, Owhadi and Schaefer (2023), Sparse inverse Cholesky factorization
        of dense kernel matrices by greedy conditional selection.
    """
    from scipy.spatial.distance import cdist

    extent = np.ptp(np.concatenate([sites, others]), axis=0).max(initial=0.0) or 1.0
    apart = [cdist(some, others) * (3.0**0.5 / RANGE / extent) for some in (others, sites)]
    among, left = ((1.0 + gap) * np.exp(-gap) for gap in apart)
    alone, taken = np.full(len(others), 1.0 + JITTER), np.zeros(len(others), bool)
    rows, chosen = np.empty((min(most, len(others)), len(others))), []
    for k in range(len(rows)):
        gains = np.where(taken, -1.0, np.square(left).sum(axis=0) / alone)
        best = int(np.argmax(gains))
        rows[k] = (among[best] - rows[:k, best] @ rows[:k]) / alone[best] ** 0.5
        left -= np.outer(left[:, best] / alone[best] ** 0.5, rows[k])
        alone = np.maximum(alone - rows[k] ** 2, JITTER)
        taken[best] = True
        chosen.append(best)
    return np.array(chosen, int)


def _halved(points: np.ndarray, chosen: np.ndarray, size: int) -> list[np.ndarray]:
    """Blocks of `size` points, of which the last may have fewer, by halving the longest side."""
    if len(chosen) <= size:
        return [chosen]
    axis = np.argmax(np.ptp(points[chosen], axis=0))
    along = chosen[np.argsort(points[chosen, axis], kind="stable")]
    cut = size * (-(-len(chosen) // size) // 2)
    return _halved(points, along[:cut], size) + _halved(points, along[cut:], size)


def root_of(
    points: Array, kernel: Callable[[Array, Array], Array], nugget: Array, plan: Arrangement
) -> Float[Array, "places places"]:
    """The Cholesky factor of the kernel's matrix, with the nugget on its diagonal, in the order,
    filled up with the identity."""
    placed, n = points[plan.order], len(points)
    pairs = jax.vmap(jax.vmap(kernel, (None, 0)), (0, None))(placed, placed)
    pairs += jnp.diag(nugget[plan.order])
    places = plan.size * len(plan.neighbours)
    return jnp.eye(places, dtype=pairs.dtype).at[:n, :n].set(jnp.linalg.cholesky(pairs))


def after(x: Array, others: Any) -> Array:
    """x, computed once others are: 0 times one number of each, if it is finite, is added.

    Two solves side by side can wait for each other's threads for ever on two cores (jaxlib 0.10.2).
    The compiler forgets `lax.optimization_barrier` before it chooses what runs side by side.
    """
    firsts = [jnp.ravel(y)[0] for y in jax.tree.leaves(others)]
    return x + sum(0.0 * jnp.where(jnp.isfinite(y), y, 1.0) for y in firsts)


def factors(
    points: Array, kernel: Callable[[Array, Array], Array], nugget: Array, plan: Arrangement
) -> dict[str, Array]:
    """The regressions of each block on its neighbours.

    With the neighbours first, then the block, the Cholesky factor of their covariance matrix has
    the rows (L_N, 0) and (L_XN, L_X); the regression is L_XN L_N^{-1} and what it leaves has the
    factor L_X. The guide's has the first few of the neighbours only, the coarse one half of those.
    """
    size, most = plan.size, plan.neighbours.shape[1]
    n, blocks = len(points), len(plan.neighbours)
    half = most if most >= n - 1 else plan.few // 2  # with all earlier points nothing is left out
    # Behind the points are sites that stand for none: independent, with variance 1.
    spare = blocks * size + 1 - n
    placed = jnp.concatenate([points[plan.order], jnp.repeat(points[:1], spare, axis=0)])
    nuggets = jnp.pad(nugget[plan.order], (0, spare))
    pairs = jax.vmap(jax.vmap(kernel, (None, 0)), (0, None))

    def of_block(part: tuple[Array, Array]) -> dict[str, Array]:
        start, neighbours = part
        chosen = jnp.concatenate([neighbours, start + jnp.arange(size)])
        there = chosen < n
        some = placed[chosen]
        both = there[:, None] & there[None]
        matrix = jnp.where(both, pairs(some, some), jnp.eye(len(chosen), dtype=some.dtype))
        factor = jnp.linalg.cholesky(matrix + jnp.diag(nuggets[chosen]))

        def by_first(factor: Array, count: int) -> tuple[Array, Array]:
            cross, inner = factor[most:, :most], factor[:most, :most]
            weights = solve_triangular(inner[:count, :count].T, cross[:, :count].T, lower=False).T
            left = factor[most:, count:]
            return weights, left if count == most else jnp.linalg.cholesky(left @ left.T)

        found = {most: by_first(factor, most)}
        for count in half, plan.few:
            if count not in found:  # no value depends on these, only its error
                start = after(lax.stop_gradient(factor), lax.stop_gradient(found))
                found[count] = by_first(start, count)
        counts = {"": most, "coarse_": half, "guide_": plan.few}
        weights = {f"{kind}weights": found[count][0] for kind, count in counts.items()}
        return weights | {f"{kind}scale": found[count][1] for kind, count in counts.items()}

    @jax.checkpoint
    def of_blocks(parts: tuple[Array, Array]) -> dict[str, Array]:
        return of_block(parts)

    parts = size * jnp.arange(blocks), jnp.asarray(plan.neighbours)
    # One block at a time, for the reason of `after`.
    return lax.map(of_blocks, parts)


def check_positive_definite(parts: dict[str, Array]) -> None:
    scale, root = parts["scale"], parts["exact_root"]
    if is_concrete(root) and not np.all(np.isfinite(np.asarray(root))):
        raise ValueError(
            f"from_points: the matrix of the kernel on {len(root):,} places is not positive "
            "definite, to rounding. Give noise, or exact=False, and a smooth kernel few "
            "neighbours, or k(x, y) symmetric values."
        )
    if is_concrete(scale) and not np.all(np.isfinite(np.asarray(scale))):
        block = int(np.argmax(~np.isfinite(np.asarray(scale)).all((-2, -1))))
        raise ValueError(
            f"from_points: the kernel is not positive definite, to rounding, on the points around "
            f"block {block}. Give noise, or a smooth kernel fewer neighbours, or k(x, y) symmetric "
            "values."
        )
