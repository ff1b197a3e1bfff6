"""Importance sampling: regions without linear limits and soft selections, beside closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import truncgauss as tg
from tests.test_outside import by_ray
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.probability.refinement import Search, cost

METHOD = tg.ImportanceSampling(1024)
MEAN, COVARIANCE = np.array([0.3, -0.2]), np.array([[1.0, 0.5], [0.5, 2.0]])


def log_noncentral(radius, distance, d):
    """log P(|X - c| <= radius), |c| = distance: a noncentral chi-square in 25 digits."""
    return by_ray([-1.0], [d], [distance**2], -(radius**2))


BALLS = (  # dimension, radius, distance of its centre from the mean
    (2, 1.0, 0.0), (2, 0.01, 1.0), (2, 1.0, 10.0), (2, 1.0, 20.0), (3, 2.0, 1.0),
    (5, 1.0, 8.0), (10, 1.5, 0.0), (10, 3.0, 2.0), (1, 1.0, 15.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def ask():
    def log_prob(loc, covariance, center, radius):
        return tg.log_probability(loc, covariance, tg.Ball(center, radius), METHOD)

    return jax.jit(log_prob)


@pytest.mark.quick("2-1.0-20.0")
@pytest.mark.parametrize("d, radius, distance", BALLS)
def test_balls_near_and_far(ask, d, radius, distance):
    """Down to log P = -186; 4.5 standard errors of 16 replicates, decided once by a fixed key."""
    center = np.zeros(d)
    center[0] = distance
    log_prob, stderr = ask(np.zeros(d), np.eye(d), center, radius)
    assert abs(log_prob - log_noncentral(radius, distance, d)) < 4.5 * stderr < 0.15


@pytest.mark.full
@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_derivatives_in_the_numbers_of_a_ball(unit):
    """Beside those of a noncentral chi-square, in any unit, near and at 30 standard deviations."""

    def log_prob(center, radius):
        ball = tg.Ball(center * unit, radius * unit)
        return tg.log_probability(jnp.zeros(2), unit**2 * jnp.eye(2), ball, METHOD).log_prob

    slopes = jax.jit(jax.grad(log_prob, (0, 1)))
    for distance, radius, rtol in ((0.0, 1.0, 5e-3), (3.0, 0.01, 5e-3), (12.0, 1.0, 5e-3)):
        by_center, by_radius = slopes(jnp.array([distance, 0.0]), radius)
        step = 1e-4 * radius
        sides = [log_noncentral(radius + s * step, distance, 2) for s in (1, -1)]
        np.testing.assert_allclose(by_radius, (sides[0] - sides[1]) / (2 * step), rtol=rtol)
        sides = [log_noncentral(radius, abs(distance + s * step), 2) for s in (1, -1)]
        truth = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(by_center, [truth, 0.0], rtol=rtol, atol=0.02)


@pytest.mark.full
def test_derivatives_in_the_numbers_of_an_ellipsoid():
    """The ellipsoid of a Gaussian itself, however thin, holds a chi-square, of either's size."""
    shape = np.array([[1.0, 5e-4], [5e-4, 1e-6]])

    def log_prob(size, spread, center):
        region = tg.Ellipsoid(center, size * shape)
        return tg.log_probability(jnp.zeros(2), spread * shape, region, METHOD).log_prob

    by_size, by_spread, by_center = jax.jit(jax.grad(log_prob, (0, 1, 2)))(1.3, 1.0, jnp.zeros(2))
    truth = stats.chi2(2).pdf(1.3) / stats.chi2(2).cdf(1.3)
    np.testing.assert_allclose([by_size, by_spread], [truth, -1.3 * truth], rtol=0.01)
    np.testing.assert_allclose(by_center * np.sqrt(np.diagonal(shape)), 0.0, atol=0.01)


@pytest.mark.full
def test_what_does_not_say_how_it_moves_has_a_smoothed_derivative_in_its_own_numbers():
    """A wedge of half angle arctan(slope) about the mean: P = arctan(slope) / pi."""

    @frozen_pytree
    class Wedge(tg.Region):
        slope: jax.Array
        event_ranks = {"slope": 0}
        dimension = 2

        def contains(self, x):
            return jnp.abs(x[..., 1]) <= self.slope * x[..., 0]

        def margins(self, x):
            return (self.slope * x[..., 0] - jnp.abs(x[..., 1]))[..., None]

    def log_prob(loc, slope):
        return tg.log_probability(loc, jnp.eye(2), Wedge(slope), METHOD).log_prob

    of_both = jax.jit(jax.value_and_grad(log_prob, (0, 1)))
    value, (by_loc, by_slope) = of_both(jnp.zeros(2), jnp.array(1.0))
    np.testing.assert_allclose([value, by_slope], [np.log(0.25), 2 / np.pi], rtol=0.02)
    by_distance = np.sin(np.pi / 4) / (2 * np.pi) ** 0.5 / 0.25
    np.testing.assert_allclose(by_loc, [by_distance, 0.0], rtol=0.02, atol=0.02)


