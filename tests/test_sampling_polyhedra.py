"""Draws from polyhedra, balls and singular distributions follow naive rejection."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import truncgauss as tg
from tests.draw_errors import KEY, band, distance, gap, tabulated
from tests.problems import autoregression
from truncgauss.separation.plan import Plan

INF = np.inf


DIRECTIONS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, -1.0, 0.5]])

LOC = np.array([0.3, -0.2, 0.1])


def naive(covariance, accept, num_draws=400000):
    """Normal draws about LOC that a region lets through, by another generator."""
    rng = np.random.default_rng(7)
    x = rng.multivariate_normal(LOC, covariance, num_draws, method="eigh")
    return x[accept(x)]


def assert_same_law(draws, others):
    directions = DIRECTIONS[:, : draws.shape[-1]]
    bound = band(len(draws), len(directions) * 2) + band(len(others), len(directions) * 2)
    for direction in directions:
        assert gap(np.asarray(draws) @ direction, others @ direction) < bound


FEW = [[1.0, 1.0, 0.5]], [0.5], [1.0]

MANY = (
    [[1.0, 1.0, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
    [-0.5, -1.0, -INF, -1.0, -1.0],
    [1.0, 1.0, 0.5, INF, 1.0],
)


def given(num_rows: int, rank: int) -> Plan:
    """Paths without a tilt, in the given order, the first rows of which make the triangle."""
    zero = np.zeros(())
    return Plan(np.arange(num_rows), np.zeros(rank), zero, np.ones((), bool), zero)


CASES = {
    "fewer rows": (FEW, None),
    "more rows": (MANY, given(5, 3)),
    "more rows, tilted": (MANY, None),
}


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_polyhedra_against_naive_rejection(case):
    rows, plan = CASES[case]
    region = tg.Polyhedron(*(jnp.asarray(part) for part in rows))
    covariance = 0.6 * np.eye(3) + 0.4
    draws = tg.truncated_draws(KEY, LOC, covariance, region, 8000, plan=plan)
    assert bool(region.contains(draws.samples).all())
    assert draws.effective_sample_size == 8000
    matrix, low, high = (np.array(part) for part in rows)
    inside = lambda x: np.all((x @ matrix.T >= low) & (x @ matrix.T <= high), axis=1)
    assert_same_law(draws.samples, naive(covariance, inside))


@pytest.mark.full
def test_singular_covariance_against_naive_rejection():
    loadings = np.array([[1.0, 0.0], [0.5, 1.0], [1.5, 1.0]])  # the third is the sum of two
    covariance = loadings @ loadings.T
    region = tg.Box([-0.5, -1.0, 0.0], [1.0, 1.0, 1.0])
    draws = tg.truncated_draws(KEY, LOC, covariance, region, 8000, plan=given(3, 2)).samples
    assert bool(region.contains(draws).all())
    np.testing.assert_allclose(draws @ np.array([1, 1, -1]), LOC @ [1, 1, -1], atol=1e-12)
    inside = lambda x: np.all((x >= region.low) & (x <= region.high), axis=1)
    assert_same_law(draws, naive(covariance, inside))


@pytest.mark.parametrize("away", [1e-3, 3.0, 20.0, 400.0])
def test_balls_have_the_exact_margins_in_any_tail(away):
    """Of a unit disc: the first coordinate's density times the mass of its chord."""
    scale = 30.0 if away < 1 else 1.0
    disc = tg.Ball([away, 0.0], 1.0)
    covariance = scale**2 * np.eye(2)
    draws = tg.truncated_draws(KEY, np.zeros(2), covariance, disc, 4000)
    assert bool(disc.contains(draws.samples).all()) and draws.effective_sample_size == 4000
    assert draws.acceptance_rate > 0.015
    # From the near end, where the density of a tail falls as exp(-away t).
    t = np.concatenate([[0.0], np.geomspace(1e-9, 2.0, 40_001)])
    half = np.sqrt(t * (2.0 - t)) / scale
    with np.errstate(divide="ignore"):
        log_density = np.log(special.erf(half / math.sqrt(2)))
    log_density -= ((away - 1.0) * t + 0.5 * t * t) / scale**2
    cdf = tabulated(t, log_density)
    assert distance(draws.samples[:, 0] - (away - 1.0), cdf) < band(4000)


def test_an_ellipsoid_too_far_for_draws_says_so():
    far = tg.Ellipsoid([1e6, 0.0, 0.0], np.diag([1.0, 4.0, 2.0]))
    with pytest.warns(UserWarning, match="NaN"):
        draws = tg.truncated_draws(KEY, LOC, np.eye(3), far, 1000)
    assert draws.effective_sample_size < 1000 and draws.acceptance_rate < 1e-3


@pytest.mark.slow
def test_a_long_chain_is_not_hopeless_and_a_longer_one_says_so():
    region = lambda d: tg.Box(jnp.zeros(d), INF)
    draws = tg.truncated_draws(KEY, jnp.zeros(100), autoregression(100, 0.9), region(100), 2000)
    assert draws.effective_sample_size == 2000 and 0.05 < draws.acceptance_rate < 0.08
    with pytest.warns(UserWarning, match="acceptance rate is .*Hamiltonian chains"):
        late = tg.truncated_draws(KEY, jnp.zeros(400), autoregression(400, 0.9), region(400), 1000)
    assert 0 < late.effective_sample_size < 1000
    assert bool(region(400).contains(late.samples).all())
    # Far from its ends the longer chain has the law of the shorter one.
    middle, other = np.asarray(draws.samples[:, 50]), np.asarray(late.samples[:, 200])
    assert gap(middle, other) < band(2000) + band(float(late.effective_sample_size) / 2)


