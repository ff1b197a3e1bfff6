"""Observations in other lengths: in blocks of rows, so that a likelihood needs the memory of one
block at a time, and filled up, so that samples of about as many rows share their programs."""

import dataclasses
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays import parallel
from truncgauss.arrays.pytrees import is_concrete, is_staged
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import Pattern, filled_length

MOST_FILLED = 2**20  # numbers in the largest sample that is copied to be filled up
_FILLED: weakref.WeakKeyDictionary[Observations, Observations] = weakref.WeakKeyDictionary()


class RowBlock(NamedTuple):
    """Some rows of a sample.

    Attributes:
        rows: with the patterns, keys and shared integrals that they have in the whole sample.
            Rows that fill it up count with weight 0.
        numbers: of its m rows in the sample, (m,); that of no row for those that fill it up.
    """

    rows: Observations
    numbers: np.ndarray


class PatternRows(NamedTuple):
    """The rows of one pattern, without those that fill it up.

    Attributes:
        pattern: of the whole sample.
        rows: their numbers there, (g,).
        asker: the number that makes the random key of the integral of each: that of the first row
            that has this integral, (g,).
    """

    pattern: Pattern
    rows: np.ndarray
    asker: np.ndarray


def filled_up(observations: Observations, *columns: Any) -> tuple[Any, ...]:
    """Rows filled up to one of few lengths by copies of the first, which count with weight 0.

    A program for rows of one length serves all samples that are filled up to it. The first rows are
    those of the sample, with their patterns, keys and shared integrals.

    Args:
        observations: n rows.
        columns: pytrees of arrays beside them, whose leading axis is that of the rows, or None.

    Returns:
        The rows and columns. As they are under a trace, where the length is the user's, spread over
        devices, or so large that compilation is short beside work, and copies are expensive.
    """
    n, everything = observations.num_rows, jax.tree.leaves((observations, columns))
    spread = is_staged() or not is_concrete(everything) or any(map(parallel.is_spread, everything))
    if spread or sum(leaf.size for leaf in everything) > MOST_FILLED:
        return observations, *columns
    numbers = np.arange(filled_length(n))
    if len(numbers) == n and observations.weights is not None:
        return observations, *columns
    real = numbers < n
    rows, filled = np.where(real, numbers, 0), _FILLED.get(observations)
    if filled is None:
        patterns = observations.patterns or (), observations.region_patterns or ()
        filled = selected(observations, rows, real, *patterns)
        if filled.lower.dtype == observations.lower.dtype:  # not so for float64 where it is off
            _FILLED[observations] = filled  # for the next call with the same rows
    return filled, *taken(columns, rows)


def first_rows(tree: Any, num_rows: int) -> Any:
    """Results for filled rows, pytrees of arrays (m, ...) or (), cut to the rows of the sample."""
    leaves, structure = jax.tree.flatten(tree)
    if not is_concrete(leaves):  # under a derivative
        return jax.tree.map(lambda leaf: leaf[:num_rows] if leaf.ndim else leaf, tree)
    longer = [i for i, leaf in enumerate(leaves) if leaf.ndim and len(leaf) > num_rows]
    shortened = [np.asarray(leaves[i])[:num_rows] for i in longer]
    for i, leaf in zip(longer, jax.device_put(shortened, [leaves[i].sharding for i in longer])):
        leaves[i] = leaf
    return jax.tree.unflatten(structure, leaves)


