"""Rows with labels go by these, in every function and every argument that takes rows."""

import contextlib
import dataclasses
import functools

import jax
import numpy as np
import pytest

import truncgauss as tg
from truncgauss import tables

pandas = pytest.importorskip("pandas")

RANDOM = np.random.default_rng(0)
N, LABELS = 24, [f"r{i}" for i in range(24)]
CLUSTERS = np.repeat(np.arange(6), 4)


def series(values):
    return pandas.Series(values, LABELS)


def frame(count=2, names="abcd"):
    return pandas.DataFrame(RANDOM.normal(size=(N, count)), LABELS, list(names[:count]))


def with_constant(table):
    return table.assign(constant=1.0)


Y, Z = series(RANDOM.normal(size=N)), series(RANDOM.normal(size=N))
LEVELS = series(RANDOM.integers(0, 3, N))
SEEN = series(np.arange(N) % 3 > 0)
WEIGHTS = series(RANDOM.integers(1, 4, N).astype(float))
BELOW, ABOVE = Y - RANDOM.uniform(0.5, 1, N), Y + RANDOM.uniform(0.5, 1, N)
NOISE = series(RANDOM.uniform(0.1, 0.2, N))
GROUPS = series(RANDOM.integers(0, 5, N))
X = with_constant(frame())
PAIR = pandas.DataFrame({"u": Y, "v": Z})
ROWS = {"design": X, "weights": WEIGHTS, "cluster": GROUPS}
LIMITS = {"censored_low": series(RANDOM.normal(-1, 0.1, N)), "censored_high": Y.abs() + 0.5}
ENDS = {"truncated_low": BELOW - 2.0, "truncated_high": ABOVE + 2.0}
SANDWICH = {"information": "sandwich"}


def by_sklearn(rows, weights):
    pytest.importorskip("sklearn")
    from truncgauss.sklearn import TruncatedGaussian

    return TruncatedGaussian(low=-9.0).fit(rows, sample_weight=weights)


def clusters(**rows):
    kinds = {
        "time": tg.AutoRegressive, "position": tg.Matern, "effects": tg.RandomEffects,
        "item": tg.Diagonal, "matrix": tg.Kinship,
    }  # fmt: skip
    terms = [kinds[word](rows.pop(word)) for word in kinds if word in rows]
    return tg.fit_clusters(terms=[*terms, tg.Residual()], **rows)


def observed(lower, design=None, cluster=None, **rows):
    rows = tg.Observations(lower, **rows)
    return tg.fit_observations(rows, design, cluster=cluster, information="sandwich")


@functools.cache
def fitted():
    design = {"c": np.ones(N), "a": np.asarray(X["a"])}
    return tg.fit_regression(np.asarray(Y), design, progress=False)


def predicted(new, known=None, low=None, high=None):
    known = None if known is None else tg.Observations.exact(known)
    kind = "mean" if low is None else "probability"
    return fitted().predict(new[["c", "a"]], kind, known=known, low=low, high=high).value


@functools.cache
def fitted_pair():
    """A fit of two outcomes, of which each has a design."""
    rows, designs = tg.Observations.exact(PAIR.to_numpy()), ({"a": X["a"]}, {"b": X["b"]})
    arrays = [{name: column.to_numpy() for name, column in design.items()} for design in designs]
    return tg.fit_observations(rows, tuple(arrays), progress=False)


def of_two_columns(by):
    """A function of two columns, of which the second goes by the first."""
    return lambda first, second: by({"first": first, "second": second})


