"""One processor for all threads, so that processor seconds are those of one thread."""

import contextlib
import ctypes
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp


@contextlib.contextmanager
def one_processor() -> Iterator[str]:
    """All threads of the process on one processor, and a sentence that says whether they are."""
    tasks = Path("/proc/self/task")
    if not hasattr(os, "sched_setaffinity") or not tasks.is_dir():
        yield "The threads could not be bound to one processor: only Linux lets a program do that."
        return
    jnp.zeros(1).block_until_ready()  # the threads of the backend are there from now on
    before = {}
    chosen = max(os.sched_getaffinity(0))
    for task in tasks.iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            before[int(task.name)] = os.sched_getaffinity(int(task.name))
            os.sched_setaffinity(int(task.name), {chosen})
    try:
        with one_blas_thread():
            yield f"All {len(before)} threads of the process are bound to one processor."
    finally:
        for task, processors in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(task, processors)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """OpenBLAS, where it is loaded, with one thread.

    Its threads wait for each other by spinning: several on one processor are 25 times slower than
    one.
    """
    names = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    found = []
    for library in [ctypes.CDLL(name) for name in sorted(names) if "openblas" in name]:
        for prefix, suffix in itertools.product(("scipy_", ""), ("", "64_")):
            get, put = (
                getattr(library, f"{prefix}openblas_{verb}_num_threads{suffix}", None)
                for verb in ("get", "set")
            )
            if get and put:
                found.append((put, get()))
                put(1)
    try:
        yield
    finally:
        for put, num_threads in found:
            put(num_threads)


def load() -> str:
    """The load of the machine, which may tell of other programs."""
    return f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
