"""The table reader: strict and by name, whatever holds the numbers."""

import re

import numpy as np
import pytest

import truncgauss as tg
from truncgauss import tables
from truncgauss.words.names import closest

X, Y = [0.5, -1.0, 2.0, 0.25], [1, 2, 3, 5]
WANTED = np.column_stack([X, Y])


def structured():
    return np.array(list(zip(X, Y)), dtype=[("x", float), ("y", int)])


class Stream:
    """A DataFrame that has nothing but Arrow's stream of columns."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def pandas_frame(x=X):
    return pytest.importorskip("pandas").DataFrame({"x": x, "y": Y})


def arrow_table(x=X):
    return pytest.importorskip("pyarrow").table({"x": x, "y": Y})


def polars_frame():
    return pytest.importorskip("polars").DataFrame({"x": X, "y": Y})


def astropy_table(x=X):
    return pytest.importorskip("astropy.table").Table({"x": x, "y": Y})


HOLDERS = {
    "dictionary": lambda: {"x": X, "y": Y},
    "structured array": structured,
    "record array": lambda: structured().view(np.recarray),
    "masked records": lambda: np.ma.array(structured()),
    "pandas": pandas_frame,
    "nullable pandas": lambda: pandas_frame().convert_dtypes(),
    "pyarrow": arrow_table,
    "polars": polars_frame,
    "lazy polars": lambda: polars_frame().lazy(),
    "Arrow's stream": lambda: Stream(arrow_table()),
    "astropy": astropy_table,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_named_columns_are_read_in_the_order_asked_for(holder):
    table = HOLDERS[holder]()
    found = tables.read(table)
    assert found.names == ("x", "y")
    np.testing.assert_array_equal(found.values, WANTED)
    np.testing.assert_array_equal(tables.read(table, ["y", "x"]).values, WANTED[:, ::-1])
    with pytest.raises(ValueError, match="there is no column 'z'; there are 'x', 'y'"):
        tables.read(table, [np.str_("z")])


def gaps():
    frame = pandas_frame().convert_dtypes()
    frame.loc[1, "x"] = None
    yield "nullable pandas", frame
    yield "pyarrow", arrow_table([0.5, None, 2.0, 0.25])
    yield "Arrow's stream", Stream(arrow_table([0.5, None, 2.0, 0.25]))
    yield "pandas", pandas_frame([0.5, np.nan, 2.0, 0.25])
    masked = np.ma.array(X, mask=[False, True, False, False])
    yield "astropy", astropy_table(masked)


def masked_columns():
    return {"x": np.ma.array(X, mask=[False, True, False, False]), "y": Y}


def test_missing_values_are_missing_only_where_that_is_allowed():
    pytest.importorskip("pandas"), pytest.importorskip("pyarrow"), pytest.importorskip("astropy")
    for _, table in gaps():
        check_gap(table)


def check_gap(table):
    with pytest.raises(ValueError, match="column 'x' lacks 1 of 4 .*first in row 1"):
        tables.read(table)
    found = tables.read(table, missing=True).values
    wanted = np.where([[False, False], [True, False], [False] * 2, [False] * 2], np.nan, WANTED)
    np.testing.assert_array_equal(found, wanted)


def test_masked_values_are_missing():
    check_gap(masked_columns())
    array = np.ma.array(WANTED, mask=np.eye(4, 2, dtype=bool))
    with pytest.raises(ValueError, match="2 row.s. hold masked values, first row 0"):
        tables.read(array)
    assert np.isnan(tables.read(array, missing=True).values).sum() == 2


def test_what_stands_behind_a_mask_is_no_entry():
    cells = np.array(["0.7", "<0.5", "1.1"], object)
    table = {"y": np.ma.array(cells, mask=[True, False, False])}
    settings = dict(censoring="text")
    rows = tg.Observations.from_table(table, ["y"], missing=True, **settings)
    np.testing.assert_array_equal(rows.lower[:, 0], [-np.inf, -np.inf, 1.1])
    np.testing.assert_array_equal(rows.upper[:, 0], [np.inf, 0.5, 1.1])
    with pytest.raises(ValueError, match="row 0.* must be a number.* got an empty cell"):
        tg.Observations.from_table(table, ["y"], **settings)


class Quantity:
    """What astropy's quantities offer."""

    unit = "km / s"

    def to_value(self, unit):
        return np.array(X)


