"""A mixture of Gaussians behind the rows of a table, and the same mixture fitted naively."""

import jax
import numpy as np

import truncgauss as tg


def fitted(config, rows):
    """The mixture behind the rows."""
    return tg.fit_mixture(
        rows, config.components, covariance=config.covariance, num_starts=config.num_starts,
        key=jax.random.key(config.seed), num_steps=config.num_steps,
        information=config.information,
    )  # fmt: skip


def naive(config, rows, recorded, fit):
    """The mixture of the recorded values as if known exactly and seen everywhere, from the
    corrected one on; NaN where that has no maximum.

    Args:
        config: the settings.
        rows: the observations.
        recorded: values of complete rows, (m, d), and which rows these are, (n,).
        fit: the corrected mixture.
    """
    values, complete = recorded
    weights = None if rows.weights is None else np.asarray(rows.weights)[complete]
    start = fit.weights, fit.locs, fit.covariances
    try:
        found = tg.fit_mixture(
            tg.Observations.exact(values, weights=weights), config.components,
            covariance=config.covariance, start=start,
        )  # fmt: skip
    except tg.mixtures.NoMaximum:
        return np.full(len(fit.estimates), np.nan)
    return found.estimates if found.converged else np.full(len(fit.estimates), np.nan)
