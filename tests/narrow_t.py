"""Multivariate t probabilities of boxes by a second route: quadrature over scale and factor.

The scale matrix is D + b b', so that given the scale S and the factor F the coordinates are
independent: P is a double integral of a product of interval masses, taken here by Gauss-Legendre
panels over the log scale and over the factor, about the mode, in logs and without truncgauss.
A coordinate with a narrow interval is replaced by its density and the conditional t of the others,
whose degrees of freedom grow by one: X2 | X1 = x is t with df + 1, mean b2 b1 x / v1 and scale
matrix (df + x^2 / v1) / (df + 1) times the Gaussian's conditional covariance, again D + b b'.
"""

import numpy as np
from scipy import special

from tests.referee import oracles

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def panels(low, high, count):
    """Gauss-Legendre nodes and log weights on equal panels."""
    edges = np.linspace(low, high, count + 1)
    half = 0.5 * np.diff(edges)[:, None]
    return ((edges[:-1, None] + half) + half * NODES).ravel(), np.log(half * WEIGHTS).ravel()


def support(function, low, high, drop=45.0, rounds=5):
    """Where each row of a log integrand is within `drop` of its largest value, by finer grids."""
    for _ in range(rounds):
        grid = low + (high - low) * np.linspace(0.0, 1.0, 81)
        values = function(grid)
        inside = values > values.max(-1, keepdims=True) - drop
        first = np.maximum(inside.argmax(-1) - 1, 0)[..., None]
        last = np.minimum(81 - inside[..., ::-1].argmax(-1), 80)[..., None]
        low, high = (np.take_along_axis(grid, index, -1) for index in (first, last))
    return low, high


def log_probability(loading, noise, df, low, high):
    """log P(low <= X <= high) for X ~ t_df(0, diag(noise) + loading loading')."""
    loading, noise, low, high = (np.asarray(x, float) for x in (loading, noise, low, high))
    scale = np.sqrt(noise)
    half = 0.5 * df
    constant = np.log(2.0) + half * np.log(half) - half - special.gammaln(half)
    if half > 100.0:
        constant = np.log(2.0) + 0.5 * np.log(half / (2.0 * np.pi)) - 1.0 / (12.0 * half)
        constant += 1.0 / (360.0 * half**3)

    def over_factor(t):
        s = np.exp(t)[:, None, None]
        below, above = (x * s / scale for x in (low, high))

        def at(f):
            z = f[..., None] * loading / scale
            return oracles.log_interval(below - z, above - z).sum(-1) - 0.5 * f * f

        ends = np.full((len(t), 1), -60.0), np.full((len(t), 1), 60.0)
        left, right = support(at, *ends)
        unit, weights = panels(0.0, 1.0, 6)
        sums = special.logsumexp(at(left + (right - left) * unit) + weights, -1)
        return sums + np.log(right - left)[:, 0] - 0.5 * np.log(2.0 * np.pi)

    def outer(t):
        return over_factor(t) + constant + half * (2.0 * t - np.expm1(2.0 * t))

    ends = np.array([-60.0 / min(df, 4.0) - 8.0]), np.array([4.0])
    left, right = (float(end[0]) for end in support(outer, *ends, rounds=4))
    t, weights = panels(left, right, max(5, int(np.ceil(right - left))))
    return float(special.logsumexp(outer(t) + weights, 0))


def log_narrow(loading, noise, df, low, high):
    """The same where the first interval is narrow: its mass times the conditional probability.

    The integral over the interval is by its midpoint, or by Gauss-Legendre if wider than 1e-7.
    """
    variance = noise[0] + loading[0] ** 2
    width = high[0] - low[0]
    middle = low[0] + 0.5 * width
    nodes, weights = np.polynomial.legendre.leggauss(1 if width < 1e-7 else 3)
    parts = []
    for node, weight in zip(nodes, weights):
        x = middle + 0.5 * width * node
        square = x * x / variance
        density = (
            special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)
            if df < 1e4
            else 0.5 * np.log(0.5 * df) - 0.25 / df + 1.0 / (24.0 * df**3)
        )
        density += -0.5 * np.log(np.pi * df * variance) - 0.5 * (df + 1) * np.log1p(square / df)
        rest = 0.0
        if len(noise) > 1:
            stretch = np.sqrt((df + square) / (df + 1.0))
            mean = loading[1:] * (loading[0] * x / variance)
            kept = loading[1:] * np.sqrt(noise[0] / variance)
            ends = (low[1:] - mean) / stretch, (high[1:] - mean) / stretch
            rest = log_probability(kept, noise[1:], df + 1.0, *ends)
        parts.append(density + rest + np.log(0.5 * weight * width))
    return float(special.logsumexp(np.array(parts), 0))
