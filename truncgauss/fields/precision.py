"""A sparse precision matrix as the distribution of each block given the block before it."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.pytrees import as_float_array, is_concrete, values_of

WIDEST = 1024  # distance, in the order, of two coordinates that are neighbours


def factors(
    indptr: Any, indices: Any, data: Any, block: int
) -> tuple[np.ndarray, np.ndarray, Array, Array]:
    r"""The order, neighbours, weights and factors of a precision matrix Q in compressed rows.

    In the order of reverse Cuthill and McKee, with blocks no smaller than the band, Q is block
    tridiagonal: D_k on the diagonal, E_k between k and k + 1. Elimination from the last block,

    .. math:: T_k = D_k - E_k T_{k+1}^{-1} E_k^T,

    leaves x_k given x_{k-1} with the precision T_k and the mean -T_k^{-1} E_{k-1}^T x_{k-1}.
    """
    if not isinstance(block, int | np.integer) or block < 2:
        raise ValueError(f"from_precision: block must be an int of at least 2, got {block!r}.")
    data = as_float_array(data, "from_precision: data")
    order, i, j = _ordered(indptr, indices, data)
    n, width = len(order), int(np.max(np.abs(i - j), initial=0))
    if width > WIDEST:
        raise ValueError(
            f"from_precision: in the best order found neighbours are {width:,} places apart, and "
            f"at most {WIDEST:,} are served: the graph is too wide, as of a coordinate that has "
            "most of the others for neighbours. Leave it out of the field, or build one by "
            "tg.Directed.from_points."
        )
    size = min(max(block, width), n)
    blocks = -(-n // size)
    inner, weights, scale = _regressions(i, j, data, n, size)
    _check(inner, scale, n)
    starts, last = size * np.arange(blocks)[:, None], blocks * size
    neighbours = np.where(starts > 0, starts - size + np.arange(size), last)
    return order, neighbours, weights, scale


@functools.partial(jax.jit, static_argnums=(3, 4))
def _regressions(i: Array, j: Array, data: Array, n: int, size: int) -> tuple[Array, Array, Array]:
    """D, and the regression of each block on the block before and the factor of what it leaves."""
    blocks = -(-n // size)
    spare = np.arange(n, blocks * size)
    zeros = jnp.zeros((blocks, size, size), data.dtype)
    at = i // size, i % size, j % size
    inner = zeros.at[at].add(jnp.where(i // size == j // size, data, 0.0))
    inner = inner.at[spare // size, spare % size, spare % size].set(1.0)
    outer = zeros.at[at].add(jnp.where(i // size + 1 == j // size, data, 0.0))
    identity = jnp.eye(size, dtype=data.dtype)

    def eliminate(later: Array, part: tuple[Array, Array]) -> tuple[Array, Array]:
        """A lower factor of T_k^{-1}: with J T J = M M^T, J the reversal, it is (J M J)^{-T}."""
        inner, outer = part
        cross = outer @ later
        upper = jnp.linalg.cholesky((inner - cross @ cross.T)[::-1, ::-1])[::-1, ::-1]
        scale = solve_triangular(upper, identity, trans=1, lower=False)
        return scale, scale

    _, scale = lax.scan(eliminate, zeros[0], (inner, outer), reverse=True)
    pull = jnp.concatenate([zeros[:1], jnp.swapaxes(outer[:-1], 1, 2)])
    return inner, -scale @ (jnp.swapaxes(scale, 1, 2) @ pull), scale


def _ordered(indptr: Any, indices: Any, data: Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of small band, and the row and the column of each entry in it."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    starts, columns = values_of(indptr), values_of(indices)
    if starts is None or columns is None:
        raise ValueError("from_precision: indptr and indices must be numbers, not traced.")
    starts, columns = np.asarray(starts), np.asarray(columns)
    n = starts.size - 1
    shaped = starts.ndim == columns.ndim == 1 and n > 0 and data.shape == columns.shape
    steps = np.diff(starts, prepend=0, append=columns.size)
    if not shaped or steps[0] or steps[-1] or np.any(steps < 0) or np.any(columns % n != columns):
        raise ValueError(
            "from_precision: indptr, indices and data must be those of a square scipy.sparse "
            f"csr_array, got shapes {starts.shape}, {columns.shape} and {data.shape}."
        )
    starts, columns = starts.astype(np.int32), columns.astype(np.int32)
    rows = np.repeat(np.arange(n), np.diff(starts))
    known = values_of(data)
    if known is not None:
        matrix = csr_matrix((np.asarray(known, float), columns, starts), (n, n), copy=True)
        if not np.all(np.isfinite(matrix.data)):
            raise ValueError("from_precision: data holds NaN or infinity.")
        gap = abs(matrix - matrix.T).max()
        if gap > 1e-6 * abs(matrix).max():
            raise ValueError(
                f"from_precision: the matrix must be symmetric and both of its halves given, and "
                f"two of its entries differ by {gap:.3g}."
            )
    graph = csr_matrix((np.ones(len(columns)), columns, starts), (n, n), copy=True)
    order = np.asarray(reverse_cuthill_mckee((graph + graph.T).tocsr(), symmetric_mode=True))
    position = np.empty(n, int)
    position[order] = np.arange(n)
    return order, position[rows], position[columns]


def _check(inner: Array, scale: Array, n: int) -> None:
    if not is_concrete(scale):
        return
    pivots = np.diagonal(np.asarray(scale), axis1=1, axis2=2) ** 2
    lost = pivots * np.diagonal(np.asarray(inner), axis1=1, axis2=2)
    if not np.all(lost * 10.0 * n * np.finfo(lost.dtype).eps < 1.0):
        raise ValueError(
            "from_precision: the precision matrix is not positive definite, to rounding. That of "
            "an intrinsic field, whose rows add up to 0, is not: add a little to its diagonal."
        )
