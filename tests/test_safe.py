"""What autodiff breaks, made safe: the norm, the bump and the bell, the guards of a softmax."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from truncgauss.special import log_mean_exp, log_sum_exp
from truncgauss.special.safe import bell, bump, clipped_gradient, clipped_logits, safe_norm

INF = math.inf
DTYPES = [np.float64, np.float32]


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32, jnp.bfloat16, jnp.float16])
def test_norm_and_its_slope_at_every_magnitude(dtype):
    """Of 1e38 the inverse is no normal number; of float16's smallest it is none at all."""
    limits = jnp.finfo(dtype)
    norm_and_unit = jax.jit(jax.vmap(jax.value_and_grad(safe_norm)))
    sizes = [0.0, 4 * float(limits.tiny), 1.0, 0.05 * float(limits.max), 0.2 * float(limits.max)]
    sizes += [1e-300, 1e-200, 1e200] if dtype == jnp.float64 else []
    x = (np.array(sizes)[:, None] * [3.0, -4.0, 0.0]).astype(dtype)
    norm, unit = (np.asarray(part, float) for part in norm_and_unit(x))
    bar = 4 * float(limits.eps)
    # The norm of the numbers as they were rounded, which hypot neither overflows nor underflows.
    np.testing.assert_allclose(norm, np.hypot(*x.astype(float).T[:2]), rtol=bar)
    truth = np.array([0.6, -0.8, 0.0]) * (np.array(sizes) > 0)[:, None]
    np.testing.assert_allclose(unit, truth, rtol=bar)
    smallest = np.array([[limits.smallest_subnormal, 0.0, 0.0]], dtype)
    assert dtype != jnp.float16 or norm_and_unit(smallest)[0] > 0
    odd = np.array([[1.0, -INF, 0.0], [1.0, math.nan, 0.0]], dtype)
    norm, unit = norm_and_unit(odd)
    assert norm[0] == INF and unit[0].tolist() == [0.0, -1.0, 0.0] and np.isnan(norm[1])


def exact_bump(x, width):
    x, width = mp.mpf(float(x)), mp.mpf(float(width))
    if abs(x) >= width:
        return (0, 0, 0, 0)
    u = x / width
    w = (1 - u) * (1 + u)
    value = mp.exp(-1 / w)
    by_width = value * 2 * u * u / (width * w * w)
    # d/dx of -2 u value/(width w^2)
    second = value * (6 * u**4 - 2) / (width**2 * w**4)
    return value, -value * 2 * u / (width * w * w), by_width, second


@pytest.mark.parametrize("dtype", DTYPES)
def test_bump_against_fifty_digits(dtype):
    rng = np.random.default_rng(2)
    width = (10.0 ** rng.uniform(-3, 3, 300)).astype(dtype)
    x = (width * rng.uniform(-1.2, 1.2, 300)).astype(dtype)
    x[:100] = width[:100] * (1 - 10.0 ** rng.uniform(-3, 0, 100)).astype(dtype)

    @jax.jit
    @jax.vmap
    def orders(x, width):
        slope = jax.grad(bump)
        return (
            bump(x, width),
            slope(x, width),
            jax.grad(bump, 1)(x, width),
            jax.grad(slope)(x, width),
        )

    found = np.stack(orders(x, width), -1)
    with mp.workdps(50):
        exact = np.array([exact_bump(*pair) for pair in zip(x, width)]).astype(float)
    error = np.abs(found - exact) / np.maximum(1, np.abs(exact))
    bars = (1e-13, 1e-11, 1e-11, 1e-9) if dtype == np.float64 else (2e-6, 1e-5, 1e-5, 1e-4)
    assert (error.max(0) <= bars).all(), error.max(0)


def everywhere(rng, count, dtype):
    """Inputs of any size, infinite ones and the very edge included, and widths from 1e-3 to 1e3."""
    width = (10.0 ** rng.uniform(-3, 3, count)).astype(dtype)
    largest = 300 if dtype == np.float64 else 37
    sizes = (10.0 ** rng.uniform(-largest, largest, count)).astype(dtype)
    x = np.select(
        [rng.random(count) < p for p in (0.3, 0.5, 0.8, 0.3)],
        [sizes, width * rng.uniform(-1.5, 1.5, count), width, np.full(count, INF)],
        np.nextafter(width, dtype(0)),
    ).astype(dtype)
    return x * rng.choice([-1, 1], count).astype(dtype), width


def finite_everywhere(function, count, dtype):
    slopes = jax.grad(function, (0, 1))
    third = jax.grad(jax.grad(jax.grad(function)))
    x, width = everywhere(np.random.default_rng(5), count, dtype)
    found = jax.jit(jax.vmap(lambda *z: (function(*z), *slopes(*z), third(*z))))(x, width)
    return [int((~np.isfinite(np.asarray(part))).sum()) for part in found]


@pytest.mark.quick("bump-float32", "bell-float64")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [bump, bell])
def test_bump_and_bell_finite_everywhere(function, dtype):
    assert finite_everywhere(function, 20_000, dtype) == [0, 0, 0, 0]
    missing = np.array([[math.nan, 1.0], [1.0, math.nan]], dtype)
    assert np.isnan(jax.jit(function)(*missing)).all()


def test_clipped_gradient():
    exploding = lambda x: jnp.log(clipped_gradient(x, 5.0))
    assert jax.grad(exploding)(0.0) == 5.0
    assert jax.jit(jax.vmap(jax.grad(exploding)))(np.array([0.0, 2.0])).tolist() == [5.0, 0.5]
    assert np.isnan(jax.grad(lambda x: math.nan * clipped_gradient(x, 1.0))(1.0))
    assert jax.grad(lambda b: clipped_gradient(2.0, b))(1.0) == 0.0
    with pytest.raises(TypeError):
        jax.jvp(exploding, (1.0,), (1.0,))


