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
from truncgauss.quadrature.refused_rows import AT_ONCE, where_needed
from truncgauss.special import log_interval_mass, standardize

INF = math.inf
EACH = 8  # rows of each kind


def rectangles():
    """One-sided, mixed, two-sided and narrow ones, tails, correlations close to 1, free ones."""
    generator = np.random.default_rng(7)
    rows = []
    for kind in ("below", "mixed", "both", "narrow", "tail", "correlated", "free", "far"):
        factor = generator.normal(size=(EACH, 3, 5))
        if kind == "correlated":
            factor[:, 1] = (
                factor[:, 0] + 10.0 ** generator.uniform(-7, -1, (EACH, 1)) * factor[:, 1]
            )
        covariance = factor @ np.swapaxes(factor, 1, 2)
        scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        low = generator.normal(-0.8, 0.7, (EACH, 3))
        high = np.full((EACH, 3), INF)
        if kind == "mixed":
            above = generator.random((EACH, 3)) < 0.5
            low, high = np.where(above, -INF, low), np.where(above, -low, INF)
        if kind in ("both", "correlated"):
            high = low + generator.uniform(0.5, 4.0, (EACH, 3))
        if kind == "narrow":
            high = low + 10.0 ** generator.uniform(-6.0, 0.0, (EACH, 3))
        if kind in ("tail", "far"):
            low = generator.uniform(0.0, 3.0 if kind == "tail" else 40.0, (EACH, 3))
        if kind == "free":
            low[:, 1] = -INF
        rows.append(
            (0.3 * scale, covariance, 0.3 * scale + scale * low, 0.3 * scale + scale * high)
        )
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
    counts = np.asarray(jax.jit(jax.vmap(by_parts.log_probability))(*inputs).counts)
    assert 0.3 < counts.mean() < 0.8
    assert counts[:EACH].mean() > 0.5 and not counts[-EACH:].any()


@pytest.mark.full
def test_limits_that_exclude_next_to_nothing_are_no_reason_to_go_slowly():
    """As most of many rows have, where a sampler begins: 5 to 38 standard deviations off."""
    rng, n = np.random.default_rng(5), 48
    factor = rng.normal(size=(n, 3, 5))
    covariance = factor @ np.swapaxes(factor, 1, 2)
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    away = np.where(np.arange(3) == rng.integers(3, size=(n, 1)), 0.5, rng.uniform(5, 45, (n, 3)))
    low, high = -scale * away, np.where(rng.random((n, 3)) < 0.5, np.inf, scale * away[:, ::-1])
    inputs = np.zeros((n, 3)), covariance, low, high
    assert np.mean(jax.jit(jax.vmap(by_parts.log_probability))(*inputs).counts) > 0.7
    (_, values), slopes = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3), has_aux=True))(*inputs)
    expected, others = jax.jit(jax.vmap(jax.value_and_grad(log_prob, (0, 1, 2, 3))))(*inputs)
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(slopes, others):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.full
def test_second_derivatives_by_parts():
    row = [part[0] for part in rectangles()]
    function = lambda *inputs: by_parts.log_probability(*inputs).log_prob
    assert by_parts.log_probability(*row).counts
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
    n, rng = 40, np.random.default_rng(0)
    shut = np.where(rng.uniform(size=(2, n, 3)) < 0.4, np.inf, 0.0)
    low = rng.normal(size=(n, 3)) - 1.0
    low, high = low - shut[0], low + rng.uniform(0.3, 3.0, size=(n, 3)) + shut[1]
    low[0], high[0] = -np.inf, (np.inf, 0.0, np.inf)
    low[1], high[1] = -np.inf, (3.2, np.inf, -0.14)
    matrices = np.tile(np.eye(3), (n, 1, 1))
    matrices[10:20, 0, 1] = matrices[10:20, 1, 0] = 0.28
    matrices[20:30, 1, 2] = matrices[20:30, 2, 1] = -0.5

    def log_prob(matrix, low, high):
        return tg.log_probability(np.zeros(low.shape), matrix, tg.Box(low, high)).log_prob

    many = jax.jit(jax.grad(lambda *row: log_prob(*row).sum()))(matrices, low, high)
    one = jax.jit(jax.grad(log_prob))
    for k in range(n):
        np.testing.assert_allclose(many[k], one(matrices[k], low[k], high[k]), atol=1e-11)
    orthant = np.zeros((n, 3)), np.full((n, 3), np.inf)
    slopes = jax.jit(jax.grad(lambda matrix: log_prob(matrix, *orthant).mean()))(np.eye(3))
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


def test_narrow_masses_keep_the_digits_of_their_slopes():
    low, width = 0.7, 1e-9
    mass = lambda x: by_parts.mass(low + x, low + x + width, width)
    slope = jax.jit(jax.grad(mass))(0.0)
    # The mass is the density at the middle times the width, but for a part of 1e-19.
    middle = low + 0.5 * width
    exact = -middle * np.exp(-0.5 * middle**2) / np.sqrt(2 * np.pi) * width
    np.testing.assert_allclose(slope, exact, rtol=1e-12)


@pytest.mark.full
def test_a_function_of_the_rows_that_need_it():
    """Of fewer, more and none than are gathered at a time; the others may have no value."""

    def function(x):
        return jnp.sum(jnp.log(x)) * x[0]

    x = np.random.default_rng(1).uniform(0.5, 2.0, (3 * AT_ONCE, 2))
    for count in (0, 3, 2 * AT_ONCE + 1):
        needed = np.random.default_rng(2).permutation(np.arange(len(x)) < count)
        rows = np.where(needed[:, None], x, -1.0)
        for order in (
            lambda f: f,
            jax.grad,
            jax.hessian,
            lambda f: jax.jacrev(jax.grad(f)),
        ):
            needing = order(lambda x, y: where_needed(function, y, x))
            of_all = jax.jit(jax.vmap(needing))(rows, needed)
            expected = jax.jit(jax.vmap(order(function)))(np.where(needed[:, None], x, 1.0))
            shown = needed.reshape(-1, *[1] * (expected.ndim - 1))
            np.testing.assert_allclose(of_all, np.where(shown, expected, 0.0), rtol=1e-13)
    shared = jax.vmap(lambda y: where_needed(function, y, x[0]))(needed)
    np.testing.assert_allclose(shared, np.where(needed, function(x[0]), 0.0), rtol=1e-13)
