"""What the command line prints: to a reader that has gone, to a full disk."""

import os
import subprocess
import sys

import pytest


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
        said = started.communicate(timeout=120)[1]
    assert started.returncode == 141 and not said


def test_output_that_a_full_disk_does_not_take_is_one_line(capfd):
    command = [sys.executable, "-m", "truncgauss.cli", "schema"]
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, stdout=full).returncode == 1
    assert capfd.readouterr().err == (
        "truncgauss: error: standard output: No space left on device\n"
    )
