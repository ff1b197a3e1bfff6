"""Whether a maximum of the likelihood exists: directions along which it rises for ever.

For rows without a region the log-likelihood of one outcome is concave in (coefficients / sigma,
1 / sigma). It has a maximum unless it never falls along some direction (b, t) with t >= 0: one with

    t lower_i <= x_i . b <= t upper_i    in every row i,

of which not all are equations with t = 0. With t = 0 the rows are separated: some censored rows
are met the better the farther the coefficients go. With t > 0 the coefficients b / t meet every
row, and sigma falls to 0. Such a direction is the solution of a linear program.

With regions there may be no maximum for other reasons too, but such a direction still leads up for
ever: truncated Gaussians are ordered by their means, and a region has mass 1 around exact rows as
sigma falls to 0.

References:
    Albert and Anderson, "On the existence of maximum likelihood estimates in logistic regression
        models", Biometrika (1984).
    Rockafellar, "Convex Analysis" (1970), section 27: directions of recession.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from truncgauss.fitting.least_squares import is_well_conditioned, least_squares, products_of
from truncgauss.optimize.uncertainty import FreeErrors

MANY = 4000  # rows of a linear program; beyond, it is solved for some and the others are looked up
MOST_ROUNDS = 100
FEASIBLE = 1e-7  # of the largest entry: what the program's solver calls 0
MEANT = 1e-6  # by which the rows together must be met better
FALLING = 1e-3  # t in the unit box: what counts as a sigma that falls where all rows are equations
ROUNDING = 64 * np.finfo(float).eps  # of the terms of a sum
CANCELLED = 1e-9  # of the parts of an entry of a direction, below which that is 0
ABSURD = 1e4  # errors of coefficients, in what a Gaussian's own width over the covariates allows

NO_VARIANCE = 1e-8  # of the square of the rows' spread
AT_ZERO = (
    "The likelihood is highest at the edge of what can be, at variance 0: the noise alone explains "
    "how far the observations spread. Standard errors and intervals do not hold there; the noise "
    "may be overstated."
)
AT_SINGULAR = (
    "The likelihood is highest at the edge of what can be, at a singular covariance: the noise "
    "alone explains how far the observations spread in some direction.{} Standard errors and "
    "intervals do not hold there; the noise may be overstated."
)

UNDETERMINED = (
    "No maximum was found: the steps ended where the observations say next to nothing of {}, whose "
    f"standard errors are more than {ABSURD:.0f} times what the width of the Gaussian over that of "
    "the covariates allows. The likelihood may grow for ever there; drop those covariates, or use "
    "a prior."
)

COMPARED = (
    "{} are compared with the outcome as it is fitted: where a formula takes its logarithm, they "
    "are logarithms too."
)


def explained(log_likelihood: Callable[[float], float]) -> bool:
    """Whether the likelihood is no lower without variance, as far as numbers show.

    Args:
        log_likelihood: of all rows, by a factor of all standard deviations.
    """
    fitted, without = log_likelihood(1.0), log_likelihood(1e-6)
    return without >= fitted - 1e-6 * max(1.0, abs(fitted) * 1e-3)


def rising_direction(
    lower: np.ndarray,
    upper: np.ndarray,
    design: np.ndarray,
    scale_known: bool,
) -> np.ndarray | None:
    """A direction (b, t), (p + 1,), along which the likelihood of one outcome never falls; None if
    there is none, so that a maximum exists.

    Args:
        lower, upper: (n,), as in `Observations`, without a region.
        design: (n, p).
        scale_known: whether sigma cannot fall to 0: it is known, or there is noise; t is then 0.

    Example:
        >>> y, x = np.array([0.0, 0.0, 1.0, 1.0]), np.array([[1.0, -1], [1, 0], [1, 1], [1, 2]])
        >>> lower, upper = np.where(y > 0, 0.0, -np.inf), np.where(y > 0, np.inf, 0.0)
        >>> rising_direction(lower, upper, x, scale_known=True) is None
        False
    """
    known = np.isfinite(lower) | np.isfinite(upper)
    lower, upper, design = lower[known], upper[known], design[known]
    exact = lower == upper
    # From the line through the exact rows: their spread must not drown in how far they are from 0.
    line = least_squares(design[exact], lower[exact])
    fitted = design @ line
    terms = np.abs(design[exact]) @ np.abs(line) + np.abs(lower[exact])
    rounding = ROUNDING * terms.max(initial=0.0)
    lower, upper = lower - fitted, upper - fitted
    met = np.flatnonzero(exact)[np.abs(lower[exact]) <= rounding]
    lower[met] = upper[met] = 0.0
    sizes = np.abs(design).max(axis=0, initial=0.0)
    line = np.where(np.abs(line) * sizes > rounding, line, 0.0)
    finite = np.abs(np.concatenate([lower, upper]))
    unit = np.abs(lower[exact]).max(initial=0.0)
    unit = unit or finite[np.isfinite(finite)].max(initial=0.0)
    sizes = np.append(np.where(sizes > 0, sizes, 1.0), unit or 1.0)
    points = np.column_stack([design[exact], -lower[exact]]) / sizes
    if scale_known:
        points = points[:, :-1]
    if len(points) >= points.shape[1]:  # equations that leave the zero only
        values = np.linalg.eigvalsh(points.T @ points)
        if values[0] > 1e-10 * values[-1]:
            return None
    sides = [
        np.column_stack([sign * design[side], -sign * limit[side]]) / sizes
        for sign, limit in ((1.0, lower), (-1.0, upper))
        for side in [np.isfinite(limit)]
    ]
    rows = np.concatenate(sides)
    rows /= np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0.0), 1.0)
    direction = recession(rows, scale_known, bool(exact.any()))
    if direction is None:
        return None
    direction = direction / sizes
    slopes = sums_beyond_rounding(np.column_stack([direction[:-1], direction[-1] * line]))
    return np.append(slopes, direction[-1])


def sums_beyond_rounding(parts: np.ndarray) -> np.ndarray:
    """Sums of rows (p, q), 0 where all that is left of their parts is rounding."""
    total = parts.sum(axis=1)
    return np.where(np.abs(total) > CANCELLED * np.abs(parts).sum(axis=1), total, 0.0)


def rising_sentence(direction: np.ndarray, names: list[str], exact: np.ndarray) -> str:
    """The meaning of a direction from `rising_direction` of rows that are exact or not, (n,)."""
    slopes, falling = direction[:-1], direction[-1]
    if falling > 0:
        met = ", ".join(f"{name} = {b / falling:.6g}" for name, b in zip(names, slopes))
        how, advice = "meets every observation exactly", "or say what noise there is"
        if not exact.all():
            how = "meets every exact observation and lies within the bounds of all others"
        if not exact.any():
            how = "lies within the bounds of every observation, of which none is known exactly"
            advice = "narrower bounds in the units of the outcome, or a known variance"
        return (
            f"There is no maximum: the likelihood grows as the variance falls to 0, since {met} "
            f"{how}. Use more observations, fewer covariates, {advice}."
        )
    slopes = slopes / np.abs(slopes).max()
    moved = ", ".join(f"{b:.3g} in {name}" for name, b in zip(names, slopes) if b)
    return (
        "There is no maximum: the observations are separated. The likelihood grows for ever along "
        f"the direction of {moved}: censored observations are met the better the farther that "
        "goes, and no other observation objects. Drop the covariates that separate them, or use a "
        "prior in NumPyro."
    )


def all_censored(lower: np.ndarray, upper: np.ndarray, recorded: str = "", name: str = "") -> str:
    """A sentence about outcomes of which all are censored on one side, with their limits and the
    numbers that were recorded; empty for any others.

    Args:
        lower, upper: of those that are known in part, (n,).
        recorded: words on these numbers, where limits of censoring were compared with them.
        name: of the outcome among several.
    """
    scale = ", on the scale that is fitted: are these limits in the units of the outcome?"
    more = f"{recorded}. {COMPARED.format('Limits')}" if recorded else scale
    for side, limits, word in ((lower, upper, "most"), (upper, lower, "least")):
        if (n := len(side)) and np.all(np.isinf(side)):
            least, most = limits.min(), limits.max()
            ends = f"{least:.6g}" if least == most else f"{least:.6g} to {most:.6g}"
            outcomes = f"{n} of {n} outcomes{f' {name}' * bool(name)}"
            return f" {outcomes} are censored, known to be at {word} {ends}{more}"
    return ""


def absurd(errors: np.ndarray, width: float, transform: np.ndarray) -> np.ndarray:
    """A mask of coefficients, (p,), that are not determined: their errors exceed by `ABSURD` the
    width of the Gaussian over the spread of their covariates that the other covariates leave.

    Args:
        errors: (p,).
        width: the rows' standard deviation.
        transform: T, (p, p), such that the mean square of the covariates times T is the identity.
    """
    return ~(np.asarray(errors) <= ABSURD * width * np.linalg.norm(transform, axis=1))


def refused(ending: Any, undetermined: np.ndarray, sentence: str) -> Any:
    """A fit that has not converged, for a reason that names its coefficients that are not
    determined; the fit itself if there are none, or it has not converged anyway."""
    if not (ending.converged and undetermined.any()):
        return ending
    p, q = len(ending.names), ending.num_parameters
    return dataclasses.replace(
        ending,
        converged=False,
        reason=sentence.format(", ".join(ending.names[k] for k in np.flatnonzero(undetermined))),
        errors=np.full(p, np.inf),
        parameter_covariance=np.full((p, p), np.nan),
        free_errors=FreeErrors.observed(np.zeros((q, q))),
        wald_coverages=np.zeros(0),
    )


def clearly_bounded(
    lower: np.ndarray, upper: np.ndarray, design: np.ndarray, scale_known: bool
) -> bool:
    """Whether exact rows alone say, whatever rounding does, that `rising_direction` finds none: so
    it is of nearly all samples, and quick to see."""
    exact = lower == upper
    values = None if scale_known else np.where(exact, lower, 0.0)
    return is_well_conditioned(products_of(design, values, exact.astype(float)))


def recession(rows: np.ndarray, flat: bool, exact: bool = False) -> np.ndarray | None:
    """A direction v in the unit box with rows @ v >= 0, not all of them 0; None if there is none.

    With `flat` its last entry is 0; with `exact` rows all may be 0 if its last entry is positive.
    With many rows the program is solved for some, and those that its solution violates are added.
    """
    n, q = rows.shape
    bounds = [(-1.0, 1.0)] * (q - 1) + [(0.0, 0.0 if flat else 1.0)]
    total = rows.sum(axis=0)
    aim = -total / max(np.abs(total).max(), 1.0)
    aim[-1] -= exact
    chosen = np.arange(n)
    if n > MANY:
        chosen = np.random.default_rng(0).choice(n, min(n, MANY // 2), replace=False)
    for _ in range(MOST_ROUNDS):
        limits = -rows[chosen]
        solution = scipy.optimize.linprog(
            aim, A_ub=limits, b_ub=np.zeros(len(limits)), bounds=bounds, method="highs"
        )
        if not solution.success:
            raise RuntimeError(f"The linear program of existence failed: {solution.message}")
        values = rows @ solution.x
        falls = exact and solution.x[-1] > FALLING
        # No direction meets the rows better in sum than the solution.
        if values.sum() <= MEANT and not falls:
            return None
        violated = np.setdiff1d(np.flatnonzero(values < -FEASIBLE), chosen)
        if not len(violated):
            return np.where(np.abs(solution.x) > FEASIBLE, solution.x, 0.0)
        worst = violated[np.argsort(values[violated])][: MANY // 4]
        chosen = np.concatenate([chosen, worst])
    raise RuntimeError(f"Existence was not decided in {MOST_ROUNDS} linear programs.")
