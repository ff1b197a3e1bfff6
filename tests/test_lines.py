"""Processes on a line: covariances, log P, likelihoods and gradients beside dense matrices."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.test_fields import close
from truncgauss.fields import guide, line_particles

N = 40
RNG = np.random.default_rng(3)
POINTS = RNG.uniform(0.0, 12.0, N)
KEY = jax.random.key(1)
SHAPES = {
    0.5: lambda r: jnp.exp(-r),
    1.5: lambda r: (1.0 + r) * jnp.exp(-r),
    2.5: lambda r: (1.0 + r + r**2 / 3.0) * jnp.exp(-r),
}


def line(points=POINTS, sigma=1.2, scale=0.8, smoothness=1.5, noise=0.2):
    kernel = tg.MaternProcess(sigma, scale, smoothness)
    return tg.Directed.from_quasiseparable(kernel, points, noise)


def matrix(points=POINTS, sigma=1.2, scale=0.8, smoothness=1.5, noise=0.2):
    gap = np.abs(np.subtract.outer(points, points))
    shape = SHAPES[smoothness](np.sqrt(2.0 * smoothness) * gap / scale)
    return sigma**2 * shape + noise**2 * jnp.eye(len(points))


def asked(points=POINTS, seed=4, **kernel):
    """Limits of a row of which a quarter is known, and few of the others are missing."""
    rng, n = np.random.default_rng(seed), len(points)
    root = np.linalg.cholesky(matrix(points, **kernel) + 1e-12 * np.eye(n))
    value = root @ rng.normal(size=n)
    low = np.where(np.arange(n) % 3 == 0, -np.inf, value - rng.uniform(0.0, 1.0, n))
    high = np.where(np.arange(n) % 3 == 1, np.inf, value + rng.uniform(0.0, 1.0, n))
    known = np.arange(n) % 4 == 0
    low, high = np.where(known, value, low), np.where(known, value, high)
    low[5], high[5] = -np.inf, np.inf
    return low, high


def rows(low, high):
    return tg.Observations(low[None], high[None])


@pytest.mark.parametrize("smoothness", SHAPES)
def test_the_covariance_is_the_matrix_of_the_kernel(smoothness):
    some = line(smoothness=smoothness, noise=np.linspace(0.0, 1.0, N))
    whole = matrix(smoothness=smoothness, noise=0.0) + np.diag(np.linspace(0.0, 1.0, N) ** 2)
    np.testing.assert_allclose(some.covariance_matrix, whole, atol=1e-13)
    np.testing.assert_allclose(some.variances, jnp.diagonal(whole), rtol=1e-13)
    compiled = jax.jit(lambda scale: line(scale=scale).variances)  # of points of NumPy
    np.testing.assert_allclose(compiled(0.8), line().variances, rtol=1e-13)
    by = jnp.linspace(0.5, 2.0, N)
    scaled = some.scaled(by)
    np.testing.assert_allclose(scaled.covariance_matrix, whole * by[:, None] * by, atol=1e-12)


@pytest.mark.parametrize("gap", [1e-4, 0.1, 0.4, 3.0])
def test_the_innovation_keeps_its_digits_between_close_points(gap):
    """Of P - A P A' fifteen digits are lost at a distance of 1e-4, with 50 of mpmath none."""
    news = np.asarray(line(np.array([0.0, gap]), 1.0, 1.0, 2.5).innovation[1])
    with mpmath.workdps(60):
        rate = mpmath.sqrt(5)
        F = mpmath.matrix([[0, 1, 0], [0, 0, 1], [-1, -3, -3]])
        A = mpmath.expm(F * rate * mpmath.mpf(gap))
        third = mpmath.mpf(1) / 3
        P = mpmath.matrix([[1, 0, -third], [0, third, 0], [-third, 0, 1]])
        Q = P - A * P * A.T
        unit = [1, mpmath.sqrt(third), 1]
        truth = [[float(Q[i, j] / unit[i] / unit[j]) for j in range(3)] for i in range(3)]
    np.testing.assert_allclose(news, truth, rtol=1e-10)


class Oscillator:
    """A kernel of another library: a decaying oscillation, of an amplitude that varies."""

    def __init__(self, decay, rate):
        self.decay, self.rate = decay, rate

    def stationary_covariance(self):
        c, d = self.decay, self.rate
        return jnp.array([[1.0, -c / d], [-c / d, 1.0 + 2.0 * c**2 / d**2]])

    def observation_model(self, x):
        return jnp.stack([1.0 + 0.1 * x, 0.3 * jnp.ones_like(x)])

    def transition_matrix(self, start, end):
        angle = self.rate * (end - start)
        turn = jnp.array([[jnp.cos(angle), jnp.sin(angle)], [-jnp.sin(angle), jnp.cos(angle)]])
        return jnp.exp(-self.decay * (end - start)) * turn

    def evaluate(self, x, y):
        first, last = jnp.minimum(x, y), jnp.maximum(x, y)
        move = self.stationary_covariance() @ self.transition_matrix(first, last)
        return self.observation_model(last) @ move @ self.observation_model(first)


