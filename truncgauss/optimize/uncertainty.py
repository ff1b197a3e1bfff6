"""Standard errors, what the data cannot identify, and the certificate of an optimum.

References:
    Efron and Hinkley (1978), Assessing the accuracy of the maximum likelihood estimator: observed
    versus expected Fisher information. Rothenberg (1971), Identification in parametric models.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

# Of the scaled curvature: below, the rounding of a gradient in float64 moves an optimum by a
# visible part of its standard error.
RESOLVED = 1e-10


def units_of(matrix: np.ndarray) -> np.ndarray:
    """Roots of the absolute diagonal, (q,), and 1 where that is 0."""
    units = np.sqrt(np.abs(np.diagonal(matrix)).astype(float))
    return np.where(units > 0, units, 1.0)


def scaled_spectrum(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Units of a symmetric matrix, and its eigenvalues and vectors in these."""
    units = units_of(matrix)
    return units, *np.linalg.eigh(matrix / units[:, None] / units)


class ErrorBars(NamedTuple):
    """Standard errors of p parameters that are functions of q free coordinates.

    Attributes:
        standard_errors: shape (p,); inf where the data do not identify the parameter.
        covariance: shape (p, p); inf and nan in the rows of what is not identified.
        identified: shape (p,), bool.
        rank: how many directions of the free coordinates the data determine.
        num_free: how many there are.
    """

    standard_errors: np.ndarray
    covariance: np.ndarray
    identified: np.ndarray
    rank: int
    num_free: int


class FreeErrors(NamedTuple):
    """Errors of q free coordinates, by the information on them.

    Attributes:
        factor: A, (q, q), with A^T A the information in units of each coordinate.
        units: these, (q,).
        root: R, (q, r), with R R^T the covariance of the coordinates, if that is not the inverse of
            the information.
    """

    factor: np.ndarray
    units: np.ndarray
    root: np.ndarray | None = None

    @classmethod
    def observed(cls, information: np.ndarray) -> "FreeErrors":
        units = units_of(information)
        return cls(information_factor(information) / units, units)

    def of(self, jacobian: np.ndarray) -> ErrorBars:
        """The error bars of functions of the coordinates, by their Jacobian (p, q)."""
        p, every = len(jacobian), np.eye(len(self.units))  # none is left out as if it were known
        bars = error_bars(self.factor, np.concatenate([jacobian / self.units, every]))
        bars = bars._replace(
            standard_errors=bars.standard_errors[:p],
            covariance=bars.covariance[:p, :p],
            identified=bars.identified[:p],
        )
        if self.root is None:
            return bars
        moves = jacobian @ self.root
        covariance = moves @ moves.T
        return bars._replace(
            standard_errors=np.sqrt(np.diagonal(covariance)), covariance=covariance
        )


class Certificate(NamedTuple):
    """Measures of an optimum: curvature, distance, and sampling error.

    Attributes:
        gradient: the largest |g_i| s_i, with s_i the standard error of a free coordinate: the slope
            of the log-likelihood, in units of log-likelihood a standard error.
        distance: sqrt(g . H^-1 g): how far the optimum is estimated to be, in standard errors.
        curvature: the smallest eigenvalue of the Hessian, scaled to a unit diagonal.
        positive_definite: whether that is positive beyond rounding, so that it is a minimum and the
            distance to it is known.
        stderr: the sampling error of the log-likelihood; 0 if exact, nan if unknown.
    """

    gradient: float
    distance: float
    curvature: float
    positive_definite: bool
    stderr: float = 0.0

    def __str__(self) -> str:
        away = f"estimated {self.distance:.1e} standard errors away"
        return f"{self.kind}, {away}; {self.known}"

    @property
    def kind(self) -> str:
        kind = "a strict optimum" if self.positive_definite else "no strict optimum"
        return f"{kind} (smallest scaled curvature {self.curvature:.1e})"

    @property
    def known(self) -> str:
        return f"log-likelihood known to {f'{self.stderr:.1e}' if self.stderr else 'rounding'}"


