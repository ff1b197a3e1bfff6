"""Natural parameters of a Gaussian, and the loss of rows seen only inside a region in these."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Cost
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.fitting.held import Held
from truncgauss.fitting.optimization.newton import point, slope_at
from truncgauss.gaussian.covariances import ScaleTril
from truncgauss.gaussian.linalg import cholesky, namespace, solve_lower
from truncgauss.gaussian.problem import Estimate, Problem

STEP = 2e-5  # of a Gaussian's own size, between gradients whose difference is a Hessian
NARROW = 1e-2  # least eigenvalue of the inverse covariance of white rows, for which they are


@frozen_pytree
class TruncatedLoss:
    """Minus the mean log-likelihood of rows that were seen only inside a region,

        l(eta, Lambda) = tr(Lambda M) / 2 - eta . m + A(eta, Lambda),
        A = eta . Lambda^-1 eta / 2 - log det(Lambda) / 2 + d log(2 pi) / 2 + log P(X in region),

    with m the rows' mean and M their mean of x x^T, a convex function of the natural parameters
    eta = Lambda loc and Lambda, the inverse covariance (Barndorff-Nielsen, 1978). Both stand in one
    vector, eta first, then the lower triangle of Lambda by rows.

    The rows x are white, m = 0 and M the identity: columns that nearly depend on each other would
    cost the curvature all its digits. What limits see is root @ x.

    Attributes:
        root: the Cholesky factor (d, d) of the rows' correlation.
        region: of the rows in standard units.
        held: how P is computed.
        size: the total weight of the rows.
        log_units: logarithm of the volume that white units have in the user's.
    """

    root: jax.Array
    region: Any
    held: Held
    size: jax.Array
    log_units: jax.Array

    def __call__(self, natural: jax.Array) -> jax.Array:
        return -self.total(natural).log_prob / self.size

    def total(self, natural: jax.Array) -> Estimate:
        """The log-likelihood of all rows and its standard error."""
        log_prob, stderr = self.estimate(natural)
        value = self.without_region(natural) + log_prob
        return Estimate(-self.size * value, self.size * stderr)

    def without_region(self, natural: Any) -> Any:
        """The loss less log P; of numbers in NumPy."""
        xp = namespace(natural)
        eta, precision = unpacked(natural, self.root.shape[0])
        factor = cholesky(precision)
        whitened = solve_lower(factor, eta)
        log_normaliser = (
            0.5 * whitened @ whitened
            - xp.sum(xp.log(xp.diagonal(factor)))
            + 0.5 * len(eta) * math.log(2 * math.pi)
        )
        return 0.5 * xp.trace(precision) + log_normaliser + xp.asarray(self.log_units)

    @property
    def method(self) -> Any:
        """The method of P, with its plans."""
        return self.held.method

    @property
    def expensive_hessian(self) -> bool:
        """Whether profiles avoid the Hessian, whose program takes long to compile."""
        return True

    @property
    def cost(self) -> Cost:
        """The work of its compiled forms: little for an exact integral."""
        return Cost(0, loops=self.held.planned)

    def estimate(self, natural: jax.Array) -> Estimate:
        """The estimated log P(X in region) and its error."""
        loc, covariance = white_gaussian(natural, self.root.shape[0])
        factor = ScaleTril(self.root @ jnp.linalg.cholesky(covariance))
        return self.held.estimate(Problem(self.root @ loc, factor, self.region))


def hessian_of(loss: TruncatedLoss, natural: np.ndarray) -> np.ndarray:
    """The Hessian (q, q) by central differences of exact gradients, along directions in which the
    Gaussian changes by equal parts of itself; exact where it is so wide that these would cancel.

    Its program would take several times longer to compile than that of the gradient, and as long to
    run. The differences are right to eight digits.
    """
    d = loss.root.shape[0]
    _, precision = unpacked(natural, d)
    if np.linalg.eigvalsh(precision)[0] < NARROW:
        return point(loss, natural).hessian
    factor = np.linalg.cholesky(precision)
    moves = [unpacked(unit, d) for unit in np.eye(len(natural))]
    basis = np.stack([packed(factor @ v, factor @ m @ factor.T) for v, m in moves])
    ends = [[slope_at(loss, natural + side * STEP * b)[1] for b in basis] for side in (1, -1)]
    along = basis @ (np.array(ends[0]) - np.array(ends[1])).T / (2 * STEP)
    inverse = np.linalg.inv(basis)
    return inverse @ ((along + along.T) / 2) @ inverse.T


def packed(vector: Any, matrix: Any) -> Any:
    """A vector (d,) and a symmetric matrix (d, d) as one vector: the lower triangle by rows."""
    lower = np.tril_indices(len(vector))
    return namespace(vector).concatenate([vector, matrix[lower]])


def unpacked(values: Any, dimension: int) -> tuple[Any, Any]:
    """The vector and the symmetric matrix that `packed` took."""
    order = np.zeros((dimension, dimension), int)
    order[np.tril_indices(dimension)] = np.arange(len(values) - dimension)
    order = np.maximum(order, order.T)
    return values[:dimension], values[dimension:][order]


def white_gaussian(natural: Any, dimension: int) -> tuple[Any, Any]:
    """loc and covariance matrix of packed (eta, Lambda)."""
    eta, precision = unpacked(natural, dimension)
    covariance = inverse(precision)
    return covariance @ eta, covariance


def inverse(matrix: Any) -> Any:
    """The inverse of a positive definite matrix, symmetric to the bit; NaN for any other."""
    root = solve_lower(cholesky(matrix), np.eye(matrix.shape[-1], dtype=matrix.dtype))
    return root.T @ root
