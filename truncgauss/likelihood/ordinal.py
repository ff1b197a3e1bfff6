"""Ordered categories: latent normal variables seen through limits that are parameters."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import ndtri

from truncgauss import tables
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.words.numbers import is_missing_cell

LEFT_OUT = "{} of {} observations lack a category and were left out."
UNUSED = "Levels of {} that never occur have no thresholds: {}."


@frozen_pytree
class Ordinal:
    r"""Ordered categories, as intervals of a latent normal variable whose limits are estimated.

    Level number j is observed where :math:`\tau_{j-1} < x \leq \tau_j`; with two levels the
    variable is binary. The variance of x given its covariates is 1: the categories do not tell it.

    Args:
        codes: shape (n,), numbers, booleans or texts; NaN or None where the category is missing.
            Afterwards the number of each row's level, from 0, and -1 where it is missing.
        levels: the categories in their order; or how many, of codes 0, 1, ... By default the
            numbers that occur, or the categories of an ordered column of pandas or an Enum of
            polars (static).
        name: by default that of a labelled column (static).
        index: labels of the rows, by default those of a labelled column (static).

    Raises:
        ValueError: for texts without levels, numbers that are not whole without levels, a code that
            is no level, or no code at all.

    Example:
        >>> tg.Ordinal(["low", "high", None, "low"], ["low", "medium", "high"]).codes
        array([ 0,  2, -1,  0])
    """

    codes: np.ndarray
    levels: tuple[Any, ...] = static_field(default=None)
    name: str | None = static_field(default=None)
    index: tables.RowLabels | None = static_field(default=None)

    def __post_init__(self) -> None:
        shape = np.shape(self.codes)
        if len(shape) != 1:
            raise ValueError(
                f"Ordinal: codes must be one column, of shape (n,), got shape {shape}. Of several "
                "outcomes make one tg.Ordinal each, and tg.Observations.of([...]) of them."
            )
        if isinstance(self.levels, str):
            raise TypeError(
                f"Ordinal: levels must be a list of all categories in their order, got the text "
                f"{self.levels!r}."
            )
        levels = levels_of(self.codes, self.levels)
        if not levels or len(set(levels)) < len(levels):
            raise ValueError(f"Ordinal: levels must be different, and at least one; got {levels}.")
        codes = self.numbered(levels)
        if not len(codes) or codes.max() < 0:
            raise ValueError("Ordinal: no row has a category.")
        name = self.name if self.name is not None else getattr(self.codes, "name", None)
        index = tables.labels_of(self.codes) if self.index is None else tables.as_labels(self.index)
        for field, value in zip(("codes", "levels", "name", "index"), (codes, levels, name, index)):
            object.__setattr__(self, field, value)

    def numbered(self, levels: tuple[Any, ...]) -> np.ndarray:
        """The number of each row's level, -1 where it is missing."""
        declared = tables.categories_of(self.codes)
        if self.levels is None and not (declared is not None and declared[1]):
            values = whole_numbers(self.codes)
            return np.where(np.isnan(values), -1, np.searchsorted(levels, values))
        numbers, values = (
            {level: number for number, level in enumerate(levels)},
            as_list(self.codes),
        )
        codes = np.array([numbers.get(v, -1 if is_missing_cell(v) else -2) for v in values])
        wrong = np.flatnonzero(codes == -2)
        if len(wrong):
            raise ValueError(
                f"Ordinal: {values[wrong[0]]!r} in row {wrong[0]} is none of the levels "
                f"{list(levels)[:10]}. Name it there, or give NaN for a missing category."
            )
        return codes

    def used(
        self, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, tuple[Any, ...], tuple[Any, ...]]:
        """Codes among the levels that occur in rows that count, (n,); these levels; and those that
        never occur, which have no limits."""
        seen = self.codes >= 0
        counts = None if weights is None else weights[seen]
        occur = np.bincount(self.codes[seen], counts, minlength=len(self.levels)) > 0
        codes = np.append(np.where(occur, np.cumsum(occur) - 1, -1), -1)[self.codes]
        used = tuple(level for level, seen in zip(self.levels, occur) if seen)
        return codes, used, tuple(level for level, seen in zip(self.levels, occur) if not seen)

    def at_rows(self, positions: np.ndarray) -> "Ordinal":
        """The rows at these positions, without labels."""
        rows = copy.copy(self)
        object.__setattr__(rows, "codes", self.codes[positions])
        object.__setattr__(rows, "index", None)
        return rows


