"""Whether a maximum exists: called right on simulated samples, against criteria of their own."""

import numpy as np
import pytest

import truncgauss as tg
from truncgauss.fitting.existence import recession, rising_direction

INF = np.inf


def probit_limits(ones):
    return np.where(ones, 0.0, -INF), np.where(ones, INF, 0.0)


def test_separated_probits_are_those_whose_groups_do_not_overlap():
    rng, found = np.random.default_rng(0), []
    for _ in range(300):
        x, ones = rng.integers(0, 6, size=8).astype(float), rng.random(8) < 0.5
        if np.ptp(x) == 0:
            continue
        above, below = x[ones], x[~ones]
        # Separated, perhaps with ties at the border, or all of one kind.
        apart = (
            not len(above)
            or not len(below)
            or above.min() >= below.max()
            or above.max() <= below.min()
        )
        design = np.column_stack([np.ones(8), x])
        direction = rising_direction(*probit_limits(ones), design, scale_known=True)
        assert (direction is not None) == apart
        if apart:
            moves = design @ direction[:2] * np.where(ones, 1.0, -1.0)
            assert np.all(moves >= -1e-9) and moves.max() > 0 and direction[2] == 0
        found.append(apart)
    assert 0.1 < np.mean(found) < 0.9


def test_rows_met_exactly_leave_no_variance():
    x = np.arange(5.0)
    design = np.column_stack([np.ones(5), x])
    lower, upper = np.array([-INF, 1.0, 2.0, 2.5, 4.0]), np.array([0.5, 1.0, 2.0, INF, 4.5])
    direction = rising_direction(lower, upper, design, scale_known=False)
    np.testing.assert_allclose(direction / direction[2], [0.0, 1.0, 1.0], atol=1e-9)
    assert rising_direction(lower, upper, design, scale_known=True) is None
    upper[4], lower[4] = 3.5, 3.0  # no line meets this too
    assert rising_direction(lower, upper, design, scale_known=False) is None


def test_many_rows_are_decided_by_few():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20000, 4))
    rows[:, 0] = np.abs(rows[:, 0])  # the first coordinate lowers none of them
    direction = recession(rows, flat=False)
    assert np.all(rows @ direction > -1e-6) and direction[0] > 0
    rows[777, 0] = -rows[777, 0]
    other = recession(rows, flat=False)
    assert other is None or np.all(rows @ other > -1e-6)
    assert recession(rng.normal(size=(20000, 4)), flat=False) is None


def test_fits_say_along_which_direction_there_is_no_end():
    x = np.linspace(-1.0, 1.0, 40)
    design = {"constant": np.ones(40), "dose": x}
    fit = tg.fit_regression(np.column_stack(probit_limits(x > 0.2)), design)
    assert not fit.converged and "rows are separated" in fit.reason and "in dose" in fit.reason
    assert np.all(np.isinf(fit.errors)) and not fit.wald_ratios.size
    # A separated Tobit: all that is above the limit lies on a line.
    y = np.where(x > 0.2, x - 0.2, 0.0)
    fit = tg.fit_regression(y, design, censored_low=0.0)
    assert not fit.converged and "variance falls to 0" in fit.reason
    assert "constant = -0.2, dose = 1 meets" in fit.reason


@pytest.mark.slow
def test_a_separated_outcome_among_several_is_named():
    rng, x = np.random.default_rng(3), np.linspace(-1.0, 1.0, 60)
    ones = np.column_stack([x > 0.0, rng.random(60) < 0.5])
    rows = tg.Observations(*probit_limits(ones))
    fit = tg.fit_observations(
        rows, np.column_stack([np.ones(60), x]), covariance=[[1.0, np.nan], [np.nan, 1.0]]
    )
    assert not fit.converged and "separated" in fit.reason and "coefficients[0][1]" in fit.reason


def test_outcomes_that_depend_on_each_other_have_no_covariance():
    x = np.random.default_rng(4).normal(size=(50, 1))
    fit = tg.fit_observations(tg.Observations.exact(np.hstack([x, 2.0 * x])))
    assert not fit.converged and "singular" in fit.reason and "This happens along" in fit.reason


@pytest.mark.slow
def test_samples_without_a_maximum_are_told_from_others():
    # With one limit at 0 the likelihood has a maximum where the rows are less spread than an
    # exponential distribution, their second moment below twice the square of their first.
    rng, found = np.random.default_rng(2), []
    for _ in range(2000):
        y = np.sort(-np.log1p(-rng.random(20)))  # just as spread, but for chance
        exists = np.mean(y**2) < 2.0 * np.mean(y) ** 2
        fit = tg.fit_observations(tg.Observations.exact(y, region=tg.Box([0.0], [INF])))
        assert fit.converged == exists, (fit.reason, np.mean(y**2) / np.mean(y) ** 2)
        found.append(exists)
    assert 0.3 < np.mean(found) < 0.99
