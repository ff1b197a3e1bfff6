"""Fits of mixtures against EM in a few lines, single Gaussians, closed forms and simulation."""

import jax
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests.mixture_em import INF, TRUTH, drawn, em_step, log_likelihood
from truncgauss.fitting.mixtures import curvature, descent
from truncgauss.fitting.mixtures.curvature import point, score_products
from truncgauss.fitting.mixtures.em import expectation, maximised, standard_rows
from truncgauss.fitting.mixtures.fit import prepared_loss
from truncgauss.fitting.mixtures.likelihood import mixture_terms
from truncgauss.fitting.mixtures.parameters import Components, MixtureCoordinates

START = (np.array([0.4, 0.6]), np.array([[-0.5, 0.3], [3.0, 1.5]]), np.stack([np.eye(2)] * 2))
PAIR = (np.array([0.6, 0.4]), TRUTH[1][:2], TRUTH[2][:2])


def simulated(n=120, noise=0.0, gaps=0.0, seed=0):
    """Rows of two components, the second a shift and a stretch away, and their noise (n, d, d)."""
    rng = np.random.default_rng(seed)
    y = drawn(rng, n, *PAIR)
    spread = noise * rng.uniform(0.2, 1.0, size=(n, 2))
    y = y + rng.normal(size=y.shape) * np.sqrt(spread)
    missing = rng.random((n, 2)) < gaps
    missing[missing.all(axis=1)] = False
    return np.where(missing, np.nan, y), spread[:, :, None] * np.eye(2)


# EM


@pytest.mark.quick("tied-0.0-0.0", "tied-0.5-0.3")
@pytest.mark.parametrize("noise, gaps", [(0.0, 0.0), (0.5, 0.3)])
@pytest.mark.parametrize("structure", ["full", "diagonal", "tied"])
def test_a_step_of_em_is_that_of_a_few_lines(noise, gaps, structure):
    y, spread = simulated(noise=noise, gaps=gaps)
    rows = tg.Observations.exact(y, nan_is_missing=True, noise=spread if noise else None)
    loss, _ = prepared_loss(rows, 2, structure)
    found = expectation(loss, Components(*START))
    expected = np.sum(log_likelihood(y, spread, *START))
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-11)
    step = maximised(loss, Components(*START), found)
    for part, other in zip(step, em_step(y, spread, *START, structure)):
        np.testing.assert_allclose(part, other, rtol=1e-9, atol=1e-11)


def test_a_step_of_em_fills_in_exactly_what_a_limit_hides():
    # One component above a limit: the hidden rows are those of the lower tail.
    y = stats.truncnorm.rvs(-0.3, INF, size=80, random_state=np.random.default_rng(1))
    rows = tg.Observations.exact(y, region=tg.Box([-0.3], [INF]))
    loss, _ = prepared_loss(rows, 1, "full")
    start = Components(np.ones(1), np.array([[0.2]]), np.array([[[1.44]]]))
    below = (-0.3 - 0.2) / 1.2
    hidden = 80 * stats.norm.cdf(below) / stats.norm.sf(below)
    tail = stats.truncnorm(-INF, below, loc=0.2, scale=1.2)
    mean = (y.sum() + hidden * tail.mean()) / (80 + hidden)
    square = (np.sum(y**2) + hidden * (tail.var() + tail.mean() ** 2)) / (80 + hidden)
    step = maximised(loss, start, expectation(loss, start))
    np.testing.assert_allclose(step.locs, [[mean]], rtol=1e-10)
    np.testing.assert_allclose(step.covariances, [[[square - mean**2]]], rtol=1e-9)
    np.testing.assert_allclose(expectation(loss, start).population, 80 + hidden, rtol=1e-12)


# The maximum