def test_a_kernel_of_other_origin_keeps_its_own_value():
    kernel = Oscillator(0.7, 2.0)
    pairs = jax.vmap(jax.vmap(kernel.evaluate, (None, 0)), (0, None))(POINTS, POINTS)
    assert jnp.linalg.eigvalsh(pairs)[0] > -1e-12
    some = tg.Directed.from_quasiseparable(kernel, POINTS, 0.1)
    np.testing.assert_allclose(some.covariance_matrix, pairs + 0.01 * jnp.eye(N), atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_values_all_known_have_the_dense_density(noise):
    value = RNG.normal(size=N)
    if noise == 0.0:
        value = np.linalg.cholesky(matrix(noise=0.0)) @ value
    found = tg.log_likelihood(rows(value, value), 0.1, line(noise=noise))
    truth = stats.multivariate_normal(np.full(N, 0.1), matrix(noise=noise)).logpdf(value)
    np.testing.assert_allclose(found.log_prob[0], truth, rtol=1e-9)
    assert found.stderr[0] == 0.0


@pytest.mark.parametrize("n", [*(pytest.param(k, marks=pytest.mark.full) for k in (1, 2)), 3])
@pytest.mark.parametrize("low, high", [(-1.0, 0.5), (8.0, jnp.inf), (-0.3, -0.3 + 1e-9)])
def test_up_to_three_points_it_is_the_exact_value(n, low, high):
    """The central, a tail, and intervals whose width is 1e-9."""
    points = np.array([0.7, 0.0, 0.2])[:n]
    box = tg.Box(jnp.full(n, low), jnp.full(n, high))
    found = tg.log_probability(jnp.zeros(n), line(points), box)
    truth = tg.log_probability(jnp.zeros(n), matrix(points), box, tg.Exact())
    close(found, truth, 1e-9 * abs(float(truth.log_prob)))
    assert found.stderr < 0.02
    if n == 1:
        assert found.stderr == 0.0


@pytest.mark.parametrize("noise", [0.2, pytest.param(0.0, marks=pytest.mark.full)])
def test_known_limited_and_missing_values_together(noise):
    low, high = asked(noise=noise)
    found = tg.log_likelihood(rows(low, high), 0.1, line(noise=noise), key=KEY)
    dense = matrix(noise=noise)
    truth = tg.log_likelihood(rows(low, high), jnp.full(N, 0.1), dense, tg.Separation())
    close(found, truth)
    assert found.stderr[0] < 0.05


@pytest.mark.full
def test_two_values_at_one_point_need_noise():
    twice = np.r_[POINTS, POINTS[:5]]
    box = tg.Box(jnp.full(N + 5, -0.5), jnp.inf)
    found = tg.log_probability(jnp.zeros(N + 5), line(twice), box)
    close(found, tg.log_probability(jnp.zeros(N + 5), matrix(twice), box))
    assert found.stderr < 0.05
    with pytest.raises(ValueError, match="give them noise"):
        line(twice, noise=0.0)


@pytest.mark.full
def test_three_hundred_half_limited_are_as_of_the_dense_matrix():
    points = np.random.default_rng(0).uniform(0.0, 15.0, 300)
    shape = {"sigma": 1.0, "scale": 1.0, "noise": 0.05}
    value = np.linalg.cholesky(matrix(points, **shape)) @ np.random.default_rng(1).normal(size=300)
    below = np.random.default_rng(2).uniform(size=300) < 0.5
    low, high = np.where(below, -np.inf, value), np.where(below, np.round(value) + 0.5, value)
    method = tg.LineParticles(4096, 16)
    found = tg.log_likelihood(rows(low, high), 0.0, line(points, **shape), method, key=KEY)
    dense = matrix(points, **shape)
    truth = tg.log_likelihood(rows(low, high), jnp.zeros(300), dense, tg.SequentialMonteCarlo())
    assert abs(found.log_prob[0] - truth.log_prob[0]) < 1e-3 + 4 * truth.stderr[0]
    assert found.stderr[0] < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("particles", [16, 128])
def test_the_error_is_that_of_the_scatter(particles):
    """Over 60 keys: a ratio outside of 0.75 to 1.35 has a probability below 1e-3 where they agree,
    the scatter of 60 being known to 9 % and the mean of the squares of 60 errors to 4 %."""
    points = np.random.default_rng(0).uniform(0.0, 100.0, 200)
    low, high = asked(points)
    where, method = line(points), tg.LineParticles(particles, 8)
    box = tg.Box(jnp.where(low == high, low - 0.5, low), jnp.where(low == high, high + 0.5, high))
    of_key = jax.jit(lambda key: tg.log_probability(jnp.zeros(200), where, box, method, key))
    results = [of_key(key) for key in jax.random.split(KEY, 60)]
    values, errors = (np.array([found[k] for found in results]) for k in (0, 1))
    assert 0.75 < np.sqrt(np.mean(errors**2)) / values.std(ddof=1) < 1.35
    others = [of_key(key) for key in jax.random.split(jax.random.key(2), 60)]
    mean = np.mean([found.log_prob for found in others])
    assert abs(values.mean() - mean) < 4.0 * values.std() * (2.0 / 60) ** 0.5


@pytest.mark.full
def test_sites_of_windows_are_those_of_the_whole_line(monkeypatch):
    points = np.random.default_rng(0).uniform(0.0, 60.0, 600)
    low, high = asked(points)
    some = line(points)
    order = some.order.astype(int)
    parts = some.transition, some.innovation, some.observation
    every = guide.Rows(low, high, some.noise**2, low == high)
    every = jax.tree.map(lambda x: jnp.asarray(x)[order], every)
    whole = line_particles.sites_of(parts, every)
    monkeypatch.setattr(line_particles, "WINDOW", 250)
    for one, other in zip(whole, line_particles.sites_of(parts, every)):
        np.testing.assert_allclose(one, other, atol=1e-8 * float(jnp.max(jnp.abs(one))))


@pytest.mark.full
@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_the_gradient_is_that_of_the_dense_matrix(noise):
    low, high = asked(noise=noise)
    both = jnp.where(low == high, low - 0.5, low), jnp.where(low == high, high + 0.5, high)
    start = {"loc": jnp.full(N, 0.1), "of": jnp.array([1.2, 0.8, noise])}
    many = tg.LineParticles(512, 16)

    def likelihood(p, form, method):
        where = form(POINTS, p["of"][0], p["of"][1], noise=p["of"][2])
        return tg.log_likelihood(rows(low, high), p["loc"], where, method, key=KEY).log_prob[0]

    def within(p, form, method):
        where = form(POINTS, p["of"][0], p["of"][1], noise=p["of"][2])
        box = tg.Box(p["low"], p["high"])
        return tg.log_probability(p["loc"], where, box, method, key=KEY).log_prob

    limits = dict(zip(("low", "high"), both))
    for function, at in (likelihood, start), (within, start | limits):
        found = jax.grad(function)(at, line, many)
        truth = jax.grad(function)(at, matrix, tg.Separation(num_points=512))
        for name in at:
            size = jnp.max(jnp.abs(truth[name]))
            np.testing.assert_allclose(found[name], truth[name], atol=0.02 * size)


@pytest.mark.full
def test_in_float32_as_in_float64():
    low, high = asked()
    truth = tg.log_likelihood(rows(low, high), 0.0, line(), key=KEY)
    with jax.enable_x64(False):
        single = [jnp.asarray(x, jnp.float32) for x in (POINTS, low, high)]
        where = line(single[0], noise=jnp.float32(0.2))
        found = tg.log_likelihood(rows(*single[1:]), 0.0, where, key=KEY)
        assert found.log_prob.dtype == jnp.float32
    close(found, truth, 1e-3)


def test_questions_it_refuses():
    some, zero = line(), jnp.zeros(N)
    box = tg.Box(zero - 1.0, zero + 1.0)
    value = lambda x: tg.log_probability(x, some, box).log_prob
    with pytest.raises(ValueError, match="no second derivatives"):
        jax.hessian(value)(zero)
    with pytest.raises(ValueError, match="applies to a tg.Box"):
        tg.log_probability(zero, jnp.eye(N), box, tg.LineParticles())
    with pytest.raises(ValueError, match="tg.LineParticles.. computes it, got Separation"):
        tg.log_likelihood(rows(zero, zero), 0.0, some, tg.Separation())
    with pytest.raises(ValueError, match="neither region nor noise"):
        tg.log_likelihood(
            tg.Observations(zero[None], zero[None], noise=jnp.eye(N)[None]), 0.0, some
        )
    with pytest.raises(ValueError, match="power of two"):
        tg.LineParticles(100)
    with pytest.raises(ValueError, match="0.5, 1.5 or 2.5"):
        tg.MaternProcess(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="scale must be positive"):
        tg.MaternProcess(1.0, 0.0)
    with pytest.raises(ValueError, match="finite numbers of shape"):
        line(np.array([0.0, np.nan]))
    with pytest.raises(ValueError, match="not traced"):
        jax.jit(lambda x: line(x).noise)(POINTS)
    with pytest.raises(ValueError, match="dense matrix of 20001 coordinates"):
        _ = line(np.arange(20_001.0)).covariance_matrix


def test_a_function_is_no_kernel_of_a_line():
    with pytest.raises(TypeError, match="kernel must be a tg.MaternProcess .* got function"):
        tg.Directed.from_quasiseparable(lambda x, y: 1.0, POINTS)
