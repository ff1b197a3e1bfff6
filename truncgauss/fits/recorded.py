"""Outcomes as they are recorded: their ends beyond limits of censoring, and words on them."""

import numpy as np


def censored_ends(
    lower: np.ndarray, upper: np.ndarray, low: np.ndarray, high: np.ndarray, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of outcomes, open where these lie beyond a limit of censoring, all (n,).

    Raises:
        ValueError: for limits that contradict each other.
    """
    wrong = np.flatnonzero(low >= high)
    if len(wrong):
        raise ValueError(
            f"{what}: censored_low must lie below censored_high, but in row "
            f"{wrong[0]} they are {low[wrong[0]]} and {high[wrong[0]]}."
        )
    below, above = upper <= low, lower >= high
    upper, lower = np.where(below, low, upper), np.where(above, high, lower)
    return np.where(below, -np.inf, lower), np.where(above, np.inf, upper)


def recorded_from(lower: np.ndarray, upper: np.ndarray, name: str = "") -> str:
    """Words on the numbers that stand for outcomes, by their ends (n,), in a sentence on limits."""
    known = lower[lower == upper]
    if not len(known):
        return ""
    least, most = known.min(), known.max()
    ends = f"from {least:.6g} to {most:.6g}" if least < most else f"{least:.6g} in every row"
    return f", where {name or 'the outcome'} is {ends}"
