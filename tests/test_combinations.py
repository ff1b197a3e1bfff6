"""Options of fits go together, or their docstrings name the pair and a sentence refuses it."""

import functools
import importlib
import itertools
import re

import numpy as np
import pytest

import truncgauss as tg

X, E, U, V = np.random.default_rng(0).normal(size=(4, 40))
TABLE = {"y": 1.0 + 0.5 * X + E, "x": X, "z": V, "g": np.arange(40) % 8}
ONES = np.ones((40, 1))
PAIR = np.c_[np.ones(40), X]
ROWS = np.c_[TABLE["y"], U]
LEVELS = np.digitize(TABLE["y"], [0.5, 1.5])
SANDWICH = {"information": "sandwich", "cluster": TABLE["g"]}
COUNTS = 1.0 + TABLE["g"] % 2
BEFORE = -2.5  # no row is below


def observations(
    noise=None, weights=None, region=None, limits_on="observed", censored=False, missing=False,
    ordered=False, **settings,
):  # fmt: skip
    """A fit of two outcomes, of which options change what is known."""
    more = {"region": region, "noise": noise, "limits_on": limits_on}
    lower, upper = ROWS.copy(), ROWS.copy()
    lower[::7, 0] = np.where(censored, -np.inf, lower[::7, 0])
    lower[1::7, 1] = np.where(missing, -np.inf, lower[1::7, 1])
    upper[1::7, 1] = np.where(missing, np.inf, upper[1::7, 1])
    if ordered:
        lower[::7, 1] = np.where(censored, -np.inf, lower[::7, 1])
        entries = [tg.Ordinal(LEVELS), (lower[:, 1], upper[:, 1])]
        rows = tg.Observations.of(entries, weights, **more)
    else:
        rows = tg.Observations(lower, upper, weights=weights, **more)
    return tg.fit_observations(rows, **settings)


def truncated(**options):
    data = {} if "statistics" in options else {"data": ROWS}
    return tg.fit_truncated_normal(**data, **options)


def regression(**options):
    outcome = {"outcome": TABLE["y"], "design": PAIR}
    if "data" in options:  # of formulas
        ordered = {"design": "~ x"} if "outcome" in options else {"outcome": "y ~ x"}
        return tg.fit_regression(**ordered, **options)
    return tg.fit_regression(**{**outcome, **options})


def selection(**options):
    parts = TABLE["y"], PAIR, U + V > 0, np.c_[PAIR, V]
    if options.get("binary"):
        parts = TABLE["y"] > 1, *parts[1:]
    if "data" in options:
        parts, options["data"] = ("y ~ x", None, "s ~ x + z"), TABLE | {"s": parts[2] * 1.0}
        if options.get("binary"):
            options["data"] = options["data"] | {"y": (TABLE["y"] > 1) * 1.0}
    return tg.fit_selection(*parts, **options)


def clusters(**options):
    parts = options.pop("outcome", TABLE["y"]), PAIR, TABLE["g"]
    if options.get("binary"):
        parts = parts[0] > 1 if isinstance(parts[0], np.ndarray) else parts[0], *parts[1:]
    return tg.fit_clusters(*parts, **options)


def mixture(weights=None, noise=None, region=None, missing=False, **options):
    lower, upper = ROWS.copy(), ROWS.copy()
    lower[1::7, 1], upper[1::7, 1] = np.where(missing, [[-np.inf], [np.inf]], ROWS[1::7, 1])
    rows = tg.Observations(lower, upper, region, noise=noise, weights=weights)
    return tg.fit_mixture(rows, 2, num_starts=1, **options)


def shift(fractions=None, **options):
    regions = tg.Box([[0.0, -np.inf], [-np.inf, 0.5], [-1.0, -1.0]], [[np.inf] * 2] * 3)
    given = {"region": regions, "covariance": np.eye(2), "num_trials": 1000, **options}
    given["num_trials"] = None if fractions else given["num_trials"]
    shares = fractions or [0.8, 0.4, 0.7]
    observed = shares if fractions else np.multiply(shares, 1000)
    return tg.fit_shift(observed, [0.0, 0.0], **given)


def limits(fractions=None, **options):
    shares = fractions or [0.2, 0.5, 0.7]
    given = {"covariance": [[1.0]], "start": {"low": [-1.0], "high": [np.inf]}, **options}
    trials = None if fractions else 1000
    observed = shares if fractions else np.multiply(shares, 1000)
    return tg.fit_limits(observed, [[0.0], [1.0], [1.4]], num_trials=trials, **given)


