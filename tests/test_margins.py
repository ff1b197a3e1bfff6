"""Marginal effects: a variable moves in the data, as differences of `predict` have it.

The law of this file: for every fit and every spelling of a formula, the effects of `margins` are
those of predictions of a table in which the variable's column was moved.
"""

import numpy as np
import pytest
from scipy import stats

import truncgauss as tg
from truncgauss import tables

pandas = pytest.importorskip("pandas")
pytest.importorskip("formulaic")

QUIET = {"num_profiles": 0, "progress": False}
FIRST = {"g": 0, "s": "a", "d": 0}  # of categories and dummies


def rows(n=80):
    rng = np.random.default_rng(0)
    columns = {"x": rng.uniform(0.5, 3.0, n), "z": rng.normal(size=n), "g": rng.integers(0, 3, n)}
    texts = np.array(list("abc"))[rng.integers(0, 3, n)]
    table = pandas.DataFrame({**columns, "s": texts, "d": rng.integers(0, 2, n)})
    x, bend = table["x"], 0.3 * (table["g"] == 1) * table["x"]
    latent = 1.0 + 0.5 * x - 0.2 * x**2 + 0.3 * table["z"] + bend
    return table.assign(y=latent + 0.5 * rng.normal(size=n), work=latent - 0.3 * table["z"])


STEPS = {0: -25.0, 1: 48.0, 2: -36.0, 3: 16.0, 4: -3.0}  # of a derivative of the fourth order


def by_differences(predict, table, labels):
    """The average changes of predictions as columns of the table move: from the first category to
    another, or by differences that stay within the column's range. One call predicts all."""
    tables_of, weights = [], []
    for label in labels:
        name, _, level = label.partition(": ")
        if name in FIRST:
            first = FIRST[name]
            moves = [(first, -1.0), (type(first)(level or 1), 1.0)]
        else:
            x = table[name].to_numpy()
            step = np.where(x > np.median(x), -1e-4, 1e-4)
            moves = [(x + k * step, c / (12.0 * step)) for k, c in STEPS.items()]
        tables_of += [table.assign(**{name: moved}) for moved, _ in moves]
        weights.append([np.broadcast_to(c, len(table)) for _, c in moves])
    values = predict(pandas.concat(tables_of, ignore_index=True))
    values = iter(values.reshape(len(tables_of), len(table), -1))
    sums = [sum(c[:, None] * next(values) for c in several) for several in weights]
    return np.squeeze(np.mean(sums, axis=1), axis=-1) if sums[0].shape[1] == 1 else np.mean(sums, 1)


def check_law(fit, predict, table, **asked):
    effects = fit.margins(**asked)
    moved = by_differences(predict, table, effects.names)
    np.testing.assert_allclose(effects.value, moved, rtol=1e-7, atol=1e-9)
    assert not effects.notes
    return effects


SPELLINGS = [  # beside those of the referee's law of spellings
    "x + I(x**2)",
    "x*C(g)",
    "-1 + x + s",
    "0 + s:x",
    "C(s, contr.sum)*x",
    "C(d):x + z",
    "C(d)*C(g)",
    "I(s == 'b')*x",
    "`x`*z + {x**2}",
]


@pytest.mark.quick("x + I(x**2)", "`x`*z + {x**2}", "x*C(g)")
@pytest.mark.parametrize("formula", SPELLINGS)
def test_effects_are_differences_of_predictions_however_a_formula_is_written(formula):
    table = rows()
    fit = tg.fit_regression(f"y ~ {formula}", data=table, **QUIET)
    predict = lambda new: fit.predict(new, "probability", low=1.2).value
    effects = check_law(fit, predict, table, kind="probability", low=1.2)
    names = {label.partition(":")[0] for label in effects.names}
    assert names == {x for x in tables.formulas.names_in(formula, table.columns)}


BENT = "x*C(g) + I(x**2) + np.exp(z)"