# The function, its arguments that hold rows, the first of which the others go by; others.
CALLS = {
    "fit_regression": (
        tg.fit_regression, {"outcome": Y, "noise": NOISE, **ROWS, **LIMITS}, SANDWICH,
    ),
    "fit_regression, a formula": (
        tg.fit_regression, {"data": X.assign(y=Y), "scale_design": X, **ENDS}, {"outcome": "y ~ a"},
    ),
    "fit_regression, categories": (
        lambda outcome, **rows: tg.fit_regression(tg.Ordinal(outcome), **rows),
        {"outcome": LEVELS, **ROWS}, SANDWICH,
    ),
    "fit_regression, categories beside a table": (
        lambda data, outcome: tg.fit_regression(tg.Ordinal(outcome), "0 + a", data=data),
        {"data": X, "outcome": LEVELS}, {},
    ),
    "fit_selection": (
        tg.fit_selection,
        {"outcome": Y, "selected": SEEN, "selection_design": with_constant(frame(1, "z")),
         "unselected_design": X, **ROWS}, SANDWICH,
    ),
    "fit_observations": (
        observed, {"lower": PAIR, "upper": PAIR, "noise": PAIR**2, **ROWS}, {},
    ),
    "fit_observations, designs": (
        lambda lower, first, second: observed(lower, (first, second), upper=lower),
        {"lower": PAIR, "first": X, "second": X[["b", "constant"]]}, {},
    ),
    "fit_observations, mixed": (
        lambda a, b, low, high, weights, design: tg.fit_observations(
            tg.Observations.of({"a": tg.Ordinal(a), "b": b, "c": (low, high)}, weights), design
        ),
        {"a": LEVELS, "b": Y, "low": BELOW, "high": ABOVE, "weights": WEIGHTS, "design": X}, {},
    ),
    "fit_mixture": (
        lambda lower, **rows: tg.fit_mixture(tg.Observations(lower, **rows), 2),
        {"lower": PAIR, "upper": PAIR, "noise": PAIR**2, "weights": WEIGHTS}, {},
    ),
    "fit_truncated_normal": (
        tg.fit_truncated_normal,
        {"data": PAIR, "low": PAIR - 3.0, "high": PAIR + 2.0, "noise": PAIR**2 / 50,
         "weights": WEIGHTS}, {},
    ),
    "fit_clusters": (
        clusters,
        {"outcome": Y, "cluster": series(CLUSTERS), "design": X, "noise": NOISE,
         "weights": series(1.0 + CLUSTERS % 2), "position": Z, "effects": Z, **LIMITS}, {},
    ),
    "fit_clusters, a formula": (
        clusters,
        {"data": X.assign(y=Y), "cluster": series(CLUSTERS), "time": series(np.arange(N) % 4.0),
         "item": series(np.arange(N) % 4),
         "matrix": pandas.DataFrame(np.eye(N) + np.outer(Z, Z), LABELS, LABELS)},
        {"outcome": "y ~ a"},
    ),
    "fit_shift": (
        tg.fit_shift,
        {"observed": series(np.arange(N)), "num_trials": series(np.arange(N) + 50.0),
         "loc": frame()}, {"covariance": np.eye(2), "region": tg.Box([0.0, 0.0], [1.0, 1.0])},
    ),
    "fit_limits": (
        tg.fit_limits,
        {"observed": series(np.arange(N)), "num_trials": series(np.arange(N) + 50.0),
         "loc": frame()},
        {"covariance": np.eye(2), "start": {"low": [0.0, 0.0], "high": [1.0, 1.0]}},
    ),
    "simultaneous": (
        lambda y, group: tg.simultaneous(y=y, group=group, contrasts="dunnett"),
        {"y": Y, "group": GROUPS}, {},
    ),
    "polychoric": (tg.polychoric, {"x": LEVELS, "y": GROUPS, "weights": WEIGHTS}, {}),
    "polychoric, categories": (
        lambda x, y: tg.polychoric(tg.Ordinal(x), tg.Ordinal(y)), {"x": LEVELS, "y": GROUPS}, {},
    ),
    "polychoric_matrix": (
        lambda first, second: tg.polychoric_matrix([first, second]).correlations,
        {"first": LEVELS, "second": GROUPS}, {},
    ),
    "Observations.exact": (
        tg.Observations.exact, {"values": PAIR, "noise": PAIR**2, "weights": WEIGHTS}, {},
    ),
    "Observations.from_table": (
        tg.Observations.from_table,
        {"table": PAIR, "censored_low": BELOW, "noise_scale": NOISE, "weights": WEIGHTS,
         "truncated_high": ABOVE + 9.0}, {"columns": "u"},
    ),
    "Observations.from_table, ends": (
        tg.Observations.from_table, {"table": PAIR, "lower": BELOW, "upper": ABOVE},
        {"columns": "u"},
    ),
    "Observations.from_table, logarithms": (
        lambda table, marks, **rows: tg.Observations.from_table(
            table, "u", left_censored=(marks, "<"), log=True, **rows
        ),
        {"table": PAIR.abs() + 1.0, "marks": series(np.where(SEEN, "", "<")),
         "censored_high": series(RANDOM.uniform(1.2, 1.6, N) + 9.0 * ~SEEN)}, {},
    ),
    "Statistics.from_rows": (tg.Statistics.from_rows, {"rows": PAIR, "weights": WEIGHTS}, {}),
    "log_likelihood": (
        lambda rows, loc: tg.log_likelihood(tg.Observations.exact(rows), loc, np.eye(2)),
        {"rows": PAIR, "loc": frame(2, "uv")}, {},
    ),
    "quantile_residuals": (
        lambda rows, loc: tg.quantile_residuals((tg.Observations.exact(rows), loc, np.eye(2))),
        {"rows": PAIR, "loc": frame(2, "uv")}, {},
    ),
    "predict": (
        predicted,
        {"new": X.assign(c=1.0), "known": pandas.DataFrame({"y": Y})}, {},
    ),
    "predict, limits": (predicted, {"new": X.assign(c=1.0), "low": BELOW, "high": ABOVE}, {}),
    "predict, two designs": (
        lambda first, second: fitted_pair().predict((first, second)).value,
        {"first": X[["a"]], "second": X[["b"]]}, {},
    ),
    "margins": (
        lambda at, low, high: fitted().margins(
            at[["c", "a"]], "probability", low=low, high=high, average=False
        ).value,
        {"at": X.assign(c=1.0), "low": BELOW, "high": ABOVE}, {},
    ),
    "TruncatedGaussian": (
        by_sklearn, {"rows": PAIR, "weights": WEIGHTS}, {},
    ),
    "Box": (tg.Box, {"low": series(np.zeros(N)) + BELOW, "high": ABOVE}, {}),
    "tables.read": (of_two_columns(tables.read), {"first": Y, "second": Z}, {}),
    "tables.formula": (
        of_two_columns(lambda columns: tables.formula("first ~ second", columns)),
        {"first": Y, "second": Z}, {},
    ),
    "tables.aligned": (
        lambda table, values: tables.aligned(values, tables.read(table), "high"),
        {"table": PAIR, "values": PAIR + 1.0}, {},
    ),
}  # fmt: skip


