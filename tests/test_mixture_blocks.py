"""Likelihoods of mixtures from blocks of rows, against those of all rows at once."""

import jax
import numpy as np
import pytest

import truncgauss as tg
from tests.mixture_em import INF, drawn
from truncgauss import likelihood
from truncgauss.fits.mixtures import likelihood as mixture_likelihood
from truncgauss.fits.mixtures.curvature import point, rough_point, scores_at, shares, terms_at
from truncgauss.fits.mixtures.em import expectation
from truncgauss.fits.mixtures.fit import prepared_loss
from truncgauss.fits.mixtures.likelihood import planned, total_of
from truncgauss.fits.mixtures.parameters import Components

START = Components(
    np.array([0.4, 0.6]),
    np.array([[-0.5, 0.3], [3.0, 1.5]]),
    np.array([[[1.0, 0.2], [0.2, 0.7]], [[0.6, -0.1], [-0.1, 1.1]]]),
)
REGION = tg.Polyhedron([[1.0, 0.0], [1.0, 1.0], [0.3, 1.0]], [-2.0, -4.0, -INF], [INF, 9.0, 7.0])


def rows_of(kind, n=29):
    """Rows of two components, some with gaps, of which one knows nothing."""
    rng = np.random.default_rng(2)
    y = drawn(rng, 2 * n, *START[:3])
    y = y[np.asarray(REGION.contains(y))][:n]
    y[:4, 0] = y[9:12, 1] = np.nan
    y[20] = np.nan
    noise = rng.uniform(0.05, 0.4, size=y.shape)
    settings = {"weights": rng.integers(3, size=n).astype(float)}
    if kind == "own noise":
        settings |= {"noise": noise, "region": REGION}
    if kind == "one region":
        settings |= {"noise": 0.1 * np.eye(2), "region": REGION}
    if kind == "own boxes":
        low = np.where(np.arange(n) % 2 == 0, -2.5, -3.0)
        settings["region"] = tg.Box(np.stack([low, np.full(n, -5.0)], axis=1), INF)
    return tg.Observations.exact(y, nan_is_missing=True, **settings)


def test_blocks_have_every_row_once_and_shared_integrals_once_each():
    rows = rows_of("one region")
    blocks = likelihood.blocks(rows, 8)
    assert len({jax.tree.structure(block.rows) for block in blocks}) == 1
    shapes = [[leaf.shape for leaf in jax.tree.leaves(block.rows)] for block in blocks]
    assert shapes == [shapes[0]] * 4
    numbers = np.concatenate([block.numbers for block in blocks])
    assert sorted(numbers[numbers < 29]) == list(range(29))
    weights = np.concatenate([np.asarray(block.rows.weights) for block in blocks])
    assert np.all(weights[numbers == 29] == 0)
    np.testing.assert_array_equal(weights[numbers < 29], rows.weights[numbers[numbers < 29]])
    for block in blocks:
        (region,) = block.rows.region_patterns
        assert len(region.first) == 1 and set(np.asarray(region.numbers)) == {0}


def both(rows, monkeypatch):
    """The loss of all rows at once and of four blocks, planned, and the start's coordinates."""
    method = tg.Separation(num_points=32, num_replicates=2)
    whole, _ = prepared_loss(rows, 2, "full", method)
    monkeypatch.setattr(mixture_likelihood, "BLOCK", 8)
    split, _ = prepared_loss(rows, 2, "full", method)
    assert len(whole.parts) == 1 and len(split.parts) == 4
    x = whole.coordinates.free(*START)
    return planned(whole, method, START), planned(split, method, START), x


def check_same(found, expected):
    check = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    jax.tree.map(check, found, expected)


@pytest.mark.full
def test_blocks_of_rows_tell_what_all_rows_do(monkeypatch):
    whole, split, x = both(rows_of("no region"), monkeypatch)
    check_same(expectation(split, START), expectation(whole, START))
    check_same(terms_at(split, x), terms_at(whole, x))
    one, other = rough_point(split, x), rough_point(whole, x)
    check_same((one.loss, one.gradient), (other.loss, other.gradient))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["own noise", "one region"])
def test_blocks_of_selected_rows_tell_what_all_rows_do(kind, monkeypatch):
    rows = rows_of(kind)
    whole, split, x = both(rows, monkeypatch)
    check_same(expectation(split, START), expectation(whole, START))
    check_same(scores_at(split, x), scores_at(whole, x))
    terms, found = terms_at(whole, x), terms_at(split, x)
    check_same(found, terms)
    # An error that rows of all blocks share is not taken for several independent ones.
    errors = [float(total_of(rows, part).stderr) for part in (found, terms)]
    assert errors[1] > 0
    np.testing.assert_allclose(*errors, rtol=1e-9)


@pytest.mark.full
def test_the_curvature_of_blocks_is_that_of_all_rows(monkeypatch):
    rows = rows_of("own boxes")
    whole, _ = prepared_loss(rows, 2, "full")
    monkeypatch.setattr(mixture_likelihood, "BLOCK", 8)
    split, _ = prepared_loss(rows, 2, "full")
    x = whole.coordinates.free(*START)
    check_same(shares(split, x), shares(whole, x))
    one, other = point(whole, x), point(split, x)
    np.testing.assert_allclose(other.hessian, one.hessian, rtol=1e-6, atol=1e-8)
