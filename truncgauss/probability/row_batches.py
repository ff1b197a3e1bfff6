"""Rows of a problem: selections of them, and their evaluation in batches of bounded memory."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.execution import parallel
from truncgauss.execution.pytrees import common_shape, is_concrete
from truncgauss.gaussian.problem import LocRows, Problem
from truncgauss.probability.method import Method

ARRAYS: Any = (Array, np.ndarray)
MOST_NUMBERS = 2**25  # in the arrays of one batch of rows: 256 MiB in float64


def flattened(problem: Problem) -> Problem:
    """The problem with its leading axes as one; an input shared by all rows stays shared."""
    return Problem(*(_flat(part, problem.batch_shape) for part in problem))


def taken(problem: Problem, rows: np.ndarray) -> Problem:
    """Some rows of a flattened problem."""
    return Problem(*(some(part, rows) for part in problem))


def some(part: Any, rows: np.ndarray) -> Any:
    """Some rows of an input with one leading axis; the input itself if all rows share it."""
    shared = part.ndim == 1 if isinstance(part, ARRAYS) else part.batch_shape == ()
    return part if shared else jax.tree.map(lambda leaf: leaf[rows], part)


def _flat(part: Any, batch_shape: tuple[int, ...]) -> Any:
    whole = LocRows(part) if isinstance(part, ARRAYS) else part
    if whole.batch_shape == ():
        return part
    flat = lambda leaf: leaf.reshape((-1, *leaf.shape[len(batch_shape) :]))
    whole = jax.tree.map(flat, whole.broadcast_to(batch_shape))
    return whole.loc if isinstance(whole, LocRows) else whole


def padded(rows: np.ndarray) -> np.ndarray:
    """Row numbers, the first repeated up to a power of two, so that few shapes are compiled."""
    size = 2 ** math.ceil(math.log2(len(rows)))
    return np.concatenate([rows, np.full(size - len(rows), rows[0])])


def in_batches(
    function: Callable[[Method, Problem, Array], Any], method: Method, problem: Problem, key: Array
) -> Any:
    """The results of `function(method, problem, key)`, in batches of rows of bounded memory.

    Rows that are spread over devices, or under a trace, are one batch.
    """
    batch_shape = common_shape(problem.batch_shape, method.batch_shape)
    num_rows, width = math.prod(batch_shape), at_once(method, problem)
    if (
        num_rows <= width
        or not is_concrete((method, problem))
        or any(map(parallel.is_spread, jax.tree.leaves(problem)))
    ):
        return function(method, problem, key)
    flat, own = flattened(problem), _flat(method, batch_shape)
    parts = []
    for start in range(0, num_rows, width):
        # The last batch is filled up with the first rows rather than compiled for fewer.
        rows = np.arange(start, start + width) % num_rows
        rows = rows[0] if width == 1 else rows
        part = function(some(own, rows), taken(flat, rows), key)
        parts.append(jax.block_until_ready(part))

    def joined(*leaves: Array) -> Array:
        parts = [jnp.expand_dims(leaf, 0) for leaf in leaves] if width == 1 else list(leaves)
        whole = jnp.concatenate(parts)[:num_rows]
        return whole.reshape(batch_shape + whole.shape[1:])

    return jax.tree.map(joined, *parts)


def at_once(method: Method, problem: Problem) -> int:
    """The number of rows of a batch, a power of two."""
    numbers = method.numbers_held(problem.covariance.dimension)
    return 2 ** max(0, int(math.log2(MOST_NUMBERS / numbers)))
