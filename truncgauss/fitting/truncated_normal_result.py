"""What a fit of a Gaussian to truncated rows returns."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.fitting.likelihood_fit import LikelihoodFit
from truncgauss.fitting.truncated_normal_loss import gaussian, packed


class GaussianErrors(NamedTuple):
    """Standard errors of loc (d,) and of the entries of the covariance matrix (d, d)."""

    loc: np.ndarray
    covariance_matrix: np.ndarray


@frozen_pytree
class NaturalCoordinates:
    """What packed natural parameters of white rows stand for in the user's units.

    Attributes:
        centre: the rows' mean, (d,).
        scale: their standard deviations, (d,).
        root: the Cholesky factor of their correlation, (d, d).
    """

    centre: jax.Array
    scale: jax.Array
    root: jax.Array

    def estimates(self, x: jax.Array) -> jax.Array:
        """loc and the lower triangle of the covariance matrix by rows, as one vector; of one column
        loc and sigma."""
        loc, covariance = gaussian(x, self.root)
        units = jnp.outer(self.scale, self.scale)
        return with_sigma(packed(self.centre + self.scale * loc, covariance * units))


def with_sigma(estimates: Any) -> Any:
    """Packed loc and covariance, of one column with its standard deviation for its variance."""
    return estimates ** np.array([1.0, 0.5]) if len(estimates) == 2 else estimates


def names_of(columns: Sequence[str]) -> tuple[str, ...]:
    """What to call the estimates, by the names of the columns."""
    if len(columns) == 1:
        return (f"loc[{columns[0]}]", "sigma")
    pairs = [f"{own}, {other}" for i, own in enumerate(columns) for other in columns[: i + 1]]
    return (*(f"loc[{own}]" for own in columns), *(f"covariance[{pair}]" for pair in pairs))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedFit(LikelihoodFit):
    """The Gaussian that truncated rows come from, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        loc: its mean, shape (d,).
        covariance_matrix: its covariance, shape (d, d).
        standard_errors: `.loc` (d,) and `.covariance_matrix` (d, d), from the observed information,
            which at the maximum of rows with shared limits is the expected one; inf where there is
            no maximum.
        parameter_covariance: covariance of (loc, lower triangle of the covariance by rows), of one
            column of (loc, sigma).
    """

    loc: jax.Array
    covariance_matrix: jax.Array
    standard_errors: GaussianErrors
