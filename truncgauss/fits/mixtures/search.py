r"""Mixtures that may lie near a higher maximum than the best one so far: two of its components
merged and one split, and components about random rows, each after EM steps in closed form.

The steps of many mixtures at once are two products of matrices: the logarithm of a Gaussian density
is linear in the products of a row's entries, and so are the sums that a step needs. Behind a region
the rows that it hid are draws from the best mixture, with the weights that they have in the
expected population; the steps only propose, and the likelihood decides.

The likelihood has no bound where components shrink, and many accidental maxima on the way: mixtures
of which some component is narrower than `least_variance` says are not proposed.

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

from truncgauss.fits.mixtures.em import expectation, scattered
from truncgauss.fits.mixtures.likelihood import MixtureLoss, row_weights
from truncgauss.fits.mixtures.parameters import Components, MixtureCoordinates

STEPS = 60  # of EM for each mixture
LONG = 300  # likewise for starts, most of which then come to a maximum
SAME = 1e-4  # nats, within which two of them have come to one maximum
RANDOM = 40  # mixtures about random rows
MOST_ROWS = 4000  # of the rows and of the draws that stand for hidden ones; of more a part is taken
MOST_NUMBERS = 2**19  # rows times components of all mixtures, which take a second or less together
GAIN = 0.01  # nats by which a proposed mixture is higher
# The smallest spread of a proposed mixture, over that of the best one and over that of all rows.
NARROWER, NARROW = 0.1, 0.03
MOST_HIDDEN = 20.0  # hidden rows for each one seen, beyond which draws say too little
APART, WIDTHS = 0.8, (0.25, 1.75)  # halves in spreads from the centre; parts of the variance


def narrowest(loss: MixtureLoss, at: Components) -> float:
    """The smallest variance in some direction of a component, in units of the rows' own."""
    scale = np.asarray(loss.coordinates.scale)
    return float(np.linalg.eigvalsh(at.covariances / np.outer(scale, scale)).min())


def least_variance(loss: MixtureLoss, first: Components) -> float:
    """The least of these that mixtures may have which are proposed after a first one."""
    variance = narrowest(loss, first)
    return min(variance, max(NARROWER**2 * variance, NARROW**2))


