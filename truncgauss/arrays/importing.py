"""Imports at first use: names that a package shows, modules that moved, and what takes seconds."""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import sys

TYPE_CHECKING = False  # not of `typing`, whose import takes longer than that of the package
if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Mapping
    from typing import Any

TRIED_JAX = (0, 10), (0, 12)  # the oldest and the newest series, those of constraints.txt


def homes_of(file: str) -> dict[str, str]:
    """The module that defines each name of a package, by the imports in its `__init__.pyi`."""
    with open(f"{file}i", encoding="utf-8") as stub:  # of lines `from module import name as name`
        parts = [part.split() for part in stub.read().split("from ")[1:]]
    return {name: x[0] for x in parts for name, then in zip(x, x[1:]) if then == "as"}


def served(
    package: str, file: str
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of a package, whose imports stand in `__init__.pyi`.

    Type checkers read that file too. A module of the package is loaded when one of its names is
    used, so that whoever needs one of them does not load all.
    """
    homes = homes_of(file)

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(NoSuchName((package, name, homes)))
        value = getattr(imported(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(homes), attribute, lambda: sorted(homes)


class NoSuchName(tuple):  # type: ignore[type-arg]
    """The message on a name that a package lacks, made when read: an import asks for names too."""

    def __repr__(self) -> str:
        from truncgauss.words.names import meant  # of which imports have no use

        return f"module {self[0]!r} has no attribute {self[1]!r}{meant(*self[1:])}"


class Moved:
    """A finder of modules by their earlier names, with a warning that says the new ones.

    It has the methods of `importlib.abc`, which takes longer to import than all else here.

    Args:
        homes: new names by earlier ones.
    """

    def __init__(self, homes: Mapping[str, str]) -> None:
        self.homes = homes

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader) if name in self.homes else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Nothing: Python makes a module, in the place of which the one that moved is put."""

    def exec_module(self, module: types.ModuleType) -> None:
        from truncgauss.words.earlier import warn_of

        new = self.homes[module.__name__]
        warn_of(module.__name__, new)
        sys.modules[module.__name__] = importlib.import_module(new)


def imported(name: str) -> types.ModuleType:
    """The module of that name, with a line of progress where its import takes more than a second
    and JAX, on which that line rests, is there.

    Raises:
        ImportError: if it uses what a series of JAX does not have that has not been tried.
    """
    try:
        if name in sys.modules or "jax" not in sys.modules:
            return importlib.import_module(name)
        from truncgauss.arrays.progress import bar

        with bar(None, f"importing {name}", True):
            return importlib.import_module(name)
    except (AttributeError, ImportError) as error:
        version = getattr(sys.modules.get("jax"), "__version__", "0.10")
        if TRIED_JAX[0] <= tuple(map(int, version.split(".")[:2])) <= TRIED_JAX[1]:
            raise
        first, last = (".".join(map(str, tried)) for tried in TRIED_JAX)
        raise ImportError(
            f"truncgauss was tried with JAX {first} to {last}, and {name} cannot be imported with "
            f"JAX {version}: {error}. Install a newer truncgauss, or pip install 'jax=={last}.*'."
        ) from error


class uncollected:
    """A context without garbage collection.

    Imports and tracing make many objects, nearly all of which stay: each full collection then walks
    through all of JAX for nothing, a tenth of the time of a first call.
    """

    def __enter__(self) -> None:
        self.enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            gc.enable()