def tobit_with_a_scale(table):
    fit = tg.fit_regression(
        "y ~ x + z", data=table, censored_low=1.0, scale_design="~ np.log(x)", **QUIET
    )
    return fit, lambda new: fit.predict(new, "recorded").value, {"kind": "recorded"}


def truncated(table):
    fit = tg.fit_regression(f"y ~ {BENT}", data=table, truncated_low=-3.0, **QUIET)
    return fit, lambda new: fit.predict(new, "mean_observed").value, {"kind": "mean_observed"}


def interval(table):
    low = np.floor(table["y"].to_numpy() * 2.0) / 2.0
    ends = np.column_stack([low, low + 0.5])
    fit = tg.fit_regression(ends, f"~ {BENT}", data=table, **QUIET)
    asked = {"kind": "probability", "low": 1.0}
    return fit, lambda new: fit.predict(new, "probability", low=1.0).value, asked


def ordered(table):
    codes = tg.Ordinal(np.digitize(table["y"], [1.0, 1.6]))
    fit = tg.fit_regression(codes, f"~ {BENT}", data=table, **QUIET)
    return fit, lambda new: fit.predict(new).value, {}


def several_outcomes(table):
    both = table[["y", "work"]].to_numpy() + np.random.default_rng(1).normal(size=(len(table), 2))
    designs = tables.formula("~ x*z", table)[1], tables.formula("~ np.log(x) + C(g)", table)[1]
    fit = tg.fit_observations(tg.Observations.exact(both), design=designs, **QUIET)
    return fit, lambda new: fit.predict(new).value, {}


def ordered_clusters(table):
    """A covariate moves the variance of its random slope too."""
    cluster, (u, v) = np.arange(len(table)) // 4, np.random.default_rng(4).normal(size=(2, 30))
    latent = table["y"] + u[cluster] + v[cluster] * table["z"]
    codes = tg.Ordinal(np.digitize(latent, [1.0, 1.6]))
    terms = tg.RandomEffects("1 + z"), tg.Residual()
    fit = tg.fit_clusters(codes, "~ x*C(g) + I(z)", cluster, terms, data=table, **QUIET)
    return fit, lambda new: fit.predict(new).value, {}


