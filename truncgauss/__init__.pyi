from truncgauss import (
    fitting as fitting,
    likelihood as likelihood,
    plotting as plotting,
    probability as probability,
    special as special,
    tables as tables,
)
from truncgauss.arrays import parallel as parallel
from truncgauss.gaussian import (
    edges as edges,
    regions as regions,
)
from truncgauss.runs import config as config
from truncgauss.special import safe as safe
from truncgauss.arrays.compiling import use_compilation_cache as use_compilation_cache
from truncgauss.arrays.progress import progress as progress
from truncgauss.arrays.pytrees import Estimate as Estimate
from truncgauss.diagnosis.nonfinite import first_nonfinite as first_nonfinite
from truncgauss.distributions.censored import Censored as Censored
from truncgauss.distributions.mixture import TruncatedMixture as TruncatedMixture
from truncgauss.distributions.multivariate_normal import (
    TruncatedMultivariateNormal as TruncatedMultivariateNormal,
)
from truncgauss.distributions.multivariate_student_t import (
    TruncatedMultivariateStudentT as TruncatedMultivariateStudentT,
)
from truncgauss.distributions.univariate import TruncatedNormal as TruncatedNormal
from truncgauss.fits.clusters.cluster_fit import fit_clusters as fit_clusters
from truncgauss.covariates.contrasts import simultaneous as simultaneous
from truncgauss.fits.fractions import (
    fit_limits as fit_limits,
    fit_shift as fit_shift,
)
from truncgauss.fits import mixtures as mixtures
from truncgauss.fits.mixtures.fit import fit_mixture as fit_mixture
from truncgauss.fits.gaussian.observations_fit import fit_observations as fit_observations
from truncgauss.optimize.loop import minimize as minimize
from truncgauss.fits.polychoric.polychoric_correlations import (
    polychoric as polychoric,
    polychoric_matrix as polychoric_matrix,
)
from truncgauss.fits.gaussian.regression import fit_regression as fit_regression
from truncgauss.covariates.residuals import quantile_residuals as quantile_residuals
from truncgauss.covariates.rows_fit import likelihood_ratio as likelihood_ratio
from truncgauss.fits.sample_selection import fit_selection as fit_selection
from truncgauss.fits.gaussian.statistics import Statistics as Statistics
from truncgauss.fits.clusters.terms.autoregressive import AutoRegressive as AutoRegressive
from truncgauss.fits.clusters.terms.common_correlation import CommonCorrelation as CommonCorrelation
from truncgauss.fits.clusters.terms.diagonal import Diagonal as Diagonal
from truncgauss.fits.clusters.terms.exponential import Exponential as Exponential
from truncgauss.fits.clusters.terms.factor import Factor as Factor
from truncgauss.fits.clusters.terms.kinship import Kinship as Kinship
from truncgauss.fits.clusters.terms.matern import Matern as Matern
from truncgauss.fits.clusters.terms.random_effects import RandomEffects as RandomEffects
from truncgauss.fits.clusters.terms.residual import Residual as Residual
from truncgauss.fits.clusters.terms.term import CovarianceTerm as CovarianceTerm
from truncgauss.fits.clusters.terms.unstructured import Unstructured as Unstructured
from truncgauss.fits.gaussian.truncated_normal import fit_truncated_normal as fit_truncated_normal
from truncgauss.fields.directed import Directed as Directed
from truncgauss.fields.excursions import excursion as excursion
from truncgauss.fields.field_particles import FieldParticles as FieldParticles
from truncgauss.fields.line_particles import LineParticles as LineParticles
from truncgauss.fields.lines import MaternProcess as MaternProcess
from truncgauss.fields.lines import QuasiSeparable as QuasiSeparable
from truncgauss.gaussian.covariances import (
    LowRank as LowRank,
    Markov as Markov,
    ScaleTril as ScaleTril,
)
from truncgauss.gaussian.edge_functions import EdgeFunction as EdgeFunction
from truncgauss.gaussian.edges import (
    Bump as Bump,
    Hard as Hard,
    Probit as Probit,
    Surrogate as Surrogate,
    Tanh as Tanh,
)
from truncgauss.gaussian.regions.ball import Ball as Ball
from truncgauss.gaussian.regions.box import Box as Box
from truncgauss.gaussian.regions.ellipsoid import Ellipsoid as Ellipsoid
from truncgauss.gaussian.regions.injections import Injections as Injections
from truncgauss.gaussian.regions.outside import Outside as Outside
from truncgauss.gaussian.regions.polyhedron import Polyhedron as Polyhedron
from truncgauss.gaussian.regions.region import Region as Region
from truncgauss.gaussian.regions.selection import Selection as Selection
from truncgauss.likelihood.conditional_moments import conditional_moments as conditional_moments
from truncgauss.likelihood.observations import Observations as Observations
from truncgauss.likelihood.ordinal import Ordinal as Ordinal
from truncgauss.likelihood.rows import log_likelihood as log_likelihood
from truncgauss.probability.automatic import (
    Automatic as Automatic,
    fraction_not_truncated as fraction_not_truncated,
    log_probability as log_probability,
)
from truncgauss.probability.exact import Exact as Exact
from truncgauss.probability.expectation_propagation import (
    ExpectationPropagation as ExpectationPropagation,
)
from truncgauss.probability.gradients import (
    log_probability_and_gradient as log_probability_and_gradient,
)
from truncgauss.probability.importance import ImportanceSampling as ImportanceSampling
from truncgauss.probability.method import Method as Method
from truncgauss.draws.truncated_moments import truncated_moments as truncated_moments
from truncgauss.probability.quadratic_forms import (
    log_quadratic_form_tail as log_quadratic_form_tail,
)
from truncgauss.probability.reweighting import log_mean_weights as log_mean_weights
from truncgauss.student.quantile import quantile as quantile
from truncgauss.draws.sampling import (
    truncated_draws as truncated_draws,
    truncated_samples as truncated_samples,
    weighted_samples as weighted_samples,
)
from truncgauss.probability.reports import explain as explain
from truncgauss.probability.separation import Separation as Separation
from truncgauss.probability.sequential import SequentialMonteCarlo as SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo as SoftMonteCarlo

__version__: str
