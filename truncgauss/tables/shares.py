"""Numbers between 0 and 1, which may be given in percent by mistake."""

from typing import Any


def single(value: Any) -> float:
    """A single number of Python, NumPy or JAX; NaN for anything else."""
    try:
        return float("nan") if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError):
        return float("nan")


def of_percent(value: Any) -> str:
    """The end of a message about a number that must lie between 0 and 1 and may be a percentage."""
    number = single(value)
    return f" For {number:g} % write {number / 100:g}." if 1 < number < 100 else ""


def check_share(value: Any, what: str, advice: str = "") -> None:
    """Raise ValueError for what is no single number between 0 and 1, as of Python, NumPy or JAX.
    Its name begins the message; advice ends it, where the number is no percentage."""
    if not 0.0 < single(value) < 1.0:
        shown = repr(value) if isinstance(value, str) else value
        if isinstance(value, list | tuple) or getattr(value, "ndim", False):
            raise ValueError(f"{what} must be one number between 0 and 1, got {shown}.")
        raise ValueError(
            f"{what} must lie between 0 and 1, got {shown}.{of_percent(value) or advice}"
        )
