"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. Nothing is imported before it is asked for, so that the command line
# can check a config without starting JAX.
_HOMES = {
    "truncgauss.covariances": ("LowRank", "Markov", "ScaleTril"),
    "truncgauss.diagnostics": ("first_nonfinite",),
    "truncgauss.distributions": ("TruncatedMultivariateNormal", "TruncatedNormal"),
    "truncgauss.fitting": (
        "FitResult",
        "ObservationsFit",
        "TruncatedFit",
        "fit",
        "fit_limits",
        "fit_observations",
        "fit_shift",
        "fit_truncated_normal",
    ),
    "truncgauss.indicators": ("Bump", "Hard", "Probit", "Surrogate", "Tanh"),
    "truncgauss.likelihood": ("Observations", "log_likelihood"),
    "truncgauss.moments": ("Moments", "truncated_moments"),
    "truncgauss.probability.automatic": (
        "Automatic",
        "fraction_not_truncated",
        "log_probability",
    ),
    "truncgauss.problem": ("Estimate", "Problem"),
    "truncgauss.probability.exact": ("Exact",),
    "truncgauss.probability.explanation": ("explain",),
    "truncgauss.probability.gradients": (
        "Gradient",
        "LogProbabilityAndGradient",
        "log_probability_and_gradient",
    ),
    "truncgauss.probability.expectation_propagation": ("ExpectationPropagation",),
    "truncgauss.probability.factor_lattice": ("FactorLattice",),
    "truncgauss.probability.method": ("Method",),
    "truncgauss.probability.separation": ("Separation",),
    "truncgauss.probability.sequential": ("SequentialMonteCarlo",),
    "truncgauss.probability.soft": ("SoftMonteCarlo",),
    "truncgauss.regions": ("Ball", "Box", "Ellipsoid", "Polyhedron", "Region"),
    "truncgauss.sampling": (
        "Draws",
        "Weighted",
        "truncated_draws",
        "truncated_samples",
        "weighted_samples",
    ),
    "truncgauss.safe": ("bell", "bump", "clipped_gradient", "clipped_logits", "safe_norm"),
}
_MODULES = (
    "config", "fitting", "indicators", "likelihood", "parallel", "plotting", "regions", "safe",
    "special",
)  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"truncgauss.{name}")
    else:
        raise AttributeError(f"module 'truncgauss' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
