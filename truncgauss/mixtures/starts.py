"""Where the fit of a mixture begins: rows summed up, and k-means++ with several seeds.

References:
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (2007).
"""

import jax
import numpy as np

from truncgauss.likelihood import Observations
from truncgauss.mixtures.em import Components
from truncgauss.mixtures.likelihood import row_weights

LLOYD_STEPS = 10
SHRUNK = 0.2  # part of each first covariance that is the spread of all rows


def standard_rows(observations: Observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows (n, d) in units of their own centre (d,) and spread (d,), NaN where missing.

    An interval counts by its middle, a censored entry by its limit.

    Raises:
        ValueError: for an entry that no row has, or of which all are equal.
    """
    lower, upper = np.asarray(observations.lower), np.asarray(observations.upper)
    low = np.where(np.isfinite(lower), lower, upper)
    high = np.where(np.isfinite(upper), upper, lower)
    known = np.isfinite(low)
    table = np.where(known, 0.5 * np.where(known, low, 0.0) + 0.5 * np.where(known, high, 0.0), 0)
    weights = np.asarray(row_weights(observations, lower.dtype))[:, None] * known
    count = weights.sum(axis=0)
    if np.any(count == 0):
        raise ValueError(
            f"fit_mixture: no row has entry {int(np.argmin(count))}. Remove that column."
        )
    centre = (weights * table).sum(axis=0) / count
    scale = np.sqrt((weights * (table - centre) ** 2).sum(axis=0) / count)
    largest = np.abs(np.where(weights > 0, table, 0.0)).max(axis=0, initial=1e-300)
    flat = np.flatnonzero(~(scale > 1e-9 * largest))
    if len(flat):
        raise ValueError(
            f"fit_mixture: all rows have the same entry {flat[0]}, {centre[flat[0]]:.6g}, so that "
            "it has no spread to be fitted. Remove that column."
        )
    return np.where(known, (table - centre) / scale, np.nan), centre, scale


def seeded(
    table: np.ndarray, weights: np.ndarray, num_components: int, key: jax.Array
) -> Components:
    """A mixture around centres by k-means++, in the units of the table (n, d), NaN if missing."""
    n, d = table.shape
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    known, filled = ~np.isnan(table), np.nan_to_num(table)

    def squares(centre: np.ndarray) -> np.ndarray:
        gaps = np.where(known, filled - centre, 0.0)
        return (gaps**2).sum(axis=1) * d / np.maximum(known.sum(axis=1), 1)

    centres = [filled[rng.choice(n, p=weights / weights.sum())]]
    while len(centres) < num_components:
        nearest = np.min([squares(centre) for centre in centres], axis=0) * weights
        total = nearest.sum()
        chance = nearest / total if total > 0 else weights / weights.sum()
        centres.append(filled[rng.choice(n, p=chance)])
    locs = np.array(centres)
    for _ in range(LLOYD_STEPS):
        own = np.argmin([squares(centre) for centre in locs], axis=0)
        masses = weights[:, None] * known
        for k in range(num_components):
            mass = masses[own == k].sum(axis=0)
            sums = (masses * filled)[own == k].sum(axis=0)
            locs[k] = np.where(mass > 0, sums / np.where(mass > 0, mass, 1.0), locs[k])
    return grouped(np.where(known, table, locs[own]), weights, own, locs)


def grouped(
    table: np.ndarray, weights: np.ndarray, own: np.ndarray, locs: np.ndarray
) -> Components:
    """The mixture of groups of rows, their covariances drawn towards that of all rows."""
    k, d = locs.shape
    counts = np.array([weights[own == c].sum() for c in range(k)])
    gaps = table - locs[own]
    pooled = (weights[:, None] * gaps).T @ gaps / weights.sum() + 1e-3 * np.eye(d)
    matrices = []
    for c in range(k):
        part = gaps[own == c]
        mass = counts[c] + d + 1
        scatter = (weights[own == c, None] * part).T @ part + (d + 1) * pooled
        matrices.append((1 - SHRUNK) * scatter / mass + SHRUNK * pooled)
    share = counts + weights.sum() / (10 * k)
    return Components(share / share.sum(), locs, np.array(matrices))
