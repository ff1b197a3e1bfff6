"""Rows farther from their fitted means than a sample of that size allows.

For n exact rows of d outcomes and p coefficients of the mean the squared distance of a row, in
standard deviations of maximum likelihood, is about (n - p) times a Beta(d / 2, (n - p - d) / 2)
variable (Grubbs, 1950; Wilks, 1963): with few rows no row is far, as it widens the fit itself. The
largest of n exceeds the quantile of that at (1 - LEVEL)^(1/n) in a part `LEVEL` of all samples.

References:
    Grubbs, "Sample criteria for testing outlying observations", Annals of Mathematical Statistics
        (1950). Wilks, "Multivariate statistical outliers", Sankhya A (1963).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import unique_rows

LEVEL = 0.01  # of samples without outliers in which some row is called one
MOST_NAMED = 5
VERDICT = (
    "Residuals: {row} is the farthest, at {farthest:.3g} standard deviations from its fitted mean; "
    "the farthest of {num_rows} is expected at {expected:.2g}, and beyond {threshold:.2g} in 1 of "
    "100 samples."
)
OUTLYING = (
    "{number} observation(s) lie farther from the fitted mean than chance allows: {named}, in "
    "standard deviations. The farthest of {num_rows} observations is expected at {expected:.2g}, "
    "and beyond {threshold:.2g} in 1 of 100 samples. Estimates and errors may rest on such "
    "observations: check them."
)


class Outliers(NamedTuple):
    """The rows that are farthest from their fitted means.

    Attributes:
        rows: numbers of those beyond what chance allows, the farthest first, (k,).
        distances: of these, in standard deviations, (k,).
        row, farthest: number and distance of the farthest row of all.
        num_rows: how many rows were judged.
        expected: the median distance of the farthest of so many rows.
        threshold: the distance that it exceeds in a part `LEVEL` of samples.
    """

    rows: np.ndarray
    distances: np.ndarray
    row: int
    farthest: float
    num_rows: int
    expected: float
    threshold: float

    def __str__(self) -> str:
        return self.described(lambda row: f"row {row}")

    def renumbered(self, numbers: np.ndarray) -> "Outliers":
        """The same rows, numbered as in a table of which some rows were left out.

        Args:
            numbers: of the rows that were fitted, in that table, (n,).
        """
        return self._replace(rows=numbers[self.rows], row=int(numbers[self.row]))

    def described(self, name: Callable[[int], str]) -> str:
        """The verdict in a sentence, with rows named by a function of their numbers."""
        if not len(self.rows):
            return VERDICT.format(**self._asdict() | {"row": name(self.row)})
        pairs = list(zip(self.rows, self.distances))[:MOST_NAMED]
        named = ", ".join(f"{name(int(row))} by {distance:.3g}" for row, distance in pairs)
        named += ", ..." if len(self.rows) > MOST_NAMED else ""
        return OUTLYING.format(number=len(self.rows), named=named, **self._asdict())


def outliers_of(
    rows: Observations,
    loc: Any,
    covariance: Any,
    seen: Any,
    fitted: float,
) -> Outliers | None:
    """The outliers among rows that were fitted; None where no row can be judged.

    Of one outcome in intervals and inside limits a distance is that of the quantile residual, or
    of the nearest value in an interval; of several it is that of the exact entries of a row.

    Args:
        rows: the observations.
        loc: their fitted means, (d,) or (n, d).
        covariance: (d, d) or (n, d, d), without noise.
        seen: probability of the region of each row, (n,), or 1: a distance is exceeded inside it
            1 / seen times as often as anywhere, at most.
        fitted: how many coefficients of each mean were estimated; -inf if all variances are known.
    """
    weights = rows.row_weights
    distance, sizes = distances(rows, loc, covariance)
    seen = 1.0 if rows.is_univariate else seen  # whose residuals count the region
    judged = (sizes > 0) & (weights > 0)
    count, size = judged.sum(), weights[judged].sum()
    numbers, distance, sizes = np.flatnonzero(judged), distance[judged], sizes[judged]
    seen = np.broadcast_to(seen, rows.num_rows)[judged]
    free = size - fitted
    if count == 0 or free <= sizes.max() + 1:
        return None

    first_of_kind, which = unique_rows(np.column_stack([sizes, seen]))
    kind_sizes, kind_seen = sizes[first_of_kind], seen[first_of_kind]

    def quantile(level: float) -> np.ndarray:
        tail, size = -np.expm1(np.log1p(-level) / count) * kind_seen, kind_sizes
        if np.isinf(free):
            squares = special.chdtri(size, tail)
        else:
            squares = free * special.betainccinv(size / 2, (free - size) / 2, tail)
        return np.sqrt(squares)[which]

    limits = quantile(LEVEL)
    beyond, first = np.flatnonzero(distance > limits), int(np.argmin(limits - distance))
    beyond = beyond[np.argsort((limits - distance)[beyond], kind="stable")]
    return Outliers(
        rows=numbers[beyond],
        distances=distance[beyond],
        row=int(numbers[first]),
        farthest=float(distance[first]),
        num_rows=int(count),
        expected=float(quantile(0.5)[first]),
        threshold=float(limits[first]),
    )


def residual_sizes(rows: Observations, loc: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Sizes of the residuals of one outcome, (n,), in standard deviations; NaN if it is missing.

    With limits of truncation, the smaller of the quantile residual's and that of the distance from
    the mean, so that a value which has been rounded to a limit is not far: 0 if they disagree in
    sign. Of an interval, the smallest of its values; 0 if it holds the mean.
    """
    lower, upper, low, high = rows.univariate_limits()
    sizes = []
    for end, side in ((np.maximum(lower, low), 1.0), (np.minimum(upper, high), -1.0)):
        z, a, b = (side * (value - loc) / scale for value in (end, low, high))
        a, b = np.minimum(a, b), np.maximum(a, b)
        beyond = np.isfinite(z) & (z > 0)
        z, limited = np.where(beyond, z, 0.0), beyond & (np.isfinite(a) | np.isfinite(b))
        tail = z.copy()
        tail[limited] = -special.ndtri_exp(log_survival(z[limited], a[limited], b[limited]))
        sizes.append(np.where(beyond, np.clip(tail, 0.0, z), 0.0))
    missing = np.isneginf(lower) & np.isposinf(upper)
    return np.where(missing, np.nan, np.maximum(*sizes))


