"""The soft estimate: the first user's programme, its truth, its error bar, its compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss.arrays.compiling import LIGHT, MEDIUM
from truncgauss.probability.method import _estimate
from truncgauss.separation.lattice import lattice_bits, lattice_points, normal_points

INF = jnp.inf
SHIFTS = jnp.linspace(-5.0, 5.0, 500)


@pytest.mark.quick("float32-1e+300-1", "float64-1e+300-1")
@pytest.mark.parametrize("dimension", [1, 5])
@pytest.mark.parametrize("high", [1000.0, 1e300])
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_the_first_users_programme(dimension, high, dtype):
    """500 shifts, limits [0, 1000] and [0, 1e300]: value and gradient, no NaN, one compilation."""
    high = min(high, float(jnp.finfo(dtype).max))
    box = tg.Box(jnp.zeros(dimension, dtype), jnp.full(dimension, high, dtype))
    covariance = jnp.eye(dimension, dtype=dtype)
    compilations = 0

    @jax.jit
    @jax.vmap
    def value_and_gradient(shift):
        nonlocal compilations
        compilations += 1
        loc = lambda shift: jnp.full(dimension, shift)
        method = tg.SoftMonteCarlo(num_samples=1000)
        return jax.value_and_grad(
            lambda s: tg.fraction_not_truncated(loc(s), covariance, box, method)
        )(shift)

    value, gradient = value_and_gradient(SHIFTS.astype(dtype))
    value_and_gradient(SHIFTS.astype(dtype) + 1)
    assert compilations == 1
    assert jnp.isfinite(value).all() and jnp.isfinite(gradient).all()
    assert value.dtype == gradient.dtype == dtype
    truth = stats.norm.cdf(SHIFTS) ** dimension
    # 1,000 samples: a binomial error of at most 1.6 %, here with 500 shifts at 5 standard errors
    np.testing.assert_allclose(value, truth, atol=5 * 0.016)


def test_steepness_is_trained_and_annealed_without_compiling_again():
    traces = 0

    @jax.jit
    def loss(steepness, key):
        nonlocal traces
        traces += 1
        method = tg.SoftMonteCarlo(500, edge=tg.Tanh(steepness))
        return tg.log_probability([0.2], [[1.0]], tg.Box([0.0], [1.0]), method, key).log_prob

    gradients = [jax.grad(loss)(k, jax.random.key(0)) for k in (1.0, 10.0, 100.0)]
    assert traces == 1  # the gradient differentiates the one trace
    assert all(jnp.isfinite(g) and g != 0 for g in gradients)


def test_equal_settings_share_one_compilation():
    programs = {_estimate.traced, *map(_estimate.program, (LIGHT, MEDIUM))}  # one on a GPU
    for program in programs:
        program.clear_cache()
    box = tg.Box([0.0, 0.0], [1.0, INF])
    for steepness in (10.0, 20.0):
        method = tg.SoftMonteCarlo(64, edge=tg.Tanh(steepness))
        tg.log_probability(jnp.zeros(2), jnp.eye(2), box, method)
    assert sum(program._cache_size() for program in programs) == 1


@pytest.mark.full
def test_a_tail_says_that_the_estimate_rests_on_nothing():
    """Six sigma away no sample supports the value: soft or hard, the error bar is infinite."""
    box = tg.Box([6.0], [INF])
    for edge in (tg.Tanh(100.0), tg.Surrogate(tg.Tanh(10.0))):
        for num_replicates, points in ((1, "random"), (8, "random"), (8, "lattice")):
            method = tg.SoftMonteCarlo(1000, num_replicates, edge, points)
            got = tg.log_probability([0.0], [[1.0]], box, method)
            assert got.stderr == INF and not jnp.isnan(got.log_prob)


@pytest.mark.quick("hard")
@pytest.mark.parametrize(
    "method",
    [
        tg.SoftMonteCarlo(512, edge=tg.Hard()),
        tg.SoftMonteCarlo(512, edge=tg.Probit(0.3)),
        tg.SoftMonteCarlo(512, edge=tg.Probit(0.3), points="antithetic"),
        tg.SoftMonteCarlo(64, 16, edge=tg.Probit(0.3), points="lattice"),
    ],
    ids=["hard", "probit", "antithetic", "lattice"],
)
def test_error_bars_cover(method):
    """The 95 % interval covers in 95 % of 2,000 keys; [0.925, 0.975] is missed once in 1e6 runs."""
    covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
    width2 = 0.0 if isinstance(method.edge, tg.Hard) else 0.3**2
    inflated = np.asarray(covariance) + width2 * np.eye(2)
    truth = np.log(stats.multivariate_normal.cdf([0.2, 0.4], [0, 0], inflated))
    estimates = jax.vmap(
        lambda key: tg.log_probability(
            jnp.array([0.2, 0.4]), covariance, tg.Box([0.0, 0.0], [INF, INF]), method, key
        )
    )(jax.random.split(jax.random.key(3), 2000))
    degrees = method.num_replicates - 1 if method.num_replicates > 1 else 500
    half_width = stats.t.ppf(0.975, degrees) * np.asarray(estimates.stderr)
    covered = np.mean(np.abs(np.asarray(estimates.log_prob) - truth) <= half_width)
    assert 0.925 <= covered <= 0.975, covered


def test_batches_broadcast_and_agree_with_a_loop():
    loc = jnp.array([[[0.0, 0.1]], [[0.5, -0.5]]])  # (2, 1, 2)
    boxes = tg.Box(jnp.array([[0.0, 0.0], [-1.0, -INF], [-INF, -INF]]), jnp.array([1.0, INF]))
    covariance = jnp.array([[1.0, 0.4], [0.4, 2.0]])
    method = tg.SoftMonteCarlo(200)
    got = tg.log_probability(loc, covariance, boxes, method)
    assert got.log_prob.shape == got.stderr.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            one = tg.log_probability(
                loc[i, 0], covariance, tg.Box(boxes.low[j], boxes.high[j]), method
            )
            np.testing.assert_allclose(got.log_prob[i, j], one.log_prob, rtol=1e-13)


def test_lattice_is_a_shifted_lattice_folded():
    bits = jax.jit(lambda key: lattice_bits(lattice_points(101, 3), key))(jax.random.key(5))
    assert bits.shape == (101, 3) and bits.dtype == jnp.uint32
    for column in np.asarray(bits, dtype=np.float64).T / 2**32:
        # 101 equispaced points, folded: sorted they lie within two spacings of a grid
        np.testing.assert_allclose(np.sort(column), (np.arange(101) + 0.5) / 101, atol=2 / 101)
    normal = jax.jit(lambda key: normal_points(key, 4096, 2, "lattice", jnp.float32))
    z = normal(jax.random.key(5))
    assert z.dtype == jnp.float32 and np.isfinite(z).all()
    np.testing.assert_allclose(np.cov(np.asarray(z).T), np.eye(2), atol=2e-3)


def test_antithetic_points_come_in_pairs():
    z = normal_points(jax.random.key(0), 10, 3, "antithetic", jnp.float64)
    np.testing.assert_array_equal(z[:5], -z[5:])


def test_nan_in_nan_out():
    got = tg.log_probability([jnp.nan], [[1.0]], tg.Box([0.0], [1.0]), tg.SoftMonteCarlo(100))
    assert jnp.isnan(got.log_prob) and jnp.isnan(got.stderr)


@pytest.mark.full
def test_curvature_survives_the_loop_over_replicates():
    """A reverse pass through a loop drops custom rules; what is left must have right slopes too."""
    box, covariance = tg.Box([0.0, -1.0], [1.0, 2.0]), jnp.array([[1.0, 0.3], [0.3, 1.0]])
    method = tg.SoftMonteCarlo(64, 4, tg.Probit(0.3))
    log_prob = lambda loc: tg.log_probability(loc, covariance, box, method).log_prob
    loc, step = jnp.array([0.1, 0.2]), jnp.array([1e-5, 0.0])
    gradient = jax.grad(log_prob)
    difference = (gradient(loc + step) - gradient(loc - step)) / 2e-5
    np.testing.assert_allclose(jax.hessian(log_prob)(loc)[0], difference, rtol=1e-7)


@pytest.mark.parametrize("points, replicates", [("random", 8), ("lattice", 2), ("lattice", 8)])
def test_replicates_that_count_alike_are_not_exact(points, replicates):
    """Of samples that are in or out, replicates agree by chance: as of 8,192 below 3.5 or 4."""
    for high in (4.0, 3.5, 0.7123, 0.3):
        method = tg.SoftMonteCarlo(1024, replicates, points=points, edge=tg.Hard())
        found = tg.log_probability([0.0], [[1.0]], tg.Box([-np.inf], [high]), method)
        gap = abs(float(found.log_prob) - stats.norm.logcdf(high))
        assert 1e-4 < found.stderr < 2e-2 and gap < 3.0 * found.stderr
    narrow = tg.SoftMonteCarlo(4096, 8, points="lattice", edge=tg.Bump(1e-6))
    assert tg.log_probability([0.0], [[1.0]], tg.Box([0.0], [np.inf]), narrow).stderr > 1e-5
    wide = tg.SoftMonteCarlo(4096, 8, points="lattice", edge=tg.Tanh(4.0))
    assert tg.log_probability([0.1], [[1.0]], tg.Box([0.0], [np.inf]), wide).stderr < 1e-6


def test_a_method_with_many_samples_prints_their_shape():
    samples = np.zeros((300, 2))
    assert "samples=float64[300, 2])" in repr(tg.SoftMonteCarlo(samples=samples))
    assert repr(tg.Box([0.0], [1.0])) == "Box(low=array([0.]), high=array([1.]))"
