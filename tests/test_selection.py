"""Selection models beside their likelihood written out with SciPy, and published tables."""

import re

import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from tests import published_rows

INF = np.inf


def sample(n=600, seed=1):
    """Covariates x and z, and errors u and e, all (n,)."""
    return np.random.default_rng(seed).normal(size=(4, n))


@pytest.fixture(scope="module")
def heckman():
    """A design, rows whose outcome is seen where u is large, and the fit."""
    x, z, u, e = sample()
    selected = 0.3 + 0.7 * x + z + u > 0
    outcome = np.where(selected, 1.0 + x + 1.2 * (0.6 * u + 0.8 * e), np.nan)
    design = {"constant": np.ones(len(x)), "x": x}
    inputs = outcome, design, selected, design | {"z": z}
    return inputs, tg.fit_selection(*inputs, progress=False)


def as_matrix(design):
    return np.column_stack(list(design.values()))


def written_out(parameters, outcome, x, selected, z, weights=1.0):
    """The log-likelihood of Heckman's model; parameters are g, b, log sigma and athrho."""
    q, p = z.shape[1], x.shape[1]
    g, b, (log_sigma, athrho) = np.split(parameters, [q, q + p])
    sigma, rho, index = np.exp(log_sigma), np.tanh(athrho), z @ g
    standard = np.where(selected, (np.nan_to_num(outcome) - x @ b) / sigma, 0.0)
    seen = stats.norm.logpdf(standard) - log_sigma
    seen = seen + stats.norm.logcdf((index + rho * standard) / np.sqrt(1.0 - rho**2))
    return np.sum(weights * np.where(selected, seen, stats.norm.logcdf(-index)))


def by_bfgs(function, start):
    best = optimize.minimize(lambda x: -function(x), start, method="BFGS", options={"gtol": 1e-7})
    return best.x, -best.fun


@pytest.mark.full
@published_rows.needed
def test_published_wages_of_women():
    rows = published_rows.table("womenwk.csv")
    wage = np.array([float(row["wage"] or "nan") for row in rows])
    one = np.ones(len(rows))
    columns = {key: published_rows.column(rows, key) for key in rows[0] if key != "wage"}
    x, z = ("education", "age"), ("married", "children", "education", "age")
    design = {"constant": one} | {key: columns[key] for key in x}
    selection = {"constant": one} | {key: columns[key] for key in z}
    fit = tg.fit_selection(wage, design, ~np.isnan(wage), selection, progress=False)
    published = {
        "coefficients[outcome][education]": (0.9899537, 0.0532565),
        "coefficients[outcome][age]": (0.2131294, 0.0206031),
        "coefficients[outcome][constant]": (0.4857752, 1.077037),
        "coefficients[selected][married]": (0.4451721, 0.0673954),
        "coefficients[selected][children]": (0.4387068, 0.0277828),
        "coefficients[selected][education]": (0.0557318, 0.0107349),
        "coefficients[selected][age]": (0.0365098, 0.0041533),
        "coefficients[selected][constant]": (-2.491015, 0.1893402),
        "rho": (0.7035061, 0.0512264),
        "sigma": (6.0047973, 0.1657202),
        "lambda": (4.2244115, 0.3992265),
        "athrho": (0.8742086, 0.1014225),
    }
    for name, (value, error) in published.items():
        k = fit.names.index(name)
        assert abs(fit.estimates[k] - value) < 1e-4 * error, name
        assert abs(fit.errors[k] - error) < 1e-4 * max(error, 0.1), name
    np.testing.assert_allclose(fit.log_likelihood, -5178.3045, atol=5e-5)
    step = fit.two_step
    np.testing.assert_allclose(
        [*step.coefficients, step.rho, step.sigma, step.lambda_],
        [0.7340391, 0.9825259, 0.2118695, 0.67284, 5.9473529, 4.001615],
        atol=1e-5,
    )


def test_every_maximum_is_reported():
    x, z, u, e = sample(800)
    design = {"constant": np.ones(800), "x": x}
    selected = 0.3 + x + z + u > 0
    outcome = np.exp(1.0 + 0.3 * x + 0.4 * (e - u))  # whose errors are skew
    fit = tg.fit_selection(outcome, design, selected, design | {"z": z}, progress=False)
    (maxima,) = [note for note in fit.notes if note.startswith("The maxima: ")]
    heights = [float(part.split()[1]) for part in maxima.removeprefix("The maxima: ").split("; ")]
    signs = [
        float(part.split()[4].strip("."))
        for part in maxima.removeprefix("The maxima: ").split("; ")
    ]
    assert len(heights) == 2 and heights[0] > heights[1] + 5.0 and signs[0] < 0 < signs[1]
    np.testing.assert_allclose(heights[0], fit.log_likelihood, rtol=1e-7)
    inputs = outcome, as_matrix(design), selected, as_matrix(design | {"z": z})
    ends = [
        by_bfgs(lambda p: written_out(p, *inputs), [0.3, 1, 1, 3, 1, 0.6, athrho])[1]
        for athrho in (-0.5, 2.0)
    ]
    np.testing.assert_allclose(heights, ends, rtol=1e-6)


