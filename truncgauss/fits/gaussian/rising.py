"""Directions in which the likelihood of rows rises for ever, by their limits and regions."""

from typing import cast

import numpy as np

from truncgauss.arrays.pytrees import as_float_array
from truncgauss.fitting.existence import clearly_bounded, rising_direction
from truncgauss.fitting.widening import WIDEST
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.observations import Observations

ENDLESS = (
    "There is no maximum: the likelihood grows as the Gaussian widens, already to "
    f"{WIDEST:.0f} times the spread of its observations."
)
FEW = " Use more observations, or a prior in NumPyro."
SPREAD_OUT = (
    " Inside their regions they look as spread as an exponential or uniform distribution: use "
    "wider regions, more observations, or a prior in NumPyro."
)


def endless(rows: Observations) -> str:
    """The sentence that the likelihood grows as the Gaussian widens."""
    return ENDLESS + (FEW if rows.region is None else SPREAD_OUT)


def impossible(rows: Observations) -> np.ndarray:
    """Numbers of the rows that count, but lie outside their boxes."""
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    low, high = (np.asarray(side) for side in rows.region_limits(np)[:2])
    exact, missing = lower == upper, np.isneginf(lower) & np.isposinf(upper)
    beyond = exact & ((lower < low) | (upper > high))
    apart = ~exact & ~missing & (np.maximum(lower, low) >= np.minimum(upper, high))
    counted = rows.row_weights > 0
    return np.flatnonzero((beyond | apart).any(axis=1) & counted)


def direction_of(
    rows: Observations, outcome: int, design: np.ndarray, scale_known: bool, alone: bool
) -> np.ndarray | None:
    """See `rising_direction`: for one outcome (a number from 0 on) of rows of positive weight.

    None for an outcome that a region limits along with others, unless it is exact wherever it is
    known: as its sigma falls to 0, independently of the others, the density of rows on a line grows
    beyond all bounds, and the probability of the region, which divides it, is 1 at most.

    Args:
        rows: the observations.
        outcome: its number.
        design: its covariates, (n, p).
        scale_known: whether its sigma cannot fall to 0.
        alone: whether it is independent of all others.
    """
    counted = slice(None) if rows.weights is None else np.asarray(rows.weights) > 0
    lower, upper = (np.asarray(side)[:, outcome] for side in (rows.lower, rows.upper))
    single = one_outcome(rows, outcome)
    if single is not None and (alone or rows.dimension == 1):
        # A row that is seen inside its region only is certain as sigma falls to 0 with no limit
        # of its own on the side where its interval reaches as far as the region.
        lower, upper, low, high = single.univariate_limits()
        exact = lower == upper
        lower = np.where(exact | (lower > low), lower, -np.inf)
        upper = np.where(exact | (upper < high), upper, np.inf)
    elif rows.region is not None and (
        single is None or not all(np.isinf(side).all() for side in single.univariate_limits()[2:])
    ):
        limited = (lower != upper) & (np.isfinite(lower) | np.isfinite(upper))
        # What other regions leave of censored rows as sigma falls is not known.
        scale_known |= bool(limited[counted].any())
        if rows.dimension > 1 and scale_known:
            return None
    rows_of = lower[counted], upper[counted], design[counted], scale_known
    return None if clearly_bounded(*rows_of) else rising_direction(*rows_of)


def one_outcome(rows: Observations, outcome: int) -> Observations | None:
    """The rows of one outcome and its own limits; None if its region is none of its own."""
    if not rows.has_limits_alone:
        return None
    if rows.dimension == 1:
        return rows
    column, region = slice(outcome, outcome + 1), cast(Box | None, rows.region)
    if region is not None:
        region = Box(*(np.asarray(side)[..., column] for side in (region.low, region.high)))
    sides = (np.asarray(side)[:, column] for side in (rows.lower, rows.upper))
    lower, upper = map(as_float_array, sides)
    return Observations(lower, upper, region)
