"""Columns of CSV, NPY, NPZ and Parquet files by name, whole or by blocks of rows; without JAX.

A file that is larger than memory is read a block at a time, but for NPZ, of which NumPy reads whole
columns; one that is not, as one block.
"""

import codecs
import contextlib
import csv
import errno
import importlib
import itertools
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.arrays.archive import archive
from truncgauss.tables.censoring import (
    advice,
    holds_number,
    is_measurement,
    is_number,
    limit_of,
    misspelt,
)
from truncgauss.tables.columns import as_names, numbers
from truncgauss.words.names import suggestion
from truncgauss.words.numbers import ABSENT

CHUNK = 2**16  # rows at a time
TYPED = (".npy", ".npz", ".parquet")
"""Endings of files that know the types of their columns, and how many rows they have."""


class FileBlock(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
        lines: their lines in a CSV file, else their numbers from 0, (n,).
        columns: the cells by column, (n,): texts of a CSV file, else of the column's type, masked
            where there is none. Columns of an NPY file have numbers for names.
    """

    lines: np.ndarray
    columns: dict[Any, np.ndarray]


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
        columns: names of the columns of numbers, or one name.
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
    path, where, columns, text = Path(path), where or {}, as_names(columns), as_names(text)
    if not isinstance(where, Mapping):
        raise TypeError(f"{path}: where must be a dictionary {{column: text}}, got {where!r}.")
    wanted = checked(path, [*columns, *text, *where], header(path))
    if units_row:
        check_units(path, wanted)
    rows = _kept(path, wanted, where, part, units_row)
    absent = missing if isinstance(missing, Mapping) else dict.fromkeys(columns, missing)
    absent = {name: as_names(texts) for name, texts in absent.items()}
    found = {name: _numbers(path, rows, name, absent.get(name, ())) for name in columns}
    for name in text:  # written out, what is absent as an empty text
        column = rows.columns[name]
        is_absent = np.ma.getmaskarray(column) | np.array([cell is None for cell in column], bool)
        found[name] = np.where(is_absent, "", np.array([str(cell) for cell in column], str))
    if not len(rows.lines):
        cells = _kept(path, [*where], {}).columns if where else {}
        kinds = {name: sorted({str(cell) for cell in cells[name]})[:10] for name in where}
        near = "; ".join(f"{name}: {suggestion(kind, kinds[name])}" for name, kind in where.items())
        equal = "; `where` keeps the rows whose cell is the text that it gives" * bool(where)
        raise ValueError(f"{path}: no row to fit{equal}. {near}".strip())
    return found


def units(path: str | Path) -> dict[str, str]:
    """The texts of the first row below the header of a CSV file, by the names of the columns."""
    names, cells = itertools.islice(itertools.chain(lines_of(Path(path)), [(0, [])]), 2)
    return dict(zip(names[1], cells[1]))


def check_units(path: Path, names: Sequence[str]) -> None:
    """Raise ValueError if the row of units of a file holds a value of one of these columns."""
    if path.suffix in TYPED:
        raise ValueError(f"{path}: units_row is for CSV files; other files have no row of units.")
    for name, text in units(path).items():
        if name in names and is_measurement(text) and text not in (*ABSENT, "1"):
            raise ValueError(
                f"{path}: `units_row` says that the first row below the header holds units and no "
                f"data, but of column {name!r} it holds {text!r}."
            )


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
            parts = []
            for name, cells in block.columns.items():
                if path.suffix not in TYPED:
                    parts.append(_numbers(path, block, name, ()))
                    continue
                if absent := np.count_nonzero(np.ma.getmaskarray(cells)):
                    raise ValueError(
                        f"{path}: column {name!r} lacks {absent} number(s). Only complete "
                        "observations have statistics."
                    )
                if cells.dtype.kind not in "fiub":
                    raise ValueError(
                        f"{path}: column {name!r} must hold numbers, got {cells.dtype}."
                    )
                parts.append(cells.astype(np.float64, copy=False))
            yield np.stack(parts, axis=1)


def _numbers(path: Path, rows: FileBlock, name: str, missing: Collection[str]) -> np.ndarray:
    """A column of numbers (n,).

    Raises:
        ValueError: for a cell that is no number; of a column without any, the sentence says so.
    """
    cells = rows.columns[name]
    if path.suffix in TYPED:
        return numbers(cells, f"{path}: column {name!r}", bool(missing))
    texts = [text for text in cells if text and text not in missing]
    if texts and not any(map(is_measurement, texts)):
        cure = misspelt(texts[0], cell=True) or (
            "Take it out of the outcomes and covariates; one of texts stands under `categories` "
            f"alone, with the text to compare with: `categories: {{{name}: {texts[0]}}}`."
        )
        raise ValueError(
            f"{path}: column {name!r} holds texts such as {texts[0]!r}, not numbers. {cure}"
        )
    wrong = [i for i, text in enumerate(cells) if not (text in missing or is_number(text))]
    if wrong:
        text, where = cells[wrong[0]], f"{path}:{rows.lines[wrong[0]]}: column {name!r}"
        got, more = repr(text) if text else "an empty cell", ""
        if wrong == [0] and len(cells) > 1 and not (limit_of(text) or holds_number(text)):
            got, more = repr(text), " If this row holds units, say `units_row: true`."
        absent = f"`missing: [{text!r}]` in a config, or missing=[{text!r}] in Python"
        raise ValueError(f"{where} must be a number, got {got}.{more} {advice(text, absent)}")
    return np.array([np.nan if text in missing else float(text) for text in cells], float)


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
        rows = np.arange(begin, 0 if where else num_rows(path))
        if where:
            matching = [_matching(block, where) for block in blocks(path, [*where], begin)]
            rows = begin + np.flatnonzero(np.concatenate(matching))
        if len(rows) < part[1]:
            raise ValueError(
                f"{path}: {len(rows)} row(s) to fit cannot be divided into {part[1]} parts."
            )
        first, last = _ends(len(rows), part)
        begin, end = int(rows[first]), int(rows[last - 1]) + 1
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


def _ends(count: int, part: tuple[int, int]) -> tuple[int, int]:
    """The begin and the end of the i-th of k parts of some rows."""
    return count * part[0] // part[1], count * (part[0] + 1) // part[1]


def _matching(rows: FileBlock, where: Mapping[str, str]) -> np.ndarray:
    """A mask (n,) of the rows that hold these texts, by the names of the columns."""
    kept = np.ones(len(rows.lines), bool)
    for name, text in where.items():
        kept &= [str(cell) == text for cell in rows.columns[name]]
    return kept


# ---------------------------------------------------------------- blocks of rows


def blocks(
    path: Path,
    names: Sequence[str] | None = None,
    begin: int = 0,
    end: int = sys.maxsize,
    size: int = sys.maxsize,
) -> Iterator[FileBlock]:
    """The rows begin, ..., end - 1 of a file, at most `size` at a time, and of them the columns of
    these names, by default all. Its ending says what the file is: .npy, .npz or .parquet; any other
    is CSV.

    Raises:
        ValueError: for a column that is not there, or a file that is not what its ending says.
        OSError: it cannot be read.
    """
    if path.suffix == ".parquet":
        with _parquet_file(path) as file:
            wanted, stop = checked(path, names, file.schema_arrow.names), 0
            for group in range(file.num_row_groups):
                start, stop = stop, stop + file.metadata.row_group(group).num_rows
                if stop <= begin or start >= end:
                    continue
                count = min(size, max(stop - start, 1))
                for batch in file.iter_batches(count, row_groups=[group], columns=wanted):
                    first, start = start, start + batch.num_rows
                    inside = slice(max(begin - first, 0), max(min(end, start) - first, 0))
                    if not len(lines := np.arange(first, start)[inside]):
                        continue
                    parts = {}
                    for name in wanted:
                        cells = batch.column(name)
                        values = cells.to_numpy(zero_copy_only=False)
                        absent = cells.is_null().to_numpy(zero_copy_only=False)
                        masked = np.ma.masked_array(values, absent) if absent.any() else values
                        parts[name] = masked[inside]
                    yield FileBlock(lines, parts)
    elif path.suffix == ".npz":
        columns = _npz_columns(path, names)
        lines = np.arange(len(next(iter(columns.values()))))[begin:end]
        for i in range(0, len(lines), size):
            rows = lines[i : i + size]
            yield FileBlock(rows, {name: column[rows] for name, column in columns.items()})
    elif path.suffix == ".npy":
        if names is not None:
            raise ValueError(f"{path}: an NPY file has no names of columns, got {list(names)}.")
        array = _mapped(path)
        row_bytes, end = max(array[:1].nbytes, 1), min(end, len(array))
        for i in range(begin, end, size):
            shape, kept = (min(size, end - i), *array.shape[1:]), array[i : min(i + size, end)]
            if array.flags.c_contiguous:
                # Mapped anew, so that pages which were read do not stay in this process's memory.
                kept = np.memmap(path, array.dtype, "r", array.offset + i * row_bytes, shape)
            columns_of_block = enumerate(np.array(kept).reshape(len(kept), -1).T)
            yield FileBlock(np.arange(i, i + len(kept)), dict(columns_of_block))
    else:
        texts = lines_of(path)
        known = next(texts)[1]
        places = {name: known.index(name) for name in checked(path, names, known)}
        texts = itertools.islice(texts, begin, end)
        while some := list(itertools.islice(texts, size)):
            for line, cells in some:
                if len(cells) != len(known):
                    raise ValueError(
                        f"{path}:{line}: {len(cells)} cells, but the header has {len(known)}."
                    )
            yield FileBlock(
                np.array([line for line, _ in some]),
                {x: np.array([cells[k] for _, cells in some], object) for x, k in places.items()},
            )


def header(path: str | Path) -> list[str]:
    """The names of the columns of a file.

    Raises:
        ValueError: the file is empty, or not what its ending says.
        OSError: it cannot be read.
    """
    path = Path(path)
    if not path.exists():  # a relative path says nothing of where it was looked for
        where = f"No such file or directory, looked in {path.absolute().parent}"
        raise FileNotFoundError(errno.ENOENT, where, str(path))
    if path.suffix == ".npz":
        return list(_npz_columns(path, None))
    if path.suffix == ".parquet":
        with _parquet_file(path) as file:
            return list(file.schema_arrow.names)
    return next(lines_of(path))[1]


def num_rows(path: str | Path, columns: Sequence[str] | None = None) -> int:
    """The number of rows of a file.

    Args:
        path: as in `chunks`.
        columns: of an NPZ file, those whose length it is; None for all.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss import tables
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rows.csv")
        ...     _ = path.write_text("x,y\\n1,2\\n3,4\\n", "utf-8")
        ...     tables.num_rows(path), list(tables.chunks(path, rows=slice(1, 2)))
        (2, [array([[3., 4.]])])
    """
    path = Path(path)
    if path.suffix == ".npy":
        return len(_mapped(path))
    if path.suffix == ".npz":
        return len(next(iter(_npz_columns(path, columns).values())))
    if path.suffix == ".parquet":
        with _parquet_file(path) as file:
            return int(file.metadata.num_rows)
    return sum(1 for _ in lines_of(path)) - 1


def mismatch(name: str, names: Sequence[str]) -> str:
    """The reason why a header does not have exactly one column of a name; empty if it has."""
    if names.count(name) == 1:
        return ""
    if name in names:
        return f"column {name!r} is {names.count(name)} times in the header; rename all but one"
    if len(names) == 1 and name in re.split(r"[\s|]+", names[0]):
        return (
            f"the header is one cell, {names[0]!r}: cells are divided by commas, semicolons or tabs"
        )
    cure, parts = misspelt(name) or suggestion(name, names), re.split(r"[,;+ ]+", name)
    if len(parts) > 1 and {*parts} <= {*names}:
        cure = f"several columns are written apart, {' '.join(parts)}"
    inner = re.fullmatch(r"(\w+)\((.+)\)|([ic])\.(.+)", name)
    if inner and (column := inner[2] or inner[4]) in names:
        more = "texts become categories by themselves"
        if (inner[1] or "").startswith("log"):
            more = "for its logarithm add --log, or `log: true` in a config"
        cure = f"name the column itself, {column}; {more}"
    return f"column {name!r} is not in the header; {cure}"


def checked(path: Path, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The columns asked for, by default all, each of which is there once."""
    wanted = list(dict.fromkeys(known if names is None else as_names(names)))
    for name in wanted:
        if why := mismatch(name, known):
            raise ValueError(f"{path}: {why}")
    return wanted


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row of a CSV file that is not blank, the header first.

    Cells are separated by a comma, a semicolon or a tab, whichever the header has most of.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            if "\0" in first and (wide := wide_encoding(path)):
                raise ValueError(not_in_utf8(path, *wide))
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            empty = True
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    empty = False
                    yield reader.line_num, [cell.strip() for cell in cells]
    except UnicodeDecodeError as error:
        byte = error.object[error.start : error.start + 1]
        windows = f"holds the byte {byte.hex()}, which is {byte.decode('cp1252', 'replace')!r} on"
        encoding, why = wide_encoding(path) or ("WINDOWS-1252", f"{windows} Windows")
        raise ValueError(not_in_utf8(path, encoding, why)) from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}.") from error
    if empty:
        raise ValueError(f"{path} is empty.")