def test_an_edge_beyond_a_valley_is_found():
    """Of 27 rows, errors correlated by .95: the profile likelihood of rho has a maximum of -25.369
    at -.05, falls to -26.575 at .96 and rises to -24.787 at 1."""
    rng = np.random.default_rng(106)
    n = int(rng.integers(12, 40))
    x, z, u, e = rng.normal(size=(4, n))
    design = np.column_stack([np.ones(n), x])
    outcome, selected = 1 + 0.8 * x + 0.9 * u + 0.3 * e, 0.3 + 0.7 * z + u > 0
    of_selection = np.column_stack([design, z])
    settings = {"num_profiles": 0, "progress": False}
    fit = tg.fit_selection(outcome, design, selected, of_selection, **settings)
    assert not fit.converged and "grows as rho tends to" in fit.reason
    assert np.isinf(fit.errors).all()
    assert "log-likelihood -25.369357 with rho -0.0524856" in " ".join(fit.notes)


@pytest.mark.full
@pytest.mark.parametrize(
    "seed, rho, inside", [(408, 0.8, 0.8172), (6, 0.9, 0.982), (104, 0.9, 0.74)]
)
def test_an_edge_of_one_rho_of_two_is_found(seed, rho, inside):
    """Of 60 rows in two regimes the likelihood is highest where the second rho is -1: by 1.6 nats
    and 1.4 above the best maximum, and in the third sample above an edge of both."""
    rng = np.random.default_rng(seed)
    x, z, u, first, second = (rng.normal(size=60) for _ in range(5))
    rest = (1.0 - rho**2) ** 0.5
    selected = 0.2 + 0.5 * x + 0.8 * z + u > 0
    errors = 1.5 * (rho * u + rest * first), 0.8 * (-rho * u + rest * second)
    outcome = np.where(selected, 1.0 + 0.7 * x + errors[0], -0.5 + 0.3 * x + errors[1])
    design = {"constant": np.ones(60), "x": x}
    fit = tg.fit_selection(
        outcome, design, selected, design | {"z": z}, unselected_design=design, num_profiles=0,
        progress=False,
    )  # fmt: skip
    assert not fit.converged
    assert "grows as rho[outcome, not selected] tends to -1, where" in fit.reason
    np.testing.assert_allclose(fit.estimates[[7, 11]], [inside, -1.0], atol=0.01)


@pytest.mark.full
def test_no_covariate_left_out_is_said(heckman):
    (outcome, design, selected, _), fit = heckman
    assert not any("left out" in note for note in fit.notes)
    turned = {"a": design["constant"] + design["x"], "b": 3.0 * design["x"]}
    fit = tg.fit_selection(outcome, design, selected, turned, num_starts=1, progress=False)
    assert any("No covariate of the selection is left out of the outcome" in n for n in fit.notes)


def test_two_formulas_are_told_apart_by_their_columns():
    nan = np.nan
    table = {
        "wage": [1.5, nan, 2.5, nan], "zeros": [1.5, 0.0, 2.5, 0.0], "hired": [1, None, 0, None],
        "works": [True, False, True, False], "one": [1.0, 2.0, 3.0, 4.0],
    }  # fmt: skip
    for first, second, words in (
        ("wage ~ one", "works ~ one", "outcome='wage ~ one', selected='works ~ one'"),
        ("np.log(wage) ~ one", "works ~ 1", "outcome='np.log(wage) ~ one', selected='works ~ 1'"),
        ("zeros ~ one", "works ~ one", "outcome='zeros ~ one', selected='works ~ one'"),
        ("hired ~ one", "works ~ one", "outcome='hired ~ one', selected='works ~ one'"),
        ("works ~ one", "wage ~ one", "outcome='wage ~ one', selected='works ~ one'"),
        ("zeros ~ one", "one ~ zeros", "outcome=..., selected=..."),
        ("missing ~ one", "absent ~ one", "outcome=..., selected=..."),
    ):
        message = f"of two formulas the names say which is which: {words}, data=table."
        with pytest.raises(ValueError, match=re.escape(message)):
            tg.fit_selection(first, second, data=table)
    with pytest.raises(ValueError, match="fit_regression: the formula 'one ~ 1' has the cov"):
        tg.fit_regression("one ~ 1", "zeros ~ 1", data=table)


