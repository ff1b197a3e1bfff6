"""Soft edges: values, logs, slopes and widths at every margin, finite or not."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax.test_util import check_grads

import truncgauss as tg

EDGES = [tg.Tanh(100.0), tg.Tanh(0.3), tg.Probit(0.1), tg.Probit(7.0), tg.Bump(0.5), tg.Bump(3.0)]
MARGINS = np.concatenate(
    [s * np.array([0.0, 1e-300, 1e-10, 1e-3, 0.1, 0.49, 1.0, 2.9, 30.0, 1e3, 1e10, 1e300, np.inf])
     for s in (-1, 1)]
)  # fmt: skip


def exact_log_value(edge, margin):
    """The edge's log value in 50 digits, straight from its definition."""
    with mpmath.workdps(50):
        m = mpmath.mpf(float(margin))
        if isinstance(edge, tg.Tanh):
            z = mpmath.mpf(float(edge.steepness)) * m
            return -mpmath.log1p(mpmath.exp(-z)) if z > -1e5 else z
        t = m / mpmath.mpf(float(edge.width))
        if isinstance(edge, tg.Probit):
            if abs(t) > 1e8:
                return mpmath.mpf(0) if t > 0 else -t * t / 2
            return mpmath.log(mpmath.erfc(-t / mpmath.sqrt(2)) / 2)
        if t <= 0:
            return mpmath.mpf("-inf")
        if t >= 1:
            return mpmath.mpf(0)
        odds = 1 / t - 1 / (1 - t)
        return -mpmath.log1p(mpmath.exp(odds)) if odds < 1e5 else -odds


@pytest.mark.parametrize("edge", EDGES, ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_log_values_agree_with_fifty_digits(edge, dtype):
    margins = jnp.linspace(-4.0, 4.0, 81).astype(dtype)
    edge = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), edge)
    got = edge.log_value(margins)
    assert got.dtype == dtype
    tolerance = 1e-13 if dtype == jnp.float64 else 1e-5
    for margin, value in zip(np.asarray(margins), np.asarray(got)):
        truth = float(exact_log_value(edge, margin))
        if np.isinf(truth):
            assert value == truth
        else:
            assert abs(value - truth) <= tolerance * max(1.0, abs(truth)), (margin, value, truth)


@pytest.mark.parametrize("edge", EDGES, ids=repr)
@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_no_margin_makes_a_nan(edge, dtype):
    largest = 0.99 * float(jnp.finfo(dtype).max)
    margins = np.where(np.isinf(MARGINS), MARGINS, np.clip(MARGINS, -largest, largest))
    margins = jnp.asarray(margins, dtype)
    edge = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), edge)

    def value_slope_and_width(margin):
        value, slopes = jax.value_and_grad(lambda e, m: e.value(m), (0, 1))(edge, margin)
        return value, edge.log_value(margin), jax.tree.leaves(slopes)

    value, log_value, slopes = jax.vmap(value_slope_and_width)(margins)
    assert jnp.all((value >= 0) & (value <= 1))
    assert not jnp.isnan(log_value).any()
    for slope in slopes:
        assert jnp.isfinite(slope).all(), margins[~jnp.isfinite(slope)]
    infinite = jnp.isinf(margins)
    for slope in slopes:
        np.testing.assert_array_equal(slope[infinite], 0.0)
    np.testing.assert_array_equal(value[infinite], (margins > 0)[infinite].astype(dtype))


@pytest.mark.parametrize("edge", EDGES, ids=repr)
def test_log_slopes_are_finite_where_the_log_value_is(edge):
    margins = jnp.asarray(MARGINS[np.abs(MARGINS) <= 1e10])
    log_value = edge.log_value(margins)
    slopes = jax.vmap(jax.grad(lambda m, e: e.log_value(m), (0, 1)), (0, None))(margins, edge)
    for slope in jax.tree.leaves(slopes):
        assert jnp.isfinite(slope[jnp.isfinite(log_value)]).all()


@pytest.mark.parametrize("edge", [tg.Tanh(3.0), tg.Probit(0.7), tg.Bump(2.0)], ids=repr)
def test_derivatives_agree_with_finite_differences_to_second_order(edge):
    for margin in (-0.9, 0.4, 1.1):
        if isinstance(edge, tg.Bump) and margin < 0:
            continue
        for function in (lambda m, e: e.value(m), lambda m, e: e.log_value(m)):
            leaf, rebuild = jax.tree.flatten(edge)
            flat = lambda m, w: function(m, jax.tree.unflatten(rebuild, [w]))  # noqa: B023
            check_grads(flat, (margin, *leaf), order=2, modes=("fwd", "rev"), rtol=1e-4)


def test_the_tanh_edge_is_the_first_users_filter():
    margin = jnp.linspace(-0.2, 0.2, 41)
    hand_written = 0.5 * (1 + jnp.tanh(100.0 * margin / 2))
    np.testing.assert_allclose(tg.Tanh(100.0).value(margin), hand_written, rtol=1e-12, atol=1e-16)


def test_the_tanh_edge_lives_where_tanh_itself_is_zero():
    """0.5 (1 + tanh(z / 2)) is exactly 0 at z = -40 (float64), -17 (float32); the edge is not."""
    for dtype, z in ((jnp.float64, -40.0), (jnp.float32, -18.0)):
        margin = jnp.asarray(z, dtype)
        naive = 0.5 * (1 + jnp.tanh(margin / 2))
        value, slope = jax.value_and_grad(tg.Tanh(1.0).value)(margin)
        assert naive == 0.0
        np.testing.assert_allclose([value, slope], np.exp(z), rtol=3e-6)


def test_smooth_step_is_symmetric_and_flat_at_both_ends():
    step = tg.Bump(2.0)
    t = jnp.linspace(0.0, 2.0, 101)
    np.testing.assert_allclose(step.value(t) + step.value(2.0 - t), 1.0, rtol=1e-12)
    for order in range(1, 4):
        derivative = step.value
        for _ in range(order):
            derivative = jax.grad(derivative)
        for end in (-1e-3, 0.0, 1e-3, 2.0 - 1e-3, 2.0, 2.0 + 1e-3):
            assert abs(float(derivative(end))) < 1e-100


def test_surrogate_is_hard_forward_and_soft_backward():
    soft, surrogate = tg.Tanh(4.0), tg.Surrogate(tg.Tanh(4.0))
    for margin in (-0.5, 0.2):
        value, slope = jax.value_and_grad(surrogate.value)(margin)
        assert value == float(margin > 0)
        np.testing.assert_allclose(slope, jax.grad(soft.value)(margin), rtol=1e-14)
        slope = jax.grad(surrogate.log_value)(margin)
        np.testing.assert_allclose(slope, jax.grad(soft.log_value)(margin), rtol=1e-14)


@pytest.mark.parametrize("edge", [*EDGES, tg.Hard(), tg.Surrogate(tg.Tanh(1.0))], ids=repr)
def test_nan_stays_nan(edge):
    assert jnp.isnan(edge.value(jnp.nan)) and jnp.isnan(edge.log_value(jnp.nan))


def test_widths_must_be_positive():
    for build in (lambda: tg.Tanh(0.0), lambda: tg.Probit(-1.0), lambda: tg.Bump(jnp.zeros(2))):
        with pytest.raises(ValueError, match="must be positive, got"):
            build()
