"""Quantiles of Gaussian and t vectors: published values, closed forms, derivatives."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from tests.problems import equal_correlations
from truncgauss.student.quantile import _root

SIZES = np.array([20.0, 3.0, 3.0, 15.0])
LOADINGS = np.sqrt(SIZES[1:] / (SIZES[1:] + SIZES[0]))
DUNNETT = np.outer(LOADINGS, LOADINGS) + np.diag(1 - LOADINGS**2)


@pytest.mark.quick("both-2.48858911")
@pytest.mark.parametrize("tail, truth", [("lower", 2.18268360), ("both", 2.48858911)])
def test_dunnetts_quantiles_of_the_recovery_data(tail, truth):
    result = tg.quantile(0.95, np.zeros(3), DUNNETT, tail=tail, df=37)
    assert abs(result.value - truth) < 6e-9
    assert result.stderr == 0


@pytest.mark.parametrize("share", [1e-300, 1e-12, 0.3, 0.95, 1 - 1e-12])
def test_one_coordinate_in_any_tail(share):
    lower = tg.quantile(share, [0.3], [[4.0]])
    np.testing.assert_allclose(lower.value, 0.3 + 2 * stats.norm.ppf(share), rtol=1e-13)
    upper = tg.quantile(share, [0.3], [[4.0]], tail="upper")
    np.testing.assert_allclose(upper.value, 0.3 + 2 * stats.norm.isf(share), rtol=1e-13)
    both = tg.quantile(share, [0.0], [[4.0]], tail="both")
    truth = 2 * math.sqrt(stats.chi2.ppf(share, 1))
    truth = 2 * share * math.sqrt(math.pi / 2) if share < 1e-9 else truth
    np.testing.assert_allclose(both.value, truth, rtol=1e-12)
    assert lower.stderr == upper.stderr == both.stderr == 0


def test_students_quantiles_in_any_tail_against_fifty_digits():
    """P(|T| > x) is an incomplete beta function: its distance to what was asked for, over the
    density times x, is the relative error of x."""
    shares = np.array([1e-300, 1e-100, 1e-12, 0.01, 0.3, 0.6, 0.99, 1 - 1e-12, 1 - 2.0**-53])
    with mpmath.workdps(50):
        for df in (0.01, 0.3, 1.0, 2.5, 30.0, 1e6, 1e12):
            result = tg.quantile(shares, [0.0], [[1.0]], df=df)
            assert np.all(result.stderr == 0)
            half = mpmath.mpf(df) / 2
            constant = (
                mpmath.loggamma(half + 0.5) - mpmath.loggamma(half) - mpmath.log(df * mpmath.pi) / 2
            )
            for share, value in zip(shares, np.asarray(result.value)):
                if not np.isfinite(value):  # beyond the largest number
                    log_size = np.log(min(share, 1 - share)) / -df
                    assert log_size > 600 and np.sign(value) == np.sign(share - 0.5)
                    continue
                x = mpmath.mpf(float(value))
                beyond = mpmath.betainc(half, 0.5, 0, df / (df + x * x), regularized=True) / 2
                wanted = mpmath.mpf(float(share))
                density = mpmath.exp(constant - (half + 0.5) * mpmath.log1p(x * x / df))
                away = (beyond - min(wanted, 1 - wanted)) / (density * abs(x))
                assert abs(away) < 1e-12, (df, share, value)


def test_families_of_regions():
    center = jnp.array([0.0, 0.0])
    ball = tg.quantile(0.95, [0.0, 0.0], jnp.eye(2), region=lambda r: tg.Ball(center, r))
    np.testing.assert_allclose(ball.value, math.sqrt(stats.chi2.ppf(0.95, 2)), rtol=1e-11)


@pytest.mark.quick("-0.999999")
@pytest.mark.parametrize("correlation", [0.999999, -0.999999])
def test_shares_near_0_and_1_in_one_call(correlation):
    """Each share with its own digits: from the sum of the pieces outside, and from the inside."""
    shares = np.array([1e-12, 0.3, 1 - 1e-12])
    alone = tg.quantile(shares, [0.0], [[1.0]], df=3.0)
    # The distance from 1 is that of the rounded share.
    truth = [*stats.t.ppf(shares[:2], 3.0), stats.t.isf(1 - shares[2], 3.0)]
    np.testing.assert_allclose(alone.value, truth, rtol=1e-10)
    matrix = np.array([[1.0, correlation], [correlation, 1.0]])
    both = tg.quantile(shares, [0.0, 0.0], matrix, tail="both")
    for share, value, stderr in zip(shares, *both):
        some = tg.Box(-value * jnp.ones(2), value * jnp.ones(2))
        inside = tg.log_probability([0.0, 0.0], matrix, some).log_prob
        beyond = tg.log_probability([0.0, 0.0], matrix, tg.Outside(some)).log_prob
        odds = math.log(share) - math.log1p(-share)
        np.testing.assert_allclose(inside - beyond, odds, rtol=1e-10)
        assert stderr == 0


def test_rows_are_served_as_alone():
    """Whatever the ranks, degrees of freedom and probabilities of the rows beside them."""
    roots = np.random.default_rng(1).normal(size=(4, 3, 3))
    roots[1, :, 1:] = roots[2, :, 2:] = 0.0  # of ranks 1 and 2
    matrices, shares = roots @ np.swapaxes(roots, 1, 2), np.array([0.9, 0.5, 0.3, 0.999])
    rows = tg.quantile(shares, np.zeros(3), matrices, tail="both")
    for k in (1, 2, 3):
        alone = tg.quantile(shares[k], np.zeros(3), matrices[k], tail="both")
        assert (rows.value[k], rows.stderr[k]) == alone and alone.stderr == 0
    size = np.linalg.norm(roots[1, :, 0], np.inf)
    np.testing.assert_allclose(rows.value[1], size * stats.norm.ppf(0.75), rtol=1e-13)


@pytest.mark.full
def test_rows_of_other_degrees_of_freedom_are_served_as_alone():
    roots = np.random.default_rng(1).normal(size=(4, 3, 3))
    roots[1, :, 1:] = roots[2, :, 2:] = 0.0
    matrices = roots @ np.swapaxes(roots, 1, 2)
    pairs = tg.quantile(0.9, np.zeros(2), matrices[:, :2, :2], df=np.array([3.0, np.inf, 8.0, 1.0]))
    assert pairs.value[3] == tg.quantile(0.9, np.zeros(2), matrices[3, :2, :2], df=1.0).value


@pytest.mark.full
def test_singular_rows_among_many():
    roots = np.random.default_rng(1).normal(size=(70, 3, 3))
    roots[1, :, 1:] = roots[2, :, 2:] = 0.0
    matrices = roots @ np.swapaxes(roots, 1, 2)
    rows = tg.quantile(0.9, np.zeros(3), matrices, tail="both")
    alone = [tg.quantile(0.9, np.zeros(3), matrix, tail="both") for matrix in matrices[:5]]
    np.testing.assert_allclose(rows.value[:5], [x.value for x in alone], rtol=1e-13)
    assert np.all(rows.stderr == 0)


def test_no_step_from_a_near_start_is_long():
    """Log odds with nodes and plan held may fall again where the plan is not meant for."""
    held = lambda y: (y - 0.01) * jnp.exp(-(y**2))
    found = _root(held, jnp.zeros(2), 1e-12, False, 0.05)
    np.testing.assert_allclose(found, 0.01, rtol=1e-11)


@pytest.mark.full
def test_small_probabilities_of_a_sampled_t():
    d, unit = 5, np.random.default_rng(0).normal(size=(5, 7))
    matrix = unit @ unit.T / 7
    result = tg.quantile(0.3, np.zeros(d), matrix, tail="both", df=30.0)
    box = tg.Box(*np.outer([-1, 1], np.full(d, result.value)))
    inside = tg.log_probability(np.zeros(d), matrix, box, tg.Separation(2**14), df=30.0)
    assert abs(inside.log_prob - math.log(0.3)) < 1e-4 and 0 < result.stderr < 1e-4


@pytest.mark.full
def test_singular_contrasts_of_three_means():
    # All pairs of three means: the studentised range with infinite degrees of freedom.
    pairs = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    for df, share in ((math.inf, 0.95), (10.0, 0.99)):
        result = tg.quantile(share, np.zeros(3), pairs @ pairs.T, tail="both", df=df)
        truth = stats.studentized_range.ppf(share, 3, df if math.isfinite(df) else 1e6)
        np.testing.assert_allclose(result.value, truth, rtol=1e-5)
        assert result.stderr == 0


@pytest.mark.full
def test_sampled_quantile_is_within_its_error():
    d = 6
    matrix = 0.5 ** np.abs(np.subtract.outer(range(d), range(d))) + 0.3 * np.eye(d)
    result = tg.quantile(0.95, np.zeros(d), matrix)
    inside = tg.log_probability(
        np.zeros(d), matrix, tg.Box(-jnp.inf, jnp.full(d, result.value)), tg.Separation(2**14)
    )
    slope = 0.18  # of log P in the level, about
    assert 0 < result.stderr < 1e-3
    assert abs(inside.log_prob - math.log(0.95)) < 5 * slope * (result.stderr + inside.stderr)
    assert tg.quantile(0.95, np.zeros(d), matrix) == result


@pytest.mark.full
def test_singular_covariances_are_sampled_by_directions():
    """Tukey's pairs of four means, in every kind of batch; a t in many dimensions."""
    pairs = np.array([np.eye(4)[j] - np.eye(4)[i] for i in range(4) for j in range(i)])
    matrix, shares = pairs @ pairs.T, np.array([1e-9, 0.6, 0.99])
    truth = stats.studentized_range.ppf(shares[1:], 4, np.array([[5.0], [20.0]]))
    result = tg.quantile(shares[1:], np.zeros(6), matrix, tail="both", df=np.array([[5.0], [20.0]]))
    assert np.all(np.abs(result.value - truth) < 4 * result.stderr) and np.all(result.stderr < 0.01)
    scaled = tg.quantile(0.6, np.zeros(6), np.stack([matrix, 4 * matrix]), tail="both", df=5.0)
    np.testing.assert_allclose(scaled.value, np.array([1, 2]) * result.value[0, 0], rtol=1e-12)
    lower = tg.quantile(0.6, np.full(6, 1.0), matrix, df=5.0)
    upper = tg.quantile(0.6, np.full(6, -1.0), matrix, tail="upper", df=5.0)
    assert lower.value == -upper.value and lower.stderr == upper.stderr > 0
    tiny = tg.quantile(shares[0], np.zeros(6), matrix, tail="both")
    inside = tg.log_probability(
        np.zeros(6), matrix, tg.Box(*tiny.value * np.outer([-1, 1], np.ones(6)))
    )
    assert abs(math.exp(inside.log_prob) / shares[0] - 1) < 0.03
    noise = np.random.default_rng(0).normal(size=(80, 80))
    many = tg.quantile(0.95, np.zeros(80), np.eye(80) + 1e-9 * (noise + noise.T), df=1e12)
    assert abs(many.value - stats.norm.ppf(0.95 ** (1 / 80))) < 4 * many.stderr < 0.05