def exact_clusters(table):
    fit = tg.fit_clusters(f"y ~ {BENT}", None, np.arange(len(table)) // 4, data=table, **QUIET)
    return fit, lambda new: fit.predict(new).value, {}


def selection(table):
    x, z, n = table["x"], table["z"], len(table)
    u, e = np.random.default_rng(3).normal(size=(2, n))
    works = 0.5 * x + z + u > 0.8
    wage = np.where(works, 1.0 + 0.4 * x + 0.6 * u + 0.8 * e, np.nan)
    fit = tg.fit_selection(
        "wage ~ x + I(x**2)", selected="works ~ I(x)*z + d",
        data=table.assign(wage=wage, works=works), num_starts=1, **QUIET,
    )  # fmt: skip
    return fit, lambda new: fit.predict(new, "mean_observed").value, {"kind": "mean_observed"}


FITS = [tobit_with_a_scale, truncated, interval, ordered, several_outcomes,
        ordered_clusters, exact_clusters, selection]  # fmt: skip


@pytest.mark.quick("tobit_with_a_scale")
@pytest.mark.parametrize("made", FITS, ids=lambda made: made.__name__)
def test_effects_are_differences_of_predictions_of_every_fit(made):
    table = rows(400 if made is selection else 120)
    fit, predict, asked = made(table)
    check_law(fit, predict, table, **asked)
    at = {"x": 1.4, "z": 0.3}
    at = {name: value for name, value in at.items() if any(name in d.source for d in fit.designs)}
    some = [name for name in ("z", "d", "g") if any(name in d.source for d in fit.designs)]
    check_law(fit, predict, table.assign(**at), at=at, variables=some[-1], **asked)


def test_points_are_rows_of_the_data():
    """A table of points, numbers of all rows and their means go through the formula; categories at
    the mean are there in their shares."""
    table = rows()
    fit = tg.fit_regression("y ~ x*C(g) + I(x**2)", data=table, **QUIET)
    predict = lambda new: fit.predict(new, "probability", low=1.2).value
    asked = {"kind": "probability", "low": 1.2}
    at = {"x": 1.4, "g": 2}
    for points in (table[:9].assign(**at), {"x": np.full(5, 1.4), "g": np.full(5, 2)}, at):
        effect = fit.margins(points, variables="x", **asked)
        moved = by_differences(predict, table.assign(**at), ["x"])
        np.testing.assert_allclose(effect.value, moved, rtol=1e-7)
    mean, shares = table["x"].mean(), [(table["g"] == k).mean() for k in range(3)]
    design = lambda x: np.array([1.0, *shares[1:], x, x**2, *(x * s for s in shares[1:])])
    codes = "C(g)[T.1]", "C(g)[T.2]"
    order = ("Intercept", *codes, "x", "I(x ** 2)", *(f"x:{code}" for code in codes))
    b, scale = fit.estimates[[fit.names.index(name) for name in order]], fit.estimates[-1]
    at_mean = fit.margins("mean", variables="x", **asked).value[0]
    share = lambda x: stats.norm.sf((1.2 - design(x) @ b) / scale)
    np.testing.assert_allclose(at_mean, (share(mean + 1e-5) - share(mean - 1e-5)) / 2e-5, rtol=1e-6)


def test_a_column_of_a_matrix_moves_by_itself_and_says_so():
    """Without a formula the columns of the design are the data."""
    table = rows()
    columns = {
        "one": np.ones(80),
        "x": table["x"],
        "x**2": table["x"] ** 2,
        "x:d": table["x"] * table["d"],
    }
    fit = tg.fit_regression(table["y"], columns, **QUIET)
    effects = fit.margins()
    np.testing.assert_allclose(effects.value, fit.coefficients[1:], rtol=1e-12)
    assert effects.names == ("x", "x**2", "x:d")
    [note] = effects.notes
    assert note.startswith("Each column of a design without a formula") and "x**2, x:d. W" in note
    again = tables.formula("~ x*C(g)", table)[1].encode(table[:60])
    fit = tg.fit_regression(
        table["y"][:60].to_numpy(), again, **QUIET
    )  # of other rows, still a formula
    check_law(fit, lambda new: fit.predict(new).value, table[:60])


@pytest.mark.parametrize(
    "formula, words",
    [
        ("I(x > 1.5) + z", r"'I\(x > 1.5\).*' changes with 'x' by jumps alone"),
        ("C(x > 1.5) + x", r"'C\(x > 1.5\)\[T.True\]' changes with 'x' by jumps alone"),
        ("np.floor(x)", r"'np.floor\(x\)' changes with 'x' by jumps alone"),
        ("np.abs(x - 1.0)", "a function of 'x' .* has no derivative at 1 of the 30 points"),
        ("I(x - np.mean(x))", r"'I\(x - np.mean\(x\)\)' of one row depends on other rows"),
    ],
)  # fmt: skip
def test_effects_that_are_no_derivatives_are_refused(formula, words):
    table = rows(30)
    table.loc[3, "x"] = 1.0
    fit = tg.fit_regression(f"y ~ {formula}", data=table, **QUIET)
    with pytest.raises(ValueError, match=words):
        fit.margins(variables="x")
    if "+ z" in formula:
        np.testing.assert_allclose(fit.margins(variables="z").value, fit.coefficients[-1])


@pytest.mark.full
def test_random_effects_that_are_not_in_the_design_are_not_moved():
    table = rows(120)
    table["c"], table["y"] = np.arange(120) // 4, table["y"] > 1.3
    terms = tg.RandomEffects("1 + I(x**2)"), tg.Residual()
    fit = tg.fit_clusters("y ~ x + z", data=table, cluster="c", terms=terms, binary=True, **QUIET)
    with pytest.raises(ValueError, match="variance of the term .* moves with 'x' by more than the"):
        fit.margins()
    assert fit.margins(variables="z").names == ("z",)