def polychoric(table=None, **options):
    columns = (LEVELS, X > 0.3) if table is None else (table,)
    return tg.polychoric(*columns, **options)


BOX = tg.Box([BEFORE, -np.inf], [np.inf, np.inf])
OPTIONS = {
    truncated: {
        "low": {"low": [BEFORE, -np.inf]},
        "region": {"region": BOX},
        "statistics": {"statistics": tg.Statistics.from_rows(ROWS)},
        "noise": {"noise": 0.1 * np.eye(2)},
        "weights": {"weights": COUNTS},
        "start": {"start": {"loc": [1.0, 0.0], "covariance": np.eye(2)}},
    },
    observations: {
        "design": {"design": PAIR},
        "covariance": {"covariance": "diagonal"},
        "noise": {"noise": 0.1 * np.eye(2)},
        "weights": {"weights": COUNTS},
        "region": {"region": tg.Box([-np.inf, -5.0], [np.inf, np.inf])},
        "censored": {"censored": True},
        "missing": {"missing": True},
        "tg.Ordinal": {"ordered": True},
        "cluster": SANDWICH,
    },
    regression: {
        "data": {"data": TABLE},
        "tg.Ordinal": {"outcome": tg.Ordinal(LEVELS)},
        "censored_low": {"censored_low": 0.0},
        "truncated_low": {"truncated_low": BEFORE},
        "region": {"region": tg.Box([BEFORE], [np.inf])},
        "scale_design": {"scale_design": ONES},
        "noise": {"noise": 0.1},
        "weights": {"weights": COUNTS},
        "cluster": SANDWICH,
    },
    selection: {
        "data": {"data": TABLE},
        "binary": {"binary": True},
        "unselected_design": {"unselected_design": PAIR},
        "weights": {"weights": COUNTS},
        "cluster": SANDWICH,
    },
    clusters: {
        "tg.Ordinal": {"outcome": tg.Ordinal(LEVELS)},
        "binary": {"binary": True},
        "censored_low": {"censored_low": 0.0},
        "noise": {"noise": 0.1},
        "weights": {"weights": 1.0 + (TABLE["g"] < 4)},
        "terms": {"terms": [tg.RandomEffects(PAIR), tg.Residual()]},
        "information": {"information": "sandwich"},
    },
    mixture: {
        "weights": {"weights": COUNTS},
        "noise": {"noise": 0.1 * np.eye(2)},
        "region": {"region": BOX},
        "missing": {"missing": True},
        "covariance": {"covariance": "tied"},
        "prior_rows": {"prior_rows": 1.0},
        "information": {"information": "sandwich"},
    },
    shift: {
        "fractions": {"fractions": [0.8, 0.4, 0.7]},
        "covariance": {"covariance": tg.ScaleTril([[1.0, 0.0], [0.3, 1.0]])},
        "region": {"region": tg.Ball([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]], [1.5, 2.0, 2.5])},
        "start": {"start": {"shift": [0.5, 0.2]}},
        "method": {"method": tg.SoftMonteCarlo(256, points="lattice", edge=tg.Tanh(20.0))},
    },
    limits: {
        "fractions": {"fractions": [0.2, 0.5, 0.7]},
        "covariance": {"covariance": tg.ScaleTril([[1.2]])},
        "start": {"start": {"low": [-1.0], "high": [5.0]}},
        "method": {"method": tg.Separation(256)},
    },
    polychoric: {
        "table": {"table": [[13, 6, 0], [69, 113, 22], [41, 132, 104]]},
        "weights": {"weights": COUNTS},
        "correction": {"correction": 0.5},
        "information": {"information": "sandwich"},
    },
}  # fmt: skip

