"""The Cholesky factor of a large dense covariance as block columns, by products of matrices.

A lower-triangular matrix of n x n blocks is held as a tuple of its n block columns; column k has
shape (n - k, b, b), the block on the diagonal in front, so that half of the matrix is stored. Over
a mesh the rows within each block are spread: every device has its part of every block, as much to
do as the others at every step, and only blocks that multiply from the right travel.

References:
    Golub and Van Loan (2013), Matrix Computations, section 4.2, for the blocked factorisation.
    Murray (2016), Differentiation of the Cholesky decomposition.
"""

from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss import parallel
from truncgauss.linalg import product

Columns: TypeAlias = tuple[Array, ...]

MOST_BLOCKS = 8  # in a row: the program has half their square products
GRAIN = 256  # rows of a block are a multiple of it, which the devices of a mesh divide


class Layout(NamedTuple):
    """The number of blocks in a row, and the number of rows in a block."""

    num_blocks: int
    block: int

    def padded(self, vector: Array, fill: float) -> Array:
        """The numbers of a vector, shape (d,), in blocks, shape (num_blocks, block)."""
        missing = self.num_blocks * self.block - len(vector)
        padded = jnp.pad(vector, (0, missing), constant_values=fill)
        return padded.reshape(self.num_blocks, self.block)


