"""The experiment `fit_table` over published tables: a config says what is known of the rows."""

import pathlib

import jax
import numpy as np
import pytest
from scipy import stats
from test_distributed import alone, ends, launch, result

import truncgauss as tg
from tests.published_rows import SHARED, needed
from truncgauss import cli
from truncgauss.runs import config
from truncgauss.runs import results as results_of_runs

ROOT = pathlib.Path(__file__).parents[1]


def fitted(folder, text, data=None):
    """Results of a config, as the command line hands them to `plot`."""
    path = folder / "my.yaml"
    head = ["experiment: fit_table", "seed: 1", "num_residuals: 2"]
    head += [] if data is None else [f"data: {SHARED / data}"]
    path.write_text("\n".join([*head, text]), "utf-8")
    settings = config.load(path)
    results = config.function("fit_table", "run")(settings)
    if settings.components == 1:
        linear = settings.covariate_names(settings.read_data().columns)
        assert list(results["names"]) == settings.names(linear)
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, results)


def check(results, log_likelihood, estimates, errors=None):
    """Published digits: the log-likelihood to 1e-6, estimates to 1e-4 of a standard error."""
    assert results["failed"] == ""
    assert results["log_likelihood"] == pytest.approx(log_likelihood, rel=1e-6)
    found = dict(zip(results["names"], zip(results["estimates"], results["stderr"])))
    for number, (name, wanted) in enumerate(estimates.items()):
        estimate, error = found[name]
        assert abs(estimate - wanted) < 3e-4 * error, name
        if errors is not None and number < len(errors):
            assert error == pytest.approx(errors[number], rel=1e-3), name


def drawn(results, panels):
    """The figure: its panels, one for each of up to 10 estimates, at most twice as wide as high,
    with one sentence in each panel at most."""
    picture = config.function("fit_table", "plot")(results)
    assert len(picture.axes) == len(panels) + min(len(results["names"]), 10)
    width, height = picture.get_size_inches()
    assert width <= 2 * height
    for ax in picture.axes:
        assert sum(text.get_gid() == "hint" for text in ax.texts) <= 1
    picture.draw_without_rendering()
    return picture


def test_tobin_s_table(tmp_path):
    """Tobin (1958), by R's survival."""
    text = """data: ../experiments/data/tobin.csv
outcomes: {durable: {censored_low: 0}}
covariates: [age, quant]
profile: [age]"""
    (tmp_path / "configs").mkdir()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    results = fitted(tmp_path / "configs", text)
    coefficients = {"constant": 15.14486636, "age": -0.12905928, "quant": -0.04554166}
    check(results, -28.94013320, coefficients, [16.0794532, 0.2185836, 0.0582541])
    low, high = results["profile"]["age"]
    assert low < -0.12905928 < high
    notes = " ".join(results["summary"])
    assert "Profile intervals replace Wald's of sigma in the" in notes
    assert "profile(name)" not in notes
    values = results_of_runs.outcome(results)["values"]
    assert values["by_name/age"] == pytest.approx(-0.12905928, rel=1e-5)
    assert np.isfinite(results["residuals"]).all()
    values, fall = results["profile_curves"]["age"]
    inside = (values >= low) & (values <= high)
    np.testing.assert_array_equal(inside, fall <= 1.9207)
    assert list(results["interval_ends"][1]) == [low, high]
    assert results["intervals"][1] == f"[{low:.6g}, {high:.6g}], profile"
    drawn(results, ["data", "residuals", "profile"])


def test_a_run_without_profiles_is_drawn_from_its_files(tmp_path):
    results = fitted(tmp_path, written(tmp_path, ROWS) + "outcomes: {x: {}}")
    stored = results_of_runs.nested(dict(results_of_runs.arrays(results)))
    drawn(stored, ["data", "residuals"])


