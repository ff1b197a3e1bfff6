"""A function of one row, mapped over all rows of a batch; results with their slopes; and batches in
parts that memory holds.

Rows are spread over the devices of `parallel.rows`. On a processor each device answers for so few
rows at a time that no factorisation of their matrices is divided among threads: jaxlib divides a
batch of more than 200,000 floating point operations, and the thread that asks for it waits in the
pool that is to do the work. As many such calls as the pool has threads, on several devices or
independent of each other on one, wait for ever.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero

from truncgauss.arrays import parallel
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import common_shape, is_concrete

T = TypeVar("T")
MOST_NUMBERS = 2**25  # in the arrays of one batch of rows: 256 MiB in float64
DIVIDED = 200_000  # operations in one batch of a factorisation, from which on it is divided
# Factorisations, with bounds of their operations over (size of an operand) x (shorter side).
FACTORISATIONS = {
    "cholesky": 1, "triangular_solve": 1, "lu": 1, "geqrf": 2, "geqp3": 2,
    "householder_product": 4, "eigh": 16, "svd": 32, "eig": 32, "schur": 32, "hessenberg": 8,
    "tridiagonal": 8,
}  # fmt: skip

ARRAYS: Any = (jax.Array, np.ndarray)


def mapped(function: Callable[..., Any], rows: tuple[Any, ...], axes: tuple[Any, ...]) -> Any:
    """`function` of every row, on the devices of `parallel.rows`.

    Args:
        function: of one row of each argument.
        rows: pytrees of arrays.
        axes: of each argument 0 if it has a leading axis of rows, None if all rows share it.
    """

    def each(*rows: Any) -> Any:
        return _in_turns(function, rows, axes, rows_undivided(function, rows, axes))

    return parallel.over_rows(each, rows, axes)


def vmapped_in_turns(
    function: Callable[..., Any], width: int, axes: tuple[int | None, ...] | None = None
) -> Any:
    """`function`, of whose rows `jax.vmap` computes `width` at a time, in the memory of these.

    It must not be differentiated: it belongs inside of a rule for derivatives.

    Args:
        function: of arrays, without leading axes.
        width: the number of rows.
        axes: of the arrays in a call 0 for one with a leading axis of rows, which is then that of
            all results; None for a call with a single row.
    """

    def of_rows(*rows: jax.Array) -> Any:
        return function(*rows) if axes is None else _in_turns(function, rows, axes, width)

    every = custom_vmap(of_rows)

    @every.def_vmap
    def more(count: int, batched: Any, *rows: jax.Array) -> tuple[Any, Any]:
        """The rows of both axes as those of one."""
        if not any(batched):  # which JAX asks where a derivative alone has the new axis
            results = of_rows(*rows)
            return results, jax.tree.map(lambda _: False, results)
        inner = tuple(None for _ in rows) if axes is None else axes
        size = next(
            (row.shape[new] for row, new, axis in zip(rows, batched, inner) if axis == 0), 1
        )
        both = tuple(0 if new or axis == 0 else None for new, axis in zip(batched, inner))

        def merged(row: jax.Array, new: bool, axis: int | None) -> jax.Array:
            row = row if new else row[None]
            row = row if axis == 0 else row[:, None]
            every = jnp.broadcast_to(row, (count, size, *row.shape[2:]))
            return every.reshape(count * size, *row.shape[2:])

        flat = (
            row if axis is None else merged(row, new, old)
            for row, new, old, axis in zip(rows, batched, inner, both)
        )
        shape = (count,) if axes is None else (count, size)
        results = jax.tree.map(
            lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]),
            vmapped_in_turns(function, width, both)(*flat),
        )
        return results, jax.tree.map(lambda _: True, results)

    return every


def _in_turns(
    function: Callable[..., Any], rows: tuple[Any, ...], axes: tuple[Any, ...], width: int
) -> Any:
    """`function` of every row, `width` or a few less at a time."""
    size = next(jax.tree.leaves(row)[0].shape[0] for row, axis in zip(rows, axes) if axis == 0)
    every = jax.vmap(function, in_axes=axes)
    # A program that is exported for any number of rows computes all at once.
    if not isinstance(size, int) or size <= width:
        return every(*rows)
    least, devices = math.ceil(size / width), jax.device_count()
    even = (n for n in range(least, min(2 * least, size) + 1) if size % (n * devices) == 0)
    turns = next(even, least)
    missing = -size % turns
    mapped = [row for row, axis in zip(rows, axes) if axis == 0]

    # A turn takes every so many-th row. So its rows lie on all devices if all rows do.
    def apart(leaf: jax.Array) -> jax.Array:
        more = jnp.broadcast_to(leaf[-1:], (missing, *leaf.shape[1:]))
        leaf = jnp.concatenate([leaf, more]) if missing else leaf
        # By lengths, not -1: a row may hold no number.
        return jnp.moveaxis(leaf.reshape((len(leaf) // turns, turns, *leaf.shape[1:])), 1, 0)

    def together(leaf: jax.Array) -> jax.Array:
        count = leaf.shape[0] * leaf.shape[1]
        return jnp.moveaxis(leaf, 0, 1).reshape((count, *leaf.shape[2:]))[:size]

    def turn(mapped: list[Any]) -> Any:
        of_turn = iter(mapped)
        return every(*(next(of_turn) if axis == 0 else row for row, axis in zip(rows, axes)))

    return jax.tree.map(together, jax.lax.map(turn, jax.tree.map(apart, mapped)))


def rows_undivided(
    function: Callable[..., Any], rows: tuple[Any, ...], axes: tuple[Any, ...]
) -> int:
    """The number of rows that may be computed at a time without dividing a factorisation."""
    size = next(len(jax.tree.leaves(row)[0]) for row, axis in zip(rows, axes) if axis == 0)
    if jax.default_backend() != "cpu" or size == 1:
        return size

    def one(row: Any, axis: int | None) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], row) if axis == 0 else row

    traced = jax.make_jaxpr(function)(*(one(row, axis) for row, axis in zip(rows, axes)))
    largest = max(operations(traced.jaxpr), default=0)
    return max(1, (DIVIDED - 1) // largest) if largest else size


def operations(jaxpr: Any) -> Iterator[int]:
    """Bounds of the operations of each factorisation in a program."""
    for equation in jaxpr.eqns:
        factor = FACTORISATIONS.get(equation.primitive.name)
        if factor is not None:
            shapes = [leaf.aval.shape for leaf in equation.invars]
            side = min(min(shape[-2:]) for shape in shapes if len(shape) >= 2)
            yield factor * side * max(math.prod(shape) for shape in shapes)
        for value in equation.params.values():
            parts = value if isinstance(value, (tuple, list)) else (value,)
            for part in parts:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from operations(inner)


# --- Results with their slopes --------------------------------------------------------------------


def with_slopes(
    value: Callable[..., T],
    sloped: Callable[..., tuple[T, Any]],
    *arguments: Any,
    traced: Callable[..., T] | None = None,
) -> T:
    """value(*arguments), whose derivative is taken from slopes that are computed along with it.

    JAX's own needs the memory of all that led to the result, and is not known through some loops.
    Here slopes are computed where a derivative is asked for, and only in what moves.

    Args:
        value: of the arguments: a tuple of arrays, of which the first alone has a derivative.
        sloped: of `moved` and the arguments: the same result, and a tree of the slopes of its first
            array in the leaves of the arguments that move, of which `moved` has the numbers, or in
            all that ever do, which then are the first. A slope has the axes of that array, then
            those of the leaf, where the leaf does not have them itself. Second derivatives are the
            derivatives of these slopes.
        arguments: pytrees. They hold every array that is traced: the derivative may be asked for
            when the trace in which the functions were made is over.
        traced: the value as JAX differentiates it, where slopes are known at numbers alone.
    """
    leaves, structure = jax.tree.flatten(arguments)

    @jax.custom_jvp
    def result(*leaves: jax.Array) -> T:
        return value(*jax.tree.unflatten(structure, leaves))

    @partial(result.defjvp, symbolic_zeros=True)
    @in_full_precision
    def result_jvp(primals: Any, tangents: Any) -> tuple[T, T]:
        moved = [k for k, change in enumerate(tangents) if not isinstance(change, SymbolicZero)]
        if traced is not None and not is_concrete(primals):
            whole = lambda *leaves: traced(*jax.tree.unflatten(structure, leaves))
            return moved_along(whole, moved, primals, tangents)
        results, slopes = sloped(moved, *jax.tree.unflatten(structure, primals))
        every = jax.tree.leaves(slopes)
        slopes = [every[k] for k in moved] if len(every) > len(moved) else every
        (first, *others), form = jax.tree.flatten(results)
        change = _change(slopes, [tangents[k] for k in moved], first)
        return results, jax.tree.unflatten(form, [change, *map(jnp.zeros_like, others)])

    return result(*leaves)


@jax.jit
def _change(slopes: list[jax.Array], changes: list[jax.Array], first: jax.Array) -> jax.Array:
    """The change of an array by its slopes."""
    total = jnp.zeros_like(first)
    for slope, change in zip(slopes, changes):
        change = jax.lax.broadcast_to_rank(change, slope.ndim)
        total = total + jnp.sum(slope * change, tuple(range(first.ndim, slope.ndim)))
    return total


def moved_along(
    function: Callable[..., T], moved: list[int], primals: Any, tangents: Any
) -> tuple[T, T]:
    """The result of a function of arrays, and its change where some of them move."""

    def of_moved(*some: jax.Array) -> T:
        changed = dict(zip(moved, some))
        return function(*(changed.get(k, leaf) for k, leaf in enumerate(primals)))

    return jax.jvp(of_moved, [primals[k] for k in moved], [tangents[k] for k in moved])


def slopes_of(
    function: Callable[..., T], moved: list[int], *arguments: Any
) -> tuple[T, list[jax.Array]]:
    """The result of a function, a tuple whose first array is one number, and the slopes of that in
    some leaves of the arguments."""
    leaves, structure = jax.tree.flatten(arguments)

    def first(some: list[jax.Array]) -> tuple[jax.Array, T]:
        changed = dict(zip(moved, some))
        whole = [changed.get(k, leaf) for k, leaf in enumerate(leaves)]
        result = function(*jax.tree.unflatten(structure, whole))
        return jax.tree.leaves(result)[0], result

    (_, result), slopes = jax.value_and_grad(first, has_aux=True)([leaves[k] for k in moved])
    return result, slopes


def undifferentiated(tree: T, message: str) -> T:
    """The tree from which slopes are computed, whose own derivative is a ValueError."""

    @jax.custom_jvp
    def same(tree: T) -> T:
        return tree

    @partial(same.defjvp, symbolic_zeros=True)
    def same_jvp(primals: tuple[T], tangents: tuple[Any]) -> tuple[T, Any]:
        is_zero = lambda change: isinstance(change, SymbolicZero)
        if not all(map(is_zero, jax.tree.leaves(tangents, is_leaf=is_zero))):
            raise ValueError(message)
        return primals[0], tangents[0]

    return same(tree)


# --- Parts of a batch -----------------------------------------------------------------------------


def flattened(problem: Any) -> Any:
    """The problem with its leading axes as one; an input shared by all rows stays shared."""
    return type(problem)(*(along_one_axis(part, problem.batch_shape) for part in problem))


def problem_rows(problem: Any, rows: np.ndarray) -> Any:
    """Some rows of a problem with one leading axis."""
    return type(problem)(*(rows_of(part, rows) for part in problem))


def rows_of(part: Any, rows: np.ndarray) -> Any:
    """Some rows of an input with one leading axis; the input itself if all rows share it."""
    shared = part.ndim == 1 if isinstance(part, ARRAYS) else part.batch_shape == ()
    return part if shared else jax.tree.map(lambda leaf: leaf[rows], part)


def along_one_axis(part: Any, batch_shape: tuple[int, ...]) -> Any:
    """An input with its leading axes as one; the input itself if all rows share it."""
    if isinstance(part, ARRAYS):
        if part.ndim == 1:
            return part
        whole = jnp.broadcast_to(part, batch_shape + part.shape[-1:])
    elif part.batch_shape == ():
        return part
    else:
        whole = part.broadcast_to(batch_shape)
    count, axes = math.prod(batch_shape), len(batch_shape)  # -1 is unknown of a rank of 0
    return jax.tree.map(lambda leaf: leaf.reshape((count, *leaf.shape[axes:])), whole)


def padded_to_power_of_two(rows: np.ndarray, compiled: int = 0) -> np.ndarray:
    """Row numbers, the first repeated up to a number for which a program is compiled, or, of more
    rows, up to a power of two, so that few shapes are compiled."""
    size = compiled if len(rows) <= compiled else 2 ** math.ceil(math.log2(len(rows)))
    return np.concatenate([rows, np.full(size - len(rows), rows[0])])


def in_batches(
    function: Callable[[Any, Any, jax.Array], Any], method: Any, problem: Any, key: jax.Array
) -> Any:
    """The results of `function(method, problem, key)`, in batches of rows of bounded memory.

    Rows that are spread over devices, or under a trace, are one batch.

    Args:
        function: of a method and a problem with leading axes.
        method: with a `batch_shape` of its own, and `numbers_held` of a number of dimensions.
        problem: a mean, a covariance and a region.
        key: shared by all rows.
    """
    batch_shape = common_shape(problem.batch_shape, method.batch_shape)
    num_rows, width = math.prod(batch_shape), rows_in_memory(method, problem)
    if (
        num_rows <= width
        or not is_concrete((method, problem))
        or any(map(parallel.is_spread, jax.tree.leaves(problem)))
    ):
        return function(method, problem, key)
    flat, own = flattened(problem), along_one_axis(method, batch_shape)
    groups, results = [], []
    for start in range(0, num_rows, width):
        # The last batch is filled up with the first rows rather than compiled for fewer.
        rows = np.arange(start, start + width) % num_rows
        chosen = rows[0] if width == 1 else rows
        part = rows_of(own, chosen), problem_rows(flat, chosen)
        result = jax.block_until_ready(function(*part, key))
        results.append(jax.tree.map(lambda x: x[None], result) if width == 1 else result)
        groups.append(rows[: num_rows - start])
    return joined(results, groups, batch_shape)


def joined(results: list[Any], groups: list[np.ndarray], batch_shape: tuple[int, ...]) -> Any:
    """The results for groups of rows as one, with leading axes; the rows of each are its first."""
    back = np.argsort(np.concatenate(groups))

    def whole(*leaves: Any) -> jax.Array:
        # Of numbers by NumPy: each small operation of JAX would be compiled.
        xp: Any = np if is_concrete(leaves) else jnp
        parts = [xp.asarray(leaf)[: len(rows)] for leaf, rows in zip(leaves, groups)]
        return jnp.asarray(xp.concatenate(parts)[back].reshape(batch_shape + leaves[0].shape[1:]))

    return jax.tree.map(whole, *results)


def rows_in_memory(method: Any, problem: Any) -> int:
    """The number of rows of a batch whose arrays memory holds, a power of two."""
    numbers = method.numbers_held(problem.covariance.dimension)
    return 2 ** max(0, int(math.log2(MOST_NUMBERS / numbers)))
