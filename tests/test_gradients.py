"""Gradients of log P, alone and with their errors: against quadrature, other routes, the scatter of
keys, and Exact.

The slope in the covariance is the symmetric one: each of the two entries of a pair has half.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import problem

import truncgauss as tg
from tests.exact_rows import log_prob_by

INF = np.inf
ORDERING = 2 * np.eye(4) - np.eye(4, k=1) - np.eye(4, k=-1)
ORTHANT = tg.Box(np.zeros(4), INF)


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_an_exact_method_has_an_exact_gradient():
    """P(X > 1) by hand; and the law that a common shift of mean and limit changes nothing."""
    one = tg.log_probability_and_gradient([0.0], [[1.0]], tg.Box([1.0], [INF]))
    assert one.estimate.stderr == 0 and all(np.all(leaf == 0) for leaf in leaves(one.stderr))
    hazard = 1.5251352761609807
    np.testing.assert_allclose(one.gradient.loc, hazard, rtol=1e-14)
    np.testing.assert_allclose(one.gradient.covariance, [[0.5 * hazard]], rtol=1e-14)
    np.testing.assert_allclose(one.gradient.region.low, -hazard, rtol=1e-14)
    assert one.gradient.region.high == 0


def test_what_is_unknown_stays_unknown_and_what_is_baseless_baseless():
    ask = lambda box, method: tg.log_probability_and_gradient([0.0], [[1.0]], box, method)
    near, far = tg.Box([0.0], [INF]), tg.Box([9.0], [INF])
    one = ask(near, tg.SoftMonteCarlo(64))
    assert one.estimate.stderr > 0 and all(np.all(np.isnan(leaf)) for leaf in leaves(one.stderr))
    few = ask(far, tg.SoftMonteCarlo(16, 4, edge=tg.Tanh(1.0)))
    assert few.estimate.stderr == INF
    assert all(np.all(leaf == INF) for leaf in leaves(few.stderr))


@pytest.mark.full
def test_soft_samples_err_as_their_keys_scatter():
    """Two hundred keys; t intervals of 7 degrees of freedom hold the truth as often as they say."""
    box, soft = tg.Box([0.5, -1.0], [INF, 1.0]), tg.SoftMonteCarlo(256, 8, edge=tg.Probit(0.3))
    covariance = jnp.array([[1.0, 0.4], [0.4, 0.7]])
    many = tg.SoftMonteCarlo(2**15, 16, edge=tg.Probit(0.3), points="lattice")
    loc = jnp.array([0.1, 0.2])
    truth = tg.log_probability_and_gradient(loc, covariance, box, many)
    ask = lambda key: tg.log_probability_and_gradient(loc, covariance, box, soft, key)
    got = jax.jit(jax.vmap(ask))(jax.random.split(jax.random.key(5), 200))
    for value, stderr, known in zip(*map(leaves, (got.gradient, got.stderr, truth.gradient))):
        moving = known != 0
        value, stderr, known = value[:, moving], stderr[:, moving], known[moving]
        scatter = value.std(0, ddof=1)
        np.testing.assert_allclose(np.sqrt((stderr**2).mean(0)), scatter, rtol=0.25)
        inside = np.mean(np.abs(value - known) < 2.365 * stderr, axis=0)
        assert np.all((inside > 0.9) & (inside < 0.99)), inside


@pytest.mark.full
def test_it_is_the_gradient_of_the_log_probability_of_a_held_method():
    held = tg.Separation(num_points=128, num_replicates=8).hold(jnp.zeros(4), ORDERING, ORTHANT)
    ask = lambda loc, matrix, box: tg.log_probability(loc, matrix, box, held)
    got = tg.log_probability_and_gradient(jnp.zeros(4), ORDERING, ORTHANT, held)
    np.testing.assert_allclose(got.estimate, ask(jnp.zeros(4), ORDERING, ORTHANT), rtol=1e-12)
    of = jax.grad(lambda *parts: ask(*parts).log_prob, (0, 1, 2))
    for mine, other in zip(leaves(got.gradient), leaves(of(jnp.zeros(4), ORDERING, ORTHANT))):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)
    factor = tg.ScaleTril(jnp.linalg.cholesky(ORDERING))
    by_factor = tg.log_probability_and_gradient(jnp.zeros(4), factor, ORTHANT, held)
    assert isinstance(by_factor.gradient.covariance, tg.ScaleTril)
    np.testing.assert_allclose(by_factor.gradient.loc, got.gradient.loc, rtol=1e-8)


@pytest.mark.slow
def test_lattices_err_as_their_keys_scatter():
    method = tg.Separation(num_points=64, num_replicates=8).hold(jnp.zeros(4), ORDERING, ORTHANT)
    ask = lambda key: tg.log_probability_and_gradient(jnp.zeros(4), ORDERING, ORTHANT, method, key)
    got = jax.jit(jax.vmap(ask))(jax.random.split(jax.random.key(1), 200))
    for value, stderr in zip(leaves(got.gradient), leaves(got.stderr)):
        scatter = value.std(0, ddof=1)
        sound = scatter > 1e-12
        np.testing.assert_allclose(np.sqrt((stderr**2).mean(0))[sound], scatter[sound], rtol=0.25)


@pytest.mark.full
def test_near_a_singular_covariance_the_error_of_the_gradient_is_told():
    """Two coordinates all but equal, against quadrature: found by an error of the value of 1e-4."""
    rng = np.random.default_rng(0)
    gaps, limit = 10.0 ** rng.uniform(-12, -2, 24), rng.normal(size=24)
    inner = rng.uniform(-0.6, 0.6, 24)
    matrix = np.ones((24, 3, 3))
    matrix[:, 0, 1] = matrix[:, 1, 0] = 1 - gaps
    for k in (0, 1):
        matrix[:, k, 2] = matrix[:, 2, k] = inner
    low = np.stack([limit, limit + rng.normal(size=24) * np.sqrt(2 * gaps), 0 * gaps - 1], -1)
    box = tg.Box(low, np.where([False, False, True], 1.0, INF))
    truth = tg.log_probability_and_gradient(jnp.zeros(3), matrix, box, tg.Exact())
    size = lambda x: np.linalg.norm(x, axis=-1)
    lies = known = 0
    for method in (tg.Separation(), tg.Separation(num_points=64)):
        got = tg.log_probability_and_gradient(jnp.zeros(3), matrix, box, method)
        # As vectors: an entry that only few paths move has a skewed error, as is documented.
        off, whole = size(got.gradient.loc - truth.gradient.loc), size(truth.gradient.loc)
        lies += np.sum(off > 6 * size(got.stderr.loc) + 1e-9 * whole)
        known += np.sum(np.isfinite(size(got.stderr.loc)))
        assert np.all(np.isnan(got.stderr.loc[gaps < 1e-9]))
        assert np.max(off / whole) > 0.5 and np.max(got.estimate.stderr) < 0.01
    assert lies == 0 and 10 < known < 40


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slopes_of_a_nearly_singular_pair_state_their_rounding(sign):
    """Within its limits the second coordinate keeps the first in the interval of its own, so that
    the slopes along the first are 0, and those of the second are of one dimension."""
    low, high = -1.3, -0.4
    one = tg.log_probability_and_gradient([0.2], [[1.0]], tg.Box([low], [high]))
    for gap in (1e-2, 1e-6, 1e-9, 3e-12):
        rho = sign * (1.0 - gap)
        box = tg.Box([-9.0, low], [9.0, high])
        two = tg.log_probability_and_gradient([0.1, 0.2], [[1.0, rho], [rho, 1.0]], box)
        truth = np.diag([0.0, float(one.gradient.covariance[0, 0])])
        error = np.abs(two.gradient.covariance - truth)
        assert two.estimate.stderr == 0 and np.all(error <= two.stderr.covariance + 1e-9)
        assert np.all(two.stderr.covariance == 0.0) == (gap > 1e-5)
        assert np.all(two.stderr.covariance < 1e-14 / gap)


# --- Equal correlations ---------------------------------------------------------------------------

# name: slope in low, high, loc (equal in all coordinates), in a variance and in a covariance
EQUAL = {
    "equi-5-box": (
        -0.150725622739, 0.215631138535, -0.064905515797,
        -0.322309115903, 0.050724664791,
    ),
    "equi-20-orth": (
        0.0, 0.133584344344, -0.133584344344,
        -0.142036192722, 0.014951178181,
    ),
}  # fmt: skip


def slopes(name, method):
    """Gradients of log P in loc, covariance, low and high, by a method that sees a dense matrix."""
    p = problem(name)
    arrays = (jnp.asarray(x) for x in (p.loc, p.covariance(), p.low, p.high))
    return jax.jit(jax.grad(log_prob_by(method), argnums=(0, 1, 2, 3)))(*arrays)


@pytest.mark.parametrize(
    ("name", "num_points", "tolerance"),
    [("equi-5-box", 1024, 1e-5), pytest.param("equi-20-orth", 4096, 5e-4, marks=pytest.mark.slow)],
)
def test_equal_correlations(name, num_points, tolerance):
    low, high, loc, variance, covariance = EQUAL[name]
    got_loc, got_covariance, got_low, got_high = slopes(name, tg.Separation(num_points))
    d = len(got_loc)
    np.testing.assert_allclose(got_low, low, atol=tolerance)
    np.testing.assert_allclose(got_high, high, atol=tolerance)
    np.testing.assert_allclose(got_loc, loc, atol=tolerance)
    truth = np.where(np.eye(d, dtype=bool), variance, covariance)
    np.testing.assert_allclose(got_covariance, truth, atol=tolerance)
