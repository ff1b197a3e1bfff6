"""Rows of a table that are known in part: intervals, regions, noise and weights, by name."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from truncgauss.arrays.alignment import in_order, labels_of
from truncgauss.tables.censoring import advice, misspelt, recorded
from truncgauss.tables.columns import (
    BOUNDS,
    chosen,
    each_row,
    named_columns,
    numbers,
    refuse_booleans,
)
from truncgauss.words.names import listed
from truncgauss.words.numbers import ABSENT

CENSORING = ("columns", "text")
KINDS = (
    "lower", "upper", "censored_low", "censored_high", "left_censored", "right_censored",
    "truncated_low", "truncated_high", "noise_scale", "not_detected",
)  # fmt: skip
"""Kinds of knowledge of an entry; see `Observations.from_table`."""


class Reader:
    """The columns of one table, read when they are needed, and what is known of its entries by kind
    and name; a value that is no mapping belongs to all."""

    def __init__(
        self,
        table: Any,
        names: Sequence[Hashable],
        known: Mapping[str, Any],
        missing: bool,
        by_text: bool,
        location: Callable[[int], str],
    ) -> None:
        named = named_columns(table)
        if named is None:
            raise ValueError(
                "from_table: needs a table with column names, such as a DataFrame or a dictionary "
                f"of columns; got {type(table).__name__}. For arrays use tg.Observations itself."
            )
        self.columns, self.labels = named, labels_of(table)
        self.num_rows = max((np.shape(x)[0] for x in named.values() if np.ndim(x)), default=0)
        self.missing, self.by_text, self.location = missing, by_text, location
        self.known: dict[str, dict[Hashable, Any]] = {kind: {} for kind in KINDS}
        for kind, value in known.items():
            if value is not None:
                of_all = dict.fromkeys(names, value)
                self.known[kind] = dict(value if isinstance(value, Mapping) else of_all)
            for name in self.known[kind]:
                if name not in names:
                    raise ValueError(
                        f"from_table: {kind} names {name!r}, but the entries are "
                        f"{listed(names, name, quoted=True)}"
                    )

    def column_or_number(self, column: Any, kind: str, missing: bool = False) -> np.ndarray:
        """A number as it is; anything else as `column_of` has it."""
        number = isinstance(column, int | float | np.number) and not isinstance(column, bool)
        if number or (np.shape(column) == () and np.asarray(column).dtype.kind in "iuf"):
            return np.asarray(column, np.float64)
        return self.column_of(column, kind, missing)

    def column_of(self, column: Any, kind: str, missing: bool = False) -> np.ndarray:
        """The numbers (n,) of a column of the table, by its name, or of one beside it."""
        column, what = self.by_name_or_beside(column, kind)
        if missing:
            return numbers(column, what, missing)
        return each_row(column, self.num_rows, what, kind=kind)

    def by_name_or_beside(self, column: Any, kind: str) -> tuple[Any, str]:
        """A column of the table, by its name, or one beside it in its order, and what it is."""
        if isinstance(column, str) and column not in self.columns and misspelt(column):
            raise ValueError(
                f"from_table: {kind} must be a number, or the name of a column, got {column!r}. "
                f"{misspelt(column)}"
            )
        if np.ndim(column) == 0 or isinstance(column, tuple):
            return chosen(self.columns, column, "from_table"), f"from_table: column {column!r}"
        what = f"from_table: {kind}"
        return in_order(column, self.labels, what, "the table"), what

    def marked(self, marked: Any, kind: str) -> np.ndarray:
        """A mask of the rows whose column holds a mark, from a pair (column, mark)."""
        if not isinstance(marked, tuple | list) or len(marked) != 2:
            raise ValueError(
                f"from_table: {kind} wants (column, mark), such as ('detected', 0); got {marked!r}."
            )
        column, mark = marked
        column, what = self.by_name_or_beside(column, kind)
        if isinstance(mark, str):
            cells = np.asarray([str(value) for value in np.asarray(column)])
        else:
            cells = numbers(column, what, False)
        if len(cells) != self.num_rows:
            raise ValueError(f"{what} needs {self.num_rows} values, one a row, got {len(cells)}.")
        rows = cells == mark
        if not rows.any():
            held = ", ".join(str(cell) for cell in np.unique(cells)[:6])
            of = what.removeprefix("from_table: ")
            raise ValueError(f"from_table: {kind}: no cell of {of} is {mark!r}; it holds: {held}.")
        return np.asarray(rows)

    def recorded_in(
        self, column: Any, lowest: np.ndarray | None, where: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The numbers of a column of texts such as 0.7, <0.5, >100, 0.5 U and nd, for which the
        lowest one that can be detected stands, NaN where it is empty; and whether each is a limit
        that the value is known to be at most, or at least, all (n,)."""
        if isinstance(column, np.ma.MaskedArray):
            column = np.ma.filled(column.astype(object), "")  # whatever stands behind the mask
        texts = [str(cell).strip() for cell in np.asarray(column, object)]
        value, (at_most, at_least) = np.full(len(texts), np.nan), np.zeros((2, len(texts)), bool)
        limits = None if lowest is None else np.broadcast_to(lowest, len(texts))
        for i, text in enumerate(texts):
            if (cell := recorded(text)) is not None:
                side, number = cell
                if number is None and limits is not None and np.isfinite(limits[i]):
                    number = limits[i]
                if number is None:
                    raise ValueError(
                        f"{where}: {self.location(i)} is {text!r}, not detected, but nothing says "
                        "below which value: give the limit of detection as `not_detected` for such "
                        "cells, or as `censored_low` for numbers at or below it too; a number or "
                        "the column that has it in each row."
                    )
                value[i] = number
                at_most[i], at_least[i] = side == "<", side == ">"
            elif text not in ABSENT or not self.missing:
                got = repr(text) if text else "an empty cell"
                is_unit = i == 0 and not any(map(str.isdigit, text))
                units = " A row of units is left out by `units_row: true`." if is_unit else ""
                empty = "" if text in ABSENT else "an empty cell and "
                how = f"{empty}missing=True, or `missing: [{text!r}]` in a config"
                raise ValueError(
                    f"{where}: {self.location(i)} must be a number, or censored such as <0.5 or "
                    f">100, got {got}. {advice(text, how)}{units}"
                )
        return value, at_most, at_least

    def ends(self, name: Hashable) -> tuple[np.ndarray, np.ndarray]:
        """Ends between which an entry lies in each row, (n,) each."""
        known = {kind: each[name] for kind, each in self.known.items() if name in each}
        if "lower" in known or "upper" in known:
            sides = {"lower": -np.inf, "upper": np.inf}
            if name in self.columns and not {"lower", "upper"} <= {*known}:
                one, other = ("lower", "upper") if "lower" in known else ("upper", "lower")
                raise ValueError(
                    f"from_table: of {name!r} {one} is given without {other}, so that the column "
                    f"{name!r} would not be read. Give {other} too: {name!r} if that is the end, "
                    f"or {sides[other]} if that side is open."
                )
            ends = (
                self.column_or_number(known.get(kind, side), kind, self.missing)
                for kind, side in sides.items()
            )
            low, high = np.broadcast_arrays(*ends)
            if not low.ndim:
                raise ValueError(
                    f"from_table: lower and upper of {name!r} are numbers: give the columns of the "
                    "ends. Bounds of all rows are censored_low and so on, or truncated_low."
                )
            return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)
        column, what = chosen(self.columns, name, "from_table"), f"from_table: column {name!r}"
        kinds = ("not_detected", "censored_low", "censored_high")
        censored = [kind for kind in kinds if kind in known]
        limits = {
            kind: self.column_or_number(known[kind], kind, kind == "not_detected")
            for kind in censored
        }
        if {"censored_low", "censored_high"} <= {*limits}:
            least, most = np.broadcast_arrays(limits["censored_low"], limits["censored_high"])
            for i in np.flatnonzero(least > most):
                got = f"{least.flat[i]:g} and {most.flat[i]:g} in {self.location(int(i))}"
                what = f"from_table: of entry {name!r} censored_low must lie below censored_high"
                raise ValueError(f"{what}, got {got}. Exchange them.")
        if self.by_text:
            lowest = limits.get("not_detected", limits.get("censored_low"))
            value, at_most, at_least = self.recorded_in(column, lowest, what)
        else:
            refuse_booleans(column, what)
            value = numbers(column, what, self.missing)
            at_most, at_least = np.zeros((2, len(value)), bool)
        if "left_censored" in known:
            at_most = at_most | self.marked(known["left_censored"], "left_censored")
        if "right_censored" in known:
            at_least = at_least | self.marked(known["right_censored"], "right_censored")
        self.refuse(at_most & at_least, name, "is marked as left and right censored")
        low, high = np.where(at_most, -np.inf, value), np.where(at_least, np.inf, value)
        if (limit := limits.get("censored_low")) is not None:
            below = value <= limit
            self.refuse(
                below & at_least, name, "is marked as right censored at or below censored_low"
            )
            low, high = np.where(below, -np.inf, low), np.where(below & ~at_most, limit, high)
        if (limit := limits.get("censored_high")) is not None:
            above = value >= limit
            self.refuse(
                above & at_most, name, "is marked as left censored at or above censored_high"
            )
            low, high = np.where(above & ~at_least, limit, low), np.where(above, np.inf, high)
        for i in np.flatnonzero(np.isposinf(low) | np.isneginf(high)):
            raise ValueError(
                f"{what} is infinite in {self.location(int(i))}. A value beyond a bound is "
                "censored: write the bound, and give censored_low or censored_high; or write <0.5 "
                "or >100, say, and censoring: text."
            )
        missing = np.isnan(value)
        return np.where(missing, -np.inf, low), np.where(missing, np.inf, high)

    def refuse(self, wrong: np.ndarray, name: Hashable, what: str) -> None:
        """Raise ValueError if a row says two things that no value can meet."""
        if wrong.any():
            first = self.location(int(np.flatnonzero(wrong)[0]))
            raise ValueError(
                f"from_table: entry {name!r} {what} in {wrong.sum()} row(s), first in {first}: it "
                "says two different things of one value. Correct the marks, or give the ends of "
                "each value by `lower` and `upper`."
            )

    def stacked(self, kind: str, names: Sequence[Hashable], fill: float) -> np.ndarray:
        """Numbers or columns of all entries, (d,) or (n, d)."""
        given = self.known[kind]
        for value in given.values():
            if np.ndim(value) == 1 and len(value) == len(names) != self.num_rows:
                by_name = dict(zip(names, np.asarray(value).tolist(), strict=True))
                raise ValueError(
                    f"from_table: {kind} must be a number, a column, or a dictionary of them, got "
                    f"{len(by_name)} values for the {len(by_name)} entries. Write {kind}={by_name}."
                )
        parts = [self.column_or_number(given.get(name, fill), kind) for name in names]
        return np.stack(np.broadcast_arrays(*parts), axis=-1)


