"""Chains of reflected trajectories: the times of reflection, the law, and what draws are worth."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.draw_errors import KEY, band, gap
from truncgauss.draws import trajectories
from truncgauss.gaussian.problem import as_problem
from truncgauss.separation.plan import Plan

INF = np.inf
QUARTER = 0.5 * math.pi


def walls(low, high, covariance):
    """Limits on coordinates of that covariance, without others."""
    none = jnp.zeros((len(low), 0))
    parts = jnp.asarray(low), jnp.asarray(high), none, jnp.asarray(covariance)
    return trajectories.Walls(*parts, jnp.diagonal(parts[3]))


def refused(order, rank, dtype=jnp.float64):
    """A plan without a bound of the weights: all draws then come from chains."""
    zero = jnp.zeros((), dtype)
    return Plan(np.asarray(order), jnp.zeros(rank, dtype), zero + INF, np.zeros((), bool), zero)


def test_times_of_reflection_are_those_by_arc_cosines():
    """a cos t + b sin t = c at t = phase +- arccos(c / radius)."""
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 500)), axis=0)
    a, b = rng.uniform(low, high), rng.normal(size=500)
    low[::3], high[1::3] = -INF, INF
    found = trajectories._meetings(walls(low, high, np.eye(500)), a[None], b[None])[0]
    radius, phase = np.hypot(a, b), np.arctan2(b, a)
    with np.errstate(invalid="ignore"):
        angles = np.arccos(np.stack([low, high]) / radius)
    times = np.stack([phase + angles, phase - angles]) % (2 * math.pi)
    first = np.nanmin(np.where(np.isnan(times), INF, times), axis=(0, 1))
    wanted = np.where(first < math.pi, np.tan(0.5 * np.minimum(first, 3.1)), INF)
    soon = wanted < 10.0
    assert 100 < soon.sum() < 450 and np.isinf(wanted).sum() > 50
    np.testing.assert_allclose(found[soon], wanted[soon], rtol=1e-9)
    assert np.all(found[np.isinf(wanted)] > 1e6)


@pytest.mark.parametrize("low, high", [(-0.5, 1.0), (3.0, INF), (-INF, -2.0), (2.0, 2.3)])
def test_trajectories_keep_the_law_and_are_reversible(low, high):
    """From exact draws, counts of pairs of bins before and after are symmetric, and each bin is as
    full as before. A false alarm comes once in 10^6 keys for each of the two."""
    n, bins = 20_000, 8
    before = stats.truncnorm(low, high).ppf((np.arange(n) + 0.5) / n)
    slopes = jax.random.normal(KEY, (n, 1))
    nothing = jnp.zeros((n, 0))
    start = trajectories.Motion(nothing, nothing, jnp.asarray(before)[:, None], slopes)
    end, left = jax.jit(trajectories._trajectories, static_argnums=3)(
        walls([low], [high], np.eye(1)), start, jnp.asarray(QUARTER), 1000
    )
    after = np.asarray(end.values[:, 0])
    assert np.all(left <= 0) and np.all((after >= low) & (after <= high))
    uniforms = stats.truncnorm(low, high).cdf(np.stack([before, after]))
    first, second = np.minimum((uniforms * bins).astype(int), bins - 1)
    counts = np.histogram2d(first, second, bins=bins, range=[[0, bins]] * 2)[0]
    upper = np.triu_indices(bins, 1)
    both, gaps = (counts + counts.T)[upper], (counts - counts.T)[upper]
    statistic = np.sum(gaps**2 / np.maximum(both, 1.0))
    assert statistic < stats.chi2.isf(1e-6, len(both))
    # The draws before are a grid: counts after scatter by no more than independent ones.
    scatter = np.sum((counts.sum(0) - n / bins) ** 2 / (n / bins))
    assert scatter < stats.chi2.isf(1e-6, bins - 1)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
@pytest.mark.parametrize("form", ["box", "polyhedron"])
def test_chains_have_the_law_of_independent_coordinates(form, dtype):
    """Two sides, one, none, a tail and a narrow one; as a polyhedron with each constraint twice."""
    low = np.array([-1.0, -INF, -INF, 4.0, 0.5])
    high = np.array([1.0, 0.3, INF, INF, 0.55])
    region, order = tg.Box(jnp.asarray(low, dtype), jnp.asarray(high, dtype)), np.arange(5)
    if form == "polyhedron":
        twice = (jnp.asarray(np.repeat(x, 2, 0), dtype) for x in (np.eye(5), low, high))
        region, order = tg.Polyhedron(*twice), np.arange(10).reshape(5, 2).T.ravel()
    plan, loc = refused(order, 5, dtype), jnp.zeros(5, dtype)
    draw = lambda loc: tg.truncated_draws(KEY, loc, jnp.eye(5, dtype=dtype), region, 4000, plan)
    draws = jax.jit(draw)(loc)
    size = float(draws.effective_sample_size)
    assert draws.samples.dtype == dtype and 400 < size < 4000
    assert bool(region.contains(draws.samples).all())
    for k in range(5):
        exact = stats.truncnorm(low[k], high[k])
        u = np.sort(exact.cdf(np.asarray(draws.samples[:, k], float)))
        away = np.abs(u - (np.arange(4000) + 0.5) / 4000).max()
        assert away < band(size / 2, 5) + (1e-3 if dtype == jnp.float32 else 0.0)


def grid(side, reach):
    """Sites of a grid, and the covariance of a field with a nugget there."""
    places = np.stack(np.divmod(np.arange(side**2), side), axis=-1) / reach
    far = np.linalg.norm(places[:, None] - places, axis=-1)
    return places, (1.0 + far) * np.exp(-far) + 0.01 * np.eye(side**2)


def test_chains_on_their_way_are_worth_little():
    """Independent numbers, of which one among a hundred moves by as much as its spread."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(10, trajectories.NUM_CHAINS, 100))
    of = jax.jit(trajectories._efficiency)
    assert 0.7 < of(numbers) < 1.0
    numbers[:, :, 17] += np.linspace(0.0, 1.0, 10)[:, None]
    # The mean is off by some .3 of the spread, which about a dozen independent draws leave.
    assert 5 < 10 * trajectories.NUM_CHAINS * of(numbers) < 50
    numbers[:, :, 17] = 3.0
    assert 0.7 < of(numbers) < 1.0


