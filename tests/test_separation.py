"""Separation against closed forms, its own error bar, finite differences and an unrolled twin."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import PROBLEMS, autoregression, equal_correlations, problem
from scipy import integrate, special, stats

import truncgauss as tg
from truncgauss.separation.weights import summary, summed

# Two-sided, 15 degrees of freedom: one false alarm in 10^4 for each of about a hundred problems.
INF = math.inf
T_QUANTILE = stats.t.ppf(1 - 0.5e-4, 15)


def stacked(problems):
    """Problems of equal dimension as a batch: loc, covariance and region."""
    low, high = (np.stack([getattr(p, name) for p in problems]) for name in ("low", "high"))
    covariance = np.stack([p.covariance() for p in problems])
    return np.zeros_like(low), covariance, tg.Box(low, high)


def of_dimension(d):
    return [p for p in PROBLEMS if p.dimension == d and "singular" not in p.tags]


# --- Accurate and honest --------------------------------------------------------------------------


@pytest.mark.slow
def test_sites_of_duplicates_in_a_tail_are_weakened():
    """At full precision they would leave weights without a variance, and their spread says little.

    Twenty coordinates of correlation 0.9999, all above 5, against the integral over their factor.
    The root mean square of the error is 5.7e-4 (8.4e-4 by a tilt of the same forces); the minimax
    tilt has 1.2e-4 here, but three times larger errors over random problems.
    """
    d, rho = 20, 0.9999
    zero, box = np.zeros(d), tg.Box(np.full(d, 5.0), INF)
    factor = tg.LowRank(np.full((d, 1), math.sqrt(rho)), np.full(d, 1 - rho))
    truth = tg.log_probability(zero, factor, box, tg.Exact()).log_prob
    covariance, method = equal_correlations(d, rho), tg.Separation()
    call = jax.jit(lambda key: tg.log_probability(zero, covariance, box, method, key))
    found = [call(key) for key in jax.random.split(jax.random.key(5), 48)]
    error = np.array([estimate.log_prob - truth for estimate in found])
    stated = np.array([estimate.stderr for estimate in found])
    assert np.sqrt(np.mean(error**2)) < 8e-4
    assert np.all(np.abs(error) < T_QUANTILE * stated)


@pytest.mark.full
def test_few_points_that_carry_all_the_weight_are_no_basis():
    p = problem("order-100")
    region = tg.Box(p.low, p.high)
    method = tg.Separation(num_points=64, num_replicates=4, tilted=False)
    assert tg.log_probability(p.loc, p.covariance(), region, method).stderr == jnp.inf


# --- Laws -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_held_batch_equals_the_batch_and_its_bound_is_above():
    problems = of_dimension(5)
    loc, covariance, region = stacked(problems)
    tilted = tg.Separation(twisted=False).hold(loc, covariance, region)
    assert tilted.plan.converged.all()
    truth = np.array([p.log_prob for p in problems])
    assert np.all(tilted.plan.bound >= truth - 1e-9 * np.abs(truth))
    assert np.all(tilted.plan.tilt[:, -1] == 0)  # nothing would make up for it
    held = tg.Separation().hold(loc, covariance, region)
    assert held.plan.converged.all()
    batch = tg.log_probability(loc, covariance, region, tg.Separation())
    again = tg.log_probability(loc, covariance, region, held)
    np.testing.assert_allclose(batch.log_prob, again.log_prob, rtol=1e-12)
    for i in (7, 18):
        box = tg.Box(region.low[i], region.high[i])
        row = tg.log_probability(loc[i], covariance[i], box, tg.Separation())
        np.testing.assert_allclose(batch.log_prob[i], row.log_prob, rtol=1e-11)


# --- More constraints than variables, and singular laws -------------------------------------------


def polyhedra():
    """Name, mean, covariance, region, log P."""
    unbounded = lambda n: (np.zeros(n), np.full(n, np.inf))
    order = np.diff(np.eye(4), axis=0)
    yield "order", np.eye(4), tg.Polyhedron(order, *unbounded(3)), -math.log(24)
    sides = tg.Polyhedron(np.vstack([order, np.eye(4)]), *unbounded(7))
    yield "order of positives", np.eye(4), sides, -math.log(24 * 16)
    turn = np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2)
    square = tg.Polyhedron(np.vstack([turn, -turn]), np.full(4, -np.inf), np.full(4, 1.0))
    yield "turned square", np.eye(2), square, 2 * math.log(math.erf(math.sqrt(0.5)))
    circle = np.arange(16) * math.pi / 8
    normals = np.stack([np.cos(circle), np.sin(circle)], 1)
    polygon = tg.Polyhedron(normals, np.full(16, -np.inf), np.full(16, 1.5))
    # In polar coordinates: rays end where a side is met.
    ray = lambda t: -math.expm1(-0.5 * (1.5 / math.cos(t)) ** 2)
    share = integrate.quad(ray, -math.pi / 16, math.pi / 16)[0] * 16 / (2 * math.pi)
    yield "polygon", np.eye(2), polygon, math.log(share)
    sums = np.array([[1, 0.5, 1.5], [0.5, 1, 1.5], [1.5, 1.5, 3.0]])
    below = lambda x: stats.norm.cdf((1.5 - 1.5 * x) / 0.75**0.5)
    above = lambda x: stats.norm.cdf(-0.5 * x / 0.75**0.5)
    inside = lambda x: stats.norm.pdf(x) * (below(x) - above(x))
    total = math.log(integrate.quad(inside, 0, 1.5, epsabs=1e-12)[0])
    yield "sum of two", sums, tg.Box([0.0, 0.0, 0.0], [np.inf, np.inf, 1.5]), total
    yield "one factor", np.ones((3, 3)), tg.Box(np.full(3, -np.inf), 1.0), -0.1727537790234499
    known = tg.Box([0.0, -1.0], [np.inf, 1.0])
    yield "a known variable", np.diag([1.0, 0.0]), known, -math.log(2)


@pytest.mark.quick("a known variable")
@pytest.mark.parametrize(
    ("covariance", "region", "log_prob"),
    [pytest.param(*case, id=name) for name, *case in polyhedra()],
)
def test_polyhedra_and_singular_laws(covariance, region, log_prob):
    method = tg.Separation(num_points=256, tilted=len(covariance) == 4)
    loc = np.zeros(len(covariance))
    estimate = tg.log_probability(loc, covariance, region, method)
    assert abs(estimate.log_prob - log_prob) <= T_QUANTILE * estimate.stderr + 1e-9
    assert estimate.stderr < 1e-3


@pytest.mark.full
def test_derivatives_of_a_polygon_in_every_mode():
    """Of first order those of its own points, of second order about those of the exact integral."""
    covariance = np.array([[1.0, 0.3], [0.3, 1.0]])
    polygon = tg.Polyhedron([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], -1.0, [INF, INF, 3.0])
    method = tg.Separation(num_replicates=2).hold(np.zeros(2), covariance, polygon)
    log_prob = lambda loc, by: tg.log_probability(loc, covariance, polygon, by).log_prob
    loc, h, held = np.array([0.1, -0.2]), 1e-5, jax.jit(lambda loc: log_prob(loc, method))
    slope = [(held(loc + h * e) - held(loc - h * e)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(jax.jit(jax.grad(held))(loc), slope, rtol=1e-6)
    exact = jax.hessian(lambda loc: log_prob(loc, tg.Exact()))(loc)
    for first, second in ((jax.jacrev, jax.jacfwd), (jax.jacrev, jax.jacrev)):
        found = jax.jit(second(first(held)))(loc)
        np.testing.assert_allclose(found, exact, atol=5e-3)


# --- Edges ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_of_the_gradient_grows_with_paths_not_with_steps():
    """Automatic differentiation through the recursion would keep d arrays of (d, n)."""
    d, n = 60, 512
    method = tg.Separation(num_points=n, num_replicates=1, tilted=False)

    def value(loc):
        region = tg.Box(jnp.full(d, -1.0), jnp.inf)
        return tg.log_probability(loc, jnp.asarray(autoregression(d)), region, method).log_prob

    compiled = jax.jit(jax.grad(value)).lower(jnp.zeros(d)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 30 * 8 * d * n


def test_a_few_heavy_weights_leave_the_error_unknown():
    """Weights of tail index k, u^-k for u uniform: at k = 1 their mean is infinite."""
    u = (np.arange(1024) + np.random.default_rng(0).uniform(size=(16, 1))) / 1024

    excess = np.sin(1e3 * u)

    @jax.jit
    def both(logs):
        def sums(part):
            x = excess[:, part].ravel()[None, None]
            return summed(logs[:, part].ravel(), jnp.zeros(()), x - 2.0, x - 9.0, 16)

        halves = [sums(slice(0, 512)), sums(slice(512, None))]
        whole = sums(slice(None))
        return whole, halves[0].plus(halves[1]), summary(whole, 1024, jnp.zeros(())).stderr

    def known(k):
        whole, pooled, stderr = both(-k * np.log(u))
        for a, b in zip(whole, pooled):
            np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)
        assert np.median(whole.inverse) < 0.1  # ten effective points, at k = 1 too
        return np.mean(np.isfinite(stderr))

    assert known(0.0) == known(0.3) == 1.0
    assert known(0.5) > 0.5 and known(1.0) == 0.0


@pytest.mark.quick("True")
@pytest.mark.parametrize("twisted", [True, False])
def test_a_limit_that_no_point_meets_is_part_of_the_error(twisted):
    """A near-duplicate of a variable above 0 is below h, beside an independent variable.

    What lies beyond h is a share of 2 Phi(-h): thousands of points meet it, or one, or none. Where
    they do not, they are equal in weight and state no error; far away there is none.
    """
    covariance = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-4, 0.0], [0.0, 0.0, 1.0]])
    levels = np.array([1.0, 3.0, 3.7, 3.9, 4.1, 4.3, 4.6, 5.0, 6.0, 12.0, 40.0, 1e9])
    low = jnp.array([0.0, -jnp.inf, -0.5])

    @jax.jit
    @jax.vmap
    def estimated(level):
        box = tg.Box(low, jnp.stack([jnp.inf, level, 2.0]))
        method = tg.Separation(twisted=twisted)
        return tg.log_probability(jnp.zeros(3), covariance, box, method)

    pairs = tg.Box(low[:2], np.c_[np.full(12, INF), levels])
    truth = tg.log_probability(np.zeros(2), covariance[:2, :2], pairs, tg.Exact()).log_prob
    truth += np.log(special.ndtr(2.0) - special.ndtr(-0.5))
    log_prob, stderr = estimated(levels)
    assert np.all(np.abs(log_prob - truth) <= 4 * stderr + 1e-9), (log_prob - truth, stderr)
    assert np.all(stderr < 3e-4) and np.all(stderr[levels > 8.0] < 1e-6)


@pytest.mark.full
def test_what_the_twist_loses_to_rounding_is_part_of_the_error():
    """All intervals are narrow: log P is the log density there plus the logs of the widths."""
    d, rng = 6, np.random.default_rng(4)
    loc, low = rng.normal(size=d), rng.normal(size=d)
    high = low + 10.0 ** rng.uniform(-11, -8, d)
    covariance = 1.3 * 0.8 ** np.abs(np.arange(d)[:, None] - np.arange(d))
    factor = np.linalg.cholesky(covariance)
    z = np.linalg.solve(factor, 0.5 * (low + high) - loc)
    log_density = -0.5 * z @ z - np.log(np.diagonal(factor)).sum() - 0.5 * d * np.log(2 * np.pi)
    truth = log_density + np.log(high - low).sum()
    found = tg.log_probability(loc, covariance, tg.Box(low, high), tg.Separation())
    assert abs(found.log_prob - truth) < 4 * found.stderr < 1e-8


def second_derivatives(loc, covariance, region, method=None):
    """Those of log P in the mean, from the truncated covariance C: S^-1 (C - S) S^-1."""
    inner = tg.truncated_moments(loc, covariance, region, method or tg.Separation()).covariance
    inverse = np.linalg.inv(covariance)
    return inverse @ (np.asarray(inner) - covariance) @ inverse


def many_faces():
    rng = np.random.default_rng(3)
    factor, faces = rng.normal(size=(4, 4)), rng.normal(size=(8, 4))
    faces /= np.linalg.norm(faces, axis=1)[:, None]
    return 0.3 * rng.normal(size=4), factor @ factor.T / 4 + 0.3 * np.eye(4), faces


@pytest.mark.full
def test_second_derivatives_with_more_faces_than_dimensions_are_those_of_the_moments():
    loc, covariance, faces = many_faces()

    def log_prob(move, shift, stretch):
        region = tg.Polyhedron(faces, -1.2 + shift, 0.9 + shift)
        return tg.log_probability(loc + move, covariance * stretch, region, tg.Separation())[0]

    hessian = jax.jit(jax.hessian(log_prob, (0, 1, 2)))
    (by_loc, mixed, scaled), (_, limits, _), (again, _, twice) = hessian(
        jnp.zeros(4), jnp.zeros(8), jnp.ones(())
    )
    region = tg.Polyhedron(faces, np.full(8, -1.2), np.full(8, 0.9))
    expected = second_derivatives(loc, covariance, region)
    np.testing.assert_allclose(by_loc, expected, atol=0.01)
    # A shift of the region by faces @ t is one of the mean by -t.
    np.testing.assert_allclose(mixed @ faces, -expected, atol=0.01)
    assert np.all(np.isnan(limits))
    # With the covariance c S, log P has the derivative tr(S^-1 M / c - I) / 2 c in c.
    step = 0.05

    def slope(c):
        moments = tg.truncated_moments(loc, c * covariance, region, tg.Separation(2**13))
        away = np.asarray(moments.mean) - loc
        second = np.asarray(moments.covariance) + np.outer(away, away)
        return (np.trace(np.linalg.solve(covariance, second)) / c - 4) / (2 * c)

    np.testing.assert_allclose(twice, (slope(1 + step) - slope(1 - step)) / (2 * step), atol=0.03)
    np.testing.assert_allclose(scaled, again, atol=1e-12)


@pytest.mark.full
def test_many_points_have_second_derivatives():
    loc, covariance, _ = many_faces()
    box = tg.Box([-1.0, -1.0, -np.inf, -0.5], [1.0, np.inf, 2.0, 0.5])
    log_prob = lambda x, method: tg.log_probability(x, covariance, box, method).log_prob
    few = jax.jit(jax.hessian(log_prob))(loc, tg.Separation())
    many = jax.jit(jax.hessian(log_prob))(loc, tg.Separation(2**16))
    np.testing.assert_allclose(many, few, atol=1e-4)
    np.testing.assert_allclose(few, second_derivatives(loc, covariance, box), atol=1e-3)


@pytest.mark.full
def test_second_derivatives_of_singular_covariances_are_nan():
    root = np.random.default_rng(0).normal(size=(5, 3))
    box = tg.Box(-np.ones(5), np.ones(5))
    log_prob = lambda x: tg.log_probability(x, root @ root.T, box, tg.Separation(256)).log_prob
    slope = jax.grad(log_prob)(np.zeros(5))
    assert np.any(slope != 0)
    assert np.all(np.isnan(jax.hessian(log_prob)(np.zeros(5))[slope != 0]))