def arrays_of(
    table: Any,
    names: Sequence[Hashable],
    known: Mapping[str, Any],
    *,
    missing: bool = False,
    censoring: str = "columns",
    weights: Hashable | None = None,
    log: bool | Sequence[Hashable] = (),
    location: Callable[[int], str] = "row {}".format,
) -> dict[str, np.ndarray]:
    """lower and upper (n, d), low and high of the region (d,) or (n, d), noise (n, d, d), and
    weights (n,), as far as they are said.

    Args:
        table, names, missing, censoring, weights, log: as in `Observations.from_table`.
        known: lower, upper, censored_low and so on, as there.
        location: of the i-th row in messages.
    """
    if censoring not in CENSORING:
        raise ValueError(
            'from_table: censoring must be "columns", where arguments such as censored_low=0.5 say '
            f'it, or "text", where cells such as <0.5 do; got {censoring!r}.'
        )
    reader = Reader(table, names, known, missing, censoring == "text", location)
    if reader.known["not_detected"] and not reader.by_text:
        raise ValueError('from_table: not_detected is for cells such as "nd", censoring="text".')
    lower, upper = zip(*map(reader.ends, names))
    lengths = [len(ends) for ends in lower]
    if len({*lengths}) > 1:
        raise ValueError(
            f"from_table: the columns {list(names)} have {lengths} values; all must have as many."
        )
    arrays = {"lower": np.stack(lower, axis=1), "upper": np.stack(upper, axis=1)}
    if reader.known["truncated_low"] or reader.known["truncated_high"]:
        arrays["low"] = reader.stacked("truncated_low", names, -np.inf)
        arrays["high"] = reader.stacked("truncated_high", names, np.inf)
    logged = names_of_logs(names, log)
    for j, name in enumerate(names):
        if name not in logged:
            continue
        least, most = arrays["lower"][:, j], arrays["upper"][:, j]
        limits = {x: reader.column_or_number(reader.known[x].get(name, 1.0), x) for x in BOUNDS}
        without = without_log(limits)
        if np.any(most <= 0) or any(map(np.any, without.values())):
            from truncgauss.tables.no_numbers import refuse_logs  # of which these alone have use

            refuse_logs(name, least, most, limits, without, location)
        for array in arrays.values():  # -inf of what is 0 or less, as of an open lower end
            own = array[..., j]
            array[..., j] = np.where(own > 0, np.log(np.where(own > 0, own, 1.0)), -np.inf)
    if reader.known["noise_scale"]:
        if wrong := [name for name in logged if name in reader.known["noise_scale"]]:
            raise ValueError(
                f"from_table: noise_scale of {wrong[0]!r} is of the outcome, and errors of the "
                "outcome are no errors of its log: leave one of them out."
            )
        scale = reader.stacked("noise_scale", names, 0.0)
        if np.any(scale < 0):
            *row, j = np.argwhere(scale < 0)[0].tolist()
            of = f"entry {names[j]!r}" + (f" in {location(row[0])}" if row else "")
            raise ValueError(
                "from_table: noise_scale is a standard deviation, never negative; that of "
                f"{of} is {scale[*row, j]:g}."
            )
        variances = np.broadcast_to(scale**2, arrays["lower"].shape)
        # (n, d) with n = d would be taken for one matrix.
        arrays["noise"] = variances[..., None] * np.eye(len(names))
    if weights is not None:
        arrays["weights"] = reader.column_of(weights, "weights")
    return arrays


def without_log(limits: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Masks of limits that cannot be those of a logarithm; of lower ends 0 and -inf say nothing."""
    return {x: y <= 0 if "high" in x else (y < 0) & np.isfinite(y) for x, y in limits.items()}


def names_of_logs(
    names: Sequence[Hashable], log: bool | str | Sequence[Hashable]
) -> tuple[Hashable, ...]:
    """The entries whose logarithms are taken.

    Raises:
        ValueError: for a name that no entry has.
    """
    if isinstance(log, bool):
        return tuple(names) if log else ()
    logged = (log,) if isinstance(log, str) else tuple(log)
    for name in logged:
        if name not in names:
            known = listed(names, name, quoted=True)
            raise ValueError(f"from_table: log names {name!r}, but the entries are {known}")
    return logged
