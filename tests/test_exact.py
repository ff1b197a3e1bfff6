"""Exact: two and three dimensions, one factor; values, derivatives, tails, edges of the domain."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.exact_rows import (
    EXACT,
    log_prob,
    rows_of_log_prob,
    rows_of_slopes,
)
from truncgauss.quadrature.double_double import difference_of_products, line, two_sum

INF = math.inf


# loc, (S11, S12, S22), low, high, log P. By Gauss-Legendre quadrature in 60 digits (mpmath) over
# one coordinate, on panels about the mode and about every place where a limit on the other is met;
# the inputs are the float64 numbers written here.
TWO = [
    ((0.0, 0.0), (1.0, 0.5, 1.0), (1.0, 1.0), (INF, INF), -2.7723632323099251038),
    ((0.0, 0.0), (1.0, -0.9, 1.0), (40.0, 40.0), (INF, INF), -16012.990535941336644),
    ((0.3, -0.2), (1.0, 0.999999, 1.0), (-1.0, -INF), (1.5, 0.25), -0.55018290135788974233),
    ((-5.0, -10.0), (1.0, 1.0, 2.0), (-4.048, -10.0), (4.048, -9.0), -3.1675758199049457305),
    ((0.0, 0.0), (1.0, 0.3, 1.0), (1.0, -2.0), (1.0 + 1e-9, -2.0 + 1e-12), -53.551513107648661831),
    ((0.0, 0.0), (1.0, 0.999, 1.0), (5.0, 5.0), (INF, INF), -15.161893593883431506),
    ((0.0, 0.0), (1.0, -0.7, 1.0), (8.0, -1.0), (INF, INF), -59.148917479954471381),
    ((2.0, 1.0), (1.0, 0.999999, 1.0), (-INF, -93.5), (-92.4, INF), -4461.1466707946609947),
    ((0.0, 0.0), (1.0, -0.999999, 1.0), (-1.0, 0.75), (-0.5, 1.25), -2.688657974988323988),
    ((0.0, 0.0), (59.227, 2.601, 77.213), (-INF, -INF), (6.0, 9.0), -0.40745362121994157817),
    ((10.0, -3.0), (1e-4, 0.006, 0.5), (9.98, -2.5), (9.981, 7.0), -17.507668902299672431),
    ((0.0, 0.0), (1.0, 0.99, 1.0), (70.0, -70.0), (71.0, -69.0), -483042.69798441948848),
    ((1.5, 1.0), (2.0, -1.4, 1.0), (-3.0, -2.0), (5.0, 4.0), -0.0080686818102283641358),
    ((0.0, 0.0), (1.0, 0.0, 1.0), (-30.0, 20.0), (-29.0, INF), -628.70457528082757577),
    # Nearly one variable, cut twice: the second limit a thousandth of the span behind the first.
    ((0.0, 0.0), (1.0, 1 - 1e-7, 1.0), (0.0, 0.0137), (INF, INF), -0.70413803588866406476),
    ((0.0, 0.0), (1.0, 1 - 1e-12, 1.0), (-1.5, -0.25), (INF, INF), -0.51298407540943043213),
    ((0.0, 0.0), (1.0, 1e-10 - 1, 1.0), (5.85, -INF), (INF, -5.854), -19.848029166996403028),
    ((0.0, 0.0), (1.0, 1 - 1e-14, 1.0), (0.54, 0.5400001), (0.545, 0.5451), -6.3644337819505041792),
]
# d log P with respect to loc, low, high and (S11, S12, S22) of the first five: closed forms (the
# density at a face times the conditional mass there; at the corners) in the same digits.
TWO_SLOPES = [
    (
        (1.0909506926448895, 1.0909506926448895),
        (-1.0909506926448895, -1.0909506926448895),
        (0.0, 0.0),
        (0.16814484930745166, 0.7546609940299863, 0.16814484930745166),
    ),
    (
        (400.0249976156625, 400.0249976156625),
        (-400.0249976156625, -400.0249976156625),
        (0.0, 0.0),
        (80007.36793639607, 80007.63109342534, 80007.36793639607),
    ),
    (
        (0.29707946060251117, -0.6249987483755985),
        (-0.29707946060251117, 0.0),
        (0.0, 0.6249987483755985),
        (-0.19310164939163224, 0.0, -0.14062471838450968),
    ),
    (
        (2.099367633810081, -0.7666657156301767),
        (-2.099367633810081, -0.5969294048508111),
        (0.0, 1.363595120480988),
        (1.435641706511844, -0.43634271281824566, -0.12272742371112413),
    ),
    (
        (1.758241758791044, -2.5274725276368133),
        (-999999918.1387568, -999911107319.0062),
        (999999916.380515, 999911107321.5337),
        (0.9962564917277623, -2.057118706308933, 2.644608139528861),
    ),
]


def two_by_two(entries):
    first, product, second = entries
    return [[first, product], [product, second]]


def two_inputs(dtype=np.float64):
    locs, entries, lows, highs, _ = zip(*TWO)
    covariances = [two_by_two(e) for e in entries]
    return tuple(np.asarray(part, dtype) for part in (locs, covariances, lows, highs))


@pytest.mark.full
def test_two_dimensions_to_rounding():
    truth = np.array([case[-1] for case in TWO])
    error = np.abs(np.asarray(rows_of_log_prob(*two_inputs())) - truth)
    np.testing.assert_array_less(error, 1e-12 + 8 * np.finfo(float).eps * np.abs(truth))


def test_two_dimensions_slopes():
    _, (loc, covariance, low, high) = rows_of_slopes(*two_inputs())
    covariance = np.asarray(covariance)
    np.testing.assert_array_equal(covariance[:, 0, 1], covariance[:, 1, 0])
    for i, truth in enumerate(TWO_SLOPES):
        for ours, theirs in zip(
            (loc[i], low[i], high[i], covariance[i][[0, 0, 1], [0, 1, 1]]), truth
        ):
            np.testing.assert_allclose(ours, theirs, rtol=2e-10, atol=1e-10)
    finite = np.isfinite(np.asarray(two_inputs()[2])), np.isfinite(np.asarray(two_inputs()[3]))
    assert np.all(np.asarray(low)[~finite[0]] == 0) and np.all(np.asarray(high)[~finite[1]] == 0)


def test_two_dimensions_in_float32():
    rounded = two_inputs(np.float32)
    ours = np.asarray(jax.jit(jax.vmap(log_prob))(*rounded))
    assert ours.dtype == np.float32
    truth = np.asarray(rows_of_log_prob(*(part.astype(float) for part in rounded)))
    # 1 + 1e-9 is 1 in float32: an empty box, or coordinates that determine each other.
    keep = np.isfinite(truth)
    np.testing.assert_array_equal(ours[~keep], truth[~keep])
    error = np.abs(ours[keep] - truth[keep])
    np.testing.assert_array_less(error, 1e-5 + 1e-6 * np.abs(truth[keep]))


def test_two_dimensions_mirrored_and_permuted():
    loc, covariance, low, high = two_inputs()
    value = rows_of_log_prob(loc, covariance, low, high)
    mirrored = rows_of_log_prob(-loc, covariance, -high, -low)
    permuted = rows_of_log_prob(*(x[..., ::-1] for x in (loc, covariance[:, ::-1], low, high)))
    sign = np.array([1.0, -1.0])
    half = np.stack([low[:, 0], -high[:, 1]], -1), np.stack([high[:, 0], -low[:, 1]], -1)
    flipped = rows_of_log_prob(loc * sign, covariance * np.outer(sign, sign), *half)
    for other in (mirrored, permuted, flipped):
        np.testing.assert_allclose(other, value, rtol=3e-14, atol=1e-12)


@pytest.mark.slow
def test_two_dimensions_from_a_factor():
    factor = jnp.array([[2.0, 0.0], [1.3, 0.4]])
    low, high = jnp.array([-1.0, -0.5]), jnp.array([2.0, INF])
    of_factor = jax.jit(
        jax.value_and_grad(lambda factor: log_prob(jnp.zeros(2), tg.ScaleTril(factor), low, high))
    )
    value, slope = of_factor(factor)
    rows = (x[None] for x in (jnp.zeros(2), factor @ factor.T, low, high))
    other, (_, by_covariance, _, _) = rows_of_slopes(*rows)
    np.testing.assert_allclose(value, other[0], rtol=1e-13)
    np.testing.assert_allclose(
        slope, jnp.tril(2 * by_covariance[0] @ factor), rtol=1e-11, atol=1e-13
    )


@pytest.mark.slow
def test_nearly_one_variable_cut_twice():
    """X2 = X1 to 1.4e-5 and less, at gaps between the limits up to one: gradients and moments.

    The truth is that of one variable above the larger limit: the other limit is passed by 35
    standard deviations or more.
    """
    gaps = jnp.asarray([0.0005, 0.003, 0.0137, 0.05, 0.2, 1.0] * 3)
    shares = jnp.repeat(jnp.asarray([1e-10, 1e-12, 1e-14]), 6)
    row = lambda gap, share: (
        jnp.zeros(2),
        jnp.eye(2) + (1 - share) * (1 - jnp.eye(2)),
        jnp.stack([0.0 * gap, gap]),
        jnp.full(2, INF),
    )
    inputs = jax.vmap(row)(gaps, shares)
    value, (by_loc, _, by_low, _) = rows_of_slopes(*inputs)
    hazard = np.asarray(tg.special.hazard(gaps))
    np.testing.assert_allclose(value, tg.special.log_ndtr(-gaps), rtol=1e-12)
    np.testing.assert_allclose(by_loc, np.stack([0 * hazard, hazard], 1), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(by_low, np.stack([0 * hazard, -hazard], 1), rtol=1e-8, atol=1e-8)
    moments = jax.jit(jax.vmap(lambda *x: tg.truncated_moments(*x[:2], tg.Box(*x[2:]), EXACT)))
    mean, covariance, *_ = moments(*inputs)
    np.testing.assert_allclose(mean, np.stack([hazard, hazard], 1), rtol=1e-7)
    variance = tg.special.truncated_variance(0.0, 1.0, gaps, INF)
    np.testing.assert_allclose(covariance, variance[:, None, None] * np.ones((2, 2)), rtol=1e-6)


def far_corner(loc, entries, low, dps=40):
    """log P(X >= low) far out, in mpmath: both limits hold the most likely point there is."""
    import mpmath as mp

    with mp.workdps(dps):
        (m1, m2), (s11, s12, s22), (l1, l2) = (
            [mp.mpf(float(x)) for x in part] for part in (loc, entries, low)
        )
        slope, scale = s12 / s11, mp.sqrt((s11 * s22 - s12 * s12) / s11)
        rate = (s22 * (l1 - m1) - s12 * (l2 - m2)) / (s11 * s22 - s12 * s12)
        assert rate > 0 and (s11 * (l2 - m2) - s12 * (l1 - m1)) > 0

        def density(t):
            above = (l2 - m2 - slope * (l1 + t - m1)) / (scale * mp.sqrt(2))
            return mp.exp(-((l1 + t - m1) ** 2) / (2 * s11)) * mp.erfc(above)

        ends = [k * k / rate for k in range(9)]
        total = mp.quad(density, ends, method="gauss-legendre", maxdegree=4)
        return mp.log(total / mp.sqrt(8 * mp.pi * s11))


# Correlation, standard deviations, mean and lower limits.
FAR_CORNERS = [
    (1e-12 - 1, (1.0, 1.0), (0.0, 0.0), (3.0, -2.6)),
    (3e-9 - 1, (0.2, 5.0), (0.1, -4.0), (1.0, -20.0)),
    (1e-8 - 1, (1.0, 2.0), (1.0, 1.0), (2e4, 3e4)),
]


@pytest.mark.quick("-0.99999999-scales2-loc2-low2")
@pytest.mark.parametrize("correlation, scales, loc, low", FAR_CORNERS)
def test_the_last_digit_is_part_of_the_error(correlation, scales, loc, low):
    """One more unit in the last place of each input in turn: all their moves together."""
    s1, s2 = scales
    inputs = [np.array(x) for x in (loc, (s1 * s1, correlation * s1 * s2, s2 * s2), low)]
    truth = far_corner(*inputs)
    moves = 0.0
    for part in range(3):
        for place in range(len(inputs[part])):
            moved = [x.copy() for x in inputs]
            moved[part][place] = np.nextafter(moved[part][place], INF)
            moves += abs(float(far_corner(*moved) - truth))
    covariance = np.array(two_by_two(inputs[1]))
    box = tg.Box(inputs[2], np.full(2, INF))
    value, stderr = map(float, tg.log_probability(inputs[0], covariance, box, method=EXACT))
    assert moves > 1e-9 * abs(value) and abs(value - truth) < 1e-3 * stderr
    assert 0.4 * stderr < moves < 1.01 * stderr
    # A third coordinate without limits changes nothing, wherever it stands.
    for k in range(3):
        wider = np.insert(np.insert(covariance, k, 0.0, 0), k, np.eye(3)[k], 1)
        box = tg.Box(np.insert(inputs[2], k, -INF), np.full(3, INF))
        loc3 = np.insert(inputs[0], k, 0.0)
        other = jax.jit(lambda *x: tg.log_probability(x[0], x[1], x[2], method=EXACT))
        np.testing.assert_allclose(other(loc3, wider, box).stderr, stderr, rtol=1e-6)


def test_a_factor_has_a_last_digit_of_its_own():
    """By the factor's rounding, not by that of the matrix it stands for, which is singular."""
    gap, noise = 4e-8, 1e-9
    factor, box = np.array([[1.0, 0.0], [-1.0, noise]]), tg.Box([3.0, gap - 3.0], [INF, INF])
    value, stderr = tg.log_probability(np.zeros(2), tg.ScaleTril(factor), box, method=EXACT)
    np.testing.assert_allclose(value, -0.5 * ((gap / noise) ** 2 + 9), rtol=0.05)
    # Either limit pushes with gap/noise^2; each time 3 come from the limit and 3 from the factor.
    bound = np.finfo(float).eps * gap / noise**2 * 12
    np.testing.assert_allclose(stderr, bound, rtol=1e-3)


