"""`fit_shift` and `fit_limits`: closed forms, mirror images, and what fractions cannot tell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests.test_fitting_truncated_normal import Baseless

INF = jnp.inf


# Shifts


@pytest.mark.full
def test_a_shift_of_one_count_in_float32():
    result = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [INF]), 1000)
    assert result.converged and not result.alternatives and not result.notes
    small = tg.fit_shift(841, jnp.zeros(1, jnp.float32), jnp.eye(1, dtype=jnp.float32),
                         tg.Box(jnp.zeros(1, jnp.float32), INF), 1000)  # fmt: skip
    assert small.params.dtype == small.standard_errors.dtype == jnp.float32
    np.testing.assert_allclose(small.params, result.params, rtol=1e-6)


def binomial(p):
    """The log-likelihood of 841 of 1000 trials, one by one."""
    return 841 * np.log(p) + 159 * np.log1p(-p)


def test_a_fit_of_counts_is_a_fit_of_maximum_likelihood():
    fit = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [INF]), 1000)
    assert fit.names == ("shift[0]",) and fit.num_rows == 1000 and fit.information == "expected"
    np.testing.assert_allclose(fit.log_likelihood, binomial(0.841), rtol=1e-12)
    np.testing.assert_allclose(fit.aic, 2 - 2 * binomial(0.841), rtol=1e-12)
    fallen = binomial(0.841) - 0.5 * stats.chi2.ppf(0.95, 1)
    ends = [optimize.brentq(lambda p: binomial(p) - fallen, 0.841, far) for far in (0.7, 0.95)]
    np.testing.assert_allclose(fit.profile("shift[0]"), stats.norm.ppf(ends), rtol=1e-6)
    derived = fit.delta(lambda shift: jax.scipy.special.ndtr(shift[0]))
    np.testing.assert_allclose(derived.value, 0.841, rtol=1e-9)
    np.testing.assert_allclose(derived.standard_errors, np.sqrt(0.841 * 0.159 / 1000), rtol=1e-9)
    assert "shift[0]" in fit.summary()
    np.testing.assert_allclose(fit.wald()[0, 1] - fit.params[0], 1.959964 * fit.errors[0], 1e-6)
    unclear = tg.fit_limits(
        [400], [0.0], [[1.0]], {"low": [-1.0], "high": [2.0]}, 1000, num_starts=1
    )
    with pytest.raises(ValueError, match="needs finite standard errors.*do not identify low"):
        unclear.profile("low[0]")


def test_the_profile_of_fractions_has_the_weight_of_their_residuals():
    low, f = np.linspace(-1.0, 1.0, 5)[:, None], np.array([0.9, 0.81, 0.62, 0.44, 0.3])
    fit = tg.fit_shift(f, [0.0], [[1.0]], tg.Box(low, INF))

    def quasi(shift):
        log_p, log_q = (stats.norm.logcdf(side * (shift - low[:, 0])) for side in (1.0, -1.0))
        return np.sum(f * log_p + (1 - f) * log_q)

    best = float(fit.params[0])
    p = stats.norm.cdf(best - low[:, 0])
    dispersion = np.sum((f - p) ** 2 / (p * (1 - p))) / 4
    fallen = quasi(best) - 0.5 * dispersion * stats.chi2.ppf(0.95, 1)
    ends = [optimize.brentq(lambda x: quasi(x) - fallen, best, best + d) for d in (-1.0, 1.0)]
    np.testing.assert_allclose(fit.profile("shift[0]"), ends, rtol=1e-6)
    assert np.isnan(fit.log_likelihood)
    met = tg.fit_shift([0.5, 0.5], [0.0], [[1.0]], tg.Box([[0.0], [0.0]], INF), num_starts=1)
    assert met.errors[0] < 1e-7
    with pytest.raises(ValueError, match="met to rounding.*Take wald"):
        met.profile("shift[0]")


SYMMETRIC = {
    "polyhedron": tg.Polyhedron([[2.0]], [2.0], [4.0]),
    "ellipsoid": tg.Ellipsoid([1.5], [[0.25]]),
    "ball": tg.Ball([1.5], 0.5),
    "outside": tg.Outside(tg.Box([1.0], [2.0])),
}


@pytest.mark.quick("polyhedron")
@pytest.mark.parametrize("kind", SYMMETRIC)
def test_the_mirror_solution_of_every_symmetric_region_is_reported(kind):
    count = 700 if kind == "outside" else 300
    result = tg.fit_shift([count], [0.0], [[1.0]], SYMMETRIC[kind], 1000, num_starts=1)
    share = lambda shift: stats.norm.sf(1.0, shift) - stats.norm.sf(2.0, shift) - 0.3
    truth = [optimize.brentq(share, *ends) for ends in ((-2.0, 1.5), (1.5, 5.0))]
    (other,) = result.alternatives
    np.testing.assert_allclose([result.params[0], other[0]], truth, rtol=1e-6)


@pytest.mark.slow
def test_what_one_fraction_cannot_tell_has_an_infinite_error():
    quadrant = tg.fit_shift([300], jnp.zeros(2), jnp.eye(2), tg.Box([0.0, 0.0], INF), 1000)
    assert np.all(np.isinf(quadrant.standard_errors))
    assert "do not identify shift[0], shift[1]" in quadrant.notes[0]
    assert quadrant.converged  # the fraction is met
    half = tg.fit_shift([300], jnp.zeros(2), jnp.eye(2), tg.Box([0.0, -INF], INF), 1000)
    assert np.isfinite(half.standard_errors[0]) and np.isinf(half.standard_errors[1])
    np.testing.assert_allclose(half.params[0], stats.norm.ppf(0.3), rtol=1e-8)
    top = tg.fit_shift([900], [0.0], [[1.0]], tg.Box([-1.0], [1.0]), 1000)  # above the highest
    assert np.isinf(top.standard_errors[0]) and abs(top.params[0]) < 1e-6
    assert "not explained" in " ".join(top.notes)


@pytest.mark.parametrize("observed, trials", [([1000], 1000), ([1.0], None), ([0], 50)])
def test_all_or_nothing_has_its_optimum_at_infinity(observed, trials):
    result = tg.fit_shift(observed, [0.0], [[1.0]], tg.Box([0.0], [INF]), trials)
    assert not result.converged and "at infinity" in result.reason
    assert np.isinf(result.standard_errors[0])


def test_an_empty_region_beside_a_telling_one_does_no_harm():
    result = tg.fit_shift([0, 500], [0.0], [[1.0]], tg.Box([[5.0], [0.0]], [[6.0], [INF]]), 1000)
    assert result.converged and np.isfinite(result.standard_errors[0])
    assert abs(result.params[0]) < 1e-4


@pytest.mark.full
def test_one_fraction_without_trials_has_no_residual_for_its_error():
    one = tg.fit_shift([0.3], [0.0], [[1.0]], tg.Box([0.0], INF))
    assert np.isnan(one.standard_errors[0]) and "no residuals" in one.notes[0]


@pytest.mark.slow
def test_a_sampling_method_is_held_and_its_own_error_is_told():
    region = tg.Box([[0.0, 0.0], [-1.0, -INF], [-INF, 0.5]], [[INF, 1.0], [1.0, INF], [INF, INF]])
    covariance = jnp.array([[1.0, 0.6], [0.6, 2.0]])
    counts = [2800, 5500, 4100]
    soft = tg.SoftMonteCarlo(num_samples=512, num_replicates=4, points="lattice")
    ask = (counts, jnp.zeros(2), covariance, region, 10_000)
    rough = tg.fit_shift(*ask, method=soft, num_starts=2)
    again = tg.fit_shift(*ask, method=soft, num_starts=2)
    np.testing.assert_array_equal(rough.params, again.params)
    assert rough.certificate.distance < 1e-3
    assert any("sampling error" in note for note in rough.notes)


def test_coordinates_without_limits_are_left_out():
    d, counts = 10, [300, 500, 450]
    low = np.full((3, d), -np.inf)
    low[np.arange(3), np.arange(3)] = 0.5
    covariance = 0.5 * (np.eye(d) + 1.0)
    result = tg.fit_shift(counts, np.zeros(d), covariance, tg.Box(low, INF), 1000, num_starts=2)
    # Each fraction tells one coordinate, exactly.
    expected = 0.5 - stats.norm.isf(np.array(counts) / 1000)
    np.testing.assert_allclose(result.params[:3], expected, rtol=1e-7)
    assert result.converged and result.certificate.stderr == 0.0
    assert np.all(np.isinf(result.standard_errors[3:]))


# Limits


def test_limits_are_recovered_and_infinite_ends_stay():
    locs = jnp.linspace(-2.0, 3.0, 6)[:, None]
    p = stats.norm.cdf(1.5, locs[:, 0], 2.0) - stats.norm.cdf(-0.5, locs[:, 0], 2.0)
    result = tg.fit_limits(p * 1e6, locs, [[4.0]], {"low": [-3.0], "high": [3.0]}, 1e6)
    assert result.converged
    np.testing.assert_allclose(
        [result.params.low[0], result.params.high[0]], [-0.5, 1.5], atol=1e-6
    )
    assert 0 < result.standard_errors.low[0] < 0.05
    one = tg.fit_limits([400], [0.0], [[1.0]], {"low": [-INF], "high": [1.0]}, 1000)
    assert one.params.low[0] == -INF and one.standard_errors.low[0] == 0.0
    high = stats.norm.ppf(0.4)
    np.testing.assert_allclose(one.params.high, [high], rtol=1e-9)
    error = np.sqrt(0.4 * 0.6 / 1000) / stats.norm.pdf(high)
    np.testing.assert_allclose(one.standard_errors.high, [error], rtol=1e-9)


def test_one_fraction_does_not_tell_two_limits():
    result = tg.fit_limits([400], [0.0], [[1.0]], {"low": [-1.0], "high": [2.0]}, 1000)
    assert np.isinf(result.standard_errors.low[0]) and np.isinf(result.standard_errors.high[0])
    assert "do not identify low[0], high[0]" in result.notes[0]
    p = stats.norm.cdf(result.params.high[0]) - stats.norm.cdf(result.params.low[0])
    np.testing.assert_allclose(p, 0.4, rtol=1e-8)
    full = tg.fit_limits([1000], [0.0], [[1.0]], {"low": [-INF], "high": [1.0]}, 1000)
    assert not full.converged and "at infinity" in full.reason


@pytest.mark.full
def test_a_fit_does_not_converge_without_effective_samples():
    counts = ([841, 500], [0.0], [[1.0]], tg.Box([[0.0], [1.0]], [[INF], [INF]]), 1000)
    known, doubted = (tg.fit_shift(*counts, method=method) for method in (tg.Exact(), Baseless()))
    assert known.converged and not doubted.converged
    assert "too few effective samples" in doubted.reason
    np.testing.assert_allclose(doubted.params, known.params)


@pytest.mark.parametrize("counts", [[0, 0, 0, 0], [1000, 0, 1000, 0]])
def test_limits_that_go_to_infinity_are_told(counts):
    """Both together, and the lower one alone while the upper one is known."""
    locs = [[-1.0], [0.0], [1.0], [2.0]]
    fit = tg.fit_limits(counts, locs, [[1.0]], {"low": [0.0], "high": [3.0]}, 1000)
    assert not fit.converged and "optimum lies at infinity" in fit.reason
