"""Entries that are missing because of their value: likelihoods beside quadrature, and fits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import truncgauss as tg

LOC, COVARIANCE = np.array([1.0, 2.0]), np.array([[1.0, 0.5], [0.5, 1.5]])
MIDPOINT, WIDTH = 0.6, 0.5
ROWS = np.array([[1.2, 2.1], [np.nan, 1.0], [0.3, np.nan], [np.nan, np.nan]])


def curve(midpoint=MIDPOINT, width=WIDTH):
    return tg.Selection.probit([1.0], midpoint, width)


def test_rows_have_derivatives_by_their_curve():
    rows = tg.Observations.exact(ROWS, nan_is_missing=True, observed=curve())

    def total(midpoint, width):
        moved = rows.with_observed(curve(midpoint, width))
        return jnp.sum(tg.log_likelihood(moved, LOC, COVARIANCE).log_prob)

    slopes = jax.jit(jax.grad(total, (0, 1)))(MIDPOINT, WIDTH)
    h = 1e-5
    by_midpoint = (total(MIDPOINT + h, WIDTH) - total(MIDPOINT - h, WIDTH)) / (2 * h)
    by_width = (total(MIDPOINT, WIDTH + h) - total(MIDPOINT, WIDTH - h)) / (2 * h)
    np.testing.assert_allclose(slopes, [by_midpoint, by_width], rtol=1e-7)
    again = dataclasses.replace(rows, observed=curve(1.0, 0.7))
    value = tg.log_likelihood(again, LOC, COVARIANCE).log_prob.sum()
    np.testing.assert_allclose(value, total(1.0, 0.7), rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("r", [0, 1, 2])
def test_common_factors_beside_the_same_matrix(r):
    """A covariance of common factors has an integral over these alone, with its derivatives."""
    random, v = np.random.default_rng(r), np.array([0.6, 0.8])
    factor = random.normal(size=(2, r))
    each = tg.Selection.probit(np.diag([1.0, -2.0]), [0.6, -3.0], [0.5, 1.0])
    rows = tg.Observations.exact(ROWS, nan_is_missing=True, observed=each)

    def total(loc, midpoint, factor, v, low_rank):
        moved = rows.with_observed(tg.Selection.probit(each.weights, midpoint, each.width))
        matrix = factor @ factor.T + jnp.diag(v)
        covariance = tg.LowRank(factor, v) if low_rank else matrix
        return tg.log_likelihood(moved, loc, covariance).log_prob.sum()

    at = jnp.asarray(LOC), jnp.asarray(each.midpoint), jnp.asarray(factor), jnp.asarray(v)
    both = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3)), static_argnums=4)
    (value, slopes), (truth, true_slopes) = both(*at, True), both(*at, False)
    np.testing.assert_allclose(value, truth, rtol=1e-12)
    for slope, true_slope in zip(slopes, true_slopes):
        np.testing.assert_allclose(slope, true_slope, rtol=1e-9, atol=1e-10)


def proteins(seed, n=500):
    """Intensities of two groups of four runs, and those seen; a third is missing. Of group B
    the level is lower by 0.8, and by more or less in each protein."""
    random = np.random.default_rng(seed)
    level = random.normal(24.0, 1.5, (n, 1)) + np.zeros((n, 4))
    lower = level - random.normal(0.8, 0.5, (n, 1))
    y = np.hstack([level, lower]) + random.normal(0.0, 0.4, (n, 8))
    seen = random.uniform(size=y.shape) < special.ndtr((y - 22.8) / 0.7)
    return y, np.where(seen, y, np.nan)


@pytest.mark.slow
def test_proteins_of_two_groups():
    """Any number of missing entries: the curve, and the fold change beside complete cases'."""
    (every, y), groups = proteins(0), ["A"] * 4 + ["B"] * 4
    rows = tg.Observations.exact(y, nan_is_missing=True, observed=curve(22.0, 1.0))
    settings = dict(estimate=("midpoint", "width"), progress=False)
    fit = tg.fit_observations(rows, covariance=groups, **settings)
    assert fit.converged and fit.names[8:13] == tuple(
        f"covariance[{i}, {j}]" for i, j in [(0, 0), (1, 0), (4, 0), (4, 4), (5, 4)]
    )
    truth = np.repeat([24.0, 23.2], 4), [2.41, 2.25, 2.25, 2.66, 2.5], [22.8, 0.7]
    assert np.all(np.abs(fit.estimates - np.concatenate(truth)) < 4 * fit.errors)
    change = lambda loc: loc[4:].mean() - loc[:4].mean()
    truth, complete = change(every.mean(axis=0)), np.isfinite(y).all(axis=1)
    assert abs(change(fit.loc) - truth) < 0.2 * abs(change(y[complete].mean(axis=0)) - truth)
    kinds = fit.covariance_matrix, fit.standard_errors.covariance_matrix
    for matrix in kinds:
        np.testing.assert_allclose(matrix[:4, 4:], matrix[4, 0])
        np.testing.assert_allclose(np.diagonal(matrix)[4:], matrix[4, 4])
    best = dataclasses.replace(rows, observed=fit.region)
    value = tg.log_likelihood(best, fit.loc, fit.covariance_matrix).log_prob  # by points
    assert abs(float(value.sum()) - fit.log_likelihood) < 0.5


def test_refusals():
    rows = tg.Observations.exact(ROWS, nan_is_missing=True)
    for observed, message in [
        (tg.Selection.logistic([1.0], 0.0, 1.0), "must be a tg.Selection.probit of one entry"),
        (tg.Selection.probit([1.0, 1.0], 0.0, 1.0), "weights .* for 2 entries"),
    ]:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(rows, observed=observed)
    with pytest.raises(ValueError, match="neither noise nor region"):
        dataclasses.replace(rows, observed=curve(), noise=np.eye(2))
    with pytest.raises(ValueError, match="exact or missing"):
        tg.Observations(np.zeros((3, 1)), np.ones((3, 1)), observed=curve())
    with pytest.raises(ValueError, match="curve by which entries are observed"):
        tg.fit_observations(rows, estimate="midpoint")
    dropped = dataclasses.replace(rows, observed=curve())
    with pytest.raises(ValueError, match="without covariates"):
        tg.fit_observations(dropped, np.ones((4, 1)))
    with pytest.raises(ValueError, match="is no parameter"):
        tg.fit_observations(dropped, estimate="depth")
    for form in ("equal", ["A", "B"], ["A"], np.eye(2), None):
        with pytest.raises(ValueError, match='covariance is "full", "exchangeable"'):
            tg.fit_observations(dropped, covariance=form, estimate="midpoint")
    wide = np.where(np.arange(5) == np.arange(30)[:, None] % 30, 1.0, np.nan)
    many = tg.Observations.exact(wide, nan_is_missing=True, observed=curve())
    with pytest.raises(ValueError, match="up to 4 entries of a row may be missing .* and 5 are"):
        tg.fit_observations(many, estimate="midpoint")
    with pytest.raises(ValueError, match="observed="):
        tg.quantile_residuals((dropped, LOC, COVARIANCE), jax.random.key(0))
