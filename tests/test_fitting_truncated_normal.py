"""`fit_truncated_normal`: other optimisers, published fits, existence, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests import published_rows
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.fits.gaussian.truncated_normal import packed
from truncgauss.fitting.newton import derivatives, point, sloped
from truncgauss.gaussian.problem import Estimate
from truncgauss.probability.method import Method

INF = jnp.inf


@pytest.mark.full
def test_wild_starts_and_float32_end_at_the_same_maximum():
    x = np.array([0.2, 0.9, 1.1, 0.4, 1.6, 0.3, 0.8, 1.2])
    fit = tg.fit_truncated_normal(x, low=0.0)
    for loc, variance in [(5.0, 100.0), (-30.0, 1.0), (0.5, 1e-3), (4.0, 1e9)]:
        start = {"loc": [loc], "covariance": [[variance]]}
        other = tg.fit_truncated_normal(x, low=0.0, start=start)
        assert other.converged
        np.testing.assert_allclose(other.loc, fit.loc, rtol=1e-9)
    assert other.notes  # the last start was of no use, and that is said
    single = tg.fit_truncated_normal(jnp.asarray(x, jnp.float32), low=0.0)
    np.testing.assert_allclose(single.loc, fit.loc, rtol=1e-5)


def test_a_likelihood_without_maximum_is_said_to_have_none():
    # On a half-line there is a maximum if and only if the sample's standard deviation is below its
    # mean distance from the limit; at equality the likelihood ends at the exponential law.
    q = (np.arange(200) + 0.5) / 200
    lasting = tg.fit_truncated_normal(stats.gamma.ppf(q, 1.1), low=0.0)
    assert lasting.converged, lasting.reason
    for rows, high in [(stats.gamma.ppf(q, 0.9), None), (stats.beta.ppf(q, 0.6, 0.6), 1.0)]:
        fit = tg.fit_truncated_normal(rows, 0.0, high)
        assert not fit.converged and "There is no maximum" in fit.reason
        assert np.all(np.isinf(fit.standard_errors.loc))
        assert np.all(np.isinf(fit.standard_errors.covariance_matrix))


def test_nearly_collinear_columns_are_fitted():
    rng = np.random.default_rng(0)
    x, away = rng.normal(size=300), 3e-4 * rng.normal(size=300)
    kept, low = x > -1.0, [-1.0, -np.inf]
    fit = tg.fit_truncated_normal(np.column_stack([x, x + away])[kept], low=low)
    assert fit.converged, fit.reason
    # The difference is another column as well, which no limit cuts.
    other = tg.fit_truncated_normal(np.column_stack([x, away])[kept], low=low)
    change = np.array([[1.0, 0.0], [-1.0, 1.0]])
    np.testing.assert_allclose(change @ fit.loc, other.loc, rtol=1e-6)
    found = change @ fit.covariance_matrix @ change.T
    np.testing.assert_allclose(found, other.covariance_matrix, rtol=1e-6)
    np.testing.assert_allclose(fit.standard_errors.loc[0], other.standard_errors.loc[0], rtol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, other.log_likelihood, rtol=1e-9)


@published_rows.needed
def test_a_published_bivariate_fit():
    table = np.genfromtxt(
        published_rows.SHARED / "tmvtnorm_gmm_example_n500.csv", delimiter=",", skip_header=1
    )
    fit = tg.fit_truncated_normal(table, [-1.0, -2.0], [3.0, np.inf])
    assert fit.converged
    # Published to the tolerance of its optimiser; the likelihood is flat to second order there.
    np.testing.assert_allclose(fit.loc, [0.004861529844, 0.040156021743], atol=1e-5)
    covariance = [[1.077771579769, 0.846515654918], [0.846515654918, 1.963549189398]]
    np.testing.assert_allclose(fit.covariance_matrix, covariance, atol=1e-5)
    np.testing.assert_allclose(fit.log_likelihood, -1285.234923, atol=1e-6)
    np.testing.assert_allclose(fit.standard_errors.loc, [0.0901287, 0.1022377], rtol=1e-4)
    errors = [[0.1324755, 0.1324214], [0.1324214, 0.1921866]]
    np.testing.assert_allclose(fit.standard_errors.covariance_matrix, errors, rtol=1e-4)


def test_covariances_off_the_diagonal_are_compared_with_the_likelihood():
    rng = np.random.default_rng(11)
    x = rng.multivariate_normal([0.0, 1.0], [[1.0, 0.5], [0.5, 1.0]], 600)
    x = x[(x[:, 0] > -0.5) & (x[:, 1] < 2.0)]
    counts = rng.integers(0, 3, len(x)).astype(float)
    fit = tg.fit_truncated_normal(x, [-0.5, -INF], [INF, 2.0], weights=counts)
    # The likelihood's own interval of it is far from Wald's, and stands in the table.
    low, high = fit.profiles["covariance[1, 0]"]
    assert (low, high) == fit.profile("covariance[1, 0]") and "covariance[1, 0]" in fit.notes[-1]
    k = fit.names.index("covariance[1, 0]")
    ends = np.array([fit.estimates[k] - low, high - fit.estimates[k]]) / (1.96 * fit.errors[k])
    assert ends[0] < 0.85 and ends[1] > 1.4


def test_one_column_has_a_standard_deviation():
    """The same name and number as by rows; its errors as in the books for a sample seen whole."""
    y = np.random.default_rng(2).normal(3.0, 0.2, size=80)
    fit = tg.fit_truncated_normal({"mass": y})
    assert fit.names == ("loc[mass]", "sigma")
    np.testing.assert_allclose(fit.estimates, [y.mean(), y.std()], rtol=1e-9)
    errors = [y.std() / np.sqrt(80), y.std() / np.sqrt(160), y.var() * np.sqrt(2 / 80)]
    found = [*fit.errors, fit.standard_errors.covariance_matrix[0, 0]]
    np.testing.assert_allclose(found, errors, rtol=1e-8)
    np.testing.assert_allclose(np.diagonal(fit.parameter_covariance), fit.errors**2, rtol=1e-9)
    np.testing.assert_allclose(fit.covariance_matrix[0, 0], y.var(), rtol=1e-9)
    rows = tg.fit_observations(tg.Observations.exact(y))
    np.testing.assert_allclose(rows.profile("sigma"), fit.profile("sigma"), rtol=1e-6)


def test_errors_that_do_not_hold_are_told():
    """An exponential sample may have a maximum, far out and flat on one side."""
    x = np.random.default_rng(0).exponential(size=500)
    fit = tg.fit_truncated_normal(x, 0.0)
    assert fit.converged and fit.loc[0] < -10.0
    only, seen, replaced, endless = fit.notes
    assert "no other maximum" in only and "Only 3.4e-05 of the fitted distribution" in seen
    assert "Profile intervals replace Wald's of loc[0], sigma" in replaced
    assert "Infinite ends of the profile intervals of loc[0], sigma" in endless
    assert fit.profiles["loc[0]"][0] == -INF and fit.profiles["sigma"][1] == INF
    good = tg.fit_truncated_normal(np.random.default_rng(0).normal(5.0, 1.0, size=2000), 0.0)
    assert good.converged and good.notes == (only,)


@frozen_pytree
class Baseless(Method):
    """The right answer, and the word that it rests on nothing."""

    def replicate(self, loc, covariance, region, key):
        log_prob, _ = tg.Exact().replicate(loc, covariance, region, key)
        return Estimate(log_prob, jnp.full_like(log_prob, INF))


def test_a_fit_does_not_converge_on_too_few_samples():
    rows = np.array([[0.2], [0.9], [1.1], [0.4], [1.6], [0.3], [0.8], [1.2]])
    known, doubted = (
        tg.fit_truncated_normal(rows, low=0.0, method=method) for method in (tg.Exact(), Baseless())
    )
    assert known.converged and not doubted.converged
    assert "too few effective samples" in doubted.reason and doubted.notes == ()
    np.testing.assert_allclose(doubted.loc, known.loc)


def test_a_fit_without_float64_is_no_warning():
    rows = np.random.default_rng(0).normal(size=(300, 1))
    with jax.enable_x64(False):
        fit = tg.fit_truncated_normal(rows[rows[:, 0] > -0.5], low=[-0.5])
    assert fit.converged, fit.reason


@pytest.mark.full
def test_integrals_that_move_the_estimates_are_told():
    """Of so many rows the standard errors are smaller than what the integral's error moves."""
    random = np.random.default_rng(0)
    covariance = 0.1 * np.eye(4) + 0.9
    rows = random.multivariate_normal(np.full(4, 0.3), covariance, 3000)
    rows = rows[(rows > 0).all(axis=1)]
    few = tg.fit_truncated_normal(rows, low=0.0)
    many = tg.fit_truncated_normal(rows, low=0.0, weights=np.full(len(rows), 1e5))
    assert few.converged and not any("may be off" in note for note in few.notes)
    assert any("The estimates may be off by" in note for note in many.notes)


