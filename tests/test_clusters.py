"""Clusters of rows: likelihoods by second routes, fits, edges and predictions."""

import re

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import optimize, special, stats

import truncgauss as tg
from tests.published_rows import needed, ohio
from truncgauss.fits.clusters import long_tables
from truncgauss.fits.clusters.cluster_fit import critical_root, model_of
from truncgauss.fits.clusters.cluster_likelihood import given_exact
from truncgauss.fits.clusters.long_tables import inputs_of
from truncgauss.fitting.newton import point


def model(outcome, design, cluster, terms, binary=False):
    columns = outcome, design, cluster, None, None, None
    return model_of(inputs_of(columns, None, binary), terms)


def values_at(made, estimates):
    """The log-likelihood of each cluster, and its error, at estimates."""
    x = made.inner.free(jnp.asarray(estimates))
    result = made.loss_at(np.asarray(x)).evaluated(x)
    return [np.asarray(part)[made.table.number] for part in result]


def test_a_balanced_gaussian_model_has_the_closed_form_likelihood():
    rng = np.random.default_rng(0)
    count, m = 30, 4
    y = 5e3 + np.repeat(rng.normal(size=count), m) + 0.5 * rng.normal(size=count * m)
    fit = tg.fit_clusters(
        y, np.ones((count * m, 1)), np.repeat(np.arange(count), m), progress=False
    )
    table = y.reshape(count, m)
    within = np.sum((table - table.mean(axis=1, keepdims=True)) ** 2) / (count * (m - 1))
    total = np.mean((table.mean(axis=1) - y.mean()) ** 2)
    expected = [y.mean(), np.sqrt(total - within / m), np.sqrt(within)]
    np.testing.assert_allclose(fit.estimates, expected, rtol=1e-9)
    covariance = expected[1] ** 2 + expected[2] ** 2 * np.eye(m)
    exact = stats.multivariate_normal.logpdf(table - y.mean(), cov=covariance).sum()
    assert abs(fit.log_likelihood - exact) < 1e-10 * abs(exact)


@needed
def test_wheeze_of_ohio_children():
    table = ohio()
    fit = tg.fit_clusters(
        "resp ~ age * smoke",
        None,
        "id",
        tg.CommonCorrelation(),
        data=table,
        binary=True,
        progress=False,
    )
    assert abs(fit.log_likelihood + 797.6672005) < 1e-7
    expected = [-1.119373965, -0.07774778, 0.16103840, 0.03848945, 0.5985964964]
    np.testing.assert_allclose(fit.estimates, expected, atol=1e-6)
    errors = [0.0621135, 0.0304362, 0.1004061, 0.0493308, 0.0406406]
    np.testing.assert_allclose(fit.errors, errors, atol=1e-6)
    low, high = fit.profile("correlation")
    assert 0.51 < low < 0.53 and 0.66 < high < 0.69


@pytest.mark.full
def test_a_variance_of_zero_is_a_named_edge():
    rng = np.random.default_rng(3)
    count, m = 40, 4
    y = rng.normal(size=(count, m))
    y -= 0.9 * y.mean(axis=1, keepdims=True)  # less than independent rows would vary between
    y, cluster, ones = y.ravel(), np.repeat(np.arange(count), m), np.ones((count * m, 1))
    fit = tg.fit_clusters(y, ones, cluster, progress=False)
    assert fit.converged and fit.edges == ("sigma[intercept]",)
    assert abs(fit.estimates[1]) < 1e-3 and np.isnan(fit.errors[1]) and np.isfinite(fit.errors[2])
    assert fit.profiles["sigma[intercept]"][0] == 0.0
    assert 0.0 < fit.profiles["sigma[intercept]"][1] < 0.4
    alone = tg.fit_clusters(y, ones, cluster, tg.Residual(), progress=False)
    test = tg.likelihood_ratio(alone, fit)
    assert test.degrees == 1 and test.p_value == 1.0 and test.statistic < 1e-9
    common = tg.fit_clusters(y, ones, cluster, tg.CommonCorrelation(), progress=False)
    assert common.edges == ("correlation",) and common.profile("correlation")[0] == 0.0
    np.testing.assert_allclose(common.log_likelihood, alone.log_likelihood, rtol=1e-12)


