"""Fits of outcomes and covariates far from 0: the same as near 0, in the user's units."""

import jax
import numpy as np
import pytest

import truncgauss as tg
from truncgauss import tables
from truncgauss.covariates.whitening import whitened
from truncgauss.fits.gaussian.centring import moved
from truncgauss.tables import Table

INF = np.inf


def sample(n: int = 200):
    """Covariates and two outcomes in steps of 1/1024, which any sum with 1e9 holds exactly."""
    random, step = np.random.default_rng(0), 1024.0
    x, z = np.round(random.normal(size=(2, n)) * step) / step
    errors = random.multivariate_normal([0, 0], [[1, 0.5], [0.5, 2]], size=n)
    y = np.round((np.c_[1 + x - 0.5 * z, -x] + errors) * step) / step
    keep = y[:, 0] > 0
    return x[keep], z[keep], y[keep]


@pytest.mark.quick("1000000000.0-1000000000.0-sandwich", "1000000000.0-0.0-observed")
@pytest.mark.parametrize(
    ("by_x", "by_y", "information"),
    [(1e6, 1e6, "observed"), (1e9, 0.0, "observed"), (1e9, 1e9, "sandwich")],
)
def test_a_regression_far_from_zero_is_the_one_near_zero(by_x, by_y, information):
    x, z, y = sample()

    def fit(by_x, by_y):
        design = np.c_[np.ones(len(x)), x + by_x, z]
        return tg.fit_regression(
            y[:, 0] + by_y, design, truncated_low=by_y, information=information
        )

    def middle(fit, by_x):
        return fit.delta(lambda b: b[0] + b[1] * (0.5 + by_x))

    near, far = fit(0.0, 0.0), fit(by_x, by_y)
    assert far.converged, far.reason
    np.testing.assert_allclose(far.estimates[1:], near.estimates[1:], rtol=1e-7)
    np.testing.assert_allclose(far.errors[1:], near.errors[1:], rtol=1e-7)
    np.testing.assert_allclose(far.log_likelihood, near.log_likelihood, rtol=1e-9)
    change = np.eye(4)
    change[0, 1] = -by_x  # the constant is the mean where the covariate is 0
    expected = change @ near.parameter_covariance @ change.T
    np.testing.assert_allclose(far.parameter_covariance, expected, rtol=1e-6)
    ours, theirs = middle(far, by_x), middle(near, 0.0)
    np.testing.assert_allclose(ours.value - by_y, theirs.value, atol=1e-6)
    np.testing.assert_allclose(ours.standard_errors, theirs.standard_errors, rtol=1e-5)
    if information == "observed":
        name = "coefficients[1]"
        np.testing.assert_allclose(far.profile(name), near.profile(name), rtol=1e-6)
    if by_y:  # residuals need the rows and their means, which cancel
        draws = [tg.quantile_residuals(f, jax.random.key(0)) for f in (near, far)]
        np.testing.assert_allclose(*draws, atol=1e-5)


def test_a_scale_far_from_zero_and_a_constant_in_two_groups():
    """The two columns of a group's members add up to a constant, and a covariate of the log scale
    lies far off."""
    x, z, y = sample()
    group = np.arange(len(x)) % 2

    def fit(by):
        design = np.c_[group, 1 - group, x + by]
        return tg.fit_regression(
            y[:, 0] + by, design, censored_low=by, scale_design=np.c_[np.ones(len(x)), z + by]
        )

    near, far = fit(0.0), fit(1e9)
    assert far.converged, far.reason
    slopes = [2, 4]
    np.testing.assert_allclose(far.estimates[slopes], near.estimates[slopes], rtol=1e-6)
    np.testing.assert_allclose(far.errors[slopes], near.errors[slopes], rtol=1e-6)
    apart = [tuple(f.delta(lambda b: b[0] - b[1])) for f in (near, far)]
    np.testing.assert_allclose(apart[1], apart[0], atol=1e-6)
    assert abs(far.log_likelihood - near.log_likelihood) < 1e-6