@pytest.mark.full
@pytest.mark.parametrize("noise, gaps", [(0.0, 0.0), (0.5, 0.3)])
def test_the_maximum_is_where_em_in_a_few_lines_ends(noise, gaps):
    y, spread = simulated(noise=noise, gaps=gaps)
    rows = tg.Observations.exact(y, nan_is_missing=True, noise=spread if noise else None)
    fit = tg.fit_mixture(rows, 2, start=START)
    assert fit.converged and fit.certificate.distance < 1e-6
    assert np.all(np.diff(fit.em_log_likelihoods) > -1e-9)
    mixture = fit.weights, fit.locs, fit.covariances
    expected = np.sum(log_likelihood(y, spread, *mixture))
    np.testing.assert_allclose(fit.log_likelihood, expected, rtol=1e-11)
    # EM stands still there, and climbs to there from the same start.
    for part, other in zip(mixture, em_step(y, spread, *mixture)):
        np.testing.assert_allclose(part, other, rtol=1e-7, atol=1e-8)
    slow = START
    for _ in range(40):
        slow = em_step(y, spread, *slow)
    assert expected >= np.sum(log_likelihood(y, spread, *slow)) > expected - 0.05
    np.testing.assert_allclose(fit.responsibilities.sum(axis=1), 1.0)
    assert fit.aic == pytest.approx(22 - 2 * expected)
    assert fit.bic == pytest.approx(11 * np.log(120) - 2 * expected) and fit.icl > fit.bic


def test_a_row_of_weight_zero_does_not_hide_the_spread_of_the_others():
    y, weights = np.random.default_rng(4).normal(size=(30, 1)), np.ones(30)
    y[7], weights[7] = 1e12, 0.0
    _, centre, scale = standard_rows(tg.Observations.exact(y, weights=weights))
    others = np.delete(y, 7)
    np.testing.assert_allclose([centre[0], scale[0]], [others.mean(), others.std()], rtol=1e-5)


