"""Limits, noise and weights brought into the order of a table's columns and rows, by name."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from truncgauss.execution.tables.columns import (
    Table,
    is_series,
    named_columns,
    numbers,
    read,
    row_labels,
)


def aligned(values: Any, table: Table, what: str, fill: float | None = None) -> np.ndarray:
    """Values that belong to a table, in the order of its columns and rows.

    What has names is matched by them: a dictionary or a Series by column, a DataFrame by column and
    row. A Series with the labels of the rows of a table of one column is one value a row. What has
    no names goes by position.

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
    if is_series(values) and not _by_row(values, table):
        values = dict(zip(np.asarray(values.index).tolist(), numbers(values, what)))
    elif is_series(values):
        return numbers(values, what)[:, None]
    if not isinstance(values, Mapping):
        if named_columns(values) is None:
            return read(values, what=what).values
        check_labels(values, table, what)
    columns = values if isinstance(values, Mapping) else named_columns(values)
    assert columns is not None
    return _by_column(dict(columns), table, what, fill)


def row_values(values: Any, table: Table, what: str) -> np.ndarray:
    """One value a row, shape (n,); a Series by the labels of its rows."""
    check_labels(values, table, what)
    return numbers(values, what)


def check_labels(values: Any, table: Table, what: str) -> None:
    """Raise ValueError if both have labels for their rows, which differ."""
    labels = row_labels(values)
    if labels is not None and table.labels is not None and not np.array_equal(labels, table.labels):
        raise ValueError(
            f"{what}: its rows are labelled otherwise than those of the data. Bring both in one "
            "order, such as by `.loc[data.index]`, or give an array."
        )


def _by_row(series: Any, table: Table) -> bool:
    """Whether a Series holds one value for each row of a table of one column."""
    labels, (n, d) = np.asarray(series.index), table.values.shape
    if d > 1 or len(labels) != n:
        return False
    return table.labels is None or np.array_equal(labels, table.labels)


def _by_column(
    columns: dict[Hashable, Any], table: Table, what: str, fill: float | None
) -> np.ndarray:
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
