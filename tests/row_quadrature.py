"""Rows of three entries of every kind, of which `referee.oracles` has the log-likelihoods."""

import jax.numpy as jnp
import numpy as np

import truncgauss as tg

INF = np.inf
LOC = np.array([0.3, -0.2, 0.5])
COVARIANCE = np.array([[1.0, 0.4, -0.3], [0.4, 2.0, 0.5], [-0.3, 0.5, 1.5]])


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
