"""Numbers and limits as laboratories write them: 0.7, <0.5, >100, nd, 0.5 U."""

import re

import numpy as np

from truncgauss.words.numbers import is_float

NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
LIMIT = re.compile(r"(<=?|≤|>=?|≥)\s*(.+)")
QUALIFIED = re.compile(
    rf"(?P<mark><?)\s*(?P<number>{NUMBER})\s*(?P<qualifier>U|UJ|J|(?i:ND))"
    rf"|(?P<nd>(?i:ND))\s*(?P<open>\(?)\s*<?\s*(?P<below>{NUMBER})\s*(?(open)\)?)"
)
QUALIFIERS = {
    "U": "not detected at that number, so that the value lies below it",
    "UJ": "not detected, below a number that is estimated itself",
    "ND": "not detected, so that the value lies below the number",
    "J": "detected, and the number an estimate of the value, which is taken as it is",
}
"""Letters of laboratories beside a number, and their meaning."""
GROUPED = re.compile(r"([<>]?\s*[-+]?\d{1,3}(?:([,.' _])\d{3})(?:\2\d{3})*)(?:([.,])(\d*))?")
PLAIN = str.maketrans(
    dict.fromkeys("−‒–﹣－", "-") | dict.fromkeys("\u00a0\u202f\u2009", " ") | {"’": "'"}
)
COMMA = re.compile(r"[<>]?\s*[-+]?\d+,\d+")
POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
NOT_DETECTED = {"nd", "n.d.", "n.d", "not detected", "non-detect", "bdl", "<dl", "<lod", "<mdl"}

AS_TEXT = (
    "say `censoring: text` (in Python read it as text, by `tg.tables.from_file(..., text=[...])` "
    "or by pandas, for `tg.Observations.from_table(..., censoring='text')`)"
)


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


def qualified(text: str) -> tuple[str, str, float | None] | None:
    """A number with the letters of a laboratory as these, "=" or "<", and the number, None where U
    or UJ stands alone; None for any other text. The same letters are units elsewhere.

    Example:
        >>> from truncgauss.tables.censoring import qualified
        >>> qualified("0.5 U"), qualified("ND (2)"), qualified("3J"), qualified("3 mg")
        (('U', '<', 0.5), ('ND', '<', 2.0), ('J', '=', 3.0), None)
    """
    if text in ("U", "UJ"):
        return text, "<", None
    match = QUALIFIED.fullmatch(text)
    if match is None or (match["mark"] and match["qualifier"] == "J"):
        return None
    letters = (match["qualifier"] or match["nd"]).upper()
    return letters, "=" if letters == "J" else "<", float(match["number"] or match["below"])


def recorded(text: str) -> tuple[str, float | None] | None:
    """A cell of `censoring="text"` as its side, "=", "<" or ">", and its number, None for a value
    that was not detected; None for any other text."""
    if is_number(text):
        return "=", float(text)
    letters = qualified(text)
    return limit_of(text) if letters is None else letters[1:]


def is_measurement(text: str) -> bool:
    """Whether a text is a number, a limit or both with letters, or a number with commas, however it
    is written, and not one with a unit."""
    plain = text.translate(PLAIN)
    if is_float(plain) or limit_of(plain) is not None:
        return True
    known = recorded(plain), COMMA.fullmatch(plain), GROUPED.fullmatch(plain)
    return holds_number(plain) and any(known)


def holds_number(text: str) -> bool:
    """Whether a text begins with a number or has one that stands apart, unlike m2 and mg/100mL."""
    return re.search(r"(?<![\w^/.*])(?<!\w-)\.?\d", text) is not None


