"""Every experiment, reduced, from its settings to its picture, against values from elsewhere."""

import pathlib

import jax
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm

from truncgauss import tables
from truncgauss.runs import config
from truncgauss.runs import results as results_of_runs

ROOT = pathlib.Path(__file__).parents[1]


def settings(name, **changes):
    """The settings that an experiment comes with, some of them changed and checked again."""
    shipped = config.load(ROOT / "configs" / f"{name}.yaml")
    given = shipped.model_dump() | changes
    return type(shipped).model_validate(given)


def completed(name, **changes):
    """Results as the command line hands them to `plot`, and the picture."""
    results = config.function(name, "run")(settings(name, **changes))
    results = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, results)
    results = results_of_runs.as_stored(results)
    return results, config.function(name, "plot")(results)


def check_picture(picture):
    """Axes are labelled, no legend lies on any of them, nothing is cut off."""
    renderer = FigureCanvasAgg(picture).get_renderer()
    picture.draw(renderer)
    legends = [ax.get_legend() for ax in picture.axes if ax.get_legend()]
    legends += [legend for part in (picture, *picture.subfigs) for legend in part.legends]
    assert legends
    for ax in picture.axes:
        joined = ax.get_shared_y_axes().joined
        assert any(x.get_ylabel() for x in picture.axes if x is ax or joined(ax, x))
        extent = ax.get_window_extent(renderer)
        assert not any(legend.get_window_extent(renderer).overlaps(extent) for legend in legends)
    everything, (width, height) = picture.get_tightbbox(renderer), picture.get_size_inches()
    assert everything.x0 >= 0 and everything.x1 <= width
    assert everything.y0 >= 0 and everything.y1 <= height


# ---------------------------------------------------------------- selected_sample


def iris(species="setosa"):
    lines = (ROOT / "experiments" / "data" / "iris.csv").read_text().splitlines()[1:]
    rows = [line.split(",") for line in lines]
    return np.array([row[:4] for row in rows if species in (None, row[4])], float)


def test_the_flowers_are_fishers():
    flowers = iris(None)
    assert flowers.shape == (150, 4)
    # The means and standard deviations in scikit-learn's description, and R's summary(iris).
    np.testing.assert_allclose(flowers.mean(0), [5.843333, 3.057333, 3.758, 1.199333], atol=1e-6)
    spread = [0.828066, 0.435866, 1.765298, 0.762238]
    np.testing.assert_allclose(flowers.std(0, ddof=1), spread, atol=1e-6)
    np.testing.assert_array_equal(flowers[[34, 37]], [[4.9, 3.1, 1.5, 0.2], [4.9, 3.6, 1.4, 0.1]])


SMALL = {"num_resamples": 4}


@pytest.mark.full
def test_selected_sample_in_one_column():
    limits = {"low": (-np.inf,), "high": (5.45,)}
    results, picture = completed(
        "selected_sample", columns=("sepal_length",), limits=limits, **SMALL
    )
    lengths = iris()[:, 0]
    seen = lengths[lengths < 5.45]
    assert results["failed"] == "" and results["seen"].sum() == len(seen) == 45
    assert results["naive"]["loc"][0] == pytest.approx(seen.mean())
    assert results["full"]["loc"][0] == pytest.approx(5.006)

    # Cohen's equation of the maximum: var = s^2 + D (h - mean), mean = m + ..., by bisection in xi.
    gap, variance = 5.45 - seen.mean(), seen.var()

    def excess(xi):  # xi = (h - loc) / scale
        ratio = norm.pdf(xi) / norm.cdf(xi)
        return (1 - ratio * (xi + ratio)) / (xi + ratio) ** 2 - variance / gap**2

    xi = brentq(excess, -5, 10, xtol=1e-14)
    scale = gap / (xi + norm.pdf(xi) / norm.cdf(xi))
    assert results["corrected"]["loc"][0] == pytest.approx(5.45 - xi * scale, rel=1e-8)
    assert results["corrected"]["covariance"][0, 0] == pytest.approx(scale**2, rel=1e-7)
    assert results["corrected"]["fraction"] == pytest.approx(norm.cdf(xi), rel=1e-8)
    check_picture(picture)


