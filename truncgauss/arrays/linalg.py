"""Matrix factors, ranks and products, each to the rounding of its dtype."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# A residual variance below this times its rounding may be zero. An eigenvalue that is rounding, by
# which ranks are found, is less than the residual variance of a variable that it determines.
UNDETERMINED = 64.0


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` with all products of matrices in full precision.

    GPUs otherwise round the factors of a product of float32 matrices to ten bits. Derivative rules
    need it beside the functions that users call: JAX may call a rule later.
    """

    @functools.wraps(function)
    def precise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return precise


def product(x: Array, y: Array) -> Array:
    """x @ y in full precision on any device."""
    return jnp.matmul(x, y, precision="highest")


def times_vector(matrix: Array, vector: Array) -> Array:
    """A matrix times a vector as a sum: XLA on a CPU compiles its own product for half as long
    again, and both run for microseconds in up to hundreds of dimensions."""
    return jnp.sum(matrix * vector[None, :], axis=1)


def namespace(array: Any) -> Any:
    """NumPy for its arrays, with which nothing is compiled; else jax.numpy."""
    return np if isinstance(array, np.ndarray) else jnp


def cholesky(matrix: Any) -> Any:
    """The Cholesky factor of matrices of NumPy or JAX; NaN where one is not positive definite.

    One row is a square root: a program without LAPACK, for which JAX imports `scipy.linalg`.
    """
    if namespace(matrix) is jnp:
        if matrix.shape[-1] == 1:
            sound = (matrix > 0) & jnp.isfinite(matrix)
            return jnp.sqrt(matrix) * jnp.where(sound, 1.0, jnp.nan).astype(matrix.dtype)
        return jnp.linalg.cholesky(matrix)
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def solve_lower(factor: Any, right: Any) -> Any:
    """factor^-1 right for a lower-triangular factor, both of NumPy or of JAX."""
    if namespace(factor) is jnp:
        return jax.scipy.linalg.solve_triangular(factor, right, lower=True)
    # LAPACK may divide two rows among threads, which wait for each other for milliseconds.
    if len(factor) > 100 or not np.all(np.diagonal(factor)):
        import scipy.linalg  # a tenth of a second, of which a first call has no use

        return scipy.linalg.solve_triangular(factor, right, lower=True, check_finite=False)
    right = np.array(right, np.result_type(factor, right))
    for k, row in enumerate(factor):
        right[k] = (right[k] - row[:k] @ right[:k]) / row[k]
    return right


@jax.jit
def diagonal_of(matrix: Array) -> Array:
    """The diagonal of square matrices, shape (..., d, d) -> (..., d), by a slice and no gather."""
    *batch, _, d = matrix.shape
    return jnp.reshape(matrix, (*batch, d * d))[..., :: d + 1]