def test_critical_values_at_an_edge_cover_exactly():
    usual, grid = stats.norm.ppf(0.975), np.linspace(0.0, 9.0, 901)
    lower = np.maximum(grid - [critical_root(0.95, x) for x in grid], 0.0)
    for truth in (0.0, 0.3, 1.0, 1.6, 1.9, 2.5):
        z = np.linspace(truth - 6.0, truth + 6.0, 24001)  # an estimate, in standard errors
        high = np.where(z > 0, z + usual, z + np.hypot(usual, z))  # that of z < 0 is at the edge
        inside = (np.interp(z, grid, lower) <= truth) & (truth <= high)
        coverage = stats.norm.pdf(z - truth)[inside].sum() * (z[1] - z[0])
        assert 0.949 < coverage < 0.958, (truth, coverage)
    assert critical_root(0.95, 3.92) == usual == critical_root(0.95, 30.0)
    assert critical_root(0.9, 0.5) == stats.norm.ppf(0.9)


def test_any_correlation_is_possible_of_an_effect_that_may_be_absent():
    cluster, time = np.repeat(np.arange(40), 5), np.tile(np.linspace(0.0, 1.0, 5), 40)
    terms = tg.RandomEffects("1 + t"), tg.Residual()
    critical = 0.5 * stats.chi2.ppf(0.95, 1)
    for deviation in (0.2, 0.7):
        rng = np.random.default_rng(0)
        covariance = [[0.64, 0.4 * deviation], [0.4 * deviation, deviation**2]]
        effects = rng.multivariate_normal([0.0, 0.0], covariance, 40)[cluster]
        y = 1.0 + 0.5 * time + effects[:, 0] + effects[:, 1] * time + 0.3 * rng.normal(size=200)
        both, one = (
            tg.fit_clusters(
                "y ~ t", None, "c", some, data={"y": y, "t": time, "c": cluster}, num_profiles=0
            )
            for some in (terms, (tg.RandomEffects(), tg.Residual()))
        )
        assert both.effects().names == ("Intercept", "t") and one.effects().names == ("effect",)
        name = "correlation[t, Intercept]"
        ends = both.profile(name)
        if both.log_likelihood - one.log_likelihood < critical:
            assert deviation == 0.2 and ends == (-1.0, 1.0)
        else:
            falls = [both.profile_fall(name, end) for end in ends]
            np.testing.assert_allclose(falls, critical, atol=1e-3)


@pytest.mark.full
def test_ratios_whose_parameters_vanish_are_refused():
    rng = np.random.default_rng(13)
    cluster, ones, time = np.repeat(np.arange(30), 5), np.ones((150, 1)), np.tile(np.arange(5), 30)
    latent = rng.multivariate_normal(
        np.zeros(5), 0.7 ** np.abs(np.subtract.outer(range(5), range(5))), 30
    )
    y = 1.5 * latent.ravel() + rng.normal(size=150)
    fit = lambda *terms: tg.fit_clusters(y, ones, cluster, terms, progress=False)
    single, effects = fit(tg.Residual()), fit(tg.RandomEffects(), tg.Residual())
    process = fit(tg.AutoRegressive(time), tg.Residual())
    with pytest.raises(
        ValueError, match="autoregressive of the larger model has .* and rho, which"
    ):
        tg.likelihood_ratio(single, process)
    factor = fit(tg.Factor(1, time), tg.Residual())
    with pytest.raises(ValueError, match="term factor of the larger model"):
        tg.likelihood_ratio(single, factor)
    alone = fit(tg.AutoRegressive(time))  # independent errors at rho = 0, which is no edge
    test = tg.likelihood_ratio(single, alone)
    assert test.degrees == 1 and np.isclose(test.p_value, stats.chi2.sf(test.statistic, 1))
    with pytest.raises(ValueError, match="rho"):
        tg.likelihood_ratio(
            effects, fit(tg.RandomEffects(), tg.AutoRegressive(time), tg.Residual())
        )
    slopes = fit(tg.RandomEffects(np.column_stack([ones[:, 0], time])), tg.Residual())
    with pytest.raises(ValueError, match="holds the process autoregressive of the smaller one"):
        tg.likelihood_ratio(alone, slopes)
    test = tg.likelihood_ratio(single, effects)
    assert np.isclose(test.p_value, 0.5 * stats.chi2.sf(test.statistic, 1))
    assert tg.likelihood_ratio(tg.fit_regression(y, ones), effects) == pytest.approx(test)
    with pytest.raises(ValueError, match="term factor of the larger model"):
        tg.likelihood_ratio(tg.fit_regression(y, ones), factor)
    loadings = fit(tg.Factor(1, time), tg.Diagonal(time))  # equal ones are a random intercept
    test = tg.likelihood_ratio(effects, loadings)
    assert test.p_value == stats.chi2.sf(test.statistic, test.degrees) and test.degrees == 8


