"""Starts of the fit of a mixture: rows summed up, and k-means++ with several seeds.

Sums are over the rows of all processes, and a row is drawn from all of them, whichever has it.

References:
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (2007).
"""

import jax
import numpy as np

from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.centring import check_units
from truncgauss.fitting.gaussian_starts import middles
from truncgauss.fitting.mixtures.em import Components
from truncgauss.fitting.mixtures.likelihood import row_weights
from truncgauss.likelihood import Observations

LLOYD_STEPS = 10
SMALLEST, LARGEST = 1e-150, 1e150  # spreads whose squares are numbers in float64
SHRUNK = 0.2  # part of each first covariance that is the spread of all rows


def standard_rows(
    observations: Observations, sums: RowSums
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows (n, d) in units of their own centre (d,) and spread (d,), NaN where missing.

    An interval counts by its middle, a censored entry by its limit.

    Raises:
        ValueError: for an entry that no row has, or of which all are equal.
    """
    lower, upper = np.asarray(observations.lower), np.asarray(observations.upper)
    known, table = np.isfinite(lower) | np.isfinite(upper), middles(lower, upper)
    weights = np.asarray(row_weights(observations, lower.dtype))[:, None] * known
    count, middle = sums.sum((weights.sum(axis=0), (weights * table).sum(axis=0)))
    if np.any(count == 0):
        raise ValueError(
            f"fit_mixture: no row has entry {int(np.argmin(count))}. Remove that column."
        )
    centre = middle / count
    local = np.abs(np.where(weights > 0, table, 0.0)).max(axis=0, initial=1e-300)
    largest = sums.max(local)
    gaps = np.where(weights > 0, (table - centre) / largest, 0.0)  # whose squares are numbers
    scale = largest * np.sqrt(sums.sum((weights * gaps**2).sum(axis=0)) / count)
    flat = np.flatnonzero(~(scale > 1e-9 * largest))
    exact = sums.sum(((lower == upper) & (weights > 0)).sum(axis=0))
    if len(flat) and not exact[flat[0]]:
        raise ValueError(
            f"fit_mixture: no row knows entry {observations.labels[flat[0]]} exactly, and all have "
            f"the same limit or interval, about {centre[flat[0]]:.6g}: they tell neither its mean "
            "nor its spread. Add rows that are not censored there, or leave that entry out."
        )
    if len(flat):
        raise ValueError(
            f"fit_mixture: all rows have the same entry {flat[0]}, {centre[flat[0]]:.6g}, so that "
            "it has no spread to be fitted. Remove that column."
        )
    check_units(scale, SMALLEST, LARGEST, observations.labels, "fit_mixture")
    return np.where(known, (table - centre) / scale, np.nan), centre, scale


def seeded(
    table: np.ndarray, weights: np.ndarray, num_components: int, key: jax.Array, sums: RowSums
) -> Components:
    """A mixture around centres by k-means++, in the units of the table (n, d), NaN if missing."""
    d = table.shape[1]
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    known, filled = ~np.isnan(table), np.nan_to_num(table)

    def squares(centre: np.ndarray) -> np.ndarray:
        gaps = np.where(known, filled - centre, 0.0)
        return (gaps**2).sum(axis=1) * d / np.maximum(known.sum(axis=1), 1)

    centres = [drawn(filled, weights, rng.random(), sums)]
    while len(centres) < num_components:
        nearest = np.min([squares(centre) for centre in centres], axis=0) * weights
        chance = nearest if sums.any(nearest.sum() > 0) else weights
        centres.append(drawn(filled, chance, rng.random(), sums))
    locs = np.array(centres)
    for _ in range(LLOYD_STEPS):
        labels = np.argmin([squares(centre) for centre in locs], axis=0)
        masses = weights[:, None] * known
        groups = [labels == k for k in range(num_components)]
        parts = [
            [part[group].sum(axis=0) for group in groups] for part in (masses, masses * filled)
        ]
        mass, totals = sums.sum(np.array(parts))
        locs = np.where(mass > 0, totals / np.where(mass > 0, mass, 1.0), locs)
    return grouped(np.where(known, table, locs[labels]), weights, labels, locs, sums)


def grouped(
    table: np.ndarray, weights: np.ndarray, labels: np.ndarray, locs: np.ndarray, sums: RowSums
) -> Components:
    """The mixture of groups of rows, their covariances drawn towards that of all rows."""
    k, d = locs.shape
    gaps, groups = table - locs[labels], [labels == c for c in range(k)]
    counts = np.array([weights[group].sum() for group in groups])
    squares = np.array([(weights[group, None] * gaps[group]).T @ gaps[group] for group in groups])
    counts, squares = sums.sum((counts, squares))
    whole = squares.sum(axis=0) / counts.sum() + 1e-3 * np.eye(d)
    scatter = (squares + (d + 1) * whole) / (counts + d + 1)[:, None, None]
    share = counts + counts.sum() / (10 * k)
    return Components(share / share.sum(), locs, (1 - SHRUNK) * scatter + SHRUNK * whole)


def drawn(rows: np.ndarray, weights: np.ndarray, uniform: float, sums: RowSums) -> np.ndarray:
    """The row at which the sum of weights (n,), over those before it, passes a part of the whole.

    The rows of all processes have the order of these, so that the row is the same however they are
    divided.
    """
    below = np.cumsum(weights)
    totals = sums.concatenate(below[-1:])
    before = np.concatenate([[0.0], np.cumsum(totals)])
    holder = min(
        int(np.searchsorted(before[1:], uniform * before[-1], side="right")), len(totals) - 1
    )
    at = np.searchsorted(below, uniform * before[-1] - before[holder], side="right")
    last = np.flatnonzero(weights).max(initial=0)  # beyond it only by rounding
    return np.asarray(sums.concatenate(rows[min(at, last)][None])[holder])