class Model(Exception):
    """The model that would be fitted, and its settings."""


def numbers_of(value):
    """All arrays in a value, labels apart."""
    if isinstance(value, tables.RowLabels | type):
        return []
    if dataclasses.is_dataclass(value):
        value = {
            field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [array for part in value for array in numbers_of(part)]
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return []
    return (
        [np.asarray(value, float)] if np.asarray(value).dtype.kind in "biuf" else []
    )  # no function


@pytest.fixture
def numbers(monkeypatch):
    """A function of a call and its rows: the numbers that it reads, without the fit of them."""
    fitted(), fitted_pair()

    def stop(model, **settings):
        raise Model(model, settings)

    for name in (
        "gaussian.regression", "gaussian.observations_fit", "gaussian.truncated_normal",
        "gaussian.ordinal_fit", "polychoric.polychoric_correlations", "sample_selection",
        "clusters.cluster_fit", "fractions", "mixtures.fit",
    ):  # fmt: skip
        monkeypatch.setattr(f"truncgauss.fits.{name}.maximum_likelihood", stop)

    def read(function, rows):
        with jax.enable_x64(True):
            try:
                return numbers_of(function(**rows))
            except Model as model:
                return numbers_of(model.args)

    return read


def same(one, other):
    return len(one) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True)
        for a, b in zip(one, other)
    )


@pytest.mark.quick("tables.aligned", "tables.read")
@pytest.mark.parametrize("name", CALLS)
def test_rows_go_by_their_labels(name, numbers):
    """Shuffled, they give the same numbers; other labels are refused by name; arrays without labels
    go by position."""
    if "formula" in name or "beside" in name:
        pytest.importorskip("formulaic")
    function, rows, settings = CALLS[name]
    call = lambda **changes: numbers(function, {**rows, **settings, **changes})
    wanted, order = call(), RANDOM.permutation(N)
    others = {word: values.iloc[order] for word, values in list(rows.items())[1:]}
    assert same(call(**others), wanted)
    for word, values in others.items():
        assert same(call(**{word: values}), wanted), word
        for wrong in (values.set_axis([*values.index[1:], "other"]), values.iloc[1:]):
            if word == "matrix":  # labelled along both axes
                wrong = wrong.iloc[:, -len(wrong) :].set_axis(wrong.index, axis=1)
            with pytest.raises(ValueError, match="labelled otherwise.*'r"):
                call(**{word: wrong})
        if word in ("new", "known", "values"):
            continue  # whose columns are called by name
        in_order = rows[word].to_numpy()
        if word in ("design", "scale_design", "selection_design", "unselected_design"):
            in_order = dict(zip(values.columns, in_order.T))
        assert same(call(**{word: in_order}), wanted), word
        if word not in ("cluster", "matrix"):
            moved = {k: v[order] for k, v in in_order.items()} if isinstance(in_order, dict) else (
                in_order[order]
            )  # fmt: skip
            with contextlib.suppress(ValueError):  # for rows that contradict each other
                assert not same(call(**{word: moved}), wanted), word


def test_a_series_of_what_is_seen_gives_no_coefficient_its_name():
    data, seen = X.assign(y=Y), SEEN.rename("x")
    fit = tg.fit_selection("y ~ a", None, seen, "a + b", data=data, progress=False)
    assert fit.names[0] == "coefficients[selected][Intercept]"


def ordered(first, other):
    """The positions to which rows with these labels are brought."""
    values = pandas.Series(np.arange(len(other)), other)
    return tables.in_one_order("fit", y=pandas.Series(0.0, first), x=values)[1].to_list()


