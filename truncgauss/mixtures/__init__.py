"""Mixtures of Gaussians behind rows that are truncated, censored, noisy or known in part."""

from truncgauss.mixtures.likelihood import (
    HeldComponents,
    hold,
    mixture_log_likelihood,
)

__all__ = [
    "HeldComponents",
    "hold",
    "mixture_log_likelihood",
]
