"""The experiments about fits, reduced: `tobin`, `survey`, `existence`, `coverage`..."""

import numpy as np
import pytest
from scipy import integrate, stats

from tests.published_rows import SHARED, needed
from tests.test_experiments import check_picture, completed
from truncgauss.runs import config


def test_tobin():
    results, picture = completed("tobin", num_residuals=2)
    assert results["failed"] == "" and results["distance"] < 1e-4
    assert results["log_likelihood"] == pytest.approx(-28.94013320, rel=1e-9)
    np.testing.assert_allclose(results["stderr"], results["published_stderr"], rtol=1e-5)
    low, high = results["profile"].T
    assert np.all((low < results["estimates"]) & (results["estimates"] < high))
    assert results["purchases"].shape == (20,) and np.sum(results["purchases"] > 0) == 7
    check_picture(picture)


@pytest.mark.full
def test_wages():
    results, picture = completed("wages", num_rows=600)
    truth = [-2.5, 0.45, 0.44, 0.056, 0.037, 0.5, 1.0, 0.21, 0.7, 6.0, 4.2, np.arctanh(0.7)]
    assert results["failed"] == "" and results["log_likelihood"] < 0
    assert np.all(np.abs(results["estimates"] - truth) < 4 * results["stderr"])
    # Least squares through the employed is too high where few work; the truth is in the band.
    _, low, high = results["corrected_line"]
    assert np.all((low < results["true_line"]) & (results["true_line"] < high))
    assert results["naive_line"][0, 0] > results["corrected_line"][0, 0]
    everyone, employed = results["effects"][1:, :, 0]
    np.testing.assert_allclose(everyone, [0.0, 0.0, *results["estimates"][6:8]], atol=1e-9)
    assert np.all(employed[:2] < 0) and np.isnan(results["effects"][0, :2]).all()
    check_picture(picture)


@pytest.mark.full
@needed
def test_wages_of_the_published_table():
    results, _ = completed("wages", data=SHARED / "womenwk.csv")
    assert results["log_likelihood"] == pytest.approx(-5178.3045, abs=5e-5)
    assert results["employed"].sum() == 1343 and "true_line" not in results
    np.testing.assert_allclose(results["estimates"][6:8], [0.9899537, 0.2131294], atol=1e-5)


@pytest.mark.full
def test_ordinal():
    results, picture = completed("ordinal", num_rows=1500, missing=0.05)
    assert results["failed"] == "" and results["pairs"].shape == (10, 2)
    polychoric, pearson, true = (results[name] for name in ("polychoric", "pearson", "true"))
    assert np.all(np.abs(polychoric[:, 0] - true) < 4 * results["stderr"])
    assert np.all((polychoric[:, 1] < polychoric[:, 0]) & (polychoric[:, 0] < polychoric[:, 2]))
    # Categories shrink correlations of .7 by far more than the error.
    assert np.mean(np.abs(pearson[:, 0]) / np.abs(true)) < 0.9
    assert results["held"][1] >= 8 > results["held"][0]
    check_picture(picture)


@pytest.mark.slow
def test_comparisons():
    results, picture = completed("comparisons")
    assert results["failed"] == "" and results["held"]
    alone, joint, bonferroni = results["critical"]
    assert alone < joint < bonferroni and abs(joint - 2.48858911) < 6e-9
    assert np.all(results["step_down"] <= results["p_values"])
    alone, joint, bonferroni = results["curve_critical"]
    scheffe = np.sqrt(3 * stats.f.isf(0.05, 3, 47))
    assert alone < joint < min(scheffe, bonferroni) and 0 < results["curve_critical_error"] < 5e-4
    value, low, high = results["curve"]
    np.testing.assert_allclose(high - value, joint * results["curve_stderr"], rtol=1e-12)
    check_picture(picture)


@pytest.mark.full
def test_assay():
    results, picture = completed("assay", num_patients=40, num_trials=8)
    assert results["failed"] == "" and 0.2 < results["below"] < 0.5
    errors = np.abs(np.mean(results["estimates"] - results["truth"], axis=0))
    spread = np.std(results["estimates"][:, 1], axis=0) / np.sqrt(8)
    assert np.all(errors[1] < 4 * spread)
    assert errors[0, 1] > 0.05 > 4 * errors[1, 1]  # the slope with half of the limit is too flat
    assert results["held"][1, 1] > 0.6 > results["held"][0, 1]
    check_picture(picture)


