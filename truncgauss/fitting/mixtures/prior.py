r"""A weak prior that keeps the components of a mixture from collapsing onto a few rows.

Each covariance matrix is penalised as if v more rows of the spread S of all rows had been seen in
its component, about its mean: log prior is, but for a constant,

.. math:: -\frac{v}{2} \sum_k \{ \log\det(S^{-1} \Sigma_k) + \mathrm{tr}(S \Sigma_k^{-1}) \}

with S the diagonal matrix of the variances of the rows' entries. The likelihood of a mixture has no
maximum where a component shrinks onto a row; this has one. It is an inverse Wishart prior of scale
v S with v - d - 1 degrees of freedom.

Reference:
    Chen and Tan, "Inference for multivariate normal mixtures", Journal of Multivariate Analysis
    (2009), who show that the penalised estimate is consistent.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Compiled, closed_form
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates


def log_prior(scale: jax.Array, matrices: jax.Array) -> jax.Array:
    """The logarithm of the prior of covariance matrices (k, d, d) for v = 1.

    Args:
        scale: square roots of the variances in S, (d,).
        matrices: each counts once, also if several components share it.
    """
    factors = jnp.linalg.cholesky(matrices / scale[:, None] / scale)
    logs = 2 * jnp.sum(jnp.log(jnp.diagonal(factors, axis1=-2, axis2=-1)))
    units = jnp.broadcast_to(jnp.eye(len(scale), dtype=matrices.dtype), matrices.shape)
    inverse = jax.scipy.linalg.solve_triangular(factors, units, lower=True)
    return -0.5 * (logs + jnp.sum(inverse**2))


def log_prior_at(coordinates: MixtureCoordinates, x: jax.Array) -> jax.Array:
    """Likewise, at free coordinates."""
    parts_x = x[coordinates.by_component[: coordinates.num_factors]]
    matrices = jax.vmap(lambda part: coordinates.gaussian(part)[1])(parts_x)
    return log_prior(coordinates.scale, matrices)


def derivatives(
    coordinates: MixtureCoordinates, x: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """The value, gradient and Hessian of the log prior."""
    value, gradient, hessian = map(np.asarray, _derivatives(coordinates, jnp.asarray(x)))
    return float(value), gradient, hessian


@functools.partial(Compiled, cost=closed_form)
def _derivatives(
    coordinates: MixtureCoordinates, x: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(log_prior_at, 1)(coordinates, x)
    return value, gradient, jax.hessian(log_prior_at, 1)(coordinates, x)
