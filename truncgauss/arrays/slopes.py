"""Results whose derivative is taken from slopes that are computed along with them.

JAX differentiates a function by the operations that it is made of. Where the slopes are known, as
the mean of those of draws or from the program that computes the value, that is wasteful, needs the
memory of all intermediate values, or, through a loop or a choice, is not possible. Here the slopes
are computed with the value, only where a derivative is asked for, in only those numbers that move.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero

from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import is_concrete

T = TypeVar("T")


def with_slopes(
    value: Callable[..., T],
    sloped: Callable[..., tuple[T, list[Array]]],
    *arguments: Any,
    traced: Callable[..., T] | None = None,
) -> T:
    """value(*arguments), a tuple of arrays of which the first alone has a derivative.

    Args:
        value: of the arguments.
        sloped: of `moved` and the arguments: the same result, and the slopes of its first array in
            each of those leaves of the arguments whose numbers `moved` has. A slope has the axes of
            that array, then those of the leaf; a leaf may have leading axes of the array too, or
            lack them. Second derivatives are the derivatives of these slopes.
        arguments: pytrees. They hold every array that is traced: the derivative may be asked for
            when the trace in which the functions were made is over.
        traced: the same value, for JAX to differentiate where slopes are known at numbers alone.
    """
    leaves, structure = jax.tree.flatten(arguments)

    @jax.custom_jvp
    def result(*leaves: Array) -> T:
        return value(*jax.tree.unflatten(structure, leaves))

    @partial(result.defjvp, symbolic_zeros=True)
    @in_full_precision
    def result_jvp(primals: Any, tangents: Any) -> tuple[T, T]:
        moved = [k for k, change in enumerate(tangents) if not isinstance(change, SymbolicZero)]
        if traced is not None and not is_concrete(primals):
            whole = lambda *leaves: traced(*jax.tree.unflatten(structure, leaves))
            return moved_along(whole, moved, primals, tangents)
        results, slopes = sloped(moved, *jax.tree.unflatten(structure, primals))
        (first, *others), form = jax.tree.flatten(results)
        change = along(slopes, [tangents[k] for k in moved], first)
        return results, jax.tree.unflatten(form, [change, *map(jnp.zeros_like, others)])

    return result(*leaves)


def moved_along(
    function: Callable[..., T], moved: list[int], primals: Any, tangents: Any
) -> tuple[T, T]:
    """The result of a function of arrays, and its change where some of them change."""

    def of_moved(*some: Array) -> T:
        changed = dict(zip(moved, some))
        return function(*(changed.get(k, leaf) for k, leaf in enumerate(primals)))

    return jax.jvp(of_moved, [primals[k] for k in moved], [tangents[k] for k in moved])


@jax.jit
def along(slopes: list[Array], changes: list[Array], first: Array) -> Array:
    """The change of an array by its slopes in numbers that change."""
    total = jnp.zeros_like(first)
    for slope, change in zip(slopes, changes):
        change = jax.lax.broadcast_to_rank(change, slope.ndim)
        total = total + jnp.sum(slope * change, tuple(range(first.ndim, slope.ndim)))
    return total


def slopes_of(
    function: Callable[..., Any], moved: list[int], *arguments: Any
) -> tuple[Any, list[Array]]:
    """The result of a function, a tuple of arrays the first of which is one number, and the slopes
    of that in some leaves of the arguments."""
    leaves, structure = jax.tree.flatten(arguments)

    def first(some: list[Array]) -> tuple[Array, Any]:
        given = dict(zip(moved, some))
        whole = [given.get(k, leaf) for k, leaf in enumerate(leaves)]
        result = function(*jax.tree.unflatten(structure, whole))
        return jax.tree.leaves(result)[0], result

    (_, result), slopes = jax.value_and_grad(first, has_aux=True)([leaves[k] for k in moved])
    return result, slopes


def differentiated_once(tree: T, message: str) -> T:
    """The tree, of which any derivative is a ValueError: what slopes are computed from.

    Raises:
        ValueError: with the message, where a derivative is asked for.
    """

    @jax.custom_jvp
    def same(tree: T) -> T:
        return tree

    @partial(same.defjvp, symbolic_zeros=True)
    def same_jvp(primals: tuple[T], tangents: tuple[Any]) -> tuple[T, Any]:
        changes = jax.tree.leaves(tangents, is_leaf=lambda x: isinstance(x, SymbolicZero))
        if not all(isinstance(change, SymbolicZero) for change in changes):
            raise ValueError(message)
        return primals[0], tangents[0]

    return same(tree)
