r"""Mixtures that may lie near a higher maximum than the best one so far: two of its components
merged and one split, two merged and a small one put about a row and its neighbours, and components
about random rows. Hundreds take a few EM steps in closed form, and the highest go on.

The steps of many mixtures at once are two products of matrices: the logarithm of a Gaussian density
is linear in the products of a row's entries, and so are the sums that a step needs. Behind a region
the rows that it hid are draws from the best mixture, with the weights that they have in the
expected population; the steps only propose, and the likelihood decides.

The likelihood has no bound where components shrink, and many accidental maxima on the way: mixtures
are not proposed of which a component is narrower, in some direction, than `NARROW` of the spread of
all rows, unless it stands for `ENOUGH_ROWS`, or than the best mixture of the starts is.

References:
    Ueda, Nakano, Ghahramani and Hinton, "SMEM algorithm for mixture models", Neural Computation
        (2000), for splits and merges.
    Biernacki, Celeux and Govaert, "Choosing starting values for the EM algorithm for getting the
        highest likelihood in multivariate Gaussian mixture models", Computational Statistics and
        Data Analysis (2003), for short runs from many starts.
    Hathaway, "A constrained formulation of maximum-likelihood estimation for normal mixture
        distributions", Annals of Statistics (1985), for the limit on narrow components.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from truncgauss.fits.mixtures.em import expectation, generator, scattered
from truncgauss.fits.mixtures.likelihood import MixtureLoss, row_weights
from truncgauss.fits.mixtures.parameters import Components, MixtureCoordinates

# EM steps of mixtures, and how many of these go on to them; rows times components of all mixtures
# are then at most so many numbers, of which steps take a second or less in all.
STAGES = (10, 700, 2**19), (20, 200, 2**17), (60, 50, 2**15), (200, 12, 2**13)
LONG = 300  # EM steps of starts, most of which then come to a maximum
AT_ONCE = 2**16  # numbers likewise, of which arrays fit into a processor's cache
SAME = 1e-4  # nats, within which two of them have come to one maximum
MOST_ROWS = 4000  # of the rows and of the draws that stand for hidden ones; of more a part is taken
MOST_NUMBERS = 2**19  # of the starts that go `LONG` together
GAIN = 0.01  # nats by which a proposed mixture is higher
# The smallest spread of a component, over that of all rows: of any one, and of one that stands for
# so many rows that it is hardly an accident.
NARROW, NARROWEST, ENOUGH_ROWS = 0.03, 0.005, 10.0
FOLLOWED = 3  # proposed mixtures, as some lead to no maximum
NEIGHBOURS = 6, 12, 25, 50  # rows about which a small component is put
MOST_HIDDEN = 20.0  # hidden rows for each one seen, beyond which draws say too little
APART, WIDTHS = 0.8, (0.25, 1.75)  # halves in spreads from the centre; parts of the variance


def in_units(coordinates: MixtureCoordinates, at: Components) -> Components:
    """A mixture in units of the rows' own centre and spread."""
    scale, centre = np.asarray(coordinates.scale), np.asarray(coordinates.centre)
    return Components(
        at.weights, (at.locs - centre) / scale, at.covariances / np.outer(scale, scale)
    )


def least_variance(coordinates: MixtureCoordinates, first: Components) -> float:
    """The smallest variance, in units of the rows' own, of components that stand for few rows in
    mixtures which are proposed after a first one."""
    variances = np.linalg.eigvalsh(in_units(coordinates, first).covariances)
    return min(float(variances.min()), NARROW**2)


