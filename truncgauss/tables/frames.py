"""DataFrames of results, by the names of their rows; without JAX."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def data_frame(names: Sequence[str], columns: Mapping[str, np.ndarray], backend: Any) -> Any:
    """Columns with the names of their rows as a DataFrame of pandas, where these are the index, or
    of another package that narwhals knows.

    Raises:
        ImportError: the package is not installed.
    """
    import narwhals

    try:
        if backend == "pandas":
            import pandas

            return pandas.DataFrame(columns, index=pandas.Index(names, name="name"))
        return narwhals.from_dict({"name": list(names), **columns}, backend=backend).to_native()
    except ImportError as error:
        raise ImportError(
            f"to_frame needs {backend}, which is optional: pip install {backend}. Without it: "
            "print the fit, or take `names`, `estimates`, `errors` and `wald()`."
        ) from error


def estimates_frame(
    names: Sequence[str],
    values: np.ndarray,
    errors: np.ndarray,
    intervals: Callable[[float], np.ndarray],
    level: Any,
    backend: Any,
) -> Any:
    """Estimates, standard errors and the ends of their intervals at a level as `data_frame`.

    Args:
        names: of the estimates, (k,).
        values, errors: of these, (k,).
        intervals: level -> their ends, (k, 2).
        level: of the intervals.
        backend: the package.

    Raises:
        ValueError: a text in the place of the level, such as the name of a package.
        ImportError: the package is not installed.
    """
    if isinstance(level, str):
        raise ValueError(
            f"to_frame: level must lie between 0 and 1, got {level!r}; a package is given as "
            f"backend={level!r}."
        )
    low, high = intervals(level).T
    columns = {"estimate": values, "standard_error": errors, "low": low, "high": high}
    return data_frame(names, columns, backend)