@pytest.mark.full
def test_scales_with_covariates(tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 150))
    y = np.maximum(0.5 + a + np.exp(0.3 * b) * rng.normal(size=150), 0.0)
    columns = np.column_stack([y, a, b])
    np.savetxt(tmp_path / "my.csv", columns, delimiter=",", header="y,a,b", comments="")
    text = """data: my.csv
outcomes: {y: {censored_low: 0.0}}
covariates: [a]
scale_covariates: [b]
profile: ["log_scale[b]"]"""
    results = fitted(tmp_path, text)
    ones = np.ones(150)
    fit = tg.fit_regression(
        y, np.column_stack([ones, a]), censored_low=0.0,
        scale_design=np.column_stack([ones, b]),
    )  # fmt: skip
    names = ["constant", "a", "log_scale[constant]", "log_scale[b]"]
    assert list(results["names"]) == names
    np.testing.assert_allclose(results["estimates"], fit.estimates, rtol=1e-6)
    np.testing.assert_allclose(results["stderr"], fit.errors, rtol=1e-6)
    assert results["profile"]["log_scale[b]"][0] < 0.3 < results["profile"]["log_scale[b]"][1]
    assert any("from the observed information" in line for line in results["summary"])
    with pytest.raises(config.ConfigError, match="scale_covariates: needs one outcome, but"):
        fitted(tmp_path, text.replace("outcomes: {", "outcomes: {b: {}, "))


@pytest.mark.full
def test_a_mixture_behind_a_limit(tmp_path):
    rng = np.random.default_rng(4)
    y = np.concatenate([rng.normal(size=240), 5.0 + 1.5 * rng.normal(size=160)])
    y = y[y > -0.5]
    np.savetxt(tmp_path / "my.csv", y, header="flux", comments="")
    text = """data: my.csv
outcomes: {flux: {truncated_low: -0.5}}
components: 2
num_starts: 2"""
    results = fitted(tmp_path, text)
    weights, locs = [0.6, 0.4], [0.0, 5.0]
    assert list(results["names"][[0, 2]]) == ["weights[0]", "locs[0][flux]"]
    order = slice(None) if results["estimates"][2] < 2 else slice(None, None, -1)
    away = results["estimates"][:4] - [*weights[order], *locs[order]]
    assert np.all(np.abs(away) < 4 * results["stderr"][:4])
    # What was taken for whole lacks its lower part.
    place = list(results["estimates"]).index(results["estimates"][2:4].min())
    assert results["naive"][place] > results["estimates"][place] + 0.2
    u = stats.norm.cdf(results["residuals"][0, :, 0])
    assert stats.kstest(u, "uniform").pvalue > 0.01
    assert any("locs[1][flux]" in line for line in results["summary"])
    drawn(results, ["data", "residuals"])
    with pytest.raises(config.ConfigError, match="profile: is not for a mixture"):
        fitted(tmp_path, f"{text}\nprofile: [flux]")
    with pytest.raises(config.ConfigError, match="covariance: needs several components"):
        fitted(tmp_path, text.replace("components: 2", "covariance: tied"))


@needed
@pytest.mark.slow
def test_censored_missing_and_interval_outcomes(tmp_path):
    text = """outcomes:
  logN_Be: {left_censored: [Ind_Be, "0"]}
  logN_Li: {left_censored: [Ind_Li, "0"]}
missing: [NA]"""
    results = fitted(tmp_path, text, "censor_be.csv")
    means = {"loc[logN_Be]": 0.848543112, "loc[logN_Li]": 0.649584659}
    check(results, -118.162893, means, [0.0516895, 0.2647530])
    text = """outcomes:
  Sepal.Length: {lower: SL_lower, upper: SL_upper}
  Sepal.Width: {}
  Petal.Length: {}
  Petal.Width: {}"""
    results = fitted(tmp_path, text, "iris_interval.csv")
    means = {"loc[Sepal.Length]": 5.759655, "covariance[Petal.Length, Sepal.Length]": 1.271268}
    assert results["log_likelihood"] == pytest.approx(-472.2084126, rel=1e-6)
    found = dict(zip(results["names"], results["estimates"]))
    for name, wanted in means.items():
        assert found[name] == pytest.approx(wanted, abs=2e-5)


