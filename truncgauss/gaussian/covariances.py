"""Covariances, parametrised by their matrix or by one of its factors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays.linalg import cholesky, diagonal_of, is_symmetric, rounding
from truncgauss.arrays.pytrees import (
    AnyArray,
    Batched,
    as_float_array,
    as_float_input,
    as_jax_array,
    check_numbers,
    frozen_pytree,
    is_concrete,
)
from truncgauss.special.tails import undefined
from truncgauss.words.arguments import explained_class

LARGE = 3000  # dimensions from which a matrix is checked in steps of so many rows
LARGE_STEP = 512


class Covariance(Batched, ABC):
    """The contract of a covariance matrix of d coordinates, however it is parametrised.

    A new structure is a subclass, decorated with `frozen_pytree`, which names its leaves in
    `event_ranks` (see `Batched`) and defines `dimension`, `scale_tril`, `scaled` and `check`; the
    rest has defaults. Every method that needs no more than these serves it. A `Method` of its own
    stands in `methods`: `tg.Automatic` asks these classes before its own, by `Method.candidate`.

    Attributes:
        is_matrix: whether its numbers are the entries of the covariance matrix, `matrix`.
        is_factor: whether they are those of its lower Cholesky factor, `matrix`.
        is_chain: whether it is a Markov chain, with the fields of `Markov`.
        is_sparse: whether vectors are drawn without a dense factor, by `num_normals` and `combined`
            of `Directed`.
        num_factors: how many common factors it has, with the fields of `LowRank`; else None.
    """

    matrix: Float[AnyArray, "*batch d d"]  # where either of these is true
    is_matrix: ClassVar[bool] = False
    is_factor: ClassVar[bool] = False
    is_chain: ClassVar[bool] = False
    is_sparse: ClassVar[bool] = False
    methods: ClassVar[tuple[type[Any], ...]] = ()

    @property
    def num_factors(self) -> int | None:
        return None

    @property
    def is_dense(self) -> bool:
        """Whether the form has no structure: the matrix or its factor."""
        return self.is_matrix or self.is_factor

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number d of coordinates."""

    @property
    @abstractmethod
    def scale_tril(self) -> Float[Array, "*batch d d"]:
        """The lower Cholesky factor."""

    @property
    def covariance_matrix(self) -> Float[Array, "*batch d d"]:
        """The covariance matrix itself."""
        factor = self.scale_tril
        return factor @ jnp.swapaxes(factor, -1, -2)

    @property
    def root(self) -> Float[Array, "*batch d q"]:
        """A matrix with root @ root.T = covariance_matrix, computed without forming that product.

        Forming the product would lose half of the digits of a nearly singular covariance.
        """
        return self.scale_tril

    @property
    def variances(self) -> Float[Array, "*batch d"]:
        """The diagonal of the covariance matrix."""
        return diagonal_of(self.covariance_matrix)

    @abstractmethod
    def scaled(self, by: Float[Array, "*batch d"]) -> "Covariance":
        """The covariance of by * X, in the same parametrisation."""

    def released(self, still: Bool[Array, "*batch d"]) -> "Covariance":
        """The covariance with variance 1 for the coordinates that have none, marked in `still`."""
        return self  # in this parametrisation no variance can be zero

    def log_likelihood(self, observations: Any, loc: Any, method: Any, key: Any) -> Any:
        """The log-likelihood of rows by a way of its own, None for that of any covariance."""
        return None

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for what is no covariance; does nothing while tracing."""


@frozen_pytree
class CovarianceMatrix(Covariance):
    """A covariance given as its matrix; what a plain array becomes.

    Args:
        matrix: symmetric and positive semi-definite, shape (..., d, d).
    """

    matrix: Float[AnyArray, "*batch d d"]

    event_ranks = {"matrix": 2}
    is_matrix = True

    def __post_init__(self) -> None:
        check_square("covariance", self.matrix)

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    @property
    def covariance_matrix(self) -> Float[Array, "*batch d d"]:
        return as_jax_array(self.matrix)

    @property
    def scale_tril(self) -> Float[Array, "*batch d d"]:
        """The Cholesky factor; NaN where the matrix is not symmetric or not positive definite.

        A coordinate without variance has a row of zeros.
        """
        return _cholesky(self)

    @property
    def root(self) -> Float[Array, "*batch d d"]:
        """The Cholesky factor, also of a singular matrix; columns that are only rounding are 0."""
        return _cholesky_of_singular(self.matrix)

    def scaled(self, by: Float[Array, "*batch d"]) -> "CovarianceMatrix":
        return CovarianceMatrix(self.matrix * by[..., :, None] * by[..., None, :])

    def released(self, still: Bool[Array, "*batch d"]) -> "CovarianceMatrix":
        pair = still[..., :, None] | still[..., None, :]
        identity = jnp.eye(self.dimension, dtype=self.matrix.dtype)
        # A coordinate without variance must have no covariance either.
        unsound = jnp.any(pair & ~(self.matrix == 0), axis=(-2, -1), keepdims=True)
        return CovarianceMatrix(jnp.where(unsound, jnp.nan, jnp.where(pair, identity, self.matrix)))

    def check(self, what: str = "covariance") -> None:
        if not is_concrete(self.matrix):
            return
        matrix = np.asarray(self.matrix)
        if self.dimension >= LARGE:
            # In little memory. Whether it is definite is left to its factorisation, which takes
            # minutes and gives NaN.
            for start in range(0, self.dimension, LARGE_STEP):
                rows = matrix[..., start : start + LARGE_STEP, :]
                columns = np.swapaxes(matrix[..., :, start : start + LARGE_STEP], -1, -2)
                gap, size = np.max(np.abs(rows - columns)), np.max(np.abs(rows))
                if gap > float(np.finfo(matrix.dtype).eps) ** 0.5 * size:
                    raise ValueError(
                        f"covariance must be symmetric, got a matrix that differs from its "
                        f"transpose by {gap:.3g}. Average it with its transpose if that is "
                        "rounding."
                    )
            return
        if np.isnan(matrix).any():
            return  # NaN in, NaN out
        transposed = np.swapaxes(matrix, -1, -2)
        if not (np.array_equal(matrix, transposed) or np.all(is_symmetric(matrix))):
            gap = np.abs(matrix - transposed)
            *batch, i, j = (int(k) for k in np.unravel_index(np.argmax(gap), gap.shape))
            triangular = not np.triu(matrix, 1).any() or not np.tril(matrix, -1).any()
            cure = (
                "Pass tg.ScaleTril(factor) if this is a triangular factor, or S + S.T - "
                "np.diag(np.diag(S)) if it is one triangle S of the covariance matrix."
                if triangular
                else "Correct these entries; where they differ by rounding, pass (S + S.T) / 2."
            )
            raise ValueError(
                f"{what} must be symmetric, got a matrix with {matrix[*batch, i, j]:.6g} at "
                f"{[*batch, i, j]} and {matrix[*batch, j, i]:.6g} at {[*batch, j, i]}. {cure}"
            )
        try:
            np.linalg.cholesky(matrix)  # a tenth of the work, and the usual case
            return
        except np.linalg.LinAlgError:
            lowest = np.linalg.eigvalsh(matrix)
        bound = -64 * matrix.shape[-1] * np.finfo(matrix.dtype).eps * np.abs(lowest).max(-1)
        if np.any(lowest[..., 0] < bound):
            cure = (
                "Correlations that were estimated one by one can contradict each other: estimate "
                "them together, or take the nearest matrix that has none below 0."
            )
            squares = np.einsum("...ii->...i", matrix)
            beyond = np.square(matrix) > squares[..., :, None] * squares[..., None, :]
            if np.any(squares < 0):
                cure = "Its diagonal holds the variances, which are not negative."
            elif beyond.any():
                *batch, i, j = (int(k) for k in np.argwhere(beyond)[0])
                root = np.sqrt(squares[*batch, i] * squares[*batch, j])
                cure = (
                    f"The correlation of {i} and {j} would be {matrix[*batch, i, j] / root:.4g}: "
                    "the entries are covariances, with variances on the diagonal."
                )
            raise ValueError(
                f"{what} must be positive semi-definite, got a matrix whose smallest eigenvalue "
                f"is {lowest[..., 0].min():.3g}. {cure}"
            )


# Under `jit`, so that calls outside of a trace compile one program and not one an operation.
@jax.jit
def _cholesky(covariance: CovarianceMatrix) -> Array:
    still = covariance.variances == 0
    factor = cholesky(covariance.released(still).matrix)
    factor = jnp.where(still[..., None], 0.0 * factor, factor)
    return undefined(~is_symmetric(covariance.matrix)[..., None, None], factor)


@jax.jit
def _cholesky_of_singular(matrix: Array) -> Array:
    fixed = jax.lax.stop_gradient(matrix)
    floor = rounding(fixed)
    failed = jnp.any(jnp.isnan(cholesky(fixed)), axis=(-2, -1), keepdims=True)
    identity = jnp.eye(fixed.shape[-1], dtype=fixed.dtype)
    extra = jnp.where(failed, floor[..., None], 0.0)
    # What has no variance at all gets one here, and loses it below.
    extra = jnp.where(floor[..., None] == 0, 1.0, extra)
    factor = cholesky(matrix + extra * identity)
    pivots = diagonal_of(factor)
    empty = (pivots**2 <= 2.0 * floor) | (floor == 0)
    factor = jnp.where(empty[..., None, :], 0.0 * factor, factor)
    return undefined(~is_symmetric(matrix)[..., None, None], factor)


@explained_class
@frozen_pytree
class ScaleTril(Covariance):
    """The covariance matrix @ matrix.T, given by its lower Cholesky factor.

    Args:
        matrix: lower-triangular factor, shape (d, d), or (k, d, d).

    Raises:
        ValueError: if the shape is not square, or if a diagonal entry is negative or one above the
            diagonal not 0 (while tracing, all entries are NaN if one above the diagonal is not 0).

    Example:
        >>> tg.ScaleTril([[2.0, 0.0], [1.0, 1.0]]).covariance_matrix
        Array([[4., 2.],
               [2., 2.]], dtype=float64)
    """

    matrix: Float[Array, "*batch d d"]

    event_ranks = {"matrix": 2}
    is_factor = True

    def __init__(self, matrix: Real[ArrayLike, "*batch d d"] | Sequence[Any]) -> None:
        factor = as_float_array(matrix, "ScaleTril: matrix")
        check_square("ScaleTril", factor)
        if not is_concrete(factor):
            factor = undefined(jnp.any(jnp.triu(factor, 1), (-2, -1), keepdims=True), factor)
        self._set(matrix=factor)
        self.check()

    @property
    def dimension(self) -> int:
        return self.matrix.shape[-1]

    @property
    def scale_tril(self) -> Float[Array, "*batch d d"]:
        return jnp.tril(self.matrix)

    @property
    def variances(self) -> Float[Array, "*batch d"]:
        return jnp.square(self.scale_tril).sum(-1)

    def scaled(self, by: Float[Array, "*batch d"]) -> "ScaleTril":
        return jax.tree.map(lambda factor: factor * by[..., :, None], self)

    def released(self, still: Bool[Array, "*batch d"]) -> "ScaleTril":
        identity = jnp.eye(self.dimension, dtype=self.matrix.dtype)
        return jax.tree.map(lambda factor: jnp.where(still[..., :, None], identity, factor), self)

    def check(self) -> None:
        # JAX cannot fetch an array without elements that is spread over devices.
        if not is_concrete(self.matrix) or self.matrix.size == 0:
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


@explained_class
@frozen_pytree
class LowRank(Covariance):
    r"""The covariance of a few common factors and independent noise.

    .. math:: \Sigma = W W^T + \mathrm{diag}(v)

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

    cov_factor: Float[Array, "*batch d r"]
    cov_diag: Float[Array, "*batch d"]

    event_ranks = {"cov_factor": 2, "cov_diag": 1}

    def __init__(
        self,
        cov_factor: Real[ArrayLike, "*#batch d r"] | Sequence[Any],
        cov_diag: Real[ArrayLike, "*#batch d"] | Sequence[Any],
    ) -> None:
        factor = as_float_array(cov_factor, "LowRank: cov_factor")
        diagonal = as_float_array(cov_diag, "LowRank: cov_diag")
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
    def num_factors(self) -> int:
        return self.rank

    @property
    def variances(self) -> Float[Array, "*batch d"]:
        return self.cov_diag + jnp.square(self.cov_factor).sum(-1)

    @property
    def covariance_matrix(self) -> Float[Array, "*batch d d"]:
        identity = jnp.eye(self.dimension, dtype=self.cov_diag.dtype)
        diagonal = self.cov_diag[..., None] * identity
        return self.cov_factor @ jnp.swapaxes(self.cov_factor, -1, -2) + diagonal

    @property
    def scale_tril(self) -> Float[Array, "*batch d d"]:
        return cholesky(self.covariance_matrix)

    @property
    def root(self) -> Float[Array, "*batch d q"]:
        identity = jnp.eye(self.dimension, dtype=self.cov_diag.dtype)
        noise = jnp.sqrt(self.cov_diag)[..., None] * identity
        return jnp.concatenate([noise, self.cov_factor], axis=-1)

    def scaled(self, by: Float[Array, "*batch d"]) -> "LowRank":
        return LowRank(self.cov_factor * by[..., :, None], self.cov_diag * by * by)

    def check(self) -> None:
        check_positive("LowRank", "cov_diag", self.cov_diag)


