"""Moments by separation and by samples: accuracy, standard errors, coverage, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import autoregression, equal_correlations
from scipy import stats

import truncgauss as tg
from tests.moment_errors import assert_sound, errors

INF = np.inf


FIVE = {
    "orthant": (equal_correlations(5), np.zeros(5), np.full(5, INF)),
    "chain": (autoregression(5), np.full(5, -1.0), np.full(5, 2.0)),
    "tail": (autoregression(5), np.full(5, 4.0), np.full(5, INF)),
    "far": (equal_correlations(5, 0.9), np.full(5, 150.0), np.full(5, INF)),
    "narrow": (autoregression(5), 50.0 + np.arange(5), 50.0 + np.arange(5) + 1e-7),
    "free": (autoregression(5), np.full(5, -INF), np.full(5, INF)),
}

NUM_KEYS = 24


@pytest.fixture(scope="module")
def five():
    """Every problem of five dimensions with many keys, in one compilation."""
    matrix, low, high = (jnp.array([case[k] for case in FIVE.values()]) for k in range(3))
    method = tg.Separation(num_points=64)
    of_key = jax.jit(
        lambda matrix, low, high, key: tg.truncated_moments(
            np.zeros(5), matrix, tg.Box(low, high), method, key
        )
    )
    keys = jax.random.split(jax.random.key(1), NUM_KEYS)
    results = [of_key(matrix, low, high, key) for key in keys]
    stacked = jax.tree.map(lambda *parts: np.stack(parts, 1), *results)
    rows = zip(FIVE, low, high, zip(*stacked))
    return {name: (low, high, tg.probability.Moments(*parts)) for name, low, high, parts in rows}


@pytest.fixture(scope="module")
def five_truths():
    chains_of = ("chain", "tail")
    form = tg.Markov(np.full(4, 0.7), 0.51**0.5, 1.0)
    low, high = (jnp.array([FIVE[name][k] for name in chains_of]) for k in (1, 2))
    of_chain = tg.truncated_moments(np.zeros(5), form, tg.Box(low, high))
    factors = ("orthant", "far")
    rho = np.array([[0.5], [0.9]]) * np.ones(5)
    low, high = (jnp.array([FIVE[name][k] for name in factors]) for k in (1, 2))
    form = tg.LowRank(jnp.sqrt(rho)[..., None], 1.0 - rho)
    of_factor = tg.truncated_moments(np.zeros(5), form, tg.Box(low, high))
    row = lambda moments, k: jax.tree.map(lambda x: np.asarray(x[k]), moments)
    names = (*chains_of, *factors)
    return {n: row(m, k) for n, m, k in zip(names, [of_chain] * 2 + [of_factor] * 2, [0, 1] * 2)}


@pytest.mark.full
def test_separation_is_accurate_and_sound(five, five_truths):
    for name, (low, high, moments) in five.items():
        assert_sound(moments, low, high)
        if name in five_truths:
            truth = five_truths[name]
            of_mean, of_covariance = errors(moments, truth.mean, truth.covariance)
            assert of_mean < 0.03 and of_covariance < 0.15, (name, of_mean, of_covariance)


@pytest.mark.full
def test_narrow_boxes_far_out_keep_their_digits(five):
    """Nearly a uniform distribution: the density changes by width * slope = 1e-5 across the box."""
    low, high, moments = five["narrow"]
    variances = np.diagonal(moments.covariance, axis1=1, axis2=2)
    error = np.abs(variances / (high - low) ** 2 * 12.0 - 1.0)
    stderr = np.diagonal(moments.covariance_stderr, axis1=1, axis2=2) / variances
    assert np.all(error <= 1e-4 + 6.0 * stderr) and np.all(stderr < 1e-2)


@pytest.mark.full
def test_no_limits_leave_the_gaussian_exactly(five):
    moments = five["free"][2]
    np.testing.assert_array_equal(moments.mean, 0.0 * moments.mean)
    matrix = np.broadcast_to(FIVE["free"][0], moments.covariance.shape)
    np.testing.assert_array_equal(moments.covariance, matrix)
    assert not np.any(moments.mean_stderr) and not np.any(moments.covariance_stderr)


@pytest.mark.full
def test_gradient_of_a_held_plan():
    matrix, low, high = FIVE["chain"]
    box = tg.Box(low, high)
    method = tg.Separation(64, 4, twisted=False).hold(jnp.zeros(5), matrix, box)
    direction, h = jnp.cos(jnp.arange(10.0)), 1e-5

    def of(x):
        scale = jnp.exp(x[5:])
        moments = tg.truncated_moments(x[:5], matrix * jnp.outer(scale, scale), box, method)
        return moments.mean, moments.covariance

    slope = jax.jit(lambda x: jax.jvp(of, (x,), (direction,)))
    start = 0.1 * jnp.sin(jnp.arange(10.0))
    after, before = slope(start + h * direction)[0], slope(start - h * direction)[0]
    for high, low, exact in zip(after, before, slope(start)[1]):
        np.testing.assert_allclose((high - low) / (2 * h), exact, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["orthant", "chain", "tail"])
def test_coverage(name, five_truths):
    """95 % intervals over 300 keys, each entry on average, within [0.90, 0.985]."""
    matrix, low, high = FIVE[name]
    box, quantile = tg.Box(low, high), stats.t.ppf(0.975, 15)
    method = tg.Separation(num_points=128).hold(jnp.zeros(5), matrix, box)
    of = jax.jit(
        lambda key: tg.truncated_moments(jnp.zeros(5), jnp.asarray(matrix), box, method, key)
    )
    keys = jax.random.split(jax.random.key(5), 300)
    moments = jax.tree.map(lambda *parts: np.stack(parts), *[of(key) for key in keys])
    truth = five_truths[name]
    covered = np.abs(moments.mean - truth.mean) <= quantile * moments.mean_stderr + 1e-14
    assert name == "chain" or 0.90 <= covered.mean() <= 0.985
    covered = np.abs(moments.covariance - truth.covariance) <= quantile * moments.covariance_stderr
    assert 0.90 <= covered.mean() <= 0.985


@pytest.mark.full
def test_float32_is_close():
    for name in ("orthant", "tail", "far"):
        matrix, low, high = FIVE[name]
        double = tg.truncated_moments(np.zeros(5), matrix, tg.Box(low, high), tg.Separation())
        single = tg.truncated_moments(
            *(np.float32(x) for x in (np.zeros(5), matrix)),
            tg.Box(np.float32(low), np.float32(high)),
            tg.Separation(),
        )
        assert all(part.dtype == jnp.float32 for part in single)
        noise = np.max(double.covariance_stderr / np.diag(double.covariance))
        # The distribution itself moves by as much when its limits move by a last digit.
        rounding = np.finfo(np.float32).eps * (low @ np.linalg.solve(matrix, low))
        allowed = 1e-3 + 8 * noise + 4 * rounding
        assert max(errors(single, double.mean, double.covariance)) < allowed


@pytest.mark.full
def test_propagation_is_near_and_unsure(five_truths):
    method = tg.ExpectationPropagation()
    for name in ("orthant", "far"):
        matrix, low, high = FIVE[name]
        moments = tg.truncated_moments(jnp.zeros(5), matrix, tg.Box(low, high), method)
        truth = five_truths[name]
        assert max(errors(moments, truth.mean, truth.covariance)) < 0.06
        assert np.all(np.isnan(moments.mean_stderr))
        assert_sound(moments, low, high)
