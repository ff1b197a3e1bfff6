"""Ellipsoids."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from truncgauss.arrays.linalg import solve_lower
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.regions.region import QuadraticRegion
from truncgauss.special.safe import safe_norm
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Ellipsoid(QuadraticRegion):
    r"""All x with (x - center)^T shape_matrix^-1 (x - center) <= 1.

    .. math:: \lVert L^{-1} (x - c) \rVert \le 1, \qquad L L^T = S

    Args:
        center: c, shape (d,), or (k, d).
        shape_matrix: S, symmetric and positive definite, shape (d, d), or (k, d, d), in squared
            units of x. The semi-axes are the square roots of its eigenvalues, along its
            eigenvectors.

    Raises:
        ValueError: if shapes disagree, or the matrix is not symmetric or not positive definite
            (values: not while tracing).

    Example:
        >>> ellipse = tg.Ellipsoid([0.0, 0.0], [[4.0, 0.0], [0.0, 1.0]])
        >>> ellipse.contains(jnp.array([[1.9, 0.0], [0.0, 1.1]]))
        Array([ True, False], dtype=bool)
    """

    center: Float[Array, "*batch d"]
    shape_matrix: Float[Array, "*batch d d"]

    event_ranks = {"center": 1, "shape_matrix": 2}

    def __init__(
        self,
        center: Real[ArrayLike, "*#batch d"] | Sequence[Any],
        shape_matrix: Real[ArrayLike, "*#batch d d"] | Sequence[Any],
    ) -> None:
        centers = as_float_array(center, "Ellipsoid: center")
        matrix = as_float_array(shape_matrix, "Ellipsoid: shape_matrix")
        d = centers.shape[-1] if centers.ndim else 0
        if centers.ndim == 0 or matrix.ndim < 2 or matrix.shape[-2:] != (d, d):
            raise ValueError(
                "Ellipsoid: center must have shape (d,) and shape_matrix (d, d), got "
                f"{centers.shape} and {matrix.shape}."
            )
        self._set(center=centers, shape_matrix=matrix)
        CovarianceMatrix(self.shape_matrix).check("Ellipsoid: shape_matrix")
        if is_concrete(self.shape_matrix):
            lowest = np.linalg.eigvalsh(np.asarray(self.shape_matrix)).min(initial=np.inf)
            if lowest <= 0:
                raise ValueError(
                    "Ellipsoid: shape_matrix must be positive definite, got one whose smallest "
                    f"eigenvalue is {lowest:.3g}."
                )

    @property
    def root(self) -> Float[Array, "d d"]:
        return jnp.linalg.cholesky(self.shape_matrix)

    def section(
        self, known: tuple[int, ...], values: Float[Array, " e"]
    ) -> tuple["Ellipsoid", Bool[Array, ""]]:
        """As a Gaussian is conditioned, with a share of the matrix that is 0 at the surface."""
        e = len(known)
        rest = [k for k in range(self.dimension) if k not in known]
        order = jnp.array([*known, *rest])
        center = self.center[order]
        factor = jnp.linalg.cholesky(self.shape_matrix[order[:, None], order])
        away = solve_lower(factor[:e, :e], values - center[:e])
        share = 1.0 - jnp.sum(away**2)
        empty, tail = share <= 0, factor[e:, e:]
        matrix = jnp.where(empty, 1.0, share) * (tail @ tail.T)
        return Ellipsoid(center[e:] + factor[e:, :e] @ away, matrix), empty

    @property
    def is_proper(self) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(jnp.linalg.cholesky(self.shape_matrix)))

    def carried(self, x: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, ""]]:
        factor = jnp.linalg.cholesky(self.shape_matrix)
        center, fixed = lax.stop_gradient((self.center, factor))
        away = lax.linalg.triangular_solve(fixed, (x - center[None]).T, left_side=True, lower=True)
        moved = self.center[None] + (factor @ away).T
        ratio = jnp.diagonal(factor) / jnp.diagonal(fixed)
        # Exactly x but for the derivative.
        return x + (moved - lax.stop_gradient(moved)), jnp.sum(jnp.log(ratio))

    def radius_of(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points"]:
        """The norm of L^-1 (x - center) for points x, shape (..., d): 1 on the surface."""
        factor = jnp.linalg.cholesky(self.shape_matrix)
        identity = jnp.broadcast_to(jnp.eye(self.dimension, dtype=factor.dtype), factor.shape)
        inverse = lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
        x, center = jnp.broadcast_arrays(self.as_points(x), self.center)
        return safe_norm(jnp.einsum("...ij,...j->...i", inverse, x - center))

    def contains(self, x: Float[Array, "*#points d"]) -> Bool[Array, "*points"]:
        return self.radius_of(x) <= 1.0

    def margins(self, x: Float[Array, "*#points d"]) -> Float[Array, "*points faces"]:
        """A lower bound of the distance from x, inside, to the surface: shape (..., 1).

        It is a (1 - radius_of(x)), a the shortest semi-axis, negative outside; for a ball it is the
        distance itself. Its gradient at the centre is taken as 0.
        """
        shortest = jnp.sqrt(jnp.linalg.eigvalsh(self.shape_matrix)[..., 0])
        return (shortest * (1.0 - self.radius_of(x)))[..., None]