def test_no_interval_of_a_table_reaches_below_a_deviation_of_0():
    rng = np.random.default_rng(24)
    cluster = np.repeat(np.arange(10), 4)
    outcomes = 0.35 * rng.normal(size=10)[cluster] + rng.normal(size=40)
    fit = tg.fit_clusters(outcomes, np.ones((40, 1)), cluster, progress=False)
    assert fit.wald()[1, 0] < -0.4 and fit.wald_coverages[1] > 0.95
    low, high = fit.profiles["sigma[intercept]"]
    assert low == 0 and high < fit.wald()[1, 1] * 1.2
    assert "of sigma[intercept] in the table. Wald's reach below 0" in str(fit)
    plain = fit.with_intervals(0)
    assert "Do not trust the Wald intervals of sigma[intercept]" in " ".join(plain.notes)


def test_processes_without_a_maximum_are_named():
    cluster, ones, time = (
        np.repeat(np.arange(30), 5),
        np.ones((150, 1)),
        np.tile(np.arange(5.0), 30),
    )
    fit = lambda y, *terms: tg.fit_clusters(y, ones, cluster, terms, progress=False)
    rng = np.random.default_rng(1)
    noise = rng.normal(size=150)
    together = rng.normal(size=30)[cluster] + rng.normal(size=150)
    process = fit(together, tg.AutoRegressive(time), tg.Residual())
    assert not process.converged and "grows as rho goes to 1" in process.reason
    assert np.all(np.isinf(process.errors))  # of rho too, which no longer changes
    process = fit(together, tg.Exponential(time), tg.Residual())
    assert not process.converged and "grows with the range" in process.reason
    process = fit(noise, tg.Exponential(time), tg.Residual())
    assert not process.converged and "is like tg.Residual()" in process.reason


@pytest.mark.full
def test_effects_of_censored_rows_are_conditional_means():
    rng = np.random.default_rng(5)
    y = np.repeat(rng.normal(size=30), 3) + rng.normal(size=90)
    fit = tg.fit_clusters(
        y, np.ones((90, 1)), np.repeat(np.arange(30), 3), censored_low=-0.3, progress=False
    )
    mean, spread, sigma = fit.estimates
    rows, effects = y.reshape(30, 3), fit.effects()
    assert str(effects).splitlines()[1].split() == [
        str(effects.labels[0]), f"{effects.mean[0]:.6g}", f"{effects.standard_errors[0]:.6g}"
    ]  # fmt: skip
    assert str(effects).splitlines()[-1] == "and 10 more"
    assert list(effects.labels[np.argsort(effects.labels)]) == list(range(30))
    for label, got, error in zip(effects.labels, effects.mean, effects.standard_errors):
        u = np.linspace(-8, 8, 4001)
        at = mean + spread * u[:, None]
        low = rows[label] <= -0.3
        logs = np.where(
            low, special.log_ndtr((-0.3 - at) / sigma), stats.norm.logpdf(rows[label], at, sigma)
        ).sum(axis=1) + stats.norm.logpdf(u)
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        expected = weights @ (spread * u)
        assert abs(got - expected) < 1e-8
        assert abs(error - np.sqrt(weights @ (spread * u - expected) ** 2)) < 1e-8
    assert np.isfinite(fit.effects("residual").mean).all()
    share = fit.derived(
        lambda p: p["sigma[intercept]"] ** 2 / (p["sigma[intercept]"] ** 2 + p.sigma**2)
    )
    assert 0.2 < share.value < 0.8 and share.standard_errors < 0.2


@pytest.mark.full
def test_samplers_have_the_log_likelihood_and_its_gradient():
    rng = np.random.default_rng(7)
    y = np.repeat(rng.normal(size=20), 3) + rng.normal(size=60)
    fit = tg.fit_clusters(
        y, np.ones((60, 1)), np.repeat(np.arange(20), 3), censored_low=0.0, progress=False
    )
    with jax.enable_x64(True):
        total = lambda p: fit.log_likelihoods(p).sum()
        at = jnp.asarray(fit.estimates + 0.1)
        gradient = jax.grad(total)(at)
        for k, unit in enumerate(1e-5 * np.eye(3)):
            assert abs((total(at + unit) - total(at - unit)) / 2e-5 - gradient[k]) < 1e-5


