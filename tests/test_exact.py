"""Exact: two and three dimensions, one factor, chains; values, slopes, tails, singular limits."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests.exact_rows import EXACT, log_prob, rows_of_log_prob, rows_of_slopes
from truncgauss.arrays.linalg import two_sum
from truncgauss.quadrature.double_double import difference_of_products, line

INF = math.inf


# --- Two dimensions -------------------------------------------------------------------------------

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
TWO_SLOPES = np.array([
    [1.0909506926448895, 1.0909506926448895, -1.0909506926448895, -1.0909506926448895, 0.0, 0.0,
     0.16814484930745166, 0.7546609940299863, 0.16814484930745166],
    [400.0249976156625, 400.0249976156625, -400.0249976156625, -400.0249976156625, 0.0, 0.0,
     80007.36793639607, 80007.63109342534, 80007.36793639607],
    [0.29707946060251117, -0.6249987483755985, -0.29707946060251117, 0.0, 0.0, 0.6249987483755985,
     -0.19310164939163224, 0.0, -0.14062471838450968],
    [2.099367633810081, -0.7666657156301767, -2.099367633810081, -0.5969294048508111, 0.0,
     1.363595120480988, 1.435641706511844, -0.43634271281824566, -0.12272742371112413],
    [1.758241758791044, -2.5274725276368133, -999999918.1387568, -999911107319.0062,
     999999916.380515, 999911107321.5337, 0.9962564917277623, -2.057118706308933,
     2.644608139528861],
])  # fmt: skip
EPS = np.finfo(float).eps


def two_by_two(entries):
    first, product, second = entries
    return [[first, product], [product, second]]


def two_inputs(dtype=np.float64):
    locs, entries, lows, highs, _ = zip(*TWO)
    covariances = [two_by_two(e) for e in entries]
    return tuple(np.asarray(part, dtype) for part in (locs, covariances, lows, highs))


def test_two_dimensions_values_and_slopes():
    inputs = two_inputs()
    value, (loc, covariance, low, high) = rows_of_slopes(*inputs)
    truth = np.array([case[-1] for case in TWO])
    np.testing.assert_array_less(np.abs(value - truth), 1e-12 + 8 * EPS * np.abs(truth))
    np.testing.assert_array_equal(covariance[:, 0, 1], covariance[:, 1, 0])
    ours = np.c_[loc, low, high, covariance[:, [0, 0, 1], [0, 1, 1]]]
    np.testing.assert_allclose(ours[: len(TWO_SLOPES)], TWO_SLOPES, rtol=2e-10, atol=1e-10)
    assert np.all(low[np.isinf(inputs[2])] == 0) and np.all(high[np.isinf(inputs[3])] == 0)


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


@pytest.mark.full
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
    other = jax.jit(lambda *x: tg.log_probability(*x, method=EXACT))
    for k in range(3):
        wider = np.insert(np.insert(covariance, k, 0.0, 0), k, np.eye(3)[k], 1)
        box = tg.Box(np.insert(inputs[2], k, -INF), np.full(3, INF))
        loc3 = np.insert(inputs[0], k, 0.0)
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
    """X2 = X1, X2 = -X1, X2 = -X1 without a common point: one normal variable is left, or none."""
    same, mirror = np.ones((2, 2)), np.array([[1.0, -1.0], [-1.0, 1.0]])
    both = np.log(stats.norm.cdf(1.0) - stats.norm.cdf(-0.5))
    cases = [
        ([1.72, 1.72], same, [-INF, -INF], [1.96, 1.96], stats.norm.logcdf(1.96 - 1.72)),
        ([0.0, 0.0], mirror, [-INF, -INF], [1.0, 0.5], both),
        ([0.0, 0.0], mirror, [2.0, 2.0], [3.0, 3.0], -INF),
        ([0.0, 0.0], np.eye(2), [1.0, -INF], [INF, INF], stats.norm.logcdf(-1.0)),
    ]
    *inputs, truth = (np.asarray(part, float) for part in zip(*cases))
    # Seen outside of a trace alone, in all rows or some.
    value, stderr = tg.log_probability(*inputs[:2], tg.Box(*inputs[2:]), method=EXACT)
    np.testing.assert_allclose(value, truth, rtol=1e-13)
    np.testing.assert_array_equal(stderr, 0.0)
    traced = rows_of_log_prob(*inputs)
    np.testing.assert_allclose(traced, [np.nan, np.nan, np.nan, truth[3]], rtol=1e-13)


def test_products_and_sums_that_cancel():
    """Against Python's integers and fractions, which are exact."""
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


