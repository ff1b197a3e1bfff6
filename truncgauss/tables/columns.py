"""Named columns of numbers out of whatever holds them; without JAX.

DataFrames and Series of pandas, polars and pyarrow, and of whatever else narwhals knows or has
Arrow's `__arrow_c_stream__`; astropy tables, structured and record arrays, dictionaries of columns,
masked and plain arrays.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from truncgauss.arrays.alignment import RowLabels, in_order, labels_of
from truncgauss.words.names import listed
from truncgauss.words.numbers import is_float, is_missing_cell

BOUNDS = ("censored_low", "censored_high", "truncated_low", "truncated_high")
LACKING = {
    "low": "A row without that bound has -inf there.",
    "high": "A row without that bound has inf there.",
    "noise": "A row without noise has 0 there.",
    "weights": "A row that does not count has 0 there.",
}
ONE_COLUMN = "For one column write {0}[:, None]; a constant is a column of ones beside it."
DROPPED = "Rows are never dropped silently: remove these rows, or complete them."
OUTCOME = (
    "Remove these observations; or, for an outcome that is missing by chance, use "
    "tg.Observations.from_table(..., missing=True). A value that is missing because it lies beyond "
    "a bound is censored there."
)


class Table(NamedTuple):
    """A table of numbers.

    Attributes:
        values: (n, d), NaN where a value is missing.
        names: of the columns, or None.
        labels: of the rows, or None.
        encoder: of a `Design`, the function that makes such columns of another table.
    """

    values: np.ndarray
    names: tuple[Hashable, ...] | None = None
    labels: RowLabels | None = None
    encoder: Any = None

    def name(self, column: int) -> str:
        """The name of a column in a message."""
        return repr(self.names[column]) if self.names else str(column)


def as_names(names: Any) -> Any:
    """Names as they are, and of one text a list: its letters are none."""
    return [names] if isinstance(names, str) else names


def read(
    table: Any,
    columns: Sequence[Hashable] | None = None,
    *,
    missing: bool = False,
    what: str = "data",
) -> Table:
    """A table's columns as numbers.

    Args:
        table: a DataFrame, an astropy table, a dictionary of columns, a structured, masked or plain
            array, shape (n, d) or (n,).
        columns: the names to take, in this order; all by default.
        missing: whether values may be missing. Otherwise a missing value of a named column, or a
            masked one, is refused; NaN in an array without names is left to whoever asked.
        what: what the table is called in messages.

    Raises:
        ValueError: for text, objects, dates, complex numbers, quantities with a unit, missing
            values, or names that are not there; the sentence names the column.

    Example:
        >>> from truncgauss import tables
        >>> tables.read({"mass": [1.0, 2.0], "age": [3, 4]}, ["age"]).values
        array([[3.],
               [4.]])
    """
    labels = labels_of(table)
    by_name = named_columns(table)
    if by_name is None:
        if columns is not None:
            raise ValueError(f"{what}: has no column names to choose {list(columns)} by.")
        values, absent = _with_absent(table, what)
        if absent.any() and not missing:
            rows = np.flatnonzero(absent.reshape(len(absent), -1).any(axis=1))
            raise ValueError(f"{what}: {len(rows)} row(s) hold masked values, first row {rows[0]}.")
        if absent.any():  # NaN of others stays where it is
            values = np.where(absent, np.nan, values).astype(values.dtype)
        return Table(values, None, labels)
    names = tuple(by_name) if columns is None else tuple(columns)
    if not names:
        raise ValueError(f"{what}: has no columns.")
    parts = [
        numbers(chosen(by_name, name, what), f"{what}: column {name!r}", missing) for name in names
    ]
    lengths = {len(part) for part in parts}
    if len(lengths) > 1:
        raise ValueError(
            f"{what}: the columns {list(names)} have {[len(part) for part in parts]} values; all "
            "must have as many."
        )
    encoder = getattr(table, "_encoder", None)
    return Table(np.stack(parts, axis=1), None if names == (None,) else names, labels, encoder)


def chosen(by_name: Mapping[Hashable, Any], name: Hashable, what: str) -> Any:
    """A column by its name."""
    if not isinstance(name, Hashable) or name not in by_name:
        name = str(name) if isinstance(name, str) else name  # NumPy's texts have another repr
        known = listed(by_name, name, quoted=True)
        raise ValueError(f"{what}: there is no column {name!r}; there are {known}")
    return by_name[name]


def named_columns(table: Any) -> dict[Hashable, Any] | None:
    """The columns of a table by name, or None if it has no names; Series in a dictionary have one
    order.

    Raises:
        ValueError: two columns of a DataFrame have one name.
    """
    if isinstance(table, Mapping):
        return dict(in_order(table, None, "data", "data"))
    if isinstance(table, np.ndarray):
        if table.dtype.names is None or table.ndim != 1:
            return None
        return {name: table[name] for name in table.dtype.names}
    if hasattr(table, "colnames"):  # astropy
        return {name: table[name] for name in table.colnames}
    if is_series(table):
        return {table.name: table}
    import narwhals

    try:
        frame: Any = narwhals.from_native(table, pass_through=True)
        if isinstance(frame, narwhals.LazyFrame):
            frame = frame.collect()
        if frame is table and hasattr(table, "__arrow_c_stream__") and not np.ndim(table):
            frame = narwhals.from_arrow(table, backend="pyarrow")
    except narwhals.exceptions.DuplicateError as error:
        from truncgauss.words.misfits import refuse_duplicates  # of which these alone have use

        refuse_duplicates(table, str(error))
    if not isinstance(frame, narwhals.DataFrame):
        return None
    return {name: frame.get_column(name) for name in frame.columns}


def is_series(values: Any) -> bool:
    """Whether values are one labelled column, such as a pandas Series."""
    return hasattr(values, "index") and hasattr(values, "name") and np.ndim(values) == 1


def refuse_booleans(values: Any, what: str, data: Any = None) -> None:
    """Raise ValueError for an outcome of True and False: values, a table with such a column, or a
    column of `data` that a formula or its name says."""
    columns: dict[Any, Any] = {None: values}
    if isinstance(values, str):
        outcome = values.partition("~")[0].strip().strip("`")
        columns = {outcome: (named_columns(data) or {}).get(outcome)}
    elif not hasattr(values, "dtype"):
        columns = named_columns(values) or columns
    for name, column in columns.items():
        first = column[0] if isinstance(column, list | tuple) and column else None
        dtype = str(getattr(column, "dtype", "")).lower()
        if isinstance(first, bool | np.bool_) or dtype in ("bool", "boolean"):
            where = what if name is None else f"{what}: column {name!r}"
            raise ValueError(
                f"{where} holds True and False, of which a Gaussian is no model. For a probit give "
                "tg.Ordinal(values) to tg.fit_regression or tg.Observations.of, or binary=True to "
                "a fit that takes it; for a Gaussian of 0 and 1 all the same values.astype(float)."
            )


def check_outcome(values: Any, design: Any, what: str, data: Any = None) -> None:
    """Raise ValueError for an outcome of True and False, and for a design in its place, which its
    column of ones tells, or that it has several columns and the design one axis."""
    refuse_booleans(values, f"{what}: outcome", data)
    names = named_columns(values) or {}
    ones = not {"constant", "const", "intercept", "Intercept"}.isdisjoint(names)
    wide = len(names) > 1 or (getattr(values, "ndim", 0) == 2 and values.shape[1] > 1)
    if ones or (wide and getattr(design, "ndim", 0) == 1):
        bounds = "" if ones else " If they are bounds, give the design two axes, (n, 1)."
        columns = ", ".join(map(str, names)) or f"{values.shape[1]} columns"
        raise ValueError(
            f"{what}: the outcome holds covariates, {columns}. The outcome comes first, and its "
            f"design after it.{bounds}"
        )


def categories_of(column: Any) -> tuple[list[Any], bool] | None:
    """The categories of a column of pandas or of an Enum of polars, in their order, and whether
    they are ordered; None of other columns, which declare no order."""
    native = column.to_native() if hasattr(column, "to_native") else column
    dtype: Any = getattr(native, "dtype", None)
    if type(dtype).__name__ not in ("CategoricalDtype", "Enum"):
        return None
    return list(dtype.categories), bool(getattr(dtype, "ordered", True))


def numbers(column: Any, where: str, missing: bool = False, advice: str = OUTCOME) -> np.ndarray:
    """A column as floats, shape (n,); NaN where a value is missing.

    Raises:
        ValueError: as in `read`; the message starts with `where`.
    """
    values, absent = _with_absent(column, where)
    if values.ndim != 1:
        raise ValueError(f"{where} must have one axis, got shape {values.shape}.")
    absent = absent | np.isnan(values)
    if absent.any() and not missing:
        raise ValueError(
            f"{where} lacks {absent.sum()} of {len(values)} value(s), first in row "
            f"{np.flatnonzero(absent)[0]}. {advice}"
        )
    return np.where(absent, np.nan, values).astype(values.dtype)


def gaps(what: str, absent: np.ndarray, cure: str) -> str:
    """Words on rows (n,) in which something is missing, and how to leave them out."""
    return (
        f"{what} is missing in {absent.sum()} of {len(absent)} rows, first in row "
        f"{np.argmax(absent)}. Leave these rows out, such as by {cure}"
    )


def is_missing(column: Any) -> np.ndarray:
    """A mask of the cells of a column that are missing: null, masked, None, NA or NaN."""
    if hasattr(column, "is_null"):
        absent, cells = (np.asarray(x.to_numpy()) for x in (column.is_null(), column))
        return absent | np.isnan(cells) if cells.dtype.kind == "f" else absent
    cells = (column if isinstance(column, np.ma.MaskedArray) else np.asarray(column)).tolist()
    return np.array([is_missing_cell(cell) for cell in cells], bool)


def dropped(table: Any, name: Any) -> str:
    """The code that leaves out the rows of a table that lack a column: by pandas, or by polars,
    where what is missing and NaN are two things."""
    column: Any = (named_columns(table) or {}).get(name)
    native = column.to_native() if hasattr(column, "to_native") else column
    if not type(native).__module__.startswith("polars"):
        return f"table.dropna(subset=[{name!r}])"
    nulls, number = native.null_count(), native.dtype.is_float()
    ways = ["drop_nulls"] * (nulls > 0) + ["drop_nans"] * (number and native.is_nan().any())
    return "".join(["table", *(f".{way}({name!r})" for way in ways or ["drop_nulls"])])


def each_row(
    values: Any, n: int, what: str, default: float = 0.0, kind: str | None = None
) -> np.ndarray:
    """A number for each row, (n,), from one number, (n,) or None.

    Args:
        values: these.
        n: how many rows there are.
        what: the function and its argument in messages, such as "fit_regression: noise".
        default: in the place of None.
        kind: the argument, by default the end of `what`.

    Raises:
        ValueError: for another shape, text, or numbers that are missing.
    """
    if isinstance(values, str | bytes):
        cure = f"Give the column itself, such as table[{values!r}]."
        cure = "Convert it." if is_float(str(values)) else cure
        raise ValueError(f"{what} must be numbers, got the text {values!r}. {cure}")
    word, scalar = (kind or what).rpartition(" ")[2], np.ndim(values) == 0
    if (word in BOUNDS or scalar) and np.asarray(values).dtype == bool:
        from truncgauss.tables.no_numbers import refuse_truth  # of which these alone have use

        refuse_truth(values, what, word)
    if scalar:
        values = np.asarray([default if values is None else values])
    advice = next((LACKING[word] for word in LACKING if (kind or what).endswith(word)), OUTCOME)
    column = numbers(values, what, advice=advice)
    if not scalar and len(column) != n:
        raise ValueError(f"{what} must be a number or have shape ({n},), got {column.shape}.")
    return np.broadcast_to(column, n)


def _with_absent(values: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Values as floats, and where they are said to be missing."""
    for unit, value in (("unit", "to_value"), ("units", "magnitude")):
        if hasattr(values, unit) and hasattr(values, value):
            name = str(getattr(values, unit))
            if name not in ("", "dimensionless"):  # which no array keeps
                raise ValueError(
                    f"{where} is a quantity in {name}, whose unit would be lost. Give numbers in "
                    "one unit for all, such as `.to_value(unit)`."
                )
    absent: Any = False
    if isinstance(values, np.ma.MaskedArray):
        absent, values = np.ma.getmaskarray(values), np.asarray(values.data)
    elif not isinstance(values, np.ndarray):
        import narwhals  # a thirtieth of a second, of which arrays have no use

        values = narwhals.from_native(values, series_only=True, pass_through=True)
        if isinstance(values, narwhals.Series):
            absent, values = values.is_null().to_numpy(), values.to_numpy()
    try:
        array = np.asarray(values)
        if array.dtype == object and {*map(type, array.flat)} <= {int, float, np.int64, np.float64}:
            array = array.astype(np.float64)  # numbers that pandas holds one by one
    except (ValueError, OverflowError) as error:
        why = "its rows have different lengths" if "inhomogeneous" in str(error) else error
        raise ValueError(f"{where} is no table of numbers: {why}.") from error
    truth = array.dtype == bool and not array.ndim
    if truth or array.dtype.kind in "OUScMmV" and (array.dtype.kind != "V" or array.dtype.names):
        from truncgauss.tables.no_numbers import refuse_cells  # of which these alone have use

        refuse_cells(array, where)
    if array.dtype not in (np.float16, np.float32):
        array = array.astype(np.float64, copy=False)
    return array, np.broadcast_to(absent, array.shape)