def test_a_quantity_does_not_lose_its_unit():
    with pytest.raises(ValueError, match="column 'x' is a quantity in km / s"):
        tables.read({"x": Quantity()})
    with pytest.raises(ValueError, match="low is a quantity in km / s"):
        tables.aligned(Quantity(), tables.read(np.ones((3, 2))), "low")
    units = pytest.importorskip("astropy.units")
    with pytest.raises(ValueError, match="data is a quantity in kg"):
        tables.read(np.array(X) * units.kg)
    with pytest.raises(ValueError, match="high is a quantity in kg"):
        tg.fit_truncated_normal(X, high=3.0 * units.kg)


def test_ragged_columns_texts_and_categories_are_refused_by_name():
    with pytest.raises(ValueError, match="column 'x' is no table of numbers"):
        tables.read({"x": [[1.0], [2.0, 3.0]]})
    pandas = pytest.importorskip("pandas")
    for column in (["a", "b", "a", "c"], pandas.Categorical(["a", "b", "a", "c"])):
        frame = pandas.DataFrame({"x": X, "group": column})
        with pytest.raises(ValueError, match="column 'group' holds .*text"):
            tables.read(frame)


def test_limits_are_matched_by_name():
    table = tables.read({"x": X, "y": Y})
    for given in ({"y": 9.0, "x": 3.0}, np.array([(9.0, 3.0)], [("y", float), ("x", float)])[0]):
        np.testing.assert_array_equal(tables.aligned(given, table, "high"), [3.0, 9.0])
    np.testing.assert_array_equal(tables.aligned([3.0, 9.0], table, "high"), [3.0, 9.0])
    each = tables.aligned({"y": [6.0, 7.0, 8.0, 9.0]}, table, "high", fill=np.inf)
    np.testing.assert_array_equal(each, np.column_stack([np.full(4, np.inf), [6, 7, 8, 9]]))
    with pytest.raises(ValueError, match="high: is labelled 'z', but .* called 'x', 'y'"):
        tables.aligned({"z": 1.0}, table, "high", fill=np.inf)
    with pytest.raises(ValueError, match="the columns of the data have no names"):
        tables.aligned({"x": 1.0}, tables.read(WANTED), "high")
    with pytest.raises(ValueError, match="noise: is labelled 'x'"):
        tables.aligned({"x": 1.0}, table, "noise")


def test_a_series_of_limits_goes_by_its_labels():
    pandas = pytest.importorskip("pandas")
    frame = pandas_frame()
    table = tables.read(frame)
    high = pandas.Series({"y": 9.0, "x": 3.0})
    np.testing.assert_array_equal(tables.aligned(high, table, "high"), [3.0, 9.0])
    with pytest.raises(ValueError, match="labelled 0, 1, but .* called 'x', 'y'"):
        tables.aligned(pandas.Series([3.0, 9.0]), table, "high")
    each = frame[["y", "x"]] + 1.0
    np.testing.assert_array_equal(tables.aligned(each, table, "high"), WANTED + 1.0)
    np.testing.assert_array_equal(tables.aligned(each.iloc[::-1], table, "high"), WANTED + 1.0)
    one = tables.read(frame["x"])
    np.testing.assert_array_equal(tables.aligned(frame["y"].iloc[::-1], one, "high")[:, 0], Y)
    matrix = pandas.DataFrame([[3.0, 1.0], [1.0, 2.0]], ["y", "x"], ["y", "x"])
    ordered = tables.aligned(matrix, table, "noise")  # one matrix, whose rows are columns
    np.testing.assert_array_equal(ordered, [[2.0, 1.0], [1.0, 3.0]])


def known_in_part():
    nan = np.nan
    return {
        "flux": [1.0, 0.2, 3.5, 0.1, nan],
        "colour": [0.4, 0.5, 0.6, 0.7, 0.8],
        "detected": ["yes", "no", "yes", "no", "yes"],
        "from": [0.0, 1.0, -np.inf, 2.0, nan],
        "to": [1.0, 1.0, 0.5, nan, nan],
        "faintest": [0.1, 0.1, 0.2, 0.05, 0.3],
        "error": [0.1, 0.2, 0.1, 0.3, 0.2],
        "copies": [1, 2, 1, 1, 3],
    }


