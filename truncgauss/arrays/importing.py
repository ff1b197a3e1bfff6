"""Imports of what takes seconds, with a line that says so, and without garbage collection."""

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of that name, with the line on standard error should its import take more than a
    second; without the line where JAX, on which that rests, is not there yet."""
    if name in sys.modules or "jax" not in sys.modules:
        return importlib.import_module(name)
    from truncgauss.arrays.progress import bar

    with bar(None, f"importing {name}", True):
        return importlib.import_module(name)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """A context without garbage collection.

    Imports and tracing make many objects, nearly all of which stay: each full collection then walks
    through all of JAX for nothing, a tenth of the time of a first call.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