def log_survival(z: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Logs of P(Z > z | a < Z < b) for z >= 0 of a standard normal Z, all (n,)."""

    def log_mass(low: np.ndarray) -> np.ndarray:  # of [low, b], for low >= 0
        ends = special.log_ndtr(-low), special.log_ndtr(-b)
        return ends[0] + np.log(-np.expm1(ends[1] - ends[0]))

    with np.errstate(divide="ignore"):  # nothing is beyond b
        across = np.log(0.5 * (special.erf(b / np.sqrt(2.0)) - special.erf(a / np.sqrt(2.0))))
        whole = np.where(a < 0, across, log_mass(np.maximum(a, 0.0)))
        return np.minimum(log_mass(np.clip(z, a, b)) - whole, 0.0)


def distances(rows: Observations, loc: Any, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
    """Distances of rows from their means, and how many entries each is of, (n,): of several
    outcomes Mahalanobis distances of the exact entries."""
    n, d = rows.lower.shape
    loc, covariance = np.asarray(loc), np.asarray(covariance)  # perhaps filled up
    loc = np.broadcast_to(loc[:n] if loc.ndim == 2 else loc, (n, d))
    covariance = covariance[:n] if covariance.ndim == 3 else covariance
    if rows.noise is not None:
        covariance = covariance + np.asarray(rows.noise)
    if rows.is_univariate:
        sizes = residual_sizes(rows, loc[:, 0], covariance.reshape(-1) ** 0.5)
        return np.where(np.isfinite(sizes), sizes, 0.0), np.isfinite(sizes).astype(int)
    values, exact = np.asarray(rows.lower), np.asarray(rows.lower) == np.asarray(rows.upper)
    distance, sizes = np.zeros(len(values)), exact.sum(axis=1)
    firsts, which = unique_rows(exact)
    for number, pattern in enumerate(exact[firsts]):
        chosen, block = np.flatnonzero(which == number), np.ix_(pattern, pattern)
        gaps = (values - loc)[chosen][:, pattern]
        if covariance.ndim == 2:
            white = np.linalg.solve(covariance[block], gaps.T).T
        else:
            parts = covariance[chosen][:, pattern][:, :, pattern]
            white = np.linalg.solve(parts, gaps[..., None])[..., 0]
        distance[chosen] = np.sqrt(np.maximum(np.sum(gaps * white, axis=1), 0.0))
    return distance, sizes