def two_pieces(x):
    """One as far out as the other, the farther one narrow and of larger weight."""
    return jnp.exp(-0.5 * (x[0] - 8.0) ** 2) + jnp.exp(-0.5 * ((x[0] + 5.0) / 0.05) ** 2)


PIECES = (
    lambda x: (jnp.abs(x[0] - 2.1) < 0.2) | (jnp.abs(x[0] + 4.35) < 0.65),
    lambda x: jax.nn.sigmoid(20.0 * (x[0] - 4.0)) + jax.nn.sigmoid(-20.0 * (x[0] + 4.0)),
)


@pytest.mark.full
def test_pieces_that_may_hide_are_part_of_the_error():
    assert tg.log_probability([0.0], [[1.0]], tg.Selection(two_pieces, 1), METHOD).stderr == jnp.inf
    ends = [-9.0, -5.0, -4.0, -3.7, 1.9, 2.3, 4.0, 5.0, 9.0]
    for function in PIECES:
        kept = lambda x, s=function: float(s(np.array([x]))) * stats.norm.pdf(x, 0.3)
        parts = [integrate.quad(kept, *x, epsabs=1e-12)[0] for x in itertools.pairwise(ends)]
        for number in (1, 2):
            key, selection = jax.random.key(number), tg.Selection(function, 1)
            log_prob, stderr = tg.log_probability([0.3], [[1.0]], selection, METHOD, key)
            assert abs(log_prob - np.log(sum(parts))) < 4 * stderr


def test_a_tail_of_one_piece_is_reached():
    far = tg.Selection(lambda x: jax.nn.sigmoid(3.0 * (x[0] - 12.0)), 1, log_concave=True)
    log_prob, stderr = tg.log_probability([0.0], [[1.0]], far, METHOD)
    kept = lambda x: np.exp(-0.5 * x * x + 40.0) / (1 + np.exp(-3.0 * (x - 12.0)))
    inside = integrate.quad(kept, -5.0, 25.0, epsabs=0, limit=200)[0]
    truth = np.log(inside) - 40.0 - 0.5 * np.log(2 * np.pi)
    assert abs(log_prob - truth) < 4 * stderr < 0.02