CLIPPED = (  # logits, clipped to a span of 30 below their maximum
    ([5.0, -INF, -100.0], [5.0, -25.0, -25.0]),
    ([1e6 + 5.0, -INF, 1e6 - 100.0], [1e6 + 5.0, 1e6 - 25.0, 1e6 - 25.0]),
    ([INF, 1.0, 2.0], [0.0, -30.0, -30.0]),
    ([-INF, -INF, -INF], [0.0, 0.0, 0.0]),
    ([0.0, math.nan, 0.0], [0.0, math.nan, 0.0]),
)


def test_clipped_logits_and_their_softmax():
    """Relative to the maximum, so that a constant changes nothing, and gradients are left."""
    logits, clipped = (np.array(part) for part in zip(*CLIPPED))
    share = lambda x: jax.nn.softmax(clipped_logits(x, 30.0))
    entropy = lambda x: -jnp.log(share(x)[2])
    found, slopes, shares, of_shares, pull = jax.jit(
        jax.vmap(
            lambda x: (
                clipped_logits(x, 30.0),
                jax.jacobian(lambda x: clipped_logits(x, 30.0))(x),
                share(x),
                jax.jacobian(share)(x),
                jax.grad(entropy)(x),
            )
        )
    )(logits)
    np.testing.assert_array_equal(found, clipped)
    assert slopes[0].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_allclose(shares[3], 1 / 3, rtol=1e-15)
    assert shares[2, 0] > 0.999 and np.isnan(shares[4]).all()
    assert np.isfinite(of_shares[:4]).all() and not np.any(of_shares[3])
    np.testing.assert_allclose(pull[0, 0], 1.0, rtol=1e-9)  # the winner is pulled down


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_million_bumps_norms_and_softmaxes(dtype):
    assert finite_everywhere(bump, 1_000_000, dtype) == [0, 0, 0, 0]
    assert finite_everywhere(bell, 1_000_000, dtype) == [0, 0, 0, 0]
    rng = np.random.default_rng(8)
    largest = 300 if dtype == np.float64 else 37
    x = (10.0 ** rng.uniform(-largest, largest, (1_000_000, 3))).astype(dtype)
    x *= rng.choice(np.array([-1, 0, 1], dtype), x.shape)
    norms, units = jax.jit(jax.vmap(jax.value_and_grad(safe_norm)))(x)
    exact = np.sqrt((x.astype(np.longdouble) ** 2).sum(-1))
    bar = 1e-13 if dtype == np.float64 else 2e-6
    fits = exact < np.finfo(dtype).max
    np.testing.assert_allclose(np.asarray(norms)[fits], exact[fits].astype(dtype), rtol=bar)
    assert np.isfinite(units).all()
    assert (np.abs(np.linalg.norm(units, axis=-1) - (exact > 0)) < bar).all()

    def share(x):
        return jax.nn.softmax(clipped_logits(x, 80.0))[0]

    x[rng.random(x.shape) < 0.05] = -INF
    x[:, 0] = np.where(np.isinf(x).all(1), 0.0, x[:, 0])
    shares, slopes = jax.jit(jax.vmap(jax.value_and_grad(share)))(x)
    assert np.isfinite(shares).all() and np.isfinite(slopes).all()


def test_bump_of_no_end_is_flat():
    with_slopes = jax.jit(jax.value_and_grad(bump, (0, 1)))
    value, slopes = with_slopes(0.5, INF)
    assert value == pytest.approx(math.exp(-1.0)) and slopes == (0.0, 0.0)
    assert with_slopes(INF, 2.0)[0] == 0.0 and np.isnan(with_slopes(math.nan, INF)[0])


@pytest.mark.quick("float16")
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_log_softmax_of_more_logits_than_a_short_dtype_counts(dtype):
    """The sum over k of 70,000 log-softmaxes has the slopes 1 - 70,000 p_k."""
    n = 70_000
    logits = np.random.default_rng(3).normal(size=n).astype(dtype)
    total = lambda x: jax.nn.log_softmax(clipped_logits(x, 30.0)).sum()
    value, slope = jax.jit(jax.value_and_grad(total))(logits)
    x = np.asarray(logits, float)
    lse = np.log(np.exp(x).sum())
    np.testing.assert_allclose(float(value), x.sum() - n * lse, rtol=1e-4)
    truth = 1.0 - n * np.exp(x - lse)
    assert slope.dtype == dtype
    np.testing.assert_allclose(np.asarray(slope, float), truth, rtol=0.02, atol=0.02)
    eps = float(jnp.finfo(dtype).eps)
    found, share, mean = jax.jit(lambda x: (*jax.value_and_grad(log_sum_exp)(x), log_mean_exp(x)))(
        np.zeros(n, dtype)
    )
    np.testing.assert_allclose(float(found), np.log(n), rtol=2 * eps)
    np.testing.assert_allclose(np.asarray(share, float), 1.0 / n, rtol=0.1)
    assert abs(float(mean)) < 16 * eps


def test_what_must_be_positive():
    for call in (
        lambda: bump(1.0, -1.0),
        lambda: bell(1.0, 0.0),
        lambda: clipped_gradient(1.0, -1.0),
        lambda: clipped_logits(np.zeros(2), 0.0),
    ):
        with pytest.raises(ValueError, match="must be positive, got"):
            call()