@pytest.mark.slow
def test_selected_sample_in_two_columns():
    results, picture = completed("selected_sample", **SMALL)
    flowers = iris()[:, :2]
    low, high = np.full(2, -np.inf), np.array([5.45, 3.85])
    seen = flowers[np.all(flowers < high, axis=1)]
    np.testing.assert_allclose(results["naive"]["loc"], seen.mean(0))
    np.testing.assert_allclose(results["naive"]["loc"], [4.907143, 3.323810], atol=1e-6)
    np.testing.assert_allclose(results["full"]["loc"], [5.006, 3.428])
    np.testing.assert_allclose(results["corrected"]["loc"], [4.979735, 3.411377], atol=1e-6)

    def log_likelihood(loc, covariance):
        inside = multivariate_normal.cdf(high, loc, covariance, lower_limit=low, abseps=1e-10)
        return multivariate_normal.logpdf(seen, loc, covariance).sum() - len(seen) * np.log(inside)

    fit = results["corrected"]
    best = log_likelihood(fit["loc"], fit["covariance"])
    assert fit["log_likelihood"] == pytest.approx(best, abs=1e-6)
    ends, row = results["profile"]["loc[sepal_width]"], results["summary"][3]
    assert ends[0] < 3.428 < ends[1]  # of all rows
    told = f"3.3238 3.4114 ± {results['resampled']['stderr'][1]:.4f} [{ends[0]:.4f}, {ends[1]:.4f}]"
    assert " ".join(row.split()) == f"sepal_width {told} 3.4280"
    assert len(results["profile"]) == 5 and results["summary"][7].endswith(" 0.1437")
    assert "bootstrap standard error (4 samples)" in results["summary"][8]
    wald = results["corrected"]["stderr"]  # which is not to be used, and so not shown
    assert not any("Wald" in line or f"± {wald[1]:.4f}" in line for line in results["summary"])
    for j in range(2):  # one standard error away along either axis it is lower, by 0.5 or more
        for sign in (-1, 1):
            loc = fit["loc"] + sign * fit["stderr"][j] * np.eye(2)[j]
            assert log_likelihood(loc, fit["covariance"]) < best - 0.4
    check_picture(picture)


def csv(folder, text, name="my.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8-sig")
    return path


@pytest.mark.full
def test_a_table_of_ones_own(tmp_path):
    rows = "\n".join(f"{x};x{i}" for i, x in enumerate([0.2, 0.9, 1.1, 0.4, 1.6, 0.3, 0.8, 1.2]))
    path = csv(tmp_path, f"flux;name\n{rows}\n\n")
    results, picture = completed(
        "selected_sample", data=path, columns=("flux",), where={}, unit="",
        limits={"low": (0.0,), "high": (np.inf,)}, **SMALL,
    )  # fmt: skip
    assert "full" not in results and results["seen"].all()
    assert results["corrected"]["loc"][0] < results["naive"]["loc"][0]
    assert not any("all 8" in line for line in results["summary"])
    check_picture(picture)


def test_without_resamples_no_error_is_reported_of_them():
    limits = {"low": (-np.inf,), "high": (5.45,)}
    results, _ = completed(
        "selected_sample", columns=("sepal_length",), limits=limits, num_resamples=0
    )
    assert not any("nan" in line or "bootstrap" in line for line in results["summary"])
    values = results_of_runs.outcome(results)["values"]
    assert values["estimates/loc[sepal_length]"] == results["corrected"]["loc"][0]
    variance = results["corrected"]["covariance"][0, 0]
    assert values["estimates/sigma"] == pytest.approx(np.sqrt(variance), rel=1e-12)


