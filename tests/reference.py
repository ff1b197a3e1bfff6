"""Log probabilities of boxes by NumPy and SciPy alone, each by two routes that must agree.

In two and three dimensions: adaptive quadrature in logs. In more: separation of variables (Genz
1992) with minimax tilting (Botev 2017) on scrambled Sobol points, intervals that are narrow first.
The second route is another order of the variables, without tilting wherever its weights allow.

`python -m tests.reference float64 0 2400` prints the rows of `random_problems.csv`. A fourth
argument is the least log2 of the number of points: that of problem 152 is 17.
"""

import sys
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import root
from scipy.special import log_ndtr, logsumexp, ndtri_exp
from scipy.stats import qmc

from tests.random_problems import likeliest, problem, sum_of_limits, unit_variances

LOG_ROOT_2PI = 0.5 * np.log(2 * np.pi)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
NARROW = 0.03  # standard deviations: what is narrower comes first and is not tilted


class Answer(NamedTuple):
    """A log probability, its standard error, and the share of the points that carries it."""

    log_prob: float
    error: float
    share: float


class Standard(NamedTuple):
    """A box in standard deviations from the mean, and the correlation matrix."""

    low: np.ndarray
    high: np.ndarray
    width: np.ndarray
    correlation: np.ndarray

    def ordered(self, order):
        low, high, width = (x[order] for x in self[:3])
        return Standard(low, high, width, self.correlation[np.ix_(order, order)])


def standardised(problem) -> Standard:
    """The problem in units of its standard deviations, without coordinates that are free."""
    low, high = (np.asarray(x, np.longdouble) for x in (problem.low, problem.high))
    limited = np.isfinite(low) | np.isfinite(high)
    covariance = np.asarray(problem.covariance, np.longdouble)[np.ix_(limited, limited)]
    scale = np.sqrt(np.diag(covariance))
    low, high, loc = low[limited], high[limited], problem.loc[limited]
    limits = (low - loc) / scale, (high - loc) / scale, (high - low) / scale
    return Standard(*(x.astype(float) for x in limits), covariance / scale[:, None] / scale)


def rounding(problem, eps=2.0**-52) -> float:
    """What half of the last digit of each covariance may change in log P, to first order.

    d log P / dS = (f f^T - S^-1) / 2 for a density at x = S f. The likeliest point stands for the
    box, and the bound is that of the worst signs.
    """
    box = standardised(problem)
    inverse = solve_triangular(cholesky(box.correlation), np.eye(len(box.low)), lower=True)
    precision = inverse.T @ inverse
    x = likeliest(box.correlation.astype(float), box.low, box.high)
    slope = np.abs(np.outer(precision @ x, precision @ x)) + np.abs(precision)
    return float(eps / 2 * np.sum(slope * np.abs(box.correlation)))


# --- One interval ---------------------------------------------------------------------------------


def log_mass(a, b, width):
    """log P(a <= Z <= b) for a standard normal Z; `width` is b - a without its rounding."""
    return interval(a, b, width)[0]


def interval(a, b, width, u=None):
    """log P(a <= Z <= b), and the point of [a, b] below which a share u of that mass lies."""
    with np.errstate(invalid="ignore"):
        flip = a + b > 0
    # The interval or its mirror image, whichever has the smaller ends.
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    above, below = log_ndtr(high), log_ndtr(low)
    with np.errstate(divide="ignore", invalid="ignore"):
        r = np.exp(below - above)
        mass = above + np.log1p(-r)
    width = np.broadcast_to(width, high.shape)
    close = width * np.maximum(1, np.abs(low)) < 0.5
    if np.any(close):
        h = high[close]
        mass[close] = -(h**2) / 2 - LOG_ROOT_2PI + np.log(mass_below(h, width[close]))
    if u is None:
        return mass, None
    u = np.where(flip, 1 - u, u)
    with np.errstate(invalid="ignore"):
        y = ndtri_exp(np.minimum(above + np.log(r + u * (1 - r)), -1e-300))
        y = np.clip(y, low, high)
    close = width < 1e-3
    if np.any(close):
        y[close] = high[close] - below_end(high[close], width[close], 1 - u[close])
    return mass, np.where(flip, -y, y)


