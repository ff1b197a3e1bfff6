"""Sufficient statistics of complete rows under a Gaussian: their number, mean and scatter."""

import functools
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.execution import tables
from truncgauss.execution.pytrees import frozen_pytree, is_concrete
from truncgauss.quadrature.double_double import two_sum

CHUNK = 2**12  # rows at a time: twice BITS and these 12 are less than the 53 of a double
BITS = 20

Pair = tuple[Any, Any]  # a number in twice the working precision: rounded, and the rounding error


@frozen_pytree
class Statistics:
    """Number, mean, scatter and extremes of complete, exact rows; statistics of parts add up.

    They are all that the likelihood of rows with shared limits depends on. Sums are kept in twice
    the precision of float64, on the host, whatever JAX's precision is. In any order and any number
    of parts they agree to rounding, also for rows shifted by 1e8 of their standard deviations: a
    billion rows are read in parts, anywhere, and their statistics added.

    Args:
        num_rows: how many rows there are.
        mean: their (weighted) mean, shape (d,).
        scatter: the sum of (row - mean) (row - mean)^T, times the weights, shape (d, d).
        weight: the sum of the weights; num_rows by default.
        lowest: the least value of each column, shape (d,); None if it is not known. Without the
            extremes no fit can check that the rows lie inside its limits.
        highest: the greatest, likewise.
        rest: rounding errors of (weight, mean, scatter), where they are known.

    Raises:
        ValueError: for shapes that disagree, values that are not finite, or a scatter matrix that
            is not symmetric.

    Example:
        >>> parts = [tg.Statistics.from_rows(part) for part in ([[1.0], [2.0]], [[6.0]])]
        >>> whole = parts[0] + parts[1]
        >>> whole.num_rows, whole.mean, whole.scatter
        (3, array([3.]), array([[14.]]))

    References:
        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
            variances" (1979).
        Ozaki, Ogita, Oishi and Rump, "Error-free transformations of matrix multiplication by using
            fast routines of matrix multiplication and its applications" (2012).
    """

    num_rows: Any
    mean: Any
    scatter: Any
    weight: Any = None
    lowest: Any = None
    highest: Any = None
    rest: Any = None

    def __post_init__(self) -> None:
        mean, scatter = np.asarray(self.mean, np.float64), np.asarray(self.scatter, np.float64)
        if mean.ndim != 1 or scatter.shape != mean.shape * 2 or not len(mean):
            raise ValueError(
                "Statistics: mean and scatter must have shapes (d,) and (d, d), got "
                f"{mean.shape} and {scatter.shape}."
            )
        weight = np.float64(self.num_rows if self.weight is None else self.weight)
        finite = all(np.all(np.isfinite(part)) for part in (weight, mean, scatter))
        size = np.sqrt(np.abs(np.outer(*[np.diagonal(scatter)] * 2)))
        symmetric = np.all(np.abs(scatter - scatter.T) <= 1e-12 * size)
        if not finite or not symmetric or self.num_rows < 1 or weight <= 0:
            raise ValueError(
                "Statistics: needs at least one row, a positive weight, and a finite mean and a "
                f"finite, symmetric scatter; got {self.num_rows} row(s), weight {weight}, mean "
                f"{mean}, scatter {scatter}. Values above 1e150 are too large to be squared."
            )
        ends = {"lowest": self.lowest, "highest": self.highest}
        for name, end in ends.items():
            if end is not None and np.shape(end) != mean.shape:
                raise ValueError(
                    f"Statistics: {name} must have shape {mean.shape}, got {np.shape(end)}."
                )
            ends[name] = None if end is None else np.asarray(end, np.float64)
        values = {"num_rows": int(self.num_rows), "mean": mean, "scatter": scatter}
        zeros = np.float64(0.0), np.zeros_like(mean), np.zeros_like(scatter)
        rest = zeros if self.rest is None else self.rest
        for name, value in {**values, "weight": weight, **ends, "rest": rest}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_rows(cls, rows: Any, weights: Any = None) -> "Statistics":
        """The statistics of some rows.

        Args:
            rows: shape (n, d), or (n,) for d = 1; an array or a table, such as a DataFrame.
            weights: shape (n,): how often each row counts.

        Raises:
            ValueError: for NaN, infinity, no rows, or weights that are negative or all zero.

        Example:
            >>> tg.Statistics.from_rows([1.0, 2.0, 6.0], weights=[1, 1, 2]).mean
            array([3.75])
        """
        if not is_concrete((rows, weights)):
            raise ValueError(
                "Statistics: are made of numbers, outside of jit and vmap, and of rows that lie "
                "here. Of each process's own rows: sum(tg.distributed.exchanged(statistics))."
            )
        rows, weights = tables.in_one_order("Statistics", rows=rows, weights=weights)
        rows = tables.read(rows, what="Statistics: rows").values.astype(np.float64, copy=False)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(f"Statistics: rows must have shape (n, d), got {rows.shape}.")
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"Statistics: {len(wrong)} of {len(rows)} row(s) hold NaN or infinity, first row "
                f"{wrong[0]}: {rows[wrong[0]]}. Only complete rows have statistics."
            )
        if weights is not None:
            weights = as_weights(weights, len(rows))
            rows, weights = rows[weights > 0], weights[weights > 0]
        begins = range(0, len(rows), CHUNK)
        parts = [
            _of_chunk(rows[i : i + CHUNK], None if weights is None else weights[i : i + CHUNK])
            for i in begins
        ]
        while len(parts) > 1:  # by pairs, whose sums are of one size
            pairs = (parts[i : i + 2] for i in range(0, len(parts), 2))
            parts = [functools.reduce(operator.add, pair) for pair in pairs]
        return parts[0]

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        columns: Sequence[str] | None = None,
        *,
        weights: str | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> "Statistics":
        """The statistics of the rows of a file, in one reading and in the memory of a few chunks.

        Args:
            path: a Parquet, NPY, NPZ or CSV file, see `tables.chunks`.
            columns: names of the columns; None for all (besides that of the weights).
            weights: the column that says how often each row counts.
            part: (i, k) for the i-th of k parts. The statistics of all parts add up to those of
                the file; with several processes, `(jax.process_index(), jax.process_count())` and
                `sum(tg.distributed.exchanged(...))`.

        Raises:
            ValueError: for a column that is not there, a missing or infinite number, or no rows.

        Example:
            >>> import pathlib, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "my.csv")
            ...     _ = path.write_text("x,y\\n1,10\\n2,20\\n6,60\\n", "utf-8")
            ...     whole = tg.Statistics.from_file(path)
            >>> whole.num_rows, whole.mean
            (3, array([ 3., 30.]))
        """
        names = None if columns is None else list(columns)
        if weights is not None:
            every = tables.header(path) if names is None else names
            names = [*(name for name in every if name != weights), weights]
        total: Statistics | None = None
        begin = 0
        for rows in tables.chunks(path, names, part):
            counts = None if weights is None else rows[:, -1]
            try:
                if counts is None or counts.any():  # else a chunk of weights 0, which adds nothing
                    added = cls.from_rows(rows if counts is None else rows[:, :-1], counts)
                    total = added if total is None else total + added
            except ValueError as error:
                place = f"{path}, part {part[0]} of {part[1]}, row {begin} of it onwards"
                raise ValueError(f"{place}: {error}") from error
            begin += len(rows)
        if total is None:
            raise ValueError(
                f"Statistics: part {part[0]} of {part[1]} of {path} has no row that counts."
            )
        return total

    def __add__(self, other: "Statistics") -> "Statistics":
        if not isinstance(other, Statistics):
            return NotImplemented
        if other.mean.shape != self.mean.shape:
            raise ValueError(
                f"Statistics: of {len(self.mean)} and {len(other.mean)} columns cannot be added."
            )
        (n, mean, scatter), (m, other_mean, other_scatter) = self._pairs(), other._pairs()
        total = plus(n, m)
        gap = plus(other_mean, negative(mean))
        between = times(outer(gap), over(times(n, m), total))
        pairs = total, plus(mean, times(gap, over(m, total))), plus(
            plus(scatter, other_scatter), between
        )  # fmt: skip
        ends = [
            None if one is None or two is None else choose(one, two)
            for choose, one, two in (
                (np.minimum, self.lowest, other.lowest),
                (np.maximum, self.highest, other.highest),
            )
        ]
        return _of_pairs(self.num_rows + other.num_rows, *pairs, *ends)

    def __radd__(self, other: Any) -> "Statistics":
        return self if isinstance(other, int) and other == 0 else NotImplemented  # for `sum`

    def _pairs(self) -> tuple[Pair, Pair, Pair]:
        values = self.weight, self.mean, self.scatter
        weight, mean, scatter = zip(values, self.rest)
        return weight, mean, scatter


