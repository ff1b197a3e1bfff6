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


@pytest.mark.slow
@pytest.mark.parametrize(("d", "num_points"), [(5, 256), (20, 128)])
def test_error_bars_cover(d, num_points):
    """95 % intervals of t, 15 degrees of freedom, over 1,000 keys of each problem.

    Near-duplicates are no longer seen by so few points: their intervals may only be too wide.
    """
    quantile = stats.t.ppf(0.975, 15)

    @jax.jit
    def estimates(loc, covariance, box, method):
        answer = lambda key: tg.log_probability(loc, covariance, box, method, key)
        return jax.lax.map(answer, jax.random.split(jax.random.key(11), 1000))

    judged = [p for p in of_dimension(d) if not p.name.startswith("id-")]
    assert len(judged) >= 15
    for p in judged:
        box = tg.Box(jnp.asarray(p.low), jnp.asarray(p.high))
        loc, covariance = jnp.asarray(p.loc), jnp.asarray(p.covariance())
        method = tg.Separation(num_points).hold(loc, covariance, box)
        got = estimates(loc, covariance, box, method)
        covered = np.mean(np.abs(got.log_prob - p.log_prob) <= quantile * np.asarray(got.stderr))
        assert 0.92 <= covered <= (1.0 if "correlated" in p.tags else 0.98), (p.name, covered)


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
    """Reverse mode through a loop would lose the custom rules, and be NaN."""
    covariance = np.array([[1.0, 0.3], [0.3, 1.0]])
    polygon = tg.Polyhedron([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], -1.0, [INF, INF, 3.0])
    method = tg.Separation(num_points=16, num_replicates=2).hold(np.zeros(2), covariance, polygon)
    log_prob = lambda loc: tg.log_probability(loc, covariance, polygon, method).log_prob
    loc, h, gradient = np.array([0.1, -0.2]), 1e-5, jax.jit(jax.value_and_grad(log_prob))
    sides = [[gradient(loc + sign * h * e) for e in np.eye(2)] for sign in (1, -1)]
    (slope, moved) = zip(*[[(x - y) / (2 * h) for x, y in zip(*pair)] for pair in zip(*sides)])
    np.testing.assert_allclose(gradient(loc)[1], slope, rtol=1e-6)
    for first, second in ((jax.jacrev, jax.jacfwd), (jax.jacrev, jax.jacrev)):
        found = jax.jit(second(first(log_prob)))(loc)
        np.testing.assert_allclose(found, np.stack(moved), rtol=1e-7)


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
