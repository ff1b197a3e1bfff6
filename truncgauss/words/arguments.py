"""Arguments that do not fit, and the ones that may have been meant."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from truncgauss.words.names import INSTEAD as INSTEAD
from truncgauss.words.names import is_key as is_key

Class = TypeVar("Class", bound=type)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def explained(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which says what to write where its arguments do not fit."""
    signature = inspect.signature(function)
    owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    flags = flags_of(signature)

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            for name, position in flags:
                check_flag(owner, name, position, args, kwargs)
            return function(*args, **kwargs)
        except Exception as error:
            from truncgauss.words import misfits  # of which only wrong calls have use

            misfits.explain(owner, error, signature, args, kwargs)
            raise

    return called


def flags_of(signature: inspect.Signature) -> list[tuple[str, int]]:
    """Names and positions of arguments that are True or False."""
    every = enumerate(signature.parameters.values())
    return [(x.name, position) for position, x in every if x.annotation is bool]


def check_flag(owner: str, name: str, position: int, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise TypeError for an argument that is neither True nor False: to Python "no" is true."""
    value = args[position] if position < len(args) else kwargs.get(name, True)
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{owner}: {name} must be True or False, got {value!r:.60}.")


def explained_class(cls: Class) -> Class:
    """The class, whose constructor says what to write where its arguments do not fit."""
    setattr(cls, "__init__", explained(cls.__init__))  # type: ignore[misc]  # noqa: B010
    return cls
