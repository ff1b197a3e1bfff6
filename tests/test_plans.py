"""Plans of separation: sites or a tilt, narrow intervals, constraints that cannot vary, units."""

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from scipy import linalg, stats

import truncgauss as tg
from truncgauss.arrays.linalg import solve_lower, triangle
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.separation.planning import smallest_mass_first
from truncgauss.separation.twisting import sites_for

INF = np.inf
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


@FULL
@pytest.mark.parametrize("width", [1e-9, 1e-4, 1e-11])
def test_a_slab_beside_wide_limits(width):
    """And its slopes: d log P / d low = -d log P / d high = -1 / width at the slab, almost."""
    matrix, box, truth = slab(width)
    loc = np.zeros(5)
    ways = [
        tg.log_probability(loc, matrix, box),
        tg.log_probability(loc, matrix, box, tg.Separation(twisted=False)),
        jax.jit(lambda loc: tg.log_probability(loc, matrix, box))(loc),
    ]
    for log_prob, stderr in ways:
        assert abs(log_prob - truth) < QUANTILE * stderr + 1e-5 and stderr < 1e-3
    assert width != 1e-9 or abs(truth + 21.8628) < 1e-3
    value = lambda low, high: tg.log_probability(loc, matrix, tg.Box(low, high)).log_prob
    low, high = jax.grad(value, (0, 1))(box.low, box.high)
    if width == 1e-9:
        width = box.high[2] - box.low[2]
        np.testing.assert_allclose([low[2] * width, high[2] * width], [-1.0, 1.0], rtol=1e-6)
    assert np.all(np.isfinite(low)) and np.all(high[np.array([0, 1, 3, 4])] == 0)


@FULL
def test_under_a_trace_what_sites_cannot_do_the_tilt_does():
    """Two coordinates of correlation 0.999 held apart, among six others: sites are refused."""
    matrix = 0.4 * np.ones((8, 8)) + 0.6 * np.eye(8)
    matrix[0, 1] = matrix[1, 0] = 0.999
    low, high = np.full(8, -INF), np.full(8, INF)
    low[0], high[1], low[2:] = 0.8, 0.5, 0.0
    box, loc, tilted = tg.Box(low, high), np.zeros(8), tg.Separation(twisted=False)
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
    zero, matrix = np.zeros(2), np.array([[1.0, correlation], [correlation, 1.0]])
    limits, sites = GaussianLimits(zero, np.full(2, INF), zero, matrix, None), jax.jit(sites_for)
    weak, full = (sites(limits, share).precision for share in (0.1, 1.0))
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

HALF = np.array([[1.0, 0.5], [0.5, 1.0]])


@FULL
def test_limits_that_were_infinite_when_held():
    """Orthants of correlation 1/2 have 1/3, and d log P / d low = -3 phi(0) / 2 for each limit.

    The plan is that of P(X_1 > 0), which has no need of X_2.
    """
    loc = np.zeros(2)
    held = tg.Automatic().hold(loc, HALF, tg.Box([0.0, -INF], INF))

    def value(low):
        return tg.log_probability(loc, HALF, tg.Box(low, jnp.full(2, INF)), held).log_prob

    rows = np.array([[0.0, 0.0], [0.0, -INF], [-INF, 0.0], [-INF, -INF]])
    truth = np.log([1 / 3, 1 / 2, 1 / 2, 1.0])
    slope = stats.norm.pdf(0) * np.array([[1.5, 1.5], [2.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose([value(low) for low in rows], truth, atol=1e-12)
    slopes = jax.jit(jax.vmap(jax.value_and_grad(value)))(rows)
    np.testing.assert_allclose(slopes[0], truth, atol=1e-12)
    np.testing.assert_allclose(slopes[1], -slope, atol=1e-12)
    np.testing.assert_allclose(jax.grad(value)(rows[0]), -slope[0], atol=1e-12)
    assert np.isnan(jax.jit(value)(np.array([0.0, np.nan])))
    box = tg.Box(loc, INF)
    law = tg.TruncatedMultivariateNormal(loc, HALF, region=box, method=held)
    inside = stats.multivariate_normal([0, 0], HALF).logpdf([1, 1]) + np.log(3)
    assert abs(law.log_prob(np.ones(2)) - inside) < 1e-12
    assert "-1.098612289" in tg.explain(loc, HALF, box, held)


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


# --- Factors of roots -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 101])
def test_a_triangle_is_solved_as_by_lapack(rows):
    """Of units that differ by orders of magnitude, which forward substitution does not mix."""
    random = np.random.default_rng(rows)
    factor = np.tril(random.normal(size=(rows, rows)) / rows, -1) + np.eye(rows)
    factor *= 10.0 ** random.uniform(-150, 150, (rows, 1))
    for right in (np.arange(1, rows + 1), random.normal(size=(rows, 3)), np.full(rows, np.nan)):
        kept = right.copy()
        expected = linalg.solve_triangular(factor, right, lower=True, check_finite=False)
        np.testing.assert_allclose(solve_lower(factor, right), expected, rtol=1e-12)
        np.testing.assert_array_equal(right, kept)
    with pytest.raises(np.linalg.LinAlgError):
        solve_lower(np.zeros((rows, rows)), np.ones(rows))


@FULL
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
