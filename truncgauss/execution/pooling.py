"""Sums over rows of which each process holds its own: what fits of spread rows need of each other.

A fit of rows that are spread over processes runs on each of them with the rows that lie there, as
if these were all; what is a sum over rows, of the likelihood and its derivatives or of what comes
before, is added up over the processes by the functions below. Outside of `pool`, and on one
process, they are NumPy's. All processes get the same numbers, in the same order of addition, so
that they take the same steps.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from truncgauss.execution import distributed, parallel

SKETCH = 2**16  # numbers from which a median over processes is taken; it is exact for no more
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows of this process: those from `begin` to `end` of `total`.

    Attributes:
        here: whether arrays hold these alone, rather than being spread over processes.
    """

    begin: int
    end: int
    total: int
    here: bool = False

    def own(self, array: Any) -> Any:
        """The own rows of an array, or of several, whose leading axis is that of all rows; a number
        or None as it is."""
        if self.here:
            return array
        if isinstance(array, dict):
            return {name: self.own(column) for name, column in array.items()}
        if isinstance(array, tuple):
            return tuple(map(self.own, array))
        if array is None or np.ndim(array) == 0:
            return array
        if not parallel.is_elsewhere(array):
            return array[self.begin : self.end]
        return np.concatenate([shard for _, shard in sorted(own_shards(array).items())])

    def spread(self, own: jax.Array, like: jax.Array) -> jax.Array:
        """One array (n, ...) of all processes' own rows, placed as another one's rows are."""
        sharding = like.sharding
        if not isinstance(sharding, NamedSharding):
            raise ValueError(f"the rows must be spread over a mesh, got {sharding}.")
        place = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        shape = (self.total, *own.shape[1:])
        return jax.make_array_from_process_local_data(place, np.asarray(own), shape)


_POOL: contextvars.ContextVar[Share | None] = contextvars.ContextVar("pool", default=None)
_GIVEN: contextvars.ContextVar[Share | None] = contextvars.ContextVar("given", default=None)
_MARK: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("mark", default=None)


# ---------------------------------------------------------------- rows


def own_shards(array: jax.Array) -> dict[int, np.ndarray]:
    """The parts of an array that lie on this process, by the number of their first row."""
    return {shard.index[0].start or 0: np.asarray(shard.data) for shard in array.addressable_shards}


def share_of(what: str, tree: Any) -> Share | None:
    """Which rows of the arrays of a tree lie on this process; None if all do. Within `given` it is
    as that says.

    Args:
        what: who asks, for messages.
        tree: with arrays whose leading axis is that of the rows, where they are spread.

    Raises:
        ValueError: on every process, if arrays are spread in different ways, along another axis
            than that of the rows, or such that a process has no rows or not a single run of them.
    """
    if inside():
        return None
    if _GIVEN.get() is not None:
        return _GIVEN.get()
    spread = [leaf for leaf in jax.tree.leaves(tree) if parallel.is_elsewhere(leaf)]
    if not spread:
        return None
    found = set()
    for leaf in spread:
        shards = own_shards(leaf)
        begin = min(shards, default=0)
        end, whole = begin, True
        for start, data in sorted(shards.items()):
            whole &= start == end and data.shape[1:] == leaf.shape[1:]
            end = start + len(data)
        found.add((begin if whole else 0, end if whole else 0, len(leaf)))
    own = found.pop()
    parts = [tuple(map(int, part)) for part in distributed.exchanged(own)]
    alone = not found and sum(end - begin for begin, end, _ in parts) == own[2]
    if not all(distributed.exchanged(bool(alone and own[0] < own[1]))):
        raise ValueError(
            f"{what}: the rows must be spread over the processes along their leading axis, the "
            "same way in all arrays, each on one process. Use tg.distributed.from_file, or "
            "jax.make_array_from_process_local_data with the sharding of "
            "tg.parallel.device_mesh()."
        )
    return Share(*own)


def of_processes(num_rows: int) -> Share | None:
    """The share of this process, which has so many rows; None if it is the only one.

    Raises:
        ValueError: on every process, if one has none.
    """
    if jax.process_count() == 1:
        return None
    counts = [int(count) for count in distributed.exchanged(np.asarray(num_rows))]
    if not all(counts):
        raise ValueError(f"process {counts.index(0)} has no row. Use fewer processes.")
    begin = sum(counts[: jax.process_index()])
    return Share(begin, begin + num_rows, sum(counts), here=True)


