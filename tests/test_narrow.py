"""Intervals much narrower than the Gaussian, and the rounding that they and far tails bring.

The truth for a narrow interval comes from conditioning on it: with w its width and m its middle,
P is w times the density at m times the probability of the other limits given m, to O(w^2).
"""

import jax
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg

INF = np.inf
COVARIANCE = np.array(
    [[1, 0.5, 0.2, 0.1], [0.5, 1, 0.3, -0.2], [0.2, 0.3, 1, 0.4], [0.1, -0.2, 0.4, 1]]
)
LOW, HIGH = np.array([-1.0, -0.5, 0.0]), np.array([1.0, 2.0, INF])
METHODS = (tg.Separation(), tg.SequentialMonteCarlo(num_particles=1024), tg.Automatic())


def narrow_problem(low, width, dtype):
    """A narrow first coordinate among four, and the true log P and its slope in that coordinate."""
    low, high = np.append(low, LOW).astype(dtype), np.append(low + width, HIGH).astype(dtype)
    matrix = COVARIANCE.astype(dtype).astype(float)
    middle, slope = (float(low[0]) + float(high[0])) / 2, matrix[1:, 0]
    rest = matrix[1:, 1:] - np.outer(slope, slope)

    def others(middle):
        box = tg.Box(low[1:].astype(float), high[1:].astype(float))
        return tg.log_probability(slope * middle, rest, box, tg.Exact()).log_prob

    value, change = jax.value_and_grad(others)(middle)
    density = stats.norm.logpdf(middle) + np.log(float(high[0]) - float(low[0]))
    # log P depends on the loc of that coordinate only through middle - loc.
    return matrix.astype(dtype), tg.Box(low, high), density + value, middle - change


@pytest.mark.quick("Automatic")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_narrow_interval_among_ordinary_ones(method):
    starts, widths = (1.3, 2.3, -3.0, 0.4), (1e-13, 1e-12, 1e-11, 1e-8)
    for low, width in zip(starts, widths):
        matrix, box, value, slope = narrow_problem(low, width, np.float64)
        got = tg.log_probability_and_gradient(np.zeros(4), matrix, box, method)
        error = abs(got.estimate.log_prob - value)
        assert error <= 6 * got.estimate.stderr + 1e-9 and got.estimate.stderr < 1e-3
        assert abs(got.gradient.loc[0] - slope) <= 6 * got.stderr.loc[0] + 1e-7


@pytest.mark.quick("SequentialMonteCarlo")
@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: type(method).__name__)
def test_narrow_intervals_in_float32(method):
    for low, width in ((1.3, 1e-6), (2.3, 1e-5), (-3.0, 1e-4), (0.4, 1e-2)):
        matrix, box, value, _ = narrow_problem(low, width, np.float32)
        got = tg.log_probability(np.zeros(4, np.float32), matrix, box, method)
        assert abs(got.log_prob - value) <= 6 * got.stderr + 2e-5 * abs(value)
        assert got.stderr < 1e-2


@pytest.mark.full
@pytest.mark.parametrize("gap", [1e-10, 1e-8])
def test_no_method_leaves_out_the_rounding_of_a_nearly_singular_tail(gap):
    """Two coordinates with correlation 1 - gap and limits 0.9 apart: the rounding of that entry
    alone moves log P by (0.9 / (2 gap))^2 eps."""
    near = 1.0 - gap
    matrix = np.array(
        [[1, near, 0.3, 0.1], [near, 1, 0.3, 0.1], [0.3, 0.3, 1, 0.2], [0.1, 0.1, 0.2, 1]]
    )
    low, high = np.array([0.0, 1, -1, -1]), np.array([0.1, 1.1, 1, 1])
    pair = tg.log_probability(np.zeros(2), matrix[:2, :2], tg.Box(low[:2], high[:2]), tg.Exact())
    for method in METHODS[1:]:
        got = tg.log_probability(np.zeros(4), matrix, tg.Box(low, high), method)
        assert got.stderr >= 0.5 * (0.45 / gap) ** 2 * np.finfo(float).eps
        assert abs(got.log_prob - pair.log_prob) <= 3 * got.stderr + 1.0


@pytest.mark.quick("Separation")
@pytest.mark.parametrize("method", METHODS[:2], ids=lambda method: type(method).__name__)
def test_a_narrow_interval_of_a_duplicated_coordinate(method):
    """Both limits of one, or one limit of each: the truth is the interval that they have in common,
    whose width is known up to rounding."""
    low, width = 0.55, 1e-11
    for first, second in (
        ((low, low + width), (-INF, low + width)),
        ((low, INF), (-1, low + width)),
    ):
        box = tg.Box(*np.array([first, second]).T)
        got = tg.log_probability(np.zeros(2), np.ones((2, 2)), box, method)
        value = stats.norm.logpdf(low + 0.5 * width) + np.log((low + width) - low)
        assert abs(got.log_prob - value) <= 4.5 * got.stderr + 1e-12


@pytest.mark.quick("first1-second1-1e-05", "first2-second2-1e-05")
@pytest.mark.parametrize("gap", [1e-5, 4e-6])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.5, 0.5 + 1e-6), (-INF, INF)),
        ((0.5, 0.5 + 1e-6), (0.499, INF)),
        ((0.0, INF), (0.001, INF)),
    ],
)
def test_float32_tells_what_the_last_digit_of_a_nearly_singular_covariance_changes(
    first, second, gap
):
    """No less than a quarter of it, and no error of the value beyond four of the stated one."""
    near = np.float32(1 - gap)
    box = tg.Box(*np.array([first, second, (-1, 1), (-1, 1)], np.float32).T)
    wide = tg.Box(*(np.asarray(x, float) for x in (box.low, box.high)))

    def matrix(near, dtype):
        rows = [[1, near, 0.3, 0.1], [near, 1, 0.3, 0.1], [0.3, 0.3, 1, 0.2], [0.1, 0.1, 0.2, 1]]
        return np.array(rows, np.float32).astype(dtype)

    got = tg.log_probability(np.zeros(4, np.float32), matrix(near, np.float32), box)
    digits = (near, np.nextafter(near, np.float32(0)))
    truth, moved = (tg.log_probability(np.zeros(4), matrix(x, float), wide) for x in digits)
    allowed = 4 * np.hypot(got.stderr, truth.stderr) + 1e-5 * (1 - truth.log_prob)
    assert abs(got.log_prob - truth.log_prob) <= allowed
    assert got.stderr >= 0.25 * (abs(moved.log_prob - truth.log_prob) - 4 * truth.stderr)