def test_labels_of_any_kind():
    days = pandas.date_range("2024-01-01", periods=3)
    pairs = pandas.MultiIndex.from_tuples([(1, 2), (2, 1), (2, 2)], names=["site", "visit"])
    for index in (pandas.Index([3, 1, 2]), days, pairs, pandas.Index(["a", None, "b"])):
        assert ordered(index, index[[2, 0, 1]]) == [1, 2, 0]
        assert ordered(index, index) == [0, 1, 2]
    assert ordered([0, 1, 2], [2.0, 0.0, 1.0]) == [1, 2, 0]  # equal numbers
    assert ordered(pairs, pairs.reorder_levels(["visit", "site"])[[1, 0, 2]]) == [1, 0, 2]
    assert ordered(["a", "a", "b"], ["a", "a", "b"]) == [0, 1, 2]
    for first, other, words in (
        ([0, 1, 2], ["0", "1", "2"], "it lacks 3 label.s. of y: 0, 1, 2, and it has others, 3"),
        (days, days.tz_localize("UTC"), "it lacks 3 label"),
        ([0, 1], [0, 1, 2], "it has others, 1 label.s.: 2"),  # never dropped
        ([0, 1, 2], [0, 1], "it lacks 1 label.s. of y: 2"),
        (["a", "a", "b"], ["a", "b", "a"], "the label 'a' is there more than once"),
    ):
        with pytest.raises(ValueError, match=f"fit: x: .* than those of y.*{words}"):
            ordered(first, other)


def test_other_tables_have_no_labels():
    values = [(1.0, 2.0), [1, 2, 3], "y ~ x", None, 2.0, {"x": [1, 2]}, ["a", "b"]]
    assert all(tables.labels_of(value) is None for value in values)
    assert tables.in_one_order("fit", **{f"x{k}": v for k, v in enumerate(values)}) == (*values,)
    polars = pytest.importorskip("polars")
    table = polars.DataFrame({"x": [1.0, 2.0, 4.0], "w": [1.0, 2.0, 3.0]})
    assert tables.labels_of(table) is None and tables.labels_of([table["x"]]) is None
    unnamed = tg.Observations.of([column.alias("") for column in table])
    assert unnamed.labels == ("0", "1")
    frame = pandas.DataFrame({"x": table["x"].to_numpy()}, ["a", "b", "c"])
    assert tables.in_one_order("fit", y=frame, w=table["w"])[1].to_list() == [1.0, 2.0, 3.0]


def test_rows_keep_their_labels():
    """As arguments of programs, and where regions or weights are replaced."""
    rows = tg.Observations.exact(PAIR)
    doubled = jax.jit(lambda rows: dataclasses.replace(rows, weights=2.0 * rows.lower[:, 0] ** 2))
    for other in (doubled(rows), dataclasses.replace(rows, region=tg.Ball([0.0, 0.0], 99.0))):
        assert other.index == tables.labels_of(PAIR)
    weighted = dataclasses.replace(rows, weights=WEIGHTS.iloc[::-1])
    np.testing.assert_array_equal(weighted.weights, WEIGHTS)
    some = dataclasses.replace(rows, lower=rows.lower[:5], upper=rows.upper[:5])
    assert some.index is None
    with pytest.raises(ValueError, match="Box: does not keep the labels of rows"):
        tg.Box(PAIR - 1.0, PAIR + 1.0)
    tg.Box((PAIR - 1.0).reset_index(drop=True), np.inf * np.ones(2))


@pytest.mark.quick("regression")
@pytest.mark.parametrize("kind", ["regression", "selection"])
def test_predictions_of_the_rows_of_a_fit_go_by_their_labels(kind):
    """What is said of the rows that were fitted is compared with their labels too."""
    order = RANDOM.permutation(N)
    data = pandas.DataFrame({"y": Y, "x": X["a"], "s": SEEN.astype(float), "z": Z})
    if kind == "regression":
        fit = tg.fit_regression("y ~ x", data=data, progress=False)
    else:
        fit = tg.fit_selection("y ~ x", selected="s ~ x + z", data=data, progress=False)
    of = lambda low: fit.predict(kind="probability", low=low, high=np.inf).value
    for low in (Y - 0.3, pandas.DataFrame({"y": Y - 0.3})):
        np.testing.assert_array_equal(of(low.iloc[order]), of(low))


def test_what_is_known_of_rows_goes_by_their_labels():
    order = RANDOM.permutation(N)
    fit = tg.fit_regression(Y, X[["constant", "a"]], progress=False)
    low, high = Y - 0.3, Y + np.inf
    expected = fit.predict(known=tg.Observations(low, high)).value
    shuffled = tg.Observations(low.iloc[order], high.iloc[order])
    np.testing.assert_allclose(fit.predict(known=shuffled).value, expected, rtol=1e-12)


def test_labels_without_a_name_or_with_one_name_twice():
    design, order = X[["constant", "a"]], RANDOM.permutation(N)
    parts = list(np.repeat(np.arange(6), 4)), list(np.tile(np.arange(4), 6))
    plain = tg.fit_regression(Y.to_numpy(), design.to_numpy(), progress=False).estimates
    for names in ([None, None], ["k", "k"], ["one", "other"]):
        index = pandas.MultiIndex.from_arrays(parts, names=names)
        y, table = (x.set_axis(index, axis=0) for x in (Y, design))
        for outcome in (y, y.iloc[order]):
            fit = tg.fit_regression(outcome, table, progress=False)
            if outcome is y:
                np.testing.assert_allclose(fit.estimates, plain, rtol=1e-10)
            assert np.isfinite(fit.estimates).all()
        if names == ["one", "other"]:
            swapped = table.swaplevel()
            fit = tg.fit_regression(y, swapped, progress=False)
            np.testing.assert_allclose(fit.estimates, plain, rtol=1e-10)


