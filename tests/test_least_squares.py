"""Least squares, triangles and medians of many rows, and covariates made white by them."""

import numpy as np
import pytest

from truncgauss.covariates import whitening
from truncgauss.fitting import least_squares
from truncgauss.tables import Table

RNG = np.random.default_rng(5)
N = 61  # a prime


def test_a_median_of_many_values_on_one_process_is_that_of_a_sample(monkeypatch):
    monkeypatch.setattr(least_squares, "SKETCH", 3000)
    values = np.tile(np.sort(RNG.exponential(size=10_000)), 2)  # of a period, which samples miss
    assert abs(np.mean(values <= least_squares.median_of(values)) - 0.5) < 0.03
    assert least_squares.median_of(values[:3000]) == np.median(values[:3000])


def test_products_in_blocks_are_those_of_all_rows(monkeypatch):
    monkeypatch.setattr(least_squares, "BLOCK", 7)
    columns, values, weights = RNG.normal(size=(N, 3)), RNG.normal(size=N), RNG.uniform(size=N)
    both = np.column_stack([columns, values])
    exact = least_squares.products_of(columns, values, weights)
    np.testing.assert_allclose(exact, both.T @ (weights[:, None] * both), rtol=1e-13)
    rows = RNG.integers(N, size=2 * N)
    some = least_squares.products_of(columns, rows=rows)
    np.testing.assert_allclose(some, columns[rows].T @ columns[rows], rtol=1e-13)


@pytest.mark.parametrize("many", [1, 10 * N])
def test_least_squares_and_triangles_of_few_rows_and_many(many, monkeypatch):
    monkeypatch.setattr(least_squares, "MANY", many)
    columns, values = RNG.normal(size=(N, 3)), RNG.normal(size=N)
    weights, units = RNG.integers(0, 3, N).astype(float), np.array([1e-3, 1.0, 1e3])
    rows = np.repeat(np.arange(N), weights.astype(int))
    wanted = np.linalg.lstsq(columns[rows], values[rows], rcond=None)[0]
    found = least_squares.least_squares(columns, values, weights)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    plain = least_squares.least_squares(columns, values)
    np.testing.assert_allclose(plain, np.linalg.lstsq(columns, values, rcond=None)[0], rtol=1e-12)
    triangle = least_squares.triangle(columns * units, units)
    np.testing.assert_allclose(triangle.T @ triangle, columns.T @ columns, rtol=1e-12)


def test_covariates_of_many_rows_are_white(monkeypatch):
    """In blocks, without a change of the user's array."""
    for module, name in ((least_squares, "MANY"), (least_squares, "BLOCK"), (whitening, "BLOCK")):
        monkeypatch.setattr(module, name, 16)
    constant = np.column_stack([RNG.normal(5.0, 1.0, N), np.ones(N), RNG.normal(size=N)])
    late = constant[:, [0, 2, 2]]
    late[:, 1] = np.where(np.arange(N) < 20, 1.0, 2.0)  # constant in the first block alone
    for design in (constant, np.asfortranarray(constant), late):
        before = design.copy()
        white = whitening.whitened(Table(design), None, "columns")
        np.testing.assert_array_equal(design, before)
        assert white.design.flags.c_contiguous
        np.testing.assert_allclose(white.design.T @ white.design / N, np.eye(3), atol=1e-13)
        np.testing.assert_allclose(design @ white.transform, white.design, atol=1e-12)
        assert (white.constant is None) == (design is late)