PUBLIC = {
    truncated: tg.fit_truncated_normal,
    observations: tg.fit_observations,
    regression: tg.fit_regression,
    selection: tg.fit_selection,
    clusters: tg.fit_clusters,
    mixture: tg.fit_mixture,
    shift: tg.fit_shift,
    limits: tg.fit_limits,
    polychoric: tg.polychoric,
}
# Pairs that do not go together, with words of the sentence that refuses them.
OTHER_BOUNDS = "tg.Ordinal takes no other bounds, scale_design or noise"
APART = {
    truncated: {
        ("low", "region"): "either region or low and high",
        ("statistics", "noise"): "statistics stand in place of data, noise and weights",
        ("statistics", "weights"): "statistics stand in place of data, noise and weights",
    },
    regression: {
        ("tg.Ordinal", "censored_low"): OTHER_BOUNDS,
        ("tg.Ordinal", "truncated_low"): OTHER_BOUNDS,
        ("tg.Ordinal", "region"): OTHER_BOUNDS,
        ("tg.Ordinal", "scale_design"): OTHER_BOUNDS,
        ("tg.Ordinal", "noise"): OTHER_BOUNDS,
        ("truncated_low", "region"): "either region or truncated_low and truncated_high",
    },
    clusters: {
        ("tg.Ordinal", "binary"): "ordered categories are neither binary nor censored",
        ("tg.Ordinal", "censored_low"): "ordered categories are neither binary nor censored",
        ("binary", "censored_low"): "binary outcomes are one column without bounds of censoring",
    },
    polychoric: {("table", "weights"): "weights belong to rows; a table has its counts"},
}
PAIRS = [
    (fit, pair) for fit, options in OPTIONS.items() for pair in itertools.combinations(options, 2)
]
TOGETHER = [(fit, pair) for fit, pair in PAIRS if pair not in APART.get(fit, {})]
MODULES = (
    "gaussian.truncated_normal", "gaussian.observations_fit", "gaussian.regression",
    "sample_selection", "gaussian.ordinal_fit", "clusters.cluster_fit", "mixtures.fit",
    "fractions", "polychoric.polychoric_correlations",
)  # fmt: skip


class Accepted(Exception):
    """The model is made, and its likelihood would be maximised."""


def accepted(*args, **settings):
    raise Accepted


def name(value):
    return " and ".join(value) if isinstance(value, tuple) else value.__name__


@pytest.mark.parametrize("fit", OPTIONS, ids=name)
def test_options_go_together_but_for_the_pairs_that_the_docstring_names(fit, monkeypatch):
    for module in MODULES:
        home = importlib.import_module(f"truncgauss.fits.{module}")
        monkeypatch.setattr(home, "maximum_likelihood", accepted)
    text = re.sub(r"\s+", " ", PUBLIC[fit].__doc__)
    table = re.search(r"All options go together(, but for .*?)?\. [A-Z]", text)
    assert table, "the docstring has no table of what goes together"
    apart = APART.get(fit, {})
    assert bool(table[1]) == bool(apart)
    for first, second in itertools.combinations(OPTIONS[fit], 2):
        options = {**OPTIONS[fit][first], **OPTIONS[fit][second]}
        if (first, second) in apart:
            with pytest.raises(ValueError, match=apart[first, second]):
                fit(**options)
            assert f"`{first}`" in table[1] and f"`{second}`" in table[1], (first, second)
        else:
            with pytest.raises(Accepted):
                fit(**options)
    for option in apart:
        assert set(option) <= {*OPTIONS[fit]}


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "pair"), TOGETHER, ids=name)
def test_two_options_of_a_fit_have_a_likelihood_and_errors(fit, pair):
    options = functools.reduce(lambda both, each: {**both, **OPTIONS[fit][each]}, pair, {})
    found = fit(**options, progress=False)
    assert np.all(np.isfinite(found.estimates))
    # Fractions of unknown numbers of trials have no likelihood.
    assert np.isnan(found.log_likelihood) == ("fractions" in pair)
    if found.converged:  # an estimate at an edge of its range has no error, and a sentence says so
        edges = [name for name in found.names if f"{name} is at the edge " in str(found)]
        assert np.all((found.errors >= 0) | (np.isnan(found.errors) & np.isin(found.names, edges)))


@pytest.mark.full
def test_points_of_effects_that_are_none_are_refused():
    fit = tg.fit_regression("y ~ x * z", data=TABLE, num_profiles=0)
    refused = {
        "at says where effects are taken": {"at": "median"},
        "no covariate 'w'": {"at": {"w": 1.0}},
        "there is no column 'z'": {"at": {"x": [1.0, 2.0]}},
        "quantile": {"at": "mean", "kind": "quantile"},
        "give low or high": {"at": "mean", "kind": "probability"},
    }
    for message, options in refused.items():
        with pytest.raises(ValueError, match=message):
            fit.margins(**options)
