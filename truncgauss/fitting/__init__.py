"""Fits of shifts, limits and whole Gaussians to truncated data."""

from truncgauss.execution.checkpoint import computed, resumable
from truncgauss.execution.interrupts import interrupts
from truncgauss.fitting.fractions import fit_limits, fit_shift
from truncgauss.fitting.likelihood_fit import (
    Derived,
    LikelihoodFit,
    LikelihoodRatio,
    RowsFit,
    likelihood_ratio,
)
from truncgauss.fitting.observations import fit_observations
from truncgauss.fitting.observations_result import ObservationsErrors, ObservationsFit
from truncgauss.fitting.optimization.loop import minimize
from truncgauss.fitting.optimization.parameters import (
    Bijection,
    Constraint,
    Coordinates,
    Frozen,
    Limits,
    LowerTriangular,
    Positive,
    PositiveDefinite,
    Real,
    coordinates,
)
from truncgauss.fitting.optimization.result import Fit, FitResult
from truncgauss.fitting.optimization.uncertainty import (
    Certificate,
    ErrorBars,
    certificate,
    error_bars,
    standard_errors,
)
from truncgauss.fitting.regression import fit_regression
from truncgauss.fitting.regression_result import RegressionErrors, RegressionFit
from truncgauss.fitting.residuals import quantile_residuals
from truncgauss.fitting.statistics import Statistics
from truncgauss.fitting.tightening import Tightening, tightened
from truncgauss.fitting.truncated_normal import fit_truncated_normal
from truncgauss.fitting.truncated_normal_result import GaussianErrors, TruncatedFit

__all__ = [
    "Bijection",
    "Certificate",
    "Constraint",
    "Coordinates",
    "Derived",
    "ErrorBars",
    "Fit",
    "FitResult",
    "Frozen",
    "GaussianErrors",
    "LikelihoodFit",
    "LikelihoodRatio",
    "Limits",
    "LowerTriangular",
    "ObservationsErrors",
    "ObservationsFit",
    "Positive",
    "PositiveDefinite",
    "Real",
    "RegressionErrors",
    "RegressionFit",
    "RowsFit",
    "Statistics",
    "Tightening",
    "TruncatedFit",
    "certificate",
    "computed",
    "coordinates",
    "error_bars",
    "fit_limits",
    "fit_observations",
    "fit_regression",
    "fit_shift",
    "fit_truncated_normal",
    "interrupts",
    "likelihood_ratio",
    "minimize",
    "quantile_residuals",
    "resumable",
    "standard_errors",
    "tightened",
]
