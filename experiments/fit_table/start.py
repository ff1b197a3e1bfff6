"""The config of a fit that begins from a table, for `truncgauss new TABLE`; without JAX."""

import collections
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from truncgauss.runs.config.yaml import write
from truncgauss.tables import limit_of, mismatch
from truncgauss.tables.censoring import ABSENT, is_float, is_number, misspelt
from truncgauss.tables.files import blocks

NUM_ROWS = 100_000  # how many are looked at
NUM_CODES = 3  # most different texts of a column of numbers, which then stand for missing ones
LIMITS = "censored_low", "censored_high", "truncated_low", "truncated_high"


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

    @property
    def cure(self) -> str:
        """How a number that is written otherwise is written; empty if there is none."""
        return next(filter(None, (misspelt(text, cell=True) for text in self.texts)), "")

    def described(self) -> str:
        if not self.numeric and not self.texts:
            return "without a number or a text"
        if not self.numeric:
            shown = ", ".join(repr(text) for text, _ in self.texts.most_common(NUM_CODES))
            return f"texts ({shown})"
        counts = {"censored such as <0.5": self.limits, "not detected": self.undetected}
        counts |= {"empty": self.empty} | {repr(text): n for text, n in self.texts.items()}
        return ", ".join(["numbers", *(f"{n} {what}" for what, n in counts.items() if n)])


def config(path: Path, name: str, wanted: Mapping[str, Any]) -> str:
    """The text of a config.

    Args:
        path: the table, as the config names it.
        name: of the config's file.
        wanted: the options: `outcome` and `covariates` are names of columns, `log` a truth value,
            and those of LIMITS numbers or names of columns as texts, None where there is none.

    Raises:
        ValueError: for no outcome, or a column that is not there or of another kind, in a sentence.
    """
    columns = columns_of(path)
    if not wanted["outcome"]:
        names = ", ".join(key for key, column in columns.items() if column.numeric)
        has = "; ".join(f"{key}: {column.described()}" for key, column in columns.items())
        raise ValueError(
            f"{path}: which column is to be fitted? Add --outcome COLUMN: {names}. It has {has}."
        )
    entries = {outcome: entry_of(outcome, wanted, columns) for outcome in wanted["outcome"]}
    covariates = covariates_of(wanted["covariates"], columns)
    chosen = [columns[key] for key in entries]
    numbers = [key for key in covariates if columns[key].numeric]
    missing = {text for column in chosen for text in column.texts}
    missing |= {text for key in numbers for text in columns[key].texts}
    missing |= {""} if any(column.empty for column in chosen) else set()
    lines = [
        f"# A fit of {path}. `truncgauss run {shlex.quote(name)} --help` describes every key.\n",
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
    chosen = below if units else columns
    return {name: column._replace(unit=name in units) for name, column in chosen.items()}


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
    entry = {key: limit_in(key, wanted[key], columns) for key in LIMITS if wanted[key] is not None}
    if column.undetected and "censored_low" not in entry:
        raise ValueError(
            f"{outcome!r} was not detected in {column.undetected} of the cells, and nothing says "
            "below which limit: give the limit of detection as --censored-low, a number or a "
            "column."
        )
    return entry | ({"log": True} if wanted["log"] else {})


def limit_in(key: str, text: str, columns: dict[str, Column]) -> float | str:
    """A limit as it was typed: a number, or the column that has one for each row."""
    if is_float(text):
        return float(text)
    if why := mismatch(text, list(columns)):
        cure = misspelt(text) or f"It is a number or a column, and {why}"
        raise ValueError(f"--{key.replace('_', '-')} {text}: {cure}")
    return text


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
