"""Names of `row_sums` for callers that do not pass a `RowSums` on: those of a context."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from truncgauss.execution import row_sums
from truncgauss.execution.row_sums import RowSums, Share, evaluated, refuse_spread

__all__ = ["Share", "evaluated", "refuse_spread"]
T = TypeVar("T")
ALONE = RowSums()
_CURRENT: contextvars.ContextVar[RowSums] = contextvars.ContextVar("current", default=ALONE)


def current() -> RowSums:
    """The sums of the context."""
    return _CURRENT.get()


@contextlib.contextmanager
def within(sums: RowSums) -> Iterator[None]:
    """A context with these sums."""
    before = _CURRENT.set(sums)
    try:
        with sums.working():
            yield
    finally:
        _CURRENT.reset(before)


def pool(share: Share | None) -> contextlib.AbstractContextManager[None]:
    return within(RowSums(share))


def share_of(what: str, tree: Any) -> Share | None:
    return row_sums.of_spread(what, tree).share


def of_processes(num_rows: int) -> Share | None:
    return row_sums.of_local(num_rows).share


def inside() -> bool:
    return current().share is not None


def own_share() -> Share | None:
    return current().share


def mark() -> jax.Array | None:
    return current().fingerprint


def checked_together(apart: bool = False) -> contextlib.AbstractContextManager[None]:
    return row_sums.raised_on_all(inside() or (apart and jax.process_count() > 1))


def total(tree: T) -> T:
    return current().sum(tree)


def stacked(array: np.ndarray) -> np.ndarray:
    return current().concatenate(array)


def largest(array: np.ndarray) -> np.ndarray:
    return np.asarray(current().max(array))


def every(condition: Any) -> bool:
    return current().all(condition)


def some(condition: Any) -> bool:
    return current().any(condition)


def triangle(columns: np.ndarray) -> np.ndarray:
    return current().triangle(columns)


def least_squares(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    return current().least_squares(columns, values)


def median(values: np.ndarray) -> float:
    return current().median(values)


def least(values: np.ndarray, rank: int) -> float:
    return current().smallest(values, rank)


def lengths(columns: np.ndarray) -> np.ndarray:
    return current().norm(columns)


def deviation(values: np.ndarray) -> np.ndarray:
    return current().std(values)
