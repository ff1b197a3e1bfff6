"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""

import functools
import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from truncgauss.execution.importing import imported, uncollected

if TYPE_CHECKING:  # the same names for type checkers and editors
    from truncgauss import (
        fitting as fitting,
        likelihood as likelihood,
        plotting as plotting,
        probability as probability,
        special as special,
        tables as tables,
    )
    from truncgauss.execution import (
        distributed as distributed,
        parallel as parallel,
    )
    from truncgauss.execution.compiling import (
        use_compilation_cache as use_compilation_cache,
    )
    from truncgauss.execution.progress import (
        progress as progress,
    )
    from truncgauss.fitting import (
        mixtures as mixtures,
    )
    from truncgauss.gaussian import (
        edges as edges,
        regions as regions,
    )
    from truncgauss.runs import (
        config as config,
    )
    from truncgauss.special import (
        safe as safe,
    )
    from truncgauss.diagnosis.nonfinite import (
        first_nonfinite as first_nonfinite,
    )
    from truncgauss.distributions import (
        TruncatedMultivariateNormal as TruncatedMultivariateNormal,
        TruncatedMultivariateStudentT as TruncatedMultivariateStudentT,
        TruncatedNormal as TruncatedNormal,
    )
    from truncgauss.distributions.mixture import (
        TruncatedMixture as TruncatedMixture,
    )
    from truncgauss.fitting import (
        Statistics as Statistics,
        fit_clusters as fit_clusters,
        fit_limits as fit_limits,
        fit_observations as fit_observations,
        fit_regression as fit_regression,
        fit_selection as fit_selection,
        fit_shift as fit_shift,
        fit_truncated_normal as fit_truncated_normal,
        likelihood_ratio as likelihood_ratio,
        minimize as minimize,
        polychoric as polychoric,
        polychoric_matrix as polychoric_matrix,
        quantile_residuals as quantile_residuals,
        simultaneous as simultaneous,
    )
    from truncgauss.fitting.mixtures import (
        fit_mixture as fit_mixture,
    )
    from truncgauss.fitting.terms import (
        AutoRegressive as AutoRegressive,
        CommonCorrelation as CommonCorrelation,
        CovarianceTerm as CovarianceTerm,
        Diagonal as Diagonal,
        Exponential as Exponential,
        Factor as Factor,
        Kinship as Kinship,
        Matern as Matern,
        RandomEffects as RandomEffects,
        Residual as Residual,
        Unstructured as Unstructured,
    )
    from truncgauss.gaussian.covariances import (
        LowRank as LowRank,
        Markov as Markov,
        ScaleTril as ScaleTril,
    )
    from truncgauss.gaussian.edges import (
        Bump as Bump,
        Hard as Hard,
        Probit as Probit,
        Surrogate as Surrogate,
        Tanh as Tanh,
    )
    from truncgauss.gaussian.problem import (
        Estimate as Estimate,
    )
    from truncgauss.gaussian.regions import (
        Ball as Ball,
        Box as Box,
        Ellipsoid as Ellipsoid,
        Outside as Outside,
        Polyhedron as Polyhedron,
        Region as Region,
        Selection as Selection,
    )
    from truncgauss.likelihood import (
        Observations as Observations,
        Ordinal as Ordinal,
        log_likelihood as log_likelihood,
    )
    from truncgauss.probability import (
        Automatic as Automatic,
        Exact as Exact,
        ExpectationPropagation as ExpectationPropagation,
        ImportanceSampling as ImportanceSampling,
        Method as Method,
        Separation as Separation,
        SequentialMonteCarlo as SequentialMonteCarlo,
        SoftMonteCarlo as SoftMonteCarlo,
        explain as explain,
        fraction_not_truncated as fraction_not_truncated,
        log_probability as log_probability,
        log_probability_and_gradient as log_probability_and_gradient,
        log_quadratic_form_tail as log_quadratic_form_tail,
        quantile as quantile,
        truncated_draws as truncated_draws,
        truncated_moments as truncated_moments,
        truncated_samples as truncated_samples,
        weighted_samples as weighted_samples,
    )

__version__ = "0.2.0"

