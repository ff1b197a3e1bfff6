"""Rows of three entries of every kind, and their log-likelihood by Gauss-Legendre quadrature."""

import jax.numpy as jnp
import numpy as np
from scipy import stats

import truncgauss as tg

INF = np.inf
LOC = np.array([0.3, -0.2, 0.5])
COVARIANCE = np.array([[1.0, 0.4, -0.3], [0.4, 2.0, 0.5], [-0.3, 0.5, 1.5]])


NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)


def box_probability(loc, covariance, low, high):
    """P(low < X < high) by Gauss-Legendre quadrature of one entry given those before it."""
    keep = np.isfinite(low) | np.isfinite(high)
    if not keep.any():
        return 1.0
    factor = np.linalg.cholesky(covariance[np.ix_(keep, keep)])
    low, high = low[keep] - loc[keep], high[keep] - loc[keep]

    def given(z):
        """The integral over the entries that follow standard draws z, shape (points, k)."""
        k = z.shape[1]
        a, b = ((side[k] - z @ factor[k, :k]) / factor[k, k] for side in (low, high))
        if k == len(low) - 1:
            return stats.norm.cdf(b) - stats.norm.cdf(a)
        a, b = np.clip(a, -9.0, 9.0), np.clip(b, -9.0, 9.0)
        t = 0.5 * (b - a)[:, None] * NODES + 0.5 * (a + b)[:, None]
        inner = given(np.column_stack([z.repeat(len(NODES), 0), t.ravel()])).reshape(t.shape)
        return 0.5 * (b - a) * ((stats.norm.pdf(t) * inner) @ WEIGHTS)

    return given(np.zeros((1, 0)))[0]


def row_by_quadrature(loc, covariance, lower, upper, low, high):
    """The log-likelihood of one row in a box, from its definition."""
    exact = lower == upper
    density, mean, rest = 0.0, loc, covariance
    if exact.any():
        head = covariance[np.ix_(exact, exact)]
        density = stats.multivariate_normal(loc[exact], head).logpdf(lower[exact])
        gain = covariance[np.ix_(~exact, exact)] @ np.linalg.inv(head)
        mean = loc[~exact] + gain @ (lower[exact] - loc[exact])
        rest = covariance[np.ix_(~exact, ~exact)] - gain @ covariance[np.ix_(exact, ~exact)]
    else:
        mean = loc
    inner_low, inner_high = np.maximum(lower, low)[~exact], np.minimum(upper, high)[~exact]
    seen = box_probability(mean, rest, inner_low, inner_high)
    return density + np.log(seen) - np.log(box_probability(loc, covariance, low, high))


def mixed_rows(rng, n):
    """Rows of three entries of every kind, inside the box from -1 to infinity."""
    y = np.maximum(rng.normal(size=(n, 3)) + LOC, -0.9)
    lower, upper = y.copy(), y.copy()
    kind = rng.integers(4, size=(n, 3))
    lower[kind == 1], upper[kind == 1] = -INF, y[kind == 1] + 0.2  # censored
    lower[kind == 2], upper[kind == 2] = y[kind == 2] - 0.3, y[kind == 2] + 0.4  # an interval
    lower[kind == 3], upper[kind == 3] = -INF, INF  # missing
    return lower, upper


LOW = np.array([-1.0, -1.5, -INF])


def every_kind():
    """Twenty-four rows of every kind."""
    return mixed_rows(np.random.default_rng(0), 24)


def total(rows, loc, covariance, **settings):
    return jnp.sum(tg.log_likelihood(rows, loc, covariance, **settings).log_prob)
