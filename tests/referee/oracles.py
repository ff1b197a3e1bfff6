"""Probabilities and log-likelihoods in NumPy and SciPy alone, written to be read."""

import numpy as np
from scipy import optimize
from scipy.sparse.csgraph import connected_components
from scipy.special import log_ndtr, logsumexp

REACH = 14.0  # standard deviations beyond which a standard normal variable is not followed
EDGES = np.array([-6.0, -2.0, 0.0, 2.0, 6.0])  # panels around the smooth step at a later bound
LOG_ROOT_2PI = 0.5 * np.log(2 * np.pi)


def log_interval(a, b):
    """log P(a < Z < b) of a standard normal Z."""
    a, b = np.broadcast_arrays(np.asarray(a, float), np.asarray(b, float))
    flip = a > 0
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high)))
        width = high - low
        narrow = width * np.maximum(1.0, abs(low)) < 0.5
        if np.any(narrow):  # the mean of the density, by Gauss's rule
            x, w = np.polynomial.legendre.leggauss(8)
            z = low[narrow, None] + width[narrow, None] * (x + 1) / 2
            mean = logsumexp(-z * z / 2, b=w / 2, axis=-1) - LOG_ROOT_2PI
            log_p[narrow] = np.log(width[narrow]) + mean
    return np.where(high > low, log_p, -np.inf)


def divided(bounds, scale):
    """Bounds in units of a scale, of which 0 makes a bound certain."""
    if scale == 0:
        return np.where(bounds > 0, np.inf, np.where(bounds < 0, -np.inf, 0.0))
    return bounds / scale


def log_box_of_factor(low, high, factor, nodes):
    """log P(low < factor Z < high) for rows of bounds (n, d), one coordinate after another.

    The first variable is integrated over panels that end where a later bound begins to act; given
    it, the others are a problem of d - 1 dimensions.
    """
    scale = factor[0, 0]
    a, b = divided(low[:, 0], scale), divided(high[:, 0], scale)
    if factor.shape[0] == 1:
        if scale == 0:
            return np.where((low[:, 0] <= 0) & (high[:, 0] >= 0), 0.0, -np.inf)
        return log_interval(a, b)
    points = [np.broadcast_to(np.arange(-REACH, REACH + 1), (len(low), int(2 * REACH) + 1))]
    for j in range(1, len(factor)):
        slope, spread = factor[j, 0], np.sqrt(np.sum(factor[j, 1:] ** 2))
        if slope != 0:
            for bound in (low[:, j], high[:, j]):
                points.append((bound[:, None] + EDGES * spread) / slope)
    ends = np.clip(np.concatenate(points, axis=1), -REACH, REACH)
    ends = np.sort(np.clip(ends, a[:, None].clip(-REACH, REACH), b[:, None].clip(-REACH, REACH)))
    x, w = np.polynomial.legendre.leggauss(nodes)
    half = np.diff(ends)[:, :, None] / 2
    z = ends[:, :-1, None] + half * (x + 1)
    rest_low = low[:, None, None, 1:] - z[..., None] * factor[1:, 0]
    rest_high = high[:, None, None, 1:] - z[..., None] * factor[1:, 0]
    rest = log_box_of_factor(
        rest_low.reshape(-1, len(factor) - 1),
        rest_high.reshape(-1, len(factor) - 1),
        factor[1:, 1:],
        nodes,
    ).reshape(z.shape)
    with np.errstate(divide="ignore"):
        terms = np.log(half * w) - z * z / 2 - LOG_ROOT_2PI + rest
    return logsumexp(terms.reshape(len(low), -1), axis=1)


def factor_of(covariance):
    """A lower factor of a covariance matrix, with zeros where a coordinate adds nothing."""
    s = np.array(covariance, np.longdouble)
    factor = np.zeros_like(s)
    for k in range(len(s)):
        rest = s[k, k] - np.sum(factor[k, :k] ** 2)
        if rest > 1e-15 * s[k, k]:
            factor[k, k] = np.sqrt(rest)
            below = s[k + 1 :, k] - factor[k + 1 :, :k] @ factor[k, :k]
            factor[k + 1 :, k] = below / factor[k, k]
    return factor.astype(float)


def log_box(loc, factor, low, high, nodes=12):
    """log P(low < loc + factor Z < high), rows of bounds welcome: a sum over independent groups of
    up to three coordinates."""
    low, high = np.atleast_2d(np.subtract(low, loc)), np.atleast_2d(np.subtract(high, loc))
    low, high = np.broadcast_arrays(low, high)
    factor, total = np.asarray(factor, float), 0.0
    count, group = connected_components(abs(factor) @ abs(factor).T > 0)
    for k in range(count):
        own = np.flatnonzero(group == k)
        assert len(own) <= 3, "quadrature in more than three dimensions"
        total += log_box_of_factor(low[:, own], high[:, own], factor[np.ix_(own, own)], nodes)
    return total


