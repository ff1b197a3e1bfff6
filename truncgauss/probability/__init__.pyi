from truncgauss.arrays.pytrees import Estimate as Estimate
from truncgauss.gaussian.problem import (
    Moments as Moments,
    Problem as Problem,
)
from truncgauss.probability.automatic import (
    Automatic as Automatic,
    fraction_not_truncated as fraction_not_truncated,
    log_probability as log_probability,
)
from truncgauss.probability.complement import Complement as Complement
from truncgauss.probability.exact import Exact as Exact
from truncgauss.probability.expectation_propagation import (
    ExpectationPropagation as ExpectationPropagation,
)
from truncgauss.probability.factor_lattice import FactorLattice as FactorLattice
from truncgauss.probability.gradients import (
    Gradient as Gradient,
    LogProbabilityAndGradient as LogProbabilityAndGradient,
    log_probability_and_gradient as log_probability_and_gradient,
)
from truncgauss.probability.importance import ImportanceSampling as ImportanceSampling
from truncgauss.probability.method import Method as Method
from truncgauss.draws.truncated_moments import truncated_moments as truncated_moments
from truncgauss.probability.quadratic_forms import (
    log_quadratic_form_tail as log_quadratic_form_tail,
)
from truncgauss.student.quantile import (
    Quantile as Quantile,
    quantile as quantile,
)
from truncgauss.probability.reweighting import log_mean_weights as log_mean_weights
from truncgauss.draws.sampling import (
    Draws as Draws,
    Weighted as Weighted,
    truncated_draws as truncated_draws,
    truncated_samples as truncated_samples,
    weighted_samples as weighted_samples,
)
from truncgauss.probability.reports import explain as explain
from truncgauss.probability.separation import Separation as Separation
from truncgauss.probability.sequential import SequentialMonteCarlo as SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo as SoftMonteCarlo
