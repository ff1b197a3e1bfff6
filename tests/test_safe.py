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


def test_norm_exact_at_every_magnitude():
    norm_and_unit = jax.jit(jax.value_and_grad(safe_norm))
    for size in (0.0, 1e-300, 1e-200, 1.0, 1e200, 1e300):
        norm, unit = norm_and_unit(np.array([3.0, -4.0, 0.0]) * size)
        assert norm == pytest.approx(5 * size, rel=1e-15)
        np.testing.assert_allclose(unit, [0.6, -0.8, 0] if size else [0, 0, 0], rtol=1e-15)
    norm, unit = norm_and_unit(np.array([1.0, -INF, 0.0]))
    assert norm == INF and unit.tolist() == [0.0, -1.0, 0.0]
    assert np.isnan(norm_and_unit(np.array([1.0, math.nan, 0.0]))[0])
    x = np.arange(12.0).reshape(3, 4)
    along = jax.jit(safe_norm, static_argnums=1)
    np.testing.assert_allclose(along(x, 0), np.linalg.norm(x, axis=0), rtol=1e-15)


def test_norm_under_a_mask_where_the_naive_form_fails():
    points = np.array([[0.0, 0.0], [3.0, 4.0]])

    def masked(norm):
        return lambda x: jnp.where(np.array([False, True]), jax.vmap(norm)(x), 0.0).sum()

    naive, slope, bend = jax.jit(
        lambda x: (
            jax.grad(masked(jnp.linalg.norm))(x),
            jax.grad(masked(safe_norm))(x),
            jax.hessian(masked(safe_norm))(x),
        )
    )(points)
    assert np.isnan(naive).any()
    np.testing.assert_allclose(slope, [[0, 0], [0.6, 0.8]])
    assert np.isfinite(bend).all()
    x = np.array([1.0, -2.0, 0.5])
    size = np.linalg.norm(x)
    across = (np.eye(3) - np.outer(x, x) / size**2) / size
    np.testing.assert_allclose(jax.jit(jax.hessian(safe_norm))(x), across, rtol=1e-14, atol=1e-16)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [bump, bell])
def test_bump_and_bell_finite_everywhere(function, dtype):
    assert finite_everywhere(function, 20_000, dtype) == [0, 0, 0, 0]
    missing = np.array([[math.nan, 1.0], [1.0, math.nan]], dtype)
    assert np.isnan(jax.jit(function)(*missing)).all()


def test_single_where_fails_where_the_bump_does_not():
    def naive(x, width):
        u = x / width
        return jnp.where(jnp.abs(u) < 1, jnp.exp(-1 / (1 - u**2)), 0.0)

    slopes = jax.jit(jax.vmap(lambda x: (jax.grad(naive)(x, 1.0), jax.grad(bump)(x, 1.0))))
    naive_slopes, safe_slopes = slopes(np.array([1.0, INF]))
    assert np.isnan(naive_slopes).any() and not np.any(safe_slopes)


def test_clipped_gradient():
    exploding = lambda x: jnp.log(clipped_gradient(x, 5.0))
    assert jax.grad(exploding)(0.0) == 5.0
    assert jax.jit(jax.vmap(jax.grad(exploding)))(np.array([0.0, 2.0])).tolist() == [5.0, 0.5]
    assert clipped_gradient(3.0, 1.0) == 3.0
    per_entry = jax.grad(lambda x: (clipped_gradient(x, np.array([1.0, 10.0])) * 4).sum())
    assert jax.jit(per_entry)(np.ones(2)).tolist() == [1.0, 4.0]
    assert np.isnan(jax.grad(lambda x: math.nan * clipped_gradient(x, 1.0))(1.0))
    assert jax.grad(lambda b: clipped_gradient(2.0, b))(1.0) == 0.0
    with pytest.raises(TypeError):
        jax.jvp(exploding, (1.0,), (1.0,))


def test_softmax_of_overflown_logits():
    share = lambda logits: jax.nn.softmax(logits)[0]
    guarded = jax.value_and_grad(lambda z: share(clipped_logits(z, 60.0)))
    naive, (safe, slope) = jax.jit(lambda z: (share(z), guarded(z)))(np.array([INF, 0.0, -INF]))
    assert np.isnan(naive) and safe == 1 and np.isfinite(slope).all()