TRUNCATED = "outcomes: {x: {truncated_low: 0.0, truncated_high: top}}"


def written(folder, rows):
    lines = ["x,top,a,group", *rows]
    (folder / "my.csv").write_text("\n".join(lines), "utf-8")
    return "data: my.csv\n"


ROWS = ["0.2,9,1,u", "1.4,9,2,v", "0.7,9,3,u", "2.1,9,5,v", "1.1,1,4,u", "0.4,9,2,v", "0.9,9,1,u"]


@pytest.mark.full
def test_stray_rows_are_refused_or_named(tmp_path):
    data = written(tmp_path, ROWS)
    with pytest.raises(
        ValueError, match="1 of 7 observations lie outside .* first .*my.csv:6: .1.1. to .1.1."
    ):
        fitted(tmp_path, data + TRUNCATED)
    results = fitted(tmp_path, data + TRUNCATED + "\nstray_rows: drop")
    assert list(results["dropped"]) == [4] and results["num_rows"] == 6
    assert "dropped 1 stray row(s), counted from 0: 4" in results["summary"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("outcomes: {y: {}}", "outcomes.y: column 'y' is not in the header"),
        ("outcomes: {x: {censored_low: tp}}", "a number or a column; column 'tp' is not"),
        ("outcomes: {x: {}}\ncategories: {grup: u}", "categories.grup: .* did you mean 'group'"),
        ("outcomes: {x: {censored_low: 2, censored_high: 1}}", "must be greater than censored_low"),
        ("outcomes: {}", "outcomes: must not be empty"),
        ("outcomes: {x: {noise_scale: -1}}", r"x.noise_scale: must be greater than 0 \(got -1\)$"),
        ("outcomes: {x: {}}\nformula: yy + kind", "formula: column 'yy' is not in the header"),
        ("outcomes: [x]", "outcomes: must have keys with a value each: `outcomes: {x: ...}`, and"),
        ("outcomes: {x: {censored: 2}}", "unknown key; did you mean 'censored_"),
        (
            "num_steps: one\noutcomes: {x: {censoredlow: 2}}\ncovariate: [y]",
            r"num_steps: must be a valid .*\n.*x.censoredlow: unknown .*\n.*covariate: unknown",
        ),
        ("outcomes: {x: {}}\ncovariates: [y, z]", r"'y' is .*\n.*'z' is not"),
        ("outcomes: {x: {}}\ncovariates: [kind]\ncategories: [kind]", "categories: {kind: ...}"),
        ("outcomes: {x: {}}\nprofile: [y]", "no estimate 'y', but loc.x., sigma"),
    ],
)
def test_mistakes_are_found_before_anything_is_computed(tmp_path, text, message):
    data = written(tmp_path, ROWS)
    with pytest.raises(config.ConfigError, match=message):
        fitted(tmp_path, data + text)


def test_all_mistakes_of_a_config_come_in_one_pass(tmp_path):
    """Those of columns, of several keys and of a sweep beside those of single keys, in the file's
    order; and no consequence of another one."""
    lines = (
        "outcomes: {x: {censoredlow: 2}, y: {truncated_low: 1, truncated_high: 0}}",
        "covariates: [grup]",
        "where: {kind: u}",
        'missing: ["<3"]',
        "components: two",
        "covariance: tied",  # right or wrong, depending on components
        "sweep: {num_stepz: [1], num_steps: [5, x], covariates: [[z], [group]]}",
    )
    with pytest.raises(config.ConfigError) as caught:
        fitted(tmp_path, written(tmp_path, ROWS) + "\n".join(lines))
    told = [line.split(": ", 1)[1] for line in str(caught.value).splitlines()]
    expected = (
        "outcomes.x.censoredlow: unknown key; did you mean 'censored_low'",
        "outcomes.y: column 'y' is not",
        "outcomes.y.truncated_high: must be greater than",
        "covariates: column 'grup' is not in the header; did you mean 'group'",
        "where.kind: column 'kind' is not",
        "missing[0]: This is a censored value",
        "components: must be a valid integer",
        "sweep.num_stepz: unknown key; did you mean 'num_steps'",
        "sweep.num_steps[1]: num_steps: must be a valid integer",
        "sweep.covariates[0]: covariates: column 'z' is not",
    )
    assert len(told) == len(expected), told
    for line, start in zip(told, expected):
        assert line.startswith(start), line


