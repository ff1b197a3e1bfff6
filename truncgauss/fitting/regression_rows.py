"""The checked rows of a regression of one outcome, and what else is known of them."""

from typing import Any, NamedTuple

import numpy as np

from truncgauss.execution import tables
from truncgauss.execution.pytrees import as_float_array, refuse_text
from truncgauss.fitting.expected import NOT_EXPECTED
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import Observations


class RegressionRows(NamedTuple):
    """What is known of the rows.

    Attributes:
        observations: the rows.
        censoring: limits (2, n) at or below which, and at or above which, no value is seen.
        exact: whether all values were given as numbers, none as an interval.
    """

    observations: Observations
    censoring: np.ndarray
    exact: bool


Checked = tuple[RegressionRows, tables.Table, tables.Table | None]


class Columns(NamedTuple):
    """What is known of the rows; arguments of `fit_regression`."""

    outcome: Any
    limits: tuple[Any, ...]
    noise: Any
    weights: Any
    design: Any
    scale_design: Any

    def checked(self, information: str) -> Checked:
        """The rows, the covariates, and those of the log scale."""
        ends = columns_of(self.outcome, "outcome")
        known = as_rows(ends, self.limits, self.noise, self.weights)
        if information == "expected" and not known.exact:
            raise ValueError(NOT_EXPECTED.format("fit_regression", ", or censored by limits"))
        scales = self.scale_design
        return (
            known,
            columns_of(self.design, "design", ends),
            None if scales is None else columns_of(scales, "scale_design", ends),
        )


def columns_of(given: Any, word: str, ends: tables.Table | None = None) -> tables.Table:
    """A table of numbers (n, k), whose rows have the labels of the outcomes, if any."""
    table = tables.read(given, what=f"fit_regression: {word}")
    if ends is not None:
        tables.check_labels(given, ends, f"fit_regression: {word}")
    if table.values.ndim == 1:
        table = table._replace(values=table.values[:, None])
    return table


def as_rows(
    ends: tables.Table, limits: tuple[Any, ...], noise: Any, weights: Any
) -> RegressionRows:
    """The observations of outcomes, (n, 1) or (n, 2), and their limits, checked."""
    if ends.values.shape[1] > 2:
        raise ValueError(
            "fit_regression: outcome must have shape (n,), or (n, 2) for the ends of intervals, "
            f"got {ends.values.shape}."
        )
    lower, upper = ends.values[:, 0].copy(), ends.values[:, -1].copy()
    exact = bool(np.all(lower == upper))
    words = "censored_low", "censored_high", "truncated_low", "truncated_high"
    sides = [
        of_each_row(given, ends, word, np.inf if word.endswith("high") else -np.inf)
        for word, given in zip(words, limits)
    ]
    wrong = np.flatnonzero(sides[0] >= sides[1])
    if len(wrong):
        raise ValueError(
            "fit_regression: censored_low must lie below censored_high, but in row "
            f"{wrong[0]} they are {sides[0][wrong[0]]} and {sides[1][wrong[0]]}."
        )
    low, high = upper <= sides[0], lower >= sides[1]
    upper = np.where(low, sides[0], upper)
    lower = np.where(high, sides[1], lower)
    lower, upper = np.where(low, -np.inf, lower), np.where(high, np.inf, upper)
    truncated = limits[2] is not None or limits[3] is not None
    region = Box(sides[2][:, None], sides[3][:, None]) if truncated else None
    settings: dict[str, Any] = {}
    if noise is not None:
        settings["noise"] = of_each_row(noise, ends, "noise", 0.0)[:, None, None]
    if weights is not None:
        settings["weights"] = of_each_row(weights, ends, "weights", 1.0)
    below, above = as_float_array(lower[:, None]), as_float_array(upper[:, None])
    observations = Observations(below, above, region, **settings)
    return RegressionRows(observations, np.stack(sides[:2]), exact)


def of_each_row(given: Any, ends: tables.Table, word: str, default: float) -> np.ndarray:
    """A number for each row (n,), from one number, (n,) or None."""
    n = len(ends.values)
    if given is None or np.ndim(given) == 0:
        refuse_text(given, f"fit_regression: {word}")
        return np.full(n, default if given is None else float(given))
    values = tables.row_values(given, ends, f"fit_regression: {word}")
    if values.shape != (n,):
        raise ValueError(
            f"fit_regression: {word} must be a number or have shape ({n},), got {values.shape}."
        )
    return values


def names_of(table: tables.Table, word: str, nested: bool = False) -> tuple[str, ...]:
    """What to call the coefficients of a table's columns."""
    if table.names is None:
        return tuple(f"{word}[{i}]" for i in range(table.values.shape[1]))
    return tuple(f"{word}[{name}]" if nested else str(name) for name in table.names)
