"""Mixtures whose likelihood is highest where a variance is 0."""

import jax
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg


def refused(fit, sentence):
    """Whether a fit says that it is no maximum, and of no error that it is known."""
    assert not fit.converged and sentence in fit.reason
    assert not fit.certificate.positive_definite and np.isnan(fit.certificate.distance)
    fixed = np.array([name == "weights[0]" and len(fit.weights) == 1 for name in fit.names])
    assert np.all(fit.errors[fixed] == 0) and np.all(np.isinf(fit.errors[~fixed]))
    assert np.isnan(fit.parameter_covariance).all()
    assert np.isinf(fit.standard_errors.locs).all()
    assert np.all(np.isinf(fit.delta(lambda estimates: fit.parts(estimates)[1]).standard_errors))
    with pytest.raises(ValueError, match="highest at the edge"):
        fit.profile(fit.names[-1])


@pytest.mark.full
def test_noise_that_explains_the_spread_of_the_rows_leaves_no_variance_to_be_known():
    y = 0.3 * np.random.default_rng(0).normal(size=300)
    rows = tg.Observations.exact(y, noise=[[0.25]])
    fit, other = tg.fit_mixture(rows, 1), tg.fit_observations(rows, num_starts=1)
    refused(fit, "component 0 has variance 0: the noise alone explains")
    assert not other.converged and "at variance 0" in other.reason
    expected = stats.norm.logpdf(y, y.mean(), 0.5).sum()
    np.testing.assert_allclose(fit.log_likelihood, expected, rtol=1e-10)


@pytest.mark.full
def test_of_several_components_the_one_without_a_spread_is_named():
    rng = np.random.default_rng(0)
    y = np.append(0.3 * rng.normal(size=100), 5.0 + rng.normal(size=60))
    start = {"weights": [0.6, 0.4], "locs": [[0.0], [5.0]], "covariances": [[[0.1]], [[0.8]]]}
    fit = tg.fit_mixture(tg.Observations.exact(y, noise=[[0.25]]), 2, start=start)
    refused(fit, "component 0 has variance 0: the noise alone explains")
    assert "a component too many" in fit.reason and fit.covariances[1, 0, 0] > 0.3


@pytest.mark.quick("axis1-1")
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


@pytest.mark.full
def test_what_is_fixed_has_no_interval_to_be_distrusted():
    fit = tg.fit_mixture(tg.Observations.exact(np.random.default_rng(1).exponential(size=8)), 1)
    told = [note for note in fit.notes if "intervals" in note]
    assert fit.converged and "covariances[0]" in " ".join(told) and "weights" not in " ".join(told)


@pytest.mark.quick("20000000.0-True")
@pytest.mark.parametrize("offset, told", [(0.0, False), (2e7, True)])
def test_rows_that_float32_rounds_coarsely_are_told(offset, told):
    y = np.append(np.linspace(-9.0, 9.0, 40), np.linspace(51.0, 69.0, 20)) + offset
    rows = tg.Observations.exact(jax.numpy.asarray(y, np.float32), names=["date"])
    locs, covariances = np.array([[0.0], [60.0]]) + offset, [[[30.0]], [[30.0]]]
    start = {"weights": [0.7, 0.3], "locs": locs, "covariances": covariances}
    fit = tg.fit_mixture(rows, 2, start=start)
    notes = [note for note in fit.notes if "Entry date is kept in float32, in steps of 2 " in note]
    assert len(notes) == told


def test_a_component_of_which_all_is_censored_is_not_determined():
    y = np.append(np.random.default_rng(0).normal(1.0, 0.5, 60), np.full(20, -9.0))
    lower, upper = np.where(y < -3.0, -np.inf, y), np.maximum(y, -3.0)
    rows = tg.Observations(lower[:, None], upper[:, None])
    fit = tg.fit_mixture(rows, 2, num_starts=1)
    assert not fit.converged and "do not determine locs[1][0]." in fit.reason
    assert np.isinf(fit.errors).all() and np.isnan(fit.parameter_covariance).all()
    one = stats.norm.logpdf(y[:60], y[:60].mean(), y[:60].std()).sum()
    expected = one + 60 * np.log(0.75) + 20 * np.log(0.25)
    np.testing.assert_allclose(fit.log_likelihood, expected, rtol=1e-6)
