"""The order of integration against a plain elimination, and the rank."""

import jax.numpy as jnp
import numpy as np
import pytest
from problems import autoregression, equal_correlations
from scipy import stats

from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import numerical_rank
from truncgauss.separation.ordering import smallest_mass_first


def plain_order(covariance, low, high):
    """Gibson, Glasbey and Elston's order by elimination, one variable at a time."""
    d = len(low)
    remainder, mean = covariance.copy(), np.zeros(d)
    order, point = [], []
    for _ in range(d):
        left = [i for i in range(d) if i not in order]
        scale = np.sqrt(np.diag(remainder)[left])
        below, above = (low[left] - mean[left]) / scale, (high[left] - mean[left]) / scale
        mass = stats.norm.cdf(above) - stats.norm.cdf(below)
        best = int(np.argmin(mass))
        chosen = left[best]
        draw = (stats.norm.pdf(below[best]) - stats.norm.pdf(above[best])) / mass[best]
        column = remainder[:, chosen] / scale[best]
        mean = mean + column * draw
        remainder = remainder - np.outer(column, column)
        order.append(chosen)
        point.append(draw)
    return np.array(order), np.array(point)


def limits(covariance, low, high):
    low, high, covariance = map(jnp.asarray, (low, high, covariance))
    return GaussianLimits(low, high, jnp.zeros_like(low), covariance, None)


@pytest.mark.parametrize("d", [7, 70])
def test_order_is_that_of_plain_elimination(d):
    """70 variables are eliminated in blocks."""
    rng = np.random.default_rng(d)
    scales = rng.uniform(0.5, 2.0, d)
    covariance = autoregression(d, 0.6) * np.outer(scales, scales)
    low, high = rng.normal(-1.5, 1.0, d), rng.normal(2.5, 1.0, d)
    low, high = np.minimum(low, high - 0.5), np.where(rng.uniform(size=d) < 0.3, np.inf, high)
    order, point = smallest_mass_first(limits(covariance, low, high))
    expected, conditional_means = plain_order(covariance, low, high)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_allclose(point, conditional_means, atol=1e-8)


def test_free_and_determined_variables_come_last():
    covariance = np.zeros((4, 4))
    covariance[:2, :2] = 1.0
    covariance[2:, 2:] = np.eye(2)
    low, high = jnp.array([-1.0, -1.0, -jnp.inf, 0.0]), jnp.full(4, jnp.inf)
    order, point = smallest_mass_first(limits(covariance, low, high))
    assert order.tolist() == [3, 0, 2, 1]
    assert abs(point[3]) < 1e-14  # a determined variable has the rounding of its scale


def test_rank():
    thin = np.random.default_rng(0).normal(size=(6, 3))
    assert numerical_rank(thin @ thin.T) == 3
    assert numerical_rank(equal_correlations(6, 1 - 1e-9)) == 6
    assert numerical_rank(np.diag([1e-30, 1.0, 0.0])) == 2
    assert numerical_rank(np.full((2, 2), np.nan)) == 2
    assert numerical_rank(np.stack([np.eye(2), np.ones((2, 2))])) == 2
