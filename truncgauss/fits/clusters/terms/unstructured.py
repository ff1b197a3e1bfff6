"""Any covariance matrix of the kinds of rows."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

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
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Unstructured(CovarianceTerm):
    """Any covariance matrix of the items; with a known sigma, any correlations.

    Args:
        item: the column that says what each row measures, or labels (n,); by default the order
            within the cluster. A cluster has each item once.
        sigma: the standard deviation of all items where it is known, such as 1 for binary outcomes.
        name: to call the term by.
    """

    item: Any = static_field(default=None)
    title = "unstructured"
    shared = True
    edges = 0  # a matrix has no variance of 0 beside others

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        codes, labels = rows.codes(self.item, "Unstructured: item")
        if len(labels) < 2:
            raise ValueError("Unstructured: needs two items at least.")
        term = type(self)(sigma=self.sigma, name=self.name, labels=labels)
        return term, lambda index: codes[index].astype(float)

    @property
    def sigma_names(self) -> tuple[str, ...]:
        return () if self.sigma is not None else tuple(f"sigma[{x}]" for x in self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sigma_names, *pairs_of(self.labels))

    def factor(self, x: jax.Array) -> jax.Array:
        """L with the covariance matrix L L^T; with a known sigma its rows are of that length."""
        k = len(self.labels)
        if self.sigma is None:
            return lower_factor(x, k)
        rows = jnp.eye(k).at[np.tril_indices(k, -1)].set(x)
        return self.sigma * rows / jnp.linalg.norm(rows, axis=1, keepdims=True)

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        rows = self.factor(x)[columns.astype(int)]
        return Parts(matrix=rows @ rows.T)

    def start(self, variance: float) -> np.ndarray:
        k = len(self.labels)
        if self.sigma is not None:
            return np.full(k * (k - 1) // 2, 0.3)
        return (variance**0.5 * np.linalg.cholesky(0.7 * np.eye(k) + 0.3))[np.tril_indices(k)]

    def estimates(self, x: jax.Array) -> jax.Array:
        every = deviations_and_correlations(self.factor(x))
        return every if self.sigma is None else every[len(self.labels) :]

    def free(self, estimates: jax.Array) -> jax.Array:
        k = len(self.labels)
        if self.sigma is None:
            return factor_of(estimates, k)
        factor = lower_factor(factor_of(jnp.concatenate([jnp.ones(k), estimates]), k), k)
        return (factor / jnp.diagonal(factor)[:, None])[np.tril_indices(k, -1)]

    def signs(self, x: np.ndarray) -> np.ndarray:
        return signs_of_columns(x, len(self.labels)) if self.sigma is None else np.ones(len(x))

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        factor = np.asarray(self.factor(jnp.asarray(x)))
        return edges_of_factor(factor, factor, self.names, least)
