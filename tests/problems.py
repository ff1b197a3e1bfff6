"""Named problems: Gaussians and boxes whose log probability is known by another route.

Values come from closed forms, from an integral over the one factor that the coordinates share, or
from a transfer operator (autoregressions), by NumPy and SciPy alone, right to about 1e-12.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from tests.referee.oracles import log_interval


class Problem(NamedTuple):
    """P(low <= X <= high) for X ~ Normal(loc, covariance()) is exp(log_prob)."""

    name: str
    loc: np.ndarray
    covariance: Callable[[], np.ndarray]
    low: np.ndarray
    high: np.ndarray
    log_prob: float
    tags: frozenset[str]

    @property
    def dimension(self) -> int:
        return len(self.low)


# --- Families of covariances ----------------------------------------------------------------------


def equal_correlations(d: int, rho: float = 0.5) -> np.ndarray:
    return np.full((d, d), rho) + (1 - rho) * np.eye(d)


def autoregression(d: int, rho: float = 0.7) -> np.ndarray:
    return rho ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))


def tridiagonal(d: int) -> np.ndarray:
    """Differences of d + 1 independent normals: its orthant is one of their (d + 1)! orders."""
    return 2 * np.eye(d) - np.eye(d, k=1) - np.eye(d, k=-1)


def negative_correlations(d: int) -> np.ndarray:
    return 2 * np.eye(d) - 2 / (d + 1)


def brownian(d: int) -> np.ndarray:
    steps = np.arange(1.0, d + 1)
    return np.minimum.outer(steps, steps)


# --- One factor: loadings and variances of the noise, by family and dimension ---------------------

LOADINGS = {
    2: [0.603, 0.761],
    3: [0.18719338946056174, 0.27139936789108454, 0.22138325553893246],
    5: [0.889, 0.357, 0.644, 0.728, 0.788],
    20: [0.47, 0.64, 0.76, 0.15, 0.87, 0.65, 0.26, 0.32, 0.14, 0.47]
    + [0.19, 0.73, 0.68, 0.32, 0.27, 0.43, 0.62, 0.58, 0.11, 0.72],
}
DUPLICATES = {3: [2.69e-8, 3.57e-8, 3.69e-8], 5: [7.0e-8, 4.54e-8, 7.44e-8, 6.15e-8, 7.65e-8]}
NOISE = {("id", d): np.ones(d) for d in (1, 2, 3, 5, 20, 100)}
NOISE |= {("equi", d): np.full(d, 0.5) for d in (2, 3, 5, 20, 100)}
NOISE |= {("factor", d): 1 - np.array(row) ** 2 for d, row in LOADINGS.items()}
NOISE |= {("ill", d): np.array(row) for d, row in DUPLICATES.items()}

# Limits that all coordinates share, in standard deviations.
BOXES = {
    "box": (-1.5, 1.0),
    "orth": (-math.inf, 0.0),
    "tail2": (2.0, math.inf),
    "tail4": (4.0, math.inf),
    "wide": (0.0, 1000.0),
}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)


def given_a_factor(noise: np.ndarray, low: float, high: float) -> float:
    """log P of unit variances: an integral over the factor, in panels about each sudden change."""
    scale, loadings = np.sqrt(noise), np.sqrt(1 - noise)
    if not loadings.any():
        return float(np.sum(log_interval(low / scale, high / scale)))
    steps = np.linspace(-9, 9, 19)[:, None] * scale / loadings
    ends = [limit / loadings + steps for limit in (low, high) if abs(limit) < 99]
    ends = np.unique(np.concatenate([np.linspace(-40, 40, 161), *map(np.ravel, ends)]))
    half = 0.5 * np.diff(ends)[:, None]
    z, log_weight = (ends[:-1, None] + half + half * NODES).ravel(), np.log(half * WEIGHTS).ravel()
    sides = (
        ((limit - loading * z) / s for limit in (low, high)) for loading, s in zip(loadings, scale)
    )
    log_density = (
        sum(log_interval(*side) for side in sides) - 0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    )
    return float(logsumexp(log_density + log_weight))


def along_a_chain(low: float, high: float, most: int, rho: float = 0.7) -> list[float]:
    """log P of the first d values of a stationary autoregression, d = 1, 2, ..., `most`."""
    low, high = np.clip([low, high], -12.0, 12.0)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    half, noise = 0.5 * (high - low), 1 - rho**2
    x = low + half * (1 + nodes)
    density = lambda z, variance: np.exp(-0.5 * z**2 / variance) / math.sqrt(2 * math.pi * variance)
    step = density(x[:, None] - rho * x, noise) * (half * weights)[:, None]
    mass, total, values = density(x, 1.0) * half * weights, 0.0, []
    for _ in range(most):
        total += math.log(mass.sum())
        values.append(total)
        mass = step @ (mass / mass.sum())
    return values


def _tags(family: str, d: int, box: str) -> frozenset[str]:
    tags = {"tail"} if box.startswith("tail") else set()
    tags |= {"infinite"} if box in ("orth", "tail2", "tail4") else set()
    tags |= {"high-d"} if d >= 50 else set()
    return frozenset(tags | ({"correlated"} if family == "ill" else set()))


def _problem(name, covariance, d, low, high, log_prob, tags) -> Problem:
    limits = np.full(d, float(low)), np.full(d, float(high))
    return Problem(name, np.zeros(d), lambda: covariance(d), *limits, log_prob, frozenset(tags))


def _families():
    for box, limits in BOXES.items():
        for (family, d), noise in NOISE.items():
            root = np.sqrt(1 - noise)
            matrix = lambda d, root=root: np.where(np.eye(d), 1.0, np.outer(root, root))
            truth = given_a_factor(noise, *limits)
            yield f"{family}-{d}-{box}", matrix, d, *limits, truth, _tags(family, d, box)
        chain = along_a_chain(*limits, 100)
        for d in (2, 3, 5, 20, 100):
            truth = chain[d - 1]
            yield f"ar1-{d}-{box}", autoregression, d, *limits, truth, _tags("ar1", d, box)


# Closed forms and quadratures of other shapes: name, covariance, d, low, high, log P, tags.
OTHERS = (
    ("order-100", tridiagonal, 100, 0.0, math.inf, -math.lgamma(102), "tail high-d"),
    ("order-1000", tridiagonal, 1000, 0.0, math.inf, -math.lgamma(1002), "tail high-d"),
    ("negative-10", negative_correlations, 10, 0.5, 1.0, -32.391385396886459502, "tail"),
    ("negative-25", negative_correlations, 25, 0.5, 1.0, -121.04928171879103, "tail"),
    ("negative-50", negative_correlations, 50, 0.5, 1.0, -351.53597455549234, "tail high-d"),
    ("brownian-8", brownian, 8, 0.0, math.inf, math.log(0.196380615234375), "correlated"),
    ("ones-3", lambda d: np.ones((d, d)), 3, -math.inf, 1.0, -0.1727537790234499, "singular"),
)
PROBLEMS = tuple(_problem(*row) for row in _families()) + tuple(
    _problem(*other, tags.split()) for *other, tags in OTHERS
)


def problem(name: str) -> Problem:
    """The problem of this name."""
    return next(p for p in PROBLEMS if p.name == name)
