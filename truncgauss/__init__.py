"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""

import importlib
from typing import TYPE_CHECKING, Any

from truncgauss.execution.garbage import uncollected

if TYPE_CHECKING:  # the same names for type checkers and editors
    from truncgauss import fitting as fitting, likelihood as likelihood, plotting as plotting
    from truncgauss import special as special
    from truncgauss.execution import distributed as distributed, parallel as parallel
    from truncgauss.execution import tables as tables
    from truncgauss.fitting import mixtures as mixtures
    from truncgauss.gaussian import edges as edges, regions as regions
    from truncgauss.runs import config as config
    from truncgauss.special import safe as safe
    from truncgauss.gaussian.covariances import (
        LowRank as LowRank,
        Markov as Markov,
        ScaleTril as ScaleTril,
    )
    from truncgauss.diagnosis.nonfinite import first_nonfinite as first_nonfinite
    from truncgauss.distributions import (
        TruncatedMultivariateNormal as TruncatedMultivariateNormal,
        TruncatedNormal as TruncatedNormal,
    )
    from truncgauss.likelihood.exporting import export as export
    from truncgauss.fitting import (
        FitResult as FitResult,
        ObservationsFit as ObservationsFit,
        RegressionFit as RegressionFit,
        Statistics as Statistics,
        TruncatedFit as TruncatedFit,
        fit as fit,
        fit_limits as fit_limits,
        fit_observations as fit_observations,
        fit_regression as fit_regression,
        fit_shift as fit_shift,
        fit_truncated_normal as fit_truncated_normal,
        likelihood_ratio as likelihood_ratio,
        quantile_residuals as quantile_residuals,
    )
    from truncgauss.gaussian.edges import (
        Bump as Bump,
        Hard as Hard,
        Probit as Probit,
        Surrogate as Surrogate,
        Tanh as Tanh,
    )
    from truncgauss.likelihood import Observations as Observations, log_likelihood as log_likelihood
    from truncgauss.fitting.mixtures import (
        MixtureFit as MixtureFit,
        MixturePath as MixturePath,
        fit_mixture as fit_mixture,
        fit_mixture_path as fit_mixture_path,
        mixture_log_likelihood as mixture_log_likelihood,
    )
    from truncgauss.distributions.mixture import TruncatedMixture as TruncatedMixture
    from truncgauss.probability.moments import truncated_moments as truncated_moments
    from truncgauss.probability.automatic import (
        Automatic as Automatic,
        fraction_not_truncated as fraction_not_truncated,
        log_probability as log_probability,
    )
    from truncgauss.probability.exact import Exact as Exact
    from truncgauss.probability.expectation_propagation import (
        ExpectationPropagation as ExpectationPropagation,
    )
    from truncgauss.probability.explanation import explain as explain
    from truncgauss.probability.factor_lattice import FactorLattice as FactorLattice
    from truncgauss.probability.gradients import (
        Gradient as Gradient,
        LogProbabilityAndGradient as LogProbabilityAndGradient,
        log_probability_and_gradient as log_probability_and_gradient,
    )
    from truncgauss.probability.importance import ImportanceSampling as ImportanceSampling
    from truncgauss.probability.method import Method as Method
    from truncgauss.probability.separation import Separation as Separation
    from truncgauss.probability.sequential import SequentialMonteCarlo as SequentialMonteCarlo
    from truncgauss.probability.soft import SoftMonteCarlo as SoftMonteCarlo
    from truncgauss.gaussian.problem import Estimate as Estimate, Problem as Problem
    from truncgauss.gaussian.regions import (
        Ball as Ball,
        Box as Box,
        Ellipsoid as Ellipsoid,
        Polyhedron as Polyhedron,
        Region as Region,
        Selection as Selection,
    )
    from truncgauss.special.safe import (
        bell as bell,
        bump as bump,
        clipped_gradient as clipped_gradient,
        clipped_logits as clipped_logits,
        safe_norm as safe_norm,
    )
    from truncgauss.probability.sampling import (
        Draws as Draws,
        Weighted as Weighted,
        truncated_draws as truncated_draws,
        truncated_samples as truncated_samples,
        weighted_samples as weighted_samples,
    )
    from truncgauss.gaussian.total_moments import Moments as Moments

