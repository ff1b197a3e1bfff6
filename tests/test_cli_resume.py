"""Runs that cannot be continued, or begun: another process, other data, a full disk."""

import pathlib

from test_cli import SETTINGS, folders, tiny  # noqa: F401  (the experiment of a few lines)

from truncgauss import cli
from truncgauss.runs import folder as run_folder


def test_two_processes_cannot_continue_one_run(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "wait"]) == 130
    (partial,) = folders()
    with run_folder.claimed(partial):
        assert cli.main(["run", "--resume", str(partial)]) == 2
    assert "another process is running" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main(["run", "--resume", str(partial)]) == 0


def test_data_that_changed_since_a_run_began_are_refused(capsys):
    text = pathlib.Path("tiny.py").read_text()
    pathlib.Path("tiny.py").write_text(
        text.replace("mode: str", "mode: str\n    data: config.DataFile")
    )
    pathlib.Path("x.csv").write_text("a\n1\n")
    assert cli.main(["run", "tiny.yaml", "--mode", "wait", "--data", "x.csv"]) == 2
    assert "data: is required" in capsys.readouterr().err
    pathlib.Path("tiny.yaml").write_text(SETTINGS + "data: x.csv\n")
    assert cli.main(["run", "tiny.yaml", "--mode", "wait"]) == 130
    (partial,) = folders()
    pathlib.Path("x.csv").write_text("a\n2\n")
    assert cli.main(["run", "--resume", str(partial)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert "x.csv has changed since the run began: put it back, or start a new run" in told
    pathlib.Path("x.csv").unlink()
    assert cli.main(["run", "--resume", str(partial)]) == 2
    assert "data: no such file" in capsys.readouterr().err.splitlines()[-1]
    pathlib.Path("x.csv").write_text("a\n1\n")
    assert cli.main(["run", "--resume", str(partial)]) == 0


def test_a_disk_that_is_full_at_the_start_leaves_nothing(monkeypatch, capsys):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    assert cli.main(["run", "tiny.yaml"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("truncgauss: error: runs/tiny-")
    assert said.endswith("/tiny.py: No space left on device")
    assert not folders()