def wide_encoding(path: Path) -> tuple[str, str] | None:
    """The encoding of a text in UTF-16 or UTF-32, by its mark or the zeros between its letters, and
    what tells it; None of any other."""
    with open(path, "rb") as file:
        first = file.read(4)
    marks = {
        "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
        "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    }
    for name, ways in marks.items():
        if first.startswith(ways):
            return name, f"begins with the bytes {first[:2].hex()}, the mark of {name}"
    if 0 not in first:
        return None
    return "UTF-16BE" if first[0] == 0 else "UTF-16LE", "has a zero byte beside each letter"


def not_in_utf8(path: Path, encoding: str, why: str) -> str:
    return (
        f"{path} is not a text in UTF-8: it {why}. Save it as 'CSV UTF-8', or convert it: iconv -f "
        f"{encoding} -t UTF-8 {path.name} > new.csv"
    )


def _mapped(path: Path) -> Any:
    """The rows of an NPY file, mapped into memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not an NPY file of plain numbers: {error}.") from error
    if array.ndim not in (1, 2):
        raise ValueError(f"{path}: rows must have shape (n, d), got {array.shape}.")
    return array


def _npz_columns(path: Path, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The columns of an archive by name, all of one length."""
    try:
        with archive(path) as stored:
            known = stored.files
            read = {name: stored[name] for name in known if names is None or name in names}
    except ValueError as error:
        raise ValueError(
            f"{path} is not an NPZ file of plain arrays: it is torn, or holds something else."
        ) from error
    columns = {name: read[name] for name in checked(path, names, known)}
    shapes = {column.shape for column in columns.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"{path}: arrays must be columns of one length, got {sorted(shapes)}.")
    return columns


@contextlib.contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """An opened Parquet file.

    Raises:
        ValueError: pyarrow is not installed, or the file is no Parquet file.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"{path}: reading Parquet needs pyarrow: pip install 'truncgauss[parquet]'."
        ) from None
    try:
        # Without buffers of whole columns ahead, which would grow with the file.
        file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20)
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}.") from error
    with file:
        yield file
