"""Designs from tables: categories of texts, formulas, and the same columns of other rows."""

import pickle
import sys

import numpy as np
import pytest
from scipy import optimize, stats

import truncgauss as tg
from truncgauss import cli, tables
from truncgauss.fits.clusters.cluster_fit import Effects
from truncgauss.runs import folder as run_folder


def rows(n=200):
    """A table with a column whose name is no word."""
    rng = np.random.default_rng(0)
    texts = np.array(["north", "south", "east"])[rng.integers(0, 3, n)]
    table = {"age": rng.uniform(20, 60, n), "home region": texts, "k": rng.integers(1, 5, n)}
    mean = 1.0 + 0.1 * table["age"] + 2.0 * (texts == "south")
    return table | {"wage": mean + rng.normal(size=n)}


KINDS = ("dictionary", "pandas", "polars")


def of_kind(table, kind):
    return table if kind == "dictionary" else pytest.importorskip(kind).DataFrame(table)


# ---------------------------------------------------------------- categories


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_categories(kind):
    table = rows()
    design = tables.design(of_kind(table, kind), ["age"], {"home region": "north"})
    assert list(design) == ["constant", "age", "home region: east", "home region: south"]
    np.testing.assert_array_equal(design["home region: south"], table["home region"] == "south")
    fit = tg.fit_regression(table["wage"], design, progress=False)
    assert fit.names[2] == "home region: east"
    columns = np.column_stack(list(design.values()))
    exact = np.linalg.lstsq(columns, table["wage"])[0]
    np.testing.assert_allclose(fit.coefficients, exact, rtol=1e-8)


def test_new_rows_are_encoded_likewise():
    design = tables.design(rows(), ["age"], {"home region": "north"})
    new = design.encode({"age": [30.0, 40.0], "home region": ["south", "north"]})
    np.testing.assert_array_equal(
        np.column_stack(list(new.values())), [[1, 30, 0, 1], [1, 40, 0, 0]]
    )
    with pytest.raises(ValueError, match=r"without an estimate; did you mean 'east'\?$"):
        design.encode({"age": [30.0], "home region": ["west"]})
    with pytest.raises(ValueError, match="there is no column 'age'"):
        design.encode({"home region": ["south"]})


def test_wrong_categories_are_refused():
    table = rows()
    with pytest.raises(ValueError, match="nowhere holds 'west'"):
        tables.design(table, ["age"], {"home region": "west"})
    holes = table | {"home region": [None, *table["home region"][1:]]}
    with pytest.raises(ValueError, match="is missing in 1 of 200 rows, first in row 0"):
        tables.design(holes, [], {"home region": "north"})
    with pytest.raises(ValueError, match="holds text"):
        tables.design(table, ["home region"])
    with pytest.raises(ValueError, match="whose columns have names"):
        tables.design(np.ones((3, 2)), ["age"])


# ---------------------------------------------------------------- formulas


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_categories_keep_their_order(package):
    """The first of those that occur is compared with; those of numbers are categories too."""
    pytest.importorskip("formulaic")
    module, texts = pytest.importorskip(package), np.array(["north", "south", "east"] * 4)
    order = ["west", "south", "north", "east"]
    if package == "pandas":
        table = {"site": module.Categorical(texts, order), "plain": texts}
        table["code"] = module.Categorical([10, 2, 1] * 4, [10, 2, 1])
    else:
        table = {"site": module.Series(texts, dtype=module.Enum(order)), "plain": texts}
        table["code"] = module.Series(["10", "2", "1"] * 4, dtype=module.Enum(["10", "2", "1"]))
    frame = module.DataFrame(table)
    for text, kinds in (
        ("site", ["north", "east"]), ("plain", ["north", "south"]), ("code", ["2", "1"]),
    ):  # fmt: skip
        design = tables.formula(text, frame)[1]
        assert list(design) == ["Intercept", *(f"{text}[T.{kind}]" for kind in kinds)]
    by_name = tables.formula("C(site, contr.treatment('north'))", frame)[1]
    by_setting = tables.formula("site", frame, {"site": "north"})[1]
    assert list(by_setting) == ["Intercept", "site[T.south]", "site[T.east]"]
    for one, other in zip(by_name.values(), by_setting.values()):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="in row 0, a category .*did you mean 'east'"):
        by_setting.encode({"site": ["eest"]})
    assert list(tables.design(frame, [], {"site": "north"})) == [
        "constant", "site: south", "site: east",
    ]  # fmt: skip
    ordered = module.Categorical(texts, order, ordered=True) if package == "pandas" else None
    assert tg.Ordinal(frame["site"] if ordered is None else ordered).levels == tuple(order)


