r"""Entries that are missing because of their value, as in the proteomics of mass spectrometers.

With the probability Phi((w y - m) / t) that an entry y is observed, e ~ Normal(0, 1) of its own and
w > 0, a missing entry says that w y + t e < m, or

.. math:: y + (t / w)\, e < m / w

a value below a limit of detection that was measured with noise of variance (t / w)^2. So a missing
entry is a censored one with noise, and all that is known of these serves it: given the exact
entries of its row it counts with the probability of a box, exact for up to three of them. An
observed entry is exact, without noise, and counts with its density times Phi((w y - m) / t).

References:
    Ahlmann-Eltze and Anders (2019), proDA: probabilistic dropout analysis for identifying
    differentially abundant proteins in label-free mass spectrometry. Li and Smyth (2023), Neither
    random nor censored: estimating intensity-dependent probabilities for missing values in
    label-free proteomics.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import is_concrete
from truncgauss.gaussian.regions.probit_selection import ScoreSelection
from truncgauss.special.tails import log_ndtr

KINDS = (
    "Observations: observed must be a tg.Selection.probit of one entry, such as "
    "tg.Selection.probit([1.0], midpoint, width), common to all, or one with a curve for each, "
    "whose weights are a diagonal matrix; got {}."
)


def curves_of(observed: Any, d: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Weight, midpoint and width of the curve of each entry, (d,)."""
    w = observed.weights
    return (
        jnp.broadcast_to(jnp.diagonal(w), (d,)),
        jnp.broadcast_to(observed.midpoint, (d,)),
        jnp.broadcast_to(observed.width, (d,)),
    )


def moved_curves(observed: Any, by: Any) -> ScoreSelection:
    """The curves of entries from which numbers (d,) were subtracted."""
    w, m, t = curves_of(observed, len(by))
    return ScoreSelection(jnp.diag(w), m - w * by, t)


def check_observed(observed: Any, lower: Any, upper: Any, noise: Any, region: Any) -> None:
    """Raise ValueError for a curve, or for rows, of another kind."""
    d = lower.shape[1]
    if not isinstance(observed, ScoreSelection) or observed.curve != "probit":
        kind = getattr(observed, "curve", type(observed).__name__)
        raise ValueError(KINDS.format(f"a selection of the kind {kind}"))
    w = np.asarray(observed.weights)
    apart = w.shape in ((1, 1), (d, d)) and not np.any(w - np.diag(w.diagonal()))
    if not apart or np.any(np.diagonal(w) == 0):
        raise ValueError(KINDS.format(f"weights {w.tolist()} for {d} entries"))
    if noise is not None or region is not None:
        raise ValueError(
            "Observations: with observed= neither noise nor region can be given: a row is observed "
            "entry by entry then."
        )
    if not is_concrete((lower, upper)):
        raise ValueError("Observations: rows with observed= cannot be made under a trace.")
    exact, missing = lower == upper, np.isneginf(lower) & np.isposinf(upper)
    wrong = np.flatnonzero(~np.all(exact | missing, axis=1))
    if len(wrong):
        raise ValueError(
            f"Observations: with observed= every entry is exact or missing; {len(wrong)} rows have "
            f"others, first row {wrong[0]}: lower {lower[wrong[0]]}, upper {upper[wrong[0]]}."
        )


def placed(observed: Any, lower: Any, upper: Any) -> tuple[Any, Any, Any]:
    """The limits of all entries, and the noise of each row, (n, d, d): of missing ones alone."""
    d, exact = lower.shape[1], lower == upper
    w, m, t = curves_of(observed, d)
    bound, variance = m / w, (t / w) ** 2
    below = jnp.where(w > 0, -jnp.inf, bound)
    above = jnp.where(w > 0, bound, jnp.inf)
    noise = jnp.where(exact, 0.0, variance)[..., None] * jnp.eye(d, dtype=lower.dtype)
    return jnp.where(exact, lower, below), jnp.where(exact, upper, above), noise


def log_observed(observed: Any, lower: Any, upper: Any) -> jax.Array:
    """The log probability that the exact entries of each row were observed, (n,)."""
    exact = lower == upper
    w, m, t = curves_of(observed, lower.shape[1])
    each = log_ndtr((w * jnp.where(exact, lower, 0.0) - m) / t)
    return jnp.sum(jnp.where(exact, each, 0.0), axis=1)
