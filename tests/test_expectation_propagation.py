"""Expectation propagation: known values within its known error, in any tail."""

import jax
import numpy as np
import pytest

import truncgauss as tg
from tests.problems import equal_correlations
from tests.referee.oracles import log_interval

INF = np.inf
PROPAGATION = tg.ExpectationPropagation()


def log_prob(loc, covariance, low, high):
    return tg.log_probability(loc, covariance, tg.Box(low, high), PROPAGATION).log_prob


# Two variables above (h, k): correlation, h, k, log P, and the error that propagation may have.
BIVARIATE = (
    (0.5, 1.0, 1.0, -2.7723632323099251038, 2e-3),
    (0.5, 3.0, 3.0, -9.4101378042279841366, 3e-4),
    (0.5, 10.0, 10.0, -72.197267171540266239, 1e-5),
    (-0.5, 10.0, 10.0, -207.69375345373190671, 1e-7),
    (0.9, 20.0, 15.0, -203.91715537109896588, 1e-9),
    (-0.9, 40.0, 40.0, -16012.990535941333091, 1e-8),
    (0.95, 30.0, 30.0, -467.72062165174529078, 1e-4),
    (-0.7, 8.0, -1.0, -59.14891747995447736, 1e-5),
    (0.999, 5.0, 5.0, -15.161893593883431461, 0.15),
)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_two_variables_in_any_tail(dtype):
    rho, h, k, truth, allowed = (np.array(column) for column in zip(*BIVARIATE))
    covariance = np.array([[[1.0, r], [r, 1.0]] for r in rho], dtype)
    box = tg.Box(np.stack([h, k], -1).astype(dtype), dtype(INF))
    got = tg.log_probability(np.zeros(2, dtype), covariance, box, PROPAGATION)
    assert got.log_prob.dtype == got.stderr.dtype == dtype and np.isnan(got.stderr).all()
    rounding = 1e-4 + 1e-6 * np.abs(truth) if dtype == np.float32 else 0.0
    assert np.all(np.abs(got.log_prob - truth) <= allowed + rounding)


@pytest.mark.full
def test_independent_coordinates_are_exact():
    low = np.array([-1.0, -INF, 4.0, -INF, 10.0])
    high = np.array([2.0, 0.5, INF, INF, 11.0])
    loc, scale = np.array([0.1, -0.3, 0.0, 1e5, 0.0]), np.array([1.0, 2.0, 1.0, 3.0, 1.0])
    truth = np.sum(log_interval((low - loc) / scale, (high - loc) / scale))
    np.testing.assert_allclose(log_prob(loc, np.diag(scale**2), low, high), truth, rtol=1e-13)


@pytest.mark.full
def test_gradients_survive_the_tail():
    """In a deep tail the gradient is the force at the corner, Sigma^-1 low, nearly."""
    covariance, low = equal_correlations(3, 0.5), np.full(3, 60.0)
    slopes = jax.jit(jax.value_and_grad(log_prob))
    value, gradient = slopes(np.zeros(3), covariance, low, low + INF)
    assert value < -2700
    np.testing.assert_allclose(gradient, np.linalg.solve(covariance, low), rtol=2e-3)


@pytest.mark.full
def test_hessians_in_a_loop_are_not_those_of_cavities_at_rest():
    """JAX 0.10 forgets the implicit derivative of the cavities where it differentiates a loop."""
    covariance, low = equal_correlations(3, 0.5), np.zeros(3)
    value = lambda loc, low: log_prob(loc, covariance, low, low + INF)
    in_loop = lambda loc: jax.lax.map(lambda low: value(loc, low), low[None]).sum()
    alone, found = jax.jit(jax.hessian(value))(np.ones(3), low), jax.jit(jax.hessian(in_loop))
    found = found(np.ones(3))
    assert np.all(np.isfinite(alone))
    assert np.all(np.isnan(found)) or np.allclose(found, alone, rtol=1e-9)


def test_rows_without_variance_and_singular_covariances():
    inside = jax.jit(lambda loc, matrix, high: log_prob(loc, matrix, np.array([0.0, -1.0]), high))
    covariance, high = equal_correlations(2, 0.5), np.array([1.0, 2.0])
    assert np.isfinite(inside(np.zeros(2), covariance, high))
    assert np.isnan(inside(np.zeros(2), equal_correlations(2, 1.5), high))  # indefinite
    # A row without variance is met or not.
    flat, half = np.diag([1.0, 0.0]), np.array([INF, 0.5])
    np.testing.assert_allclose(inside(np.zeros(2), flat, half), -np.log(2), rtol=1e-12)
    assert inside(np.array([0.0, 1.0]), flat, half) == -INF
    assert np.isfinite(inside(np.zeros(2), np.ones((2, 2)), high))
