r"""Integrals over one common effect with two derivatives, in NumPy, where nothing is compiled.

A problem is :math:`\int \phi(f) \prod_j P_j(f) df`, with :math:`P_j` the standard normal
probability of the interval from :math:`a_j - r_j f` to :math:`b_j - r_j f`. Its nodes are those of
`common_effect`. With c and C the gradient and Hessian of :math:`\sum_j \log P_j(f)` by parameters
of a, b and r, and means over f by the weights of the nodes, the derivatives of the log of the
integral are :math:`E[c]` (Fisher's identity) and :math:`E[C] + E[c c^T] - E[c] E[c]^T` (Louis's).

References:
    Louis, "Finding the observed information matrix when using the EM algorithm", Journal of the
        Royal Statistical Society B (1982).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erfcx

from truncgauss.likelihood.common_effect import DROP, ERROR, MAX_STEPS, MOST_COUNTED, PROBES, SPARE
from truncgauss.special.tails import LOG_SQRT_2PI

NARROW = 1e-2  # width of an interval, below which differences of tails lose digits
AT_ONCE = 2**14  # masses, of which arrays fit into a processor's cache
MOST_MASSES = 2**21  # of an evaluation, beyond which a compiled program is worth its seconds
LEAST_COUNTED = 20  # nodes that any problem has
LOGS = math.log(2.0 / ERROR) / (2.0 * math.pi**2)
MILLS, ROOT_HALF = math.sqrt(0.5 * math.pi), math.sqrt(0.5)


class EffectSums(NamedTuple):
    """Logs of integrals with their derivatives.

    Attributes:
        value: (k,).
        error: an upper bound of its error, 0 below `common_effect.ERROR`, (k,).
        slopes: derivatives by a, b and r of each row, (k, 3, d).
        bends: second derivatives by the parameters where a, b and r are linear in them, (k, q, q).
    """

    value: np.ndarray
    error: np.ndarray
    slopes: np.ndarray
    bends: np.ndarray


def sums(ends: np.ndarray, jacobian: np.ndarray) -> EffectSums | None:
    """The integrals and their derivatives, NaN where an argument is; None where an interval is
    narrower than `NARROW`, or where there are more masses than `MOST_MASSES`.

    Args:
        ends: a, b and r of each row, (k, 3, d); infinite limits welcome.
        jacobian: of these by the parameters, (k, 3, d, q).
    """
    (k, _, d, q), rows = jacobian.shape, LimitedRows.of(ends)
    nothing = EffectSums(*(np.full(s, np.nan) for s in ((k,), (k,), (k, 3, d), (k, q, q))))
    if np.any(np.isnan(ends)) or not np.all(np.isfinite(ends[:, 2])):
        return nothing
    if np.any(ends[:, 1] - ends[:, 0] < NARROW):
        return None
    with np.errstate(all="ignore"):  # of limits whose squares overflow
        low, high, precision = nodes_of(ends, rows)
        counts = np.ceil(SPARE * (high - low) * np.sqrt(precision * LOGS))
    if not np.all(np.isfinite(counts)):
        return nothing
    counts = np.clip(counts, 1, MOST_COUNTED[1]).astype(int)
    masses = counts.max() * k * d
    if masses > MOST_MASSES:
        return None
    parts = []
    for part in np.array_split(np.arange(k), min(k, -(-masses // AT_ONCE))):
        count = counts[part].max()
        step = (high[part] - low[part]) / count
        nodes = low[part, None] + step[:, None] * (np.arange(count) + 0.5)
        with np.errstate(all="ignore"):
            value, slopes, bends = summed(ends[part], jacobian[part], nodes)
        error = 2.0 * np.exp(-2.0 * math.pi**2 / (precision[part] * step**2))
        value += np.log(step) - LOG_SQRT_2PI
        parts.append((value, np.where(error < ERROR, 0.0, error), slopes, bends))
    return EffectSums(*map(np.concatenate, zip(*parts)))


def summed(
    ends: np.ndarray, jacobian: np.ndarray, nodes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The logs of sums over nodes (k, n), and their derivatives as in `EffectSums`."""
    (k, _, d, q), count = jacobian.shape, nodes.shape[1]
    logs, u, v, a, b = masses_at(ends, nodes, LimitedRows.of(ends))
    weights, value = shares_of(logs - 0.5 * nodes**2)
    powers = weights[:, None] * np.stack([nodes**0, nodes, nodes**2], axis=1)  # (k, 3, n)
    by_r = u - v
    first = np.stack([-u, v, nodes[:, None] * by_r], axis=1)  # derivatives by a, b and r
    slopes = np.matmul(first, weights[:, None, :, None])[..., 0]
    # Of each parameter at each node, (k, n, q), less the mean.
    whole = np.matmul(first.reshape(k, 3 * d, count).swapaxes(1, 2), jacobian.reshape(k, 3 * d, q))
    whole -= np.matmul(weights[:, None], whole)
    bends = np.matmul((weights[:, :, None] * whole).swapaxes(1, 2), whole)
    # Second derivatives of log masses by both ends, times powers of the nodes, (k, 3, d) each.
    aa, ab, bb = (
        np.matmul(powers, part.swapaxes(1, 2)) for part in (u * (a - u), u * v, -v * (b + v))
    )
    ar, br = -(aa + ab)[:, 1], -(ab + bb)[:, 1]
    rr = (aa + 2.0 * ab + bb)[:, 2]
    aa, ab, bb = aa[:, 0], ab[:, 0], bb[:, 0]
    matrix = np.stack([np.stack(row, 1) for row in ((aa, ab, ar), (ab, bb, br), (ar, br, rr))], 1)
    turned = sum(matrix[:, :, m, :, None] * jacobian[:, None, m] for m in range(3))
    flat = jacobian.reshape(k, 3 * d, q).swapaxes(1, 2)
    return value, slopes, bends + np.matmul(flat, turned.reshape(k, 3 * d, q))


