"""Sums over the rows of a fit, wherever they lie: on this process, or each process its own part.

A fit of rows that are spread over processes runs on each of them with the rows that lie there.
Every sum over rows, of the likelihood and its derivatives or of what comes before, goes through a
`RowSums`, which adds up over the processes. On one process its methods are NumPy's. All processes
get the same numbers, in the same order of addition, so that they take the same steps.
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
from scipy.linalg import cho_solve

from truncgauss.execution import distributed, parallel
from truncgauss.execution.pytrees import frozen_pytree, static_field

MANY = 2**16  # rows from which least squares take their columns' products where these are as good
BLOCK = 2**12  # rows whose columns fit a processor's cache
WELL_CONDITIONED = 1e-4  # smallest eigenvalue of the products of columns of length 1
SKETCH = 2**16  # numbers from which the median of many is taken; it is exact for no more
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Share:
    """The rows of this process: those from `begin` to `end` of `total`.

    Attributes:
        local: whether arrays hold these alone, rather than being spread over processes.
    """

    begin: int
    end: int
    total: int
    local: bool = False

    def of(self, array: Any) -> Any:
        """The local rows of an array, or of several, whose leading axis is that of all rows; a
        number or None as it is."""
        if self.local:
            return array
        if isinstance(array, dict):
            return {name: self.of(column) for name, column in array.items()}
        if isinstance(array, tuple):
            return tuple(map(self.of, array))
        if array is None or np.ndim(array) == 0:
            return array
        if not parallel.is_elsewhere(array):
            return array[self.begin : self.end]
        return np.concatenate([shard for _, shard in sorted(local_shards(array).items())])

    def spread(self, rows: jax.Array, like: jax.Array) -> jax.Array:
        """One array (n, ...) of the local rows of all processes, placed as another one's are."""
        sharding = like.sharding
        if not isinstance(sharding, NamedSharding):
            raise ValueError(f"the rows must be spread over a mesh, got {sharding}.")
        placement = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
        shape = (self.total, *rows.shape[1:])
        return jax.make_array_from_process_local_data(placement, np.asarray(rows), shape)


