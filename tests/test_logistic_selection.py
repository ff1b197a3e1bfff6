"""Selections by logistic curves: values and derivatives beside quadrature, in any tail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.probability.logistic_scores import SCALES, SHARES

LOC, COVARIANCE = jnp.array([0.2, -0.3]), jnp.array([[1.0, 0.3], [0.3, 0.8]])
TWO = jnp.array([[1.0, 0.5], [-0.3, 1.0]])


def log_prob(loc, covariance, weights, midpoint, width):
    region = tg.Selection.logistic(weights, midpoint, width)
    return tg.log_probability(loc, covariance, region).log_prob


def by_quadrature(loc, covariance, weights, midpoint, width, num=4001):
    """The trapezoidal rule along standard normal variables behind the scores, about their mode."""
    weights, midpoint, width = jnp.atleast_2d(weights), jnp.atleast_1d(midpoint), width
    mean = (weights @ loc - midpoint) / width
    root = jnp.linalg.cholesky(weights @ covariance @ weights.T) / jnp.reshape(width, (-1, 1))
    loss = lambda u: 0.5 * u @ u + jnp.sum(jnp.logaddexp(0.0, -(mean + root @ u)))

    def newton(_, u):
        step = jnp.linalg.solve(jax.hessian(loss)(u), jax.grad(loss)(u))
        return u - step * jnp.minimum(1.0, 2.0 / jnp.linalg.norm(step + 1e-300))

    u = jax.lax.stop_gradient(jax.lax.fori_loop(0, 60, newton, jnp.zeros(len(mean))))
    axes = [u[j] + jnp.linspace(-10.0, 10.0, num) for j in range(len(mean))]
    logs = -jax.vmap(loss)(jnp.stack(jnp.meshgrid(*axes), -1).reshape(-1, len(mean)))
    return jax.nn.logsumexp(logs) + len(mean) * jnp.log(20.0 / (num - 1) / jnp.sqrt(2 * jnp.pi))


def by_what_is_lost(loc, covariance, weights, midpoint, width):
    """With the digits of a log near 0."""
    lost = by_quadrature(loc, covariance, -weights, -midpoint, width)
    return tg.special.log1mexp(-lost)


def test_the_mixture_is_the_logistic_function():
    z = np.linspace(0.0, 25.0, 60)
    mixed = np.asarray(tg.special.ndtr(z[:, None] / SCALES)) @ SHARES
    np.testing.assert_allclose(mixed, 1.0 / (1.0 + np.exp(-z)), rtol=4e-12)


@pytest.mark.quick("15.0-0.2")
@pytest.mark.parametrize("midpoint, width", [(-40.0, 0.7), (1.0, 0.7), (15.0, 0.2), (60.0, 1.5)])
def test_one_curve_and_its_derivatives(midpoint, width):
    arguments = LOC, COVARIANCE, TWO[0], midpoint, width
    everything, truth_of_one = tuple(range(5)), by_quadrature if midpoint > 0 else by_what_is_lost
    mine, slopes = jax.value_and_grad(log_prob, everything)(*arguments)
    truth, true_slopes = jax.jit(jax.value_and_grad(truth_of_one, everything))(*arguments)
    np.testing.assert_allclose(mine, truth, rtol=1e-10)
    for slope, true_slope in zip(slopes, true_slopes):
        np.testing.assert_allclose(slope, true_slope, rtol=1e-9)
    bend = jax.jit(jax.hessian(log_prob, (3, 4)))(*arguments)
    true_bend = jax.jit(jax.hessian(truth_of_one, (3, 4)))(*arguments)
    np.testing.assert_allclose(bend, true_bend, rtol=1e-8, atol=1e-10)


def test_rows_of_midpoints_and_single_precision():
    midpoints = jnp.array([[1.0], [15.0], [1000.0]])
    together = log_prob(LOC, COVARIANCE, TWO[:1], midpoints, jnp.full((3, 1), 0.7))
    mapped = jax.vmap(lambda m: log_prob(LOC, COVARIANCE, TWO[0], m[0], 0.7))(midpoints)
    np.testing.assert_allclose(together, mapped, rtol=1e-12)
    assert -1430.0 < together[2] < -1300.0  # exp(z) of a score of mean -1428, and no less
    single = [np.float32(x) for x in (LOC, COVARIANCE, TWO[0], 15.0, 0.7)]
    value = log_prob(*single)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, together[1], rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("midpoint", [(1.0, 0.0), (15.0, 0.0), (-30.0, 20.0), (60.0, 60.0)])
def test_two_curves_beside_quadrature(midpoint):
    arguments = LOC, COVARIANCE, TWO, jnp.array(midpoint), jnp.array([0.7, 0.4])
    mine, slopes = jax.value_and_grad(log_prob, (0, 3, 4))(*arguments)
    quadrature = lambda *inputs: by_quadrature(*inputs, num=801)
    truth, true_slopes = jax.jit(jax.value_and_grad(quadrature, (0, 3, 4)))(*arguments)
    np.testing.assert_allclose(mine, truth, rtol=1e-10)
    for slope, true_slope in zip(slopes, true_slopes):
        np.testing.assert_allclose(slope, true_slope, rtol=1e-9, atol=1e-11)


@pytest.mark.full
def test_three_curves_by_points_and_draws_behind_one():
    weights = jnp.concatenate([TWO, 0.3 * TWO[:1]])
    region = tg.Selection.logistic(weights, jnp.zeros(3), 0.7)
    log_prob, stderr = tg.log_probability(LOC, COVARIANCE, region)
    assert 0 < stderr < 1e-3
    x = LOC + np.random.default_rng(0).normal(size=(100_000, 2)) @ np.linalg.cholesky(COVARIANCE).T
    kept = np.prod(1.0 / (1.0 + np.exp(-x @ weights.T / 0.7)), axis=1)
    assert abs(np.exp(log_prob) - kept.mean()) < 4 * kept.std() / len(x) ** 0.5
    one = tg.Selection.logistic(TWO[0], 1.0, 0.7)
    draws = tg.truncated_samples(jax.random.key(0), LOC, COVARIANCE, one, 10_000)
    moments = tg.truncated_moments(LOC, COVARIANCE, one)
    error = np.sqrt(np.diagonal(moments.covariance) / 10_000)
    assert np.all(np.abs(draws.mean(axis=0) - moments.mean) < 5 * error)


def test_refusals():
    with pytest.raises(ValueError, match="Selection.logistic: width must be positive"):
        tg.Selection.logistic(TWO[0], 0.0, -1.0)
    with pytest.raises(ValueError, match="Selection.logistic: weights need shape"):
        tg.Selection.logistic(1.0, 0.0, 1.0)
