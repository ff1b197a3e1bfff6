"""What a fit of observed rows returns."""

import dataclasses
from typing import NamedTuple

import numpy as np

from truncgauss.fitting.likelihood_fit import RowsFit
from truncgauss.fitting.observations_loss import Coordinates


class ObservationsErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates; 0 for what was fixed."""

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationsFit(RowsFit):
    """The Gaussian behind observed rows, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of each outcome's covariates, d arrays; without a design one mean each.
        covariance_matrix: of the outcomes given their covariates, without noise, (d, d).
        standard_errors: `.coefficients` and `.covariance_matrix` likewise; inf where the data do
            not identify it.
    """

    coefficients: tuple[np.ndarray, ...]
    covariance_matrix: np.ndarray
    standard_errors: ObservationsErrors

    @property
    def loc(self) -> np.ndarray:
        """The mean (d,) of a fit without a design."""
        if any(len(own) != 1 for own in self.coefficients):
            raise AttributeError("loc: the mean depends on covariates; see coefficients.")
        return np.concatenate(self.coefficients)


def shaped(
    coordinates: Coordinates, covariance: np.ndarray, errors: np.ndarray
) -> ObservationsErrors:
    """Standard errors in the shapes of the estimates; of a variance 2 sigma times that of sigma."""
    count, d = sum(coordinates.sizes), len(coordinates.sizes)
    parts = np.split(errors[:count], np.cumsum(coordinates.sizes)[:-1])
    matrix = np.zeros((d, d))
    if coordinates.has_sigma:
        errors = np.append(errors[:count], 2.0 * np.sqrt(covariance[0, 0]) * errors[count:])
    for (i, j), error in zip(coordinates.entries, errors[count:]):
        matrix[i, j] = matrix[j, i] = error
    return ObservationsErrors(tuple(parts), matrix)
