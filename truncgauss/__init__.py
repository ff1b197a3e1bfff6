"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""

import functools
import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from truncgauss.arrays.importing import Moved, imported, uncollected

if TYPE_CHECKING:  # the same names for type checkers and editors
    from truncgauss import (
        fitting as fitting,
        likelihood as likelihood,
        plotting as plotting,
        probability as probability,
        special as special,
        tables as tables,
    )
    from truncgauss.arrays import parallel as parallel
    from truncgauss.execution import distributed as distributed
    from truncgauss.fitting import mixtures as mixtures
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
    from truncgauss.distributions.mixture import TruncatedMixture as TruncatedMixture
    from truncgauss.distributions.multivariate_normal import (
        TruncatedMultivariateNormal as TruncatedMultivariateNormal,
    )
    from truncgauss.distributions.multivariate_student_t import (
        TruncatedMultivariateStudentT as TruncatedMultivariateStudentT,
    )
    from truncgauss.distributions.normal import TruncatedNormal as TruncatedNormal
    from truncgauss.fitting.clusters import fit_clusters as fit_clusters
    from truncgauss.fitting.contrasts import simultaneous as simultaneous
    from truncgauss.fitting.fractions import (
        fit_limits as fit_limits,
        fit_shift as fit_shift,
    )
    from truncgauss.fitting.mixtures.fit import fit_mixture as fit_mixture
    from truncgauss.fitting.observations import fit_observations as fit_observations
    from truncgauss.fitting.optimization.loop import minimize as minimize
    from truncgauss.fitting.polychoric_correlations import (
        polychoric as polychoric,
        polychoric_matrix as polychoric_matrix,
    )
    from truncgauss.fitting.regression import fit_regression as fit_regression
    from truncgauss.fitting.residuals import quantile_residuals as quantile_residuals
    from truncgauss.fitting.rows_fit import likelihood_ratio as likelihood_ratio
    from truncgauss.fitting.selection import fit_selection as fit_selection
    from truncgauss.fitting.statistics import Statistics as Statistics
    from truncgauss.fitting.terms.autoregressive import AutoRegressive as AutoRegressive
    from truncgauss.fitting.terms.common_correlation import CommonCorrelation as CommonCorrelation
    from truncgauss.fitting.terms.diagonal import Diagonal as Diagonal
    from truncgauss.fitting.terms.exponential import Exponential as Exponential
    from truncgauss.fitting.terms.factor import Factor as Factor
    from truncgauss.fitting.terms.kinship import Kinship as Kinship
    from truncgauss.fitting.terms.matern import Matern as Matern
    from truncgauss.fitting.terms.random_effects import RandomEffects as RandomEffects
    from truncgauss.fitting.terms.residual import Residual as Residual
    from truncgauss.fitting.terms.term import CovarianceTerm as CovarianceTerm
    from truncgauss.fitting.terms.unstructured import Unstructured as Unstructured
    from truncgauss.fitting.truncated_normal import fit_truncated_normal as fit_truncated_normal
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
    from truncgauss.gaussian.regions.ball import Ball as Ball
    from truncgauss.gaussian.regions.box import Box as Box
    from truncgauss.gaussian.regions.ellipsoid import Ellipsoid as Ellipsoid
    from truncgauss.gaussian.regions.outside import Outside as Outside
    from truncgauss.gaussian.regions.polyhedron import Polyhedron as Polyhedron
    from truncgauss.gaussian.regions.region import Region as Region
    from truncgauss.gaussian.regions.selection import Selection as Selection
    from truncgauss.likelihood.observations import Observations as Observations
    from truncgauss.likelihood.ordinal import Ordinal as Ordinal
    from truncgauss.likelihood.rows import log_likelihood as log_likelihood
    from truncgauss.probability.automatic import (
        Automatic as Automatic,
        explain as explain,
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
    from truncgauss.probability.moments import truncated_moments as truncated_moments
    from truncgauss.probability.quadratic_forms import (
        log_quadratic_form_tail as log_quadratic_form_tail,
    )
    from truncgauss.probability.quantiles import quantile as quantile
    from truncgauss.probability.sampling import (
        truncated_draws as truncated_draws,
        truncated_samples as truncated_samples,
        weighted_samples as weighted_samples,
    )
    from truncgauss.probability.separation import Separation as Separation
    from truncgauss.probability.sequential import SequentialMonteCarlo as SequentialMonteCarlo
    from truncgauss.probability.soft import SoftMonteCarlo as SoftMonteCarlo

__version__ = "0.3.0"

# The module that defines each public name. Nothing is imported before it is asked for, so that the
# command line can check a config without starting JAX.
_HOMES = {
    "truncgauss.arrays.compiling": "use_compilation_cache".split(),
    "truncgauss.arrays.progress": "progress".split(),
    "truncgauss.arrays.pytrees": "Estimate".split(),
    "truncgauss.diagnosis.nonfinite": "first_nonfinite".split(),
    "truncgauss.distributions.mixture": "TruncatedMixture".split(),
    "truncgauss.distributions.multivariate_normal": "TruncatedMultivariateNormal".split(),
    "truncgauss.distributions.multivariate_student_t": "TruncatedMultivariateStudentT".split(),
    "truncgauss.distributions.normal": "TruncatedNormal".split(),
    "truncgauss.fitting.clusters": "fit_clusters".split(),
    "truncgauss.fitting.contrasts": "simultaneous".split(),
    "truncgauss.fitting.fractions": "fit_limits fit_shift".split(),
    "truncgauss.fitting.mixtures.fit": "fit_mixture".split(),
    "truncgauss.fitting.observations": "fit_observations".split(),
    "truncgauss.fitting.optimization.loop": "minimize".split(),
    "truncgauss.fitting.polychoric_correlations": "polychoric polychoric_matrix".split(),
    "truncgauss.fitting.regression": "fit_regression".split(),
    "truncgauss.fitting.residuals": "quantile_residuals".split(),
    "truncgauss.fitting.rows_fit": "likelihood_ratio".split(),
    "truncgauss.fitting.selection": "fit_selection".split(),
    "truncgauss.fitting.statistics": "Statistics".split(),
    "truncgauss.fitting.terms.autoregressive": "AutoRegressive".split(),
    "truncgauss.fitting.terms.common_correlation": "CommonCorrelation".split(),
    "truncgauss.fitting.terms.diagonal": "Diagonal".split(),
    "truncgauss.fitting.terms.exponential": "Exponential".split(),
    "truncgauss.fitting.terms.factor": "Factor".split(),
    "truncgauss.fitting.terms.kinship": "Kinship".split(),
    "truncgauss.fitting.terms.matern": "Matern".split(),
    "truncgauss.fitting.terms.random_effects": "RandomEffects".split(),
    "truncgauss.fitting.terms.residual": "Residual".split(),
    "truncgauss.fitting.terms.term": "CovarianceTerm".split(),
    "truncgauss.fitting.terms.unstructured": "Unstructured".split(),
    "truncgauss.fitting.truncated_normal": "fit_truncated_normal".split(),
    "truncgauss.gaussian.covariances": "LowRank Markov ScaleTril".split(),
    "truncgauss.gaussian.edges": "Bump Hard Probit Surrogate Tanh".split(),
    "truncgauss.gaussian.regions.ball": "Ball".split(),
    "truncgauss.gaussian.regions.box": "Box".split(),
    "truncgauss.gaussian.regions.ellipsoid": "Ellipsoid".split(),
    "truncgauss.gaussian.regions.outside": "Outside".split(),
    "truncgauss.gaussian.regions.polyhedron": "Polyhedron".split(),
    "truncgauss.gaussian.regions.region": "Region".split(),
    "truncgauss.gaussian.regions.selection": "Selection".split(),
    "truncgauss.likelihood.observations": "Observations".split(),
    "truncgauss.likelihood.ordinal": "Ordinal".split(),
    "truncgauss.likelihood.rows": "log_likelihood".split(),
    "truncgauss.probability.automatic": (
        "Automatic explain fraction_not_truncated log_probability"
    ).split(),
    "truncgauss.probability.exact": "Exact".split(),
    "truncgauss.probability.expectation_propagation": "ExpectationPropagation".split(),
    "truncgauss.probability.gradients": "log_probability_and_gradient".split(),
    "truncgauss.probability.importance": "ImportanceSampling".split(),
    "truncgauss.probability.method": "Method".split(),
    "truncgauss.probability.moments": "truncated_moments".split(),
    "truncgauss.probability.quadratic_forms": "log_quadratic_form_tail".split(),
    "truncgauss.probability.quantiles": "quantile".split(),
    "truncgauss.probability.sampling": (
        "truncated_draws truncated_samples weighted_samples"
    ).split(),
    "truncgauss.probability.separation": "Separation".split(),
    "truncgauss.probability.sequential": "SequentialMonteCarlo".split(),
    "truncgauss.probability.soft": "SoftMonteCarlo".split(),
}
# Rooms and modules that are public as a whole, by the name under which users know them.
_MODULES = {
    "config": "truncgauss.runs.config",
    "distributed": "truncgauss.execution.distributed",
    "edges": "truncgauss.gaussian.edges",
    "fitting": "truncgauss.fitting",
    "likelihood": "truncgauss.likelihood",
    "mixtures": "truncgauss.fitting.mixtures",
    "parallel": "truncgauss.arrays.parallel",
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
# Earlier modules, likewise.
_MOVED_MODULES = {
    f"truncgauss.{old}": f"truncgauss.{new}"
    for old, new in {
        "execution.arguments": "words.arguments",
        "execution.batches": "arrays.batches",
        "execution.compiling": "arrays.compiling",
        "execution.importing": "arrays.importing",
        "execution.parallel": "arrays.parallel",
        "execution.progress": "arrays.progress",
        "execution.pytrees": "arrays.pytrees",
        "execution.terminal": "words.terminal",
        "fitting.mixtures.posterior": "fitting.mixtures.posteriors",
        "gaussian.linalg": "arrays.linalg",
        "likelihood.blocks": "likelihood.row_blocks",
        "tables.alignment": "arrays.alignment",
        "tables.names": "words.names",
        "tables.shares": "words.numbers",
    }.items()
}
sys.meta_path.append(Moved(_MOVED_MODULES))
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
                from truncgauss.words.names import meant

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
    importlib.import_module("truncgauss.arrays.parallel")