def test_the_rounding_of_a_correlation_near_one_is_counted():
    """Sheppard's formula for an orthant; in float32 the correlation itself is rounded."""
    correlation = np.array([-0.999999, -0.99999, 0.5, 0.999999])
    truth = np.log(0.25 + np.arcsin(correlation) / (2.0 * np.pi))
    matrix = np.eye(2) + correlation[:, None, None] * (1 - np.eye(2))
    for dtype, allowed in ((np.float32, 1e-4), (float, 2e-9)):  # below 1e-4 stderr is 0 in float32
        box = tg.Box(np.zeros(2, dtype), np.full(2, np.inf, dtype))
        log_prob, stderr = tg.log_probability(np.zeros(2, dtype), matrix.astype(dtype), box)
        assert np.all(np.abs(log_prob - truth) <= 3.0 * stderr + allowed)
        assert np.all((stderr > 0) == ((correlation < 0) & (dtype == np.float32)))


# --- Three dimensions -----------------------------------------------------------------------------

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
    zero, ends, named = (0.0,) * 3, (-INF,) * 3, three_by_three(3 / 5, 1 / 3, 11 / 15)
    other = [[1, 0.6, 0.3], [0.6, 1, 0.2], [0.3, 0.2, 2]]
    rows += [
        (zero, named, ends, (1.0, 4.0, 2.0), -0.1887603645496573),
        ((0.5,) * 3, other, ends, (1.0,) * 3, -0.9486675579046695),
        (zero, np.eye(3), (10.0,) * 3, (INF,) * 3, 3 * -53.23128515051247),
        (zero, 2 * np.eye(3) - 0.5, (0.5,) * 3, (1.0,) * 3, -6.8332772755698349),
    ]
    return tuple(np.asarray(part, float) for part in zip(*rows))


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
    """Where two coordinates determine a third, up to rounding, which once hid a limit of it: with
    an error of 0 for one of 5e-4, in one of some 200 rows, and NaN in many. Of every second row
    X3 = X1, or as near to it as rounding of a product leaves it."""
    generator = np.random.default_rng(3)
    count = 200
    root = generator.normal(size=(count, 3, 2))
    root[::2, 2] = root[::2, 0]
    turn = np.linalg.qr(generator.normal(size=(count, 2, 2)))[0]
    covariance = root @ turn @ np.swapaxes(root @ turn, -1, -2)
    scale = np.sqrt(np.diagonal(covariance, axis1=-2, axis2=-1))
    low, high = scale * generator.uniform([[[-2.0]], [[0.3]]], [[[-0.3]], [[2.0]]], (2, count, 3))
    high[generator.random((count, 3)) < 0.2] = INF
    zeros = np.zeros((count, 3))
    answers = jax.jit(lambda s, *limits: tg.log_probability(zeros, s, tg.Box(*limits), EXACT))
    slope = jax.grad(lambda s, *limits: answers(s, *limits).log_prob.sum())
    value, stderr = answers(covariance, low, high)
    identity = np.broadcast_to(np.eye(2), (count, 2, 2))
    polygon = lambda root: (
        tg.log_probability(zeros[:, :2], identity, tg.Polyhedron(root, low, high), EXACT).log_prob
    )
    truth = polygon(root)
    assert np.all(stderr < 1e-5) and np.all(stderr[::2] > 0)
    assert np.all(np.abs(value - truth) <= np.asarray(stderr) + 1e-12)
    # Along changes of the root, by which the covariance stays singular.
    change = generator.normal(size=root.shape)
    change[::2, 2] = change[::2, 0]
    moved = change @ np.swapaxes(root, -1, -2)
    along = np.sum(slope(covariance, low, high) * (moved + np.swapaxes(moved, -1, -2)), (1, 2))
    step = 1e-5
    beside = (polygon(root + step * change) - polygon(root - step * change)) / (2.0 * step)
    np.testing.assert_allclose(along, beside, rtol=1e-5, atol=1e-5)


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


# --- One factor, and Markov chains ----------------------------------------------------------------


def one_factor(d, correlation, sign=1.0):
    loading = sign * jnp.full((d, 1), math.sqrt(correlation))
    return tg.LowRank(loading, jnp.full(d, 1.0 - correlation))


