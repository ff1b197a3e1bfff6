"""Expectation propagation: known values within its known error, derivatives of its own value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr

import truncgauss as tg
from tests.problems import equal_correlations

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
@pytest.mark.parametrize("dtype", [jnp.float64, pytest.param(jnp.float32, marks=pytest.mark.full)])
def test_two_variables_in_any_tail(dtype):
    rho, h, k, truth, allowed = (np.array(column) for column in zip(*BIVARIATE))
    covariance = np.array([[[1.0, r], [r, 1.0]] for r in rho])
    low = np.stack([h, k], -1)
    got = tg.log_probability(
        jnp.zeros(2, dtype),
        jnp.asarray(covariance, dtype),
        tg.Box(jnp.asarray(low, dtype), jnp.asarray(INF, dtype)),
        PROPAGATION,
    )
    assert got.log_prob.dtype == got.stderr.dtype == dtype
    assert jnp.isnan(got.stderr).all()
    rounding = 1e-4 + 1e-6 * np.abs(truth) if dtype == jnp.float32 else 0.0
    assert np.all(np.abs(got.log_prob - truth) <= allowed + rounding)


@pytest.mark.full
def test_independent_coordinates_are_exact():
    low = jnp.array([-1.0, -INF, 4.0, -INF, 10.0])
    high = jnp.array([2.0, 0.5, INF, INF, 11.0])
    loc, scale = jnp.array([0.1, -0.3, 0.0, 1e5, 0.0]), jnp.array([1.0, 2.0, 1.0, 3.0, 1.0])
    a, b = (np.asarray((x - loc) / scale) for x in (low, high))
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    truth = np.sum(log_ndtr(b) + np.log1p(-np.exp(log_ndtr(a) - log_ndtr(b))))
    np.testing.assert_allclose(log_prob(loc, jnp.diag(scale**2), low, high), truth, rtol=1e-13)


CASE = dict(
    loc=np.array([0.2, -0.1, 0.3, 0.0]),
    covariance=np.array(
        [[1.5, 0.6, -0.2, 0.3], [0.6, 1.0, 0.4, 0.1], [-0.2, 0.4, 0.8, 0.2], [0.3, 0.1, 0.2, 1.0]]
    ),
    low=np.array([-1.0, -INF, 0.5, -INF]),
    high=np.array([2.0, 0.7, INF, INF]),
)


def of_leaves(leaves):
    symmetric = 0.5 * (leaves["covariance"] + leaves["covariance"].T)
    return log_prob(leaves["loc"], symmetric, leaves["low"], leaves["high"])


@pytest.mark.full
def test_gradient_and_hessian_are_those_of_the_value():
    """Against central differences along a random direction; infinite limits do not move."""
    rng = np.random.default_rng(0)
    finite = lambda x: jnp.where(jnp.isfinite(x), rng.normal(size=x.shape), 0.0)
    direction = jax.tree.map(finite, CASE)
    moved = lambda t: jax.tree.map(lambda x, dx: x + t * dx, CASE, direction)
    inner = lambda tree: sum(
        jnp.sum(a * b) for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(direction))
    )
    step = 1e-5
    value_and_gradient = jax.jit(jax.value_and_grad(of_leaves))
    value, gradient = value_and_gradient(CASE)
    (up, gradient_up), (down, gradient_down) = (value_and_gradient(moved(s)) for s in (step, -step))
    np.testing.assert_allclose(inner(gradient), (up - down) / (2 * step), rtol=1e-8)
    assert jnp.all(jnp.where(jnp.isinf(CASE["low"]), gradient["low"], 0.0) == 0)
    assert jnp.all(jnp.where(jnp.isinf(CASE["high"]), gradient["high"], 0.0) == 0)
    assert gradient["loc"][3] == 0 and jnp.all(gradient["covariance"][3] == 0)
    along = jax.jit(lambda d: jax.jvp(jax.grad(of_leaves), (CASE,), (d,))[1])(direction)
    for name, change in along.items():
        expected = (gradient_up[name] - gradient_down[name]) / (2 * step)
        np.testing.assert_allclose(change, expected, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.full
def test_gradients_survive_the_tail():
    """In a deep tail the gradient is the force at the corner, Sigma^-1 low, nearly."""
    covariance, low = equal_correlations(3, 0.5), jnp.full(3, 60.0)
    value, gradient = jax.jit(jax.value_and_grad(log_prob))(
        jnp.zeros(3), covariance, low, low + INF
    )
    assert value < -2700
    np.testing.assert_allclose(gradient, jnp.linalg.solve(covariance, low), rtol=2e-3)


@pytest.mark.full
def test_polyhedron_equals_the_box_it_is():
    """y = A x has a box of its own; more rows than dimensions make its covariance singular."""
    matrix = jnp.array([[1.0, 2.0], [0.5, -1.0], [1.0, 1.0]])
    low, high = jnp.array([-1.0, 0.0, -INF]), jnp.array([2.0, INF, 1.0])
    loc, covariance = jnp.array([0.3, -0.2]), jnp.array([[1.0, 0.4], [0.4, 2.0]])
    rows = tg.Polyhedron(matrix, low, high)
    got = tg.log_probability(loc, covariance, rows, PROPAGATION).log_prob
    image = matrix @ covariance @ matrix.T
    box = log_prob(matrix @ loc, image, low, high)
    np.testing.assert_allclose(got, box, rtol=1e-10)
    x = np.random.default_rng(1).multivariate_normal(loc, covariance, 200_000)
    counted = np.log(np.mean(rows.contains(jnp.asarray(x))))
    assert abs(got - counted) < 0.1


def test_rows_without_variance_and_singular_covariances():
    inside = jax.jit(lambda loc, matrix, high: log_prob(loc, matrix, np.array([0.0, -1.0]), high))
    covariance, high = equal_correlations(2, 0.5), np.array([1.0, 2.0])
    assert np.isfinite(inside(np.zeros(2), covariance, high))
    assert np.isnan(inside(np.zeros(2), equal_correlations(2, 1.5), high))  # indefinite
    # A row without variance is met or not; a singular covariance is one.
    flat = np.diag([1.0, 0.0])
    half = np.array([INF, 0.5])
    np.testing.assert_allclose(inside(np.zeros(2), flat, half), -np.log(2), rtol=1e-12)
    assert inside(np.array([0.0, 1.0]), flat, half) == -INF
    assert np.isfinite(inside(np.zeros(2), np.ones((2, 2)), high))
