r"""The free coordinates of a mixture's parameters, the names of its estimates, and their prior.

A weak prior keeps components from collapsing onto a few rows. Each covariance matrix is penalised
as if v more rows of the spread S of all rows had been seen in its component, about its mean: log
prior is, but for a constant,

.. math:: -\frac{v}{2} \sum_k \{ \log\det(S^{-1} \Sigma_k) + \mathrm{tr}(S \Sigma_k^{-1}) \}

with S the diagonal matrix of the variances of the rows' entries. The likelihood of a mixture has no
maximum where a component shrinks onto a row; this has one. It is an inverse Wishart prior of scale
v S with v - d - 1 degrees of freedom.

Reference:
    Chen and Tan, "Inference for multivariate normal mixtures", Journal of Multivariate Analysis
    (2009), who show that the penalised estimate is consistent.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix

STRUCTURES = ("full", "diagonal", "tied")


@frozen_pytree
class Mixture:
    """A mixture of K Gaussians in d dimensions.

    Attributes:
        weights: (K,), not negative; only their proportions matter.
        locs: means, (K, d).
        covariance: of batch shape (K,).
    """

    weights: jax.Array
    locs: jax.Array
    covariance: Covariance


class Components(NamedTuple):
    """Weights (K,), means (K, d) and covariance matrices (K, d, d) of a mixture."""

    weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray


@frozen_pytree
class MixtureCoordinates:
    """Free coordinates x of weights, means and covariance matrices.

    x holds the logarithms of the weights over the last one's, the means, and the Cholesky factors
    of the covariances with their diagonals in logs, one component after the other; means and
    factors in units of the rows' own centre and spread. Diagonal covariances have no entries off
    the diagonal, a tied one has one factor.

    Attributes:
        centre, scale: of the rows, (d,).
        num_components: K (static).
        structure: "full", "diagonal" or "tied" (static).
    """

    centre: jax.Array
    scale: jax.Array
    num_components: int = static_field()
    structure: str = static_field()

    @property
    def dimension(self) -> int:
        return len(self.centre)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The free entries of a covariance matrix, in its lower triangle, by rows."""
        d = self.dimension
        if self.structure == "diagonal":
            return [(j, j) for j in range(d)]
        return [(i, j) for i in range(d) for j in range(i + 1)]

    @property
    def num_factors(self) -> int:
        return 1 if self.structure == "tied" else self.num_components

    @property
    def size(self) -> int:
        """Number of free coordinates."""
        k, d = self.num_components, self.dimension
        return k - 1 + k * d + self.num_factors * len(self.entries)

    def mixture(self, x: jax.Array) -> Mixture:
        """The mixture at free coordinates."""
        weights = jax.nn.softmax(jnp.append(x[: self.num_components - 1], 0.0))
        locs, matrices = jax.vmap(self.gaussian)(x[self.by_component])
        return Mixture(weights, locs, CovarianceMatrix(matrices))

    @property
    def by_component(self) -> np.ndarray:
        """Coordinates of each component, besides its weight: d of its mean, then those
        of its factor, (K, p)."""
        k, d, count = self.num_components, self.dimension, len(self.entries)
        locs = k - 1 + np.arange(k * d).reshape(k, d)
        factors = k - 1 + k * d + np.arange(self.num_factors * count).reshape(-1, count)
        return np.hstack([locs, np.broadcast_to(factors, (k, count))])

    def reordered(self, order: np.ndarray) -> np.ndarray:
        """The matrix (q, q) that makes x that of the components in another order."""
        k, whole = self.num_components, np.eye(self.size)
        ratios = np.vstack([whole[: k - 1], np.zeros(self.size)])[order]
        result = np.zeros_like(whole)
        result[: k - 1] = ratios[:-1] - ratios[-1]
        result[self.by_component.ravel()] = whole[self.by_component[order].ravel()]
        return result

    def gaussian(self, component: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Mean and covariance matrix of a component, from its coordinates (p,)."""
        d, (i, j) = self.dimension, np.array(self.entries).T
        loc, parts = self.centre + self.scale * component[:d], component[d:]
        entries = jnp.where(i == j, jnp.exp(jnp.where(i == j, parts, 0.0)), parts)
        factor = self.scale[:, None] * jnp.zeros((d, d), component.dtype).at[i, j].set(entries)
        return loc, factor @ factor.T

    def free(self, weights: np.ndarray, locs: np.ndarray, matrices: np.ndarray) -> np.ndarray:
        """x of weights (K,), means (K, d) and covariance matrices (K, d, d)."""
        scale = np.asarray(self.scale)
        own = matrices[: self.num_factors] / np.outer(scale, scale)
        i, j = np.array(self.entries).T
        parts = np.linalg.cholesky(own)[:, i, j]
        parts = np.where(i == j, np.log(np.where(i == j, parts, 1.0)), parts)
        standard = (locs - np.asarray(self.centre)) / scale
        ratios = np.log(weights[:-1]) - np.log(weights[-1])
        return np.concatenate([ratios, standard.ravel(), parts.ravel()])

    def restricted(self, shares: np.ndarray, matrices: np.ndarray) -> np.ndarray:
        """The covariance matrices of this structure that are likeliest for rows with covariance
        `matrices` (K, d, d), of which each component has its share (K,)."""
        if self.structure == "diagonal":
            return matrices * np.eye(self.dimension)
        if self.structure == "tied":
            mean = np.einsum("k,kij->ij", shares / shares.sum(), matrices)
            return np.broadcast_to(mean, matrices.shape)
        return matrices

    def names(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the estimates, by those of the entries, (d,)."""
        k = self.num_components
        names = [f"weights[{c}]" for c in range(k)]
        names += [f"locs[{c}][{label}]" for c in range(k) for label in labels]
        covariances = ["covariance"]
        if self.structure != "tied":
            covariances = [f"covariances[{c}]" for c in range(k)]
        pairs = [f"[{labels[i]}, {labels[j]}]" for i, j in self.entries]
        return tuple(names + [own + pair for own in covariances for pair in pairs])

    def estimates(self, x: jax.Array) -> jax.Array:
        """The numbers that `names` calls, as one vector."""
        mixture = self.mixture(x)
        i, j = np.array(self.entries).T
        matrices = mixture.covariance.covariance_matrix[: self.num_factors]
        parts = mixture.weights, mixture.locs, matrices[:, i, j]
        return jnp.concatenate([part.ravel() for part in parts])

    def shaped(self, numbers: Any) -> tuple[Any, Any, Any]:
        """Numbers, one for each estimate, in the shapes of weights, means and covariances; 0 for
        what is fixed. NumPy's, or JAX's as they are."""
        k, d, (i, j) = self.num_components, self.dimension, np.array(self.entries).T
        xp = jnp if isinstance(numbers, jax.Array) else np
        weights, locs, entries = xp.split(numbers, [k, k + k * d])
        where = np.zeros((d, d), int)
        where[i, j] = where[j, i] = 1 + np.arange(len(i))
        padded = xp.pad(entries.reshape(self.num_factors, -1), ((0, 0), (1, 0)))
        matrices = xp.broadcast_to(padded[:, where], (k, d, d))
        return weights, locs.reshape(k, d), matrices

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each estimate, whether it is a "weight", a "variance" or another "number"."""
        k, d = self.num_components, self.dimension
        kinds = ["variance" if i == j else "number" for i, j in self.entries] * self.num_factors
        return tuple(["weight"] * k + ["number"] * (k * d) + kinds)


@functools.partial(Compiled, cost=closed_form)
def _mixture(coordinates: MixtureCoordinates, x: jax.Array) -> Mixture:
    return coordinates.mixture(x)


def components_at(coordinates: MixtureCoordinates, x: np.ndarray) -> Components:
    mixture = _mixture(coordinates, x)
    parts = mixture.weights, mixture.locs, mixture.covariance.covariance_matrix
    return Components(*map(np.asarray, parts))


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


@functools.partial(Compiled, cost=closed_form)
def prior_derivatives(
    coordinates: MixtureCoordinates, x: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The value, gradient and Hessian of the log prior."""
    value, gradient = jax.value_and_grad(log_prior_at, 1)(coordinates, x)
    return value, gradient, jax.hessian(log_prior_at, 1)(coordinates, x)