@explained_class
@frozen_pytree
class Markov(Covariance):
    r"""The covariance of a Gaussian Markov chain, each coordinate given the one before it.

    .. math:: X_1 = \sigma_0 Z_1, \qquad X_{t+1} = a_t X_t + \sigma_t Z_{t+1}

    with independent standard normal Z. Its precision matrix is tridiagonal. transition = 1 is a
    random walk; transition = rho with noise_scale = sqrt(1 - rho^2) and initial_scale = 1 is the
    stationary autoregression of order one.

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

    transition: Float[Array, "*batch steps"]
    noise_scale: Float[Array, "*batch steps"]
    initial_scale: Float[Array, "*batch"]

    event_ranks = {"transition": 1, "noise_scale": 1, "initial_scale": 0}
    is_chain = True

    def __init__(
        self,
        transition: Real[ArrayLike, "*#batch steps"] | Sequence[Any],
        noise_scale: Real[ArrayLike, "*#batch steps"] | Real[ArrayLike, ""] | Sequence[Any],
        initial_scale: Real[ArrayLike, "*#batch"] | Sequence[Any],
    ) -> None:
        pulls = as_float_array(transition, "Markov: transition")
        noise = as_float_array(noise_scale, "Markov: noise_scale")
        if pulls.ndim < 1:
            raise ValueError("Markov: transition needs shape (d - 1,), got a number; repeat it.")
        steps = pulls.shape[-1]
        noise = jnp.broadcast_to(noise, (steps,)) if noise.ndim == 0 else noise
        if noise.shape[-1] != steps:
            raise ValueError(
                f"Markov: transition of shape {pulls.shape} has {steps} steps, but "
                f"noise_scale has shape {noise.shape}."
            )
        initial = as_float_array(initial_scale, "Markov: initial_scale")
        self._set(transition=pulls, noise_scale=noise, initial_scale=initial)
        self.check()

    @property
    def dimension(self) -> int:
        return self.transition.shape[-1] + 1

    @property
    def scales(self) -> Float[Array, "*batch d"]:
        """Standard deviation of each coordinate given the one before it."""
        return jnp.concatenate([self.initial_scale[..., None], self.noise_scale], axis=-1)

    @property
    def scale_tril(self) -> Float[Array, "*batch d d"]:
        d = self.dimension
        identity = jnp.eye(d, dtype=self.transition.dtype)
        pull = jnp.zeros((*self.batch_shape, d), self.transition.dtype)
        pull = pull.at[..., :-1].set(self.transition)
        step = identity - jnp.roll(pull[..., None, :] * identity, 1, axis=-2)
        response = jax.lax.linalg.triangular_solve(
            step, jnp.broadcast_to(identity, step.shape), left_side=True, lower=True
        )
        return response * self.scales[..., None, :]

    def scaled(self, by: Float[Array, "*batch d"]) -> "Markov":
        after, before = by[..., 1:], by[..., :-1]
        transition = self.transition * (after / before)
        return Markov(transition, self.noise_scale * after, self.initial_scale * by[..., 0])

    def check(self) -> None:
        check_positive("Markov", "noise_scale", self.noise_scale)
        check_positive("Markov", "initial_scale", self.initial_scale)


def as_covariance(value: Any) -> Covariance:
    """The value itself if it is a `Covariance`, else the array as a `CovarianceMatrix`."""
    if isinstance(value, Covariance):
        return value
    return CovarianceMatrix(as_float_input(value, "covariance"))


def check_square(owner: str, matrix: Any) -> None:
    shape = jnp.shape(matrix)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        cure = "For one dimension write [[variance]]."
        if len(shape) == 1 and shape[0] > 1:
            kinds = "variances) or jnp.diag(sds**2" if owner == "covariance" else "sds"
            cure = f"For independent coordinates write jnp.diag({kinds})."
        raise ValueError(
            f"{owner} must have shape (d, d), or (k, d, d) for k of them, got {shape}. {cure}"
        )


def check_positive(owner: str, name: str, values: ArrayLike) -> None:
    check_numbers(values, f"{owner}: {name}")
    if is_concrete(values) and np.any(np.asarray(values) <= 0):
        raise ValueError(f"{owner}: {name} must be positive, got {np.asarray(values).min():.3g}.")


def numbers_of(covariance: Covariance) -> np.ndarray:
    """The matrix of a concrete covariance, also while something else is traced."""
    with jax.ensure_compile_time_eval():
        return np.asarray(covariance.covariance_matrix)