def mass_below(high, width):
    """The integral of exp(high t - t^2 / 2) over t in [0, width]."""
    t = width[..., None] * NODES
    return width * (np.exp(t * (high[..., None] - t / 2)) @ WEIGHTS)


def below_end(high, width, share):
    """How far below the upper end a point lies that has this share of a short interval above it.

    An exponential's quantile, corrected by a step of Newton's method where the slope is mild.
    """
    slope = high * width
    flat = np.abs(slope) < 1e-8
    safe = np.where(flat, 1.0, slope)
    t = width * np.where(flat, share, np.log1p(share * np.expm1(safe)) / safe)
    excess = mass_below(high, t) - share * mass_below(high, width)
    return t - np.where(np.abs(slope) < 0.5, excess / np.exp(t * (high - t / 2)), 0.0)


# --- Separation of variables ----------------------------------------------------------------------


def cholesky(matrix):
    """The Cholesky factor, computed in extended precision and rounded."""
    d = len(matrix)
    factor = np.zeros((d, d), np.longdouble)
    for k in range(d):
        rest = matrix[k:, k] - factor[k:, :k] @ factor[k, :k]
        if not rest[0] > 0:
            raise np.linalg.LinAlgError("not positive definite")
        factor[k:, k] = rest / np.sqrt(rest[0])
    return factor.astype(float)


def smallest_mass_first(box: Standard, random=None):
    """The order in which each variable is the least likely, given the medians of those before it.

    With random numbers, one of the two that are the least likely, at each turn.
    """
    d = len(box.low)
    matrix = box.correlation.astype(float).copy()
    mean, order = np.zeros(d), []
    for _ in range(d):
        rest = [k for k in range(d) if k not in order]
        scale = np.sqrt(np.maximum(np.diag(matrix)[rest], 1e-300))
        a, b = (box.low[rest] - mean[rest]) / scale, (box.high[rest] - mean[rest]) / scale
        w = box.width[rest] / scale
        masses = np.where(box.width[rest] < NARROW, -1e300, log_mass(a, b, w))
        best = int(np.argmin(masses))
        if random is not None and len(rest) > 1 and random.uniform() < 0.5:
            second = int(np.argsort(masses, kind="stable")[1])
            # What is narrow stays in front.
            best = second if (masses[second] < -1e299) == (masses[best] < -1e299) else best
        k = rest[best]
        one = slice(best, best + 1)
        y = interval(a[one], b[one], w[one], np.array([0.5]))[1][0]
        column = matrix[:, k] / scale[best]
        mean = mean + column * y
        matrix = matrix - np.outer(column, column)
        order.append(k)
    return np.array(order)


def saddle(factor, box: Standard, first, likely):
    """The minimax tilt of the box, 0 for the `first` intervals, which are narrow.

    Newton's method for the saddle point of sum_k mu_k^2 / 2 - mu_k x_k + log mass_k(x, mu), from 0
    and from the likeliest point, which is the answer where neither converges.
    """
    n = len(box.low) - first
    middle = np.zeros(first)
    for k in range(first):
        centre = (box.low[k] + box.high[k]) / 2
        middle[k] = (centre - factor[k, :k] @ middle[:k]) / factor[k, k]
    diagonal = np.diag(factor)[first:]
    shift = factor[first:, :first] @ middle
    low, high = ((x[first:] - shift) / diagonal for x in (box.low, box.high))
    slope = factor[first:, first:] / diagonal[:, None] - np.eye(n)
    equations = saddle_equations(slope, low, high, box.width[first:] / diagonal)
    likely = solve_triangular(factor, likely, lower=True)[first:-1]
    best, least = np.concatenate([0 * likely, likely]), np.inf
    for start in (np.zeros(2 * n - 2), np.tile(likely, 2)):
        with np.errstate(all="ignore"):
            try:
                found = root(equations, start, jac=True, method="hybr")
            except (ValueError, np.linalg.LinAlgError):
                continue
        residual = np.linalg.norm(found.fun)
        if np.all(np.isfinite(found.x)) and residual < min(least, 1.0):
            best, least = found.x, residual
        if least < 1e-4:
            break
    return np.concatenate([np.zeros(first), best[n - 1 :], [0.0]])


