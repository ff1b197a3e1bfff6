"""How far the distribution of draws is from the one they claim, and how far it may be."""

import math

import jax
import numpy as np

RATE = 1e-6


KEY = jax.random.key(20)


def band(num_draws: float, num_margins: int = 1) -> float:
    return math.sqrt(math.log(2 * num_margins / RATE) / (2 * num_draws))


def distance(draws, cdf) -> float:
    """The largest gap between the empirical distribution function and `cdf`."""
    x = np.sort(np.asarray(draws, np.float64))
    n, f = len(x), cdf(x)
    return max(np.max(np.arange(1, n + 1) / n - f), np.max(f - np.arange(n) / n))


def gap(first, second) -> float:
    """The largest gap between two empirical distribution functions."""
    first, second = np.sort(first), np.sort(second)
    x = np.concatenate([first, second])
    below = [np.searchsorted(y, x, side="right") / len(y) for y in (first, second)]
    return np.abs(below[0] - below[1]).max()


def tabulated(grid, log_density):
    """The distribution function of a density on a grid, by the trapezoidal rule."""
    density = np.exp(log_density - log_density.max())
    area = np.append(0, np.cumsum(0.5 * (density[1:] + density[:-1]) * np.diff(grid)))
    return lambda x: np.interp(x, grid, area / area[-1])


def matrix(rho):
    return np.array([[1.0, rho], [rho, 1.0]])
