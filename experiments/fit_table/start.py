"""The config of a fit that begins from a table, for `truncgauss new TABLE`; without JAX."""

import collections
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.runs.config.yaml import write
from truncgauss.tables import limit_of, mismatch
from truncgauss.tables import units as first_row
from truncgauss.tables.censoring import (
    advice,
    holds_number,
    is_measurement,
    is_number,
    misspelt,
    of_letters,
    recorded,
)
from truncgauss.tables.files import TYPED, blocks
from truncgauss.words.numbers import ABSENT, MISSING, is_float

NUM_ROWS = 100_000  # how many are looked at
NUM_SHOWN = 3  # texts in a sentence
LIMITS = "censored_low", "censored_high", "truncated_low", "truncated_high"


class Column(NamedTuple):
    """How many cells of a column are numbers, limits such as <0.5, not detected, or empty; the
    texts of missing values and all others, each with the lines where it stands; and the text of its
    unit, empty where there is none."""

    numbers: int
    limits: int
    undetected: int
    empty: int
    absent: dict[str, list[int]]
    texts: dict[str, list[int]]
    unit: str = ""

    @property
    def numeric(self) -> bool:
        """Whether a column is one of numbers, of which some cells may not be readable."""
        counts = {text: len(lines) for text, lines in self.texts.items()}
        known = self.numbers + self.limits
        measured = known + sum(n for text, n in counts.items() if is_measurement(text))
        some = known + sum(n for text, n in counts.items() if holds_number(text))
        few = len(counts) <= NUM_SHOWN
        return measured > 0 and (few or 2 * some > known + sum(counts.values()))

    @property
    def lacking(self) -> bool:
        """Whether values are missing."""
        return bool(self.empty or (self.numeric and self.absent))

    @property
    def cure(self) -> str:
        """How a number that is written otherwise is written; empty if there is none."""
        return next(filter(None, (misspelt(text, cell=True) for text in self.texts)), "")

    def described(self) -> str:
        texts = sorted((self.absent | self.texts).items(), key=lambda item: -len(item[1]))
        if not self.numeric and not self.texts:
            return "without a number or a text"
        if not self.numeric:
            return f"texts ({', '.join(repr(text) for text, _ in texts[:NUM_SHOWN])})"
        counts = {"censored such as <0.5": self.limits, "not detected": self.undetected}
        counts |= {"empty": self.empty} | {repr(text): len(lines) for text, lines in texts}
        return ", ".join(["numbers", *(f"{n} {what}" for what, n in counts.items() if n)])


def config(path: Path, name: str, wanted: Mapping[str, Any]) -> str:
    """The text of a config.

    Args:
        path: the table, as the config names it.
        name: of the config's file.
        wanted: the options: `outcome` and `covariates` are names of columns, `log` and `units_row`
            truth values, `missing` texts, `censoring` "text" or None, and those of LIMITS words
            such as 0.5, column, or outcome=0.5.

    Raises:
        ValueError: for no outcome, a column that is not there or of another kind, or a cell that
            cannot be read in one way only, in a sentence.
    """
    columns = columns_of(path, wanted)
    if not wanted["outcome"]:
        names = ", ".join(key for key, column in columns.items() if column.numeric)
        has = "; ".join(f"{key}: {column.described()}" for key, column in columns.items())
        raise ValueError(
            f"{path}: which column is to be fitted? Add --outcome COLUMN: {names}. It has {has}."
        )
    limits = {key: limits_of(key, wanted[key], wanted["outcome"], columns) for key in LIMITS}
    entries = {outcome: entry_of(outcome, wanted, limits, columns) for outcome in wanted["outcome"]}
    covariates = covariates_of(wanted["covariates"], columns)
    chosen = [columns[key] for key in entries]
    numbers = [key for key in covariates if columns[key].numeric]
    for key in (*entries, *numbers):
        if columns[key].texts:
            raise ValueError(question(path, key, columns[key], key in entries))
    missing = {text for key in (*entries, *numbers) for text in columns[key].absent}
    missing |= {""} if any(column.empty for column in chosen) else set()
    lines = [
        f"# A fit of {path}. `truncgauss run {shlex.quote(name)} --help` describes every key.\n",
        f"experiment: fit_table\ndata: {json.dumps(str(path), ensure_ascii=False)}\n",
    ]
    if units := [column.unit for column in columns.values() if column.unit]:
        lines.append(f"# The first row below the header holds units: {', '.join(units)}.\n")
    if units or wanted["units_row"]:
        lines.append("units_row: true\n")
    if missing:
        lines += ["# Missing by chance; a value that is missing because it is small is censored.\n"]
        lines += [write({"missing": tuple(sorted(missing))})]
    if wanted["censoring"] or any(column.limits or column.undetected for column in chosen):
        letters = "; 0.5 U, 0.5 UJ and ND 0.5 too, and 0.5 J is 0.5" * bool(wanted["censoring"])
        lines.append(f"censoring: text  # cells such as <0.5 and >100 are censored{letters}\n")
    lines += ["\n", write({"outcomes": entries}), "\n"]
    levels = {key: most_common(columns[key].texts) for key in covariates if key not in numbers}
    lines.append(write({"covariates": tuple(numbers)}))
    if levels:
        lines.append("# Columns of texts, and the text that the others are compared with.\n")
        lines.append(write({"categories": levels}))
    if any(columns[key].lacking for key in covariates):
        lines.append("incomplete_rows: drop  # those that lack a covariate\n")
    lines.append("# profile: [sigma]  # estimates with profile intervals\n")
    return "".join(lines)


