"""Fits of a population and the curve that selected it, beside SciPy and in simulations."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special

import truncgauss as tg
from truncgauss.fits.gaussian.selected import log_ways

WANTED = ("midpoint", "width")
STAGING = {"stage", "convert_element_type", "<lambda>"}  # of arguments, not of the fit


def sample(seed=0, total=400, midpoint=0.3, width=0.5):
    """Of N(0.5, 1.2^2) those that a probit curve keeps, and the number of the others."""
    random = np.random.default_rng(seed)
    x = random.normal(0.5, 1.2, total)
    kept = random.uniform(size=total) < special.ndtr((x - midpoint) / width)
    return x[kept], int(np.sum(~kept))


def test_a_curve_and_its_population_with_the_unobserved_counted():
    x, lost = sample()
    curve = tg.Selection.probit([1.0], 0.0, 1.0)
    fit = tg.fit_truncated_normal(x, region=curve, estimate=WANTED, num_unobserved=lost)
    assert fit.converged and fit.names == ("loc[0]", "sigma", "midpoint", "width")
    np.testing.assert_allclose(fit.region.midpoint, [fit.curve["midpoint"]])
    np.testing.assert_allclose(fit.standard_errors.curve["width"], fit.errors[3])
    np.testing.assert_allclose(fit.loc, fit.estimates[:1])
    share = len(x) / (len(x) + lost)
    np.testing.assert_allclose(fit.fraction_not_truncated, share, atol=0.05)
    assert fit.range_of(3) == (0.0, np.inf) and fit.derived("width").value > 0
    low, high = fit.profile("midpoint")
    assert low < fit.curve["midpoint"] < high
    begin, settings = dict(fit.parameters()), {"estimate": WANTED, "num_unobserved": lost}
    again = tg.fit_truncated_normal(x, region=curve, start=begin, **settings)
    np.testing.assert_allclose(again.estimates, fit.estimates, rtol=1e-6)


def test_the_higher_of_two_maxima_whatever_width_is_given():
    random, options = np.random.default_rng(28), {"num_profiles": 0, "progress": False}
    z = random.normal(size=400)
    kept = np.flatnonzero(random.uniform(size=400) < special.expit((z + 0.2) / 0.4))
    options |= {"num_unobserved": 40 * (400 - len(kept)) // len(kept), "estimate": "width"}
    curves = [tg.Selection.logistic([1.0], -0.2, width) for width in (0.1, 0.4, 5.0)]
    fits = [tg.fit_truncated_normal(z[kept[:40]], region=c, **options) for c in curves]
    np.testing.assert_allclose([fit.curve["width"] for fit in fits], 0.25522, atol=1e-5)


def test_ways_to_lose_any_number_beside_fifty_digits():
    n, u = np.array([[3.5, 7.0], [5000.0, 1300.0], [200.0, 2e4], [200.0, 1e15]]).T
    with mp.workdps(50):
        gamma = lambda value: mp.loggamma(mp.mpf(value) + 1)
        truth = [float(gamma(mp.mpf(a) + b) - gamma(a) - gamma(b)) for a, b in zip(n, u)]
    np.testing.assert_allclose(log_ways(n, u), truth, rtol=1e-13)


@pytest.mark.full
def test_a_fit_compiles_its_likelihood_and_nothing_operation_by_operation(caplog):
    """Of three outcomes, whose shapes no other test has; and the fraction that is observed."""
    random = np.random.default_rng(4)
    x = random.normal(size=(700, 3)) @ np.array([[1.0, 0.3, 0.0], [0.0, 0.8, 0.2], [0.0, 0.0, 0.5]])
    x = x[random.uniform(size=len(x)) < special.expit((x[:, 0] + 0.2) / 0.3)]
    curve = tg.Selection.logistic(np.array([1.0, 0.0, 0.0]), 0.0, 0.4)
    with jax.log_compiles():
        fit = tg.fit_truncated_normal(x, region=curve, estimate=WANTED, num_profiles=0)
    shown = [r.getMessage() for r in caplog.records if "XLA compilation of" in r.getMessage()]
    names = {message.split("jit(")[1].split(")")[0] for message in shown} - STAGING
    assert "derivatives" in names
    assert names <= {"derivatives", "log_kept", "estimates_at", "estimates_of"}, names
    share = tg.fraction_not_truncated(fit.loc, fit.covariance_matrix, fit.region)
    np.testing.assert_allclose(fit.fraction_not_truncated, share, rtol=1e-10)
    matrix, errors = fit.standard_errors.covariance_matrix, dict(zip(fit.names, fit.errors))
    for i, j in np.ndindex(3, 3):
        assert matrix[i, j] == errors[f"covariance[{max(i, j)}, {min(i, j)}]"]


@pytest.mark.full
def test_without_the_count_the_sample_tells_little_and_a_prior_more():
    x, lost = sample(total=2000)
    curve = tg.Selection.probit([1.0], 0.0, 1.0)
    settings = dict(region=curve, estimate=WANTED)
    alone = tg.fit_truncated_normal(x, **settings)
    counted = tg.fit_truncated_normal(x, **settings, num_unobserved=lost)
    assert np.all(counted.errors < alone.errors)
    prior = lambda p: -0.5 * ((p["midpoint"] - 0.3) / 1e-3) ** 2
    known = tg.fit_truncated_normal(x, **settings, prior=prior)
    assert abs(known.curve["midpoint"] - 0.3) < 2e-3 and known.errors[2] < 1.01e-3
    assert any("100% on midpoint" in note and "0% on width" in note for note in known.notes)
    fixed = tg.Selection.probit([1.0], float(known.curve["midpoint"]), 0.5)
    rest = tg.fit_truncated_normal(x, region=fixed, estimate=["width"])
    np.testing.assert_allclose(rest.estimates[:2], known.estimates[:2], rtol=1e-3)


def test_a_curve_that_becomes_a_step_has_no_maximum():
    y = [-0.73, -0.66, -0.5, -0.31, -0.3, -0.1, 0.0, 0.2, 0.3, 0.5, 0.6, 0.9, 1.1, 1.3, 1.9, 2.3]
    curve = tg.Selection.probit([1.0], -0.2, 0.4)
    fit = tg.fit_truncated_normal(y, region=curve, estimate=WANTED, num_profiles=0)
    assert not fit.converged and "the width of the curve falls to 0" in fit.reason


@pytest.mark.full
def test_a_function_with_parameters_as_the_curve():
    random = np.random.default_rng(2)
    x = random.multivariate_normal([20.0, 0.8], [[1.5, 0.2], [0.2, 0.1]], 1500)
    x = x[random.uniform(size=1500) < special.expit((20.5 - x[:, 0]) / 0.3)]

    def curve(x, p):
        return jax.nn.sigmoid((p["midpoint"] - x[0]) / jnp.exp(p["log_width"]))

    start = {"midpoint": 20.0, "log_width": -1.0}
    by_points = tg.Selection(curve, 2, True, parameters=start)
    closed = tg.Selection.logistic([-1.0, 0.0], -20.0, 0.4)
    method = tg.ImportanceSampling(num_points=1024, num_replicates=4)
    settings = dict(num_profiles=0, method=method)
    one = tg.fit_truncated_normal(
        x, region=by_points, estimate=("midpoint", "log_width"), **settings
    )
    two = tg.fit_truncated_normal(x, region=closed, estimate=WANTED)
    assert one.names[-2:] == ("log_width", "midpoint")  # as JAX orders a dictionary
    truth = np.append(two.estimates[:-2], [np.log(two.curve["width"]), -two.curve["midpoint"]])
    np.testing.assert_array_less(np.abs(one.estimates - truth), 0.2 * one.errors)
    np.testing.assert_allclose(one.errors[:-2], two.errors[:-2], rtol=0.1)


def test_refusals():
    x, _ = sample()
    curve = tg.Selection.probit([1.0], 0.0, 1.0)
    step = tg.Selection(lambda x, p: x[0] > p["m"], 1, parameters={"m": -9.0})
    flat = lambda x, a: a * jnp.exp(0.0 * x[0])
    above, below = (tg.Selection(flat, 1, parameters=value) for value in (2.0, -0.5))
    unknown = tg.Selection(lambda x, a: jnp.sqrt(a - x[0]), 1, parameters=-9.0)
    for settings, message in [
        (dict(region=curve, estimate=["depth"]), "is no parameter of the region, which has"),
        (dict(region=curve, estimate=("weights", "width")), "one scale in common"),
        (dict(region=step, estimate="m"), "by a step"),
        (dict(region=above), "no probability .* with 2. A row"),
        (dict(region=below), "no probability"),
        (dict(region=unknown), "no probability .* with nan. A row"),
        (dict(region=curve, prior=lambda p: 0.0), "prior is the log density"),
        (
            dict(region=curve, estimate="midpoint", prior=lambda p: p["width"]),
            "prior asks for 'width'; it gets midpoint",
        ),
        (
            dict(region=curve, estimate="midpoint", prior=lambda p: jnp.zeros(2)),
            "prior must return one number",
        ),
        (dict(region=curve, num_unobserved=-1), "a whole number from 0 on"),
        (dict(region=curve, low=0.0), "either region or low and high"),
        (dict(low=-9.0, estimate=["low"]), "parameters of a selection"),
        (dict(region=tg.Selection.probit([1.0, 0.0], 0.0, 1.0)), "region has dimension 2"),
        (dict(region=curve, noise=np.eye(1)), "without noise"),
    ]:
        with pytest.raises(ValueError, match=message):
            tg.fit_truncated_normal(x, **settings)
    with pytest.raises(TypeError, match="estimate holds names of parameters, got True"):
        tg.fit_truncated_normal(x, region=curve, estimate=True)
    for number in (np.nan, np.inf):
        with pytest.raises(ValueError, match="Selection.logistic: midpoint holds NaN or infinity"):
            tg.Selection.logistic([1.0], number, 1.0)
    with pytest.raises(ValueError, match="needs data, the rows"):
        tg.fit_truncated_normal(statistics=tg.Statistics.from_rows(x[:, None]), region=curve)


def survey(seed):
    random = np.random.default_rng(seed)
    x = random.multivariate_normal([20.0, 0.8], [[1.5, 0.2], [0.2, 0.1]], 6300)
    kept = random.uniform(size=len(x)) < special.expit((21.2 - x[:, 0]) / 0.3)
    return x[kept], int(np.sum(~kept))


@pytest.mark.slow
@pytest.mark.parametrize("counted", [False, True])
def test_coverage_of_a_survey(counted):
    """Of 5,000 objects in two dimensions behind a logistic curve, 1,100 not observed."""
    truth, inside = np.array([20.0, 0.8, 1.5, 0.2, 0.1, -21.2, 0.3]), []
    for seed in range(400):
        x, lost = survey(seed)
        curve = tg.Selection.logistic([-1.0, 0.0], -21.0, 0.5)
        count = lost if counted else None
        fit = tg.fit_truncated_normal(x, region=curve, estimate=WANTED, num_unobserved=count)
        assert fit.converged
        shown = [fit.profiles.get(name, ends) for name, ends in zip(fit.names, fit.wald())]
        low, high = np.transpose(shown)
        inside.append((low < truth) & (truth < high))
    covered = np.mean(inside, axis=0)
    assert np.all((covered > 0.917) & (covered < 0.983)), covered  # .95 with 3 standard errors
