"""log P(X in region) for a Gaussian X: one method, one file."""

from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.total_moments import Moments
from truncgauss.probability.automatic import (
    Automatic,
    explain,
    fraction_not_truncated,
    log_probability,
)
from truncgauss.probability.complement import Complement
from truncgauss.probability.exact import Exact
from truncgauss.probability.expectation_propagation import ExpectationPropagation
from truncgauss.probability.factor_lattice import FactorLattice
from truncgauss.probability.gradients import (
    Gradient,
    LogProbabilityAndGradient,
    log_probability_and_gradient,
)
from truncgauss.probability.importance import ImportanceSampling
from truncgauss.probability.method import Method
from truncgauss.probability.moments import truncated_moments
from truncgauss.probability.quadratic_forms import log_quadratic_form_tail
from truncgauss.probability.quantiles import Quantile, quantile
from truncgauss.probability.sampling import (
    Draws,
    Weighted,
    truncated_draws,
    truncated_samples,
    weighted_samples,
)
from truncgauss.probability.separation import Separation
from truncgauss.probability.sequential import SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo

__all__ = [
    "Automatic",
    "Complement",
    "Draws",
    "Estimate",
    "Exact",
    "ExpectationPropagation",
    "FactorLattice",
    "Gradient",
    "ImportanceSampling",
    "LogProbabilityAndGradient",
    "Method",
    "Moments",
    "Problem",
    "Quantile",
    "Separation",
    "SequentialMonteCarlo",
    "SoftMonteCarlo",
    "Weighted",
    "explain",
    "fraction_not_truncated",
    "log_probability",
    "log_probability_and_gradient",
    "log_quadratic_form_tail",
    "quantile",
    "truncated_draws",
    "truncated_moments",
    "truncated_samples",
    "weighted_samples",
]
