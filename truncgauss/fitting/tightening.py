"""Sensitivity of estimates to the rows near their limits of truncation."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.engine import scores_of
from truncgauss.fitting.one_outcome import (
    RegressionLoss,
    full_design,
    limits_of,
    terms_of,
)
from truncgauss.fitting.optimization.newton import CLOSE, Point, newton_steps, point
from truncgauss.fitting.optimization.uncertainty import certificate, scaled_spectrum
from truncgauss.fitting.optimization.wald import estimates_at, ratios_of
from truncgauss.fitting.result import LikelihoodFit
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import Observations

MOST_STEPS = 100
CONTRADICTED = 0.05  # p-value
NO_GUIDE = 3.0  # ratio of Wald's half-width to the likelihood's, or its inverse


class Tightening(NamedTuple):
    """Estimates with limits of truncation moved inwards; `print` shows a table.

    Attributes:
        names: what the estimates are called.
        num_rows: how many rows are left.
        estimates: from these, (p,).
        shift: by how much they have moved, (p,).
        standard_error: of that by chance, (p,).
        statistic: chi-squared with `degrees` degrees of freedom if the model is right.
        degrees: p, less directions in which nothing moves.
        p_value: P(chi-squared > statistic); NaN where the rows that are left nearly fail to
            determine the estimates: where the likelihood allows one of these to move three times
            as far as its standard error says, or a third. Chi-squared is no guide then.
    """

    names: tuple[str, ...]
    num_rows: int
    estimates: np.ndarray
    shift: np.ndarray
    standard_error: np.ndarray
    statistic: float
    degrees: int
    p_value: float

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [f"{'':{width}}  {'tightened':>12} {'shift':>12} {'by chance':>12}"]
        for name, *numbers in zip(self.names, self.estimates, self.shift, self.standard_error):
            lines.append(f"{name:{width}}  " + " ".join(f"{number:12.6g}" for number in numbers))
        verdict = "The estimates move no more than chance would have it."
        if np.isnan(self.p_value):
            verdict = (
                "The tightened fit is nearly undetermined: its likelihood is so far from quadratic "
                "that no p-value is known. Take a smaller share."
            )
        elif self.p_value < CONTRADICTED:
            verdict = "The rows contradict the Gaussian shape, at the level of 5 %."
        return "\n".join(
            [
                *lines,
                f"{self.num_rows} rows are left inside the tightened limits. Chi-squared of all "
                f"shifts {self.statistic:.3g}, {self.degrees} degrees of freedom: p = "
                f"{self.p_value:.2g}.",
                verdict,
            ]
        )


def tightened(fit: LikelihoodFit, share: float = 0.1) -> Tightening:
    """The same fit with each limit of truncation moved inwards, beyond a share of the rows.

    If the unseen part is as Gaussian as the model says the estimates move by chance only. The
    covariance of that is the sum over rows of d_i d_i^T, with d_i the difference of what row i adds
    to both estimates: an always positive form of Hausman's. A small p-value says that the answer
    depends on a shape that the rows contradict; a large one that they do not show any such thing.

    Args:
        fit: of one outcome with a region, from `fit_regression` or `fit_observations`.
        share: of the rows, that the new limits leave out.

    Returns:
        Tightening.

    Raises:
        ValueError: for a fit of several outcomes, without limits of truncation, or not converged;
            for rows of which it is not known on which side of a new limit they are; or if the
            tightened rows have no maximum.

    Example:
        >>> y = -jnp.log1p(-(jnp.arange(60.0) + 0.5) / 60) + 0.05  # no Gaussian
        >>> rows = tg.Observations.exact(y**0.7, region=tg.Box([0.0], [jnp.inf]))
        >>> fit = tg.fit_observations(rows)
        >>> tg.fitting.tightened(fit, share=0.2).num_rows
        48

    References:
        Hausman, "Specification tests in econometrics", Econometrica (1978).
    """
    if not isinstance(fit, LikelihoodFit) or fit.centred is None:
        raise ValueError(
            "tightened: needs a fit of fit_regression or fit_observations; one of "
            "fit_truncated_normal does not keep its rows."
        )
    loss, rows = fit.loss, fit.centred
    if not isinstance(loss, RegressionLoss) or not isinstance(rows.region, Box):
        raise ValueError("tightened: the fit must be of one outcome, with limits of truncation.")
    if not fit.converged:
        raise ValueError(f"tightened: the fit has not converged. {fit.reason}")
    if not 0.0 < share < 1.0:
        raise ValueError(f"tightened: share must lie between 0 and 1, got {share}.")
    with jax.enable_x64(True), loss.sums.working():
        return of_rows(fit, loss, share)


def of_rows(fit: LikelihoodFit, loss: RegressionLoss, share: float) -> Tightening:
    """The same, of a fit that is known to allow it."""
    rows, sums = fit.centred, loss.sums
    assert rows is not None
    closer = with_limits_moved(rows, share, sums)
    weights = np.asarray(closer.weights)
    if len(loss.design) == 1:  # one mean for all rows, which are to be told apart here
        design = full_design(np.ones((rows.num_rows, 1)))
        loss = dataclasses.replace(loss, terms=terms_of(rows, each=True), design=design)
    size, left = sums.sum((weights.sum(), np.sum(weights > 0)))
    inner = dataclasses.replace(
        loss,
        terms=terms_of(closer, each=True),
        size=jnp.asarray(size),
        sums=sums_of_part(sums, share),
    )
    start = point(inner, fit.best.x)
    *_, end = start, *newton_steps(functools.partial(point, inner), start, MOST_STEPS)
    proof = certificate(float(size) * end.gradient, float(size) * end.hessian)
    if not (proof.positive_definite and proof.distance <= CLOSE):
        raise ValueError(
            "tightened: no maximum was found with the rows that are left. Take a smaller share."
        )
    estimates, moves = influences(inner, end, fit.coordinates, rows.num_rows)
    moves = moves - influences(loss, fit.best, fit.coordinates, rows.num_rows)[1]
    counts = rows.row_weights
    seen = counts > 0
    covariance = sums.sum(moves[seen].T @ (moves[seen] / counts[seen, None]))
    result = compared(fit.names, int(left), estimates, fit.estimates, covariance)
    return result._replace(p_value=np.nan) if undetermined(inner, end, fit) else result


def sums_of_part(sums: RowSums, share: float) -> RowSums:
    """Sums over rows of which a share is left out."""
    if sums.fingerprint is None:
        return sums
    of_share = jnp.asarray(np.array([share]).view(np.uint32))
    return RowSums(sums.share, jnp.concatenate([sums.fingerprint, of_share]))


def undetermined(loss: RegressionLoss, end: Point, fit: LikelihoodFit) -> bool:
    """Whether the log-likelihood of the rows that are left is so far from quadratic that Wald's
    intervals are no guide."""
    jacobian = np.asarray(estimates_at(fit.coordinates, jnp.asarray(end.x))[1])
    ratios = ratios_of(loss, end, fit.coordinates, jacobian)
    return not np.all((ratios <= NO_GUIDE) & (ratios >= 1.0 / NO_GUIDE))


def influences(
    loss: RegressionLoss, end: Point, coordinates: Any, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """The estimates, and by how much each row, times its weight, moves them, (n, p)."""
    x = jnp.asarray(end.x)
    estimates, jacobian = map(np.asarray, estimates_at(coordinates, x))
    scores = np.asarray(scores_of(loss, x))[:num_rows]
    slopes = np.linalg.solve(float(loss.size) * end.hessian, jacobian.T)
    return estimates, scores @ slopes


def with_limits_moved(rows: Observations, share: float, sums: RowSums) -> Observations:
    """The rows with limits moved inwards; those beyond have weight 0."""
    lower, upper, low, high = limits_of(rows)
    weights = rows.row_weights
    with np.errstate(invalid="ignore"):
        sides = [np.where(np.isnan(side), np.inf, side) for side in (lower - low, high - upper)]
    gap = np.maximum(np.minimum(*sides), 0.0)[weights > 0]
    rank = math.ceil(share * (sums.count(gap) - 1)) + 1
    step = sums.smallest(gap, rank)
    if not 0.0 < step < np.inf:
        raise ValueError(
            f"tightened: {share:.3g} of the rows sit on their limits, or have none. Take another "
            "share."
        )
    low, high = low + step, high - step
    out = (upper < low) | (lower > high)
    straddling = ~out & ((lower < low) | (upper > high)) & (weights > 0)
    with sums.checked():
        if straddling.any():
            raise ValueError(
                f"tightened: of {straddling.sum()} row(s), first row "
                f"{np.flatnonzero(straddling)[0]}, it is not known on which side of a new limit "
                "they are: they are censored or intervals there."
            )
    return Observations(
        rows.lower,
        rows.upper,
        Box(low[:, None], high[:, None]),
        noise=rows.noise,
        weights=jnp.asarray(np.where(out, 0.0, weights)),
    )


def compared(
    names: tuple[str, ...],
    num_rows: int,
    estimates: np.ndarray,
    before: np.ndarray,
    covariance: np.ndarray,
) -> Tightening:
    """The chi-squared of a shift, in the directions in which it varies beyond rounding."""
    shift, errors = estimates - before, np.sqrt(np.diagonal(covariance))
    units, values, vectors = scaled_spectrum(covariance)
    known = values > 1e-9 * values.max(initial=0.0)
    along = vectors[:, known].T @ (shift / units)
    statistic, degrees = float(np.sum(along**2 / values[known])), int(known.sum())
    p_value = float(stats.chi2.sf(statistic, degrees))
    return Tightening(names, num_rows, estimates, shift, errors, statistic, degrees, p_value)
