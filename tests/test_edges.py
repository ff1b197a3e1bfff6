"""Soft edges: values, logs, slopes and widths at every margin, finite or not."""

from functools import partial

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import truncgauss as tg
from tests.normal_truth import derivatives

BARS = {np.float64: (1e-13, 1e-11, 1e-9), np.float32: (2e-6, 1e-5, 1e-4)}

EDGES = [tg.Tanh(100.0), tg.Tanh(0.3), tg.Probit(0.1), tg.Probit(7.0), tg.Bump(0.5), tg.Bump(3.0)]


def logistic(z):
    """The logistic function and its log."""
    if z < -1e6:
        return mp.mpf(0), z
    return 1 / (1 + mp.exp(-z)), -mp.log1p(mp.exp(-z))


def normal(z):
    """The normal distribution function and its log."""
    if abs(z) < 1e3:
        tail = mp.erfc(abs(z) / mp.sqrt(2)) / 2
        return (tail, mp.log(tail)) if z < 0 else (1 - tail, mp.log1p(-tail))
    if z > 0:
        return mp.mpf(1), mp.mpf(0)
    terms = (mp.fac2(2 * k - 1) * (-1) ** k / z ** (2 * k) for k in range(1, 9))
    return mp.mpf(0), -z * z / 2 - mp.log(-z * mp.sqrt(2 * mp.pi)) + mp.log1p(sum(terms))


def smooth_step(t):
    if t <= 0 or t >= 1:
        return (mp.mpf(0), -mp.inf) if t <= 0 else (mp.mpf(1), mp.mpf(0))
    return logistic(1 / (1 - t) - 1 / t)


# Value and log value at a finite margin, straight from the definition.
TRUTH = {
    tg.Tanh: lambda margin, leaf: logistic(margin * leaf),
    tg.Probit: lambda margin, leaf: normal(margin / leaf),
    tg.Bump: lambda margin, leaf: smooth_step(margin / leaf),
}


def truth(kind, margin, leaf):
    if mp.isinf(margin):
        return (mp.mpf(1), mp.mpf(0)) if margin > 0 else (mp.mpf(0), -mp.inf)
    return TRUTH[kind](margin, leaf)


def margins_and_leaves(rng, kind, count, dtype, largest):
    """Margins 0, within the layer, far from it, of any size and infinite; layers of 1e-3 to 1e3."""
    leaf = 10.0 ** rng.uniform(-3, 3, count)
    layer = 1 / leaf if kind is tg.Tanh else leaf
    margin = np.select(
        [rng.random(count) < p for p in (0.3, 0.5, 0.5, 0.1)],
        [
            10.0 ** rng.uniform(-largest, largest, count),
            layer * rng.uniform(0, 2, count),
            layer * 10.0 ** rng.uniform(-3, 3, count),
            np.full(count, np.inf),
        ],
        layer * rng.uniform(0, 1, count),
    )
    margin[:1] = 0.0
    sign = np.where(rng.random(count) < (0.2 if kind is tg.Bump else 0.5), -1, 1)
    return (sign * margin).astype(dtype), leaf.astype(dtype)


@partial(jax.jit, static_argnums=(0, 3))
def orders(kind, margin, leaf, order):
    """Value and log value, (2,), with their derivatives by margin and leaf, (2, 2), (2, 2, 2)."""
    functions = [lambda z: jnp.stack([kind(z[1]).value(z[0]), kind(z[1]).log_value(z[0])])]
    for _ in range(order):
        functions.append(jax.jacfwd(functions[-1]))
    return jax.vmap(lambda *z: [f(jnp.stack(z)) for f in functions])(margin, leaf)