def layout_of(dimension: int) -> Layout:
    """The layout of a matrix of `dimension` rows, the same for every number of devices.

    Raises:
        ValueError: if the devices that share an estimate do not divide the rows of a block.
    """
    block = -(-max(GRAIN, -(-dimension // MOST_BLOCKS)) // GRAIN) * GRAIN
    if block % parallel.num_sharing():
        raise ValueError(
            f"a large estimate is shared by a power of two of at most {GRAIN} devices, got "
            f"{parallel.num_sharing()}. Make a mesh of fewer: tg.parallel.device_mesh(...)."
        )
    return Layout(-(-dimension // block), block)


# --- From a matrix and back -----------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def columns_of(matrix: Array, order: Array, layout: Layout) -> Columns:
    """The block columns of a symmetric matrix in an order, filled up by the identity.

    One of two equal entries is read. The derivative is that in a symmetric matrix: half of it
    belongs to each.
    """
    missing = layout.num_blocks * layout.block - len(matrix)
    columns = _read(matrix, order, layout)
    if not missing:
        return columns
    filled = jnp.arange(layout.block) >= layout.block - missing
    last = columns[-1] + jnp.diag(filled.astype(matrix.dtype))[None]
    return *columns[:-1], last


@columns_of.defjvp
def _columns_of_jvp(
    layout: Layout, primals: tuple[Array, Array], tangents: tuple[Array, Any]
) -> tuple[Columns, Columns]:
    matrix, order = primals
    change = tangents[0]
    columns = columns_of(matrix, order, layout)
    # A linear solve of (x, y - columns(x)) = (change, 0), because a solve may bring its transpose,
    # which here fills one matrix in place; JAX's own would add as many matrices as blocks. Both
    # parts must depend on the input to be transposed, and both be used for the derivative of that,
    # hence the products with 0.
    zero = 0.0 * change[0, 0]
    nothing = tuple(jnp.zeros_like(column) + zero for column in columns)
    Pair = tuple[Array, Columns]

    def unsolved(pair: Pair) -> Pair:
        x, y = pair
        return x, jax.tree.map(jnp.subtract, y, _symmetric_columns(x, order, layout))

    def solve(_: object, given: Pair) -> Pair:
        x, y = given
        return x, jax.tree.map(jnp.add, y, _symmetric_columns(x, order, layout))

    def transposed(_: object, given: Pair) -> Pair:
        x, y = given
        return _added(x, y, order, layout), y

    same, moved = lax.custom_linear_solve(
        unsolved, (change, nothing), solve, transpose_solve=transposed
    )
    zero = 0.0 * same[0, 0]
    return columns, tuple(column + zero for column in moved)


def _read(matrix: Array, order: Array, layout: Layout) -> Columns:
    """The blocks on and below the diagonal, filled up by zeros."""
    count, b = layout
    missing = count * b - len(matrix)
    columns = []
    for k in range(count):
        rows = matrix[order[k * b : (k + 1) * b]]  # whole rows first, which lie together
        part = rows[:, order[k * b :]].T
        part = jnp.pad(part, ((0, missing), (0, b - part.shape[1])))
        columns.append(parallel.with_rows_spread(part.reshape(count - k, b, b)))
    return tuple(columns)


def _symmetric_columns(matrix: Array, order: Array, layout: Layout) -> Columns:
    parts = _read(matrix, order, layout), _read(matrix.T, order, layout)
    return jax.tree.map(lambda x, y: 0.5 * (x + y), *parts)


def _added(matrix: Array, columns: Columns, order: Array, layout: Layout) -> Array:
    """The matrix plus the transpose of `_symmetric_columns`, applied to columns."""
    d, b = len(matrix), layout.block
    place, rows = jnp.argsort(order), []
    for k, column in enumerate(columns):
        left = [0.5 * before[k - j] for j, before in enumerate(columns[:k])]
        corner = 0.5 * (column[0] + column[0].T)
        right = 0.5 * column[1:].reshape(-1, b).T
        whole = jnp.concatenate([*left, corner, right], axis=1)
        rows.append(whole[: d - k * b, :d][:, place])
    # Whole rows: scattering single entries would hold an index for each.
    return matrix + jnp.concatenate(rows)[place]


# --- The factor -----------------------------------------------------------------------------------


def cholesky(columns: Columns) -> Columns:
    """The Cholesky factor of a symmetric matrix in block columns; NaN if it is not definite."""
    factor: Columns = ()
    for source in columns:
        factor = *factor, _column(source, factor)
    return factor


@jax.custom_jvp
def _column(source: Array, earlier: Columns) -> Array:
    """The next block column of the factor, from that of the matrix and the earlier ones."""
    rest = source
    for j, column in enumerate(earlier):
        tail = column[len(earlier) - j :]
        rest = rest - _times(tail, tail[0].T)
    corner = parallel.replicated(rest[0])
    diagonal = jnp.linalg.cholesky(corner)
    inverse = inverted(diagonal)
    below = _times(rest[1:], inverse.T)
    # The residual, once more: as accurate as substitution.
    below = below + _times(rest[1:] - _times(below, diagonal.T), inverse.T)
    return parallel.with_rows_spread(jnp.concatenate([diagonal[None], below]))


@_column.defjvp
def _column_jvp(
    primals: tuple[Array, Columns], tangents: tuple[Array, Columns]
) -> tuple[Array, Array]:
    column = _column(*primals)
    # Parts of columns are cheaper to take again than to keep.
    return column, jax.checkpoint(_moved_column)(column, primals[1], *tangents)


def _moved_column(column: Array, earlier: Columns, moved: Array, moved_earlier: Columns) -> Array:
    """The tangent of a block column; with D the block on the diagonal and Phi as in Murray (2016).

    dD = D Phi(D^-1 dC D^-T), and below it (dC - L dD^T) D^-T, dC the tangent of what the earlier
    columns leave.
    """
    rest = moved
    for j, (own, change) in enumerate(zip(earlier, moved_earlier)):
        k = len(earlier) - j
        rest = rest - _times(change[k:], own[k].T) - _times(own[k:], change[k].T)
    diagonal = parallel.replicated(column[0])
    inverse = inverted(diagonal)
    corner = parallel.replicated(rest[0])
    inner = product(product(inverse, 0.5 * (corner + corner.T)), inverse.T)
    half = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diagonal(inner))
    d_diagonal = product(diagonal, half)
    below = _times(rest[1:] - _times(column[1:], d_diagonal.T), inverse.T)
    return parallel.with_rows_spread(jnp.concatenate([d_diagonal[None], below]))


def inverted(triangle: Array) -> Array:
    """The inverse of a lower-triangular matrix."""
    identity = jnp.eye(len(triangle), dtype=triangle.dtype)
    return lax.linalg.triangular_solve(triangle, identity, left_side=True, lower=True)


def _times(column: Array, right: Array) -> Array:
    """A block column times a block that every device needs."""
    right = parallel.replicated(right)
    return parallel.with_rows_spread(jnp.einsum("irs,sc->irc", column, right, precision="highest"))


# --- Products with vectors ------------------------------------------------------------------------


def times(factor: Columns, x: Array) -> Array:
    """The factor times a vector in blocks, shape (n, b)."""
    result = jnp.zeros_like(x)
    for k, column in enumerate(factor):
        result = result.at[k:].add(jnp.einsum("irs,s->ir", column, x[k], precision="highest"))
    return result


def transposed_times(factor: Columns, x: Array) -> Array:
    """The transposed factor times a vector in blocks, shape (n, b)."""
    # A product for each block: contracting both axes at once was ten times slower on a CPU.
    parts = [
        jnp.einsum("irs,ir->is", column, x[k:], precision="highest").sum(0)
        for k, column in enumerate(factor)
    ]
    return jnp.stack(parts)


def scales(factor: Columns) -> Array:
    """The diagonal of the factor, in blocks, shape (n, b)."""
    return jnp.stack([jnp.diagonal(column[0]) for column in factor])
