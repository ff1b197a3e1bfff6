"""`fitting.tightened`: a size that is kept by Gaussian rows, and rows that contradict the model."""

import numpy as np
import pytest

import truncgauss as tg

INF = np.inf


def seen(rng, n, low):
    """A regression whose rows are seen above a limit."""
    design = np.column_stack([np.ones(n), rng.normal(size=n)])
    y = design @ [1.0, 0.5] + rng.normal(size=n)
    return y[y > low], design[y > low]


def test_a_tightened_fit_is_that_of_the_rows_that_are_left():
    y, design = seen(np.random.default_rng(0), 600, 0.0)
    fit = tg.fit_regression(y, design, truncated_low=0.0)
    closer = tg.fitting.tightened(fit, share=0.25)
    step = np.quantile(y, 0.25, method="higher")
    kept = y >= step
    assert closer.num_rows == kept.sum()
    other = tg.fit_regression(y[kept], design[kept], truncated_low=step)
    np.testing.assert_allclose(closer.estimates, other.estimates, rtol=1e-8)
    np.testing.assert_allclose(closer.shift, other.estimates - fit.estimates, atol=1e-8)
    # Hausman's own form, the difference of covariances, is near for rows that are Gaussian.
    error = np.sqrt(other.errors**2 - fit.errors**2)
    np.testing.assert_allclose(closer.standard_error, error, rtol=0.3)
    assert closer.degrees == 3 and closer.p_value > 0.001
    assert "print tg.fitting.tightened(fit)" in str(fit)
    told = str(closer).splitlines()
    assert told[1].split() == ["coefficients[0]", *(f"{part[0]:.6g}" for part in closer[2:5])]
    assert f"{closer.num_rows} rows are left" in told[4] and f"p = {closer.p_value:.2g}." in told[4]


def test_no_p_value_is_told_where_the_tightened_fit_is_nearly_undetermined():
    """Rows of the model itself, of which a chi-squared would be of no use: it is 7 in these
    parameters, and was above 30 with the logarithm of sigma in its place."""
    rng = np.random.default_rng(129)
    x = rng.uniform(0.0, 2.0, 2000)
    y = x - 0.5 + 0.8 * rng.normal(size=2000)
    kept = np.flatnonzero((y > -1.0) & (y < 2.2))[:1000]
    design = np.column_stack([np.ones(1000), x[kept]])
    fit = tg.fit_regression(y[kept], design, truncated_low=-1.0, truncated_high=2.2)
    found = tg.fitting.tightened(fit, share=0.3)
    assert found.statistic > 7 and found.degrees == 3 and np.isnan(found.p_value)
    assert "nearly undetermined" in str(found)
    assert tg.fitting.tightened(fit, share=0.05).p_value > 0.01


@pytest.mark.filterwarnings("error")
def test_an_end_that_is_no_maximum_is_told_without_a_warning():
    rng = np.random.default_rng(1)
    design = np.column_stack([np.ones(300), rng.normal(size=300)])
    y = design @ [1.0, 0.5] + rng.normal(size=300)
    kept = np.flatnonzero((y > 0.5) & (y < 2.5))[:80]
    fit = tg.fit_regression(y[kept], design[kept], truncated_low=0.5, truncated_high=2.5)
    with pytest.raises(ValueError, match="no maximum was found with the rows that are left"):
        tg.fitting.tightened(fit, share=0.6)


@pytest.mark.slow
def test_gaussian_rows_are_contradicted_as_often_as_chance_has_it():
    rng, found = np.random.default_rng(1), []
    for _ in range(300):
        y, design = seen(rng, 1500, 0.0)
        fit = tg.fit_regression(y, design, truncated_low=0.0)
        found.append(tg.fitting.tightened(fit, share=0.2).p_value < 0.1)
    # Three binomial standard errors of 300 at 0.1 are 0.052.
    assert abs(np.mean(found) - 0.1) < 0.052


def test_rows_of_two_kinds_are_found():
    rng = np.random.default_rng(2)
    y = np.append(rng.normal(2.0, 0.5, size=1500), rng.normal(0.3, 0.3, size=300))
    fit = tg.fit_observations(tg.Observations.exact(y[y > 0.0], region=tg.Box([0.0], [INF])))
    assert fit.converged and tg.fitting.tightened(fit, share=0.15).p_value < 1e-6


@pytest.mark.parametrize(
    "settings, more, sentence",
    [
        ({}, {}, "with limits of truncation"),
        ({"truncated_low": 0.0}, {"share": 1.5}, "between 0 and 1"),
        ({"truncated_low": 0.0, "censored_low": 0.5}, {}, "sit on their limits"),
        ({"truncated_low": 0.0, "intervals": 0.5}, {"share": 0.3}, "on which side of a new limit"),
    ],
)
def test_what_cannot_be_tightened_is_refused(settings, more, sentence):
    y, design = seen(np.random.default_rng(3), 200, 0.0)
    settings = dict(settings)
    width = settings.pop("intervals", 0.0)
    if width:
        y = np.floor(y / width)[:, None] * width + np.array([0.0, width])
    fit = tg.fit_regression(y, design, **settings)
    with pytest.raises(ValueError, match=sentence):
        tg.fitting.tightened(fit, **more)
