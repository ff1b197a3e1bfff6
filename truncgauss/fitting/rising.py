"""Where the likelihood of observed rows rises for ever, by their limits and regions."""

import numpy as np

from truncgauss.fitting.existence import inside_regions, rising_direction
from truncgauss.fitting.regression_loss import impossible_rows, is_simple, limits_of
from truncgauss.likelihood import Observations
from truncgauss.optimization.descent import WIDEST

ENDLESS = (
    "There is no maximum: the likelihood grows as the Gaussian widens, already to "
    f"{WIDEST:.0f} times the spread of its rows."
)
SPREAD_OUT = (
    " Inside their regions they look as spread as an exponential or uniform distribution: use "
    "wider regions, more rows, or a prior."
)


def endless(rows: Observations) -> str:
    """That the likelihood grows as the Gaussian widens, in words."""
    return ENDLESS + (" Use more rows, or a prior." if rows.region is None else SPREAD_OUT)


def impossible(rows: Observations) -> np.ndarray:
    """Numbers of the rows of one outcome that count, but lie outside their regions."""
    wrong = impossible_rows(rows)
    return wrong if rows.weights is None else wrong[np.asarray(rows.weights)[wrong] > 0]


def direction_of(
    rows: Observations, outcome: int, design: np.ndarray, scale_known: bool
) -> np.ndarray | None:
    """See `rising_direction`: for one outcome (a number from 0 on) of rows of positive weight.

    None for several outcomes with regions, of which nothing is known.
    """
    counted = slice(None) if rows.weights is None else np.asarray(rows.weights) > 0
    lower, upper = (np.asarray(side)[:, outcome] for side in (rows.lower, rows.upper))
    if rows.region is not None:
        if rows.dimension > 1:
            return None
        if is_simple(rows):
            lower, upper = inside_regions(*limits_of(rows))
        else:  # what other regions leave of censored rows as sigma falls is not known
            scale_known |= bool(np.any(lower != upper))
    return rising_direction(lower[counted], upper[counted], design[counted], scale_known)