def test_a_probability_near_1_in_a_trace():
    """With another mean far below, of which nothing is left; beside equal correlations."""
    loc = jnp.array([0.0, 0.0, 0.0, 0.0, -40.0])
    found = jax.jit(lambda matrix: tg.quantile(1 - 1e-10, loc, matrix))(equal_correlations(5))
    true = tg.quantile(1 - 1e-10, np.zeros(4), equal_correlations(4)).value
    assert abs(found.value - true) < 4 * found.stderr < 1e-3


@pytest.mark.full
@pytest.mark.parametrize("tail", ["lower", "both"])
def test_any_probability_in_a_trace(tail):
    """Values, and derivatives in units, mean and probability, beside equal correlations."""
    matrix, shares, zero = equal_correlations(5), np.array([0.5, 0.95, 1 - 1e-10]), np.zeros(5)
    quantile = lambda share, loc, matrix: tg.quantile(share, loc, matrix, tail=tail)
    value = lambda *inputs: quantile(*inputs).value
    slope = jax.vmap(jax.grad(value, (0, 1, 2)), (0, None, None))
    found, slopes = jax.jit(lambda *inputs: (quantile(*inputs), slope(*inputs)))(
        shares, zero, matrix
    )
    h = 1e-3 * np.minimum(shares, 1 - shares)
    true, above, below = value(np.stack([shares, shares + h, shares - h]), zero, matrix)
    assert np.all(np.abs(found.value - true) < 4 * found.stderr) and np.all(found.stderr < 1e-3)
    np.testing.assert_allclose(slopes[0], (above - below) / (2 * h), rtol=2e-3)
    # With directions held the level has the units of the root and moves with the mean.
    along = np.sum(slopes[2] * matrix, axis=(1, 2))
    np.testing.assert_allclose(along[1:], 0.5 * found.value[1:], rtol=1e-9)
    if tail == "lower":
        np.testing.assert_allclose(slopes[1][1:].sum(axis=1), 1.0, rtol=1e-9)


