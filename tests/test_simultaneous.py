"""Simultaneous intervals and adjusted p-values: the recovery data, against quadrature."""

import math

import jax
import numpy as np
import pytest
from scipy import integrate, special, stats

import truncgauss as tg
from truncgauss.probability.radial import LargestCoordinate

SIZES = np.array([20.0, 3.0, 3.0, 15.0])
MEANS = np.array([14.8, 38 / 3, 22 / 3, 197 / 15])
DF, VARIANCE = 37, 248.26666666666668 / 37
GROUPS = ["b0", "b1", "b2", "b3"]


def recovery(**options):
    return tg.simultaneous(MEANS, np.diag(VARIANCE / SIZES), DF, "dunnett", names=GROUPS, **options)


def by_quadrature(limit, kept=(0, 1, 2), two_sided=False):
    """P(some statistic is beyond the limit), by SciPy over the control's mean and the scale."""
    loading = np.sqrt(SIZES[1:] / (SIZES[1:] + SIZES[0]))[list(kept)]
    noise = np.sqrt(1 - loading**2)

    def inside(z, s):
        upper = special.ndtr((limit * s - loading * z) / noise)
        lower = special.ndtr((-limit * s - loading * z) / noise) if two_sided else 0.0
        density = stats.chi.pdf(s * math.sqrt(DF), DF) * math.sqrt(DF) * stats.norm.pdf(z)
        return float(density * np.prod(upper - lower))

    return 1 - integrate.dblquad(inside, 0.1, 2.5, -8.5, 8.5, epsabs=1e-10, epsrel=1e-10)[0]


def test_dunnetts_intervals_of_the_recovery_data():
    result = recovery(alternative="less")
    assert result.names == ("b1 - b0", "b2 - b0", "b3 - b0")
    assert abs(result.critical_value.value - 2.18268360) < 6e-9
    np.testing.assert_allclose(result.statistics, [-1.3302, -4.6557, -1.8837], atol=1e-4)
    truth = [by_quadrature(-t) for t in result.statistics[[0, 2]]]
    np.testing.assert_allclose(result.p_values[[0, 2]], truth, atol=1e-9)
    np.testing.assert_allclose(truth, [0.241188, 0.0925], atol=1e-4)  # as published
    assert np.all(result.p_value_errors == 0)
    assert np.all(np.isinf(result.low))
    np.testing.assert_allclose(result.high[1], -3.9661, atol=1e-4)
    down = [by_quadrature(-result.statistics[0], [0]), by_quadrature(-result.statistics[2], [0, 2])]
    np.testing.assert_allclose(result.step_down_p_values[[0, 2]], down, atol=1e-9)


def test_two_sided_intervals_and_the_table():
    result = recovery()
    assert abs(result.critical_value.value - 2.48858911) < 6e-9
    np.testing.assert_allclose(
        result.p_values[0], by_quadrature(-result.statistics[0], two_sided=True), atol=1e-9
    )
    assert "b2 - b0     -7.4667     1.6038       [-11.458, -3.4755]" in str(result)


def test_tukeys_pairs_of_three_groups_are_the_studentized_range():
    result = tg.simultaneous([1.0, 2.0, 4.0], np.eye(3), 10, "tukey")
    truth = stats.studentized_range.ppf(0.95, 3, 10)
    np.testing.assert_allclose(result.critical_value.value * math.sqrt(2), truth, rtol=1e-7)
    truth = stats.studentized_range.sf(3.0, 3, 10)
    np.testing.assert_allclose(result.p_values[1], truth, rtol=1e-7)
    assert result.critical_value.stderr == 0


