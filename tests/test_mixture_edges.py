"""Mixtures whose likelihood is highest where a variance is 0, and the maxima of factor analysis."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from truncgauss.fitting.mixtures.em import misfit


def refused(fit, sentence):
    """Whether a fit says that it is no maximum, and of no error that it is known."""
    assert not fit.converged and sentence in fit.reason
    assert not fit.certificate.positive_definite and np.isnan(fit.certificate.distance)
    fixed = np.array([name == "weights[0]" and len(fit.weights) == 1 for name in fit.names])
    assert np.all(fit.errors[fixed] == 0) and np.all(np.isinf(fit.errors[~fixed]))
    assert np.isnan(fit.parameter_covariance).all()
    assert np.isinf(fit.standard_errors.locs).all()
    assert np.all(np.isinf(fit.delta(lambda estimates: fit.parts(estimates)[1]).standard_error))
    with pytest.raises(ValueError, match="highest at the edge"):
        fit.profile(fit.names[-1])


def test_noise_that_explains_the_spread_of_the_rows_leaves_no_variance_to_be_known():
    y = 0.3 * np.random.default_rng(0).normal(size=300)
    rows = tg.Observations.exact(y, noise=[[0.25]])
    fit, other = tg.fit_mixture(rows, 1), tg.fit_observations(rows, num_starts=1)
    refused(fit, "component 0 has variance 0: the noise alone explains")
    assert not other.converged and "at variance 0" in other.reason
    expected = stats.norm.logpdf(y, y.mean(), 0.5).sum()
    np.testing.assert_allclose(fit.log_likelihood, expected, rtol=1e-10)


def test_of_several_components_the_one_without_a_spread_is_named():
    rng = np.random.default_rng(0)
    y = np.append(0.3 * rng.normal(size=100), 5.0 + rng.normal(size=60))
    start = [0.6, 0.4], [[0.0], [5.0]], [[[0.1]], [[0.8]]]
    fit = tg.fit_mixture(tg.Observations.exact(y, noise=[[0.25]]), 2, start=start)
    refused(fit, "component 0 has variance 0: the noise alone explains")
    assert "a component too many" in fit.reason and fit.covariances[1, 0, 0] > 0.3


@pytest.mark.parametrize("axis, seed", [([1.0, 2.0], 0), ([0.0, 1.0], 1)])
def test_a_direction_without_a_spread_is_named(axis, seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(200, 1)) * axis + 0.35 * rng.normal(size=(200, 2))
    rows = tg.Observations.exact(y, noise=0.25 * np.eye(2))
    fit, other = tg.fit_mixture(rows, 1), tg.fit_observations(rows, num_starts=1)
    refused(fit, "component 0 has variance 0 along (")
    assert not other.converged and "at a singular covariance: the noise alone" in other.reason
    # With noise of one variance the eigenvalues of the rows' covariance are cut off there.
    values, vectors = np.linalg.eigh(np.cov(y.T, bias=True))
    whole = vectors * np.maximum(values, 0.25) @ vectors.T
    expected = stats.multivariate_normal(y.mean(axis=0), whole).logpdf(y).sum()
    np.testing.assert_allclose(fit.log_likelihood, expected, atol=1e-4)
    draws = fit.sample(jax.random.key(0), 2000)  # from a singular Gaussian
    np.testing.assert_allclose(np.cov(draws.T, bias=True), whole - 0.25 * np.eye(2), atol=0.5)


def test_a_unique_variance_of_0_is_named():
    rng = np.random.default_rng(5)
    z, other = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    y = [z, 0.9 * z + 0.5 * other, 0.3 * z + rng.normal(size=(40, 1)), rng.normal(size=(40, 1))]
    rows = tg.Observations.exact(np.hstack(y), names=["a", "b", "c", "d"])
    fit = tg.fit_mixture(rows, 1, covariance="low_rank", rank=1, num_starts=2)
    refused(fit, "the unique variance of entry a of component 0 is 0 (a Heywood case): the factors")
    # Its likelihood by direct maximisation, with that variance held at next to nothing.
    matrix = np.cov(np.hstack(y).T, bias=True)

    def direct(numbers):
        variances, loadings = np.append(1e-12, np.exp(numbers[:3])), numbers[3:]
        return misfit(np.diag(variances) + np.outer(loadings, loadings), matrix)

    begin = np.append(np.zeros(3), matrix[0] / matrix[0, 0] ** 0.5)
    found = optimize.minimize(direct, begin, options={"gtol": 1e-8})
    expected = -20 * (found.fun + 4 * np.log(2 * np.pi))
    np.testing.assert_allclose(fit.log_likelihood, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("d, n, seed", [(5, 60, 26), (6, 100, 36)])
def test_factors_have_several_maxima_of_which_starts_find_the_highest(d, n, seed):
    rng = np.random.default_rng(seed)
    loadings = 0.7 * rng.normal(size=(d, 2))
    y = rng.normal(size=(n, 2)) @ loadings.T
    y = y + rng.normal(size=(n, d)) * rng.uniform(0.3, 1.2, d)
    fit = tg.fit_mixture(tg.Observations.exact(y), 1, covariance="low_rank", rank=2)
    reached, matrix = fit.start_log_likelihoods, np.cov(y.T, bias=True)
    assert len(reached) == 8 and 1 <= fit.num_reached < 8 and reached[0] < reached.max() - 0.1
    assert f"{fit.num_reached} of 8 starts reached this end." in fit.notes  # a variance is 0

    def direct(numbers):
        variances, loadings = np.exp(numbers[:d]), numbers[d:].reshape(d, 2)
        return misfit(np.diag(variances) + loadings @ loadings.T, matrix)

    rng, bounds, ends = np.random.default_rng(1), [(-25, 5)] * d + [(-9, 9)] * (2 * d), []
    for _ in range(25):
        logs = np.log(np.diagonal(matrix) * rng.uniform(0.05, 0.9, d))
        begin, settings = np.append(logs, rng.normal(size=2 * d)), {"maxiter": 3000}
        ends.append(optimize.minimize(direct, begin, bounds=bounds, options=settings).fun)
    highest = -n / 2 * (min(ends) + d * np.log(2 * np.pi))
    assert highest - 1e-4 < fit.log_likelihood < highest + 0.05


def test_what_is_fixed_has_no_interval_to_be_distrusted():
    fit = tg.fit_mixture(tg.Observations.exact(np.random.default_rng(1).exponential(size=8)), 1)
    told = [note for note in fit.notes if "intervals" in note]
    assert fit.converged and "covariances[0]" in " ".join(told) and "weights" not in " ".join(told)


@pytest.mark.parametrize("offset, told", [(0.0, False), (2e7, True)])
def test_rows_that_float32_rounds_coarsely_are_told(offset, told):
    y = np.append(np.linspace(-9.0, 9.0, 40), np.linspace(51.0, 69.0, 20)) + offset
    rows = tg.Observations.exact(jax.numpy.asarray(y, np.float32), names=["date"])
    start = [0.7, 0.3], np.array([[0.0], [60.0]]) + offset, [[[30.0]], [[30.0]]]
    fit = tg.fit_mixture(rows, 2, start=start)
    notes = [note for note in fit.notes if "Entry date is kept in float32, in steps of 2 " in note]
    assert len(notes) == told
