"""Samples of about as many rows share programs: rows are filled up by copies that do not count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from truncgauss.likelihood import filled_up

INF = np.inf


def sample(n):
    """Rows of one entry that is exact, censored, in an interval or missing, each with its own
    region, noise and weight; the first one is impossible, and does not count."""
    rng = np.random.default_rng(n)
    y = rng.normal(0.3, 1.0, size=(n, 1))
    everywhere, kinds = np.full((n, 1), INF), np.arange(n)[:, None] % 4
    chosen = [kinds == kind for kind in (1, 2, 3)]
    lower = np.select(chosen, [-everywhere, y - 0.5, -everywhere], y)
    upper = np.select(chosen, [y, y + 0.5, everywhere], y)
    low = y - rng.uniform(size=(n, 1))
    low[0], weights = 9.0, np.arange(n) % 3.0
    noise = rng.uniform(0.1, 0.3, size=(n, 1))
    return tg.Observations(lower, upper, tg.Box(low, INF), noise, weights)


@pytest.mark.full
def test_each_row_says_what_it_says_alone():
    """Likelihoods of filled rows against those of single rows, which are not filled up."""
    n, rng = 70, np.random.default_rng(0)
    rows, locs, matrices = sample(n), rng.normal(size=(n, 1)), rng.uniform(0.5, 2, size=(n, 1, 1))
    found = tg.log_likelihood(rows, locs, matrices)
    total = tg.likelihood.total_log_likelihood(rows, locs, matrices)
    seen = tg.likelihood.fraction_not_truncated(rows, locs, matrices)
    assert found.log_prob.shape == found.stderr.shape == seen.shape == (n,)
    for i in range(0, n, 7):
        own = lambda leaf, i=i: leaf[i : i + 1]
        alone = own(rows.lower), own(rows.upper), jax.tree.map(own, rows.region), own(rows.noise)
        alone, gaussian = tg.Observations(*alone), (locs[i], matrices[i])
        one = tg.log_likelihood(alone, *gaussian).log_prob[0]
        expected = rows.weights[i] * one if rows.weights[i] else 0.0
        np.testing.assert_allclose(found.log_prob[i], expected, rtol=1e-12, atol=1e-13)
        own_fraction = tg.likelihood.fraction_not_truncated(alone, *gaussian)
        np.testing.assert_allclose(seen[i], own_fraction[0], rtol=1e-12)
    np.testing.assert_allclose(total.log_prob, found.log_prob.sum(), rtol=1e-12)


@pytest.mark.full
def test_random_keys_belong_to_rows():
    """Integrals by random points are those under `jit`, where nothing is filled up."""
    low = np.random.default_rng(1).uniform(-1.0, 0.0, size=(5, 4))
    rows, matrix = tg.Observations(low, np.full((5, 4), INF)), 0.5 * np.eye(4) + 0.5
    method = tg.Separation(num_points=16, num_replicates=2)
    found = tg.log_likelihood(rows, jnp.zeros(4), matrix, method)
    traced = jax.jit(tg.log_likelihood)(rows, jnp.zeros(4), matrix, method)
    assert np.all(np.asarray(found.stderr) > 0)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), found, traced)


@pytest.mark.full
def test_sums_and_derivatives_are_those_of_the_rows():
    """Of filled rows against the rows as they are; the copies have no part in any derivative."""
    rows = sample(9)
    (filled,) = filled_up(rows)
    assert filled.num_rows == 16 and not filled.weights[9:].any()
    np.testing.assert_array_equal(filled.weights[:9], rows.weights)
    assert filled_up(rows)[0] is filled  # kept, but not for other rows:
    (heavier,) = filled_up(rows.with_known(weights=2.0 * rows.weights))
    np.testing.assert_array_equal(heavier.weights, 2.0 * filled.weights)

    def total(rows, loc, variance):
        return tg.likelihood.total_log_likelihood(rows, loc[None], variance[None, None]).log_prob

    both = jax.jit(jax.value_and_grad(total, (1, 2)))
    found, expected = (both(own, jnp.array(0.2), jnp.array(1.1)) for own in (filled, rows))
    assert np.all(np.isfinite(jax.tree.leaves(found)))
    check = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-12)
    jax.tree.map(check, found, expected)
    # A derivative outside of `jit` is that of filled rows too.
    each = lambda loc: tg.log_likelihood(rows, loc[None], [[1.1]]).log_prob
    assert jax.jacfwd(each)(jnp.array(0.2)).shape == (9,)
    np.testing.assert_allclose(jax.grad(lambda loc: each(loc).sum())(0.2), expected[1][0])


def test_long_samples_are_filled_up_by_an_eighth_at_most_and_larger_ones_not_at_all():
    few, many = (tg.Observations.exact(np.linspace(0.0, 1.0, n)) for n in (4500, 400_000))
    assert 4500 < filled_up(few)[0].num_rows <= 1.125 * 4500
    assert filled_up(many)[0] is many
    traced = jax.eval_shape(lambda rows: filled_up(rows)[0].lower, few)
    assert traced.shape == (4500, 1)  # its length is the user's


def missing(n, step=3):
    y = np.random.default_rng(n).normal(size=(n, 2)) @ np.array([[1.0, 0.0], [0.5, 0.8]])
    y[::step, 0] = np.nan
    return tg.Observations.exact(y, nan_is_missing=True, names=("a", "b"))


def gaussian(n):
    fit = tg.fit_observations(missing(n), information="sandwich")
    assert fit.converged and fit.profile_fall("loc[a]", fit.loc[0] - 0.1) > 0.0
    return fit


def regression(n):
    x = np.random.default_rng(n).normal(size=n)
    design = np.stack([np.ones(n), x], axis=1)
    return tg.fit_regression(np.maximum(x + np.sin(7 * x), 0.0), design, censored_low=0.0)


def mixture(n):
    rows = missing(n, 8)
    locs = [[-0.5, 0.0], [0.5, 0.0]]
    start = {"weights": [0.5, 0.5], "locs": locs, "covariances": [np.eye(2)] * 2}
    fit = tg.fit_mixture(rows, 2, start=start, num_em_steps=3, num_steps=3)
    assert fit.responsibilities.shape == fit.predict(rows).mean.shape == (n, 2)
    return fit


@pytest.mark.quick("regression")
@pytest.mark.parametrize("fitted", [gaussian, regression, mixture])
def test_a_fit_of_another_number_of_rows_compiles_nothing(fitted, compilations):
    """Of 120 rows after 100, and what is asked of it afterwards."""
    fitted(100)
    before = len(compilations)
    fitted(120)
    assert len(compilations) == before


def test_residuals_of_another_number_of_rows_compile_nothing(compilations):
    found = lambda n: tg.quantile_residuals((missing(n), [0.0, 0.0], np.eye(2)))
    assert found(100).shape == (100, 2)
    before = len(compilations)
    found(120)
    assert len(compilations) == before
