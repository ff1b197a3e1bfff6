"""Rows of CSV, NPY, NPZ and Parquet files in blocks, with the names of their columns.

A file that is larger than memory is read a block at a time, but for NPZ, of which NumPy reads whole
columns; one that is not, as one block.
"""

import contextlib
import csv
import difflib
import importlib
import itertools
import os
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TYPED = (".npy", ".npz", ".parquet")
"""Endings of files that know the types of their columns, and how many rows they have."""


# What NumPy and the libraries under it raise when an archive is torn or overwritten.
DAMAGE = (
    ValueError, KeyError, TypeError, EOFError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class FileBlock(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
        lines: their lines in a CSV file, else their numbers from 0, (n,).
        columns: the cells by column, (n,): texts of a CSV file, else of the column's type, masked
            where there is none. Columns of an NPY file have numbers for names.
    """

    lines: np.ndarray
    columns: dict[Any, np.ndarray]


def blocks(
    path: Path,
    names: Sequence[str] | None = None,
    begin: int = 0,
    end: int = sys.maxsize,
    size: int = sys.maxsize,
) -> Iterator[FileBlock]:
    """The rows begin, ..., end - 1 of a file, at most `size` at a time.

    Args:
        path: a file whose ending says what it is: .npy, .npz or .parquet; any other is CSV.
        names: of the columns to read; None for all.
        begin, end: as of a slice of the rows, without negative numbers.
        size: the most rows in a block.

    Raises:
        ValueError: for a column that is not there, or a file that is not what its ending says.
        OSError: it cannot be read.
    """
    readers = {".npy": _npy_blocks, ".npz": _npz_blocks, ".parquet": _parquet_blocks}
    return readers.get(path.suffix, _csv_blocks)(path, names, begin, end, size)


def header(path: str | Path) -> list[str]:
    """The names of the columns of a file.

    Raises:
        ValueError: the file is empty, or not what its ending says.
        OSError: it cannot be read.
    """
    path = Path(path)
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
    times = "twice" if name in names else "not"
    return f"column {name!r} is {times} in the header; {nearest(name, names)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """A guess at what was meant, else what there is to choose from."""
    known = list(map(str, known))
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def checked(path: Path, names: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The columns asked for, by default all, each of which is there once."""
    wanted = list(dict.fromkeys(known if names is None else names))
    for name in wanted:
        if why := mismatch(name, known):
            raise ValueError(f"{path}: {why}")
    return wanted


# ---------------------------------------------------------------- CSV


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped cells of each row of a CSV file that is not blank, the header first.

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


def _csv_blocks(
    path: Path, names: Sequence[str] | None, begin: int, end: int, size: int
) -> Iterator[FileBlock]:
    lines = lines_of(path)
    known = next(lines)[1]
    wanted = checked(path, names, known)
    lines = itertools.islice(lines, begin, end)
    while rows := list(itertools.islice(lines, size)):
        for line, cells in rows:
            if len(cells) != len(known):
                raise ValueError(
                    f"{path}:{line}: {len(cells)} cells, but the header has {len(known)}."
                )
        columns = {name: [cells[known.index(name)] for _, cells in rows] for name in wanted}
        yield FileBlock(
            np.array([line for line, _ in rows]),
            {name: np.array(cells, object) for name, cells in columns.items()},
        )


# ---------------------------------------------------------------- NumPy's files


def _mapped(path: Path) -> Any:
    """The rows of an NPY file, mapped into memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not an NPY file of plain numbers: {error}.") from error
    if array.ndim not in (1, 2):
        raise ValueError(f"{path}: rows must have shape (n, d), got {array.shape}.")
    return array


def _npy_blocks(
    path: Path, names: Sequence[str] | None, begin: int, end: int, size: int
) -> Iterator[FileBlock]:
    if names is not None:
        raise ValueError(f"{path}: an NPY file has no names of columns, got {list(names)}.")
    array = _mapped(path)
    row_bytes, end = max(array[:1].nbytes, 1), min(end, len(array))
    for i in range(begin, end, size):
        shape = (min(size, end - i), *array.shape[1:])
        # Mapped anew, so that pages which were read do not stay in this process's memory.
        offset = array.offset + i * row_bytes
        mapped = array.flags.c_contiguous
        rows = np.memmap(path, array.dtype, "r", offset, shape) if mapped else array[i:][: shape[0]]
        columns = np.array(rows).reshape(len(rows), -1).T
        yield FileBlock(np.arange(i, i + len(rows)), dict(enumerate(columns)))


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


def _npz_blocks(
    path: Path, names: Sequence[str] | None, begin: int, end: int, size: int
) -> Iterator[FileBlock]:
    columns = _npz_columns(path, names)
    lines = np.arange(len(next(iter(columns.values()))))[begin:end]
    for i in range(0, len(lines), size):
        rows = lines[i : i + size]
        yield FileBlock(rows, {name: column[rows] for name, column in columns.items()})


@contextlib.contextmanager
def archive(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The arrays of an NPZ file by name, to be read within the context.

    Raises:
        ValueError: the file is torn, or holds something else; said of "it", without the path.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            zipfile.ZipFile(file)  # NumPy takes what is no archive for a pickle, and suggests that
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                yield stored
        except (*DAMAGE, OSError) as error:
            raise ValueError("it is torn, or holds more than plain arrays") from error


# ---------------------------------------------------------------- Parquet


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


def _parquet_blocks(
    path: Path, names: Sequence[str] | None, begin: int, end: int, size: int
) -> Iterator[FileBlock]:
    with _parquet_file(path) as file:
        wanted = checked(path, names, file.schema_arrow.names)
        stop = 0
        for group in range(file.num_row_groups):
            start, stop = stop, stop + file.metadata.row_group(group).num_rows
            if stop <= begin or start >= end:
                continue
            count = min(size, max(stop - start, 1))
            for batch in file.iter_batches(count, row_groups=[group], columns=wanted):
                first, start = start, start + batch.num_rows
                inside = slice(max(begin - first, 0), max(min(end, start) - first, 0))
                columns = {}
                for name in wanted:
                    values = batch.column(name).to_numpy(zero_copy_only=False)
                    absent = batch.column(name).is_null().to_numpy(zero_copy_only=False)
                    masked = np.ma.masked_array(values, absent) if absent.any() else values
                    columns[name] = masked[inside]
                lines = np.arange(first, start)[inside]
                if len(lines):
                    yield FileBlock(lines, columns)