def check_against_two_hundred_digits(kind, dtype, count):
    margins, leaves = margins_and_leaves(np.random.default_rng(4), kind, count, dtype, 30)
    found = [np.asarray(part).astype(float) for part in orders(kind, margins, leaves, 2)]
    for i, pair in enumerate(zip(margins, leaves)):
        exact = derivatives(partial(truth, kind), pair, 2)
        shut = np.isinf(exact[0])  # no derivative there
        for order, bar in enumerate(BARS[dtype]):
            value, true = found[order][i], exact[order]
            assert order or (value[shut] == true[shut]).all(), (pair, value)
            value, true = value[~shut], true[~shut]
            error = np.abs(value - true) / np.maximum(1, np.abs(true))
            error[np.abs(true) > np.finfo(dtype).max] = 0.0  # not representable
            if order == 2:
                # An entry that crosses zero is known to an ulp of its neighbours only.
                ulp = np.finfo(dtype).eps * np.abs(true).max((1, 2), keepdims=True)
                error = np.where(np.abs(value - true) <= ulp, 0.0, error)
            assert (error <= bar).all(), (kind, order, pair, value, true)


@pytest.mark.quick("float32-Tanh", "float64-Bump")
@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_two_orders_against_two_hundred_digits(kind, dtype):
    check_against_two_hundred_digits(kind, dtype, 60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_million_margins(kind, dtype):
    check_against_two_hundred_digits(kind, dtype, 1000)
    largest = 300 if dtype == np.float64 else 37
    margins, leaves = margins_and_leaves(np.random.default_rng(5), kind, 1_000_000, dtype, largest)
    values, slopes = (np.asarray(part) for part in orders(kind, margins, leaves, 1))
    assert (values[:, 0] >= 0).all() and (values[:, 0] <= 1).all() and (values[:, 1] <= 0).all()
    # The log is -inf only where it is too large for a number, or outside the bump.
    layer = 1 / leaves if kind is tg.Tanh else leaves
    with np.errstate(over="ignore"):
        depth = margins.astype(float) / layer
        far = {
            tg.Tanh: -depth > 0.1 * np.finfo(dtype).max,
            tg.Probit: 0.6 * depth * np.abs(depth) < -float(np.finfo(dtype).max),
            tg.Bump: (depth <= 0) | (depth < 4 / np.finfo(dtype).max),
        }[kind]
    assert (far | np.isfinite(values[:, 1])).all()
    assert np.isfinite(slopes[:, 0]).all() and np.isfinite(slopes[~far, 1, 0]).all()
    # By the width the normal log value has a slope of depth^2/width.
    with np.errstate(over="ignore"):
        steep = (kind is tg.Probit) & (depth**2 > 0.1 * float(np.finfo(dtype).max) * leaves)
    assert np.isfinite(slopes[~far & ~steep]).all()
    infinite = np.isinf(margins)
    assert (slopes[infinite] == 0).all()
    assert (values[infinite, 0] == (margins[infinite] > 0)).all()


def test_the_tanh_edge_is_positive_where_tanh_rounds_to_minus_one():
    """0.5 (1 + tanh(z / 2)) rounds to 0 at z = -40 (float64), -17 (float32); the edge does not."""
    for dtype, z in ((jnp.float64, -40.0), (jnp.float32, -18.0)):
        margin = jnp.asarray(z, dtype)
        value, slope = jax.jit(jax.value_and_grad(tg.Tanh(1.0).value))(margin)
        np.testing.assert_allclose([value, slope], np.exp(z), rtol=3e-6)


def test_smooth_step_is_symmetric_and_flat_at_both_ends():
    step = tg.Bump(2.0)
    t = np.linspace(0.0, 2.0, 101)
    np.testing.assert_allclose(np.add(*map(jax.jit(step.value), (t, 2.0 - t))), 1.0, rtol=1e-12)
    first = jax.grad(step.value)
    second = jax.grad(first)
    ends = np.array([-1e-3, 0.0, 1e-3, 2.0 - 1e-3, 2.0, 2.0 + 1e-3])
    slopes = jax.jit(jax.vmap(lambda t: [first(t), second(t), jax.grad(second)(t)]))(ends)
    assert np.all(np.abs(slopes) < 1e-100)


def test_nan_stays_nan():
    edges = [*EDGES, tg.Hard(), tg.Surrogate(tg.Tanh(1.0))]
    every = jax.jit(lambda margin: [(edge.value(margin), edge.log_value(margin)) for edge in edges])
    assert np.isnan(every(jnp.nan)).all()


@pytest.mark.parametrize("kind", [tg.Tanh, tg.Probit, tg.Bump])
def test_a_list_of_widths_is_the_array_of_them(kind):
    """Two, one for each coordinate of a box with four faces."""
    region, widths = tg.Box([-1.0, -0.5], [1.0, 2.0]), [0.3, 0.7]

    def log_prob(edge):
        soft = tg.SoftMonteCarlo(num_samples=64, edge=edge)
        return tg.log_probability(np.zeros(2), np.eye(2), region, soft).log_prob

    expected = log_prob(kind(np.array(widths)))
    assert log_prob(kind(widths)) == expected != log_prob(kind(widths[::-1]))
    traced = jax.jit(lambda first, second: log_prob(kind([first, second])))
    np.testing.assert_allclose(traced(*widths), expected, rtol=1e-6)


def test_widths_must_be_positive_and_finite():
    for edge in TRUTH:
        for width in (0.0, -1.0, jnp.zeros(2), np.inf, np.nan):
            with pytest.raises(ValueError, match="must be positive and finite, got"):
                edge(width)


@pytest.mark.quick("float16")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_the_slope_of_a_probit_edge_in_a_width_whose_square_underflows(dtype):
    """d log Phi(m/w)/dw = -(m/w) hazard(-m/w)/w, which float64 can compute."""
    width = dtype(1e-30) if dtype == jnp.float32 else dtype(1e-3)
    position, far = np.array([-0.5, 0.0, 0.5]), [-1.0, 1.0, np.inf, -np.inf]
    slope = jax.jit(jax.vmap(jax.grad(lambda m, w: tg.Probit(w).value(m), 1), (0, None)))
    found = slope(np.append(position * float(width), far).astype(dtype), width).astype(float)
    expected = -position * np.exp(-0.5 * position**2) / np.sqrt(2 * np.pi)
    bound = 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(found[:3] * float(width), expected, rtol=bound, atol=1e-6)
    assert np.all(found[3:] == 0)


@pytest.mark.parametrize("kind", [tg.Probit, tg.Bump])
@pytest.mark.parametrize("width", [0.0, -1.0])
def test_a_width_that_is_not_positive_has_no_slope(kind, width):
    for name in ("value", "log_value"):
        weight = lambda width, margin, name=name: getattr(kind(width), name)(margin)
        slopes = jax.jit(jax.grad(weight, (0, 1)))(width, 0.1)
        assert np.all(np.isnan(slopes)), (name, slopes)
    for bump in (tg.safe.bump, tg.safe.bell):
        assert np.all(np.isnan(jax.jit(jax.grad(bump, (0, 1)))(0.1, width)))


def test_an_infinite_steepness_has_no_slope():
    weight = lambda steepness, margin: tg.Tanh(steepness).log_value(margin)
    assert np.all(np.isnan(jax.jit(jax.grad(weight, (0, 1)))(jnp.inf, 0.1)))


def test_traced_widths_below_zero_give_nan():
    """They gave numbers, by which a fit walked on; outside of a trace they are refused."""
    box = tg.Box([0.0], [2.0])
    for edge in (tg.Tanh, tg.Probit, tg.Bump):
        share = lambda w, edge=edge: tg.fraction_not_truncated(
            [0.5], [[1.0]], box, tg.SoftMonteCarlo(64, edge=edge(w))
        )
        value, slope = jax.jit(jax.value_and_grad(share))(-1.0)
        assert np.isnan(value) and np.isnan(slope), edge
        assert np.isfinite(jax.jit(jax.grad(share))(1.0)), edge
    for make in (tg.Selection.probit, tg.Selection.logistic):
        log_prob = lambda w, make=make: (
            tg.log_probability([0.5], [[1.0]], make([1.0], 0.0, w)).log_prob
        )
        value, slope = jax.jit(jax.value_and_grad(log_prob))(-1.0)
        assert np.isnan(value) and np.isnan(slope), make
        assert np.isfinite(jax.jit(jax.grad(log_prob))(1.0)), make