def test_one_factor():
    of = jax.jit(log_prob)
    for covariance, low, truth in (
        (one_factor(1000, 0.5), 0.0, -math.log(1001)),
        (one_factor(1000, 0.9, -1.0), -1.0, -0.7141099217502042577),
        (one_factor(25, 0.5), 5.0, -38.0365506527319941210),
    ):
        d = covariance.dimension
        value = of(np.zeros(d), covariance, np.full(d, low), np.full(d, INF))
        np.testing.assert_allclose(value, truth, rtol=1e-13, atol=1e-13)


def chain_of(d, coefficient):
    """Stationary autoregression; a random walk for 1."""
    noise = 1.0 if coefficient == 1.0 else math.sqrt(1 - coefficient**2)
    return tg.Markov(jnp.full(d - 1, coefficient), noise, 1.0)


def test_chains():
    """Random walk, independent and autoregressive; the last two by another transfer operator."""
    zero = np.zeros(100)
    ask = jax.jit(lambda chain, *limits: tg.log_probability(zero, chain, tg.Box(*limits), EXACT))
    for coefficient, low, high, truth in (
        (1.0, 0.0, INF, math.log(math.comb(200, 100)) - 200 * math.log(2)),
        (0.0, 10.0, INF, 100 * -53.23128515051247),
        (0.7, -1.5, 1.0, -15.176594589097565),
        (0.7, 4.0, INF, -234.70892930123804),
    ):
        value, stderr = ask(chain_of(100, coefficient), np.full(100, low), np.full(100, high))
        np.testing.assert_allclose(value, truth, rtol=1e-13, atol=3e-12)
        assert stderr <= 1e-10


def test_chain_that_no_grid_follows():
    chain = tg.Markov([1.0, 1.0, 1.0], [1e-3, 1e-3, 5.0], 1.0)
    box = tg.Box(np.zeros(4), np.full(4, INF))
    assert tg.log_probability(np.zeros(4), chain, box, method=EXACT).stderr == INF


def test_a_chain_keeps_the_digits_of_narrow_intervals():
    """Where all are narrow, log P is the log density at the middle plus the logs of the widths."""
    d, rng = 6, np.random.default_rng(4)
    loc, low = rng.normal(size=d), rng.normal(size=d)
    high = low + 10.0 ** rng.uniform(-9, -7, d)
    scale = math.sqrt(1.3)
    chain = tg.Markov(np.full(d - 1, 0.8), np.full(d - 1, 0.6 * scale), scale)
    covariance = chain.covariance_matrix
    middle, widths = 0.5 * (low + high), high - low
    truth = stats.multivariate_normal(loc, covariance).logpdf(middle) + np.log(widths).sum()
    found = tg.log_probability(loc, chain, tg.Box(low, high), tg.Exact())
    np.testing.assert_allclose(found.log_prob, truth, rtol=1e-13)
    assert found.stderr == 0
    moments = tg.truncated_moments(loc, chain, tg.Box(low, high), tg.Exact())
    uniform = np.diag(moments.covariance) / (widths**2 / 12)
    np.testing.assert_allclose(uniform, 1.0, rtol=1e-7)


def test_a_chain_in_a_far_tail():
    """log P, from -3e7 to -1e10, is that at the most likely point, by least squares within limits.

    The rest is logs of widths. Cavities by differences were NaN; centres that had not converged
    left the grid beside the mode.
    """
    transition = np.array([[0.5, 0.999, 0.9, 0.999], [0.171, -0.209, 0.888, 0.878]])
    noise = np.array([[1.09, 0.65, 0.77, 1.23], [1.936, 0.764, 1.486, 0.669]])
    first = np.array([0.58, 1.298])
    low = np.array(
        [[10610.02, -24614.2391675, -INF, -INF, -83888.9], [-INF, 3294.06, -INF, -INF, -INF]]
    )
    high = np.array(
        [[10610.03, -24614.239166, INF, INF, INF], [-4979.5, 3701.9, -5367.0, INF, INF]]
    )
    for row in zip(transition, noise, first, low, high):
        a, scale, start, low, high = row
        whiten = (np.eye(5) - np.diag(a, -1)) / np.append(start, scale)[:, None]
        nearest = optimize.lsq_linear(whiten, np.zeros(5), (low, high), "bvls", tol=1e-14).x
        height = -0.5 * np.sum((whiten @ nearest) ** 2)
        covariance = tg.Markov(a, scale, start)
        result = tg.log_probability(np.zeros(5), covariance, tg.Box(low, high), EXACT)
        assert height < -2e7 and abs(result.log_prob - height) < 100.0