def is_wide(counts: np.ndarray, matrices: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Whether no component of mixtures is too narrow, (s,).

    Args:
        counts: the rows that each component stands for, (s, K).
        matrices: their covariances, in units of the rows' own, (s, K, d, d).
        least: the smallest variance of a component that stands for few rows, (s,).
    """
    known = np.isfinite(matrices).all(axis=(1, 2, 3))
    variances = np.linalg.eigvalsh(np.where(np.isfinite(matrices), matrices, 0.0))[..., 0]
    floor = np.where(counts < ENOUGH_ROWS, np.inf, NARROWEST**2)
    return known & np.all(variances > np.minimum(floor, least[:, None]), axis=1)


def proposed(
    loss: MixtureLoss,
    table: np.ndarray,
    best: Components,
    least: float,
    key: jax.Array,
    anywhere: bool,
) -> list[Components]:
    """The highest of the mixtures above the best one that EM steps in closed form lead to, at most
    `FOLLOWED`; none where rows are not known exactly or have regions of their own.

    Args:
        loss: minus the mean log-likelihood, with plans made at the best mixture.
        table: the rows in units of their own, (n, d), NaN where missing.
        best: the best mixture so far, in the users' units.
        least: the smallest variance of a component of few rows, in units of the rows' own.
        key: random key of the rows about which mixtures begin and of hidden rows.
        anywhere: whether some begin about random rows, besides those made from the best one.
    """
    rows, coordinates = loss.observations, loss.coordinates
    exact = np.array_equal(np.asarray(rows.lower), np.asarray(rows.upper))
    alike = rows.region is None or rows.region.batch_shape == ()
    if not exact or not alike or rows.noise is not None or loss.prior_rows is not None:
        return []
    rng = generator(key)
    here, sample = in_units(coordinates, best), completed_rows(loss, table, best, rng)
    if sample is None:
        return []
    size = len(sample[0]) * len(here.weights)
    most, seen = min(STAGES[0][1], STAGES[0][2] // size), np.asarray(row_weights(rows, np.float64))
    near = list(moved(here))
    begun = [near[k] for k in rng.permutation(len(near))[: most // 3]]
    begun += [with_neighbours(here, table, seen, rng) for _ in range(most // 3)]
    if anywhere:
        number = most - len(begun)
        begun += [scattered(table, seen, len(here.weights), rng) for _ in range(number)]
    # The best one may be narrower than others.
    value = ascended_together(coordinates, *sample, [here], np.zeros(1), STAGES[-1][0])[0][0]
    values = np.zeros(0)
    for num_steps, count, numbers in STAGES:
        begun = begun[: max(2, min(count, numbers // size))]
        limits = np.full(len(begun), least)
        values, ends = ascended_together(coordinates, *sample, begun, limits, num_steps)
        order = np.argsort(-values)[: np.isfinite(values).sum()]
        order = order[np.diff(values[order], prepend=np.inf) < -SAME]
        begun, values = [Components(*(part[k] for part in ends)) for k in order], values[order]
        if not begun:
            return []
    scale, centre = np.asarray(coordinates.scale), np.asarray(coordinates.centre)
    return [
        Components(end.weights, centre + scale * end.locs, end.covariances * np.outer(scale, scale))
        for end in [begun[k] for k in np.flatnonzero(values > value + GAIN)[:FOLLOWED]]
    ]


def without_region(
    loss: MixtureLoss, table: np.ndarray, begun: list[Components]
) -> list[Components]:
    """The mixtures, in units of the rows, after EM steps in closed form that leave the region out,
    one object for all that come to the same maximum; each as it is where steps make it narrow, or
    where rows are not known exactly or are many."""
    rows, count = loss.observations, len(begun)
    exact = np.array_equal(np.asarray(rows.lower), np.asarray(rows.upper))
    many = table.size * count * loss.coordinates.num_components > MOST_NUMBERS
    if count == 0 or not exact or rows.noise is not None or many:
        return begun
    weights, least = np.asarray(row_weights(rows, np.float64)), np.full(count, NARROW**2)
    values, ends = ascended_together(loss.coordinates, table, weights, begun, least, LONG)
    results: list[Components] = []
    for k, value in enumerate(values):
        if not np.isfinite(value):
            results.append(begun[k])
        elif len(known := np.flatnonzero(np.abs(values[:k] - value) < SAME)):
            results.append(results[known[0]])
        else:
            results.append(Components(*(part[k] for part in ends)))
    return results


def completed_rows(
    loss: MixtureLoss, table: np.ndarray, best: Components, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows in their units, (m, d), and weights (m,): those that were seen, and draws from the best
    mixture in place of those that the region hid; None if these are too many, or not known."""
    rows, coordinates = loss.observations, loss.coordinates
    weights, size = np.asarray(row_weights(rows, np.float64)), float(loss.size)
    if len(table) > MOST_ROWS:
        part = rng.choice(len(table), MOST_ROWS, replace=False)
        table, weights = table[part], weights[part] * (size / weights[part].sum())
    if rows.region is None:
        return table, weights
    population = expectation(loss, best).population
    if not population <= (1 + MOST_HIDDEN) * size:
        return None
    number = len(table)
    own = rng.choice(len(best.weights), number, p=best.weights / best.weights.sum())
    factors = np.linalg.cholesky(best.covariances)[own]
    normal = rng.normal(size=(number, table.shape[1]))
    draws = best.locs[own] + np.einsum("nij,nj->ni", factors, normal)
    try:
        hidden = 1.0 - np.asarray(rows.region.kept(jax.device_put(draws)), np.float64)
    except NotImplementedError:  # a region known by injections, and not at a point
        return None
    hidden *= (population - size) / max(hidden.sum(), 1e-300)
    draws = (draws - np.asarray(coordinates.centre)) / np.asarray(coordinates.scale)
    return np.vstack([table, draws[hidden > 0]]), np.append(weights, hidden[hidden > 0])


def merged(at: Components, pair: Any) -> tuple[Any, Any, Any]:
    """The weight, mean and covariance of two components of a mixture together."""
    share = at.weights[pair].sum()
    parts = at.weights[pair] / share
    loc = parts @ at.locs[pair]
    gaps = at.locs[pair] - loc
    spread = np.einsum("k,kij->ij", parts, at.covariances[pair])
    return share, loc, spread + np.einsum("k,ki,kj->ij", parts, gaps, gaps)


def moved(at: Components) -> Iterator[Components]:
    """Mixtures in which two components are merged and a third one or the merged one is split, along
    its longest axis or into a narrow and a wide one."""
    k = len(at.weights)
    for i, j in itertools.combinations(range(k), 2):
        pair = [i, j]
        both = merged(at, pair)
        for other in (None, *(c for c in range(k) if c not in pair)):
            rest = [tuple(part[c] for part in at) for c in range(k) if c not in (i, j, other)]
            whole = both if other is None else tuple(part[other] for part in at)
            rest += [] if other is None else [both]
            for halves in split(*whole):
                yield Components(*map(np.array, zip(*rest, *halves)))


def with_neighbours(
    at: Components, table: np.ndarray, weights: np.ndarray, rng: np.random.Generator
) -> Components:
    """A mixture in which two components are merged and one stands for a row of the table (n, d) and
    its neighbours, all drawn at random."""
    d, pair = table.shape[1], rng.permutation(len(at.weights))[:2]
    centre = table[rng.choice(len(table), p=weights / weights.sum())]
    count = rng.choice([n for n in NEIGHBOURS if n <= max(len(table) // 2, NEIGHBOURS[0])])
    near = np.argsort(np.sum((table - centre) ** 2, axis=1))[:count]
    part = weights[near].sum() / weights.sum()
    loc = np.average(table[near], axis=0, weights=weights[near])
    gaps = table[near] - loc
    spread = (weights[near, None] * gaps).T @ gaps / weights[near].sum() + NARROW**2 * np.eye(d)
    rest = [tuple(each[c] for each in at) for c in range(len(at.weights)) if c not in pair]
    others = [((1 - part) * share, *gaussian) for share, *gaussian in [*rest, merged(at, pair)]]
    return Components(*map(np.array, zip(*others, (part, loc, spread))))


def split(share: float, loc: np.ndarray, matrix: np.ndarray) -> Iterator[list[tuple[Any, ...]]]:
    """Pairs of components that have mean and covariance of one together."""
    values, vectors = np.linalg.eigh(matrix)
    shift = APART * vectors[:, -1] * values[-1] ** 0.5
    less = matrix - np.outer(shift, shift)
    yield [(share / 2, loc - shift, less), (share / 2, loc + shift, less)]
    yield [(share / 2, loc, width * matrix) for width in WIDTHS]


def ascended_together(
    coordinates: MixtureCoordinates,
    table: np.ndarray,
    weights: np.ndarray,
    begun: list[Components],
    least: np.ndarray,
    num_steps: int,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The log-likelihoods (s,) of mixtures after EM steps from each of those begun, -inf where a
    component became too narrow (`is_wide`); and their weights, means and covariances.

    Args:
        coordinates: with the structure of covariances.
        table: exact rows, (n, d), without a region.
        weights: how often each counts, (n,).
        begun: s mixtures.
        least: the smallest variance of a component of few rows of each mixture, (s,).
        num_steps: the number of EM steps.
    """
    most = max(1, AT_ONCE // (len(table) * coordinates.num_components))
    if len(begun) > most:
        parts = [
            ascended_together(
                coordinates, table, weights, begun[k : k + most], least[k:], num_steps
            )
            for k in range(0, len(begun), most)
        ]
        values, ends = zip(*parts)
        return np.concatenate(values), [np.concatenate(each) for each in zip(*ends)]
    d, (i, j) = table.shape[1], np.tril_indices(table.shape[1])
    ones = np.ones((len(table), 1))
    features = np.hstack([ones, table, table[:, i] * table[:, j]])
    counted = weights[:, None] * features
    ends = [np.stack(parts) for parts in zip(*begun)]
    values, alive = np.full(len(begun), -np.inf), np.arange(len(begun))
    for step in range(num_steps + 1):
        shares, locs, matrices = (part[alive] for part in ends)
        wide = is_wide(shares * weights.sum(), matrices, least[alive])
        values[alive[~wide]] = -np.inf
        if not wide.any():
            break
        alive, shares, locs, matrices = alive[wide], shares[wide], locs[wide], matrices[wide]
        s, k = shares.shape
        precision = np.linalg.inv(matrices)
        slopes = np.einsum("skij,skj->ski", precision, locs)
        constants = np.log(shares) - np.einsum("ski,ski->sk", slopes, locs) / 2
        constants += np.linalg.slogdet(precision)[1] / 2 - d / 2 * np.log(2 * np.pi)
        squares = precision[..., i, j] * np.where(i == j, -0.5, -1.0)
        linear = np.concatenate([constants[..., None], slopes, squares], axis=-1)
        logs = (linear.reshape(s * k, -1) @ features.T).reshape(s, k, -1)
        top = logs.max(axis=1, keepdims=True)
        parts = np.exp(logs - top)
        total = parts.sum(axis=1, keepdims=True)
        values[alive] = (np.log(total) + top)[:, 0] @ weights
        if step == num_steps:
            break
        sums = ((parts / total).reshape(s * k, -1) @ counted).reshape(s, k, -1)
        counts = np.maximum(sums[..., 0], np.finfo(float).tiny)
        locs, products = sums[..., 1 : 1 + d] / counts[..., None], np.empty_like(matrices)
        products[..., i, j] = products[..., j, i] = sums[..., 1 + d :] / counts[..., None]
        spread = products - locs[..., :, None] * locs[..., None, :]
        allowed = np.array([coordinates.restricted(*each) for each in zip(counts, spread)])
        moved_ends = counts / counts.sum(axis=1, keepdims=True), locs, allowed
        for part, new in zip(ends, moved_ends):
            part[alive] = new
    return values, ends