def test_rows_known_in_part_come_from_a_table_by_name():
    inf = np.inf
    rows = tg.Observations.from_table(
        known_in_part(), ["flux", "size", "colour"],
        lower={"size": "from"}, upper={"size": "to"},
        left_censored={"flux": ("detected", "no")}, censored_high={"colour": 0.65},
        truncated_high={"colour": 9.0, "flux": 8.0}, truncated_low={"colour": "faintest"},
        noise_scale={"colour": "error"}, weights="copies", missing=True,
    )  # fmt: skip
    np.testing.assert_array_equal(rows.lower.T[0], [1.0, -inf, 3.5, -inf, -inf])
    np.testing.assert_array_equal(rows.upper.T[0], [1.0, 0.2, 3.5, 0.1, inf])
    np.testing.assert_array_equal(rows.lower.T[1], [0.0, 1.0, -inf, 2.0, -inf])
    np.testing.assert_array_equal(rows.upper.T[1], [1.0, 1.0, 0.5, inf, inf])
    np.testing.assert_array_equal(rows.lower.T[2], [0.4, 0.5, 0.6, 0.65, 0.65])
    np.testing.assert_array_equal(rows.upper.T[2], [0.4, 0.5, 0.6, inf, inf])
    np.testing.assert_array_equal(rows.region.high[0], [8.0, inf, 9.0])
    np.testing.assert_array_equal(
        rows.region.low.T, [[-inf] * 5] * 2 + [[0.1, 0.1, 0.2, 0.05, 0.3]]
    )
    np.testing.assert_allclose(rows.noise[:, 2, 2], [0.01, 0.04, 0.01, 0.09, 0.04])
    assert np.count_nonzero(rows.noise) == 5
    np.testing.assert_array_equal(rows.weights, [1, 2, 1, 1, 3])


def test_columns_beside_a_table_are_limits_too():
    table = {"y": [1.0, 2.0, 3.0]}
    rows = tg.Observations.from_table(table, "y", censored_low=np.array([1.5, 1.5, 3.5]))
    np.testing.assert_array_equal(rows.upper.T[0], [1.5, 2.0, 3.5])
    for argument, advice in (
        ({"censored_low": [1.5, np.nan, 0.5]}, "A row without that bound has -inf there"),
        ({"truncated_high": [np.nan, 9.0, 9.0]}, "A row without that bound has inf there"),
        ({"weights": [np.nan, 1.0, 1.0]}, "A row that does not count has 0 there"),
    ):
        with pytest.raises(ValueError, match=f"lacks 1 of 3 value.s., first in row .. {advice}"):
            tg.Observations.from_table(table, "y", **argument)
        word = next(iter(argument))
        with pytest.raises(ValueError, match=f"{word} lacks 1 of 3 .*{advice}"):
            tg.fit_regression(table["y"], np.ones((3, 1)), **argument)
    with pytest.raises(ValueError, match=r"noise_scale must be .* shape \(3,\), got \(2,\)"):
        tg.Observations.from_table(table, "y", noise_scale=[1.0, 2.0])


def test_a_level_whose_rows_do_not_count_is_left_out():
    codes = np.tile([0, 1, 2, 3, 1], 8)
    item, weights = tg.Ordinal(codes), np.where(codes == 2, 0.0, 1.0)
    rows = tg.Observations.of({"a": item}, weights)
    assert (rows.levels, rows.unused) == (((0, 1, 3),), ((2,),))
    np.testing.assert_array_equal(np.unique(rows.codes[codes == 2]), [-1])
    again = tg.Observations.of({"a": tg.Ordinal(codes[weights > 0])})
    np.testing.assert_array_equal(rows.codes[weights > 0], again.codes)