# Profiles and names


@pytest.mark.full
def test_profiles_of_a_truncated_fit_are_those_of_its_rows():
    x = np.random.default_rng(3).normal(size=(400, 2)) @ [[1.0, 0.5], [0.0, 1.0]]
    x = x[np.all(x > -0.3, axis=1)]
    fit = tg.fit_truncated_normal(
        {"mass": x[:, 0], "size": x[:, 1]}, low={"mass": -0.3, "size": -0.3}
    )
    rows = tg.Observations.exact(x, region=tg.Box([-0.3, -0.3], INF))
    by_rows = tg.fit_observations(rows)
    assert fit.names[0] == "loc[mass]" and fit.names[3] == "covariance[size, mass]"
    ends = fit.profile("covariance[size, mass]")
    np.testing.assert_allclose(ends, by_rows.profile("covariance[1, 0]"), rtol=1e-6)
    falls = [fit.profile_fall("covariance[size, mass]", end) for end in ends]
    np.testing.assert_allclose(falls, 0.5 * stats.chi2.ppf(0.95, 1), rtol=1e-6)


@pytest.mark.full
def test_a_profile_by_gradients_ends_where_another_optimiser_says():
    d = 4
    x = np.random.default_rng(5).normal(size=(1500, d)) @ (np.eye(d) + 0.4 * np.eye(d, k=1))
    x = x[np.all(x > -0.8, axis=1)]
    fit = tg.fit_truncated_normal(x, low=-0.8)
    assert fit.converged and fit.log_likelihood_stderr > 0
    end = fit.profile("loc[1]")[1]
    with jax.enable_x64(True):
        size, best, place = float(fit.loss.size), fit.best, fit.coordinates
        root = np.linalg.inv(np.linalg.cholesky(size * best.hessian)).T
        estimate = jax.value_and_grad(lambda at: place.estimates(at)[1])

        def fall(y):
            there = sloped(fit.loss, best.x + root @ y)
            return size * (there.loss - best.loss), size * root.T @ there.gradient

        held = {
            "type": "eq",
            "fun": lambda y: float(estimate(jnp.asarray(best.x + root @ y))[0]) - end,
            "jac": lambda y: root.T @ np.asarray(estimate(jnp.asarray(best.x + root @ y))[1]),
        }
        first = np.zeros(len(best.x))
        found = optimize.minimize(fall, first, jac=True, method="SLSQP", constraints=held)
    np.testing.assert_allclose(found.fun, 0.5 * stats.chi2.ppf(0.95, 1), rtol=1e-4)


