"""Every fit obeys the laws of a maximum-likelihood fit: the table of fits and laws.

Whether a row counts twice or stands there twice, the start, and a record of work that is read
again change estimates, errors and the log-likelihood as they must. Units and the order of rows are
the referee's; that rows on two processes are those of one is tested in `test_spread_rows`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import truncgauss as tg

INF = np.inf
QUIET: Any = {"num_profiles": 0, "progress": False}


class Case(NamedTuple):
    """Rows, a fit of them, other starts, and how precisely it is the same."""

    rows: dict[str, np.ndarray]
    fit: Callable[[dict[str, np.ndarray], Any], Any]
    start: Any
    tolerance: float = 1e-8


class Summary(NamedTuple):
    """Results that the laws speak of."""

    names: tuple[str, ...]
    estimates: np.ndarray
    errors: np.ndarray
    log_likelihood: float
    bic: float


def pair(n: int = 60) -> np.ndarray:
    rng = np.random.default_rng(0)
    return 0.5 + rng.normal(size=(n, 2)) @ np.array([[1.0, 0.4], [0.0, 0.8]])


def observed(y: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {"lower": y, "upper": y} | more


def seen() -> np.ndarray:
    rows = pair(75)
    return rows[(rows[:, 0] > -0.5) & (rows[:, 1] < 2.0)]


def missing() -> dict[str, np.ndarray]:
    rows, gap = pair(), np.arange(60) % 5 == 0
    lower, upper = rows.copy(), rows.copy()
    lower[gap, 1], upper[gap, 1] = -INF, INF
    return {"lower": lower, "upper": upper}


def censored() -> dict[str, np.ndarray]:
    rows = pair()
    lower = rows.copy()
    lower[:, 1] = np.where(rows[:, 1] < 0.3, -INF, rows[:, 1])
    return {"lower": lower, "upper": np.maximum(rows, [-INF, 0.3])}


def line(low: float) -> dict[str, np.ndarray]:
    x = np.linspace(0.0, 2.0, 60)
    y = 0.3 + 1.2 * x + np.random.default_rng(1).normal(size=60)
    return {"outcome": np.maximum(y, 0.0)[y > low], "x": x[y > low]}


def groups() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    y = np.where(rng.random((100, 1)) < 0.4, 4.0, 0.0) + rng.normal(size=(100, 1))
    return observed(y[y[:, 0] > -0.5])


LIMITS = np.array([-0.5, -INF]), np.array([INF, 2.0])


def begun(start):
    """What a fit begins at: the parameters of another, or so many starts of its own."""
    return {"start": start} if isinstance(start, dict) else {"num_starts": start} if start else {}


def normal(rows, start):
    if isinstance(start, tuple):
        start = {"loc": start[0], "covariance": start[1]}
    return tg.fit_truncated_normal(
        rows["y"], *LIMITS, weights=rows.get("weights"), start=start, **QUIET
    )


def observations(rows, start, limits=None):
    if isinstance(start, tuple):
        start = {"loc": start[0], "covariance": start[1]}
    region = None if limits is None else tg.Box(*limits)
    given = tg.Observations(
        rows["lower"], rows["upper"], region, noise=rows.get("noise"), weights=rows.get("weights")
    )
    return tg.fit_observations(given, start=start, **QUIET)


def regression(rows, start, **limits):
    design = {"constant": np.ones(len(rows["x"])), "x": rows["x"]}
    options = begun(start) | limits | QUIET
    return tg.fit_regression(rows["outcome"], design, weights=rows.get("weights"), **options)


def mixture(rows, start):
    weights, locs = np.array([0.6, 0.4]), np.array([[0.2], [3.8]])
    weights, locs = start if isinstance(start, tuple) else (weights, locs)
    given = tg.Observations(
        rows["lower"], rows["upper"], tg.Box([-0.5], [INF]), weights=rows.get("weights")
    )
    first = {"weights": weights, "locs": locs, "covariances": np.ones((2, 1, 1))}
    start = start if isinstance(start, dict) else first
    return tg.fit_mixture(given, 2, start=start, progress=False)


def fractions() -> dict[str, np.ndarray]:
    counts, trials = np.array([840, 610, 350]), np.array([1000, 900, 800])
    return {"counts": counts, "trials": trials, "loc": np.array([0.0, 0.2, -0.3])}


def counted(rows):
    weights = rows.get("weights", np.ones(len(rows["counts"]), int))
    return rows["counts"] * weights, rows["loc"][:, None], rows["trials"] * weights


def shift(rows, start):
    counts, loc, trials = counted(rows)
    region = tg.Box([-0.4], INF)
    return tg.fit_shift(counts, loc, np.eye(1), region, trials, **begun(start))


def limits(rows, start):
    counts, loc, trials = counted(rows)
    if not isinstance(start, dict):
        start = {"low": [0.0 if start is None else start], "high": [INF]}
    return tg.fit_limits(counts, loc, np.eye(1), start, trials, progress=False)


def families() -> dict[str, np.ndarray]:
    """Outcomes of families, a row each, so that a family of weight two is two families."""
    rng = np.random.default_rng(4)
    return {"outcome": np.maximum(0.8 + rng.normal(size=(30, 1)) + rng.normal(size=(30, 3)), 0.0)}


def clusters(rows, start):
    outcome, weights = rows["outcome"], rows.get("weights")
    if isinstance(start, np.ndarray):
        names = "coefficients[0]", "sigma[intercept]", "sigma"
        start = dict(zip(names, start))
    return tg.fit_clusters(
        outcome.ravel(), np.ones((outcome.size, 1)), np.repeat(np.arange(len(outcome)), 3),
        censored_low=0.0, weights=None if weights is None else np.repeat(weights, 3),
        start=start, **QUIET,
    )  # fmt: skip


def chosen() -> dict[str, np.ndarray]:
    x, z, u, e = np.random.default_rng(5).normal(size=(4, 200))
    outcome = np.where(0.3 + x + z + u > 0, 9.0 + x + 0.6 * u + 0.8 * e, np.nan)
    return {"outcome": outcome, "x": x, "z": z}


def selection(rows, start):
    design = {"constant": np.ones(len(rows["x"])), "x": rows["x"]}
    return tg.fit_selection(
        rows["outcome"], design, np.isfinite(rows["outcome"]), design | {"z": rows["z"]},
        weights=rows.get("weights"), **begun(start), **QUIET,
    )  # fmt: skip


def levels() -> dict[str, np.ndarray]:
    x, e = np.random.default_rng(6).normal(size=(2, 150))
    return {"codes": np.digitize(0.5 * x + e, [-0.5, 0.7]), "x": x}


def ordered(rows, start):
    options = {"weights": rows.get("weights")} | begun(start) | QUIET
    return tg.fit_regression(tg.Ordinal(rows["codes"]), {"x": rows["x"]}, **options)


NOISE = np.random.default_rng(3).uniform(0.2, 0.6, (60, 2))
ELSEWHERE = np.array([1.0, -0.5]), np.array([[2.0, 0.3], [0.3, 0.5]])
CASES = {
    "fit_truncated_normal": Case({"y": seen()}, normal, ELSEWHERE),
    "fit_observations, exact": Case(observed(pair()), observations, ELSEWHERE),
    "fit_observations, censored": Case(censored(), observations, ELSEWHERE),
    "fit_observations, noisy": Case(observed(pair(), noise=NOISE), observations, ELSEWHERE),
    "fit_observations, missing": Case(missing(), observations, ELSEWHERE),
    "fit_observations, region": Case(
        observed(seen()), functools.partial(observations, limits=LIMITS), ELSEWHERE
    ),
    "fit_regression, censored": Case(
        line(-INF), functools.partial(regression, censored_low=0.0), 3
    ),
    "fit_regression, truncated": Case(
        line(0.0), functools.partial(regression, truncated_low=0.0), 3
    ),
    "fit_mixture": Case(groups(), mixture, (np.array([0.4, 0.6]), np.array([[-0.4], [4.6]]))),
    "fit_clusters": Case(families(), clusters, np.array([0.2, 0.5, 2.0]), 1e-7),
    "fit_selection": Case(chosen(), selection, 4, 1e-7),
    "ordered": Case(levels(), ordered, 3),
    "fit_shift": Case(fractions(), shift, 3),
    "fit_limits": Case(fractions(), limits, 0.7),
}


def summary(fit: Any) -> Summary:
    assert fit.converged, fit.reason
    numbers = float(fit.log_likelihood), float(fit.bic)
    return Summary(fit.names, np.asarray(fit.estimates), fit.errors, *numbers)


@functools.cache
def plain(name: str) -> Summary:
    case = CASES[name]
    return summary(case.fit(case.rows, None))


def assert_same(name: str, found: Summary, expected: Summary) -> None:
    tolerance = CASES[name].tolerance
    assert found.names == expected.names
    away = np.abs(found.estimates - expected.estimates)
    assert np.all(away <= tolerance * np.maximum(np.abs(expected.estimates), expected.errors))
    np.testing.assert_allclose(found.errors, expected.errors, rtol=100 * tolerance)
    np.testing.assert_allclose(found[-2:], expected[-2:], rtol=tolerance)


every_fit = pytest.mark.parametrize("name", CASES)


@pytest.mark.quick("fit_truncated_normal", "fit_mixture", "fit_clusters")
@every_fit
def test_a_row_of_weight_two_is_two_rows_and_one_of_weight_zero_none(name):
    case = CASES[name]
    n = len(next(iter(case.rows.values())))
    weights = np.ones(n, int)
    weights[::3] = 2
    weights[1::7] = 0 if n > 3 else 3
    weighted = case.fit(case.rows | {"weights": weights}, None)
    rows = {key: value.repeat(weights, axis=0) for key, value in case.rows.items()}
    repeated = case.fit(rows, None)
    assert_same(name, summary(weighted), summary(repeated))
    assert weighted.size_in_words == repeated.size_in_words


@pytest.mark.quick("fit_observations, region", "fit_limits")
@every_fit
def test_another_start_ends_at_the_same_maximum(name):
    """At once, if it is the parameters of that fit."""
    case = CASES[name]
    fit = functools.partial(case.fit, case.rows)
    other = fit(case.start)
    assert_same(name, summary(other), plain(name))
    again = fit(dict(other.parameters()))
    assert again.converged and again.num_steps <= min(other.num_steps, 3)
    np.testing.assert_allclose(again.estimates, other.estimates, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"start must be a dictionary .* got the names mean"):
        fit({"mean": 0.0})


@pytest.mark.quick("fit_shift", "fit_regression, truncated")
@every_fit
def test_a_fit_that_is_read_from_its_record_is_the_same_to_the_bit(name, tmp_path):
    case = CASES[name]
    for _ in range(2):
        with tg.fitting.resumable(tmp_path / "fit.npz"):
            found = summary(case.fit(case.rows, None))
        for mine, other in zip(found, plain(name), strict=True):
            np.testing.assert_array_equal(mine, other)
