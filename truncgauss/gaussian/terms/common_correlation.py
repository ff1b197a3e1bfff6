"""One variance, and one correlation of all pairs of rows."""

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.gaussian.terms.term import CovarianceTerm, Parts


@frozen_pytree
class CommonCorrelation(CovarianceTerm):
    """Rows of one variance, of which each pair has the same correlation: sigma^2 ((1 - r) I + r J).

    The correlation is that of a shared effect, from 0 to 1. Exchangeable or compound symmetric are
    other words for it.

    Args:
        sigma: the standard deviation where it is known, such as 1 for binary outcomes.
        name: to call the term by.
    """

    title = "common"
    shape_names = ("correlation",)
    shape_start = (0.6,)

    @property
    def sigma_names(self) -> tuple[str, ...]:
        sigma = "sigma" if self.name is None else f"sigma[{self.name}]"
        return (sigma,) if self.sigma is None else ()

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        sigma, rest = self.split(x)
        root, ones = jnp.tanh(rest[0]), jnp.ones(columns.shape[0])
        return Parts(sigma * root * ones[:, None], sigma**2 * (1.0 - root**2) * ones)

    @property
    def edges(self) -> int:
        return 1  # the variance of the shared effect

    @property
    def squares(self) -> tuple[int, ...]:  # type: ignore[override]
        return (len(self.sigma_names),)

    def signed(self, x: jax.Array) -> jax.Array:
        return x.at[-1].set(jnp.tanh(x[-1]))

    def shape(self, rest: jax.Array) -> jax.Array:
        return jnp.tanh(rest) ** 2

    def shape_coordinates(self, shape: jax.Array) -> jax.Array:
        return jnp.arctanh(jnp.sqrt(shape))

    def signs(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, -1.0, 1.0)

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        return self.names[-1:] if abs(x[-1]) < least else ()
