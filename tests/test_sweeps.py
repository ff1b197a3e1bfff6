"""Sweeps: the product of settings is run in one folder, a table is made, mistakes have places."""

import csv
import json
import pathlib

import jax
import pytest

from truncgauss import cli
from truncgauss.runs import config
from truncgauss.runs import folder as run_folder

EXPERIMENT = """
from truncgauss import config


class Settings(config.Experiment):
    a: config.Number
    grid: config.Grid


def run(settings):
    if settings.a == 13:
        return {"failed": "an unlucky number"}
    if settings.a == 99 and not __import__("pathlib").Path("go").exists():
        raise KeyboardInterrupt
    total = settings.a * settings.grid.num
    text = "x" if settings.a else "y"
    times = {"same": 4, "first_seconds": total}
    return times | {"total": total, "text": text, "many": [1.0, 2.0]}


def plot(results):
    from truncgauss import plotting

    return plotting.figure()[0]
"""
SETTINGS = """experiment: mine.py
seed: 1
a: 2.0
grid: {start: 0.0, stop: 1.0, num: 4}
sweep:
  a: [1.0, 3.0]
  grid.num: [5, 6, 7]
"""


@pytest.fixture(autouse=True)
def mine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    pathlib.Path("mine.py").write_text(EXPERIMENT)
    pathlib.Path("mine.yaml").write_text(SETTINGS)


def folder():
    (found,) = pathlib.Path("runs").iterdir()
    return found


def test_a_sweep_runs_the_product_and_makes_a_table(capsys):
    assert cli.main(["check", "mine.yaml"]) == 0
    assert capsys.readouterr().out == "mine.yaml: fine, mine, a sweep of 6 runs\n"
    assert cli.main(["run", "mine.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"sweep folder: {folder()}"
    rows = list(csv.DictReader((folder() / "summary.csv").read_text().splitlines()))
    assert [(row["a"], row["grid.num"], float(row["total"])) for row in rows] == [
        (f"{a:.1f}", str(num), a * num) for a in (1.0, 3.0) for num in (5, 6, 7)
    ]
    assert all(row["status"] == "finished" for row in rows)
    told = json.loads((folder() / "summary.json").read_text())["runs"]
    assert told[4] == {**told[4], "run": "004", "a": 3.0, "grid.num": 6, "total": 18.0, "text": "x"}
    names = "run a grid.num status total same text first_seconds seconds".split()
    assert list(rows[0]) == names  # what differs, what does not, and times
    assert cli.main(["gather", str(folder()), "--columns", "text", "*l"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [*names[:4], "text", "total"]
    assert cli.main(["gather", str(folder()), "--columns", "totl"]) == 2
    assert "no result is called totl; there are: total, same" in capsys.readouterr().err
    assert config.load(folder() / "004" / "config.yaml").sweep is None
    assert run_folder.read(folder() / "004").results["total"] == 18.0
    assert cli.main(["list"]) == 0
    assert "6 complete runs" in capsys.readouterr().out


def test_a_key_may_stand_under_sweep_alone():
    text = SETTINGS.replace("seed: 1\n", "") + "  seed: [4, 5]\n"
    assert "\nseed" not in text
    pathlib.Path("mine.yaml").write_text(text)
    found = config.load("mine.yaml")
    assert found.seed == 4 and found.sweep["seed"] == (4, 5)


def test_one_run_of_a_sweep_lands_in_the_same_folder(capsys):
    assert cli.main(["run", "mine.yaml", "--index", "4"]) == 0
    assert cli.main(["gather", str(folder())]) == 0
    table = capsys.readouterr().out
    assert table.count("missing") == 5 and table.count("finished") == 1
    before = (folder() / "004" / "summary.json").stat().st_mtime_ns
    assert cli.main(["run", "--resume", str(folder())]) == 0
    assert "missing" not in capsys.readouterr().out
    assert (folder() / "004" / "summary.json").stat().st_mtime_ns == before


def test_a_sweep_that_was_interrupted_goes_on(capsys):
    assert cli.main(["run", "mine.yaml", "--sweep", "{a: [1.0, 99.0, 3.0]}"]) == 130
    assert (folder() / "000").is_dir() and not (folder() / "002").exists()
    assert "the same command goes on from this run\n" in capsys.readouterr().err
    pathlib.Path("go").touch()
    assert cli.main(["run", "--resume", str(folder())]) == 0
    assert "99  finished" in capsys.readouterr().out


def test_a_failed_run_does_not_end_a_sweep(capsys):
    assert cli.main(["run", "mine.yaml", "--sweep", "{a: [1.0, 13.0, 3.0]}"]) == 1
    table = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert [row[2] for row in table[1:4]] == ["finished", "failed", "finished"]


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        ("3.0]", "x]", "6:12: sweep.a[1]", "a: must be a valid number (got 'x')"),
        ("grid.num", "grid.nom", "7:14: sweep.grid.nom[0]", "unknown key; did you mean 'num'?"),
        ("grid.num", "grid.num.x", "7:16: sweep.grid.num.x[0]", "names no setting (got 5)"),
        ("7]", "1]", "7:20: sweep.grid.num[2]", "greater than or equal to 2 (got 1)"),
        ("[1.0, 3.0]", "[]", "6:6: sweep.a", "must not be empty"),
        ("[1.0, 3.0]", "1.0", "6:6: sweep.a", "must be a list (got 1.0)"),
        ("a: [1.0, 3.0]", "devices: [1, 2]", "6:13: sweep.devices[0]", "cannot be swept"),
        ("[5, 6, 7]", str([5] * 501), "6:3: sweep", "makes 1002 runs, at most 1000"),
    ],
)
def test_a_mistake_in_a_sweep_has_its_place(old, new, place, message, capsys):
    pathlib.Path("mine.yaml").write_text(SETTINGS.replace(old, new))
    assert cli.main(["run", "mine.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mine.yaml:{place}: ") and message in line
    assert not pathlib.Path("runs").exists()


def test_all_mistakes_of_a_sweep_are_told_at_once(capsys):
    both = SETTINGS.replace("3.0]", "x]").replace("7]", "1]")
    pathlib.Path("mine.yaml").write_text(both)
    assert cli.main(["check", "mine.yaml"]) == 2
    places = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert places == ["sweep.a[1]", "sweep.grid.num[2]"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "mine.yaml", "--index", "6"], "index must be 0 to 5 (got 6)"),
        (["run", "mine.yaml", "--figures", "x"], "a sweep has no figure"),
        (["run", "shift_curve", "--index", "0"], "--index is for a config with sweep"),
        (["gather", "nowhere"], "no sweep (got nowhere); `truncgauss list`"),
    ],
)
def test_wrong_usage_of_sweeps_is_one_line(words, message, capsys):
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
