"""Covariances of few factors and priors of mixtures, against direct maximisation."""

import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from truncgauss.fitting.mixtures.em import misfit
from truncgauss.fitting.mixtures.factors import factor_analysis, most_factors
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates


def one_factor(n, d=4, seed=0):
    """Rows of one factor and unique variances."""
    rng = np.random.default_rng(seed)
    loadings = np.linspace(0.5, 1.5, d)
    return rng.normal(size=(n, 1)) * loadings + rng.normal(size=(n, d)) * np.linspace(0.4, 0.9, d)


@pytest.mark.parametrize("d, rank", [(4, 1), (5, 2)])
def test_factor_analysis_is_the_direct_maximum(d, rank):
    rng = np.random.default_rng(0)
    factors = np.array([[1.5, 0.0], [1.0, 0.5], [0.2, 1.2], [-0.8, 1.0], [1.0, -1.0]])[:d, :rank]
    matrix = np.cov((rng.normal(size=(200, rank)) @ factors.T + 0.6 * rng.normal(size=(200, d))).T)

    def direct(numbers):
        logs, loadings = numbers[:d], numbers[d:].reshape(d, rank)
        return misfit(np.diag(np.exp(logs)) + loadings @ loadings.T, matrix)

    begin = np.random.default_rng(1).normal(size=d + d * rank)
    expected = optimize.minimize(direct, begin, options={"gtol": 1e-9}).fun
    variances, loadings = factor_analysis(matrix, rank)
    found = np.diag(variances) + loadings @ loadings.T
    np.testing.assert_allclose(misfit(found, matrix), expected, rtol=1e-8)
    assert np.all(np.triu(loadings, 1) == 0)
    # What has this form already stays as it is.
    again = factor_analysis(found, rank)
    np.testing.assert_allclose(np.diag(again[0]) + again[1] @ again[1].T, found, rtol=1e-5)


def test_factors_of_fewer_rows_than_entries_have_next_to_no_variance_of_their_own():
    matrix = np.outer([1.0, 2.0, -1.0, 0.5], [1.0, 2.0, -1.0, 0.5])
    variances, loadings = factor_analysis(matrix, 1)
    assert np.all((variances >= 0) & (variances < 1e-8))
    np.testing.assert_allclose(loadings @ loadings.T, matrix, rtol=1e-6)
    assert np.isnan(factor_analysis(np.zeros((3, 3)), 1)[0]).all()


def test_the_most_factors_are_ledermanns():
    assert [most_factors(d) for d in range(1, 10)] == [0, 0, 1, 1, 2, 3, 3, 4, 5]


def test_coordinates_of_low_rank_are_those_of_their_matrices():
    place = MixtureCoordinates(np.zeros(4), np.array([1.0, 2.0, 0.5, 1.0]), 2, "low_rank", 1)
    x = np.random.default_rng(0).normal(size=place.size)
    mixture = place.mixture(x)
    parts = mixture.weights, mixture.locs, mixture.covariance.covariance_matrix
    again = place.mixture(place.free(*map(np.asarray, parts)))
    np.testing.assert_allclose(again.covariance.covariance_matrix, parts[2], rtol=1e-4)
    swapped = place.mixture(place.reordered(np.array([1, 0])) @ x)
    np.testing.assert_allclose(swapped.covariance.covariance_matrix, parts[2][::-1], rtol=1e-12)


