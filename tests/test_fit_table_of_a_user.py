"""`fit_table` over tables as observatories, laboratories and clinics write them: from a CSV file to
the figure, by the command line."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from test_fit_table import drawn

import truncgauss as tg
from experiments.fit_table.run import naive
from truncgauss import cli
from truncgauss.runs import config
from truncgauss.runs import folder as run_folder


def table(folder, header, rows):
    lines = [",".join(header), *(",".join(map(str, row)) for row in rows)]
    (folder / "my.csv").write_text("\n".join(lines) + "\n", "utf-8")


def settings(folder, text):
    path = folder / "my.yaml"
    path.write_text(f"experiment: fit_table\ndata: my.csv\nnum_residuals: 2\n{text}\n", "utf-8")
    return path


def completed(folder, text):
    """The stored run of a config that `check` finds fine."""
    path = settings(folder, text)
    assert cli.main(["check", str(path)]) == 0
    assert cli.main(["run", str(path), "--runs", str(folder / "runs")]) == 0
    (run,) = (folder / "runs").iterdir()
    return run_folder.read(run)


def refused(folder, text, message, capsys):
    """`check` says in one line what is wrong."""
    capsys.readouterr()
    assert cli.main(["check", str(settings(folder, text))]) == 2
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1, told


def is_highest(results, log_likelihood):
    """Whether the log-likelihood, by SciPy's normal law, is that of the run and highest there."""
    best = results["estimates"]
    assert results["log_likelihood"] == pytest.approx(log_likelihood(*best), abs=1e-8)
    for k, step in enumerate(1e-2 * results["stderr"]):
        for sign in (-1, 1):
            assert log_likelihood(*(best + sign * step * np.eye(len(best))[k])) < log_likelihood(
                *best
            )


@pytest.mark.full
def test_fluxes_with_upper_limits_and_errors_of_each_row(tmp_path):
    """Names with units and slashes, and a profile of one."""
    rng = np.random.default_rng(5)
    dust, error, limit = rng.normal(size=40), rng.uniform(0.1, 0.4, 40), rng.uniform(0.5, 2.0, 40)
    flux = 2.0 + dust + 0.8 * rng.normal(size=40) + error * rng.normal(size=40)
    seen = flux >= limit
    cells = [f"{a}" if k else f"< {b}" for a, b, k in zip(flux, limit, seen)]
    header = ["Flux [mJy/beam]", "Error [mJy/beam]", "Dust (mag/kpc)"]
    table(tmp_path, header, zip(cells, error, dust))
    run = completed(
        tmp_path,
        'outcomes: {"Flux [mJy/beam]": {noise_scale: "Error [mJy/beam]"}}\n'
        'covariates: ["Dust (mag/kpc)"]\ncensoring: text\nprofile: ["Dust (mag/kpc)"]',
    )
    results = run.results
    assert list(results["names"]) == ["constant", "Dust (mag/kpc)", "sigma"]

    def log_likelihood(constant, slope, sigma):
        law = stats.norm(constant + slope * dust, np.hypot(sigma, error))
        return np.sum(np.where(seen, law.logpdf(flux), law.logcdf(limit)))

    is_highest(results, log_likelihood)
    values, names = run.summary["values"], ["constant", "Dust (mag/kpc)", "sigma"]
    wanted = [f"by_name/{name}" for name in names]
    assert [name for name in values if name in wanted] == wanted  # in the order of the model
    low, high = results["profile"]["Dust (mag/kpc)"]
    assert [values[f"{wanted[1]}, low"], values[f"{wanted[1]}, high"]] == [low, high]
    assert results["intervals"][1] == f"[{low:.6g}, {high:.6g}], profile"
    drawn(results, ["data", "residuals", "profile"])


