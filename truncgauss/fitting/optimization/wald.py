"""Distance of a log-likelihood from quadratic, which tells whether to trust Wald's intervals.

References:
    Bates and Watts, "Relative curvature measures of nonlinearity", Journal of the Royal Statistical
        Society B (1980).
    Meeker and Escobar, "Teaching about approximate confidence regions based on maximum likelihood
        estimation", The American Statistician (1995).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import lambertw, ndtr

from truncgauss.execution.compiling import Compiled, closed_form
from truncgauss.fitting.optimization.newton import Point, derivatives_along

# Coverage of a 95 % Wald interval, below which it is not to be trusted. In simulations with a few
# hundred fits each (docs/reading-a-fit.md) estimates covered at .93 to .97 are seldom below, but
# for tetrachoric correlations near 1 whose table would mostly have an empty cell. A lower threshold
# would miss what matters: of 200 rows above 1 standard deviation, whose mean Wald covers at .87, it
# is the least skewed tenth of the samples that miss the truth: below .92 are 93 % of these samples,
# below .90 half of them.
LEAST_COVERED = 0.92
QUANTILE = 1.959964  # half the width of a 95 % interval, in standard errors
APART = 0.05  # of the way to the end of a Wald interval: values for differences are so far apart


def wald_ratios(
    loss: Callable[[np.ndarray, np.ndarray], tuple[float, float, float]],
    size: float,
    best: np.ndarray,
    covariance: np.ndarray,
    estimates: Callable[[np.ndarray], np.ndarray],
    jacobian: np.ndarray,
) -> np.ndarray:
    """Wald's statistic W over the signed root R of the likelihood ratio, for each estimate in
    samples whose maximum lies below and above the fitted one so that W is 1.96; (p, 2), 1 if the
    log-likelihood is quadratic, or the estimate fixed; 0 if W is that nowhere, and inf where it
    is not finite.

    Were the fitted parameters x0 the true ones, samples have their maximum at other x. The rows'
    scores move the log-likelihood by a linear term (exactly so in an exponential family), so that
    x is tested against x0 by the fall of loss(x') - loss'(x) x' from x0 to x, and Wald's standard
    error is that of the curvature at x. Along covariance @ jacobian_k, the direction in which the
    profile likelihood of estimate k leaves the maximum, both are derivatives along a line. They are
    computed 1.96 standard errors of the fit away; from there to the maximum, where W / R is 1, that
    is taken for exp(c R), so that W = 1.96 at R = LambertW(1.96 c) / c.

    Args:
        loss: (x, direction) -> minus the mean log-likelihood of a row, and its first and second
            derivatives along that direction.
        size: how many rows that is the mean of.
        best: x where it is lowest, (q,).
        covariance: of x there, (q, q).
        estimates: x -> (p,).
        jacobian: of the estimates, (p, q).
    """
    lowest, centre = loss(best, np.zeros_like(best))[0], estimates(best)
    ratios = np.full((len(jacobian), 2), np.inf)
    for k, slope in enumerate(jacobian):
        variance = float(slope @ covariance @ slope)
        if variance == 0:
            ratios[k] = 1.0  # it is fixed
        if not variance > 0:
            continue
        error = variance**0.5
        step = QUANTILE * (covariance @ slope) / error
        for j, side in enumerate((-1.0, 1.0)):
            points = [best + side * (1.0 + apart) * step for apart in (-APART, 0.0, APART)]
            with jax.debug_nans(False):  # by which a step out of the domain is known
                there, tilt, bend = loss(points[1], side * step)
                values = [float(estimates(x)[k]) for x in points]
            fall, moved = size * (lowest - there + tilt), abs(values[1] - centre[k])
            rate = abs(values[2] - values[0]) / (2.0 * APART)
            if np.all(np.isfinite([fall, bend, moved, rate])) and min(fall, bend, rate) > 0:
                root = np.sqrt(2.0 * fall)
                ratios[k, j] = ratio_where_tested(moved * np.sqrt(size * bend) / rate, root)
    return ratios


def ratio_where_tested(statistic: float, root: float) -> float:
    """W / R where W is 1.96, from W and R at another point, see `wald_ratios`."""
    slope = QUANTILE * np.log(statistic / root) / root
    if slope < -np.exp(-1.0):
        return 0.0
    return float(slope / np.real(lambertw(slope))) if abs(slope) > 1e-9 else 1.0


def by_differences(
    loss: Callable[[np.ndarray], float],
) -> Callable[[np.ndarray, np.ndarray], tuple[float, float, float]]:
    """A loss with its derivatives along a direction, as `wald_ratios` takes it, by differences."""

    def along(x: np.ndarray, direction: np.ndarray) -> tuple[float, float, float]:
        before, at, after = (loss(x + share * direction) for share in (-APART, 0.0, APART))
        return at, (after - before) / (2.0 * APART), (after - 2.0 * at + before) / APART**2

    return along


@functools.partial(Compiled, cost=closed_form)
def estimates_at(coordinates: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The estimates (p,) at free coordinates x, and their Jacobian (p, q)."""
    return coordinates.estimates(x), jax.jacfwd(coordinates.estimates)(x)


def ratios_of(
    loss: Any,
    end: Point,
    coordinates: Any,
    jacobian: np.ndarray,
    some: Any = slice(None),
    value: Callable[[np.ndarray], float] | None = None,
) -> np.ndarray:
    """`wald_ratios` of some of the estimates, all of which have that Jacobian; `value` is the loss,
    if there is a program for that alone. The estimates may be a function of x too."""
    size = float(loss.size)

    def derivatives(x: np.ndarray, direction: np.ndarray) -> tuple[float, float, float]:
        if x is end.x:
            return end.loss, 0.0, 0.0
        if value is not None:
            return by_differences(value)(x, direction)
        return derivatives_along(loss, x, direction)

    def estimates(x: np.ndarray) -> np.ndarray:
        at = jnp.asarray(x)
        values = coordinates(at) if callable(coordinates) else estimates_at(coordinates, at)[0]
        return np.asarray(values)[some]

    covariance = np.linalg.inv(size * end.hessian)
    return wald_ratios(derivatives, size, end.x, covariance, estimates, jacobian[some])


def coverages(ratios: np.ndarray) -> np.ndarray:
    """The share of samples in which Wald intervals of 95 % hold the truth, (p,), if that is the fit
    and the signed root of the likelihood ratio a standard normal variable (Barndorff-Nielsen and
    Cox, "Inference and Asymptotics", 1994, section 2.3): Phi(1.96 / r) of both ends, less 1."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.sum(ndtr(QUANTILE / ratios), axis=1) - 1.0)


def untrusted(ratios: np.ndarray) -> np.ndarray:
    """A mask of Wald intervals, (p,), that are not to be trusted."""
    return np.asarray(~(coverages(ratios) >= LEAST_COVERED))
