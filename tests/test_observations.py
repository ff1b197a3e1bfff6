"""Observed rows: what is refused, in which words, and which integrals rows share."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg

INF = np.inf
TWO = [[0.0, 0.0], [1.0, 1.0]]


def test_nan_is_missing_only_where_that_is_said():
    values = [[0.5, np.nan], [1.0, 2.0]]
    rows = tg.Observations.exact(values, nan_is_missing=True)
    np.testing.assert_array_equal(rows.lower, [[0.5, -INF], [1.0, 2.0]])
    np.testing.assert_array_equal(rows.upper, [[0.5, INF], [1.0, 2.0]])
    assert (rows.num_rows, rows.dimension) == (2, 2)
    assert tg.Observations.exact([1.0, 2.0]).lower.shape == (2, 1)


def test_rows_are_described_by_what_is_known_of_them():
    lower = [[1.0, 2.0], [1.0, -INF], [-INF, -INF], [-INF, -INF], [0.0, 1.0]]
    upper = [[1.0, 2.0], [1.0, INF], [2.0, INF], [INF, INF], [3.0, 1.0]]
    rows = tg.Observations(lower, upper, weights=[2.0, 1.0, 1.0, 8.0, 1.0])
    assert repr(rows) == (
        "Observations(5 observations of 2 entries: 1 exact, 1 with a censored entry, 1 with an "
        "interval, 2 with a missing entry, 1 of these in several kinds, 1 with no entry at all; "
        "with weights)"
    )
    assert rows.weight == 5.0
    named = tg.Observations.from_table({name: [1.0] for name in "abcdefgh"}, list("abcdefgh"))
    assert repr(named) == "Observations(1 observations of a, b, c, d, e, f and 2 more: 1 exact)"


@pytest.mark.full
def test_rows_without_an_entry_do_not_count():
    values = np.array([0.1, 1.5, -0.3, 0.7, 2.2, 1.0])
    every = tg.Observations.exact(np.append(values, [np.nan] * 3), nan_is_missing=True)
    alone, among = map(tg.fit_observations, (tg.Observations.exact(values), every))
    assert among.num_rows == alone.num_rows == tg.fit_mixture(every, 1).num_rows == 6
    assert among.bic == pytest.approx(alone.bic, rel=1e-9)


@pytest.mark.quick("262144")
@pytest.mark.parametrize("most", [0, 2**18])
def test_every_row_with_an_entry_belongs_to_one_pattern(most, monkeypatch):
    monkeypatch.setattr("truncgauss.likelihood.patterns.MOST_JOINED", most)
    rng = np.random.default_rng(0)
    lower = rng.choice([-INF, 0.0, 0.5], size=(200, 3))
    upper = np.where(lower == 0.5, 0.5, rng.choice([1.0, INF], size=(200, 3)))
    rows = tg.Observations(lower, upper)
    found = np.concatenate([np.asarray(pattern.destinations) for pattern in rows.patterns])
    assert len(found) > (found < 200).sum()  # they are padded by a row that is none
    found = found[found < 200]
    missing = np.all((lower == -INF) & (upper == INF), axis=1)
    np.testing.assert_array_equal(np.sort(found), np.flatnonzero(~missing))
    for pattern in rows.patterns:
        own, into = np.asarray(pattern.rows), np.asarray(pattern.destinations)
        np.testing.assert_array_equal(np.unique(own), np.unique(into[into < 200]))
        exact, limited = lower[own] == upper[own], np.isfinite(lower[own]) | np.isfinite(upper[own])
        if pattern.exact is not None:  # as of more rows, of which patterns are not joined
            assert np.all(exact == np.isin(np.arange(3), pattern.exact))
            assert np.all((limited & ~exact) == np.isin(np.arange(3), pattern.limited))
            continue
        order = np.asarray(rows.orders.entries)[own]
        exact, limited = (np.take_along_axis(x, order, 1) for x in (exact, limited & ~exact))
        np.testing.assert_array_equal(exact, np.asarray(rows.orders.exact)[own])
        assert np.all(limited == np.isin(np.arange(3), pattern.limited))


@pytest.mark.parametrize("region", [None, tg.Box([-1.0, -INF, -INF], INF)])
def test_samples_of_the_same_patterns_share_their_programs(region):
    """Which row comes first changes no static part, so that nothing is compiled again."""
    lower = np.array([[-INF, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, -INF], [-INF, 0.5, 0.5]])
    upper = np.where(lower == 0.5, 0.5, INF)

    def kinds(order):
        leaves, structure = jax.tree.flatten(
            tg.Observations(lower[order], upper[order], region=region)
        )
        return structure, [leaf.shape for leaf in leaves]

    assert kinds([0, 1, 2, 3]) == kinds([2, 0, 3, 1]) == kinds([3, 2, 1, 0])


def representatives(patterns):
    """How many integrals patterns ask for."""
    return sum(len(np.unique(np.asarray(pattern.representatives))) for pattern in patterns)


def test_rows_that_ask_for_the_same_integral_share_it():
    lower = np.tile([[0.0, -INF], [-INF, 0.0], [0.0, 0.0]], (50, 1))
    rows = tg.Observations(lower, np.full_like(lower, INF))
    assert representatives(rows.patterns) == 3
    # Four regions, each of which a hundred rows have; two noises make each of them two.
    low = np.repeat(np.arange(4.0), 100)[:, None]
    values = np.linspace(5.0, 6.0, 400)
    rows = tg.Observations.exact(values, region=tg.Box(low, INF))
    assert representatives(rows.region_patterns) == 4
    noise = np.tile([[1.0], [2.0]], (200, 1))
    rows = tg.Observations.exact(values, region=tg.Box(low, INF), noise=noise)
    assert representatives(rows.region_patterns) == 8
    same = tg.Observations.exact(values, noise=np.ones((400, 1)))
    assert same.noise.shape == (1, 1)  # one noise for all


def test_patterns_are_found_outside_of_a_trace_and_kept_inside():
    rows = tg.Observations.exact([0.5, 1.5], region=tg.Box([0.0], [INF]))

    def total(low):
        moved = dataclasses.replace(rows, region=tg.Box(low[None], [INF]))
        return jnp.sum(tg.log_likelihood(moved, [1.0], [[1.0]]).log_prob)

    # d/d low of -n log P(X > low) is n times the hazard.
    slope = jax.jit(jax.grad(total))(jnp.asarray(0.0))
    hazard = stats.norm.pdf(1.0) / stats.norm.cdf(1.0)
    np.testing.assert_allclose(slope, 2 * hazard, rtol=1e-10)


@pytest.mark.full
def test_names_of_columns_are_those_of_entries_and_of_estimates():
    table = {"mass": [1.0, 2.0, 4.0, 3.0, 5.0, 2.5], "size": [1.0, 1.5, 1.0, 2.0, 2.5, 2.0]}
    by_name = tg.Observations.exact(table)
    assert by_name.names == ("mass", "size") == tg.Observations(table, table).names
    assert tg.Observations.from_table(table, ["size"]).labels == ("size",)
    fit = tg.fit_observations(by_name)
    assert fit.names[0] == "loc[mass]" and fit.names[3] == "covariance[size, mass]"
    assert "loc[size]" in str(fit)
    linear = tg.fit_observations(by_name, {"constant": np.ones(6)}, "diagonal")
    assert linear.names[1] == "coefficients[size][constant]"
    plain = tg.fit_observations(tg.Observations.exact(np.stack(list(table.values()), axis=1)))
    np.testing.assert_array_equal(fit.estimates, plain.estimates)
    assert plain.names[3] == "covariance[1, 0]"
