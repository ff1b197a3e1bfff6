"""Least squares, triangles and medians of many rows, in blocks that stay in a processor's cache."""

from collections.abc import Iterator
from typing import Any

import numpy as np

MANY = 2**16  # rows from which least squares take their columns' products where these are as good
BLOCK = 2**12  # rows whose columns fit a processor's cache
WELL_CONDITIONED = 1e-4  # smallest eigenvalue of the products of columns of length 1
SKETCH = 2**16  # numbers from which the median of many is taken; it is exact for no more


def triangle(columns: np.ndarray, units: Any = 1.0) -> np.ndarray:
    """R of the QR decomposition of columns (n, p) over their units (p,), (min(n, p), p)."""
    factor = factor_of_many(columns, units=units)
    return np.asarray(np.linalg.qr(columns / units, mode="r") if factor is None else factor.T)


def least_squares(
    columns: np.ndarray, values: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Coefficients (p,) of columns (n, p) that come nearest to values (n,), of rows which count as
    often as their weights (n,) say, by default once."""
    if weights is not None and np.all(weights == 1.0):
        weights = None
    factor = factor_of_many(columns, weights)
    if factor is None:
        if weights is not None and not np.all(weights > 0):
            rows = weights > 0
            columns, values, weights = columns[rows], values[rows], weights[rows]
        if weights is not None and not np.all(weights == 1.0):
            root = np.sqrt(weights)
            columns, values = root[:, None] * columns, root * values
        return np.linalg.lstsq(columns, values, rcond=None)[0]
    solution, missed = np.zeros(columns.shape[1]), values
    for _ in range(2):  # once more for the digits that the products have lost
        missed = missed if weights is None else weights * missed
        solution += np.linalg.solve(factor.T, np.linalg.solve(factor, columns.T @ missed))
        missed = values - columns @ solution
    return solution


def lengths_of(columns: np.ndarray) -> np.ndarray:
    """Euclidean norms (p,) of columns (n, p)."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->j", columns, columns)))


def median_of(values: np.ndarray) -> float:
    """The median of values (n,); of more than `SKETCH` that of a sample of them."""
    if len(values) > SKETCH:
        values = values[np.random.default_rng(0).integers(len(values), size=SKETCH)]
    return float(np.median(values))


def products_of(
    columns: np.ndarray,
    values: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """The sum of w c c^T over rows, (p, p), with c the columns and perhaps a value beside.

    It is taken in blocks that stay in a processor's cache: to make another array as large as the
    columns takes longer than their products.

    Args:
        columns: (m, k).
        values: (n,), or None.
        weights: w, (n,), none negative; None for 1.
        rows: which of the m rows of columns the n are, (n,); None for all in order.
    """
    n = len(columns if rows is None else rows)
    total = np.zeros((columns.shape[1] + (values is not None),) * 2)
    for block in blocks(n):
        c = columns[block] if rows is None else columns[rows[block]]
        if values is not None:
            c = np.column_stack([c, values[block]])
        if weights is not None:
            c = np.sqrt(weights[block, None]) * c
        total += c.T @ c
    return total


def blocks(num_rows: int) -> Iterator[slice]:
    """Runs of rows that stay in a processor's cache together with what is made of them."""
    return (slice(begin, begin + BLOCK) for begin in range(0, num_rows, BLOCK))


def factor_of_many(
    columns: np.ndarray, weights: np.ndarray | None = None, units: Any = 1.0
) -> np.ndarray | None:
    """The Cholesky factor (p, p) of the products of the columns of many rows, over their units, in
    one pass where QR takes several; None for few rows, and where the products lose digits."""
    if len(columns) < MANY:
        return None
    products = products_of(columns, weights=weights) / np.multiply.outer(units, units)
    return np.linalg.cholesky(products) if is_well_conditioned(products) else None


def is_well_conditioned(products: np.ndarray) -> bool:
    """Whether columns with these products (p, p) are linearly independent, whatever rounding does,
    once each has length 1."""
    lengths = np.sqrt(np.diagonal(products))
    if not (np.all(np.isfinite(products)) and np.all(lengths > 0)):
        return False
    values = np.linalg.eigvalsh(products / np.outer(lengths, lengths))
    return bool(values[0] > WELL_CONDITIONED)
