"""Derived quantities against closed forms, other optimisers, finite differences and samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg

INF = np.inf


def pairs(n=60, seed=0):
    matrix = [[1.0, 0.6], [0.6, 2.0]]
    return np.random.default_rng(seed).multivariate_normal([1.0, -1.0], matrix, n)


def test_quantities_go_by_the_columns_and_print_a_line_a_pair():
    columns = {"zinc": pairs()[:, 0], "lead": pairs()[:, 1]}
    fit = tg.fit_observations(tg.Observations.exact(columns))
    for each in (fit, tg.fit_truncated_normal(columns)):
        correlation = each.derived("correlation")
        assert correlation.names[1:3] == ["correlation[zinc, lead]", "correlation[lead, zinc]"]
        _, line, _ = str(correlation).splitlines()
        assert line.split()[:3] == ["correlation[lead,", "zinc]", f"{correlation.value[1, 0]:.6g}"]
    lines = str(fit.derived("covariance")).splitlines()[1:4]
    assert [line.split("]")[0] for line in lines] == [
        "covariance[zinc, zinc", "covariance[lead, zinc", "covariance[lead, lead",
    ]  # fmt: skip
    assert fit.derived("scales").names == ["scales[zinc]", "scales[lead]"]


def test_profile_of_a_correlation_is_that_of_its_likelihood():
    """-n log(1 - r rho) + n/2 log(1 - rho^2) is the profile log-likelihood of rho."""
    rows = pairs()
    fit = tg.fit_observations(tg.Observations.exact(rows))
    r, n = np.corrcoef(rows.T)[0, 1], len(rows)
    height = lambda rho: n * (0.5 * np.log1p(-(rho**2)) - np.log1p(-r * rho))
    fall = lambda rho: height(r) - height(rho) - 0.5 * stats.chi2.ppf(0.9, 1)
    ends = [optimize.brentq(fall, *way) for way in ((-0.99, r), (r, 0.99))]
    quantity = fit.derived(lambda p: p.correlation[0, 1])
    np.testing.assert_allclose(quantity.profile(0.9), ends, rtol=1e-6)
    matrix = fit.derived("correlation").profile(0.9)  # 1 on its diagonal is no estimate
    np.testing.assert_allclose(matrix, [[[1, 1], ends], [ends, [1, 1]]], rtol=1e-6)


def test_profiles_do_not_depend_on_the_parametrisation_and_wald_intervals_do():
    """On 12 rows the variance is skewed: a note, and the ends of log sigma are those of sigma."""
    fit = tg.fit_observations(tg.Observations.exact(pairs(12)[:, 0]))
    variance = fit.derived(lambda p: p.sigma**2, "variance")
    logarithm = fit.derived(lambda p: 2.0 * jnp.log(p["sigma"]), "log variance")
    np.testing.assert_allclose(np.exp(logarithm.profile()), variance.profile(), rtol=1e-6)
    np.testing.assert_allclose(variance.profile() ** 0.5, fit.profile("sigma"), rtol=1e-6)
    assert "Do not trust the Wald interval of variance" in variance.notes[0]
    assert "Use profile()" in variance.notes[0]


@pytest.mark.full
def test_mixtures_regressions_and_fractions():
    y = np.concatenate([np.random.default_rng(0).normal(m, 1, 60) for m in (0.0, 5.0)])
    mixture = tg.fit_mixture(tg.Observations.exact(y), 2)
    gap = mixture.derived(lambda p: jnp.abs(p.locs[0, 0] - p.locs[1, 0]), "gap")
    np.testing.assert_allclose(gap.value, abs(mixture.locs[0, 0] - mixture.locs[1, 0]))
    low, high = gap.profile()
    assert low < gap.value < high
    np.testing.assert_allclose([low, high], gap.wald(), atol=0.15 * gap.standard_errors)
    one = mixture.derived("locs")
    np.testing.assert_allclose(one.standard_errors, mixture.standard_errors.locs, rtol=1e-8)

    design = np.column_stack([np.ones(120), y])
    fit = tg.fit_regression(2.0 + y + np.sin(7.0 * y), design, censored_low=0.0)
    ratio = fit.derived(lambda p: p.coefficients[1] / p.sigma)
    gradient = np.array([0.0, 1.0, -fit.coefficients[1] / fit.scale]) / fit.scale
    error = (gradient @ fit.parameter_covariance @ gradient) ** 0.5
    np.testing.assert_allclose(ratio.standard_errors, error, rtol=1e-8)

    shift = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [INF]), num_trials=1000)
    share = shift.derived(lambda p: jax.scipy.special.ndtr(p["shift[0]"]), "share")
    np.testing.assert_allclose(share.value, 0.841, rtol=1e-6)
    np.testing.assert_allclose(share.standard_errors, (0.841 * 0.159 / 1000) ** 0.5, rtol=1e-4)


def clustered(seed=0, groups=60):
    """An outcome and a design of five rows a group, which share a part of the noise."""
    rng, labels = np.random.default_rng(seed), np.repeat(np.arange(groups), 5)
    x = rng.normal(size=groups)[labels] + 0.3 * rng.normal(size=len(labels))
    y = 1.0 + 2.0 * x + rng.normal(size=groups)[labels] + rng.normal(size=len(labels))
    return y, np.column_stack([np.ones_like(x), x]), labels


def test_few_clusters_are_noted():
    y, design, labels = clustered(groups=8)
    fit = tg.fit_regression(y, design, information="sandwich", cluster=labels)
    assert any("rest on 8 clusters" in note for note in fit.notes)


def test_at_an_edge_errors_are_infinite_and_a_note_says_so():
    fit = tg.fit_observations(tg.Observations.exact(pairs()))
    steep = fit.derived(lambda p: jnp.sqrt(p.loc[0] - jax.lax.stop_gradient(p.loc[0])), "root")
    assert steep.value == 0.0 and np.isinf(steep.standard_errors)
    assert "root is infinite" in steep.notes[0] and "edge" in steep.notes[0]
    y = np.random.default_rng(0).normal(size=50) * 0.1
    edge = tg.fit_observations(tg.Observations.exact(y, noise=np.ones((50, 1))))
    assert not edge.converged
    quantity = edge.derived("loc")
    assert not np.isfinite(quantity.standard_errors[0])
    assert "no error is known" in quantity.notes[0]
    with pytest.raises(ValueError, match="no maximum to start from"):
        quantity.profile()


@pytest.mark.full
def test_intervals_of_the_likelihood_do_not_stand_beside_errors_of_the_sandwich():
    y, design, labels = clustered()
    fit = tg.fit_regression(y, design, information="sandwich", cluster=labels)
    ratio = fit.derived(lambda p: p.estimates[0] / p.estimates[1], "ratio")
    null = tg.fit_regression(y, design[:, :1])
    for interval in (
        lambda: fit.profile(fit.names[0]),
        ratio.profile,
        lambda: tg.likelihood_ratio(null, fit),
    ):
        with pytest.raises(
            ValueError, match=r"sandwich information of 60 clusters do not. Use wald"
        ):
            interval()
    assert "profile(" not in str(fit)
    np.testing.assert_allclose(
        np.diff(ratio.wald()), 2 * 1.959964 * ratio.standard_errors, rtol=1e-6
    )


def test_new_functions_and_repeated_predictions_compile_nothing(compilations):
    """Once the operations and the shapes are known."""
    rng = np.random.default_rng(0)
    design = {"one": np.ones(60), "a": rng.normal(size=60)}
    outcome = 1.0 + 0.5 * design["a"] + rng.normal(size=60)
    fit = tg.fit_regression(outcome, design, censored_low=0.0, progress=False)
    new = {"one": 1.0, "a": np.array([0.0, 1.0])}

    def calls(number):
        ratio = fit.derived(lambda p: number * p.coefficients[1] / p.coefficients[0], "ratio")
        return ratio, fit.predict(new, kind="recorded"), fit.margins(kind="recorded")

    first, *_ = calls(1.0)
    before = len(compilations)
    again, *_ = calls(2.0)
    assert len(compilations) == before
    np.testing.assert_allclose(again.standard_errors, 2.0 * first.standard_errors, rtol=1e-12)
    whole = fit.derived(lambda p: jnp.tile(p.coefficients[1] / p.coefficients[0], 9), "ratio")
    np.testing.assert_allclose(whole.value, first.value, rtol=1e-12)
    np.testing.assert_allclose(whole.standard_errors, first.standard_errors, rtol=1e-10)
    np.testing.assert_allclose(whole.wald_coverages[0], first.wald_coverages[0], rtol=1e-9)
