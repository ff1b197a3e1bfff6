"""Runs read back: lists, figures drawn again; experiments of one's own."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from truncgauss import cli, plotting
from truncgauss.runs import folder as run_folder
from truncgauss.runs import results as results_of_runs
from truncgauss.runs import work


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of the experiment that `truncgauss new` writes."""
    place = tmp_path_factory.mktemp("own")
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(place / "cache"))
        assert cli.main(["new", "mine"]) == 0
        assert cli.main(["run", "mine.yaml"]) == 0
    return next((place / "runs").iterdir())


def test_the_experiment_to_begin_with_is_right(folder):
    results = run_folder.read(folder).results
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


def test_a_figure_is_drawn_again_from_the_stored_results(folder, capsys, tmp_path):
    drawing = folder / "mine.svg"
    before = drawing.read_bytes()
    drawing.unlink()
    published = tmp_path / "figures"
    assert cli.main(["plot", str(folder), "--figures", str(published)]) == 0
    assert drawing.read_bytes() == before
    assert capsys.readouterr().out.splitlines()[-1] == str(drawing)
    assert (published / "mine.svg").read_bytes() == before
    about = json.loads((published / "mine.json").read_text())
    assert about["summary"] == run_folder.read(folder).summary["summary"]


def test_a_figure_that_moves_is_kept_as_a_gif(folder, tmp_path, monkeypatch):
    moving = plotting.figure()[0], b"GIF89a"
    monkeypatch.setattr(work.settings, "function", lambda *_: lambda results: moving)
    run = run_folder.read(shutil.copytree(folder, tmp_path / "moving"))
    paths = work.redraw(run)
    assert [path.rpartition(".")[2] for path in paths] == ["png", "svg", "gif"]
    assert (tmp_path / "moving" / "mine.gif").read_bytes() == b"GIF89a"


def test_runs_are_listed(folder, capsys, tmp_path):
    (tmp_path / "mine-20200101T000000Z.partial").mkdir()
    (tmp_path / "mine-20200101T000000Z.partial" / "config.yaml").write_text("")
    damaged = tmp_path / "mine-20200102T000000Z"
    damaged.mkdir()
    for name in ("config.yaml", "result.npz"):
        (damaged / name).write_text("")
    (damaged / "summary.json").write_text("{}")
    (tmp_path / "mine-20200103T000000Z").symlink_to(folder)
    sweep = tmp_path / "mine-sweep-1"
    (sweep / "000.partial").mkdir(parents=True)
    (sweep / "config.yaml").write_text("sweep: {}")
    with run_folder.claimed(sweep / "000.partial"):
        assert cli.main(["list", str(tmp_path)]) == 0
        assert "0 complete runs, 1 running" in capsys.readouterr().out.splitlines()[-1]
    with run_folder.claimed(tmp_path / "mine-20200101T000000Z.partial"):
        assert cli.main(["list", str(tmp_path)]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith("running")
    shutil.rmtree(sweep)
    assert cli.main(["list", str(tmp_path)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert "unfinished" in first and "truncgauss run --resume" in first
    assert "damaged" in second and "it lacks experiment" in second
    assert "finished" in third and "the probability is largest" in third


@pytest.mark.parametrize("name", ["result.npz", "summary.json", "provenance.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_torn_file_says_what_to_do(name, share, folder, tmp_path, capsys):
    torn = shutil.copytree(folder, tmp_path / "torn") / name
    torn.write_bytes(torn.read_bytes()[: int(share * torn.stat().st_size)])
    assert cli.main(["plot", str(torn.parent)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{torn}: it is torn" in said and "allow_pickle" not in said
    assert said.endswith(f"make the run again: truncgauss run {torn.parent / 'config.yaml'}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plot", "nowhere"], "no such run (got nowhere); `truncgauss list` shows those there are"),
        (["list", "nowhere"], "no such folder (got nowhere)"),
    ],
)
def test_folders_that_are_none_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err == f"truncgauss: error: {message}\n"


def test_a_failed_run_has_no_figure(folder):
    run = run_folder.read(folder)
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
