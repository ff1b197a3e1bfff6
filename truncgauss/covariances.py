"""What may stand for a covariance: a matrix, or one of its factors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.linalg import is_symmetric, rounding
from truncgauss.pytrees import Batched, as_float_array, frozen_pytree, is_concrete


class Covariance(Batched):
    """What every form of a covariance offers; d is its dimension.

    Attributes of every form: `dimension`, `batch_shape`, `covariance_matrix` (..., d, d),
    `scale_tril` (..., d, d), `root` (..., d, q), `variances` (..., d). Methods: `check()` raises
    ValueError for what is no covariance, where the numbers can be looked at; `scaled(by)` is the
    covariance of by * X for factors `by`, shape (..., d); `released(still)` that of an X whose
    coordinates without variance, marked in `still`, are given one.
    """

    @property
    def root(self) -> jax.Array:
        """A matrix with root @ root.T = covariance_matrix, without the loss of forming that."""
        return self.scale_tril

    @property
    def variances(self) -> jax.Array:
        return jnp.diagonal(self.covariance_matrix, axis1=-2, axis2=-1)

    def released(self, still: jax.Array) -> "Covariance":
        return self  # no coordinate of this form can be without variance


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
        """The Cholesky factor; NaN where the matrix is not symmetric or not positive definite.

        A coordinate without variance has a row of zeros.
        """
        still = self.variances == 0
        factor = jnp.linalg.cholesky(self.released(still).matrix)
        factor = jnp.where(still[..., None], 0.0 * factor, factor)
        return jnp.where(is_symmetric(self.matrix)[..., None, None], factor, jnp.nan)

    @property
    def root(self) -> jax.Array:
        """The Cholesky factor, also of a singular matrix: columns that are rounding alone are 0."""
        fixed = jax.lax.stop_gradient(self.matrix)
        floor = rounding(fixed)
        failed = jnp.any(jnp.isnan(jnp.linalg.cholesky(fixed)), axis=(-2, -1), keepdims=True)
        identity = jnp.eye(self.dimension, dtype=fixed.dtype)
        extra = jnp.where(failed, floor[..., None], 0.0)
        # What has no variance at all gets one here, and loses it below.
        extra = jnp.where(floor[..., None] == 0, 1.0, extra)
        factor = jnp.linalg.cholesky(self.matrix + extra * identity)
        pivots = jnp.diagonal(factor, axis1=-2, axis2=-1)
        empty = (pivots**2 <= 2.0 * floor) | (floor == 0)
        factor = jnp.where(empty[..., None, :], 0.0 * factor, factor)
        return jnp.where(is_symmetric(self.matrix)[..., None, None], factor, jnp.nan)

    def scaled(self, by: jax.Array) -> "CovarianceMatrix":
        return CovarianceMatrix(self.matrix * by[..., :, None] * by[..., None, :])

    def released(self, still: jax.Array) -> "CovarianceMatrix":
        pair = still[..., :, None] | still[..., None, :]
        identity = jnp.eye(self.dimension, dtype=self.matrix.dtype)
        # What has no variance has no covariance either.
        unsound = jnp.any(pair & ~(self.matrix == 0), axis=(-2, -1), keepdims=True)
        return CovarianceMatrix(jnp.where(unsound, jnp.nan, jnp.where(pair, identity, self.matrix)))

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
        try:
            np.linalg.cholesky(matrix)  # a tenth of the work, and the usual case
            return
        except np.linalg.LinAlgError:
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
        matrix: lower-triangular factor, shape (d, d), or (k, d, d).

    Raises:
        ValueError: if the shape is not square, or if a diagonal entry is negative or one above the
            diagonal not 0 (while tracing such entries are taken for 0).

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

    @property
    def variances(self) -> jax.Array:
        return jnp.square(self.scale_tril).sum(-1)

    def scaled(self, by: jax.Array) -> "ScaleTril":
        return ScaleTril(self.matrix * by[..., :, None])

    def released(self, still: jax.Array) -> "ScaleTril":
        identity = jnp.eye(self.dimension, dtype=self.matrix.dtype)
        return ScaleTril(jnp.where(still[..., :, None], identity, self.matrix))

    def check(self) -> None:
        """Raise ValueError if a diagonal entry is negative."""
        if not is_concrete(self.matrix):
            return
        above = np.triu(np.asarray(self.matrix), 1)
        misplaced = above[np.abs(above) > 0]  # NaN passes
        if misplaced.size:
            raise ValueError(
                "ScaleTril: the factor must be lower triangular, got "
                f"{misplaced[0]:.3g} above its diagonal. Transpose an upper factor; "
                "pass a covariance matrix as it is."
            )
        diagonal = np.diagonal(np.asarray(self.matrix), axis1=-2, axis2=-1)
        if np.any(diagonal < 0):
            raise ValueError(
                f"ScaleTril: the diagonal must not be negative, got {diagonal.min():.3g}."
            )


@frozen_pytree
class LowRank(Covariance):
    """The covariance cov_factor @ cov_factor.T + diag(cov_diag): a few factors and private noise.

    Args:
        cov_factor: loadings, shape (d, r), or (k, d, r). r = 0 means independent coordinates.
        cov_diag: variances of the noise, positive, shape (d,), or (k, d).

    Raises:
        ValueError: if the shapes disagree, or a variance is not positive (not while tracing).

    Example:
        >>> tg.LowRank([[1.0], [2.0]], [0.5, 0.5]).covariance_matrix
        Array([[1.5, 2. ],
               [2. , 4.5]], dtype=float64)
    """

    cov_factor: jax.Array
    cov_diag: jax.Array

    event_ranks = {"cov_factor": 2, "cov_diag": 1}

    def __post_init__(self) -> None:
        factor, diagonal = as_float_array(self.cov_factor), as_float_array(self.cov_diag)
        if factor.ndim < 2 or diagonal.ndim < 1 or factor.shape[-2] != diagonal.shape[-1]:
            raise ValueError(
                f"LowRank: cov_factor must have shape (d, r) and cov_diag (d,), got {factor.shape} "
                f"and {diagonal.shape}."
            )
        self._set(cov_factor=factor, cov_diag=diagonal)
        self.check()

    @property
    def dimension(self) -> int:
        return self.cov_factor.shape[-2]

    @property
    def rank(self) -> int:
        """The number r of factors."""
        return self.cov_factor.shape[-1]

    @property
    def variances(self) -> jax.Array:
        return self.cov_diag + jnp.square(self.cov_factor).sum(-1)

    @property
    def covariance_matrix(self) -> jax.Array:
        identity = jnp.eye(self.dimension, dtype=self.cov_diag.dtype)
        diagonal = self.cov_diag[..., None] * identity
        return self.cov_factor @ jnp.swapaxes(self.cov_factor, -1, -2) + diagonal

    @property
    def scale_tril(self) -> jax.Array:
        return jnp.linalg.cholesky(self.covariance_matrix)

    @property
    def root(self) -> jax.Array:
        identity = jnp.eye(self.dimension, dtype=self.cov_diag.dtype)
        noise = jnp.sqrt(self.cov_diag)[..., None] * identity
        return jnp.concatenate([noise, self.cov_factor], axis=-1)

    def scaled(self, by: jax.Array) -> "LowRank":
        return LowRank(self.cov_factor * by[..., :, None], self.cov_diag * by * by)

    def check(self) -> None:
        """Raise ValueError if a variance of the noise is not positive."""
        check_positive("LowRank", "cov_diag", self.cov_diag)


@frozen_pytree
class Markov(Covariance):
    """The covariance of a chain, each X given the one before it.

        X_1 = initial_scale Z_1,    X_(t+1) = transition_t X_t + noise_scale_t Z_(t+1)

    Its precision matrix is tridiagonal. transition = 1 is a random walk; transition = rho with
    noise_scale = sqrt(1 - rho^2) and initial_scale = 1 the stationary autoregression of order one.

    Args:
        transition: shape (d - 1,), or (k, d - 1).
        noise_scale: standard deviations, positive, of the same shape, or a number for all steps.
        initial_scale: standard deviation of X_1, positive, shape () or (k,).

    Raises:
        ValueError: if the shapes disagree, or a scale is not positive (not while tracing).

    Example:
        >>> tg.Markov([1.0, 1.0], 1.0, 1.0).covariance_matrix
        Array([[1., 1., 1.],
               [1., 2., 2.],
               [1., 2., 3.]], dtype=float64)
    """

    transition: jax.Array
    noise_scale: jax.Array
    initial_scale: jax.Array

    event_ranks = {"transition": 1, "noise_scale": 1, "initial_scale": 0}

    def __post_init__(self) -> None:
        transition, noise = as_float_array(self.transition), as_float_array(self.noise_scale)
        if transition.ndim < 1:
            raise ValueError("Markov: transition needs shape (d - 1,), got a number; repeat it.")
        steps = transition.shape[-1]
        noise = jnp.broadcast_to(noise, (steps,)) if noise.ndim == 0 else noise
        if noise.shape[-1] != steps:
            raise ValueError(
                f"Markov: transition of shape {transition.shape} has {steps} steps, but "
                f"noise_scale has shape {noise.shape}."
            )
        initial = as_float_array(self.initial_scale)
        self._set(transition=transition, noise_scale=noise, initial_scale=initial)
        self.check()

    @property
    def dimension(self) -> int:
        return self.transition.shape[-1] + 1

    @property
    def scales(self) -> jax.Array:
        """Standard deviation of what is new at each place, shape (..., d)."""
        return jnp.concatenate([self.initial_scale[..., None], self.noise_scale], axis=-1)

    @property
    def scale_tril(self) -> jax.Array:
        d = self.dimension
        identity = jnp.eye(d, dtype=self.transition.dtype)
        pull = jnp.zeros((*self.batch_shape, d), self.transition.dtype)
        pull = pull.at[..., :-1].set(self.transition)
        step = identity - jnp.roll(pull[..., None, :] * identity, 1, axis=-2)
        response = jax.lax.linalg.triangular_solve(
            step, jnp.broadcast_to(identity, step.shape), left_side=True, lower=True
        )
        return response * self.scales[..., None, :]

    @property
    def covariance_matrix(self) -> jax.Array:
        factor = self.scale_tril
        return factor @ jnp.swapaxes(factor, -1, -2)

    def scaled(self, by: jax.Array) -> "Markov":
        after, before = by[..., 1:], by[..., :-1]
        transition = self.transition * (after / before)
        return Markov(transition, self.noise_scale * after, self.initial_scale * by[..., 0])

    def check(self) -> None:
        """Raise ValueError if a scale is not positive."""
        check_positive("Markov", "noise_scale", self.noise_scale)
        check_positive("Markov", "initial_scale", self.initial_scale)


def as_covariance(value: Any) -> Covariance:
    """`value` itself if it is a covariance, else the `CovarianceMatrix` of the array it is."""
    if isinstance(value, Covariance):
        return value
    return CovarianceMatrix(as_float_array(value))


def check_square(owner: str, matrix: jax.Array) -> None:
    shape = jnp.shape(matrix)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(
            f"{owner} must have shape (d, d), or (k, d, d) for k of them, got {shape}. "
            "For one dimension write [[variance]]."
        )


def check_positive(owner: str, name: str, values: jax.Array) -> None:
    """Raise ValueError naming the smallest value if one is not positive; NaN passes."""
    if is_concrete(values) and np.any(np.asarray(values) <= 0):
        raise ValueError(f"{owner}: {name} must be positive, got {np.asarray(values).min():.3g}.")
