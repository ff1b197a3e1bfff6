"""Arguments that do not fit, and the ones that may have been meant."""

import fnmatch
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from truncgauss.words.names import ELSEWHERE, HIGH, LOW, closest

Class = TypeVar("Class", bound=type)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# What others call an argument that a function with these arguments has not, and what to write. The
# rooms whose arguments they are add to it.
INSTEAD: list[tuple[str, set[str], str]] = []


def explain(
    error: TypeError, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise a TypeError of a call again with a sentence on what to write, if its arguments do not
    fit the signature: Python says which is wrong, but not which there are."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        text = str(error).replace(".__init__()", "()").partition(". Did you mean")[0].rstrip(".")
        text = re.sub(r"^\w+\.(?=\w+\(\))", "", text)  # the class of a method
        key = args[0] if args else kwargs.get("key")
        if [*signature.parameters][:1] == ["key"] and not is_key(key):
            text = f"{text.partition('(')[0]}: the first argument must be a random key, such as "
            text += f"jax.random.key(0), got {key!r:.60}"
        raise TypeError(f"{text}. {advice(signature, args, kwargs)}") from None


def is_key(value: Any) -> bool:
    """Whether a value is a random key of JAX, of either kind."""
    return str(getattr(value, "dtype", "")).startswith(("key", "uint"))


def explained(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which says what to write where its arguments do not fit."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            explain(error, signature, args, kwargs)
            raise

    return called


def explained_class(cls: Class) -> Class:
    """The class, whose constructor says what to write where its arguments do not fit."""
    setattr(cls, "__init__", explained(cls.__init__))  # type: ignore[misc]  # noqa: B010
    return cls


def advice(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A sentence on what to write where arguments do not fit."""
    known = [name for name in signature.parameters if name not in ("self", "cls")]
    unknown = [name for name in kwargs if name not in known]
    word = unknown[0] if unknown else ""
    others = {name: closest(name, known, 0.7) for name in unknown}
    region = signature.parameters.get("region")
    bounds = [name for name in unknown if ELSEWHERE.get(name) in (LOW, HIGH)]
    if bounds and region and region.default is region.empty:
        ours = [f"{name} is {close}" for name, close in others.items() if close]
        first = f"{', '.join(ours)}. " if ours else ""
        return f"{first}Bounds are one argument: tg.Box(low, high), as the region."
    for words, needed, instead in INSTEAD:
        if any(fnmatch.fnmatchcase(word, each) for each in words.split()) and needed <= {*known}:
            return instead.format(word=word)
    close = others.pop(word, "")
    if close.startswith("censored_") and not word.startswith("censor"):
        return (
            f"{word} is {close} where what lies beyond it is recorded at it (censored), and "
            f"{close.replace('censored', 'truncated')} where nothing beyond it was observed."
        )
    if known[:2] == ["lower", "upper"] and not {*kwargs} - {*known}:
        return "Outcomes that are known exactly are tg.Observations.exact(values)."
    more = "".join(f" Likewise {name} is {near}." for name, near in others.items() if near)
    return f"Did you mean {close}?{more}" if close else f"It takes {', '.join(known)}."
