"""What is said about estimates: sandwich errors, the delta method, likelihood ratios, Wald's."""

import re
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import interpolate, optimize, stats

import truncgauss as tg
from tests.wald_coverage import simulated
from truncgauss.covariates.rows_fit import same_rows
from truncgauss.fits.gaussian import observations_fit as observations
from truncgauss.fitting.descent import told_of
from truncgauss.fitting.likelihood_fit import LikelihoodFit, coverage_of_spread
from truncgauss.fitting.model import Model, in_words
from truncgauss.fitting.wald import by_differences, quintics, untrusted, wald_coverages
from truncgauss.optimize.uncertainty import certificate

INF = np.inf


def regression(n=60):
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    return design @ [1.0, 2.0] + (0.5 + design[:, 1] ** 2) * rng.normal(size=n), design


def test_likelihood_ratios_compare_nested_fits_of_the_same_rows():
    y, design = regression()
    large = tg.fit_regression(y, design)
    small = tg.fit_regression(y, design[:, :1])
    test = tg.likelihood_ratio(small, large)
    weighted = tg.fit_regression(y, design, weights=np.ones(60))
    assert tg.likelihood_ratio(small, weighted) == pytest.approx(test)
    with pytest.raises(ValueError, match="must have more parameters, got 3 and 2"):
        tg.likelihood_ratio(large, small)
    with pytest.raises(ValueError, match="are of different observations"):
        tg.likelihood_ratio(small, tg.fit_regression(y + 1.0, design))
    with pytest.raises(ValueError, match="in another order. Fit both"):
        tg.likelihood_ratio(small, tg.fit_regression(y, design, weights=np.full(60, 2.0)))
    rows = [tg.Observations.exact(y.astype(dtype)) for dtype in (np.float32, np.float64)]
    single, double = map(tg.fit_observations, rows, (design[:, :1], design))
    with pytest.raises(ValueError, match="They are the same in float32: enable jax_enable_x64"):
        tg.likelihood_ratio(single, double)
    other = np.column_stack([design[:, 1], design[:, 1] ** 2])
    with pytest.raises(ValueError, match="log-likelihood is lower"):
        tg.likelihood_ratio(tg.fit_regression(y, design[:, 1:]), tg.fit_regression(
            y, np.column_stack([other[:, 1], np.sin(9.0 * other[:, 0])])))  # fmt: skip
    bad = tg.fit_regression(np.column_stack([np.full(60, -INF), y]), design)
    with pytest.raises(ValueError, match="has not converged. There is no maximum"):
        tg.likelihood_ratio(small, bad)


def test_limits_of_the_outcome_or_of_what_is_behind_its_noise_are_different_rows():
    y = jnp.array([[0.5], [1.0], [2.0]])
    settings = {"region": tg.Box([0.0], [INF]), "noise": jnp.ones((3, 1))}
    one = tg.Observations.exact(y, **settings)
    assert same_rows(one, tg.Observations.exact(y, **settings))
    assert not same_rows(one, tg.Observations.exact(y, limits_on="latent", **settings))


@pytest.mark.parametrize("n", [15, 40, 100])
def test_the_coverage_of_wald_intervals_is_that_of_exponential_samples(n):
    """The mean of n exponential variables is a gamma variable, which Wald's interval holds in an
    exactly known share of the samples; by the rate, or its logarithm, in another."""
    mean, z = 1.7, 1.959964
    for power in (1.0, 0.5):  # mean = x^-power
        covered = wald_coverages(
            by_differences(lambda x: mean * x[0] - np.log(x[0]) if x[0] > 0 else np.nan),
            n,
            np.array([1.0 / mean]),
            np.array([[mean**-2.0 / n]]),
            lambda x, power=power: np.hstack([x**-power, 0.0 * x + 3.0]),
            np.array([[-power * mean ** (1.0 + power)], [0.0]]),
        )
        # Truth 1: an estimate m^power has the standard error power m^power / sqrt(n).
        ends = (1.0 + np.array([z, -z]) * power / np.sqrt(n)) ** (-1.0 / power)
        exact = np.diff(stats.gamma.cdf(n * ends, n))[0]
        np.testing.assert_allclose(covered, [exact, 0.95], atol=0.3 / n)
        assert not untrusted(covered)[1]


