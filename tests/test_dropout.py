"""Entries that are missing because of their value: likelihoods beside quadrature, and fits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import truncgauss as tg

LOC, COVARIANCE = np.array([1.0, 2.0]), np.array([[1.0, 0.5], [0.5, 1.5]])
MIDPOINT, WIDTH = 0.6, 0.5
ROWS = np.array([[1.2, 2.1], [np.nan, 1.0], [0.3, np.nan], [np.nan, np.nan]])


def curve(midpoint=MIDPOINT, width=WIDTH):
    return tg.Selection.probit([1.0], midpoint, width)


def by_quadrature(row, seen, loc=LOC, covariance=COVARIANCE):
    """The log of the integral of the density times the probabilities of what was seen, and not."""
    x = np.linspace(-9.0, 13.0, 701)
    grids = [np.array([y]) if np.isfinite(y) else x for y in row]
    points = np.stack(np.meshgrid(*grids, indexing="ij"), axis=-1)
    values = stats.multivariate_normal.pdf(points, loc, covariance).reshape(points.shape[:-1])
    for j, y in enumerate(row):
        share = seen(points[..., j], j)
        values = values * (share if np.isfinite(y) else 1.0 - share)
    return np.log(values.sum() * (x[1] - x[0]) ** np.isnan(row).sum())


def test_rows_beside_quadrature_and_their_derivatives():
    rows = tg.Observations.exact(ROWS, nan_is_missing=True, observed=curve())
    result = tg.log_likelihood(rows, LOC, COVARIANCE)
    seen = lambda y, j: special.ndtr((y - MIDPOINT) / WIDTH)
    truth = [by_quadrature(row, seen) for row in ROWS]
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-9)
    assert np.all(result.stderr < 1e-9)

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
def test_a_falling_curve_for_each_entry():
    each = tg.Selection.probit(np.diag([1.0, -2.0]), [0.6, -3.0], [0.5, 1.0])
    rows = tg.Observations.exact(ROWS, nan_is_missing=True, observed=each)
    result = tg.log_likelihood(rows, LOC, COVARIANCE)
    w, m, t = np.array([1.0, -2.0]), np.array([0.6, -3.0]), np.array([0.5, 1.0])
    seen = lambda y, j: special.ndtr((w[j] * y - m[j]) / t[j])
    truth = [by_quadrature(row, seen) for row in ROWS]
    np.testing.assert_allclose(result.log_prob, truth, rtol=1e-9)


def intensities(seed, n=500, d=2):
    """Of n proteins in d runs, 25 % missing by a curve of midpoint 23 and width 0.8."""
    random = np.random.default_rng(seed)
    level = random.normal(24.0, 1.5, (n, 1))
    y = level + np.linspace(0.0, 0.5, d) + random.normal(0.0, 0.5, (n, d))
    seen = random.uniform(size=y.shape) < special.ndtr((y - 23.0) / 0.8)
    return np.where(seen, y, np.nan)


@pytest.mark.full
def test_a_curve_and_its_population():
    y = intensities(0)
    rows = tg.Observations.exact(y, nan_is_missing=True, observed=curve(22.0, 1.0))
    fit = tg.fit_observations(rows, estimate=("midpoint", "width"))
    truth = np.array([24.0, 24.5, 2.5, 2.25, 2.5, 23.0, 0.8])
    assert fit.converged and np.all(np.abs(fit.estimates - truth) < 4 * fit.errors)
    assert abs(fit.fraction_not_truncated - np.isfinite(y).mean()) < 0.03
    best = dataclasses.replace(rows, observed=fit.region)
    there = tg.log_likelihood(best, fit.loc, fit.covariance_matrix).log_prob.sum()
    np.testing.assert_allclose(fit.log_likelihood, there, rtol=1e-10)
    known = tg.fit_observations(best)  # the same maximum, as that of censored rows with noise
    np.testing.assert_allclose(known.log_likelihood, fit.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(known.loc, fit.loc, rtol=1e-5)
    low, high = fit.profile("midpoint")
    assert low < 23.0 < high
    one = tg.fit_observations(
        rows, estimate="midpoint", prior=lambda p: -0.5 * ((p["midpoint"] - 22.0) / 1e-3) ** 2
    )
    assert abs(one.curve["midpoint"] - 22.0) < 5e-3 and "width" not in one.curve


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
    with pytest.raises(ValueError, match="observed="):
        tg.quantile_residuals((dropped, LOC, COVARIANCE), jax.random.key(0))
