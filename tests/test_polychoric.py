"""Polychoric and tetrachoric correlations: published values, other routes, edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss.fits.polychoric.orthants import orthant
from truncgauss.fits.polychoric.polychoric_correlations import model_of

OLSSON = np.array([[13, 6, 0], [69, 113, 22], [41, 132, 104]])


def quiet(*args, **settings):
    return tg.polychoric(*args, progress=False, **settings)


def columns_of(table):
    """Rows of a table of counts."""
    codes = np.indices(table.shape).reshape(2, -1)
    return np.repeat(codes, table.ravel(), axis=1)


@pytest.fixture(scope="module")
def olsson():
    return quiet(OLSSON)


# ---------------------------------------------------------------- the distribution function


@pytest.mark.full
def test_the_distribution_function_at_infinite_limits_and_its_derivatives():
    inf = np.inf
    for rho in (0.5, -0.99):
        at = lambda h, k, rho=rho: float(orthant(jnp.array(h), jnp.array(k), jnp.array(rho)))
        np.testing.assert_allclose(at(inf, 0.3), stats.norm.cdf(0.3), rtol=1e-14)
        assert at(-inf, 0.3) == 0.0 and at(inf, inf) == 1.0
        slopes = jax.grad(orthant, argnums=(0, 1, 2))(
            jnp.array(inf), jnp.array(0.3), jnp.array(rho)
        )
        np.testing.assert_allclose(slopes, [0.0, stats.norm.pdf(0.3), 0.0], atol=1e-15)
    slope = jax.jit(jax.grad(lambda x: orthant(*x)))
    curvature = jax.jit(jax.hessian(lambda x: orthant(*x)))
    for at in ((0.3, -0.2, 0.5), (0.3, 0.25, -0.97)):
        moved = [np.array(at) + sign * 1e-5 * np.eye(3)[k] for k in range(3) for sign in (1, -1)]
        for function, order in ((lambda x: orthant(*x), slope), (slope, curvature)):
            values = np.array([function(jnp.asarray(x)) for x in moved])
            differences = (values[::2] - values[1::2]) / 2e-5
            np.testing.assert_allclose(order(jnp.array(at)), differences, rtol=1e-5, atol=1e-7)
    arrays = (jnp.array([0.3, 1.0], jnp.float32), jnp.float32(-0.2), jnp.float32(0.5))
    narrow = orthant(*jnp.broadcast_arrays(*arrays))
    assert narrow.dtype == jnp.float32
    wide = orthant(*jnp.broadcast_arrays(jnp.array([0.3, 1.0]), -0.2, 0.5))
    np.testing.assert_allclose(narrow, wide, rtol=2e-6)


# ---------------------------------------------------------------- one table


def test_olssons_table(olsson):
    assert olsson.converged and olsson.names[:2] == ("rho", "cut[x][1]")
    np.testing.assert_allclose(olsson.rho, 0.49147865, atol=5e-9)
    np.testing.assert_allclose(olsson.standard_errors[0], 0.0485544, atol=5e-8)
    np.testing.assert_allclose(olsson.thresholds[0], [-1.774096, -0.137237], atol=5e-7)
    np.testing.assert_allclose(olsson.thresholds[1], [-0.687880, 0.667200], atol=5e-7)
    np.testing.assert_allclose(olsson.log_likelihood, -890.8319486, atol=5e-8)
    np.testing.assert_allclose(olsson.two_step.rho, 0.49137197, atol=3e-8)
    np.testing.assert_allclose(olsson.two_step.standard_errors, 0.0486, atol=0.002)
    assert "1 of the 9 cells are empty; nothing was added." in olsson.notes
    assert "bivariate normality" in str(olsson)


def test_rows_are_their_table(olsson):
    x, y = columns_of(OLSSON)
    order = np.random.default_rng(0).permutation(len(x))
    fit = quiet(x[order], [float(v) for v in y[order]])
    np.testing.assert_allclose(fit.estimates, olsson.estimates, rtol=1e-9)
    weighted = quiet(*np.indices((3, 3)).reshape(2, -1), weights=OLSSON.ravel())
    np.testing.assert_allclose(weighted.estimates, olsson.estimates, rtol=1e-9)


def test_normality_is_tested_against_the_table(olsson):
    shares = OLSSON / OLSSON.sum()
    saturated = np.sum(OLSSON * np.log(np.where(OLSSON > 0, shares, 1.0)))
    statistic, degrees, p_value = olsson.normality
    np.testing.assert_allclose(statistic, 2 * (saturated - olsson.log_likelihood), rtol=1e-9)
    assert degrees == 3
    np.testing.assert_allclose(p_value, stats.chi2.sf(statistic, 3))
    np.testing.assert_allclose(olsson.expected.sum(), OLSSON.sum())
    wrong = np.array([[90, 10, 60], [10, 60, 10], [60, 10, 90]])  # no normal distribution has it
    assert quiet(wrong, num_profiles=0).normality.p_value < 1e-6


def test_the_tetrachoric_correlation_has_its_closed_form():
    half = quiet(600 * np.array([[1 / 3, 1 / 6], [1 / 6, 1 / 3]]))
    np.testing.assert_allclose(half.rho, 0.5, atol=1e-9)
    assert half.normality.degrees == 0 and np.isnan(half.normality.p_value)
    np.testing.assert_allclose(half.standard_errors[0], half.two_step.standard_errors, rtol=1e-6)
    share = 0.1150267
    fit = quiet(600 * np.array([[share, 0.5 - share], [0.5 - share, share]]))
    np.testing.assert_allclose(fit.rho, -np.cos(2 * np.pi * share), rtol=1e-9)
    np.testing.assert_allclose(fit.rho, -0.75, atol=1e-6)


def test_an_empty_cell_of_four_is_an_edge_and_said():
    table = [[44268, 193], [14, 0]]
    fit = quiet(table)
    assert fit.rho == -1.0 and not fit.converged and fit.standard_errors[0] == np.inf
    assert "edge" in fit.reason and "-1" in fit.reason
    counts = np.array([44268, 193, 14])
    np.testing.assert_allclose(fit.log_likelihood, np.sum(counts * np.log(counts / counts.sum())))
    mended = quiet(table, correction=0.5, num_profiles=0)
    assert round(mended.rho, 2) == 0.24 and any("0.5" in n or "added" in n for n in mended.notes)
    up = quiet(np.diag([5, 7, 3]))
    assert up.rho == 1.0 and "rising" in up.reason


@pytest.mark.full
def test_levels_that_never_occur_many_levels_and_missing_rows():
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], 3000)
    x = np.clip(np.floor(30 * stats.norm.cdf(latent[:, 0])), 0, 29)
    y = np.where(latent[:, 1] > 0.3, 4.0, 1.0)
    y[:100] = np.nan
    fit = quiet(x, tg.Ordinal(y, [1, 2, 4], "wheeze"), num_profiles=0)
    assert fit.converged and abs(fit.rho - 0.6) < 4 * fit.standard_errors[0]
    assert fit.num_rows == 2900 and len(fit.thresholds[0]) == 29
    assert fit.names[-1] == "cut[wheeze][1]"
    assert "Levels of wheeze that never occur have no thresholds: 2." in fit.notes
    assert "100 of 3000 observations lack a category and were left out." in fit.notes


def test_ordinal_reads_texts_and_booleans():
    pandas = pytest.importorskip("pandas")
    levels = ["low", "high"]
    assert tg.Ordinal(["high", None, "low"], levels).codes.tolist() == [1, -1, 0]
    assert tg.Ordinal([True, False]).levels == (0, 1)
    assert tg.Ordinal([2, 0], 3).levels == (0, 1, 2)
    categories = pandas.Categorical(["high", None, "low"], levels, ordered=True)
    for column in (categories, pandas.Series(categories)):
        ordinal = tg.Ordinal(column)
        assert ordinal.levels == ("low", "high") and ordinal.codes.tolist() == [1, -1, 0]


# ---------------------------------------------------------------- many tables


def sample(n, p, missing=0.0):
    """Categories of p items with unlike numbers of levels."""
    rng = np.random.default_rng(0)
    loadings = np.linspace(-0.5, 0.9, p)
    true = np.outer(loadings, loadings)
    np.fill_diagonal(true, 1.0)
    latent = rng.multivariate_normal(np.zeros(p), true, n)
    cuts = [np.sort(rng.normal(size=1 + j)) for j in range(p)]
    codes = np.stack([np.digitize(x, c) for x, c in zip(latent.T, cuts)], axis=1).astype(float)
    codes[rng.random(codes.shape) < missing] = np.nan
    return codes


@pytest.mark.full
def test_errors_and_their_covariance_are_those_of_leaving_rows_out():
    """The infinitesimal jackknife: rho changes by the influence of a row that has more weight."""
    codes = sample(300, 3, missing=0.2)
    matrix = tg.polychoric_matrix(codes)
    assert matrix.num_rows[2, 1] == np.isfinite(codes[:, 2] + codes[:, 1]).sum()
    full = tg.polychoric_matrix(np.concatenate([codes] * 40))
    np.testing.assert_allclose(full.correlations, matrix.correlations, atol=1e-10)
    moves = []
    for row in codes:
        some = tg.polychoric_matrix(np.concatenate([*[codes] * 40, row[None]]))
        moves.append((some.correlations - full.correlations)[tuple(matrix.pairs.T)] * 40)
    jackknife = np.array(moves).T @ np.array(moves)
    covariance = matrix.covariance()
    scale = np.sqrt(np.diagonal(covariance))
    correlation = covariance / np.outer(scale, scale)
    np.testing.assert_allclose(scale, matrix.standard_errors[tuple(matrix.pairs.T)], rtol=1e-10)
    np.testing.assert_allclose(np.sqrt(np.diagonal(jackknife)), scale, rtol=0.01)
    ratio = jackknife / np.sqrt(np.outer(np.diagonal(jackknife), np.diagonal(jackknife)))
    np.testing.assert_allclose(ratio, correlation, atol=0.01)
    np.testing.assert_allclose(matrix.covariance([2, 0]), covariance[np.ix_([2, 0], [2, 0])])


def test_constant_items_and_edges_are_said():
    codes = sample(200, 3)
    data = np.column_stack([codes[:, 2], np.ones(200), codes[:, 2] > 0, codes[:, 2]])
    matrix = tg.polychoric_matrix(data)
    assert np.isnan(matrix.correlations[1, 0]) and matrix.correlations[3, 0] == 1.0
    assert np.isnan(matrix.standard_errors[2, 0]) and matrix.correlations[2, 0] == 1.0
    text = str(matrix)
    assert "1 is constant" in text and "at the edge 1 or -1" in text
    assert "not positive definite" in str(tg.polychoric_matrix(data[:, [0, 2, 3, 0]]))


@pytest.mark.full
def test_a_variable_that_determines_the_other_is_said():
    x = np.tile(np.arange(4), 30)
    for y, sentences in (
        ((np.abs(x - 1.5) > 1).astype(int), ["x determines y"]),
        (np.array([2, 0, 3, 1])[x], ["x determines y", "y determines x"]),
        (np.random.default_rng(0).integers(0, 4, 120), []),
    ):
        notes = tg.polychoric(x, y, num_profiles=0, progress=False).notes
        said = [note.partition(":")[0] for note in notes if "determines" in note]
        assert said == sentences


@pytest.mark.parametrize("table, alarm", [([[81, 57], [1, 61]], False), ([[31, 8], [3, 18]], True)])
def test_truths_weigh_by_the_samples_without_an_empty_cell(table, alarm):
    """Wald's interval of rho covers .99 of the estimates of tables like the first, most of which
    have an empty cell and none, and .89 of those like the second."""
    fit = tg.polychoric(table)
    assert ("rho" in fit.profiles) == alarm
    draws = np.random.default_rng(0).multinomial(
        np.sum(table), fit.expected.ravel() / np.sum(table), 40_000
    )
    model = model_of(table, None, None, 0.0)
    np.testing.assert_allclose(model.exists(fit.best.x), np.mean(np.all(draws > 0, 1)), atol=0.01)