def test_columns_that_others_determine_are_named():
    pytest.importorskip("formulaic")
    table = rows(60) | {"h": np.array(["a", "b"] * 30)}
    table |= {"double": 3.0 * table["age"] - 2.0, "sigma": table["age"]}
    cell = np.where(table["home region"] == "south", "a", table["h"])
    for text, words in (
        ("wage ~ age + double + k", "collinear: 'double' is determined by 'Intercept', 'age'. L"),
        ("wage ~ 0 + age + I(0 * k)", "'I.0 . k.' is 0 in every row. Leave"),
        ("wage ~ `home region` * cell", "south.:cell.T.b.' is 0 in every row.*an empty cell"),
        ("wage ~ sigma", "two estimates would be called 'sigma'"),
    ):
        with pytest.raises(ValueError, match=words):
            tg.fit_regression(text, data=table | {"cell": cell}, progress=False)
    few = {name: column[:3] for name, column in table.items()}
    with pytest.raises(ValueError, match="more of them .4. than observations that count .3."):
        tg.fit_regression("wage ~ age + k + np.log(age)", data=few, progress=False)
    with pytest.raises(ValueError, match="'double' is determined by 'age'"):
        design = {"age": table["age"], "double": 2.0 * table["age"]}
        tg.fit_regression(tg.Ordinal(table["k"]), design, progress=False)


def test_formulas_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulaic", None)
    with pytest.raises(ImportError, match=r"pip install 'truncgauss\[formula\]'"):
        tables.formula("wage ~ age", rows())


@pytest.mark.parametrize("kind", KINDS)
def test_a_formula_is_its_columns(kind):
    pytest.importorskip("formulaic")
    table = rows()
    fit = tg.fit_regression(
        "wage ~ age * `home region` + np.log(k)", data=of_kind(table, kind), progress=False
    )
    south, north = (1.0 * (table["home region"] == text) for text in ("south", "north"))
    age = table["age"]
    columns = [np.ones(200), age, north, south, np.log(table["k"]), age * north, age * south]
    assert fit.names == (
        "Intercept", "age", "home region[T.north]", "home region[T.south]", "np.log(k)",
        "age:home region[T.north]", "age:home region[T.south]", "sigma",
    )  # fmt: skip
    exact = np.linalg.lstsq(np.column_stack(columns), table["wage"])[0]
    np.testing.assert_allclose(fit.coefficients, exact, rtol=1e-6)
    low, high = fit.profile("age:home region[T.south]")
    assert low < fit.estimates[6] < high


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_few_bits_do_not_overflow_in_formulas(kind):
    """Powers and products of columns as Stata and Parquet have them are those of floats."""
    pytest.importorskip("formulaic")
    rng = np.random.default_rng(0)
    floats = {"age": 1.0 * rng.integers(20, 65, 50), "k": 1.0 * rng.integers(0, 20, 50)}
    text = "I(age**2) ~ age * k + I(age**7) + np.log(age) + I(k - 12)"
    squares, exact = tables.formula(text, floats)
    for dtype in ("int8", "uint8", "int16", "uint16", "int32", "int64", "uint64", "float32"):
        few = of_kind({name: column.astype(dtype) for name, column in floats.items()}, kind)
        if kind == "pandas" and "int" in dtype:
            few = few.astype({"k": dtype.replace("int", "Int").replace("u", "U")})
        outcome, design = tables.formula(text, few)
        np.testing.assert_array_equal(outcome, squares)
        for made in (design, design.encode(few)):
            assert list(made) == list(exact)
            np.testing.assert_array_equal(list(made.values()), list(exact.values()))
        if "int" in dtype:  # categories are called by the whole numbers
            coded = tables.formula("~ C(k > 3) + C(k) + I(k - 12)", few)[1]
            assert list(coded)[1:3] == ["C(k > 3)[T.True]", "C(k)[T.1]"]
            np.testing.assert_array_equal(coded["I(k - 12)"], floats["k"] - 12.0)
            np.testing.assert_array_equal(coded.encode(floats)["C(k)[T.1]"], floats["k"] == 1.0)


