"""A function of those rows of a batch that need it, a few rows at a time.

Under `jax.vmap` a condition for each row computes both sides for every row, and a loop makes as
many steps for every row as the slowest takes. Here the rows that need a function are gathered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

AT_ONCE = 16  # rows

Scalar = Callable[[jax.Array], jax.Array]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def where_needed(function: Scalar, needed: jax.Array, x: jax.Array) -> jax.Array:
    """`function` of a vector where it is needed, else 0; with derivatives of every mode up to the
    second, which are computed along with it."""
    return _gathered(function)(needed, x)


@where_needed.defjvp
def _where_needed_jvp(function: Scalar, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    value, gradient = _with_gradient(function, *primals)
    return value, gradient @ tangents[1]


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _with_gradient(
    function: Scalar, needed: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gathered(jax.value_and_grad(function))(needed, x)


@_with_gradient.defjvp
def _with_gradient_jvp(function: Scalar, primals: Any, tangents: Any) -> tuple[Any, Any]:
    def gradient(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, slopes = jax.value_and_grad(function)(x)
        return slopes, (value, slopes)

    hessian, (value, slopes) = _gathered(jax.jacfwd(gradient, has_aux=True))(*primals)
    return (value, slopes), (slopes @ tangents[1], hessian @ tangents[1])


def _gathered(function: Callable[[jax.Array], Any]) -> Any:
    """`function(x)` where `needed`, else zeros, as a function of (needed, x)."""

    def zeros(x: jax.Array, *batch: int) -> Any:
        shapes = jax.eval_shape(function, x)
        return jax.tree.map(lambda leaf: jnp.zeros((*batch, *leaf.shape), leaf.dtype), shapes)

    @custom_vmap
    def one(needed: jax.Array, x: jax.Array) -> Any:
        return jax.lax.cond(needed, function, zeros, x)

    @one.def_vmap
    def many(count: int, batched: Any, needed: jax.Array, x: jax.Array) -> tuple[Any, Any]:
        x = jnp.asarray(x) if batched[1] else jnp.broadcast_to(x, (count, *x.shape))
        every = jax.vmap(function)
        if not batched[0]:
            results = _gathered(every)(needed, x)
            return results, jax.tree.map(lambda _: True, results)
        order = jnp.argsort(~needed)
        total = jnp.sum(needed)

        def step(k: jax.Array, results: Any) -> Any:
            positions = k * AT_ONCE + jnp.arange(AT_ONCE)
            rows = order.at[positions].get(mode="clip")
            new, to = every(x[rows]), jnp.where(positions < total, rows, count)
            return jax.tree.map(lambda old, n: old.at[to].set(n, mode="drop"), results, new)

        steps = (total + AT_ONCE - 1) // AT_ONCE
        results = jax.lax.fori_loop(0, steps, step, zeros(x[0], count))
        return results, jax.tree.map(lambda _: True, results)

    return one
