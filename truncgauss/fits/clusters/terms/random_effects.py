"""Random effects: coefficients of covariates that vary between clusters."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import (
    CovarianceTerm,
    LongRows,
    Parts,
    deviations_and_correlations,
    edges_of_factor,
    factor_of,
    lower_factor,
    pairs_of,
    signs_of_columns,
)
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.words.arguments import explained_class

FAR = 16.0  # spreads from 0, up to which a column stays where it is


@explained_class
@frozen_pytree
class RandomEffects(CovarianceTerm):
    """Coefficients b ~ Normal(0, G) of covariates z that a cluster has in common: Z G Z^T.

    G is any covariance matrix; effects that do not correlate are terms of their own. With one
    effect the parameter is its standard deviation, with several these and their correlations.

    Args:
        design: the covariates: None for an intercept, a formula such as "1 + time", the name of a
            column, or values (n,) or (n, r).
        sigma: the standard deviation of one effect, where it is known.
        name: to call the effects by.
    """

    design: Any = static_field(default=None)
    units: tuple[float, ...] = static_field(default=(), kw_only=True)  # of the columns
    # Where columns far from 0 have about their middle, in units, and the constant column's number:
    # the coordinates are those of effects at the middle.
    middles: tuple[float, ...] = static_field(default=(), kw_only=True)
    constant: int | None = static_field(default=None, kw_only=True)
    reads: tuple[Any, ...] = static_field(default=(), kw_only=True)  # columns of the user's data
    title = "intercept"
    shared = True
    lost_at_zero = False  # covariances are 0 then

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        design, what = self.design, "RandomEffects: design"
        labels: tuple[str, ...]
        reads: tuple[Any, ...] = ()
        if design is None:
            values, labels = np.ones((len(rows.position), 1)), (self.label,)
        else:
            design = tables.in_order(design, rows.row_labels, what, "the rows")
            read = tables.by_formula(None, design, rows.data, what)[1]
            table = tables.read(read, what=what)
            values = table.values[:, None] if table.values.ndim == 1 else table.values
            rows.column(values, what)
            several = [str(j) for j in range(values.shape[1])]
            labels = tuple(map(str, several if table.names is None else table.names))
            reads = tuple(getattr(table.encoder, "source", ()) or table.names or ())
            if self.name is not None:
                labels = tuple(f"{self.name}: {label}" for label in labels)
        if len(wrong := np.argwhere(~np.isfinite(values))):
            raise ValueError(f"{what} holds NaN or infinity, first in row {wrong[0, 0]}.")
        if len(labels) > 1 and self.sigma is not None:
            raise ValueError("RandomEffects: sigma can be fixed for one effect only.")
        constants = np.flatnonzero((values == 1.0).all(axis=0))
        constant = int(constants[0]) if len(constants) else None
        spreads, middles = values.std(axis=0), values.mean(axis=0)
        far = (spreads > 0) & (np.abs(middles) > FAR * spreads) & (constant is not None)
        middles = np.where(far, middles, 0.0)
        sizes = np.where(far, spreads, np.sqrt(np.mean(values**2, axis=0)))
        # Powers of two, so that rows of like sizes share their programs.
        units = 2.0 ** np.round(np.log2(np.where(sizes > 0, sizes, 1.0)))
        sigma = None if self.sigma is None else float(self.sigma * units[0])
        term = type(self)(
            units=tuple(units.tolist()),
            # Whole numbers, so that rows drawn again share their programs.
            middles=tuple(np.round(middles / units).tolist()) if far.any() else (),
            constant=constant if far.any() else None,
            reads=reads,
            sigma=sigma,
            name=self.name,
            labels=labels,
        )
        return term, lambda index: values[index] / units

    @property
    def rank(self) -> int:
        return len(self.labels)

    @property
    def edges(self) -> int:
        return self.rank if self.sigma is None else 0

    @property
    def sigma_names(self) -> tuple[str, ...]:
        return tuple(f"sigma[{x}]" for x in self.labels) if self.sigma is None else ()

    @property
    def shape_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return pairs_of(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sigma_names, *self.shape_names)

    def factor(self, x: jax.Array) -> jax.Array:
        """L with G = L L^T, (r, r), for columns in units."""
        sigma = self.split(x)[0]
        if self.rank == 1:
            return sigma[None, None]
        factor = lower_factor(x, self.rank)
        return factor if self.constant is None else self.moved(factor, -1.0)

    def moved(self, factor: jax.Array, sign: float) -> jax.Array:
        """The effects at 0 from those at the middles of the columns, or with sign 1 back."""
        return factor.at[self.constant].add(sign * (jnp.array(self.middles) @ factor))

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        return Parts(factor=columns @ self.factor(x))

    def start(self, variance: float) -> np.ndarray:
        if self.rank == 1:
            return super().start(variance)
        return ((variance / self.rank) ** 0.5 * np.eye(self.rank))[np.tril_indices(self.rank)]

    def estimates(self, x: jax.Array) -> jax.Array:
        values = deviations_and_correlations(self.factor(jnp.asarray(x)))[: len(self.names)]
        return values.at[: len(self.sigma_names)].divide(self.divisors)

    def free(self, estimates: jax.Array) -> jax.Array:
        estimates = jnp.asarray(estimates).at[: len(self.sigma_names)].multiply(self.divisors)
        if self.rank == 1:
            return estimates
        outer = factor_of(estimates, self.rank)
        if self.constant is None:
            return outer
        inner = self.moved(lower_factor(outer, self.rank), 1.0)
        return CovarianceMatrix(inner @ inner.T).root[np.tril_indices(self.rank)]

    @property
    def divisors(self) -> np.ndarray:
        """The units of the deviations that are estimated."""
        return np.array(self.units[: len(self.sigma_names)])

    def signs(self, x: np.ndarray) -> np.ndarray:
        return signs_of_columns(x, self.rank) if len(x) else np.ones(0)

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        if self.rank == 1:
            return super().at_edge(x, least)
        free = jnp.asarray(x)
        inner, outer = lower_factor(free, self.rank), self.factor(free)
        return edges_of_factor(np.asarray(inner), np.asarray(outer), self.names, least)