@pytest.mark.slow
def test_effective_size_is_that_of_repeated_runs():
    """The variance of the means of 40 runs, of the field and of the log density, between two-sided
    limits: below and above what the stated size allows once in 10^4 keys."""
    d, runs = 100, 40
    _, matrix = grid(10, 2.1)
    box, inverse = tg.Box(np.full(d, -1.0), np.full(d, 1.0)), np.linalg.inv(matrix)
    covariance, plan = jnp.asarray(matrix), refused(np.arange(d), d)
    draw = jax.jit(lambda key: tg.truncated_draws(key, jnp.zeros(d), covariance, box, 500, plan))
    stated, means, spreads = [], [], []
    for key in jax.random.split(KEY, runs):
        draws = draw(key)
        x = np.asarray(draws.samples)
        numbers = np.stack([x.mean(1), np.einsum("ki,ij,kj->k", x, inverse, x)])
        stated.append(float(draws.effective_sample_size))
        means.append(numbers.mean(1))
        spreads.append(numbers.var(1))
    assert np.mean(stated) > 250.0
    ratio = np.var(means, axis=0, ddof=1) / np.mean(spreads, axis=0) * np.mean(stated)
    most = stats.chi2.isf(1e-4 / 2, runs - 1) / (runs - 1)
    assert np.all(ratio < most), (ratio, stated)


@pytest.mark.full
def test_a_field_by_its_neighbours_has_the_draws_of_its_matrix():
    """Chains in x beside exact draws, with limits on no side, one side and both."""
    places, _ = grid(4, 1.5)
    kernel = lambda x, y: jnp.exp(-jnp.sqrt(jnp.sum((x - y) ** 2) + 1e-30))
    field = tg.Directed.from_points(places, kernel, neighbours=6, noise=0.4, block=3)
    loc, index = np.linspace(-0.5, 0.5, 16), np.arange(16)
    low = np.where(index % 4 == 0, -INF, np.where(index % 4 == 1, 0.3, -1.2))
    high = np.where(index % 2 == 1, INF, 0.4)
    box = tg.Box(low, high)
    problem = as_problem(loc, field, box)
    found = jax.jit(lambda key: trajectories.field_chains(problem, 4000, key))(KEY)
    samples, efficiency = found
    assert 0.3 < efficiency < 1.0 and bool(box.contains(samples).all())
    exact = tg.truncated_samples(KEY, loc, field.covariance_matrix, box, 4000)
    most = band(4000 * float(efficiency) / 2, 18) + band(4000, 18)
    for direction in np.concatenate([np.eye(16), np.ones((1, 16)), [(-1.0) ** index]]):
        assert gap(np.asarray(samples) @ direction, np.asarray(exact) @ direction) < most


@pytest.mark.full
def test_a_large_field_has_draws():
    """600 censored sites: no plan is made. Limits without width give NaN, in a trace."""
    points = np.random.default_rng(0).uniform(size=(600, 2))
    kernel = lambda x, y: jnp.exp(-5.0 * jnp.sqrt(jnp.sum((x - y) ** 2) + 1e-30))
    field = tg.Directed.from_points(points, kernel, neighbours=32, noise=0.3)
    low = np.full(600, -INF)
    draw = lambda high: tg.truncated_draws(KEY, jnp.zeros(600), field, tg.Box(low, high), 100)
    with pytest.warns(UserWarning, match="0: no bound of the weights was found or sought"):
        draws = draw(jnp.ones(600))
    assert draws.samples.shape == (100, 600) and bool((draws.samples <= 1.0).all())
    assert 60.0 < draws.effective_sample_size < 100.0
    low[3] = 1.0
    traced = jax.jit(draw)(jnp.ones(600))
    assert bool(jnp.isnan(traced.samples).all()) and traced.effective_sample_size == 0