def test_a_known_covariance_beside_a_traced_mean():
    quantile = lambda loc: tg.quantile(0.9, loc, 0.5 * np.eye(3) + 0.5).value
    true = 1.0 + quantile(np.zeros(3))
    np.testing.assert_allclose(jax.jit(quantile)(np.ones(3)), true, rtol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("df, share", [(0.01, 0.51), (0.01, 0.999), (0.05, 0.9)])
def test_derivatives_of_students_quantiles_of_few_degrees_of_freedom(df, share):
    """Of the logarithm, exp(618) at most, beside differences in forty digits."""

    def true(share, df):
        tail = lambda y: mpmath.betainc(
            df / 2, 0.5, 0, df / (df + mpmath.exp(2 * y)), regularized=True
        )
        start = -mpmath.log(1 - share) / df
        return mpmath.findroot(
            lambda y: mpmath.log(tail(y) / 2 / (1 - share)), (0.9 * start, 1.1 * start), tol=1e-25
        )

    value = lambda share, df: jnp.log(tg.quantile(share, np.zeros(1), np.eye(1), df=df).value)
    found = jax.grad(value, (0, 1))(share, df)
    with mpmath.workdps(40):
        p, v, h = mpmath.mpf(share), mpmath.mpf(df), mpmath.mpf(10) ** -12
        slopes = [(true(p + h, v) - true(p - h, v)) / (2 * h)]
        slopes.append((true(p, v + h * v) - true(p, v - h * v)) / (2 * h * v))
        np.testing.assert_allclose(found, [float(x) for x in slopes], rtol=1e-11)


@pytest.mark.full
def test_derivatives_in_df_and_in_a_singular_covariance():
    def value(df):
        return tg.quantile(0.95, np.zeros(2), np.array([[1.0, 0.5], [0.5, 1.0]]), df=df).value

    difference = (value(5.001) - value(4.999)) / 0.002
    np.testing.assert_allclose(jax.grad(value)(5.0), difference, rtol=1e-6)
    # A quantile has the units of the root of the covariance.
    pairs = np.array([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0], [0.0, 1.0, -1.0]])
    quantile = lambda matrix: tg.quantile(0.95, np.zeros(3), matrix, tail="both").value
    slopes = jax.grad(quantile)(jnp.array(pairs @ pairs.T))
    along = np.sum(slopes * (pairs @ pairs.T))
    np.testing.assert_allclose(along, 0.5 * quantile(pairs @ pairs.T), rtol=1e-9)


