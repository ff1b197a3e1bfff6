"""Processes that are to compute together and of which some do not come."""

import concurrent.futures
import os
import socket
import subprocess
import sys

import pytest
from test_distributed import port

from truncgauss.execution import roll_call


def joined(*address, environment=None):
    """The exit code, and what was said, of a process that waits for others for two seconds."""
    code = (
        "import sys; from truncgauss import cli, distributed\n"
        "cli._act = lambda words: print(distributed.join(*eval(words[0]), patience=2)) or 0\n"
        "cli.console()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(address)], capture_output=True, text=True, timeout=900,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    return done.returncode, done.stderr


def rolls(indices, patience=2.0):
    """What three processes are told of which those with some indices come, and their port."""
    place = port()

    def told(index):
        try:
            roll_call.called(f"127.0.0.1:{place}", 3, index, patience)
        except (TimeoutError, ValueError) as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor() as threads:
        return list(threads.map(told, indices)), place


@pytest.mark.parametrize(
    ("came", "missing"),
    [((0,), "process 1, process 2"), ((0, 2), "process 1;"), ((1, 2), "process 0 (127.0.0.1:")],
)
def test_every_process_is_told_who_did_not_come(came, missing):
    for index, message in zip(came, rolls(came)[0]):
        assert f"of 3 processes these did not come within 2 seconds: {missing}" in message
        assert f"this is process {index}." in message


def test_processes_that_all_come_leave_the_address_free():
    told, place = rolls((2, 0, 1), 60.0)
    assert told == [None] * 3
    socket.create_server(("127.0.0.1", place)).close()


def test_two_processes_of_one_index_are_refused():
    for message in rolls((0, 1, 1), 60.0)[0]:
        assert "two processes have the index 1" in message


def test_a_lone_process_ends_in_a_line():
    code, err = joined(f"127.0.0.1:{port()}", 2, 0)
    (line,) = err.splitlines()
    assert code == 1 and line.startswith("truncgauss: error: distributed: of 2 processes")
    assert "did not come within 2 seconds: process 1;" in line


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("", 0)) as taken:
        meeting = f"127.0.0.1:{taken.getsockname()[1]}"
        code, err = joined(meeting, 2, 0)
    assert code == 2 and "cannot listen at port" in err and "in use" in err


def test_a_lone_process_of_a_cluster_ends_in_a_line():
    environment = {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911",
    }  # fmt: skip
    code, err = joined(environment=environment)
    (line,) = err.splitlines()
    assert code == 1 and "not all processes came within 2 seconds" in line
    assert "Open MPI, process 0 of 2" in line