def test_terms_that_the_rows_do_not_tell_apart_are_named():
    rng = np.random.default_rng(5)
    y, design = rng.normal(size=40), np.ones((40, 1))
    cases = [
        (np.arange(40), None, r"sigma\[intercept\] and sigma apart.*Each cluster has one"),
        (np.arange(40), tg.CommonCorrelation(), "do not tell correlation, .*Each cluster has one"),
        (np.repeat(np.arange(10), 4), (tg.Kinship(np.eye(40)), tg.Residual()),
         r"sigma\[kinship\] and sigma apart, [^.]*\. Leave out"),
    ]  # fmt: skip
    for cluster, terms, words in cases:
        settings = {} if terms is None else {"terms": terms}
        fit = tg.fit_clusters(y, design, cluster, progress=False, **settings)
        assert not fit.converged and re.search(words, fit.reason), fit.reason
        assert np.isinf(fit.errors).all() and not any("maxima" in note for note in fit.notes)


def test_one_field_with_a_nugget_is_fitted():
    """The maximum by SciPy of a dense Gaussian likelihood in NumPy, with the mean profiled out."""
    rng = np.random.default_rng(1)
    n = 32
    sites, ones = rng.uniform(0.0, 6.0, size=(n, 2)), np.ones((n, 1))
    gaps = np.linalg.norm(sites[:, None] - sites, axis=-1)

    def matrix(sigma, reach, nugget):
        s = 3**0.5 * gaps / reach
        return sigma**2 * (1.0 + s) * np.exp(-s) + nugget**2 * np.eye(n)

    y = 5.0 + np.linalg.cholesky(matrix(1.2, 1.5, 0.4)) @ rng.normal(size=n)

    def fall(logs):
        factor = np.linalg.cholesky(matrix(*np.exp(logs)))
        x, z = np.linalg.solve(factor, np.column_stack([ones, y])).T
        rest = z - x * (x @ z) / (x @ x)
        return 0.5 * rest @ rest + np.log(np.diagonal(factor)).sum()

    best = optimize.minimize(fall, np.log([1.0, 1.0, 0.5]), method="Nelder-Mead",
                             options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000})  # fmt: skip
    terms = tg.Matern(sites), tg.Residual()
    settings = {"num_starts": 1, "num_profiles": 0, "progress": False}
    fit = tg.fit_clusters(y, ones, np.zeros(n), terms, **settings)
    assert fit.converged and fit.names == ("coefficients[0]", "sigma[matern]", "range", "sigma")
    np.testing.assert_allclose(fit.estimates[1:], np.exp(best.x), rtol=1e-5)
    height = -best.fun - 0.5 * n * np.log(2.0 * np.pi)
    np.testing.assert_allclose(fit.log_likelihood, height, rtol=1e-10)
    assert "32 observations in 1 cluster, 4 parameters" in str(fit)
    np.testing.assert_allclose(fit.bic, 4 * np.log(n) - 2 * height)


def test_few_clusters_and_variances_of_zero_are_said():
    rng = np.random.default_rng(3)
    y, cluster, ones = rng.normal(size=30), np.repeat(np.arange(6), 5), np.ones((30, 1))
    y -= 0.9 * np.repeat(y.reshape(6, 5).mean(axis=1), 5)
    fit = tg.fit_clusters(y, ones, cluster, progress=False)
    assert any("only 6 clusters" in note and "sigma[intercept]" in note for note in fit.notes)
    assert fit.estimates[1] == 0.0  # to rounding, and printed so
    assert "3 of 3 starts reached this maximum; 0 did not converge." in fit.notes
    alone = tg.fit_clusters(y, ones, cluster, tg.Residual(), progress=False)
    assert not any("clusters" in note for note in alone.notes)


@pytest.mark.full
def test_many_limited_rows_of_any_covariance_agree_with_one_effect():
    rng = np.random.default_rng(8)
    y = (np.repeat(rng.normal(size=12), 6) + rng.normal(size=72) > 0.3).astype(float)
    cluster, ones, member = np.repeat(np.arange(12), 6), np.ones((72, 1)), np.tile(np.arange(6), 12)
    shared = tg.Kinship(np.ones((6, 6)), member, name="shared")
    dense = model(y, ones, cluster, (shared, tg.Residual()), binary=True)
    value, error = values_at(dense, [-0.3, 1.1])
    exact, none = values_at(
        model(y, ones, cluster, (tg.RandomEffects(), tg.Residual()), binary=True), [-0.3, 1.1]
    )
    assert dense.expensive and none.max() < 1e-10 and 0 < error.max() < 0.01
    assert np.abs(value - exact).max() < 6.0 * error.max()
    again, _ = values_at(dense, [-0.3, 1.1])
    assert np.array_equal(value, again)