def proposed(
    loss: MixtureLoss, table: np.ndarray, best: Components, least: float, key: jax.Array
) -> Components | None:
    """The highest of the mixtures that EM steps in closed form lead to, if it is above the best
    one; None if none is, or where rows are not known exactly or have regions of their own.

    Args:
        loss: minus the mean log-likelihood, with plans made at the best mixture.
        table: the rows in units of their own, (n, d), NaN where missing.
        best: the best mixture so far, in the users' units.
        least: the smallest variance of a proposed mixture, in units of the rows' own.
        key: random key of the rows about which mixtures begin and of hidden rows.
    """
    rows, coordinates = loss.observations, loss.coordinates
    exact = np.array_equal(np.asarray(rows.lower), np.asarray(rows.upper))
    alike = rows.region is None or rows.region.batch_shape == ()
    if not exact or not alike or rows.noise is not None or loss.prior_rows is not None:
        return None
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    scale, centre = np.asarray(coordinates.scale), np.asarray(coordinates.centre)
    sizes = np.outer(scale, scale)
    here = Components(best.weights, (best.locs - centre) / scale, best.covariances / sizes)
    sample = completed_rows(loss, table, best, rng)
    if sample is None:
        return None
    standard, weights = sample
    begun = [here, *moved(here)]
    seen = table, np.asarray(row_weights(rows, np.float64))
    for number in range(RANDOM):
        begun.append(scattered(*seen, len(here.weights), jax.random.fold_in(key, number)))
    most = max(2, MOST_NUMBERS // (len(standard) * len(here.weights)))
    if len(begun) > most:
        begun = [here, *(begun[1 + k] for k in rng.permutation(len(begun) - 1)[: most - 1])]
    limits = np.append(0.0, np.full(len(begun) - 1, least))  # the best one may be narrower
    values, ends = ascended_together(coordinates, standard, weights, begun, limits, STEPS)
    highest = int(np.argmax(values))
    if not values[highest] > values[0] + GAIN:
        return None
    end = Components(*(part[highest] for part in ends))
    return Components(end.weights, centre + scale * end.locs, end.covariances * sizes)


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
        known = np.flatnonzero(np.abs(values[:k] - value) < SAME)
        if not np.isfinite(value):
            results.append(begun[k])
        elif len(known):
            results.append(results[known[0]])
        else:
            results.append(Components(*(part[k] for part in ends)))
    return results


def completed_rows(
    loss: MixtureLoss, table: np.ndarray, best: Components, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows in their units, (m, d), and weights (m,): those that were seen, and draws from the best
    mixture in place of those that the region hid; None if these are too many."""
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
    hidden = 1.0 - np.asarray(rows.region.kept(jax.device_put(draws)), np.float64)
    hidden *= (population - size) / max(hidden.sum(), 1e-300)
    draws = (draws - np.asarray(coordinates.centre)) / np.asarray(coordinates.scale)
    return np.vstack([table, draws[hidden > 0]]), np.append(weights, hidden[hidden > 0])


def moved(at: Components) -> Iterator[Components]:
    """Mixtures in which two components are merged and a third one or the merged one is split, along
    its longest axis or into a narrow and a wide one."""
    k = len(at.weights)
    for i, j in itertools.combinations(range(k), 2):
        pair = [i, j]
        share = at.weights[pair].sum()
        parts = at.weights[pair] / share
        loc = parts @ at.locs[pair]
        gaps = at.locs[pair] - loc
        spread = np.einsum("k,kij->ij", parts, at.covariances[pair])
        spread = spread + np.einsum("k,ki,kj->ij", parts, gaps, gaps)
        merged = share, loc, spread
        for other in (None, *(c for c in range(k) if c not in pair)):
            rest = [tuple(part[c] for part in at) for c in range(k) if c not in (i, j, other)]
            whole = merged if other is None else tuple(part[other] for part in at)
            rest += [] if other is None else [merged]
            for halves in split(*whole):
                yield Components(*map(np.array, zip(*rest, *halves)))


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
    variance in some direction fell below the least; and their weights, means and covariances.

    Args:
        coordinates: with the structure of covariances.
        table: exact rows, (n, d), without a region.
        weights: how often each counts, (n,).
        begun: s mixtures.
        least: the smallest variance of each mixture, (s,).
        num_steps: the number of EM steps.
    """
    d, (i, j) = table.shape[1], np.tril_indices(table.shape[1])
    ones = np.ones((len(table), 1))
    features = np.hstack([ones, table, table[:, i] * table[:, j]])
    counted = weights[:, None] * features
    ends = [np.stack(parts) for parts in zip(*begun)]
    values, alive = np.full(len(begun), -np.inf), np.arange(len(begun))
    for step in range(num_steps + 1):
        shares, locs, matrices = (part[alive] for part in ends)
        numbers = np.where(np.isfinite(matrices), matrices, 0.0)
        wide = np.linalg.eigvalsh(numbers).min(axis=(1, 2)) > least[alive]
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
        logs = (features @ linear.reshape(s * k, -1).T).reshape(-1, s, k)
        top = logs.max(axis=2, keepdims=True)
        parts = np.exp(logs - top)
        total = parts.sum(axis=2, keepdims=True)
        values[alive] = weights @ (np.log(total) + top)[..., 0]
        if step == num_steps:
            break
        sums = (counted.T @ (parts / total).reshape(len(table), -1)).T.reshape(s, k, -1)
        counts = np.maximum(sums[..., 0], np.finfo(float).tiny)
        locs, products = sums[..., 1 : 1 + d] / counts[..., None], np.empty_like(matrices)
        products[..., i, j] = products[..., j, i] = sums[..., 1 + d :] / counts[..., None]
        spread = products - locs[..., :, None] * locs[..., None, :]
        allowed = np.array([coordinates.restricted(*each) for each in zip(counts, spread)])
        moved_ends = counts / counts.sum(axis=1, keepdims=True), locs, allowed
        for part, new in zip(ends, moved_ends):
            part[alive] = new
    return values, ends
