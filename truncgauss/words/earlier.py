"""Earlier names, which work for one version with a warning that says the new one."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Give a warning at the line outside of the package that called it."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_back and str(frame.f_globals.get("__name__")).startswith("truncgauss"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def warn_of(earlier: str, new: str) -> None:
    """Give a DeprecationWarning that an earlier name or form works for the last time."""
    warn(
        f"{earlier} is {new} now: write {new}. The earlier form goes with the next version.",
        DeprecationWarning,
    )


def attribute(earlier: str, new: str, read: Callable[[Any], Any] | None = None) -> Any:
    """A property that has the value of another attribute, or what is read of the object."""

    def value(self: Any) -> Any:
        warn_of(f"{type(self).__name__}.{earlier}", new)
        return getattr(self, new) if read is None else read(self)

    return property(value, doc=f"The earlier name of `{new}`.")


def argument(
    earlier: str, new: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator of functions, which take an argument by its earlier name too."""

    def renamed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @functools.wraps(function)
        def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if earlier in kwargs and new not in kwargs:
                warn_of(f"{function.__name__}: {earlier}=", f"{new}=")
                kwargs[new] = kwargs.pop(earlier)
            return function(*args, **kwargs)

        return called

    return renamed