@pytest.mark.full
@pytest.mark.parametrize("unit", [1e-4, 1e5])
def test_units_of_a_covariate_change_no_edge(unit):
    rng = np.random.default_rng(1)
    cluster, time = np.repeat(np.arange(40), 5), np.tile(np.linspace(0, 8, 5), 40)
    z = rng.normal(size=(40, 2))
    y = 1 + 0.3 * time + z[cluster, 0] + 0.4 * z[cluster, 1] * time + 0.5 * rng.normal(size=200)
    plain, other = (
        tg.fit_clusters(y, x, cluster, (tg.RandomEffects(x), tg.Residual()), progress=False)
        for x in (np.c_[np.ones(200), time], np.c_[np.ones(200), unit * time])
    )
    scale = np.array([1.0, unit, 1.0, unit, 1.0, 1.0])
    assert other.edges == plain.edges == ()
    np.testing.assert_allclose(other.log_likelihood, plain.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(other.estimates * scale, plain.estimates, rtol=1e-7)
    np.testing.assert_allclose(other.errors * scale, plain.errors, rtol=1e-6)
    pairs = zip(other.effects()[1:], plain.effects()[1:])
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours * [1.0, unit], theirs, rtol=1e-6, atol=1e-9)


def test_an_effect_that_another_determines():
    rng = np.random.default_rng(3)
    cluster, time = np.repeat(np.arange(15), 4), np.tile(np.arange(4) / 3.0, 15)
    y = 1 + 0.3 * time + rng.normal(size=15)[cluster] * (1 + 0.8 * time)
    design, y = np.c_[np.ones(60), time], y + 0.8 * rng.normal(size=60)
    terms = tg.RandomEffects(design), tg.Residual()
    fit = tg.fit_clusters(y, design, cluster, terms, progress=False)
    assert fit.converged and fit.edges == ("correlation[1, 0]",)
    assert abs(fit.estimates[4]) > 1 - 1e-6 and np.isnan(fit.errors[4])
    assert np.all(np.isfinite(fit.errors[[0, 1, 2, 3, 5]]))
    assert any("determined by the ones before it" in note for note in fit.notes)
    with pytest.raises(ValueError, match="no interval"):
        fit.profile("correlation[1, 0]")


@pytest.mark.full
def test_there_is_no_maximum_where_outcomes_are_separated():
    rng = np.random.default_rng(0)
    cluster, ones, x = np.repeat(np.arange(30), 4), np.ones((120, 1)), rng.normal(size=120)
    settings = {"binary": True, "progress": False}
    for y, design in ((ones[:, 0], ones), (1.0 * (x > 0), np.c_[ones, x])):
        fit = tg.fit_clusters(y, design, cluster, **settings)
        assert not fit.converged and "outcomes are separated" in fit.reason
    agreed = tg.fit_clusters((cluster % 2).astype(float), ones, cluster, **settings)
    assert not agreed.converged and "grows with sigma[intercept]" in agreed.reason
    y = rng.normal(size=30)[cluster]
    met = tg.fit_clusters(y, ones, cluster, progress=False)
    assert not met.converged and "explain the exact outcomes" in met.reason


def test_an_item_that_a_factor_determines_is_at_an_edge():
    """A Heywood case: the covariance of the items is regular where one of them has no error."""
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(30, 1)) @ np.array([[0.9, 0.6, 0.5]])
    y = factor + rng.normal(size=(30, 3)) * np.array([0.2, 0.8, 0.9])
    cluster, item = np.repeat(np.arange(30), 3), np.tile(np.arange(3), 30)
    terms = tg.Factor(item=item), tg.Diagonal(item=item)
    fit = tg.fit_clusters(y.ravel(), np.eye(3)[item], cluster, terms, progress=False)
    assert fit.converged and fit.edges == ("sigma[0]",) and fit.estimates[6] == 0.0
    assert np.isnan(fit.errors[6]) and np.all(np.isfinite(np.delete(fit.errors, 6)))

    def log_likelihood(x):
        mean, loading, sigma = x[:3], x[3:6], x[6:]
        covariance = np.outer(loading, loading) + np.diag(sigma**2)
        return stats.multivariate_normal(mean, covariance).logpdf(y).sum()

    top = log_likelihood(fit.estimates)
    assert abs(fit.log_likelihood - top) < 1e-6
    for step in (*0.01 * np.eye(9), *-0.01 * np.eye(9)):
        assert log_likelihood(fit.estimates + step) < top
    two = y[:, :2].ravel(), np.eye(2)[np.tile([0, 1], 30)], np.repeat(np.arange(30), 2)
    short = tg.fit_clusters(*two, (tg.Factor(), tg.Diagonal()), progress=False)
    assert not short.converged and "process" not in short.reason


