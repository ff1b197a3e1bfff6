"""The command line: what may be typed, exit codes, what is printed and where; signals."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import jax
import pytest

from truncgauss import __version__, cli
from truncgauss.execution import interrupts
from truncgauss.runs import work
from truncgauss.words import terminal

ROOT = pathlib.Path(__file__).parents[1]
SETTINGS = "experiment: tiny.py\nseed: 3\nmode: fine\n"
TINY = '''\
"""An experiment of a few lines that ends as its mode says."""

import time
import warnings
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import config, fitting

class Settings(config.Experiment):
    spreads: ClassVar[bool] = True
    mode: str
    a: config.Number = 2.0
    grid: config.Grid = config.Grid(start=0.0, stop=1.0, num=4)
    data: config.DataFile | None = None


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
        case "wait":
            fitting.computed("half", lambda: fresh.append(1))
            if fresh:
                raise KeyboardInterrupt
        case "hang":
            raise KeyboardInterrupt
        case "sleep":
            fitting.computed("half", lambda: fresh.append(1))
            print("ready", jax.local_device_count(), jnp.ones(()).dtype, flush=True)
            time.sleep(600)
        case "pause":
            time.sleep(3.0)
        case "warn":
            warnings.warn("mind the gap")
    return {
        "a": jnp.arange(3.0),
        "inner": {"x": 1.5, "y": jnp.nan, "flag": True},
        "text": settings.mode if settings.a else "nothing",
        "total": settings.a * settings.grid.num,
        "first_seconds": settings.a,
        "summary": ["a is fine", f"and {settings.mode}"],
        "metrics": [{"step": 0, "loss": jnp.inf}, {"step": 1, "loss": jnp.float32(2)}],
        "failed": "the sum is off" if settings.mode == "failed" else "",
    }


def plot(results):
    from truncgauss import plotting

    if results["text"] == "none":
        return None
    picture, ax = plotting.figure()
    assert isinstance(results["a"], np.ndarray)
    ax.plot(results["a"])
    return picture
'''


def line_of(text):
    """The number of the line of the experiment with a text in it."""
    return TINY[: TINY.index(text)].count("\n") + 1


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    jax.local_devices()  # JAX has started, so that no test changes the devices of the others
    pathlib.Path("tiny.yaml").write_text(SETTINGS)
    pathlib.Path("tiny.py").write_text(TINY)


def folders() -> list[pathlib.Path]:
    return sorted(pathlib.Path("runs").glob("*"))


USAGE = [
    (["run"], "run takes either a config or --resume"),
    (["runn", "tiny.yaml"], "'runn': unknown command; did you mean 'run'?"),
    (["fitt", "tiny.yaml"], "'fitt': unknown command; known: run, check, schema"),
    (["fit", "t.csv"], "'fit': unknown command; truncgauss new TABLE writes the config of a fit"),
    (["run", "tiny.yaml", "seed=3"], "'seed=3' belongs to no option"),
    (["tiny.yaml", "--seed", "3"], "to run that file: truncgauss run tiny.yaml --seed 3"),
    (["resume", "runs/x"], "to continue a run: truncgauss run --resume FOLDER"),
    (["sweep", "tiny.yaml"], "is a sweep: truncgauss run CONFIG"),
    (["run", "shiftcurve"], "neither a file nor an experiment; did you mean 'shift_curve'?"),
    (["run", "t.csv"], "t.csv is a table, not a config: truncgauss new t.csv writes one"),
    (["run", "no.yaml"], "no.yaml: cannot be read: No such file or directory, looked in /"),
    (["run", "tinny.yaml"], "; did you mean 'tiny.yaml'?"),
    (["new", "t.csv", "--censor-low", "1"], "--help; did you mean --censored-low?"),
    (["run", "tiny.yaml", "--sede", "3"], "--sede: unknown key; did you mean 'seed'?"),
    (["run", "tiny.yaml", "--devices", "64"], "devices of the host need JAX_PLATFORMS=cpu"),
    (["run", "tiny.yaml", "--resume", "runs/x"], "run takes either a config or --resume"),
    (["run", "--resume", "runs/x", "--seed", "3"], "for others start a new one (got --seed)"),
    (["run", "--resume", "runs/x"], "no such run (got runs/x); `truncgauss list`"),
    (["run", "tiny.yaml", "--runs", "tiny.yaml"], "Not a directory"),
    (["run", "tiny.yaml", "--figures", "tiny.yaml"], "Not a directory"),
    (["run", "shift_curve", "--index", "0"], "--index is for a config with sweep"),
    (["run", "nan_gallery", "--num_processes", "2"], "--distributed"),
    (
        "run nan_gallery --distributed --coordinator here:99 --num_processes 2".split()
        + ["--process_index", "0"],
        "does not spread its work",
    ),
    (["check"], "check needs a file, or the name of an experiment"),
    (["check", "tiny.yaml", "no.yaml"], "no.yaml: cannot be read"),
    (["check", "shiftcurve"], "did you mean 'shift_curve'?"),
    (["check", "tiny.yaml", "--seed", "3"], "check has no option --seed: truncgauss check -"),
    (["list", "--foo"], "list has no option --foo: truncgauss list --help; it has none"),
    (["gather", "--colum", "x", "f"], "--help; did you mean --columns?"),
    (["list", "-x=3"], "list has no option -x"),
    (["list", "a", "b"], "list: 'b' belongs to no option (got list a b)"),
    (["list", "nowhere"], "no such folder (got nowhere)"),
    (["plot", "nowhere"], "no such run (got nowhere); `truncgauss list` shows those there are"),
    (["gather", "nowhere"], "no sweep (got nowhere); `truncgauss list`"),
    (["run", "--seed=3", "tiny.yaml"], "run has no option --seed; settings come after the con"),
    (["schema", "shiftcurve"], "experiment shiftcurve: unknown; did you mean 'shift_curve'?"),
    (["schema", "tinny.py"], "experiment tinny.py: no such file"),
    (["new", "my-own"], "letters, digits and underscores (got 'my-own')"),
    (["new", "lone"], "lone.py is there already"),
]


def test_wrong_usage_is_one_line(capsys):
    pathlib.Path("lone.py").write_text("precious")
    pathlib.Path("t.csv").write_text("x\n1\n")
    for words, message in USAGE:
        assert cli.main(words) == 2, words
        assert message in capsys.readouterr().err.splitlines()[-1], words
        assert not folders(), words
    assert pathlib.Path("lone.py").read_text() == "precious"
    assert not pathlib.Path("lone.yaml").exists()


# A mode of the experiment, the exit code, the last line that is printed, whether a folder stays,
# and what is raised with --traceback.
ENDS = [
    ("failed", 1, "failed: the sum is off", True, None),
    ("nan", 1, f"failed: step 3: the loss is nan (tiny.py, line {line_of('raise Float')})", True),
    ("zero", 1, f"failed: division by zero (tiny.py, line {line_of('1 / 0')})", True),
    (
        "value", 2, "truncgauss: error: rows 3 and 5 lie outside of the limits "
        f"(tiny.py, line {line_of('raise ValueError')})", False, ValueError,
    ),
    (
        "bug", 1, f"KeyError: a bug (tiny.py, line {line_of('raise KeyError')}); --traceback",
        False, work.MistakeInCode,
    ),
    ("object", 1, "TypeError: result 'a' must be numbers or text, got object", False,
     work.MistakeInCode),
    ("number", 1, "tiny.py: run must return a dictionary of results by name (got float)", False,
     work.MistakeInCode),
    ("hang", 130, "nothing was saved yet; start the run again", False, KeyboardInterrupt),
]  # fmt: skip


@pytest.mark.parametrize("case", ENDS, ids=lambda case: case[0])
def test_every_end_of_a_run_has_its_exit_code_line_and_folder(case, capsys):
    mode, code, line, stays, *raised = case
    assert cli.main(["run", "tiny.yaml", "--mode", mode, "--figures", "figs"]) == code
    said = capsys.readouterr()
    assert line in (said.out if stays else said.err) and "--resume" not in said.err
    assert len(folders()) == stays and not pathlib.Path("figs").exists()
    if stays:
        summary = json.loads((folders()[0] / "summary.json").read_text())
        assert summary["status"] == "failed" and f"failed: {summary['reason']}" == line
    elif raised[0] is not KeyboardInterrupt:
        with pytest.raises(raised[0]):
            cli.main(["run", "tiny.yaml", "--mode", mode, "--traceback"])
        assert not folders()


@pytest.mark.parametrize("broken", ["plotting.figure()", "mode"])
def test_a_figure_that_fails_leaves_the_numbers_and_is_drawn_later(broken, capsys):
    told = "tiny.py: plot must return a matplotlib Figure"
    words = ["run", "tiny.yaml", "--mode", "none"]
    if broken != "mode":
        told, words = "no attribute 'nothing'", words[:2]
        pathlib.Path("tiny.py").write_text(TINY.replace(broken, "plotting.nothing()"))
    assert cli.main(words) == 1
    (folder,) = folders()
    stored, error = capsys.readouterr().err.splitlines()[-2:]
    assert f"the numbers are in {folder}, but plot failed" in stored and told in error
    assert (folder / "result.npz").exists()
    pathlib.Path("tiny.py").write_text(TINY.replace('"none"', '"never"'))
    assert cli.main(["plot", str(folder)]) == 0 and (folder / "tiny.png").exists()


def test_commands_that_only_print(capsys):
    pathlib.Path("bad.yaml").write_text(SETTINGS.replace("seed: 3", "seed: x"))
    assert cli.main(["check", "no.yaml", "tiny.yaml", "bad.yaml", "shift_curve"]) == 2
    told = capsys.readouterr()  # it goes on after a file that is wrong
    assert told.out.splitlines() == ["tiny.yaml: fine, tiny", "shift_curve: fine, shift_curve"]
    places = [line.split(": ")[0] for line in told.err.splitlines()]
    assert places == ["no.yaml", "bad.yaml:2:7"]
    assert cli.main(["check", "tiny.yaml"]) == 0
    assert cli.main(["--version"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"tiny.yaml: fine, tiny\ntruncgauss {__version__}\n"
    assert cli.main(["schema", "tiny.py"]) == 0
    assert "mode" in json.loads(capsys.readouterr().out)["properties"]
    for words in (["run"], ["new"], ["check"], ["gather"], ["run", "fit_table"]):
        with pytest.raises(SystemExit):
            cli.main([*words, "--help"])
        said = capsys.readouterr().out
        assert "{None}" not in said and "(default: )" not in said, words
        assert words[1:] or f"truncgauss {words[0]} " in said.split("Example:")[1], words
    with pytest.raises(SystemExit) as caught:
        cli.main(["run", "tiny.yaml", "--help"])
    assert caught.value.code == 0 and "--mode" in capsys.readouterr().out


# ---------------------------------------------------------------- processes


def started(*words, **more):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})}
    command = [sys.executable, "-m", "truncgauss.cli", *words]
    return subprocess.Popen(command, env=environment, **more)


@pytest.mark.quick("15-143")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_have_their_exit_codes_and_settings_their_devices(number, code):
    words = "run tiny.yaml --mode sleep --devices 3 --dtype float32".split()
    with started(*words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready 3 float32\n"
        child.send_signal(number)
        assert child.wait(timeout=600) == code
    (partial,) = folders()
    assert (partial / "checkpoint" / "work.npz").exists()
    assert not (partial / "summary.json").exists()


def test_signals_that_jax_or_python_swallow_come_as_interrupts():
    class Finalised:
        def __del__(self):
            raise KeyboardInterrupt("SIGTERM")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts.interrupts():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt as stop:
            text = f"callback failed: KeyboardInterrupt: {stop}"
        raise RuntimeError(text)  # as JAX makes the text of an error of what a callback raised
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupts.interrupts():
        Finalised()  # Python drops what a finaliser raises, and JAX has callbacks in collections
        time.sleep(10)
    with pytest.raises(RuntimeError, match="of its own"), interrupts.interrupts():
        raise RuntimeError("an error of its own that mentions KeyboardInterrupt")
    assert signal.getsignal(signal.SIGTERM) == before


CACHE = """
import os
from truncgauss import config
from truncgauss.runs import work
import jax
import truncgauss as tg
tg.Box, tg.minimize
settings = config.load("tiny.yaml")
for named in ({"XDG_CACHE_HOME": "/x"}, {"HOME": "/home/me"}, {"HOME": "~"}):
    os.environ.pop("XDG_CACHE_HOME", None)
    os.environ.update(named)
    before = jax.config.jax_compilation_cache_dir
    work.prepare(settings)
    print(before, jax.config.jax_compilation_cache_dir)
    jax.config.update("jax_compilation_cache_dir", None)
