"""Effects whose correlations are known, as those of relatives."""

from typing import Any, Self

import jax
import numpy as np

from truncgauss import tables
from truncgauss.arrays.alignment import SHOWN, shown
from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fits.clusters.terms.term import CovarianceTerm, LongRows, Parts
from truncgauss.words.arguments import explained_class

LEAST = -1e-8  # eigenvalue of a covariance, of the largest


@explained_class
@frozen_pytree
class Kinship(CovarianceTerm):
    """Effects with a known matrix K of correlations: sigma^2 K.

    Twice the kinship coefficients for additive effects of genes; 1 for members of a household.

    Args:
        matrix: K of all rows, (n, n), dense or of `scipy.sparse`, whose entries between clusters
            do not matter; or (k, k) of `index`.
        index: the row of the matrix that each row belongs to, (n,), or the name of a column: its
            number, or its label in a DataFrame of pandas; by default each its own.
        name: what the effects are called, such as "additive".
        sigma: the standard deviation where it is known.

    Reference:
        Lange, "Mathematical and Statistical Methods for Genetic Analysis" (2002).
    """

    matrix: Any = static_field(default=None)
    index: Any = static_field(default=None)
    title = "kinship"

    def prepared(self, rows: LongRows) -> tuple[Self, Any]:
        given, n = self.matrix, len(rows.position)
        labels = tables.labels_of(given)
        own = rows.row_labels if self.index is None else labels
        try:
            given = tables.square_in_order(given, own, "Kinship: matrix", "the rows")
        except ValueError as error:
            cure = " Or say by index which column holds the labels, such as index='animal'."
            raise ValueError(f"{error}{cure}") from error
        shape = getattr(given, "shape", np.shape(given))
        if self.index is None:
            number = np.arange(n)
        elif labels is None:
            if np.asarray(rows.column(self.index, "Kinship: index")).dtype.kind in "OUS":
                raise ValueError(
                    "Kinship: index holds texts, and the matrix has no labels to find them by. "
                    "Give pandas.DataFrame(matrix, index=labels, columns=labels)."
                )
            number = rows.numbers(self.index, "Kinship: index").astype(int)
        else:
            column = rows.column(self.index, "Kinship: index")
            number = np.asarray(labels.index.get_indexer(column))
            if np.any(number < 0):
                raise ValueError(
                    f"Kinship: index holds {column[np.argmin(number)]!r}, which is none of the "
                    f"labels of the matrix: {shown(labels.index)}. Give its rows the labels that "
                    "the column has; or an array and the numbers of its rows."
                )
        if len(shape) != 2 or shape[0] != shape[1] or number.min() < 0 or number.max() >= shape[0]:
            from_one = bool(number.min() == 1 and number.max() == shape[0])
            raise ValueError(
                f"Kinship: matrix must be square with a row for each of {n} rows, or for each "
                f"number from 0 in `index`; got {shape} and numbers up to {number.max()}."
                + " Subtract 1 from these."
                * from_one
            )
        sparse = hasattr(given, "tocsr")
        matrix: Any = given.tocsr() if sparse else np.asarray(given, float)

        def columns(index: np.ndarray) -> np.ndarray:
            at = number[index]
            blocks = [matrix[np.ix_(block, block)] for block in at]
            whole = np.array([x.toarray() if sparse else x for x in blocks])
            if not np.all(np.isfinite(whole)) or not np.allclose(whole, np.swapaxes(whole, 1, 2)):
                raise ValueError("Kinship: matrix must be finite and symmetric.")
            values = np.linalg.eigvalsh(whole)
            wrong = int(np.argmin(values[:, 0] - LEAST * values[:, -1]))
            if values[wrong, 0] < LEAST * values[wrong, -1]:
                block, once = np.unique(at[wrong], return_index=True)
                least = np.linalg.eigvalsh(whole[wrong][np.ix_(once, once)])[0]
                listed = ", ".join(map(str, block[:SHOWN]))
                listed += f" and {len(block) - SHOWN} others" if len(block) > SHOWN else ""
                raise ValueError(
                    "Kinship: matrix is not positive semi-definite, and so no covariance: the "
                    f"smallest eigenvalue of its rows {listed} is {least:.3g}. "
                    "Correct its entries."
                )
            return whole.reshape(*at.shape, at.shape[-1])

        return type(self)(sigma=self.sigma, name=self.name), columns

    def parts(self, x: jax.Array, columns: jax.Array) -> Parts:
        return Parts(matrix=self.split(x)[0] ** 2 * columns)
