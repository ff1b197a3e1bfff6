"""Correlations that fall with the distance of rows in space or time."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class

SMOOTHNESS = (0.5, 1.5, 2.5)
FARTHEST = 11.0  # logarithm of a range in units of the positions, beyond which it is no longer told
ENDLESS = (
    "There is no maximum: the likelihood grows with the range, as if the observations of a cluster "
    "varied together. Use tg.RandomEffects() instead."
)


@explained_class
@frozen_pytree
class Matern(CovarianceTerm):
    """A random field of Matern's covariance at positions, of Euclidean distances d.

    With s = sqrt(2 nu) d / range, sigma^2 exp(-s) times 1, 1 + s or 1 + s + s^2 / 3 for a
    smoothness nu of 1/2, 3/2 or 5/2.

    Args:
        position: the name of a column, several names, or values (n,) or (n, k).
        smoothness: 0.5, 1.5 or 2.5.
        sigma: the standard deviation where it is known.
        name: to call the term by.

    Reference:
        Stein, "Interpolation of Spatial Data" (1999).
    """

    position: Any = static_field(default=None)
    smoothness: float = static_field(default=1.5)
    unit: float = static_field(default=1.0, kw_only=True)  # of distance
    title = "matern"
    shape_names = ("range",)

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        what = f"{type(self).__name__}: position"
        if self.smoothness not in SMOOTHNESS:
            raise ValueError(f"Matern: smoothness must be 0.5, 1.5 or 2.5, got {self.smoothness}.")
        names = self.position
        if not (isinstance(names, list | tuple) and all(isinstance(x, str) for x in names)):
            values = rows.column(names, what)
            columns = list(values.T) if values.ndim == 2 else [values]
        else:
            columns = list(names)
        points = np.stack([rows.numbers(column, what) for column in columns], axis=1)
        points = rows.spread(points, what)
        unit = float(np.linalg.norm(points.std(axis=0))) or 1.0
        term = type(self)(
            None, self.smoothness, sigma=self.sigma, name=self.name, unit=unit
        )  # fmt: skip
        return term, lambda index: points[index] / unit

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        sigma, rest = self.split(x)
        squares = jnp.sum((columns[:, None] - columns) ** 2, axis=-1)
        distance = jnp.sqrt(squares)  # of numbers, which no derivative meets
        s = (2.0 * self.smoothness) ** 0.5 * distance * jnp.exp(-rest[0])
        terms = {0.5: 1.0, 1.5: 1.0 + s, 2.5: 1.0 + s + s**2 / 3.0}
        return Parts(matrix=sigma**2 * terms[self.smoothness] * jnp.exp(-s))

    @property
    def shape_start(self) -> tuple[float, ...]:
        return (-0.7,)

    def shape(self, rest: jax.Array) -> jax.Array:
        return self.unit * jnp.exp(rest)

    def shape_coordinates(self, shape: jax.Array) -> jax.Array:
        return jnp.log(shape / self.unit)

    def endless(self, x: np.ndarray) -> str | None:
        return ENDLESS if x[-1] > FARTHEST else None
