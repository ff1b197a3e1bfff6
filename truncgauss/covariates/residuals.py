"""Residuals of rows known in part, standard normal if the model is right."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri_exp

from truncgauss import tables
from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import as_float_array, floats_as_float64
from truncgauss.covariates.rows_fit import RowsFit
from truncgauss.likelihood.observations import Observations, as_observations
from truncgauss.likelihood.patterns import filled_length
from truncgauss.likelihood.rows import log_likelihood
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.words.arguments import is_key


@reported
def quantile_residuals(
    fit: Any,
    key: jax.Array | None = None,
    *,
    num_draws: int | None = None,
    method: Method = Automatic(),
) -> np.ndarray:
    """Randomised quantile residuals of every entry, independent standard normal under the model.

    Of entry j of a row, the residual is Phi^-1(u) with

        u = P(Y_j <= y_j | what is known of entries 1 .. j - 1, Y in the row's region),

    Rosenblatt's transform, and with u drawn between the probabilities of both ends where the entry
    is censored or known to an interval only. Such residuals are noise in part: look at several
    draws. Residuals that are no sample of a standard normal speak against the model; that they are
    one is no proof of its part that no row can show.

    Args:
        fit: what `fit_observations`, `fit_regression` or `fit_mixture` returned; or
            (observations, loc, covariance), as in `log_likelihood`.
        key: the random key of the draws.
        num_draws: how many randomisations; None for one, without that axis.
        method: how probabilities are computed.

    Returns:
        Shape (n, d), or (num_draws, n, d), in standard deviations; NaN where an entry is missing,
        or the row is impossible. Infinite where a value lies on its limit.

    Raises:
        ValueError: for a fit that does not hold its rows, or rows that are spread over processes.

    Example:
        >>> rows = tg.Observations.exact([0.5, 2.0], region=tg.Box([0.0], [jnp.inf]))
        >>> tg.quantile_residuals((rows, [0.0], [[1.0]])).round(3)
        array([[-0.298],
               [ 1.69 ]])

    References:
        Dunn and Smyth, "Randomized quantile residuals", Journal of Computational and Graphical
            Statistics (1996).
        Rosenblatt, "Remarks on a multivariate transformation", Annals of Mathematical Statistics
            (1952).
    """
    if is_key(fit):
        raise ValueError("quantile_residuals: the fit comes first, then the key; got a key first.")
    if num_draws is not None and not (isinstance(num_draws, int) and num_draws > 0):
        what = "quantile_residuals: num_draws must be a positive int or None"
        raise ValueError(f"{what}, got {num_draws!r}.")
    with jax.enable_x64(True):
        rows, log_likelihoods = as_model(fit, method)
        n, d = rows.lower.shape
        # Those of a row by the key that its number makes; compiled for few lengths.
        numbers = jax.device_put(np.arange(filled_length(n)))
        drawn = uniforms_of(as_key(key), numbers, (d, 1 if num_draws is None else num_draws))
        uniforms = np.asarray(drawn)[:n].transpose(1, 2, 0)
        possible = np.isfinite(log_likelihoods(rows))
        columns = [
            residuals_of_entry(rows, log_likelihoods, j, uniform)
            for j, uniform in enumerate(uniforms)
        ]
    residuals = np.where(possible[:, None], np.stack(columns, axis=-1), np.nan)
    return residuals[0] if num_draws is None else residuals


def as_model(fit: Any, method: Method) -> tuple[Observations, Callable[[Observations], np.ndarray]]:
    """The n rows without weights that a fit, or a tuple of rows, mean and covariance, stands for;
    and n such rows with the same regions and noise -> their log-likelihoods, (n,)."""
    if hasattr(fit, "rows_and_gaussian"):  # whose limits are estimates
        fit = fit.rows_and_gaussian()
    if hasattr(fit, "row_log_likelihood"):  # a mixture
        rows = floats_as_float64(dataclasses.replace(fit.loss.observations, weights=None))
        return rows, lambda other: np.asarray(fit.row_log_likelihood(other, method))
    if isinstance(fit, tuple) and len(fit) == 3 and isinstance(fit[0], Observations):
        rows, loc, covariance = fit
        check_one_order(observations=rows, region=rows.region, loc=loc, covariance=covariance)
        if np.ndim(loc) == 2:
            loc = tables.in_one_order("quantile_residuals", observations=rows, loc=loc)[1]
    elif isinstance(fit, RowsFit) and fit.centred is not None:
        rows = fit.centred
        loc, covariance = fit.loss.gaussian(fit.best.x)
        n = rows.num_rows  # covariates may be filled up by rows that are none
        loc = loc[:n] if loc.ndim == 2 else loc
        covariance = covariance[:n] if covariance.ndim == 3 else covariance
    elif isinstance(fit, RowsFit) and hasattr(fit, "effects"):
        raise ValueError(
            "quantile_residuals: not of fits of clusters, whose rows depend on each other. "
            'fit.effects("residual") has what is left of each outcome given all of its cluster.'
        )
    else:
        raise ValueError(
            "quantile_residuals: needs a fit that keeps its observations, or (observations, loc, "
            f"covariance), not one of clusters; got {type(fit).__name__}. A fit of a truncated "
            "normal keeps none: give (tg.Observations.exact(rows, region=tg.Box(low, high)), "
            "fit.loc, fit.covariance_matrix)."
        )
    as_observations(rows, "quantile_residuals")
    gaussian = jnp.asarray(loc, jnp.float64), jnp.asarray(covariance, jnp.float64)
    rows = floats_as_float64(dataclasses.replace(rows, weights=None))
    return rows, lambda other: np.asarray(log_likelihood(other, *gaussian, method).log_prob)


@functools.partial(jax.jit, static_argnums=2)
def uniforms_of(key: jax.Array, numbers: jax.Array, shape: tuple[int, int]) -> jax.Array:
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
    return jax.vmap(lambda key: jax.random.uniform(key, shape, jnp.float64))(keys)


def residuals_of_entry(
    rows: Observations,
    log_likelihoods: Callable[[Observations], np.ndarray],
    j: int,
    uniform: Any,
) -> np.ndarray:
    """Residuals (k, n) of entry j with uniforms (k, n)."""
    low, high = (np.asarray(end)[:, j] for end in (rows.lower, rows.upper))
    parts = [(np.full_like(low, -np.inf), low), (low, high), (high, np.full_like(high, np.inf))]

    def log_mass(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """log P(what is known of entries before j, low < Y_j < high, Y in its region), (n,), but
        for a constant that all intervals of a row share; -inf of empty intervals."""
        empty = ~(low < high)
        lower, upper = (np.array(end) for end in (rows.lower, rows.upper))
        lower[:, j], upper[:, j] = np.where(empty, -np.inf, low), np.where(empty, np.inf, high)
        lower[:, j + 1 :], upper[:, j + 1 :] = -np.inf, np.inf
        other = Observations(
            as_float_array(lower),
            as_float_array(upper),
            region=rows.region,
            noise=rows.noise,
            limits_on=rows.limits_on,
        )
        return np.where(empty, -np.inf, log_likelihoods(other))

    below, between, above = (log_mass(*part) for part in parts)
    with np.errstate(divide="ignore"):
        from_below = np.logaddexp(below, between + np.log(uniform))
        from_above = np.logaddexp(above, between + np.log1p(-uniform))
    total = np.logaddexp(from_below, from_above)
    known = (np.isfinite(low) | np.isfinite(high)) & np.all(np.isfinite(total), axis=0)
    nothing = np.where(known, 0.0, np.nan)  # where there is no residual
    # The smaller of both tails keeps its digits.
    left = ndtri_exp(from_below - total + nothing)
    right = -ndtri_exp(from_above - total + nothing)
    return np.where(from_below < from_above, left, right)
