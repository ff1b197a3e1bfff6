"""Large dense covariances by blocks: against the whole matrix, closed forms and differences."""

import ast
import pathlib
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from experiments.large_dense import dense_blocks
from experiments.large_dense.dense_blocks import DenseBlocks
from tests.exact_rows import log_prob_by
from tests.test_experiments import check_picture, completed
from truncgauss.gaussian.problem import as_problem
from truncgauss.probability import separation
from truncgauss.runs import config
from truncgauss.separation import kernel
from truncgauss.special import log_mean_exp

ROOT = pathlib.Path(__file__).parents[1]

D = 70  # three blocks of 32, the last one filled up


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 32 variables, and problems that count as large from 60 on."""
    monkeypatch.setattr(dense_blocks, "LARGEST_BLOCK", 32)
    monkeypatch.setattr(dense_blocks, "PANEL", 16)
    monkeypatch.setattr(separation, "LARGE_DIMENSION", 60)


def random_problem(seed=0):
    """A dense covariance, a mean, and limits of which some are infinite."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(D, 2 * D))
    covariance = factor @ factor.T / (2 * D) + 0.05
    low = np.where(rng.random(D) < 0.3, -np.inf, -1.0)
    high = np.where(rng.random(D) < 0.3, np.inf, 2.0)
    return 0.3 * rng.normal(size=D), covariance, low, high


def assert_close(found, expected, rtol):
    for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, 0.0, rtol * np.abs(other).max())


def test_products_with_vectors():
    covariance = random_problem()[1]
    factor = np.linalg.cholesky(covariance)
    x = np.random.default_rng(2).normal(size=D)

    @jax.jit
    def products(matrix, x):
        factor = dense_blocks.cholesky(dense_blocks.blocks_of(matrix, jnp.arange(D)))
        blocks = dense_blocks.in_blocks(x, 0.0)
        unit = dense_blocks.UnitTriangle(factor, jnp.ones_like(blocks))
        return unit.times(blocks), unit.transposed_times(blocks)

    forwards, transposed = (y[:D] for y in products(covariance, x))
    np.testing.assert_allclose(forwards, factor @ x, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(transposed, factor.T @ x, rtol=1e-12, atol=1e-13)


@pytest.mark.full
def test_an_equicorrelated_orthant():
    """P(all positive) = 1 / (d + 1) at correlation 1/2; its derivative in it by one factor."""
    region, method = tg.Box(jnp.zeros(D), jnp.inf), DenseBlocks(256)

    def dense(rho):
        covariance = (1.0 - rho) * jnp.eye(D) + rho
        return tg.log_probability(jnp.zeros(D), covariance, region, method)

    def exact(rho):
        factor = tg.LowRank(jnp.sqrt(rho) * jnp.ones((D, 1)), (1.0 - rho) * jnp.ones(D))
        return tg.log_probability(jnp.zeros(D), factor, region).log_prob

    (found, stderr), slope = jax.value_and_grad(lambda rho: tuple(dense(rho)), has_aux=True)(0.5)
    assert 0 < stderr < 0.05 and abs(found + np.log(D + 1)) < 4.0 * stderr
    np.testing.assert_allclose(slope, jax.grad(exact)(0.5), rtol=0.1)


def held_problem(monkeypatch):
    """A method with its tilt, whose four replicates need two passes; and its arguments."""
    monkeypatch.setattr(dense_blocks, "PASS_SIZE", 2 * 16 * D)
    loc, covariance, low, high = random_problem()
    held = DenseBlocks(16, 4).hold(loc, covariance, tg.Box(low, high))
    return held, tuple(map(jnp.asarray, (loc, covariance, low, high)))


@pytest.mark.full
def test_value_and_gradient_are_those_of_the_whole_matrix(monkeypatch):
    """The same points, through one factor and one path of all variables."""
    held, inputs = held_problem(monkeypatch)
    order, tilt = held.plan.order, held.plan.tilt
    keys = jax.random.split(jax.random.key(0), 4)
    uniforms = held.uniforms(held.prepared(*as_problem(*inputs[:2], tg.Box(*inputs[2:]))), keys)
    uniforms = jnp.concatenate([uniforms(k) for k in range(3)])[: D - 1]

    def log_prob(loc, covariance, low, high):
        factor = jnp.linalg.cholesky(covariance[order][:, order])
        constraints = kernel.Constraints(low[order], high[order], loc[order], factor)
        path = kernel.paths(constraints, tilt, uniforms)
        change = tilt[:-1, None] * (path.draws - 0.5 * tilt[:-1, None])
        return log_mean_exp(jnp.sum(path.log_mass, axis=0) - jnp.sum(change, axis=0))

    found, expected = (
        jax.jit(jax.value_and_grad(function, (0, 1, 2, 3)))(*inputs)
        for function in (log_prob_by(held), log_prob)
    )
    assert abs(float(tilt[-1])) < 1e-12 < float(jnp.max(jnp.abs(tilt)))  # the last is not drawn
    assert_close(found, expected, 1e-10)
    _, (_, matrix, low, high) = found
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-13)
    assert np.all(low[np.isinf(inputs[2])] == 0) and np.all(high[np.isinf(inputs[3])] == 0)


