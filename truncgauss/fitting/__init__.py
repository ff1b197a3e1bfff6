"""Fits of shifts, limits and whole Gaussians to truncated data."""

from truncgauss.fitting.checkpoint import interrupts
from truncgauss.fitting.loop import FitResult, fit
from truncgauss.fitting.parameters import (
    Bijection,
    Constraint,
    Coordinates,
    Frozen,
    Limits,
    LowerTriangular,
    Positive,
    PositiveDefinite,
    Real,
    coordinates,
)

__all__ = [
    "Bijection",
    "Constraint",
    "Coordinates",
    "FitResult",
    "Frozen",
    "Limits",
    "LowerTriangular",
    "Positive",
    "PositiveDefinite",
    "Real",
    "coordinates",
    "fit",
    "interrupts",
]
