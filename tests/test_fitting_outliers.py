"""Rows farther from their means than chance allows: named, and not where there are none."""

import json

import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss.covariates.outliers import (
    LEVEL,
    distances,
    log_survival,
    outliers_of,
    residual_sizes,
)
from truncgauss.runs import results as results_of_runs

INF = np.inf


def judged(y):
    """The outliers of complete rows (n, d) about their mean."""
    rows = tg.Observations.exact(y)
    return outliers_of(rows, y.mean(axis=0), np.cov(y.T, bias=True).reshape(y.shape[1], -1), 1.0, 1)


@pytest.mark.parametrize("n", [10, 50, 1000])
def test_the_farthest_row_is_judged_as_by_grubbs(n):
    found = judged(np.random.default_rng(0).normal(size=(n, 1)))
    quantile = stats.t.isf(LEVEL / (2 * n), n - 2)
    critical = (n - 1) / np.sqrt(n) * np.sqrt(quantile**2 / (n - 2 + quantile**2))
    # His standard deviation divides by n - 1, and his level is Bonferroni's.
    np.testing.assert_allclose(found.threshold, critical * np.sqrt(n / (n - 1)), rtol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("d", [1, 3])
def test_one_clean_sample_in_a_hundred_rings(d):
    rng, rung, beyond = np.random.default_rng(1), 0, 0
    for _ in range(1500):
        found = judged(rng.normal(size=(25, d)))
        rung += len(found.rows) > 0
        beyond += found.farthest > found.expected
    assert 0.004 < rung / 1500 < 0.018
    assert 0.45 < beyond / 1500 < 0.65  # the median is that of independent rows


def test_sizes_are_those_of_quantile_residuals_but_where_limits_or_intervals_excuse():
    lower = np.array([0.3, 5.0, 0.2, -INF, 2.0, 0.2, -INF, 0.5])
    upper = np.array([0.3, 5.0, 0.2, 0.4, 3.0, 1.0, INF, 0.5])
    low = np.array([0.2, 0.2, 0.2, -INF, -INF, -INF, -INF, -INF])
    region = tg.Box(low[:, None], np.full((8, 1), INF))
    rows = tg.Observations(lower, upper, region=region)
    loc, scale = np.array([0.9, 0.9, -3.0, 1.9, 0.9, 0.9, 0.9, 0.9]), 0.5
    sizes = residual_sizes(rows, loc, np.full(8, scale))
    exact = np.abs(tg.quantile_residuals((rows, loc[:, None], [[scale**2]]))[:, 0])
    assert exact[0] > 1.2  # so near to its limit; its distance from the mean is what counts
    np.testing.assert_allclose(sizes[[0, 1]], [1.2, exact[1]], rtol=1e-9)
    assert sizes[2] == 0.0 and np.isinf(exact[2])  # on its limit, where every row is
    np.testing.assert_allclose(sizes[[3, 4, 7]], [3.0, 2.2, 0.8], rtol=1e-9)
    assert sizes[5] == 0.0 and np.isnan(sizes[6])


X = np.random.default_rng(3).normal(size=200)


def tobit(outlier):
    x = np.column_stack([np.ones(200), X])
    y = x @ [0.5, 1.0] + np.random.default_rng(4).normal(size=200)
    y[17] = y[17] if outlier is None else outlier
    return tg.fit_regression(np.maximum(y, 0.0), x, censored_low=0.0)


def test_a_gross_outlier_of_a_tobit_model_is_named():
    clean, spoilt = tobit(None), tobit(37.0)
    assert not len(clean.outliers.rows) and not any(
        "observation(s) lie" in note for note in clean.notes
    )
    assert "farthest of 200 is expected at 2.9" in str(clean.outliers)
    (note,) = (note for note in spoilt.notes if "observation(s) lie farther" in note)
    assert spoilt.outliers.rows.tolist() == [17] and note in str(spoilt)
    gap = 37.0 - spoilt.coefficients @ [1.0, X[17]]
    np.testing.assert_allclose(spoilt.outliers.farthest, gap / spoilt.scale, rtol=1e-9)
    assert f"row 17 by {spoilt.outliers.farthest:.3g}" in note
    assert "expected at 2.9, and beyond 4 in 1 of 100 samples" in note


@pytest.mark.full
def test_an_outlier_of_several_outcomes_is_named_in_its_region():
    rng = np.random.default_rng(5)
    y = rng.normal(size=(400, 2)) @ [[1.0, 0.6], [0.0, 0.8]]
    y = y[y[:, 0] > 0.5]
    region = tg.Box([0.5, -INF], INF)
    assert not len(tg.fit_observations(tg.Observations.exact(y, region=region)).outliers.rows)
    y[9] = [1.0, -9.0]
    fit = tg.fit_observations(tg.Observations.exact(y, region=region))
    assert fit.outliers.rows.tolist() == [9]
    gap = y[9] - fit.loc
    expected = np.sqrt(gap @ np.linalg.solve(fit.covariance_matrix, gap))
    np.testing.assert_allclose(fit.outliers.farthest, expected, rtol=1e-9)


@pytest.mark.parametrize("each", [False, True])
def test_rows_with_gaps_and_noise_are_judged_by_what_is_known(each):
    y = np.array([[1.0, 2.0], [np.nan, 3.0], [-1.0, np.nan], [np.nan, np.nan], [0.5, 0.2]] * 4)
    loc, matrix, noise = (
        np.array([0.2, 0.1]),
        np.array([[1.0, 0.5], [0.5, 2.0]]),
        np.diag([0.3, 0.4]),
    )
    spread = np.stack([noise * (1 + i) for i in range(20)]) if each else noise
    rows = tg.Observations.exact(y, nan_is_missing=True, noise=spread)
    distance, sizes = distances(rows, loc, matrix)
    for i, row in enumerate(y):
        known = ~np.isnan(row)
        whole = (matrix + (spread[i] if each else noise))[np.ix_(known, known)]
        square = (row - loc)[known] @ np.linalg.inv(whole) @ (row - loc)[known]
        np.testing.assert_allclose([distance[i] ** 2, sizes[i]], [square, known.sum()], atol=1e-12)


def test_a_summary_holds_the_verdict():
    found = tobit(37.0).outliers
    said = results_of_runs.outcome({"outliers": found._asdict() | {"said": str(found)}})
    assert said["values"]["outliers/row"] == 17 and "row 17 by" in said["values"]["outliers/said"]
    json.dumps(said)


def test_tails_of_truncated_residuals_are_those_of_scipy():
    """In either tail, of wide and narrow ranges with and without ends."""
    random = np.random.default_rng(0)
    low = random.normal(size=2000) * 10.0 ** random.uniform(-3.0, 1.3, 2000)
    high = low + np.abs(random.normal(size=2000)) * 10.0 ** random.uniform(-2.0, 1.0, 2000)
    low[:400], high[200:600] = -np.inf, np.inf
    low, high = low[high > 0], high[high > 0]
    first = np.maximum(low, 0.0)
    z = first + np.minimum(high - first, 5.0) * random.uniform(size=len(low))
    expected = stats.truncnorm.logsf(z, low, high)
    np.testing.assert_allclose(log_survival(z, low, high), expected, rtol=1e-9, atol=1e-9)
    at_ends = log_survival(
        np.array([1.0, 2.0, 3.0]), np.array([-1.0, 2.0, 2.5]), np.array([1, 3, 2.9])
    )
    assert list(at_ends) == [-np.inf, 0.0, -np.inf]
