"""The command line: exit codes, run folders, interruptions; with an experiment of a few lines."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from truncgauss import __version__, cli
from truncgauss.execution.interrupts import interrupts
from truncgauss.runs import folder as run_folder
from truncgauss.runs import work

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = "experiment: tiny.py\nseed: 3\nmode: fine\n"
TINY = '''\
"""An experiment that ends as it is told."""

import time
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import config, fitting


class Settings(config.Experiment):
    spreads: ClassVar[bool] = True
    mode: str


def run(settings):
    fresh = []
    match settings.mode:
        case "value":
            raise ValueError("rows 3 and 5\\nlie outside of the limits")
        case "nan":
            raise FloatingPointError("step 3: the loss is nan")
        case "bug":
            raise KeyError("a bug")
        case "object":
            return {"a": object()}
        case "number":
            return 3.0
        case "zero":
            return {"a": 1 / 0}
        case "picture":
            return {"picture": "none"}
        case "wait":
            fitting.computed("half", lambda: fresh.append(1))
            if fresh:
                raise KeyboardInterrupt
        case "hang":
            raise KeyboardInterrupt
        case "sleep":
            fitting.computed("half", lambda: fresh.append(1))
            print("ready", flush=True)
            time.sleep(600)
        case "devices":
            return {"devices": jax.local_device_count(), "one": jnp.ones(())}
    return {
        "a": jnp.arange(3.0),
        "inner": {"x": 1.5, "y": jnp.nan, "flag": True},
        "text": "hello",
        "summary": ["a is fine", f"and {settings.mode}"],
        "metrics": [{"step": 0, "loss": jnp.inf}, {"step": 1, "loss": jnp.float32(2)}],
        "failed": "the sum is off" if settings.mode == "failed" else "",
    }


def plot(results):
    from truncgauss import plotting

    if "picture" in results:
        return None

    picture, ax = plotting.figure()
    if "a" in results:
        assert isinstance(results["a"], np.ndarray)
        ax.plot(results["a"])
    return picture
'''


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    pathlib.Path("tiny.yaml").write_text(SETTINGS)
    pathlib.Path("tiny.py").write_text(TINY)


def folders() -> list[pathlib.Path]:
    return sorted(pathlib.Path("runs").glob("*"))


def test_a_run_leaves_a_folder_that_says_everything(capsys):
    assert cli.main(["run", "tiny.yaml", "--seed", "4", "--figures", "figs"]) == 0
    (folder,) = folders()
    out = capsys.readouterr().out.splitlines()
    ending = [f"run folder: {folder}", f"figure: {folder / 'tiny.png'}"]
    assert out == ["a is fine", "and fine", *ending]
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "result.npz", "summary.json", "metrics.jsonl", "provenance.json",
        "tiny.png", "tiny.svg", "tiny.py",
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


STEP = TINY[: TINY.index('"step 3')].count("\n") + 1


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [
        ("failed", 1, "the sum is off"),
        ("nan", 1, f"step 3: the loss is nan (tiny.py, line {STEP})"),
    ],
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
    line = TINY[: TINY.index("raise ValueError")].count("\n") + 1
    place = f"(tiny.py, line {line})"
    assert error == f"truncgauss: error: rows 3 and 5 lie outside of the limits {place}"
    assert not folders()
    with pytest.raises(ValueError, match="rows 3 and 5"):
        cli.main(["run", "tiny.yaml", "--mode", "value", "--traceback"])
    assert not folders()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("bug", r"KeyError: a bug \(tiny.py, line \d+\); --traceback shows more"),
        ("object", "TypeError: result 'a' must be numbers or text, got object"),
        ("number", r"tiny.py: run must return a dictionary of results by name \(got float\)"),
    ],
)
def test_a_mistake_in_ones_own_code_has_its_line_and_leaves_no_folder(mode, message, capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", mode]) == 1
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])
    assert not folders()
    with pytest.raises(work.MistakeInCode):
        cli.main(["run", "tiny.yaml", "--mode", mode, "--traceback"])


def test_a_division_by_zero_has_its_line(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "zero"]) == 1
    line = TINY[: TINY.index("1 / 0")].count("\n") + 1
    assert f"failed: division by zero (tiny.py, line {line})" in capsys.readouterr().out


def test_a_plot_that_returns_no_figure_keeps_the_numbers(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "picture"]) == 1
    (folder,) = folders()
    kept, error = capsys.readouterr().err.splitlines()[-2:]
    assert f"the numbers are in {folder}" in kept
    assert "tiny.py: plot must return a matplotlib Figure" in error and "(got NoneType)" in error


def test_an_interrupted_run_goes_on_where_it_was(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "wait"]) == 130
    (partial,) = folders()
    assert partial.name.endswith(".partial")
    assert {path.name for path in partial.iterdir()} == {"config.yaml", "checkpoint", "tiny.py"}
    assert f"truncgauss run --resume {partial}" in capsys.readouterr().err

    pathlib.Path("tiny.py").write_text(TINY + "# changed\n")
    assert cli.main(["run", "--resume", str(partial)]) == 2
    assert "tiny.py has changed since the run began" in capsys.readouterr().err
    assert (partial / "checkpoint" / "work.npz").exists()
    pathlib.Path("tiny.py").write_text(TINY)

    name = str(partial).removesuffix(".partial")
    assert cli.main(["run", "--resume", name]) == 0
    assert [str(folder) for folder in folders()] == [name]
    assert not (pathlib.Path(name) / "checkpoint").exists()
    assert "and wait" in capsys.readouterr().out
    assert cli.main(["run", "--resume", name]) == 2
    assert f"that run is complete, its results are in {name}\n" in capsys.readouterr().err
    assert cli.main(["run", "--resume", f"{name}.partial"]) == 2
    assert f"that run is complete, its results are in {name}\n" in capsys.readouterr().err


def test_an_interrupted_run_without_a_state_leaves_nothing(capsys):
    assert cli.main(["run", "tiny.yaml", "--mode", "hang"]) == 130
    assert not folders()
    told = capsys.readouterr().err
    assert "--resume" not in told and "nothing was saved yet; start the run again" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "run takes either a config or --resume"),
        (["runn", "tiny.yaml"], "'runn': unknown command; did you mean 'run'?"),
        (["fit", "tiny.yaml"], "'fit': unknown command; known: run, check, schema"),
        (["tiny.yaml", "--seed", "3"], "to run that file: truncgauss run tiny.yaml --seed 3"),
        (["resume", "runs/x"], "to continue a run: truncgauss run --resume FOLDER"),
        (["sweep", "tiny.yaml"], "is a sweep: truncgauss run CONFIG"),
        (["run", "shiftcurve"], "neither a file nor an experiment; did you mean 'shift_curve'?"),
        (["run", "no.yaml"], "no.yaml:1:1: file: cannot be read"),
        (["run", "tiny.yaml", "--sede", "3"], "--sede: unknown key; did you mean 'seed'?"),
        (["run", "tiny.yaml", "--devices", "64"], "devices of the host need JAX_PLATFORMS=cpu"),
        (
            ["run", "tiny.yaml", "--resume", "runs/x"],
            "run takes either a config or --resume",
        ),
        (
            ["run", "--resume", "runs/x", "--seed", "3"],
            "for others start a new one (got --seed)",
        ),
        (["run", "--resume", "runs/x"], "no such run (got runs/x); `truncgauss list`"),
        (["run", "tiny.yaml", "--runs", "tiny.yaml"], "Not a directory"),
        (["run", "tiny.yaml", "--figures", "tiny.yaml"], "Not a directory"),
        (["check"], "check needs a file, or the name of an experiment"),
        (["check", "tiny.yaml", "no.yaml"], "no.yaml:1:1: file: cannot be read"),
        (["check", "shiftcurve"], "did you mean 'shift_curve'?"),
        (["check", "tiny.yaml", "--seed", "3"], "check has no option --seed: truncgauss check -"),
        (["list", "--foo"], "list has no option --foo: truncgauss list --help"),
        (["list", "-x=3"], "list has no option -x"),
        (["list", "a", "b"], "unknown b"),
        (["run", "--seed=3", "tiny.yaml"], "run has no option --seed; settings come after the con"),
        (["schema", "shiftcurve"], "experiment shiftcurve: unknown; did you mean 'shift_curve'?"),
        (["schema", "tinny.py"], "experiment tinny.py: no such file"),
    ],
)
def test_wrong_usage_is_one_line(words, message, capsys):
    assert cli.main(words) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[-1]
    assert not folders()


def test_check_and_schema_print(capsys):
    assert cli.main(["check", "tiny.yaml"]) == 0
    assert capsys.readouterr().out == "tiny.yaml: fine, tiny\n"
    assert cli.main(["schema", "tiny.py"]) == 0
    assert "mode" in json.loads(capsys.readouterr().out)["properties"]


def test_check_goes_on_after_a_file_that_is_wrong(capsys):
    pathlib.Path("bad.yaml").write_text(SETTINGS.replace("seed: 3", "seed: x"))
    assert cli.main(["check", "no.yaml", "tiny.yaml", "bad.yaml", "shift_curve"]) == 2
    told = capsys.readouterr()
    assert told.out.splitlines() == ["tiny.yaml: fine, tiny", "shift_curve: fine, shift_curve"]
    assert [line.split(": ")[0] for line in told.err.splitlines()] == [
        "no.yaml:1:1", "bad.yaml:2:7",
    ]  # fmt: skip


def test_the_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"truncgauss {__version__}\n"


def test_help_lists_the_settings_of_ones_own_file(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "tiny.yaml", "--help"])
    assert caught.value.code == 0 and "--mode" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["run"], ["new"], ["check"], ["gather"], ["run", "fit_table"]])
def test_help_names_no_default_that_is_nothing(words, capsys):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help"])
    said = capsys.readouterr().out
    assert "{None}" not in said and "(default: )" not in said
    assert words[1:] or f"truncgauss {words[0]} " in said.split("Example:")[1]


def test_a_path_of_an_experiment_starts_at_the_config(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "mine.py").write_text(TINY)
    (inner / "mine.yaml").write_text(SETTINGS.replace("tiny.py", "mine.py"))
    before = list(sys.path)
    assert cli.main(["run", "inner/mine.yaml"]) == 0
    assert sys.path == before
    (folder,) = folders()
    assert folder.name.startswith("mine-") and (folder / "mine.png").exists()
    assert str(inner / "mine.py") in (folder / "config.yaml").read_text()


def test_figures_that_cannot_be_written_are_told_before_the_work(monkeypatch, capsys):
    monkeypatch.setattr(work, "prepare", lambda config: pytest.fail("the work has begun"))
    assert cli.main(["run", "tiny.yaml", "--figures", "tiny.yaml"]) == 2
    assert "Not a directory" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_is_read_only_is_not_writable(tmp_path):
    (tmp_path / "figs").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        run_folder.writable(tmp_path / "figs")


def test_the_commit_is_that_of_a_checkout_only(tmp_path):
    assert run_folder.circumstances(tmp_path, [], [])["commit"] is None
    if (ROOT / ".git").exists():
        assert len(run_folder.circumstances(ROOT, [], [])["commit"]) == 40


def test_a_signal_that_a_callback_turned_into_an_error_stays_a_signal():
    """As JAX does: the text of what was raised in a callback becomes that of its own error."""
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt as stop:
            text = f"callback failed: KeyboardInterrupt: {stop}"
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="of its own"), interrupts():
        raise RuntimeError("an error of its own that mentions KeyboardInterrupt")


def test_a_signal_that_python_drops_comes_again():
    """What a finaliser raises is dropped, and JAX has callbacks while garbage is collected."""

    class Finalised:
        def __del__(self):
            raise KeyboardInterrupt("SIGTERM")

    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts():
        Finalised()
        time.sleep(10)


def test_a_figure_that_fails_leaves_the_numbers(capsys):
    text = pathlib.Path("tiny.py").read_text()
    pathlib.Path("tiny.py").write_text(text.replace("plotting.figure()", "plotting.nothing()"))
    with pytest.raises(work.MistakeInCode, match="no attribute 'nothing'"):
        cli.main(["run", "--traceback", "tiny.yaml"])
    (folder,) = folders()
    assert f"the numbers are in {folder}, but plot failed" in capsys.readouterr().err
    assert (folder / "result.npz").exists()
    pathlib.Path("tiny.py").write_text(text)
    assert cli.main(["plot", str(folder)]) == 0 and (folder / "tiny.png").exists()


def process(*words: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "truncgauss.cli", "run", "tiny.yaml", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.quick("15-143")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_their_exit_codes(number, code):
    with process("--mode", "sleep") as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.wait(timeout=600) == code
    (partial,) = folders()
    assert (partial / "checkpoint" / "work.npz").exists()
    assert not (partial / "summary.json").exists()


@pytest.mark.full
def test_precision_and_devices_come_from_the_settings():
    with process("--mode", "devices", "--devices", "3", "--dtype", "float32") as child:
        assert child.wait(timeout=600) == 0
    (folder,) = folders()
    with np.load(folder / "result.npz") as arrays:
        assert arrays["devices"] == 3 and arrays["one"].dtype == np.float32


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "truncgauss.cli", "check", "nowhere.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2 and "nowhere.yaml" in done.stderr


CACHE = """
import sys
from truncgauss import config
from truncgauss.runs import work
import jax
import truncgauss as tg
tg.Box, tg.minimize
before = jax.config.jax_compilation_cache_dir
settings = config.load("tiny.yaml")
work.prepare(settings)
print(before, jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.quick("environment0-None /x/truncgauss/jax")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "None /x/truncgauss/jax"),
        ({"HOME": "/home/me"}, "None /home/me/.cache/truncgauss/jax"),
        ({"XDG_CACHE_HOME": "/x", "JAX_COMPILATION_CACHE_DIR": "/y"}, "/y /y"),
        ({"HOME": "~"}, "None None"),
    ],
)
def test_the_command_line_keeps_compiled_functions_and_imports_do_not(environment, expected):
    named = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
    kept = {key: value for key, value in os.environ.items() if key not in named}
    environment = {**kept, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", CACHE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == expected
