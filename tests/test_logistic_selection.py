"""Selections by logistic curves: values and derivatives beside quadrature, in any tail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.random_selections import of_scores
from truncgauss.probability.logistic_scores import SCALES, SHARES

LOC, COVARIANCE = jnp.array([0.2, -0.3]), jnp.array([[1.0, 0.3], [0.3, 0.8]])
TWO = jnp.array([[1.0, 0.5], [-0.3, 1.0]])


def log_prob(loc, covariance, weights, midpoint, width):
    region = tg.Selection.logistic(weights, midpoint, width)
    return tg.log_probability(loc, covariance, region).log_prob


def by_quadrature(loc, covariance, weights, midpoint, width):
    numbers = {"weights": weights, "midpoint": midpoint, "width": width}
    curve = {name: jnp.asarray(x)[None] for name, x in numbers.items()}
    return of_scores("logistic", loc, covariance, curve)


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
def test_draws_behind_a_curve_have_its_moments():
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