@pytest.mark.full
def test_existence():
    results, picture = completed(
        "existence", cuts=(0.0, 2.0), sizes=(10, 50), num_samples=400, num_fits=6
    )
    assert results["failed"] == "" and results["fits_right"] == 24 and results["fits_wrong"] == 0
    # The criterion on samples of another generator.
    rows = stats.truncnorm.rvs(2.0, np.inf, size=(4000, 10), random_state=1)
    wanted = np.mean(rows.std(axis=1) >= rows.mean(axis=1) - 2.0)
    assert abs(results["missing"][1, 0] - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / 400)
    assert results["missing"][0, 1] < results["missing"][0, 0] < results["missing"][1, 0]
    check_picture(picture)


@pytest.mark.full
def test_coverage():
    case = {"dimension": 1, "low": 1.0, "num_rows": 60, "num_simulations": 12}
    results, picture = completed("coverage", cases=(case,))
    [found] = results["cases"].values()
    assert found["num_fits"] + found["num_without"] == 12 and found["num_without"] > 0
    assert found["seen"] == pytest.approx(stats.norm.sf(1.0), abs=1e-2)
    assert 0.5 < found["profile, mean"] <= 1.0 and found["stderr"] > 0.05
    check_picture(picture)


@pytest.mark.slow
def test_profile_intervals_cover_vectors():
    case = {"low": 0.0, "num_rows": 2000, "num_simulations": 150}
    cases = {"dimension": 2, **case}, {"dimension": 5, **case, "low": -0.3, "num_simulations": 30}
    results, _ = completed("coverage", cases=cases)
    assert results["failed"] == ""


@pytest.mark.full
def test_residuals():
    results, picture = completed("residuals", num_draws=2)
    assert results["failed"] == ""
    fine, wrong = results["sample0"], results["sample1"]
    assert fine["distance"] < 0.75 and wrong["distance"] > 5.0
    assert fine["residuals"].shape == (2, 44)

    def loss(loc, variance):  # of the first sample, rounded to 0.1 cm and seen below 3.85
        scale = variance**0.5
        inside = stats.norm.cdf(3.85, loc, scale)
        y = seen()
        return -np.sum(
            np.log(np.diff(stats.norm.cdf([y - 0.05, y + 0.05], loc, scale), axis=0) / inside)
        )

    best = loss(fine["loc"], fine["variance"])
    for loc, factor in [(1e-2, 1.0), (-1e-2, 1.0), (0.0, 1.02), (0.0, 0.98)]:
        assert loss(fine["loc"] + loc, fine["variance"] * factor) > best
    check_picture(picture)


def seen():
    """Sepal widths of setosa below the limit."""
    from truncgauss import tables

    [sample, _] = config.load("configs/residuals.yaml").samples
    x = tables.from_file(sample.data, [sample.column], sample.where)[sample.column]
    return x[x < 3.85]


@pytest.mark.full
def test_survey():
    population = {"loc": (0.0,), "covariance": ((1.0,),)}
    results, picture = completed(
        "survey", population=population, names=("brightness",), num_objects=3000
    )
    assert results["failed"] == ""
    pulls = (results["corrected"]["estimates"] - results["truth"]) / results["corrected"]["stderr"]
    assert np.abs(pulls).max() < 3.0
    assert np.abs(results["naive"]["estimates"] - results["truth"]).min() > 0.3
    # How many of all are seen: an integral over limits and noise.
    mass = lambda low, log_scale: stats.norm.sf(low, 0.0, np.sqrt(1.0 + np.exp(2.0 * log_scale)))
    log_scales = np.log(0.2), np.log(1.0)
    share = integrate.dblquad(mass, *log_scales, 0.0, 1.0)[0] / (log_scales[1] - log_scales[0])
    n = len(results["rows"])
    assert abs(n / 3000 - share) < 5 * np.sqrt(share * (1 - share) / 3000)
    assert results["expected_objects"] == pytest.approx(3000, rel=0.5)
    check_picture(picture)
