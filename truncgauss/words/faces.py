"""Names that a package shows, and modules that have moved, each imported at its first use."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from truncgauss.words.names import meant


def served(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package, whose imports stand in `__init__.pyi`.

    Type checkers read that file too. A module of the package is loaded when one of its names is
    used, so that whoever needs one of them does not load all.
    """
    stub = ast.parse(pathlib.Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module or "" for node in imports for alias in node.names}

    def attribute(name: str) -> Any:
        if name not in homes:
            cure = "" if name.startswith("_") else meant(name, homes)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{cure}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(homes), attribute, lambda: sorted(homes)


class Moved(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of modules by their earlier names, with a warning that says the new ones.

    Args:
        homes: new names by earlier ones.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes = homes

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name in self.homes else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Nothing: Python makes a module, in the place of which the one that moved is put."""

    def exec_module(self, module: types.ModuleType) -> None:
        new = self.homes[module.__name__]
        warnings.warn(
            f"{module.__name__} is {new} now. The old name goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[module.__name__] = importlib.import_module(new)
