"""Likelihoods that rise for ever as a Gaussian widens: how to notice, and where that leads.

Inside limits rows may look as spread as an exponential or uniform distribution. In the natural
parameters of a Gaussian that is an ordinary point, where its inverse covariance is singular, or
beyond. Steps towards it must not leave the Gaussians, and end where the edge is all that is left.

References:
    Barndorff-Nielsen, "Information and Exponential Families" (1978), section 9.3: where the
        likelihood of an exponential family has its maximum.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from truncgauss.fitting.newton import Point, lowest_within

WIDEST = 1e3  # of the rows' own spread: beyond, the Gaussian is a straight slope across them
WIDENING = 10.0  # the most by which a step may lower an eigenvalue of the inverse covariance

P = TypeVar("P", bound=Point)


class Precision(NamedTuple):
    """The entries of an inverse covariance matrix among free coordinates x.

    Attributes:
        first: where they begin in x.
        rows, columns: which entries these are, of the lower triangle.
        unit: what they are multiplied by to be in units of the observations' spread.
        power: 2; or 1 for one outcome whose inverse standard deviation stands there.
        widest: standard deviation in those units, beyond which a Gaussian is called wide.
    """

    first: int
    rows: np.ndarray
    columns: np.ndarray
    unit: float = 1.0
    power: int = 2
    widest: float = WIDEST

    def matrix(self, x: np.ndarray) -> np.ndarray:
        """The inverse covariance matrix in units of the observations' spread, (d, d)."""
        d = int(self.rows.max()) + 1
        matrix = np.zeros((d, d))
        entries = self.unit * x[self.first : self.first + len(self.rows)]
        matrix[self.rows, self.columns] = matrix[self.columns, self.rows] = entries
        return matrix

    def direction(self, change: np.ndarray, size: int) -> np.ndarray:
        """The direction of x, (size,), along which the matrix changes like that."""
        direction = np.zeros(size)
        direction[self.first : self.first + len(self.rows)] = change[self.rows, self.columns]
        return direction

    def wide(self, x: np.ndarray) -> np.ndarray:
        """Directions of the rows (d, k) in which the Gaussian is wider than `widest`."""
        values, vectors = np.linalg.eigh(self.matrix(x))
        return vectors[:, values < self.widest**-self.power]

    def admits(self, current: Point, x: np.ndarray) -> bool:
        """Whether a step to x keeps the precision positive, and widens the Gaussian in bounds."""
        least = np.linalg.eigvalsh(self.matrix(x))[0]
        return bool(least >= np.linalg.eigvalsh(self.matrix(current.x))[0] / WIDENING)

    def too_wide(self, current: Point) -> bool:
        """Whether the Gaussian is almost a straight slope across the rows, and tends to be one."""
        wide = self.wide(current.x).T
        slopes = [current.gradient @ self.direction(np.outer(v, v), len(current.x)) for v in wide]
        return bool(len(slopes) and min(slopes) > 0)

    def settled_but_for_width(
        self, evaluate: Callable[[np.ndarray], P], current: P, num_steps: int
    ) -> P:
        """The best point with the precision held where it is along wide directions.

        A Gaussian may be too wide by chance on the way to a maximum. If it tends to widen even when
        all other parameters are where they belong there is none, if the loss is convex.
        """
        wide, size = self.wide(current.x).T, len(current.x)
        pairs = [self.direction(np.outer(v, w) + np.outer(w, v), size) for v in wide for w in wide]
        basis, sizes, _ = np.linalg.svd(np.stack(pairs, axis=1))
        free = basis[:, int(np.sum(sizes > 1e-9 * sizes[0])) :]
        return lowest_within(evaluate, current.x, free, num_steps)


def direction_in_words(direction: np.ndarray) -> str:
    """A direction of the rows' columns (d,) in words; nothing if d = 1."""
    if len(direction) == 1:
        return ""
    sizes = np.abs(direction)
    largest = direction[np.flatnonzero(sizes > (1.0 - 1e-6) * sizes.max())[-1]]  # whatever rounding
    listed = ", ".join(f"{entry:.3g}" for entry in direction / largest)
    return f" This happens along ({listed}), in units of the spread of each column."