def most_common(texts: dict[str, list[int]]) -> str:
    return max(texts, key=lambda text: len(texts[text]))


def question(path: Path, name: str, column: Column, outcome: bool) -> str:
    """A sentence about the cells of a column of numbers that are none, and how they may be read:
    first about one that holds a number, since no such cell is missing."""
    text = next(filter(holds_number, column.texts), most_common(column.texts))
    lines, typed = column.texts[text], path.suffix in TYPED
    more = f", as in {len(lines)} of its cells" * (len(lines) > 1)
    cure = advice(text, f"--missing {shlex.quote(text)}", "add --censoring text")
    if not (holds_number(text) or of_letters(text)):
        cure += " One that is missing because it is small is censored: write its limit, <0.5 say."
        if not outcome:
            cure += f" If {name!r} holds categories, leave it out and add `categories: {{{name}: "
            cure += f"{text}}}` to the config, with the one that others are compared with."
    if not typed and first_row(path).get(name) == text and not misspelt(text):
        cure += " If the first row below the header holds units, add --units-row."
    location = f"{path}, row {lines[0]}" if typed else f"{path}:{lines[0]}"
    return f"{location}: column {name!r} must be a number, got {text!r}{more}. {cure}"


def columns_of(path: Path, wanted: Mapping[str, Any]) -> dict[str, Column]:
    """The columns of a table, by name; without a row of units, which only a CSV file can have."""
    block = next(blocks(path, end=NUM_ROWS), None)
    if block is None or not len(block.lines):
        raise ValueError(f"{path}: there is a header, but no row.")
    read = {str(name): texts_of(cells) for name, cells in block.columns.items()}
    absent, by_text = {*wanted["missing"]}, wanted["censoring"] is not None
    lines = block.lines.tolist()
    columns = {name: column_of(texts, lines, absent, by_text) for name, texts in read.items()}
    below = {name: column_of(texts[1:], lines[1:], absent, by_text) for name, texts in read.items()}
    units = {name: texts[0] for name, texts in read.items() if below[name].numeric}
    are_units = not any(is_measurement(text) or holds_number(text) for text in units.values())
    words = [text for name, text in units.items() if text in columns[name].texts]
    again = any(texts[0] in below[name].texts for name, texts in read.items())
    if not wanted["units_row"] and not (are_units and words and not again):
        return columns
    return {name: column._replace(unit=units.get(name, "")) for name, column in below.items()}


def texts_of(cells: np.ndarray) -> list[str]:
    """The cells of a column as texts; an empty one for a masked cell."""
    return [str(cell).strip() for cell in np.ma.filled(np.ma.asarray(cells, object), "")]