def with_error(value_of):
    """A value with 14 nodes a panel, and its difference from that with 10."""
    value = value_of(14)
    with np.errstate(invalid="ignore"):
        error = np.where(value == (other := value_of(10)), 0.0, abs(value - other))
    return value, error


# --- Derivatives ----------------------------------------------------------------------------------


def slope(function, order, step=0.04):
    """The first or second derivative of a function of one number at 0, and its error.

    Central differences at halved steps, extrapolated to a step of 0.
    """
    middle = function(0.0)
    rows = []
    for k in range(4):
        h = step / 2**k
        above, below = function(h), function(-h)
        row = [(above - below) / (2 * h) if order == 1 else (above - 2 * middle + below) / h**2]
        for j, before in enumerate(rows[-1] if rows else [], 1):
            row.append(row[-1] + (row[-1] - before) / (4.0**j - 1))
        rows.append(row)
    rounding = 1e-14 * (1 + abs(middle)) / (step / 8) ** order
    return rows[-1][-1], abs(rows[-1][-1] - rows[-1][-2]) + rounding


# --- Fits -----------------------------------------------------------------------------------------


def log_rows(lower, upper, loc, covariance, box_low=-np.inf, box_high=np.inf):
    """The log-likelihood of each row known in part, observed only inside a box.

    Entries with lower = upper are exact: their density times the probability of the others given
    them, less log P of the box.
    """
    lower = np.maximum(np.atleast_2d(lower), box_low)
    upper = np.minimum(np.atleast_2d(upper), box_high)
    loc = np.broadcast_to(loc, lower.shape)
    exact, result = lower == upper, np.zeros(len(lower))
    for pattern in np.unique(exact, axis=0):
        rows = np.all(exact == pattern, axis=1)
        seen, hidden = np.flatnonzero(pattern), np.flatnonzero(~pattern)
        shift, rest = loc[rows][:, hidden], covariance[np.ix_(hidden, hidden)]
        if len(seen):
            root = np.linalg.cholesky(covariance[np.ix_(seen, seen)])
            z = np.linalg.solve(root, (lower[rows][:, seen] - loc[rows][:, seen]).T)
            result[rows] -= np.sum(z * z, 0) / 2 + np.sum(np.log(np.diag(root)) + LOG_ROOT_2PI)
            cross = np.linalg.solve(root, covariance[np.ix_(seen, hidden)])
            shift, rest = shift + z.T @ cross, rest - cross.T @ cross
        if len(hidden):
            bounds = lower[rows][:, hidden] - shift, upper[rows][:, hidden] - shift
            result[rows] += log_box(0.0, factor_of(rest), *bounds)
    if np.isfinite(box_low).any() or np.isfinite(box_high).any():
        low, high = (np.broadcast_to(x, lower.shape) - loc for x in (box_low, box_high))
        same, back = np.unique(np.hstack([low, high]), axis=0, return_inverse=True)
        low, high = np.hsplit(same, 2)
        result -= log_box(0.0, factor_of(covariance), low, high)[back.ravel()]
    return result


def hessian(function, p):
    """Second derivatives in p numbers at 0, by central differences in them, extrapolated once,
    and before that."""

    def once(h):
        moves, found = h * np.eye(p), np.empty((p, p))
        for i in range(p):
            for j in range(i + 1):
                corners = [function(s * moves[i] + t * moves[j]) for s in (1, -1) for t in (1, -1)]
                four = corners[0] - corners[1] - corners[2] + corners[3]
                found[i, j] = found[j, i] = four / (4 * h * h)
        return found

    wide, narrow = once(4e-4), once(2e-4)
    return (4 * narrow - wide) / 3, narrow


def best(log_likelihood, estimates, errors, starts):
    """The highest log-likelihood that BFGS of SciPy reaches from the estimates and from starts."""
    scale = np.where(np.isfinite(errors) & (errors > 0), errors, 1.0)
    finite = lambda x: x if np.isfinite(x) else -1e10
    loss = lambda u: -finite(log_likelihood(estimates + scale * u))
    highest = -loss(np.zeros(len(estimates)))
    for start in starts:
        with np.errstate(all="ignore"):
            result = optimize.minimize(loss, (np.asarray(start) - estimates) / scale, method="BFGS")
        highest = max(highest, -result.fun)
    return highest
