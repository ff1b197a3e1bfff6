"""The environment is built once, by a Python that runs, and never left half built."""

import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
# A Python that passes every check; the environment that it makes installs as it is told.
FAKE = """#!/bin/sh
case "$1 $2" in
    "-m venv")
        [ -z "$BROKEN" ] || exit 1
        mkdir -p "$3/bin"
        cp "$0.pip" "$3/bin/python" ;;
    "-c "*) [ "$2" != "import ensurepip, venv" ] || [ -z "$NO_VENV" ] ;;
esac
"""
PIP = """#!/bin/sh
[ "$1" != -c ] || exit 0
echo call >>calls
{body}
"""
FAILS = "echo 'ERROR: No matching distribution found for jax==0' >&2; exit 1"
OFFLINE = "echo 'Failed to establish a new connection: Network is unreachable' >&2; exit 1"


@pytest.fixture
def ground(tmp_path):
    (tmp_path / ".ci").mkdir()
    for name in (".ci/venv", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    script(tmp_path / "python", FAKE)
    script(tmp_path / "python.pip", PIP.format(body=""))
    return tmp_path


def script(path: pathlib.Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def command(ground, **environment):
    environment = {"PYTHON": str(ground / "python"), "PATH": os.environ["PATH"], **environment}
    return {"args": ["sh", ".ci/venv"], "cwd": ground, "env": environment}


def build(ground, **environment):
    """Exit code and the lines on stderr."""
    done = subprocess.run(
        **command(ground, **environment), capture_output=True, text=True, timeout=600
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.splitlines()


def test_the_environment_is_built_once_and_again_when_the_pins_change(ground):
    code, lines = build(ground)
    assert code == 0 and len(lines) == 1 and "building .venv with" in lines[0]
    assert build(ground) == (0, [])
    with open(ground / "constraints.txt", "a") as pins:
        pins.write("# another\n")
    assert build(ground)[0] == 0
    assert (ground / "calls").read_text().count("call") == 2
    assert not (ground / ".venv.old").exists()
    script(ground / "another", FAKE.replace('"-c "*)', '"-c "*) echo another;'))
    script(ground / "another.pip", PIP.format(body=""))
    assert build(ground, PYTHON=str(ground / "another"))[0] == 0
    assert (ground / "calls").read_text().count("call") == 3


def test_a_failed_build_leaves_nothing_behind_or_the_old_environment(ground):
    for body, message in ((FAILS, "No matching distribution"), (OFFLINE, "is the network up?")):
        script(ground / "python.pip", PIP.format(body=body))
        code, lines = build(ground)
        assert code == 1 and len(lines) == 2
        assert lines[1].startswith("truncgauss: error: ") and message in lines[1]
        assert not (ground / ".venv").exists()
    script(ground / "python.pip", PIP.format(body=""))
    assert build(ground)[0] == 0
    (ground / ".venv" / "old").touch()
    (ground / "pyproject.toml").write_text("")
    script(ground / "python.pip", PIP.format(body=OFFLINE))
    for _ in range(2):  # it is still out of date
        assert build(ground)[0] == 1
        assert (ground / ".venv" / "old").exists() and not (ground / ".venv.old").exists()


def test_an_interrupted_build_leaves_nothing_behind(ground):
    script(ground / "python.pip", PIP.format(body="echo $$ >pid; exec sleep 60"))
    # Children of a process that ignores the signal (a job in the background of a script) ignore
    # it too; children of one that handles it do what is usual.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = {"stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(**command(ground), **settings) as job:
        signal.signal(signal.SIGINT, before)
        while not (ground / "pid").exists() or not (ground / "pid").read_text():
            assert job.poll() is None
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(timeout=600) != 0
    assert not (ground / ".venv").exists()


def test_a_python_that_does_not_run_is_told_in_one_line(ground):
    absent = "PYTHON=/nowhere/python does not run, or is older than Python 3.11"
    for given, message in (
        ({"PYTHON": "/nowhere/python"}, absent),
        ({"NO_VENV": "yes"}, "apt install python3-venv"),
        ({"BROKEN": "yes"}, "apt install python3-venv"),
    ):
        code, lines = build(ground, **given)
        assert code == 1 and message in lines[-1]
        assert len(lines) == 1 or "building" in lines[0] and given == {"BROKEN": "yes"}


def tools_of(ground, *tools):
    """A folder for PATH with some tools, and launchers of Python that fail."""
    folder = ground / "tools"
    folder.mkdir()
    for tool in tools:
        (folder / tool).symlink_to(shutil.which(tool))
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        script(folder / name, "#!/bin/sh\nexit 127\n")
    return folder


def test_launchers_that_fail_are_passed_over(ground):
    tools = "sh cat cksum dirname rm mv grep tail mkdir cp".split()
    folder = tools_of(ground, *tools)
    code, lines = build(ground, PYTHON="", PATH=str(folder))
    assert code == 1 and len(lines) == 1 and "no Python 3.11 or newer found" in lines[0]
    shutil.copy(ground / "python", folder / "python3")
    shutil.copy(ground / "python.pip", folder / "python3.pip")
    assert build(ground, PYTHON="", PATH=str(folder))[0] == 0


def test_every_python_that_runs_is_listed_once(ground):
    """Launchers that fail and those of another version are passed over."""
    shutil.copy(ROOT / ".ci/pythons", ground / ".ci/pythons")
    folder = tools_of(ground, "sh", "sed", "dirname", "grep", "tail")
    for version in ("3.11", "3.12", "3.13"):
        script(folder / f"python{version}", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    command, environment = ["sh", ".ci/pythons"], {"PATH": str(folder)}
    done = subprocess.run(command, cwd=ground, env=environment, capture_output=True, text=True)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.stdout == f"{running} {sys.executable}\n" and not done.stderr


def test_pins_name_versions_only():
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    names = {pin.split("==")[0].replace("-", "_") for pin in pins}
    assert all("==" in pin and "/" not in pin and "://" not in pin for pin in pins)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    pythons = {x.split()[-1] for x in project["classifiers"] if "Python :: 3." in x}
    assert pythons == {"3.11", "3.12", "3.13"}
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    assert str(sorted(pythons)).replace("'", '"') in workflow
    wanted = project["dependencies"] + project["optional-dependencies"]["test"]
    assert {want.split(">=")[0].replace("-", "_").replace(".", "_") for want in wanted} <= names
