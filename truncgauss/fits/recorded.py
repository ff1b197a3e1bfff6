"""Outcomes as they are recorded: their ends beyond limits of censoring, and words on them."""

from collections.abc import Iterable

import numpy as np

from truncgauss.fitting.existence import COMPARED


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
            f"{wrong[0]} they are {low[wrong[0]]} and {high[wrong[0]]}. Exchange "
            "them, or correct them."
        )
    below, above = upper <= low, lower >= high
    upper, lower = np.where(below, low, upper), np.where(above, high, lower)
    return np.where(below, -np.inf, lower), np.where(above, np.inf, upper)


def beyond_alone(
    lower: np.ndarray, upper: np.ndarray, limits: Iterable[np.ndarray]
) -> tuple[str, ...]:
    """Notes on exact outcomes, by their ends (n,), which lie beyond a limit of censoring, (n,), and
    none at it, as where those are logarithms and their limit is none."""
    notes, exact = [], lower == upper
    sides = ("low", "below", np.less), ("high", "above", np.greater)
    for limit, (word, where, beyond) in zip(limits, sides):
        out = exact & beyond(lower, limit)
        if out.any() and not np.any(lower == limit):
            least, most = limit[out].min(), limit[out].max()
            bound = f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"
            notes.append(
                f"{out.sum()} of {len(out)} outcomes lie {where} censored_{word}={bound}, none at "
                f"it. {COMPARED.format('Limits')}"
            )
    return tuple(notes)


def recorded_from(lower: np.ndarray, upper: np.ndarray, name: str = "") -> str:
    """Words on the numbers that stand for outcomes, by their ends (n,), in a sentence on limits."""
    known = lower[lower == upper]
    if not len(known):
        return ""
    least, most = known.min(), known.max()
    ends = f"from {least:.6g} to {most:.6g}" if least < most else f"{least:.6g} in every row"
    return f", where {name or 'the outcome'} is {ends}"
