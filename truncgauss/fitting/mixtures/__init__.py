"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.fitting.mixtures.fit import fit_mixture
from truncgauss.fitting.mixtures.likelihood import (
    HeldComponents,
    Mixture,
    hold,
    mixture_log_likelihood,
)
from truncgauss.fitting.mixtures.path import MixturePath, fit_mixture_path
from truncgauss.fitting.mixtures.posterior import Posterior, posterior
from truncgauss.fitting.mixtures.result import MixtureErrors, MixtureFit
from truncgauss.fitting.mixtures.search import NoMaximum

__all__ = [
    "HeldComponents",
    "Mixture",
    "MixtureErrors",
    "MixtureFit",
    "MixturePath",
    "NoMaximum",
    "Posterior",
    "fit_mixture",
    "fit_mixture_path",
    "hold",
    "mixture_log_likelihood",
    "posterior",
]
