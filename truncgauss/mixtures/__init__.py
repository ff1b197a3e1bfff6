"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.mixtures.fit import fit_mixture
from truncgauss.mixtures.likelihood import (
    HeldComponents,
    Mixture,
    hold,
    mixture_log_likelihood,
)
from truncgauss.mixtures.result import MixtureErrors, MixtureFit

__all__ = [
    "HeldComponents",
    "Mixture",
    "MixtureErrors",
    "MixtureFit",
    "fit_mixture",
    "hold",
    "mixture_log_likelihood",
]
