"""Coefficients of a probit, with which fits of binary outcomes begin."""

import numpy as np
from scipy.special import log_ndtr

PROBIT_STEPS, LONGEST, ARRIVED = 50, 3.0, 1e-16  # Newton steps: how many, long, and close


def probit(design: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Coefficients of a probit, by Newton steps: of some length where it has no maximum."""
    sign, part = np.where(positive, 1.0, -1.0), np.zeros(design.shape[1])
    for _ in range(PROBIT_STEPS):
        mean, bent = mills_of(design @ part, sign)
        slope = design.T @ (weights * mean)
        step = np.linalg.lstsq(design.T @ ((weights * bent)[:, None] * design), slope)[0]
        part = part + step / max(1.0, float(np.abs(design @ step).max()) / LONGEST)
        if step @ slope < ARRIVED:
            break
    return part


def mills_of(index: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and 1 - variance, of a standard normal u with sign (index + u) > 0, each (n,)."""
    at = sign * index
    ratio = np.exp(-0.5 * at**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(at))
    return sign * ratio, ratio * (ratio + at)
