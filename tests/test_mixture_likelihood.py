"""The likelihood of mixtures against SciPy, quadrature, one Gaussian alone and itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.referee import oracles
from tests.row_quadrature import COVARIANCE, LOC, LOW, every_kind

INF = np.inf
WEIGHTS = np.array([0.2, 0.5, 0.3])
LOCS = np.array([[0.0, 0.5], [1.5, -0.5], [-1.0, 1.0]])
COVARIANCES = np.array(
    [[[1.0, 0.3], [0.3, 0.5]], [[0.4, -0.2], [-0.2, 0.8]], [[0.6, 0.0], [0.0, 0.3]]]
)
MIXTURE = (WEIGHTS, LOCS, COVARIANCES)


def total(rows, weights, locs, covariances, **settings):
    return jnp.sum(
        tg.mixtures.mixture_log_likelihood(rows, weights, locs, covariances, **settings).log_prob
    )


def test_complete_rows_agree_with_scipy_and_only_proportions_of_weights_matter():
    y = np.random.default_rng(0).normal(size=(30, 2))
    parts = [w * stats.multivariate_normal(m, c).pdf(y) for w, m, c in zip(*MIXTURE)]
    rows = tg.Observations.exact(y)
    found = tg.mixtures.mixture_log_likelihood(rows, *MIXTURE)
    np.testing.assert_allclose(found.log_prob, np.log(np.sum(parts, axis=0)), rtol=1e-12)
    np.testing.assert_array_equal(found.stderr, 0.0)
    scaled = tg.mixtures.mixture_log_likelihood(rows, 7.0 * WEIGHTS, *MIXTURE[1:])
    np.testing.assert_allclose(scaled.log_prob, found.log_prob, rtol=1e-12)
    far = tg.mixtures.mixture_log_likelihood(tg.Observations.exact([[60.0, -90.0]]), *MIXTURE)
    np.testing.assert_allclose(
        far.log_prob,
        np.log(0.5) + stats.multivariate_normal(LOCS[1], COVARIANCES[1]).logpdf([60.0, -90.0]),
        rtol=1e-12,
    )


def test_the_derivative_in_a_weight_of_zero_is_that_from_above():
    rows = tg.Observations.exact([[0.5], [1.5]], region=tg.Box([0.0], [INF]))
    for loc, step in ((2.0, 1e-7), (60.0, 1e-7)):
        others = jnp.array([[0.0], [loc]]), jnp.array([[[1.0]], [[0.5]]])
        found = jax.grad(total, 1)(rows, jnp.array([1.0, 0.0]), *others)
        low, high = (total(rows, jnp.array([1.0, second]), *others) for second in (0.0, step))
        np.testing.assert_allclose(found[1], (high - low) / step, rtol=1e-5)
        np.testing.assert_allclose(found[0], 0.0, atol=1e-12)
    far = tg.Observations.exact([[0.5], [80.0]], region=tg.Box([0.0], [INF]))
    revived = jax.grad(total, 1)(far, jnp.array([1.0, 0.0]), *others)
    assert np.all(np.isfinite(revived)) and revived[1] > 1e100


def test_constant_weights_may_be_closed_over_by_a_compiled_function():
    rows, weights = tg.Observations.exact([[0.5], [1.5]]), jnp.array([0.3, 0.7])
    others = np.array([[[1.0]], [[0.5]]])
    function = lambda locs: total(rows, weights, locs, others)
    locs = jnp.array([[0.0], [2.0]])
    np.testing.assert_allclose(jax.jit(function)(locs), function(locs), rtol=1e-12)


@pytest.mark.parametrize("second", [-INF, pytest.param(-1.0, marks=pytest.mark.full)])
def test_truncated_noisy_incomplete_rows_agree_with_quadrature(second):
    rng = np.random.default_rng(1)
    low, noise = np.array([-0.5, second]), rng.uniform(0.05, 0.8, size=(24, 2))
    y = np.maximum(rng.normal(size=(24, 2)), np.maximum(low, -1.0) + 0.1)
    lower, upper = y.copy(), y.copy()
    kind = rng.integers(3, size=24)
    lower[kind == 1, 0], upper[kind == 1, 0] = -INF, INF  # missing
    lower[kind == 2, 1] -= 0.4  # an interval
    rows = tg.Observations(lower, upper, region=tg.Box(low, INF), noise=noise)
    found = tg.mixtures.mixture_log_likelihood(rows, *MIXTURE)
    for i, log_prob in enumerate(found.log_prob):
        seen = inside = 0.0
        for w, loc, covariance in zip(*MIXTURE):
            whole = covariance + np.diag(noise[i])
            mass = np.exp(oracles.log_box(loc, oracles.factor_of(whole), low, INF)[0])
            seen += w * mass * np.exp(oracles.log_rows(lower[i], upper[i], loc, whole, low)[0])
            inside += w * mass
        np.testing.assert_allclose(log_prob, np.log(seen) - np.log(inside), rtol=1e-8, atol=1e-8)


def incomplete_rows(weights):
    """Rows of which some lack an entry, seen above a limit of the last one."""
    y = np.abs(np.random.default_rng(5).normal(size=(24, 3)))
    y[::3, 1] = np.nan
    region = tg.Box([-INF, -INF, -0.5], INF)
    return tg.Observations.exact(y, nan_is_missing=True, region=region, weights=weights)


def rows_of_every_kind(weights):
    return tg.Observations(*every_kind(), region=tg.Box(LOW, INF), weights=weights)


@pytest.mark.parametrize(
    "rows", [incomplete_rows, pytest.param(rows_of_every_kind, marks=pytest.mark.full)]
)
def test_one_component_is_the_likelihood_of_a_gaussian(rows):
    rows = rows(np.linspace(0.0, 2.0, 24))
    one = tg.log_likelihood(rows, LOC, COVARIANCE)
    found = tg.mixtures.mixture_log_likelihood(rows, [1.0], LOC[None], COVARIANCE[None])
    np.testing.assert_allclose(found.log_prob, one.log_prob, rtol=1e-12)
    # A component that none belongs to, or two that are equal, change nothing.
    twice = np.stack([LOC, LOC]), np.stack([COVARIANCE, COVARIANCE])
    split = tg.mixtures.mixture_log_likelihood(rows, [0.3, 0.7], *twice)
    np.testing.assert_allclose(split.log_prob, one.log_prob, rtol=1e-12)
    empty = tg.mixtures.mixture_log_likelihood(
        rows, [1.0, 0.0], np.stack([LOC, LOC + 9.0]), twice[1]
    )
    np.testing.assert_allclose(empty.log_prob, one.log_prob, rtol=1e-12)


@pytest.mark.full
def test_the_gradient_is_that_of_the_value():
    rng = np.random.default_rng(2)
    y = np.abs(rng.normal(size=(12, 2)))
    y[:4, 0] = np.nan
    rows = tg.Observations.exact(y, nan_is_missing=True, region=tg.Box([-0.2, -INF], INF))
    rows = dataclasses.replace(rows, weights=jnp.linspace(0.5, 1.5, 12))
    function = lambda *mixture: total(rows, *mixture)
    gradient = jax.grad(function, (0, 1, 2))(*map(jnp.asarray, MIXTURE))
    for place, entry in [(0, (1,)), (1, (2, 0)), (2, (0, 0, 0)), (2, (1, 1, 1))]:
        ends = []
        for step in (1e-5, -1e-5):
            moved = [np.array(part) for part in MIXTURE]
            moved[place][entry] += step
            ends.append(float(function(*moved)))
        expected = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(gradient[place][entry], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.full
def test_a_held_plan_is_a_fixed_function_with_its_own_error():
    rng = np.random.default_rng(3)
    locs = rng.normal(size=(2, 4)) * 0.3
    covariances = np.stack([0.5 * (np.eye(4) + 1.0), np.eye(4) + 0.2])
    y = np.abs(rng.normal(size=(6, 4)))
    y[:3, 1] = np.nan
    region = tg.Box(np.zeros(4), INF)
    rows = tg.Observations.exact(y, nan_is_missing=True, region=region)
    few = tg.Separation(num_points=64, num_replicates=8)
    method = tg.mixtures.hold(few, rows, locs, covariances)
    weights = jnp.array([0.4, 0.6])
    found = tg.mixtures.mixture_log_likelihood(rows, weights, locs, covariances, method)
    truth = tg.mixtures.mixture_log_likelihood(rows, weights, locs, covariances)
    pulls = (found.log_prob - truth.log_prob) / found.stderr
    assert np.all(found.stderr > 0) and np.all(np.abs(pulls) < 6.0)
    function = lambda locs: total(rows, weights, locs, covariances, method=method)
    gradient = jax.grad(function)(jnp.asarray(locs))
    step = np.zeros_like(locs)
    step[1, 2] = 1e-5
    expected = (function(locs + step) - function(locs - step)) / 2e-5
    np.testing.assert_allclose(gradient[1, 2], expected, rtol=1e-6)


def test_an_impossible_row_is_minus_infinity_without_a_gradient_of_nan():
    rows = tg.Observations.exact([[0.5, 0.5], [-3.0, 0.5]], region=tg.Box([0.0, -INF], INF))
    found = tg.mixtures.mixture_log_likelihood(rows, *MIXTURE)
    assert np.isfinite(found.log_prob[0]) and found.log_prob[1] == -INF
    gradient = jax.grad(lambda locs: total(rows, WEIGHTS, locs, COVARIANCES))(jnp.asarray(LOCS))
    assert np.all(np.isfinite(gradient))
    broken = tg.mixtures.mixture_log_likelihood(rows, *MIXTURE[:2], COVARIANCES * jnp.nan)
    assert np.all(np.isnan(broken.log_prob))