def test_labels_are_given_by_name_too():
    rows = tg.Observations(
        [1.0, 2.0, 3.0], [1.0, 2.0, 3.0], weights=pandas.Series([1.0, 2.0, 3.0], list("cba")),
        index=pandas.Index(list("abc")),
    )  # fmt: skip
    np.testing.assert_array_equal(rows.weights, [3.0, 2.0, 1.0])
    loose = {"y": [1.0, 2.0, 3.0], "limit": 0.5, "unit": "mg", "none": None}
    assert tg.Observations.from_table(loose, "y").num_rows == 3


def test_coordinates_named_in_two_orders_are_refused():
    names = ["a", "b"]
    covariance = pandas.DataFrame([[1.0, 0.5], [0.5, 4.0]], index=names, columns=names)
    loc = pandas.Series([0.0, 1.0], names)
    low, high = pandas.Series([-1.0, 0.0], names), pandas.Series([1.0, 3.0], names)
    plain = tg.Box(low.to_numpy(), high.to_numpy())
    want = tg.log_probability(loc.to_numpy(), covariance.to_numpy(), plain).log_prob
    turned = names[::-1]
    assert want == tg.log_probability(loc, covariance, tg.Box(low, high[turned])).log_prob
    assert want == tg.log_probability([0.0, 1.0], covariance, plain).log_prob
    for arguments in (
        (loc[turned], covariance, plain),
        (loc, covariance, tg.Box(low[turned], high)),
        (loc[turned], covariance.to_numpy(), tg.Box(low, high)),
        (loc, covariance.loc[turned, turned], plain),
    ):
        with pytest.raises(ValueError, match="Bring them into one order"):
            tg.log_probability(*arguments)
    with pytest.raises(ValueError, match="Bring them into one order"):
        tg.excursion(loc[turned], covariance, 0.0)
    with pytest.raises(ValueError, match="its rows are in the order"):
        tg.truncated_moments(loc, covariance.loc[turned], plain)


def truncated(loc=(0.0, 1.0), covariance=None, low=(-1.0, 0.0), **other):
    return tg.TruncatedMultivariateNormal(loc, covariance, low=low, **other)


