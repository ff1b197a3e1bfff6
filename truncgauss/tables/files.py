"""Columns of a CSV, NPZ or Parquet file by name, whole or by chunks of rows; without JAX."""

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.tables.censoring import advice, is_float, is_number, limit_of
from truncgauss.tables.columns import numbers
from truncgauss.tables.formats import (
    TYPED,
    FileBlock,
    blocks,
    checked,
    header,
    lines_of,
    nearest,
    num_rows,
)

CHUNK = 2**16  # rows at a time


def from_file(
    path: str | Path,
    columns: Collection[str],
    where: Mapping[str, str] | None = None,
    *,
    text: Collection[str] = (),
    missing: Collection[str] | Mapping[str, Collection[str]] = (),
    part: tuple[int, int] = (0, 1),
    units_row: bool = False,
) -> dict[str, np.ndarray]:
    """Columns of a file: floats (n,), or texts where that is asked for.

    Args:
        path: a CSV file with a header, in UTF-8, separated by commas, semicolons or tabs; an NPZ
            file with one array a column; or a Parquet file, which needs pyarrow.
        columns: names of the columns of numbers.
        where: keep only the rows whose column (the key) holds this text (the value).
        text: names of the columns that hold text; numbers there are written out.
        missing: texts that stand for a missing number, which becomes NaN, of all columns or by
            their names. Without any a missing number is refused.
        part: (i, k) for the i-th of k parts of the rows to keep, such as
            (jax.process_index(), jax.process_count()). Of Parquet only the row groups of that part
            are read, of CSV all text is passed over, NPZ is read whole.
        units_row: whether the first row below the header of a CSV file holds units, and no data.

    Raises:
        ValueError: for a column that is not there, a cell that is no number, no row left, or fewer
            than there are parts; the sentence has the location.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss import tables
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "my.csv")
        ...     _ = path.write_text("flux;kind\\n1.5;a\\nNA;b\\n", "utf-8")
        ...     tables.from_file(path, ["flux"], {"kind": "a"})["flux"]
        array([1.5])
    """
    path, where = Path(path), where or {}
    wanted = checked(path, [*columns, *text, *where], header(path))
    rows = _kept(path, wanted, where, part, units_row)
    absent = missing if isinstance(missing, Mapping) else dict.fromkeys(columns, missing)
    found = {name: _numbers(path, rows, name, absent.get(name, ())) for name in columns}
    for name in text:  # written out, what is absent as an empty text
        column = rows.columns[name]
        is_absent = np.ma.getmaskarray(column) | [cell is None for cell in column]
        found[name] = np.where(is_absent, "", np.array([str(cell) for cell in column], str))
    if not len(rows.lines):
        cells = _kept(path, [*where], {}).columns if where else {}
        kinds = {name: sorted({str(cell) for cell in cells[name]})[:20] for name in where}
        near = "; ".join(f"{name}: {nearest(kind, kinds[name])}" for name, kind in where.items())
        raise ValueError(f"{path}: no row to fit. {near}".strip())
    return found


def units(path: str | Path) -> dict[str, str]:
    """The texts of the first row below the header of a CSV file, by the names of the columns."""
    names, cells = itertools.islice(itertools.chain(lines_of(Path(path)), [(0, [])]), 2)
    return dict(zip(names[1], cells[1]))


def location(
    path: str | Path,
    row: int,
    where: Mapping[str, str] | None = None,
    *,
    part: tuple[int, int] = (0, 1),
    units_row: bool = False,
) -> str:
    """Location in a file of a row that `from_file` returned, such as `my.csv:17`.

    Args:
        path: the file.
        row: the index, 0 for the first row.
        where, part, units_row: as for `from_file`.

    Raises:
        ValueError: there are fewer rows.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss import tables
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "my.csv")
        ...     _ = path.write_text("flux,kind\\n1.5,a\\n2.5,b\\n3.5,a\\n", "utf-8")
        ...     tables.location(path, 1, {"kind": "a"})[-8:]
        'my.csv:4'
    """
    path, where = Path(path), where or {}
    lines = _kept(path, [*where] or header(path)[:1], where, part, units_row).lines
    if row >= len(lines):
        raise ValueError(f"{path} has no row {row}")
    return f"{path}, row {lines[row]}" if path.suffix in TYPED else f"{path}:{lines[row]}"


def chunks(
    path: str | Path,
    columns: Sequence[str] | None = None,
    part: tuple[int, int] = (0, 1),
    size: int = CHUNK,
    rows: slice | None = None,
) -> Iterator[np.ndarray]:
    """The rows of a file as float arrays (size, d), the last one shorter, in one reading.

    Args:
        path: a Parquet file, which needs pyarrow; an NPY file (n, d), which is mapped into memory;
            an NPZ file with one array a column; or a CSV file as in `tables.from_file`.
        columns: names of the columns; None for all. An NPY file has no names.
        part: (i, k) for the i-th of k parts, such as (jax.process_index(), jax.process_count()).
            Parts are slices of rows; of a CSV file, whose length is not known, every k-th chunk.
        size: rows at a time.
        rows: only these, slice(begin, end), instead of a part. The lines of a CSV file before them
            are counted, but their numbers are not read.

    Raises:
        ValueError: for a column that is not there, or a part or slice that makes no sense.
    """
    path, (index, count) = Path(path), part
    if not 0 <= index < count:
        raise ValueError(f"{path}: part must be (i, k) with 0 <= i < k, got {part}.")
    if rows is not None and ((rows.step or 1) != 1 or min(rows.start or 0, rows.stop or 0) < 0):
        raise ValueError(f"{path}: rows must be slice(begin, end) with 0 <= begin, got {rows}.")
    begin, end = 0, sys.maxsize
    if rows is not None:
        begin, end, _ = rows.indices(sys.maxsize)
    elif path.suffix in TYPED:
        begin, end = _ends(num_rows(path, columns), part)
    every = count if rows is None and path.suffix not in TYPED else 1
    for number, block in enumerate(blocks(path, columns, begin, end, size)):
        if number % every == index % every:
            yield np.stack([_complete(path, block, name) for name in block.columns], axis=1)


