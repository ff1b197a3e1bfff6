"""Simultaneous intervals and adjusted p-values: the recovery data, against quadrature."""

import math

import jax
import numpy as np
import pandas as pd
import pytest
from scipy import integrate, special, stats

import truncgauss as tg
from truncgauss.student.exact_largest import ExactLargest
from truncgauss.student.radial import LargestCoordinate

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


@pytest.mark.full
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


@pytest.mark.full
def test_two_sided_intervals_and_the_table():
    result = recovery()
    assert abs(result.critical_value.value - 2.48858911) < 6e-9
    np.testing.assert_allclose(
        result.p_values[0], by_quadrature(-result.statistics[0], two_sided=True), atol=1e-9
    )
    assert "b2 - b0     -7.4667     1.6038       [-11.458, -3.4755]" in str(result)


@pytest.mark.full
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


def test_rows_and_their_groups_against_scipy():
    rng = np.random.default_rng(0)
    arm = np.repeat(["placebo", "low", "high"], [12, 15, 9])
    y = rng.normal(size=36) + np.repeat([0.0, 0.3, 1.2], [12, 15, 9])
    result = tg.simultaneous(y=y, group=arm, contrasts="dunnett")
    assert result.names == ("low - placebo", "high - placebo") and "low - placebo" in str(result)
    blocks = np.repeat(list("cabd"), 9)
    pairs = tg.simultaneous(y=y, group=blocks, contrasts="tukey")
    reference = stats.tukey_hsd(*(y[blocks == name] for name in "cabd"))
    assert pairs.names == ("a - c", "b - c", "d - c", "b - a", "d - a", "d - b")
    upper = np.triu_indices(4, 1)
    np.testing.assert_allclose(pairs.p_values, reference.pvalue[upper], rtol=1e-9)
    np.testing.assert_allclose(-pairs.high, reference.confidence_interval().low[upper], rtol=1e-9)
    frame = pd.DataFrame({"y": y, "group": pd.Categorical(blocks, categories=list("abcd"))})
    again = tg.simultaneous(y=frame["y"], group=frame["group"], contrasts="dunnett")
    assert again.names == ("b - a", "c - a", "d - a")
    other = tg.simultaneous(y=y, group=blocks, contrasts="dunnett", names=list("bcad"))
    assert other.names == ("c - b", "a - b", "d - b") and not other.largest.directed
    for refused, words in (
        ({"y": y}, "given together"),
        ({"y": y, "group": arm[1:]}, "one shape"),
        ({"y": y, "group": arm, "df": 3.0}, "leave these out"),
        ({"y": y, "group": arm, "names": ["low", "high"]}, "names must be the groups"),
        ({"y": y[:2], "group": ["a", "b"]}, "no degrees of freedom"),
    ):
        with pytest.raises(ValueError, match=words):
            tg.simultaneous(contrasts="dunnett", **refused)


@pytest.mark.parametrize("df", [math.inf, 37.0, 2.5])
def test_angles_polygons_and_a_common_factor_are_the_same_distribution(df):
    """Of two variables, or of three, by either quadrature; and of independent ones."""
    for r in (0.3, -0.8, 0.99):
        for two_sided in (True, False):
            sizes, vectors = np.linalg.eigh(np.array([[1.0, r], [r, 1.0]]))
            root = vectors * np.sqrt(sizes)
            single = LargestCoordinate.of(root, two_sided, df, jax.random.key(0))
            angles = ExactLargest.of(np.array([[1.0, r], [r, 1.0]]), single)
            loadings = math.sqrt(abs(r)) * np.array([1.0, math.copysign(1.0, r)])
            factor = ExactLargest(loadings, None, two_sided, df, single)
            for limit in (-1.5, 0.0, 0.2, 2.0, 30.0):
                one, other = angles.log_tail(limit), factor.log_tail(limit)
                assert abs(one - other) < 2e-12 * (1.0 + abs(one)), (r, two_sided, limit)
        loadings = abs(r) ** 0.5 * np.array([1.0, math.copysign(1.0, r), 0.5])
        correlation = np.outer(loadings, loadings)
        np.fill_diagonal(correlation, 1.0)
        single = LargestCoordinate.of(np.linalg.cholesky(correlation), True, df, jax.random.key(0))
        factor = ExactLargest(loadings, None, True, df, single)
        root = single.root[[0, 1, 2, 0]] * np.array([1.0, 1.0, 1.0, -1.0])[:, None]
        polygons = ExactLargest(None, None, True, df, single, root)
        for limit in (0.2, 2.0, 30.0):
            one, other = polygons.log_tail(limit), factor.log_tail(limit)
            assert abs(one - other) < 2e-12 * (1.0 + abs(one)), (r, limit)
            one, other = polygons.log_tail(limit, [0, 3]), single.log_single(limit)
            assert abs(one - other) < 2e-12 * (1.0 + abs(one)), (r, limit)
    single = LargestCoordinate.of(np.eye(4), False, math.inf, jax.random.key(0))
    apart = ExactLargest.of(np.eye(4), single)
    for limit in (-1.0, 1.0, 9.0, 60.0):
        inside = 4.0 * stats.norm.logcdf(limit)
        true = math.log(-math.expm1(inside)) if inside < -1e-300 else -math.inf
        true = stats.norm.logsf(limit) + math.log(4.0) if limit > 8.0 else true
        assert abs(apart.log_tail(limit) - true) < 1e-13 * (1.0 + abs(true))


