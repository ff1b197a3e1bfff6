"""The loss of rows under a mixture, its derivatives, and the shares of its components."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.compiling import MEDIUM, Compiled
from truncgauss.likelihood import Observations
from truncgauss.mixtures.likelihood import MixtureTerms, mixture_terms, row_weights, total_of
from truncgauss.mixtures.parameters import MixtureCoordinates
from truncgauss.optimization.checkpoint import computed
from truncgauss.optimization.newton import FEW_NUMBERS
from truncgauss.probability.method import Method
from truncgauss.pytrees import frozen_pytree
from truncgauss.regions import LinearRegion


@frozen_pytree
class MixtureLoss:
    """Minus the mean log-likelihood of a row, by free coordinates.

    Attributes:
        observations: the rows.
        coordinates: what x stands for.
        size: the total weight of the rows.
        method: how probabilities are computed, with its plans held.
        key: its random key.
    """

    observations: Observations
    coordinates: MixtureCoordinates
    size: jax.Array
    method: Method
    key: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return -total_of(self.observations, self.terms(x)).log_prob / self.size

    def terms(self, x: jax.Array) -> MixtureTerms:
        mixture = self.coordinates.mixture(x)
        return mixture_terms(self.observations, mixture, self.method, self.key)

    def observed_weights(self, x: jax.Array) -> jax.Array:
        """The mean, over rows, of the share of each component in what can be seen there, (K,)."""
        weights = row_weights(self.observations, x.dtype)
        return weights @ self.terms(x).region_shares / self.size


def effort_of(loss: MixtureLoss) -> dict[str, Any] | None:
    """Compile with less effort what runs for milliseconds."""
    region = loss.observations.region
    if region is not None and not isinstance(region, LinearRegion):
        return None  # many points, however few rows
    size = sum(leaf.size for leaf in jax.tree.leaves(loss))
    return MEDIUM if size <= FEW_NUMBERS else None


def slope(loss: MixtureLoss, x: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss and its gradient at x."""
    compiled = functools.partial(_slope, effort=effort_of(loss))
    value, gradient = computed("slope", compiled, loss, jnp.asarray(x))
    return float(value), np.asarray(gradient)


def shares(loss: MixtureLoss, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The observed weights (K,) and their Jacobian (K, q)."""
    found = _shares(loss, jnp.asarray(x), effort=effort_of(loss))
    return np.asarray(found[0]), np.asarray(found[1])


@Compiled
def _slope(loss: MixtureLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.value_and_grad(loss)(x)


@Compiled
def _shares(loss: MixtureLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, pulled = jax.vjp(loss.observed_weights, x)
    return value, jax.lax.map(lambda row: pulled(row)[0], jnp.eye(len(value), dtype=x.dtype))


@Compiled
def found_terms(loss: MixtureLoss, x: jax.Array) -> MixtureTerms:
    """What the mixture at x says of each row."""
    return loss.terms(x)