def test_a_band_of_a_curve_in_two_coefficients():
    x = np.linspace(0.0, 1.0, 40)
    design = np.stack([np.ones(40), x], axis=1)
    band = tg.simultaneous([1.0, 2.0], np.eye(2), contrasts=design)
    # The normal vectors sweep an arc of 45 degrees: P = 1 - chi tail - arc of the tube around it.
    c = float(band.critical_value.value)
    arc = math.pi / 4 / math.pi
    tube = arc * math.exp(-(c**2) / 2) + 2 * stats.norm.sf(c)
    assert abs(tube - 0.05) < 2e-4
    np.testing.assert_allclose(band.high - band.low, 2 * c * np.hypot(1, x), rtol=1e-12)


def test_refusals():
    with pytest.raises(ValueError, match="alternative must be"):
        tg.simultaneous([1.0], [[1.0]], alternative="two sided")
    with pytest.raises(ValueError, match="contrasts must be"):
        tg.simultaneous([1.0], [[1.0]], contrasts="scheffe")
    with pytest.raises(ValueError, match="estimate 1 or its covariances are not finite"):
        tg.simultaneous([1.0, np.nan, 3.0], np.eye(3), contrasts="tukey")
    with pytest.raises(ValueError, match="must be symmetric"):
        tg.simultaneous([1.0, 2.0], [[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match="has no variance"):
        tg.simultaneous([1.0, 2.0], np.eye(2), contrasts=[[0.0, 0.0]])
    with pytest.raises(ValueError, match=r"shape \(k,\)"):
        tg.simultaneous([1.0, 2.0], np.eye(3))


def test_the_largest_coordinate_by_directions_is_within_its_error():
    """Against independent coordinates, Dunnett's quantiles and the studentized range."""
    key = jax.random.key(0)
    loading = np.sqrt(SIZES[1:] / (SIZES[1:] + SIZES[0]))
    dunnett = np.outer(loading, loading)
    np.fill_diagonal(dunnett, 1.0)
    pairs = np.array([np.eye(4)[j] - np.eye(4)[i] for i in range(4) for j in range(i)]) / 2**0.5
    tukey = stats.studentized_range.ppf(0.95, 4, 10) / 2**0.5
    for covariance, df, two_sided, share, true in (
        (np.eye(20), math.inf, True, 0.95, stats.norm.isf(0.5 - 0.5 * 0.95 ** (1 / 20))),
        (np.eye(3), math.inf, False, 0.05, stats.norm.ppf(0.05 ** (1 / 3))),
        (dunnett, 37, True, 0.95, 2.488589106653),
        (dunnett, 37, False, 0.95, 2.182683596754),
        (pairs @ pairs.T, 10, True, 0.95, tukey),
    ):
        value, stderr = LargestCoordinate.of(covariance, two_sided, key).quantile(share, df)
        assert abs(value - true) < 4 * stderr < 0.02


def test_exceedances_by_directions_of_limits_of_either_sign():
    limits = np.array([-1.0, 0.5, 3.0, 30.0])
    some = LargestCoordinate.of(np.eye(4), False, jax.random.key(1))
    (whole, nested), errors = some.tails(limits, math.inf)
    inside = stats.norm.logcdf(limits)
    np.testing.assert_array_less(np.abs(whole + np.expm1(4 * inside)), 4 * errors[0] + 1e-16)
    true = -np.expm1([1, 2, 3, 4] * inside)
    np.testing.assert_array_less(np.abs(nested - true), 4 * errors[1] + 1e-16)
    assert np.all(errors < 2e-2 * whole) and nested[3] == whole[3] > 0


def test_a_curve_of_few_coefficients_has_a_band():
    x = np.linspace(0.0, 1.0, 31)
    design = x[:, None] ** np.arange(3)
    result = tg.simultaneous(np.zeros(3), np.eye(3), df=20, contrasts=design)
    value, stderr = result.critical_value
    same = tg.simultaneous(np.zeros(3), np.eye(3), df=20, contrasts=np.repeat(design, 2, axis=0))
    assert 0 < stderr < 5e-4 and abs(same.critical_value.value - value) < 4 * stderr
    assert stats.t.isf(0.025, 20) < value < np.sqrt(3 * stats.f.isf(0.05, 3, 20))  # Scheffe's