@frozen_pytree
class RowSums:
    """Sums, extremes and least squares over the rows of all processes.

    Processes exchange numbers in the methods that say "of all rows", which all processes must call
    in the same order; reading an attribute exchanges nothing.

    Attributes:
        share: which of all rows lie on this process (static); None if all do.
    """

    share: Share | None = static_field(default=None)

    def local(self, arrays: T) -> T:
        """The rows of this process; see `Share.of`."""
        return arrays if self.share is None else self.share.of(arrays)

    @property
    def begin(self) -> int:
        """The number of the first local row among all."""
        return 0 if self.share is None else self.share.begin

    # ------------------------------------------------------------ sums

    def sum(self, tree: T) -> T:
        """The sum of the processes' numbers and arrays: of local sums, that of all rows."""
        return tree if self.share is None else added(exchanged(tree))

    def max(self, array: Any) -> Any:
        """The elementwise largest of the processes' arrays."""
        return array if self.share is None else np.max(exchanged(array), axis=0)

    def any(self, condition: Any) -> bool:
        """Whether a condition holds on one process at least."""
        return bool(self.max(np.asarray(bool(condition))))

    def all(self, condition: Any) -> bool:
        return not self.any(not bool(condition))

    def concatenate(self, rows: np.ndarray) -> np.ndarray:
        """All rows, those of one process after those of the other."""
        return rows if self.share is None else np.concatenate(exchanged(rows))

    def count(self, rows: Any) -> int:
        return int(self.sum(np.asarray(len(rows))))

    def triangle(self, columns: np.ndarray, units: Any = 1.0) -> np.ndarray:
        """R of the QR decomposition of the columns (n, p) of all rows, over their units (p,),
        (min(n, p), p).

        Reference:
            Demmel, Grigori, Hoemmen and Langou, "Communication-optimal parallel and sequential QR
                and LU factorizations", SIAM Journal on Scientific Computing (2012).
        """
        factor = factor_of_many(columns, units=units)
        local = np.linalg.qr(columns / units, mode="r") if factor is None else factor.T
        if self.share is None:
            return np.asarray(local)
        return np.asarray(np.linalg.qr(self.concatenate(np.asarray(local)), mode="r"))

    def least_squares(
        self, columns: np.ndarray, values: np.ndarray, weights: np.ndarray | None = None
    ) -> np.ndarray:
        """Coefficients (p,) of columns (n, p) that come nearest to values (n,), over all rows,
        which count as often as their weights (n,) say, by default once."""
        if weights is not None and np.all(weights == 1.0):
            weights = None
        factor = factor_of_many(columns, weights) if self.share is None else None
        if factor is None:
            if weights is not None:
                columns, values = weighted(columns, values, weights)
            if self.share is not None:
                local = np.linalg.qr(np.column_stack([columns, values]), mode="r")
                both = self.concatenate(np.asarray(local))
                columns, values = both[:, :-1], both[:, -1]
            return np.linalg.lstsq(columns, values, rcond=None)[0]
        solution, missed = np.zeros(columns.shape[1]), values
        for _ in range(2):  # once more for the digits that the products have lost
            missed = missed if weights is None else weights * missed
            solution += cho_solve((factor, True), columns.T @ missed)
            missed = values - columns @ solution
        return solution

    def norm(self, columns: np.ndarray) -> np.ndarray:
        return np.asarray(np.sqrt(self.sum(np.einsum("ij,ij->j", columns, columns))))

    def std(self, values: np.ndarray) -> np.ndarray:
        """Standard deviations of all rows, along the leading axis."""
        if self.share is None:
            return np.std(values, axis=0)
        count = self.sum(np.asarray(len(values)))
        mean = self.sum(values.sum(axis=0)) / count
        return np.sqrt(self.sum(((values - mean) ** 2).sum(axis=0)) / count)

    def median(self, values: np.ndarray) -> float:
        """The median of values (n,) of all rows; of more than `SKETCH` that of a sample of them, or
        on several processes some rank near it."""
        if self.share is None and len(values) > SKETCH:
            values = values[np.random.default_rng(0).integers(len(values), size=SKETCH)]
        if self.share is None:
            return float(np.median(values))
        if self.count(values) <= SKETCH:
            return float(np.median(self.concatenate(values)))
        size = min(len(values), SKETCH // jax.process_count())
        ranks = (np.arange(size) + 0.5) / max(size, 1) * len(values)
        sketch = np.sort(values)[ranks.astype(int)]
        weights = np.full(size, len(values) / max(size, 1))
        table = self.concatenate(np.column_stack([sketch, weights]))
        table = table[np.argsort(table[:, 0], kind="stable")]
        below = np.cumsum(table[:, 1])
        return float(table[np.searchsorted(below, 0.5 * below[-1]), 0])

    # ------------------------------------------------------------ contexts

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """A context in which programs spread work over the devices of this process alone, if
        others have rows of their own."""
        if self.share is None:
            yield
            return
        with on_local_devices(), local_inputs(RowSums()):
            yield

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """A context whose ValueError on one process is raised on all; nothing within may
        exchange."""
        with contextlib.nullcontext() if self.share is None else raised_on_all():
            yield


# ---------------------------------------------------------------- whose rows these are


def products_of(
    columns: np.ndarray,
    values: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """The sum of w c c^T over local rows, (p, p), with c the columns and perhaps a value beside.

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


def weighted(
    columns: np.ndarray, values: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Columns (n, p) and values (n,) of the rows that count, times the roots of their weights."""
    if not np.all(weights > 0):
        rows = weights > 0
        columns, values, weights = columns[rows], values[rows], weights[rows]
    if np.all(weights == 1.0):
        return columns, values
    root = np.sqrt(weights)
    return root[:, None] * columns, root * values


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


def of_spread(what: str, tree: Any) -> RowSums:
    """The sums over rows that lie in the arrays of a tree, perhaps spread over processes; within
    `local_inputs` those that it was given.

    Args:
        what: who asks, for messages.
        tree: with arrays whose leading axis is that of the rows, where they are spread.

    Raises:
        ValueError: on every process, if arrays are spread in different ways, along another axis
            than that of the rows, or such that a process has no rows or not a single run of them.
    """
    inputs = _INPUTS.get()
    if inputs is not None:
        return inputs
    spread = [leaf for leaf in jax.tree.leaves(tree) if parallel.is_elsewhere(leaf)]
    if not spread:
        return RowSums()
    runs = {run_of(leaf) for leaf in spread}
    first = runs.pop()
    parts = [tuple(map(int, part)) for part in exchanged(first)]
    alone = not runs and sum(end - begin for begin, end, _ in parts) == first[2]
    if not all(exchanged(bool(alone and first[0] < first[1]))):
        raise ValueError(
            f"{what}: the rows must be spread over the processes along their leading axis, the "
            "same way in all arrays, each on one process. Use tg.distributed.from_file, or "
            "jax.make_array_from_process_local_data with the sharding of "
            "tg.parallel.device_mesh()."
        )
    return RowSums(Share(*first))


def run_of(array: jax.Array) -> tuple[int, int, int]:
    """Begin and end of the rows of this process, 0 and 0 if they are no single run of whole rows,
    and the number of all."""
    shards = local_shards(array)
    begin = end = min(shards, default=0)
    for start, data in sorted(shards.items()):
        if start != end or data.shape[1:] != array.shape[1:]:
            return 0, 0, len(array)
        end = start + len(data)
    return begin, end, len(array)


def of_local(num_rows: int) -> RowSums:
    """The sums over rows of which each process holds so many, of its own, in its arrays.

    Raises:
        ValueError: on every process, if one has none.
    """
    if jax.process_count() == 1:
        return RowSums()
    counts = [int(count) for count in exchanged(np.asarray(num_rows))]
    if not all(counts):
        raise ValueError(f"process {counts.index(0)} has no row. Use fewer processes.")
    begin = sum(counts[: jax.process_index()])
    return RowSums(Share(begin, begin + num_rows, sum(counts), local=True))


_INPUTS: contextvars.ContextVar[RowSums | None] = contextvars.ContextVar("inputs", default=None)


@contextlib.contextmanager
def raised_on_all() -> Iterator[None]:
    """A context whose ValueError on one process is raised on all; nothing within may exchange."""
    message = ""
    try:
        yield
    except ValueError as error:
        message = str(error)
    every = [content.decode() for content in parallel.all_bytes(message.encode())]
    for index, text in enumerate(every):
        if text:
            raise ValueError(f"process {index}, of its own rows: {text}")


@contextlib.contextmanager
def local_inputs(sums: RowSums) -> Iterator[None]:
    """A context in which arrays that a user's call takes hold the rows of this process alone, in
    parts of any size, which no array of several processes can have; see `of_local`."""
    before = _INPUTS.set(sums)
    try:
        yield
    finally:
        _INPUTS.reset(before)


def refuse_spread(what: str, tree: Any) -> None:
    """Raise ValueError if arrays of a tree lie on other processes too."""
    if any(map(parallel.is_elsewhere, jax.tree.leaves(tree))):
        raise ValueError(
            f"{what} needs all rows on every process, but these are spread over "
            f"{jax.process_count()}. Give tg.distributed.gathered(rows); within "
            "tg.parallel.rows(mesh) the processes share the work all the same. fit_observations, "
            "fit_regression, fit_mixture, log_likelihood and tg.minimize take spread rows."
        )


def local_shards(array: jax.Array) -> dict[int, np.ndarray]:
    """The parts of an array that lie on this process, by the number of their first row."""
    return {shard.index[0].start or 0: np.asarray(shard.data) for shard in array.addressable_shards}


# ---------------------------------------------------------------- losses


def sums_of(loss: Any) -> RowSums:
    sums: RowSums = getattr(loss, "sums", RowSums())
    return sums


def evaluated(function: Callable[..., T], loss: Any, x: Any, **settings: Any) -> T:
    """function(loss, x), which is a sum over rows: over those of all processes if the loss has
    `sums` of rows that lie on several, and is normalised by the weight of all rows.

    Raises:
        ValueError: if x differs between processes.
    """
    sums = sums_of(loss)
    if sums.share is None:
        return function(loss, x, **settings)
    with on_local_devices():
        local = jax.tree.map(np.asarray, function(loss, x, **settings))
    every = exchanged((jax.tree.map(np.asarray, x), local))
    parameters = [jax.tree.leaves(at) for at, _ in every]
    pairs = (pair for leaves in parameters for pair in zip(leaves, parameters[0], strict=True))
    if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
        raise ValueError(
            "The processes ask for a likelihood at different parameters. All must make the same "
            "calls, on processors and with libraries of one kind."
        )
    return added([part for _, part in every])


def exchanged(tree: T) -> list[T]:
    """The values of a pytree on every process, see `distributed.exchanged`."""
    return distributed.exchanged(jax.tree.map(np.asarray, tree))


def added(trees: list[T]) -> T:
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *trees)


@contextlib.contextmanager
def on_local_devices() -> Iterator[None]:
    """A context in which work is spread over the devices of this process alone."""
    if jax.process_count() == 1:
        yield
        return
    mesh = parallel.device_mesh(jax.local_device_count())
    with parallel.rows(mesh), parallel.replicates(None):
        yield


# ---------------------------------------------------------------- fingerprints


def fingerprint_of(columns: list[Any], counted: np.ndarray | None, begin: int) -> jax.Array:
    """Two words, (2,), that tell these rows from others, however many processes hold them.

    Rows without weight, such as those that fill up the last process, do not count.

    Args:
        columns: arrays whose leading axis is that of the local rows.
        counted: which of these count, or None for all.
        begin: the number of the first of these among all rows.

    Reference:
        Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA (2014), for
            the mixing.
    """
    number = np.arange(begin, begin + len(columns[0]), dtype=np.uint64)
    total = np.zeros(1, np.uint64)
    for index, column in enumerate(columns):
        table = np.asarray(column, np.float64).reshape(len(number), -1) + 0.0
        for k, part in enumerate(np.ascontiguousarray(table.T).view(np.uint64)):
            words = hashed(part, number + np.uint64((index * 1024 + k) << 40))
            words = words if counted is None else np.where(counted, words, np.uint64(0))
            total += np.sum(words, dtype=np.uint64)
    whole = np.sum(exchanged(total), axis=0, dtype=np.uint64)
    return jnp.asarray(whole.view(np.uint32))


def hashed(words: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return mixed(words ^ mixed(numbers))


def mixed(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