def test_ordinary_problems_are_exact():
    """No bound where rounding is of no concern, and none has a derivative."""
    loc, covariance, low, high = two_inputs()
    ordinary = np.abs(covariance[:, 0, 1]) < (1 - 1e-12) * covariance[:, 0, 0] ** 0.5 * (
        covariance[:, 1, 1] ** 0.5
    )
    assert ordinary.sum() > 12
    loc, covariance, low, high = (x[ordinary] for x in (loc, covariance, low, high))
    stderr = lambda loc: tg.log_probability(loc, covariance, tg.Box(low, high), EXACT).stderr
    values, slopes = jax.jit(lambda loc: jax.jvp(stderr, (loc,), (jnp.ones_like(loc),)))(loc)
    np.testing.assert_array_equal(values, 0.0)
    np.testing.assert_array_equal(slopes, 0.0)


def test_singular_in_two_dimensions():
    # X2 = X1, X2 = -X1, X2 constant: what remains is one normal variable.
    ones, mirror, flat = ([[1.0, r], [r, abs(r)]] for r in (1.0, -1.0, 0.0))
    normal = stats.norm.logcdf
    cases = [
        ([1.72, 1.72], ones, [-INF, -INF], [1.96, 1.96], normal(1.96 - 1.72)),
        (
            [0.0, 0.0],
            mirror,
            [-INF, -INF],
            [1.0, 0.5],
            np.log(stats.norm.cdf(1.0) - stats.norm.cdf(-0.5)),
        ),
        ([0.0, 0.0], mirror, [2.0, 2.0], [3.0, 3.0], -INF),
        ([0.0, 0.0], flat, [1.0, -1.0], [INF, 1.0], normal(-1.0)),
        ([0.0, 0.0], flat, [1.0, 1.0], [INF, 2.0], -INF),
    ]
    regular = [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [1.0, -INF], [INF, INF], normal(-1.0)
    loc, covariance, low, high, truth = (np.asarray(part, float) for part in zip(*cases, regular))
    # Seen outside of a trace alone, in all rows or some.
    value, stderr = tg.log_probability(loc, covariance, tg.Box(low, high), method=EXACT)
    np.testing.assert_allclose(value, truth, rtol=1e-13)
    np.testing.assert_array_equal(stderr, 0.0)
    traced = rows_of_log_prob(loc, covariance, low, high)
    np.testing.assert_allclose(traced, np.append(np.full(3, np.nan), truth[3:]), rtol=1e-13)
    box = tg.Box(low[0], high[0])
    by_loc = jax.grad(lambda loc: tg.log_probability(loc, covariance[0], box).log_prob)(loc[0])
    # One of the two equal limits takes the slope.
    np.testing.assert_allclose(by_loc, [-tg.special.hazard(1.72 - 1.96), 0.0], rtol=1e-13)


def test_products_and_sums_that_cancel():
    """Against Python's integers and fractions, which are exact."""
    from fractions import Fraction

    generator = np.random.default_rng(0)
    a, c = generator.normal(size=(2, 200)) * 10.0 ** generator.integers(-8, 8, (2, 200))
    b = generator.normal(size=200)
    d = a * b / c * (1 + generator.integers(-4, 4, 200) * 2.0**-50)
    ours = jax.jit(difference_of_products)(a, b, c, d)
    exact = [
        float(Fraction(p) * Fraction(q) - Fraction(r) * Fraction(s))
        for p, q, r, s in zip(a, b, c, d)
    ]
    np.testing.assert_allclose(ours, exact, rtol=4e-16)
    value, rest = jax.jit(line)(a, c, b, d, 0.0 * d)
    exact = [
        Fraction(y) + Fraction(s) * (Fraction(x) - Fraction(o)) for x, o, y, s in zip(a, c, b, d)
    ]
    gap = [
        float(Fraction(float(v)) + Fraction(float(r)) - e) for v, r, e in zip(value, rest, exact)
    ]
    assert np.all(np.abs(gap) <= 1e-30 * np.abs(d * (np.abs(a) + np.abs(c))) + 1e-30 * np.abs(b))
    total, rest = two_sum(jnp.asarray(1.0), jnp.asarray(1e-20))
    assert (float(total), float(rest)) == (1.0, 1e-20)


@pytest.mark.quick("-0.99999", "0.5")
@pytest.mark.parametrize("correlation", [-0.999999, -0.99999, 0.5, 0.999999])
def test_the_rounding_of_a_correlation_near_one_is_counted(correlation):
    """Sheppard's formula for an orthant; in float32 the correlation itself is rounded."""
    truth = math.log(0.25 + math.asin(correlation) / (2.0 * math.pi))
    matrix = np.array([[1.0, correlation], [correlation, 1.0]])
    box = tg.Box(np.zeros(2, np.float32), np.full(2, np.inf, np.float32))
    log_prob, stderr = tg.log_probability(np.zeros(2, np.float32), matrix.astype(np.float32), box)
    assert abs(log_prob - truth) <= 3.0 * stderr + 1e-4  # below which stderr is 0 in float32
    assert (stderr > 0) == (correlation < 0)
    exact = tg.log_probability(np.zeros(2), matrix, tg.Box(np.zeros(2), np.full(2, np.inf)))
    assert exact.stderr == 0 and abs(exact.log_prob - truth) < 2e-9
