"""The config of a fit that begins from a table, for `truncgauss new TABLE`; without JAX."""

import collections
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.runs.config.yaml import write
from truncgauss.tables import limit_of, mismatch
from truncgauss.tables.censoring import ABSENT, is_float, is_number
from truncgauss.tables.files import blocks

NUM_ROWS = 100_000  # how many are looked at
NUM_CODES = 3  # most different texts of a column of numbers, which then stand for missing ones
ASKED = {
    "censored_low": "Left-censored: at or below which value is {} only known to be so?",
    "censored_high": "Right-censored: at or above which value is {} only known to be so?",
    "truncated_low": "Truncated: below which value of {} is nothing observed at all?",
    "truncated_high": "Above which value of {} is nothing observed at all?",
}
END = "\n  a number, or a column that has one for each observation; Enter for none: "


class Column(NamedTuple):
    """How many cells of a column are numbers, limits such as <0.5, not detected, or empty; the
    other texts with their counts; and whether only the first cell is such a text, as a unit is."""

    numbers: int
    limits: int
    undetected: int
    empty: int
    texts: collections.Counter[str]
    unit: bool

    @property
    def numeric(self) -> bool:
        return self.numbers + self.limits > 0 and len(self.texts) <= NUM_CODES

    @property
    def lacking(self) -> bool:
        """Whether values are missing."""
        return bool(self.empty or self.numeric and self.texts)

    def described(self) -> str:
        if not self.numeric and not self.texts:
            return "without a number or a text"
        if not self.numeric:
            return f"texts ({', '.join(text for text, _ in self.texts.most_common(NUM_CODES))})"
        counts = {"censored such as <0.5": self.limits, "not detected": self.undetected}
        counts |= {"empty": self.empty} | {repr(text): n for text, n in self.texts.items()}
        return ", ".join(["numbers", *(f"{n} {what}" for what, n in counts.items() if n)])


def config(
    path: Path, name: str, wanted: Mapping[str, Any], ask: Callable[[str], str] | None
) -> str:
    """The text of a config.

    Args:
        path: the table, as the config names it.
        name: of the config's file.
        wanted: the options: `outcome` and `covariates` are names of columns, `log` a truth value,
            and the keys of ASKED numbers or names of columns as texts, None where there is none.
        ask: shows a question and returns the answer, if no outcome is wanted; None to refuse.

    Raises:
        ValueError: for no outcome and nobody to ask, or a column that is not there or of another
            kind, in a sentence.
    """
    columns = columns_of(path)
    if wanted["outcome"]:
        entries = {outcome: entry_of(outcome, wanted, columns) for outcome in wanted["outcome"]}
        covariates = covariates_of(wanted["covariates"], columns)
    elif ask is None:
        names = ", ".join(key for key, column in columns.items() if column.numeric)
        raise ValueError(f"{path}: which column is to be fitted? Add --outcome COLUMN: {names}.")
    else:
        entries, covariates = questioned(path, columns, ask)
    chosen, numbers = (
        [columns[key] for key in entries],
        [k for k in covariates if columns[k].numeric],
    )
    missing = {text for column in chosen for text in column.texts}
    missing |= {text for key in numbers for text in columns[key].texts}
    missing |= {""} if any(column.empty for column in chosen) else set()
    lines = [
        f"# A fit of {path}. `truncgauss run {name} --help` describes every key.\n",
        f"experiment: fit_table\ndata: {json.dumps(str(path), ensure_ascii=False)}\n",
    ]
    if any(column.unit for column in columns.values()):
        lines.append("units_row: true  # the first row below the header\n")
    if missing:
        lines += ["# Missing by chance; a value that is missing because it is small is censored.\n"]
        lines += [write({"missing": tuple(sorted(missing))})]
    if any(column.limits or column.undetected for column in chosen):
        lines.append("censoring: text  # cells such as <0.5 and >100 are censored\n")
    lines += ["\n", write({"outcomes": entries}), "\n"]
    levels = {key: columns[key].texts.most_common(1) for key in covariates if key not in numbers}
    lines.append(write({"covariates": tuple(numbers)}))
    if levels:
        lines.append("# Columns of texts, and the text that the others are compared with.\n")
        lines.append(write({"categories": {key: level for key, [(level, _)] in levels.items()}}))
    if any(columns[key].lacking for key in covariates):
        lines.append("incomplete_rows: drop  # those that lack a covariate\n")
    lines.append("# profile: [sigma]  # estimates with profile intervals\n")
    return "".join(lines)


