"""Moments of rows given their observations, beside grids, and identities of the log-likelihood."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg

INF = np.inf
LOC = np.array([0.3, -0.5, 0.8])
COVARIANCE = np.array([[1.0, 0.6, 0.3], [0.6, 1.4, 0.5], [0.3, 0.5, 0.9]])
NOISE = np.diag([0.3, 0.0, 0.5])
# Exact, limited on one side, and missing; an interval; nothing at all; far in a tail; all exact.
LOWER = np.array(
    [[1.2, -INF, -INF], [-0.2, 0.4, -0.6], [-INF, -INF, -INF], [7.0, -INF, 0.1], [0.5, 0.1, 2.0]]
)
UPPER = np.array(
    [[1.2, -0.7, INF], [1.0, 0.4, 0.3], [INF, INF, INF], [INF, INF, 0.1], [0.5, 0.1, 2.0]]
)


@pytest.mark.parametrize("noise", [None, NOISE, np.stack([k * NOISE for k in range(5)])])
@pytest.mark.parametrize("each", [False, True])
def test_identities_of_the_log_likelihood(noise, each):
    """Fisher's: by the mean S^-1 {E(x) - mu}, by the covariance S^-1 {Var(x) + (E(x) - mu)(..)^T
    - S} S^-1 / 2, less what a region takes away, which depends on no observation."""
    loc = LOC + np.arange(5)[:, None] / 10 if each else LOC
    scale = np.linspace(1.0, 1.5, 5)[:, None, None] if each else 1.0
    covariance = COVARIANCE * scale
    rows = tg.Observations(LOWER, UPPER, noise=noise)
    total = lambda loc, matrix: tg.log_likelihood(rows, loc, matrix).log_prob
    spread = jnp.broadcast_to(loc, (5, 3)), jnp.broadcast_to(covariance, (5, 3, 3))
    by_loc, by_matrix = jax.grad(lambda *x: total(*x).sum(), (0, 1))(*spread)
    moments = tg.conditional_moments(rows, loc, covariance)
    inverse, gap = np.linalg.inv(spread[1]), moments.mean - loc
    np.testing.assert_allclose(np.einsum("nij,nj->ni", inverse, gap), by_loc, rtol=1e-8, atol=1e-8)
    squares = moments.covariance + gap[:, :, None] * gap[:, None, :] - covariance
    slopes = inverse @ squares @ inverse / 2
    turned = np.swapaxes(by_matrix, 1, 2)
    np.testing.assert_allclose(slopes, (by_matrix + turned) / 2, rtol=1e-7, atol=1e-7)


def test_rows_within_a_box():
    """Limits are those of the observation and of its region; a row outside of it is NaN."""
    box = tg.Box([-1.0, -np.inf, -np.inf], [1.1, 1.0, np.inf])
    rows = tg.Observations(LOWER, UPPER, region=box)
    moments = tg.conditional_moments(rows, LOC, COVARIANCE)
    assert np.isnan(moments.mean).all(axis=1).tolist() == [True, False, False, True, False]
    narrow = tg.Observations(np.maximum(LOWER, box.low)[1:3], np.minimum(UPPER, box.high)[1:3])
    other = tg.conditional_moments(narrow, LOC, COVARIANCE)
    for mine, its in zip(moments, other):
        np.testing.assert_allclose(mine[1:3], its, rtol=1e-12)
    np.testing.assert_array_equal(moments.mean[4], LOWER[4])
    np.testing.assert_array_equal(moments.covariance[4], 0.0)


def test_a_missing_entry_alone_is_the_gaussian_itself():
    moments = tg.conditional_moments(tg.Observations(LOWER, UPPER), LOC, COVARIANCE)
    np.testing.assert_array_equal(moments.mean[2], LOC)
    np.testing.assert_array_equal(moments.covariance[2], COVARIANCE)
    assert all(np.all(leaf == 0) for leaf in moments[2:])


def field(size, seed=0):
    random = np.random.default_rng(seed)
    site = random.uniform(0.0, 10.0, (size, 2))
    distance = np.linalg.norm(site[:, None] - site, axis=-1)
    y = np.linalg.cholesky(np.exp(-distance / 3.0)) @ random.normal(size=size)
    return distance, y


@pytest.mark.full
def test_kriging_with_nondetects():
    """Of new places by linear prediction from the moments of nondetects, with errors of these."""
    distance, y = field(30)
    below, covariance = y[:12] < 0.3, np.exp(-distance / 3.0)
    noise = np.diag(np.where(np.arange(30) < 12, 0.1, 0.0))
    sample = y[:12] + np.sqrt(0.1) * np.random.default_rng(1).normal(size=12)
    low, high = np.full((1, 30), -np.inf), np.full((1, 30), np.inf)
    high[0, :12] = np.where(below, 0.3, sample)
    low[0, :12] = np.where(below, -np.inf, sample)
    rows, method = tg.Observations(low, high, noise=noise), tg.Automatic(rtol=1e-3)
    moments = tg.conditional_moments(rows, np.zeros(30), covariance, method)
    total = (covariance + noise)[:12, :12]
    exact, limited = np.flatnonzero(~below), np.flatnonzero(below)
    move = np.linalg.solve(total[np.ix_(exact, exact)], total[np.ix_(exact, limited)])
    rest = total[np.ix_(limited, limited)] - total[np.ix_(limited, exact)] @ move
    box = tg.Box(-np.inf, np.full(len(limited), 0.3))
    part = tg.truncated_moments(sample[exact] @ move, rest, box, method)
    filled = sample.copy()
    filled[limited] = part.mean
    weights = np.linalg.solve(total, covariance[:12])
    np.testing.assert_allclose(moments.mean[0], filled @ weights, atol=1e-10)
    more = weights[limited].T @ part.covariance @ weights[limited]
    matrix = covariance - covariance[:, :12] @ weights + more
    np.testing.assert_allclose(moments.covariance[0], matrix, atol=1e-10)
    assert np.all(moments.mean_stderr[0] > 0) and np.all(moments.mean_stderr[0] < 1e-3)
    keys = jax.random.split(jax.random.key(1), 12)
    method = tg.Separation(num_points=256)
    every = [tg.conditional_moments(rows, np.zeros(30), covariance, method, key) for key in keys]
    for value, error in ((0, 2), (1, 3)):
        spread = np.std([moments[value][0] for moments in every], axis=0, ddof=1)
        stated = np.mean([moments[error][0] for moments in every], axis=0)
        assert np.all(spread < 2.0 * stated + 1e-12)  # upper bounds, of a spread over twelve


@pytest.mark.full
def test_programs_and_single_precision():
    rows = tg.Observations(LOWER, UPPER)
    mean = lambda loc, matrix: tg.conditional_moments(rows, loc, matrix).mean
    compiled = jax.jit(mean)(LOC, COVARIANCE)
    np.testing.assert_allclose(compiled, mean(LOC, COVARIANCE), rtol=1e-9)
    small = functools.partial(jnp.asarray, dtype=jnp.float32)
    low, high = small(LOWER), small(UPPER)
    single = tg.conditional_moments(tg.Observations(low, high), small(LOC), small(COVARIANCE))
    assert single.mean.dtype == jnp.float32
    np.testing.assert_allclose(single.mean, mean(LOC, COVARIANCE), rtol=1e-4, atol=1e-5)


def test_entries_missing_because_of_their_value():
    """An entry that was not observed lies lower: its posterior by a sum over a line."""
    curve = tg.Selection.probit([1.0], 0.6, 0.5)
    rows = tg.Observations.exact([[1.2, np.nan]], nan_is_missing=True, observed=curve)
    moments = tg.conditional_moments(rows, LOC[:2], COVARIANCE[:2, :2])
    x = np.linspace(-9.0, 9.0, 4001)
    weights = stats.norm.pdf(x, LOC[1] + 0.6 * (1.2 - LOC[0]), np.sqrt(1.4 - 0.36))
    weights *= stats.norm.sf((x - 0.6) / 0.5)
    mean = (weights @ x) / weights.sum()
    np.testing.assert_allclose(moments.mean[0], [1.2, mean], rtol=1e-10)
    variance = weights @ (x - mean) ** 2 / weights.sum()
    np.testing.assert_allclose(moments.covariance[0], np.diag([0.0, variance]), rtol=1e-9)


def test_refusals():
    rows = tg.Observations(LOWER, UPPER)
    twice = np.ones((3, 3))
    for observations, loc, covariance, message in [
        (LOWER, LOC, COVARIANCE, "conditional_moments: needs tg.Observations"),
        (rows, LOC[:2], COVARIANCE, r"conditional_moments: the observations have 3 column\(s\)"),
        (rows, LOC, twice, r"observed entries 0, 2 one is determined"),
        (
            tg.Observations(LOWER, UPPER, region=tg.Ball(np.zeros(3), 9.0)),
            *(LOC, COVARIANCE, "region of the observations must be a tg.Box"),
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            tg.conditional_moments(observations, loc, covariance)
    with pytest.raises(ValueError, match="must be numbers, also under jit"):
        jax.jit(tg.conditional_moments)(rows, LOC, COVARIANCE)
    with pytest.raises(ValueError, match='no region with limits_on="latent"'):
        box = tg.Box(np.full(3, -9.0), 9.0)
        latent = tg.Observations(LOWER, UPPER, region=box, noise=np.eye(3), limits_on="latent")
        tg.conditional_moments(latent, LOC, COVARIANCE)
    with pytest.raises(ValueError, match="variance of 0 for an observed entry"):
        tg.conditional_moments(rows, LOC, np.diag([0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="takes no ordered outcomes"):
        ordered = tg.Observations.of({"a": tg.Ordinal([0, 1, 2, 1]), "b": [0.1, 0.2, 0.3, 0.1]})
        tg.conditional_moments(ordered, LOC[:2], COVARIANCE[:2, :2])


@pytest.mark.parametrize("matrix", [[[1.0, 2.0], [2.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]])
@pytest.mark.parametrize("upper", [0.5, np.inf])
def test_what_is_no_covariance_is_nan_where_it_is_traced(matrix, upper):
    rows = tg.Observations([[0.1, -np.inf]], [[0.1, upper]])
    with pytest.raises(ValueError):
        tg.conditional_moments(rows, LOC[:2], np.array(matrix))
    moments = jax.jit(lambda x: tg.conditional_moments(rows, LOC[:2], x))(np.array(matrix))
    assert all(np.isnan(leaf).all() for leaf in moments)