def test_gaps_of_covariates_are_told_by_the_numbers_of_all_rows():
    gaps = np.where(np.isin(np.arange(9), (0, 1, 5, 7)), np.nan, 2.0)
    table = {"y": np.arange(9.0), "x": gaps, "z": np.arange(9.0), "s": [0, 0, 1, 1, 0, 1, 0, 1, 1]}
    words = r"'x' is missing in 2 of 9 rows, first in row 5. .*notna.. \| .selected == 0"
    with pytest.raises(ValueError, match=words):
        tg.fit_selection("y ~ x", selected="s ~ z", data=table)


def test_effects_of_what_a_formula_reads():
    """Through log(age); where that is missing in rows that are not selected, the effects say so."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    x, z, u, e = sample(300)
    works, age = x + z + u > 0, np.exp(0.3 * x)
    wage = np.where(works, 1.0 + np.log(age) + 0.6 * u + 0.8 * e, np.nan)
    settings = {"selected": "works ~ z", "num_starts": 1, "num_profiles": 0, "progress": False}
    for gaps in (False, True):
        known = np.where(gaps & ~works, np.nan, age)
        data = pandas.DataFrame({"wage": wage, "age": known, "works": works, "z": z})
        fit = tg.fit_selection("wage ~ log(age)", data=data, **settings)
        if gaps:
            said = f"{(~works).sum()} of the 300 observations are missing"
            with pytest.raises(ValueError, match=said):
                fit.margins(variables="age")
            continue
        effect = fit.margins(variables="age")
        slope = fit.coefficients[1][fit.designs[1].names.index("log(age)")]
        np.testing.assert_allclose(effect.value, [[0.0, slope * np.mean(1.0 / age)]], rtol=1e-8)


@pytest.mark.full
def test_covariates_of_an_outcome_that_is_not_seen_are_not_used():
    """NaN, or anything else, gives the same fit, by arrays and by a formula."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    x, z, u, e = sample(300)
    selected = 0.3 + 0.7 * x + z + u > 0
    outcome = np.where(selected, 1.0 + x + 0.6 * u + 0.8 * e, np.nan)
    tenure = np.random.default_rng(3).normal(size=300)
    ones, settings = np.ones(300), {"num_starts": 1, "num_profiles": 0, "progress": False}
    selection = {"constant": ones, "x": x, "z": z}
    rest = {"constant": ones, "x": x}
    unknown = np.where(selected, tenure, np.nan)
    fits = [
        tg.fit_selection(outcome, rest | {"tenure": t}, selected, selection, **settings)
        for t in (tenure, unknown)
    ]
    kind = np.where(selected, np.where(tenure > 0, "new", "old"), None)
    table = {"wage": outcome, "x": x, "z": z, "tenure": unknown, "kind": kind}
    data = pandas.DataFrame(table | {"works": selected.astype(float)})
    settings |= {"selected": "works", "selection_design": "x + z", "data": data}
    fits.append(tg.fit_selection("wage ~ x + tenure", **settings))
    for fit in fits[1:]:
        np.testing.assert_allclose(fit.estimates, fits[0].estimates, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(fit.errors, fits[0].errors, rtol=1e-6)
    known, predicted = (fit.predict() for fit in fits[:2])
    assert np.array_equal(np.isnan(predicted.value[:, 1]), ~selected)
    # P(selected) is known of all rows.
    errors = known.standard_errors[:, 0], predicted.standard_errors[:, 0]
    np.testing.assert_allclose(*errors, rtol=1e-4)
    with pytest.raises(
        ValueError, match=f"{(~selected).sum()} of the 300 observations are missing"
    ):
        fits[1].margins()
    by_kind = tg.fit_selection("wage ~ x + kind", **settings)
    dummy = np.where(selected, tenure <= 0, 7.0)
    known = tg.fit_selection(outcome, rest | {"old": dummy}, selected, selection,
                             num_starts=1, num_profiles=0, progress=False)  # fmt: skip
    np.testing.assert_allclose(by_kind.estimates, known.estimates, rtol=1e-6, atol=1e-8)
    row = np.flatnonzero(selected)[2]
    unknown[row] = np.nan
    with pytest.raises(ValueError, match=f"holds NaN .* column 'tenure', first in row {row}"):
        tg.fit_selection(outcome, rest | {"tenure": unknown}, selected, selection)
    with pytest.raises(ValueError, match="selection_design holds NaN"):
        tg.fit_selection(outcome, rest, selected, selection | {"tenure": unknown})


def test_an_outlier_that_ends_at_the_edge_is_named(heckman):
    (outcome, design, selected, selection), _ = heckman
    row = int(np.flatnonzero(selected)[5])
    wrong = outcome.copy()
    wrong[row] = 1e6
    fit = tg.fit_selection(wrong, design, selected, selection, progress=False)
    assert not fit.converged and "grows as rho tends to" in fit.reason
    assert any(f"row {row} by " in note for note in fit.notes)


@pytest.mark.full
def test_a_line_with_errors_in_both_variables_a_limit_and_a_cut():
    """The recipe of docs/regression.md: least squares gives a slope of 1.5, the truth is 2."""
    scores, naive = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        mass, errors = rng.normal(1.0, 0.8, 700), rng.uniform(0.2, 0.6, size=(700, 2))
        light = 0.5 + 2.0 * mass + 0.4 * rng.normal(size=700)
        seen = np.column_stack([mass, light]) + errors * rng.normal(size=(700, 2))
        seen, errors = seen[seen[:, 0] > 0.7], errors[seen[:, 0] > 0.7]
        below = np.column_stack([np.zeros(len(seen), bool), seen[:, 1] < 1.5])
        lower, upper = np.where(below, -INF, seen), np.where(below, 1.5, seen)
        region = tg.Box([0.7, -INF], INF)
        rows = tg.Observations(lower, upper, region=region, noise=errors**2)
        fit = tg.fit_observations(rows, num_starts=1, num_profiles=0, progress=False)
        c = fit.derived("covariance").value
        slope = fit.derived(lambda p: p.covariance[0, 1] / p.covariance[0, 0], "slope")
        assert fit.converged and 0.1 < np.sqrt(c[1, 1] - c[0, 1] ** 2 / c[0, 0]) < 0.7
        scores.append((slope.value - 2.0) / slope.standard_errors)
        naive.append(np.polyfit(*seen.T, 1)[0])
    assert abs(np.mean(scores)) < 3 / np.sqrt(8) and np.std(scores) < 2.0
    assert np.max(naive) < 1.75


def test_predictions_of_a_selection_know_what_is_selected(heckman):
    fit = heckman[1]
    new = {"constant": 1.0, "x": [-1.0, 0.5], "z": [0.0, 1.0]}
    index, line = fit.predict(new, "latent").value.T
    assert fit.predict(new, "mean_observed").labels[:2] == (
        "0[P(selected)]",
        "0[outcome | selected]",
    )
    assert fit.predict(new).outcomes == ("P(selected)", "outcome")
    not_selected = tg.Observations([[-INF, -INF]] * 2, [[0.0, INF]] * 2)
    other = stats.norm.pdf(index) / stats.norm.sf(index)
    found = fit.predict(new, known=not_selected).value
    np.testing.assert_allclose(found, line - fit.covariance_matrix[0, 1] * other, rtol=1e-9)
    effects = fit.margins(kind="mean", at=new, average=False, variables=["z"])
    by_hand = [stats.norm.pdf(index) * fit.coefficients[0][2], np.zeros(2)]
    np.testing.assert_allclose(effects.value[0].T, by_hand, atol=1e-12)
    with pytest.raises(
        ValueError, match='kind must be one of "mean", "mean_observed", "observed", "lat'
    ):
        fit.predict(new, "recorded")
    with pytest.raises(ValueError, match='observed: takes neither low nor high, which are for "p'):
        fit.margins(kind="observed", low=0.0)


def test_covariates_missing_where_nobody_is_selected_come_in_any_table():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(4)
    x, z, u, e = rng.normal(size=(4, 80))
    seen = 0.5 * x + z + u > 0
    tenure = np.where(seen, rng.normal(size=80), np.nan)
    wage = 1.0 + x + 0.5 * np.nan_to_num(tenure) + u + e
    frame = pandas.DataFrame({"wage": wage, "x": x, "z": z, "ten": tenure, "seen": seen * 1.0})
    settings = {"selected": "seen ~ x + z", "num_starts": 1, "num_profiles": 0, "progress": False}
    fits = [
        tg.fit_selection("wage ~ x + ten", data=table, **settings)
        for table in (frame, {name: frame[name].to_numpy() for name in frame})
    ]
    fits.append(tg.fit_selection(wage, "x + ten", data=frame, **settings))
    for fit in fits:
        np.testing.assert_allclose(fit.estimates, fits[0].estimates, rtol=1e-8)
