"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.fitting.mixtures.descent import NoMaximum
from truncgauss.fitting.mixtures.fit import MixtureErrors, MixtureFit, fit_mixture
from truncgauss.fitting.mixtures.likelihood import (
    HeldComponents,
    hold,
    mixture_log_likelihood,
)
from truncgauss.fitting.mixtures.parameters import Mixture
from truncgauss.fitting.mixtures.posterior import Posterior, posterior

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
