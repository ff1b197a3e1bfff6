"""Numbers in texts, those between 0 and 1 that may be given in percent, and cells without one."""

from typing import Any

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
    """Raise ValueError for what is no single number between 0 and 1, as of Python, NumPy or JAX.
    Its name begins the message; advice ends it, where the number is no percentage."""
    if not 0.0 < single(value) < 1.0:
        shown = repr(value) if isinstance(value, str) else value
        several = isinstance(value, list | tuple) or getattr(value, "ndim", False)
        must, end = ("be one number", "") if several else ("lie", of_percent(value) or advice)
        raise ValueError(f"{what} must {must} between 0 and 1, got {shown}.{end}")


def is_float(text: str) -> bool:
    """Whether a text is a number, infinity or NaN, in ASCII and without underscores.

    `float` reads more, 1_000 and the digits of other scripts, which no other program would write.
    """
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.isascii()


def is_missing_cell(cell: Any) -> bool:
    """Whether a cell is None, NaN, or NA or NaT of pandas."""
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or bool(cell != cell)