def refuse_spread(what: str, tree: Any) -> None:
    """Raise ValueError if arrays of a tree lie on other processes too."""
    if any(map(parallel.is_elsewhere, jax.tree.leaves(tree))):
        raise ValueError(
            f"{what} needs all rows on every process, but these are spread over "
            f"{jax.process_count()}. Give tg.distributed.gathered(rows); within "
            "tg.parallel.rows(mesh) the processes share the work all the same. fit_observations, "
            "fit_regression, fit_mixture, log_likelihood and tg.minimize take spread rows."
        )


def mark_of(columns: list[Any], counted: np.ndarray | None, share: Share) -> jax.Array:
    """Two words, (2,), that tell these rows from others, however many processes hold them.

    Rows without weight, such as those that fill up the last process, do not count.

    Args:
        columns: arrays whose leading axis is that of the own rows.
        counted: which of these count, or None for all.
        share: which rows these are.

    Reference:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA (2014), for
            the mixing.
    """
    place = np.arange(share.begin, share.end, dtype=np.uint64)
    found = np.zeros(1, np.uint64)
    for number, column in enumerate(columns):
        table = np.asarray(column, np.float64).reshape(len(place), -1) + 0.0
        for k, part in enumerate(np.ascontiguousarray(table.T).view(np.uint64)):
            x = part ^ mixed(place + np.uint64((number * 1024 + k) << 40))
            x = mixed(x) if counted is None else np.where(counted, mixed(x), np.uint64(0))
            found += np.sum(x, dtype=np.uint64)
    whole = np.sum(distributed.exchanged(found), axis=0, dtype=np.uint64)
    return jnp.asarray(whole.view(np.uint32))


def mixed(x: np.ndarray) -> np.ndarray:
    """Words of 64 bits, each mixed."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# ---------------------------------------------------------------- contexts


@contextlib.contextmanager
def pool(share: Share | None) -> Iterator[None]:
    """A context in which every process works on its own rows, and the functions below add up;
    none if there is no share."""
    if share is None:
        yield
        return
    before = _POOL.set(share)
    try:
        with on_own_devices():
            yield
    finally:
        _POOL.reset(before)


@contextlib.contextmanager
def given(share: Share | None) -> Iterator[None]:
    """A context in which the rows that fits take are those of this process alone, one share of all;
    those of all processes if there is no share."""
    before = _GIVEN.set(share)
    try:
        yield
    finally:
        _GIVEN.reset(before)


def inside() -> bool:
    """Whether this is within `pool`."""
    return _POOL.get() is not None


def own_share() -> Share | None:
    """The rows of this process within `pool`, else None."""
    return _POOL.get()


@contextlib.contextmanager
def marked(mark: jax.Array) -> Iterator[None]:
    """A context in which losses are made that checkpoints know by the mark of their rows."""
    before = _MARK.set(mark)
    try:
        yield
    finally:
        _MARK.reset(before)


def mark() -> jax.Array | None:
    """The mark of the rows within `marked`, else None."""
    return _MARK.get()


@contextlib.contextmanager
def on_own_devices() -> Iterator[None]:
    """A context in which work is spread over the devices of this process alone."""
    if jax.process_count() == 1:
        yield
        return
    mesh = parallel.device_mesh(jax.local_device_count())
    with parallel.rows(mesh), parallel.replicates(None):
        yield


@contextlib.contextmanager
def checked_together(apart: bool = False) -> Iterator[None]:
    """A context whose ValueError on one process is raised on all; nothing within may exchange.

    Args:
        apart: whether processes do different work here, though outside of `pool`.
    """
    if not inside() and not (apart and jax.process_count() > 1):
        yield
        return
    said = ""
    try:
        yield
    except ValueError as error:
        said = str(error)
    every = [content.decode() for content in parallel.all_bytes(said.encode())]
    for index, text in enumerate(every):
        if text:
            raise ValueError(f"process {index}, of its own rows: {text}")


# ---------------------------------------------------------------- sums and what is made of them


def total(tree: T) -> T:
    """The sum of numbers and arrays over all processes."""
    return tree if not inside() else _added(tree)


def _added(tree: T) -> T:
    every = distributed.exchanged(jax.tree.map(np.asarray, tree))
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *every)


def evaluated(function: Callable[..., T], loss: Any, x: Any, **settings: Any) -> T:
    """function(loss, x), which is a sum over rows, over those of all processes if the loss has
    rows of this process alone.

    Such a loss has a mark, and is normalised by the weight of all rows.

    Raises:
        ValueError: if x differs between processes.
    """
    if getattr(loss, "mark", None) is None:
        return function(loss, x, **settings)
    with on_own_devices():
        own = jax.tree.map(np.asarray, function(loss, x, **settings))
    every = distributed.exchanged((jax.tree.map(np.asarray, x), own))
    places = [jax.tree.leaves(at) for at, _ in every]
    pairs = (pair for place in places for pair in zip(place, places[0], strict=True))
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise ValueError(
            "The processes ask for a likelihood at different parameters. All must make the same "
            "calls, on processors and with libraries of one kind."
        )
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *(part for _, part in every))


def stacked(array: np.ndarray) -> np.ndarray:
    """The rows of all processes, one process after the other."""
    return array if not inside() else np.concatenate(distributed.exchanged(array))


def largest(array: np.ndarray) -> np.ndarray:
    """The elementwise largest over all processes."""
    return array if not inside() else np.max(distributed.exchanged(array), axis=0)


def every(condition: Any) -> bool:
    """Whether a condition holds on all processes."""
    return not some(not bool(condition))


def some(condition: Any) -> bool:
    """Whether a condition holds on one process at least."""
    return bool(largest(np.asarray(bool(condition))))


def triangle(columns: np.ndarray) -> np.ndarray:
    """R of the QR decomposition of the columns (n, p) of all rows, (min(n, p), p).

    Reference:
        Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR and
            LU factorizations", SIAM Journal on Scientific Computing (2012).
    """
    own = np.asarray(np.linalg.qr(columns, mode="r"))
    return own if not inside() else np.asarray(np.linalg.qr(stacked(own), mode="r"))


def least_squares(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Coefficients (p,) of columns (n, p) that come nearest to values (n,), over all rows."""
    if inside():
        own = np.linalg.qr(np.column_stack([columns, values]), mode="r")
        both = stacked(np.asarray(own))
        columns, values = both[:, :-1], both[:, -1]
    return np.linalg.lstsq(columns, values, rcond=None)[0]


