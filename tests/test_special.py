"""The normal distribution on one interval against 200 digits, in both precisions, tails and all;
sums and logistic functions in logs, three derivatives, and standard errors of few numbers."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from tests.normal_truth import DIGITS, Truth, derivatives
from truncgauss import special
from truncgauss.special.logspace import standard_error

INF = math.inf
DTYPES = [np.float64, np.float32]
# Bars on |error| / max(1, |truth|) for values, first and second derivatives.
BARS = {np.float64: (1e-13, 1e-11, 1e-9), np.float32: (2e-6, 1e-5, 1e-4)}
NAMES = ("log_mass", "mean", "variance", "entropy", "log_density")


def ours(loc, scale, low, high, x):
    return jnp.stack(
        [
            special.truncated_log_mass(loc, scale, low, high),
            special.truncated_mean(loc, scale, low, high),
            special.truncated_variance(loc, scale, low, high),
            special.truncated_entropy(loc, scale, low, high),
            special.truncated_log_density(x, loc, scale, low, high),
        ]
    )


def truth(loc, scale, low, high, x):
    truncated = Truth(loc, scale, low, high)
    return *(getattr(truncated, name) for name in NAMES[:-1]), truncated.log_density(x)


PROBLEMS = [  # loc, scale, low, high, x
    (0.0, 1.0, -1.0, 1.0, 0.3),
    (0.0, 1.0, 0.0, INF, 1.0),
    (0.3, 1.7, -INF, INF, 1.0),
    (0.0, 1.0, 1000.0, 1000.5, 1000.1),
    (0.0, 1.0, -INF, -1000.0, -1000.001),
    (0.0, 1.0, 9.0, 10.0, 9.1),
    (0.0, 1.0, -8.0, 8.0, 2.0),
    (0.0, 1.0, -3.0, 5.0, 1.0),
    (2.0, 1e-10, 2.000000001, 2.000000002, 2.0000000012),
    (0.0, 1e10, 3e10, 3.1e10, 3.05e10),
    (0.0, 1e10, -3e10, -1e-10, -2e10),
    (0.7, 0.3, -40.0, 1.3, 1.2),
    (0.0, 1.0, 30.0, 1e6, 30.02),
    (0.0, 1.0, 3.0, 3.0 + 2**-20, 3.0 + 2**-21),
    (0.0, 1.0, -300.0 - 2**-14, -300.0, -300.0),
]
# One ulp either side of each switch between regimes: widths 1/4 and 2, width times end 1/4 and 4.
SWITCHES = [
    (0.0, 1.0, low, np.nextafter(low + width, low + way * 9), low + 0.4 * width)
    for low, width in [(0.0, 0.25), (-0.1, 0.25), (-0.5, 2.0), (0.0, 2.0), (2.0, 0.125), (4.0, 1.0)]
    for way in (-1, 1)
]


def errors(values, truths, largest):
    with np.errstate(invalid="ignore"):
        error = np.abs(values.astype(float) - truths) / np.maximum(1, np.abs(truths))
    error = np.where(np.isnan(error), INF, error)
    return np.where(np.abs(truths) > largest, 0.0, error)  # not representable


@partial(jax.jit, static_argnums=(1, 2))
def orders(rows, order, count):
    """The first functions of `ours` and their derivatives, from rows (loc, scale, low, high, x)."""
    functions = [lambda row: ours(*row)[:count]]
    for _ in range(order):
        functions.append(jax.jacfwd(functions[-1]))
    return jax.vmap(lambda row: [f(row) for f in functions])(rows)


def check(problems, dtype, order, count=len(NAMES)):
    rows = np.array(problems).astype(dtype)
    rows = rows[rows[:, 2] < rows[:, 3]]  # some are too narrow for float32
    found = [np.asarray(part) for part in orders(rows, order, count)]
    for i, row in enumerate(rows):
        exact = derivatives(lambda *z: truth(*z)[:count], row, order)
        for level in range(order + 1):
            error = errors(found[level][i], exact[level], np.finfo(dtype).max)
            if level == 2:
                # An entry that crosses zero is known to an ulp of its function's largest only.
                ulp = np.finfo(dtype).eps * np.abs(exact[2]).max((1, 2), keepdims=True)
                error = np.where(np.abs(found[2][i] - exact[2]) <= ulp, 0.0, error)
            assert (error <= BARS[dtype][level]).all(), (level, row, error)


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_first_derivatives_to_the_last_digit(dtype):
    check(PROBLEMS + SWITCHES, dtype, order=1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_second_derivatives_of_random_problems(dtype):
    check(PROBLEMS + SWITCHES, dtype, order=2)
    rows = np.stack(random_problems(np.random.default_rng(12), 300, dtype), -1)[:200]
    # Below this width 1/width^2 overflows, and takes its neighbours along.
    rows = rows[rows[:, 3] - rows[:, 2] > 4 * np.finfo(dtype).tiny ** 0.5]
    check(rows, dtype, order=2)


def test_narrowest_widths_and_deepest_tails_in_their_own_arguments():
    def mass(low, width):
        return special.log_interval_mass(low, low + width, width)

    low = np.array([0.0, 1.0, -5e-21, 1000.0, -1000.0, 1e6, 1e200])
    width = np.full(7, 1e-20)
    value, (by_low, by_width) = jax.jit(jax.vmap(jax.value_and_grad(mass, (0, 1))))(low, width)
    flat = np.log(1e-20) - 0.5 * np.log(2 * np.pi) - 0.5 * np.square(low[:6])
    np.testing.assert_allclose(value[:6], flat, rtol=1e-14)
    np.testing.assert_allclose(by_low, -low, rtol=1e-14, atol=1e-19)
    np.testing.assert_allclose(by_width[:6] * 1e-20, 1.0, rtol=1e-13)
    assert value[6] == -INF  # not representable


ONE_SIDED = {
    special.log_ndtr: lambda x: (Truth(0, 1, -INF, x).log_mass,),
    special.ndtr: lambda x: (Truth.tail(-x),),
    special.hazard: lambda x: (Truth(0, 1, x, INF).mean,),
    special.hazard_excess: lambda x: (Truth(0, 1, x, INF).mean - x,),
}


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_sided_functions_to_second_order(dtype):
    x = np.array([-1e4, -40.3, -9.1, -1.1, -1e-3, 1e-3, 0.7, 5.3, 12.0, 40.1, 1e3], dtype)
    every = lambda x: jnp.stack([function(x) for function in ONE_SIDED])
    slopes = jax.jacfwd(every)
    found = jax.jit(jax.vmap(lambda x: (every(x), slopes(x), jax.jacfwd(slopes)(x))))(x)
    for i, point in enumerate(x):
        exact = derivatives(lambda z: [f(z)[0] for f in ONE_SIDED.values()], [point], 2)
        for order in range(3):
            error = errors(np.asarray(found[order][i]), exact[order].reshape(-1), np.inf)
            assert (error <= BARS[dtype][order]).all(), (point, order, error)


def test_logs_of_masses_near_one_keep_their_digits():
    """What is outside has all digits, though 1 less that has not."""
    x = np.array([0.7, 2.0, 3.1, 4.7, 5.3, 6.9, 8.1])
    values = jax.jit(jax.vmap(special.log_ndtr))(x)
    inside = jax.jit(jax.vmap(lambda x: special.log_interval_mass(-x, x + 0.2, 2.0 * x + 0.2)))(x)
    for point, value, mass in zip(x, np.asarray(values), np.asarray(inside)):
        for found, low, high in ((value, -INF, point), (mass, -point, point + 0.2)):
            with mp.workdps(DIGITS):
                exact = Truth(0, 1, low, high).log_mass
                assert abs((mp.mpf(float(found)) - exact) / exact) < 5e-15, (low, high)


def test_one_sided_functions_at_infinity():
    orders = (jax.grad, lambda f: jax.grad(jax.grad(f)))
    every = jax.jit(jax.vmap(lambda x: [[order(f)(x) for f in ONE_SIDED] for order in orders]))
    ends = np.array([INF, -INF])
    slopes, bends = np.array(every(ends))
    np.testing.assert_array_equal(slopes[:, 0], [0, 0, 1, 0])
    np.testing.assert_array_equal(slopes[1:, 1], [0, 0, -1])
    assert np.isfinite(bends).all()


STEP_POINTS = np.array([[-1.0, 2.5, 0.3], [3.0, 0.05, 0.3], [0.4, 3.0, 0.6]])


def step_and_mass(arguments):
    low, width, uniform = arguments
    draw, log_mass = special.separation_step(low, low + width, uniform, width)
    return draw + log_mass


def test_hessian_of_the_step_agrees_with_differences_of_its_gradient():
    gradient = jax.grad(step_and_mass)
    shifts = np.concatenate([1e-5 * np.eye(3), -1e-5 * np.eye(3)])
    hessian, moved = jax.jit(
        jax.vmap(lambda z: (jax.jacfwd(gradient)(z), jax.vmap(lambda s: gradient(z + s))(shifts)))
    )(STEP_POINTS)
    change = (moved[:, :3] - moved[:, 3:]) / 2e-5
    np.testing.assert_allclose(hessian, change, rtol=1e-6, atol=1e-6)


def test_infinite_limits_stay_where_the_mean_in_standard_deviations_overflows():
    standardize = jax.jit(special.standardize)
    assert tuple(standardize(-INF, 1e300, 1e300, 1e-300)) == (-INF, 0.0, INF)
    for loc, scale in [(math.nan, 1.0), (INF, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, math.nan)]:
        assert np.isnan(standardize(-INF, INF, loc, scale)).all()


def test_empty_inverted_and_missing():
    mass = jax.jit(special.log_interval_mass)
    assert mass(1.0, 1.0) == -INF and mass(INF, INF) == -INF and mass(-INF, -INF) == -INF
    assert np.isnan([mass(2.0, 1.0), mass(INF, 1.0), mass(INF, -INF)]).all()
    assert np.isnan([mass(math.nan, 1.0), mass(0.0, math.nan), mass(math.nan, INF)]).all()
    # The gradient of an empty interval along the mean is still known.
    interval = jax.jvp(lambda t: mass(3.0 - t, 3.0 - t, 0.0), (0.0,), (1.0,))
    assert interval[0] == -INF


def test_no_distribution_without_an_interval():
    functions = (
        special.truncated_mean,
        special.truncated_variance,
        special.truncated_entropy,
        special.truncated_log_mass,
        partial(special.truncated_quantile, 0.5),
        partial(special.truncated_log_density, 0.5),
    )
    every = jax.jit(jax.vmap(lambda *z: jnp.stack([f(*z) for f in functions])))
    bad = [
        (math.nan, 1.0, -1.0, INF),
        (0.0, math.nan, -INF, INF),
        (0.0, 0.0, 0.0, INF),
        (0.0, -1.0, 0.0, INF),
        (0.0, 1.0, 2.0, 1.0),
        (0.0, 1.0, 2.0, 2.0),
        (0.0, 1.0, -1.0, 0.3),
    ]
    found = np.asarray(every(*np.array(bad).T))
    assert np.isnan(found[:4]).all() and np.isnan(found[4, :5]).all()
    assert np.isnan(found[5, :3]).all() and found[5, 3] == -INF and found[5, 4] == 2.0
    assert np.isfinite(found[6, :5]).all() and found[6, 5] == -INF  # 0.5 lies outside


def quantile_problems(rng, count):
    edge = rng.uniform(-30, 30, count)
    edge = np.where(rng.random(count) < 0.2, 10.0 ** rng.uniform(-20, 0, count), edge)
    width = 10.0 ** rng.uniform(-20, 1.5, count)
    low = np.where(rng.random(count) < 0.1, -INF, edge)
    high = np.where(rng.random(count) < 0.1, INF, edge + width)
    return low, high, rng.random(count) * (1 - 2e-7) + 1e-7


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantile_and_step_invert_the_distribution(dtype):
    low, high, uniform = (c.astype(dtype) for c in quantile_problems(np.random.default_rng(3), 60))
    keep = low < high
    low, high, uniform = low[keep], high[keep], uniform[keep]

    @jax.jit
    @jax.vmap
    def both(low, high, uniform):
        draw, slopes = jax.value_and_grad(lambda *z: special.separation_step(*z)[0], (0, 1, 2))(
            low, high, uniform
        )
        return draw, special.truncated_quantile(uniform, 0.0, 1.0, low, high), jnp.stack(slopes)

    draws, quantiles, slopes = map(np.asarray, both(low, high, uniform))
    assert draws.dtype == dtype and ((low <= draws) & (draws <= high)).all()
    assert ((low <= quantiles) & (quantiles <= high)).all()
    for i in range(len(low)):
        u = float(uniform[i])
        with mp.workdps(60):
            truncated = Truth(0, 1, float(low[i]), float(high[i]))
            exact = truncated.quantile(u, float(quantiles[i]))
            at = truncated.density(exact)
            true = [(1 - u) * truncated.at_a / at, u * truncated.at_b / at, truncated.mass / at]
            exact, true = float(exact), [float(value) for value in true]
        bar = BARS[dtype][0] * max(1, abs(exact))
        assert abs(draws[i] - exact) <= bar and abs(quantiles[i] - exact) <= bar, (low[i], high[i])
        for slope, value in zip(slopes[i], true):
            assert abs(slope - value) <= BARS[dtype][1] * max(1, value), (low[i], high[i], u)


def test_draws_of_large_scale_keep_the_digits_of_the_nearer_limit():
    quantile = jax.jit(special.truncated_quantile)
    # The density falls from 1 by a factor e over 1e-10.
    far = quantile(0.25, 1e10, 1.0, -1.0, 1.0)
    np.testing.assert_allclose(far, 1 + 1e-10 * math.log(0.25), rtol=1e-15)
    np.testing.assert_allclose(quantile(0.25, 0.0, 1e10, 1e-12, 5e-12), 2e-12, rtol=1e-13)


def test_quantiles_are_those_of_shares():
    """From 0 to 1; beyond, where the nearer limit would be a number for none, they are NaN."""
    shares = jnp.array([-0.1, 0.0, 1.0, 1.5, jnp.nan])
    for high, last in ((2.0, 2.0), (jnp.inf, jnp.inf)):
        found = special.truncated_quantile(shares, 0.0, 1.0, -1.0, high)
        np.testing.assert_array_equal(found, [np.nan, -1.0, last, np.nan, np.nan])


# --- Fuzzing --------------------------------------------------------------------------------------


def random_problems(rng, count, dtype):
    """Limits to 50 or 10 standard deviations, infinite ends, widths from 1e-20, any scale."""
    reach = rng.choice([10.0, 50.0], count)
    a, b = rng.uniform(-1, 1, (2, count)) * reach
    narrow, near = rng.random((2, count)) < 0.3
    # Only about the mean can two floats differ by so little.
    a = np.where(narrow & near, 10.0 ** rng.uniform(-20, 0, count) * rng.choice([-1, 1], count), a)
    b = np.where(narrow, a + 10.0 ** rng.uniform(-20, 0, count), b)
    scale = np.where(rng.random(count) < 0.5, 1.0, 10.0 ** rng.uniform(-10, 10, count))
    loc = np.where(narrow & near, 0.0, rng.normal(size=count) * scale)
    low, high = loc + scale * np.minimum(a, b), loc + scale * np.maximum(a, b)
    low = np.where(rng.random(count) < 0.1, -INF, low)
    high = np.where(rng.random(count) < 0.1, INF, high)
    columns = [c.astype(dtype) for c in (loc, scale, low, high)]
    keep = columns[2] < columns[3]
    inside = np.clip(columns[0], columns[2], columns[3])
    return [c[keep] for c in (*columns, inside)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_million_random_problems(dtype):
    rng = np.random.default_rng(11)
    tried = 0
    while tried < 2_000_000:
        columns = random_problems(rng, 500_000, dtype)
        size = len(columns[0])
        rows = np.stack([np.pad(c, (0, 500_000 - size), mode="edge") for c in columns], -1)
        for array in orders(rows, 1, len(NAMES)):
            finite = np.isfinite(np.asarray(array)).reshape(500_000, -1).all(1)
            assert finite.all(), rows[~finite][:3]
        tried += size
    rows = np.stack(random_problems(rng, 1500, dtype), -1)[:1000]
    check(rows, dtype, order=1)


@pytest.mark.quick("inf")
@pytest.mark.parametrize("high", [2.0, INF])
def test_derivatives_by_a_small_scale_in_float32(high):
    """The square of 1e-20 underflows: quotients had the derivative 0 times infinity, NaN."""
    functions = (
        special.truncated_log_mass,
        special.truncated_entropy,
        special.truncated_mean,
        partial(special.truncated_quantile, 0.3),
        lambda *truncated: special.truncated_log_density(0.5 * truncated[1], *truncated),
        lambda *truncated: (
            special.standardize(truncated[2], truncated[3], truncated[0], truncated[1]).low
        ),
    )
    powers = np.array([-1, -1, 0, 0, -1, -1])  # how the derivatives grow with the units
    slopes = jax.jit(lambda row: [jax.grad(function, 1)(*row) for function in functions])
    truncated = np.array([0.1, 1.0, -1.0, high])
    truth = np.asarray(slopes(truncated))
    for scale in (1e-15, 1e-20, 1e-30):
        got = np.asarray(slopes((truncated * scale).astype(np.float32)), float)
        np.testing.assert_allclose(got * scale**-powers, truth, rtol=1e-4)


def test_quantiles_of_0_and_1_are_the_limits():
    with_slopes = jax.jit(jax.value_and_grad(special.truncated_quantile, (3, 4)))
    end, slope = with_slopes(0.0, 0.3, 1.7, -0.1, 1 / 3)
    assert end == -0.1 and with_slopes(1.0, 0.3, 1.7, -0.1, 1 / 3)[0] == 1 / 3
    assert with_slopes(1.0, 0.0, 1.0, 0.0, INF)[0] == INF
    np.testing.assert_allclose(slope, [1.0, 0.0], atol=1e-15)


# --- Sums and logistic functions in logs ----------------------------------------------------------


def test_log_sums_keep_their_gradient_where_all_terms_vanish():
    for function in (special.log_sum_exp, special.log_mean_exp):
        gradient = jax.jit(jax.value_and_grad(function))
        assert not np.any(gradient(np.full(3, -INF))[1])
        assert gradient(np.array([1.0, INF, 2.0]))[1].tolist() == [0.0, 1.0, 0.0]
        assert np.isnan(gradient(np.array([1.0, math.nan, 0.0]))[0])
    x, axes = np.arange(12.0).reshape(2, 3, 2), (None, 1, -1, (0, 2))
    sums = jax.jit(lambda x: [special.log_sum_exp(x, axis) for axis in axes])(x)
    for axis, found in zip(axes, sums):
        np.testing.assert_allclose(found, np.log(np.exp(x).sum(axis)), rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_logistic_kin_right_in_three_derivatives(dtype):
    x = np.array([-700.0, -80.0, -30.0, -1.0, 0.0, 1e-3, 2.0, 30.0, 80.0, 700.0], dtype)
    e = np.exp(-np.abs(x.astype(float)))
    large, small = 1 / (1 + e), e / (1 + e)
    s, t = np.where(x >= 0, large, small), np.where(x >= 0, small, large)  # s(x), s(-x)
    exact = {
        special.sigmoid: (s * t, s * t * (t - s), s * t * (1 - 6 * s * t)),
        special.log1pexp: (s, s * t, s * t * (t - s)),
        special.log_sigmoid: (t, -s * t, -s * t * (t - s)),
    }

    def derivatives(function, x):
        first = jax.grad(function)
        second = jax.grad(first)
        return first(x), second(x), jax.grad(second)(x)

    found = jax.jit(jax.vmap(lambda x: [derivatives(function, x) for function in exact]))(x)
    rtol = 4 * np.finfo(dtype).eps
    for function, ours, true in zip(exact, found, exact.values()):
        for order in range(3):
            # Where s(x) - s(-x) cancels, an absolute error; what float32 cannot represent is 0.
            atol = (np.finfo(dtype).tiny, rtol, rtol)[order]
            np.testing.assert_allclose(ours[order], true[order], rtol, atol, err_msg=function)
    positive = np.array([1e-10, 0.1, 0.6931, 0.6932, 3.0, 80.0], dtype)
    y = np.float64(positive)
    exact = np.where(y < 0.5, np.log(-np.expm1(-y)), np.log1p(-np.exp(-y)))
    found, by_x = jax.jit(jax.vmap(jax.value_and_grad(special.log1mexp)))(positive)
    np.testing.assert_allclose(found, exact, rtol)
    np.testing.assert_allclose(by_x, 1 / np.expm1(y), rtol)


def test_standard_error_of_skewed_numbers_holds_the_mean():
    """Sixteen exponential numbers: the plain interval holds the mean in 91 % of samples.

    The share of 20,000 samples has a standard deviation of 0.0018.
    """
    random, t = np.random.default_rng(0), stats.t.ppf(0.975, 15)
    for x, mean, least, most in (
        (random.exponential(size=(16, 20_000)), 1.0, 0.94, 0.955),
        (random.normal(size=(16, 20_000)), 0.0, 0.952, 0.966),
    ):
        off, stderr = np.abs(x.mean(0) - mean), jax.jit(standard_error)(x - x.mean(0))
        assert np.all(stderr >= (1 - 1e-12) * x.std(0, ddof=1) / 4)
        assert least < np.mean(off <= t * stderr) < most


@pytest.mark.full
def test_standard_error_of_few_or_equal_numbers():
    np.testing.assert_allclose(standard_error(np.array([-1.0, 1.0])), 1.0)
    assert standard_error(np.zeros((5, 2))).tolist() == [0.0, 0.0]
    for numbers in ([0.0], [0.0, math.nan]):
        assert np.isnan(standard_error(np.array(numbers)))
    tiny = standard_error(jnp.array([1.0, -2.0, 1.0], jnp.float32) * 1e-30)
    np.testing.assert_allclose(tiny, 1e-30 * (1 + 6.0 * 0.5), rtol=1e-5)