def saddle_equations(slope, low, high, width):
    """The derivatives by x and mu of the log weight, and their Jacobian, as one function."""
    n = len(low)
    finite = lambda limit: np.where(np.isfinite(limit), limit, 0.0)

    def equations(unknown):
        x, mu = np.append(unknown[: n - 1], 0.0), np.append(unknown[n - 1 :], 0.0)
        a, b = (limit - slope @ x - mu for limit in (low, high))
        mass = log_mass(a, b, width)
        at_a, at_b = (np.exp(-(t**2) / 2 - LOG_ROOT_2PI - mass) for t in (a, b))
        p = at_a - at_b
        curve = -(p**2) + finite(a) * at_a - finite(b) * at_b
        by_x, by_mu = -mu + slope.T @ p, mu - x + p
        xx, mx = (slope.T * curve) @ slope, curve[:, None] * slope - np.eye(n)
        mm = np.diag(1 + curve)
        parts = [[xx[:-1, :-1], mx.T[:-1, :-1]], [mx[:-1, :-1], mm[:-1, :-1]]]
        return np.concatenate([by_x[:-1], by_mu[:-1]]), np.block(parts)

    return equations


def log_weights(factor, box: Standard, tilt, uniforms):
    """log of the weight of each point of the unit cube, uniforms (d - 1, n)."""
    d, n = len(box.low), uniforms.shape[1]
    z, result = np.zeros((d, n)), np.zeros(n)
    for k in range(d):
        shift = factor[k, :k] @ z[:k]
        width = box.width[k] / factor[k, k]
        a = (box.low[k] - shift) / factor[k, k] - tilt[k]
        b = (box.high[k] - shift) / factor[k, k] - tilt[k]
        mass, y = interval(a, b, width, uniforms[k] if k < d - 1 else None)
        result += mass
        if k < d - 1:
            z[k] = y + tilt[k]
            result += tilt[k] * (tilt[k] / 2 - z[k])
    return result


def separation(box: Standard, order, tilted, seed, target=3e-5, most=13, least=10) -> Answer:
    """The average over 16 scrambles of 2^least to 2^most points, until the error is small."""
    box = box.ordered(order)
    factor = cholesky(box.correlation)
    d = len(order)
    tilt = np.zeros(d)
    first = int(np.argmin(np.append(box.width < NARROW, False)))
    if tilted and d - first > 1:
        tilt = saddle(factor, box, first, likeliest(box.correlation.astype(float), *box[:2]))
    size = least
    while True:
        answer = averaged(factor, box, tilt, size, seed)
        if answer.error < target or size >= most:
            return answer
        size = min(most, size + max(1, min(2, int(np.log2(answer.error / target)))))


def averaged(factor, box: Standard, tilt, size, seed) -> Answer:
    """The average over 16 scrambles of 2^size points, and its standard error."""
    sums, shares, d = [], [], len(tilt)
    for replicate in range(16 if d > 1 else 2):
        random = np.random.default_rng([seed, size, replicate])
        points = qmc.Sobol(max(1, d - 1), scramble=True, rng=random).random_base2(size)
        weights = log_weights(factor, box, tilt, np.clip(points, 1e-15, 1 - 1e-15).T)
        top = weights.max()
        relative = np.exp(weights - top)
        sums.append(top + np.log(relative.mean()))
        shares.append(relative.sum() ** 2 / (relative**2).sum() / len(relative))
    mean = logsumexp(sums) - np.log(len(sums))
    error = np.std(np.exp(np.array(sums) - mean), ddof=1) / np.sqrt(len(sums))
    return Answer(float(mean), float(max(error, 1e-12 * (1 + abs(mean)))), float(np.mean(shares)))


