"""Columns of a CSV, NPZ or Parquet file, by name; without JAX."""

import csv
import difflib
import importlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.execution.files import archive
from truncgauss.execution.tables.censoring import advice, is_float, is_number, limit_of
from truncgauss.execution.tables.columns import numbers


def header(path: Path) -> list[str]:
    """The names of the columns of a file.

    Raises:
        ValueError: the file is empty, or not what its ending says.
        OSError: it cannot be read.
    """
    if path.suffix == ".npz":
        return list(_npz(path))
    if path.suffix == ".parquet":
        return list(_parquet(path, None).column_names)
    return next(rows(path))[1]


def mismatch(name: str, names: Sequence[str]) -> str:
    """Why a header does not have exactly one column of this name; empty if it has."""
    if names.count(name) == 1:
        return ""
    times = "twice" if name in names else "not"
    return f"column {name!r} is {times} in the header; {nearest(name, names)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """A guess at what was meant, else what there is to choose from."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


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
            are read, of CSV all text is passed over, of NPZ one column is in memory at a time.
        units_row: whether the first row below the header of a CSV file holds units, and no data.

    Raises:
        ValueError: for a column that is not there, a cell that is no number, no row left, or fewer
            than there are parts; the sentence has the place.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss import tables
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "my.csv")
        ...     _ = path.write_text("flux;kind\\n1.5;a\\nNA;b\\n", "utf-8")
        ...     tables.from_file(path, ["flux"], {"kind": "a"})["flux"]
        array([1.5])
    """
    path = Path(path)
    where = where or {}
    names = header(path)
    absent = missing if isinstance(missing, Mapping) else dict.fromkeys(columns, missing)
    for name in (*columns, *text, *where):
        if why := mismatch(name, names):
            raise ValueError(f"{path}: {why}")
    wanted = list(dict.fromkeys([*columns, *text, *where]))
    if path.suffix in (".npz", ".parquet"):
        if part[1] == 1:
            found = _kept(_typed(path, wanted), where)
        else:
            found = _typed(path, wanted, _chosen(path, where, part))
        numeric = {
            name: numbers(found[name], f"{path}: column {name!r}", bool(absent.get(name)))
            for name in columns
        }
        as_text = {name: _texts(found[name]) for name in text}
    else:
        cells = _part(path, wanted, where, part, units_row)
        numeric = {
            name: column_of(
                [(line, row[name]) for line, row in cells], name, path, absent.get(name, ())
            )
            for name in columns
        }
        as_text = {name: np.array([row[name] for _, row in cells], str) for name in text}
    result = numeric | as_text
    if not len(next(iter(result.values()))):
        raise ValueError(f"{path}: no row to fit. {_choice(path, names, where)}".strip())
    return result


def units(path: str | Path) -> dict[str, str]:
    """The texts of the first row below the header of a CSV file, by the names of the columns."""
    path = Path(path)
    return dict(zip(header(path), next(itertools.islice(rows(path), 1, None), (0, []))[1]))


def place(
    path: str | Path,
    row: int,
    where: Mapping[str, str] | None = None,
    *,
    part: tuple[int, int] = (0, 1),
    units_row: bool = False,
) -> str:
    """Where the row with an index is that `from_file` returned, such as `my.csv:17`.

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
        ...     tables.place(path, 1, {"kind": "a"})[-8:]
        'my.csv:4'
    """
    path, where = Path(path), where or {}
    if path.suffix in (".npz", ".parquet"):
        return f"{path}, row {_chosen(path, where, part)[row]}"
    for line, _ in _part(path, list(where), where, part, units_row)[row : row + 1]:
        return f"{path}:{line}"
    raise ValueError(f"{path} has no row {row}")


def column_of(
    cells: list[tuple[int, str]], name: str, path: Path, missing: Collection[str]
) -> np.ndarray:
    """A column of numbers (n,) from its cells, each with the number of its line.

    Raises:
        ValueError: for a cell that is no number; of a column without any, the sentence says so.
    """
    texts = [text for _, text in cells if text and text not in missing]
    if texts and not any(is_float(text) or limit_of(text) for text in texts):
        raise ValueError(
            f"{path}: column {name!r} holds texts such as {texts[0]!r}, not numbers. Leave it out; "
            "a covariate of texts is named under `categories`, with the text to compare with."
        )
    wrong = [i for i, (_, text) in enumerate(cells) if not (text in missing or is_number(text))]
    if wrong == [0] and len(cells) > 1 and not limit_of(cells[0][1]):
        line, text = cells[0]
        raise ValueError(
            f"{path}:{line}: column {name!r} must be a number, got {text!r}. If this row holds "
            f"units, say `units_row: true`. {advice(text)}"
        )
    values = [number(text, f"{path}:{line}: column {name!r}", missing) for line, text in cells]
    return np.array(values)


def number(text: str, place: str, missing: Collection[str] = ()) -> float:
    """A cell as a number; NaN where its text stands for a missing one.

    Raises:
        ValueError: it is none; the message starts with the place of the cell.
    """
    if text in missing:
        return np.nan
    if not is_number(text):
        got = repr(text) if text else "an empty cell"
        raise ValueError(f"{place} must be a number, got {got}. {advice(text)}")
    return float(text)


def rows(path: Path) -> Iterator[tuple[int, list[str]]]:
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


def _cells(
    path: Path, names: list[str], wanted: list[str], where: Mapping[str, str], units_row: bool
) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and wanted cells of the rows to keep."""
    places = {name: names.index(name) for name in wanted}
    lines = itertools.islice(rows(path), 2 if units_row else 1, None)
    for line, cells in lines:
        if len(cells) != len(names):
            raise ValueError(f"{path}:{line}: {len(cells)} cells, but the header has {len(names)}.")
        row = {name: cells[place] for name, place in places.items()}
        if all(row[name] == text for name, text in where.items()):
            yield line, row


