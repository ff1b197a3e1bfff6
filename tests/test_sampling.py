"""Draws have the law they claim, lie inside, and say so where they are not independent.

Margins are compared with exact distribution functions in the bands of Dvoretzky, Kiefer, Wolfowitz
and Massart, P(sup |F_n - F| > b) <= 2 exp(-2 n b^2). A test of k margins takes the b at which all
of them together give a false alarm once in 10^6 keys; a law whose distribution function is off by
2 b anywhere is missed as rarely.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

import truncgauss as tg
from tests.draw_errors import KEY, band, distance, gap, matrix, tabulated
from tests.referee import oracles
from truncgauss.probability.separation import Separation
from truncgauss.separation.plan import Plan

INF = np.inf


def first_margin(rho, low, high):
    """The distribution function of the first of two unit normals with correlation rho in a box."""
    start, end = max(low[0], -40.0), min(high[0], 40.0)
    if low[0] > 1:  # a tail: its scale is 1/low
        start, end = low[0], min(high[0], low[0] + 60.0 / low[0])
    if high[0] < -1:
        start, end = max(low[0], high[0] + 60.0 / high[0]), high[0]
    x = np.linspace(start, end, 20001)
    spread = math.sqrt(1 - rho**2)
    second = oracles.log_interval((low[1] - rho * x) / spread, (high[1] - rho * x) / spread)
    return tabulated(x, -0.5 * x * x + second)


# Correlation, low and high of two unit normals.
PAIRS = [
    *((0.5, (a, a), (INF, INF)) for a in (5.0, 10.0, 38.0, 100.0, 1000.0)),
    *((0.5, (-INF, -INF), (-a, -a)) for a in (5.0, 10.0, 38.0, 100.0, 1000.0)),
    (-0.9, (10.0, 10.0), (INF, INF)),
    (0.999, (-1.0, 0.0), (1.0, 1.0)),
    (-0.7, (-1.0, -INF), (0.5, 0.3)),
    (0.0, (1.0, -2.0), (1.5, INF)),
    (0.3, (-INF, -INF), (INF, INF)),
]


@pytest.mark.full
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_pairs_have_the_exact_margins_in_any_tail(dtype):
    covariance = jnp.asarray([matrix(rho) for rho, _, _ in PAIRS], dtype)
    low, high = (jnp.asarray([pair[i] for pair in PAIRS], dtype) for i in (1, 2))
    region, n = tg.Box(low, high), 20000
    draws = tg.truncated_draws(KEY, jnp.zeros(2, dtype), covariance, region, n)
    assert all(leaf.dtype == dtype for leaf in draws)
    assert draws.samples.shape == (n, len(PAIRS), 2)
    assert bool(region.contains(draws.samples).all())
    np.testing.assert_array_equal(draws.effective_sample_size, n)
    assert bool((draws.acceptance_rate > 0.25).all() & (draws.acceptance_rate <= 1).all())
    for k, (rho, below, above) in enumerate(PAIRS):
        end = max(-np.array(above).min(), np.array(below).max(), 0)
        end = 0.0 if math.isinf(end) else end
        # Neighbouring numbers a eps apart at a limit a, where the law's scale is 1/a.
        grain = 2 * end**2 * float(jnp.finfo(dtype).eps)
        for i, order in enumerate([(0, 1), (1, 0)]):
            cdf = first_margin(rho, [below[j] for j in order], [above[j] for j in order])
            assert distance(draws.samples[:, k, i], cdf) < band(n, 2 * len(PAIRS)) + grain


# Equal correlations 1/2, d = 10, the positive orthant: given the factor all are independent.
FACTORS = np.linspace(-9, 9, 1801)


def orthant_margin(x):
    """The distribution function of each coordinate."""
    root = math.sqrt(0.5)
    weights = np.exp(-0.5 * FACTORS**2 + 9 * log_ndtr(FACTORS))
    beyond = np.array([ndtr(FACTORS) - ndtr(FACTORS - y / root) for y in np.atleast_1d(x)])
    return beyond @ weights / (ndtr(FACTORS) @ weights)


@pytest.fixture(scope="module")
def orthant():
    d = 10
    covariance = tg.LowRank(jnp.full((d, 1), math.sqrt(0.5)), np.full(d, 0.5))
    loc, region = np.zeros(d), tg.Box(np.zeros(d), INF)
    tilted = Separation(twisted=False).hold(loc, covariance.covariance_matrix, region)
    return loc, covariance, region, tilted.plan


@pytest.mark.slow
def test_one_factor_has_the_exact_margins_and_a_wrong_law_is_caught(orthant):
    n = 40000
    *problem, plan = orthant
    draws = tg.truncated_draws(KEY, *problem, n, plan=plan)
    x = np.linspace(0, 8, 801)
    cdf = lambda y: np.interp(y, x, orthant_margin(x))
    samples = np.asarray(draws.samples)
    distances = [distance(samples[:, i], cdf) for i in range(10)]
    assert max(distances) < band(n, 10)
    assert 0.75 < draws.acceptance_rate < 0.79
    # The proposals, none refused, and half of the draws shrunk by a tenth are such wrong laws.
    proposals = tg.weighted_samples(KEY, *problem, n, plan=plan).samples
    assert max(distance(proposals[:, i], cdf) for i in range(10)) > 2 * band(n, 10)
    mixed = np.where(np.arange(n) % 2, 0.9, 1.0) * samples[:, 0]
    assert distance(mixed, cdf) > band(n, 10)
    # Exchangeable coordinates: differences are symmetric about zero.
    differences = samples[:, 0] - samples[:, 9]
    assert gap(differences, -differences) < 2 * band(n)


@pytest.mark.parametrize("dtype", [jnp.float64, pytest.param(jnp.float32, marks=pytest.mark.slow)])
def test_one_dimension_and_independent_coordinates(dtype):
    low, high = jnp.array([9.0, -INF, -10.0], dtype), jnp.array([10.0, -1000.0, -9.0], dtype)
    independent = tg.LowRank(np.zeros((3, 0), dtype), np.ones(3, dtype))
    draws = tg.truncated_draws(KEY, np.zeros(3, dtype), independent, tg.Box(low, high), 20000)
    assert draws.acceptance_rate == 1 and draws.effective_sample_size == 20000
    assert bool(tg.Box(low, high).contains(draws.samples).all())
    one = tg.Box(low[:, None], high[:, None])
    single = tg.truncated_samples(KEY, np.zeros(1, dtype), np.eye(1, dtype=dtype), one, 20000)
    assert single.shape == (20000, 3, 1) and single.dtype == dtype
    for samples in (draws.samples, single[..., 0]):
        for k, a in enumerate((9.0, 1000.0, 9.0)):
            t = np.linspace(0, min(1.0, 60 / a), 20001)
            cdf = tabulated(t, -a * t - 0.5 * t * t)
            excess = np.abs(np.asarray(samples[:, k], np.float64))
            excess = excess - a if k < 2 else excess - 9.0
            grain = 2 * a * a * float(jnp.finfo(dtype).eps)
            assert distance(excess, cdf) < band(20000, 6) + grain


@pytest.mark.slow
def test_one_dimension_moves_with_its_parameters():
    def mean(loc, low):
        box = tg.Box(jnp.array([low]), jnp.array([INF]))
        return tg.truncated_samples(KEY, jnp.array([loc]), jnp.eye(1), box, 20000).mean()

    # With a the standardised limit and h the hazard there, d mean/d limit = h (h - a).
    h = math.exp(-0.5 * 0.49 - 0.5 * math.log(2 * math.pi) - log_ndtr(-0.7))
    by_low = h * (h - 0.7)
    np.testing.assert_allclose(jax.grad(mean, (0, 1))(0.3, 1.0), [1 - by_low, by_low], atol=0.01)
    still = lambda loc: tg.truncated_samples(KEY, loc, [[0.0]], tg.Box([0.0], [1.0]), 3)[:, 0]
    np.testing.assert_array_equal(still([0.5]), [0.5] * 3)
    assert bool(jnp.isnan(jax.jit(still)(jnp.array([2.0]))).all())
    with pytest.raises(ValueError, match="empty"):
        still([2.0])
    tiny = tg.truncated_samples(KEY, jnp.array([1e6]), [[1e-12]], tg.Box([0.0], [1000.0]), 1000)
    assert bool((tiny <= 1000.0).all() & (tiny > 999.0).all())


# --- Plans, transforms, chains --------------------------------------------------------------------

PAIR = np.zeros(2), jnp.asarray(matrix(0.5)), tg.Box([0.0, 0.0], [INF, INF])


def untilted(bound) -> Plan:
    """Paths without a tilt weigh at most 1, so that 0 is a bound of their logs."""
    bound = jnp.asarray(bound)
    shape = bound.shape
    order, tilt = jnp.broadcast_to(np.arange(2), (*shape, 2)), np.zeros((*shape, 2))
    return Plan(order, tilt, bound, jnp.isfinite(bound), np.zeros(()))


def test_one_key_one_result_under_every_transform():
    plan = untilted(0.0)
    keys, locs = jax.random.split(KEY, 3), np.array([[0.0, 0.0], [-1.0, 0.0], [2.0, 1.0]])

    def draws(key, loc):
        return tg.truncated_draws(key, loc, *PAIR[1:], 500, plan=plan).samples

    eager = jnp.stack([draws(key, loc) for key, loc in zip(keys, locs)])
    np.testing.assert_array_equal(eager[0], draws(keys[0], locs[0]))
    np.testing.assert_allclose(eager, jax.jit(jax.vmap(draws))(keys, locs), atol=1e-12)
    assert len(np.unique(np.asarray(eager)[:2])) == 2000
    old_style = draws(jax.random.key_data(keys[0]), locs[0])
    np.testing.assert_array_equal(eager[0], old_style)


@pytest.mark.full
def test_any_bound_gives_the_law():
    """One too low by 2, the least of all, a valid one, two that refuse next to all, and none."""
    n, bounds = 4000, jnp.array([-2.0, 0.0, 1.0, 11.0, 40.0, INF])
    cdf = first_margin(0.5, (0.0, 0.0), (INF, INF))
    draws = tg.truncated_draws(KEY, jnp.zeros((6, 2)), *PAIR[1:], n, plan=untilted(bounds))
    np.testing.assert_array_equal(draws.effective_sample_size, n)
    rates = np.asarray(draws.acceptance_rate)
    np.testing.assert_allclose(rates[1:3], [1 / 3, 1 / 3 / math.e], rtol=0.1)
    # Weights up to 0 raise it to 2.
    assert 1 / 3 / math.e**2.1 < rates[0] < 1 / 3
    # Where none was accepted, draws from the Gaussian are, as often as they lie in the region.
    np.testing.assert_allclose(rates[3:], 1 / 3, rtol=0.1)
    for k in range(6):
        assert distance(draws.samples[:, k, 0], cdf) < band(n, 6)
    assert bool(PAIR[2].contains(draws.samples).all())


@pytest.mark.full
def test_chains_own_up():
    """Bounds that refuse next to all, and none, in a tail where the Gaussian has few draws too."""
    n, region = 4000, tg.Box([3.0, 3.0], [INF, INF])
    cdf = first_margin(0.5, (3.0, 3.0), (INF, INF))
    plan = untilted(jnp.array([40.0, INF]))
    with pytest.warns(UserWarning, match=r"2 row\(s\).*Hamiltonian chains"):
        draws = tg.truncated_draws(KEY, jnp.zeros((2, 2)), PAIR[1], region, n, plan=plan)
    sizes, rates = np.asarray(draws.effective_sample_size), np.asarray(draws.acceptance_rate)
    assert (sizes < n).all() and (sizes > 0.2 * n).all() and (rates < 1e-3).all()
    for k, size in enumerate(sizes):
        # What chains are worth is an estimate: half of it is granted.
        assert distance(draws.samples[:, k, 0], cdf) < band(size / 2, 2)
    assert bool(region.contains(draws.samples).all())


@pytest.mark.slow
def test_chains_that_mix_slowly_are_worth_little():
    """A long thin sliver across the whitened axes: steps of a ten-thousandth of its length."""
    wedge = tg.Polyhedron([[1.0, -1.0], [1.0, 1.0]], [0.0, -4.0], [0.001, 4.0])
    plan = untilted(INF)
    with pytest.warns(UserWarning, match="rate is 0 .*Hamiltonian chains"):
        draws = tg.truncated_draws(KEY, jnp.zeros(2), jnp.eye(2), wedge, 2000, plan=plan)
    assert bool(wedge.contains(draws.samples).all())
    assert draws.effective_sample_size < 2000


@pytest.mark.slow
def test_no_such_law_is_nan():
    """Equal, inverted, undefined and proper limits, known only while tracing."""
    low = jnp.array([[1.0, 2.0], [1.0, 0.0], [1.0, 0.0], [jnp.nan, 0.0], [0.0, 0.0]])
    high = jnp.array([[1.0, 2.0], [1.0, INF], [0.5, INF], [1.0, 1.0], [INF, INF]])

    def draws(low, high):
        return tg.truncated_draws(KEY, *PAIR[:2], tg.Box(low, high), 2000)

    samples, rate, size = jax.jit(jax.vmap(draws))(low, high)
    assert bool(jnp.isnan(samples[:4]).all()) and bool(jnp.isfinite(samples[4]).all())
    np.testing.assert_array_equal(size, [0, 0, 0, 0, 2000])
    assert bool(jnp.isnan(rate[:4]).all()) and rate[4] > 0.9


# --- Larger, slower -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_held_plan_gives_the_same_draws(orthant):
    *problem, plan = orthant
    first = tg.truncated_samples(KEY, *problem, 2000)
    second = tg.truncated_draws(KEY, *problem, 2000, plan=plan).samples
    np.testing.assert_allclose(first, second, rtol=1e-6)
    # A plan that looks ahead bounds no weights.
    loc, covariance, region = problem
    twisted = Separation().hold(loc, covariance.covariance_matrix, region).plan
    third = tg.truncated_draws(KEY, *problem, 2000, plan=twisted).samples
    np.testing.assert_array_equal(first, third)


def test_a_million_draws_are_all_different():
    box = tg.Box([0.0], [jnp.inf])
    draws = tg.truncated_samples(jax.random.key(0), [0.0], [[1.0]], box, 1_000_000)
    assert len(np.unique(draws)) == 1_000_000
    np.testing.assert_allclose(np.mean(draws), np.sqrt(2 / np.pi), atol=4e-3)


def smooth(d, width=0.1):
    """A covariance matrix that is singular but for rounding, and its factor."""
    x = np.arange(d) / d
    matrix = np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
    values, vectors = np.linalg.eigh(matrix)
    return matrix, vectors[:, values > 1e-12] * np.sqrt(values[values > 1e-12])


@pytest.mark.full
@pytest.mark.parametrize("form", ["box", "polyhedron", "batch", "jit", "repeated"])
def test_a_covariance_that_is_singular_but_for_rounding_has_draws(form):
    """Compared with rejection by a factor of low rank."""
    d, count = 40, 1000
    matrix, factor = smooth(d)
    if form == "repeated":
        index = np.repeat(np.arange(0, d, 2), 2)
        matrix, factor = matrix[np.ix_(index, index)], factor[index]
    box, loc, key = tg.Box(np.full(d, -1.0), np.full(d, 1.5)), np.zeros(d), jax.random.key(1)
    region = tg.Polyhedron(np.eye(d), box.low, box.high) if form == "polyhedron" else box
    draw = lambda loc: tg.truncated_samples(key, loc, matrix, region, count)
    draw = jax.jit(draw) if form == "jit" else draw
    samples = np.asarray(draw(np.zeros((2, d)))[:, 1] if form == "batch" else draw(loc))
    assert np.isfinite(samples).all() and box.contains(samples).all()
    points = np.random.default_rng(0).normal(size=(100_000, factor.shape[1])) @ factor.T
    points = points[np.all((points >= -1.0) & (points <= 1.5), axis=1)]
    error = np.sqrt(points.var(0) * (1 / count + 1 / len(points)))
    assert np.all(np.abs(samples.mean(0) - points.mean(0)) < 4.0 * error)
    np.testing.assert_allclose(samples.std(0), points.std(0), rtol=0.12)
    if form == "repeated":
        np.testing.assert_allclose(samples[:, ::2], samples[:, 1::2], atol=1e-5)
