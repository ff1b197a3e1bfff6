"""The rows of a file larger than memory, a chunk at a time, or one part of several of them."""

import contextlib
import itertools
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from truncgauss.execution.tables import files
from truncgauss.execution.tables.files import mismatch, parquet_reader

CHUNK = 2**16  # rows at a time


Ends: TypeAlias = Callable[[int], tuple[int, int]]
"""The first row to read, and the one after the last, of a file with so many rows."""


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

    def ends(num_rows: int) -> tuple[int, int]:
        if rows is None:
            return num_rows * index // count, num_rows * (index + 1) // count
        begin, end, _ = rows.indices(num_rows)
        return begin, max(begin, end)

    if path.suffix == ".npy":
        yield from _of_npy(path, columns, ends, size)
    elif path.suffix == ".npz":
        yield from _of_npz(path, columns, ends, size)
    elif path.suffix == ".parquet":
        yield from _of_parquet(path, columns, ends, size)
    elif rows is None:
        yield from _of_csv(path, columns, lambda i: i // size % count == index, sys.maxsize, size)
    else:
        begin, end = ends(sys.maxsize)
        yield from _of_csv(path, columns, lambda i: i >= begin, end, size)


def num_rows(path: str | Path, columns: Sequence[str] | None = None) -> int:
    """The number of rows of a file, for which no number is read.

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
        with contextlib.ExitStack() as stack:
            return _columns_of_npz(path, columns, stack)[2]
    if path.suffix == ".parquet":
        with parquet_reader(path).ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    return sum(1 for _ in files.rows(path)) - 1


def column_names(path: str | Path) -> list[str]:
    """The names of a file's columns, for which no number is read."""
    path = Path(path)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    return files.header(path)


def _wanted(path: Path, columns: Sequence[str] | None, names: Sequence[str]) -> list[str]:
    """The columns asked for, all of which are there."""
    wanted = list(names if columns is None else columns)
    for name in wanted:
        if why := mismatch(name, list(names)):
            raise ValueError(f"{path}: {why}")
    return wanted


def _mapped(path: Path) -> Any:
    """The rows of an NPY file, mapped into memory."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path} is not an NPY file of plain numbers: {error}.") from error
    if array.ndim not in (1, 2):
        raise ValueError(f"{path}: rows must have shape (n, d), got {array.shape}.")
    return array


def _of_npy(
    path: Path, columns: Sequence[str] | None, ends: Ends, size: int
) -> Iterator[np.ndarray]:
    if columns is not None:
        raise ValueError(f"{path}: an NPY file has no names of columns, got {list(columns)}.")
    array = _mapped(path)
    begin, end = ends(len(array))
    row_bytes = max(array[:1].nbytes, 1)
    for i in range(begin, end, size):
        # Mapped anew, so that pages which were read do not stay in this process's memory.
        offset = array.offset + i * row_bytes
        if array.flags.c_contiguous:
            shape = (min(size, end - i), *array.shape[1:])
            rows = np.memmap(path, array.dtype, "r", offset, shape)
        else:
            rows = array[i : min(i + size, end)]
        yield np.array(rows, np.float64).reshape(len(rows), -1)


def _columns_of_npz(
    path: Path, columns: Sequence[str] | None, stack: contextlib.ExitStack
) -> tuple[list[Any], list[np.dtype[Any]], int]:
    """The opened columns of an archive, read up to their first numbers; their dtypes and length."""
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not an NPZ file: {error}.") from error
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    members = [
        stack.enter_context(archive.open(f"{name}.npy")) for name in _wanted(path, columns, names)
    ]
    heads = [_npy_head(path, member) for member in members]
    shapes = {shape for shape, _ in heads}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"{path}: arrays must be columns of one length, got {sorted(shapes)}.")
    return members, [dtype for _, dtype in heads], next(iter(shapes))[0]


def _of_npz(
    path: Path, columns: Sequence[str] | None, ends: Ends, size: int
) -> Iterator[np.ndarray]:
    with contextlib.ExitStack() as stack:
        members, dtypes, length = _columns_of_npz(path, columns, stack)
        begin, end = ends(length)
        for i in range(0, begin, size):  # an archive is read from its start
            for member, dtype in zip(members, dtypes):
                member.read((min(i + size, begin) - i) * dtype.itemsize)
        for i in range(begin, end, size):
            rows = np.empty((min(size, end - i), len(members)))
            for j, (member, dtype) in enumerate(zip(members, dtypes)):
                rows[:, j] = np.frombuffer(member.read(len(rows) * dtype.itemsize), dtype)
            yield rows


def _npy_head(path: Path, member: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array in an archive, which is read up to its first number."""
    version = np.lib.format.read_magic(member)
    head = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in head:
        raise ValueError(f"{path}: an array of NPY version {version} cannot be read in parts.")
    shape, _, dtype = head[version](member)
    if dtype.kind not in "fiub":
        raise ValueError(f"{path}: a column must hold numbers, got {dtype}.")
    return shape, dtype


def _of_parquet(
    path: Path, columns: Sequence[str] | None, ends: Ends, size: int
) -> Iterator[np.ndarray]:
    parquet = parquet_reader(path)
    # Without buffers of whole columns ahead, which would grow with the file.
    with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
        wanted = _wanted(path, columns, file.schema_arrow.names)
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(groups)]).astype(int)
        begin, end = ends(int(starts[-1]))
        own = [i for i in range(len(groups)) if starts[i] < end and starts[i + 1] > begin]
        at = starts[own[0]] if own else 0
        batches = (
            batch
            for group in own
            for batch in file.iter_batches(size, row_groups=[group], columns=wanted)
        )
        for batch in batches:
            first, at = at, at + batch.num_rows
            inside = slice(max(begin - first, 0), max(min(end, at) - first, 0))
            found = [_numbers(path, name, batch.column(name)) for name in wanted]
            rows = np.stack(found, axis=1)[inside]
            if len(rows):
                yield rows


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    """A column of Arrow as float64; a missing number is refused."""
    if column.null_count:
        raise ValueError(
            f"{path}: column {name!r} lacks {column.null_count} number(s). Only complete rows "
            "have statistics."
        )
    values = np.asarray(column.to_numpy(zero_copy_only=False))
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{path}: column {name!r} must hold numbers, got {values.dtype}.")
    return values.astype(np.float64, copy=False)


def _of_csv(
    path: Path, columns: Sequence[str] | None, takes: Callable[[int], bool], end: int, size: int
) -> Iterator[np.ndarray]:
    lines = files.rows(path)
    names = next(lines)[1]
    wanted = _wanted(path, columns, names)
    places = [names.index(name) for name in wanted]
    rows: list[list[float]] = []
    for number, (line, cells) in enumerate(itertools.islice(lines, end)):
        if not takes(number):
            continue
        if len(cells) != len(names):
            raise ValueError(f"{path}:{line}: {len(cells)} cells, but the header has {len(names)}.")
        rows.append([files.number(cells[j], f"{path}:{line}: column {names[j]!r}") for j in places])
        if len(rows) == size:
            yield np.array(rows)
            rows = []
    if rows:
        yield np.array(rows)