UNREADABLE = [  # a table, the rows that are asked for, and what is said
    ("fluxx,b\n1,2\n", {}, "column 'flux' is not in the header; did you mean 'fluxx'"),
    ("flux,flux\n1,2\n", {}, "column 'flux' is 2 times in the header; rename"),
    ("flux,b\n1,2\nlow,3\n", {}, r"my.csv:3: column 'flux' must be a number, got 'low'"),
    ("flux,b\n1,2\n,3\n", {}, r"my.csv:3: column 'flux' must be a number, got an empty cell"),
    ("flux,b\nnan,2\n", {}, r"my.csv:2: column 'flux' must be a number, got 'nan'"),
    ("flux,b\n1,2\n1\n", {}, r"my.csv:3: 1 cells, but the header has 2"),
    ("flux,b\n1,2\n", {"b": "3"}, "gives. b: known: 2"),
    ("flux,b\n", {}, "no row to fit"),
    ("", {}, "is empty"),
]


def test_a_table_that_cannot_be_read_or_fitted(tmp_path):
    for text, where, message in UNREADABLE:
        with pytest.raises(ValueError, match=message):
            tables.from_file(csv(tmp_path, text), ("flux",), where)
    (tmp_path / "my.csv").write_bytes(b"flux\xb5\n1\n")
    with pytest.raises(ValueError, match="not a text in UTF-8: it holds the byte b5, which is 'µ'"):
        tables.from_file(tmp_path / "my.csv", ("flux",), {})
    limits = {"low": (50.0,), "high": (60.0,)}
    with pytest.raises(ValueError, match="None of the 50 observations lies inside the bounds"):
        completed("selected_sample", columns=("sepal_width",), limits=limits)
    path = csv(tmp_path, "flux\n0.2\n0.9\n-0.3\n0.8\n0.4\n")  # a stray row
    given = {"data": path, "columns": ("flux",), "where": {}, "unit": "", "complete": False}
    limits = {"low": (0.0,), "high": (np.inf,)}
    with pytest.raises(ValueError, match="1 of 5 observations lie outside the bounds, first row 2"):
        completed("selected_sample", limits=limits, **given, **SMALL)


HEADERS = {
    "fluxx,kind": "2:11: columns[0]: column 'flux' is not in the header; did you mean 'fluxx'?",
    "flux;knd": "3:15: where.kind: column 'kind' is not in the header; did you mean 'knd'?",
    "": "5:7: data: ",
}


def test_the_header_of_the_data_is_read_when_a_config_is_checked(tmp_path):
    shipped = (ROOT / "configs" / "selected_sample.yaml").read_text().splitlines()
    changed = ("data:", "columns:", "where:", "limits:", "  low:", "  high:", "#", "experiment:")
    head = [
        "experiment: selected_sample", "columns: [flux]", "where: {kind: a}",
        "limits: {low: [0.0], high: [.inf]}", "data: my.csv",
    ]  # fmt: skip
    lines = head + [line for line in shipped if not line.startswith(changed)]
    (tmp_path / "my.yaml").write_text("\n".join(lines) + "\n")
    for header, message in HEADERS.items():
        csv(tmp_path, f"{header}\n1,a\n" if header else "")
        with pytest.raises(config.ConfigError) as caught:
            config.load(tmp_path / "my.yaml")
        assert f"my.yaml:{message}" in str(caught.value), header
        assert header or "my.csv is empty." in str(caught.value)


# ---------------------------------------------------------------- shift_curve


@pytest.mark.full
def test_shift_curve():
    results, picture = completed(
        "shift_curve", shift={"start": -6.0, "stop": 6.0, "num": 49}, num_samples=(500, 8000),
        num_repeats=1,
    )  # fmt: skip
    assert results["failed"] == ""
    x, curves = results["shift"], results["curves"]
    np.testing.assert_allclose(curves["exact"]["value"], norm.cdf(x), rtol=1e-13)
    np.testing.assert_allclose(curves["exact"]["gradient"], norm.pdf(x), rtol=1e-12)
    # exp(-100 m) overflows for the lowest samples.
    assert 0 < curves["naive"]["gradient_not_finite"] < 49
    core = np.abs(x) <= 2
    for name, n in (("tanh 500", 500), ("tanh 8,000", 8000)):
        curve = curves[name]
        assert np.isfinite(curve["value"]).all() and np.isfinite(curve["gradient"]).all()
        spread = np.sqrt(norm.cdf(x) * norm.sf(x) / n)[core]
        np.testing.assert_allclose(curve["value_stderr"][core], spread, rtol=0.5)
        assert np.all(np.abs(curve["value"] - norm.cdf(x))[core] < 4.5 * spread)
        # A logistic edge of steepness k leaves a mean square slope of k/6 times the density.
        spread = np.sqrt(norm.pdf(x) * 100 / 6 / n)[core]
        assert np.all(np.abs(curve["gradient"] - norm.pdf(x))[core] < 4.5 * spread)
    naive, tanh = curves["naive"], curves["tanh 500"]
    np.testing.assert_allclose(naive["value"], tanh["value"], rtol=1e-9, atol=1e-300)
    # Hard forward: multiples of 1/500. Gentle backward: nearer to the truth than the steep slope.
    hard = curves["surrogate"]["value"] * 500
    np.testing.assert_allclose(hard, np.round(hard), atol=1e-6)
    assert curves["surrogate"]["gradient_core_error"] < tanh["gradient_core_error"]
    check_picture(picture)


