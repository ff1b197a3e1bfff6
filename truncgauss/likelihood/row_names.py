"""Names and labels of rows that contradict each other, and rows without a density: of these alone
calls have use that name their rows or columns, or that are wrong."""

from typing import Any

import numpy as np


def check_renamed(names: Any, columns: tuple[str, ...] | None) -> None:
    """Raise ValueError where a name of a table's column is given to another one of them."""
    known = columns if columns and isinstance(names, list | tuple) else ()
    for name, column in zip(names if known else (), known):
        if str(name) != column and str(name) in known:
            raise ValueError(
                f"Observations: names has {str(name)!r} in the place of the column {column!r}, and "
                f"the table has a column {str(name)!r} too. Leave names out, for those of the "
                "table; another order is that of table[[...]]."
            )


def check_relabelled(index: Any, labels: Any) -> None:
    """Raise ValueError for an index beside values whose rows have other labels."""
    if labels is not None and hasattr(index, "equals") and not labels.index.equals(index):
        raise ValueError(
            "Observations: the values have their own labels of rows, and index has others, or "
            "another order. Leave index out; or for other labels give values.to_numpy()."
        )


def check_index(index: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError for what cannot be the labels of rows of this shape."""
    rows = shape[0] if shape else None
    if not hasattr(index, "get_indexer") or rows not in (None, len(index)):
        is_index = hasattr(index, "get_indexer")
        got = f"{len(index)} labels for {rows} rows" if is_index else f"{index!r:.60}"
        raise ValueError(
            "Observations: index must be the labels of the rows, such as table.index or "
            f"pandas.Index(labels), got {got}."
        )


def refuse_singular(rows: Any, matrix: np.ndarray) -> None:
    """Raise ValueError if a covariance (..., d, d) is singular on the exact entries of some row."""
    exact = np.asarray(rows.lower) == np.asarray(rows.upper)
    for pattern in np.unique(exact, axis=0):
        entries = np.flatnonzero(pattern)
        try:
            np.linalg.cholesky(matrix[..., entries[:, None], entries])
        except np.linalg.LinAlgError:
            raise ValueError(
                f"log_likelihood: of the observed entries {', '.join(map(str, entries))} one has "
                "no variance, or is determined by the others: their covariance is singular. Leave "
                "out repeated entries, or give the observations noise."
            ) from None