def _texts(column: Any) -> np.ndarray:
    """A column written out, what is absent as an empty text."""
    absent = np.ma.getmaskarray(column) | [cell is None for cell in column]
    return np.where(absent, "", np.array([str(cell) for cell in column]))


def _part(
    path: Path,
    wanted: list[str],
    where: Mapping[str, str],
    part: tuple[int, int],
    units_row: bool,
) -> list[tuple[int, dict[str, str]]]:
    """Line number and wanted cells of a part of the rows to keep."""
    names = header(path)
    lines = _cells(path, names, wanted, where, units_row)
    if part[1] > 1:
        count = sum(1 for _ in _cells(path, names, list(where), where, units_row))
        lines = itertools.islice(lines, *_ends(path, count, part))
    return list(lines)


def _ends(path: Path, count: int, part: tuple[int, int]) -> tuple[int, int]:
    """Where a part of the rows to keep begins and ends."""
    i, k = part
    if count < k:
        raise ValueError(f"{path}: {count} row(s) to fit cannot be divided into {k} parts.")
    return count * i // k, count * (i + 1) // k


def _chosen(path: Path, where: Mapping[str, str], part: tuple[int, int]) -> np.ndarray:
    """The numbers of the rows in a part of those to keep."""
    if not where:
        return np.arange(*_ends(path, _length(path), part))
    columns = _typed(path, list(where))
    kept = [[str(cell) == text for cell in columns[name]] for name, text in where.items()]
    rows = np.flatnonzero(np.all(kept, axis=0))
    begin, end = _ends(path, len(rows), part)
    return rows[begin:end]


def _choice(path: Path, names: list[str], where: Mapping[str, str]) -> str:
    """What the columns hold that rows were chosen by."""
    if not where:
        return ""
    if path.suffix in (".npz", ".parquet"):
        found = _typed(path, list(where))
    else:
        cells = [row for _, row in _cells(path, names, list(where), {}, False)]
        found = {name: [row[name] for row in cells] for name in where}
    texts = {name: sorted({str(value) for value in found[name]})[:20] for name in where}
    return "; ".join(f"{name}: {nearest(text, texts[name])}" for name, text in where.items())


def _kept(found: dict[str, Any], where: Mapping[str, str]) -> dict[str, Any]:
    """The rows whose columns hold the texts."""
    for name, text in where.items():
        kept = np.array([str(value) == text for value in found[name]], bool)
        found = {key: column[kept] for key, column in found.items()}
    return found


def _typed(path: Path, names: list[str], rows: np.ndarray | None = None) -> dict[str, Any]:
    """Columns of a file that knows their types; of all rows, or of those with these numbers."""
    if path.suffix == ".npz":
        arrays = _npz(path, None if rows is None else names, rows)
        return {name: arrays[name] for name in names}
    columns = _parquet(path, names, rows)
    found = {}
    for name in names:
        values = columns[name].to_numpy()
        absent = np.asarray(columns[name].is_null().to_numpy(), bool)
        found[name] = np.ma.masked_array(values, absent) if absent.any() else values
    return found


def _length(path: Path) -> int:
    """How many rows a file has that knows its types."""
    if path.suffix == ".parquet":
        with parquet_reader(path).ParquetFile(path) as file:
            return int(file.metadata.num_rows)
    first = header(path)[:1]
    return len(_npz(path, first, None)[first[0]])


def _npz(
    path: Path, names: list[str] | None = None, rows: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Columns of an archive, by default all, which are read one after the other."""
    try:
        with archive(path) as arrays:
            wanted = arrays.files if names is None else names
            found = {name: arrays[name] if rows is None else arrays[name][rows] for name in wanted}
    except ValueError as error:
        raise ValueError(f"{path} is not an NPZ file of plain arrays: {error}.") from error
    lengths = {array.shape for array in found.values()}
    if not found or len(lengths) > 1 or len(next(iter(lengths))) != 1:
        raise ValueError(f"{path}: arrays must be columns of one length, got {sorted(lengths)}.")
    return found


def parquet_reader(path: Path) -> Any:
    """The module pyarrow.parquet.

    Raises:
        ValueError: it is not installed; the message starts with the file to be read.
    """
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(
            f"{path}: reading Parquet needs pyarrow: pip install 'truncgauss[parquet]'."
        ) from None


def _parquet(path: Path, names: list[str] | None, rows: np.ndarray | None = None) -> Any:
    """A Parquet file's columns, or all of its names without rows."""
    parquet = parquet_reader(path)
    try:
        if names is None:
            return parquet.read_schema(path).empty_table()
        if rows is None:
            return parquet.read_table(path, columns=names)
        with parquet.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            starts = np.concatenate([[0], np.cumsum(groups)]).astype(int)
            own = [
                i for i in range(len(groups)) if starts[i] <= rows[-1] and starts[i + 1] > rows[0]
            ]
            return file.read_row_groups(own, columns=names).take(rows - starts[own[0]])
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} is not a Parquet file: {error}.") from error