@pytest.mark.full
def test_concentrations_of_a_laboratory(tmp_path, capsys):
    """A row of units, limits as text, and values that were not detected, in logarithms."""
    rng = np.random.default_rng(6)
    depth = rng.uniform(0.0, 10.0, 40)
    lead = np.exp(0.3 + 0.2 * depth + 0.6 * rng.normal(size=40)).round(3)
    low, high = lead < 1.2, lead > 9.0
    cells = np.where(high, ">9.0", lead.astype(str))
    cells[low] = np.resize(["<1.2", "nd", "ND", "≤ 1.2"], low.sum())
    assert low.sum() > 3 and high.sum() > 3
    table(tmp_path, ["Lead", "Depth"], [("ug/L", "m"), *zip(cells, depth)])
    text = "outcomes: {Lead: {log: true, censored_low: 1.2}}\ncovariates: [Depth]\n"
    whole = f"{text}units_row: true\ncensoring: text"
    results = completed(tmp_path, whole).results

    def log_likelihood(constant, slope, sigma):
        law = stats.norm(constant + slope * depth, sigma)
        inside = np.where(low, law.logcdf(np.log(1.2)), law.logpdf(np.log(lead)))
        return np.sum(np.where(high, law.logsf(np.log(9.0)), inside))

    is_highest(results, log_likelihood)
    assert results["summary"][0].startswith("40 observations of log(Lead): 32 exact, 8 with a cen")
    picture = drawn(results, ["data", "residuals"])
    assert picture.axes[0].get_xlabel() == "Depth (m)"
    assert picture.axes[0].get_ylabel() == "log Lead (ug/L)"
    for instead, message in {
        f"{text}censoring: text": "my.csv:2: column 'Depth' must be a number, got 'm'. If this "
        "row holds units, say `units_row: true`",
        f"{text}units_row: true": "This is a censored value, not a missing one: for an outcome say "
        "`censoring: text`",
        f'{whole}\nmissing: ["NA", "nd"]': "missing[1]: This is a censored value, not a missing",
        whole.replace(", censored_low: 1.2", ""): "not detected, but nothing says below which",
        whole.replace("log: true", "log: true, noise_scale: 0.1"): "is not for a logarithm",
    }.items():
        refused(tmp_path, instead, message, capsys)


@pytest.mark.full
def test_a_clinic_s_categories_and_missing_covariates(tmp_path, capsys):
    rng = np.random.default_rng(7)
    dose = np.array(["placebo", "5mg/kg", "10mg/kg"])[np.arange(40) % 3]
    age, score = rng.uniform(20.0, 80.0, 40).round(), rng.normal(size=40).round(4)
    cells, absent = age.astype(str), np.arange(40) % 9 == 4
    cells[absent] = ""
    dose[7] = ""
    table(tmp_path, ["score/day", "dose", "age"], zip(score, dose, cells))
    text = 'outcomes: {"score/day": {}}\ncategories: {dose: placebo}\ncovariates: [age]\n'
    refused(tmp_path, text, "covariate 'age' is missing in 4 of 40 rows, first", capsys)
    refused(tmp_path, text, "my.csv:6. Only outcomes may be missing", capsys)
    run = completed(tmp_path, f"{text}incomplete_rows: drop")
    results, left = run.results, ~absent & (dose != "")
    columns = [np.ones(40), age, dose == "10mg/kg", dose == "5mg/kg"]
    design = np.column_stack(columns)[left].astype(float)
    best, (squares,), *_ = np.linalg.lstsq(design, score[left])
    wanted = [*best, np.sqrt(squares / left.sum())]
    assert list(results["names"]) == [
        "constant", "age", "dose: 10mg/kg", "dose: 5mg/kg", "sigma"
    ]  # fmt: skip
    np.testing.assert_allclose(results["estimates"], wanted, rtol=1e-8)
    np.testing.assert_allclose(results["naive"], wanted, rtol=1e-8)
    assert list(results["incomplete"]) == [4, 7, 13, 22, 31]
    assert "dropped 5 incomplete row(s), counted from 0: 4, 7, 13, 22, 31" in run.summary["summary"]
    made = json.loads((run.folder / "provenance.json").read_text())
    assert made["seed"] == 0  # which nobody was asked for
    drawn(results, ["data", "residuals"])


