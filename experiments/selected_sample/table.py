"""Columns of numbers, read from a CSV file with a header; without JAX."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from truncgauss.config import suggestion


def header(path: Path) -> list[str]:
    """The names of the columns of a CSV file.

    Raises:
        ValueError: the file is empty, or not UTF-8 text.
        OSError: it cannot be read.
    """
    return next(rows(path))[1]


def mismatch(name: str, names: Sequence[str]) -> str:
    """Why a header does not have exactly one column of this name; empty if it has."""
    if names.count(name) == 1:
        return ""
    times = "twice" if name in names else "not"
    return f"column {name!r} is {times} in the header; {suggestion(name, list(names))}"


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row that is not blank, the header first.

    Cells are separated by a comma, a semicolon or a tab, whichever the header has most of.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            empty = True
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    empty = False
                    yield reader.line_num, [cell.strip() for cell in cells]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}.") from error
    if empty:
        raise ValueError(f"{path} is empty.")


def table(path: Path, columns: Sequence[str], where: dict[str, str]) -> np.ndarray:
    """The chosen columns of a CSV file as numbers, shape (n, d).

    Args:
        path: the file.
        columns: names of the columns of numbers.
        where: keep only the rows whose column (the key) holds this text (the value).

    Raises:
        ValueError: for a column that is not there, a cell that is no number, or no row left.
    """
    lines = rows(path)
    _, names = next(lines)
    for name in (*columns, *where):
        if why := mismatch(name, names):
            raise ValueError(f"{path}: {why}")
    kept: list[list[float]] = []
    texts: dict[str, set[str]] = {name: set() for name in where}
    for line, cells in lines:
        if len(cells) != len(names):
            raise ValueError(f"{path}:{line}: {len(cells)} cells, but the header has {len(names)}.")
        row = dict(zip(names, cells, strict=True))
        for name in where:
            texts[name].add(row[name])
        if all(row[name] == text for name, text in where.items()):
            kept.append([number(row[name], f"{path}:{line}: column {name!r}") for name in columns])
    if not kept:
        found = "; ".join(
            f"{name}: {suggestion(text, sorted(texts[name]))}" for name, text in where.items()
        )
        raise ValueError(f"{path}: no row to fit. {found}".strip())
    return np.array(kept)


def number(text: str, place: str) -> float:
    """A cell as a finite number.

    Raises:
        ValueError: it is none; the message starts with the place of the cell.
    """
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        got = repr(text) if text else "an empty cell"
        raise ValueError(
            f"{place} must be a number, got {got}. Complete or drop the row: a missing cell is not "
            "a truncated one."
        )
    return value
