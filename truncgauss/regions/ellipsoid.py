"""Ellipsoids."""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.covariances import CovarianceMatrix
from truncgauss.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.regions.region import Region
from truncgauss.safe import safe_norm


@frozen_pytree
class Ellipsoid(Region):
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

    center: Array
    shape_matrix: Array

    event_ranks = {"center": 1, "shape_matrix": 2}

    def __post_init__(self) -> None:
        center, matrix = as_float_array(self.center), as_float_array(self.shape_matrix)
        d = center.shape[-1] if center.ndim else 0
        if center.ndim == 0 or matrix.ndim < 2 or matrix.shape[-2:] != (d, d):
            raise ValueError(
                "Ellipsoid: center must have shape (d,) and shape_matrix (d, d), got "
                f"{center.shape} and {matrix.shape}."
            )
        self._set(center=center, shape_matrix=matrix)
        CovarianceMatrix(self.shape_matrix).check()
        if is_concrete(self.shape_matrix):
            lowest = np.linalg.eigvalsh(np.asarray(self.shape_matrix)).min(initial=np.inf)
            if lowest <= 0:
                raise ValueError(
                    "Ellipsoid: shape_matrix must be positive definite, got one whose smallest "
                    f"eigenvalue is {lowest:.3g}."
                )

    @property
    def dimension(self) -> int:
        return self.center.shape[-1]

    @property
    def is_proper(self) -> Array:
        return jnp.all(jnp.isfinite(jnp.linalg.cholesky(self.shape_matrix)))

    def radius_of(self, x: Array) -> Array:
        """The norm of L^-1 (x - center) for points x, shape (..., d): 1 on the surface."""
        factor = jnp.linalg.cholesky(self.shape_matrix)
        identity = jnp.broadcast_to(jnp.eye(self.dimension, dtype=factor.dtype), factor.shape)
        inverse = lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)
        x, center = jnp.broadcast_arrays(x, self.center)
        return safe_norm(jnp.einsum("...ij,...j->...i", inverse, x - center))

    def contains(self, x: Array) -> Array:
        """Whether each point x of shape (..., d) lies inside."""
        return self.radius_of(x) <= 1.0

    def margins(self, x: Array) -> Array:
        """How far x, shape (..., d), lies inside the surface: shape (..., 1).

        It is a (1 - radius_of(x)), a the shortest semi-axis: for a ball the distance to the
        surface, else at most that inside. Its gradient at the centre is taken as 0.
        """
        shortest = jnp.sqrt(jnp.linalg.eigvalsh(self.shape_matrix)[..., 0])
        return (shortest * (1.0 - self.radius_of(x)))[..., None]
