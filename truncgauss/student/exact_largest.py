r"""The largest of correlated normal or t variables, where one or two integrals suffice.

X = W / S has W standard normal with a correlation matrix, and S^2 independent of it, chi-squared
over its degrees of freedom, or S = 1.

If the correlations are products of loadings, as those of Dunnett's contrasts are, the variables
are independent given the common factor z, each with the loading l and the deviation
n = (1 - l^2)^(1/2):

.. math:: P(\max_j X_j > c) = E_{S, z}\left[ 1 - \prod_j \Phi((c S - l_j z) / n_j) \right],

by the trapezoidal rule in z and in log S, which converges geometrically. All terms are positive, so
that small probabilities have as many digits as others. If the matrix has rank 2, the variables are
products of a random direction u in the plane and a radius with the closed tail G,

.. math:: P(\max_j X_j > c) = E_u\left[ G(c / m(u));\, m(u) > 0 \right], \qquad
    m(u) = \max_j\, a_j^\top u,

an integral over the angle, smooth between the angles at which another variable becomes the largest.
If it has rank 3, as Tukey's of four groups, the sphere of directions falls into polygons, in each
of which one of the |X_j| is the largest. At an azimuth phi about its centre a polygon ends at the
distance arctan(1 / kappa). With t = kappa / (1 + kappa^2)^(1/2), and the tail T(c) of |X_j|,

.. math:: P(\max_j |X_j| > c)
    = \sum_j \Bigl[ T(c) - \frac{1}{2 \pi} \int t\, T(c / t)\, d\phi \Bigr].

References:
    Dunnett (1955), A multiple comparison procedure for comparing several treatments with a control.
    Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np
import scipy
from scipy import special

from truncgauss.probability.structure import common_factor
from truncgauss.student.radial import LARGEST_DF, LargestCoordinate

DIGITS = 38.0  # of natural logarithms that neither ends nor steps of the rules may lose
SMALL = -36.0  # log of a probability whose square is below rounding
MOST_NUMBERS = 2**20  # nodes of both integrals times variables
LOWEST_LEVEL = 0.01  # of a quantile: the probability is computed as 1 less that of the outside
SHIFTS = np.linspace(0.02, 0.77, 76)  # below pi / 4, into the complex plane of log S
# The double exponential rule on (-1, 1), for arcs at whose ends a power vanishes.
STEPS = 0.03125 * np.arange(-104, 105)
NODES = np.tanh(0.5 * math.pi * np.sinh(STEPS))
WEIGHTS = 0.03125 * 0.5 * math.pi * np.cosh(STEPS) / np.cosh(0.5 * math.pi * np.sinh(STEPS)) ** 2

# Along an edge kappa = 1 / (h cosh w), whose singularities are at least pi / 2 away from real w.
LONGEST_PIECE, PIECE_NODES = 3.0, np.polynomial.legendre.leggauss(32)
MOST_POLYGONS = 40
SAME = 1e-12  # distance of equal directions


@dataclasses.dataclass(frozen=True)
class ExactLargest:
    """The distribution of max X_j, or of max |X_j|.

    Attributes:
        loadings: of a common factor, (d,); None by angles.
        angles: of the variables in the plane, (d,), if their matrix has rank 2, else None.
        normals: their directions, (d, 3), if it has rank 3 and both sides are asked for, else None.
        two_sided: whether of absolute values.
        df: degrees of freedom.
        single: gives log P(X_j > c).
    """

    loadings: np.ndarray | None
    angles: np.ndarray | None
    two_sided: bool
    df: float
    single: LargestCoordinate
    normals: np.ndarray | None = None

    @classmethod
    def of(cls, correlation: np.ndarray, largest: LargestCoordinate) -> "ExactLargest | None":
        """From a correlation matrix (d, d) and its root; None where there is no such form."""
        shared = largest.two_sided, largest.df, largest
        rank = largest.root.shape[1]
        if rank <= 2:
            plane = np.pad(largest.root, ((0, 0), (0, 2 - rank)))
            return cls(None, np.arctan2(plane[:, 1], plane[:, 0]), *shared)
        if not np.any(correlation - np.eye(len(correlation))):
            return cls(np.zeros(len(correlation)), None, *shared)
        with jax.enable_x64(True):  # of which the matrix is
            factor = common_factor(correlation)
        if factor is None and rank == 3 and largest.two_sided and len(correlation) <= MOST_POLYGONS:
            return cls(None, None, *shared, largest.root)
        if factor is None:
            return None
        exact = cls(np.asarray(factor.cov_factor)[:, 0], None, *shared)
        log_scale, _, z, _ = exact._nodes(1.0, exact.loadings)
        return exact if len(log_scale) * len(z) * len(correlation) <= MOST_NUMBERS else None

    def log_tail(self, limit: float, kept: Any = slice(None)) -> float:
        """log P(some of the variables kept exceeds the limit), exact to rounding."""
        if self.two_sided and limit <= 0:
            return 0.0
        if self.angles is not None:
            return self._by_angles(limit, self.angles[kept])
        if self.normals is not None:
            stretch, weights = edges_of(self.normals[kept].tobytes())
            log_tail = float(self.single.log_single(limit))
            with np.errstate(under="ignore"):
                beyond = np.exp(self.single.log_single(limit * stretch) - log_tail)
                polygons = float(np.sum(weights * (1.0 - beyond / stretch)))
            return min(log_tail + math.log(polygons), 0.0)
        assert self.loadings is not None
        return self._by_factor(limit, self.loadings[kept])

    def tails(self, limits: np.ndarray) -> np.ndarray:
        """For every variable's limit, log P(max > limit) of all variables, and of those with limits
        not above it, (2, d)."""
        known: dict[Any, float] = {}
        for limit in limits:
            for kept in (np.ones(len(limits), bool), limits <= limit):
                key = float(limit), kept.tobytes()
                if key not in known:
                    known[key] = self.log_tail(float(limit), kept)
        every = np.ones(len(limits), bool).tobytes()
        rows = [(known[x, every], known[x, (limits <= x).tobytes()]) for x in map(float, limits)]
        return np.transpose(rows)

    def quantile(self, probability: float) -> float:
        """The c with P(max <= c) = probability."""
        low, high = (1e-3 if self.two_sided else -1.0), 4.0
        target = math.log1p(-probability)

        def excess(c: float) -> float:
            return self.log_tail(c) - target

        while excess(high) > 0:
            low, high = high, 2.0 * high
        while excess(low) < 0:
            low = 0.5 * low if self.two_sided else 2.0 * low
        return float(scipy.optimize.brentq(excess, low, high, xtol=1e-14, rtol=1e-14))

    def _by_factor(self, limit: float, loadings: np.ndarray) -> float:
        log_scale, log_weight, z, step = self._nodes(limit, loadings)
        noise = np.sqrt(1.0 - loadings**2)
        level = (limit * np.exp(log_scale))[:, None]
        inside = np.zeros((len(log_scale), len(z)))
        few = np.full(inside.shape, -np.inf)
        with np.errstate(divide="ignore", under="ignore"):
            for loading, scale in zip(loadings, noise):
                beyond = special.log_ndtr((loading * z - level) / scale)
                if self.two_sided:
                    other = special.log_ndtr((-loading * z - level) / scale)
                    beyond = np.minimum(np.logaddexp(beyond, other), 0.0)
                inside += np.log1p(-np.exp(beyond))
                few = np.logaddexp(few, beyond)
            outside = np.where(few < SMALL, few, np.log(-np.expm1(inside)))
        terms = outside + log_weight[:, None] - 0.5 * z**2
        total = special.logsumexp(terms) + math.log(step) - 0.5 * math.log(2.0 * math.pi)
        return min(float(total), 0.0)

    def _nodes(
        self, limit: float, loadings: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Nodes of log S and log weights of its density, and nodes of the factor and their step."""
        log_scale, log_weight = self._scales(limit, len(loadings))
        size = float(np.max(np.abs(loadings)))
        # Shifted by a into the complex plane a normal density grows as exp(a^2 / 2), and the
        # probability given the factor little up to a change of its limits by 1.5.
        shift = 1.5 * min(4.0, math.sqrt(1.0 - size**2) / max(size, 1e-9))
        step = 2.0 * math.pi * shift / (DIGITS + 3.0 + 0.5 * shift**2)
        farthest = limit * math.exp(float(np.max(log_scale)))
        end = size * math.sqrt(farthest**2 + 2.0 * DIGITS) + math.sqrt(2.0 * DIGITS)
        count = math.ceil(end / step)
        return log_scale, log_weight, step * np.arange(-count, count + 1), step

    def _scales(self, limit: float, d: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes of log S and log weights of its density."""
        if self.df >= LARGEST_DF:
            return np.zeros(1), np.zeros(1)
        # P(S^2 < u) and P(S^2 > u) are at most (u exp(1 - u))^(df / 2) below and above 1, and given
        # X_j > c, S^2 (df + X_j^2) is chi-squared with one degree of freedom more.
        df, few = self.df, DIGITS - float(self.single.log_single(abs(limit)))
        x = 1.0 + 2.0 * (DIGITS + math.log(d)) / (df + 1.0)
        most = x + math.log(x)
        if x < 500.0:
            most = float(-special.lambertw(-math.exp(-x), -1).real)
        high = 0.5 * math.log(most * (df + 1.0) / (df + max(limit, 0.0) ** 2))
        x = 1.0 + 2.0 * few / df
        low = -0.5 * x
        if x < 500.0:
            low = 0.5 * math.log(float(-special.lambertw(-math.exp(-x), 0).real))
        growth = -0.5 * (df + d + 2.0) * np.log(np.cos(2.0 * SHIFTS))
        step = float(np.max(2.0 * math.pi * SHIFTS / (DIGITS + growth)))
        t = np.arange(low, high + step, step)
        half = 0.5 * df
        # The density of t is 2 a^a / Gamma(a) exp(a (2 t - exp(2 t))), a = df / 2.
        constant = math.log(2.0) + half * (math.log(half) - 1.0) - math.lgamma(half)
        if half > 20.0:  # by Stirling's series, where the difference would lose digits
            inverse = 1.0 / half
            series = inverse / 12.0 - inverse**3 / 360.0 + inverse**5 / 1260.0 - inverse**7 / 1680.0
            constant = math.log(2.0) + 0.5 * math.log(half / (2.0 * math.pi)) - series
        return t, constant + half * (2.0 * t - np.expm1(2.0 * t)) + math.log(step)

    def _by_angles(self, limit: float, angles: np.ndarray) -> float:
        angles = np.concatenate([angles, angles + math.pi]) if self.two_sided else angles
        # Of equal and nearly equal directions each is the largest in its own, maybe empty, arc.
        order = np.sort(np.mod(angles, 2.0 * math.pi))
        gaps = np.diff(np.append(order, order[0] + 2.0 * math.pi))
        after, before = 0.5 * gaps, 0.5 * np.roll(gaps, 1)
        if limit <= 0:  # one-sided: 1 less P(all <= c), by directions of a negative maximum
            ends = np.concatenate([after[after > 0.5 * math.pi], before[before > 0.5 * math.pi]])
            mass = sum(self._arc(-limit, math.pi - end, 0.5 * math.pi) for end in ends)
            return math.log1p(-mass)
        log_scale = self._log_radial_tail(limit)
        ends = np.minimum(np.concatenate([after, before]), 0.5 * math.pi)
        return log_scale + math.log(sum(self._arc(limit, 0.0, end, log_scale) for end in ends))

    def _log_radial_tail(self, radius: Any) -> Any:
        """log G, of two dimensions."""
        if self.df >= LARGEST_DF:
            return -0.5 * radius**2
        return -0.5 * self.df * np.log1p(radius * radius / self.df)

    def _arc(self, limit: float, begin: float, end: float, log_scale: float = 0.0) -> float:
        """The integral of G(limit / cos) over an arc, over 2 pi exp(log_scale)."""
        # The peak about 0 has the same width in w for any limit, tan(angle) = tan(w) / k.
        ratio = 1.0 if self.df >= LARGEST_DF else self.df / (self.df + limit**2)
        k = math.sqrt(1.0 + ratio * limit**2)
        low, high = (math.atan2(k * math.sin(x), math.cos(x)) for x in (begin, end))
        # Beyond this the tail is negligible: it has an essential singularity where it is 0.
        if limit > 0:
            with np.errstate(over="ignore"):
                growth = np.expm1(2.0 * DIGITS / min(self.df, LARGEST_DF)) / ratio
            farthest = math.atan(k * float(np.sqrt(growth * min(self.df, LARGEST_DF))) / limit)
            high = max(low, min(high, farthest))
        w = low + 0.5 * (high - low) * (1.0 + NODES)
        cosine, sine = np.cos(w), np.sin(w)
        squares = (k * cosine) ** 2 + sine**2
        with np.errstate(divide="ignore", under="ignore"):
            tails = self._log_radial_tail(limit * np.sqrt(squares) / np.abs(k * cosine))
            values = np.exp(tails - log_scale) * k / squares
        return float(0.5 * (high - low) * np.sum(WEIGHTS * values)) / (2.0 * math.pi)


@functools.lru_cache(maxsize=256)
def edges_of(normals: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Nodes 1 / t along the edges of all polygons, and weights of their azimuths, whose sum is the
    number of polygons, of the bytes of normals (d, 3)."""
    v = np.frombuffer(normals).reshape(-1, 3)
    v = v / np.linalg.norm(v, axis=1, keepdims=True)
    both = np.stack([v, -v])
    apart = np.linalg.norm(v[:, None] - both[:, None], axis=-1).min(axis=0)
    groups = scipy.sparse.csgraph.connected_components(apart < SAME)[1]
    v = v[np.unique(groups, return_index=True)[1]]  # one of directions that are equal
    if len(v) == 1:
        return np.array([np.inf]), np.ones(1)
    nodes, weights = [], []
    for j, centre in enumerate(v):
        others = np.delete(v, j, axis=0)
        both = np.concatenate([others, -others])
        apart, opposed = (np.linalg.norm(x, axis=1) for x in (both - centre, both + centre))
        # With the inverse distance of the edge along its azimuth, an edge is a point in the plane;
        # kappa is the support function of their convex hull, whose sides are the vertices. Nearly
        # equal directions are told apart by their exact difference.
        sign = np.where(apart < opposed, -1.0, 1.0)[:, None]
        across = (both + sign * centre) @ np.linalg.svd(centre[None])[2][1:].T
        far = np.where(apart < opposed, (opposed / np.hypot(*across.T)) ** 2, (2.0 / apart) ** 2)
        points = 0.5 * far[:, None] * across
        size, azimuth = np.hypot(*points.T), np.arctan2(points[:, 1], points[:, 0])
        # Azimuths at which a point is farther than another one are a half circle, within that at
        # which it is farther than the centre.
        step = points[:, None] - points
        turn = np.arctan2(step[..., 1], step[..., 0]) - azimuth[:, None]
        turn = np.remainder(turn + math.pi, 2.0 * math.pi) - math.pi
        np.fill_diagonal(turn, 0.0)
        begins, ends = turn.max(axis=1) - 0.5 * math.pi, turn.min(axis=1) + 0.5 * math.pi
        for k in np.flatnonzero(begins < ends):
            low, high = np.arcsinh(np.tan([begins[k], ends[k]]))
            cuts = np.linspace(low, high, math.ceil((high - low) / LONGEST_PIECE) + 1)
            reach = 0.5 * np.diff(cuts)[:, None]
            w = cuts[:-1, None] + reach * (1.0 + PIECE_NODES[0])
            nodes.append(np.hypot(1.0, np.cosh(w) / size[k]).ravel())
            weights.append((reach * PIECE_NODES[1] / np.cosh(w)).ravel() / (2.0 * math.pi))
    return np.concatenate(nodes), np.concatenate(weights)
