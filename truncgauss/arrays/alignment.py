"""Rows in one order: what has labels for its rows, such as a pandas Series, goes by these."""

from collections.abc import Mapping
from typing import Any

import numpy as np

SHOWN = 3  # labels in a message


class RowLabels:
    """Labels of rows, equal to others that are the same in the same order; a static field.

    Args:
        index: of a pandas Series or DataFrame.
    """

    def __init__(self, index: Any) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowLabels):
            return NotImplemented
        return self.index is other.index or bool(self.index.equals(other.index))

    def __hash__(self) -> int:
        return hash(len(self.index))

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"labels of {len(self)} rows"

    def positions(self, other: "RowLabels", what: str, first: str) -> np.ndarray | None:
        """The position of each of these labels, those of `first`, among those of `what`, (n,);
        None where these have the same order.

        Raises:
            ValueError: for labels that are missing, more, or not unique. Rows are never dropped.
        """
        index, names = other.index, list(self.index.names)
        if (
            names != list(index.names)
            and len({*names, *index.names}) == len(names) == index.nlevels
        ):
            index = index.reorder_levels(names)
        if self == RowLabels(index):
            return None
        words = f"{what}: its rows are labelled otherwise than those of {first}"
        for labels in (self.index, index):
            if not labels.is_unique:
                twice = labels[labels.duplicated()][:1].tolist()[0]
                raise ValueError(
                    f"{words}, and the label {twice!r} is there more than once, so that which row "
                    "is which is not known. Give labels that differ; or an array, which goes by "
                    "position, such as by `.to_numpy()`."
                )
        found = index.get_indexer(self.index)
        lacking, others = self.index[found < 0], index[self.index.get_indexer(index) < 0]
        if len(lacking) or len(others):
            reasons = [f"it lacks {shown(lacking, f' of {first}')}"] * bool(len(lacking))
            reasons += [f"it has others, {shown(others)}"] * bool(len(others))
            raise ValueError(
                f"{words}: {', and '.join(reasons)}. Bring both to the same rows, such as by "
                "`.loc[data.index]`; or give an array, which goes by position, such as by "
                "`.to_numpy()`."
            )
        return np.asarray(found)


def shown(labels: Any, of: str = "") -> str:
    """The number of labels, and the first of them."""
    some = ", ".join(map(repr, labels[:SHOWN].tolist()))
    return f"{len(labels)} label(s){of}{', such as' if len(labels) > SHOWN else ':'} {some}"


def as_labels(index: Any) -> RowLabels | None:
    """Labels of rows as they are kept, of the index of a DataFrame."""
    return index if isinstance(index, RowLabels | None) else RowLabels(index)


def labels_of(values: Any) -> RowLabels | None:
    """The labels of rows, of a Series or DataFrame, or of what was made of one; of several in a
    dictionary, list or tuple, those of the first that has some; None if none has."""
    if isinstance(values, RowLabels | None):
        return values
    if isinstance(values, np.ndarray | str | int | float):
        return None
    values = values.to_native() if hasattr(values, "to_native") else values
    index = getattr(values, "index", None)
    if isinstance(index, RowLabels):
        return index
    if hasattr(index, "get_indexer"):
        return RowLabels(index)
    if isinstance(values, Mapping):
        values = list(values.values())
    if not isinstance(values, list | tuple) or not len(values):
        return None
    if isinstance(values[0], int | float | str) and isinstance(values[-1], int | float | str):
        return None  # one column
    return next((found for found in map(labels_of, values) if found is not None), None)


def in_order(values: Any, labels: RowLabels | None, what: str, first: str) -> Any:
    """Values whose rows stand in the order of some labels, those of `first`; by position where they
    have none. Columns of a dictionary that have none stand beside those that have some.

    Raises:
        ValueError: for other labels, see `RowLabels.positions`.
    """
    own = labels_of(values)
    if own is None:
        return values
    labels = own if labels is None else labels
    if isinstance(values, list | tuple):
        return type(values)([in_order(part, labels, what, first) for part in values])
    if isinstance(values, Mapping) and getattr(values, "index", None) is None:
        beside = f"the first column of {what}"
        values = {
            name: in_order(column, own, f"{what}: {name!r}", beside)
            for name, column in values.items()
        }
    positions = labels.positions(own, what, first)
    return values if positions is None else taken(values, positions)


def square_in_order(matrix: Any, labels: RowLabels | None, what: str, first: str) -> Any:
    """A square matrix, as by `in_order` along both axes where it has labels."""
    if not hasattr(matrix, "loc"):
        return matrix
    labels = labels_of(matrix) if labels is None else labels
    for _ in range(2):
        matrix = in_order(matrix, labels, what, first).T
    return matrix


def taken(values: Any, positions: np.ndarray) -> Any:
    """Rows by their positions."""
    values = values.to_native() if hasattr(values, "to_native") else values
    if hasattr(values, "at_rows"):
        return values.at_rows(positions)
    if hasattr(values, "iloc"):
        return values.iloc[positions]
    if isinstance(values, Mapping):
        return {name: taken(column, positions) for name, column in values.items()}
    if isinstance(values, tuple):
        return tuple(taken(part, positions) for part in values)
    if np.ndim(values) == 0:
        return values
    return (values if hasattr(values, "dtype") else np.asarray(values))[positions]


def in_one_order(what: str, **arguments: Any) -> tuple[Any, ...]:
    """Arguments of a function that have a value for each row, brought into the order of the first
    that has labels. All functions that take rows call this; afterwards rows go by position.

    Args:
        what: the function, for messages.
        arguments: by their names, those first by which the others go.

    Raises:
        ValueError: for other labels, see `RowLabels.positions`, or none beside two orders.
    """
    for first, values in arguments.items():
        labels = labels_of(values)
        if labels is not None:
            if not isinstance(values, RowLabels):  # by which arrays go too
                check_unlabelled(what, first, labels, arguments)
            return tuple(
                in_order(values, labels, f"{what}: {name}", first)
                for name, values in arguments.items()
            )
    return tuple(arguments.values())


def check_unlabelled(what: str, first: str, labels: RowLabels, arguments: dict[str, Any]) -> None:
    """Raise ValueError for an argument of rows without labels where others have two orders."""
    each = {name: parts_of(values) for name, values in arguments.items()}
    known = {name: [own for own in map(labels_of, parts) if own] for name, parts in each.items()}
    moved = [name for name, some in known.items() if any(own != labels for own in some)]
    for name, parts in each.items():
        if moved and not known[name] and len(labels) in map(num_rows, parts):
            raise ValueError(
                f"{what}: {first} and {moved[0]} have their labels in two orders, and {name} has "
                "none, so that to which rows it belongs is not known. Bring them into one order, "
                f"such as by `{moved[0]}.loc[{first}.index]`, or give {name} labels too."
            )


def parts_of(values: Any) -> list[Any]:
    """Values, and the columns or tables in them."""
    columns = values.values() if isinstance(values, Mapping) else values
    return [values, *columns] if isinstance(values, Mapping | list | tuple) else [values]


def num_rows(values: Any) -> int | None:
    """The length of a list, array, table or of rows; None of others."""
    shape = (len(values),) if isinstance(values, list | tuple) else getattr(values, "shape", ())
    return shape[0] if shape else getattr(values, "num_rows", None)