def test_the_coverage_is_a_mean_over_what_may_be_the_truth():
    """exp(3 m), m the mean of n exponential variables: its coverage is counted in samples, at the
    truths whose likelihood ratios to the fit have the signed roots 0 and 3^(1/2) on both sides."""
    n, z = 40, 1.959964
    covered = wald_coverages(
        by_differences(lambda x: x[0] - np.log(x[0])),
        n,
        np.ones(1),
        np.array([[1.0 / n]]),
        lambda x: np.exp(3.0 / x),
        np.array([[-3.0 * np.exp(3.0)]]),
    )
    fall = lambda mean: n * (1.0 / mean - 1.0 + np.log(mean)) - 1.5
    truths = [optimize.brentq(fall, 0.3, 1.0), 1.0, optimize.brentq(fall, 1.0, 3.0)]
    means = np.random.default_rng(0).gamma(n, size=400_000) / n
    counted = []
    for truth in truths:
        m = truth * means
        counted.append(np.mean(np.abs(1.0 - np.exp(3.0 * (truth - m))) <= z * 3.0 * m / n**0.5))
    assert counted[0] > 0.89 > 0.88 > counted[2]
    expected = np.dot(counted, [1 / 6, 2 / 3, 1 / 6])
    np.testing.assert_allclose(covered, expected, atol=0.5 / n)
    # By the signed root R on a fine grid, whose mean in samples is not 0 but about -1 / (3 sqrt n).
    grid, by_root = np.linspace(0.2, 4.0, 20_001), []
    for truth in truths:
        squared = 2.0 * n * np.maximum(grid / truth - 1.0 - np.log(grid / truth), 0.0)
        held = np.abs(1.0 - np.exp(3.0 * (truth - grid))) <= z * 3.0 * grid / n**0.5
        chances = np.diff(stats.norm.cdf(np.sign(grid - truth) * np.sqrt(squared)))
        by_root.append(chances @ held[1:])
    np.testing.assert_allclose(covered, np.dot(by_root, [1 / 6, 2 / 3, 1 / 6]), atol=1e-3)


@pytest.mark.parametrize("n, p, exact", [(25, 1, 0.908), (60, 1, 0.932), (40, 5, 0.833)])
def test_samples_too_small_for_wald_intervals_are_said(n, p, exact):
    """n s^2 / sigma^2 is chi-squared with n - p degrees of freedom, here counted."""
    random = np.random.default_rng(0)
    squares = random.chisquare(n - p, size=400_000) / n
    half = 1.959964 * np.sqrt(squares / (2 * n))
    counted = np.mean(np.abs(np.sqrt(squares) - 1.0) <= half)
    np.testing.assert_allclose(coverage_of_spread(n, p, 1.0), counted, atol=0.002)
    wide = np.mean(np.abs(squares - 1.0) <= 1.959964 * squares * np.sqrt(2.0 / n))
    np.testing.assert_allclose(coverage_of_spread(n, p, 2.0), wide, atol=0.002)
    assert abs(counted - exact) < 0.002
    design = np.c_[np.ones(n), random.normal(size=(n, p - 1))]
    fit = tg.fit_regression(random.normal(size=n), design)
    found = [note for note in fit.notes if "The observations are few" in note]
    assert bool(found) == (exact < 0.92)
    assert not found or f"about {exact:.0%} of the samples" in found[0]


@pytest.mark.full
def test_profiles_of_many_entries_are_computed_or_declined_by_their_time(monkeypatch):
    random = np.random.default_rng(4)
    values = random.multivariate_normal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]], 60)
    low = np.where(values < [0.7, 0.7], -INF, values)
    rows = tg.Observations(low, np.maximum(values, [0.7, 0.7]))
    monkeypatch.setattr(observations, "FEW_PROFILED", 10)
    settings = {"num_starts": 1, "progress": False}
    for seconds, shown in ((0.0, True), (1e9, False)):
        monkeypatch.setattr(LikelihoodFit, "seconds_of_profiles", lambda *_, t=seconds: t)
        fit = tg.fit_observations(rows, **settings)
        assert bool(fit.profiles) == shown
        assert any("all take some 1e+09 s" in note for note in fit.notes) != shown
    monkeypatch.undo()
    assert 0.0 < fit.seconds_of_profiles(["loc[0]"]) < 60.0


