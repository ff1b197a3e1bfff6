r"""Covariance matrices of a few factors: Psi + F F^T, with a diagonal Psi and d x r loadings F.

Reference:
    Jöreskog, "Some contributions to maximum likelihood factor analysis", Psychometrika (1967).
"""

import numpy as np
from scipy import optimize

LEAST = 1e-11  # unique variance, in units of a variable's own, at which the search ends


def most_factors(dimension: int) -> int:
    """The largest rank with which factors have no more parameters than a full matrix, which is
    Ledermann's bound."""
    return max(r for r in range(dimension) if (dimension - r) ** 2 >= dimension + r or r == 0)


def factor_analysis(
    matrix: np.ndarray, rank: int, begin: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    r"""The variances (d,) and loadings (d, r) that are likeliest for rows of covariance `matrix`.

    They minimise log det S + tr(matrix S^-1), S = diag(variances) + loadings loadings^T. For given
    variances the best loadings come from the eigenvalues l_j > 1 of Psi^-1/2 matrix Psi^-1/2, and
    the rest leaves sum_j (l_j - log l_j - 1), over all others, which is minimised by log Psi. The
    loadings above the diagonal are 0, and those on it are not negative: a rotation of factors
    changes nothing. NaN for a matrix that is not finite or without variance.

    There may be several minima: `begin`, unique variances (d,), says where to look for one. By
    default the search begins at parts of the variances that the other entries leave.
    """
    if not (np.all(np.isfinite(matrix)) and np.all(np.diagonal(matrix) > 0)):
        return np.full(len(matrix), np.nan), np.full((len(matrix), rank), np.nan)
    units = np.sqrt(np.diagonal(matrix))
    scaled = matrix / np.outer(units, units)
    if begin is None:
        inverse = np.linalg.inv(scaled + 1e-9 * np.eye(len(matrix)))  # also if rows are few
        start = np.log((1 - rank / (2 * len(matrix))) / np.diagonal(inverse))
    else:
        start = np.log(np.clip(begin / units**2, LEAST, 1.0))
    settings = {"maxiter": 1000, "ftol": 1e-15, "gtol": 1e-10}
    bounds = [(np.log(LEAST), None)] * len(matrix)
    minimum = optimize.minimize(
        _unexplained, start, (scaled, rank), "L-BFGS-B", True, bounds=bounds, options=settings
    )
    variances = units**2 * np.exp(minimum.x)
    return variances, loadings_of(matrix, rank, variances)


def loadings_of(matrix: np.ndarray, rank: int, variances: np.ndarray) -> np.ndarray:
    """The loadings (d, r) that are likeliest with these unique variances (d,)."""
    values, vectors, free = _spectrum(np.log(variances), matrix, rank)
    roots = np.where(free, 0.0, np.sqrt(np.maximum(values - 1, 0.0)))[:rank]
    return lower(np.sqrt(variances)[:, None] * vectors[:, :rank] * roots)


def lower(loadings: np.ndarray) -> np.ndarray:
    """The same factors, rotated so that loadings above the diagonal are 0."""
    rotated = np.linalg.qr(loadings.T)[1].T
    signs = np.where(np.diagonal(rotated) < 0, -1.0, 1.0)
    return rotated * signs


def _spectrum(
    logs: np.ndarray, matrix: np.ndarray, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues, the largest first, their vectors, and which of them no factor explains."""
    roots = np.exp(-logs / 2)
    values, vectors = np.linalg.eigh(matrix * np.outer(roots, roots))
    values, vectors = values[::-1], vectors[:, ::-1]
    return values, vectors, (np.arange(len(values)) >= rank) | (values <= 1)


def _unexplained(logs: np.ndarray, matrix: np.ndarray, rank: int) -> tuple[float, np.ndarray]:
    """Discrepancy that the factors leave, as a function of log variances, and its gradient."""
    values, vectors, free = _spectrum(logs, matrix, rank)
    noise = np.maximum(values[free], np.finfo(float).tiny)
    return float(np.sum(noise - np.log(noise) - 1)), vectors[:, free] ** 2 @ (1 - noise)