jax.config.update("jax_compilation_cache_dir", "/y")
work.prepare(settings)
print(jax.config.jax_compilation_cache_dir)
"""


def test_the_command_line_keeps_compiled_functions_and_imports_do_not():
    named = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
    environment = {key: value for key, value in os.environ.items() if key not in named}
    environment |= {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CACHE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines() == [
        "None /x/truncgauss/jax", "None /home/me/.cache/truncgauss/jax", "None None", "/y",
    ]  # fmt: skip


@pytest.mark.quick("--version-", "--version-1")
@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [("--version", "1"), ("--version", ""), ("--help", ""), ("schema", ""), ("list nowhere", "")],
)
def test_a_reader_that_has_gone_is_no_error(words, unbuffered):
    """The status is that of a program that SIGPIPE ends, and nothing is said."""
    out, into = os.pipe()
    os.close(out)
    errors = into if words == "list nowhere" else subprocess.PIPE
    environment = {"PYTHONUNBUFFERED": unbuffered}
    with started(*words.split(), env=environment, stdout=into, stderr=errors) as child:
        os.close(into)
        said = child.communicate(timeout=900)[1]
    assert child.returncode == 141 and not said


def test_output_that_a_full_disk_does_not_take_is_one_line(capfd):
    with open("/dev/full", "w") as full:
        assert started("schema", stdout=full).wait(timeout=600) == 1
    said = capfd.readouterr().err
    assert said == "truncgauss: error: standard output: No space left on device\n"


@pytest.mark.full
def test_a_run_says_on_a_terminal_what_goes_on():
    ours, theirs = os.openpty()
    words = "run", "tiny.yaml", "--mode", "pause"
    with started(*words, stdout=subprocess.DEVNULL, stderr=theirs) as child:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal whose process has gone
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    assert child.returncode == 0
    lines = [line.strip() for line in said.decode().replace("\n", "\r").split("\r")]
    assert any(re.fullmatch(r"truncgauss: computing, \d+ s", line) for line in lines), said


def test_long_lines_wrap_on_a_terminal_but_rows_of_tables_and_frames_do_not(monkeypatch, capsys):
    text, row = "a word and " * 9 + "its end", "name   " + "1.0   " * 12
    assert terminal.wrapped(text) == text  # this is none
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = terminal.wrapped(text).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == text
    assert all(line.startswith("  ") for line in lines[1:])
    assert terminal.wrapped(row) == row
    with terminal.paragraphs():
        print(f"words {'and words ' * 6}\n│ a frame {'is left as it is ' * 5}│")
        assert sys.stdout.encoding
    *lines, frame = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 40 and frame.endswith("│")