@pytest.mark.full
def test_two_outcomes_far_from_zero():
    x, _, y = sample()
    censored = y[:, 1] < 0
    lower, upper = y.copy(), y.copy()
    lower[censored, 1], upper[censored, 1] = -INF, 0.0

    def fit(by_x, by_y):
        rows = tg.Observations(lower + by_y, upper + by_y, tg.Box([by_y, -INF], INF))
        return tg.fit_observations(rows, np.c_[x + by_x, np.ones(len(x))])

    near, far = fit(0.0, 0.0), fit(2.45e6, 1e9)
    assert far.converged, far.reason
    for j in (0, 1):
        slope, constant = far.coefficients[j]
        np.testing.assert_allclose(slope, near.coefficients[j][0], rtol=1e-6)
        there = constant + 2.45e6 * slope - 1e9
        np.testing.assert_allclose(there, near.coefficients[j][1], atol=1e-5)
    np.testing.assert_allclose(far.covariance_matrix, near.covariance_matrix, rtol=1e-6)
    np.testing.assert_allclose(far.errors[[0, 2, 4, 5]], near.errors[[0, 2, 4, 5]], rtol=1e-6)
    assert abs(far.log_likelihood - near.log_likelihood) < 1e-6


def test_a_line_without_a_constant_that_lies_far_off():
    x = 1e3 + np.arange(40.0)
    noise = np.random.default_rng(1).normal(size=40)
    fit = tg.fit_regression(1e6 * x + noise, x[:, None])
    slope = 1e6 + x @ noise / (x @ x)
    error = np.sqrt(np.mean((noise - (slope - 1e6) * x) ** 2) / (x @ x))
    assert fit.converged, fit.reason
    np.testing.assert_allclose(fit.estimates[0], slope, atol=1e-3 * error)
    np.testing.assert_allclose(fit.errors[0], error, rtol=1e-6)
    begun = tg.fit_regression(
        1e6 * x + noise, x[:, None], start={"coefficients": [1e6], "log_scale": [0.5]}
    )
    np.testing.assert_allclose(begun.estimates, fit.estimates, rtol=1e-9)
    assert not any("begun at least squares" in note for note in begun.notes)


def test_whitened_covariates_are_orthogonal_and_lead_back():
    random = np.random.default_rng(2)
    group = random.integers(0, 2, 50)
    design = np.c_[group, 1e7 + random.normal(size=50), 1 - group, 1e-9 * random.normal(size=50)]
    weights = np.r_[np.zeros(5), np.ones(45)]
    found = whitened(Table(design), weights, "columns")
    np.testing.assert_allclose(found.constant, [1.0, 0.0, 1.0, 0.0], atol=1e-12)
    square = found.design[5:].T @ found.design[5:] / 45
    np.testing.assert_allclose(square, np.eye(4), atol=1e-8)
    np.testing.assert_allclose(design @ found.transform, found.design, atol=1e-6)
    with pytest.raises(ValueError, match="column 1 is determined by column 0"):
        whitened(Table(np.c_[np.ones(50), 1e9 + 1e-7 * random.normal(size=50)]), None, "columns")


def test_a_polyhedron_moves_with_its_rows():
    y = 1e6 + np.random.default_rng(4).normal(size=(30, 2))
    region = tg.Polyhedron([[1.0, 1.0], [1.0, -1.0]], [2e6 - 9.0, -INF], [INF, 9.0])
    near = moved(tg.Observations.exact(y, region=region), [1e6, 1e6 + 1.0])
    np.testing.assert_array_equal(near.lower, y - [1e6, 1e6 + 1.0])
    np.testing.assert_array_equal(near.region.low, [-10.0, -INF])
    np.testing.assert_array_equal(near.region.high, [INF, 10.0])


def test_rows_in_float32_that_hide_their_differences_are_told():
    y = np.random.default_rng(3).normal(size=50)
    with jax.enable_x64(False):
        far = tg.fit_observations(tg.Observations.exact(np.float32(2.45e6 + y)))
        near = tg.fit_observations(tg.Observations.exact(np.float32(y)))
    assert "kept in float32, in steps of 0.25" in far.notes[-1]
    assert not any("float32" in note for note in near.notes)