@pytest.mark.full
def test_hessians_in_a_loop_are_not_those_of_a_level_at_rest():
    """JAX forgets the implicit derivative of the level where it differentiates a loop."""
    covariance, centers = np.array([[1.0, 0.5], [0.5, 2.0]]), jnp.array([[0.3, -0.2], [-0.4, 0.1]])
    value = lambda loc: tg.quantile(0.9, loc, covariance).value
    total = lambda batch: lambda loc: batch(lambda center: value(loc + center), centers).sum()
    by_rows = total(lambda f, rows: jax.vmap(f)(rows))
    loc = np.array([0.1, 0.2])
    true = jax.jit(jax.hessian(by_rows))(loc)
    np.testing.assert_allclose(jax.grad(total(jax.lax.map))(loc), jax.grad(by_rows)(loc), 1e-12)
    assert np.all(np.isnan(jax.jit(jax.hessian(total(jax.lax.map)))(loc)))
    again = total(lambda f, rows: jax.lax.map(jax.checkpoint(f), rows))
    np.testing.assert_allclose(jax.jit(jax.hessian(again))(loc), true, rtol=1e-10)


def test_a_share_that_float32_rounds_to_one_is_refused_for_that():
    zero, identity = np.zeros(2, np.float32), np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match="0.999999999999 is 0 or 1 in float32"):
        tg.quantile(1 - 1e-12, zero, identity)
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        tg.quantile(1.5, zero, identity)
