"""Truncated-Gaussian estimation on JAX: probabilities of regions, their gradients, and fits."""

import importlib
import sys

from truncgauss.arrays.importing import Moved, homes_of, imported, uncollected

__version__ = "0.3.0"

# Rooms and modules that are public as a whole, by the name under which users know them.
_MODULES = {
    "config": "truncgauss.runs.config",
    "edges": "truncgauss.gaussian.edges",
    "fitting": "truncgauss.fitting",
    "likelihood": "truncgauss.likelihood",
    "mixtures": "truncgauss.fits.mixtures",
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
# Earlier names that are gone, and what to write.
_GONE = {
    "distributed": "processes meet by `jax.distributed.initialize()` and exchange arrays by "
    "`jax.experimental.multihost_utils`; docs/clusters.md has a script"
}
# Earlier modules: their names by the rooms from which and to which they moved, with the
# new one where that changed.
_MOVED_MODULES = {
    f"truncgauss.{old}.{name.partition('=')[0]}": f"truncgauss.{new}.{name.rpartition('=')[2]}"
    for (old, new), names in {
        ("distributions", "distributions"): "arguments=checks normal=univariate",
        ("execution", "arrays"): "batches compiling importing parallel progress pytrees",
        ("execution", "execution"): "files=writing",
        ("execution", "words"): "arguments terminal",
        ("fitting", "covariates"): "contrasts outliers predictions residuals rows_fit",
        ("fitting", "fits"): "fractions mixtures probit recorded selection=sample_selection",
        ("fitting", "fits.clusters"): "cluster_likelihood clusters=cluster_fit long_tables terms",
        ("fits", "fits"): "ordinal=polychoric",
        ("fits.ordinal", "fits.gaussian"): "ordinal_fit",
        ("fits.ordinal", "fits.polychoric"): "orthants polychoric_correlations",
        ("fitting", "fits.gaussian"): (
            "centring gaussian_starts linear_gaussian observations=observations_fit one_outcome "
            "ordinal=ordinal_fit regression rising sample statistics truncated_normal"
        ),
        ("fitting", "fits.polychoric"): "orthants polychoric_correlations",
        ("fitting", "fitting"): "result=likelihood_fit",
        ("fitting.mixtures", "fits.mixtures"): (
            "curvature descent=climb em fit likelihood parameters posterior=posteriors "
            "posteriors search"
        ),
        ("fitting.optimization", "fitting"): "descent newton wald widening",
        ("fitting.optimization", "optimize"): (
            "loop parameters=constraints result=fit_result steps uncertainty"
        ),
        ("fitting.terms", "fits.clusters.terms"): (
            "autoregressive common_correlation diagonal exponential factor kinship matern "
            "random_effects residual term unstructured"
        ),
        ("gaussian", "arrays"): "linalg",
        ("likelihood", "likelihood"): "blocks=row_blocks",
        ("probability", "draws"): "moments=truncated_moments sampling",
        ("probability", "student"): "directions exact_largest quantiles=quantile radial student",
        ("quadrature", "quadrature"): "conditioning=input_rounding",
        ("separation", "draws"): "gibbs=trajectories proposals",
        ("separation", "separation"): "expectation_propagation=sites",
        ("tables", "arrays"): "alignment",
        ("tables", "words"): "names shares=numbers",
    }.items()
    for name in names.split()
} | {"truncgauss.fitting.optimization": "truncgauss.optimize"}
# First, as a file is found under the earlier name of its package too.
sys.meta_path.insert(0, Moved(_MOVED_MODULES))
# The module that defines each public name, where type checkers read it too. Nothing is imported
# before it is asked for, so that the command line can check a config without starting JAX.
_HOME_OF = {name: home for name, home in homes_of(__file__).items() if name not in _MODULES}

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name: str) -> object:
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
            cure = f": {_GONE[name]}" if name in _GONE else cure
            raise AttributeError(f"module 'truncgauss' has no attribute {name!r}{cure}")
    globals()[name] = value
    return value


def _moved(name: str) -> object:
    """Value of an earlier public name, with a warning at the line that uses it."""
    from truncgauss.words.earlier import warn_of

    new, value = _MOVED[name], sys.modules[__name__]
    warn_of(f"tg.{name}", new)
    for part in new.split(".")[1:]:
        value = getattr(value, part)
    return value


def __dir__() -> list[str]:
    return __all__


# This module adds to what JAX knows programs by. Were it imported while a program of the user's is
# traced, JAX would not recognise that program at its second call, and compile it again.
if "jax" in sys.modules:
    importlib.import_module("truncgauss.arrays.parallel")