def test_maxima_that_one_start_found_alone_are_said_at_once():
    lower, higher = (SimpleNamespace(loss=SimpleNamespace(size=9.0), arrived=True,
                     end=SimpleNamespace(loss=loss)) for loss in (0.5, 0.7))  # fmt: skip
    assert told_of(lower, [lower, higher]) == (
        "1 of 2 starts reached this maximum; 0 did not converge. 1 other maxima are lower by 1.8 "
        "nats.", 1,
    )  # fmt: skip
    proof = certificate(np.zeros(1), np.eye(1))
    path = SimpleNamespace(end=SimpleNamespace(finite=True), visited=[0, 0], agreed=1,
                           others=(lower, higher))  # fmt: skip
    converged, reason = Model().ending(path, proof, None)
    assert converged and reason.endswith("Only 1 of 2 starts reached it: other maxima may be "
                                         "higher, see num_starts.")  # fmt: skip
    path.agreed = 2
    assert "Only" not in Model().ending(path, proof, None)[1]
    far = certificate(np.ones(1), np.eye(1))
    assert "method" not in Model().ending(path, far, None)[1]  # there is none to give points


def test_the_line_between_known_points_is_the_quintic_of_scipy():
    at, known = np.array([-2.0, -1.0, 0.0, 1.0, 1.5]), np.cos(np.arange(15.0)).reshape(5, 3)
    t, truth = np.linspace(-2.0, 1.5, 57), interpolate.BPoly.from_derivatives(at, known)
    for order, values in enumerate(quintics(at, known, t)):
        expected = truth.derivative(order)(t) if order else truth(t)
        np.testing.assert_allclose(values, expected, rtol=0.0, atol=1e-12)


def test_no_sample_beyond_the_end_of_a_likelihood_is_covered():
    loss = by_differences(lambda x: np.nan if x[0] > 0 else 0.5 * x[0] ** 2)
    nowhere = wald_coverages(loss, 1.0, np.zeros(1), np.eye(1), lambda x: x, np.eye(1))
    # At the fit, which stands for all truths above it, one side; at the truth below, samples to 0.
    expected = 5 / 6 * 0.475 + (stats.norm.cdf(3**0.5) - 0.025) / 6
    np.testing.assert_allclose(nowhere, expected, atol=0.003)
    assert untrusted(nowhere).all()


@pytest.mark.full
def test_fits_say_which_wald_intervals_not_to_trust():
    q = (np.arange(60) + 0.5) / 60
    rows = tg.Observations.exact(stats.gamma.ppf(q, 1.3), region=tg.Box([0.0], [INF]))
    fit = tg.fit_observations(rows)
    assert untrusted(fit.wald_coverages)[0]
    [note] = [note for note in fit.notes if "Profile intervals replace Wald's of loc[0]" in note]
    assert note in str(fit) and fit.profiles["loc[0]"] == fit.profile("loc[0]")
    few = tg.fit_observations(rows, num_profiles=1)
    [note] = [note for note in few.notes if "Do not trust the Wald intervals of loc[0]" in note]
    assert "profile(name)" in note and not few.profiles
    # Where they are to be trusted the likelihood's own interval is about the same.
    y, design = regression(400)
    fit = tg.fit_regression(np.maximum(y, 0.0), design, censored_low=0.0)
    assert not fit.profiles and not any("Wald" in note for note in fit.notes)
    *of_mean, of_sigma = zip(fit.names, fit.wald(), fit.errors)
    for name, wald, error in of_mean:
        np.testing.assert_allclose(fit.profile(name), wald, atol=0.1 * error)
    # The likelihood is quadratic in log sigma.
    sigma, relative = fit.estimates[-1], of_sigma[2] / fit.estimates[-1]
    ends = np.log(sigma) + 1.959964 * relative * np.array([-1.0, 1.0])
    np.testing.assert_allclose(np.log(fit.profile("sigma")), ends, atol=0.1 * relative)


