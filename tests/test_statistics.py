"""`tg.Statistics`: right to rounding under merging; and fits from them."""

from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss.fits.gaussian.sample import UNCHECKED

INF = np.inf


def shifted_rows(n=3000):
    """Rows around 1e8, with standard deviations around 1."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)) + 1e8 * np.array([1.0, -2.0, 0.0])


def exact(rows):
    """Mean and scatter by rational arithmetic, rounded once."""
    columns = [[Fraction(value) for value in column] for column in rows.T.tolist()]
    means = [sum(column) / len(rows) for column in columns]
    scatter = [
        [sum(x * y for x, y in zip(one, two)) - len(rows) * a * b for two, b in zip(columns, means)]
        for one, a in zip(columns, means)
    ]
    return np.array(means, float), np.array(scatter, float)


def test_rows_far_from_zero_have_the_statistics_of_rational_arithmetic():
    rows = shifted_rows(500)
    mean, scatter = exact(rows)
    found = tg.Statistics.from_rows(rows)
    np.testing.assert_array_equal(found.mean, mean)
    np.testing.assert_allclose(found.scatter, scatter, rtol=2e-15)
    assert found.num_rows == found.weight == 500
    np.testing.assert_array_equal(found.lowest, rows.min(axis=0))
    np.testing.assert_array_equal(found.highest, rows.max(axis=0))


@pytest.mark.parametrize("num_parts", [2, 7, 1000])
def test_neither_order_nor_number_of_parts_changes_the_sums(num_parts):
    rows = shifted_rows(20000)
    whole = tg.Statistics.from_rows(rows)
    rng = np.random.default_rng(num_parts)
    parts = np.array_split(rows[rng.permutation(len(rows))], num_parts)
    merged = sum(tg.Statistics.from_rows(part) for part in parts)
    assert merged.num_rows == merged.weight == whole.num_rows
    np.testing.assert_array_equal(merged.lowest, whole.lowest)
    np.testing.assert_array_equal(merged.highest, whole.highest)
    # In the last column the mean is a thousandth of a standard deviation, and the sums are rounded
    # at 1e-18 of that.
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=0, atol=3e-18)
    np.testing.assert_allclose(merged.scatter, whole.scatter, rtol=1e-14)


def test_parts_far_from_each_other_lose_nothing():
    """Two clusters, 1e8 standard deviations apart, and one wide one."""
    rng = np.random.default_rng(4)
    rows = np.concatenate(
        [rng.normal(size=50), 1e8 + rng.normal(size=60), 1e4 * rng.normal(size=9)]
    )
    mean, scatter = exact(rows[:, None])
    parts = [tg.Statistics.from_rows(part) for part in np.split(rows, [30, 50, 90])]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        merged = sum(parts[i] for i in order)
        np.testing.assert_array_equal(merged.mean, mean)
        np.testing.assert_allclose(merged.scatter, scatter, rtol=1e-15)


def truncated(n, d, seed=0):
    rows = np.random.default_rng(seed).normal(0.3, 1.0, size=(n, d))
    return rows[(rows > -0.5).all(axis=1)]


def test_what_statistics_do_not_say_is_told():
    rows = truncated(900, 1)
    fit = tg.fit_truncated_normal(rows, -0.5)
    whole = tg.Statistics.from_rows(rows)
    without = tg.Statistics(whole.num_rows, whole.mean, whole.scatter)
    told = tg.fit_truncated_normal(statistics=without, low=-0.5)
    assert UNCHECKED in told.notes and UNCHECKED not in fit.notes
    with pytest.raises(ValueError, match="column 0 reach from .* outside the bounds"):
        tg.fit_truncated_normal(statistics=whole, low=0.0)
    with pytest.raises(ValueError, match="the columns of the data have no names"):
        tg.fit_truncated_normal(statistics=whole, low={"x": 0.0})
    with pytest.raises(ValueError, match="in place of data"):
        tg.fit_truncated_normal(rows, statistics=whole)


def test_a_second_data_set_compiles_nothing(compilations):
    """However many rows it has: the time to fit does not depend on n."""
    fitted = lambda n, seed, low: tg.fit_truncated_normal(truncated(n, 2, seed), low)
    before = len(compilations)
    jax.jit(lambda x: x + 1.5)(2.0)
    assert len(compilations) > before  # they can be counted
    fitted(250, 1, [-0.5, -INF])
    before = len(compilations)
    fitted(4000, 2, [-0.51, -INF])
    assert len(compilations) == before


def test_limits_and_noise_of_each_row():
    """In one dimension against the likelihood written down, and where both forms say the same."""
    rng = np.random.default_rng(5)
    x = rng.normal(0.5, 1.0, size=2500)
    noise = rng.uniform(0.1, 0.6, size=len(x))
    low, y = rng.uniform(-1.5, 0.5, size=len(x)), x + np.sqrt(noise) * rng.normal(size=len(x))
    seen = y > low
    y, low, noise = y[seen], low[seen], noise[seen]
    fit = tg.fit_truncated_normal(y, low, noise=noise[:, None])
    assert fit.converged and fit.num_rows == len(y)
    assert abs(fit.loc[0] - 0.5) < 3 * fit.standard_errors.loc[0] < 0.4
    variance = float(fit.covariance_matrix[0, 0])

    def loss(loc, variance):
        scale = np.sqrt(variance + noise)
        return -np.sum(stats.norm.logpdf(y, loc, scale) - stats.norm.logsf(low, loc, scale))

    best = loss(float(fit.loc[0]), variance)
    np.testing.assert_allclose(-best, fit.log_likelihood, rtol=1e-10)
    for loc, scatter in [(1e-3, 0.0), (-1e-3, 0.0), (0.0, 1e-3), (0.0, -1e-3)]:
        assert loss(float(fit.loc[0]) + loc, variance + scatter) > best