# --- Quadrature -----------------------------------------------------------------------------------


def log_integrals(log_density, low, high, width, knots):
    """log of the integral over [low, high] of exp(log_density(i, x)), log-concave in x, for each i.

    Panels of 12 nodes are halved until halving changes them by less than 1e-12. What happens within
    a hundredth of a panel from its ends is seen by no node: so they begin with ends at the mode and
    at the knots, shape (k, number), around everything sudden.
    """
    count = len(low)
    origin = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high, 0.0))
    far = 300.0 + np.abs(origin)
    left = np.where(np.isfinite(low), 0.0, -far)
    right = np.where(np.isfinite(width), width, np.where(np.isfinite(high), 0.0, far))
    index = np.arange(count)
    grid = np.linspace(0, 1, 17)
    a, b = left.copy(), right.copy()
    for _ in range(12):
        t = a[:, None] + (b - a)[:, None] * grid
        best = np.argmax(log_density(index[:, None], origin[:, None] + t), axis=1)
        a, b = t[index, np.maximum(best - 1, 0)], t[index, np.minimum(best + 1, 16)]
    mode = (a + b) / 2
    top = log_density(index, origin + mode)
    ends = []
    for end in (left, right):
        inside, outside = mode.copy(), end.copy()
        for _ in range(30):
            middle = (inside + outside) / 2
            kept = log_density(index, origin + middle) > top - 40
            inside, outside = np.where(kept, middle, inside), np.where(kept, outside, middle)
        ends.append(outside)
    knots = np.vstack([mode, knots - origin])
    knots = np.sort(np.vstack([ends[0], np.clip(knots, ends[0], ends[1]), ends[1]]), axis=0)
    return top + np.log(adaptive(log_density, index, origin, top, knots))


def adaptive(log_density, index, origin, top, knots):
    """The integrals between knots, by halving panels."""

    def panels(i, a, b):
        t = a[:, None] + (b - a)[:, None] * NODES
        values = log_density(i[:, None], origin[i][:, None] + t) - top[i][:, None]
        return (b - a) * (np.exp(values) @ WEIGHTS)

    total = np.zeros(len(index))
    i, a, b = np.tile(index, len(knots) - 1), knots[:-1].ravel(), knots[1:].ravel()
    whole = panels(i, a, b)
    scale = np.bincount(i, whole, len(index))
    for _ in range(40):
        middle = (a + b) / 2
        one, two = panels(i, a, middle), panels(i, middle, b)
        scale = np.maximum(scale, np.bincount(i, one + two, len(index)))
        done = np.abs(one + two - whole) <= 1e-12 * scale[i]
        total += np.bincount(i[done], (one + two)[done], len(index))
        again = ~done
        if not np.any(again):
            break
        i = np.concatenate([i[again], i[again]])
        a, b = np.concatenate([a[again], middle[again]]), np.concatenate([middle[again], b[again]])
        whole = np.concatenate([one[again], two[again]])
    else:
        total += np.bincount(i, whole, len(index))
    return total


def quadrature(box: Standard) -> Answer:
    """log P in at most three dimensions, the narrowest interval outermost."""
    order = np.argsort(box.width, kind="stable")
    box = box.ordered(order)
    factor = cholesky(box.correlation)
    d = len(order)

    def inner(level, z):
        """log P of the coordinates from `level` on, given the draws before it, z (level, n)."""
        scale = factor[level, level]
        shift = factor[level, :level] @ z
        a, b = (box.low[level] - shift) / scale, (box.high[level] - shift) / scale
        w = np.broadcast_to(box.width[level] / scale, a.shape)
        if level == d - 1:
            return log_mass(a, b, w)

        def log_density(i, x):
            i, x = np.broadcast_arrays(i, x)
            flat = np.concatenate([z[:, i.ravel()], x.reshape(1, -1)])
            rest = inner(level + 1, flat).reshape(x.shape)
            return rest - x**2 / 2 - LOG_ROOT_2PI

        return log_integrals(log_density, a, b, w, sudden(box, factor, level, z))

    value = float(inner(0, np.zeros((0, 1)))[0])
    return Answer(value, 1e-11 * (1 + abs(value)), 1.0)


