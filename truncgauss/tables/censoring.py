"""Numbers and limits as laboratories write them: 0.7, <0.5, >100, nd."""

import re

import numpy as np

LIMIT = re.compile(r"(<=?|≤|>=?|≥)\s*(.+)")
NOT_DETECTED = {"nd", "n.d.", "n.d", "not detected", "non-detect", "bdl", "<dl", "<lod", "<mdl"}
ABSENT = {"", "nan", "NaN", "None", "<NA>", "NaT", "--"}  # how Python writes what is not there


def is_float(text: str) -> bool:
    """Whether a text is a number, infinity or NaN, in ASCII and without underscores.

    `float` reads more, 1_000 and the digits of other scripts, which no other program would write.
    """
    if "_" in text or not text.isascii():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_number(text: str) -> bool:
    return is_float(text) and not np.isnan(float(text))


def limit_of(text: str) -> tuple[str, float | None] | None:
    """A text of a censored value as its side, "<" or ">", and its limit, None for a value that was
    not detected; None for any other text.

    Example:
        >>> from truncgauss.tables import limit_of
        >>> limit_of("<0.5"), limit_of("> 100"), limit_of("ND"), limit_of("1.5")
        (('<', 0.5), ('>', 100.0), ('<', None), None)
    """
    if text.lower().replace(" ", "") in NOT_DETECTED or text.lower() in NOT_DETECTED:
        return "<", None
    found = LIMIT.fullmatch(text)
    if found is None or not is_float(found[2]) or not np.isfinite(float(found[2])):
        return None
    return "<" if found[1] in ("<", "<=", "≤") else ">", float(found[2])


def misspelt(text: str, cell: bool = False) -> str:
    """A sentence about a number with a decimal comma, a unit or <, and about the file where it is a
    cell of one; empty for any other text."""
    if re.fullmatch(r"[<>]?\s*[-+]?\d+,\d+", text):
        file = (
            " Where semicolons or tabs divide the cells of a file, replace its commas by points, "
            "in an editor or by `sed 's/,/./g'`; pandas.read_csv has decimal=','."
        )
        return f"Write decimals with a point, {text.replace(',', '.')}.{file if cell else ''}"
    if (limit := limit_of(text)) and limit[1] is not None:
        return f"Write the number alone, {limit[1]:g}; cells such as {text} are censoring: text."
    found = re.fullmatch(r"([<>]?\s*[-+]?\d+\.?\d*)\s*[A-Za-zµμ%°].*", text)  # such as 0.8 mg
    return f"Write the number without its unit, {found[1]}." if found and not is_float(text) else ""


def advice(text: str, missing: str = "missing=True") -> str:
    """Advice about a cell that is no number; `missing` is how to say that it is missing."""
    limit = limit_of(text)
    if limit is None:
        return misspelt(text, cell=True) or (
            f"Complete or drop the row, or say that it stands for a missing value, by {missing}: a "
            "missing cell is not a truncated one."
        )
    more = " with the limit of detection as its `censored_low`" if limit[1] is None else ""
    return (
        "This is a censored value, not a missing one: for an outcome say `censoring: text` (in "
        "Python read it as text, by `tg.tables.from_file(..., text=[...])` or by pandas, for "
        f"`tg.Observations.from_table(..., censoring='text')`){more}. "
        "To leave such observations out, or to put a number in their place, biases the estimates."
    )
