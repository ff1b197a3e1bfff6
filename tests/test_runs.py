"""Run folders: what they hold, how a run goes on, sweeps, and what is read back."""

import csv
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest
from test_cli import SETTINGS, TINY, folders, tiny  # noqa: F401  (the experiment of a few lines)

from truncgauss import cli, plotting
from truncgauss.runs import config, work
from truncgauss.runs import folder as run_folder
from truncgauss.runs import results as results_of_runs

ROOT = pathlib.Path(__file__).parents[1]


def folder():
    (only,) = folders()
    return only


def test_a_run_leaves_a_folder_that_says_everything(capsys):
    with pytest.warns(UserWarning, match="mind the gap"):
        words = ["--seed", "4", "--mode", "warn", "--figures", "figs"]
        assert cli.main(["run", "tiny.yaml", *words]) == 0
    (first,) = folders()
    ending = [f"run folder: {first}", f"figure: {first / 'tiny.png'}"]
    assert capsys.readouterr().out.splitlines() == ["a is fine", "and warn", *ending]
    assert {path.name for path in first.iterdir()} == {
        "config.yaml", "result.npz", "summary.json", "metrics.jsonl", "provenance.json",
        "tiny.png", "tiny.svg", "tiny.py",
    }  # fmt: skip
    with np.load(first / "result.npz") as arrays:
        inner = {"inner/x", "inner/y", "inner/flag"}
        assert set(arrays) == {"a", "text", "total", "first_seconds", *inner}
        np.testing.assert_array_equal(arrays["a"], np.arange(3.0))
    summary = json.loads((first / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["summary"] == ["a is fine", "and warn"]
    scalars = {"inner/x": 1.5, "inner/y": "nan", "inner/flag": True, "text": "warn", "total": 8.0}
    assert summary["values"] == scalars | {"first_seconds": 2.0}
    rows = [json.loads(row) for row in (first / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 0, "loss": "inf"}, {"step": 1, "loss": 2.0}]
    provenance = json.loads((first / "provenance.json").read_text())
    assert provenance["command"][:3] == ["truncgauss", "run", "tiny.yaml"]
    assert provenance["seed"] == 4 and provenance["dtype"] == "float64"
    assert provenance["versions"]["jax"] and provenance["devices"][0].startswith("cpu:0")
    assert provenance["warnings"] == ["UserWarning: mind the gap"]
    if (ROOT / ".git").exists():
        assert len(provenance["commit"]) == 40
    assert run_folder.circumstances(pathlib.Path.cwd(), [], [])["commit"] is None

    published = {path.name for path in pathlib.Path("figs").iterdir()}
    assert published == {"tiny.png", "tiny.svg", "tiny.json"}
    shown = json.loads(pathlib.Path("figs/tiny.json").read_text())
    assert shown["values"] == summary["values"] and shown["versions"] == provenance["versions"]

    # The folder's own settings rerun it, and a second run in the same second has its own folder.
    with pytest.warns(UserWarning, match="mind the gap"):
        assert cli.main(["run", str(first / "config.yaml")]) == 0
    first, second = folders()
    assert (first / "config.yaml").read_text() == (second / "config.yaml").read_text()


def test_a_path_of_an_experiment_starts_at_the_config(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "mine.py").write_text(TINY)
    (inner / "mine.yaml").write_text(SETTINGS.replace("tiny.py", "mine.py"))
    before = list(work.sys.path)
    assert cli.main(["run", "inner/mine.yaml"]) == 0
    assert work.sys.path == before
    assert folder().name.startswith("mine-") and (folder() / "mine.png").exists()
    assert str(inner / "mine.py") in (folder() / "config.yaml").read_text()


# ---------------------------------------------------------------- resumption


def test_an_interrupted_run_goes_on_where_it_was_unless_code_data_or_a_process_differ(capsys):
    data = pathlib.Path("x.csv")
    data.write_text("a\n1\n")
    pathlib.Path("tiny.yaml").write_text(f"{SETTINGS}data: x.csv\n")
    assert cli.main(["run", "tiny.yaml", "--mode", "wait"]) == 130
    partial = folder()
    files = {"config.yaml", "checkpoint", "tiny.py", "inputs.json"}
    assert partial.name.endswith(".partial")
    assert {path.name for path in partial.iterdir()} == files
    assert f"truncgauss run --resume {partial}" in capsys.readouterr().err

    def refused(reason):
        assert cli.main(["run", "--resume", str(partial)]) == 2
        assert reason in capsys.readouterr().err.splitlines()[-1]
        assert (partial / "checkpoint" / "work.npz").exists()

    pathlib.Path("tiny.py").write_text(TINY + "# changed\n")
    refused("tiny.py has changed since the run began")
    pathlib.Path("tiny.py").write_text(TINY)
    data.write_text("a\n2\n")
    refused("x.csv has changed since the run began: put it back, or start a new run")
    data.unlink()
    refused("data: no such file")
    data.write_text("a\n1\n")
    with run_folder.claimed(partial):
        refused("another process is running")

    name = str(partial).removesuffix(".partial")
    assert cli.main(["run", "--resume", name]) == 0
    assert str(folder()) == name and not (folder() / "checkpoint").exists()
    assert "and wait" in capsys.readouterr().out
    for complete in (name, f"{name}.partial"):
        assert cli.main(["run", "--resume", complete]) == 2
        told = capsys.readouterr().err
        assert f"that run is complete, its results are in {name}\n" in told


def test_a_disk_that_is_full_at_the_start_leaves_nothing(monkeypatch, capsys):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    assert cli.main(["run", "tiny.yaml"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("truncgauss: error: runs/tiny-")
    assert said.endswith("/tiny.py: No space left on device") and not folders()


# ---------------------------------------------------------------- sweeps

SWEEP = """grid: {start: 0.0, stop: 1.0, num: 4}
sweep:
  a: [1.0, 3.0]
  grid.num: [5, 6, 7]
"""


@pytest.fixture
def swept():
    pathlib.Path("tiny.yaml").write_text(SETTINGS + SWEEP)


def test_a_sweep_runs_the_product_and_makes_a_table(swept, capsys):
    assert cli.main(["check", "tiny.yaml"]) == 0
    assert capsys.readouterr().out == "tiny.yaml: fine, tiny, a sweep of 6 runs\n"
    assert cli.main(["run", "tiny.yaml", "--index", "4"]) == 0  # in the same folder
    assert cli.main(["gather", str(folder())]) == 0
    table = capsys.readouterr().out
    assert table.count("missing") == 5 and table.count("finished") == 1
    before = (folder() / "004" / "summary.json").stat().st_mtime_ns
    assert cli.main(["run", "tiny.yaml"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"sweep folder: {folder()}"
    assert (folder() / "004" / "summary.json").stat().st_mtime_ns == before
    rows = list(csv.DictReader((folder() / "summary.csv").read_text().splitlines()))
    assert [(row["a"], row["grid.num"], float(row["total"])) for row in rows] == [
        (f"{a:.1f}", str(num), a * num) for a in (1.0, 3.0) for num in (5, 6, 7)
    ]
    assert all(row["status"] == "finished" for row in rows)
    told = json.loads((folder() / "summary.json").read_text())["runs"][4]
    assert told == told | {"run": "004", "a": 3.0, "grid.num": 6, "total": 18.0, "text": "fine"}
    # What differs, what does not, and times.
    names = "run a grid.num status total inner/x inner/y inner/flag text first_seconds seconds"
    assert list(rows[0]) == names.split()
    assert cli.main(["gather", str(folder()), "--columns", "text", "*l"]) == 0
    shown = capsys.readouterr().out.splitlines()[0].split()
    assert shown == "run a grid.num status text total".split()
    assert cli.main(["gather", str(folder()), "--columns", "totl"]) == 2
    said = capsys.readouterr().err
    assert "no result is called 'totl'; there are: 'total', 'inner/x'" in said
    assert config.load(folder() / "004" / "config.yaml").sweep is None
    assert run_folder.read(folder() / "004").results["total"] == 18.0
    assert cli.main(["list"]) == 0
    assert "6 complete runs" in capsys.readouterr().out
    for run in folder().glob("00?"):
        shutil.rmtree(run)
    assert cli.main(["gather", str(folder()), "--columns", "total"]) == 2
    assert "no run is complete yet" in capsys.readouterr().err


def test_a_sweep_goes_on_after_a_failed_run_and_from_an_interrupted_one(capsys):
    modes = "{mode: [fine, failed, wait, fine]}"
    assert cli.main(["run", "tiny.yaml", "--sweep", modes]) == 130
    assert (folder() / "000").is_dir() and not (folder() / "003").exists()
    said = capsys.readouterr().err
    assert "the same command goes on from this run\n" in said and "saved yet" not in said
    assert cli.main(["run", "--resume", str(folder())]) == 1  # one of them has failed
    table = [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:5]]
    assert table == ["finished", "failed", "finished", "finished"]


MISTAKES = [
    ("3.0]", "x]", "6:12: sweep.a[1]", "a: must be a valid number (got 'x')"),
    ("grid.num", "grid.nom", "7:3: sweep.grid.nom", "did you mean 'num'? (got 'nom')"),
    ("grid.num", "grid.num.x", "7:16: sweep.grid.num.x[0]", "names no setting (got 5)"),
    ("7]", "1]", "7:20: sweep.grid.num[2]", "greater than or equal to 2 (got 1)"),
    ("[1.0, 3.0]", "[]", "6:6: sweep.a", "must not be empty"),
    ("[1.0, 3.0]", "1.0", "6:6: sweep.a", "must be a list (got 1.0)"),
    ("a: [1.0, 3.0]", "devices: [1, 2]", "6:13: sweep.devices[0]", "cannot be swept"),
    ("[5, 6, 7]", str([5] * 501), "6:3: sweep", "makes 1002 runs, at most 1000"),
]


def test_a_mistake_in_a_sweep_has_its_place(swept, capsys):
    for old, new, place, message in MISTAKES:
        pathlib.Path("tiny.yaml").write_text(SETTINGS + SWEEP.replace(old, new))
        assert cli.main(["run", "tiny.yaml"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"tiny.yaml:{place}: ") and message in line, place
    both = SWEEP.replace("3.0]", "x]").replace("7]", "1]")
    pathlib.Path("tiny.yaml").write_text(SETTINGS + both)
    assert cli.main(["check", "tiny.yaml"]) == 2
    places = [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()]
    assert places == ["sweep.a[1]", "sweep.grid.num[2]"]
    pathlib.Path("tiny.yaml").write_text(SETTINGS + SWEEP)
    for words, message in (
        (["--index", "6"], "index must be 0 to 5, as the sweep has 6 runs (got 6)"),
        (["--figures", "x"], "a sweep has no figure"),
    ):
        assert cli.main(["run", "tiny.yaml", *words]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert not list(pathlib.Path("runs").glob("*"))


def test_a_key_may_stand_under_sweep_alone():
    text = SETTINGS.replace("seed: 3\n", "") + SWEEP + "  seed: [4, 5]\n"
    pathlib.Path("tiny.yaml").write_text(text)
    swept = config.load("tiny.yaml")
    assert swept.seed == 4 and swept.sweep["seed"] == (4, 5)


# ---------------------------------------------------------------- what is read back


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run of the experiment that `truncgauss new` writes."""
    place = tmp_path_factory.mktemp("own")
    jax.local_devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(place / "cache"))
        assert cli.main(["new", "mine"]) == 0
        assert cli.main(["run", "mine.yaml"]) == 0
    return next((place / "runs").iterdir())


def test_the_experiment_to_begin_with_is_right(own):
    results = run_folder.read(own).results
    x, value, gradient = (results[name] for name in ("shift", "probability", "gradient"))
    assert x.shape == (101,) and np.all((value > 0) & (value < 1))
    np.testing.assert_allclose(np.gradient(value, x)[1:-1], gradient[1:-1], atol=1e-3)


def test_a_figure_is_drawn_again_from_the_stored_results(own, capsys, tmp_path, monkeypatch):
    drawing = own / "mine.svg"
    before = drawing.read_bytes()
    drawing.unlink()
    published = tmp_path / "figures"
    assert cli.main(["plot", str(own), "--figures", str(published)]) == 0
    assert drawing.read_bytes() == before == (published / "mine.svg").read_bytes()
    assert capsys.readouterr().out.splitlines()[-1] == str(drawing)
    run = run_folder.read(own)
    about = json.loads((published / "mine.json").read_text())
    assert about["summary"] == run.summary["summary"]
    with pytest.raises(ValueError, match="failed and has no figure: the loss is nan"):
        work.redraw(run._replace(summary=run.summary | {"reason": "the loss is nan"}))
    # One that moves is a pair of it and a GIF.
    moving = plotting.figure()[0], b"GIF89a"
    monkeypatch.setattr(work.settings, "function", lambda *_: lambda results: moving)
    paths = work.redraw(run_folder.read(shutil.copytree(own, tmp_path / "moving")))
    assert [path.rpartition(".")[2] for path in paths] == ["png", "svg", "gif"]
    assert (tmp_path / "moving" / "mine.gif").read_bytes() == b"GIF89a"


def test_runs_are_listed(own, capsys, tmp_path):
    assert cli.main(["list", str(own)]) == 2
    assert f"list those: truncgauss list {own.parent}" in capsys.readouterr().err
    assert cli.main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"no run in {tmp_path}")
    place = tmp_path / "listed"
    began, damaged = (place / f"mine-2020010{day}T000000Z" for day in (1, 2))
    began = began.with_suffix(".partial")
    for made in (began, damaged, place / "mine-sweep-1" / "000.partial"):
        made.mkdir(parents=True)
    for empty in (began / "config.yaml", damaged / "config.yaml", damaged / "result.npz"):
        empty.write_text("")
    (damaged / "summary.json").write_text("{}")
    (place / "mine-20200103T000000Z").symlink_to(own)
    (place / "mine-sweep-1" / "config.yaml").write_text("sweep: {}")
    with run_folder.claimed(place / "mine-sweep-1" / "000.partial"):
        assert cli.main(["list", str(place)]) == 0
        assert "0 complete runs, 1 running" in capsys.readouterr().out.splitlines()[-1]
    with run_folder.claimed(began):
        assert cli.main(["list", str(place)]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith("running")
    shutil.rmtree(place / "mine-sweep-1")
    assert cli.main(["list", str(place)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "unfinished" in first and "truncgauss run --resume" in first
    assert "damaged" in second and "it lacks experiment" in second
    assert "finished" in third and "the probability is largest" in third


def test_a_torn_file_says_what_to_do(own, tmp_path, capsys):
    copy = shutil.copytree(own, tmp_path / "torn")
    for name in ("result.npz", "summary.json", "provenance.json"):
        whole, torn = (copy / name).read_bytes(), copy / name
        for share in (0.0, 0.5, 0.99):
            torn.write_bytes(whole[: int(share * len(whole))])
            assert cli.main(["plot", str(copy)]) == 2, (name, share)
            (said,) = capsys.readouterr().err.splitlines()
            assert f"{torn}: it is torn" in said and "allow_pickle" not in said, (name, share)
            assert said.endswith(f"make the run again: truncgauss run {copy / 'config.yaml'}")
        torn.write_bytes(whole)


NAMES = ("Lead (ug/L)", "dose: 5mg/kg", "a%2Fb", "95 %", "x.npy", "/", "", "%", "two\nlines")


def test_any_name_is_stored_and_read_back_in_order(tmp_path):
    """Names of columns and categories become names of results."""
    numbers = {name: float(i) for i, name in enumerate(NAMES)}
    results = {"z": 1.0, "by_name": numbers, "x": {"x": 2.0, "x.npy": 3.0}, "summary": ["done"]}
    begun = run_folder.begin(tmp_path / "named", config.load(ROOT / "configs" / "bump_width.yaml"))
    final = run_folder.finish(begun, "mine", results_of_runs.as_stored(results), {})
    run = run_folder.read(final)
    assert run.results["by_name"] == numbers and list(run.results["by_name"]) == list(NAMES)
    assert run.results["x"] == {"x": 2.0, "x.npy": 3.0}
    wanted = ["z", *(f"by_name/{name}" for name in NAMES), "x/x", "x/x.npy"]
    assert list(run.summary["values"]) == wanted
    both = results_of_runs.outcome({"a": {"b": 1.0}, "a/b": 2.0})["values"]
    assert both == {"a/b": 1.0, "a%2Fb": 2.0}