@dataclasses.dataclass(frozen=True)
class LatentRows:
    """Rows of d latent outcomes of which some are observed as ordered categories: what
    `tg.Observations.of` returns for entries that hold a `tg.Ordinal`.

    Attributes:
        codes: the number of the level among those that occur, (n, d); -1 where an entry is missing
            or not ordered.
        levels: of each entry, those that occur; none if it is not ordered.
        unused: those that do not.
        observations: the rows, with limits of the categories from their shares.
    """

    codes: np.ndarray
    levels: tuple[tuple[Any, ...], ...]
    unused: tuple[tuple[Any, ...], ...]
    observations: Any

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the entries."""
        labels: tuple[str, ...] = self.observations.labels
        return labels

    @property
    def index(self) -> tables.RowLabels | None:
        """Labels of the rows, if they have some."""
        index: tables.RowLabels | None = self.observations.index
        return index

    def between(self, cuts: Any, xp: Any = np) -> tuple[Any, Any]:
        """Lower and upper limits (n, d), those of ordered entries by their cuts, d arrays."""
        known = xp.asarray(self.observations.lower), xp.asarray(self.observations.upper)
        columns = [
            between_cuts(self.codes[:, j], cut, known[0][:, j], known[1][:, j], xp)
            for j, cut in enumerate(cuts)
        ]
        lower, upper = (xp.stack(side, axis=1) for side in zip(*columns))
        return lower, upper


def between_cuts(codes: Any, cuts: Any, lower: Any, upper: Any, xp: Any = np) -> tuple[Any, Any]:
    """Lower and upper limits of levels by the cuts between them, and others where a code is -1."""
    ends = xp.concatenate([xp.zeros(1), cuts, xp.zeros(1)])

    def limits(side: int, end: Any) -> Any:
        # By a sum, as the derivative of ends[codes + side] adds one number after the other; not by
        # a product, in which a cut that is NaN or infinite would reach the rows of the others.
        number = codes + side
        chosen = xp.where(number[..., None] == np.arange(len(ends)), ends, 0.0).sum(-1)
        below, above = xp.where(number == 0, -xp.inf, chosen), number == len(ends) - 1
        return xp.where(codes < 0, end, xp.where(above, xp.inf, below))

    return limits(0, lower), limits(1, upper)


def entries_of(entries: Any, weights: Any = None) -> tuple[list[Any], tuple[str, ...]]:
    """Codes, lower and upper limits, (n, d) each, levels that occur and those that do not of mixed
    entries whose rows count as often as their weights say; and names."""
    entries = [entries] if isinstance(entries, Ordinal) else entries
    named = isinstance(entries, Mapping)
    columns = list(entries.values() if named else entries)
    labels = list(entries) if named else [getattr(x, "name", None) for x in columns]
    # A Series of polars without a name has an empty one.
    names = tuple(str(j if name in (None, "") else name) for j, name in enumerate(labels))
    parts = [entry_of(column, name, weights) for column, name in zip(columns, names)]
    lengths = [len(part[0]) for part in parts]
    if len(set(lengths)) != 1 or len(set(names)) < len(names):
        raise ValueError(
            "Observations.of: entries must have as many rows and different names, got "
            f"{lengths} rows of {list(names)}."
        )
    arrays = [np.stack([part[k] for part in parts], axis=1) for k in range(3)]
    return [*arrays, *(tuple(part[k] for part in parts) for k in (3, 4))], names


def limits_of(counts: np.ndarray) -> np.ndarray:
    """Limits of categories by their counts, along the last axis."""
    below = np.cumsum(counts, axis=-1)
    return np.asarray(ndtri(below[..., :-1] / below[..., -1:]))


def entry_of(column: Any, name: str, weights: Any = None) -> tuple[Any, ...]:
    """Codes, lower and upper limits, (n,), levels that occur, and those that do not."""
    if isinstance(column, Ordinal):
        count = np.shape(weights) == column.codes.shape  # others are refused later
        codes, used, unused = column.used(np.asarray(weights, float) if count else None)
        if len(used) < 2:
            raise ValueError(f"Observations.of: {name} is constant; leave it out.")
        everywhere = np.full(len(codes), np.inf)
        return codes, -everywhere, everywhere, used, unused
    what = f"Observations.of: {name}"
    pair = column if isinstance(column, tuple) and len(column) == 2 else (column, column)
    lower, upper = (tables.numbers(side, what, missing=True) for side in pair)
    lower, upper = (
        np.where(np.isnan(lower), -np.inf, lower),
        np.where(np.isnan(upper), np.inf, upper),
    )
    if lower.shape != upper.shape or np.any(lower > upper):
        raise ValueError(f"{what}: a lower bound exceeds the upper one, or their lengths differ.")
    return np.full(len(lower), -1), lower, upper, (), ()


def levels_of(codes: Any, levels: Any) -> tuple[Any, ...]:
    """The categories in their order: those stated, or the numbers that occur."""
    declared = tables.categories_of(codes)
    if levels is None and declared is not None and declared[1]:
        return tuple(declared[0])
    if isinstance(levels, int | np.integer) and not isinstance(levels, bool):
        return tuple(range(int(levels)))
    if levels is not None:
        return tuple(levels)
    values = whole_numbers(codes)
    return tuple(int(value) for value in np.unique(values[~np.isnan(values)]))


def as_list(values: Any) -> list[Any]:
    """The entries of a column, as Python's numbers and texts."""
    if isinstance(values, np.ma.MaskedArray):
        return list(values.tolist())
    array = values if isinstance(values, list | tuple) else np.asarray(values).tolist()
    return list(array)


def whole_numbers(values: Any) -> np.ndarray:
    """A column as floats that are whole, NaN where it is missing."""
    array = np.asarray(values)
    if array.dtype.kind in "OUS" and any(isinstance(v, str) for v in array.ravel().tolist()):
        raise ValueError(
            "Ordinal: texts have no order by themselves: give tg.Ordinal(column, levels=[...]), or "
            "an ordered column of pandas."
        )
    column = np.ma.filled(np.ma.asarray(values).astype(float), np.nan)
    if array.dtype.kind != "b" and not isinstance(values, np.ma.MaskedArray):
        column = tables.numbers(values, "Ordinal: codes", missing=True)
    if not is_whole(column):
        odd = next(x for x in column if not is_whole(np.array([x])))
        raise ValueError(
            f"Ordinal: codes of categories are whole numbers, got {odd:g}. Give levels=[...] if "
            "these are categories; numbers that are measured are exact outcomes without tg.Ordinal."
        )
    return column


def is_whole(values: np.ndarray) -> bool:
    """Whether all numbers, NaN apart, are whole."""
    seen = values[~np.isnan(values)]
    return bool(np.all(np.isfinite(seen) & (seen == np.round(seen))))
