"""What a regression returns."""

import dataclasses
from typing import NamedTuple

import numpy as np

from truncgauss.fitting.likelihood_fit import RowsFit


class RegressionErrors(NamedTuple):
    """Standard errors of the coefficients (p,) and of those of the log scale (k,)."""

    coefficients: np.ndarray
    log_scale: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionFit(RowsFit):
    """The regression behind one outcome, and how far to trust it; `print` shows a table.

    Attributes, besides those of `fitting.RowsFit`:
        coefficients: of the covariates, (p,).
        log_scale: the log of sigma, (1,), or its coefficients with a `scale_design`, (k,).
        standard_errors: `.coefficients` and `.log_scale` likewise; inf where the data do not
            identify it.
    """

    coefficients: np.ndarray
    log_scale: np.ndarray
    standard_errors: RegressionErrors

    @property
    def scale(self) -> float:
        """Sigma, where it is one number."""
        if not self.names[-1] == "sigma":
            raise AttributeError("scale: it depends on covariates; see log_scale.")
        return float(np.exp(self.log_scale[0]))
