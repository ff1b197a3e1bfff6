"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.fitting.mixtures.fit import fit_mixture
from truncgauss.fitting.mixtures.likelihood import (
    HeldComponents,
    Mixture,
    hold,
    mixture_log_likelihood,
)
from truncgauss.fitting.mixtures.posterior import Posterior, posterior
from truncgauss.fitting.mixtures.result import MixtureErrors, MixtureFit
from truncgauss.fitting.mixtures.search import NoMaximum

__all__ = [
    "HeldComponents",
    "Mixture",
    "MixtureErrors",
    "MixtureFit",
    "NoMaximum",
    "Posterior",
    "fit_mixture",
    "hold",
    "mixture_log_likelihood",
    "posterior",
]