def misspelt(text: str, cell: bool = False) -> str:
    """A sentence about a number that is written otherwise than with a decimal point alone: commas,
    a unit, letters, <; and about the file where it is a cell of one; empty for any other text."""
    plain = text.translate(PLAIN)
    if (limit := limit_of(text)) and limit[1] is not None:
        return f"Write the number alone, {limit[1]:g}; cells such as {text} are censoring: text."
    if sentence := commas(plain, cell):
        return sentence
    if plain != text and (is_number(plain) or limit_of(plain)):
        return f"Write its minus sign as a hyphen and its spaces as plain ones, {plain}."
    if holds_number(text) and (sentence := of_letters(text)):
        return sentence
    if power := re.fullmatch(r"([-+]?\d+\.?\d*|[-+]?\.\d+)[dD]([-+]?\d+)", plain):
        return f"Write Fortran's exponent with e, {power[1]}e{power[2]}."
    times = rf"({NUMBER})\s*[x×*·]\s*10\s*(?:\^|\*\*)?\s*([-+]?\d+)"
    if power := re.fullmatch(times, plain.translate(POWERS)):
        return f"Write the power of ten with e, {power[1]}e{power[2]}."
    unit = rf"(?P<mark>[<>]?\s*)(?P<number>{NUMBER})\s*(?P<behind>(?![xX]\d)[A-Za-zµμ%°].*)"
    match = re.fullmatch(unit, plain)  # such as 0.8 mg
    if match is None or is_float(text) or holds_number(match["behind"]):
        return ""
    number, behind = match["number"], match["behind"]
    if behind == "%":
        share = f"{match['mark']}{float(number) / 100:g}"
        return f"Write {match['mark']}{number}, or {share} as a share, for all rows alike."
    if re.fullmatch(r"[A-Za-z]|[A-Z]{2}|[A-Z]{1,2}[-+*]", behind):
        return (
            f"If {behind} is a unit, write the number without it, {match['mark']}{number}; if it "
            "multiplies the number, as k does, or is a laboratory's qualifier, write what it makes "
            "of the number."
        )
    return f"Write the number without its unit, {match['mark']}{number}."


def of_letters(text: str, as_text: str = AS_TEXT) -> str:
    """A sentence about the letters of a laboratory in a cell, and how to say that they are some;
    empty for any other text."""
    letters, number = qualified(text), re.search(NUMBER, text)
    if letters is None:
        return ""
    unit = f" If it is a unit, write the number alone, {number[0]}." if number else ""
    return (
        f"{letters[0]} may be a laboratory's qualifier: {QUALIFIERS[letters[0]]}. Then, for an "
        f"outcome, {as_text}.{unit}"
    )


def commas(text: str, cell: bool, behind: str = "") -> str:
    """A sentence about a number with a decimal comma or signs between thousands, and what stands
    behind it; empty for any other text."""
    grouped, leading = GROUPED.fullmatch(text), re.match(r"[<>]?\s*[-+]?0", text)
    if COMMA.fullmatch(text):
        point, whole = (text.replace(",", sign) + behind for sign in (".", ""))
        if grouped and not leading:
            file = " pandas.read_csv has thousands=',' and decimal=','." if cell else ""
            return (
                f"It is {whole} where commas stand between thousands, and {point} where they stand "
                f"for decimal points: write the one that is meant, without a comma.{file}"
            )
        file = (
            " Where semicolons or tabs divide the cells of a file, replace its commas by points, "
            "in an editor or by `sed 's/,/./g'`; pandas.read_csv has decimal=',', which leaves "
            "columns of texts such as '<0,5' as they are: of these table[name].str.replace(',', "
            "'.') makes points."
        )
        return f"Write decimals with a point, {point}.{file if cell else ''}"
    if grouped and grouped[2] != grouped[3] and not is_float(text):
        whole, decimals = re.sub("[,.' _]", "", grouped[1]), grouped[4]
        number = f"{whole}.{decimals}" if decimals else whole
        return f"Write the number without signs between thousands, {number}{behind}."
    unit = re.fullmatch(r"(.*\d)(\s*[A-Za-zµμ%°].*)", text)
    return commas(unit[1], cell, unit[2]) if unit and not behind else ""


def advice(text: str, missing: str = "missing=True", as_text: str = AS_TEXT) -> str:
    """Advice about a cell that is no number; `missing` is how to say that it is missing, and
    `as_text` that letters and limits are read."""
    limit = limit_of(text)
    if limit is None:
        sentence = of_letters(text, as_text) or misspelt(text, cell=True)
        if sentence or holds_number(text):
            return sentence or (
                "It holds a number, so it is not missing: write one number alone, or the ends of "
                "an interval in columns for `lower` and `upper`."
            )
        return (
            f"Complete or drop the row, or say that it stands for a missing value, by {missing}: a "
            "missing cell is not a truncated one."
        )
    more = " with the limit of detection as its `not_detected`" if limit[1] is None else ""
    return (
        f"This is a censored value, not a missing one: for an outcome {as_text}{more}. "
        "To leave such observations out, or to put a number in their place, biases the estimates."
    )
