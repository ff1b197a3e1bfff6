"""`tg.quantile_residuals`: standard normal under the model, whatever is known of the rows."""

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import ndtri_exp

import truncgauss as tg
from tests import published_rows

INF = np.inf
LOC, COVARIANCE = np.array([0.3, -0.2]), np.array([[1.0, 0.6], [0.6, 1.5]])


def test_a_truncated_value_far_out_keeps_its_digits():
    y, low = np.array([9.0, 9.5, 12.0]), 8.0
    rows = tg.Observations.exact(y, region=tg.Box([low], [INF]))
    found = tg.quantile_residuals((rows, [0.0], [[1.0]]))[:, 0]
    beyond = stats.norm.logsf(y) - stats.norm.logsf(low)
    np.testing.assert_allclose(found, -ndtri_exp(beyond), rtol=1e-9)


@pytest.mark.full
def test_limits_of_the_true_values_and_noise():
    rng = np.random.default_rng(3)
    x = rng.normal(0.3, 1.0, size=6000)
    y = (x + rng.normal(0.0, 0.7, size=len(x)))[x > 0.5]
    rows = tg.Observations.exact(y, region=tg.Box([0.5], [INF]), noise=[[0.49]], limits_on="latent")
    found = tg.quantile_residuals((rows, [0.3], [[1.0]]))[:, 0]
    assert stats.kstest(found, "norm").pvalue > 0.01


@pytest.mark.full
def test_what_has_no_rows_has_no_residuals():
    fit = tg.fit_truncated_normal([0.2, 0.9, 1.1, 0.4, 1.6, 0.3, 0.8, 1.2], low=0.0)
    with pytest.raises(ValueError, match="A fit of a truncated normal keeps none"):
        tg.quantile_residuals(fit)
    outside = tg.Observations.exact([-1.0, 1.0], region=tg.Box([0.0], [INF]))
    np.testing.assert_array_equal(
        np.isnan(tg.quantile_residuals((outside, [0.0], [[1.0]]))[:, 0]), [True, False]
    )


def test_residuals_of_regressions():
    """By both doors, with a scale that depends on a covariate, against the formula."""
    rng = np.random.default_rng(7)
    z = rng.uniform(-1.0, 1.0, size=300)
    design = np.column_stack([np.ones_like(z), z])
    y = 1.0 + z + np.exp(0.5 * z) * rng.normal(size=len(z))
    fit = tg.fit_regression(y, design, scale_design=design)
    found = tg.quantile_residuals(fit)[:, 0]
    white = (y - design @ fit.coefficients) / np.exp(design @ fit.log_scale)
    np.testing.assert_allclose(found, white, atol=1e-9)
    fit = tg.fit_observations(tg.Observations.exact(y), design)
    white = (y - design @ fit.coefficients[0]) / fit.covariance_matrix[0, 0] ** 0.5
    np.testing.assert_allclose(tg.quantile_residuals(fit)[:, 0], white, atol=1e-9)


def distance(residuals):
    """Anderson's and Darling's distance from a normal distribution; 0.75 in 1 of 20 samples."""
    return stats.anderson(residuals, "norm", method="interpolate").statistic


@pytest.mark.full
def test_residuals_of_a_mixture_by_its_distribution_function():
    y = np.concatenate([np.linspace(0.1, 2.0, 20), np.linspace(4.0, 8.0, 30)])
    rows = tg.Observations.exact(y, region=tg.Box([0.0], [INF]), noise=[[0.1]])
    fit = tg.fit_mixture(rows, 2, num_starts=1, num_steps=2)
    scales = np.sqrt(fit.covariances[:, 0, 0] + 0.1)

    def above(at):
        return stats.norm.sf((at - fit.locs[:, 0]) / scales) @ fit.weights

    expected = [stats.norm.isf(above(at) / above(0.0)) for at in y]
    np.testing.assert_allclose(tg.quantile_residuals(fit)[:, 0], expected, rtol=1e-7, atol=1e-9)


@published_rows.needed
def test_particles_that_were_seen_do_not_contradict_a_truncated_gaussian():
    """The slope of the full sample, 0.3268, is 1.4 standard errors off: what is not Gaussian there
    lies below the limit, where no residual can show it."""
    rows, design = published_rows.pm10()
    fit = tg.fit_observations(rows, design)
    assert fit.converged and distance(tg.quantile_residuals(fit)[:, 0]) < 0.6
    # That rows are cut off is seen: without the region these residuals would be of a skew sample.
    loc = (design @ fit.coefficients[0])[:, None]
    blind = tg.Observations.exact(rows.lower), loc, fit.covariance_matrix
    assert distance(tg.quantile_residuals(blind)[:, 0]) > 1.0
    # Nor do wider models fit better, by SciPy alone: a Student t or a skew normal distribution.
    y, p = np.asarray(rows.lower)[:, 0], design.shape[1]
    units = np.linalg.inv(np.linalg.qr(design, mode="r"))
    start = np.linalg.solve(units, fit.coefficients[0]), np.log(fit.covariance_matrix[0, 0]) / 2

    def loss(x, family):
        mean, scale = design @ units @ x[:p], np.exp(x[p])
        ahead, below = (family(x[p + 1]).logsf((at - mean) / scale) for at in (2.0, -INF))
        parts = family(x[p + 1]).logpdf((y - mean) / scale) - x[p] - ahead + below
        return -np.sum(parts)

    families = {0.05: lambda x: stats.t(1 / np.maximum(x, 1e-9)), 0.2: stats.skewnorm}
    for first, family in families.items():
        wider = optimize.minimize(loss, [*start[0], start[1], first], args=(family,))
        statistic = 2 * (-wider.fun - fit.log_likelihood)
        assert -1e-2 < statistic < 0.1, family


@pytest.mark.full
@published_rows.needed
def test_beryllium_is_not_gaussian_where_lithium_may_be():
    """At the published maximum, which test_fitting_observations.py finds."""
    gaussian = published_rows.STARS_LOC, published_rows.STARS_COVARIANCE
    draws = tg.quantile_residuals((published_rows.stars(), *gaussian), num_draws=10)
    distances = [[distance(own[np.isfinite(own)]) for own in draw.T] for draw in draws]
    beryllium, lithium = np.mean(distances, axis=0)
    assert beryllium > 3.0 and lithium < 0.7