def column_of(
    texts: Sequence[str], lines: Sequence[int], missing: Collection[str], by_text: bool
) -> Column:
    """The kinds of the cells of a column.

    Args:
        texts: the cells.
        lines: their lines.
        missing: texts that stand for a missing value.
        by_text: whether a laboratory's letters are read, as in 0.5 U.
    """
    counts = collections.Counter[str]()
    absent, others = (collections.defaultdict[str, list[int]](list) for _ in range(2))
    for text, line in zip(texts, lines):
        cell = recorded(text) if by_text else limit_of(text)
        if text in missing:
            absent[text].append(line)
        elif is_number(text) or (cell is not None and cell[0] == "="):
            counts["numbers"] += 1
        elif cell is not None:
            counts["undetected" if cell[1] is None else "limits"] += 1
        elif not text:
            counts["empty"] += 1
        elif text in ABSENT or text.casefold() in MISSING:
            absent[text].append(line)
        else:
            others[text].append(line)
    kinds = (counts[kind] for kind in ("numbers", "limits", "undetected", "empty"))
    return Column(*kinds, dict(absent), dict(others))


def entry_of(
    outcome: str,
    wanted: Mapping[str, Any],
    limits: Mapping[str, Mapping[str, float | str]],
    columns: dict[str, Column],
) -> dict[str, Any]:
    """What the config says of an outcome, which must be a column of numbers; of cells that were not
    detected it must say below which limit."""
    if why := mismatch(outcome, list(columns)):
        raise ValueError(why)
    column = columns[outcome]
    if not column.numeric:
        numeric = ", ".join(key for key, other in columns.items() if other.numeric) or "none"
        cure = f"An outcome is numbers; texts can be covariates. Columns of numbers: {numeric}."
        raise ValueError(
            f"column {outcome!r} is {column.described()}, not numbers. {column.cure or cure}"
        )
    entry = {key: limit[outcome] for key, limit in limits.items() if outcome in limit}
    if column.undetected and "censored_low" not in entry:
        raise ValueError(
            f"{outcome!r} was not detected in {column.undetected} of the cells, and nothing says "
            "below which limit: give the limit of detection as --censored-low, a number or a "
            f"column, such as {outcome}=0.5 for these cells alone."
        )
    if column.undetected and any(word.startswith(f"{outcome}=") for word in wanted["censored_low"]):
        entry = {"not_detected": entry.pop("censored_low")} | entry
    return entry | ({"log": True} if wanted["log"] else {})


def limits_of(
    key: str, words: Sequence[str], outcomes: Sequence[str], columns: dict[str, Column]
) -> dict[str, float | str]:
    """The limits of outcomes as they were typed, a number or the column that has one for each row:
    of the only outcome, or after the name of one and an equals sign."""
    option, limits = f"--{key.replace('_', '-')}", dict[str, float | str]()
    for word in words:
        name, equals, text = ("", "", word) if word in columns else word.rpartition("=")
        if not equals and len(outcomes) > 1:
            raise ValueError(
                f"{option} {word}: of which outcome? Write {option} {outcomes[0]}={word}, with a "
                f"word for each outcome that has a limit, of {', '.join(outcomes)}."
            )
        name = name if equals else outcomes[0]
        if name not in outcomes or name in limits:
            why = "has two limits" if name in limits else "is no outcome"
            raise ValueError(
                f"{option} {' '.join(words)}: {name!r} {why}, of {', '.join(outcomes)}."
            )
        if is_float(text):
            limits[name] = float(text)
            continue
        if why := mismatch(text, list(columns)):
            cure = misspelt(text) or f"It is a number or a column, and {why}"
            raise ValueError(f"{option} {word}: {cure}")
        limits[name] = text
    return limits


def covariates_of(names: tuple[str, ...], columns: dict[str, Column]) -> tuple[str, ...]:
    """The names of covariates, which are columns with something in them."""
    for name in names:
        if why := mismatch(name, list(columns)):
            raise ValueError(why)
        if not (columns[name].numeric or columns[name].texts):
            raise ValueError(f"column {name!r} is {columns[name].described()}, and no covariate.")
        if not columns[name].numeric and columns[name].cure:
            raise ValueError(
                f"column {name!r} is {columns[name].described()}. {columns[name].cure}"
            )
    return names