@pytest.mark.slow
@pytest.mark.parametrize(
    "low, high, n, name", [(2.0, INF, 50, "loc[0]"), (-0.5, 0.5, 500, "sigma")]
)
def test_profile_intervals_are_in_the_table_and_cover_where_those_of_wald_do_not(
    low, high, n, name
):
    rng, inside, wald = np.random.default_rng(11), [], []
    truth, k = float(name != "loc[0]"), int(name != "loc[0]")
    for _ in range(300):
        y = stats.truncnorm.rvs(low, high, size=n, random_state=rng)
        fit = tg.fit_observations(tg.Observations.exact(y, region=tg.Box([low], [high])))
        if not fit.converged:
            assert "no maximum" in fit.reason
            continue
        ends = fit.profiles.get(name, fit.wald()[k])
        inside.append(ends[0] <= truth <= ends[1])
        wald.append(abs(fit.estimates[k] - truth) <= 1.959964 * fit.errors[k])
    assert np.mean(wald) < 0.9
    assert np.mean(inside) >= 0.925, np.mean(inside)


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    [
        "no limits, n = 60",
        "above 1, n = 200",
        "within 1, n = 200",
        "Tobit, 80 % censored, n = 100",
        "limits of their own and noise, n = 300",
        "a corner, n = 42",
        "2 x 2 table, rho 0.9, n = 200",
        "2 x 2 table, rho 0.8, n = 60",
        "Heckman, rho 0.5, n = 500",
    ],
)
def test_wald_intervals_are_replaced_where_they_cover_too_little(cell):
    for name, shares in simulated(cell, 200)[0].items():
        covered, replaced, reported = shares
        error = np.sqrt(0.95 * 0.05 / 200)
        # Where the alarm rings in some samples only, those of Wald's misses may not be among them.
        assert reported > covered - 0.05, (cell, name, shares)
        if covered < 0.9 - error:
            assert replaced > 0.8, (cell, name, shares)
        if abs(covered - 0.95) < 0.02 - error:
            assert replaced < 0.5, (cell, name, shares)


def test_tables_of_estimates_are_data_frames(monkeypatch):
    made = {}

    class Frame:
        def __init__(self, columns, index):
            made.update(columns=columns, index=index)

    pandas = SimpleNamespace(DataFrame=Frame, Index=lambda names, name: (name, list(names)))
    y, design = regression()
    fit = tg.fit_regression(y, {"constant": design[:, 0], "slope": design[:, 1]})
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert isinstance(fit.to_frame(level=0.9), Frame)
    assert made["index"] == ("name", ["constant", "slope", "sigma"])
    columns = made["columns"]
    assert list(columns) == ["estimate", "standard_error", "low", "high"]
    np.testing.assert_array_equal(columns["estimate"], fit.estimates)
    half = 0.5 * (columns["high"] - columns["low"])
    np.testing.assert_allclose(half, stats.norm.ppf(0.95) * fit.errors)


@pytest.mark.parametrize("unit", [1e-17, 1e17])
def test_errors_do_not_depend_on_the_unit_of_a_covariate(unit):
    random = np.random.default_rng(1)
    x = random.normal(size=60)
    y = 1.5 + x + random.normal(size=60)
    errors = []
    for scale in (1.0, unit):
        fit = tg.fit_regression(y, np.c_[np.ones(60), x * scale], censored_low=0.0)
        assert fit.converged
        errors.append(fit.errors * [1.0, scale, 1.0])
    np.testing.assert_allclose(*errors, rtol=1e-6)


def test_a_probit_of_a_julian_date_is_that_of_the_days_since():
    random = np.random.default_rng(0)
    date = 2.45e6 + random.random(400)
    happened = random.normal(size=400) + 3.0 * (date - 2.45e6 - 0.5) > 0
    rows = tg.Observations(np.where(happened, 0.0, -np.inf), np.where(happened, np.inf, 0.0))
    far = tg.fit_observations(rows, np.c_[np.ones(400), date], [[1.0]])
    near = tg.fit_observations(rows, np.c_[np.ones(400), date - 2.45e6], [[1.0]])
    assert far.converged and near.converged
    np.testing.assert_allclose([far.estimates[1], near.estimates[1]], 2.7727, atol=1e-3)
    np.testing.assert_allclose(far.errors[1], near.errors[1], rtol=1e-9)


def test_profile_intervals_go_round_what_is_not_finite():
    """Ends by nested optimisation with SciPy, to two digits."""
    # fmt: off
    y = [2.0867, 1.953, -0.0033, 0.0855, 1.9733, 1.6941, 0.1969,
         2.3669, 2.788, -0.0203, 0.8708, 1.3507]
    x = [0.989, -0.1568, 0.0719, -1.2003, 2.1234, 0.0324, 0.6432,
         2.5381, 0.7858, -0.1141, 0.0546, -0.7445]
    # fmt: on
    fit = tg.fit_regression(np.array(y), np.c_[np.ones(12), x], truncated_low=-0.3)
    np.testing.assert_allclose(fit.profile("coefficients[0]"), [-2.8, 1.488], rtol=0.01)
    np.testing.assert_allclose(fit.profile("coefficients[1]"), [0.058, 2.14], rtol=0.01)


