"""Imports of what takes seconds, with a line that says so."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def imported(name: str) -> ModuleType:
    """The module of that name, with the line on standard error should its import take more than a
    second; without the line where JAX, on which that rests, is not there yet."""
    if name in sys.modules or "jax" not in sys.modules:
        return importlib.import_module(name)
    from truncgauss.execution.progress import bar

    with bar(None, f"importing {name}", True):
        return importlib.import_module(name)


def by_formula(outcome: Any, design: Any, data: Any, what: str) -> tuple[Any, Any]:
    """As `tables.by_formula`, with the line while the first one imports formulaic and pandas."""
    from truncgauss import tables

    texts = any(isinstance(part, str) for part in (outcome, design))
    if texts and importlib.util.find_spec("formulaic"):
        imported("formulaic")
    return tables.by_formula(outcome, design, data, what)
