"""Coordinates in one order: the names that Series, tables, rows and boxes have for them."""

from itertools import combinations
from typing import Any


def coordinate_labels(values: Any) -> list[Any]:
    """Labels along the last axis of a Series or DataFrame, or those that rows or a box made of one
    keep in `coordinate_names`; none of arrays.

    Raises:
        ValueError: for a square DataFrame with the same labels in another order along its rows.
    """
    if not hasattr(values, "iloc"):
        return list(getattr(values, "coordinate_names", None) or ())
    rows = values.index.to_list()
    labels: list[Any] = values.columns.to_list() if values.ndim == 2 else rows
    square = len(rows) == len(labels) and rows != labels
    if square and sorted(map(str, rows)) == sorted(map(str, labels)):
        raise ValueError(
            f"covariance: its rows are in the order {rows}, its columns {labels}. Bring both into "
            "one, as by `.loc[names, names]`."
        )
    return labels


def check_one_order(**arguments: Any) -> list[Any]:
    """The names that arguments have for their coordinates, in their order; none of arrays.

    Plain numbering, as that of a Series of a list, goes by position beside names, and is compared
    with the same numbers in another order.

    Raises:
        ValueError: where they name these differently, or in other orders.
    """
    named = {name: coordinate_labels(values) for name, values in arguments.items()}
    pairs = combinations([item for item in named.items() if item[1]], 2)
    for (first, names), (name, labels) in pairs:
        if names == labels:
            continue
        one, other = list(map(str, names)), list(map(str, labels))
        if one == other:
            continue
        numbered = any(x == list(map(str, range(len(x)))) for x in (one, other))
        if not numbered or sorted(one) == sorted(other):
            raise ValueError(
                f"{first} has the coordinates {names}, and {name} {labels}. Bring them into one "
                "order, as by `.loc[names]`, or give arrays, which go by position."
            )
    return next(filter(None, named.values()), [])
