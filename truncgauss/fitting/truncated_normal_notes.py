"""What a reader of a truncated fit must know: what it rests on, and whether its errors hold."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from truncgauss.fitting.truncated_normal_loss import gaussian, packed
from truncgauss.fitting.wald import untrusted, wald_ratios
from truncgauss.optimization.newton import Point
from truncgauss.optimization.result import UNSEEN

SMALL = 0.05  # of a standard deviation or a variance: so small errors are those of a quadratic


def notes_of(
    evaluate: Callable[[np.ndarray], Point] | None,
    size: float,
    here: Point,
    slopes: np.ndarray,
    errors: np.ndarray,
    fraction: float,
) -> tuple[str, ...]:
    """Notes on a maximum, in units of the sample's standard deviations.

    Args:
        evaluate: natural parameters -> the point there; None if its loss is an estimate, which is
            dear and not smooth enough for comparisons.
        size: the weight of all rows.
        here: the maximum.
        slopes: the Jacobian of packed (loc, covariance) there, (q, q).
        errors: standard errors of these, (q,).
        fraction: the probability that a row can be seen.
    """
    notes = []
    if fraction < 0.5:
        notes.append(UNSEEN.format(fraction))
    return (*notes, *wald_notes(evaluate, size, here, slopes, errors))


def wald_notes(
    evaluate: Callable[[np.ndarray], Point] | None,
    size: float,
    here: Point,
    slopes: np.ndarray,
    errors: np.ndarray,
) -> tuple[str, ...]:
    """Which standard errors of means and variances do not bound the likelihood."""
    d = int(((9 + 8 * len(here.x)) ** 0.5 - 3) / 2 + 0.5)  # from q = d + d (d + 1) / 2

    def estimates(x: np.ndarray) -> np.ndarray:
        return np.asarray(packed(*gaussian(jnp.asarray(x), d)))

    rows, columns = np.tril_indices(d)
    places = np.concatenate([np.arange(d), d + np.flatnonzero(rows == columns)])
    names = [f"loc[{i}]" for i in range(d)] + [f"covariance_matrix[{i}, {i}]" for i in range(d)]
    variances = estimates(here.x)[places[d:]]
    relative = errors[places] / np.concatenate([np.sqrt(variances), variances])
    asked = np.flatnonzero(relative > SMALL)
    if not len(asked):
        return ()
    if evaluate is None:
        return ("Wald intervals were not compared with the likelihood.",)
    kept, spread = places[asked], np.linalg.inv(size * here.hessian)
    loss = lambda x: evaluate(x).loss
    some = lambda x: estimates(x)[kept]
    wrong = untrusted(wald_ratios(loss, size, here.x, spread, some, slopes[kept]))
    if not wrong.any():
        return ()
    return (
        f"Do not trust the Wald intervals of {', '.join(names[k] for k in asked[wrong])}, estimate "
        "± standard errors: the log-likelihood is not quadratic. Profile intervals are better: "
        "tg.fit_observations(...).profile(name).",
    )
