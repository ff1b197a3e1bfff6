"""The Cholesky factor of a large dense covariance in square blocks, by products of matrices.

The blocks on and below the diagonal of an n x n arrangement are the rows of one array, shape
(n (n + 1) / 2, b, b), block (i, j) at i (i + 1) / 2 + j: half of the matrix is stored, and a loop
replaces blocks in place. Over a mesh the rows within each block are spread: every device has its
part of every block, as much to do as the others at every step, and only blocks that multiply from
the right travel.

References:
    Golub and Van Loan (2013), Matrix Computations, section 4.2, for the blocked factorisation.
    Murray (2016), Differentiation of the Cholesky decomposition, for its reverse.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.execution import parallel
from truncgauss.gaussian.linalg import product

LARGEST_BLOCK = 1024  # rows of a block, whose products then run at nearly full speed
PANEL = 64  # columns of a block that are factorised at once
GRAIN = 64  # rows of a block are a multiple of it, which the devices of a mesh divide


class Layout(NamedTuple):
    """The number of blocks in a row, and the number of rows in a block."""

    num_blocks: int
    block: int

    def padded(self, vector: Array, fill: Any) -> Array:
        """The numbers of a vector, shape (d,), in blocks, shape (num_blocks, block)."""
        missing = self.num_blocks * self.block - len(vector)
        padded = jnp.pad(vector, (0, missing), constant_values=fill)
        return padded.reshape(self.num_blocks, self.block)


def layout_of(dimension: int) -> Layout:
    """The layout of a matrix of `dimension` rows, the same for every number of devices.

    Raises:
        ValueError: if the devices that share an estimate do not divide the rows of a block.
    """
    grain, num_blocks = min(GRAIN, LARGEST_BLOCK), -(-dimension // LARGEST_BLOCK)
    block = -(-dimension // (num_blocks * grain)) * grain
    if block % parallel.num_sharing():
        raise ValueError(
            f"a large estimate is shared by a power of two of at most {grain} devices, got "
            f"{parallel.num_sharing()}. Make a mesh of fewer: tg.parallel.device_mesh(...)."
        )
    return Layout(num_blocks, block)


# --- Blocks ---------------------------------------------------------------------------------------


def num_blocks_of(blocks: Array) -> int:
    """The number n of blocks in a row, from the number n (n + 1) / 2 of those stored."""
    return (int(np.sqrt(8 * len(blocks) + 1)) - 1) // 2


def block_at(blocks: Array, i: Any, j: Any) -> Array:
    """Block (i, j), i >= j."""
    return lax.dynamic_index_in_dim(blocks, i * (i + 1) // 2 + j, keepdims=False)


def with_block(blocks: Array, i: Any, j: Any, new: Array) -> Array:
    """The blocks with another one at (i, j)."""
    new = parallel.with_rows_spread(new)
    blocks = lax.dynamic_update_index_in_dim(blocks, new, i * (i + 1) // 2 + j, 0)
    return parallel.with_rows_spread(blocks)


def transposed(x: Array) -> Array:
    """The last two axes exchanged in memory: a product that reads them so takes half the time."""
    return lax.optimization_barrier(jnp.swapaxes(x, -1, -2))


def empty_blocks(layout: Layout, dtype: Any) -> Array:
    """Blocks of zeros."""
    count, b = layout
    return parallel.with_rows_spread(jnp.zeros((count * (count + 1) // 2, b, b), dtype))


# --- From a matrix and back -----------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def blocks_of(matrix: Array, order: Array, layout: Layout) -> Array:
    """The blocks of a symmetric matrix in an order, filled up by the identity.

    One of two equal entries is read. The derivative is that in a symmetric matrix: half of it
    belongs to each.
    """
    blocks, last = _read(matrix, order, layout), layout.num_blocks - 1
    missing = jnp.arange(layout.block) >= len(matrix) - last * layout.block
    corner = block_at(blocks, last, last) + jnp.diag(missing.astype(matrix.dtype))
    return with_block(blocks, last, last, corner)


@blocks_of.defjvp
def _blocks_of_jvp(
    layout: Layout, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Array, Array]:
    matrix, order = primals
    change = tangents[0]
    moved = 0.5 * (_read(change, order, layout) + _read(change.T, order, layout))
    return blocks_of(matrix, order, layout), moved


def _read(matrix: Array, order: Array, layout: Layout) -> Array:
    """The blocks on and below the diagonal, filled up by zeros."""
    orders = layout.padded(order, len(matrix))

    def row(i: Array, blocks: Array) -> Array:
        rows = matrix.at[orders[i]].get(mode="fill", fill_value=0)  # whole ones, which lie together

        def one(j: Array, blocks: Array) -> Array:
            return with_block(blocks, i, j, rows.at[:, orders[j]].get(mode="fill", fill_value=0))

        return lax.fori_loop(0, i + 1, one, blocks)

    return lax.fori_loop(0, layout.num_blocks, row, empty_blocks(layout, matrix.dtype))


def matrix_of(blocks: Array, order: Array) -> Array:
    """The gradient in a symmetric matrix, shape (d, d), from that in its blocks.

    Half of a derivative belongs to each of two equal entries. The matrix is filled row by row. Its
    rows are spread over the devices of a process; of several processes each gets all of it.
    """
    d, b = len(order), blocks.shape[-1]
    layout = Layout(num_blocks_of(blocks), b)
    orders, positions = layout.padded(order, d), jnp.argsort(order)
    start = parallel.with_rows_spread(jnp.zeros((d, d), blocks.dtype))

    def row(i: Array, matrix: Array) -> Array:
        def one(j: Array, rows: Array) -> Array:
            first, second = jnp.maximum(i, j), jnp.minimum(i, j)
            block = block_at(blocks, first, second)
            block = jnp.where(i == j, block, 0.5 * jnp.where(i > j, block, block.T))
            return lax.dynamic_update_index_in_dim(rows, block, j, 1)

        rows = lax.fori_loop(
            0, layout.num_blocks, one, jnp.zeros((b, layout.num_blocks, b), blocks.dtype)
        )
        rows = rows.reshape(b, -1)[:, positions]
        matrix = matrix.at[orders[i]].set(rows, mode="drop", unique_indices=True)
        return parallel.with_rows_spread(matrix)

    return parallel.readable(lax.fori_loop(0, layout.num_blocks, row, start))


# --- The factor -----------------------------------------------------------------------------------


def cholesky(blocks: Array) -> Array:
    """The Cholesky factor of a symmetric matrix, in its place; NaN if it is not definite."""
    n = num_blocks_of(blocks)

    def column(k: Array, blocks: Array) -> Array:
        def earlier(j: Array, blocks: Array) -> Array:
            right = parallel.replicated(block_at(blocks, k, j)).T

            def one(i: Array, blocks: Array) -> Array:
                rest = block_at(blocks, i, k) - product(block_at(blocks, i, j), right)
                return with_block(blocks, i, k, rest)

            return lax.fori_loop(k, n, one, blocks)

        blocks = lax.fori_loop(0, k, earlier, blocks)
        corner = factored(parallel.replicated(block_at(blocks, k, k)))

        def below(i: Array, blocks: Array) -> Array:
            return with_block(blocks, i, k, divided_by_transpose(block_at(blocks, i, k), corner))

        return lax.fori_loop(k + 1, n, below, with_block(blocks, k, k, corner.triangle))

    return lax.fori_loop(0, n, column, blocks)


def cholesky_reversed(factor: Array, slope: Array) -> Array:
    """The gradient in a symmetric matrix from that in its Cholesky factor, in the latter's place.

    The steps of `cholesky` in reverse order. With L the factor, D its block k on the diagonal, bars
    for derivatives and Phi the lower triangle less half of the diagonal,

        R_ik = L_ik-bar D^-1,  D-bar -= sum_i R_ik^T L_ik,  S = D^-T Phi(D^T D-bar) D^-1,
        L_ij-bar -= R_ik L_kj,  L_kj-bar -= sum_i R_ik^T L_ij + (S + S^T) L_kj,  j < k < i,

    and R_ik and (S + S^T) / 2 are the derivatives in the blocks of the matrix.
    """
    n = num_blocks_of(factor)

    def column(step: Array, slope: Array) -> Array:
        k = n - 1 - step
        corner = with_inverses(parallel.replicated(block_at(factor, k, k)))
        none = _no_sum(corner.triangle)

        def below(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            slope, total = carry
            new = divided(block_at(slope, i, k), corner)
            return with_block(slope, i, k, new), _added(total, new, block_at(factor, i, k))

        slope, total = lax.fori_loop(k + 1, n, below, (slope, none))
        slope_block = parallel.replicated(block_at(slope, k, k)) - _summed(total)
        inner = jnp.tril(product(corner.triangle.T, slope_block))
        inner = inner - 0.5 * jnp.diag(jnp.diagonal(inner))
        inner = divided(divided(inner, corner).T, corner)
        both = inner + inner.T
        slope = with_block(slope, k, k, 0.5 * both)

        def earlier(j: Array, slope: Array) -> Array:
            right = parallel.replicated(block_at(factor, k, j))

            # Two loops, because in one XLA would copy all blocks for what it reads of them.
            def sum_of(i: Array, total: Array) -> Array:
                return _added(total, block_at(slope, i, k), block_at(factor, i, j))

            def one(i: Array, slope: Array) -> Array:
                rest = block_at(slope, i, j) - product(block_at(slope, i, k), right)
                return with_block(slope, i, j, rest)

            total = _summed(lax.fori_loop(k + 1, n, sum_of, none)) + product(both, right)
            slope = with_block(slope, k, j, block_at(slope, k, j) - total)
            return lax.fori_loop(k + 1, n, one, slope)

        return lax.fori_loop(0, k, earlier, slope)

    return lax.fori_loop(0, n, column, slope)


# Sums of x^T y over rows that are spread: every device adds up its own, and they are added to each
# other at the end, not at every step.


def _no_sum(block: Array) -> Array:
    zeros = jnp.zeros((parallel.num_sharing(), *block.shape), block.dtype)
    return parallel.with_axis_spread(zeros, 0)


def _added(total: Array, x: Array, y: Array) -> Array:
    left, right = (x.reshape(len(total), -1, x.shape[1]) for x in (x, y))
    part = product(transposed(left), right)
    return parallel.with_axis_spread(total + part, 0)


def _summed(total: Array) -> Array:
    return parallel.replicated(jnp.sum(total, axis=0))


# --- One block ------------------------------------------------------------------------------------

# By panels of columns, and without LAPACK: OpenBLAS starts threads for the smallest of matrices,
# and spent ten times the time of all products where another program ran beside.


class Corner(NamedTuple):
    """A lower-triangular block, shape (b, b), and the inverses of its blocks on the diagonal.

    The latter have shape (b / p, p, p), p = PANEL: the columns of a panel are solved for at once.
    """

    triangle: Array
    inverses: Array

    def panel(self, k: Any) -> tuple[Any, Array, Array]:
        """The first row of panel k, its block on the diagonal, and the inverse of that."""
        width = self.inverses.shape[-1]
        corner = lax.dynamic_slice(self.triangle, (k * width, k * width), (width, width))
        return k * width, corner, self.inverses[k]


def factored(symmetric: Array) -> Corner:
    """The Cholesky factor of a block of a multiple of PANEL rows, or of fewer."""
    width = min(PANEL, len(symmetric))
    index = jnp.arange(len(symmetric))[:, None]

    def step(k: Array, partial: Corner) -> Corner:
        start = k * width
        rows = lax.dynamic_slice_in_dim(partial.triangle, start, width, 0)
        panel = lax.dynamic_slice_in_dim(symmetric, start, width, 1)
        panel = panel - product(partial.triangle, rows.T)
        corner = _small_factor(lax.dynamic_slice_in_dim(panel, start, width, 0))
        inverse = _small_inverse(corner)
        below = jnp.where(index < start, 0.0, _quotient(panel, corner.T, inverse.T))
        below = lax.dynamic_update_slice_in_dim(below, corner, start, 0)
        triangle = lax.dynamic_update_slice_in_dim(partial.triangle, below, start, 1)
        return Corner(triangle, partial.inverses.at[k].set(inverse))

    none = jnp.zeros((len(symmetric) // width, width, width), symmetric.dtype)
    return lax.fori_loop(0, len(none), step, Corner(jnp.zeros_like(symmetric), none))


def with_inverses(triangle: Array) -> Corner:
    """A lower-triangular block with the inverses of its diagonal blocks."""
    width = min(PANEL, len(triangle))
    partial = Corner(triangle, jnp.zeros((len(triangle) // width, width, width), triangle.dtype))
    corners = jnp.stack([partial.panel(k)[1] for k in range(len(partial.inverses))])
    return Corner(triangle, jax.vmap(_small_inverse)(corners))


def divided_by_transpose(right: Array, corner: Corner) -> Array:
    """x with x @ triangle.T = right."""

    def step(k: Array, x: Array) -> Array:
        start, block, inverse = corner.panel(k)
        rows = lax.dynamic_slice_in_dim(corner.triangle, start, len(block), 0)
        rest = lax.dynamic_slice_in_dim(right, start, len(block), 1) - product(x, rows.T)
        new = _quotient(rest, block.T, inverse.T)
        return lax.dynamic_update_slice_in_dim(x, new, start, 1)

    return lax.fori_loop(0, len(corner.inverses), step, jnp.zeros_like(right))


def divided(right: Array, corner: Corner) -> Array:
    """x with x @ triangle = right."""
    count = len(corner.inverses)

    def step(done: Array, x: Array) -> Array:
        start, block, inverse = corner.panel(count - 1 - done)
        columns = lax.dynamic_slice_in_dim(corner.triangle, start, len(block), 1)
        rest = lax.dynamic_slice_in_dim(right, start, len(block), 1) - product(x, columns)
        new = _quotient(rest, block, inverse)
        return lax.dynamic_update_slice_in_dim(x, new, start, 1)

    return lax.fori_loop(0, count, step, jnp.zeros_like(right))


def _quotient(right: Array, triangle: Array, inverse: Array) -> Array:
    """x with x @ triangle = right, corrected once: as accurate as substitution."""
    x = product(right, inverse)
    return x + product(right - product(x, triangle), inverse)


def _small_factor(symmetric: Array) -> Array:
    """The Cholesky factor, column by column."""
    index = jnp.arange(len(symmetric))

    def step(k: Array, factor: Array) -> Array:
        column = symmetric[:, k] - product(factor, factor[k])
        column = jnp.where(index < k, 0.0, column / jnp.sqrt(column[k]))
        return factor.at[:, k].set(column)

    return lax.fori_loop(0, len(symmetric), step, jnp.zeros_like(symmetric))


def _small_inverse(triangle: Array) -> Array:
    """The inverse of a lower-triangular matrix, row by row."""
    identity = jnp.eye(len(triangle), dtype=triangle.dtype)

    def step(k: Array, inverse: Array) -> Array:
        return inverse.at[k].set((identity[k] - product(triangle[k], inverse)) / triangle[k, k])

    return lax.fori_loop(0, len(triangle), step, jnp.zeros_like(triangle))


# --- Products with vectors ------------------------------------------------------------------------


def times(factor: Array, x: Array) -> Array:
    """The factor times a vector in blocks, shape (n, b)."""
    rows, columns = np.tril_indices(len(x))
    parts = jnp.einsum("trs,ts->tr", factor, x[columns], precision="highest")
    return jax.ops.segment_sum(parts, rows, len(x), indices_are_sorted=True)


def transposed_times(factor: Array, x: Array) -> Array:
    """The transposed factor times a vector in blocks, shape (n, b)."""
    rows, columns = np.tril_indices(len(x))
    parts = jnp.einsum("trs,tr->ts", factor, x[rows], precision="highest")
    return jax.ops.segment_sum(parts, columns, len(x))


def scales(factor: Array) -> Array:
    """The diagonal of the factor, in blocks, shape (n, b)."""
    n = num_blocks_of(factor)
    return jnp.diagonal(factor, axis1=1, axis2=2)[np.arange(n) * (np.arange(n) + 3) // 2]