@pytest.mark.full
def test_a_second_derivative_is_the_difference_of_gradients(monkeypatch):
    """With the lanes in two batches, as on a CPU those of large blocks are."""
    monkeypatch.setattr(kernel, "BATCH_SIZE", 32 * 16)
    held, inputs = held_problem(monkeypatch)
    rng = np.random.default_rng(3)
    change = rng.normal(size=D), rng.normal(size=(D, D))
    change = change[0], change[1] + change[1].T
    gradient = jax.jit(jax.grad(lambda *x: log_prob_by(held)(*x, *inputs[2:]), (0, 1)))
    found = jax.jit(lambda *x: jax.jvp(gradient, x, change)[1])(*inputs[:2])
    sides = [gradient(*(x + h * c for x, c in zip(inputs, change))) for h in (1e-6, -1e-6)]
    assert_close(found, [(np.asarray(x) - y) / 2e-6 for x, y in zip(*sides)], 1e-5)


@pytest.mark.filterwarnings("ignore:a covariance matrix of 3,000")
@pytest.mark.full
def test_explanations_of_large_problems_name_the_method():
    loc, covariance, low, high = random_problem()
    text = tg.explain(loc, covariance, tg.Box(low, high), DenseBlocks(16, 4))
    assert "3 blocks of 32 variables" in text and "tilt     converged" in text
    text = tg.explain(loc, covariance, tg.Box(low, high), tg.Separation(16, 4))
    assert "large    a covariance matrix" in text and "experiments.large_dense" in text


def test_separation_warns_of_large_problems():
    """And CONTRIBUTING names every part of the package that the method is built from."""
    loc, covariance, low, high = random_problem()
    problem = as_problem(loc, covariance, tg.Box(low, high))
    with pytest.warns(UserWarning, match=r"or more dimensions: .* the method DenseBlocks"):
        assert isinstance(tg.Automatic().choice(problem), tg.Separation)
    assert tg.SequentialMonteCarlo.candidate(problem, 64) is None
    text = pathlib.Path(dense_blocks.__file__).read_text()
    assert "truncgauss.experiments.large_dense.dense_blocks" in text
    listed = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    parts = [x for node in imports if node.module.startswith("truncgauss") for x in node.names]
    assert parts and not [part.name for part in parts if f"`{part.name}" not in listed]


@pytest.mark.full
def test_what_is_not_definite_is_nan_and_what_is_not_symmetric_refused(monkeypatch):
    monkeypatch.setattr("truncgauss.gaussian.covariances.LARGE", 60)
    loc, covariance, low, high = random_problem()
    region = tg.Box(low, high)
    negative = covariance - 0.9 * np.eye(D)
    assert np.isnan(tg.log_probability(loc, negative, region, DenseBlocks(64)).log_prob)
    skew = covariance + np.triu(np.full((D, D), 0.1), 1)
    with pytest.raises(ValueError, match="must be symmetric"):
        tg.log_probability(loc, skew, region, DenseBlocks(64))
    with pytest.raises(ValueError, match=r"Use tg\.Separation"):
        tg.log_probability(loc, covariance, tg.Ball(loc, 1.0), DenseBlocks())


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
            covariance = tg.gaussian.covariances.CovarianceMatrix(dense(rho))
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


@pytest.mark.full
def test_value_and_gradient_on_four_devices_are_those_of_one():
    loc, covariance, low, high = random_problem()
    of = jax.value_and_grad(log_prob_by(DenseBlocks(16, 4)), (0, 1))
    alone = of(loc, jnp.asarray(covariance), low, high)
    with tg.parallel.replicates(tg.parallel.device_mesh(4)):
        shared = of(loc, jnp.asarray(covariance), low, high)
    assert_close(shared, alone, 1e-12)


@pytest.mark.slow
def test_devices_share_one_factorisation():
    """Four devices have less than a third of the operations each, and of what they hold too.

    The matrix, its gradient and the factor are divided: no device has a whole one.
    """
    size = 5 * 32
    region, method = tg.Box(jnp.full(size, -1.0), jnp.inf), DenseBlocks(64, 4, tilted=False)

    def value(matrix):
        return tg.log_probability(jnp.zeros(size), matrix, region, method).log_prob

    def program(num_devices):
        mesh = tg.parallel.device_mesh(num_devices)
        rows = jax.NamedSharding(mesh, jax.P(tg.parallel.AXIS, None))
        matrix = jax.ShapeDtypeStruct((size, size), jnp.float64, sharding=rows)
        with tg.parallel.replicates(mesh):
            return jax.jit(jax.value_and_grad(value)).lower(matrix).compile()

    alone, shared = program(1), program(4)
    assert shared.cost_analysis()["flops"] < alone.cost_analysis()["flops"] / 3.0
    held = [x.memory_analysis() for x in (alone, shared)]
    assert held[1].temp_size_in_bytes < held[0].temp_size_in_bytes / 3.0
    assert held[1].output_size_in_bytes < held[0].output_size_in_bytes / 3.0
    assert f"f64[{size},{size}]" in alone.as_text()
    assert f"f64[{size},{size}]" not in shared.as_text()


@pytest.mark.slow
def test_the_experiment_has_values_and_slopes_of_the_closed_form(monkeypatch):
    config.function("large_dense", "run")
    module = sys.modules["truncgauss.experiments.large_dense.dense_blocks"]
    monkeypatch.setattr(module, "LARGEST_BLOCK", 32)
    results, picture = completed(
        "large_dense", dimensions=(40, 70), largest_gradient=70, least_of_exponent=40, num_points=64
    )
    check_picture(picture)
    assert not results["failed"]
    assert np.all(np.abs(results["gradient"]["slope_error"]) < 0.1)
    assert np.all(results["gradient"]["memory"] > results["value"]["memory"])
    assert any("GB" in line for line in results["summary"])