def test_as_many_rows_as_entries_have_noise_of_their_own():
    table = {"a": [0.3, -0.5], "b": [0.1, 1.0], "e": [0.5, 0.2]}
    rows = tg.Observations.from_table(table, ["a", "b"], noise_scale="e")
    np.testing.assert_allclose(rows.noise, np.array([0.25, 0.04])[:, None, None] * np.eye(2))
    rows = tg.Observations.from_table(table, ["a", "b"], noise_scale=0.5)
    np.testing.assert_allclose(rows.noise, 0.25 * np.eye(2))


def test_both_ends_of_rows_have_the_same_columns():
    with pytest.raises(ValueError, match="upper: is labelled 'x', 'z', but .* called 'x', 'y'"):
        tg.Observations({"x": X, "y": Y}, {"x": X, "z": Y})


def test_a_fit_reads_tables_by_name():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)) @ [[1.0, 0.4], [0.0, 2.0]]
    rows = rows[(rows[:, 0] > -0.5) & (rows[:, 1] < 1.0)]
    table = {"x": rows[:, 0], "y": rows[:, 1]}
    with pytest.raises(ValueError, match="column 'y' is constant"):
        tg.fit_truncated_normal(table | {"y": np.ones(len(rows))})
    with pytest.raises(ValueError, match="column 'y' holds text"):
        tg.fit_truncated_normal(table | {"y": ["a"] * len(rows)})
    with pytest.raises(ValueError, match="column 'y' lacks 1 of"):
        tg.fit_truncated_normal(table | {"y": np.where(rows[:, 1] == rows[3, 1], np.nan, 0.5)})


def stored(folder):
    """One table in three files."""
    columns = {"x": np.array(X), "y": np.array(Y), "kind": np.array(["a", "b", "a", "a"])}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values()))]
    (folder / "t.csv").write_text("\n".join(lines), "utf-8")
    np.savez(folder / "t.npz", **columns)
    return columns


@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet"])
def test_columns_of_files(tmp_path, name):
    columns = stored(tmp_path)
    if name == "t.parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pytest.importorskip("pyarrow").table(columns)
        parquet.write_table(table, tmp_path / name, row_group_size=1)
    path = tmp_path / name
    assert tables.header(path) == ["x", "y", "kind"]
    found = tables.from_file(path, ["y", "x"], {"kind": "a"}, text=["kind"])
    np.testing.assert_array_equal(found["x"], [0.5, 2.0, 0.25])
    np.testing.assert_array_equal(found["y"], [1.0, 3.0, 5.0])
    assert list(found["kind"]) == ["a", "a", "a"]
    single = tables.from_file(path, "x", text="kind")
    assert list(single) == ["x", "kind"] and np.array_equal(single["x"], X)
    for where, rows in ((None, X), ({"kind": "a"}, found["x"])):
        parts = [tables.from_file(path, ["x"], where, part=(i, 3))["x"] for i in range(3)]
        assert all(map(len, parts))
        np.testing.assert_array_equal(np.concatenate(parts), rows)
    with pytest.raises(ValueError, match="3 row.s. to fit cannot be divided into 4 parts"):
        tables.from_file(path, ["x"], {"kind": "a"}, part=(0, 4))
    with pytest.raises(ValueError, match="no row to fit.* kind: known: a, b"):
        tables.from_file(path, ["x"], {"kind": "zzz"})
    with pytest.raises(ValueError, match="column 'z' is not in the header; known: x, y, kind"):
        tables.from_file(path, ["z"])
    with pytest.raises(ValueError, match="column 'kind'.* not numbers|must be a number, got 'a'"):
        tables.from_file(path, ["kind"])


