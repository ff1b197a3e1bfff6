"""Fits of shifts, limits and whole Gaussians to truncated data."""

from truncgauss.execution.checkpoint import computed, resumable
from truncgauss.execution.interrupts import interrupts
from truncgauss.fitting.clusters import ClusterFit, Effects, fit_clusters
from truncgauss.fitting.contrasts import SimultaneousInference, simultaneous
from truncgauss.fitting.derived import Derived, Parameters
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.fitting.fractions import FractionsFit, fit_limits, fit_shift
from truncgauss.fitting.model import Model
from truncgauss.fitting.observations import (
    ObservationsErrors,
    ObservationsFit,
    fit_observations,
)
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
from truncgauss.fitting.polychoric_correlations import (
    PolychoricFit,
    PolychoricMatrix,
    polychoric,
    polychoric_matrix,
)
from truncgauss.fitting.regression import RegressionErrors, RegressionFit, fit_regression
from truncgauss.fitting.residuals import quantile_residuals
from truncgauss.fitting.result import LikelihoodFit, LikelihoodRatio, likelihood_ratio
from truncgauss.fitting.selection import SelectionFit, TwoStep, fit_selection
from truncgauss.fitting.statistics import Statistics
from truncgauss.fitting.truncated_normal import fit_truncated_normal

__all__ = [
    "Bijection",
    "Certificate",
    "ClusterFit",
    "Constraint",
    "Coordinates",
    "Derived",
    "Effects",
    "ErrorBars",
    "Fit",
    "FitResult",
    "FractionsFit",
    "Frozen",
    "LikelihoodFit",
    "LikelihoodRatio",
    "Limits",
    "LowerTriangular",
    "Model",
    "ObservationsErrors",
    "ObservationsFit",
    "Parameters",
    "PolychoricFit",
    "PolychoricMatrix",
    "Positive",
    "PositiveDefinite",
    "Real",
    "RegressionErrors",
    "RegressionFit",
    "SelectionFit",
    "SimultaneousInference",
    "Statistics",
    "TwoStep",
    "certificate",
    "computed",
    "coordinates",
    "error_bars",
    "fit_clusters",
    "fit_limits",
    "fit_observations",
    "fit_regression",
    "fit_selection",
    "fit_shift",
    "fit_truncated_normal",
    "interrupts",
    "likelihood_ratio",
    "maximum_likelihood",
    "minimize",
    "polychoric",
    "polychoric_matrix",
    "quantile_residuals",
    "resumable",
    "simultaneous",
    "standard_errors",
]
