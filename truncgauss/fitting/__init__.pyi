from truncgauss.execution.checkpoint import (
    computed as computed,
    resumable as resumable,
)
from truncgauss.execution.interrupts import interrupts as interrupts
from truncgauss.fits.clusters.cluster_fit import (
    ClusterFit as ClusterFit,
    Effects as Effects,
    fit_clusters as fit_clusters,
)
from truncgauss.covariates.contrasts import (
    SimultaneousInference as SimultaneousInference,
    simultaneous as simultaneous,
)
from truncgauss.fitting.derived import (
    Derived as Derived,
    Parameters as Parameters,
)
from truncgauss.fitting.engine import maximum_likelihood as maximum_likelihood
from truncgauss.fits.fractions import (
    FractionsFit as FractionsFit,
    fit_limits as fit_limits,
    fit_shift as fit_shift,
)
from truncgauss.fitting.model import Model as Model
from truncgauss.fits.gaussian.observations_fit import (
    ObservationsErrors as ObservationsErrors,
    ObservationsFit as ObservationsFit,
    fit_observations as fit_observations,
)
from truncgauss.optimize.loop import minimize as minimize
from truncgauss.fitting.newton import Loss as Loss
from truncgauss.optimize.constraints import (
    Bijection as Bijection,
    Constraint as Constraint,
    Coordinates as Coordinates,
    Frozen as Frozen,
    Limits as Limits,
    LowerTriangular as LowerTriangular,
    Positive as Positive,
    PositiveDefinite as PositiveDefinite,
    Real as Real,
    coordinates as coordinates,
)
from truncgauss.optimize.fit_result import (
    Fit as Fit,
    FitResult as FitResult,
)
from truncgauss.optimize.uncertainty import (
    Certificate as Certificate,
    ErrorBars as ErrorBars,
    certificate as certificate,
    error_bars as error_bars,
    standard_errors as standard_errors,
)
from truncgauss.fits.polychoric.polychoric_correlations import (
    PolychoricFit as PolychoricFit,
    PolychoricMatrix as PolychoricMatrix,
    polychoric as polychoric,
    polychoric_matrix as polychoric_matrix,
)
from truncgauss.fits.gaussian.regression import (
    RegressionErrors as RegressionErrors,
    RegressionFit as RegressionFit,
    fit_regression as fit_regression,
)
from truncgauss.covariates.residuals import quantile_residuals as quantile_residuals
from truncgauss.fitting.likelihood_fit import (
    LikelihoodFit as LikelihoodFit,
    LikelihoodRatio as LikelihoodRatio,
)
from truncgauss.covariates.rows_fit import (
    RowsFit as RowsFit,
    likelihood_ratio as likelihood_ratio,
)
from truncgauss.fits.sample_selection import (
    SelectionFit as SelectionFit,
    TwoStep as TwoStep,
    fit_selection as fit_selection,
)
from truncgauss.fits.gaussian.selected import SelectedFit as SelectedFit
from truncgauss.fits.gaussian.statistics import Statistics as Statistics
from truncgauss.fits.gaussian.truncated_normal import fit_truncated_normal as fit_truncated_normal
