"""Imports of what takes seconds, with a line that says so."""

import importlib
import sys
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of that name, with the line on standard error should its import take more than a
    second; without the line where JAX, on which that rests, is not there yet."""
    if name in sys.modules or "jax" not in sys.modules:
        return importlib.import_module(name)
    from truncgauss.execution.progress import bar

    with bar(None, f"importing {name}", True):
        return importlib.import_module(name)