def test_as_many_factors_as_a_full_matrix_are_one():
    rows = tg.Observations.exact(one_factor(60, 3))
    full = tg.fit_mixture(rows, 1)
    low = tg.fit_mixture(rows, 1, covariance="low_rank", rank=1)
    assert low.converged and low.num_parameters == full.num_parameters == 9
    np.testing.assert_allclose(low.log_likelihood, full.log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(low.estimates, full.estimates, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(low.errors, full.errors, rtol=1e-5)


@pytest.mark.slow
def test_factors_behind_a_limit_are_found_by_all_starts():
    y = np.concatenate([one_factor(800), one_factor(600, seed=1)[:, ::-1] + [5.0, 5.0, 5.0, 0.0]])
    rows = tg.Observations.exact(y[y[:, 0] > -0.5], region=tg.Box([-0.5] + [-np.inf] * 3, np.inf))
    fit = tg.fit_mixture(rows, 2, covariance="low_rank", rank=1, num_starts=3)
    assert fit.converged and fit.num_reached == 3 and fit.num_parameters == 1 + 8 + 16
    assert np.all(np.diff(fit.em_log_likelihoods) > -1e-7)
    loadings = np.linspace(0.5, 1.5, 4)
    first = np.outer(loadings, loadings) + np.diag(np.linspace(0.4, 0.9, 4) ** 2)
    own = int(np.argmin(fit.locs[:, 0]))
    for k, truth in ((own, first), (1 - own, first[::-1, ::-1])):
        pulls = (fit.covariances[k] - truth) / fit.standard_errors.covariances[k]
        assert np.abs(pulls).max() < 3.5
    full = tg.fit_mixture(rows, 2, num_starts=1)
    assert fit.log_likelihood < full.log_likelihood and fit.bic < full.bic


@pytest.mark.parametrize("tied", [False, True])
def test_a_prior_is_that_of_a_direct_maximisation(tied):
    y = np.append(np.linspace(-1.0, 1.0, 30), 9.0)  # on the last of which a component collapses
    start = np.array([0.9, 0.1]), np.array([[0.0], [9.0]]), np.array([[[0.4]], [[0.1]]])
    kind = "tied" if tied else "full"
    rows, ends = tg.Observations.exact(y), {"covariance": kind, "start": start}
    fit = tg.fit_mixture(rows, 2, prior_rows=0.5, **ends)
    assert fit.converged and "prior holds every covariance as 0.5 more row" in str(fit)

    def penalised(numbers):
        weight, first, second, *logs = numbers
        weights = np.array([1.0, np.exp(weight)]) / (1 + np.exp(weight))
        scales = np.exp(np.array(logs) * np.ones(2))
        logs = stats.norm.logpdf(y[:, None], [first, second], scales)
        ratios = scales[: 1 if tied else 2] ** 2 / y.var()
        prior = -0.25 * np.sum(np.log(ratios) + 1 / ratios)
        return -np.sum(np.logaddexp.reduce(np.log(weights) + logs, axis=1)) - prior

    begin = [-2.0, 0.0, 9.0] + [-0.5] * (1 if tied else 2)
    found = optimize.minimize(penalised, begin, options={"gtol": 1e-7})
    np.testing.assert_allclose(fit.locs.ravel(), found.x[1:3], atol=1e-5)
    expected = np.exp(2 * found.x[3:]) * np.ones(2)
    np.testing.assert_allclose(fit.covariances.ravel(), expected, rtol=1e-5)
    np.testing.assert_allclose(-found.fun, fit.start_log_likelihoods[0], rtol=1e-10)
    assert np.all(np.diff(fit.em_log_likelihoods) > -1e-9)
    np.testing.assert_allclose(-found.fun, fit.em_log_likelihoods[-1], atol=0.05)
    # The errors are those of its curvature.
    curvature = optimize.approx_fprime(
        found.x, lambda x: optimize.approx_fprime(x, penalised, 1e-4), 1e-4
    )
    errors = np.sqrt(np.diagonal(np.linalg.inv(curvature)))
    np.testing.assert_allclose(fit.standard_errors.locs.ravel(), errors[1:3], rtol=0.02)


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"covariance": "low_rank"}, "needs a rank, and no other has one; got None"),
        ({"rank": 2}, "got 2 for 'full'"),
        ({"covariance": "low_rank", "rank": 2}, "rank must be an int from 1 to 1 in 3 dim"),
        ({"prior_rows": -1.0}, "prior_rows must be 0 or positive, got -1.0"),
    ],
)
def test_senseless_structures_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        tg.fit_mixture(tg.Observations.exact(one_factor(50, 3)), 1, **settings)