def number(text: str, location: str, missing: Collection[str] = ()) -> float:
    """A cell as a number; NaN where its text stands for a missing one.

    Raises:
        ValueError: it is none; the message starts with the place of the cell.
    """
    if text in missing:
        return np.nan
    if not is_number(text):
        got = repr(text) if text else "an empty cell"
        raise ValueError(f"{location} must be a number, got {got}. {advice(text)}")
    return float(text)


def _numbers(path: Path, rows: FileBlock, name: str, missing: Collection[str]) -> np.ndarray:
    """A column of numbers (n,).

    Raises:
        ValueError: for a cell that is no number; of a column without any, the sentence says so.
    """
    cells = rows.columns[name]
    if path.suffix in TYPED:
        return numbers(cells, f"{path}: column {name!r}", bool(missing))
    texts = [text for text in cells if text and text not in missing]
    if texts and not any(is_float(text) or limit_of(text) for text in texts):
        raise ValueError(
            f"{path}: column {name!r} holds texts such as {texts[0]!r}, not numbers. Leave it out; "
            "a covariate of texts is named under `categories`, with the text to compare with."
        )
    wrong = [i for i, text in enumerate(cells) if not (text in missing or is_number(text))]
    if wrong == [0] and len(cells) > 1 and not limit_of(cells[0]):
        raise ValueError(
            f"{path}:{rows.lines[0]}: column {name!r} must be a number, got {cells[0]!r}. If this "
            f"row holds units, say `units_row: true`. {advice(cells[0])}"
        )
    locations = (f"{path}:{line}: column {name!r}" for line in rows.lines)
    return np.array([number(text, location, missing) for text, location in zip(cells, locations)])


def _complete(path: Path, rows: FileBlock, name: str) -> np.ndarray:
    """A column of float64 without a missing number, as sums of rows need it."""
    cells = rows.columns[name]
    if path.suffix not in TYPED:
        return _numbers(path, rows, name, ())
    if absent := np.count_nonzero(np.ma.getmaskarray(cells)):
        raise ValueError(
            f"{path}: column {name!r} lacks {absent} number(s). Only complete rows have statistics."
        )
    if cells.dtype.kind not in "fiub":
        raise ValueError(f"{path}: column {name!r} must hold numbers, got {cells.dtype}.")
    return cells.astype(np.float64, copy=False)


def _kept(
    path: Path,
    wanted: Sequence[str],
    where: Mapping[str, str],
    part: tuple[int, int] = (0, 1),
    units_row: bool = False,
) -> FileBlock:
    """The wanted cells of a part of the rows to keep."""
    begin, end = int(units_row), sys.maxsize
    if part != (0, 1):
        begin, end = _span(path, where, part, begin)
    found = [
        FileBlock(block.lines[rows], {name: cells[rows] for name, cells in block.columns.items()})
        for block in blocks(path, wanted, begin, end)
        for rows in [_matching(block, where)]
    ] or [FileBlock(np.zeros(0, int), dict.fromkeys(wanted, np.zeros(0)))]
    if len(found) == 1:
        return found[0]
    joined: Any = np.ma.concatenate
    columns = {name: joined([each.columns[name] for each in found]) for name in wanted}
    return FileBlock(np.concatenate([each.lines for each in found]), columns)


def _span(
    path: Path, where: Mapping[str, str], part: tuple[int, int], begin: int
) -> tuple[int, int]:
    """The first row of a part of the rows to keep, and the one after its last."""
    rows = np.arange(begin, 0 if where else num_rows(path))
    if where:
        matching = [_matching(block, where) for block in blocks(path, [*where], begin)]
        rows = begin + np.flatnonzero(np.concatenate(matching))
    if len(rows) < part[1]:
        raise ValueError(
            f"{path}: {len(rows)} row(s) to fit cannot be divided into {part[1]} parts."
        )
    first, last = _ends(len(rows), part)
    return int(rows[first]), int(rows[last - 1]) + 1


def _ends(count: int, part: tuple[int, int]) -> tuple[int, int]:
    """The begin and the end of the i-th of k parts of some rows."""
    return count * part[0] // part[1], count * (part[0] + 1) // part[1]


def _matching(rows: FileBlock, where: Mapping[str, str]) -> np.ndarray:
    """A mask (n,) of the rows that hold these texts, by the names of the columns."""
    kept = np.ones(len(rows.lines), bool)
    for name, text in where.items():
        kept &= [str(cell) == text for cell in rows.columns[name]]
    return kept
