"""How the processes of one run meet, `truncgauss run ... --distributed`, and how they part.

JAX does the rest, `jax.distributed` and `jax.experimental.multihost_utils`.
"""

import os
import socket
import sys
import threading
import time
from typing import NoReturn

import jax

PATIENCE = 120  # seconds to wait for all processes to start
LATER = 60  # seconds after that JAX gives up too
DRAWING = 600  # seconds that the others wait at the end for the one that writes the files
GRACE = 2  # seconds by which the first process goes later: its end aborts the others
HEARTBEAT = 20  # seconds without a sign of life, after which a process is taken for dead


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    patience: int = PATIENCE,
) -> None:
    """Join the other processes of a run, before any computation.

    Args:
        coordinator: "HOST:PORT" of the first process, reachable from all.
        num_processes: how many there are.
        process_index: from 0 to num_processes - 1. All three are given, which then hold whatever
            the environment says, or none, where JAX finds them, as under Slurm and Open MPI.
        patience: seconds to wait for all processes; then this one ends with a line about it.

    Raises:
        ValueError: if some of the three are given, but not all; if none is, and JAX finds no
            cluster; if the first process cannot listen at its port; or if JAX has already computed
            something.
    """
    given = (coordinator, num_processes, process_index)
    if given != (None, None, None):
        if coordinator is None or num_processes is None or process_index is None:
            raise ValueError(
                "distributed: a coordinator, a number of processes and a process index belong "
                f"together, got {coordinator}, {num_processes} and {process_index}."
            )
        port = coordinator.rpartition(":")[2]
        if not port.isdigit():
            raise ValueError(
                f"distributed: the coordinator must be HOST:PORT, got {coordinator!r}."
            )
        if process_index == 0:
            try:
                socket.create_server(("", int(port))).close()
            except OSError as error:  # on which some versions of JAX end by a segmentation fault
                raise ValueError(
                    f"distributed: the first process cannot listen at port {port}: "
                    f"{error.strerror}."
                ) from error
    # Its handler would swallow SIGTERM, on which runs save their state.
    jax.config.update("jax_enable_preemption_service", False)
    which = "" if coordinator is None else f" (process {process_index} of {num_processes})"
    last = threading.Timer(patience, _give_up, (which, patience))
    last.daemon = True
    last.start()
    try:
        jax.distributed.initialize(
            *given,
            cluster_detection_method="deactivate" if coordinator else None,
            initialization_timeout=patience + LATER,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=max(patience, DRAWING),
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise ValueError(
            "distributed: JAX has already computed something in this process. Join the others "
            "first; an experiment's file should make its arrays in run, not when it is imported."
        ) from error
    except ValueError as error:
        if coordinator is not None:
            raise ValueError(f"distributed: {error}") from error
        raise ValueError(
            "distributed: the environment is that of no cluster which JAX knows, such as Slurm or "
            "Open MPI. Start the processes by srun or mpirun, or give --coordinator HOST:PORT, "
            "--num_processes and --process_index."
        ) from error
    finally:
        last.cancel()


def _give_up(which: str, patience: int) -> NoReturn:
    """End this process, which JAX would do a little later with a trace of its C++ code."""
    print(
        f"truncgauss: error: distributed: not all processes came within {patience} seconds; this "
        f"is one that did{which}. See what the others said, and start all of them again.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def joined() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized()


def leave(code: int) -> NoReturn:
    """End this process at once after a failure; the others fail at their next exchange.

    A Python process that ends in the usual way waits for the others, which wait for it.
    """
    if jax.process_index() == 0:
        time.sleep(GRACE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
