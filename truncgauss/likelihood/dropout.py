r"""Entries that are missing because of their value, as in the proteomics of mass spectrometers.

With the probability Phi((w y - m) / t) that an entry y is observed, e ~ Normal(0, 1) of its own and
w > 0, a missing entry says that w y + t e < m, or

.. math:: y + (t / w)\, e < m / w

a value below a limit of detection that was measured with noise of variance (t / w)^2. So a missing
entry is a censored one with noise, and all that is known of these serves it: given the exact
entries of its row it counts with the probability of a box, exact for up to three of them. An
observed entry is exact, without noise, and counts with its density times Phi((w y - m) / t).

With a covariance of up to two common factors, such as equal correlations, missing entries are
independent given the factors, and these Gaussian given the exact entries, so that any number of
missing entries is an integral over one or two variables, exact to rounding: see `by_factors`.

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

from truncgauss.arrays.linalg import cholesky, solve_lower
from truncgauss.arrays.pytrees import is_concrete
from truncgauss.gaussian.regions.region import Region
from truncgauss.likelihood import common_effect
from truncgauss.special.tails import LOG_SQRT_2PI, log_ndtr

MOST_FACTORS = 2  # of a covariance, over which the likelihood of a row is integrated

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


def moved_curves(observed: Any, by: Any) -> Any:
    """The curves of entries from which numbers (d,) were subtracted."""
    w, m, t = curves_of(observed, len(by))
    return observed.with_parameters({"weights": jnp.diag(w), "midpoint": m - w * by, "width": t})


def check_observed(observed: Any, lower: Any, upper: Any, noise: Any, region: Any) -> None:
    """Raise ValueError for a curve, or for rows, of another kind."""
    d = lower.shape[1]
    curves = observed.score_selection() if isinstance(observed, Region) else None
    if curves is None or curves.curve != "probit":
        kind = getattr(observed, "curve", type(observed).__name__)
        raise ValueError(KINDS.format(f"a selection of the kind {kind}"))
    w = np.asarray(curves.weights)
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


def by_factors(
    observed: Any, lower: Any, upper: Any, loc: jax.Array, covariance: Any
) -> tuple[jax.Array, jax.Array]:
    r"""The log-likelihood of each row, (n,), but for `log_observed`, and a bound of its error, for
    a covariance W W^T + diag(v) of r common factors, r at most `MOST_FACTORS`.

    With y = loc + W f + e, and f of mean m and covariance A A^T given the exact entries E, where
    :math:`(A A^T)^{-1} = 1 + W_E^T V_E^{-1} W_E = P`, their density and the others' probability are

    .. math:: \exp\{-\tfrac12 |y_E - \mu_E - W_E m|^2_{V_E} - \tfrac12 |m|^2\}\,
        |2 \pi V_E|^{-1/2} |P|^{-1/2}, \qquad
        E_z \prod_j \Phi\{\pm (b_j - \mu_j - (W m + W A z)_j) / (v_j + t_j^2 / w_j^2)^{1/2}\}

    by completing the square, with z ~ Normal(0, 1)^r, b = midpoint / w and noise of the curves as
    in the head of this module; the second by `common_effect`.
    """
    (n, d), r = lower.shape, covariance.num_factors
    w, midpoint, t = curves_of(observed, d)
    bound, noise = midpoint / w, (t / w) ** 2
    sign = jnp.sign(w)  # of a falling curve, what is missing is large
    loc = jnp.broadcast_to(loc, (n, d))

    def one(row: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        y, exact, loc, factor, diagonal = row
        known = jnp.where(exact, 1.0 / diagonal, 0.0)
        root = cholesky(jnp.eye(r, dtype=y.dtype) + (factor * known[:, None]).T @ factor)
        inverse = solve_lower(root, jnp.eye(r, dtype=y.dtype))  # A^T, as A A^T = P^-1
        m = inverse.T @ (inverse @ (factor.T @ (known * (y - loc))))
        mean = loc + factor @ m
        square = jnp.sum(known * (y - mean) ** 2) + m @ m
        sizes = jnp.sum(jnp.where(exact, 0.5 * jnp.log(diagonal) + LOG_SQRT_2PI, 0.0))
        density = -0.5 * square - sizes - jnp.sum(jnp.log(jnp.diagonal(root)))
        gap, scale = jnp.where(exact, 0.0, sign * (mean - bound)), jnp.sqrt(diagonal + noise)
        if not r:
            each = log_ndtr(-gap / scale)
            log_prob, error = jnp.sum(jnp.where(exact, 0.0, each)), jnp.zeros_like(density)
        else:
            high = jnp.where(exact, jnp.inf, 0.0).astype(y.dtype)
            turned = sign[:, None] * (factor @ inverse.T)
            log_prob, error = common_effect.log_probability(gap, turned, scale, None, high)
        return density + log_prob, error

    exact = lower == upper
    factors = (
        jnp.broadcast_to(covariance.cov_factor, (n, d, r)),
        jnp.broadcast_to(covariance.cov_diag, (n, d)),
    )
    rows = jnp.where(exact, lower, 0.0), exact, loc, *factors
    values, errors = common_effect.in_batches(one, rows, d * common_effect.BLOCK)
    return values, jax.lax.stop_gradient(errors)