def columns_of(path: Path) -> dict[str, Column]:
    """The columns of a table, by name; without a row of units, which only a CSV file can have."""
    block = next(blocks(path, end=NUM_ROWS), None)
    if block is None or not len(block.lines):
        raise ValueError(f"{path}: there is a header, but no row.")
    read = {str(name): texts_of(cells) for name, cells in block.columns.items()}
    columns = {name: column_of(texts) for name, texts in read.items()}
    below = {name: column_of(texts[1:]) for name, texts in read.items()}
    units = [
        x for x in read if below[x].numeric and columns[x].texts.keys() - below[x].texts.keys()
    ]
    return (
        {name: column._replace(unit=name in units) for name, column in below.items()}
        if units
        else columns
    )


def texts_of(cells: np.ndarray) -> list[str]:
    """The cells of a column as texts; an empty one for a masked cell."""
    return [str(cell).strip() for cell in np.ma.filled(np.ma.asarray(cells, object), "")]


def column_of(texts: list[str]) -> Column:
    """The kinds of the cells of a column."""
    counts, others = collections.Counter[str](), collections.Counter[str]()
    for text in texts:
        limit = limit_of(text)
        if is_number(text):
            counts["numbers"] += 1
        elif limit is not None:
            counts["undetected" if limit[1] is None else "limits"] += 1
        elif text in ABSENT:
            counts["empty"] += 1
        else:
            others[text] += 1
    kinds = (counts[kind] for kind in ("numbers", "limits", "undetected", "empty"))
    return Column(*kinds, others, False)


def entry_of(outcome: str, wanted: Mapping[str, Any], columns: dict[str, Column]) -> dict[str, Any]:
    """What the config says of an outcome."""
    check_outcome(outcome, columns)
    entry = {key: limit_in(wanted[key], columns) for key in ASKED if wanted[key] is not None}
    check_undetected(outcome, entry, columns)
    return entry | ({"log": True} if wanted["log"] else {})


def check_outcome(outcome: str, columns: dict[str, Column]) -> None:
    """Refuse an outcome that is no column of numbers."""
    if why := mismatch(outcome, list(columns)):
        raise ValueError(why)
    if not columns[outcome].numeric:
        raise ValueError(f"column {outcome!r} is {columns[outcome].described()}, not numbers.")


def check_undetected(outcome: str, entry: dict[str, Any], columns: dict[str, Column]) -> None:
    """Refuse cells that were not detected, nobody says below which limit."""
    if (count := columns[outcome].undetected) and "censored_low" not in entry:
        raise ValueError(
            f"{outcome!r} was not detected in {count} of the cells, and nothing says below which "
            "limit: give the limit of detection as --censored-low, a number or a column."
        )


def limit_in(text: str, columns: dict[str, Column]) -> float | str:
    """A limit as it was typed: a number, or the column that has one for each row."""
    if is_float(text):
        return float(text)
    if why := mismatch(text, list(columns)):
        raise ValueError(f"a limit is a number or a column: {why}")
    return text


def covariates_of(names: tuple[str, ...], columns: dict[str, Column]) -> tuple[str, ...]:
    """The names of covariates, which are columns with something in them."""
    for name in names:
        if why := mismatch(name, list(columns)):
            raise ValueError(why)
        if not (columns[name].numeric or columns[name].texts):
            raise ValueError(f"column {name!r} is {columns[name].described()}, and no covariate.")
    return names


def questioned(
    path: Path, columns: dict[str, Column], ask: Callable[[str], str]
) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
    """What the config says of the outcomes, and the covariates, as they are answered."""
    seen = "\n".join(f"  {name}: {column.described()}" for name, column in columns.items())

    def split(text: str) -> tuple[str, ...]:
        return tuple(name.strip() for name in text.split(",") if name.strip())

    def outcomes(text: str) -> tuple[str, ...]:
        if not split(text):
            raise ValueError("name a column.")
        for name in split(text):
            check_outcome(name, columns)
        return split(text)

    names = answered(f"{path} has\n{seen}\nWhich column is to be fitted? ", outcomes, ask)
    entries: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, entry in entries.items():
        for key, question in ASKED.items():

            def limit(text: str, key: str = key, name: str = name) -> None:
                new = {key: limit_in(text, columns)} if text else {}
                if key == "censored_low":
                    check_undetected(name, new, columns)
                entries[name].update(new)

            answered(question.format(name) + END, limit, ask)
        if (
            answered(f"Fit the logarithm of {name}, as of concentrations? [y/N] ", str.lower, ask)[
                :1
            ]
            == "y"
        ):
            entry["log"] = True
    others = ", ".join(name for name in columns if name not in names)
    question = f"Which columns does it depend on ({others})? With commas; Enter for none: "
    return entries, answered(question, lambda text: covariates_of(split(text), columns), ask)


def answered(question: str, read: Callable[[str], Any], ask: Callable[[str], str]) -> Any:
    """An answer, asked for again, with the reason, as long as it cannot be used."""
    while True:
        try:
            return read(ask(question).strip())
        except ValueError as error:
            question = f"  {error} Again: "