def test_polygons_of_nearly_equal_directions():
    """Each as three that are up to a distance apart: P changes by some times that."""
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(4, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for distance in 10.0 ** np.arange(-16, -2):
        moved = directions + distance * rng.normal(size=(3, 4, 3))
        root = np.concatenate(
            [directions, (moved * rng.choice([-1.0, 1.0], (3, 4, 1))).reshape(-1, 3)]
        )
        root /= np.linalg.norm(root, axis=1, keepdims=True)
        single = LargestCoordinate(root, True, math.inf, jax.random.key(0))
        polygons = ExactLargest(None, None, True, math.inf, single, root)
        for limit in (0.2, 1.0, 3.0, 8.0):
            one, other = polygons.log_tail(limit, slice(4)), polygons.log_tail(limit)
            assert -1e-14 < other - one < 50.0 * distance + 2e-14, (distance, limit)


def test_a_singular_covariance_of_contrasts_is_exact():
    """As the contrasts of its estimates are, of which the matrix has three dimensions."""
    rng = np.random.default_rng(1)
    factor, estimates = rng.normal(size=(4, 4)), rng.normal(size=4)
    pairs = np.array([[1.0, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [1, 0, 0, -1], [1, 0, -1, 0]])
    of_pairs = tg.simultaneous(estimates, factor @ factor.T, contrasts=pairs)
    matrix = pairs @ factor @ factor.T @ pairs.T
    by_hand = tg.simultaneous(pairs @ estimates, matrix)
    twice = tg.simultaneous(np.tile(pairs @ estimates, 2), np.tile(matrix, (2, 2)))
    for other in (by_hand, twice):
        assert other.critical_value.stderr == 0
        np.testing.assert_allclose(other.critical_value.value, of_pairs.critical_value.value, 1e-12)
        np.testing.assert_allclose(other.p_values[:5], of_pairs.p_values, 1e-11)
    with pytest.raises(ValueError, match="no variance"):
        tg.simultaneous([0.0, 1.0], np.ones((2, 2)), contrasts=[[1.0, -1.0], [1.0, 0.0]])


@pytest.mark.full
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
        sizes, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(sizes, 0.0))
        value, stderr = LargestCoordinate.of(root, two_sided, df, key).quantile(share)
        assert abs(value - true) < 4 * stderr < 0.02


def test_exceedances_by_directions_of_limits_of_either_sign():
    limits = np.array([-1.0, 0.5, 3.0, 30.0])
    some = LargestCoordinate.of(np.eye(4), False, math.inf, jax.random.key(1))
    log_p, errors = some.tails(limits)
    inside = stats.norm.logcdf(limits)
    true = np.log(-np.expm1(np.stack([4 * inside, np.arange(1, 5) * inside])))
    true[:, 3] = stats.norm.logsf(30.0) + math.log(4)
    np.testing.assert_array_less(np.abs(log_p - true), 4 * errors + 1e-13)
    assert np.all(errors < 2e-3) and log_p[0, 3] == log_p[1, 3]


@pytest.mark.full
def test_a_curve_of_few_coefficients_has_a_band():
    x = np.linspace(0.0, 1.0, 31)
    design = x[:, None] ** np.arange(3)
    result = tg.simultaneous(np.zeros(3), np.eye(3), df=20, contrasts=design)
    value, stderr = result.critical_value
    same = tg.simultaneous(np.zeros(3), np.eye(3), df=20, contrasts=np.repeat(design, 2, axis=0))
    sampled = same.critical_value.stderr  # of twice as many contrasts
    assert stderr == 0 < sampled < 5e-4 and abs(same.critical_value.value - value) < 4 * sampled
    assert stats.t.isf(0.025, 20) < value < np.sqrt(3 * stats.f.isf(0.05, 3, 20))  # Scheffe's


def blocks_of_one_factor(seed):
    """A root of two independent blocks, each with a common factor: loadings, root and limits."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 16, 2)
    loadings = [rng.choice([-1, 1], k) * rng.uniform(0.2, 0.97, k) for k in sizes]
    d = sizes.sum()
    root = np.zeros((d, d + 2))
    for factor, (start, values) in enumerate(zip((0, sizes[0]), loadings)):
        root[start : start + len(values), factor] = values
    root[np.arange(d), 2 + np.arange(d)] = np.sqrt(1 - np.sum(root[:, :2] ** 2, axis=1))
    limits = np.zeros(d)
    large = min(rng.integers(1, 6), d - 1)
    limits[:large] = np.exp(rng.uniform(math.log(1.5), math.log(20.0), large))
    return loadings, root, limits


def log_outside_blocks(loadings, limit, df):
    """log P(some |X_j| > limit), by Gauss-Legendre in each factor and in the log of the scale."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    scales, shares = np.ones(1), np.ones(1)
    if not math.isinf(df):
        steps, shares = np.polynomial.legendre.leggauss(120)
        scales = np.exp(3.5 * steps - 2.5)
        shares = 3.5 * shares * scales * math.sqrt(df) * stats.chi.pdf(scales * df**0.5, df)
    factors = 24.0 * nodes
    density = 24.0 * weights * stats.norm.pdf(factors)
    inside = 0.0  # log P of all blocks within the limit
    for values in loadings:
        noise, bound = np.sqrt(1 - values**2), limit * scales[:, None, None]
        mean = values * factors[:, None]
        missed = special.ndtr((mean - bound) / noise) + special.ndtr((-mean - bound) / noise)
        outside = -np.expm1(np.log1p(-np.minimum(missed, 1 - 1e-16)).sum(axis=-1))
        inside = inside + np.log1p(-np.minimum(outside @ density, 1 - 1e-16))
    return math.log(-np.expm1(inside) @ shares)


@pytest.mark.full
def test_adjusted_p_values_against_quadrature():
    """Of all statistics, and of those that are no larger, which step-down has."""
    differences = []
    for seed in range(12):
        loadings, root, limits = blocks_of_one_factor(seed)
        df = (math.inf, 30.0, 5.0)[seed % 3]
        log_p, errors = LargestCoordinate.of(root, True, df, jax.random.key(seed)).tails(limits)
        for j in np.nonzero(limits)[0][:2]:
            kept = np.split(limits <= limits[j], [len(loadings[0])])
            some = [values[k] for values, k in zip(loadings, kept)]
            for row, parts in enumerate((loadings, some)):
                difference = abs(log_p[row, j] - log_outside_blocks(parts, limits[j], df))
                assert difference < 5 * errors[row, j] + 1e-11, (seed, j, row)
                differences.append(difference)
    assert np.median(differences) < 1e-3


@pytest.mark.full
def test_p_values_of_tails_equal_means_and_duplicates():
    """All pairs of 25 means, one far away; two equal means; contrasts twice and reversed."""
    means = np.zeros(25)
    means[0] = 20.0
    result = tg.simultaneous(means, 0.5 * np.eye(25), contrasts="tukey")
    # 24 pairs of correlations 1/2 exceed 20 standard errors, and 276 others as hardly together.
    one = math.log(2) + stats.norm.logsf(20.0)
    np.testing.assert_allclose(result.log_p_values[0, 0], one + math.log(300), rtol=1e-12)
    assert 0 < result.log_p_value_errors[0, 0] < 1e-11
    for contrasts in ("dunnett", "tukey"):
        result = tg.simultaneous([1.0, 1.0, 2.0], np.eye(3), contrasts=contrasts)
        assert result.p_values[0] == result.step_down_p_values[0] == 1.0
    rows = np.array([[1.0, -1, 0, 0], [0, 1, -1, 0], [0, 0, 1, -1], [1, 0, 0, -1]])
    factor = rows / math.sqrt(2)
    once = LargestCoordinate.of(factor, True, 5.0, jax.random.key(0))
    twice = LargestCoordinate.of(np.concatenate([factor, -factor]), True, 5.0, jax.random.key(0))
    limits = np.array([0.0, 1.0, 4.0, 60.0])
    few, few_errors = once.tails(limits)
    many, errors = twice.tails(np.tile(limits, 2))
    assert np.all(np.abs(few - many[:, :4]) <= 4 * np.hypot(few_errors, errors[:, :4]))
    assert np.all(np.abs(many[:, 4:] - many[:, :4]) == 0) and few[0, 0] == 0


def test_statistics_of_any_size_and_degrees_of_freedom_of_any_kind():
    result = tg.simultaneous([0.0, 2.0, 4.5, 1e7], np.eye(4), contrasts="tukey")
    single = math.log(2.0) + stats.norm.logsf(np.abs(result.statistics))
    for log_p in result.log_p_values:
        assert np.all(log_p >= single - 1e-9 * np.abs(single))
        assert np.all(log_p <= np.minimum(single + math.log(6.0) + 1e-9 * np.abs(single), 0.0))
    plain = tg.simultaneous([0.0, 2.0], np.eye(2), df=30)
    for df in (30.0, np.array(30.0), np.float32(30)):
        again = tg.simultaneous([0.0, 2.0], np.eye(2), df=df)
        np.testing.assert_array_equal(again.p_values, plain.p_values)


def test_a_covariance_is_symmetric_to_the_rounding_of_its_type():
    estimates = np.array([1.0, 2.0])
    crooked = np.array([[1.0, 0.3], [0.3 + 2e-6, 0.5]])
    with pytest.raises(ValueError, match=r"must be symmetric, got 0.3 at \(0, 1\)"):
        tg.simultaneous(estimates, crooked)
    rounded = tg.simultaneous(estimates, crooked.astype(np.float32))
    middle = tg.simultaneous(estimates, (crooked + crooked.T) / 2)
    np.testing.assert_allclose(rounded.low, middle.low, rtol=1e-6)
    with pytest.raises(ValueError, match=r"must be symmetric, got 0.5 at \(0, 1\) and 0 at"):
        tg.simultaneous(estimates, np.array([[1e12, 0.5], [0.0, 1.0]]))


def test_everything_goes_by_labels():
    groups = ["a", "b", "c"]
    b = pd.Series([1.0, 2.0, 4.0], groups)
    cov = pd.DataFrame([[1.0, 0.2, 0.1], [0.2, 2.0, 0.3], [0.1, 0.3, 1.5]], groups, groups)
    rows = pd.DataFrame([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]], ["u", "v"], groups)
    truth = tg.simultaneous(b.to_numpy(), cov.to_numpy(), 20.0, rows.to_numpy(), null=[0.0, 1.0])
    shuffled = cov.loc[["c", "a", "b"], ["b", "c", "a"]]
    null = pd.Series([1.0, 0.0], ["v", "u"])
    result = tg.simultaneous(b, shuffled, 20.0, rows[["c", "b", "a"]], null=null)
    np.testing.assert_array_equal(result.p_values, truth.p_values)
    assert result.names == ("u", "v")
    pairs = tg.simultaneous(b, shuffled, 20.0, "dunnett", names=["c", "a", "b"])
    assert pairs.names == ("a - c", "b - c")
    np.testing.assert_allclose(pairs.estimates, np.array(b)[[0, 1]] - b["c"])
    others = {"a": "z"}
    for what, call in {
        "covariance": lambda: tg.simultaneous(b, cov.rename(others, axis=0).rename(others, axis=1)),
        "contrasts": lambda: tg.simultaneous(b, cov, 20.0, rows.rename(others, axis=1)),
        "null": lambda: tg.simultaneous(b, cov, 20.0, rows, null=null.rename({"u": "w"})),
    }.items():
        with pytest.raises(ValueError, match=f"simultaneous: {what}: .*labelled otherwise"):
            call()


def test_equal_correlations_are_exact_without_float64_too():
    estimates, covariance = [0.5, 1.0, 2.0, -1.5], np.eye(4) + 0.3
    with jax.enable_x64(False):
        single = tg.simultaneous(estimates, covariance, df=12.0)
        p_values = single.p_values
    double = tg.simultaneous(estimates, covariance, df=12.0)
    np.testing.assert_allclose(p_values, double.p_values, rtol=1e-12)
    np.testing.assert_allclose(single.critical_value.value, double.critical_value.value, rtol=1e-7)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_correlations_that_contradict_each_other(sign):
    matrix = np.eye(3) + sign * 0.9 * (np.ones((3, 3)) - np.eye(3))
    scale = np.array([1.0, 1e-3, 1e3])
    matrix *= np.outer(scale, scale)
    if sign > 0:
        assert tg.simultaneous(scale, matrix).critical_value.value > 1.9
    else:
        with pytest.raises(ValueError, match="have the eigenvalue -0.8"):
            tg.simultaneous(scale, matrix)
