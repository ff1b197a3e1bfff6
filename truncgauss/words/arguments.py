"""Arguments that do not fit, and the ones that may have been meant."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from truncgauss.words.names import is_key as is_key

Class = TypeVar("Class", bound=type)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
TRUTH = "bool", "bool_"
# Operations that take one number, which a tuple of results is not.
OPERATIONS = "float int neg abs round format add radd sub rsub mul rmul truediv rtruediv pow rpow"


def explained(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which says what to write where its arguments do not fit."""
    signature = inspect.signature(function)
    owner = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
    flags = flags_of(signature)

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            for name, position, is_flag in flags:
                value = args[position] if position < len(args) else kwargs.get(name, flags)
                if value is not flags and (type(value).__name__ in TRUTH) != is_flag:
                    kind = "True or False" if is_flag else "a number"  # "no" is true to Python
                    raise TypeError(f"{owner}: {name} must be {kind}, got {value!r:.60}.")
            return function(*args, **kwargs)
        except Exception as error:
            from truncgauss.words import misfits  # of which only wrong calls have use

            misfits.explain(owner, error, signature, args, kwargs)
            raise

    return called


def flags_of(signature: inspect.Signature) -> list[tuple[str, int, bool]]:
    """Names of arguments that are flags or numbers, positions if any, and whether it is a flag."""
    numbers = re.compile(r"<class '(int|float)'>|(int|float) \| None|.*Real\[.*")
    return [
        (x.name, sys.maxsize if x.kind is x.KEYWORD_ONLY else at, x.annotation is bool)
        for at, x in enumerate(signature.parameters.values())
        if x.annotation is bool or numbers.fullmatch(str(x.annotation))
    ]


def explained_class(cls: Class) -> Class:
    """The class, which says what to write for wrong arguments and for names that it has not."""
    setattr(cls, "__init__", explained(cls.__init__))  # type: ignore[misc]  # noqa: B010
    return cls if hasattr(cls, "__getattr__") else answering(cls)


class Absence:
    """The message that a value has not a name, with advice, made once somebody reads it."""

    def __init__(self, value: Any, name: str) -> None:
        self.asked = value, name

    def __str__(self) -> str:
        from truncgauss.words import misfits  # of which `hasattr` has no use

        return misfits.absence(*self.asked)


def absent(value: Any, name: str) -> Any:
    """Raise AttributeError for a name that a value has not."""
    if name.startswith("_") or hasattr(type(value), name):  # the latter failed, and says why
        return object.__getattribute__(value, name)
    raise AttributeError(Absence(value, name))


def refuses_arithmetic(cls: Class) -> Class:
    """The class of a tuple of results, which says of which of them there are numbers."""
    for operation in (*OPERATIONS.split(), "array_ufunc", "getitem"):
        setattr(cls, f"__{operation}__", functools.partialmethod(refused, operation))
    setattr(cls, "__jax_array__", property(lambda x: refused(x, "jax_array")))  # noqa: B010
    return answering(cls)


def refused(value: Any, operation: str, *others: Any, **options: Any) -> Any:
    """Raise TypeError for an operation that takes one number, and for an item by name."""
    if operation == "getitem" and not isinstance(others[0], str):
        return tuple.__getitem__(value, *others)
    from truncgauss.words import misfits  # of which only wrong calls have use

    return misfits.refuse_operation(value, operation, *others)


def answering(cls: Class) -> Class:
    """The class, which says what to write for names that it has not."""
    setattr(cls, "__getattr__", absent)  # noqa: B010
    return cls