def test_check_reads_the_columns_and_goes_on_after_a_bad_file(tmp_path, capsys):
    paths = [tmp_path / name for name in ("bad.yaml", "gone.yaml", "good.yaml")]
    for path, outcome in zip(paths, ("group", "x", "x")):
        data = written(tmp_path, ROWS)
        path.write_text(f"experiment: fit_table\nseed: 1\n{data}outcomes: {{{outcome}: {{}}}}\n")
    paths[1].write_text(paths[1].read_text() + "where: {group: z}\n")
    assert cli.main(["check", *map(str, paths)]) == 2
    told = capsys.readouterr()
    assert told.out == f"{paths[2]}: fine, fit_table\n"
    first, second = told.err.splitlines()
    assert (
        first.startswith(f"{paths[0]}: ")
        and "my.csv: column 'group' holds texts such as 'u'" in first
    )
    assert second.startswith(f"{paths[1]}: ")
    assert "no row to fit" in second and "group: known: u, v" in second


@pytest.mark.parametrize(
    "text, message",
    [
        ("outcomes: {group: {}}", "my.csv: column 'group' holds texts such as 'u', not numbers"),
        ("outcomes: {x: {}}\ncategories: {group: w}", "nowhere holds 'w', but .'u', 'v'."),
        ("outcomes: {x: {}}\ncategories: {group: u}\nprofile: [u]", "but constant, group: v"),
    ],
)
def test_what_a_table_does_not_have_is_said(tmp_path, text, message):
    data = written(tmp_path, ROWS)
    with pytest.raises(ValueError, match=message):
        fitted(tmp_path, data + text)


@pytest.mark.slow
@pytest.mark.parametrize("components", [1, 2])
def test_processes_share_the_fit_of_a_table(components, tmp_path):
    """A table with strays, weights and limits of each row, by one process and by two."""
    rng = np.random.default_rng(8)
    values = rng.normal(size=61) + np.where(np.arange(61) % 3 == 0, 6.0, 0.0)
    low = values - rng.exponential(size=61) - 0.5
    values[[7, 50]] = low[[7, 50]] - 1.0
    columns = {"y": values, "low": low, "x": rng.normal(size=61), "often": 1.0 + (low > 0)}
    np.savez(tmp_path / "rows.npz", **columns)
    path = tmp_path / "own.yaml"
    more = "covariates: [x]\nprofile: [x]\n" if components == 1 else "num_starts: 2\n"
    path.write_text(
        "experiment: fit_table\ndata: rows.npz\noutcomes: {y: {truncated_low: low}}\n"
        f"weights: often\nstray_rows: drop\nseed: 3\ncomponents: {components}\n{more}"
    )
    one = alone(path, tmp_path / "one", "fit_table")
    found = ends(launch(tmp_path / "two", 2, path))
    assert [code for code, _, _ in found] == [0, 0], found
    many = result(tmp_path / "two" / "runs", "fit_table")[0]
    assert one.keys() == many.keys()
    for name, value in one.items():
        if value.dtype.kind in "fi":
            np.testing.assert_allclose(many[name], value, rtol=1e-8, atol=1e-8, err_msg=name)
        else:
            np.testing.assert_array_equal(many[name], value, err_msg=name)
