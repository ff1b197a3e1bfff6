"""The command line: exit codes, run folders, interruptions; with an experiment of a few lines."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import types
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truncgauss import cli, config, runs

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = "experiment: tiny\nseed: 3\nmode: fine\n"


class Tiny(config.Experiment):
    """An experiment that ends as it is told."""

    experiment: Literal["tiny"]
    mode: str


def run(config, checkpoint):
    match config.mode:
        case "value":
            raise ValueError("rows 3 and 5\nlie outside of the limits")
        case "nan":
            raise FloatingPointError("step 3: the loss is nan")
        case "bug":
            raise KeyError("a bug")
        case "object":
            return {"a": object()}
        case "wait" if not (checkpoint / "state").exists():
            checkpoint.mkdir()
            (checkpoint / "state").write_text("half")
            raise KeyboardInterrupt
        case "hang":
            raise KeyboardInterrupt
    return {
        "a": jnp.arange(3.0),
        "inner": {"x": 1.5, "y": jnp.nan, "flag": True},
        "text": "hello",
        "summary": ["a is fine", f"and {config.mode}"],
        "metrics": [{"step": 0, "loss": jnp.inf}, {"step": 1, "loss": jnp.float32(2)}],
        "failed": "the sum is off" if config.mode == "failed" else "",
    }


def plot(results):
    from truncgauss import plotting

    assert isinstance(results["a"], np.ndarray)
    picture, ax = plotting.figure()
    ax.plot(results["a"])
    return picture


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    module = types.ModuleType("experiments.tiny")
    module.run, module.plot = run, plot
    monkeypatch.setitem(config.EXPERIMENTS, "tiny", Tiny)
    monkeypatch.setitem(sys.modules, "experiments.tiny", module)
    monkeypatch.chdir(tmp_path)
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    pathlib.Path("tiny.yaml").write_text(SETTINGS)


def folders() -> list[pathlib.Path]:
    return sorted(pathlib.Path("runs").glob("*"))


def test_a_run_leaves_a_folder_that_says_everything(capsys):
    assert cli.main(["run", "tiny.yaml", "--seed", "4", "--figures", "figs"]) == 0
    (folder,) = folders()
    out = capsys.readouterr().out.splitlines()
    assert out == ["a is fine", "and fine", f"run folder: {folder}"]
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "result.npz", "summary.json", "metrics.jsonl", "provenance.json",
        "tiny.png", "tiny.svg",
    }  # fmt: skip

    with np.load(folder / "result.npz") as arrays:
        assert set(arrays) == {"a", "inner/x", "inner/y", "inner/flag", "text"}
        np.testing.assert_array_equal(arrays["a"], np.arange(3.0))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "finished" and summary["summary"] == ["a is fine", "and fine"]
    scalars = {"inner/x": 1.5, "inner/y": "nan", "inner/flag": True, "text": "hello"}
    assert summary["values"] == scalars
    rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 0, "loss": "inf"}, {"step": 1, "loss": 2.0}]
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["command"][:3] == ["truncgauss", "run", "tiny.yaml"]
    assert provenance["seed"] == 4 and provenance["dtype"] == "float64"
    assert provenance["versions"]["jax"] and provenance["devices"][0].startswith("cpu:0")

    assert {path.name for path in pathlib.Path("figs").iterdir()} == {
        "tiny.png", "tiny.svg", "tiny.json",
    }  # fmt: skip
    shown = json.loads(pathlib.Path("figs/tiny.json").read_text())
    assert shown["values"] == summary["values"] and shown["versions"] == provenance["versions"]

    # The folder's own settings rerun it, and a second run in the same second has its own folder.
    assert cli.main(["run", str(folder / "config.yaml")]) == 0
    first, second = folders()
    assert (first / "config.yaml").read_text() == (second / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [("failed", 1, "the sum is off"), ("nan", 1, "step 3: the loss is nan")],
)
def test_a_failed_run_says_so(mode, code, reason, capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", mode, "--figures", "figs"]) == code
    (folder,) = folders()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["reason"] == reason
    assert f"failed: {reason}" in capsys.readouterr().out
    assert not pathlib.Path("figs").exists()


def test_refused_data_are_one_line_and_leave_no_folder(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "value"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "truncgauss: error: rows 3 and 5 lie outside of the limits"
    assert not folders()
    with pytest.raises(ValueError, match="rows 3 and 5"):
        cli.main(["run", "tiny.yaml", "--mode", "value", "--traceback"])
    assert not folders()


@pytest.mark.parametrize(("mode", "error"), [("bug", KeyError), ("object", TypeError)])
def test_a_bug_shows_its_traceback_and_leaves_no_folder(mode, error):
    with pytest.raises(error):
        cli.main(["run", "tiny.yaml", "--mode", mode])
    assert not folders()


def test_an_interrupted_run_goes_on_where_it_was(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "wait"]) == 130
    (partial,) = folders()
    assert partial.name.endswith(".partial")
    assert {path.name for path in partial.iterdir()} == {"config.yaml", "checkpoint"}
    assert f"truncgauss run --resume {partial}" in capsys.readouterr().err

    name = str(partial).removesuffix(".partial")
    assert cli.main(["run", "--resume", name]) == 0
    assert [str(folder) for folder in folders()] == [name]
    assert not (pathlib.Path(name) / "checkpoint").exists()
    assert "and wait" in capsys.readouterr().out
    assert cli.main(["run", "--resume", name]) == 2
    assert "that run is complete" in capsys.readouterr().err


def test_an_interrupted_run_without_a_state_leaves_nothing(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "hang"]) == 130
    assert not folders()
    assert "--resume" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "run takes a config, or --resume FOLDER and no settings"),
        (["run", "no.yaml"], "no.yaml:1:1: file: cannot be read"),
        (["run", "tiny.yaml", "--sede", "3"], "--sede: unknown key; did you mean 'seed'?"),
        (["run", "tiny.yaml", "--devices", "64"], "devices of the host need JAX_PLATFORMS=cpu"),
        (["run", "tiny.yaml", "--resume", "runs/x"], "run takes a config, or --resume"),
        (["run", "--resume", "runs/x"], "no such run (got runs/x)"),
        (["run", "tiny.yaml", "--runs", "tiny.yaml"], "Not a directory"),
        (["check", "tiny.yaml", "no.yaml"], "no.yaml:1:1: file: cannot be read"),
        (["check", "tiny.yaml", "--seed", "3"], "unknown --seed"),
        (["schema", "tinny"], "did you mean 'tiny'?"),
    ],
)
def test_wrong_usage_is_one_line(words, message, capsys):
    assert cli.main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]
    assert not folders()


def test_unknown_commands_are_usage_errors(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["rum", "tiny.yaml"])
    assert caught.value.code == 2


def test_check_and_schema_print(capsys):
    assert cli.main(["check", "tiny.yaml"]) == 0
    assert capsys.readouterr().out == "tiny.yaml: fine, tiny\n"
    assert cli.main(["schema", "tiny"]) == 0
    assert "mode" in json.loads(capsys.readouterr().out)["properties"]


def test_an_experiment_runs_its_own_settings_only(capsys):
    assert cli.main(["run", "tiny.yaml"], experiment="shift_curve") == 2
    assert "experiment: must be shift_curve (got tiny)" in capsys.readouterr().err


def test_the_commit_is_that_of_a_checkout_only(tmp_path):
    assert runs.circumstances(tmp_path, [], [])["commit"] is None
    if (ROOT / ".git").exists():
        assert len(runs.circumstances(ROOT, [], [])["commit"]) == 40


PROCESS = """
import pathlib, sys, time, types
from typing import Literal
from truncgauss import cli, config

