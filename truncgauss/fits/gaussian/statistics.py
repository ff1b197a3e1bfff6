"""Sufficient statistics of complete rows under a Gaussian: their number, mean and scatter."""

import dataclasses
import functools
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss import tables
from truncgauss.arrays.linalg import two_sum
from truncgauss.arrays.pytrees import frozen_pytree, host_numbers, is_concrete, static_field
from truncgauss.words.arguments import explained, explained_class

CHUNK, FEW = 2**12, 2**4  # rows at a time, and of these in one product of matrices


@explained_class
@frozen_pytree
class Statistics:
    """Number, mean, scatter and extremes of complete, exact rows; statistics of parts add up.

    They are all that the likelihood of rows with shared limits depends on. Sums are taken about the
    mean, in float64 on the host, whatever JAX's precision is. In any order and any number of parts
    they agree to rounding, also for rows shifted by 1e8 of their standard deviations: a billion
    rows are read in parts, anywhere, and their statistics added.

    Args:
        num_rows: how many rows there are.
        mean: their (weighted) mean, shape (d,).
        scatter: the sum of (row - mean) (row - mean)^T, times the weights, shape (d, d).
        weight: the sum of the weights; num_rows by default.
        lowest: the least value of each column, shape (d,); None if it is not known. Without the
            extremes no fit can check that the rows lie inside its limits.
        highest: the greatest, likewise.
        rest: the rounding error of the mean, shape (d,), where it is known: of rows shifted by 1e8
            of their standard deviations the mean is rounded at 1e-8 of these.
        coordinate_names: those of the columns, if the rows had some (static).

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
    """

    num_rows: Any
    mean: Any
    scatter: Any
    weight: Any = None
    lowest: Any = None
    highest: Any = None
    rest: Any = None
    coordinate_names: tuple[Any, ...] | None = static_field(default=None)

    def __post_init__(self) -> None:
        parts = ("mean", "scatter", "num_rows")
        mean, scatter, rows = (host_numbers(getattr(self, x), f"Statistics: {x}") for x in parts)
        if rows.ndim or rows % 1:
            raise ValueError(f"Statistics: num_rows must be a whole number, got {self.num_rows}.")
        if mean.ndim != 1 or scatter.shape != mean.shape * 2 or not len(mean):
            raise ValueError(
                "Statistics: mean and scatter must have shapes (d,) and (d, d), got "
                f"{mean.shape} and {scatter.shape}."
            )
        weight = np.float64(self.num_rows if self.weight is None else self.weight)
        finite = all(np.all(np.isfinite(part)) for part in (weight, mean, scatter))
        size = np.outer(*[np.sqrt(np.abs(np.diagonal(scatter)))] * 2)
        symmetric = np.all(np.abs(scatter - scatter.T) <= 1e-12 * size) and np.all(
            np.diagonal(scatter) >= 0
        )
        if not finite or not symmetric or self.num_rows < 1 or weight <= 0:
            raise ValueError(
                "Statistics: needs one row or more, a positive weight, a finite mean and a finite, "
                f"symmetric scatter, no negative diagonal; got {self.num_rows} row(s), weight "
                f"{weight}, mean {mean}, scatter {scatter}. Above 1e150 no value can be squared."
            )
        ends = {"lowest": self.lowest, "highest": self.highest}
        for name, end in ends.items():
            if end is not None and np.shape(end) != mean.shape:
                raise ValueError(
                    f"Statistics: {name} must have shape {mean.shape}, got {np.shape(end)}."
                )
            ends[name] = None if end is None else np.asarray(end, np.float64)
        values = {"num_rows": int(self.num_rows), "mean": mean, "scatter": scatter}
        rest = np.zeros_like(mean) if self.rest is None else np.asarray(self.rest, np.float64)
        for name, value in {**values, "weight": weight, **ends, "rest": rest}.items():
            object.__setattr__(self, name, value)

    @classmethod
    @explained
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
                "here. The statistics of each process's own rows add up."
            )
        rows, weights = tables.in_one_order("Statistics", rows=rows, weights=weights)
        table = tables.read(rows, what="Statistics: rows")
        rows = table.values.astype(np.float64, copy=False)
        rows = rows[:, None] if rows.ndim == 1 else rows
        if rows.ndim != 2 or 0 in rows.shape:
            raise ValueError(
                f"Statistics: rows must have shape (n, d), with one row or more, got {rows.shape}."
            )
        wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(wrong):
            raise ValueError(
                f"Statistics: {len(wrong)} of {len(rows)} observation(s) hold NaN or infinity, "
                f"first row {wrong[0]}: {rows[wrong[0]]}. Only complete observations have "
                "statistics."
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
        return dataclasses.replace(parts[0], coordinate_names=table.names)

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
                the file; with several processes, `(jax.process_index(), jax.process_count())`.

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
        names = tables.header(path) if names is None and Path(path).suffix != ".npy" else names
        named = tuple(name for name in names or () if name != weights) or None
        return dataclasses.replace(total, coordinate_names=named)

    def __add__(self, other: "Statistics") -> "Statistics":
        if not isinstance(other, Statistics):
            raise TypeError(
                "Statistics: are added to tg.Statistics of other rows of the same columns, got "
                f"{type(other).__name__}. Of rows: tg.Statistics.from_rows(rows)."
            )
        if other.mean.shape != self.mean.shape:
            raise ValueError(
                f"Statistics: of {len(self.mean)} and {len(other.mean)} columns cannot be added."
            )
        if len(self.mean) > 1:
            from truncgauss.arrays.coordinates import check_one_order

            check_one_order(statistics=self, others=other)
        total = self.weight + other.weight
        share = other.weight / total
        gap = (other.mean - self.mean) + (other.rest - self.rest)
        mean, rest = two_sum(self.mean, self.rest + share * gap)
        scatter = self.scatter + other.scatter + self.weight * share * np.outer(gap, gap)
        low, high = [
            None if one is None or two is None else choose(one, two)
            for choose, one, two in (
                (np.minimum, self.lowest, other.lowest),
                (np.maximum, self.highest, other.highest),
            )
        ]
        count = self.num_rows + other.num_rows
        names = self.coordinate_names or other.coordinate_names
        return Statistics(count, mean, scatter, total, low, high, rest, names)

    def __radd__(self, other: Any) -> "Statistics":
        return self if isinstance(other, int) and other == 0 else self + other  # for `sum`


def as_weights(weights: Any, n: int) -> np.ndarray:
    """Weights (n,), checked."""
    weights = host_numbers(weights, "weights")
    if weights.shape != (n,):
        raise ValueError(f"weights must have shape ({n},), one a row, got {weights.shape}.")
    wrong = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if len(wrong) or not weights.any():
        got = f"{weights[wrong[0]]:g} in row {wrong[0]}" if len(wrong) else "zeros alone"
        raise ValueError(f"weights must be finite, not negative, and not all zero; got {got}.")
    return weights


def _of_chunk(rows: np.ndarray, weights: np.ndarray | None) -> Statistics:
    """The statistics of some rows, each of which counts."""
    counts = np.ones(len(rows)) if weights is None else weights
    weight = counts.sum()
    with np.errstate(over="ignore", invalid="ignore"):  # the result is checked
        centre = rows.mean(axis=0)
        residual = rows - centre
        shift = counts @ residual / weight
        mean, rest = two_sum(centre, shift)
        scaled = np.sqrt(counts)[:, None] * (residual - shift)
        # Sums of few products, added by pairs: a last digit counts where columns nearly agree.
        few = np.pad(scaled, ((0, -len(rows) % FEW), (0, 0))).reshape(-1, FEW, rows.shape[1])
        products = few.transpose(0, 2, 1) @ few
        scatter = np.ascontiguousarray(products.transpose(1, 2, 0)).sum(axis=-1)
        low, high = rows.min(axis=0), rows.max(axis=0)
        return Statistics(len(rows), mean, scatter, weight, low, high, rest)