def as_weights(weights: Any, n: int) -> np.ndarray:
    """Weights (n,), checked."""
    weights = np.asarray(weights, np.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights must have shape ({n},), one a row, got {weights.shape}.")
    if not np.all((weights >= 0) & np.isfinite(weights)) or not weights.any():
        raise ValueError("weights must be finite, not negative, and not all zero.")
    return weights


def _of_pairs(num_rows: int, weight: Pair, mean: Pair, scatter: Pair, *ends: Any) -> Statistics:
    (n, n_rest), (m, m_rest), (s, s_rest) = weight, mean, scatter
    low, high = ends
    return Statistics(num_rows, m, s, n, low, high, rest=(n_rest, m_rest, s_rest))


def _of_chunk(rows: np.ndarray, weights: np.ndarray | None) -> Statistics:
    """The statistics of at most CHUNK rows."""
    with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
        centre = rows.mean(axis=0)
        residual = two_sum(rows, -centre)
        one = np.ones((len(rows), 1))
        left = np.hstack([one, residual[0]]), np.hstack([0.0 * one, residual[1]])
        right = left if weights is None else times(left, (weights[:, None], 0.0))
        sums = product(left, right)
        total, first, squares = (
            tuple(part[block] for part in sums)
            for block in ((0, 0), (0, slice(1, None)), (slice(1, None), slice(1, None)))
        )
        gap = over(first, total)
        scatter = plus(squares, negative(times(outer(gap), total)))
        scatter = tuple(0.5 * (part + part.T) for part in scatter)
        mean = plus((centre, np.zeros_like(centre)), gap)
    return _of_pairs(len(rows), total, mean, scatter, rows.min(axis=0), rows.max(axis=0))


def product(left: Pair, right: Pair) -> Pair:
    """left^T right of at most CHUNK rows, in twice the precision.

    Each factor is cut into slices of few bits, on one grid a column, whose products and their sums
    are exact in float64.
    """
    ones = slices(left)
    twos = ones if right is left else slices(right)
    total: Pair | None = None
    for one in ones:
        for two in twos:
            part = one.T @ two
            total = (part, np.zeros_like(part)) if total is None else plus(total, (part, 0.0))
    assert total is not None
    return total


def slices(values: Pair) -> list[np.ndarray]:
    """Three parts of BITS bits each, below the largest value of each column."""
    rounded, rest = values
    largest = np.abs(rounded).max(axis=0)
    grid = np.ldexp(1.0, np.frexp(largest)[1] + 53 - BITS)
    parts = []
    for _ in range(3):
        part = (rounded + grid) - grid
        rounded, rest = two_sum(rounded - part, rest)
        parts.append(part)
        grid = np.ldexp(grid, -BITS)
    return parts


def two_product(x: Any, y: Any) -> Pair:
    """x y and the rounding error of that product (Dekker)."""
    total = x * y
    (x1, x2), (y1, y2) = halves(x), halves(y)
    return total, ((x1 * y1 - total) + x1 * y2 + x2 * y1) + x2 * y2


def halves(x: Any) -> Pair:
    large = 134217729.0 * x  # 2^27 + 1
    top = large - (large - x)
    return top, x - top


def plus(x: Pair, y: Pair) -> Pair:
    total, rest = two_sum(x[0], y[0])
    low, lower = two_sum(x[1], y[1])
    total, rest = two_sum(total, rest + low)
    return two_sum(total, rest + lower)


def negative(x: Pair) -> Pair:
    return -x[0], -x[1]


def times(x: Pair, y: Pair) -> Pair:
    total, rest = two_product(x[0], y[0])
    return two_sum(total, rest + (x[0] * y[1] + x[1] * y[0]))


def over(x: Pair, y: Pair) -> Pair:
    first = x[0] / y[0]
    left = plus(x, negative(times((first, 0.0 * first), y)))
    return two_sum(first, left[0] / y[0])


def outer(x: Pair) -> Pair:
    return times(tuple(part[:, None] for part in x), tuple(part[None, :] for part in x))
