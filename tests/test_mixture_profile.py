"""Profile likelihoods and priors of mixtures: closed forms, other optimisers, ends at infinity."""

import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg

INF, GOAL = np.inf, stats.chi2.ppf(0.95, 1) / 2


def survey(seed, cut=0.0, n=500):
    """n rows of two components of which a limit hides half of the first."""
    rng = np.random.default_rng(seed)
    y = rng.normal(np.where(rng.random(6 * n) < 0.5, 0.0, 3.0))
    return y[y > cut][:n]


def start(weights, locs, covariances):
    return {"weights": weights, "locs": locs, "covariances": covariances}


def fitted(y, cut=0.0):
    rows = tg.Observations.exact(y, region=tg.Box([cut], [INF]))
    return tg.fit_mixture(rows, 2, start=start([0.5, 0.5], [[0.0], [3.0]], np.ones((2, 1, 1))))


def names_of(fit):
    """What the fit calls the weight and the mean of the first, and the mean of the second."""
    o = int(np.argmin(fit.locs[:, 0]))
    locs = f"locs[{o}][0]", f"locs[{1 - o}][0]"
    return (f"weights[{o}]", *locs)


@pytest.mark.full
def test_a_profile_of_one_component_is_the_closed_form():
    y = np.random.default_rng(0).normal(2.0, 3.0, size=40)
    fit = tg.fit_mixture(tg.Observations.exact(y), 1)
    reach = y.std() * np.sqrt(np.expm1(2 * GOAL / 40))
    expected = [y.mean() - reach, y.mean() + reach]
    np.testing.assert_allclose(fit.profile("locs[0][0]"), expected, rtol=1e-6)
    excess = lambda log: 20 * (log + np.exp(-log) - 1) - GOAL
    ends = [y.var() * np.exp(optimize.brentq(excess, *way)) for way in ((-3.0, 0.0), (0.0, 3.0))]
    np.testing.assert_allclose(fit.profile("covariances[0][0, 0]"), ends, rtol=1e-6)
    assert fit.profile_fall("covariances[0][0, 0]", ends[1]) == pytest.approx(GOAL, rel=1e-6)
    assert np.isnan(fit.profile_fall("covariances[0][0, 0]", -1.0))
    with pytest.raises(ValueError, match="weights.0. is fixed at 1"):
        fit.profile("weights[0]")


@pytest.mark.full
def test_ends_are_those_of_another_optimiser_and_components_keep_their_labels():
    y = survey(2)
    fit = fitted(y)
    name, other = names_of(fit)[1:3]
    low, high = fit.profile(name)
    assert low < fit.estimates[fit.names.index(name)] < high < fit.profile(other)[0]

    def loss(numbers, value):
        ratio, mean, *logs = numbers
        parts = [
            -np.logaddexp(0.0, -sign * ratio)
            + np.stack([stats.norm.logpdf(y, at, scale), stats.norm.logsf(0.0 * y, at, scale)])
            for sign, at, scale in zip((1, -1), (value, mean), np.exp(logs))
        ]
        return -np.subtract(*np.logaddexp(*parts)).sum()

    for value in (low, high):
        begin = [0.0, 3.0, *np.log([1.0 if value > 0 else 1.5, 1.0])]
        settings = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-7, "fatol": 1e-8}
        found = optimize.minimize(loss, begin, value, "Nelder-Mead", options=settings)
        assert found.fun + fit.log_likelihood == pytest.approx(GOAL, abs=1e-5)
        assert fit.profile_fall(name, value) == pytest.approx(GOAL, abs=1e-5)


@pytest.mark.full
def test_an_end_is_infinite_where_the_likelihood_does_not_fall_and_plots_leave_it_out():
    fit = fitted(survey(1))
    weight, mean = names_of(fit)[:2]
    low, high = fit.profile(weight)
    assert 0.2 < low < 0.5 and high == 1.0
    low, high = fit.profile(mean)
    assert low == -INF and 0.2 < high < 0.6
    values, fall = fit.profile_curve(mean, num=3)
    assert values[0] == -INF and fall.tolist() == [4.5, 0.0, 4.5]
    tg.plotting.profile(values, fall)


def test_a_mixture_is_a_fit_like_others():
    y = np.concatenate([np.linspace(0.0, 2.0, 20), np.linspace(5.0, 8.0, 30)])
    rows, begin = tg.Observations.exact(y), start([0.4, 0.6], [[1.0], [6.5]], np.ones((2, 1, 1)))
    fit = tg.fit_mixture(rows, 2, start=begin)
    assert isinstance(fit, tg.fitting.LikelihoodFit) and "[" in str(fit)
    low, high = fit.wald().T
    np.testing.assert_allclose((low + high) / 2, fit.estimates)
    tied = tg.fit_mixture(rows, 2, start=begin, covariance="tied")
    test = tg.likelihood_ratio(tied, fit)
    assert test.degrees == 1 and test.statistic == pytest.approx(
        2 * (fit.log_likelihood - tied.log_likelihood)
    )
    with pytest.raises(ValueError, match="knows Gaussians and regressions, got MixtureFit"):
        fit.margins()
    with pytest.raises(ValueError, match="1 and 2 component.s., which no chi-squared"):
        tg.likelihood_ratio(tg.fit_mixture(rows, 1), fit)


@pytest.mark.quick("True")
@pytest.mark.parametrize("tied", [False, True])
def test_a_prior_holds_a_component_that_would_collapse(tied):
    y = np.append(np.linspace(-1.0, 1.0, 30), 9.0)  # on the last of which a component collapses
    begin = start([0.9, 0.1], [[0.0], [9.0]], [[[0.4]], [[0.1]]])
    kind = "tied" if tied else "full"
    rows, ends = tg.Observations.exact(y), {"covariance": kind, "start": begin}
    fit = tg.fit_mixture(rows, 2, prior_rows=0.5, **ends)
    assert fit.converged and "prior holds every covariance as 0.5 more observation" in str(fit)
    assert np.all(np.diff(fit.em_log_likelihoods) > -1e-9)