def test_limits_given_as_arrays_of_numpy_are_taken_in_either_precision():
    y, limits = np.random.default_rng(3).normal(2.0, 1.0, 200), ([0.0], np.array([INF]))
    y = y[y > 0]
    exact = tg.fit_observations(tg.Observations.exact(y, region=tg.Box(*limits)))
    with jax.enable_x64(False):
        rows = tg.Observations.exact(y, region=tg.Box(*limits))
        fit = tg.fit_observations(rows)
    np.testing.assert_allclose(fit.estimates, exact.estimates, rtol=1e-3)


@pytest.mark.parametrize(
    ("turned", "word", "option"),
    [(1.0, "smallest", "censored_low"), (-1.0, "largest", "censored_high")],
)
def test_values_that_were_set_to_a_limit_are_noted(turned, word, option):
    random = np.random.default_rng(0)
    x = random.normal(size=300)
    y = np.maximum(1.0 + x + random.normal(size=300), 0.5)
    design, limited = np.c_[np.ones(300), x], np.sum(y == 0.5)
    fit = tg.fit_regression(turned * y, design, progress=False)
    (note,) = (note for note in fit.notes if "equal the" in note)
    assert note.startswith(f"{limited} of 300 values equal the {word}, {turned * 0.5:g}")
    assert option in note
    informed = tg.fit_regression(turned * y, design, **{option: turned * 0.5}, progress=False)
    rounded = tg.fit_regression(np.round(y + x), design, progress=False)
    assert not any("equal the" in note for note in informed.notes + rounded.notes)
    bound = {option.replace("censored", "truncated"): turned * 0.5}
    said = f"{limited} of 300 values equal their bound of truncation, {turned * 0.5:g}.*{option}"
    with pytest.warns(UserWarning, match=said) as seen:
        tg.fit_regression(turned * y, design, **bound, progress=False)
        tg.fit_truncated_normal(turned * y, **{option[9:]: turned * 0.5}, progress=False)
    assert [warning.filename for warning in seen] == [__file__] * 2


def test_rounded_values_at_their_bound_are_no_limits():
    """As many are one step away: neither fit warns, which would be an error here."""
    y = np.floor(5.0 * np.abs(np.random.default_rng(2).normal(size=400)))
    assert np.sum(y == 0.0) > 0.1 * 400 and np.sum(y == 0.0) < 3 * np.sum(y == 1.0)
    tg.fit_truncated_normal(y, low=0.0, progress=False)
    tg.fit_regression(y, np.ones((400, 1)), truncated_low=0.0, progress=False)


@pytest.mark.full
def test_the_outcome_whose_values_were_set_to_a_limit_is_named():
    random = np.random.default_rng(1)
    values = random.normal(size=(120, 2))
    values[:, 1] = np.minimum(values[:, 1], 0.8)
    rows = tg.Observations(values, values, names=("x", "y"))
    notes = tg.fit_observations(rows, progress=False).notes
    assert [note.split(" equal")[0] for note in notes if "equal the" in note] == [
        f"{np.sum(values[:, 1] == 0.8)} of 120 values of y"
    ]


def test_nearly_collinear_covariates_are_named():
    """The inflation is the mean square about the median over that of the residuals from the
    others, whatever the units; one quantity in two units, rounded, is said by the fit."""
    rng = np.random.default_rng(5)
    depth = rng.uniform(1.0, 9.0, 80)
    columns = {
        "constant": np.ones(80),
        "depth": depth,
        "feet": 3.28084 * depth + rng.normal(size=80) * 1e-3,
        "age": 1e3 * (2.0 + rng.normal(size=80) + 0.1 * depth),
    }
    table = tables.read(columns)
    inflation = whitened(table, None, "a test").inflation
    for j in (1, 2, 3):
        others = np.delete(table.values, j, axis=1)
        column = table.values[:, j]
        residual = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        about = np.mean((column - np.median(column)) ** 2)
        assert inflation[j] == pytest.approx(about / np.mean(residual**2), rel=1e-6)
    y = depth + rng.normal(size=80)
    fit = tg.fit_regression(y, columns, progress=False)
    (note,) = [note for note in fit.notes if "collinear" in note]
    assert note.startswith("The covariates depth, feet are nearly collinear: the others tell all ")
    del columns["feet"]
    assert "collinear" not in str(tg.fit_regression(y, columns, progress=False))