@pytest.mark.full
def test_one_component_behind_a_limit_is_the_fit_of_a_truncated_gaussian():
    rng = np.random.default_rng(3)
    y = rng.normal(size=(300, 2)) @ [[1.0, 0.5], [0.0, 1.2]]
    y = y[y[:, 0] > 0.6]
    other = tg.fit_truncated_normal(y, [0.6, -INF])
    fit = tg.fit_mixture(tg.Observations.exact(y, region=tg.Box([0.6, -INF], INF)), 1)
    assert fit.converged and fit.weights == 1.0
    np.testing.assert_allclose(fit.locs[0], other.loc, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(fit.covariances[0], other.covariance_matrix, rtol=1e-6)
    np.testing.assert_allclose(fit.log_likelihood, other.log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(fit.fraction_not_truncated[0], other.fraction_not_truncated)
    for ours, theirs in ((fit.standard_errors.locs[0], other.standard_errors.loc), (
        fit.standard_errors.covariances[0], other.standard_errors.covariance_matrix)):  # fmt: skip
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for notes, whole in ((other.notes, "the fitted distribution"), (fit.notes, "component 0")):
        told = f"Only {fit.fraction_not_truncated[0]:.2g} of {whole} lies where observations can"
        assert any(note.startswith(told) for note in notes)


def selected():
    """Rows seen right of a limit, each counted 0, 1 or 2 times; these counts; and the region."""
    y, _ = simulated(n=500, seed=4)
    y = y[y[:, 0] > -0.4]
    counts = np.random.default_rng(4).integers(3, size=len(y))
    return y, counts, tg.Box([-0.4, -INF], INF)


@pytest.mark.full
def test_selected_components_have_errors_of_weights_seen_and_unseen():
    y, counts, region = selected()
    rows = tg.Observations.exact(y, region=region, weights=counts)
    fit = tg.fit_mixture(rows, 2, num_starts=3)
    assert fit.converged and fit.num_reached == 3
    assert fit.observed_weights[0] > fit.observed_weights[1]

    def seen(weights, locs, covariances):
        inside = weights * jax.scipy.stats.norm.sf(-0.4, locs[:, 0], covariances[:, 0, 0] ** 0.5)
        return inside / inside.sum()

    value, error = fit.delta(lambda estimates: seen(*fit.parts(estimates)))
    np.testing.assert_allclose(value, fit.observed_weights, rtol=1e-9)
    np.testing.assert_allclose(error, fit.standard_errors.observed_weights, rtol=1e-6)
    table = str(fit)
    assert "covariances[1][1, 0]" in table and "ICL" in table and table.count("3 of 3 starts") == 1
    variances = [name for name in fit.names if "[0, 0]" in name or "[1, 1]" in name]
    positive = [name for name in fit.names if name.startswith("weights")] + variances
    low = dict(zip(fit.names, fit.estimates - 1.96 * fit.errors))
    wrong = [name for name in positive if low[name] < 0]
    told = [note for note in fit.notes if "intervals of" in note and "they reach below 0" in note]
    assert (
        wrong
        and len(told) == 1
        and f"of {', '.join(sorted(wrong, key=fit.names.index))}:" in told[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, structure",
    [("own noise", "full"), ("box", "tied"), ("gaps", "diagonal"), ("censored", "full")],
)
def test_curvature_by_blocks_is_that_of_derivatives(kind, structure):
    y, spread = simulated(n=40, noise=0.5, gaps=0.3 if kind == "gaps" else 0.0)
    y, spread = y[~(y[:, 0] < -0.4)], spread[~(y[:, 0] < -0.4)]
    settings = {"weights": np.arange(len(y)) % 3}
    if kind != "censored":
        settings["region"] = tg.Box([-0.4, -INF], INF)
    if kind != "box":  # one integral for all
        settings["noise"] = spread
    if kind == "censored":
        y[:9] = [INF, 1.0]
        lower = np.where(np.isinf(y), 0.2, y)
        rows = tg.Observations(lower, y, **settings | {"noise": spread[0]})
    else:
        rows = tg.Observations.exact(y, nan_is_missing=True, **settings)
    loss, _ = prepared_loss(rows, 2, structure)
    start = START[:2] + (START[2] * np.array([[1.0, 0.1], [0.1, 0.8]]),)
    x = loss.coordinates.free(*start)
    here = point(loss, x)
    np.testing.assert_allclose(here.loss, loss(x), rtol=1e-12)
    np.testing.assert_allclose(here.gradient, jax.grad(loss)(x), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(here.hessian, jax.hessian(loss)(x), rtol=1e-6, atol=1e-8)
    of_rows = lambda x: mixture_terms(
        loss.observations, loss.coordinates.mixture(x), loss.method, loss.key
    )
    scores = jax.jacfwd(lambda x: of_rows(x).log_prob)(x)
    expected = np.einsum("n,ni,nj->ij", rows.weights, scores, scores)
    np.testing.assert_allclose(score_products(loss, x), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("structure", ["full", "diagonal", "tied"])
def test_components_change_places_by_a_matrix(structure):
    place = MixtureCoordinates(np.zeros(2), np.array([1.0, 2.0]), 3, structure)
    x = np.random.default_rng(0).normal(size=place.size)
    mixture = jax.jit(place.mixture)(x)
    parts = mixture.weights, mixture.locs, mixture.covariance.covariance_matrix
    order = np.array([1, 2, 0])
    expected = place.free(*(np.asarray(part)[order] for part in parts))
    np.testing.assert_allclose(place.reordered(order) @ x, expected, atol=1e-13)


@pytest.mark.slow
def test_many_parameters_end_at_the_same_maximum(monkeypatch):
    y, spread = simulated(n=130, noise=0.5, gaps=0.3, seed=7)
    rows = tg.Observations.exact(y, nan_is_missing=True, noise=spread)
    few = tg.fit_mixture(rows, 2, start=START)
    for module in (descent, curvature):
        monkeypatch.setattr(module, "MANY", 3)
    jax.clear_caches()  # so that programs see it
    many = tg.fit_mixture(rows, 2, start=START)
    assert few.converged and many.converged
    np.testing.assert_allclose(many.estimates, few.estimates, rtol=1e-5, atol=1e-6)
    # The curvature may be that of a tenth of a standard error away.
    np.testing.assert_allclose(many.errors, few.errors, rtol=5e-3)


def test_errors_by_the_sandwich_are_those_of_the_rows_own_moments():
    y = np.random.default_rng(6).exponential(size=200)
    fit = tg.fit_mixture(tg.Observations.exact(y), 1, information="sandwich")
    gaps = y - y.mean()
    # The covariance of the mean and the variance of rows of any distribution.
    moments = np.stack([gaps, gaps**2 - gaps.var()])
    expected = moments @ moments.T / len(y) ** 2
    np.testing.assert_allclose(fit.parameter_covariance[1:, 1:], expected, rtol=1e-6)
    assert fit.standard_errors.covariances[0, 0, 0] == pytest.approx(expected[1, 1] ** 0.5)


# Ends and refusals


def test_as_many_parameters_as_rows_are_no_maximum_to_be_believed():
    y = np.random.default_rng(0).normal(size=9)
    fit = tg.fit_mixture(tg.Observations.exact(y), 3, num_starts=2)
    assert not fit.converged and "9 observations are too few for 8 parameters" in fit.reason
    assert np.all(np.isinf(fit.errors))
    (told,) = (note for note in fit.notes if "rests on" in note)
    count = fit.responsibilities.sum(axis=0).min()
    assert (
        1.99 < count < 2
        and f"rests on {np.floor(1e3 * count) / 1e3:.4g} observations, fewer" in told
    )


def test_more_components_than_the_rows_show_do_not_converge():
    y = stats.norm.ppf((np.arange(60) + 0.5) / 60)
    start = np.array([0.5, 0.5]), np.zeros((2, 1)), np.ones((2, 1, 1))
    fit = tg.fit_mixture(tg.Observations.exact(y), 2, start=start)
    assert not fit.converged and "do not determine" in fit.reason
    with pytest.raises(ValueError, match="profile: there is no maximum to start from"):
        fit.profile("weights[0]")


def test_rows_left_out_by_a_weight_of_zero_are_predicted():
    y, weights = np.array([1.0, 2.0, 4.0, 3.0, 9.0]), np.array([1.0, 2.0, 1.0, 1.0, 0.0])
    rows = tg.Observations.exact(y, weights=weights)
    fit = tg.fit_mixture(rows, 1, progress=False)
    expected = stats.norm(fit.locs[0, 0], fit.covariances[0, 0, 0] ** 0.5).logpdf(y)
    np.testing.assert_allclose(fit.row_log_likelihood(rows), expected, rtol=1e-12)
    assert abs(weights @ expected - fit.log_likelihood) < 1e-10


@pytest.mark.full
def test_a_narrow_component_within_a_wide_one_is_found():
    """Of the starts by clusters all 100 of 100 end .74 lower; own likelihood by SciPy."""
    rng = np.random.default_rng(6)
    y = np.concatenate([rng.normal(size=150), rng.normal(2.5, 0.6, 100)])
    y = y[y > -0.3]

    def loss(x):
        weights, locs, scales = np.exp([*x[:2], 0.0]), x[2:5], np.exp(x[5:])
        inside = weights @ stats.norm.sf(-0.3, locs, scales)
        return -np.sum(np.log(stats.norm.pdf(y[:, None], locs, scales) @ weights / inside))

    start = [np.log(8.6), np.log(4.8), 0.5, 2.7, 0.26, np.log(1.26), np.log(0.58), np.log(0.12)]
    own = -optimize.minimize(loss, start, method="BFGS").fun
    fit = tg.fit_mixture(tg.Observations.exact(y, region=tg.Box([-0.3], [INF])), 3)
    np.testing.assert_allclose(fit.log_likelihood, own, atol=1e-6)