def aligned(values: Any, table: Table, what: str, fill: float | None = None) -> np.ndarray:
    """Values that belong to a table, in the order of its columns and rows.

    What has names is matched by them: a dictionary or a Series by column, a DataFrame by column and
    row. A Series beside a table of one column goes by its rows. What has no names goes by position.

    Args:
        values: a number, (d,), (n, d), or anything with names.
        table: the table they belong to.
        what: their name in messages.
        fill: the value of columns that are not named; None if all must be.

    Raises:
        ValueError: for a name that the table has not, rows with other labels, and what `read`
            refuses.

    Example:
        >>> from truncgauss import tables
        >>> table = tables.read({"mass": [1.0, 2.0], "age": [3, 4]})
        >>> tables.aligned({"age": 5.0}, table, "high", fill=float("inf"))
        array([inf,  5.])
    """
    if isinstance(values, np.void) and values.dtype.names:
        values = {name: values[name] for name in values.dtype.names}
    one_column = table.values.ndim == 1 or table.values.shape[1] == 1
    if is_series(values) and (not one_column or {*values.index} <= {*(table.names or ())}):
        values = dict(zip(np.asarray(values.index).tolist(), numbers(values, what)))
    order = list(table.names or ()) if np.ndim(values) == 2 and hasattr(values, "loc") else []
    if order and {*values.index} == {*order}:
        values = values.loc[order]  # one matrix, whose rows are columns of the data
    else:
        values = in_order(values, table.labels, what, "the data")
    if is_series(values):
        return numbers(values, what)[:, None]
    columns = values if isinstance(values, Mapping) else named_columns(values)
    if columns is None:
        return read(values, what=what).values
    names = table.names
    if names is None:
        raise ValueError(
            f"{what}: is labelled {', '.join(map(repr, columns))}, but the columns of the data "
            "have no names. Give an array in their order."
        )
    unknown = [name for name in columns if name not in names]
    lacking = [name for name in names if name not in columns]
    if unknown or (lacking and fill is None):
        raise ValueError(
            f"{what}: is labelled {', '.join(map(repr, columns))}, but the columns of the data are "
            f"called {', '.join(map(repr, names))}."
        )
    parts = []
    for name in names:
        value: Any = columns.get(name, fill)
        where = f"{what}: column {name!r}"
        single = np.ndim(value) == 0
        parts.append(numbers(np.array([value]), where)[0] if single else numbers(value, where))
    return np.stack(np.broadcast_arrays(*parts), axis=-1)
