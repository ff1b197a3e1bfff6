"""Wald's intervals: the table that prints them, and how far the log-likelihood is from quadratic,
which tells whether to trust them.

References:
    Bates and Watts, "Relative curvature measures of nonlinearity", Journal of the Royal Statistical
        Society B (1980).
    Meeker and Escobar, "Teaching about approximate confidence regions based on maximum likelihood
        estimation", The American Statistician (1995).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.polynomial.polynomial import polyder, polyval
from scipy.special import ndtr

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.fitting.newton import Loss, Point, point, slopes_at

# Coverage of a 95 % Wald interval, below which it is not to be trusted: in simulations with a few
# hundred fits each (docs/reading-a-fit.md) estimates covered at .93 to .97 are seldom below.
LEAST_COVERED = 0.92
QUANTILE = 1.959964  # half the width of a 95 % interval, in standard errors
APART = 0.05  # of a step: values for differences are so far apart
BESIDE = 1e-3  # of a direction: gradients whose difference is the second derivative along it
STEP = 2.0  # standard errors between points of a line
CLOSE = 0.945  # coverage by the first two points, from which no others are computed
CELLS = 64  # between two points, in each of which probabilities are summed
# Gauss-Hermite's rule for the mean of a function of a standard normal variable.
TRUTHS, SHARES = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0)]), np.array([1.0, 4.0, 1.0]) / 6.0


def wald_coverages(
    loss: Callable[[list[np.ndarray], np.ndarray], Sequence[tuple[float, float, float]]],
    size: float,
    best: np.ndarray,
    covariance: np.ndarray,
    estimates: Callable[[np.ndarray], np.ndarray],
    jacobian: np.ndarray,
    exists: Callable[[np.ndarray], float] = lambda x: 1.0,
) -> np.ndarray:
    """The share of samples in which Wald's 95 % interval of each estimate holds the truth, (p,), a
    mean over what may be the truth; .95 if the log-likelihood is quadratic, or the estimate fixed.

    All is computed on a line along covariance @ jacobian_k, on which the profile likelihood of
    estimate k leaves the maximum. Were x0 the truth, samples have their maximum at other x. The
    rows' scores move the log-likelihood by a linear term (exactly so in an exponential family), so
    that x is tested against x0 by the fall of loss(x') - loss'(x) x' from x0 to x, and its signed
    root R is taken for a standard normal variable (Barndorff-Nielsen and Cox, "Inference and
    Asymptotics", 1994, section 2.3). Wald's W has the standard error by the curvature at x. The
    coverage at x0 is the probability that |W| < 1.96.

    The fit is an estimate of x0 that errs in one direction where it matters: samples whose interval
    misses the truth lie where the log-likelihood is straighter than at the truth. So the mean is
    taken over the truths that the likelihood leaves: the signed root of its ratio is normal. Of
    pairs of a truth and its sample those count that have an estimate, so that each truth weighs by
    the share of its samples that have one.

    The line is interpolated between points 2 and 4, or 3, standard errors on both sides, by two
    derivatives of the loss and of the estimate. Samples beyond them, and those where something is
    not finite, count as missed. Where the points at 2 alone tell that the line is straight, the
    others are left out.

    Args:
        loss: (points, direction) -> of each of a list of points x, minus the mean log-likelihood of
            a row, and its first and second derivatives along that direction.
        size: how many rows that is the mean of.
        best: x where it is lowest, (q,).
        covariance: of x there, (q, q).
        estimates: (m, q) -> (m, p).
        jacobian: of the estimates, (p, q).
        exists: x -> the share of samples that have an estimate if x is the truth.
    """
    lowest, centre = loss([best], np.zeros_like(best))[0][0], estimates(best[None])[0]
    covered = np.zeros(len(jacobian))
    for k, slope in enumerate(jacobian):
        variance = float(slope @ covariance @ slope)
        if variance == 0:
            covered[k] = 0.95  # it is fixed
        if not variance > 0:
            continue
        step = STEP * (covariance @ slope) / variance**0.5
        # Of five points: the fall and the change of the estimate, each with two derivatives.
        at, points = np.arange(-2.0, 3.0), np.full((5, 2, 3), np.nan)
        for numbers, distances in (((1, 2, 3), (1.0,)), ((0, 4), (2.0, 1.5))):
            for distance in distances:
                left = [j for j in numbers if not np.all(np.isfinite(points[j]))]
                at[left] = np.sign(np.array(left, int) - 2) * distance
                falls = {2: (0.0, 0.0, STEP**2)} if 2 in left else {}
                with jax.debug_nans(False):  # by which a step out of the domain is known
                    if moved := [j for j in left if j != 2]:
                        slopes = loss([best + at[j] * step for j in moved], step)
                        falls |= dict(zip(moved, size * (np.array(slopes) - [lowest, 0.0, 0.0])))
                        falls = {j: fall for j, fall in falls.items() if np.all(np.isfinite(fall))}
                    if not falls:
                        continue
                    near = np.add.outer(at[list(falls)], (-APART, 0.0, APART)).ravel()
                    values = estimates(best + near[:, None] * step)[:, k] - centre[k]
                for (j, fall), (before, here, after) in zip(falls.items(), values.reshape(-1, 3)):
                    if np.all(np.isfinite((before, here, after))):
                        rate = (after - before) / (2.0 * APART)
                        turn = (before - 2.0 * here + after) / APART**2
                        points[j] = fall, (here, rate, turn)
            if 2 in numbers:
                covered[k] = coverage_beside(points)
            else:
                covered[k] = coverage_along(at, points, exists, best, step)
            if covered[k] >= CLOSE:
                break
    return covered


def coverage_beside(points: np.ndarray) -> float:
    """Phi(1.96 R / W) of both sides less 1, from the points next to the fit, if that is the truth:
    the coverage where the line is straight, see `wald_coverages`."""
    covered = -1.0
    for side, ((fall, tilt, bend), (moved, rate, _)) in ((-1.0, points[1]), (1.0, points[3])):
        squared, rises = 2.0 * (side * tilt - fall), side * np.sign(moved) * rate
        if np.isfinite(fall + moved + rate) and min(bend, squared, rises) > 0:
            covered += ndtr(QUANTILE * np.sqrt(squared / bend) * abs(rate / moved))
    return float(covered)


def coverage_along(
    at: np.ndarray,
    points: np.ndarray,
    exists: Callable[[np.ndarray], float],
    best: np.ndarray,
    step: np.ndarray,
) -> float:
    """The mean coverage, see `wald_coverages`, from what is known of five points of the line of
    best + t step."""
    finite = np.all(np.isfinite(points), axis=(1, 2))
    first, last = (2 + side * sum(np.cumprod(finite[2 + side :: side])) for side in (-1, 1))
    if first == last:
        return 0.0
    at, known = at[first : last + 1], points[first : last + 1]
    t = np.linspace(at[0], at[-1], CELLS * (last - first) + 1)
    middle = int(np.argmin(np.abs(t)))
    (fall, tilt, bend), (moved, rate, _) = (quintics(at, known[:, j], t) for j in (0, 1))
    bad = np.flatnonzero(~((bend > 0) & (rate * np.sign(rate[middle]) > 0)))
    if middle in bad:  # the loss is not bent there, or the value does not move
        return 0.0
    inside = slice(max(bad[bad < middle], default=-1) + 1, min(bad[bad > middle], default=len(t)))
    t, fall, tilt, bend, moved, rate = (x[inside] for x in (t, fall, tilt, bend, moved, rate))
    root = np.sign(t) * np.sqrt(2.0 * np.maximum(fall, 0.0))
    covered = weights = 0.0
    for share, k in zip(SHARES, np.rint(np.interp(TRUTHS, root, np.arange(len(t)))).astype(int)):
        way = t - t[k]
        squared = 2.0 * np.maximum(fall[k] - fall + tilt * way, 0.0)
        chances = np.diff(ndtr(np.sign(way) * np.sqrt(squared)))
        statistic = np.abs((moved - moved[k]) / rate * np.sqrt(bend))
        low, high = np.sort([statistic[1:], statistic[:-1]], axis=0)
        held = np.clip((QUANTILE - low) / np.maximum(high - low, 1e-300), 0.0, 1.0)
        weight = share * exists(best + t[k] * step)
        covered, weights = covered + weight * float(held @ chances), weights + weight
    return covered / weights


@np.errstate(over="ignore", invalid="ignore")
def quintics(at: np.ndarray, known: np.ndarray, t: np.ndarray) -> list[np.ndarray]:
    """Hermite's piecewise polynomial through values and two derivatives (n, 3) at points (n,), with
    its two derivatives, at t."""
    k = np.clip(np.searchsorted(at, t, "right") - 1, 0, len(at) - 2)
    units = np.diff(at)[k] ** np.arange(3.0)[:, None]
    ends = [polyval(side, polyder(np.eye(6), m)) for side in (0.0, 1.0) for m in range(3)]
    powers = np.linalg.solve(ends, np.concatenate([known[k].T * units, known[k + 1].T * units]))
    return [polyval((t - at[k]) / units[1], polyder(powers, m), False) / units[m] for m in range(3)]


def by_differences(
    loss: Callable[[np.ndarray], float],
) -> Callable[[list[np.ndarray], np.ndarray], list[tuple[float, float, float]]]:
    """A loss with its derivatives along a direction by differences, for `wald_coverages`."""

    def along(x: np.ndarray, direction: np.ndarray) -> tuple[float, float, float]:
        before, at, after = (loss(x + share * direction) for share in (-APART, 0.0, APART))
        return at, (after - before) / (2.0 * APART), (after - 2.0 * at + before) / APART**2

    return lambda points, direction: [along(x, direction) for x in points]


@functools.partial(Compiled, cost=closed_form)
def estimates_at(coordinates: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The estimates (p,) at free coordinates x, and their Jacobian (p, q)."""
    return coordinates.estimates(x), jax.jacfwd(coordinates.estimates)(x)


@functools.partial(Compiled, cost=closed_form)
def estimates_of(coordinates: Any, points: jax.Array) -> jax.Array:
    """The estimates (m, p) at free coordinates (m, q)."""
    return jax.lax.map(coordinates.estimates, points)


def coverages_of(
    loss: Loss,
    end: Point,
    coordinates: Any,
    jacobian: np.ndarray,
    some: Any = slice(None),
    value: Callable[[np.ndarray], float] | None = None,
    exists: Callable[[np.ndarray], float] = lambda x: 1.0,
) -> np.ndarray:
    """`wald_coverages` of some of the estimates, all of which have that Jacobian; `value` is the
    loss, if there is a program for that alone. The estimates may be a function of x too."""
    size = float(loss.size)

    def derivatives(points: list[np.ndarray], along: np.ndarray) -> Any:
        if points[0] is end.x:
            return [(end.loss, 0.0, 0.0)]
        if value is not None:
            return by_differences(value)(points, along)
        if loss.steps(points[0]) is None and not loss.iterated:
            each = [point(loss, x) for x in points]
            return [(p.loss, p.gradient @ along, along @ p.hessian @ along) for p in each]
        sides = [x + side * along for side in (-BESIDE, BESIDE) for x in points]
        ends = list(zip(*slopes_at(loss, sides)[:2]))  # by one call, whose work is little
        return [
            ((low + high) / 2, (g + h) / 2 @ along, (h - g) / (2 * BESIDE) @ along)
            for (low, g), (high, h) in zip(ends[: len(points)], ends[len(points) :])
        ]

    def estimates(points: np.ndarray) -> np.ndarray:
        if callable(coordinates):
            return np.stack([np.asarray(coordinates(jax.device_put(x)))[some] for x in points])
        filled = np.concatenate([points, np.repeat(points[:1], max(9 - len(points), 0), axis=0)])
        return np.asarray(estimates_of(coordinates, filled))[: len(points), some]

    covariance = np.linalg.inv(size * end.hessian)
    problem = size, end.x, covariance, estimates, jacobian[some], exists
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite counts as missed
        return wald_coverages(derivatives, *problem)


def untrusted(coverages: np.ndarray) -> np.ndarray:
    """A mask of Wald intervals, (p,), that are not to be trusted."""
    return np.asarray(~(coverages >= LEAST_COVERED))


def table_of(
    names: Sequence[str], estimates: Any, errors: Any, profiles: Mapping[str, Any] = {}
) -> list[str]:
    """The lines of a table of estimates, with standard errors and 95 % intervals: Wald's, but for
    those that have a profile interval."""
    width, quantile = max(map(len, names), default=0), 1.959963984540054
    head = "95 % interval" if profiles else "95 % Wald interval"
    lines = [f"{'':{width}}  {'estimate':>12} {'std. error':>12} {head:>26}"]
    for name, value, error in zip(names, np.asarray(estimates), np.asarray(errors)):
        low, high = profiles.get(name, (value - quantile * error, value + quantile * error))
        interval = f"[{low:.6g}, {high:.6g}]"
        kind = ("  profile" if name in profiles else "  Wald") if profiles else ""
        lines.append(f"{name:{width}}  {value:12.6g} {error:12.6g} {interval:>26}{kind}")
    return lines