def test_missing_cells_of_files(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,2\nNA,3\n,4\n", "utf-8")
    found = tables.from_file(tmp_path / "t.csv", ["x"], missing=["NA", ""])["x"]
    np.testing.assert_array_equal(found, [1.0, np.nan, np.nan])
    with pytest.raises(ValueError, match="t.csv:4: column 'x' must be a number, got an empty cell"):
        tables.from_file(tmp_path / "t.csv", ["x"], missing=["NA"])
    np.savez(tmp_path / "t.npz", x=[1.0, np.nan])
    with pytest.raises(ValueError, match="column 'x' lacks 1 of 2"):
        tables.from_file(tmp_path / "t.npz", ["x"])
    (tmp_path / "no.npz").write_text("x\n1\n")
    with pytest.raises(ValueError, match="is not an NPZ file"):
        tables.header(tmp_path / "no.npz")


def test_limits_as_laboratories_write_them():
    inf = np.inf
    cells = ["0.7", "<0.5", "≤ 0.4", "> 100", ">=90", "nd", "ND", "<LOD", "", 2.5]
    columns = {"lead": cells, "limit": np.arange(10.0)}
    rows = tg.Observations.from_table(
        columns, "lead", censored_low="limit", censoring="text", missing=True
    )
    lower = [0.7, -inf, -inf, 100.0, 90.0, -inf, -inf, -inf, -inf, -inf]
    upper = [0.7, 0.5, 0.4, inf, inf, 5.0, 6.0, 7.0, inf, 9.0]
    np.testing.assert_array_equal(rows.lower.T[0], lower)
    np.testing.assert_array_equal(rows.upper.T[0], upper)
    read = lambda column, **more: tg.Observations.from_table({"x": column}, "x", **more)
    for column, more, sentence in (
        (["1", "<2"], {}, "There is '<2': This is a censored value, not a missing one"),
        (["1", "nd"], {"censoring": "text"}, "row 1 is 'nd', not detected, but nothing says"),
        (["1", ""], {"censoring": "text"}, "row 1 must be a number, .* got an empty cell"),
        (["1", "<inf"], {"censoring": "text"}, "row 1 must be a number, .* got '<inf'"),
        (["1", "1_0"], {"censoring": "text"}, "row 1 must be a number, .* got '1_0'"),
        ([1.0], {"censoring": "cells"}, '"text", where cells such as <0.5 do; got .cells.'),
    ):
        with pytest.raises(ValueError, match=sentence):
            read(column, **more)


QUALIFIED = "1.0 U,1.0U,2 UJ,<2 U,ND 3,nd<3,ND (3),3 ND,4J,4.5e1 J,nd,U".split(",")


def test_letters_of_laboratories_are_read_where_that_is_asked_for():
    inf = np.inf
    cells = [*QUALIFIED, "0.2"]
    read = lambda cells, **more: tg.Observations.from_table({"x": cells}, "x", **more)
    rows = read(cells, censoring="text", not_detected=0.5)
    upper = [1, 1, 2, 2, 3, 3, 3, 3, 4, 45, 0.5, 0.5, 0.2]
    exact = np.isin(np.arange(13), [8, 9, 12])
    np.testing.assert_allclose(rows.upper.T[0], upper, rtol=1e-7)
    np.testing.assert_array_equal(rows.lower.T[0], np.where(exact, rows.upper.T[0], -inf))
    rows = read(cells, censoring="text", censored_low=0.5)  # numbers at or below it too
    assert np.isneginf(rows.lower[-1, 0]) and rows.upper[-1, 0] == 0.5
    column = np.where(np.isin(cells, ["nd", "U"]), 0.5, np.nan)  # which others need not have
    np.testing.assert_allclose(
        read(cells, censoring="text", not_detected=column).upper.T[0], upper, rtol=1e-7
    )
    for cell in QUALIFIED[:-2]:  # whatever else is in the column
        with pytest.raises(ValueError, match="may be a laboratory's qualifier|Write the number al"):
            read(["1", cell])
        with pytest.raises(ValueError, match="may be a laboratory's qualifier|Write the number al"):
            read(np.array([1.5, cell], object))
    for cell in ("<4 J", "4 B", "4 J+", "4 u", "4 j", "4 mg", "\u0664 U", "4 U 5", "J"):
        with pytest.raises(ValueError, match="row 1 must be a number, or censored"):
            read(["1", cell], censoring="text")
    for more, message in (
        ({"censoring": "text"}, "row 1 is 'nd', not detected, but nothing says"),
        ({"censoring": "text", "not_detected": [np.nan, np.nan]}, "row 1 is 'nd', not detected"),
        ({"censoring": "text", "censored_low": -inf}, "row 1 is 'nd', not detected"),
        ({"not_detected": 0.5}, 'not_detected is for cells such as "nd"'),
    ):
        with pytest.raises(ValueError, match=message):
            read(["1", "nd"], **more)
    with pytest.raises(ValueError, match="column 'x' is infinite in row 1"):
        read([1.0, inf])


@pytest.mark.parametrize(
    "cell, sentence",
    [
        ("1,634", "It is 1634 where commas stand between thousands, and 1.634 where"),
        ("-1,634", "It is -1634 where commas stand between thousands, and -1.634 where"),
        ("1,634 mg", "It is 1634 mg where commas stand between thousands, and 1.634 mg where"),
        ("1,5 U", "Write decimals with a point, 1.5 U."),
        ("0,634", "Write decimals with a point, 0.634."),
        ("1634,500", "Write decimals with a point, 1634.500."),
        ("1,634,500", "without signs between thousands, 1634500."),
        ("1,634.5", "without signs between thousands, 1634.5."),
        ("1.634,5", "without signs between thousands, 1634.5."),
        ("1 634,5", "without signs between thousands, 1634.5."),
        ("1\u00a0634", "without signs between thousands, 1634."),
        ("1'634", "without signs between thousands, 1634."),
        ("1_634", "without signs between thousands, 1634."),
        ("\u22121.5", "hyphen and its spaces as plain ones, -1.5."),
        ("1.5D3", "Write Fortran's exponent with e, 1.5e3."),
        ("1.5d-03", "Write Fortran's exponent with e, 1.5e-03."),
        ("1.5 \u00d7 10\u207b\u00b3", "Write the power of ten with e, 1.5e-3."),
        ("1.5x10^3", "Write the power of ten with e, 1.5e3."),
        ("5%", "Write 5, or 0.05 as a share, for all rows alike."),
        ("1.5e3 mg", "Write the number without its unit, 1.5e3."),
        ("5k", "if it multiplies the number, as k does, or is a laboratory's qualifier"),
        ("0.5 R", "If R is a unit, write the number without it, 0.5; if it"),
        ("0.5 U", "U may be a laboratory's qualifier: not detected at that number, so that"),
        ("0.5 UJ", "UJ may be a laboratory's qualifier: not detected, below a number that is es"),
        ("0.5 J", "J may be a laboratory's qualifier: detected, and the number an estimate"),
        ("0x1F", "It holds a number, so it is not missing: write one number alone"),
        ("5-7", "It holds a number, so it is not missing: write one number alone"),
        ("3 of 5", "It holds a number, so it is not missing: write one number alone"),
        ("$1.5", "It holds a number, so it is not missing: write one number alone"),
    ],
)
def test_no_advice_on_a_cell_makes_another_number_of_it(cell, sentence, tmp_path):
    path = tmp_path / "t.csv"
    for rows in (["1", cell], [cell, "1"]):  # also where units could be
        path.write_text("\n".join(["x;y", *(f"{row};1" for row in rows)]) + "\n", "utf-8")
        with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
            tables.from_file(path, ["x"])
        assert "units_row" not in str(caught.value) and "missing: [" not in str(caught.value)
    with pytest.raises(ValueError, match="of column '[xy]' it holds "):
        path.write_text(f"x;y\n{cell};2\n1;2\n{cell};2\n", "utf-8")
        tables.from_file(path, ["x", "y"], units_row=True)


def test_a_word_for_missing_numbers_is_no_letters(tmp_path):
    (tmp_path / "t.csv").write_text("x;y\n1.5;1\nA;2\n", "utf-8")
    for missing in ("NA", {"x": "NA"}):
        with pytest.raises(ValueError, match="'A'"):
            tables.from_file(tmp_path / "t.csv", ["x"], missing=missing)
    assert np.isnan(tables.from_file(tmp_path / "t.csv", "x", missing="A")["x"][1])


@pytest.mark.parametrize("cell", ["1e5", "1.5E+03", " 2.5 ", "+1", ".5", "5.", "\u00a03\u00a0"])
def test_numbers_as_programs_write_them_are_read(cell, tmp_path):
    (tmp_path / "t.csv").write_text(f"x;y\n{cell};1\n", "utf-8")
    assert tables.from_file(tmp_path / "t.csv", ["x"])["x"] == float(cell)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "utf-8-sig"]
)
def test_the_encoding_of_a_file_is_said_by_its_mark(encoding, tmp_path):
    text, path = "x;\u00b5\n1;2\n", tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    if encoding == "utf-8-sig":
        assert tables.from_file(path, ["x"])["x"] == 1.0
        return
    with pytest.raises(ValueError, match="is not a text in UTF-8: it ") as caught:
        tables.header(path)
    advised = re.search(r"iconv -f (\S+) -t", str(caught.value))[1]
    assert path.read_bytes().decode(advised) == text


