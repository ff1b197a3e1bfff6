"""A function of one row, mapped over all rows of a batch.

Rows are spread over the devices of `parallel.rows`. On a processor each device answers for so few
rows at a time that no factorisation of their matrices is divided among threads: jaxlib divides a
batch of more than 200,000 floating point operations, and the thread that asks for it waits in the
pool that is to do the work. As many such calls as the pool has threads, on several devices or
independent of each other on one, wait for ever.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from truncgauss.arrays import parallel

DIVIDED = 200_000  # operations in one batch of a factorisation, from which on it is divided
# Factorisations, with bounds of their operations over (size of an operand) x (shorter side).
FACTORISATIONS = {
    "cholesky": 1, "triangular_solve": 1, "lu": 1, "geqrf": 2, "geqp3": 2,
    "householder_product": 4, "eigh": 16, "svd": 32, "eig": 32, "schur": 32, "hessenberg": 8,
    "tridiagonal": 8,
}  # fmt: skip


def mapped(function: Callable[..., Any], rows: tuple[Any, ...], axes: tuple[Any, ...]) -> Any:
    """`function` of every row, on the devices of `parallel.rows`.

    Args:
        function: of one row of each argument.
        rows: pytrees of arrays.
        axes: of each argument 0 if it has a leading axis of rows, None if all rows share it.
    """

    def each(*rows: Any) -> Any:
        return _in_turns(function, rows, axes, at_once(function, rows, axes))

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


def at_once(function: Callable[..., Any], rows: tuple[Any, ...], axes: tuple[Any, ...]) -> int:
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
