"""`fit_observations`: closed forms, published fits, other optimisers, coverage, refusals."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests import published_rows
from truncgauss.fits.gaussian.gaussian_starts import as_designs
from truncgauss.fitting.newton import derivatives

INF = np.inf


# Closed forms


@pytest.mark.full
def test_complete_rows_give_least_squares_and_the_sample_covariance():
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(80), rng.normal(size=80)])
    y = design @ [[1.0, -2.0], [0.5, 3.0]] + rng.normal(size=(80, 2)) @ [[1.0, 0.4], [0.0, 2.0]]
    fit = tg.fit_observations(tg.Observations.exact(y), design)
    assert fit.converged and fit.num_parameters == 7
    expected = np.linalg.lstsq(design, y, rcond=None)[0]
    np.testing.assert_allclose(np.transpose(fit.coefficients), expected, rtol=1e-7)
    residuals = y - design @ expected
    covariance = residuals.T @ residuals / 80
    np.testing.assert_allclose(fit.covariance_matrix, covariance, rtol=1e-7)
    spread = np.sqrt(np.outer(np.diagonal(np.linalg.inv(design.T @ design)), np.diag(covariance)))
    np.testing.assert_allclose(np.transpose(fit.standard_errors.coefficients), spread, rtol=1e-6)
    variances = np.diagonal(covariance)
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / 80)
    np.testing.assert_allclose(fit.standard_errors.covariance_matrix, errors, rtol=1e-6)
    likelihood = sum(stats.multivariate_normal([0, 0], covariance).logpdf(residuals))
    np.testing.assert_allclose(fit.log_likelihood, likelihood, rtol=1e-12)
    assert fit.aic == pytest.approx(14 - 2 * likelihood)
    assert fit.bic == pytest.approx(7 * np.log(80) - 2 * likelihood)


@pytest.mark.full
def test_fixed_entries_stay_and_a_probit_has_unit_variances():
    rng = np.random.default_rng(1)
    covariance = np.array([[1.0, 0.5], [0.5, 1.0]])
    y = rng.multivariate_normal([0.3, -0.4], covariance, size=600)
    rows = tg.Observations(np.where(y > 0, 0.0, -INF), np.where(y > 0, INF, 0.0))
    fit = tg.fit_observations(rows, covariance=[[1.0, np.nan], [np.nan, 1.0]])
    assert fit.converged and fit.names == ("loc[0]", "loc[1]", "covariance[1, 0]")
    np.testing.assert_array_equal(np.diagonal(fit.covariance_matrix), 1.0)
    np.testing.assert_array_equal(np.diagonal(fit.standard_errors.covariance_matrix), 0.0)
    # Three numbers meet three free frequencies of the four quadrants.
    share = (y > 0).mean(0)
    np.testing.assert_allclose(fit.loc, stats.norm.ppf(share), rtol=1e-6)
    both = tg.fraction_not_truncated(fit.loc, fit.covariance_matrix, tg.Box([0.0, 0.0], INF))
    np.testing.assert_allclose(both, (y > 0).all(axis=1).mean(), rtol=1e-6)
    pulls = (fit.estimates - [0.3, -0.4, 0.5]) / fit.errors
    assert np.all(np.abs(pulls) < 4.0)
    diagonal = tg.fit_observations(tg.Observations.exact(y), covariance="diagonal")
    assert diagonal.covariance_matrix[0, 1] == 0.0 and diagonal.num_parameters == 4
    np.testing.assert_allclose(np.diagonal(diagonal.covariance_matrix), y.var(0), rtol=1e-7)


@pytest.mark.slow  # compiles a Hessian of integrals
def test_a_curvature_by_gradients_of_four_dimensions_is_the_exact_one():
    draws = np.random.default_rng(3).multivariate_normal(np.zeros(4), 0.5 + 0.5 * np.eye(4), 60)
    rows = tg.Observations(np.where(draws > 0, 0.0, -np.inf), np.where(draws > 0, np.inf, 0.0))
    common = np.where(np.eye(4) > 0, 1.0, 0.3)
    common[0, 1] = common[1, 0] = np.nan
    method = tg.Separation(num_points=32, num_replicates=4)
    fit = tg.fit_observations(rows, covariance=common, method=method, num_profiles=0)
    assert fit.converged and fit.loss.iterated
    exact = derivatives(fit.loss, jnp.asarray(fit.best.x))[2]
    np.testing.assert_allclose(fit.best.hessian, exact, rtol=1e-6, atol=1e-8)


def test_rows_of_weight_zero_need_not_lie_inside_their_limits():
    y, weights, others = np.random.default_rng(9).normal(size=20), np.ones(20), np.arange(20) != 3
    y[3], weights[3] = 1e9, 0.0
    fit = tg.fit_regression(y, np.ones((20, 1)), weights=weights, truncated_high=1e8)
    without = tg.fit_regression(y[others], np.ones((19, 1)))
    assert fit.converged, fit.reason
    np.testing.assert_allclose(fit.estimates, without.estimates, rtol=1e-8)


@pytest.mark.full
def test_a_method_of_ones_own_is_used_for_one_outcome_too():
    y = np.random.default_rng(8).normal(size=40)
    rows = tg.Observations.exact(np.abs(y), region=tg.Box([0.0], [INF]))
    smooth = tg.SoftMonteCarlo(num_samples=2000, edge=tg.Probit(0.5))
    soft = tg.fit_observations(rows, method=smooth, num_starts=1)
    assert soft.log_likelihood_stderr > 0
    assert abs(soft.log_likelihood - tg.fit_observations(rows).log_likelihood) > 0.1


# Published fits


@published_rows.needed
def test_published_regressions():
    fit = tg.fit_observations(*published_rows.affairs())
    expected = [7.900980446, -0.177598209, 0.532302110, -1.616335654, 0.324186458, -2.207007445]
    np.testing.assert_allclose(fit.coefficients[0], expected, rtol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, -500.0427601, rtol=1e-9)
    fit = tg.fit_observations(*published_rows.pm10())
    # What is printed stops short of the maximum.
    np.testing.assert_allclose(fit.coefficients[0][1], 0.256125491, rtol=1e-4)
    np.testing.assert_allclose(fit.coefficients[0][3], -0.074739182, rtol=1e-4)
    assert -464.6793535 <= fit.log_likelihood < -464.6793


@published_rows.needed
def test_quasars_from_wild_starts_end_at_one_maximum():
    rows = published_rows.quasars()
    best = tg.fit_observations(rows)
    assert best.converged
    np.testing.assert_allclose(best.loc, -2.478900110774, atol=1e-4 * 0.962181)
    np.testing.assert_allclose(np.sqrt(best.covariance_matrix), [[1.266962704526]], rtol=2e-5)
    np.testing.assert_allclose(best.errors[0], 0.962181, rtol=1e-5)
    np.testing.assert_allclose(best.log_likelihood, -59.889044870074, rtol=1e-10)
    assert "0.069" in best.notes[1]
    rng = np.random.default_rng(0)
    wild = [(rng.uniform(-20, 20), 10 ** rng.uniform(-2, 6)) for _ in range(9)]
    for loc, scale in [(4.0, np.e), *wild]:
        fit = tg.fit_observations(rows, start={"loc": [loc], "covariance": [[scale**2]]})
        assert fit.converged, (loc, scale, fit.reason)
        np.testing.assert_allclose(fit.estimates, best.estimates, rtol=1e-6)


@published_rows.needed
@pytest.mark.slow
def test_published_fits_of_several_outcomes():
    fit = tg.fit_observations(published_rows.stars())
    assert fit.converged
    np.testing.assert_allclose(fit.loc, published_rows.STARS_LOC, atol=1e-5)
    np.testing.assert_allclose(fit.covariance_matrix, published_rows.STARS_COVARIANCE, rtol=1e-4)
    np.testing.assert_allclose(
        fit.standard_errors.coefficients, [[0.0516895], [0.2647530]], rtol=1e-3
    )
    fit = tg.fit_observations(published_rows.iris())
    assert fit.converged
    np.testing.assert_allclose(fit.loc, published_rows.IRIS_LOC, atol=1e-5)
    np.testing.assert_allclose(fit.covariance_matrix, published_rows.IRIS_COVARIANCE, atol=2e-5)
    np.testing.assert_allclose(fit.log_likelihood, -472.2084126, rtol=1e-8)


def test_nested_lists_are_the_rows_of_one_design():
    rows = [[1.0, 0.5], [1.0, 2.0], [1.0, 3.5]]
    (design,) = as_designs(rows, 3, 1, None)
    np.testing.assert_array_equal(design.columns, rows)
    answers = tg.Ordinal([0, 1, 0, 1, 1, 0])
    covariate = [[0.1], [0.9], [0.7], [0.6], [0.2], [0.3]]
    lists, array = (tg.fit_regression(answers, x) for x in (covariate, np.array(covariate)))
    np.testing.assert_array_equal(lists.estimates, array.estimates)


@pytest.mark.quick("False")
@pytest.mark.parametrize("several", [False, True])
def test_a_design_with_names_names_the_estimates(several):
    random = np.random.default_rng(0)
    x, y = random.normal(size=30), random.normal(size=(30, 2 if several else 1))
    named = {"constant": np.ones(30), "x": x}
    rows = tg.Observations.exact(y)
    fit = tg.fit_observations(rows, named, "diagonal")
    plain = tg.fit_observations(rows, np.c_[np.ones(30), x], "diagonal")
    np.testing.assert_array_equal(fit.estimates, plain.estimates)
    expected = ("coefficients[0][constant]", "coefficients[0][x]") if several else ("constant", "x")
    assert fit.names[:2] == expected
    assert plain.names[1] == ("coefficients[0][1]" if several else "coefficients[1]")
    assert fit.profile(fit.names[1]) == plain.profile(plain.names[1])


@pytest.mark.full
def test_errors_beside_more_faces_than_dimensions_are_those_of_importance_sampling():
    rng = np.random.default_rng(0)
    faces, sample = rng.normal(size=(4, 3)), rng.normal(size=(400, 3))
    inside = np.all(np.abs(sample @ faces.T) < 1.5, axis=1)
    region = tg.Polyhedron(faces, np.full(4, -1.5), np.full(4, 1.5))
    rows = tg.Observations.exact(sample[inside][:40], region=region)
    settings = {"covariance": np.eye(3), "num_starts": 1, "num_profiles": 0, "progress": False}
    fit = tg.fit_observations(rows, **settings)
    other = tg.fit_observations(rows, method=tg.ImportanceSampling(2**13), **settings)
    np.testing.assert_allclose(fit.errors, other.errors, rtol=0.02)
