"""Coordinates in one order: the names that Series, tables, rows and boxes have for them."""

from itertools import combinations
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from truncgauss.arrays.alignment import RowLabels


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
    if rows != labels and sorted(map(str, rows)) == sorted(map(str, labels)):
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
        one, other = list(map(str, names)), list(map(str, labels))
        if names == labels or one == other:
            continue
        numbered = any(x == list(map(str, range(len(x)))) for x in (one, other))
        if not numbered or sorted(one) == sorted(other):
            raise ValueError(
                f"{first} has the coordinates {names}, and {name} {labels}. Bring them into one "
                "order, as by `.loc[names]`, or give arrays, which go by position."
            )
    return next(filter(None, named.values()), [])


def square_in_order(matrix: Any, labels: Optional["RowLabels"], what: str, first: str) -> Any:
    """A square matrix, as by `in_order` along both axes where it has labels."""
    if not hasattr(matrix, "loc"):
        return matrix
    from truncgauss.arrays.alignment import in_order, labels_of

    labels = labels_of(matrix) if labels is None else labels
    for _ in range(2):
        matrix = in_order(matrix, labels, what, first).T
    return matrix
