"""What may stand for a covariance: a matrix, or one of its factors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.pytrees import Batched, as_float_array, frozen_pytree, is_concrete


class Covariance(Batched):
    """What every form of a covariance offers; d is its dimension.

    Attributes of every form: `dimension`, `batch_shape`, `covariance_matrix` (..., d, d),
    `scale_tril` (..., d, d), `variances` (..., d); and `check()`, which raises ValueError for what
    is no covariance, where the numbers can be looked at.
    """

    @property
    def variances(self) -> jax.Array:
        return jnp.diagonal(self.covariance_matrix, axis1=-2, axis2=-1)


@frozen_pytree
class CovarianceMatrix(Covariance):
    """A covariance given as its matrix, shape (..., d, d); what a plain array becomes."""

    matrix: jax.Array

    event_ranks = {"matrix": 2}

    def __post_init__(self) -> None:
        check_square("covariance", self.matrix)

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    @property
    def covariance_matrix(self) -> jax.Array:
        return self.matrix

    @property
    def scale_tril(self) -> jax.Array:
        """The Cholesky factor; NaN where the matrix is not symmetric or not positive definite."""
        factor = jnp.linalg.cholesky(self.matrix)
        return jnp.where(is_symmetric(self.matrix)[..., None, None], factor, jnp.nan)

    def check(self) -> None:
        """Raise ValueError if the matrix is not symmetric or not positive semi-definite."""
        if not is_concrete(self.matrix):
            return
        matrix = np.asarray(self.matrix)
        if np.isnan(matrix).any():
            return  # NaN in, NaN out
        if not np.all(is_symmetric(matrix)):
            gap = np.max(np.abs(matrix - np.swapaxes(matrix, -1, -2)))
            raise ValueError(
                f"covariance must be symmetric, got a matrix that differs from its transpose by "
                f"{gap:.3g}. Pass tg.ScaleTril(factor) if this is a triangular factor."
            )
        lowest = np.linalg.eigvalsh(matrix)
        bound = -64 * matrix.shape[-1] * np.finfo(matrix.dtype).eps * np.abs(lowest).max(-1)
        if np.any(lowest[..., 0] < bound):
            raise ValueError(
                "covariance must be positive semi-definite, got a matrix whose smallest eigenvalue "
                f"is {lowest[..., 0].min():.3g}. Check the correlations, or estimate again."
            )


@frozen_pytree
class ScaleTril(Covariance):
    """The covariance matrix @ matrix.T, given by its lower Cholesky factor.

    Args:
        matrix: lower-triangular factor, shape (d, d), or (k, d, d). Entries above the diagonal are
            ignored.

    Raises:
        ValueError: if the shape is not square, or a diagonal entry is negative (not while tracing).

    Example:
        >>> tg.ScaleTril([[2.0, 0.0], [1.0, 1.0]]).covariance_matrix
        Array([[4., 2.],
               [2., 2.]], dtype=float64)
    """

    matrix: jax.Array

    event_ranks = {"matrix": 2}

    def __post_init__(self) -> None:
        matrix = as_float_array(self.matrix)
        check_square("ScaleTril", matrix)
        self._set(matrix=matrix)
        self.check()

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    @property
    def scale_tril(self) -> jax.Array:
        return jnp.tril(self.matrix)

    @property
    def covariance_matrix(self) -> jax.Array:
        factor = self.scale_tril
        return factor @ jnp.swapaxes(factor, -1, -2)

    def check(self) -> None:
        """Raise ValueError if a diagonal entry is negative."""
        if not is_concrete(self.matrix):
            return
        diagonal = np.diagonal(np.asarray(self.matrix), axis1=-2, axis2=-1)
        if np.any(diagonal < 0):
            raise ValueError(
                f"ScaleTril: the diagonal must not be negative, got {diagonal.min():.3g}."
            )


def as_covariance(value: Any) -> Covariance:
    """`value` itself if it is a covariance, else the `CovarianceMatrix` of the array it is."""
    if isinstance(value, Covariance):
        return value
    return CovarianceMatrix(as_float_array(value))


def is_symmetric(matrix: Any) -> Any:
    """Whether each matrix (..., d, d) equals its transpose up to rounding; NaN counts as equal."""
    xp = np if isinstance(matrix, np.ndarray) else jnp
    gap = xp.abs(matrix - xp.swapaxes(matrix, -1, -2))
    size = xp.abs(matrix).max(axis=(-2, -1), keepdims=True)
    # The square root of eps: products like A @ S @ A.T are symmetric only to their own rounding.
    bound = float(np.finfo(matrix.dtype).eps) ** 0.5 * size
    return ~xp.any(gap > bound, axis=(-2, -1))


def check_square(owner: str, matrix: jax.Array) -> None:
    shape = jnp.shape(matrix)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(
            f"{owner} must have shape (d, d), or (k, d, d) for k of them, got {shape}. "
            "For one dimension write [[variance]]."
        )