def power_of_two(variances: Array) -> Array:
    """The power of two above the square root of each variance; 2 for 0 and what is not finite."""
    sound = jnp.isfinite(variances) & (variances > 0)
    _, exponent = jnp.frexp(lax.stop_gradient(jnp.where(sound, variances, 1.0)))
    return jnp.ldexp(jnp.ones_like(variances), (exponent + 1) // 2)


def is_symmetric(matrix: Any) -> Any:
    """Whether each matrix (..., d, d) equals its transpose up to rounding; NaN counts as equal."""
    xp = namespace(matrix)
    gap = xp.abs(matrix - xp.swapaxes(matrix, -1, -2))
    size = xp.abs(matrix).max(axis=(-2, -1), keepdims=True)
    # The square root of eps: products like A @ S @ A.T are symmetric only to their own rounding.
    bound = float(np.finfo(matrix.dtype).eps) ** 0.5 * size
    return ~xp.any(gap > bound, axis=(-2, -1))


def rounding(covariance_matrix: jax.Array) -> jax.Array:
    """The largest rounding error of a variance of 0 after elimination, shape (..., d)."""
    d = covariance_matrix.shape[-1]
    variances = diagonal_of(covariance_matrix)
    return 4.0 * d * float(jnp.finfo(variances.dtype).eps) * variances


def ranks_of(covariance_matrix: np.ndarray, least: float | None = None) -> np.ndarray:
    """The rank of each covariance, shape (..., d, d) -> (...), up to rounding; NaN counts as full
    rank. Eigenvalues of the correlations that are not above `least` are 0."""
    d = covariance_matrix.shape[-1]
    scale = np.sqrt(np.diagonal(covariance_matrix, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    correlation = covariance_matrix / scale[..., :, None] / scale[..., None, :]
    least = 4.0 * d * np.finfo(covariance_matrix.dtype).eps if least is None else least
    known = np.all(np.isfinite(correlation), axis=(-2, -1))
    # Seen quickly that most are not: the determinant is below e times the least eigenvalue.
    determinant = np.linalg.det(np.where(known[..., None, None], correlation, np.eye(d)))
    suspect = np.asarray(determinant <= 4.0 * least)
    ranks = np.full(suspect.shape, d)
    ranks[suspect] = np.sum(np.linalg.eigvalsh(correlation[suspect]) > least, axis=-1)
    return ranks


def row_norms(matrix: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(lax.stop_gradient(matrix)), axis=-1))


def rounding_of_root(shape: tuple[int, ...], dtype: Any) -> float:
    """The rounding of the entries of a root of this shape, over the size of their terms."""
    return 4.0 * max(shape[-2:]) * float(jnp.finfo(dtype).eps)


def nearly_determined(dtype: Any) -> float:
    """The residual deviation, over the deviation, below which a constraint may be left out.

    Less moves log P by about the square of it: `planning.with_dependence` checks that.
    """
    return 4.0 * float(jnp.finfo(dtype).eps) ** 0.5


def ranks_of_root(root: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each root @ root.T, root of shape (..., m, q), up to rounding, shape (...).

    And the rank that counts no row which others nearly determine.

    The singular values of the root give it to twice as many digits as those of the product. NaN
    counts as full rank.

    Args:
        root: the roots.
        sizes: those of the terms of each row, see `GaussianLimits`, shape (..., m).
    """
    size = np.linalg.norm(root, axis=-1, keepdims=True)
    unit = root / np.where(size > 0, size, 1.0)
    known = np.all(np.isfinite(unit), axis=(-2, -1))
    growth = np.where(size > 0, sizes[..., None] / np.where(size > 0, size, 1.0), 1.0)
    least = rounding_of_root(root.shape, root.dtype) * np.maximum(growth.max(axis=-2), 1.0)
    values = np.linalg.svd(np.where(known[..., None, None], unit, 0.0), compute_uv=False)
    floors = least, np.maximum(least, nearly_determined(root.dtype))
    ranks = (np.sum(values > floor, axis=-1) for floor in floors)
    rank, nearly = (np.where(known, rank, min(root.shape[-2:])) for rank in ranks)
    return rank, nearly


def factored(covariance: Array) -> Array:
    """The Cholesky factor, also of a covariance that is singular up to rounding."""
    fixed = lax.stop_gradient(covariance)
    failed = jnp.isnan(jnp.linalg.cholesky(fixed)[-1, -1])  # all of it is NaN where it fails
    return jnp.linalg.cholesky(covariance + jnp.diag(jnp.where(failed, rounding(fixed), 0.0)))


@jax.custom_jvp
def triangle(root: Array) -> tuple[Array, Array]:
    """Lower-triangular L and Q with orthonormal columns, root = L @ Q.T; shape (r, q), r <= q.

    A row of zeros, which has no limits, is given a variance of 1. With F the root and Phi
    the lower triangle less half of the diagonal,

        dL = L Phi(L^-1 dF Q + Q^T dF^T L^-T),   dQ^T = L^-1 (dF - dL Q^T).

    Reference:
        Murray (2016), Differentiation of the Cholesky decomposition, for L, the Cholesky factor of
        F F^T.
    """
    q, r = jnp.linalg.qr(root.T)
    sign = jnp.where(diagonal_of(r) < 0, -1.0, 1.0).astype(root.dtype)
    still = jnp.all(root == 0, axis=1).astype(root.dtype)
    return jnp.tril((sign[:, None] * r).T) + jnp.diag(still), q * sign[None, :]


@triangle.defjvp
def _triangle_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (root,), (change,) = primals, tangents
    factor, q = triangle(root)
    change = jnp.where(jnp.all(root == 0, axis=1)[:, None], 0.0, change)
    part = solve_lower(factor, change)
    inner = product(part, q)
    half = jnp.tril(inner + inner.T) - jnp.diag(diagonal_of(inner))
    return (factor, q), (product(factor, half), (part - product(half, q.T)).T)


def semidefinite_factor(matrix: Array) -> Array:
    """A triangular factor of a covariance matrix; coordinates of variance 0 have rows of zeros."""
    still = diagonal_of(matrix) == 0
    factor = factored(matrix + jnp.diag(still.astype(matrix.dtype)))
    return jnp.where(still[:, None], 0.0, factor)


# Below this fraction of max(1, |log P|) the effect counts as ordinary rounding.
NEGLIGIBLE_64, NEGLIGIBLE_32 = 1e-9, 1e-4


def negligible(dtype: np.dtype) -> float:
    """The relative rounding error that every result may have."""
    return NEGLIGIBLE_64 if float(np.finfo(dtype).eps) < 1e-12 else NEGLIGIBLE_32


def beyond_rounding(bound: Array, log_prob: Array) -> Array:
    """A bound of an error where it is more than every result has, else 0."""
    least = negligible(log_prob.dtype) * jnp.maximum(1.0, jnp.abs(log_prob))
    return jnp.where(bound > least, bound, 0.0)


def two_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """x + y and the rounding error of that sum, exactly, of arrays of JAX or of NumPy."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)