@pytest.mark.full
def test_a_held_method_is_one_smooth_function():
    """The gradient is that of the function; the value elsewhere is right too."""
    held = METHOD.hold(np.zeros(2), np.eye(2), tg.Ball([1.0, 0.5], 1.2))

    def of(loc):
        return tg.log_probability(loc, jnp.eye(2), tg.Ball([1.0, 0.5], 1.2), held).log_prob

    function, at = jax.jit(jax.value_and_grad(of)), np.array([0.3, 0.1])
    value, slope = function(at)
    differences = [(function(at + x)[0] - function(at - x)[0]) / 2e-5 for x in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(slope, differences, rtol=1e-6)
    np.testing.assert_allclose(value, log_noncentral(1.2, np.hypot(0.7, 0.4), 2), atol=0.01)
    assert np.isfinite(jax.hessian(of)(at)).all()


def test_no_points_are_right_sides_of_linear_systems():
    """Two such solves of many rows at once never end with JAX 0.10 on two cores."""

    def columns(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name == "triangular_solve":
                yield max(equation.invars[1].aval.shape[-2:])
            for inner in jax.tree.leaves(list(equation.params.values())):
                inner = getattr(inner, "jaxpr", inner)
                yield from columns(inner) if hasattr(inner, "eqns") else ()

    soft = tg.Selection(lambda x: jax.nn.sigmoid(x[0]), 2)
    value = lambda loc: tg.log_probability(loc, COVARIANCE, soft, METHOD).log_prob
    found = list(columns(jax.make_jaxpr(jax.jit(jax.value_and_grad(value)))(MEAN).jaxpr))
    assert found and max(found) <= 2


@pytest.mark.full
def test_soft_and_ragged_selections():
    """A completeness that falls off softly has a closed form; a set is an integral by SciPy."""
    soft = tg.Selection(lambda x: jax.scipy.stats.norm.cdf((x[0] - 0.5) / 0.3), 2)
    log_prob, stderr = tg.log_probability(MEAN, COVARIANCE, soft, METHOD)
    truth = stats.norm.logcdf((MEAN[0] - 0.5) / np.hypot(1.0, 0.3))
    assert abs(log_prob - truth) < 4 * stderr < 0.01

    disc, box = tg.Ball([0.0, 0.0], 1.0), tg.Box([-1.0, -2.0], [2.0, 2.0])
    holed = tg.Selection(lambda x: box.contains(x) & ~disc.contains(x), 2)
    log_prob, stderr = tg.log_probability(MEAN, COVARIANCE, holed, METHOD)
    density = stats.multivariate_normal(MEAN, COVARIANCE).pdf
    inside = integrate.dblquad(
        lambda y, x: density([x, y]), -1, 1, lambda x: -((1 - x * x) ** 0.5),
        lambda x: (1 - x * x) ** 0.5, epsabs=1e-8,
    )[0]  # fmt: skip
    whole = np.exp(tg.log_probability(MEAN, COVARIANCE, box).log_prob)
    assert abs(log_prob - np.log(whole - inside)) < 4 * stderr < 0.02
    moments = tg.truncated_moments(MEAN, COVARIANCE, holed, METHOD)
    draws = np.random.default_rng(0).multivariate_normal(MEAN, COVARIANCE, 200_000)
    kept = draws[np.asarray(holed.contains(jnp.asarray(draws)))]
    error = np.hypot(moments.mean_stderr, kept.std(0) / len(kept) ** 0.5)
    assert np.all(np.abs(moments.mean - kept.mean(0)) < 4 * error)


@pytest.mark.full
def test_regions_that_nothing_reaches_are_not_known():
    nothing = tg.Selection(lambda x: x[0] > jnp.inf, 1)
    assert tg.log_probability([0.0], [[1.0]], nothing, METHOD).stderr == jnp.inf
    everything = tg.Ball([0.0, 0.0], 30.0)
    log_prob, stderr = tg.log_probability([0.0, 0.0], jnp.eye(2), everything, METHOD)
    assert abs(log_prob) < 4 * stderr < 4e-3
    assert np.isnan(tg.log_probability([jnp.nan, 0.0], jnp.eye(2), everything, METHOD).log_prob)


@pytest.mark.full
def test_float32_and_batches():
    centers = np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)
    balls = tg.Ball(centers, np.float32(1.0))
    many = tg.log_probability(np.zeros(2, np.float32), np.eye(2, dtype=np.float32), balls, METHOD)
    assert many.log_prob.dtype == np.float32
    for log_prob, stderr, distance in zip(*many, (0.0, 2**0.5)):
        assert abs(log_prob - log_noncentral(1.0, distance, 2)) < 4 * stderr < 0.03


@pytest.mark.full
@pytest.mark.parametrize("distance", [10.0, 37.0])
def test_a_half_space_in_a_tail_that_only_says_yes_or_no(distance):
    """Its log probability is log Phi(-distance); no point says how close to the set it is."""
    half = tg.Selection(lambda x: x[0] - x[1] > distance * jnp.sqrt(2.0), 2, log_concave=True)
    log_prob, stderr = tg.log_probability(jnp.zeros(2), jnp.eye(2), half, METHOD)
    assert abs(log_prob - stats.norm.logsf(distance)) < 5 * stderr and stderr < 0.02


@pytest.mark.full
def test_a_selection_of_many_rows_keeps_its_budget(monkeypatch):
    spent = []
    original = Search._evaluated

    def counted(self, held, method, rows):
        spent.append(cost(method, self.problem) * len(rows))
        return original(self, held, method, rows)

    monkeypatch.setattr(Search, "_evaluated", counted)
    means = jnp.asarray(np.random.default_rng(0).normal(size=(64, 2)))
    outside = tg.Selection(lambda x: jnp.sum(x**2) > 1.0, 2)
    method = tg.Automatic(max_draws=2**22)
    log_prob, stderr = tg.log_probability(means, jnp.eye(2), outside, method)
    truth = stats.ncx2.logsf(1.0, 2, np.sum(np.asarray(means) ** 2, axis=1))
    assert np.all(np.abs(log_prob - truth) < 5 * stderr)
    assert sum(spent) <= 2**22