NAMED, TURNED = pandas.Series([0.0, 1.0], ["a", "b"]), pandas.Series([0.0, -1.0], ["b", "a"])
SQUARE = pandas.DataFrame([[1.0, 0.0], [0.5, 4.0]], ["a", "b"], ["a", "b"])
SYMMETRIC = SQUARE + np.triu(SQUARE.to_numpy().T, 1)
DISTRIBUTIONS = {
    "a mean and a covariance": lambda: truncated(NAMED[["b", "a"]], SYMMETRIC),
    "a factor and limits": lambda: truncated(scale_tril=SQUARE, low=TURNED),
    "a precision and a region": lambda: truncated(
        precision_matrix=SYMMETRIC, low=None, region=tg.Box(TURNED, TURNED + 1.0)
    ),
    "a t and its limits": lambda: tg.TruncatedMultivariateStudentT(
        3.0, NAMED, SYMMETRIC, low=TURNED
    ),
    "a mixture and its limits": lambda: tg.TruncatedMixture(
        [1.0], NAMED.to_frame().T, SYMMETRIC.to_numpy()[None], low=TURNED
    ),
    "many of one coordinate": lambda: tg.TruncatedNormal(NAMED, 1.0, low=TURNED),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_refuse_names_in_two_orders(name):
    with pytest.raises(ValueError, match="Bring them into one order"):
        DISTRIBUTIONS[name]()


def test_distributions_take_tables_that_name_one_order():
    low = TURNED[["a", "b"]]
    given = truncated(NAMED, SYMMETRIC, low).log_prob(NAMED)
    assert given == truncated([0.0, 1.0], SYMMETRIC.to_numpy(), low.to_numpy()).log_prob([0.0, 1.0])


def test_noise_goes_by_the_names_of_its_columns():
    rows = pandas.DataFrame({"a": [0.5, 1.0, 2.0], "b": [0.0, 1.0, 3.0]})
    noise = pandas.DataFrame({"b": [9.0] * 3, "a": [1.0] * 3})
    matrix = pandas.DataFrame([[9.0, 0.5], [0.5, 1.0]], ["b", "a"], ["b", "a"])
    assert np.array_equal(tg.Observations(rows, rows, noise=noise).noise, np.diag([1.0, 9.0]))
    want = [[1.0, 0.5], [0.5, 9.0]]
    assert np.array_equal(tg.Observations(rows, rows, noise=matrix).noise, want)
    plain = tg.Observations(rows.to_numpy(), rows.to_numpy(), noise=noise)
    assert np.array_equal(plain.noise, np.diag([9.0, 1.0]))
    with pytest.raises(ValueError, match="Bring them into one order"):
        tg.quantile(0.9, pandas.Series([0.0, 1.0], ["a", "b"]), matrix)


AB, BA = ["a", "b"], ["b", "a"]
TABLE = pandas.DataFrame(RANDOM.normal([0.0, 10.0], [1.0, 2.0], (40, 2)), columns=AB)
OF_BOTH, MEAN = SYMMETRIC, pandas.Series([0.0, 10.0], AB)
SWAPPED = OF_BOTH.loc[BA, BA]


def likelihood_of(loc=MEAN, covariance=OF_BOTH, rows=TABLE, **settings):
    rows = tg.Observations.exact(rows, **settings)
    return tg.log_likelihood(rows, loc, covariance).log_prob


def box_of(names):
    return tg.Box(pandas.Series([-9.0, -1.0], ["a", "b"])[names], np.inf)


def corner(**arguments):
    pytest.importorskip("matplotlib")
    return tg.plotting.corner(TABLE, **arguments)


@functools.cache
def fit_of_both():
    return tg.fit_observations(tg.Observations.exact(TABLE), progress=False)


@functools.cache
def mixture_of_both():
    return tg.fit_mixture(tg.Observations.exact(TABLE), 1, progress=False)


NAMED_OTHERWISE = {
    "observations and a mean": lambda: likelihood_of(MEAN[BA], SWAPPED),
    "observations and a mean alone": lambda: likelihood_of(MEAN[BA], OF_BOTH.to_numpy()),
    "observations and a covariance": lambda: likelihood_of(MEAN.to_numpy(), SWAPPED),
    "observations and a mean, by a covariance of its own": lambda: likelihood_of(
        MEAN[BA], tg.ScaleTril(np.linalg.cholesky(OF_BOTH))
    ),
    "observations and means of a mixture": lambda: tg.mixtures.posterior(
        tg.Observations.exact(TABLE), [1.0], MEAN[BA].to_frame().T, OF_BOTH.to_numpy()[None]
    ),
    "numbers in another order": lambda: likelihood_of(
        MEAN.set_axis([1, 0]), rows=TABLE.set_axis([0, 1], axis=1)
    ),
    "other names": lambda: likelihood_of(MEAN.set_axis(["a", "c"]), OF_BOTH.to_numpy()),
    "observations and a box": lambda: tg.Observations.exact(TABLE, region=box_of(BA)),
    "a box and a mean": lambda: likelihood_of(rows=TABLE.to_numpy(), region=box_of(BA)),
    "names and noise": lambda: likelihood_of(rows=TABLE.to_numpy(), names=AB, noise=SWAPPED),
    "statistics": lambda: sum(map(tg.Statistics.from_rows, (TABLE, TABLE[BA]))),
    "a fit and what is known": lambda: fit_of_both().predict(
        known=tg.Observations.exact(TABLE[BA])
    ),
    "a fit and limits": lambda: fit_of_both().predict(
        kind="probability", low=pandas.Series([-1.0, 5.0], BA)
    ),
    "a mixture and new rows": lambda: mixture_of_both().row_log_likelihood(
        tg.Observations.exact(TABLE[BA])
    ),
    "a mixture and rows to predict": lambda: mixture_of_both().predict(
        tg.Observations.exact(TABLE[BA])
    ),
    "observations and a fixed covariance": lambda: tg.fit_observations(
        tg.Observations.exact(TABLE), covariance=SWAPPED.where(SWAPPED > 3.0)
    ),
    "draws of a figure and a mean": lambda: corner(loc=MEAN[BA], covariance=SWAPPED),
    "draws of a figure and limits": lambda: corner(high=MEAN[BA] + 50.0),
    "residuals and a mean": lambda: tg.quantile_residuals(
        (tg.Observations.exact(TABLE), MEAN[BA], SWAPPED)
    ),
    "residuals and a covariance": lambda: tg.quantile_residuals(
        (tg.Observations.exact(TABLE), MEAN.to_numpy(), SWAPPED)
    ),
    "a box and points": lambda: box_of(BA).contains(TABLE),
    "a box and points, by margins": lambda: box_of(BA).margins(TABLE),
    "the outside of a box and a mean": lambda: tg.log_probability(
        MEAN, OF_BOTH, tg.Outside(box_of(BA))
    ),
    "ellipses": lambda: tg.plotting.contours(MEAN, SWAPPED),
    "a region of a figure and a mean": lambda: tg.plotting.truncated_contours(
        MEAN, OF_BOTH, box_of(BA)
    ),
    "weights and noncentralities": lambda: tg.log_quadratic_form_tail(
        9.0, pandas.Series([1.0, 2.0], AB), 1.0, pandas.Series([1.0, 3.0], BA)
    ),
    "a box and noise": lambda: likelihood_of(
        MEAN.to_numpy(), OF_BOTH.to_numpy(), TABLE.to_numpy(), region=box_of(AB), noise=SWAPPED
    ),
}


@pytest.mark.parametrize("name", NAMED_OTHERWISE)
def test_names_in_two_orders_are_refused_wherever_they_meet(name):
    with pytest.raises(ValueError, match="has the coordinates .* Bring them into one order"):
        NAMED_OTHERWISE[name]()


WITHOUT_NAMES = {
    "Ball: center": lambda: tg.Ball(MEAN, 1.0),
    "Ellipsoid: shape_matrix": lambda: tg.Ellipsoid([0.0, 0.0], OF_BOTH),
    "Polyhedron: matrix": lambda: tg.Polyhedron(TABLE[:1].reset_index(), [0.0], [1.0]),
    "ScaleTril: matrix": lambda: tg.ScaleTril(pandas.DataFrame(np.eye(2), AB, AB)),
    "LowRank: cov_factor": lambda: tg.LowRank(pandas.DataFrame([[1.0], [2.0]], AB), [1.0, 1.0]),
    "from_matrix: covariance": lambda: tg.Directed.from_matrix(OF_BOTH),
    "Selection.probit: weights": lambda: tg.Selection.probit(MEAN, 0.0, 1.0),
    "Injections: log_draw_density": lambda: tg.Injections(
        TABLE.to_numpy(), pandas.Series(np.zeros(40), range(40, 0, -1)), 100
    ),
}


@pytest.mark.parametrize("name", WITHOUT_NAMES)
def test_labels_that_would_be_lost_are_refused(name):
    with pytest.raises(ValueError, match=f"^{name} goes by position, and would lose its labels"):
        WITHOUT_NAMES[name]()


def test_tables_without_labels_go_by_position():
    matrix = pandas.DataFrame([[2.0, 0.0], [1.0, 1.0]])
    np.testing.assert_array_equal(tg.ScaleTril(matrix).matrix, matrix)
    ball = tg.Ball(pandas.Series([1.0, 2.0]), 1.0)
    assert ball.contains(pandas.DataFrame([[1.0, 2.5], [1.0, 3.5]])).tolist() == [True, False]


def test_names_in_one_order_and_arrays_go_together():
    arrays = MEAN.to_numpy(), OF_BOTH.to_numpy(), TABLE.to_numpy()
    want = likelihood_of(*arrays)
    for parts in ((MEAN, OF_BOTH, TABLE), (*arrays[:2], TABLE), (MEAN, OF_BOTH, arrays[2])):
        assert np.array_equal(likelihood_of(*parts), want)
    np.testing.assert_allclose(likelihood_of(MEAN[BA], SWAPPED, TABLE[BA]), want, rtol=1e-12)
    plain = TABLE.set_axis([0, 1], axis=1)  # plain numbering is no name
    assert np.array_equal(likelihood_of(MEAN, OF_BOTH, plain), want)
    low = box_of(AB)
    want = likelihood_of(*arrays, region=tg.Box(low.low, low.high))
    assert np.array_equal(likelihood_of(region=low), want)


def test_fits_take_new_rows_with_their_names():
    named, plain = tg.Observations.exact(TABLE), tg.Observations.exact(TABLE.to_numpy())
    for new in (named, plain):
        np.testing.assert_allclose(fit_of_both().predict(known=new).value, TABLE)
        want = tg.log_likelihood(plain, *gaussian_of(mixture_of_both())).log_prob
        np.testing.assert_allclose(mixture_of_both().row_log_likelihood(new), want, rtol=1e-9)
    chance = lambda low: fit_of_both().predict(kind="probability", low=low).value
    assert np.array_equal(chance(pandas.Series([-1.0, 9.0], AB)), chance([-1.0, 9.0]))


def test_a_fixed_covariance_has_the_order_of_the_rows():
    covariance = OF_BOTH.where(OF_BOTH > 3.0)
    fit = tg.fit_observations(tg.Observations.exact(TABLE), covariance=covariance, progress=False)
    assert fit.covariance_matrix[1, 1] == 4.0 != fit.covariance_matrix[0, 0]


def gaussian_of(mixture):
    return mixture.locs[0], mixture.covariances[0]


def test_noise_of_exact_rows_goes_by_names():
    exact = lambda noise: tg.Observations.exact(TABLE, noise=noise).noise
    assert np.array_equal(exact(SWAPPED), OF_BOTH)
    variances = pandas.DataFrame({"b": np.arange(1.0, 41.0), "a": np.arange(41.0, 81.0)})
    want = tg.Observations.exact(TABLE.to_numpy(), noise=variances[AB].to_numpy()).noise
    assert np.array_equal(exact(variances), want)
    assert np.array_equal(exact(variances.iloc[::-1]), want)
    assert np.array_equal(exact(SWAPPED.to_numpy()), SWAPPED)


def test_a_box_of_a_fit_of_a_truncated_normal_goes_by_names(numbers):
    read = lambda region, data=TABLE: numbers(
        tg.fit_truncated_normal, {"data": data, "region": region, "progress": False}
    )
    want = read(tg.Box([-9.0, -1.0], [np.inf, np.inf]))
    assert same(read(box_of(BA)), want) and same(read(box_of(AB)), want)
    assert not same(read(tg.Box([-9.0, -0.5], np.inf)), want)
    with pytest.raises(ValueError, match="columns of the data have no names"):
        read(box_of(AB), TABLE.to_numpy())


VALUES_OF = {
    "a normal": lambda *parts: tg.TruncatedMultivariateNormal(*parts, low=-9.0),
    "a t": lambda *parts: tg.TruncatedMultivariateStudentT(3.0, *parts, low=-9.0),
    "a mixture": lambda loc, matrix: tg.TruncatedMixture(
        [1.0], loc.to_frame().T if hasattr(loc, "iloc") else loc[None],
        np.asarray(matrix)[None], low=-9.0,
    ),
    "many of one coordinate": lambda loc, _: tg.TruncatedNormal(loc, 2.0, low=-9.0),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES_OF)
def test_values_go_by_the_names_of_a_distribution(name):
    named, plain = (
        VALUES_OF[name](MEAN, OF_BOTH),
        VALUES_OF[name](MEAN.to_numpy(), OF_BOTH.to_numpy()),
    )
    want = plain.log_prob(TABLE.to_numpy())
    for distribution, value in ((named, TABLE), (named, TABLE.to_numpy()), (plain, TABLE)):
        assert np.array_equal(distribution.log_prob(value), want)
    assert np.array_equal(named.log_prob(TABLE.iloc[0]), want[0])
    copied = jax.tree.map(lambda leaf: leaf, named)
    assert np.array_equal(copied.log_prob(TABLE.to_numpy()), want)
    for value in (TABLE[BA], TABLE[BA].iloc[0]):
        with pytest.raises(ValueError, match="has the coordinates .* Bring them into one order"):
            named.log_prob(value)
        with pytest.raises(ValueError, match="keeps no names"):
            copied.log_prob(value)


BACKWARDS = slice(None, None, -1)
BETWEEN = {
    "fit_limits": lambda: tg.fit_limits(
        [48, 260, 640, 690], pandas.DataFrame({"x": [-2.0, -1.0, 0.0, 1.0]}), [[1.0]],
        {"low": [0.0], "high": [np.inf]},
        num_trials=pandas.Series([700.0, 701.0, 702.0, 703.0], [3, 2, 1, 0]),
    ),
    "fit_regression": lambda: tg.fit_regression(Y.to_numpy(), X, weights=WEIGHTS[BACKWARDS]),
    "fit_regression, a list": lambda: tg.fit_regression(
        Y.to_list(), {"a": X["a"]}, weights=WEIGHTS[BACKWARDS]
    ),
    "Observations": lambda: tg.Observations(PAIR.to_numpy(), PAIR, weights=WEIGHTS[BACKWARDS]),
    "fit_observations": lambda: tg.fit_observations(
        tg.Observations.exact(PAIR.to_numpy()), (X, X[BACKWARDS])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_rows_without_labels_beside_two_orders_are_refused(name):
    with pytest.raises(ValueError, match="labels in two orders, and .* has none"):
        BETWEEN[name]()


def test_rows_without_labels_go_by_an_index():
    rows = tg.Observations(
        PAIR.to_numpy(), PAIR.to_numpy(), index=PAIR.index, weights=WEIGHTS[BACKWARDS]
    )
    assert np.array_equal(rows.weights, WEIGHTS)


def test_statistics_keep_names(tmp_path):
    whole = sum(map(tg.Statistics.from_rows, (TABLE[:15], TABLE[15:].to_numpy())))
    assert whole.coordinate_names == ("a", "b")
    fit = lambda low: tg.fit_truncated_normal(statistics=whole, low=low, progress=False).loc
    low = pandas.Series([2.0, -9.0], BA)
    assert np.array_equal(fit(low), fit([-9.0, 2.0])) and not np.array_equal(fit(low), fit(-9.0))
    for names in (AB, BA):
        TABLE.assign(w=1.0)[[*names[:1], "w", *names[1:]]].to_csv(tmp_path / names[0], index=False)
    parts = [tg.Statistics.from_file(tmp_path / name, weights="w") for name in AB]
    with pytest.raises(ValueError, match="has the coordinates .* Bring them into one order"):
        parts[0] + parts[1]
    assert (parts[0] + tg.Statistics.from_file(tmp_path / "b", AB)).coordinate_names == ("a", "b")
