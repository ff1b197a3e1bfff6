"""TruncatedNormal: densities, quantiles and draws in any tail, beside 200 digits."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

import truncgauss as tg
from tests.normal_truth import Truth, derivatives
from tests.truncated_vectors import shape_of, vector_law

INF = math.inf

DTYPES = [np.float64, np.float32]

# Bars on |error| / max(1, |truth|) for values and gradients.
BARS = {np.float64: (1e-13, 1e-11), np.float32: (2e-6, 1e-5)}

FALSE_ALARM = 1e-6  # of each test on draws

SIGMAS = (5.0, 10.0, 38.0, 100.0, 1000.0)

TAILS = [  # loc, scale, low, high, x
    (0.0, 1.0, *ends)
    for s in SIGMAS
    for ends in [
        (s, s + 1, s + 0.5 / s),
        (s, INF, s + 0.5 / s),
        (-s - 1, -s, -s - 0.5 / s),
        (-INF, -s, -s - 0.5 / s),
        (-s, s, 0.25),
    ]
]


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_density_and_distribution_function_in_any_tail(dtype):
    def ours(p):
        truncated = tg.TruncatedNormal(*p[:4], validate_args=False)
        return jnp.stack([truncated.log_prob(p[4]), truncated.cdf(p[4])])

    def truth(loc, scale, low, high, x):
        whole = Truth(loc, scale, low, high)
        part = Truth(loc, scale, low, x)
        return whole.log_density(x), part.mass / whole.mass

    problems = np.array(TAILS, dtype)
    values, slopes = (np.asarray(x) for x in jax.jit(jax.vmap(_with_slopes(ours)))(problems))
    assert values.dtype == slopes.dtype == dtype
    for problem, value, slope in zip(problems, values, slopes):
        true_value, true_slope = derivatives(truth, problem, 1)
        for got, true, bar in zip((value, slope), (true_value, true_slope), BARS[dtype]):
            error = np.abs(got - true) / np.maximum(1.0, np.abs(true))
            assert np.all(error < bar), (problem, got, true)


def _with_slopes(function):
    return lambda p: (function(p), jax.jacfwd(function)(p))


def test_traps_that_libraries_fall_into():
    log_prob = lambda low, high, x: tg.TruncatedNormal(0.0, 1.0, low, high).log_prob(x)
    assert log_prob(9.0, 10.0, 9.1) == pytest.approx(1.30427809908, abs=1e-11)
    assert log_prob(8.0, 9.0, 8.1) == pytest.approx(1.28968006023, abs=1e-11)
    mean = tg.TruncatedNormal(0.0, 1.0, 100.0, 115.0).mean
    assert mean == pytest.approx(100.00999800099926, rel=1e-15)
    variance = tg.TruncatedNormal(1e6, 1.0, 0.0, 1000.0).variance
    assert variance == pytest.approx(1.002003003998e-12, rel=1e-12)


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantiles_stay_within_the_limits_and_reach_them(dtype):
    problems = np.array(TAILS, dtype)
    distributions = tg.TruncatedNormal(*problems.T[:4])
    quantiles = jax.jit(lambda distributions, q: distributions.icdf(q))
    assert np.array_equal(quantiles(distributions, dtype(0.0)), distributions.low)
    assert np.array_equal(quantiles(distributions, dtype(1.0)), distributions.high)
    for q in (dtype(-0.1), dtype(1.1), dtype(np.nan)):
        assert np.all(np.isnan(quantiles(distributions, q)))
    q = np.array([1e-30, 1e-6, 0.3, 0.5, 0.9, 1 - 1e-6], dtype)[:, None]
    x = quantiles(distributions, q)
    assert x.dtype == dtype
    assert np.all((x >= distributions.low) & (x <= distributions.high))
    # Back again: a share is known as well as the place lets it be, one rounding of x.
    rounding = np.spacing(np.abs(x)) * np.exp(distributions.log_prob(x))
    assert np.all(np.abs(distributions.cdf(x) - q) < 4 * rounding + 100 * np.finfo(dtype).eps)


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_follow_the_distribution_and_stay_inside(dtype):
    problems = np.array([*TAILS, (0.0, 1.0, 30.0, 31.0, 30.1), (3.0, 2.0, -INF, INF, 0.0)], dtype)
    distributions = tg.TruncatedNormal(*problems.T[:4])
    num = 2**14
    draws = jax.jit(lambda distributions, key: distributions.sample(key, (num,)))(
        distributions, jax.random.key(1)
    )
    assert draws.dtype == dtype and draws.shape == (num, len(problems))
    assert np.all((draws >= distributions.low) & (draws <= distributions.high))
    # Dvoretzky, Kiefer and Wolfowitz; one false alarm in 1e6 for all distributions together. An
    # error of a distribution function of twice the bar is missed once in 1e6.
    bar = math.sqrt(math.log(2 * len(problems) / FALSE_ALARM) / (2 * num))
    exact = tg.TruncatedNormal(*problems.T[:4].astype(np.float64))
    shares = np.sort(exact.cdf(np.asarray(draws, np.float64)), axis=0)
    steps = np.arange(num + 1)[:, None] / num
    gap = np.maximum(np.abs(shares - steps[1:]), np.abs(shares - steps[:-1])).max(0)
    # In float32 a draw beyond 1000 sigma is one of few numbers: steps of the size of rounding.
    step = np.spacing(np.abs(np.asarray(draws))) * np.exp(exact.log_prob(draws))
    assert np.all(gap < bar + np.max(step, axis=0))


def test_without_limits_it_is_the_normal_distribution():
    x = np.linspace(-50.0, 50.0, 1001)
    ours, theirs = tg.TruncatedNormal(0.5, 2.0), dist.Normal(0.5, 2.0)
    assert np.allclose(ours.log_prob(x), theirs.log_prob(x), rtol=4e-16, atol=4e-16)
    assert ours.mean == 0.5 and ours.variance == 4.0
    assert np.allclose(ours.cdf(x), theirs.cdf(x), rtol=1e-12, atol=1e-300)
    assert ours.entropy() == pytest.approx(float(theirs.entropy()), rel=1e-15)


def test_equal_and_inverted_limits():
    for low, high in [(1.0, 1.0), (2.0, 1.0), (INF, INF)]:
        with pytest.raises(ValueError, match="low must be below high"):
            tg.TruncatedNormal(0.0, 1.0, low, high, validate_args=False)
        with pytest.raises(ValueError, match="low must be below high"):
            vector_law([0.0, 0.0], low=low, high=high)
    # Traced, they cannot be looked at: there is no such distribution, and NaN says so.
    one = lambda low, high: tg.TruncatedNormal(0.0, 1.0, low, high).log_prob(1.0)
    many = lambda low, high: vector_law([0.0, 0.0], low=low, high=high).log_prob(jnp.ones(2))
    for truncated in (one, many):
        values = jax.jit(jax.vmap(truncated))(np.array([1.0, 2.0, 0.0]), np.array([1.0, 1.0, 2.0]))
        assert np.array_equal(np.isnan(values), [True, True, False])


def test_shapes_of_the_normal_distribution():
    truncated = tg.TruncatedNormal(np.zeros((3, 1)), 1.0, [-1.0, 0.0], None)
    key, x = jax.random.key(0), np.ones((5, 1, 1))
    assert truncated.batch_shape == (3, 2) and truncated.event_shape == ()
    assert truncated.infer_shapes(loc=(3, 1), scale=(), low=(2,)) == ((3, 2), ())
    assert shape_of(lambda: truncated.sample(key, (5,))) == (5, 3, 2)
    assert (
        shape_of(truncated.log_prob, x)
        == shape_of(truncated.cdf, x)
        == shape_of(truncated.icdf, x)
        == (5, 3, 2)
    )
    for part in (lambda: truncated.mean, lambda: truncated.variance, truncated.entropy):
        assert shape_of(part) == (3, 2)
    wide = truncated.expand((4, 3, 2))
    assert shape_of(wide.sample, key) == shape_of(lambda: wide.mean) == (4, 3, 2)
    event = truncated.to_event(1)
    assert event.batch_shape == (3,) and shape_of(event.log_prob, np.ones((3, 2))) == (3,)
    transform, x = biject_to(event.support), jnp.zeros((3, 2))
    assert event.support(transform(x)).tolist() == [True] * 3
    assert transform.log_abs_det_jacobian(x, transform(x)).shape == (3,)
    wider = event.expand((4, 3))
    assert wider.batch_shape == (4, 3) and shape_of(wider.sample, key) == (4, 3, 2)
    for law_of_events in (event, wider):  # so that NUTS replays moving limits
        assert isinstance(law_of_events.support, constraints.interval)
        assert law_of_events.support.event_dim == 1
    assert truncated.to_event(0) is truncated and truncated.to_event().event_shape == (3, 2)
    masked = truncated.mask(np.array([True, False]))
    slope = jax.grad(lambda x: masked.log_prob(x).sum())(jnp.array([0.5, -7.0]))
    assert np.isfinite(slope).all() and slope[1] == 0.0


# Limits, one of them 0, loc and the smallest probability whose quantile is compared.
BESIDE_ZERO = [
    (0.0, 1e300, 0.0, 1e-300), (0.0, np.inf, 1.0, 1e-280), (0.0, 2.0, 1.0, 1e-280),
    (-np.inf, 0.0, 0.0, 1e-15), (-5.0, 0.0, -1.0, 1e-15), (0.0, 0.1, 5.0, 1e-280),
    (-0.1, 0.0, -5.0, 1e-15), (0.0, 0.26, 0.0, 1e-300), (0.0, 3.5, 3.0, 1e-280),
    (0.0, 3.0, -5.0, 1e-280),
]  # fmt: skip


def quantile_beside_zero(share, above, whole, centre):
    """The quantile of a small probability, counted from an end at 0, and its slope, by Newton."""
    side, part = (1 if above else -1), mp.mpf(share) * whole
    rate, t = lambda t: mp.npdf(side * t - centre), part / mp.npdf(-centre)
    for _ in range(12):
        t -= (side * (mp.ncdf(side * t - centre) - mp.ncdf(-centre)) - part) / rate(t)
    return float(side * t), float(whole / rate(t))


@pytest.mark.quick("float64")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_quantiles_beside_an_end_are_right_to_rounding(dtype):
    low, high, loc, least = np.array(BESIDE_ZERO).T
    if dtype == "float32":
        high, least = np.where(high > 1e30, np.inf, high), np.maximum(least, 1e-30)
        least[low < 0] = 3e-7
    low, high, loc, eps = *(x.astype(dtype) for x in (low, high, loc)), float(np.finfo(dtype).eps)
    above = low == 0
    law = tg.TruncatedNormal(loc, np.ones_like(loc), low, high)
    value_and_slope = jax.jit(lambda p: jax.jvp(law.icdf, (p,), (jnp.ones_like(p),)))
    for factor in (1.0, 1e3, 1e7):
        shares = np.minimum(least * factor, 0.01)
        p = np.where(above, shares, 1.0 - shares).astype(dtype)
        x, slope = value_and_slope(p)
        shares = np.where(above, p, 1 - p)
        with mp.workdps(350):
            ends = [
                [mp.mpf(float(np.clip(x, -99, 99))) for x in row] for row in zip(low, high, loc)
            ]
            whole = [mp.ncdf(b - m) - mp.ncdf(a - m) for a, b, m in ends]
            truth = [
                quantile_beside_zero(float(share), here, mass, m)
                for share, here, mass, (_, _, m) in zip(shares, above, whole, ends)
            ]
        expected, density = np.array(truth).T
        np.testing.assert_allclose(x, expected, rtol=64 * eps)
        np.testing.assert_allclose(slope, density, rtol=256 * eps)
        np.testing.assert_allclose(law.cdf(x), p, rtol=1024 * eps)  # by a log of it
