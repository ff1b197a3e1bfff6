"""Common factors with a loading for each kind of row."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Factor(CovarianceTerm):
    """Independent factors with loadings of each item: A A^T, the model of factor analysis.

    Of several factors the first items have no loadings on the later ones, as rotations of the
    factors change nothing.

    Args:
        rank: the number of factors.
        item: the column that says what each row measures, or labels (n,); by default the order
            within the cluster.
        name: to call the term by.
    """

    rank: int = static_field(default=1)
    item: Any = static_field(default=None)
    title = "factor"
    shared = True
    lost_at_zero = True  # directions of loadings
    of_either_sign = True

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        codes, labels = rows.codes(self.item, "Factor: item")
        if not 1 <= self.rank < len(labels) or self.sigma is not None:
            raise ValueError(
                f"Factor: rank must be from 1 to {len(labels) - 1}, and no sigma is known; got "
                f"{self.rank} of {len(labels)} items."
            )
        term = type(self)(self.rank, name=self.name, labels=labels)
        return term, lambda index: codes[index].astype(float)

    @property
    def entries(self) -> tuple[np.ndarray, np.ndarray]:
        """Items and factors of the loadings that are free."""
        items, factors = np.indices((len(self.labels), self.rank)).reshape(2, -1)
        return items[items >= factors], factors[items >= factors]

    @property
    def edges(self) -> int:
        return self.rank

    @property
    def sigma_names(self) -> tuple[str, ...]:
        pairs = zip(*self.entries)
        some = self.rank > 1
        return tuple(
            f"loading[{self.labels[i]}{f', {j}' if some else ''}]" for i, j in pairs
        )  # fmt: skip

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        loadings = jnp.zeros((len(self.labels), self.rank)).at[self.entries].set(x)
        return Parts(factor=loadings[columns.astype(int)])

    def start(self, variance: float) -> np.ndarray:
        items, factors = self.entries
        return (variance / self.rank) ** 0.5 * np.where((items - factors) % 2, 0.9, 1.0)

    def signs(self, x: np.ndarray) -> np.ndarray:
        """The sum of the loadings of each factor is positive."""
        factors = self.entries[1]
        sums = np.bincount(factors, x)
        return np.where(sums < 0, -1.0, 1.0)[factors]

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        factors = self.entries[1]
        none = np.bincount(factors, x**2) < least**2
        return tuple(name for name, at in zip(self.sigma_names, none[factors]) if at)
