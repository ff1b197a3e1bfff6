"""`fit_regression`: published answers, another optimiser, `fit_observations`, refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests import published_rows
from truncgauss.fits.gaussian import one_outcome
from truncgauss.fits.gaussian.one_outcome import INTERVAL, LOG, NATURAL, OLSEN, Term

INF = np.inf


def agrees(fit, estimates, errors, log_likelihood):
    """Estimates to 1e-4 of a standard error, those to 1e-3, and the log-likelihood to 1e-6."""
    assert fit.converged, fit.reason
    count = len(estimates)
    ours, known = np.append(fit.coefficients, fit.log_scale), np.append(*fit.standard_errors)
    assert np.all(np.abs(ours[:count] - estimates) < 1e-4 * known[:count])
    np.testing.assert_allclose(known[: len(errors)], errors, rtol=1e-3)
    np.testing.assert_allclose(fit.estimates[-1], np.exp(fit.log_scale[-1]))
    np.testing.assert_allclose(fit.errors[-1], fit.scale * known[-1])
    np.testing.assert_allclose(fit.log_likelihood, log_likelihood, rtol=1e-6)


@published_rows.needed
def test_published_tobit_regressions():
    rows = published_rows.table("tobin.csv")
    y, age, quant = (published_rows.column(rows, name) for name in ("durable", "age", "quant"))
    design = {"constant": np.ones(len(y)), "age": age, "quant": quant}
    fit = tg.fit_regression(y, design, censored_low=0.0)
    assert fit.names == ("constant", "age", "quant", "sigma")
    estimates = [15.14486636, -0.12905928, -0.04554166, 1.71785092]
    agrees(fit, estimates, [16.0794532, 0.2185836, 0.0582541, 0.3103227], -28.94013320)
    rows = published_rows.table("affairs.csv")
    names = ("age", "yearsmarried", "religiousness", "occupation", "rating")
    y, design = published_rows.column(rows, "affairs"), published_rows.covariates(rows, *names)
    estimates = [8.174197433, -0.179332584, 0.554141813, -1.686220494, 0.326053249, -2.284972721]
    errors = [2.741445555, 0.07909324, 0.134517938, 0.403751551, 0.254424747, 0.407827919]
    fit = tg.fit_regression(y, design, censored_low=0.0)
    agrees(fit, [*estimates, 2.109859238], [*errors, 0.067098172], -705.5762226)
    estimates = [7.900980446, -0.177598209, 0.532302110, -1.616335654, 0.324186458, -2.207007445]
    fit = tg.fit_regression(y, design, censored_low=0.0, censored_high=4.0)
    agrees(fit, [*estimates, 2.072318664], [], -500.0427601)


@published_rows.needed
def test_published_truncated_regressions_stop_short_of_the_maximum():
    rows = published_rows.table("ucla_truncreg_achiv.csv")
    y, score = (published_rows.column(rows, name) for name in ("achiv", "langscore"))
    prog = np.array([row["prog"] for row in rows])
    kinds = [(prog == kind).astype(float) for kind in ("academic", "vocational")]
    design = np.column_stack([np.ones(len(y)), score, *kinds])
    fit = tg.fit_regression(y, design, truncated_low=40.0)
    published = [11.2994158037, 0.7126732184, 4.0626698309, -1.1442162182]
    errors = [6.7717256998, 0.1144601688, 2.0543190551, 2.6695798972]
    assert np.all(np.abs(fit.coefficients - published) < 0.005 * np.array(errors))
    np.testing.assert_allclose(fit.standard_errors.coefficients, errors, rtol=1e-3)
    assert fit.estimates[-1] == fit.scale
    np.testing.assert_allclose([fit.scale, fit.errors[-1]], [8.7536778, 0.6664744], rtol=1e-3)

    def log_likelihood(coefficients, scale):
        z = stats.norm(design @ coefficients, scale)
        return np.sum(z.logpdf(y) - z.logsf(40.0))

    printed = log_likelihood(np.array(published), 8.7536778315)
    ours = log_likelihood(fit.coefficients, fit.scale)
    np.testing.assert_allclose(printed, -591.309826, atol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, ours, rtol=1e-12)
    assert printed < ours < printed + 1e-4
    for step in 1e-3 * np.eye(4) * errors:
        assert max(log_likelihood(fit.coefficients + s * step, fit.scale) for s in (-1, 1)) < ours


def test_a_design_without_a_constant_is_told():
    x = np.random.default_rng(4).uniform(1.0, 3.0, 50)
    y = 2.0 * x + 0.1 * np.cos(9.0 * x)
    slope = x @ y / (x @ x)
    rows = tg.Observations.exact(y)
    groups = np.stack([x, x < 2.0, x >= 2.0], axis=1)  # whose last two add up to one
    for fit in (tg.fit_regression, lambda y, design: tg.fit_observations(rows, design)):
        through_zero = fit(y, x[:, None])
        np.testing.assert_allclose(through_zero.estimates[0], slope, rtol=1e-9)
        assert any("hold no constant" in note for note in through_zero.notes)
        assert not any("hold no constant" in note for note in fit(y, groups).notes)


def simulated(rng, n=400):
    """Rows with a scale that grows, seen above a limit of their own and censored above 2.5."""
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    low = rng.uniform(-2.0, -0.5, size=n)
    y = np.full(n, -INF)
    while np.any(y < low):
        again = y < low
        scale = np.exp(0.1 + 0.3 * design[again, 1])
        y[again] = design[again] @ [0.5, 0.8] + scale * rng.normal(size=again.sum())
    return np.minimum(y, 2.5), design, low


@pytest.mark.full
def test_both_doors_lead_to_one_fit():
    y, design, low = simulated(np.random.default_rng(1), n=150)
    noise, weights = np.linspace(0.1, 0.5, 150), np.arange(150) % 3
    fit = tg.fit_regression(
        y, design, censored_high=2.5, truncated_low=low, noise=noise, weights=weights
    )
    upper = np.where(y < 2.5, y, INF)
    rows = tg.Observations(
        y, upper, tg.Box(low[:, None], INF), noise=noise[:, None], weights=weights
    )
    other = tg.fit_observations(rows, design)
    np.testing.assert_allclose(fit.coefficients, other.coefficients[0], rtol=1e-10)
    np.testing.assert_allclose(fit.scale**2, other.covariance_matrix[0, 0], rtol=1e-10)
    np.testing.assert_allclose(fit.log_likelihood, other.log_likelihood, rtol=1e-12)
    np.testing.assert_allclose(fit.errors[:2], other.errors[:2], rtol=1e-8)
    # And the likelihood of that is the one of `log_likelihood`, with its derivatives.
    loc = (design @ fit.coefficients)[:, None]
    total = tg.log_likelihood(rows, loc, [[fit.scale**2]]).log_prob.sum()
    np.testing.assert_allclose(fit.log_likelihood, total, rtol=1e-12)


def test_intervals_that_shrink_lead_to_the_exact_fit():
    rng = np.random.default_rng(2)
    design = np.column_stack([np.ones(100), rng.normal(size=100)])
    y = design @ [0.5, 0.8] + rng.normal(size=100)
    exact = tg.fit_regression(y, design)
    gaps = []
    for width in (0.2, 0.02):
        low = np.floor(y / width) * width
        fit = tg.fit_regression(np.column_stack([low, low + width]), design)
        assert fit.converged
        gaps.append(np.max(np.abs(fit.estimates - exact.estimates) / exact.errors))
    assert gaps[1] < 0.3 * gaps[0] < 0.3


@pytest.mark.quick("-1000000000000.0")
@pytest.mark.parametrize("stand_in", [-1e9, -1e12])
def test_a_limit_that_stands_for_infinity_is_one(stand_in):
    """Left-censored at 0, and in intervals from far below to 0: the same maximum."""
    random = np.random.default_rng(0)
    design = np.column_stack([np.ones(300), random.normal(size=300)])
    y = np.maximum(design @ [1.2, 0.7] + random.normal(size=300), 0.0)
    censored = tg.fit_regression(y, design, censored_low=0.0)
    lower = np.where(y == 0, stand_in, y)
    between = tg.fit_regression(np.column_stack([lower, y]), design)
    assert censored.converged and between.converged
    np.testing.assert_allclose(between.coefficients, censored.coefficients, rtol=1e-7)
    np.testing.assert_allclose(
        between.standard_errors.coefficients, censored.standard_errors.coefficients, rtol=1e-6
    )


def loss_of_each_kind(noise=None, **limits):
    """The loss of weighted rows, exact or censored below or above, and x away from its minimum."""
    rng = np.random.default_rng(8)
    design = np.column_stack([np.ones(60), rng.normal(size=(60, 2))])
    outcome = design @ [0.5, 1.0, -0.3] + rng.normal(size=60)
    weights = rng.integers(0, 3, 60).astype(float)
    settings = {"censored_low": 0.0, "censored_high": 1.5, "weights": weights, "noise": noise}
    fit = tg.fit_regression(outcome, design, **settings | limits, num_starts=1)
    return fit.loss, jnp.asarray(fit.best.x * 1.1)


@pytest.mark.quick("0.3-2", "None-2")
@pytest.mark.parametrize("link", [LOG, OLSEN, NATURAL])
@pytest.mark.parametrize("noise", [None, 0.3])
def test_half_open_intervals_have_the_derivatives_of_any(link, noise):
    loss, x = loss_of_each_kind(noise)
    assert [term.half_open for term in loss.terms] == [False, True]
    loss = dataclasses.replace(loss, link=link)
    anyhow = [dataclasses.replace(term, half_open=False) for term in loss.terms]
    other = dataclasses.replace(loss, terms=tuple(anyhow))
    found, expected = (jax.jit(lambda each: (each(x), *each.derivatives(x)))(each)
                       for each in (loss, other))  # fmt: skip
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-14)


def test_half_open_intervals_far_in_a_tail():
    """Where the bend of log Phi, -h (h - x), is a difference of squares that has no digits left."""
    end = np.array([-1e8, -30.0, 1.0, 5.0])
    term = Term(np.full(4, -INF), end, np.ones(4), None, None, INTERVAL, half_open=True)
    rows = jax.jit(lambda term: term.derivatives(np.zeros(4), np.zeros(4), LOG))(term)
    with mpmath.workdps(60):
        log_mass = lambda x: mpmath.log(mpmath.ncdf(x))
        truth = [mpmath.taylor(log_mass, float(x), 2) for x in end[1:]]
        value, _, half = np.array(truth, float).T
    np.testing.assert_allclose(rows.value[1:], value, rtol=1e-14)
    np.testing.assert_allclose(rows.mean_mean[1:], 2.0 * half, rtol=1e-12)
    np.testing.assert_allclose(rows.mean_mean[0], -1.0, rtol=1e-15)


@pytest.mark.full
@pytest.mark.parametrize("limits", [{}, {"truncated_low": -9.0, "censored_low": None}])
def test_many_rows_are_known_by_their_products(limits, monkeypatch):
    loss, x = loss_of_each_kind(**limits)
    assert loss.condensed() is loss  # they are few
    monkeypatch.setattr(one_outcome, "LARGE", 1)
    many = loss.condensed()
    assert any(term.products is not None for term in many.terms)
    parts = zip(many.derivatives(x), loss.derivatives(x), strict=True)
    for part, wanted in parts:
        np.testing.assert_allclose(part, wanted, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(many.total(x).log_prob, loss.total(x).log_prob, rtol=1e-13)
    np.testing.assert_allclose(many.scores(x), loss.scores(x), rtol=1e-14)
