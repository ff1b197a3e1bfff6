"""Exact in three dimensions: values, derivatives, singular covariances, rows."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truncgauss as tg
from tests.exact_rows import (
    EXACT,
    ROWS,
    log_prob,
    rows_of_log_prob,
    rows_of_slopes,
)

INF = math.inf


# Correlations r12, r13, r23 whose orthant is 1/8 + (sum of arcsines)/(4 pi).
ORTHANTS = [
    (0.3, 0.2, 0.5),
    (-0.3, 0.2, 0.5),
    (0.999999, 0.5, 0.5),
    (-0.999, -0.5, 0.5),
    (0.5, 0.5, -0.4999999),
    (0.999999, 0.999999, 0.999999),
]


def three_by_three(r12, r13, r23):
    return [[1.0, r12, r13], [r12, 1.0, r23], [r13, r23, 1.0]]


def three_inputs():
    """Orthants; named cases; independent coordinates in the tail; one factor."""
    rows = []
    for r in ORTHANTS:
        # Arcsines near -1/2 and 1/2 cancel: the one hard orthant is left at 1e-9 by its formula.
        p = 0.125 + math.fsum(math.asin(x) for x in r) / (4 * math.pi)
        rows.append(((0.0,) * 3, three_by_three(*r), (0.0,) * 3, (INF,) * 3, math.log(p)))
    rows += [
        (
            (0.0,) * 3,
            three_by_three(3 / 5, 1 / 3, 11 / 15),
            (-INF,) * 3,
            (1.0, 4.0, 2.0),
            -0.1887603645496573,
        ),
        (
            (0.5,) * 3,
            [[1, 0.6, 0.3], [0.6, 1, 0.2], [0.3, 0.2, 2]],
            (-INF,) * 3,
            (1.0,) * 3,
            -0.9486675579046695,
        ),
        ((0.0,) * 3, three_by_three(0, 0, 0), (10.0,) * 3, (INF,) * 3, 3 * -53.23128515051247),
        (
            (0.0,) * 3,
            [[1.5, -0.5, -0.5], [-0.5, 1.5, -0.5], [-0.5, -0.5, 1.5]],
            (0.5,) * 3,
            (1.0,) * 3,
            -6.8332772755698349,
        ),
    ]
    return tuple(jnp.asarray(part, float) for part in zip(*rows))


def test_three_dimensions():
    *inputs, truth = three_inputs()
    value, (by_loc, by_covariance, by_low, by_high) = rows_of_slopes(*inputs)
    np.testing.assert_allclose(value, truth, rtol=1e-12, atol=1e-12)
    # An orthant's slope in r12 is 1/(4 pi sqrt(1 - r12^2)), half of it for each of two entries.
    r = np.array(ORTHANTS)
    slopes = 1 / (8 * math.pi * np.sqrt((1 - r) * (1 + r))) / np.exp(truth[: len(r), None])
    ours = np.asarray(by_covariance)[: len(r)][:, [0, 0, 1], [1, 2, 2]]
    np.testing.assert_allclose(ours, slopes, rtol=1e-8)
    np.testing.assert_allclose(by_loc, -(by_low + by_high), rtol=1e-8, atol=1e-8)
    assert np.all(np.asarray(by_high)[~np.isfinite(inputs[3])] == 0)


@pytest.mark.full
def test_three_dimensions_permuted():
    """In every order, hence by other integrals; to log P = -4e3 and with correlations near one."""
    generator = np.random.default_rng(3)
    factor = generator.normal(size=(6, 3, 3)) * np.array([1.0, 1.0, 1e-3])
    covariance = factor @ np.swapaxes(factor, -1, -2) + 1e-8 * np.eye(3)
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    corner = np.einsum("kij,kj->ki", factor, generator.normal(size=(6, 3)) * 20)
    low, high = corner, corner + scale * np.array([[0.1, 2.0, INF]] * 6)
    inputs = [jnp.asarray(x) for x in (0.1 * scale, covariance, low, high)]
    value = np.asarray(rows_of_log_prob(*inputs))
    assert value.min() < -100 and np.isfinite(value).all()
    for order in ([2, 0, 1], [1, 0, 2]):
        loc, covariance, low, high = inputs
        permuted = (loc[:, order], covariance[:, order][:, :, order], low[:, order], high[:, order])
        np.testing.assert_allclose(rows_of_log_prob(*permuted), value, rtol=1e-9, atol=1e-9)


@pytest.mark.full
def test_singular_in_three_dimensions_under_a_trace():
    """Where coordinates determine each other the value is right, or it is NaN: never a guess."""
    generator = np.random.default_rng(5)
    rows, truths = [], []
    for k in range(ROWS):
        pair = generator.normal(size=(2, 2))
        pair = pair @ pair.T + 0.1 * np.eye(2)
        # X3 = X1, or as near to it as rounding of a product leaves it.
        weights = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        turn = np.linalg.qr(generator.normal(size=(2, 2)))[0] if k % 2 else np.eye(2)
        root = weights @ np.linalg.cholesky(pair) @ turn
        low = -generator.uniform(0.2, 1.5, 3)
        high = np.where(generator.random(3) < 0.5, INF, generator.uniform(0.1, 2.0, 3))
        rows.append((np.zeros(3), root @ root.T, low, high))
        both = [max(low[0], low[2]), low[1]], [min(high[0], high[2]), high[1]]
        truths.append((np.zeros(2), pair, *both))
    answers = jax.jit(lambda loc, s, *limits: tg.log_probability(loc, s, tg.Box(*limits), EXACT))
    value, stderr = answers(*(jnp.asarray(np.array(part)) for part in zip(*rows)))
    truth = rows_of_log_prob(*(jnp.asarray(np.array(part)) for part in zip(*truths)))
    unknown = np.isnan(value)
    assert 0 < unknown.sum() < ROWS
    np.testing.assert_array_equal(np.isnan(stderr), unknown)
    # The residual of a singular matrix is the root of its rounding.
    np.testing.assert_allclose(value[~unknown], truth[~unknown], atol=1e-6)


@pytest.mark.full
def test_rows_in_three_dimensions_take_little_memory():
    rows = [jnp.broadcast_to(x[0], (250, *x.shape[1:])) for x in three_inputs()[:4]]
    compiled = jax.jit(jax.vmap(jax.value_and_grad(log_prob, (0, 1)))).lower(*rows).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 250 * 200_000


@pytest.mark.full
@pytest.mark.parametrize("d", [2, 3])
def test_second_derivatives_in_every_mode_far_out(d):
    """Loops of unknown length have no reverse derivative of their own; far out, where a lost rule
    would show."""
    covariance = jnp.array([[1.0, 0.3, 0.2], [0.3, 1.0, -0.5], [0.2, -0.5, 2.0]])
    low, high = jnp.array([9.0, -1.0, 6.0]), jnp.array([INF, 1e-3, INF])
    keep = jnp.arange(3) if d == 3 else jnp.array([0, 2])
    fun = lambda loc: log_prob(loc, covariance[keep][:, keep], low[keep], high[keep])
    loc, moved = jnp.zeros(d), 1e-4 * jnp.eye(d)
    forward = jax.jit(jax.jacfwd(jax.jacrev(fun)))(loc)
    for inner, outer in [(jax.jacrev, jax.jacrev), (jax.jacfwd, jax.jacfwd)]:
        np.testing.assert_allclose(jax.jit(outer(inner(fun)))(loc), forward, rtol=1e-12)
    slopes = jax.jit(jax.vmap(jax.grad(fun)))(jnp.concatenate([moved, -moved]))
    np.testing.assert_allclose(forward, (slopes[:d] - slopes[d:]) / 2e-4, rtol=1e-6, atol=1e-6)


@pytest.mark.full
def test_second_derivatives_of_a_batch_of_rectangles_that_share_limits():
    """Rules of derivatives within a batch, where parts of a gradient are the same for all."""
    covariance, limits = jnp.array([[1.0, 0.4], [0.4, 2.0]]), (jnp.zeros(2), jnp.full(2, INF))
    points = jnp.array([[0.3, -0.1], [0.5, 0.2], [-0.4, 1.0]])
    total = lambda x: jax.vmap(lambda at: log_prob(at * x, covariance, *limits))(points).sum()
    x, moved = jnp.array([0.7, -0.2]), 1e-5 * jnp.eye(2)
    curvature = jax.jit(jax.jacfwd(jax.grad(total)))(x)
    slopes = jax.jit(jax.vmap(jax.grad(total)))(x + jnp.concatenate([moved, -moved]))
    np.testing.assert_allclose(curvature, (slopes[:2] - slopes[2:]) / 2e-5, rtol=1e-8)
