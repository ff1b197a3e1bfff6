"""Large dense covariances by blocks, against the whole matrix, closed forms and differences."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.probability import dense_blocks
from truncgauss.probability.dense_blocks import DenseBlocks
from truncgauss.separation import block_factor
from truncgauss.special import log_mean_exp

D = 70  # three blocks of 32, the last one filled up


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 32 variables, and problems that count as large from 60 on."""
    monkeypatch.setattr(block_factor, "GRAIN", 32)
    monkeypatch.setattr(dense_blocks, "LEAST_DIMENSION", 60)


def random_problem(seed=0):
    """A dense covariance, a mean, and limits of which some are infinite."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(D, 2 * D))
    covariance = factor @ factor.T / (2 * D) + 0.05
    low = np.where(rng.random(D) < 0.3, -np.inf, -1.0)
    high = np.where(rng.random(D) < 0.3, np.inf, 2.0)
    return 0.3 * rng.normal(size=D), covariance, low, high


def whole(columns, num_variables):
    """The lower-triangular matrix of its block columns."""
    size, block = len(columns) * columns[0].shape[-1], columns[0].shape[-1]
    matrix = jnp.zeros((size, size))
    for k, column in enumerate(columns):
        start = k * block
        matrix = matrix.at[start:, start : start + block].set(column.reshape(-1, block))
    return matrix[:num_variables, :num_variables]


def factors_in_an_order(num_variables):
    """Two functions for the factor of a matrix in a random order: by blocks, and at once."""
    order = jnp.asarray(np.random.default_rng(1).permutation(num_variables))
    layout = block_factor.layout_of(num_variables)

    def by_blocks(matrix):
        columns = block_factor.cholesky(block_factor.columns_of(matrix, order, layout))
        return whole(columns, num_variables)

    return by_blocks, lambda matrix: jnp.linalg.cholesky(matrix[order][:, order])


def assert_close(found, expected, rtol):
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, 0.0, rtol * np.abs(other).max())


def test_the_factor_and_its_derivatives_are_those_of_the_whole_matrix():
    covariance = random_problem()[1]
    weights = np.random.default_rng(2).normal(size=(D, D))

    def results(function):
        gradient = jax.grad(lambda m: jnp.sum(jnp.tril(weights) * function(m)))
        change = weights + weights.T
        of = lambda m: (*jax.jvp(function, (m,), (change,)), gradient(m))
        return jax.jit(of)(covariance)

    assert_close(*map(results, factors_in_an_order(D)), 1e-11)


@pytest.mark.slow
def test_a_second_derivative_of_the_factor():
    size = 40
    covariance = random_problem()[1][:size, :size]
    weights = np.random.default_rng(2).normal(size=(size, size))

    def results(function):
        gradient = jax.grad(lambda m: jnp.sum(jnp.tril(weights) * jnp.sin(function(m))))
        return jax.jit(lambda m: jax.jvp(gradient, (m,), (weights + weights.T,)))(covariance)

    assert_close(*map(results, factors_in_an_order(size)), 1e-9)


def test_products_with_vectors():
    covariance = random_problem()[1]
    layout, factor = block_factor.layout_of(D), np.linalg.cholesky(covariance)
    x = np.random.default_rng(2).normal(size=D)

    @jax.jit
    def products(matrix, x):
        columns = block_factor.cholesky(block_factor.columns_of(matrix, jnp.arange(D), layout))
        blocks = layout.padded(x, 0.0)
        return block_factor.times(columns, blocks), block_factor.transposed_times(columns, blocks)

    forwards, transposed = (y.ravel()[:D] for y in products(covariance, x))
    np.testing.assert_allclose(forwards, factor @ x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(transposed, factor.T @ x, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_the_value_is_that_of_separation(monkeypatch):
    loc, covariance, low, high = random_problem(1)
    region = tg.Box(low, high)
    own = tg.log_probability(loc, covariance, region, DenseBlocks(64, 64))
    monkeypatch.setattr(dense_blocks, "LEAST_DIMENSION", D + 1)
    other = tg.log_probability(loc, covariance, region, tg.Separation(512, 64, twisted=False))
    assert 0 < own.stderr < 0.01
    assert abs(own.log_prob - other.log_prob) < 4.0 * np.hypot(own.stderr, other.stderr)


def test_an_equicorrelated_orthant():
    """P(all positive) = 1 / (d + 1) at correlation 1/2; its derivative in it by one factor."""
    region, method = tg.Box(jnp.zeros(D), jnp.inf), tg.Separation(256)

    def dense(rho):
        covariance = (1.0 - rho) * jnp.eye(D) + rho
        return tg.log_probability(jnp.zeros(D), covariance, region, method)

    def exact(rho):
        factor = tg.LowRank(jnp.sqrt(rho) * jnp.ones((D, 1)), (1.0 - rho) * jnp.ones(D))
        return tg.log_probability(jnp.zeros(D), factor, region).log_prob

    (found, stderr), slope = jax.value_and_grad(lambda rho: tuple(dense(rho)), has_aux=True)(0.5)
    assert 0 < stderr < 0.05 and abs(found + np.log(D + 1)) < 4.0 * stderr
    np.testing.assert_allclose(slope, jax.grad(exact)(0.5), rtol=0.1)


def test_the_gradient_at_a_fixed_plan_is_that_of_the_value():
    loc, covariance, low, high = random_problem()
    held = DenseBlocks(16, 4).hold(loc, covariance, tg.Box(low, high))

    def log_prob(loc, covariance, low, high):
        return tg.log_probability(loc, covariance, tg.Box(low, high), held).log_prob

    inputs = tuple(map(jnp.asarray, (loc, covariance, low, high)))
    both = jax.jit(jax.value_and_grad(log_prob, (0, 1, 2, 3)))
    _, gradient = both(*inputs)
    np.testing.assert_array_equal(gradient[1], gradient[1].T)
    assert np.all(gradient[2][np.isinf(low)] == 0) and np.all(gradient[3][np.isinf(high)] == 0)
    rng = np.random.default_rng(3)
    raw = [rng.normal(size=x.shape) for x in inputs]
    change = [raw[0], raw[1] + raw[1].T, *raw[2:]]
    slope = sum(
        float(jnp.sum(jnp.where(jnp.isinf(x), 0.0, g * c)))
        for g, c, x in zip(gradient, change, inputs, strict=True)
    )
    at = lambda step: both(*(x + step * c for x, c in zip(inputs, change, strict=True)))[0]
    np.testing.assert_allclose(slope, (at(1e-6) - at(-1e-6)) / 2e-6, rtol=1e-4)


def test_the_default_call_comes_here_and_says_so():
    loc, covariance, low, high = random_problem()
    region = tg.Box(low, high)
    assert isinstance(tg.Separation(64).hold(loc, covariance, region), DenseBlocks)
    text = str(tg.explain(loc, covariance, region))
    assert "by blocks" in text and "2 blocks of 32 variables" in text


def test_what_is_not_definite_is_nan_and_what_is_not_symmetric_refused(monkeypatch):
    monkeypatch.setattr("truncgauss.covariances.LARGE", 60)
    loc, covariance, low, high = random_problem()
    region = tg.Box(low, high)
    negative = covariance - 0.9 * np.eye(D)
    assert np.isnan(tg.log_probability(loc, negative, region, tg.Separation(64)).log_prob)
    skew = covariance + np.triu(np.full((D, D), 0.1), 1)
    with pytest.raises(ValueError, match="must be symmetric"):
        tg.log_probability(loc, skew, region)


def test_other_regions_are_refused():
    with pytest.raises(ValueError, match=r"Use tg\.Separation"):
        tg.log_probability(np.zeros(D), np.eye(D), tg.Ball(np.zeros(D), 1.0), DenseBlocks())


@pytest.mark.slow
@pytest.mark.parametrize("low", [0.0, -2.0])
def test_errors_of_values_and_slopes_are_as_large_as_stated(low):
    """60 estimates of 16 x 64 points at d = 300, all correlations 1/2, against one factor.

    Of Student's law with 15 degrees of freedom the root mean square is 1.07, of which 60 give
    1.07 +- 0.11, and a share of 0.05 lies beyond 2.13. Estimates from 16 x 16 points have fewer
    than 10 effective ones each: a stderr for some of them only would choose the higher ones.
    """
    d, num_groups, ones = 300, 60, jnp.ones(300)
    region = tg.Box(jnp.full(d, low), jnp.inf)

    def exact(rho):
        factor = tg.LowRank(jnp.sqrt(rho) * ones[:, None], (1.0 - rho) * ones)
        return tg.log_probability(0.0 * ones, factor, region).log_prob

    def dense(rho):
        return (1.0 - rho) * jnp.eye(d) + rho

    held = DenseBlocks(64, 16).hold(0.0 * ones, dense(0.5), region)

    @jax.jit
    def found(keys, method):
        def of(rho, keys):
            covariance = tg.covariances.CovarianceMatrix(dense(rho))
            return method.replicates(0.0 * ones, covariance, region, keys)

        slopes = lambda keys: jax.jvp(lambda rho: of(rho, keys), (0.5,), (1.0,))
        (log_probs, alone), (slope, _) = jax.lax.map(slopes, keys)
        return log_probs, jax.vmap(method.combined_stderr)(log_probs, alone), slope

    keys = jax.random.split(jax.random.key(7), (num_groups, 16))
    log_probs, stderr, slopes = found(keys, held)
    truth, slope = jax.value_and_grad(exact)(0.5)
    z = (log_mean_exp(log_probs, axis=1) - truth) / stderr
    shares = jnp.exp(log_probs - jax.nn.logsumexp(log_probs, axis=1, keepdims=True))
    mean = jnp.sum(shares * slopes, axis=1)
    spread = jnp.sqrt(16 / 15 * jnp.sum(shares**2 * (slopes - mean[:, None]) ** 2, axis=1))
    for each in (z, (mean - slope) / spread):
        assert 0.75 < jnp.sqrt(jnp.mean(each**2)) < 1.4
        assert jnp.mean(jnp.abs(each) > 2.13) < 0.15 and abs(jnp.mean(each)) < 0.5
    few = found(keys, replace(held, num_points=16))[1]
    assert np.all(np.isinf(few) == (low == 0.0))


@pytest.mark.slow
def test_devices_share_one_factorisation():
    """Four devices have less than a third of the operations each, and of what they hold half."""
    size = 5 * 32
    region, method = tg.Box(jnp.full(size, -1.0), jnp.inf), DenseBlocks(64, 4, tilted=False)

    def value(matrix):
        return tg.log_probability(jnp.zeros(size), matrix, region, method).log_prob

    def program(num_devices):
        mesh = tg.parallel.device_mesh(num_devices)
        rows = jax.NamedSharding(mesh, jax.P(tg.parallel.AXIS, None))
        matrix = jax.ShapeDtypeStruct((size, size), jnp.float64, sharding=rows)
        with tg.parallel.replicates(mesh):
            return jax.jit(value).lower(matrix).compile()

    alone, shared = program(1), program(4)
    assert shared.cost_analysis()["flops"] < alone.cost_analysis()["flops"] / 3.0
    held = [x.memory_analysis().temp_size_in_bytes for x in (alone, shared)]
    assert held[1] < held[0]