@pytest.mark.full
def test_differences_of_gradients_are_the_hessian():
    rows = np.random.default_rng(2).normal(size=(300, 2)) @ np.array([[1.0, 0.0], [0.6, 0.8]])
    fit = tg.fit_truncated_normal(rows[np.all(rows > -0.5, axis=1)], low=-0.5)
    wide = packed(np.array([0.3, -0.2]), np.array([[0.5, 0.05], [0.05, 0.02]]))
    with jax.enable_x64(True):
        assert fit.loss.steps(wide * [1, 1, 1, 1, 0.1]) is None
        for x in (fit.best.x, packed(np.array([3.0, 1.0]), np.diag([20.0, 0.05])), wide):
            exact = np.asarray(derivatives(fit.loss, jnp.asarray(x))[2])
            units = np.sqrt(np.diagonal(exact))
            gap = (point(fit.loss, x).hessian - exact) / np.outer(units, units)
            assert np.abs(gap).max() < 2e-8


@pytest.mark.full
def test_limits_of_truncation_are_those_of_a_box_in_every_fit():
    x = np.array([0.2, 0.9, 1.1, 0.4, 1.6, 0.3, 0.8, 1.2])
    box, ones = tg.Box([0.0], [INF]), np.ones((8, 1))
    by_box = (
        tg.fit_observations(tg.Observations.exact(x, region=box)),
        tg.fit_regression(x, ones, region=box),
        tg.fit_truncated_normal(x, region=box),
    )
    by_limits = tg.fit_regression(x, ones, truncated_low=0.0), tg.fit_truncated_normal(x, low=0.0)
    for fit in (*by_box, *by_limits):
        assert fit.names[-1] == "sigma"
        np.testing.assert_allclose(fit.estimates, by_box[0].estimates, rtol=1e-6)
    each = tg.Box(np.zeros((8, 1)), np.full((8, 1), INF))
    np.testing.assert_array_equal(
        tg.fit_regression(x, ones, region=each).estimates, by_box[1].estimates
    )
