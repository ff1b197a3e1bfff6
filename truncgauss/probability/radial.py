r"""The largest coordinate of a centred Gaussian or t vector, by directions with exact radii.

Let X = S L Z, where L L' is the covariance, of rank r, Z ~ Normal(0, I_r) and 1 / S^2 is
chi-squared over its degrees of freedom (S = 1 of a Gaussian). The direction u of Z is uniform on
the sphere, and (S |Z|)^2 / r has the F distribution with r and df degrees of freedom. For c > 0

.. math:: P(\max_j X_j > c) = E_u\left[ \bar F_{r, df}\left( \frac{c^2}{r\, m(u)^2} \right);
    m(u) > 0 \right], \qquad m(u) = \max_j\, (L u)_j,

and for c < 0 it is 1 less the same with m(u) < 0; for max |X_j| the largest is of |(L u)_j|. The
mean over u is by randomly shifted lattices. A tail of any size is met by every direction.

References:
    Deak (1980), Three digit accurate multiple normal probabilities. Somerville (1998), Numerical
    computation of multivariate normal and multivariate-t probabilities over convex regions.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from truncgauss.separation.lattice import normal_points

NUM_POINTS, NUM_REPLICATES = 4096, 16
WIDEST, STEP = 1e300, 1e-4  # standard deviations that hold a quantile; of a difference


@dataclasses.dataclass(frozen=True)
class LargestCoordinate:
    """The distribution of max X_j, or of max |X_j|, of a centred vector.

    Attributes:
        root: L, shape (m, r).
        two_sided: whether of absolute values.
        key: JAX random key of the lattices' shifts.
    """

    root: np.ndarray
    two_sided: bool
    key: jax.Array

    @classmethod
    def of(cls, covariance: np.ndarray, two_sided: bool, key: jax.Array) -> "LargestCoordinate":
        """Factor of a covariance matrix (m, m), whose smallest eigenvalues may be rounding."""
        scale, vectors = range_of(covariance)
        return cls(vectors * scale, two_sided, key)

    def projections(self) -> Iterator[np.ndarray]:
        """(L u)_j, or its absolute value, of every direction of each replicate, (n, m)."""
        for key in jax.random.split(self.key, NUM_REPLICATES):
            with jax.enable_x64(True):
                z = normal_points(key, NUM_POINTS, self.root.shape[1], "lattice", jnp.float64)
            along = np.asarray(z) / np.linalg.norm(z, axis=1, keepdims=True) @ self.root.T
            yield np.abs(along) if self.two_sided else along

    @functools.cached_property
    def largest(self) -> np.ndarray:
        """m(u) of every direction, (R, n)."""
        return np.stack([along.max(axis=1) for along in self.projections()])

    def shares(self, largest: np.ndarray, limit: float, df: float, inside: bool) -> np.ndarray:
        """P(max <= limit) or P(max > limit) by each replicate, (...), from m(u), (..., n).

        Without a difference of nearly equal numbers, except for P(max > limit) below 0.
        """
        r, positive = self.root.shape[1], limit >= 0
        counted = largest > 0 if positive else largest < 0
        ratio = (limit / np.where(counted, largest, 1.0)) ** 2
        within = inside and positive
        if math.isinf(df):
            radial = special.chdtr(r, ratio) if within else special.chdtrc(r, ratio)
        else:
            radial = (special.fdtr if within else special.fdtrc)(r, df, ratio / r)
        share = np.mean(np.where(counted, radial, float(within)), axis=-1)
        return np.asarray(share if positive or inside else 1.0 - share)

    def quantile(self, probability: float, df: float) -> tuple[float, float]:
        """The c with P(max <= c) = probability, and its standard error."""
        inside = probability < 0.5
        target = probability if inside else 1.0 - probability

        def excess(c: float) -> float:
            share = float(np.mean(self.shares(self.largest, c, df, inside)))
            return target - share if inside else share - target

        unit = float(np.sqrt(np.max(np.sum(self.root**2, axis=1))))
        low, high = (0.0 if self.two_sided else -unit), unit
        while excess(high) > 0 and high < WIDEST * unit:
            high *= 2.0
        while excess(low) < 0 and low > -WIDEST * unit:
            low *= 2.0
        if not excess(low) >= 0 >= excess(high):
            return math.nan, math.nan
        c = float(optimize.brentq(excess, low, high, xtol=1e-13 * unit))
        slope = (excess(c - STEP * unit) - excess(c + STEP * unit)) / (2.0 * STEP * unit)
        return c, float(standard_error(self.shares(self.largest, c, df, inside))) / slope

    def tails(self, limits: np.ndarray, df: float) -> tuple[np.ndarray, np.ndarray]:
        """For every coordinate's limit, P(max > limit) of all coordinates, and of those with
        limits not above it, each with its standard error; (2, m) both."""
        order = np.argsort(limits, kind="stable")
        # Of equal limits all count, so the last of them.
        last = np.searchsorted(limits[order], limits, side="right") - 1
        parts = []
        for along in self.projections():
            nested = np.maximum.accumulate(along[:, order], axis=1)
            columns = (np.full(len(limits), -1), last)
            parts.append([
                [self.shares(nested[:, k], float(x), df, False) for k, x in zip(column, limits)]
                for column in columns
            ])  # fmt: skip
        values = np.moveaxis(np.array(parts), 0, -1)
        return values.mean(axis=-1), standard_error(values)


def range_of(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations (r,) along the principal axes (m, r) of a covariance matrix (m, m) of
    rank r, whose other eigenvalues are rounding."""
    sizes, vectors = np.linalg.eigh(covariance)
    large = sizes > 64 * len(sizes) * np.finfo(sizes.dtype).eps * sizes[-1]
    return np.sqrt(sizes[large]), vectors[:, large]


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean of replicates, along the last axis."""
    return np.asarray(np.std(values, axis=-1, ddof=1) / math.sqrt(values.shape[-1]))
