"""Runs read back: reports, lists, comparisons, figures drawn again; experiments of one's own."""

import html.parser
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from truncgauss import cli
from truncgauss.runs import folder as run_folder
from truncgauss.runs import report, work
from truncgauss.runs import results as results_of_runs
from truncgauss.runs import summary as summary_of_runs

VOID = {"meta", "img", "br", "wbr", "polyline"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs of the experiment that `truncgauss new` writes."""
    place = tmp_path_factory.mktemp("own")
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(place / "cache"))
        assert cli.main(["new", "mine"]) == 0
        assert cli.main(["run", "mine.yaml", "--runs", "first"]) == 0
        assert cli.main(["run", "mine.yaml", "--runs", "second", "--shift.num", "51"]) == 0
    return tuple(next((place / name).iterdir()) for name in ("first", "second"))


class Page(html.parser.HTMLParser):
    """The texts of a page; every element is closed, and nothing comes from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href") or value.startswith("data:image/")
            assert not name.startswith("on")

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_experiment_to_begin_with_is_right(folders):
    results = run_folder.read(folders[0]).results
    x, value, gradient = (results[name] for name in ("shift", "probability", "gradient"))
    assert x.shape == (101,) and np.all((value > 0) & (value < 1))
    np.testing.assert_allclose(np.gradient(value, x)[1:-1], gradient[1:-1], atol=1e-3)


def test_names_of_experiments_are_checked_and_nothing_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "my-own"]) == 2
    assert "letters, digits and underscores (got 'my-own')" in capsys.readouterr().err
    pathlib.Path("mine.py").write_text("precious")
    assert cli.main(["new", "mine"]) == 2
    assert "mine.py is there already" in capsys.readouterr().err
    assert pathlib.Path("mine.py").read_text() == "precious"
    assert not pathlib.Path("mine.yaml").exists()


def test_the_report_holds_the_numbers_and_needs_nothing_else(folders):
    run = run_folder.read(folders[0])
    text = (folders[0] / "report.html").read_text("utf-8")
    page = "".join(Page(text).texts)
    made = run.provenance["started"]
    for wanted in (*run.summary["summary"], run.config, "101 values, -3 to 3", made):
        assert wanted in page
    assert "http" not in page and "data:image/svg+xml;base64," in text


def test_what_is_not_a_number_cannot_break_a_report(tmp_path):
    nothing = np.full(20, np.nan)
    results = {"<b>": "<script>alert(1)</script>", "line": nothing, "gap": np.arange(20.0)}
    results["gap"][3] = np.inf
    losses = ("inf", 2.0, 1.0)
    results["metrics"] = [{"loss": loss, "dtype": "float32"} for loss in losses]
    summary = {
        "experiment": "x",
        "status": "failed",
        "reason": "a < b",
        "summary": [],
        "values": {},
    }
    run = run_folder.CompletedRun(tmp_path, "a: <1>", results, summary, {"warnings": ["<w>"]})
    text = report.page(run)
    page = "".join(Page(text).texts)
    assert "<script>" not in text and "<script>alert(1)</script>" in page
    assert "no finite value" in page and "failed: a < b" in page and "<w>" in page
    assert "20 values, 0 to 19, 1 not finite" in page
    assert text.count("<polyline") == 3  # the gap parts the second curve


def test_a_figure_is_drawn_again_from_the_stored_results(folders, capsys):
    drawing = folders[0] / "mine.svg"
    before = drawing.read_bytes()
    drawing.unlink()
    assert cli.main(["plot", str(folders[0])]) == 0
    assert drawing.read_bytes() == before
    assert capsys.readouterr().out.splitlines()[-1] == str(folders[0] / "report.html")