class Tiny(config.Experiment):
    experiment: Literal["tiny"]
    mode: str

def run(config, checkpoint):
    import jax
    if config.mode == "sleep":
        checkpoint.mkdir()
        (checkpoint / "state").write_text("half")
        print("ready", flush=True)
        time.sleep(60)
    return {"devices": jax.local_device_count(), "one": jax.numpy.ones(())}

def plot(results):
    from truncgauss import plotting
    return plotting.figure()[0]

config.EXPERIMENTS["tiny"] = Tiny
sys.modules["experiments.tiny"] = module = types.ModuleType("experiments.tiny")
module.run, module.plot = run, plot
sys.exit(cli.main())
"""


def process(*words: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROCESS, "run", "tiny.yaml", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_their_exit_codes(number, code):
    with process("--mode", "sleep") as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.wait(timeout=60) == code
    (partial,) = folders()
    assert (partial / "checkpoint" / "state").exists()
    assert not (partial / "summary.json").exists()


def test_precision_and_devices_come_from_the_settings():
    with process("--devices", "3", "--dtype", "float32") as child:
        assert child.wait(timeout=60) == 0
    (folder,) = folders()
    with np.load(folder / "result.npz") as arrays:
        assert arrays["devices"] == 3 and arrays["one"].dtype == np.float32


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "truncgauss.cli", "check", "nowhere.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "nowhere.yaml" in done.stderr
