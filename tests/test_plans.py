"""Plans of separation: sites or a tilt, narrow intervals, constraints that cannot vary, units."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from experiments.large_dense.dense_blocks import DenseBlocks
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import triangle
from truncgauss.separation.ordering import smallest_mass_first
from truncgauss.separation.twisting import sites_for

INF = jnp.inf
FULL = pytest.mark.full
# False alarms of Student's distribution with 15 degrees of freedom: about one in a million.
QUANTILE = stats.t.ppf(1 - 0.5e-6, 15)


def matern(places) -> np.ndarray:
    lag = np.abs(np.subtract.outer(places, places))
    return (1 + 3 * lag) * np.exp(-3 * lag)


def slab(width: float):
    """Five places of a smooth field, all above -1, the third in a slab at 0.3; log P of it.

    The reference takes the density at the middle of the slab, times the probability of the others
    given that, by SciPy's own routine.
    """
    matrix = matern(np.linspace(0, 1, 5))
    low, high = np.full(5, -1.0), np.full(5, np.inf)
    low[2], high[2] = 0.3, 0.3 + width
    others = [0, 1, 3, 4]
    middle = 0.3 + 0.5 * width
    mean = matrix[others, 2] * middle
    given = matrix[np.ix_(others, others)] - np.outer(matrix[others, 2], matrix[2, others])
    rest = stats.multivariate_normal(mean, given, maxpts=400_000, seed=1)
    above = rest.cdf(np.full(4, np.inf), lower_limit=np.full(4, -1.0))
    log_prob = np.log(high[2] - low[2]) + stats.norm.logpdf(middle) + np.log(above)
    return matrix, tg.Box(low, high), log_prob


@pytest.mark.full
@pytest.mark.parametrize("width", [1e-9, *(pytest.param(w, marks=FULL) for w in (1e-4, 1e-11))])
def test_a_slab_beside_wide_limits(width):
    matrix, box, truth = slab(width)
    loc = jnp.zeros(5)
    ways = [
        tg.log_probability(loc, matrix, box),
        tg.log_probability(loc, matrix, box, tg.Separation(twisted=False)),
        jax.jit(lambda loc: tg.log_probability(loc, matrix, box))(loc),
    ]
    for log_prob, stderr in ways:
        assert abs(log_prob - truth) < QUANTILE * stderr + 1e-5 and stderr < 1e-3
    assert width != 1e-9 or abs(truth + 21.8628) < 1e-3


@FULL
def test_gradients_of_a_slab():
    """By the density at the slab: d log P / d low = -d log P / d high = -1 / width, almost."""
    matrix, box, _ = slab(1e-9)
    value = lambda low, high: tg.log_probability(jnp.zeros(5), matrix, tg.Box(low, high)).log_prob
    low, high = jax.grad(value, (0, 1))(box.low, box.high)
    width = box.high[2] - box.low[2]
    np.testing.assert_allclose([low[2] * width, high[2] * width], [-1.0, 1.0], rtol=1e-6)
    assert np.all(np.isfinite(low)) and np.all(high[jnp.array([0, 1, 3, 4])] == 0)


def opposed(gap: float):
    """Two coordinates of correlation 0.999 held apart, among six others: sites are refused."""
    matrix = 0.4 * np.ones((8, 8)) + 0.6 * np.eye(8)
    matrix[0, 1] = matrix[1, 0] = 0.999
    matrix[1, 2:] = matrix[2:, 1] = matrix[0, 2:]
    low, high = np.full(8, -np.inf), np.full(8, np.inf)
    low[0], high[1], low[2:] = 0.5 + gap, 0.5, 0.0
    return matrix, tg.Box(low, high)


@pytest.mark.full
def test_under_a_trace_what_sites_cannot_do_the_tilt_does():
    """A traced call, a held plan and the tilt alone agree on limits that oppose each other."""
    matrix, box = opposed(0.3)
    loc, tilted = jnp.zeros(8), tg.Separation(twisted=False)
    held = tg.Separation().hold(loc, matrix, box)
    ways = [
        jax.jit(lambda loc: tg.log_probability(loc, matrix, box))(loc),
        tg.log_probability(loc, matrix, box, held),
        tg.log_probability(loc, matrix, box, tilted),
    ]
    assert bool(held.plan.converged)
    for log_prob, stderr in ways:
        assert stderr < 0.01
        assert abs(log_prob - ways[-1].log_prob) < QUANTILE * np.hypot(stderr, ways[-1].stderr)


def test_a_held_plan_is_smooth_where_units_change():
    """A variance that passes a power of two changes its unit, and must change no digit."""
    base = jnp.asarray(matern(np.linspace(0, 1, 4)))
    box = tg.Box(jnp.array([-1.0, 0.2, -INF, 0.1]), jnp.array([INF, 0.7, 0.5, INF]))
    held = tg.Separation(256, 4).hold(jnp.zeros(4), base, box)
    value = jax.jit(lambda s: tg.log_probability(jnp.zeros(4), s * base, box, held).log_prob)
    slope = jax.jit(jax.grad(value))
    for s in (0.25, 0.5, 1.0, 2.0, 4.0):
        step = 1e-5 * s
        difference = (value(s + step) - value(s - step)) / (2 * step)
        np.testing.assert_allclose(difference, slope(s * (1 + 1e-9)), rtol=2e-6)
        np.testing.assert_allclose(slope(s * (1 - 1e-9)), slope(s * (1 + 1e-9)), rtol=1e-6)


@FULL
def test_nearly_parallel_rows():
    """Rows (1, 0, 0), (1, g, 0), (0, 0, 1), all positive: the wedge misses an angle of atan g."""
    for g in (1e-3, 3e-8, 1e-12):
        rows = jnp.array([[1.0, 0.0, 0.0], [1.0, g, 0.0], [0.0, 0.0, 1.0]])
        region = tg.Polyhedron(rows, jnp.zeros(3), INF)
        log_prob, stderr = tg.log_probability(jnp.zeros(3), jnp.eye(3), region, tg.Separation())
        truth = np.log(0.5 * (0.5 - np.arctan(g) / (2 * np.pi)))
        assert abs(log_prob - truth) < QUANTILE * stderr + 1e-12 and stderr < 1e-3


def test_a_site_that_is_flat_where_most_mass_lies_is_weak():
    """Its curvature there is rounding, and the ratio of two such numbers may be anything."""
    correlation = 1.0 / np.sqrt(1.0 + 1e-6)  # the second limit follows from the first, but for 1e-3
    zero, matrix = jnp.zeros(2), jnp.array([[1.0, correlation], [correlation, 1.0]])
    limits = GaussianLimits(zero, jnp.full(2, INF), zero, matrix, None)
    weak, full = (sites_for(limits, share).precision for share in (0.1, 1.0))
    np.testing.assert_allclose(weak, 0.1 * full, rtol=1e-12)


@FULL
@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_moments_of_a_polyhedron_whose_rows_have_any_length(scale):
    rows = np.array([[1.0, 1.0, 0.0], [0.5, -1.0, 1.0]])
    low, high = np.array([-0.5, 0.2]), np.array([1.0, np.inf])
    by = np.array([scale, 1.0])
    of = lambda by: tg.truncated_moments(
        [0.3, 0.0, -0.2], np.eye(3), tg.Polyhedron(rows * by[:, None], low * by, high * by)
    )
    one, other = of(np.ones(2)), of(by)
    np.testing.assert_allclose(other.mean, one.mean, atol=1e-12)
    np.testing.assert_allclose(other.covariance, one.covariance, atol=1e-12)


# --- Limits that a held plan did not have ---------------------------------------------------------

HALF = jnp.array([[1.0, 0.5], [0.5, 1.0]])


@pytest.fixture(scope="module")
def held_for_one_limit():
    """The plan of P(X_1 > 0), which has no need of X_2."""
    return tg.Automatic().hold(jnp.zeros(2), HALF, tg.Box([0.0, -INF], INF))


@pytest.mark.full
def test_limits_that_were_infinite_when_held(held_for_one_limit):
    """Orthants of correlation 1/2 have 1/3, and d log P / d low = -3 phi(0) / 2 for each limit."""
    held, loc = held_for_one_limit, jnp.zeros(2)

    def value(low):
        return tg.log_probability(loc, HALF, tg.Box(low, jnp.full(2, INF)), held).log_prob

    rows = jnp.array([[0.0, 0.0], [0.0, -INF], [-INF, 0.0], [-INF, -INF]])
    truth = np.log([1 / 3, 1 / 2, 1 / 2, 1.0])
    slope = stats.norm.pdf(0) * np.array([[1.5, 1.5], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    for ask in (value, jax.jit(value)):
        np.testing.assert_allclose([ask(low) for low in rows], truth, atol=1e-12)
    slopes = jax.jit(jax.vmap(jax.value_and_grad(value)))(rows)
    np.testing.assert_allclose(slopes[0], truth, atol=1e-12)
    np.testing.assert_allclose(slopes[1], -slope, atol=1e-12)
    np.testing.assert_allclose(jax.grad(value)(rows[0]), -slope[0], atol=1e-12)
    assert jnp.isnan(jax.jit(value)(jnp.array([0.0, jnp.nan])))


@pytest.mark.full
def test_a_law_and_a_report_with_limits_that_were_infinite_when_held(held_for_one_limit):
    box = tg.Box(jnp.zeros(2), INF)
    law = tg.TruncatedMultivariateNormal(jnp.zeros(2), HALF, region=box, method=held_for_one_limit)
    inside = stats.multivariate_normal([0, 0], np.asarray(HALF)).logpdf([1, 1]) + np.log(3)
    assert abs(law.log_prob(jnp.ones(2)) - inside) < 1e-12
    assert "-1.098612289" in tg.explain(jnp.zeros(2), HALF, box, held_for_one_limit)


@FULL
def test_a_chain_with_limits_that_were_infinite_when_held():
    """A held chain of which two places get limits is still integrated as a chain."""
    d = 6
    matrix = 0.7 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    low = np.array([0.0, -np.inf, 0.3, 0.1, -np.inf, -0.2])
    held = tg.Automatic().hold(np.zeros(d), matrix, tg.Box(low, INF))
    later = np.where(np.isinf(low), 0.25, low)
    result = tg.log_probability(np.zeros(d), matrix, tg.Box(later, INF), held)
    law = stats.multivariate_normal(np.zeros(d), matrix, maxpts=2_000_000, seed=1)
    truth = np.log(law.cdf(np.full(d, np.inf), lower_limit=later))
    assert result.stderr == 0 and abs(result.log_prob - truth) < 2e-5


# --- What cannot vary -----------------------------------------------------------------------------

FLAT = jnp.diag(jnp.array([1.0, 0.0]))
LOC = jnp.array([0.5, 0.3])


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "covariance"),
    [
        (tg.Automatic(), FLAT),
        (tg.Exact(), tg.ScaleTril(FLAT)),
        pytest.param(tg.Separation(64, 4), FLAT, marks=FULL),
        pytest.param(tg.Separation(64, 4), tg.ScaleTril(FLAT), marks=FULL),
    ],
)
def test_a_coordinate_without_variance(method, covariance):
    """It meets its limits or does not, and log P = log Phi(0.5) otherwise, slope and all."""
    truth = stats.norm.logcdf(0.5), np.exp(stats.norm.logpdf(0.5) - stats.norm.logcdf(0.5))

    def value(loc, low):
        box = tg.Box(jnp.stack([0.0, low]), jnp.array([INF, 1.0]))
        return tg.log_probability(loc, covariance, box, method)

    for run in (value, jax.jit(value)):
        log_prob, stderr = run(LOC, 0.0)
        assert abs(log_prob - truth[0]) < 1e-12 and not stderr > 1e-12
        assert run(LOC, 0.4) == (-INF, 0.0)
        slope = jax.grad(lambda loc, run=run: run(loc, 0.0).log_prob)(LOC)
        np.testing.assert_allclose(slope, [truth[1], 0.0], atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    "method",
    [
        tg.Separation(64, 2),
        pytest.param(DenseBlocks(64, 2), marks=FULL),
        pytest.param(tg.SequentialMonteCarlo(64, 2), marks=FULL),
        pytest.param(tg.ExpectationPropagation(), marks=FULL),
        pytest.param(tg.Automatic(), marks=FULL),
    ],
    ids=lambda method: type(method).__name__,
)
def test_an_empty_row_adds_nothing_to_the_gradient_of_a_masked_batch(method):
    """Under `jit`; its NaN went into the gradient in the covariance that all rows share."""
    d = 5
    matrix = 0.5 * jnp.eye(d) + 0.5
    low, high = jnp.zeros((2, d)), jnp.ones((2, d)).at[0, 1].set(0.0)

    def total(inputs):
        loc, matrix, low, high = inputs
        box = tg.Box(low, high)
        log_prob = tg.log_probability(loc, matrix, box, method).log_prob
        return jnp.sum(jnp.where(jnp.array([False, True]), log_prob, 0.0)), log_prob

    both = jax.jit(jax.grad(total, has_aux=True))((jnp.zeros(d), matrix, low, high))
    slopes, log_prob = both
    assert log_prob[0] == -INF and jnp.isfinite(log_prob[1])
    assert not jnp.any(slopes[2][0]) and not jnp.any(slopes[3][0])
    assert all(bool(jnp.all(jnp.isfinite(slope))) for slope in slopes)
    # By symmetry every limit of the other row has one slope, less than that of independence.
    assert jnp.all(slopes[2][1] < 0) and jnp.all(slopes[3][1] > 0)


@pytest.mark.full
def test_moments_and_draws_with_a_coordinate_without_variance():
    box = tg.Box(jnp.zeros(2), jnp.array([INF, 1.0]))
    moments = tg.truncated_moments(LOC, FLAT, box)
    mean = stats.truncnorm.mean(-0.5, np.inf, 0.5)
    variance = stats.truncnorm.var(-0.5, np.inf, 0.5)
    np.testing.assert_allclose(moments.mean, [mean, 0.3], atol=1e-12)
    np.testing.assert_allclose(moments.covariance, [[variance, 0.0], [0.0, 0.0]], atol=1e-12)
    draws = tg.truncated_samples(jax.random.key(0), LOC, FLAT, box, 200)
    assert jnp.all(draws[:, 1] == 0.3) and jnp.all(draws[:, 0] > 0)
    outside = tg.Box(jnp.array([0.0, 0.4]), jnp.array([INF, 1.0]))
    assert jnp.all(jnp.isnan(tg.truncated_moments(LOC, FLAT, outside).mean))


# --- Factors of roots -----------------------------------------------------------------------------


@pytest.mark.full
def test_the_triangle_of_a_root_and_its_derivatives():
    """L is the Cholesky factor of F F^T, Q orthonormal, and both move as F does."""
    root = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)))
    factor, q = triangle(root)
    np.testing.assert_allclose(factor, np.linalg.cholesky(root @ root.T), atol=1e-14)
    np.testing.assert_allclose(factor @ q.T, root, atol=1e-14)
    jax.test_util.check_grads(triangle, (root,), 2, modes=("fwd", "rev"), rtol=1e-5)
    (factor, q), (moved, turned) = jax.jvp(triangle, (root,), (root**2,))
    np.testing.assert_allclose(moved @ q.T + factor @ turned.T, root**2, atol=1e-12)


def test_an_interval_narrower_than_the_rounding_has_its_place_in_the_point():
    """From a point at the mean the rounding of log P was taken for a fiftieth of what it is."""
    low, high = np.float32([1.425858, -np.inf]), np.float32([1.4258581, -0.2])
    covariance = np.float32([[1.0, 0.99], [0.99, 1.0]])
    limits = GaussianLimits(*map(jnp.asarray, (low, high, np.zeros(2, "f"), covariance)), None)
    order, point = smallest_mass_first(limits)
    second = (-0.2 - 0.99 * low[0]) / np.sqrt(1 - 0.99**2)  # limit of the other, given the first
    assert np.all(order == np.arange(2)) and abs(point[0] - low[0]) < 1e-6
    assert second - 1 < point[1] < second < -11
