"""Many rectangles of three dimensions at once: a quicker program that returns the same numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.exact_rows import EXACT, log_prob
from truncgauss.probability.exact import MANY_ROWS
from truncgauss.quadrature import by_parts
from truncgauss.quadrature.trivariate import AT_ONCE, where_needed
from truncgauss.special import log_interval_mass, standardize

INF = math.inf
EACH = 8  # rows of each kind


KINDS = "below mixed both narrow tail correlated free far unlimited uncorrelated".split()


def rectangles():
    """Rows of each kind, in standard deviations: loc, covariance, low, high."""
    rng, rows = np.random.default_rng(7), []
    for kind in KINDS:
        factor = rng.normal(size=(EACH, 3, 5))
        if kind == "correlated":
            factor[:, 1] = factor[:, 0] + 10.0 ** rng.uniform(-7, -1, (EACH, 1)) * factor[:, 1]
        covariance = factor @ np.swapaxes(factor, 1, 2)
        low, high = rng.normal(-0.8, 0.7, (EACH, 3)), np.full((EACH, 3), INF)
        if kind == "mixed":
            above = rng.random((EACH, 3)) < 0.5
            low, high = np.where(above, -INF, low), np.where(above, -low, INF)
        if kind in ("both", "correlated"):
            high = low + rng.uniform(0.5, 4.0, (EACH, 3))
        if kind == "narrow":
            high = low + 10.0 ** rng.uniform(-6.0, 0.0, (EACH, 3))
        if kind in ("tail", "far"):
            low = rng.uniform(0.0, 3.0 if kind == "tail" else 40.0, (EACH, 3))
        if kind == "free":
            low[:, 1] = -INF
        if kind == "unlimited":  # but for next to nothing, as where a sampler begins
            away = rng.uniform(5, 45, (EACH, 3))
            away[np.arange(EACH), rng.integers(3, size=EACH)] = 0.5
            low, high = -away, np.where(rng.random((EACH, 3)) < 0.5, INF, away[:, ::-1])
        if kind == "uncorrelated":
            covariance = np.tile(np.eye(3), (EACH, 1, 1))
            covariance[3:5, 0, 1] = covariance[3:5, 1, 0] = 0.28
            covariance[5:, 1, 2] = covariance[5:, 2, 1] = -0.5
            shut = np.where(rng.uniform(size=(2, EACH, 3)) < 0.4, INF, 0.0)
            low, high = low - shut[0], low + rng.uniform(0.3, 3.0, (EACH, 3)) + shut[1]
            low[:2], high[:2] = -INF, [[INF, 0.0, INF], [3.2, INF, -0.14]]
        scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        loc = 0.3 * scale * (kind not in ("unlimited", "uncorrelated"))
        rows.append((loc, covariance, loc + scale * low, loc + scale * high))
    return [np.concatenate(part) for part in zip(*rows)]


def total(*inputs):
    values = tg.log_probability(*inputs[:2], tg.Box(*inputs[2:]), method=EXACT).log_prob
    return values.sum(), values


@pytest.mark.full
def test_many_rows_at_once_and_one_by_one():
    inputs = rectangles()
    assert len(inputs[0]) >= MANY_ROWS
    (_, values), slopes = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))(*inputs)
    one_by_one = jax.jit(jax.vmap(jax.value_and_grad(log_prob, (0, 1, 2, 3))))
    expected, expected_slopes = one_by_one(*inputs)
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(slopes, expected_slopes):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)
    # Both ways are taken.
    counts = np.asarray(jax.jit(jax.vmap(by_parts.log_probability))(*inputs)[1])
    counts = dict(zip(KINDS, counts.reshape(-1, EACH).mean(1)))
    assert counts["below"] > 0.5 and counts["unlimited"] > 0.7 and counts["far"] == 0, counts


@pytest.mark.full
def test_second_derivatives_by_parts():
    row = [part[0] for part in rectangles()]
    function = lambda *inputs: by_parts.log_probability(*inputs)[0]
    assert by_parts.log_probability(*row)[1]
    ours = jax.jit(jax.hessian(function, (0, 1, 2)))(*row)
    expected = jax.jit(jax.hessian(log_prob, (0, 1, 2)))(*row)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10), ours, expected
    )


@pytest.mark.full
def test_many_rows_in_float32():
    inputs = rectangles()
    plain = [part[: 3 * EACH].repeat(2, 0) for part in inputs]
    rounded = [part.astype(np.float32) for part in plain]
    plain = [part.astype(np.float64) for part in rounded]
    function = jax.jit(jax.value_and_grad(total, (0, 2), has_aux=True))
    (_, values), slopes = function(*rounded)
    (_, expected), expected_slopes = function(*plain)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-5)
    for ours, theirs in zip(slopes, expected_slopes):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_derivatives_by_correlations_that_are_zero():
    """Of an orthant, whose 40 rows share a matrix: (1 - I) / pi."""
    orthants = tg.Box(np.zeros((40, 3)), INF)
    of = lambda matrix: tg.log_probability(np.zeros((40, 3)), matrix, orthants).log_prob.mean()
    slopes = jax.jit(jax.grad(of))(np.eye(3))
    np.testing.assert_allclose(slopes, (1.0 - np.eye(3)) / np.pi, atol=1e-13)


def test_derivatives_of_masses_are_densities():
    """Of both orders, as those of the log mass have them."""
    both = (
        lambda shift, *limits: by_parts.mass(*standardize(*limits, shift)),
        lambda shift, *limits: jnp.exp(log_interval_mass(*standardize(*limits, shift))),
    )
    orders = jax.grad, jax.hessian
    every = jax.vmap(lambda *x: [[order(f)(*x) for order in orders] for f in both])
    limits = np.array([[0.3, -7.0, -INF, -0.2], [1.1, 7.0, 0.4, INF]])
    found, expected = map(np.asarray, jax.jit(every)(np.zeros(4), *limits))
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)
    # A narrow mass is the density at the middle times the width, but for a part of 1e-19.
    low, width = 0.7, 1e-9
    slope = jax.jit(jax.grad(lambda x: by_parts.mass(low + x, low + x + width, width)))(0.0)
    middle = low + 0.5 * width
    exact = -middle * np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi) * width
    np.testing.assert_allclose(slope, exact, rtol=1e-12)


@pytest.mark.full
def test_a_function_of_the_rows_that_need_it():
    """Of fewer, more and none than are gathered at a time; the others may have no value."""

    def function(x):
        return jnp.sum(jnp.log(x)) * x[0]

    x = np.random.default_rng(1).uniform(0.5, 2.0, (3 * AT_ONCE, 2))
    orders = lambda f: f, jax.grad, jax.hessian, lambda f: jax.jacrev(jax.grad(f))
    for order in orders:
        needing = jax.jit(jax.vmap(order(lambda x, y: where_needed(function, y, x))))
        every = jax.jit(jax.vmap(order(function)))
        for count in (0, 3, 2 * AT_ONCE + 1):
            needed = np.random.default_rng(2).permutation(np.arange(len(x)) < count)
            found = needing(np.where(needed[:, None], x, -1.0), needed)
            expected = every(np.where(needed[:, None], x, 1.0))
            shown = needed.reshape(-1, *[1] * (expected.ndim - 1))
            np.testing.assert_allclose(found, np.where(shown, expected, 0.0), rtol=1e-13)
    shared = jax.vmap(lambda y: where_needed(function, y, x[0]))(needed)
    np.testing.assert_allclose(shared, np.where(needed, function(x[0]), 0.0), rtol=1e-13)


def test_many_rows_of_two_coordinates_that_determine_each_other():
    """Many rows are no reason to take the box of a singular pair for one of full rank."""
    loc, box = np.linspace(-1.0, 1.0, MANY_ROWS)[:, None] + np.zeros(2), ([-1.0, -0.5], [2.0, 1.0])
    for method in (tg.Exact(), tg.Automatic()):
        result = tg.log_probability(loc, np.ones((2, 2)), tg.Box(*box), method)
        one = log_interval_mass(*standardize(-0.5, 1.0, loc[:, 0]))
        np.testing.assert_allclose(result.log_prob, one, rtol=1e-12)
