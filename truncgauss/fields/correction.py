"""The Gaussian integral of a whole field with its sites, by which few neighbours are made good.

log P by few neighbours differs from that of the kernel nearly as the integrals of the two fields do
with Gaussian sites in place of the limits, and these integrals are exact. With K the matrix of the
kernel, P = Q^2 the precisions of the sites and h their forces,

    log int N(f; 0, K) exp(h^T f - f^T P f / 2) df = -log |L| + (u^T u - |L^{-1} u|^2) / 2,

L the Cholesky factor of I + Q K Q and u = Q^{-1} h. Of a known coordinate, whose site is taken to
be 1 at its value, the square in u^T u is left out. That of K itself, which need not be positive
definite to rounding, is not made.

Reference:
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, sections 3.6 and 5.5.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax import Array

COLUMNS = 1024  # of the matrix, that are made at a time


def whole_log_mass(
    points: Array, kernel: Callable[[Array, Array], Array], nugget: Any, sites: Any
) -> float:
    """log of the integral of the field's density times the sites.

    It takes n^3 / 3 multiplications and 4 n^2 bytes: columns of L are made one after the other from
    the kernel and all earlier ones (LAPACK's factor of a matrix of 24,701 rows ended the process).

    Args:
        points: shape (n, p).
        kernel: covariance of the field at two points.
        nugget: variance at each point by itself, shape (n,).
        sites: precisions and forces, and whether a coordinate is known, (n,) each.

    Raises:
        ValueError: for a kernel that is not positive definite on the points.
    """
    from scipy.linalg import solve_triangular

    precision, force, known, nugget = (np.asarray(x, np.float64) for x in (*sites, nugget))
    root = np.sqrt(precision)
    done: list[tuple[int, np.ndarray]] = []
    left = np.divide(force, root, out=np.zeros_like(root), where=root > 0)
    log_mass = 0.5 * float(left @ (left * (1.0 - known)))
    for first, panel in _columns(points, kernel):
        size = panel.shape[1]
        some = slice(first, first + size)
        panel = root[first:, None] * panel * root[some]
        panel[:size] += np.diag(1.0 + precision[some] * nugget[some])
        for start, earlier in done:
            rows = earlier[first - start :]
            panel -= rows @ rows[:size].T
        try:
            factor = np.linalg.cholesky(panel[:size])
        except np.linalg.LinAlgError:
            raise ValueError(
                "corrected: the kernel is not positive definite on the points, to rounding."
            ) from None
        panel = solve_triangular(factor, panel.T, lower=True, check_finite=False).T
        offset = solve_triangular(factor, left[some], lower=True, check_finite=False)
        left[first + size :] -= panel[size:] @ offset
        log_mass -= 0.5 * float(offset @ offset) + float(np.sum(np.log(np.diagonal(factor))))
        done.append((first, panel))
    return log_mass


def _columns(
    points: Array, kernel: Callable[[Array, Array], Array]
) -> Iterator[tuple[int, np.ndarray]]:
    """Covariances of some points with these and all later ones: the first, and (later, some)."""
    pairs = jax.jit(jax.vmap(jax.vmap(kernel, (None, 0)), (0, None)))
    for first in range(0, len(points), COLUMNS):
        # Of all points, whatever is done with them: one program.
        columns = pairs(points, points[first : first + COLUMNS])
        yield first, np.asarray(columns, np.float64)[first:]