@pytest.mark.full
def test_what_does_not_vary_stays_where_it_is():
    box, none = tg.Box([-1.0, -1.0], [1.0, 1.0]), jnp.zeros((2, 2))
    draws = tg.truncated_samples(KEY, jnp.array([0.5, 0.2]), none, box, 10)
    np.testing.assert_array_equal(draws, np.full((10, 2), [0.5, 0.2]))
    draws = tg.truncated_samples(KEY, jnp.array([0.5, 0.2]), none.at[1, 1].set(1.0), box, 4000)
    np.testing.assert_array_equal(draws[:, 0], 0.5)
    x = np.linspace(-1, 1, 20001)
    assert distance(draws[:, 1], tabulated(x, -0.5 * (x - 0.2) ** 2)) < band(4000)
    with pytest.raises(ValueError, match=r"meets the constraints \[0\] of the Box"):
        tg.truncated_samples(KEY, jnp.array([2.0, 0.2]), none.at[1, 1].set(1.0), box, 10)


@pytest.mark.full
@pytest.mark.parametrize("df", [INF, 4.0])
def test_an_empty_region_is_refused_and_nan_while_tracing(df):
    first = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    empty = tg.Polyhedron(first, [-INF, -INF, 1.0], [0.0, 2.0, INF])
    sample = lambda region: tg.truncated_samples(KEY, jnp.zeros(2), jnp.eye(2), region, 3, df=df)
    with pytest.raises(ValueError, match=r"is empty: .* constraints \[0, 2\] of the Polyhedron"):
        sample(empty)
    assert bool(jnp.isnan(jax.jit(sample)(empty)).all())
    both = tg.Polyhedron(first, [-INF, -INF, 1.0], [[2.0, 2.0, INF], [0.0, 2.0, INF]])
    with pytest.raises(ValueError, match=r"is empty in row \[1\]"):
        sample(both)
    # Unlikely, but not empty.
    far = tg.Polyhedron([[1.0, 0.0], [1.0, 1.0]], [37.0, -INF], [INF, 40.0])
    assert tg.log_probability(jnp.zeros(2), jnp.eye(2), far).log_prob < math.log(1e-299)
    assert bool(far.contains(sample(far)).all())


@pytest.mark.full
def test_a_singular_covariance_can_leave_a_region_empty():
    box = lambda low: tg.Box([0.0, low], [1.0, 3.0])
    sample = lambda region: tg.truncated_samples(KEY, jnp.zeros(2), jnp.ones((2, 2)), region, 3)
    with pytest.raises(ValueError, match=r"constraints \[0, 1\] of the Box"):
        sample(box(2.0))
    assert bool(box(0.5).contains(sample(box(0.5))).all())


@pytest.mark.full
def test_rows_spread_over_devices_are_the_same_draws():
    covariance = tg.LowRank(jnp.full((10, 1), math.sqrt(0.5)), jnp.full(10, 0.5))
    region = tg.Box(jnp.zeros(10), INF)
    locs = jnp.linspace(-1.0, 1.0, 8)[:, None] * jnp.ones(10)
    alone = tg.truncated_samples(KEY, locs, covariance, region, 100)
    spread = tg.parallel.spread(locs, tg.parallel.device_mesh())
    np.testing.assert_allclose(
        tg.truncated_samples(KEY, spread, covariance, region, 100), alone, atol=1e-12
    )


@pytest.mark.full
@pytest.mark.parametrize("rows", [FEW, MANY], ids=["fewer rows", "more rows"])
def test_weights_of_a_polyhedron_have_the_derivatives_of_its_probability(rows):
    matrix, low, high = (jnp.asarray(part) for part in rows)
    factor = jnp.linalg.cholesky(0.6 * jnp.eye(3) + 0.4)

    def log_prob(loc, low):
        region, covariance = tg.Polyhedron(matrix, low, high), tg.ScaleTril(factor)
        draws = tg.weighted_samples(KEY, loc, covariance, region, 2**14, points="lattice")
        return jnp.log(jnp.exp(draws.log_weights).mean())

    def other(loc, low):
        region, covariance = tg.Polyhedron(matrix, low, high), tg.ScaleTril(factor)
        return tg.log_probability(loc, covariance, region, tg.Separation()).log_prob

    at = jnp.array([0.1, -0.2, 0.3]), low
    for ours, theirs in zip(jax.grad(log_prob, (0, 1))(*at), jax.grad(other, (0, 1))(*at)):
        np.testing.assert_allclose(ours, theirs, atol=5e-3)


@pytest.mark.full
def test_limits_that_nothing_random_meets_have_weighted_draws():
    """Limits on constants are met, with weight 1, or not."""
    for high, log_weight in ((1.0, 0.0), (-0.5, -INF)):
        flat = tg.Polyhedron([[0.0, 0.0]], [-1.0], [high])
        draws = tg.weighted_samples(KEY, jnp.zeros(2), jnp.eye(2), flat, 8)
        np.testing.assert_array_equal(draws.log_weights, log_weight)
    fixed = tg.weighted_samples(KEY, jnp.full(2, 0.5), jnp.zeros((2, 2)), tg.Box([0, 0], [1, 1]), 8)
    np.testing.assert_array_equal(fixed.samples, 0.5)