def test_covariates_of_measurements_as_texts_are_no_categories():
    table = {"y": np.arange(12.0), "x": [f"{i},634" for i in range(1, 13)]}
    for first in (None, "1.0 U", "1.5D3"):
        if first:
            table["x"] = [first, *(f"{i}.5" for i in range(11))]
        with pytest.raises(ValueError, match="the covariate 'x' holds numbers stored as texts"):
            tables.formula("y ~ x", table)
        with pytest.raises(ValueError, match="the outcome 'x' holds '1.* not a number. "):
            tables.formula("x ~ y", table)


def test_a_row_of_units_is_no_data(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\nm,\n1,2\n3,4\n5,6\n", "utf-8")
    assert tables.units(path) == {"x": "m", "y": ""}
    np.testing.assert_array_equal(tables.from_file(path, ["x"], units_row=True)["x"], [1, 3, 5])
    parts = [tables.from_file(path, ["y"], part=(i, 2), units_row=True)["y"] for i in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(parts), [2, 4, 6])
    assert tables.location(path, 1, part=(1, 2), units_row=True) == f"{path}:5"
    for row in ("0.5 U;2", "<1;2", "3;4"):
        (tmp_path / "data.csv").write_text(f"x;y\n{row}\n1;2\n", "utf-8")
        with pytest.raises(ValueError, match="`units_row` says .* but of column 'x' it holds '"):
            tables.from_file(tmp_path / "data.csv", ["x"], units_row=True)
    for name, got in (("x", "'m'"), ("y", "''")):
        with pytest.raises(
            ValueError,
            match=f"t.csv:2: column '{name}' must be a number, got {got}. If this row holds units",
        ):
            tables.from_file(path, [name])


def test_logarithms_are_of_values_and_limits_and_keep_the_names():
    table = {"a": ["<0.5", "2", "", ">8"], "b": [1.0, 4.0, 2.0, 3.0], "w": 1.0}
    rows = tg.Observations.from_table(
        table, ["a", "b"], censoring="text", missing=True, log="a", truncated_high={"a": 16.0}
    )
    assert rows.labels == ("log(a)", "b")
    ends = -np.inf, np.log(2.0), -np.inf, np.log(8.0)
    np.testing.assert_allclose(rows.lower[:, 0], ends)
    np.testing.assert_allclose(rows.upper[:, 0], [np.log(0.5), np.log(2.0), np.inf, np.inf])
    np.testing.assert_array_equal(rows.lower[:, 1], table["b"])
    np.testing.assert_allclose(rows.region.high, [np.log(16.0), np.inf])
    assert np.isneginf(rows.region.low).all()
    with pytest.raises(ValueError, match="outcome 'b' is 0 in row 0 and has no logarithm"):
        tg.Observations.from_table({"b": [0.0, 1.0]}, "b", log=True)
    with pytest.raises(ValueError, match="log names 'c', but the entries are 'b'"):
        tg.Observations.from_table(table, "b", log=["c"])
    with pytest.raises(ValueError, match="errors of the outcome are no errors of its log"):
        tg.Observations.from_table(table, "b", log=True, noise_scale=0.1)


def test_names_of_pairs_are_meant_in_either_order():
    names = ["covariance[lead, lead]", "covariance[zinc, lead]", "covariance[zinc, zinc]"]
    assert closest("covariance[lead, zinc]", names) == "covariance[zinc, lead]"
    assert closest("Covariance[zinc, zink]", names) == "covariance[zinc, zinc]"


def test_a_file_that_is_not_there_is_refused_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("none.csv", "none.npz", "none.parquet"):
        with pytest.raises(FileNotFoundError, match=f"looked in {tmp_path}: '{name}'"):
            tables.from_file(name, ["flux"])
