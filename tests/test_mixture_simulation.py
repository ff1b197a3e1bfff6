"""Fits of simulated surveys: half-space cuts, noise a row, missing entries, against the truth."""

import os

import numpy as np
import pytest

import truncgauss as tg
from experiments.mixture_survey import imputation
from tests.mixture_em import INF, TRUTH, drawn, em_step
from tests.test_experiments import check_picture, completed
from tests.test_mixture_fit import NAMES

REGION = tg.Polyhedron([[1.0, 0.0], [1.0, 1.0]], [-0.8, -INF], [INF, 6.5])


def survey(rng, n):
    """n rows of three components that pass a limit and a half-space; 20 % lack an entry."""
    y = drawn(rng, 4 * n, *TRUTH)
    noise = rng.uniform(0.02, 0.3, size=y.shape)
    y = y + rng.normal(size=y.shape) * np.sqrt(noise)
    kept = (y[:, 0] > -0.8) & (y.sum(axis=1) < 6.5)
    y, noise = y[kept][:n], noise[kept][:n]
    y[: n // 10, 0] = y[n // 10 : n // 5, 1] = np.nan  # at random, as the rows have no order
    return tg.Observations.exact(y, nan_is_missing=True, noise=noise, region=REGION)


def pulls_of(fit):
    """(estimate - truth) / standard error, with the components as they are in the truth."""
    gaps = np.linalg.norm(fit.locs[:, None] - TRUTH[1], axis=-1)
    order = np.argmin(gaps, axis=0)
    assert sorted(order) == [0, 1, 2]
    errors, rows = fit.standard_errors, np.tril_indices(2)
    pulls = [(fit.weights[order] - TRUTH[0]) / errors.weights[order]]
    pulls.append(((fit.locs[order] - TRUTH[1]) / errors.locs[order]).ravel())
    gaps = fit.covariances[order] - TRUTH[2]
    pulls += [(gap / error)[rows] for gap, error in zip(gaps, errors.covariances[order])]
    return np.concatenate(pulls)


@pytest.mark.slow
def test_a_survey_is_recovered_from_nearly_all_starts():
    fit = tg.fit_mixture(survey(np.random.default_rng(0), 500), 3, num_starts=20)
    assert fit.converged and fit.num_reached >= 18, fit.start_log_likelihoods
    assert np.all(np.abs(pulls_of(fit)) < 4.0)
    assert fit.log_likelihood_stderr == 0.0


@pytest.mark.slow
def test_a_disc_removed_from_a_box_hides_no_component():
    box, disc = tg.Box([-2.0, -1.5], [5.0, 5.0]), tg.Ball([1.5, 1.5], 1.2)
    region = tg.Selection(lambda x: box.contains(x) & ~disc.contains(x), 2)
    y = drawn(np.random.default_rng(0), 1000, *TRUTH)
    y = y[np.asarray(region.contains(y))][:400]
    few = tg.ImportanceSampling(num_points=512, num_replicates=8)
    rows = tg.Observations.exact(y, region=region)
    fit = tg.fit_mixture(rows, 3, start=dict(zip(NAMES, TRUTH)), method=few, num_em_steps=20)
    assert fit.converged and np.all(np.abs(pulls_of(fit)) < 3.0)
    assert 0 < fit.log_likelihood_stderr < 2.0


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """TRUNCGAUSS_SURVEYS=200x2000 asks for as many surveys, and rows in each."""
    count, n = map(int, os.environ.get("TRUNCGAUSS_SURVEYS", "60x500").split("x"))
    rng, pulls = np.random.default_rng(1), []
    for _ in range(count):
        fit = tg.fit_mixture(survey(rng, n), 3, start=dict(zip(NAMES, TRUTH)))
        assert fit.converged, fit.reason
        pulls.append(pulls_of(fit))
    inside = np.abs(pulls) < 1.959964
    # Samples of 18 numbers, correlated: three standard errors of 5 independent ones in each.
    assert abs(inside.mean() - 0.95) < 3 * (0.95 * 0.05 / (5 * count)) ** 0.5
    # Five binomial standard errors for each number by itself.
    assert np.all(inside.mean(axis=0) > 0.95 - 5 * (0.95 * 0.05 / count) ** 0.5)


def test_em_by_draws_treats_rows_seen_as_a_few_lines_do_and_draws_the_hidden_share():
    rng = np.random.default_rng(0)
    y, noise = drawn(rng, 60, *TRUTH), rng.uniform(0.1, 0.4, size=(60, 2))
    y[:9, 0] = y[9:15, 1] = np.nan
    found = imputation.em_step(y, noise, *TRUTH)
    for part, other in zip(found, em_step(y, noise[:, :, None] * np.eye(2), *TRUTH)):
        np.testing.assert_allclose(part, other, rtol=1e-12, atol=1e-14)
    seen = lambda y: y[:, 0] > -0.8
    y = y[:9]
    whole = imputation.filled(rng, y, noise[:9], TRUTH, seen)
    assert np.all(seen(whole)) and np.all(whole[~np.isnan(y)] == y[~np.isnan(y)])
    one = np.ones(1), np.zeros((1, 2)), np.eye(2)[None]
    lost, errors = imputation.hidden(rng, 4000, np.full((9, 2), 0.44), one, lambda y: y[:, 0] > 0.6)
    # P(hidden) / P(seen) = .6915 / .3085, with a standard deviation of that part of sqrt(n).
    assert lost.shape == errors.shape and np.all(lost[:, 0] <= 0.6)
    assert abs(len(lost) / 4000 - 2.2411) < 4 * (2.2411 * 3.2411 / 4000) ** 0.5


@pytest.mark.slow
def test_the_experiment_corrects_what_the_naive_mixture_gets_wrong():
    reduced = {"num_rows": 400, "num_starts": 1, "num_repeats": 4, "num_imputations": 1}
    results, picture = completed("mixture_survey", **reduced)
    assert results["failed"] == "" and results["num_reached"] == 1
    k = 3
    # The mean of the first component, of which the cut hides a third, along the first axis.
    pull = (results["fit"][k] - results["truth"][k]) / results["fit_errors"][k]
    assert abs(pull) < 4.0 and results["naive"][k] > results["truth"][k] + 0.2
    ratio = results["repeats"].std(axis=0) / np.median(results["repeat_errors"], axis=0)
    assert 0.2 < np.median(ratio) < 3.0
    check_picture(picture)
