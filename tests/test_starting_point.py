"""The files that `truncgauss new` writes, in a checkout and from an installed package."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest

from truncgauss import cli
from truncgauss.runs import config

ROOT = pathlib.Path(__file__).parents[1]


def schema_of(path):
    """The file that the first line of a config names, which must be there."""
    uri = re.match(r"# yaml-language-server: \$schema=file://(\S+)\n", path.read_text())
    assert uri, path.read_text()[:100]
    return pathlib.Path(urllib.parse.unquote(uri[1])).resolve(strict=True)


@pytest.mark.parametrize("name", config.names())
def test_every_built_in_config_can_be_written_out(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", name]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"To run it: truncgauss run {name}.yaml"
    assert schema_of(tmp_path / f"{name}.yaml") == ROOT / "configs" / "schema.json"
    written, shipped = config.load(f"{name}.yaml"), config.load(ROOT / "configs" / f"{name}.yaml")
    assert all(path.parent == tmp_path for path in config.files(written))
    for copy, original in zip(config.files(written), config.files(shipped), strict=True):
        assert copy.read_bytes() == original.read_bytes()
    if not config.files(shipped):
        assert written == shipped
    before = (tmp_path / f"{name}.yaml").read_text()
    assert cli.main(["new", name]) == 2
    assert f"{name}.yaml is there already, and nothing was written: --overwrite" in (
        capsys.readouterr().err
    )
    assert (tmp_path / f"{name}.yaml").read_text() == before
    (tmp_path / f"{name}.yaml").write_text("")
    assert cli.main(["new", name, "--overwrite"]) == 0
    assert (tmp_path / f"{name}.yaml").read_text() == before


def test_an_installed_package_writes_a_config_that_is_fine(tmp_path):
    inside = tmp_path / "site packages" / "truncgauss"  # as pyproject.toml arranges a wheel
    shutil.copytree(ROOT / "truncgauss", inside, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("experiments", "configs"):
        shutil.copytree(ROOT / name, inside / name)
    (work := tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(inside.parent)}
    for words in (["new", "fit_table"], ["check", "fit_table.yaml"]):
        done = subprocess.run(
            [sys.executable, "-m", "truncgauss.cli", *words],
            cwd=work, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and not done.stderr, done
    assert done.stdout == "fit_table.yaml: fine, fit_table\n"
    assert schema_of(work / "fit_table.yaml").parent == inside / "configs"


def test_a_config_that_was_copied_away_from_its_schema_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(ROOT / "configs" / "shift_curve.yaml", "my.yaml")
    assert cli.main(["check", "my.yaml"]) == 0
    told = capsys.readouterr()
    assert told.out == "my.yaml: fine, shift_curve\n"
    assert told.err.startswith("my.yaml:1: editors do not find the schema schema.json; write # ")
    text = pathlib.Path("my.yaml").read_text().partition("\n")[2]
    line = told.err.partition("; write ")[2]
    pathlib.Path("my.yaml").write_text(line + text)
    schema_of(pathlib.Path("my.yaml"))
    assert cli.main(["check", "my.yaml", str(ROOT / "configs" / "shift_curve.yaml")]) == 0
    assert not capsys.readouterr().err


def test_the_config_of_a_run_names_its_schema(tmp_path):
    shipped = config.load(ROOT / "configs" / "shift_curve.yaml")
    text = config.with_schema(config.dump(shipped), "shift_curve")
    (tmp_path / "config.yaml").write_text(text)
    schema_of(tmp_path / "config.yaml")
    assert config.load(tmp_path / "config.yaml") == shipped
    assert config.with_schema(text, "shift_curve") == text
    assert config.with_schema(text, "mine.py") == config.dump(shipped)


LABORATORY = """\
site;depth;conc;limit
;m;mg/L;mg/L
A;1.5;0.7;0.5
B;2;<1.0;0.5
B;2.5;nd;0.5
B;3.1;2.4;0.5
A;;3.1;0.5
A;4;NaN;0.5
"""


@pytest.fixture
def laboratory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("lab data.csv").write_text(LABORATORY, "utf-8")


def test_a_config_begins_from_a_table(laboratory, capsys):
    words = "--outcome conc --covariates depth site --censored-low limit --truncated-low 0 --log"
    assert cli.main(["new", "lab data.csv", *words.split()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "lab data.yaml",
        "lab data.yaml: fine, fit_table",
        "To run it: truncgauss run 'lab data.yaml'",
    ]
    path = pathlib.Path("lab data.yaml")
    schema_of(path)
    written = config.load(path)
    entry = written.outcomes["conc"]
    assert (entry.censored_low, entry.truncated_low, entry.log) == ("limit", 0.0, True)
    assert written.units_row and written.censoring == "text" and written.missing == ("NaN",)
    assert written.covariates == ("depth",) and written.categories == {"site": "A"}
    data = written.read_data()
    assert data.incomplete.tolist() == [4] and len(data.rows) == 5
    lower, upper = (np.exp(data.known[key][:, 0]) for key in ("lower", "upper"))
    np.testing.assert_allclose(lower, [0.7, 0.0, 0.0, 2.4, 0.0])
    np.testing.assert_allclose(upper, [0.7, 1.0, 0.5, 2.4, np.inf])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which column is to be fitted? Add --outcome COLUMN: depth, conc, limit. It has site"),
        ([], "; conc: numbers, 1 censored such as <0.5, 1 not detected, 1 'NaN'; limit: numbers."),
        (["--outcome", "con"], "column 'con' is not in the header; did you mean 'conc'?"),
        (["--outcome", "log(conc)"], "name the column itself, conc; for its logarithm add --log"),
        (["--outcome", "conc,depth"], "several columns are written apart, conc depth"),
        (["--outcome", "depth", "--covariates", "C(site)"], "site; texts become categories"),
        (["--outcome", "site"], "covariates. Columns of numbers: depth, conc, limit."),
        (["--outcome", "conc"], "'conc' was not detected in 1 of the cells"),
        (["--outcome", "depth", "--truncated-low", "0,5"], "--truncated-low 0,5: Write decimals"),
        (["--outcome", "depth", "--covariates", "age"], "column 'age' is not in the header"),
        (["--outcome", "depth", "--truncated-low", "low"], "low: It is a number or a column, and"),
    ],
)
def test_a_table_without_what_is_asked_for_is_refused(words, message, laboratory, capsys):
    assert cli.main(["new", "lab data.csv", *words]) == 2
    assert message in capsys.readouterr().err
    assert not pathlib.Path("lab data.yaml").exists()


def test_a_config_that_the_table_contradicts_is_told_at_once(laboratory, capsys):
    assert cli.main(["new", "lab data.csv", "--outcome", "depth", "--truncated-low", "2"]) == 2
    assert "1 of 6 observations lie outside of their bounds of tru" in capsys.readouterr().err
    assert cli.main(["new", "tobin", "--log"]) == 2
    assert "new: --log is for a table, such as data.csv (got tobin)" in capsys.readouterr().err


def test_an_outcome_of_which_nothing_is_said_needs_no_braces(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(4.0))
    path = tmp_path / "x.yaml"
    for said in ("x:", "x: {}"):
        path.write_text(f"experiment: fit_table\ndata: x.npz\noutcomes:\n  {said}\n")
        assert config.load(path).read_data().length == 4


def started(content, *words):
    """The exit code of `truncgauss new` for a table of this text, and the config, None without."""
    pathlib.Path("t.csv").write_text(content, "utf-8")
    pathlib.Path("t.yaml").unlink(missing_ok=True)
    code = cli.main(["new", "t.csv", *words])
    return code, config.load("t.yaml") if pathlib.Path("t.yaml").exists() else None


def of_cells(*cells):
    return "conc;depth\n" + "".join(f"{cell};{i}\n" for i, cell in enumerate(cells))


@pytest.mark.parametrize(
    "cells, message",
    [
        (
            ("0.5 U", "1.0 U", "2", "3"),
            "t.csv:2: column 'conc' must be a number, got '0.5 U'. U may",
        ),
        (("2", "1.0 J", "3"), "detected, and the number an estimate of the value, which is taken"),
        (("2", "U", "3"), "U may be a laboratory's qualifier"),
        (
            ("2", "1,634", "3", "1,634"),
            "got '1,634', as in 2 of its cells. It is 1634 where commas",
        ),
        (("1,634", "2", "3"), "and 1.634 where they stand for decimal points"),
        (("1.0 U", "2 U", "3 U", "4 U", "5 U"), "U may be a laboratory's qualifier"),
        (("2", "12:30", "4"), "It holds a number, so it is not missing"),
        (("2", "\u22124", "4"), "-4."),
        (
            ("2", "lost", "4"),
            "by --missing lost: a missing cell is not a truncated one. One that is",
        ),
        (("lost", "2", "4"), "If the first row below the header holds units, add --units-row"),
    ],
)
@pytest.mark.parametrize("role", ["outcome", "covariates"])
def test_cells_that_are_no_plain_numbers_are_asked_about(
    cells, message, role, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = "--outcome", "conc"
    if role == "covariates":
        words = "--outcome", "depth", "--covariates", "conc"
    assert started(of_cells(*cells), *words) == (2, None)
    assert message in capsys.readouterr().err


def test_what_is_asked_about_can_be_answered(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcome = "--outcome", "conc"
    assert started(of_cells("2", "inf", "4"), *outcome)[0] == 2
    assert "column 'conc' is infinite in " in capsys.readouterr().err
    cells = "n/a", "lost", "1.0 U", "2 J", "ND 3", "4"
    code, written = started(of_cells(*cells), *outcome, "--missing", "lost", "--censoring", "text")
    assert code == 0 and written.missing == ("lost", "n/a") and not written.units_row
    known = written.read_data().known
    np.testing.assert_array_equal(known["lower"][:, 0], [-np.inf] * 3 + [2, -np.inf, 4])
    np.testing.assert_array_equal(known["upper"][:, 0], [np.inf, np.inf, 1, 2, 3, 4])
    table = "conc;depth\nper 100 mL;1\n1;2\n3;4\n"
    assert started(table, *outcome)[0] == 2
    assert (
        "If the first row below the header holds units, add --units-row" in capsys.readouterr().err
    )
    code, written = started(table, *outcome, "--units-row")
    assert code == 0 and written.units_row and written.read_data().length == 2
    code, written = started("conc;depth\nW m-2;-\n1;2\n3;4\n", *outcome)  # in digits, but no number
    assert code == 0 and written.units_row
    assert (
        "# The first row below the header holds units: W m-2, -."
        in pathlib.Path("t.yaml").read_text()
    )
    code, written = started("conc;depth\nlost;2\n1;2\n3;4\n", *outcome, "--missing", "lost")
    assert code == 0 and not written.units_row and written.read_data().length == 3
    assert started("conc;depth\n1;2\n3;4\n", *outcome, "--units-row")[0] == 0  # 1 is a unit too
    assert started("conc;depth\n2;2\n3;4\n", *outcome, "--units-row")[0] == 2
    pathlib.Path("t.yaml").write_text(
        "experiment: fit_table\ndata: t.csv\noutcomes: {conc:}\n"
        'missing: ["1.0 U", "1,634", "-999"]\n'
    )
    capsys.readouterr()
    assert cli.main(["check", "t.yaml"]) == 2
    told = capsys.readouterr().err
    assert "missing[0]: U may be" in told and "missing[1]: It is 1634" in told
    assert "missing[2]" not in told


def test_lognormal_concentrations_with_letters_have_the_mean_of_their_limits(
    tmp_path, monkeypatch, capsys
):
    """Sixty values, of which the small ones were not detected and some large ones have commas."""
    monkeypatch.chdir(tmp_path)
    values = np.exp(np.random.default_rng(4).normal(4.0, 1.5, 60)).round(2)
    low = values < 25.0
    assert 12 < low.sum() < 30 and (values > 1000).any()
    forms = "{:.1f} U", "{:.1f}U", "{:.1f} UJ", "ND {:.1f}", "<{:.1f}"
    limits = np.where(np.arange(60) % 2, 25.0, 40.0)
    cells = [
        forms[i % 5].format(limits[i])
        if low[i]
        else f"{values[i]} J"
        if i % 7 == 0
        else f"{values[i]}"
        for i in range(60)
    ]
    assert started(of_cells(*cells), "--outcome", "conc", "--log")[0] == 2
    commas = [f"{values[i]:,.2f}" if values[i] > 1000 else cell for i, cell in enumerate(cells)]
    words = "--outcome", "conc", "--log", "--censoring", "text"
    assert started(of_cells(*commas), *words)[0] == 2
    assert "Write the number without signs between thousands" in capsys.readouterr().err
    code, written = started(of_cells(*cells), *words)
    known = written.read_data().known
    assert code == 0 and known["upper"].shape == (60, 1)
    np.testing.assert_allclose(np.exp(known["upper"][:, 0]), np.where(low, limits, values))
    np.testing.assert_allclose(np.exp(known["lower"][:, 0]), np.where(low, 0.0, values))


THREE = "lead;zinc;tin\nnd;.3;2\n0.4;.2;<1\n2;5;6\n3;1;.1\n<0.2;4;9\n"


def test_a_limit_belongs_to_the_outcome_that_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    outcomes = "--outcome", "lead", "zinc", "tin"
    code, written = started(
        THREE, *outcomes, "--censored-low", "lead=0.5", "--truncated-low", "zinc=.1"
    )
    assert code == 0
    entries = {
        name: entry.model_dump(exclude_none=True) for name, entry in written.outcomes.items()
    }
    assert entries == {
        "lead": {"log": False, "not_detected": 0.5},
        "zinc": {"log": False, "truncated_low": 0.1},
        "tin": {"log": False},
    }
    known, inf = written.read_data().known, np.inf
    np.testing.assert_array_equal(
        known["upper"], [[0.5, 0.3, 2], [0.4, 0.2, 1], [2, 5, 6], [3, 1, 0.1], [0.2, 4, 9]]
    )
    censored = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]]
    np.testing.assert_array_equal(known["lower"], np.where(censored, -inf, known["upper"]))
    for words, message in (
        ((), "such as lead=0.5 for these cells alone"),
        (
            ("--censored-low", "0.5"),
            "--censored-low 0.5: of which outcome? Write --censored-low lead=0.5,",
        ),
        (("--censored-high", "zinc"), "--censored-high zinc: of which outcome? Write"),
        (("--censored-low", "lead=.5", "lead=.2"), "'lead' has two limits"),
        (("--censored-low", "led=.5"), "'led' is no outcome, of lead, zinc, tin"),
        (
            ("--censored-low", "lead=0,5"),
            "--censored-low lead=0,5: Write decimals with a point, 0.5.",
        ),
        (("--censored-low", "lead=.5", "--censored-low", "tin=1"), "--censored-low is there twice"),
    ):
        assert started(THREE, *outcomes, *words)[0] == 2
        assert message in capsys.readouterr().err
    code, written = started(
        THREE, "--outcome", "zinc", "--censored-low", "0.3"
    )  # of one, all cells
    assert code == 0 and written.outcomes["zinc"].censored_low == 0.3