@pytest.mark.slow
def test_two_devices_give_the_experiments_of_one():
    few = {"shift": {"start": -1.0, "stop": 1.0, "num": 3}, "num_samples": (400,), "num_repeats": 1}
    run = config.function("shift_curve", "run")
    one, two = (run(settings("shift_curve", devices=n, **few))["curves"] for n in (1, 2))
    for key in ("value", "gradient", "value_stderr", "gradient_stderr"):
        np.testing.assert_allclose(one["tanh 400"][key], two["tanh 400"][key], rtol=1e-12)
    run = config.function("fit_limits", "run")
    one, two = (run(settings("fit_limits", devices=n, num_repeats=0)) for n in (1, 2))
    for name in ("shift", "limits"):
        np.testing.assert_allclose(one[name]["params"], two[name]["params"], rtol=1e-9)


# ---------------------------------------------------------------- fit_limits


@pytest.mark.full
def test_fit_limits():
    results, picture = completed("fit_limits", num_repeats=1)
    assert results["failed"] == ""
    for name, size in (("shift", 1), ("limits", 2)):
        result = results[name]
        assert result["params"].shape == (size,)
        assert np.all(np.abs(result["pull"]) < 4) and np.all(np.abs(result["pulls"]) < 4)
        assert np.all(np.abs(result["residual"]) < 4.5)
        assert np.all(np.diff(result["loss"]) < 1e-12) and result["loss"][-1] >= 0
    # The information of independent binomial counts, by hand.
    low, high = np.array([[box.low[0], box.high[0]] for box in settings("fit_limits").regions]).T
    shift = results["shift"]["params"][0]
    p = norm.cdf(high - shift) - norm.cdf(low - shift)
    slope = norm.pdf(low - shift) - norm.pdf(high - shift)
    information = np.sum(500 * slope**2 / (p * (1 - p)))
    np.testing.assert_allclose(results["shift"]["fitted"], p, rtol=1e-9)
    assert results["shift"]["stderr"][0] == pytest.approx(information**-0.5, rel=1e-5)
    locs = np.array(settings("fit_limits").populations)[:, 0]
    low, high = results["limits"]["params"]
    p = norm.cdf(high - locs) - norm.cdf(low - locs)
    slopes = np.stack([-norm.pdf(low - locs), norm.pdf(high - locs)])
    information = slopes * 500 / (p * (1 - p)) @ slopes.T
    expected = np.sqrt(np.diagonal(np.linalg.inv(information)))
    np.testing.assert_allclose(results["limits"]["stderr"], expected, rtol=1e-5)
    # One count tells no two limits; a region from -1.5 to 0.5 is its own mirror image about -0.5.
    assert np.all(np.isinf(results["unanswered"]["limit_errors"]))
    both = results["unanswered"]["shift"][0] + results["unanswered"]["mirrors"][:, 0]
    np.testing.assert_allclose(both, [-1.0], atol=1e-5)
    check_picture(picture)


def test_fit_limits_asks_for_one_dimension_throughout():
    with pytest.raises(ValueError, match="must be one number"):
        settings("fit_limits", populations=((0.0,), (1.0, 2.0)))