def test_a_sampler_without_float64_has_the_likelihood_too():
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(20), 4)
    y = rng.normal(size=20)[cluster] + rng.normal(size=80)
    fit = tg.fit_clusters(y, np.ones((80, 1)), cluster, progress=False)
    with jax.enable_x64(False):  # a warning of a dtype would be an error
        total = jax.jit(jax.value_and_grad(lambda x: fit.log_likelihoods(x).sum()))
        value, slopes = total(jnp.asarray(fit.estimates))
    assert value.dtype == jnp.float32 and abs(value - fit.log_likelihood) < 1e-4
    assert np.all(np.abs(slopes) < 1e-3)


@pytest.mark.full
def test_rows_that_need_errors_of_their_own_have_a_profile_without_zero(monkeypatch):
    rng = np.random.default_rng(0)
    cluster, x = np.repeat(np.arange(30), 4), rng.normal(size=120)
    y = 0.5 * x + 0.8 * rng.normal(size=30)[cluster] + rng.normal(size=120)
    fit = tg.fit_clusters(y, np.c_[np.ones(120), x], cluster, censored_low=-0.3, num_profiles=0)
    ends = fit.profile("sigma")
    falls = [fit.profile_fall("sigma", end) for end in ends]
    np.testing.assert_allclose(falls, 0.5 * stats.chi2.ppf(0.95, 1), rtol=1e-3)

    def asked(*_):
        raise AssertionError("the likelihood of a deviation of 0 is 0")

    monkeypatch.setattr(type(fit), "profile_fall", asked)
    assert fit.profile("sigma") == ends


@pytest.mark.full
@pytest.mark.parametrize("shift", [1e4, 2.45e6])
def test_random_slopes_of_a_time_far_from_zero(shift):
    """The model is the same, whatever the day from which time is counted."""
    rng = np.random.default_rng(1)
    cluster, ones = np.repeat(np.arange(60), 5), np.ones(300)
    t = np.tile(np.arange(5.0), 60) + rng.uniform(0.0, 0.2, 300)
    b = rng.multivariate_normal([0, 0], [[0.8, 0.1], [0.1, 0.15]], 60)
    y = 1 + 0.4 * t + b[cluster, 0] + b[cluster, 1] * t + 0.6 * rng.normal(size=300)

    def fit(t):
        terms = tg.RandomEffects(np.c_[ones, t]), tg.Residual()
        return tg.fit_clusters(y, np.c_[ones, t], cluster, terms, num_profiles=0, progress=False)

    near, far = fit(t), fit(t + shift)
    assert far.converged and far.edges == () and np.all(np.isfinite(far.errors))
    assert abs(far.log_likelihood - near.log_likelihood) < 1e-7
    for name in ("sigma[1]", "sigma"):
        k = near.names.index(name)
        np.testing.assert_allclose(far.estimates[k], near.estimates[k], rtol=1e-6)
        np.testing.assert_allclose(far.errors[k], near.errors[k], rtol=1e-5)
        np.testing.assert_allclose(far.profile(name), near.profile(name), rtol=1e-6)
    ours, theirs = far.effects().mean, near.effects().mean
    np.testing.assert_allclose(ours[:, 1], theirs[:, 1], atol=1e-6)
    at_zero = ours[:, 0] + shift * ours[:, 1]  # of slopes to 1e-9
    np.testing.assert_allclose(at_zero, theirs[:, 0], atol=1e-9 * shift)
    new = np.array([[1.0, 2.0]]), np.array([[1.0, 2.0 + shift]])
    shares = [x.predict(at, kind="probability", high=2.0).value for x, at in zip((near, far), new)]
    np.testing.assert_allclose(*shares, rtol=1e-4)


