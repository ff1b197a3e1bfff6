"""Sums and logistic functions in logs, three derivatives, and standard errors of few numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from truncgauss import special
from truncgauss.special.logspace import standard_error

INF = math.inf


def test_log_sums_keep_their_gradient_where_all_terms_vanish():
    for function in (special.log_sum_exp, special.log_mean_exp):
        gradient = jax.jit(jax.value_and_grad(function))
        assert not np.any(gradient(np.full(3, -INF))[1])
        np.testing.assert_allclose(gradient(np.array([800.0, -INF, 800.0]))[1], [0.5, 0, 0.5])
        assert gradient(np.array([1.0, INF, 2.0]))[1].tolist() == [0.0, 1.0, 0.0]
        assert np.isnan(gradient(np.array([1.0, math.nan, 0.0]))[0])
    x, axes = np.arange(12.0).reshape(2, 3, 2), (None, 1, -1, (0, 2))
    sums = jax.jit(lambda x: [special.log_sum_exp(x, axis) for axis in axes])(x)
    for axis, found in zip(axes, sums):
        np.testing.assert_allclose(found, np.log(np.exp(x).sum(axis)), rtol=1e-15)
    hessian = jax.jit(jax.hessian(special.log_sum_exp))(np.array([-INF, -2.0, 3.0]))
    assert np.isfinite(hessian).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_logistic_kin_right_in_three_derivatives(dtype):
    x = np.array([-700.0, -80.0, -30.0, -1.0, 0.0, 1e-3, 2.0, 30.0, 80.0, 700.0], dtype)
    e = np.exp(-np.abs(x.astype(float)))
    large, small = 1 / (1 + e), e / (1 + e)
    s, t = np.where(x >= 0, large, small), np.where(x >= 0, small, large)  # s(x), s(-x)
    exact = {
        special.sigmoid: (s * t, s * t * (t - s), s * t * (1 - 6 * s * t)),
        special.log1pexp: (s, s * t, s * t * (t - s)),
        special.log_sigmoid: (t, -s * t, -s * t * (t - s)),
    }

    def derivatives(function, x):
        first = jax.grad(function)
        second = jax.grad(first)
        return first(x), second(x), jax.grad(second)(x)

    found = jax.jit(jax.vmap(lambda x: [derivatives(function, x) for function in exact]))(x)
    rtol = 4 * np.finfo(dtype).eps
    for function, ours, true in zip(exact, found, exact.values()):
        for order in range(3):
            # Where s(x) - s(-x) cancels, an absolute error; what float32 cannot represent is 0.
            atol = (np.finfo(dtype).tiny, rtol, rtol)[order]
            np.testing.assert_allclose(ours[order], true[order], rtol, atol, err_msg=function)
    positive = np.array([1e-10, 0.1, 0.6931, 0.6932, 3.0, 80.0], dtype)
    y = np.float64(positive)
    exact = np.where(y < 0.5, np.log(-np.expm1(-y)), np.log1p(-np.exp(-y)))
    found, by_x = jax.jit(jax.vmap(jax.value_and_grad(special.log1mexp)))(positive)
    np.testing.assert_allclose(found, exact, rtol)
    np.testing.assert_allclose(by_x, 1 / np.expm1(y), rtol)


def test_standard_error_of_skewed_numbers_holds_the_mean():
    """Sixteen exponential numbers: the plain interval holds the mean in 91 % of samples.

    The share of 20,000 samples has a standard deviation of 0.0018.
    """
    random, t = np.random.default_rng(0), stats.t.ppf(0.975, 15)
    for x, mean, least, most in (
        (random.exponential(size=(16, 20_000)), 1.0, 0.94, 0.955),
        (random.normal(size=(16, 20_000)), 0.0, 0.952, 0.966),
    ):
        off, stderr = np.abs(x.mean(0) - mean), jax.jit(standard_error)(x - x.mean(0))
        assert np.all(stderr >= (1 - 1e-12) * x.std(0, ddof=1) / 4)
        assert least < np.mean(off <= t * stderr) < most


@pytest.mark.full
def test_standard_error_of_few_or_equal_numbers():
    np.testing.assert_allclose(standard_error(np.array([-1.0, 1.0])), 1.0)
    assert standard_error(np.zeros((5, 2))).tolist() == [0.0, 0.0]
    for numbers in ([0.0], [0.0, math.nan]):
        assert np.isnan(standard_error(np.array(numbers)))
    tiny = standard_error(jnp.array([1.0, -2.0, 1.0], jnp.float32) * 1e-30)
    np.testing.assert_allclose(tiny, 1e-30 * (1 + 6.0 * 0.5), rtol=1e-5)
