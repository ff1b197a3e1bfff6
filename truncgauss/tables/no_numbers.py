"""Sentences about cells that are no numbers, of which these alone have use."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from truncgauss.tables.censoring import advice, is_measurement, limit_of, misspelt
from truncgauss.words.misfits import TRUTH, described
from truncgauss.words.numbers import is_float

CATEGORIES = (
    ". An outcome of ordered texts is tg.Ordinal(texts, levels=[...]); tg.tables.design makes "
    "columns of 0 and 1 of a covariate of texts"
)
MOST_NAMES = 20  # in the place of numbers
KINDS = {
    "O": "Python objects or text",
    "U": "text",
    "S": "text",
    "c": "complex numbers",
    "M": "dates",
    "m": "durations",
    "V": "records",
}


def refuse_cells(array: np.ndarray, where: str) -> None:
    """Raise ValueError for an array of cells that are no numbers; the message starts with where."""
    if array.dtype == bool:
        refuse_truth(array, where, where.rpartition(" ")[2])
    only = array.item() if array.dtype.kind == "O" and array.size == 1 else ""
    if not isinstance(only, str | bytes | int | float | None):
        refuse_object(only, where)
    more = CATEGORIES if array.dtype.kind in "OUS" else ""
    texts = [str(x) for x in np.asarray(array, object).ravel() if isinstance(x, str | bytes)]
    refuse_names(array, where)
    limit = next(filter(limit_of, texts), None)  # such as <0.5
    first = next((text for text in texts if not is_float(text)), None)
    such = "" if first is None else f", such as {first!r}"
    kind = KINDS["U" if first is not None else array.dtype.kind]
    remedy = misspelt(first or "") or f"Convert it, or leave it out{more}."
    if texts and first is None:
        remedy = "Convert it, such as by .astype(float)."
    remedy = remedy if limit is None else f"There is {limit!r}: {advice(limit)}"
    if array.dtype.kind == "O" and any(cell is None for cell in array.flat):
        remedy = "There is None; where a value is missing write NaN."
    raise ValueError(f"{where} holds {kind} (dtype {array.dtype}{such}), not numbers. {remedy}")


def refuse_names(array: np.ndarray, where: str) -> None:
    """Raise ValueError for a few names of columns in the place of an outcome or a design."""
    what, _, word = where.rpartition(": ")
    cells = np.atleast_1d(array).tolist()
    names = [x.strip() for x in cells if isinstance(x, str)]
    alike = len({*names}) < max(array.size, 1) or any(map(is_measurement, names))
    if alike or array.size > MOST_NAMES or word not in ("outcome", "design", "scale_design"):
        return
    terms = " + ".join(x if x.isidentifier() else f"`{x}`" for x in names)
    write = f'write a formula, "~ {terms}", data=table'
    if word == "design" and what in ("fit_regression", "fit_clusters"):
        write = f'write a formula, "y ~ {terms}", data=table; or "~ {terms}" for the design alone'
    elif word == "outcome":
        write = f'write a formula, "{terms} ~ x", data=table'
    if word == "outcome" and len(names) > 1:
        write = f'give their numbers, table[{names}], and the formula "~ x", data=table'
    raise ValueError(
        f"{what}: the {word} must be numbers, got the texts {names}. If these are names of "
        f"columns, {write}."
    )


def refuse_truth(values: Any, what: str, word: str) -> NoReturn:
    """Raise ValueError for truth values in the place of bounds, or one of other numbers."""
    if np.ndim(values) == 0:
        of_bound = (
            f" It is the bound itself, such as {word}=0.0."
            if word.startswith(("censored", "truncated"))
            else ""
        )
        raise ValueError(f"{what} must be numbers, got {values}.{of_bound or TRUTH}")
    side, end = ("left", "-inf") if word.endswith("low") else ("right", "inf")
    raise ValueError(
        f"{what} must be bounds, got truth values. Where these say which outcomes are censored, "
        f"write the bound there and {end} elsewhere, or for `from_table` "
        f"{side}_censored=(column, True)."
    )


def refuse_object(value: Any, where: str) -> None:
    """Raise ValueError for one object in the place of numbers."""
    cure = ""
    if isinstance(value, Mapping):
        cure = " There is one outcome: give its number or column alone."
    elif hasattr(value, "num_rows"):
        cure = " tg.fit_observations takes tg.Observations."
    raise ValueError(f"{where} must be numbers or an array of them, got {described(value)}.{cure}")


def refuse_logs(
    name: Any,
    least: np.ndarray,
    most: np.ndarray,
    limits: Mapping[str, np.ndarray],
    without: Mapping[str, np.ndarray],
    location: Callable[[int], str],
) -> NoReturn:
    """Raise ValueError for an entry whose limits by kind have no logarithm, as masks say, or whose
    ends (n,) have none."""
    for kind, wrong in without.items():
        for i in map(int, np.flatnonzero(wrong)):
            limit, of_row = limits[kind].flat[i], f" in {location(i)}" * bool(np.ndim(wrong))
            meant = f" Write {np.exp(limit):.6g} if {limit:.6g} is its logarithm." * bool(limit < 0)
            must = "be positive" if kind.endswith("high") else "not be negative"
            raise ValueError(
                f"from_table: {kind} of {name!r} must {must}, got {limit:.6g}{of_row}: with "
                f"`log` limits are in the units of the column, not of its logarithm.{meant}"
            )
    i = int(np.argmax(most <= 0))
    raise ValueError(
        f"outcome {name!r} is {'at most ' * bool(least[i] != most[i])}{most[i]:g} in "
        f"{location(i)} and has no logarithm, as `log` asks for. A concentration "
        "below the limit of detection is censored: write the limit, <0.5 say, not 0, and "
        "censoring: text; or give censored_low."
    )
