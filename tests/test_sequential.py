"""Sequential Monte Carlo: known values, honest error bars, and a gradient that is an estimate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.problems import brownian, equal_correlations, tridiagonal
from truncgauss.gaussian.covariances import as_covariance
from truncgauss.gaussian.problem import Problem
from truncgauss.probability.sequential import particles, surviving
from truncgauss.separation.particles import chain_of, log_weights, twist_of

INF = np.inf


def log_probability(covariance, low, high, method, key=None):
    d = len(covariance)
    box = tg.Box(np.broadcast_to(low, (d,)), np.broadcast_to(high, (d,)))
    return tg.log_probability(np.zeros(d), covariance, box, method, key)


@pytest.mark.slow
@pytest.mark.parametrize("twisted", [True, False])
def test_error_bars_cover_and_the_estimate_is_unbiased(twisted):
    """300 keys: coverage of the 95 % interval below 0.88 has probability 1e-6."""
    method = tg.SequentialMonteCarlo(num_particles=64, num_replicates=8, twisted=twisted)
    covariance = brownian(8)
    held = method.hold(jnp.zeros(8), covariance, tg.Box(jnp.zeros(8), INF))
    keys = jax.random.split(jax.random.key(1), 300)
    got = jax.vmap(lambda key: log_probability(covariance, 0.0, INF, held, key))(keys)
    truth = 0.196380615234375
    half_width = stats.t.ppf(0.975, 7) * np.asarray(got.stderr)
    assert np.mean(np.abs(got.log_prob - np.log(truth)) <= half_width) > 0.88
    mean, error = np.mean(np.exp(got.log_prob)), np.std(np.exp(got.log_prob)) / 300**0.5
    assert abs(mean - truth) < 5 * error


@pytest.mark.slow
def test_a_long_chain_resamples_and_agrees_with_its_twisted_twin():
    d = 160
    lag = jnp.abs(jnp.arange(d)[:, None] - jnp.arange(d))
    problem = Problem(jnp.zeros(d), as_covariance(0.9**lag), tg.Box(jnp.zeros(d), INF)).limits
    sites = jax.jit(lambda problem: twist_of(problem, 1 / 3))(problem)
    plain, twisted = chain_of(problem, None), chain_of(problem, sites)
    run = jax.jit(particles, static_argnums=2)

    def estimate(chain):
        records = [run(chain, jax.random.key(k), 256) for k in range(8)]
        moved = any(jnp.any(record.parents != jnp.arange(256)) for record in records)
        shares = jnp.exp(jnp.stack([record.log_prob for record in records]))
        return moved, shares.mean(), shares.std(ddof=1) / 8**0.5

    resampled, one, error = estimate(plain)
    _, two, small_error = estimate(twisted)
    assert resampled
    assert abs(one - two) < 7 * jnp.hypot(error, small_error)
    assert small_error < 0.03 * two


@pytest.mark.slow
def test_the_weights_are_right_for_any_twist():
    """An arbitrary twist changes the error, not the mean: P = E exp(log weight)."""
    covariance, box = equal_correlations(3, 0.5), tg.Box(jnp.array([0.0, -1.0, 0.5]), INF)
    loc = jnp.array([0.2, -0.1, 0.3])
    uniforms = jax.random.uniform(jax.random.key(0), (2, 200_000))
    problem = Problem(loc, as_covariance(covariance), box).limits
    plain, good = chain_of(problem, None), twist_of(problem, 1 / 3)
    odd = type(good)(jnp.array([0.5, 0.0, 0.3]), jnp.array([1.0, 0.0, -0.5]), jnp.zeros(()))
    weigh = jax.jit(lambda chain: jnp.exp(log_weights(chain, uniforms)))
    of = lambda twist: weigh(chain_of(problem, twist))
    weights = jnp.stack([weigh(plain), of(good), of(odd)])
    means, errors = weights.mean(1), weights.std(1) / uniforms.shape[1] ** 0.5
    assert jnp.all(jnp.abs(means - means[1]) < 5 * jnp.hypot(errors, errors[1])), (means, errors)
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.slow
def test_gradients_estimate_those_of_the_probability():
    """Five equicorrelated variables in [-1, 3]; the known derivatives come from quadrature."""
    method = tg.SequentialMonteCarlo(num_particles=1024, num_replicates=8)

    def value(loc, covariance, low, high):
        return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob

    at = jnp.zeros(5), equal_correlations(5, 0.5), jnp.full(5, -1.0), jnp.full(5, 3.0)
    log_prob, (loc, covariance, low, high) = jax.value_and_grad(value, (0, 1, 2, 3))(*at)
    np.testing.assert_allclose(log_prob, -0.544645020719892227, atol=2e-4)
    np.testing.assert_allclose(loc, 0.151057275727966868, atol=2e-3)
    np.testing.assert_allclose(low, -0.157597802843879999, atol=2e-3)
    np.testing.assert_allclose(high, 0.00654052711591313, atol=5e-4)
    np.testing.assert_allclose(2 * covariance[0, 1], 0.0575175781678578593, atol=2e-3)


@pytest.mark.slow
def test_gradients_through_resampling_are_finite_and_near():
    """A walk of 40 steps, untwisted: the score of the survivors against a wide difference."""
    d = 40
    plain = tg.SequentialMonteCarlo(num_particles=256, num_replicates=4, twisted=False)
    low = jnp.zeros(d).at[7].set(-INF)

    def value(loc, low):
        return tg.log_probability(loc, 0.8 * brownian(d), tg.Box(low, INF), plain).log_prob

    value_and_gradient = jax.jit(jax.value_and_grad(value, (0, 1)))
    _, (gradient, of_low) = value_and_gradient(jnp.zeros(d), low)
    assert jnp.isfinite(gradient).all() and of_low[7] == 0
    finite = jnp.arange(d) != 7
    np.testing.assert_allclose(gradient[finite], -of_low[finite], atol=1e-12)
    # All means move together: compare with a difference over a wide step.
    step = 0.2
    (up, _), (down, _) = (value_and_gradient(jnp.full(d, s), low) for s in (step, -step))
    np.testing.assert_allclose(gradient.sum(), (up - down) / (2 * step), rtol=0.1)


def test_paths_of_survivors_are_traced_back():
    """Without resampling nothing moves; with it, uniforms follow the parents."""
    problem = Problem(np.zeros(3), as_covariance(np.eye(3)), tg.Box(np.zeros(3), INF)).limits
    chain = jax.jit(chain_of, static_argnums=1)(problem, None)
    record = jax.jit(particles, static_argnums=2)(chain, jax.random.key(0), 8)
    uniforms = np.asarray(record.uniforms)
    np.testing.assert_array_equal(jax.jit(surviving)(record), uniforms[:-1])
    swapped = np.stack([np.arange(8), np.arange(8)[::-1], np.arange(8)])
    expected = [uniforms[0, ::-1], uniforms[1]]
    np.testing.assert_array_equal(jax.jit(surviving)(record._replace(parents=swapped)), expected)


def test_an_estimate_that_has_failed_says_so():
    """Untwisted particles meet the ordering of 61 values unprepared, and miss log P by far."""
    d = 60
    covariance = tridiagonal(d)
    plain = tg.SequentialMonteCarlo(num_particles=32, num_replicates=8, twisted=False)
    assert log_probability(covariance, 0.0, INF, plain).stderr == INF