def sudden(box: Standard, factor, level, z):
    """Around which values of a coordinate a later one, nearly a copy, meets a limit."""
    knots = []
    for j in range(level + 1, len(box.low)):
        slope, left = factor[j, level], np.linalg.norm(factor[j, level + 1 : j + 1])
        for limit in (box.low[j], box.high[j]):
            if np.isfinite(limit) and left < 0.3 * abs(slope):
                meeting = (limit - factor[j, :level] @ z) / slope
                knots += [meeting + k * left / slope for k in (-8, -2, 0, 2, 8)]
    return np.reshape(knots, (-1, z.shape[1]))


# --- Two routes -----------------------------------------------------------------------------------


def both(problem, size=10) -> tuple[Answer, Answer]:
    """The answers of two routes, the first from at least 2^size points."""
    box = standardised(problem)
    d, seed = len(box.low), problem.seed
    if d == 0:
        return Answer(0.0, 0.0, 1.0), Answer(0.0, 0.0, 1.0)
    order = smallest_mass_first(box)
    one = separation(box, order, True, seed, most=max(13, size), least=size)
    if d <= 3:
        return quadrature(box), one
    natural = np.argsort(box.width >= NARROW, kind="stable")
    pilot = separation(box, natural, False, seed + 1, most=10)
    if pilot.share > 0.02 and pilot.error < 0.02:
        return one, separation(box, natural, False, seed + 1, most=12, least=12)
    random = np.random.default_rng(seed)
    orders = [another(box, random), *(smallest_mass_first(box, random) for _ in range(3))]
    for order in orders:
        other = separation(box, order, True, seed + 2, target=1e-4, most=11)
        if other.error < 5e-3:
            break
    return one, other


def another(box, random):
    """A random order, narrow intervals first."""
    order = random.permutation(len(box.low))
    return order[np.argsort(box.width[order] >= NARROW, kind="stable")]


def accepted(one: Answer, other: Answer, last_digit: float) -> Answer | None:
    """The better answer of two routes; None if they disagree, or if one of them is too rough."""
    size = 5 * np.hypot(one.error, other.error) + last_digit + 1e-9 * (1 + abs(one.log_prob))
    best = min(one, other, key=lambda answer: answer.error)
    rough = max(one.error, other.error) > 0.02 or best.error > 2e-3 or best.share < 0.01
    return None if rough or not abs(one.log_prob - other.log_prob) <= size else best


def row(seed: int, precision: str, size: int = 10) -> str | None:
    """A line of the table, or None where there is no such problem or no agreement on it."""
    eps = float(np.finfo(precision).eps)
    given = problem(seed).cast(precision)
    least = np.linalg.eigvalsh(unit_variances(given.covariance)).min()
    if not np.all(given.high > given.low) or (precision == "float32" and least < 1e-6):
        return None
    last_digit = rounding(given, eps)
    answer = accepted(*both(given, size), last_digit)
    if answer is None:
        return None
    numbers = f"{answer.log_prob:.12g},{answer.error:.1e},{last_digit:.1e}"
    return f"{precision},{seed},{numbers},{sum_of_limits(given):.6g}"


if __name__ == "__main__":
    first, last, *size = map(int, sys.argv[2:])
    lines = (row(seed, sys.argv[1], *size) for seed in range(first, last))
    print("\n".join(line for line in lines if line), flush=True)