def test_printed_fits_are_tables_with_intervals_and_notes():
    rows = np.random.default_rng(0).normal(size=(300, 2))
    rows = rows[rows[:, 0] > 0.3]
    fit = tg.fit_truncated_normal(rows, low=[0.3, -INF])
    lines = str(fit).splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["loc[0]", "loc[1]"]
    assert lines[3].startswith("covariance[0, 0]")
    # Where Wald's interval does not hold, the profile's stands in its place.
    intervals = np.array([fit.profile("loc[0]"), fit.wald()[1]])
    for k, kind in enumerate(("profile", "Wald")):
        read = list(map(float, re.findall(r"-?\d[\w.+-]*", lines[1 + k].split("]", 1)[1])))
        errors = fit.standard_errors.loc
        np.testing.assert_allclose(read, [fit.loc[k], errors[k], *intervals[k]], rtol=1e-5)
        assert lines[1 + k].endswith(f"]  {kind}")
    assert "95 % interval" in lines[0] and fit.wald()[0, 0] > intervals[0, 0] + fit.errors[0]
    assert any("Profile intervals replace Wald's of loc[0], cov" in note for note in fit.notes)
    assert f"{len(rows)} observations, 5 parameters, AIC" in str(fit)
    assert "; fraction not truncated" in str(fit)
    assert lines[-len(fit.notes) - 1] == fit.reason and fit.notes[0] in str(fit)


def test_a_tiny_fraction_that_is_seen_keeps_its_digits():
    # Rows at the end of a tail, whose mean and standard deviation are known but for the mean.
    y = 9.0 + stats.expon.ppf((np.arange(50) + 0.5) / 50) / 9.2
    rows = tg.Observations.exact(y, region=tg.Box([9.0], [np.inf]))
    fit = tg.fit_observations(rows, covariance=[[1.0]])
    seen = stats.norm.sf(9.0, fit.loc[0])
    assert fit.converged and 0 < seen < 1e-10
    np.testing.assert_allclose(fit.fraction_not_truncated, seen, rtol=1e-6)
    assert any(note.startswith(f"Only {seen:.2g} of the fitted") for note in fit.notes)
    assert in_words(0.0) == "less than 1e-300"


@pytest.mark.parametrize("unit", [1e150, 1e-150])
def test_units_whose_powers_are_no_numbers_are_named(unit):
    y = unit * np.random.default_rng(0).normal(size=30)
    with pytest.raises(ValueError, match="too (large|small) for their powers .* in other units"):
        tg.fit_observations(tg.Observations.exact(y))
    with pytest.raises(ValueError, match="fit_regression: the values of 0 spread over"):
        tg.fit_regression(y, np.ones((30, 1)), censored_low=0.0)
    with pytest.raises(ValueError, match="fit_mixture: the values of 0 spread over"):
        tg.fit_mixture(tg.Observations.exact(y), 1)
    with pytest.raises(ValueError, match="fit_truncated_normal: the values of 0 spread over"):
        tg.fit_truncated_normal(y, low=-3.0 * unit)