def test_runs_are_listed_and_compared(folders, capsys, tmp_path):
    (tmp_path / "mine-20200101T000000Z.partial").mkdir()
    (tmp_path / "mine-20200101T000000Z.partial" / "config.yaml").write_text("")
    damaged = tmp_path / "mine-20200102T000000Z"
    damaged.mkdir()
    for name in ("config.yaml", "result.npz"):
        (damaged / name).write_text("")
    (damaged / "summary.json").write_text("{}")
    (tmp_path / "mine-20200103T000000Z").symlink_to(folders[0])
    assert cli.main(["list", str(tmp_path)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "unfinished" in first and "truncgauss run --resume" in first
    assert "damaged" in second and "it lacks experiment" in second
    assert "finished" in third and "the probability is largest" in third

    assert cli.main(["compare", *map(str, folders)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == [folders[0].name, folders[1].name, "difference"]
    assert said.index("settings:") > 0
    assert any(line.startswith("- ") and "101" in line for line in said)
    assert any(line.startswith("+ ") and "51" in line for line in said)


@pytest.mark.parametrize("name", ["result.npz", "summary.json", "provenance.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_torn_file_says_what_to_do(name, share, folders, tmp_path, capsys):
    torn = shutil.copytree(folders[0], tmp_path / "torn") / name
    torn.write_bytes(torn.read_bytes()[: int(share * torn.stat().st_size)])
    assert cli.main(["compare", str(torn.parent), str(folders[0])]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{torn}: it is torn" in said and "allow_pickle" not in said
    assert said.endswith(f"make the run again: truncgauss run {torn.parent / 'config.yaml'}")


def test_values_stand_side_by_side(folders, tmp_path):
    run = run_folder.read(folders[0])
    values = (
        {"fit/seconds": 1.0, "rows": 7, "loss": 0.5, "name": "a"},
        {"fit/seconds": 2.0, "rows": 7, "loss": 0.75, "name": "b", "more": 1},
    )
    pair = [
        run._replace(folder=tmp_path / name, summary=run.summary | {"values": value})
        for name, value in zip(("one", "two"), values)
    ]
    *said, same, alike = summary_of_runs.compared(*pair)
    header, loss, name, more, seconds = (line.split() for line in said)
    assert same == "results that are the same: 1" and alike == "the same settings"
    assert header == ["one", "two", "difference"]
    assert loss == ["loss", "0.5", "0.75", "+0.25"]
    assert name == ["name", "a", "b", "differs"] and more == ["more", "1", "differs"]
    assert seconds == ["fit/seconds", "1", "2", "+1"]  # times differ always, so they come last
    header, rows, loss, _ = summary_of_runs.compared(*pair, ["rows", "l*s"])
    assert rows.split() == ["rows", "7", "7", "+0"] and loss.startswith("loss")
    with pytest.raises(ValueError, match=r"no result is called los; there are: loss, name"):
        summary_of_runs.compared(*pair, ["los"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plot", "nowhere"], "no such run (got nowhere)"),
        (["compare", "nowhere", "nowhere"], "no such run (got nowhere)"),
        (["list", "nowhere"], "no such folder (got nowhere)"),
    ],
)
def test_folders_that_are_none_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"truncgauss: error: {message}\n"


def test_a_failed_run_has_no_figure(folders):
    run = run_folder.read(folders[0])
    failed = run._replace(summary=run.summary | {"reason": "the loss is nan"})
    with pytest.raises(ValueError, match="failed and has no figure: the loss is nan"):
        work.redraw(failed)


NAMES = ("Lead (ug/L)", "dose: 5mg/kg", "a%2Fb", "95 %", "x.npy", "/", "", "%", "two\nlines")


def test_any_name_is_stored_and_read_back_in_order(tmp_path):
    """Names of columns and categories become names of results."""
    numbers = {name: float(i) for i, name in enumerate(NAMES)}
    results = {"z": 1.0, "by_name": numbers, "x": {"x": 2.0, "x.npy": 3.0}, "summary": ["done"]}
    folder = run_folder.begin(tmp_path, "mine", "experiment: mine.py\n")
    final = run_folder.finish(folder, "mine", results_of_runs.as_stored(results), {})
    run = run_folder.read(final)
    assert run.results["by_name"] == numbers and list(run.results["by_name"]) == list(NAMES)
    assert run.results["x"] == {"x": 2.0, "x.npy": 3.0}
    wanted = ["z", *(f"by_name/{name}" for name in NAMES), "x/x", "x/x.npy"]
    assert list(run.summary["values"]) == wanted
    assert "Lead (ug/<wbr>L)" in report.page(run)
    assert results_of_runs.outcome({"a": {"b": 1.0}, "a/b": 2.0})["values"] == {
        "a/b": 1.0,
        "a%2Fb": 2.0,
    }


def test_warnings_of_a_run_are_kept_and_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "warn.py").write_text(
        "import warnings\nfrom truncgauss import config, plotting\n"
        "class Settings(config.Experiment):\n    pass\n"
        "def run(settings):\n    warnings.warn('mind the gap')\n    return {'a': 1.0}\n"
        "def plot(results):\n    return plotting.figure()[0]\n"
    )
    (tmp_path / "warn.yaml").write_text("experiment: warn.py\nseed: 1\n")
    with pytest.warns(UserWarning, match="mind the gap"):
        assert cli.main(["run", "warn.yaml"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    made = json.loads((folder / "provenance.json").read_text())
    assert made["warnings"] == ["UserWarning: mind the gap"]
    assert "mind the gap" in (folder / "report.html").read_text()
