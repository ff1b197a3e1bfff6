"""Priors of mixtures, against direct maximisation."""

import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg


@pytest.mark.quick("True")
@pytest.mark.parametrize("tied", [False, True])
def test_a_prior_is_that_of_a_direct_maximisation(tied):
    y = np.append(np.linspace(-1.0, 1.0, 30), 9.0)  # on the last of which a component collapses
    start = np.array([0.9, 0.1]), np.array([[0.0], [9.0]]), np.array([[[0.4]], [[0.1]]])
    kind = "tied" if tied else "full"
    rows, ends = tg.Observations.exact(y), {"covariance": kind, "start": start}
    fit = tg.fit_mixture(rows, 2, prior_rows=0.5, **ends)
    assert fit.converged and "prior holds every covariance as 0.5 more observation" in str(fit)

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
