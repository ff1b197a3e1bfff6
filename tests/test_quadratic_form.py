"""Balls and ellipsoids: integrals in 25 digits, closed forms, finite differences, rounding."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.test_outside import by_ray
from truncgauss.quadrature import quadratic_form

# Dimension, radius, distance, standard deviation.
BALLS = (
    (1, 1.0, 0.0, 1.0), (1, 1.0, 15.0, 1.0), (2, 0.01, 1.0, 1.0), (2, 1.0, 20.0, 1.0),
    (3, 2.0, 1.0, 1.0), (5, 1.0, 8.0, 1.0), (10, 1.5, 0.0, 1.0), (30, 9.0, 2.0, 1.0),
    (2, 1.0, 0.995, 0.03), (50, 1.0, 0.99, 0.032), (4, 1.0, 0.5, 1e3),
)  # fmt: skip


@pytest.mark.quick("1-1.0-15.0-1.0", "2-1.0-20.0-1.0")
@pytest.mark.parametrize("d, radius, distance, scale", BALLS)
def test_a_ball_holds_a_noncentral_chi_square(d, radius, distance, scale):
    """The mean inside, outside, and nearly certain to be so; down to log P = -186."""
    center = np.zeros(d)
    center[0] = distance
    truth = by_ray([-(scale**2)], [d], [(distance / scale) ** 2], -(radius**2))
    ball = tg.Ball(center, radius)
    found = tg.log_probability(np.zeros(d), scale**2 * np.eye(d), ball)
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-12, atol=1e-13)
    assert found.stderr == 0
    inputs = np.zeros(d, np.float32), np.float32(scale**2) * np.eye(d, dtype=np.float32)
    single = tg.log_probability(*inputs, tg.Ball(center.astype(np.float32), np.float32(radius)))
    assert single.log_prob.dtype == np.float32
    assert abs(single.log_prob - truth) <= 1e-4 * max(1.0, abs(truth)) + 2 * single.stderr


UNEQUAL = (
    ((0.3, 0.5), (0.3, 2.0)), ((0.824, 0.277), (0.00678, 0.01229)), ((0.98, 0.74), (400.0, 0.005)),
    ((3.0, 0.1), (0.05, 0.5)), ((0.2, 0.1), (0.002, 0.003)),
)  # fmt: skip


@pytest.mark.quick("mean3-variances3", "mean1-variances1")
@pytest.mark.parametrize("mean, variances", UNEQUAL)
def test_unequal_variances_agree_with_an_integral_in_25_digits(mean, variances):
    """In any position: an ellipse about a shifted centre, in other units, turned."""
    truth = by_ray(-np.array(variances), [1, 1], np.square(mean) / variances, -1.0)
    turn = np.array([[0.8, -0.6], [0.6, 0.8]]) @ np.diag([1.0, 1e-3])
    covariance = turn @ np.diag(variances) @ turn.T
    center = np.array([3.0, -2e-3])
    region = tg.Ellipsoid(center, 1e-4**2 * turn @ turn.T)
    found = tg.log_probability(center + 1e-4 * turn @ mean, 1e-8 * covariance, region)
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-9, atol=1e-11 + found.stderr)
    assert found.stderr < 1e-4


LOC, CENTER = np.array([0.3, -0.2, 0.4]), np.array([1.0, 0.5, -0.3])
MATRIX = np.array([[1.0, 0.5, 0.1], [0.5, 2.0, -0.3], [0.1, -0.3, 0.7]])
SHAPE = np.array([[1.5, 0.2, 0.0], [0.2, 0.8, 0.1], [0.0, 0.1, 1.1]])


@jax.jit
def log_prob(loc, covariance, center, shape):
    return tg.log_probability(loc, covariance, tg.Ellipsoid(center, shape)).log_prob


@pytest.mark.quick("2")
@pytest.mark.parametrize("argument", range(4))
def test_derivatives_are_those_of_the_value(argument):
    """In mean, covariance, centre and shape, gradient and Hessian, along a random direction."""
    inputs = [LOC, MATRIX, CENTER, SHAPE]
    change = np.random.default_rng(argument).normal(size=inputs[argument].shape)
    change = change + change.T if change.ndim == 2 else change

    def along(step):
        return log_prob(*(x + step * change if i == argument else x for i, x in enumerate(inputs)))

    slope, bend = jax.grad(along), jax.grad(jax.grad(along))
    step = 1e-4
    np.testing.assert_allclose(slope(0.0), (along(step) - along(-step)) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(bend(0.0), (slope(step) - slope(-step)) / (2 * step), rtol=1e-6)


@pytest.mark.full
def test_equal_variances_have_derivatives_too():
    """In two dimensions, mean 0: log P = log(1 - exp(-r^2 / 2 v)), by the trace v + dv / 2."""
    value = lambda matrix: log_prob(jnp.zeros(2), matrix, jnp.zeros(2), 1.44 * jnp.eye(2))
    closed = lambda v: jnp.log(-jnp.expm1(-0.72 / v))
    gradient = jax.grad(value)(0.6 * jnp.eye(2))
    np.testing.assert_allclose(gradient, 0.5 * jax.grad(closed)(0.6) * jnp.eye(2), atol=1e-12)
    both = jnp.sum(jax.hessian(value)(0.6 * jnp.eye(2)) * jnp.eye(2), (2, 3))
    np.testing.assert_allclose(both, 0.5 * jax.hessian(closed)(0.6) * jnp.eye(2), atol=1e-11)


def test_moments_in_a_small_ball_keep_their_digits():
    """Nearly uniform in a ball of radius r: covariance r^2 / (d + 2), which no tail cancels."""
    ball = tg.Ball(np.array([2.0, 1.0]), 1e-6)
    moments = tg.truncated_moments(np.zeros(2), np.eye(2), ball)
    np.testing.assert_allclose(moments.covariance, 0.25e-12 * np.eye(2), rtol=1e-5, atol=1e-18)


@pytest.mark.full
def test_hessians_in_a_loop_are_those_outside():
    """JAX forgets rules for derivatives where it differentiates a loop in reverse."""
    centers = jnp.array([[0.4, -0.3], [-0.8, 0.5]])

    def log_prob(x, center):
        matrix = jnp.array([[x[2], x[3]], [x[3], x[4]]])
        return tg.log_probability(x[:2], matrix, tg.Outside(tg.Ball(center, 1.0))).log_prob

    in_loop = lambda x: jax.lax.map(lambda center: log_prob(x, center), centers).sum()
    x = jnp.array([0.2, 0.1, 1.0, 0.4, 1.5])
    one = jax.jit(jax.jacfwd(jax.jacfwd(log_prob)))
    truth = sum(one(x, center) for center in centers)
    for outer in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(jax.jit(outer(jax.grad(in_loop)))(x), truth, atol=1e-12)


@pytest.mark.full
def test_rows_that_were_seen_in_a_ball_are_fitted_exactly():
    """The fit moves the ball with the rows, whose likelihood is exact before and after."""
    rng = np.random.default_rng(2)
    ball = tg.Ball([1000.0, -2.5], 1.8)
    x = rng.multivariate_normal([1001.0, -3.0], [[2.0, 0.7], [0.7, 1.0]], 800)
    rows = tg.Observations.exact(x[np.asarray(ball.contains(x))], region=ball)
    fit = tg.fit_observations(rows)
    mean = jnp.asarray(fit.loc)
    again = tg.log_likelihood(rows, mean, fit.covariance_matrix)
    np.testing.assert_allclose(again.log_prob.sum(), fit.log_likelihood, rtol=1e-10)
    assert fit.converged and jnp.all(again.stderr == 0)
    errors = np.asarray(jax.tree.leaves(fit.standard_errors)[0])
    assert np.all(np.abs(mean - np.array([1001.0, -3.0])) < 4 * errors)


@pytest.mark.full
def test_batches_transformations_and_impossible_inputs():
    loc = jax.random.normal(jax.random.key(0), (5, 3))
    rows = tg.log_probability(loc, MATRIX, tg.Ball(CENTER, jnp.arange(1.0, 6.0)))
    for i in range(5):
        one = tg.log_probability(loc[i], MATRIX, tg.Ball(CENTER, i + 1.0))
        np.testing.assert_allclose(rows.log_prob[i], one.log_prob, rtol=1e-13)
    mapped = jax.vmap(lambda x: log_prob(x, MATRIX, CENTER, SHAPE))(loc)
    each = [log_prob(x, MATRIX, CENTER, SHAPE) for x in loc]
    np.testing.assert_allclose(mapped, jnp.stack(each), rtol=1e-13)
    of_radius = jax.jit(lambda r: tg.log_probability(LOC, MATRIX, tg.Ball(CENTER, r)).log_prob)
    assert jnp.isnan(of_radius(-1.0)) and jnp.isnan(log_prob(LOC, -MATRIX, CENTER, SHAPE))


@pytest.mark.parametrize("matrix, radius, truth", [
    (np.diag([1.0, 0.0]), 1.0, np.log(2 * stats.norm.cdf(0.8) - 1)),
    (np.diag([1.0, 0.0]), 0.5, -np.inf),
    (np.zeros((2, 2)), 0.61, 0.0),
])  # fmt: skip
def test_coordinates_without_variance(matrix, radius, truth):
    ball = tg.Ball([0.0, 0.6], radius)
    found = tg.log_probability(np.zeros(2), matrix, ball)
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-12, atol=1e-14)


def test_rounding_of_nearly_singular_matrices_is_part_of_the_error():
    """Condition numbers to 1e12, in tails: the variances along the axes are known beforehand."""
    rng = np.random.default_rng(3)
    ask = jax.jit(lambda mean, matrix: quadratic_form.solve(mean, matrix)[-2:])
    told, above = 0, []
    for _ in range(60):
        variances = 10 ** rng.uniform(-8, 4, 4)
        mean = rng.normal(size=4) * 10 ** rng.uniform(-2, 0.7)
        axes = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        matrix = axes @ np.diag(variances) @ axes.T
        truth, _ = ask(mean, np.diag(variances))
        log_prob, error = ask(axes @ mean, 0.5 * (matrix + matrix.T))
        told += bool(error > 0)
        rounding = 1e-9 * max(1.0, abs(truth))
        above.append(abs(log_prob - truth) > error + rounding)
    assert told > 5 and not any(above)


HIDDEN = (  # dtype, mean, covariance matrix, log P of the unit ball
    (np.float32, (0.6967101693153381, 0.7173596620559692),
     ((0.005145997740328312, -0.004997868090867996),
      (-0.004997868090867996, 0.0048540025018155575)),
     -5.368974643688),
    (np.float64, (0.9488077459162838, 0.3158541781217772),
     ((0.0009976386178234045, -0.002996848906178196),
      (-0.002996848906178196, 0.009002361382176595)),
     -10.80),
    (np.float64, (1.0,), ((1e-40,),), np.log(0.5)),
    (np.float64, (1 - 5e-12,), ((1e-24,),), -2.8665e-7),
    (np.float32, (1.00001,), ((1e-16,),), -501366.78),
    (np.float64, (1e10,), ((1.0,),), -0.5 * (1e10 - 1) ** 2),
    (np.float32, (1e5,), ((1.0,),), -0.5 * (1e5 - 1) ** 2), (np.float32, (1.0,), ((0.0,),), 0.0),
    (np.float32, (1.0, 0.0), ((0.0, 0.0), (0.0, 1.0)), -np.inf),
    (np.float32, (1.1, 0.0), ((1e-6, 0.0), (0.0, 1.0)), -5011.283),
)  # fmt: skip


@pytest.mark.quick("float64-mean5-matrix5--4.999999999e+19", "float32-mean4-matrix4--501366.78")
@pytest.mark.parametrize("dtype, mean, matrix, truth", HIDDEN)
def test_what_rounding_hides_is_told(dtype, mean, matrix, truth):
    """A mean on the sphere with next to no variance across it, and tails beyond 1e9."""
    ball = tg.Ball(np.zeros(len(mean), dtype), dtype(1))
    log_prob, stderr = tg.log_probability(np.array(mean, dtype), np.array(matrix, dtype), ball)
    if np.isinf(truth):
        assert log_prob == truth and stderr == 0
    else:
        rounding = (1e-9 if dtype == np.float64 else 1e-4) * max(1.0, abs(truth))
        assert abs(log_prob - truth) <= stderr + rounding


def test_outside_of_a_sphere_on_which_a_form_is_nearly_constant():
    ball = tg.Ball([0.0], 1.0)
    found = tg.log_probability([1.0 + 5e-12], [[1e-24]], tg.Outside(ball))
    assert abs(found.log_prob + 2.8665e-7) <= found.stderr + 1e-11


@pytest.mark.quick("float64-1000000.0-1.0-1e-12", "float32-2.0-0.001-9.94e-07")
@pytest.mark.parametrize("dtype, mean, variance, truth", [
    (np.float32, 100.0, 1.0, 1.0197e-4), (np.float32, 300.0, 1.0, 1.1185e-5),
    (np.float32, 2.0, 1e-3, 9.94e-7), (np.float64, 3e4, 1.0, 1.11119e-9),
    (np.float64, 1e6, 1.0, 1.0e-12), (np.float64, 1.5, 1e-10, 4.0e-20),
])  # fmt: skip
def test_variances_in_tails_say_how_much_has_cancelled(dtype, mean, variance, truth):
    ball = tg.Ball(np.zeros(1, dtype), dtype(1))
    moments = tg.truncated_moments(np.array([mean], dtype), np.array([[variance]], dtype), ball)
    found, error = moments.covariance[0, 0], moments.covariance_stderr[0, 0]
    assert found >= 0 and abs(found - truth) <= error + 1e-4 * truth


@pytest.mark.slow
def test_random_forms_agree_with_four_times_the_nodes():
    """On paths of their own, in up to 40 dimensions, to log P = -1e8; the reference in NumPy."""
    rng = np.random.default_rng(1)
    for d in (1, 3, 10, 40):
        ask = jax.jit(lambda mean, matrix: quadratic_form.solve(mean, matrix)[-2:])
        for i in range(150):
            spread = rng.uniform(-8, 5, d) if i % 2 else rng.uniform(-2, 1) + rng.uniform(-1, 1, d)
            variances, squares = 10**spread, rng.chisquare(1, d) * 10 ** rng.uniform(-4, 1.5) / d
            log_prob, error = ask(np.sqrt(squares), np.diag(variances))
            truth = reference(variances, squares)
            assert abs(log_prob - truth) <= 1e-10 * max(1.0, abs(truth)) + error


def reference(variances, squares, b=3.0, n=1024):
    """log P by the midpoint rule on one parabola."""

    def exponent(s):
        spread = 1 + 2 * variances * s[..., None]
        terms = 0.5 * np.log(spread) + s[..., None] * squares / spread
        return s - np.sum(terms, -1) - np.log(s)

    low, high = 0.0, 70.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        spread = 1 + 2 * variances * np.exp(middle)
        slope = 1 - np.sum(variances / spread + squares / spread**2) - np.exp(-middle)
        low, high = (low, middle) if slope > 0 else (middle, high)
    top = np.exp(low)
    spread = 1 + 2 * variances * top
    bend = np.sum(2 * variances**2 / spread**2 + 4 * squares * variances / spread**3) + 1 / top**2
    scale = min(1.0, 1 / (2 * b * top * bend**0.5))
    level = exponent(np.array([top + 0j]))[0].real

    def values(end):
        t = end * (np.arange(n) + 0.5) / n
        u, du = scale * np.sinh(t), scale * np.cosh(t) * end / n
        s = top * (1 + 2j * b * u - u * u)
        return t, exponent(s) - level, 2 * top * (1j * b - u) * du

    t, real, _ = values(np.arcsinh(7 / scale))
    _, logs, steps = values(t[min(n - 1, np.flatnonzero(real.real > -40)[-1] + 16)])
    return level + np.log(np.sum((np.exp(logs) * steps / np.pi).imag))


@pytest.mark.parametrize("d", [3, 10])
def test_balls_as_small_as_their_volume_tells(d):
    """log P of a ball about the mean, whose density there is nearly constant."""
    for radius in (1e-12, 1e-20, 1e-100, 1e-150):
        ball = tg.Ball(np.zeros(d), radius)
        truth = d * (math.log(radius) - 0.5 * math.log(2.0)) - math.lgamma(0.5 * d + 1.0)
        value, stderr = tg.log_probability(np.zeros(d), np.eye(d), ball)
        assert abs(value - truth) < 1e-12 * abs(truth) and stderr == 0
    log_tail = tg.log_quadratic_form_tail(-1e-100, [-1.0, -2.0, -0.5]).log_prob
    expected = 1.5 * math.log(1e-100 / 2) - math.lgamma(2.5)
    assert abs(log_tail - expected) < 1e-11 * abs(expected)