def test_a_formula_remembers_its_transformations():
    pytest.importorskip("formulaic")
    table = rows()
    outcome, design = tables.formula("wage ~ center(age) + bs(k, df=4)", table)
    np.testing.assert_array_equal(outcome, table["wage"])
    some = {name: column[:7] for name, column in table.items()}
    for name, column in design.encode(some).items():
        np.testing.assert_allclose(column, design[name][:7], atol=1e-12)
    reference = tables.formula("`home region`", table, {"home region": "south"})[1]
    assert list(reference) == ["Intercept", "home region[T.east]", "home region[T.north]"]


def test_a_formula_never_drops_rows():
    pytest.importorskip("formulaic")
    table = rows()
    holes = table | {"age": np.where(np.arange(200) == 3, np.nan, table["age"])}
    for text in ("wage ~ age", "wage ~ lag(age)", "wage ~ np.log(age - 40)"):
        with pytest.raises(ValueError, match="Rows are never dropped silently"):
            tables.formula(text, table if "age)" in text or "40" in text else holes)
    said = "'age' is missing in 1 of 200 rows, first in row 3. Leave these rows out, such as by "
    for text in ("~ age", "~ np.log(age):k", "~ k + poly(age, 2)"):
        with pytest.raises(ValueError, match=said + r"table.dropna\(subset=\['age'\]\), or compl"):
            tables.formula(text, holes)
    gaps = table | {"wage": np.where(np.arange(200) == 3, np.nan, table["wage"])}
    assert np.isnan(tables.formula("wage ~ age", gaps)[0]).sum() == 1  # for the fit to judge
    with pytest.raises(ValueError, match="the outcome .wage. is missing in 1 of 200"):
        tg.fit_regression("wage ~ age", data=gaps, progress=False)
    with pytest.raises(ValueError, match=r"such as by keep = ~np.isnan\(y\)"):  # of no column
        tg.fit_regression("np.log(wage) ~ age", data=gaps, progress=False)


def test_limits_of_another_scale_than_the_outcome_of_a_formula_are_noted():
    pytest.importorskip("formulaic")
    rows = np.arange(40.0)
    table = {"y": np.maximum(np.exp(np.sin(rows)), 0.5), "x": rows % 7.0}
    for limit, noted in ((0.5, True), (np.log(0.5), False)):
        fit = tg.fit_regression("np.log(y) ~ x", data=table, censored_low=limit, num_profiles=0)
        assert noted == any("none at it. Limits are" in note for note in fit.notes)


def test_texts_that_are_missing_are_named_whatever_holds_them():
    pandas = pytest.importorskip("pandas")
    texts = ["a", "hidden", "b", "a"]
    nullable = pandas.array(["a", pandas.NA, "b", "a"], dtype="string")
    for column in (np.ma.array(texts, mask=[0, 1, 0, 0]), nullable, ["a", None, "b", "a"]):
        with pytest.raises(ValueError, match="'site' is missing in 1 of 4 rows, first in row 1"):
            tables.design({"site": column}, categories={"site": "a"})


def test_gaps_of_polars_are_left_out_by_its_own_functions():
    polars = pytest.importorskip("polars")
    pytest.importorskip("formulaic")
    wages, nan = [1.0, 2.0, None, 4.0, 3.0], float("nan")
    ages = {"nan": [1.0, nan, 3.0, 4.0, 1.0], "null": [1.0, None, 3.0, 4.0, 1.0]}
    both = {"both": [None, nan, 3.0, 4.0, 1.0], "text": ["a", None, "b", "a", "b"]}
    table = polars.DataFrame({"wage": wages, **ages, **both})
    ways = {
        "wage ~ 1": r"table.drop_nulls\('wage'\)",
        "~ null": r"table.drop_nulls\('null'\)",
        "~ nan": r"table.drop_nans\('nan'\)",
        "~ both": r"table.drop_nulls\('both'\).drop_nans\('both'\)",
        "~ text": r"table.drop_nulls\('text'\)",
    }
    for text, way in ways.items():
        outcome, design = (table["null"].to_list(), text) if text[0] == "~" else (text, None)
        with pytest.raises(ValueError, match=rf"Leave these rows out, such as by {way}[,:]"):
            tg.fit_regression(outcome, design, data=table, progress=False)