# ---------------------------------------------------------------- bump_width


@pytest.mark.full
def test_bump_width():
    results, picture = completed(
        "bump_width", widths=(0.1, 2.0), starts=(0.9, 12.0),
        curve={"start": 0.5, "stop": 8.0, "num": 5},
    )  # fmt: skip
    assert results["failed"] == ""
    assert [str(dtype) for dtype in results["dtypes"]] == ["float32", "float64"]
    assert results["error"].shape == (2, 2, 2)
    assert results["error"][0].max() < 1e-4
    assert results["error"][1].max() < 1e-8
    # From 0.001 no input lies inside: the honest answer is the start.
    assert results["stranded"] == pytest.approx(1e-3, rel=1e-12)
    curves = results["curves"]
    x = curves["x"]
    np.testing.assert_allclose(x, [0.5, 1.0, 2.0, 4.0, 8.0])
    np.testing.assert_array_equal(curves["value"][0], np.zeros(5))
    expected = [np.exp(-1 / (1 - 0.25**2)), np.exp(-1 / (1 - 0.5**2)), 0.0, 0.0, 0.0]
    np.testing.assert_allclose(curves["value"][1], expected, rtol=1e-14)
    # d/dx exp(-1/(1 - u^2)) = -2u / (width (1 - u^2)^2) times the value.
    assert curves["slope"][1][1] == pytest.approx(-2 * 0.5 / (2 * 0.75**2) * expected[1], rel=1e-13)
    check_picture(picture)


@pytest.mark.full
def test_the_traps_of_the_truncated_normal_are_survived():
    from experiments.special_functions import run as special_functions

    found = special_functions.traps(seed=1)
    assert len(found) == 14 and results_of_runs.as_stored(found).keys() == found.keys()
    for case, row in found.items():
        assert special_functions.close(case, row), (case, row)
    wrong = found["[9, 10] log density at 9.1"] | {"truncgauss": 1.3042780}
    assert not special_functions.close("[9, 10] log density at 9.1", wrong)
    truth, _ = special_functions.exact_density(9, 10, 9.1)
    assert truth == pytest.approx(1.30427809908, rel=1e-11)


# ---------------------------------------------------------------- many_devices


@pytest.mark.full
def test_many_devices_agree_with_a_filter_in_numpy():
    """On 1, 2 and 4 devices the fractions are means of (1 + tanh(z / 2)) / 2, and slopes theirs."""
    changes = {"shift": {"start": -1.0, "stop": 1.0, "num": 6}, "num_repeats": 1}
    results, picture = completed("many_devices", num_samples=300, **changes)
    assert list(results["devices"]) == ["1 cpu", "2 cpu", "4 cpu"] and results["failed"] == ""
    assert results["seconds"].shape == (3, 2) and (results["seconds"] > 0).all()
    samples = np.asarray(jax.random.normal(jax.random.key(20264), (300, 1)))[:, 0]
    weights = 0.5 * (1 + np.tanh(10.0 * (np.linspace(-1.0, 1.0, 6)[:, None] + samples)))
    np.testing.assert_allclose(results["value"], weights.mean(1), rtol=1e-12)
    slopes = 20.0 * weights * (1 - weights)
    np.testing.assert_allclose(results["gradient"], slopes.mean(1), rtol=1e-10)
    np.testing.assert_allclose(results["exact"]["value"], norm.cdf(results["shift"]), rtol=1e-12)
    check_picture(picture)


# ---------------------------------------------------------------- completeness_curve


@pytest.mark.full
def test_completeness_curve():
    results, picture = completed("completeness_curve", num_objects=1500)
    assert len(picture.axes) == 2
    alone, counted = results["alone"], results["counted"]
    assert counted["midpoint_stderr"] < alone["midpoint_stderr"]
    for one in (alone, counted):
        assert abs(one["midpoint"] - 21.0) < 4 * one["midpoint_stderr"]
        assert np.all(np.abs(one["loc"] - [20.0, 0.8]) < 4 * one["stderr"])
        assert np.all((one["low"] <= one["curve"]) & (one["curve"] <= one["high"]))