__version__ = "0.1.0"

# Where each public name lives. Nothing is imported before it is asked for, so that the command line
# can check a config without starting JAX.
_HOMES = {
    "truncgauss.gaussian.covariances": ("LowRank", "Markov", "ScaleTril"),
    "truncgauss.diagnosis.nonfinite": ("first_nonfinite",),
    "truncgauss.distributions": ("TruncatedMultivariateNormal", "TruncatedNormal"),
    "truncgauss.likelihood.exporting": ("export",),
    "truncgauss.fitting": (
        "FitResult",
        "ObservationsFit",
        "RegressionFit",
        "Statistics",
        "TruncatedFit",
        "fit",
        "fit_limits",
        "fit_observations",
        "fit_regression",
        "fit_shift",
        "fit_truncated_normal",
        "likelihood_ratio",
        "quantile_residuals",
    ),
    "truncgauss.gaussian.edges": ("Bump", "Hard", "Probit", "Surrogate", "Tanh"),
    "truncgauss.likelihood": ("Observations", "log_likelihood"),
    "truncgauss.fitting.mixtures": (
        "MixtureFit",
        "MixturePath",
        "fit_mixture",
        "fit_mixture_path",
        "mixture_log_likelihood",
    ),
    "truncgauss.distributions.mixture": ("TruncatedMixture",),
    "truncgauss.probability.moments": ("truncated_moments",),
    "truncgauss.probability.automatic": (
        "Automatic",
        "fraction_not_truncated",
        "log_probability",
    ),
    "truncgauss.gaussian.problem": ("Estimate", "Problem"),
    "truncgauss.probability.exact": ("Exact",),
    "truncgauss.probability.explanation": ("explain",),
    "truncgauss.probability.gradients": (
        "Gradient",
        "LogProbabilityAndGradient",
        "log_probability_and_gradient",
    ),
    "truncgauss.probability.expectation_propagation": ("ExpectationPropagation",),
    "truncgauss.probability.factor_lattice": ("FactorLattice",),
    "truncgauss.probability.importance": ("ImportanceSampling",),
    "truncgauss.probability.method": ("Method",),
    "truncgauss.probability.separation": ("Separation",),
    "truncgauss.probability.sequential": ("SequentialMonteCarlo",),
    "truncgauss.probability.soft": ("SoftMonteCarlo",),
    "truncgauss.gaussian.regions": (
        "Ball",
        "Box",
        "Ellipsoid",
        "Polyhedron",
        "Region",
        "Selection",
    ),
    "truncgauss.probability.sampling": (
        "Draws",
        "Weighted",
        "truncated_draws",
        "truncated_samples",
        "weighted_samples",
    ),
    "truncgauss.gaussian.total_moments": ("Moments",),
    "truncgauss.special.safe": ("bell", "bump", "clipped_gradient", "clipped_logits", "safe_norm"),
}
# Rooms and modules that are public as a whole, by the name under which users know them.
_MODULES = {
    "config": "truncgauss.runs.config",
    "distributed": "truncgauss.execution.distributed",
    "edges": "truncgauss.gaussian.edges",
    "fitting": "truncgauss.fitting",
    "likelihood": "truncgauss.likelihood",
    "mixtures": "truncgauss.fitting.mixtures",
    "parallel": "truncgauss.execution.parallel",
    "plotting": "truncgauss.plotting",
    "regions": "truncgauss.gaussian.regions",
    "safe": "truncgauss.special.safe",
    "special": "truncgauss.special",
    "tables": "truncgauss.execution.tables",
}
_EXTRAS = ("sklearn", "torch")  # modules that need a package which may be absent
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


if not TYPE_CHECKING:  # type checkers should know the names above only

    def __getattr__(name: str) -> Any:
        with uncollected():
            if name in _HOME_OF:
                value = getattr(importlib.import_module(_HOME_OF[name]), name)
            elif name in _MODULES:
                value = importlib.import_module(_MODULES[name])
            elif name in _EXTRAS:
                value = importlib.import_module(f"truncgauss.{name}")
            else:
                raise AttributeError(f"module 'truncgauss' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
