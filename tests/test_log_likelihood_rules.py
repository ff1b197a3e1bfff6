"""What the likelihood of rows must obey, whatever its value: limits, errors, transforms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.row_quadrature import COVARIANCE, LOC, total

INF = np.inf


@pytest.mark.full
def test_intervals_shrink_to_exact_entries_and_missing_rows_say_nothing():
    y = np.array([[0.4, 0.1, -0.3], [1.0, -0.5, 0.2]])
    exact = tg.log_likelihood(tg.Observations.exact(y), LOC, COVARIANCE).log_prob
    for width in (1e-2, 1e-4):
        rows = tg.Observations(y - width / 2, y + width / 2)
        near = tg.log_likelihood(rows, LOC, COVARIANCE).log_prob - 3 * np.log(width)
        np.testing.assert_allclose(near, exact, atol=width**2)
    nothing = np.full((2, 3), INF)
    for region in (None, tg.Box([0.0, 0.0, -INF], INF)):
        rows = tg.Observations(-nothing, nothing, region=region)
        found = tg.log_likelihood(rows, LOC, COVARIANCE)
        np.testing.assert_array_equal(found.log_prob, 0.0)
        np.testing.assert_array_equal(found.stderr, 0.0)


@pytest.mark.full
def test_impossible_rows_are_minus_infinity_and_nan_stays_nan():
    region = tg.Box([0.0, 0.0], [1.0, 1.0])
    lower = np.array([[2.0, 0.5], [0.5, 2.0], [0.5, 0.5], [0.5, -INF]])
    upper = np.array([[2.0, 0.5], [0.5, 3.0], [0.5, 0.5], [0.5, -1.0]])
    rows = tg.Observations(lower, upper, region=region)

    def rows_at(loc):
        return tg.log_likelihood(rows, loc, COVARIANCE[:2, :2]).log_prob

    found = rows_at(jnp.zeros(2))
    np.testing.assert_array_equal(np.isneginf(found), [True, True, False, True])
    assert np.isfinite(found[2])
    assert np.all(np.isfinite(jax.jacrev(rows_at)(jnp.zeros(2))))
    assert np.all(np.isnan(rows_at(jnp.array([jnp.nan, 0.0]))))
    matrix = jnp.array([[1.0, jnp.nan], [jnp.nan, 1.0]])
    assert np.all(np.isnan(tg.log_likelihood(rows, jnp.zeros(2), matrix).log_prob))
    wedge = tg.Polyhedron([[1.0, 1.0]], [-INF], [1.0])
    lower = np.array([[0.2, 0.3], [0.9, 0.3], [2.0, -INF], [2.0, 0.0]])
    upper = np.array([[0.2, 0.3], [0.9, 0.3], [2.0, INF], [2.0, 1.0]])
    found = tg.log_likelihood(
        tg.Observations(lower, upper, region=wedge), jnp.zeros(2), COVARIANCE[:2, :2]
    ).log_prob
    np.testing.assert_array_equal(np.isneginf(found), [False, True, False, True])


FOUR = np.full((4, 4), 0.5) + 0.5 * np.eye(4)


def orthants(n=12):
    """Rows of four signs, and others of an exact entry and three signs."""
    signs = np.random.default_rng(5).random((n, 4)) < 0.5
    lower, upper = np.where(signs, 0.0, -INF), np.where(signs, INF, 0.0)
    lower[::3, 0] = upper[::3, 0] = 0.3
    return tg.Observations(lower, upper)


@pytest.mark.full
def test_a_held_method_is_one_smooth_function():
    rows, loc = orthants(), jnp.array([0.2, -0.1, 0.3, 0.0])
    method = tg.Separation(num_points=64, num_replicates=4)
    held = tg.likelihood.hold(method, rows, loc, FOUR)

    @jax.jit
    def loss(shift):
        return total(rows, loc + shift, FOUR, method=held, key=jax.random.key(3))

    slope = jax.grad(loss)(jnp.zeros(4))
    step = 1e-5
    differences = [(loss(step * e) - loss(-step * e)) / (2 * step) for e in jnp.eye(4)]
    np.testing.assert_allclose(slope, differences, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(loss(jnp.zeros(4)), total(rows, loc, FOUR), rtol=1e-2)


@pytest.mark.full
def test_errors_of_rows_are_independent_and_those_of_a_common_region_are_not():
    # Sixteen equal integrals, with limits that differ in the last bit, so that none is shared.
    n, method = 16, tg.Separation(num_points=32, num_replicates=16, tilted=False)
    lower = np.zeros((n, 4)) + 1e-12 * np.arange(n)[:, None]
    rows = tg.Observations(lower, np.full((n, 4), INF))
    found = tg.log_likelihood(rows, np.zeros(4), FOUR, method, jax.random.key(1))
    error = np.asarray(found.log_prob) - np.log(0.2)
    assert len(np.unique(np.round(error, 9))) == n
    assert 0.5 < error.std() / np.sqrt(np.mean(np.asarray(found.stderr) ** 2)) < 1.7
    whole = tg.likelihood.total_log_likelihood(rows, np.zeros(4), FOUR, method, jax.random.key(1))
    np.testing.assert_allclose(whole.stderr, np.sqrt(np.sum(found.stderr**2)))
    shared = tg.Observations.exact(np.ones((n, 4)) * np.arange(1, n + 1)[:, None],
                                   region=tg.Box(np.zeros(4), INF))  # fmt: skip
    found = tg.log_likelihood(shared, np.zeros(4), FOUR, method)
    whole = tg.likelihood.total_log_likelihood(shared, np.zeros(4), FOUR, method)
    np.testing.assert_allclose(whole.stderr, np.sum(found.stderr))
    assert whole.stderr > 0 and len(np.unique(found.stderr)) == 1


@pytest.mark.full
def test_float32_follows_float64():
    y = np.array([[0.4, 0.1], [1.0, -0.5], [30.0, -40.0]])
    lower, upper = y - [[0.0, 0.3], [0.2, 0.3], [0.0, 0.1]], y
    region = tg.Box([-1.0, -50.0], INF)
    loc, covariance = LOC[:2], COVARIANCE[:2, :2]
    wide = tg.log_likelihood(tg.Observations(lower, upper, region=region), loc, covariance)
    cast = functools.partial(jnp.asarray, dtype=jnp.float32)
    rows = tg.Observations(cast(lower), cast(upper), region=jax.tree.map(cast, region))
    found = tg.log_likelihood(rows, cast(loc), cast(covariance))
    assert found.log_prob.dtype == found.stderr.dtype == jnp.float32
    np.testing.assert_allclose(found.log_prob, wide.log_prob, rtol=1e-4, atol=1e-4)


def test_new_numbers_of_the_same_patterns_compile_nothing():
    traces = []

    @jax.jit
    def loss(rows, loc):
        traces.append(1)
        return total(rows, loc, [[1.0]])

    region = tg.Box([0.0], [INF])
    for shift in (0.1, 0.2, 0.3):
        rows = tg.Observations([0.0, 1.0 + shift], [shift, 1.0 + shift], region=region)
        expected = total(rows, jnp.array([shift]), [[1.0]])
        np.testing.assert_allclose(loss(rows, jnp.array([shift])), expected, rtol=1e-12)
    assert len(traces) == 1


@pytest.mark.quick("second1")
@pytest.mark.parametrize("second", [[1.0, 1.0], [-2.0, 0.0], [0.0, 0.0]])
def test_polyhedra_of_two_faces_are_boxes_of_what_crosses_them(second):
    """Beside boxes where the faces meet, are parallel, or one says nothing; entries are missing."""
    loc, covariance = jnp.array([0.3, -0.2]), jnp.array([[1.0, 0.4], [0.4, 2.0]])
    y = np.array([[0.5, 0.4], [0.2, np.nan], [np.nan, 0.1], [0.9, 0.3]])
    region = tg.Polyhedron([[1.0, 0.0], second], [-0.5, -4.0], [np.inf, 3.0])
    rows = tg.Observations.exact(y, nan_is_missing=True, region=region)
    factor = np.array([[1.0, 0.0], second if second[1] else [0.0, 1.0]])
    low, high = np.array([-0.5, -4.0]), np.array([np.inf, 3.0])
    if not second[1]:
        low[1], high[1] = -np.inf, np.inf
        high[0] = 2.0 if second[0] else np.inf
    box = tg.Box(low, high)
    whole = tg.log_probability(factor @ loc, factor @ covariance @ factor.T, box).log_prob
    expected = []
    for row in y:
        exact = ~np.isnan(row)
        lower, upper = (np.where(exact, row, side) for side in (-np.inf, np.inf))
        values = tg.Observations([lower], [upper])
        seen = tg.log_likelihood(values, loc, covariance).log_prob[0]
        if not exact.all():
            rest = int(np.flatnonzero(~exact)[0])
            gain = covariance[rest, 1 - rest] / covariance[1 - rest, 1 - rest]
            mean = loc[rest] + gain * (row[1 - rest] - loc[1 - rest])
            scale = np.sqrt(covariance[rest, rest] - gain * covariance[rest, 1 - rest])
            ends = faces_on_one(factor, low, high, row, rest)
            chance = np.diff(stats.norm.cdf((np.array(ends) - mean) / scale))[0]
            seen = seen + np.log(chance)
        expected.append(seen - whole)
    found = tg.log_likelihood(rows, loc, covariance)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(found.stderr, 0.0)
    total = lambda loc: tg.log_likelihood(rows, loc, covariance).log_prob.sum()
    step = jnp.array([1e-5, 0.0])
    slope = (total(loc + step) - total(loc - step)) / 2e-5
    np.testing.assert_allclose(jax.grad(total)(loc)[0], slope, rtol=1e-6)


def faces_on_one(factor, low, high, row, rest):
    """The interval that faces leave of one entry, given the other."""
    ends = [-np.inf, np.inf]
    for face, a, b in zip(factor, low, high):
        if face[rest] != 0:
            known = face[1 - rest] * row[1 - rest] if face[1 - rest] else 0.0
            pair = sorted([(a - known) / face[rest], (b - known) / face[rest]])
            ends = [max(ends[0], pair[0]), min(ends[1], pair[1])]
    return ends


def test_many_rows_with_noise_of_their_own_are_factorised_a_few_at_a_time():
    """More operations in a batch than one thread may have stood still: `arrays.batches`."""
    rng = np.random.default_rng(3)
    y, noise = rng.normal(size=(1500, 9)), rng.uniform(0.1, 0.3, size=(1500, 9))
    found = tg.log_likelihood(tg.Observations.exact(y, noise=noise), np.zeros(9), np.eye(9))
    expected = stats.norm.logpdf(y, scale=np.sqrt(1.0 + noise)).sum(axis=1)
    np.testing.assert_allclose(found.log_prob, expected, rtol=1e-12)