def shares_of(heights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the nodes, which sum to 1, and the logs of their sums; of logs (k, n)."""
    most = heights.max(axis=1)
    weights = np.exp(heights - most[:, None])
    total = weights.sum(axis=1)
    return weights / total[:, None], most + np.log(total)


class LimitedRows(NamedTuple):
    """Rows with two limits and with one, as indices of (k, d).

    Attributes:
        two, one: indices, each a pair of arrays.
        sign: of each row with one limit, 1.0 if that is the lower one, else -1.0, (m, 1).
    """

    two: Any
    one: Any
    sign: np.ndarray

    @classmethod
    def of(cls, ends: np.ndarray) -> "LimitedRows":
        lower, upper = np.isfinite(ends[:, 0]), np.isfinite(ends[:, 1])
        one = np.nonzero(lower != upper)
        return cls(np.nonzero(lower & upper), one, np.where(lower[one], 1.0, -1.0)[:, None])


class NodeMasses(NamedTuple):
    """Probabilities of intervals at points of the effect.

    Attributes:
        log: of their product, (k, n).
        at_low, at_high: the density at each limit over the probability of its interval, (k, d, n).
        low, high: the limits, 0 where they are infinite, (k, d, n).
    """

    log: np.ndarray
    at_low: np.ndarray
    at_high: np.ndarray
    low: np.ndarray
    high: np.ndarray


def masses_at(ends: np.ndarray, points: np.ndarray, rows: LimitedRows) -> NodeMasses:
    """The masses of all rows at points (k, n)."""
    (k, _, d), n = ends.shape, points.shape[1]
    logs, *parts = (np.zeros((k, d, n)) for _ in range(5))
    at_low, at_high, low, high = parts

    def tail(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tail beyond |x| over the density there, and the log of that."""
        return MILLS * erfcx(np.abs(x) * ROOT_HALF), -0.5 * x * x - LOG_SQRT_2PI

    # Of an interval its middle and half its width, mirrored to where the middle is positive.
    a, b, r = (ends[:, m][rows.two][:, None] for m in range(3))
    middle, half = 0.5 * (a + b) - r * points[rows.two[0]], 0.5 * (b - a)
    low[rows.two], high[rows.two] = middle - half, middle + half
    left, size = middle < 0.0, np.abs(middle)
    near, far = size - half, size + half
    (tail_near, exponent), ratio = tail(near), np.exp(-2.0 * half * size)
    outside = ratio * tail(far)[0]
    # The mass is the density at the nearer end times a difference of tails if that is in a tail
    # itself, else 1 less both tails.
    beyond, density = near > 0.0, np.exp(exponent)
    mass = np.where(beyond, tail_near - outside, 1.0 - density * (tail_near + outside))
    at_near = np.where(beyond, 1.0, density) / mass
    at_far = at_near * ratio
    logs[rows.two] = np.log(mass) + np.where(beyond, exponent, 0.0)
    at_low[rows.two], at_high[rows.two] = (
        np.where(left, *pair) for pair in ((at_far, at_near), (at_near, at_far))
    )
    # Of one limit the tail beyond it, mirrored to the right.
    side, shift = (rows.sign < 0.0)[:, 0], ends[:, 2][rows.one][:, None] * points[rows.one[0]]
    end = np.where(side, ends[:, 1][rows.one], ends[:, 0][rows.one])[:, None] - shift
    near = rows.sign * end
    (tail_near, exponent), beyond = tail(near), near > 0.0
    density = np.exp(exponent)
    mass = np.where(beyond, tail_near, 1.0 - density * tail_near)
    hazard = np.where(beyond, 1.0, density) / mass
    logs[rows.one] = np.log(mass) + np.where(beyond, exponent, 0.0)
    for part, values in zip(parts, (hazard, hazard, end, end)):
        chosen = ~side if part is at_low or part is low else side
        part[rows.one[0][chosen], rows.one[1][chosen]] = values[chosen]
    return NodeMasses(logs.sum(axis=1), *parts)


def nodes_of(ends: np.ndarray, rows: LimitedRows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ends of the nodes of each problem, and its precision at most, (k,), as by
    `common_effect.grid_of`."""
    rates = np.where(np.isfinite(ends[:, :2]).any(axis=1), ends[:, 2], 0.0)
    bound = 1.0 + np.sum(rates**2, axis=1)

    def around(points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The log of the integrand, its slope, and minus its second derivative, (k, n)."""
        logs, u, v, a, b = masses_at(ends, points, rows)
        slope = np.matmul(ends[:, None, 2], u - v)[:, 0] - points
        bends = (u - v) ** 2 - (a * u - b * v)
        curvature = np.matmul(ends[:, None, 2] ** 2, bends)[:, 0]
        return logs - 0.5 * points**2, slope, 1.0 + curvature

    k = len(ends)
    mode, move, before, size = np.zeros(k), np.zeros(k), np.zeros(k), np.ones(k)
    inverse, done = 1.0 / bound, np.zeros(k, bool)
    for _ in range(MAX_STEPS):
        there = mode + size * move
        _, slope, curvature = (part[:, 0] for part in around(there[:, None]))
        # A step far beyond the highest point along its line is halved.
        good = (slope * move >= -0.5 * before) & ~done
        inverse = np.where(good, 1.0 / curvature, inverse)
        newton = inverse * slope
        mode, move = np.where(good, there, mode), np.where(good, newton, move)
        before = np.where(good, newton * slope, before)
        size = np.where(good, 1.0, 0.5 * size)
        done |= good & (newton * slope <= 1e-2)
        if done.all():
            break
    distances = np.array([*PROBES, *(-x for x in PROBES if x)])
    probes = mode[:, None] + distances * np.sqrt(inverse)[:, None]
    height, slope, _ = around(probes)
    radius = slope**2 + 2.0 * (DROP + height - height[:, :1])
    radius = np.sqrt(np.maximum(radius, 0.0))
    centre = probes + slope
    return np.max(centre - radius, axis=1), np.min(centre + radius, axis=1), bound
