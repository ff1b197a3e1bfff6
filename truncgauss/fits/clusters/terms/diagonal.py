"""Independent errors whose variance depends on the kind of row."""

from typing import Any, Self

import jax
import numpy as np

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class


@explained_class
@frozen_pytree
class Diagonal(CovarianceTerm):
    """Independent errors with one variance for each item.

    Args:
        item: the column that says what each row measures, or labels (n,); by default the order
            within the cluster.
        name: to call the term by.
    """

    item: Any = static_field(default=None)
    reads: tuple[Any, ...] = static_field(default=(), kw_only=True)  # columns of the user's data
    title = "diagonal"
    independent = True

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        if self.sigma is not None:
            raise ValueError("Diagonal: its deviations are estimated; use tg.Residual(sigma=...).")
        codes, labels = rows.codes(self.item, "Diagonal: item")
        reads = (self.item,) if isinstance(self.item, str) else ()
        term = type(self)(name=self.name, labels=labels, reads=reads)
        return term, lambda index: codes[index].astype(float)

    @property
    def sigma_names(self) -> tuple[str, ...]:
        prefix = "" if self.name is None else f"{self.name}: "
        return tuple(f"sigma[{prefix}{label}]" for label in self.labels)

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        return Parts(variances=x[columns.astype(int)] ** 2)

    def start(self, variance: float) -> np.ndarray:
        return np.full(len(self.labels), variance**0.5)

    def signs(self, x: np.ndarray) -> np.ndarray:
        return np.where(x < 0, -1.0, 1.0)

    def at_edge(self, x: np.ndarray, least: float) -> tuple[str, ...]:
        return tuple(name for name, z in zip(self.sigma_names, x) if abs(z) < least)