def median(values: np.ndarray) -> float:
    """The median of values (n,) over all processes; of more than `SKETCH` some rank near it."""
    if not inside():
        return float(np.median(values))
    count = int(total(np.asarray(len(values))))
    if count <= SKETCH:
        return float(np.median(stacked(values)))
    kept = min(len(values), SKETCH // jax.process_count())
    ranks = (np.arange(kept) + 0.5) / max(kept, 1) * len(values)
    own = np.sort(values)[ranks.astype(int)]
    weights = np.full(kept, len(values) / max(kept, 1))
    table = stacked(np.column_stack([own, weights]))
    table = table[np.argsort(table[:, 0], kind="stable")]
    below = np.cumsum(table[:, 1])
    return float(table[np.searchsorted(below, 0.5 * below[-1]), 0])


def least(values: np.ndarray, rank: int) -> float:
    """The smallest value that is not exceeded by `rank` of the values (n,), none of which is
    negative, of all processes.

    By bisection among all floats: some 60 counts are exchanged, however many values there are.
    """
    bits = np.sort(np.asarray(values, np.float64) + 0.0).view(np.int64)
    low, high = -1, int(np.float64(np.inf).view(np.int64))
    while high - low > 1:
        middle = low + (high - low) // 2
        count = int(total(np.searchsorted(bits, middle, side="right")))
        low, high = (low, middle) if count >= rank else (middle, high)
    return float(np.int64(high).view(np.float64))


def lengths(columns: np.ndarray) -> np.ndarray:
    """Euclidean lengths of the columns (n, p) of all rows, (p,)."""
    own = np.linalg.norm(columns, axis=0)
    return own if not inside() else np.sqrt(total(own**2))


def deviation(values: np.ndarray) -> np.ndarray:
    """Standard deviations along the leading axis, over all processes."""
    if not inside():
        return np.std(values, axis=0)
    count = total(np.asarray(len(values)))
    mean = total(values.sum(axis=0)) / count
    return np.sqrt(total(((values - mean) ** 2).sum(axis=0)) / count)