def test_new_categories_of_a_formula_are_refused():
    pytest.importorskip("formulaic")
    design = tables.formula("`home region` + C(k)", rows())[1]
    with pytest.raises(ValueError, match="'west' in row 0, a category without an estimate"):
        design.encode({"home region": ["west"], "k": [1]})
    with pytest.raises(ValueError, match="categories outside of the nominated levels"):
        design.encode({"home region": ["north"], "k": [7]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wage ~ age +", "cannot be read"),
        ("wage ~ ages", "there is no column 'ages'"),
        ("wage ~ age + (1 | k)", "random effects stand outside of it"),
        ("wage ~ age | k", "must have one part right of ~"),
        ("wage + age ~ k", "must have one outcome, got 2"),
        ("wage ~ C(k, contr.treatment(77))", "not among the provided levels. Write that part"),
        ("__import__('os').getcwd() + age", "cannot be read"),
    ],
)
def test_wrong_formulas_are_refused(text, words):
    pytest.importorskip("formulaic")
    with pytest.raises(ValueError, match=words):
        tables.formula(text, rows())


def test_covariates_of_numbers_stored_as_texts_are_refused():
    """Measurements with decimals, or nearly all different; codes and marked categories are not."""
    pytest.importorskip("formulaic")
    pandas = pytest.importorskip("pandas")
    y = np.arange(24.0)
    columns = {
        "decimal": [f"{x / 2}" for x in y],
        "limit": ["<0.5", *map(str, range(23))],
        "year": [str(1990 + int(x)) for x in y],
        "gap": ["unknown", *(f"{x:.1f}" for x in y[1:])],
    }
    for name, column in columns.items():
        table = {"y": y, name: column}
        with pytest.raises(ValueError, match=f"the covariate '{name}' holds numbers stored as"):
            tables.formula(f"y ~ {name}", table)
        assert len(tables.formula(f"y ~ C({name})", table)[1]) == 24
    codes = {"y": y, "site": ["1", "2", "10"] * 8, "half": pandas.Categorical(["0.5", "1.5"] * 12)}
    assert [*tables.formula("y ~ site + half", codes)[1]][1:] == [
        "site[T.10]", "site[T.2]", "half[T.1.5]"
    ]  # fmt: skip


def test_formulas_need_their_table():
    with pytest.raises(ValueError, match="is a formula: give the table of its columns"):
        tg.fit_regression("wage ~ age", progress=False)
    with pytest.raises(ValueError, match="needs a design"):
        tg.fit_regression([1.0, 2.0], progress=False)
    words = "which is which: outcome=..., selected=..., data=table"
    with pytest.raises(ValueError, match=words):
        tg.fit_selection("wage ~ age", "employed ~ age", data=rows())


