r"""The largest coordinate of a centred Gaussian or t vector, by directions with exact radii.

Let X = S L Z, where L L' is the covariance, of rank r, Z ~ Normal(0, I_r) and 1 / S^2 is
chi-squared over its degrees of freedom (S = 1 of a Gaussian). The direction u of Z is uniform on
the sphere, and independent of T = S |Z|, with the tail G(c) = P(T > c): T^2 / r has the F
distribution with r and df degrees of freedom. For c > 0

.. math:: P(\max_j X_j > c) = E_u\left[ G(c / m(u));\, m(u) > 0 \right], \qquad
    m(u) = \max_j\, (L u)_j,

and for c < 0 it is 1 less the mean of G(c / m(u)) over m(u) < 0; for max |X_j| the largest is of
|(L u)_j|. In a tail few directions matter. They are drawn as those of X given X_j > c, where j is
any of d coordinates. Relative to the uniform one their density is the mean over j of
G(c / (L u)_j) / P(X_j > c), and

.. math:: P(\max_j X_j > c) = \sum_j P(X_j > c)\;
    E\left[ \frac{\max_j G(c / (L u)_j)}{\sum_j G(c / (L u)_j)} \right].

The ratio lies between 1 / d and 1, so that the relative error is bounded in any tail. Means are by
randomly shifted lattices.

References:
    Deak (1980), Three digit accurate multiple normal probabilities. Somerville (1998), Numerical
    computation of multivariate normal and multivariate-t probabilities over convex regions. Adler,
    Blanchet and Liu (2012), Efficient Monte Carlo for high excursions of Gaussian random fields,
    for draws given that one coordinate exceeds the limit.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy
from scipy import special

from truncgauss.separation.lattice import lattice_points, shift_of

NUM_POINTS, NUM_REPLICATES = 4096, 16
FEWEST_POINTS, MOST_NUMBERS = 256, 2**20  # of a replicate, where there are many coordinates
CENTRE, FULL = 0.1, 2.5  # limit up to, and sum of P(X_j > c) from which on directions are uniform
UNSEEN = 0.5  # points that may be missing where coordinates exceed together
APART, NESTED = 1.0, 0.8  # logs of P(X_j > c), and shares of coordinates, with common directions
NEAR = 1e-6  # limit that all exceed to more digits than are sampled
STEP, ROUNDING = 1e-4, 4e-15  # relative, of a difference; of a logarithm
NUM_TERMS, NUM_STEPS = 100, 200  # of continued fractions; of Newton's method
DROP, NUM_NODES = 60.0, 2048  # of log G, besides the rank, over so many nodes
FARTHEST_DRAW = 6.5  # of a normal number whose probability has 32 bits
GRID = np.linspace(0.0, 1.0, NUM_NODES)
WIDEST = 1e300  # that holds a quantile
LEAST = -1e12  # log of a tail, beyond which its nodes are not told apart
SMALLEST, LARGEST_DF = 1e-250, 1e20  # probability by SciPy; df from which on a t is Gaussian


@dataclasses.dataclass(frozen=True)
class LargestCoordinate:
    """The distribution of max X_j, or of max |X_j|, of a centred vector.

    Attributes:
        root: L, shape (d, r), whose longest row has length 1.
        two_sided: whether of absolute values.
        df: degrees of freedom.
        key: JAX random key of the lattices' shifts.
    """

    root: np.ndarray
    two_sided: bool
    df: float
    key: jax.Array

    @classmethod
    def of(
        cls, factor: np.ndarray, two_sided: bool, df: float, key: jax.Array
    ) -> "LargestCoordinate":
        """From any root (d, k) of a covariance, whose smallest singular values may be rounding,
        in units of the largest standard deviation."""
        factor = factor / np.max(np.linalg.norm(factor, axis=1))
        left, sizes, _ = np.linalg.svd(factor, full_matrices=False)
        kept = sizes > 4 * len(sizes) * np.finfo(float).eps * sizes[0]
        root = left[:, kept] * sizes[kept]
        return cls(root / np.max(np.linalg.norm(root, axis=1)), two_sided, df, key)

    def log_single(self, limits: Any) -> np.ndarray:
        """log P(X_j > c), or of |X_j|, for a row of length 1."""
        limits = np.asarray(limits, float)
        with np.errstate(divide="ignore"):
            log_square = 2.0 * np.log(np.abs(limits))
        log_tail = log_radial(log_square, 1, self.df).above
        if self.two_sided:
            return np.where(limits > 0, log_tail, 0.0)
        log_half = log_tail - math.log(2.0)
        return np.where(limits < 0, np.log1p(-np.exp(log_half)), log_half)

    def log_sum(self, level: float, root: np.ndarray) -> float:
        """log of the sum of P(X_j > c), or of |X_j|, over the coordinates of some rows."""
        return float(special.logsumexp(self.log_single(level / np.linalg.norm(root, axis=1))))

    def is_central(self, limits: Any, counts: Any) -> Any:
        """Whether uniform directions are more accurate than those given that one exceeds."""
        expected = counts * np.exp(self.log_single(limits))
        return (limits <= CENTRE) | (expected >= FULL)

    def directions(
        self, level: float, order: np.ndarray, counts: Sequence[int], num_points: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Directions of X given that some coordinate exceeds a level, or uniform ones, if it is 0.

        Args:
            level: c.
            order: of the coordinates.
            counts: increasing numbers of the first coordinates of which the largest is found.
            num_points: n, of each replicate.

        Yields:
            For each replicate m(u) of these sets of coordinates, shape (k, n), and the log density
            relative to the uniform one, shape (n,).
        """
        root = self.root[order[: counts[-1]]]
        r = root.shape[1]
        tail = Tail.beyond(level, r, self.df) if level > 0 else None
        lattice = np.asarray(lattice_points(num_points, r + 2))
        for shift in np.asarray(_shifts(self.key, r + 2)):
            bits = lattice + shift
            bits = np.where(bits >> 31 == 1, ~(bits << 1), bits << 1)  # the baker's map
            z = special.ndtri((bits + 0.5) * 2.0**-32)
            unit = z[:, 2:] if tail is None else self._given_one(z, root, level)
            along = unit / np.linalg.norm(unit, axis=1, keepdims=True) @ root.T
            along = np.abs(along) if self.two_sided else along
            largest = np.maximum.reduceat(along, [0, *counts[:-1]], axis=1).T
            largest = np.maximum.accumulate(largest, axis=0)
            if tail is None:
                yield largest, np.zeros(num_points)
            else:
                shares = tail.relative(along).sum(axis=1)
                yield largest, np.log(shares) + (tail.values[0] - self.log_sum(level, root))

    def _given_one(self, z: np.ndarray, root: np.ndarray, level: float) -> np.ndarray:
        """Z in directions of X given X_j > c, for random j, from r + 2 normal numbers each."""
        lengths = np.linalg.norm(root, axis=1)
        log_shares = self.log_single(level / lengths) - self.log_single(level)
        sums = np.cumsum(np.exp(log_shares))
        chosen = np.searchsorted(sums[:-1], special.ndtr(z[:, 0]) * sums[-1], side="right")
        log_uniform = special.log_ndtr(z[:, 1]) + log_shares[chosen]
        log_square = Tail.beyond(level, 1, self.df).inverse(log_uniform)
        ratio = np.exp(-log_square)
        if self.df < LARGEST_DF:
            # Given X_j = x the others are t with df + 1 degrees of freedom.
            ratio = (self.df * ratio + 1.0) * np.exp(-_log_chi_square(self.df + 1.0)(z[:, 2]))
        w = np.concatenate([np.ones((len(z), 1)), np.sqrt(ratio)[:, None] * z[:, 3:]], axis=1)
        # A reflection moves the first axis to row j, or to its negative.
        rows = root[chosen] / lengths[chosen][:, None]
        sign = np.where(rows[:, :1] < 0, -1.0, 1.0)
        normal = sign * rows
        normal[:, 0] += 1.0
        along = np.sum(normal * w, axis=1, keepdims=True)
        return np.asarray(-sign * (w - normal * along / normal[:, :1]))

    def relative(
        self, log_largest: np.ndarray, log_density: np.ndarray, limit: float, tail: "Tail"
    ) -> Any:
        """P(max > c) over P(X_j > c), for c >= 0, by directions (..., n) of some density, with a
        tail that begins at or before c, or where it is 1."""
        with np.errstate(divide="ignore"):
            log_square = 2.0 * (np.log(limit) - log_largest)
        first, last = tail.nodes[[0, -1]]
        log_tail = tail.spline(np.clip(log_square, first, last)) + tail.values[0]
        ratios = np.exp(log_tail - log_density - self.log_single(limit))
        return np.mean(np.where(log_square <= last, ratios, 0.0), axis=-1)

    def within(self, largest: np.ndarray, limit: float) -> Any:
        positive = limit >= 0
        met = largest > 0 if positive else largest < 0
        with np.errstate(divide="ignore"):
            log_square = 2.0 * np.log(np.abs(limit / np.where(met, largest, 1.0)))
        parts = log_radial(log_square, self.root.shape[1], self.df)
        return np.mean(np.where(met, np.exp(parts[0 if positive else 1]), float(positive)))

    @functools.cached_property
    def most_correlated(self) -> float:
        matrix = self.root @ self.root.T
        matrix = np.abs(matrix) if self.two_sided else matrix
        np.fill_diagonal(matrix, 0.0 if self.two_sided else -1.0)
        return float(np.clip(np.max(matrix), -1.0, 1.0))

    def unseen(self, limit: float, count: int, num_points: int) -> float:
        """A bound of the relative error by coordinates exceeding together that no point meets.

        If X_j > c and X_k > c, their sum exceeds 2 c, for each of the pairs.
        """
        if count == 1 or limit <= 0:
            return 0.0
        far = limit * math.sqrt(2.0 / max(1.0 + self.most_correlated, 1e-300))
        sides = 2.0 if self.two_sided else 1.0
        together = (
            0.5
            * count
            * (count - 1)
            * sides
            * np.exp(self.log_single(far) - self.log_single(limit))
        )
        return float(min(UNSEEN / (num_points * NUM_REPLICATES), together))

    def quantile(self, probability: float) -> tuple[float, float]:
        d = len(self.root)
        every = np.arange(d)
        if probability < 0.5:
            sampled = [x[0] for x, _ in self.directions(0.0, every, (d,), NUM_POINTS)]
            below: Callable[[float], Any] = lambda c: np.stack([self.within(x, c) for x in sampled])
            low, high = 0.0 if self.two_sided else -1.0, 1.0
            while below(low).mean() > probability and low > -WIDEST:
                low *= 2.0
            while below(high).mean() < probability and high < WIDEST:
                high *= 2.0
            if not below(low).mean() <= probability <= below(high).mean():
                return math.nan, math.nan
            c = scipy.optimize.brentq(
                lambda c: below(c).mean() - probability, low, high, xtol=1e-14
            )
            slope = (below(c + STEP).mean() - below(c - STEP).mean()) / (2.0 * STEP)
            return c, float(standard_error(below(c))) / slope
        # Between the quantiles of one coordinate and of d that exclude each other.
        log_target = math.log1p(-probability) + (0.0 if self.two_sided else math.log(2.0))
        ends = radial_quantile(log_target - np.log([1.0, d]), 1, self.df)
        low, high = np.exp(ends)
        level = math.sqrt(low * high)
        tail = Tail.beyond(max(low * (1.0 - STEP), NEAR), self.root.shape[1], self.df)
        for num_points in (FEWEST_POINTS, NUM_POINTS):
            count = math.exp(self.log_sum(level, self.root) - self.log_single(level))
            level = 0.0 if self.is_central(level, count) else level
            drawn = self.directions(level, every, (d,), num_points)
            logs, densities = map(np.stack, zip(*((logarithms(x[0]), y) for x, y in drawn)))
            ratios = functools.cache(functools.partial(self.relative, logs, densities, tail=tail))

            def excess(c: float, ratios: Callable[[float], Any] = ratios) -> float:
                mean = np.mean(ratios(c))
                return float(self.log_single(c) + np.log(mean)) - math.log1p(-probability)

            # Of samples the signs at the ends may be wrong.
            if excess(low) <= 0 or excess(high) >= 0:
                level = low if excess(low) <= 0 else high
            else:
                level = scipy.optimize.brentq(excess, low, high, xtol=1e-14 * high)
        values = ratios(level)
        unseen = self.unseen(level, d, NUM_POINTS)
        error = np.hypot(standard_error(values) / values.mean(), unseen)
        width = STEP * level
        slope = (excess(level - width) - excess(level + width)) / (2.0 * width)
        return level, float(error) / slope

    def tails(self, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For every coordinate's limit, log P(max > limit) of all coordinates, and of those with
        limits not above it, each with its standard error; (2, d) both."""
        d, order = len(limits), np.argsort(limits, kind="stable")
        last = np.searchsorted(limits[order], limits, side="right")  # of equal limits
        pairs = np.stack([np.concatenate([np.full(d, d), last]), np.tile(limits, 2)])
        (counts, edges), inverse = np.unique(pairs, axis=1, return_inverse=True)
        counts = counts.astype(int)
        most = 2 ** math.floor(math.log2(max(MOST_NUMBERS // d, 1)))
        num_points = int(np.clip(most, FEWEST_POINTS, NUM_POINTS))
        values = np.ones((len(edges), NUM_REPLICATES))
        single, central = self.log_single(edges), self.is_central(edges, counts)
        far = single < LEAST
        sampled_rows = (counts > 1) & ~far & ((edges > 0) | (not self.two_sided))
        waiting = sampled_rows.copy()
        while waiting.any():
            # Limits that lie close together, of nearly the same coordinates, share directions.
            first = np.lexsort((edges, -counts, ~waiting))[0]
            near = ~central & (counts >= NESTED * counts[first])
            near &= (edges >= edges[first]) & (single >= single[first] - APART)
            served = waiting & (central if central[first] else near)
            sizes = np.unique(counts[served])
            level = 0.0 if central[first] else float(edges[first])
            start = level if level > 0 else max(float(np.min(edges[served])), NEAR)
            tail = Tail.beyond(start, self.root.shape[1], self.df)
            sampled = self.directions(level, order, [*sizes], num_points)
            for k, (largest, log_density) in enumerate(sampled):
                logs = logarithms(largest)
                for i in np.nonzero(served)[0]:
                    row = np.searchsorted(sizes, counts[i])
                    if edges[i] < 0:
                        within = self.within(largest[row], edges[i])
                        values[i, k] = (1.0 - within) / np.exp(single[i])
                    else:
                        values[i, k] = self.relative(logs[row], log_density, edges[i], tail)
            waiting &= ~served
        unseen = [self.unseen(*row, num_points) for row in zip(edges, counts)]
        mean = values.mean(axis=1)
        error = np.hypot(standard_error(values) / mean, np.where(central, 0.0, unseen))
        error += np.where(sampled_rows | far, ROUNDING * (1.0 - single), 0.0)
        error += np.where(far, np.log(counts), 0.0)  # between one tail and their sum
        log_p = (single + np.log(mean))[inverse.ravel()].reshape(2, d)
        return self.bounded(log_p, limits), error[inverse.ravel()].reshape(2, d)

    def bounded(self, log_p: np.ndarray, limits: np.ndarray) -> np.ndarray:
        """The logarithms of `tails` within their bounds: not below that of a single coordinate, nor
        above the sum, nor below those of higher limits, or of fewer coordinates."""
        order, single = np.argsort(limits, kind="stable"), self.log_single(limits)
        counts = np.searchsorted(limits[order], limits, side="right")
        sums = single + np.log(np.stack([np.full(len(limits), len(limits)), counts]))
        whole, nested = np.clip(log_p, single, np.minimum(sums, 0.0))
        whole[order] = np.minimum.accumulate(whole[order])
        return np.stack([whole, np.minimum(nested, whole)])


@functools.partial(jax.jit, static_argnums=1)
def _shifts(key: jax.Array, dimension: int) -> jax.Array:
    """The shifts of the lattices of all replicates."""
    return jax.vmap(lambda key: shift_of(key, dimension))(jax.random.split(key, NUM_REPLICATES))


def logarithms(largest: np.ndarray) -> np.ndarray:
    """log m(u), -inf where it is not positive."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(largest, 0.0)))


@functools.lru_cache(maxsize=8)
def _log_chi_square(df: float) -> "scipy.interpolate.CubicSpline":
    """Logarithms of chi-squared quantiles by the normal ones of the same probability, to 1e-11: a
    hundredth of the time of the inverse of an incomplete gamma function."""
    z = np.linspace(-FARTHEST_DRAW, FARTHEST_DRAW, NUM_NODES)
    share = special.ndtr(-np.abs(z))
    below, above = (f(0.5 * df, share) for f in (special.gammaincinv, special.gammainccinv))
    return scipy.interpolate.CubicSpline(z, np.log(2.0 * np.where(z < 0, below, above)))


@dataclasses.dataclass(frozen=True)
class Tail:
    """log G, the log tail of T, from a level to where it is negligible.

    Attributes:
        nodes: of log T^2, whose distances grow with that from the first, if it is large.
        values: log G.
    """

    nodes: np.ndarray
    values: np.ndarray

    @functools.cached_property
    def spline(self) -> "scipy.interpolate.CubicSpline":
        """log G relative to that at the level."""
        return scipy.interpolate.CubicSpline(self.nodes, self.values - self.values[0])

    @functools.cached_property
    def inverse(self) -> "scipy.interpolate.CubicSpline":
        """log T^2 by the logarithm of G(T) / G(level)."""
        return scipy.interpolate.CubicSpline(self.values[::-1] - self.values[0], self.nodes[::-1])

    @classmethod
    @functools.lru_cache(maxsize=8)
    def beyond(cls, level: float, rank: int, df: float) -> "Tail":
        start = 2.0 * math.log(level)

        def log_tail(y: float) -> float:
            return max(float(log_radial(y, rank, df).above), -1e300)

        enough, width = log_tail(start) - DROP - rank, 1e-3
        while log_tail(start + width) > enough:
            width *= 2.0
        end = scipy.optimize.brentq(lambda y: log_tail(y) - enough, start, start + width)
        spread = math.log1p(end - start)
        nodes = start + (end - start) * np.expm1(spread * GRID) / math.expm1(spread)
        return cls(nodes, log_radial(nodes, rank, df)[1])

    def relative(self, along: np.ndarray) -> np.ndarray:
        """G(level / s) / G(level) for numbers s up to 1."""
        met = along > math.exp(0.5 * (self.nodes[0] - self.nodes[-1]))
        y = self.nodes[0] - 2.0 * np.log(np.minimum(along[met], 1.0))
        result = np.zeros_like(along)
        result[met] = np.exp(self.spline(y))
        return result


class Radial(NamedTuple):
    """log P(T^2 <= t), log P(T^2 > t), and the log density of log T^2 there."""

    below: np.ndarray
    above: np.ndarray
    density: np.ndarray


def log_radial(log_square: Any, rank: int, df: float) -> Radial:
    """The distribution of T at log t to rounding, in any tail.

    T^2 over its rank has the F distribution with rank and df degrees of freedom.
    """
    y, a, b = np.atleast_1d(np.array(log_square, float)), 0.5 * rank, 0.5 * df
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        if df >= LARGEST_DF:
            x = 0.5 * np.exp(y)
            below, above = special.gammainc(a, x), special.gammaincc(a, x)
            density = a * (y - math.log(2.0)) - x - special.gammaln(a)
            start = lambda few: math.log(a) - np.log(special.hyp1f1(1.0, a + 1.0, x[few]))
            end = lambda few: np.log(_gamma_fraction(a, x[few]))
        else:
            log_v = -np.logaddexp(0.0, math.log(df) - y)
            log_w = -np.logaddexp(0.0, y - math.log(df))
            v, w, odds = np.exp(log_v), np.exp(log_w), np.exp(log_v - log_w)
            lower, below, above = v < 0.5, np.empty_like(v), np.empty_like(v)
            special.betainc(a, b, v, out=below, where=lower)
            special.betaincc(b, a, w, out=below, where=~lower)
            special.betaincc(a, b, v, out=above, where=lower)
            special.betainc(b, a, w, out=above, where=~lower)
            below, above = np.where(v > SMALLEST, below, 0.0), np.where(w > SMALLEST, above, 0.0)
            density = a * log_v + b * log_w - _log_beta(a, b)
            start = lambda few: np.log(a * _beta_fraction(a, b, odds[few])) + log_w[few]
            end = lambda few: np.log(b * _beta_fraction(b, a, 1.0 / odds[few])) + log_v[few]
        logs = [np.log(below), np.log(above)]
        fractions: Any = start, end
        for log_share, share, fraction in zip(logs, (below, above), fractions):
            few = (share < SMALLEST) & np.isfinite(y)
            if few.any():
                log_share[few] = density[few] - fraction(few)
        log_below = np.where(below < 0.5, logs[0], np.log1p(-np.exp(logs[1])))
        log_above = np.where(above < 0.5, logs[1], np.log1p(-np.exp(logs[0])))
    nothing, everything = y == -np.inf, y == np.inf
    log_below = np.where(nothing, -np.inf, np.where(everything, 0.0, log_below))
    log_above = np.where(nothing, 0.0, np.where(everything, -np.inf, log_above))
    return Radial(*(x.reshape(np.shape(log_square)) for x in (log_below, log_above, density)))


def radial_quantile(log_share: Any, rank: int, df: float, above: bool = True) -> np.ndarray:
    """log T above or below which this share lies, by Newton's method.

    Logarithms of shares are concave in log T, so after at most one step too far all are on one
    side. Of T beyond the largest number the logarithm is still right.
    """
    target = np.asarray(log_share, float)
    y = np.zeros_like(target)
    for _ in range(NUM_STEPS):
        at = log_radial(2.0 * y, rank, df)
        value = at.above if above else at.below
        with np.errstate(over="ignore", invalid="ignore"):
            step = (value - target) / (2.0 * np.exp(at.density - value)) * (1.0 if above else -1.0)
        longest = 2.0 + np.abs(y)
        step = np.clip(np.where(np.isnan(step), -np.sign(y) * longest, step), -longest, longest)
        y = y + step
        if np.all(np.abs(step) <= 4e-16 * (1.0 + np.abs(y))):
            break
    return y


def _gamma_fraction(a: float, x: np.ndarray) -> np.ndarray:
    """The f with Gamma(a, x) = x^a exp(-x) / f, far in its upper tail."""
    value = x
    for n in range(NUM_TERMS, 0, -1):
        value = x + (2 * n - 1 - a) - n * (n - a) / value
    return np.asarray(value)


def _beta_fraction(a: float, b: float, odds: np.ndarray) -> np.ndarray:
    """The f with I_x(a, b) = x^a (1 - x)^(b - 1) / (a B(a, b) f), of x / (1 - x), far in its lower
    tail: Gauss's continued fraction of a hypergeometric function.

    Reference:
        DLMF, equations 8.17.8 and 15.7.5.
    """
    value = np.ones_like(odds)
    for n in range(NUM_TERMS, 0, -1):
        even = n * (a + b + n - 1.0) / ((a + 2 * n - 1) * (a + 2 * n))
        odd = (n - b) * (a + n - 1.0) / ((a + 2 * n - 2) * (a + 2 * n - 1))
        value = 1.0 + odd * odds / (1.0 + even * odds / value)
    return value


def _log_beta(a: float, b: float) -> float:
    a, b = min(a, b), max(a, b)
    if b < 16.0:
        return float(special.betaln(a, b))
    # log Gamma(b + a) - log Gamma(b) by Stirling's series.
    coefficients = 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12
    binet: Callable[[float], float] = lambda x: float(np.polyval(coefficients, 1.0 / x**2)) / x
    rise = (b - 0.5) * math.log1p(a / b) + a * (math.log(b + a) - 1.0) + binet(b + a) - binet(b)
    return float(special.gammaln(a)) - rise


def standard_error(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.std(values, axis=-1, ddof=1) / math.sqrt(values.shape[-1]))


def range_of(covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations (r,) along the principal axes (m, r) of a covariance matrix (m, m) of
    rank r, whose other eigenvalues are rounding."""
    sizes, vectors = np.linalg.eigh(covariance)
    large = sizes > 64 * len(sizes) * np.finfo(sizes.dtype).eps * sizes[-1]
    return np.sqrt(sizes[large]), vectors[:, large]
