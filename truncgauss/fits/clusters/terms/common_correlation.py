"""One variance, and one correlation of all pairs of rows."""

import dataclasses
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class

FARTHEST = 16.0  # logit of a correlation within its range, beyond which it is taken for an end
ENDLESS = "There is no maximum: the likelihood grows as the correlation goes to {}."


@explained_class
@frozen_pytree
class CommonCorrelation(CovarianceTerm):
    """Rows of one variance, of which each pair has the same correlation: sigma^2 ((1 - r) I + r J).

    The correlation is that of a shared effect, from 0 to 1, whose integrals are over this effect
    alone; or, if asked for, from the lowest that clusters of their sizes can have. Exchangeable or
    compound symmetric are other words for it.

    Args:
        negative: whether it may be as low as -1 / (m - 1), for m rows of the largest cluster, such
            as of members of a litter that compete.
        sigma: the standard deviation where it is known, such as 1 for binary outcomes.
        name: to call the term by.
    """

    negative: bool = static_field(default=False)
    least: float = static_field(default=0.0, kw_only=True)
    title = "common"
    shared = True
    lost_at_zero = False  # sigma is that of the rows
    shape_names = ("correlation",)
    shape_start = (0.6,)

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        if not self.negative:
            return super().prepared(rows)
        most = int(rows.position.max()) + 1
        if most < 2:
            raise ValueError("CommonCorrelation: no cluster has two observations.")
        term = dataclasses.replace(self, least=-1.0 / (most - 1))
        return term, lambda index: np.zeros((*index.shape, 0))

    @property
    def sigma_names(self) -> tuple[str, ...]:
        sigma = "sigma" if self.name is None else f"sigma[{self.name}]"
        return (sigma,) if self.sigma is None else ()

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        sigma, rest = self.split(x)
        if self.negative:
            ones = jnp.ones(columns.shape[:1] * 2)
            correlation, unit = self.shape(rest)[0], jnp.eye(len(ones))
            return Parts(matrix=sigma**2 * jnp.where(unit > 0, 1.0, correlation * ones))
        root, ones = jnp.tanh(rest[0]), jnp.ones(columns.shape[0])
        return Parts(sigma * root * ones[:, None], sigma**2 * (1.0 - root**2) * ones)

    @property
    def edges(self) -> int:
        return 0 if self.negative else 1  # the variance of the shared effect

    @property
    def squares(self) -> tuple[int, ...]:  # type: ignore[override]
        return () if self.negative else (len(self.sigma_names),)

    def signed(self, x: jax.Array) -> jax.Array:
        return self.estimates(x) if self.negative else x.at[-1].set(jnp.tanh(x[-1]))

    def shape(self, rest: jax.Array) -> jax.Array:
        if self.negative:
            return self.least + (1.0 - self.least) * jax.nn.sigmoid(rest)
        return jnp.tanh(rest) ** 2

    def shape_coordinates(self, shape: jax.Array) -> jax.Array:
        if self.negative:
            return jnp.log(shape - self.least) - jnp.log(1.0 - shape)
        return jnp.arctanh(jnp.sqrt(shape))

    def signs(self, x: np.ndarray) -> np.ndarray:
        return super().signs(x) if self.negative else np.where(x < 0, -1.0, 1.0)

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        return self.names[-1:] if abs(x[-1]) < least and not self.negative else ()

    def endless(self, x: np.ndarray) -> str | None:
        if not self.negative or abs(x[-1]) < FARTHEST:
            return None
        return ENDLESS.format("1" if x[-1] > 0 else f"{self.least:.3g}, the lowest there can be")