@pytest.mark.full
def test_the_error_of_a_row_beside_a_process_may_be_zero():
    cluster, ones = np.repeat(np.arange(40), 6), np.ones((240, 1))
    matrix = 0.7 ** np.abs(np.subtract.outer(np.arange(6), np.arange(6)))
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        y = rng.multivariate_normal(np.zeros(6), matrix, size=40).ravel()
        process = tg.AutoRegressive()
        small = tg.fit_clusters(y, ones, cluster, process, progress=False)
        large = tg.fit_clusters(y, ones, cluster, (process, tg.Residual()), progress=False)
        test = tg.likelihood_ratio(small, large)
        if seed == 1:  # inside
            tail = 0.5 * stats.chi2.sf(test.statistic, 1)
            assert large.edges == () and abs(test.p_value - tail) < 1e-12
        else:
            assert large.edges == ("sigma",) and np.isnan(large.errors[3])
            assert test.statistic < 1e-9


def test_dyestuff_of_davies_and_goldsmith():
    yields = [
        [1545, 1440, 1440, 1520, 1580], [1540, 1555, 1490, 1560, 1495],
        [1595, 1550, 1605, 1510, 1560], [1445, 1440, 1595, 1465, 1545],
        [1595, 1630, 1515, 1635, 1625], [1520, 1455, 1450, 1480, 1445],
    ]  # fmt: skip
    y, batch = np.ravel(yields).astype(float), np.repeat(list("ABCDEF"), 5)
    fit = tg.fit_clusters(y, np.ones((30, 1)), batch, progress=False)
    np.testing.assert_allclose(fit.estimates, [1527.5, 37.26, 49.51], atol=0.005)
    assert abs(fit.log_likelihood + 163.6635) < 1e-4  # by lme4 with REML = FALSE


@pytest.mark.full
def test_clusters_are_in_the_order_of_their_labels_whatever_their_sizes(monkeypatch):
    rng = np.random.default_rng(8)
    sizes = rng.choice([1, 4], 40)
    cluster = np.repeat(np.arange(40), sizes)
    y = np.repeat(rng.normal(size=40), sizes) + rng.normal(size=len(cluster))
    rows = y, np.ones((len(y), 1)), cluster
    one = tg.fit_clusters(*rows, censored_low=-0.5, progress=False)
    monkeypatch.setattr(long_tables, "FEW_MASSES", 0)
    monkeypatch.setattr(long_tables, "GROWTH", 1.0)
    many = tg.fit_clusters(*rows, censored_low=-0.5, progress=False)
    assert len(one.loss.shapes) == 1 and len(many.loss.shapes) > 3
    np.testing.assert_array_equal(many.labels, np.arange(40))
    np.testing.assert_allclose(many.estimates, one.estimates, rtol=1e-9)
    each = many.log_likelihoods(one.estimates)
    np.testing.assert_allclose(each, one.log_likelihoods(one.estimates), rtol=1e-9)
    np.testing.assert_allclose(many.effects().mean, one.effects().mean, atol=1e-8)
    np.testing.assert_allclose(
        many.effects("residual").mean, one.effects("residual").mean, atol=1e-8
    )


@pytest.mark.full
def test_the_curvature_of_many_censored_clusters_is_that_of_differences():
    """Of 600 clusters of 5, a third below a limit: the Hessian by differences of gradients."""
    rng = np.random.default_rng(0)
    cluster, x = np.repeat(np.arange(600), 5), np.tile(np.linspace(0.0, 1.0, 5), 600)
    y = 1.0 + 0.5 * x + 0.8 * rng.normal(size=600)[cluster] + 0.7 * rng.normal(size=3000)
    fit = tg.fit_clusters(
        y, np.stack([np.ones(3000), x], 1), cluster, censored_low=float(np.quantile(y, 1 / 3)),
        num_profiles=0, progress=False,
    )  # fmt: skip
    with jax.enable_x64(True):
        at, width = np.asarray(fit.best.x), 1e-4
        ends = [[point(fit.loss, at + s * e).gradient for s in (-1, 1)] for e in width * np.eye(4)]
    hessian = np.array([(above - below) / (2.0 * width) for below, above in ends])
    np.testing.assert_allclose(fit.best.hessian, hessian, rtol=1e-5, atol=1e-6)
    means = fit.effects()
    assert np.all(means.standard_errors < 0.8) and len(means.mean) == 600


