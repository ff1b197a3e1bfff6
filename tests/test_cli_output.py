"""What the command line prints: to a terminal, to a reader that has gone, to a full disk."""

import contextlib
import os
import pathlib
import re
import subprocess
import sys

import pytest

from truncgauss.execution import terminal

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.quick("words1-1", "words1-")
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", [["schema"], ["--version"], ["--help"], ["list", "nowhere"]])
def test_a_reader_that_has_gone_is_no_error(words, buffered):
    """The status is that of a program that SIGPIPE ends, and nothing is said."""
    (out, into), environment = os.pipe(), {**os.environ, "PYTHONUNBUFFERED": buffered}
    os.close(out)
    command = [sys.executable, "-m", "truncgauss.cli", *words]
    errors = into if words[-1] == "nowhere" else subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=into, stderr=errors) as started:
        os.close(into)
        said = started.communicate(timeout=900)[1]
    assert started.returncode == 141 and not said


def test_output_that_a_full_disk_does_not_take_is_one_line(capfd):
    command = [sys.executable, "-m", "truncgauss.cli", "schema"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stdout=full).returncode == 1
    assert capfd.readouterr().err == (
        "truncgauss: error: standard output: No space left on device\n"
    )


SLEEPER = """
import time
from truncgauss import config


class Settings(config.Experiment):
    pass


def run(settings):
    time.sleep(3.0)
    return {"one": 1.0}


def plot(results):
    from truncgauss import plotting

    return plotting.figure()[0]
"""


@pytest.mark.full
def test_a_run_says_on_a_terminal_what_goes_on(tmp_path):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    (tmp_path / "sleeper.yaml").write_text("experiment: sleeper.py\nseed: 1\n")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "truncgauss.cli", "run", "sleeper.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as started:
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # the end of a terminal whose process has gone
            while part := os.read(ours, 4096):
                said += part
    os.close(ours)
    assert started.returncode == 0
    lines = [line.strip() for line in said.decode().replace("\n", "\r").split("\r")]
    assert any(re.fullmatch(r"truncgauss: computing, \d+ s", line) for line in lines), said


def test_long_lines_wrap_on_a_terminal_but_rows_of_tables_do_not(monkeypatch):
    text, row = "a word and " * 9 + "its end", "name   " + "1.0   " * 12
    assert terminal.wrapped(text) == text  # this is none
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = terminal.wrapped(text).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines) == text
    assert all(line.startswith("  ") for line in lines[1:])
    assert terminal.wrapped(row) == row


def test_help_wraps_its_paragraphs_but_no_frame(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    with terminal.paragraphs():
        print(f"words {'and words ' * 9}\n│ a frame {'is left as it is ' * 5}│")
        assert sys.stdout.encoding
    *lines, frame = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and max(map(len, lines)) <= 60 and frame.endswith("│")