def error_bars(factor: Any, jacobian: Any = None) -> ErrorBars:
    """Standard errors from a factor A of the information A^T A in free coordinates.

    A parameter is not identified if moving along the null space of A moves it. Both are judged
    after scaling the columns of A to unit length, so that no unit matters. If A or the Jacobian is
    not finite nothing is known: standard errors and covariance are nan.

    Args:
        factor: A, shape (r, q), such as sqrt(weight_k) d p_k / d x_j.
        jacobian: d parameters / d free coordinates, shape (p, q); the identity by default.
            Coordinates that move no parameter are left out.

    Returns:
        ErrorBars.

    Example:
        >>> tg.fitting.error_bars([[2.0, 0.0]]).standard_errors
        array([0.5, inf])
    """
    factor = np.asarray(factor)
    eps = float(np.finfo(factor.dtype).eps)
    factor = factor.astype(np.float64)
    jacobian = np.eye(factor.shape[1]) if jacobian is None else np.asarray(jacobian, np.float64)
    if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(jacobian))):
        p, unknown = len(jacobian), np.full((len(jacobian), len(jacobian)), np.nan)
        return ErrorBars(np.full(p, np.nan), unknown, np.zeros(p, bool), 0, factor.shape[1])
    moving = np.any(jacobian != 0, axis=0)
    factor, jacobian = factor[:, moving], jacobian[:, moving]
    lengths = np.linalg.norm(factor, axis=0)
    # A column of rounding noise beside another of weight is no information.
    lengths = np.where(lengths > eps * lengths.max(initial=0.0), lengths, 0.0)
    units = np.where(lengths > 0, lengths, 1.0)
    _, sizes, rows = np.linalg.svd(factor * (lengths > 0) / units)
    sizes = np.append(sizes, np.zeros(len(rows) - len(sizes)))
    known = sizes > eps**0.5 * max(sizes.max(initial=0.0), np.finfo(float).tiny)
    moves = jacobian / units @ rows.T  # of the parameters along each singular direction
    total = np.linalg.norm(moves, axis=1)
    touched = np.any(np.abs(moves[:, ~known]) > eps**0.4 * total[:, None], axis=1)
    spread = moves[:, known] / sizes[known]
    covariance = spread @ spread.T
    covariance[touched, :] = covariance[:, touched] = np.nan
    covariance[touched, touched] = np.inf
    return ErrorBars(
        np.sqrt(np.diagonal(covariance)), covariance, ~touched, int(known.sum()), len(rows)
    )


def information_factor(information: Any) -> np.ndarray:
    """A with A^T A the information matrix (q, q); what is not positive beyond rounding counts as 0.

    The square root of a singular value keeps half of the digits only: where the factor itself is
    at hand, use that.
    """
    information = np.asarray(information)
    if not np.all(np.isfinite(information)):
        return np.full_like(information, np.nan)
    eps = float(np.finfo(information.dtype).eps)
    units, values, vectors = scaled_spectrum(information)
    values = np.where(values > 8 * eps * len(values) * np.abs(values).max(), values, 0.0)
    factor = np.sqrt(values)[:, None] * vectors.T * units
    return factor.astype(information.dtype)


def certificate(gradient: Any, hessian: Any, stderr: float = 0.0) -> Certificate:
    """The certificate of an optimum from the gradient (q,) and Hessian (q, q) of minus the
    log-likelihood, both of the whole sample.

    Example:
        >>> str(tg.fitting.certificate([1e-6], [[100.0]]))[:16]
        'a strict optimum'
    """
    gradient, hessian = np.asarray(gradient, float), np.asarray(hessian)
    if not (np.all(np.isfinite(gradient)) and np.all(np.isfinite(hessian))):
        return Certificate(np.nan, np.nan, np.nan, False, float(stderr))
    eps = float(np.finfo(hessian.dtype).eps)
    units, values, vectors = scaled_spectrum(hessian)
    positive = bool(values[0] > max(8 * eps * len(values), RESOLVED) * values[-1])
    if not positive:
        return Certificate(np.nan, np.nan, float(values[0]), False, float(stderr))
    inverse = (vectors / values) @ vectors.T
    slope = gradient / units
    return Certificate(
        gradient=float(np.max(np.abs(slope) * np.sqrt(np.diagonal(inverse)))),
        distance=float(np.sqrt(slope @ inverse @ slope)),
        curvature=float(values[0]),
        positive_definite=True,
        stderr=float(stderr),
    )


def standard_errors(
    negative_log_likelihood: Callable[[Any], jax.Array], params: Any, constraints: Any = None
) -> Any:
    """Standard errors of fitted parameters, from the Hessian of a whole sample's likelihood.

    With I the Hessian in free coordinates and J = d params / d free, the covariance is
    J I^-1 J^T.

    Args:
        negative_log_likelihood: params -> minus the log-likelihood, a sum over the data (not a
            mean).
        params: where it is lowest, such as `FitResult.params`.
        constraints: as in `minimize`. What is frozen has standard error 0.

    Returns:
        A pytree like params; inf where the data do not identify the parameter.

    Example:
        >>> rows = jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> loss = lambda mean: jnp.sum((rows - mean) ** 2) / 2
        >>> tg.fitting.standard_errors(loss, 2.5)
        Array(0.5, dtype=float64)
    """
    from truncgauss.optimize.constraints import coordinates

    free_coordinates = coordinates(params, constraints)
    free, unravel = ravel_pytree(free_coordinates.free(free_coordinates.start))
    flat_params, as_tree = ravel_pytree(free_coordinates.start)

    def loss(x: jax.Array) -> jax.Array:
        return negative_log_likelihood(free_coordinates.params(unravel(x)))

    information = jax.jit(jax.hessian(loss))(free)
    flat = lambda x: ravel_pytree(free_coordinates.params(unravel(x)))[0]
    jacobian = jax.jit(jax.jacfwd(flat))(free)
    bars = error_bars(information_factor(information), jacobian)
    return as_tree(jnp.asarray(bars.standard_errors, flat_params.dtype))