def blocks(observations: Observations, size: int) -> list[RowBlock]:
    """Blocks of about `size` rows that make up a sample, of one shape, so that one compiled
    program serves all of them.

    Every block has rows of every pattern. An integral that rows of several blocks share is computed
    in each of these, with the same random key: the terms of a row are those that it has in the
    whole sample.

    Args:
        observations: n rows, whose numbers are there.
        size: the most rows of a block, but for what fills it up.
    """
    n = observations.num_rows
    data, region = parts_of(observations.patterns, n), parts_of(observations.region_patterns, n)
    codes = np.zeros((2, n), int)  # which pattern each row has, from 1 on
    for code, parts in zip(codes, (data, region)):
        for number, part in enumerate(parts, 1):
            code[part.rows] = number
    kinds = [np.flatnonzero(np.all(codes.T == pair, axis=1)) for pair in np.unique(codes.T, axis=0)]
    count = -(-n // size)
    dealt = [deal(rows, count) for rows in kinds]
    rows = np.concatenate([numbers for numbers, _ in dealt], axis=1)
    real = np.concatenate([truth for _, truth in dealt], axis=1)
    patterns = []
    for parts, code in zip((data, region), codes):
        every = [local(part, code[rows] == k, rows, real) for k, part in enumerate(parts, 1)]
        patterns.append(list(zip(*every)) if every else [()] * count)
    return [
        RowBlock(
            selected(observations, rows[b], real[b], patterns[0][b], patterns[1][b]),
            np.where(real[b], rows[b], n),
        )
        for b in range(count)
    ]


def parts_of(patterns: tuple[Pattern, ...] | None, n: int) -> list[PatternRows]:
    """The rows of each pattern of a sample of n."""
    parts = []
    for pattern in patterns or ():
        real = np.asarray(pattern.destinations) < n
        rows = np.asarray(pattern.rows)
        numbers = np.asarray(pattern.key_numbers)
        asker = numbers if pattern.kind is None else numbers[np.asarray(pattern.kind)]
        parts.append(PatternRows(pattern, rows[real], asker[real]))
    return parts


def deal(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in `count` heaps of one height, (count, m), and which of these are no repeated ones."""
    height = filled_length(-(-len(rows) // count))
    positions = np.arange(count * height).reshape(height, count).T
    real = positions < len(rows)
    return rows[np.where(real, positions, 0)], real


def local(
    part: PatternRows, members: np.ndarray, rows: np.ndarray, real: np.ndarray
) -> list[Pattern]:
    """A pattern within each block, of one length.

    Args:
        part: the pattern.
        members: which rows of the blocks have it, (count, m).
        rows, real: as `deal` returns them, (count, m).
    """
    askers_of = np.zeros(rows.max() + 1, int)
    askers_of[part.rows] = part.asker
    pattern, patterns = part.pattern, []
    every = [np.flatnonzero(block) for block in members]
    askers = [askers_of[block[positions]] for block, positions in zip(rows, every)]
    kinds = [np.unique(asker, return_index=True, return_inverse=True) for asker in askers]
    length = filled_length(max(len(first) for _, first, _ in kinds))
    for positions, asker, truth, (_, first, kind) in zip(every, askers, real, kinds):
        shared: dict[str, Any] = {}
        ends = np.where(truth[positions], positions, members.shape[1])
        if pattern.kind is not None:
            filled = np.concatenate([first, np.zeros(length - len(first), int)])
            shared = {"first": jnp.asarray(filled, jnp.int32), "kind": jnp.asarray(kind, jnp.int32)}
        patterns.append(
            dataclasses.replace(
                pattern,
                rows=jnp.asarray(positions, jnp.int32),
                destinations=jnp.asarray(ends, jnp.int32),
                numbers=jnp.asarray(asker, jnp.int32),
                **shared,
            )
        )
    return patterns


def selected(
    observations: Observations,
    rows: np.ndarray,
    real: np.ndarray,
    patterns: tuple[Pattern, ...],
    region_patterns: tuple[Pattern, ...],
) -> Observations:
    """Some rows, with the patterns that they are known to have: these are not sought again."""
    region, noise, weights = observations.region, observations.noise, observations.weights
    if region is not None and region.batch_shape:
        region = taken(region, rows)
    counts = np.ones(len(rows)) if weights is None else np.asarray(weights)[rows]
    if noise is not None and noise.ndim == 3:
        noise = taken(noise, rows)
    return observations.with_known(
        orders=taken(observations.orders, rows),
        region_orders=taken(observations.region_orders, rows),
        lower=taken(observations.lower, rows),
        upper=taken(observations.upper, rows),
        region=region,
        noise=noise,
        weights=jnp.asarray(np.where(real, counts, 0.0), observations.lower.dtype),
        patterns=patterns,
        region_patterns=region_patterns,
        names=None,
    )


def taken(tree: Any, rows: np.ndarray) -> Any:
    """Some rows of every array of a tree; nothing is compiled for their number."""
    return jax.device_put(jax.tree.map(lambda leaf: np.asarray(leaf)[rows], tree))
