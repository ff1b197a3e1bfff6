"""What a reader of a truncated fit must know: what it rests on, and whether its errors hold."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.fitting.optimization.newton import Point, slope
from truncgauss.fitting.optimization.wald import wald_ratios
from truncgauss.fitting.truncated_normal_loss import TruncatedLoss, gaussian, packed
from truncgauss.fitting.truncated_normal_result import with_sigma
from truncgauss.fitting.truncated_normal_rows import Sample

FELT = 0.1  # standard errors: an error of the integral that moves the estimates by more is told
SMALL = 0.05  # of a standard deviation or a variance: so small errors are those of a quadratic
MOST_COMPARED = 100  # estimates
NOT_COMPARED = "Wald intervals of covariances off the diagonal were not compared, as they are many."
ROUGHLY_KNOWN = (
    "The log-likelihood is known to {:.2g} only, as P is an estimate: give the method more points."
)
ROUGHLY_FOUND = (
    "The estimates may be off by {:.2g} of their standard errors, as P is an estimate: give the "
    "method more points, as in method=tg.Separation(num_points=8192)."
)


def wald_ratios_of(
    value: Callable[[np.ndarray], tuple[float, np.ndarray]] | None,
    size: float,
    here: Point,
    sample: Sample,
    slopes: np.ndarray,
    errors: np.ndarray,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """How far the log-likelihood is from quadratic at a maximum, see `wald_ratios`, (q, 2), and
    what was not compared; of very many estimates, off the diagonal of the covariance.

    Everything is in units of the sample's standard deviations.

    Args:
        value: natural parameters -> loss and gradient; None if the loss is an estimate, which is
            dear and not smooth enough for comparisons.
        size: the weight of all rows.
        here: the maximum.
        sample: the rows.
        slopes: the Jacobian of packed (loc, covariance) there, (q, q).
        errors: standard errors of these, (q,).
    """
    d = len(sample.columns)

    def estimates(x: np.ndarray) -> np.ndarray:
        return np.asarray(with_sigma(packed(*gaussian(jnp.asarray(x), sample.root))))

    rows, columns = np.tril_indices(d)
    roots = np.sqrt(np.diagonal(np.asarray(gaussian(jnp.asarray(here.x), sample.root)[1])))
    units = roots if d == 1 else roots[rows] * roots[columns]
    relative = errors / np.concatenate([roots, units])
    asked, left_out = np.flatnonzero(relative > SMALL), tuple[str, ...]()
    if len(asked) > MOST_COMPARED:
        asked = asked[(np.append(np.zeros(d, int), rows - columns) == 0)[asked]]
        left_out = (NOT_COMPARED,)
    ratios = np.ones((len(slopes), 2))
    if not len(asked):
        return ratios, left_out
    if value is None:
        return np.zeros((0, 2)), ("Wald intervals were not compared with the likelihood.",)
    spread = np.linalg.inv(size * here.hessian)
    loss = lambda x: value(x)[0]
    some = lambda x: estimates(x)[asked]
    ratios[asked] = wald_ratios(loss, size, here.x, spread, some, slopes[asked])
    return ratios, left_out


def integral_notes(loss: TruncatedLoss, here: Point, size: float, stderr: float) -> tuple[str, ...]:
    """What the error of log P leaves unknown, where P is an estimate.

    Args:
        loss: with its held method and key.
        here: the maximum.
        size: the weight of all rows.
        stderr: the standard error of the log-likelihood.
    """
    notes = (ROUGHLY_KNOWN.format(stderr),) if 0.1 < stderr < np.inf else ()
    off = moved_by_key(loss, here, size) if 0 < stderr < np.inf else 0.0
    return (*notes, *([ROUGHLY_FOUND.format(off)] if off > FELT else []))


def moved_by_key(loss: TruncatedLoss, here: Point, size: float) -> float:
    """By how many standard errors, in the most affected direction, the maximum may be off since P
    is an estimate: the Newton step to the maximum with another key, over the root of two."""
    key = jax.random.fold_in(loss.held.key, 1)
    other = dataclasses.replace(loss, held=dataclasses.replace(loss.held, key=key))
    gap = np.asarray(slope(other, jnp.asarray(here.x))[1]) - here.gradient
    return math.sqrt(max(0.0, 0.5 * size * gap @ np.linalg.solve(here.hessian, gap)))