def test_clipped_logits():
    logits = np.array([5.0, -INF, -100.0])
    clipped = jax.jit(lambda x: clipped_logits(x, 30.0))
    assert clipped(logits).tolist() == [5.0, -25.0, -25.0]
    # Relative to the maximum: a constant changes nothing.
    assert np.asarray(clipped(logits + 1e6) - 1e6).tolist() == [5.0, -25.0, -25.0]
    assert clipped(np.array([INF, 1.0, 2.0])).tolist() == [0.0, -30.0, -30.0]
    assert clipped(np.full(3, -INF)).tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(clipped(np.array([0.0, math.nan, 0.0]))).tolist() == [False, True, False]
    gradient = jax.jit(jax.jacobian(clipped))(logits)
    assert gradient.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]


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


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_norm_of_the_largest_and_smallest_numbers_of_a_short_dtype(dtype):
    """Of 1e38 the inverse is no normal number; of float16's smallest it is none at all."""
    largest, tiny = float(jnp.finfo(dtype).max), float(jnp.finfo(dtype).tiny)
    eps = float(jnp.finfo(dtype).eps)
    norm_and_unit = jax.jit(jax.value_and_grad(safe_norm))
    for size in (0.2 * largest, 0.5 * largest, 4.0 * tiny):
        x = np.array([size, size], dtype)
        norm, slope = norm_and_unit(x)
        np.testing.assert_allclose(float(norm), math.sqrt(2.0) * float(x[0]), rtol=4 * eps)
        np.testing.assert_allclose(np.asarray(slope, float), math.sqrt(0.5), rtol=4 * eps)
    if dtype == jnp.float16:
        assert float(norm_and_unit(np.full(2, 2**-24, dtype))[0]) > 0


def test_norm_of_complex_numbers_is_that_of_their_parts():
    z = np.array([[3.0 + 4.0j, 0.0], [1e-200j, 0.0], [0.0, 0.0]])
    slope = jax.grad(lambda x: safe_norm(jax.lax.complex(x, 2.0 * x)))
    rows, columns, by_x = jax.jit(lambda z, x: (safe_norm(z), safe_norm(z, axis=0), slope(x)))(
        z, np.array([1.0, -2.0])
    )
    np.testing.assert_allclose(rows, [5.0, 1e-200, 0.0])
    np.testing.assert_allclose(columns, [5.0, 0.0])
    np.testing.assert_allclose(by_x, np.array([1.0, -2.0]))


def test_bump_of_no_end_is_flat():
    with_slopes = jax.jit(jax.value_and_grad(bump, (0, 1)))
    value, slopes = with_slopes(0.5, INF)
    assert value == pytest.approx(math.exp(-1.0)) and slopes == (0.0, 0.0)
    assert with_slopes(INF, 2.0)[0] == 0.0 and np.isnan(with_slopes(math.nan, INF)[0])


def test_logits_that_are_all_minus_infinity_make_a_uniform_softmax():
    logits = np.array([[-INF, -INF], [0.0, -INF], [math.nan, -INF]])
    share = lambda x: jax.nn.softmax(clipped_logits(x, 30.0))
    shares, slopes = jax.jit(lambda x: (share(x), jax.vmap(jax.jacobian(share))(x)))(logits)
    shares = np.asarray(shares)
    np.testing.assert_array_equal(shares[0], [0.5, 0.5])
    assert shares[1, 0] > 0.999 and np.isnan(shares[2]).all()
    np.testing.assert_array_equal(np.asarray(slopes)[0], np.zeros((2, 2)))


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: bump(1.0, -1.0),
        lambda: bell(1.0, 0.0),
        lambda: clipped_gradient(1.0, -1.0),
        lambda: clipped_logits(jnp.zeros(2), 0.0),
    ],
    ids=["bump", "bell", "clipped_gradient", "clipped_logits"],
)
def test_what_must_be_positive(call):
    with pytest.raises(ValueError, match="must be positive, got"):
        call()