def test_profiles_are_those_of_other_units():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=60), rng.normal(size=60)
    design = lambda unit: {"c": np.ones(60), "x": x * unit}
    one = tg.fit_regression(0.5 + x + y, design(1.0), censored_low=0.0)
    ends = one.profile("x")
    for of_y, of_x in ((1e-12, 1.0), (1.0, 1e11)):
        fit = tg.fit_regression((0.5 + x + y) * of_y, design(of_x), censored_low=0.0)
        np.testing.assert_allclose(np.array(fit.profile("x")) * of_x / of_y, ends, rtol=1e-6)
    # Of a small probability, and of its logarithm.
    below = lambda log: lambda p: log((-5.0 - p.coefficients[0]) / p.sigma)
    plain = one.derived(below(jax.scipy.stats.norm.cdf)).profile()
    in_logs = one.derived(below(jax.scipy.stats.norm.logcdf)).profile()
    np.testing.assert_allclose(plain, np.exp(in_logs), rtol=1e-4)
    # Values far from 0 are held as closely as they are rounded.
    far = tg.fit_regression(0.5 + x + y + 1e11, design(1.0), censored_low=1e11)
    close = np.array(far.profile("c")) - 1e11
    np.testing.assert_allclose(close, one.profile("c"), atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize("unit", [1e-74, 1e74])
def test_estimates_and_intervals_are_those_of_other_units(unit):
    rng = np.random.default_rng(2)
    x = rng.multivariate_normal([0.0, 1.0], [[1.0, 0.5], [0.5, 1.0]], 400)
    x = x[(x[:, 0] > -0.5) & (x[:, 1] < 2.0)]
    low, high = np.array([-0.5, -np.inf]), np.array([np.inf, 2.0])
    rows = lambda u: tg.Observations.exact(x * u, region=tg.Box(low * u, high * u))
    fits = [
        lambda u: tg.fit_truncated_normal(x * u, low=low * u, high=high * u, num_profiles=0),
        lambda u: tg.fit_observations(rows(u), num_profiles=0),
    ]
    for fit in fits:
        one, other = fit(1.0), fit(unit)
        powers = unit ** np.array([1, 1, 2, 2, 2])
        np.testing.assert_allclose(other.estimates / powers, one.estimates, rtol=1e-7)
        np.testing.assert_allclose(other.errors / powers, one.errors, rtol=1e-6)
        ends = np.array(other.profile("covariance[1, 0]")) / unit**2
        np.testing.assert_allclose(ends, one.profile("covariance[1, 0]"), rtol=1e-6)


def test_fits_that_keep_no_observations_are_not_compared():
    y = np.random.default_rng(2).normal(size=30)
    alone = tg.fit_observations(tg.Observations.exact(y))
    with pytest.raises(ValueError, match="needs fits that keep their observations.*cannot be told"):
        tg.likelihood_ratio(alone, tg.fit_truncated_normal(y[:, None]))


@pytest.mark.full
def test_existence_that_is_not_decided_is_told():
    y = np.random.default_rng(3).normal(size=(60, 2))
    y = y[y[:, 0] > -1.0]
    lower = y.copy()
    lower[y[:, 1] < 0, 1] = -INF
    upper = np.where(np.isinf(lower), 0.0, y)
    rows = tg.Observations(lower, upper, tg.Box([-1.0, -INF], INF))
    fit = tg.fit_observations(rows)
    assert fit.converged and any("5 of 5 starts reached this maximum" in n for n in fit.notes)
    [note] = [note for note in fit.notes if "is not proved" in note]
    assert "ten times as wide" in note
    one = tg.fit_observations(rows, num_starts=1)
    assert any("Only one start was tried" in note for note in one.notes)
    np.testing.assert_allclose(one.estimates, fit.estimates, atol=1e-6)


def test_the_interval_of_a_spread_that_noise_may_explain_begins_at_0():
    """At sigma = 0 the closed form is within the 1.92 nats of a 95 % interval."""
    y, noise = np.array([0.8, 2.2, 2.8, 4.4, 1.1, 3.9]), np.eye(1)
    fit = tg.fit_observations(tg.Observations.exact(y, noise=noise))
    assert fit.converged and fit.names[-1] == "sigma"
    np.testing.assert_allclose(fit.estimates, [y.mean(), (y.var() - 1.0) ** 0.5], rtol=1e-6)
    at_zero = stats.norm.logpdf(y, y.mean(), 1.0).sum()
    assert 0.0 < fit.log_likelihood - at_zero < 1.92
    low, high = fit.profile("sigma")
    assert low == 0.0 and fit.estimates[-1] < high < 5.0


def test_levels_that_are_none_are_refused_by_every_interval():
    fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
    variance = fit.derived(lambda p: p.sigma**2, "variance")
    for ask in (fit.wald, fit.to_frame, variance.wald, variance.profile):
        for level in ("loc[0]", 1.5, None):
            with pytest.raises(ValueError, match=f"0 and 1, got {re.escape(repr(level))}"):
                ask(level)
    with pytest.raises(ValueError, match="a row for each name"):
        fit.wald("loc[0]")


def test_a_minimum_is_printed_with_its_parameters_and_verdict():
    fit = tg.minimize(
        lambda p: jnp.sum((p["a"] - jnp.arange(2.0)) ** 2) + (p["edge"]["width"] - 2.0) ** 2,
        {"a": jnp.zeros(2), "edge": {"width": 1.0}},
        progress=False,
    )
    lines = str(fit).splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["a", "edge/width"]
    assert lines[2].startswith("loss ") and lines[3:] == [fit.reason, *fit.notes]
    wide = tg.minimize(lambda p: jnp.sum(p**2), jnp.ones((9, 9)), progress=False)
    assert "params  [[" in str(wide) and "..." in str(wide) and len(str(wide)) < 1000