# The module that defines each public name. Nothing is imported before it is asked for, so that the
# command line can check a config without starting JAX.
_HOMES = {
    "truncgauss.diagnosis.nonfinite": "first_nonfinite".split(),
    "truncgauss.distributions": (
        "TruncatedMultivariateNormal TruncatedMultivariateStudentT TruncatedNormal".split()
    ),
    "truncgauss.distributions.mixture": "TruncatedMixture".split(),
    "truncgauss.execution.compiling": "use_compilation_cache".split(),
    "truncgauss.fitting": (
        "Statistics fit_clusters fit_limits fit_observations fit_regression fit_selection "
        "fit_shift fit_truncated_normal likelihood_ratio minimize polychoric polychoric_matrix "
        "quantile_residuals simultaneous"
    ).split(),
    "truncgauss.fitting.mixtures": "fit_mixture".split(),
    "truncgauss.fitting.terms": (
        "AutoRegressive CommonCorrelation CovarianceTerm Diagonal Exponential Factor Kinship "
        "Matern RandomEffects Residual Unstructured"
    ).split(),
    "truncgauss.execution.progress": ["progress"],
    "truncgauss.gaussian.covariances": "LowRank Markov ScaleTril".split(),
    "truncgauss.gaussian.edges": "Bump Hard Probit Surrogate Tanh".split(),
    "truncgauss.gaussian.problem": "Estimate".split(),
    "truncgauss.gaussian.regions": "Ball Box Ellipsoid Outside Polyhedron Region Selection".split(),
    "truncgauss.likelihood": "Observations Ordinal log_likelihood".split(),
    "truncgauss.probability": (
        "Automatic Exact ExpectationPropagation ImportanceSampling Method Separation "
        "SequentialMonteCarlo SoftMonteCarlo explain fraction_not_truncated "
        "log_probability log_probability_and_gradient log_quadratic_form_tail quantile "
        "truncated_draws truncated_moments truncated_samples weighted_samples"
    ).split(),
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
    "probability": "truncgauss.probability",
    "regions": "truncgauss.gaussian.regions",
    "safe": "truncgauss.special.safe",
    "special": "truncgauss.special",
    "tables": "truncgauss.tables",
}
_EXTRAS = ("sklearn", "torch")  # modules that need a package which may be absent
# Earlier names, which work for one version with a warning that says the new one.
_MOVED = {"fit": "tg.minimize"} | {
    name: f"tg.{module}.{name}"
    for module, names in {
        "fitting": ("FitResult", "ObservationsFit", "RegressionFit"),
        "mixtures": ("MixtureFit", "mixture_log_likelihood"),
        "probability": (
            "Draws",
            "FactorLattice",
            "Gradient",
            "LogProbabilityAndGradient",
            "Moments",
            "Problem",
            "Weighted",
        ),
        "safe": ("bell", "bump", "clipped_gradient", "clipped_logits", "safe_norm"),
    }.items()
    for name in names
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


if not TYPE_CHECKING:  # type checkers should know the names above only

    def __getattr__(name: str) -> Any:
        with uncollected():
            if name in _HOME_OF:
                value = getattr(imported(_HOME_OF[name]), name)
            elif name in _MODULES:
                value = imported(_MODULES[name])
            elif name in _EXTRAS:
                value = imported(f"truncgauss.{name}")
            elif name in _MOVED:
                return _moved(name)
            else:
                from truncgauss.tables.names import meant

                cure = "" if name.startswith("_") else meant(name, __all__)
                raise AttributeError(f"module 'truncgauss' has no attribute {name!r}{cure}")
        globals()[name] = value
        return value


def _moved(name: str) -> Any:
    """Value of an earlier public name, with a warning at the line that uses it."""
    new = _MOVED[name]
    warnings.warn(
        f"tg.{name} is {new} now: write {new}. The old name goes with the next version.",
        DeprecationWarning,
        stacklevel=3,
    )
    return functools.reduce(getattr, new.split(".")[1:], sys.modules[__name__])


def __dir__() -> list[str]:
    return __all__


# This module adds to what JAX knows programs by. Were it imported while a program of the user's is
# traced, JAX would not recognise that program at its second call, and compile it again.
if "jax" in sys.modules:
    importlib.import_module("truncgauss.execution.parallel")
