"""What a fit of a Gaussian to truncated rows returns."""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np

from truncgauss.optimization.result import Fit, table_of


class GaussianErrors(NamedTuple):
    """Standard errors of loc (d,) and of the entries of the covariance matrix (d, d)."""

    loc: np.ndarray
    covariance_matrix: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedFit(Fit):
    """The Gaussian that truncated rows come from, and how far to trust it; `print` shows a table.

    Attributes, besides those of `Fit`:
        loc: its mean, shape (d,).
        covariance_matrix: its covariance, shape (d, d).
        standard_errors: `.loc` (d,) and `.covariance_matrix` (d, d), from the observed information,
            which at the maximum of rows with shared limits is the expected one; inf where there is
            no maximum.
        log_likelihood: of all rows, in nats, with all constants.
        fraction_not_truncated: P(X in limits) for the fitted Gaussian.
        num_rows: n.
        loss_trace: minus the mean log-likelihood of a row at the start and after each step.
        newton_decrement_trace: sqrt(g . H^-1 g) of that mean there; times sqrt(n) it is the
            estimated distance to the maximum in standard errors.
        parameter_covariance: covariance of (loc, lower triangle of the covariance by rows).
    """

    loc: jax.Array
    covariance_matrix: jax.Array
    standard_errors: GaussianErrors
    log_likelihood: float
    fraction_not_truncated: float
    num_rows: int
    newton_decrement_trace: np.ndarray

    def __str__(self) -> str:
        rows, columns = np.tril_indices(len(self.loc))
        names = [f"loc[{i}]" for i in range(len(self.loc))]
        names += [f"covariance_matrix[{i}, {j}]" for i, j in zip(rows, columns)]
        estimates, errors = (
            np.concatenate([np.asarray(loc), np.asarray(matrix)[rows, columns]])
            for loc, matrix in ((self.loc, self.covariance_matrix), self.standard_errors)
        )
        seen = float(self.fraction_not_truncated)
        lines = table_of(names, estimates, errors)
        lines.append(
            f"log-likelihood {self.log_likelihood:.8g}, {self.num_rows} rows; fraction not "
            f"truncated {seen:.4g}; standard errors from the observed information"
        )
        return "\n".join([*lines, self.reason, *self.notes])
