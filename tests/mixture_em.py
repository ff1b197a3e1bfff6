"""Simulated mixtures, and EM for them in a few lines: the second route of their fits."""

import numpy as np
from scipy import stats

INF = np.inf
TRUTH = (
    np.array([0.5, 0.3, 0.2]),
    np.array([[0.0, 0.0], [3.5, 1.0], [0.0, 4.0]]),
    np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.5, -0.2], [-0.2, 0.8]], [[0.7, 0.0], [0.0, 0.4]]]),
)


def drawn(rng, n, weights, locs, covariances):
    """n rows of a mixture."""
    factors, own = np.linalg.cholesky(covariances), rng.choice(len(weights), p=weights, size=n)
    return locs[own] + np.einsum("nij,nj->ni", factors[own], rng.normal(size=(n, locs.shape[1])))


def log_likelihood(y, noise, weights, locs, covariances):
    """Of each row (n, d), NaN where missing, under a mixture; noise (n, d, d)."""
    return np.log(np.sum(np.exp(joint(y, noise, weights, locs, covariances)[0]), axis=1))


def joint(y, noise, weights, locs, covariances):
    """log w_k f_k(row), (n, K), and mean and covariance of the true values given row and k."""
    (n, d), k = y.shape, len(weights)
    logs, means, spreads = np.zeros((n, k)), np.zeros((n, k, d)), np.zeros((n, k, d, d))
    for i in range(n):
        seen = ~np.isnan(y[i])
        for c in range(k):
            whole = (covariances[c] + noise[i])[np.ix_(seen, seen)]
            gain = covariances[c][:, seen] @ np.linalg.inv(whole)
            density = stats.multivariate_normal(locs[c][seen], whole)
            logs[i, c] = np.log(weights[c]) + density.logpdf(y[i, seen])
            means[i, c] = locs[c] + gain @ (y[i] - locs[c])[seen]
            spreads[i, c] = covariances[c] - gain @ covariances[c][seen]
    return logs, means, spreads


def em_step(y, noise, weights, locs, covariances, structure="full"):
    """One step of EM for complete rows, or with noise and gaps: extreme deconvolution.

    Reference:
        Bovy, Hogg and Roweis, "Extreme deconvolution: inferring complete distribution functions
        from noisy, heterogeneous and incomplete observations" (2011).
    """
    logs, means, spreads = joint(y, noise, weights, locs, covariances)
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=1, keepdims=True))
    counts = shares.sum(axis=0)
    locs = np.einsum("nk,nkd->kd", shares, means) / counts[:, None]
    gaps = means - locs
    squares = np.einsum("nki,nkj->nkij", gaps, gaps) + spreads
    matrices = np.einsum("nk,nkij->kij", shares, squares) / counts[:, None, None]
    if structure == "diagonal":
        matrices = matrices * np.eye(y.shape[1])
    if structure == "tied":
        matrices = np.einsum("k,kij->ij", counts / len(y), matrices) + np.zeros_like(matrices)
    return counts / len(y), locs, matrices
