"""Numbers in texts, those between 0 and 1 that may be given in percent, and cells without one."""

from typing import Any

from truncgauss.words.earlier import warn

ABSENT = {"", "nan", "NaN", "None", "<NA>", "NaT", "--"}  # how Python writes what is not there
MISSING = {"na", "n/a", "n.a.", "null", "#n/a", "missing", "-", "."}  # how others do, in lower case


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
    """Raise ValueError for what is no single number between 0 and 1, as of Python, NumPy or JAX,
    with its name, and with the advice if it is no percentage. Warn of a level below 0.5."""
    number, got = single(value), repr(value) if isinstance(value, str) else value
    if not 0.0 < number < 1.0:
        if isinstance(value, list | tuple) or getattr(value, "ndim", False):
            raise ValueError(f"{what} must be one number between 0 and 1, got {got}.")
        advice = of_percent(value) or advice
        raise ValueError(f"{what} must lie between 0 and 1, got {got}.{advice}")
    if what.endswith(": level") and number < 0.5:
        asked = f"{what}={number:g} asks for intervals of {100 * number:g} %"
        warn(f"{asked}. For {100 - 100 * number:g} % write {1 - number:g}.")


def is_float(text: str) -> bool:
    """Whether a text is a number, infinity or NaN, in ASCII and without underscores: `float` reads
    more, 1_000 and the digits of other scripts, which no other program would write."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.isascii()


def is_missing_cell(cell: Any) -> bool:
    """Whether a cell is None, NaN, or NA or NaT of pandas."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or bool(cell != cell)
