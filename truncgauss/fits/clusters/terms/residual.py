"""Residuals: what each row has by itself."""

import jax
import jax.numpy as jnp

from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.fits.clusters.terms.term import CovarianceTerm, Parts
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Residual(CovarianceTerm):
    """Independent errors of one variance: sigma^2 I.

    Args:
        sigma: the standard deviation where it is known, such as 1 for binary outcomes.
    """

    title = "residual"
    independent = True

    @property
    def sigma_names(self) -> tuple[str, ...]:
        sigma = "sigma" if self.name is None else f"sigma[{self.name}]"
        return (sigma,) if self.sigma is None else ()

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        return Parts(variances=self.split(x)[0] ** 2 * jnp.ones(columns.shape[0]))