@pytest.mark.parametrize(
    "cells, text, message",
    [
        (["0", "1.5", "2.0"], "outcomes: {x: {log: true}}", "is 0 in {}:2 and has no logarithm"),
        (["1", "nd?", "2"], "outcomes: {x: {}}\ncensoring: text", "{}:3 must be a number, or c"),
        (["1", "<2", "2"], "outcomes: {y: {}}\ncovariates: [x]", "{}:3: column 'x' must be a num"),
        (["1", "", "2"], "outcomes: {x: {}}\nincomplete_rows: drop", "{}:3: column 'x' must be"),
    ],
)
def test_cells_that_say_something_else_are_told_by_their_lines(
    tmp_path, cells, text, message, capsys
):
    table(tmp_path, ["x", "y"], [(cell, i) for i, cell in enumerate(cells)])
    refused(tmp_path, text, message.format(tmp_path / "my.csv"), capsys)


@pytest.mark.full
def test_two_outcomes_have_panels_of_their_own(tmp_path):
    rng = np.random.default_rng(8)
    x = rng.normal(size=30).round(3)
    rows = zip(x, (x + rng.normal(size=30)).round(3), rng.normal(size=30).round(3))
    table(tmp_path, ["a/b", "c", "constant"], rows)
    results = completed(tmp_path, 'outcomes: {"a/b": {truncated_low: -3}, c: {}}').results
    assert list(results["names"][:2]) == ["loc[a/b]", "loc[c]"]
    drawn(results, ["data", "residuals", "residuals"])
    many = {"names": [f"a quite long name {k}" for k in range(20)]}
    for key in ("estimates", "naive", "interval_ends"):
        many[key] = np.resize(results[key], (20, *results[key].shape[1:]))
    drawn(results | many, ["data", "residuals", "residuals"])
    with pytest.raises(ValueError, match="two estimates would be called 'constant'"):
        config.load(settings(tmp_path, 'outcomes: {c: {}}\ncovariates: ["constant"]')).read_data()


@pytest.mark.full
def test_an_outlier_is_named_by_its_line_although_rows_before_it_were_left_out(tmp_path):
    rng = np.random.default_rng(3)
    dose, site = rng.normal(size=60), np.where(np.arange(60) % 2, "a", "b")
    y = 1.0 + dose + 0.5 * rng.normal(size=60)
    y[41] += 30.0
    cells = [[a, "" if k in (3, 17) else b, c] for k, (a, b, c) in enumerate(zip(y, dose, site))]
    table(tmp_path, ["y", "dose", "site"], cells)
    text = "outcomes: {y: {}}\ncovariates: [dose]\nwhere: {site: a}\nincomplete_rows: drop"
    run = completed(tmp_path, text)
    (line,) = (line for line in run.summary["summary"] if "farther from the fitted mean" in line)
    assert f"{tmp_path / 'my.csv'}:43 by" in line  # after the header, 41 rows and none in between
    # Of the rows where site is a, every second one, it is number 20.
    assert run.results["outliers"]["row"] == 20 and list(run.results["incomplete"]) == [1, 8]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_naive_column_uses_every_recorded_value(weighted):
    """Also of rows with gaps: each mean of its column, each covariance of the rows with both."""
    rng = np.random.default_rng(9)
    y = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3))
    y[:4, 0] = y[3:9, 1] = y[20:, 2] = np.nan
    upper = np.where(np.isnan(y), np.inf, y)
    lower = np.where(np.isnan(y) | (y < -1.0), -np.inf, y)
    weights = rng.integers(1, 4, 30) if weighted else np.ones(30, int)
    rows = tg.Observations(lower, upper, weights=weights)
    asked = SimpleNamespace(components=1, covariance="full", scale_covariates=[])
    found = naive(asked, rows, None, SimpleNamespace(estimates=np.zeros(9)))
    seen = pd.DataFrame(np.repeat(y, weights, axis=0))
    centred = seen - seen.mean()
    wanted = [(centred[i] * centred[j]).mean() for i in range(3) for j in range(i + 1)]
    np.testing.assert_allclose(found, [*seen.mean(), *wanted], rtol=1e-12)