@pytest.mark.full
def test_errors_of_rows_that_are_small_beside_the_effects():
    """Estimates and errors by an own likelihood: given the exact rows, on a fine grid elsewhere."""
    rng = np.random.default_rng(7)
    cluster = np.repeat(np.arange(20), 3)
    effects, noise = rng.normal(size=20)[cluster], rng.normal(size=60)

    def fit(size):
        y = effects + size * noise
        return tg.fit_clusters(
            y, np.ones((60, 1)), cluster, censored_low=0.0, num_profiles=0, progress=False
        )

    small = fit(5e-4)
    assert small.converged and small.log_likelihood_stderr == 0
    np.testing.assert_allclose(small.log_likelihood, 85.84608318, rtol=1e-7)
    np.testing.assert_allclose(small.estimates[:2], [-0.189170, 0.650539], rtol=1e-3)
    np.testing.assert_allclose(small.errors[:2], [0.205182, 0.182105], rtol=2e-3)


@pytest.mark.quick("0.0001")
@pytest.mark.parametrize("size", [1e-4, 1e-6])
def test_errors_far_below_the_effects_are_no_edge(size):
    """Of three exact rows each sigma is the root of the mean square within clusters, to 11 %."""
    rng = np.random.default_rng(5)
    cluster = np.repeat(np.arange(20), 3)
    y = rng.normal(size=20)[cluster] + size * rng.normal(size=60)
    fit = tg.fit_clusters(y, np.ones((60, 1)), cluster, progress=False)
    within = y.reshape(20, 3) - y.reshape(20, 3).mean(axis=1, keepdims=True)
    assert fit.converged and fit.edges == ()
    np.testing.assert_allclose(fit.estimates[2], np.sqrt(np.sum(within**2) / 40), rtol=1e-6)
    np.testing.assert_allclose(fit.errors[2], fit.estimates[2] / 80**0.5, rtol=1e-3)


@pytest.mark.slow
def test_integrals_that_are_not_resolved_are_no_maximum():
    rng = np.random.default_rng(1)
    cluster, time = np.repeat(np.arange(20), 3), np.tile(np.arange(3.0), 20)
    design, effects = np.column_stack([np.ones(60), time]), rng.normal(size=(20, 2)) * [0.65, 0.37]
    y = np.sum(effects[cluster] * design, axis=1) + 0.01 * rng.normal(size=60)
    terms = [tg.RandomEffects(design), tg.Residual()]
    settings = {"num_profiles": 0, "num_starts": 1, "num_steps": 12, "progress": False}
    fit = tg.fit_clusters(y, design, cluster, terms, censored_low=0.0, **settings)
    assert not fit.converged and "too small beside the effects" in fit.reason


@pytest.mark.parametrize("rank", [1, 2])
def test_entries_of_little_noise_leave_what_others_say(rank):
    """Beside a dense normal in 50 digits, of which derivatives are differences."""
    rng, n = np.random.default_rng(0), 4
    factor, rest, seen = rng.normal(size=(n, rank)), rng.normal(size=n), np.ones(n, bool)

    def dense(s):
        matrix = mpmath.matrix(factor.tolist()) * mpmath.matrix(factor.tolist()).T
        matrix += mpmath.diag([x**2 for x in s])
        column = mpmath.matrix(rest.tolist())
        energy = (column.T * mpmath.lu_solve(matrix, column))[0]
        return -(energy + mpmath.log(mpmath.det(matrix)) + n * mpmath.log(2 * mpmath.pi)) / 2

    function = jax.jit(lambda s: given_exact(seen, rest, factor, s**2, False)[0])
    derivatives = jax.jit(jax.grad(function)), jax.jit(jax.hessian(function))
    for small in (1e-3, 1e-6, 1e-9, 1e-12, 0.0):
        s = np.array([0.5, small, 0.7, 0.3 * small if rank == 2 else 0.4])
        with mpmath.workdps(50):
            step = mpmath.mpf(10) ** -16
            for k in range(n):
                at = [mpmath.mpf(x) for x in s]
                below, value, above = (
                    dense([*at[:k], at[k] + move, *at[k + 1 :]]) for move in (-step, 0, step)
                )
                slope, bend = (above - below) / (2 * step), (above + below - 2 * value) / step**2
                assert abs(function(s) - float(value)) < 1e-12
                np.testing.assert_allclose(
                    derivatives[0](s)[k], float(slope), rtol=1e-10, atol=1e-12
                )
                np.testing.assert_allclose(derivatives[1](s)[k, k], float(bend), rtol=1e-10)