@pytest.mark.full
def test_a_configuration_takes_a_formula(tmp_path, capsys):
    pytest.importorskip("formulaic")
    table = rows()
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n", "utf-8")
    text = "experiment: fit_table\ndata: my.csv\nnum_residuals: 2\noutcomes: {wage: {}}\n"
    text += "categories: {home region: south}\nformula: age * k + `home region`\n"
    path = tmp_path / "my.yaml"
    path.write_text(text + "profile: ['age:k']\n", "utf-8")
    assert cli.main(["run", str(path), "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    results = run_folder.read(run).results
    age, k, where = (table[name] for name in ("age", "k", "home region"))
    columns = [np.ones(200), age, k, where == "east", where == "north", age * k]
    exact = np.linalg.lstsq(np.column_stack(columns), table["wage"])[0]
    np.testing.assert_allclose(results["estimates"][:6], exact, rtol=1e-6)
    assert "home region[T.east]" in list(results["names"]) and "age:k" in results["profile"]
    for wrong, words in (("wage ~ age", "covariates only"), ("age + ages", "column 'ages' is not")):
        path.write_text(text.replace("age * k + `home region`", wrong), "utf-8")
        assert cli.main(["check", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_predictions_take_the_table_of_a_design():
    table = rows()
    design = tables.design(table, ["age"], {"home region": "north"})
    fit = tg.fit_regression(table["wage"], design, progress=False)
    new = {"age": [30.0, 50.0], "home region": ["south", "north"]}
    by_columns = fit.predict(dict(design.encode(new)))
    np.testing.assert_array_equal(fit.predict(new).value, by_columns.value)
    with pytest.raises(ValueError, match="'west' in row 0, a category without an estimate"):
        fit.predict({"age": [30.0], "home region": ["west"]})
    with pytest.raises(ValueError, match="there is no column 'home region'"):
        fit.predict({"age": [30.0]})


@pytest.mark.parametrize("backend", ["pandas", "polars"])
def test_estimates_are_data_frames(backend):
    package = pytest.importorskip(backend)
    fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
    frame = fit.to_frame(backend=backend)
    assert isinstance(frame, package.DataFrame)
    names = frame.index if backend == "pandas" else frame["name"]
    assert list(names) == list(fit.names)
    np.testing.assert_array_equal(frame["estimate"], fit.estimates)
    predictions = fit.predict().to_frame(backend=backend)
    assert list(predictions["standard_error"]) == list(np.ravel(fit.predict().standard_errors))
    contrasts = tg.simultaneous([1.0, 2.0, 4.0], np.eye(3), contrasts="tukey")
    frame = contrasts.to_frame(backend)
    assert list(frame.index if backend == "pandas" else frame["name"]) == list(contrasts.names)
    for name in ("low", "high", "statistics", "p_values", "step_down_p_values"):
        np.testing.assert_array_equal(frame[name.removesuffix("s")], getattr(contrasts, name))
    answers = {"p": [0, 0, 1, 1, 2, 2], "q": [0, 1, 0, 1, 1, 0], "r": [0, 0, 0, 1, 1, 0]}
    matrix = tg.polychoric_matrix(answers)
    frame = matrix.to_frame(0.9, backend)
    names = frame.index if backend == "pandas" else frame["name"]
    assert list(names) == [f"correlation[{pair}]" for pair in ("q, p", "r, p", "r, q")]
    below = [1, 2, 2], [0, 0, 1]
    np.testing.assert_array_equal(frame["estimate"], matrix.correlations[below])
    np.testing.assert_array_equal(frame["standard_error"], matrix.standard_errors[below])
    ends = np.stack([frame["low"], frame["high"]], axis=1)
    np.testing.assert_array_equal(ends, matrix.intervals(0.9)[below])
    with pytest.raises(ValueError, match="intervals: level must lie between 0 and 1, got 90"):
        matrix.to_frame(90)
    pairs = {"a": [1.0, 2.0, 4.0, 3.0, 6.0, 5.0], "b": [2.0, 1.0, 5.0, 3.0, 4.0, 2.0]}
    fit = tg.fit_observations(tg.Observations.exact(pairs))
    rho = fit.derived("correlation")
    frame = rho.to_frame(backend=backend)
    names = frame.index if backend == "pandas" else frame["name"]
    assert list(names) == ["correlation[b, a]"]
    assert list(frame["standard_error"]) == [rho.standard_errors[1, 0]]
    np.testing.assert_array_equal([*frame["low"], *frame["high"]], rho.wald()[1, 0])
    with pytest.raises(ValueError, match="a package is given as backend='polars'"):
        rho.to_frame("polars")


def test_effects_are_data_frames_by_their_labels():
    pytest.importorskip("pandas")
    effects = Effects(np.array([7, 9]), np.array([0.5, 1.0]), np.array([0.1, 0.2]))
    frame = effects.to_frame()
    assert frame.loc[9].to_dict() == {"estimate": 1.0, "standard_error": 0.2}
    several = Effects(effects.labels, np.arange(4.0).reshape(2, 2), np.ones((2, 2)))
    several.names = "Intercept", "week"
    assert several.to_frame()["estimate"].to_dict() == {
        "7[Intercept]": 0.0, "7[week]": 1.0, "9[Intercept]": 2.0, "9[week]": 3.0
    }  # fmt: skip
    heads = ["Intercept", "std.", "error", "week", "std.", "error"]
    assert str(several).splitlines()[0].split() == heads
    assert pickle.loads(pickle.dumps(several)).names == several.names


def test_absent_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "modin", None)
    fit = tg.fit_observations(tg.Observations.exact([1.0, 2.0, 3.0, 4.0]))
    with pytest.raises(ImportError, match="to_frame needs modin, which is optional"):
        fit.to_frame(backend="modin")


def test_ordered_categories_are_an_outcome_of_a_formula():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    rng = np.random.default_rng(0)
    x = rng.normal(size=80)
    codes = np.digitize(x + rng.normal(size=80), [-0.5, 0.5])
    words = np.array(["low", "middle", "high"])[codes]
    table = pandas.DataFrame({"x": x, "word": words})
    with pytest.raises(ValueError, match="the outcome 'word' holds texts. Say their order: tg.Ord"):
        tg.fit_regression("word ~ x", data=table)
    with pytest.raises(ValueError, match=r"If they are numbers, convert them: table\['x'\].astype"):
        tg.fit_regression("x ~ word", data=table.astype(str))
    limits = table.assign(word=np.where(x < 0, "<0.5", "1.2"))
    with pytest.raises(
        ValueError, match="the outcome 'word' holds censored values, such as '<0.5'. Read th"
    ):
        tg.fit_regression("word ~ x", data=limits)
    table["grade"] = pandas.Categorical(words, ["low", "middle", "high"], ordered=True)
    fit = tg.fit_regression("grade ~ x", data=table, progress=False)
    same = tg.fit_regression(tg.Ordinal(codes, name="grade"), "~ x", data=table, progress=False)
    np.testing.assert_array_equal(fit.estimates, same.estimates)
    assert fit.names == ("Intercept", "x", "cut[grade][middle]")
    assert not any("left out" in note for note in fit.notes)
    table.loc[3:7, "grade"] = np.nan
    fit = tg.fit_regression("grade ~ x", data=table, progress=False)
    assert "5 of 80 observations lack a category and were left out." in fit.notes


def test_names_with_dots_and_labels_of_new_rows_are_kept():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    rng = np.random.default_rng(0)
    columns = {"no. kids": rng.integers(0, 4, 60), "conc. (mg/L)": rng.gamma(2.0, size=60)}
    table = pandas.DataFrame({"y": rng.normal(size=60), **columns})
    fit = tg.fit_regression("y ~ `no. kids` + np.log(`conc. (mg/L)`)", data=table, progress=False)
    assert fit.names[1:3] == ("no. kids", "np.log(`conc. (mg/L)`)")
    design = np.column_stack(
        [np.ones(2), columns["no. kids"][:2], np.log(columns["conc. (mg/L)"][:2])]
    )
    table["level"], table["site"] = np.digitize(table["y"], [-0.5, 0.5]), np.arange(60) // 4
    formula, index = "~ `no. kids` + np.log(`conc. (mg/L)`)", [f"row {k}" for k in range(60)]
    settings = {"data": table.set_axis(index), "progress": False}
    clusters = tg.fit_clusters(f"y {formula}", cluster="site", **settings)
    ordered = tg.fit_regression(tg.Ordinal(settings["data"]["level"]), formula, **settings)
    for each, kind in ((fit, "mean"), (clusters, "mean"), (ordered, "category")):
        found = each.predict(table[:2].set_axis(["Ann", "Bob"]))
        assert found.names == ("Ann", "Bob") and found.kind == kind
        assert found.to_frame().index.tolist() == [*found.labels]
        if kind == "mean":
            np.testing.assert_allclose(found.value.ravel(), design @ each.coefficients, rtol=1e-12)
    assert clusters.predict().names == ordered.predict().names == tuple(index)
    means = clusters.derived(lambda p: design @ p.coefficients)
    found = clusters.predict(table[:2])
    np.testing.assert_allclose(found.standard_errors, means.standard_errors, rtol=1e-9)


@pytest.fixture(scope="module")
def curved():
    """Rows whose covariate stands in a formula as its logarithm, and a Tobit model of them."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    rng = np.random.default_rng(0)
    columns = {"x": 0.2 + rng.gamma(2.0, size=90), "z": rng.normal(size=90)}
    table = pandas.DataFrame({**columns, "site": list("abc") * 30, "code": np.arange(90) % 2})
    table["y"] = 1.0 + np.log(table["x"]) + table["z"] + rng.normal(size=90)
    formula, weights = "np.log(x) * z + C(site) + C(code)", np.arange(1.0, 91.0)
    table.index = [f"row {k}" for k in range(90)]
    settings = {"censored_low": 0.0, "weights": weights, "progress": False}
    return table, formula, tg.fit_regression(f"y ~ {formula}", data=table, **settings), settings


def test_points_go_through_the_products_and_powers_of_a_formula(curved):
    """A number for all rows is the same point as in a table; without a formula a column moves
    alone."""
    table, formula = curved[0], "z * C(code) + I(z**2) + x:z + x"
    fit = tg.fit_regression(f"y ~ {formula}", data=table, censored_low=0.0, progress=False)
    point = {"z": 0.5, "code": 1, "x": 2.0}
    at_all = fit.margins(point, "observed")
    at_one = fit.margins({name: [value] for name, value in point.items()}, "observed")
    np.testing.assert_allclose(at_all.value, at_one.value, rtol=1e-10)
    np.testing.assert_allclose(at_all.standard_errors, at_one.standard_errors, rtol=1e-10)
    b, scale = fit.coefficients, fit.estimates[-1]
    moved = tables.formula(f"~ {formula}", table.assign(z=0.5))[1]
    rate = {"x": 1.0, "x:z": 0.5}
    effect_of_x = lambda columns, rate=rate: (
        np.mean(stats.norm.pdf(np.column_stack([*columns.values()]) @ b / scale) / scale)
        * sum(rate.get(name, 0.0) * c for name, c in zip(columns, b))
    )
    of_x = lambda fit, at: fit.margins(at, "observed", variables="x").value[0]
    np.testing.assert_allclose(of_x(fit, {"z": 0.5}), effect_of_x(moved), rtol=1e-9)
    with pytest.raises(ValueError, match=r"'I\(z \*\* 2\)' is made of 'z'. .*: say 'z'"):
        of_x(fit, {"z": 0.5, "I(z ** 2)": 4.0})
    ready = dict(tables.formula(f"~ {formula}", table)[1])
    plain = tg.fit_regression(table["y"], ready, censored_low=0.0, progress=False)
    np.testing.assert_allclose(
        of_x(plain, {"z": 0.5}), effect_of_x({**ready, "z": moved["z"]}, {"x": 1.0}), rtol=1e-6
    )


def test_bounds_are_columns_in_the_units_of_the_outcome(curved):
    table = curved[0].assign(limit=0.5, count=np.arange(90) % 3 + 1.0, variance=0.2)
    named = {"censored_low": "limit", "noise": "variance", "weights": "count"}
    regression = lambda outcome, settings: tg.fit_regression(
        f"{outcome} ~ x", data=table, progress=False, **settings
    )
    columns = {word: table[name] for word, name in named.items()}
    by_name, by_column = regression("y", named), regression("y", columns)
    np.testing.assert_array_equal(by_name.estimates, by_column.estimates)
    assert by_name.limits == (0.5, None)
    for fit in (regression, lambda outcome, _: tg.fit_clusters(
        f"{outcome} ~ x", data=table, cluster="site", censored_low="limit"
    )):  # fmt: skip
        with pytest.raises(ValueError, match=r"the outcome is np.exp\(y\). Give numbers in the"):
            fit("np.exp(y)", {"truncated_low": "limit"})


def test_an_offset_is_subtracted_from_the_outcome_and_its_bounds(curved):
    table = curved[0]
    with pytest.raises(ValueError, match=r"the outcome is I\(y - z\) for y, bounds are less z too"):
        tg.fit_regression("y ~ x + offset(z)", data=table, censored_low=0.5)
    fit = tg.fit_regression("I(y - z) ~ x", data=table, censored_low=0.5 - table["z"])
    x, y, z = (table[name].to_numpy() for name in "xyz")

    def loss(p):
        mean, scale = p[0] + p[1] * x + z, p[2]
        below, at = stats.norm.logcdf(0.5, mean, scale), stats.norm.logpdf(y, mean, scale)
        return -np.sum(np.where(y <= 0.5, below, at))

    best = optimize.minimize(loss, [1.0, 0.5, 1.0], method="Nelder-Mead", options={"fatol": 1e-12})
    np.testing.assert_allclose(fit.log_likelihood, -best.fun, rtol=1e-9)
    np.testing.assert_allclose(fit.estimates, best.x, rtol=1e-3)


@pytest.mark.full
def test_effects_of_functions_that_bend_far_from_zero_or_end(curved):
    year = np.linspace(2001.0, 2014.0, 90)
    table = curved[0].assign(year=year, x=year - year[0])
    fit = tg.fit_regression("y ~ np.sin(2 * np.pi * year)", data=table)
    slope = 2 * np.pi * np.cos(2 * np.pi * year) * fit.coefficients[1]
    effects = fit.margins(variables="year", average=False)
    np.testing.assert_allclose(effects.value[0], slope, rtol=1e-6, atol=1e-6)
    fit = tg.fit_regression("y ~ bs(year, df=4)", data=table)  # without values beyond the rows
    ends = fit.predict(table.assign(year=[2001.0, *year[1:-1], 2014.0 - 1e-5])).value
    last = fit.margins(variables="year", average=False).value[0, -1]
    np.testing.assert_allclose(last, (fit.predict().value[-1] - ends[-1]) / 1e-5, rtol=1e-3)
    fit = tg.fit_regression("y ~ np.sqrt(x)", data=table)
    with pytest.raises(ValueError, match="no derivative at 1 of the 90 points, .* is x = 0. Give"):
        fit.margins(variables="x")


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"variables": "C(site)[T.b]"}, r"'C\(site\)\[T.b\]' is made of 'site'. .*: say 'site'"),
        ({"variables": "X"}, "is no covariate that varies; .*; did you mean 'x'?"),
        ({"at": {"sites": "b"}}, "no covariate 'sites', but x, z, site, .*; did you mean 'site'?"),
        ({"at": {"site": "d"}}, "a category without an estimate; known: a, b, c"),
    ],
)
def test_effects_without_one_meaning_say_what_may_be_asked(curved, asked, words):
    with pytest.raises(ValueError, match=words):
        curved[2].margins(**asked)


def test_clusters_may_be_a_column_of_the_data():
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=60), "site": np.repeat([f"s{k}" for k in range(20)], 3)}
    table["y"] = 1.0 + table["x"] + rng.normal(size=60)
    design = {"constant": np.ones(60), "x": table["x"]}
    named = tg.fit_regression(
        "y", design, data=table, information="sandwich", cluster="site", progress=False
    )
    labels = tg.fit_regression(
        table["y"], design, information="sandwich", cluster=table["site"], progress=False
    )
    np.testing.assert_array_equal(named.errors, labels.errors)
    with pytest.raises(ValueError, match="fit_regression: cluster: there is no column 'place'"):
        tg.fit_regression("y", design, data=table, information="sandwich", cluster="place")


@pytest.mark.parametrize("kind", KINDS)
def test_designs_are_stored_and_read_again(kind):
    table = of_kind(rows(), kind)
    by_formula = tables.formula("~ poly(age, 2) + `home region`", table)[1]
    for design in (by_formula, tables.design(table, ["age"], {"home region": "north"})):
        again = pickle.loads(pickle.dumps(design)).encode(rows(20))
        for name, column in design.encode(rows(20)).items():
            np.testing.assert_array_equal(again[name], column)


@pytest.mark.full
def test_fits_by_formula_are_stored_and_read_again(curved):
    table, formula, fit, _ = curved
    table = table.assign(seen=table["y"] > 1.0, cluster=np.arange(90) // 3)
    clusters = tg.fit_clusters(f"y ~ {formula}", cluster="cluster", data=table)
    selection = tg.fit_selection(outcome="y ~ z", selected="seen ~ C(site)", data=table)
    for each in (fit, clusters, selection):
        again = pickle.loads(pickle.dumps(each))
        assert str(again) == str(each)
        assert str(again.predict(table[:9])) == str(each.predict(table[:9]))
        assert str(again.margins()) == str(each.margins())


@pytest.mark.parametrize("kind", KINDS)
def test_a_formula_may_have_a_constant_only(kind):
    table = of_kind(rows(), kind)
    fit = tg.fit_regression("wage ~ 1", data=table, progress=False)
    assert fit.names == ("Intercept", "sigma")
    np.testing.assert_allclose(fit.estimates[0], np.mean(rows()["wage"]), rtol=1e-12)
    np.testing.assert_allclose(fit.predict(table).value, fit.estimates[0], rtol=1e-12)


def test_each_outcome_may_have_a_formula():
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("formulaic")
    table = pandas.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=list("xyz"))
    rows, ones = tg.Observations.exact(table[["y", "z"]].to_numpy()), np.ones(40)
    by_formula = tg.fit_observations(rows, ("~ x", "~ 1"), data=table)
    by_table = tg.fit_observations(
        rows, ({"Intercept": ones, "x": table["x"]}, {"Intercept": ones})
    )
    assert by_formula.names == by_table.names
    np.testing.assert_array_equal(by_formula.estimates, by_table.estimates)
