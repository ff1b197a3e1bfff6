"""Errors of which each depends on the one before it in time."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class

FARTHEST = 8.0  # artanh of a correlation beyond which it is taken for 1
ENDLESS = (
    "There is no maximum: the likelihood grows as rho goes to {}. Where that is 1, the "
    "observations of a cluster vary together, as by tg.RandomEffects()."
)


@explained_class
@frozen_pytree
class AutoRegressive(CovarianceTerm):
    """A stationary process of first order at whole-numbered times: sigma^2 rho^|t - s|.

    Args:
        time: the name of a column, or whole numbers (n,); by default the order within the cluster.
            Gaps may have any length. For times that are no whole numbers use `Exponential`.
        sigma: the standard deviation where it is known.
        name: to call the term by.
    """

    time: Any = static_field(default=None)
    title = "autoregressive"
    shape_names = ("rho",)
    shape_start = (0.3,)

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        what = "AutoRegressive: time"
        time = rows.position if self.time is None else rows.numbers(self.time, what)
        wrong = np.flatnonzero(time != np.round(time))
        if len(wrong):
            raise ValueError(
                f"{what} must be whole numbers, got {time[wrong[0]]:g}. Use tg.Exponential(time)."
            )
        if self.time is not None:
            rows.spread(time, what)
        return type(self)(sigma=self.sigma, name=self.name), lambda index: time[index].astype(float)

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        sigma, rest = self.split(x)
        gaps = jnp.abs(columns[:, None] - columns)
        return Parts(matrix=sigma**2 * jnp.tanh(rest[0]) ** gaps)

    def shape(self, rest: jax.Array) -> jax.Array:
        return jnp.tanh(rest)

    def shape_coordinates(self, shape: jax.Array) -> jax.Array:
        return jnp.arctanh(shape)

    def endless(self, x: np.ndarray) -> str | None:
        return None if abs(x[-1]) < FARTHEST else ENDLESS.format("1" if x[-1] > 0 else "-1")
