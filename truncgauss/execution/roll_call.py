"""The roll of processes that are to compute together, before JAX joins them.

JAX ends a process that waits for the others in vain with a trace of its C++ code, which does not
say who is missing. So the processes first meet at the coordinator's address without it.
"""

import contextlib
import socket
import time
from collections.abc import Iterable

PAUSE = 0.1  # seconds between two attempts to reach the first process
COMPLETE, MISSING = "complete", "missing"


def called(coordinator: str, num_processes: int, process_index: int, patience: float) -> None:
    """Wait until all processes have come to the coordinator's address, which is free afterwards.

    Args:
        coordinator: "host:port" of the first process.
        num_processes: how many there are.
        process_index: which one this is, from 0.
        patience: seconds to wait.

    Raises:
        TimeoutError: some did not come in time; it says which.
        ValueError: the first process cannot listen there, or two have one index.
    """
    host, _, port = coordinator.rpartition(":")
    until = time.monotonic() + patience
    if process_index:
        answer = _answer((host.strip("[]"), int(port)), process_index, until, patience)
    else:
        answer = _roll(int(port), num_processes, until)
    kind, _, names = answer.partition(" ")
    if kind == MISSING:
        raise TimeoutError(
            f"distributed: of {num_processes} processes these did not come within {patience:g} "
            f"seconds: {names}; this is process {process_index}. See what they said, and start "
            "all of them again."
        )
    if kind != COMPLETE:
        raise ValueError(f"distributed: {answer}; this is process {process_index}.")


def _roll(port: int, num_processes: int, until: float) -> str:
    """The answer of the first process to the others, once they have come or its patience ends."""
    both = socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
        )
    except OSError as error:
        return f"the first process cannot listen at port {port}: {error.strerror}"
    came: dict[int, socket.socket] = {}
    connections: list[socket.socket] = []
    with contextlib.ExitStack() as opened:
        opened.enter_context(listener)
        answer = COMPLETE
        while answer == COMPLETE and len(came) < num_processes - 1:
            listener.settimeout(max(until - time.monotonic(), 0.001))
            try:
                connection = opened.enter_context(listener.accept()[0])
            except TimeoutError:
                answer = f"{MISSING} {_listed(set(range(1, num_processes)) - set(came))}"
                break
            index = _index(connection)
            if index is None or not 0 < index < num_processes:
                continue
            if index in came:
                answer = f"two processes have the index {index}"
            came[index] = connection
            connections.append(connection)
        for connection in connections:
            with contextlib.suppress(OSError):  # one that has gone is missed by JAX
                connection.sendall(f"{answer}\n".encode())
        for connection in connections:  # whoever closes first keeps the port for a while
            with contextlib.suppress(OSError):
                connection.recv(1)
    return answer


def _index(connection: socket.socket) -> int | None:
    """The index that a process sends when it comes; None for anything else."""
    connection.settimeout(5.0)
    try:
        return int(connection.makefile().readline(20))
    except (OSError, ValueError):
        return None


def _answer(address: tuple[str, int], process_index: int, until: float, patience: float) -> str:
    """The answer of the first process; it is missing itself if it cannot be reached."""
    while True:
        why = "it went away"
        try:
            with socket.create_connection(address, timeout=5.0) as connection:
                connection.settimeout(patience + 5.0)  # it may have begun to wait just now
                connection.sendall(f"{process_index}\n".encode())
                if said := connection.makefile().readline():
                    return said.strip()
        except OSError as error:
            why = error.strerror or str(error)
        if time.monotonic() > until:
            return f"{MISSING} {_listed([0])} ({address[0]}:{address[1]}: {why})"
        time.sleep(PAUSE)


def _listed(indices: Iterable[int]) -> str:
    return ", ".join(f"process {index}" for index in sorted(indices))
