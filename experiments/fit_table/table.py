"""The rows of a table that are to be fitted, and what is known of them; without JAX."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from truncgauss import tables
from truncgauss.tables.known import KINDS


class Data(NamedTuple):
    """The rows to fit.

    Attributes:
        columns: what the settings name, by name, (n,).
        known: lower and upper, (n, d), and what else is said of the rows, as of
            `tables.arrays_of`, in logarithms where these are asked for.
        rows, incomplete, stray: numbers of the rows to fit, and of those that were left out, among
            the rows that were read, in ascending order.
        length: how many were read.
    """

    columns: dict[str, np.ndarray]
    known: dict[str, np.ndarray]
    rows: np.ndarray
    incomplete: np.ndarray
    stray: np.ndarray
    length: int


def read(config: Any) -> Data:
    """The rows of a table.

    Raises:
        ValueError: for a value that cannot be used, or a row that is left out only if so said.
    """
    numbers = list(dict.fromkeys(name for _, name in config.numbers()))
    texts = list(dict.fromkeys(name for _, name in config.texts()))
    covariates = {*config.covariates, *config.scale_covariates, *config.formula_numbers}
    missing = {name: (*config.missing, *([""] if name in covariates else [])) for name in numbers}
    columns = tables.from_file(
        config.data, numbers, config.where, text=texts, missing=missing,
        units_row=config.units_row,
    )  # fmt: skip
    length = len(next(iter(columns.values())))

    def place(row: int) -> str:
        return tables.location(config.data, row, config.where, units_row=config.units_row)

    gone = incomplete(config, columns, place)
    rows = np.flatnonzero(~gone)
    if not len(rows):
        raise ValueError(f"{config.data}: no row is complete.")
    columns = chosen(columns, rows)
    known = known_of(config, columns, lambda row: place(int(rows[row])))
    stray = strays(config, known, lambda row: place(int(rows[row])))
    if len(stray):
        columns = chosen(columns, np.delete(np.arange(len(rows)), stray))
        rows, stray = np.delete(rows, stray), rows[stray]
        known = known_of(config, columns, lambda row: place(int(rows[row])))
    return Data(columns, known, rows, np.flatnonzero(gone), stray, length)


def chosen(columns: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[rows] for name, column in columns.items()}


def incomplete(
    config: Any, columns: dict[str, np.ndarray], place: Callable[[int], str]
) -> np.ndarray:
    """Which rows lack a covariate, (n,).

    Raises:
        ValueError: there are such rows, and they are not to be dropped.
    """
    numbers = (*config.covariates, *config.scale_covariates, *config.formula_numbers)
    lacking = {name: np.isnan(columns[name]) for name in numbers}
    lacking |= {name: np.isin(columns[name], ["", *config.missing]) for name in config.categories}
    for name, absent in lacking.items():
        if absent.any() and config.incomplete_rows == "refuse":
            raise ValueError(
                f"covariate {name!r} is missing in {absent.sum()} of {len(absent)} rows, first "
                f"{place(int(np.flatnonzero(absent)[0]))}. Only outcomes may be missing: complete "
                "these rows, leave the covariate out, or say `incomplete_rows: drop`, which is "
                "right where a covariate is not missing because of the outcome."
            )
    nowhere = np.zeros(len(next(iter(columns.values()))), bool)
    return np.any([nowhere, *lacking.values()], axis=0)


def known_of(
    config: Any, columns: dict[str, np.ndarray], place: Callable[[int], str]
) -> dict[str, np.ndarray]:
    """What the table says of the outcomes."""
    names, given = list(config.outcomes), {}
    for key in KINDS:
        values = {name: getattr(entry, key) for name, entry in config.outcomes.items()}
        given[key] = {name: value for name, value in values.items() if value is not None}
    if config.censoring == "text":
        columns = columns | {
            name: np.where(np.isin(columns[name], config.missing), "", columns[name])
            for name in config.by_text
        }
    return tables.arrays_of(
        columns, names, given, missing=bool(config.missing),
        censoring=config.censoring, weights=config.weights or None, location=place,
        log=[name for name, entry in config.outcomes.items() if entry.log],
    )  # fmt: skip


def strays(config: Any, known: dict[str, np.ndarray], place: Callable[[int], str]) -> np.ndarray:
    """The numbers of observations outside of their bounds of truncation.

    Raises:
        ValueError: there are such rows, and they are not to be dropped.
    """
    if "low" not in known:
        return np.zeros(0, int)
    lower, upper = known["lower"], known["upper"]
    low, high = (np.broadcast_to(known[side], lower.shape) for side in ("low", "high"))
    stray = np.flatnonzero(((lower > high) | (upper < low)).any(axis=1))
    if len(stray) and config.stray_rows == "refuse":
        first = stray[0]
        raise ValueError(
            f"{len(stray)} of {len(lower)} observations lie outside of their bounds of truncation, "
            f"first {place(int(first))}: {lower[first]} to {upper[first]}, but observed only from "
            f"{low[first]} to {high[first]}. Truncated means that there are no such values; those "
            "that are recorded at a bound are censored, by censored_low or censored_high. Correct "
            "the bounds or the values, or say `stray_rows: drop`."
        )
    return stray
