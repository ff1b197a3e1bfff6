"""Patterns of rows by which of their entries are exact, limited or free, computed in NumPy.

Rows with the same pattern are conditioned by the same formula, in one batch; rows with the
same integral share it.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.regions.region import Region

NOWHERE = 2**31 - 1  # an index that no row has
LEAST = 64  # shortest length of rows whose integrals have closed forms and take no time
MOST_BITS = 12  # entries of a row of yes or no, whose kinds are counted rather than sorted
MOST_JOINED = 2**18  # numbers in the covariance matrices of rows whose patterns are joined
FEW = 256  # rows up to which lengths are powers of two


@frozen_pytree
class Pattern:
    """The rows of which the same entries are exact, and the same limited; the others are free.

    All lengths are padded, so that patterns of about as many rows share their compilation: the
    first row is repeated, and the results for these copies are dropped.

    Attributes:
        exact: numbers of the entries that are known exactly (static); None for the rows of several
            patterns with as many limited entries, each in an order of its own, see `RowOrders`.
        limited: of the entries that a finite limit or a polyhedron constrains (static); in those
            orders they are the last.
        bounded: whether any of these has a finite limit of its own (static).
        rows: which rows these are, (g,), filled up by the first.
        destinations: of the results, (g,): the same rows, filled up by `NOWHERE`.
        first: of rows without exact entries, one of each kind that differs, (u,), as positions in
            `rows`; None where entries are exact.
        kind: of which kind each row is, (g,); None likewise.
        numbers: that make the random key of the integral of each row, (g,), if the rows are a part
            of a larger sample, where they have other numbers; None otherwise.
    """

    exact: tuple[int, ...] | None = static_field()
    limited: tuple[int, ...] = static_field()
    bounded: bool = static_field()
    rows: jax.Array
    destinations: jax.Array
    first: jax.Array | None = None
    kind: jax.Array | None = None
    numbers: jax.Array | None = None

    @property
    def representatives(self) -> jax.Array:
        """One row of each kind, whose integral the others share, (u,)."""
        return self.rows if self.first is None else self.rows[self.first]

    @property
    def num_integrals(self) -> int:
        """The number of the representatives, u."""
        return len(self.rows if self.first is None else self.first)

    @property
    def key_numbers(self) -> jax.Array:
        """The numbers that make the random keys of the integrals, (u,)."""
        if self.numbers is None:
            return self.representatives
        return self.numbers if self.first is None else self.numbers[self.first]

    def for_rows(self, values: jax.Array) -> jax.Array:
        """Values of the integrals, (u,), one for each row that uses them, (g,)."""
        return values if self.kind is None else values[self.kind]

    def each_by_itself(self) -> "Pattern":
        """The pattern with an integral for every row: equal limits say nothing if means differ."""
        return dataclasses.replace(self, first=None, kind=None)


class RowOrders(NamedTuple):
    """An order of the entries of each row: the exact ones, those that are free, the limited ones.

    Attributes:
        entries: (n, D).
        exact: whether the entries in that order are, (n, D).
    """

    entries: jax.Array
    exact: jax.Array


class RowLimits(NamedTuple):
    """The limits of n rows of D entries, NumPy arrays or JAX arrays.

    Attributes:
        lower, upper: (n, D), equal where an entry is exact.
        region: a region that limits the last entries too, of batch shape () or (n,), or None. It is
            no `Box`, whose limits are among the others.
    """

    lower: Any
    upper: Any
    region: Region | None

    @property
    def constrained(self) -> np.ndarray:
        """Whether the region limits each entry, unless it is exact, (D,)."""
        d = self.lower.shape[1]
        return np.arange(d) >= d - (0 if self.region is None else self.region.dimension)


def find_patterns(
    limits: RowLimits, exact: np.ndarray, parameters: np.ndarray, rows: np.ndarray
) -> tuple[tuple[Pattern, ...], RowOrders | None]:
    """The patterns of some rows, in one order, whichever row comes first, and orders of the entries
    of all rows if patterns were joined.

    Samples with the same patterns then share a compilation. Three patterns or more are joined to
    one for each number of limited entries, unless there are so many rows that conditioning each by
    itself takes longer than to compile for each pattern.

    Args:
        limits: of all n rows, NumPy arrays.
        exact: whether each entry is exact, (n, D).
        parameters: all else by which the integrals of two rows differ, such as their noise, (n, q).
        rows: the numbers of some of them.
    """
    bounded = (np.isfinite(limits.lower) | np.isfinite(limits.upper)) & ~exact
    limited = bounded | (limits.constrained & ~exact)
    codes = np.concatenate([exact, limited], axis=1)[rows]
    kinds, labels = unique_rows(codes)
    join = len(kinds) > 2 and limits.region is None and exact.size * exact.shape[1] <= MOST_JOINED
    if not join:
        separate = tuple(
            _pattern(limits, parameters, rows[labels == i], codes[kinds[i]], bounded)
            for i in np.lexsort(codes[kinds].T)
        )
        return separate, None
    d = exact.shape[1]
    sizes = limited[rows].sum(axis=1) * 2 + exact[rows].any(axis=1)
    joined = []
    for size in np.unique(sizes):
        # One code for all: as many limited entries, the last ones, and whether some are exact.
        code = np.arange(2 * d) >= 2 * d - size // 2
        code[0] |= bool(size % 2)
        part = _pattern(limits, parameters, rows[sizes == size], code, bounded)
        joined.append(dataclasses.replace(part, exact=None))
    entries = np.argsort(limited * 2 - exact, axis=1, kind="stable")
    known = np.take_along_axis(exact, entries, axis=1)
    return tuple(joined), RowOrders(*jax.device_put((entries.astype(np.int32), known)))


def _pattern(
    limits: RowLimits,
    parameters: np.ndarray,
    rows: np.ndarray,
    code: np.ndarray,
    bounded: np.ndarray,
) -> Pattern:
    exact, limited = np.split(code, 2)
    first = kind = None
    # Short patterns of one sample would otherwise be filled up to many combinations of lengths.
    closed_form = limited.sum() <= 2 and not np.any(limited & limits.constrained)
    least = min(LEAST, filled_length(len(parameters))) if closed_form else 1
    if not exact.any():
        equal = [part[rows] for part in (limits.lower, limits.upper, parameters)]
        firsts, kinds = unique_rows(np.hstack(equal))
        first = filled(firsts, 0, least if len(firsts) > 1 else 1)
        kind = filled(kinds, 0, least)
    return Pattern(
        exact=tuple(int(j) for j in np.flatnonzero(exact)),
        limited=tuple(int(j) for j in np.flatnonzero(limited)),
        bounded=bool(bounded[rows].any()),
        rows=filled(rows, rows[0], least),
        destinations=filled(rows, NOWHERE, least),
        first=first,
        kind=kind,
    )


def filled(numbers: np.ndarray, by: int, least: int = 1) -> jax.Array:
    """Numbers, filled up to one of few lengths: by at most an eighth if there are many."""
    rest = np.full(max(least, filled_length(len(numbers))) - len(numbers), by)
    return jax.device_put(np.concatenate([numbers, rest]).astype(np.int32))


def filled_length(count: int) -> int:
    """The length to which so many rows are filled up."""
    step = 2 ** (count - 1).bit_length() if count <= FEW else 2 ** (count.bit_length() - 4)
    return count + -count % max(step, 1)


def unique_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of the first row of each kind, in order of appearance, and each row's kind."""
    if 0 in table.shape or np.all(table == table[0]):
        return np.zeros(min(1, len(table)), int), np.zeros(len(table), int)
    if table.dtype == bool and table.shape[1] <= MOST_BITS:
        codes = table @ (1 << np.arange(table.shape[1]))
        counts = np.bincount(codes)
        first = np.array([np.argmax(codes == code) for code in np.flatnonzero(counts)])
        kind = (np.cumsum(counts > 0) - 1)[codes]
    elif any(len(np.unique(column)) == len(table) for column in table.T):
        return np.arange(len(table)), np.arange(len(table))
    else:
        table = np.ascontiguousarray(table + 0.0)  # one zero only
        keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).ravel()
        _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[kind.ravel()]


def is_empty(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """Whether every entry of each row (n, d) is missing, (n,)."""
    return np.all((lower == -np.inf) & (upper == np.inf), axis=1)
