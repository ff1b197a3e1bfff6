"""Designs of covariates from the columns of a table: numbers, categories of texts, and formulas.

A design is a dictionary of columns that can be made anew of other rows, in the same way.
"""

import importlib
import re
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from truncgauss.arrays.alignment import RowLabels, labels_of, taken
from truncgauss.tables.censoring import limit_of, misspelt
from truncgauss.tables.columns import (
    DROPPED,
    as_names,
    categories_of,
    chosen,
    dropped,
    gaps,
    is_missing,
    named_columns,
    numbers,
)
from truncgauss.words.names import meant, suggestion
from truncgauss.words.numbers import is_float

CATEGORIES = re.compile(r"\b(C|hashed)\(")  # parts of formulas that take numbers for categories


class Encoder(NamedTuple):
    """A function of a table that makes the columns of a design, what it read for these rows, and
    the categories of those columns that have some, first the one that others are compared with."""

    columns_of: Callable[[Any], Mapping[str, np.ndarray]]
    source: Mapping[str, Any]
    levels: Mapping[str, Sequence[Any]]

    def __call__(self, table: Any) -> Mapping[str, np.ndarray]:
        return self.columns_of(table)


class Design(dict[str, np.ndarray]):
    """Columns of a design by name, (n,) each.

    Args:
        columns: the columns.
        encoder: a function of another table, which makes the same columns of it.
        index: labels of the rows, if they have some.
        source: the columns of the table that were read, by name.
        levels: of those that are categories, first the one that others are compared with.
    """

    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        encoder: Callable[[Any], Mapping[str, np.ndarray]],
        index: RowLabels | None = None,
        source: Mapping[str, Any] | None = None,
        levels: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        super().__init__(columns)
        self._encoder, self.index = Encoder(encoder, source or {}, levels or {}), index

    def encode(self, table: Any) -> "Design":
        """The same columns of other rows, such as those to be predicted.

        Raises:
            ValueError: for a column that is not there, a value that is missing, or a new category.
        """
        encoder, source, levels = self._encoder
        columns, by_name = encoder(table), named(table)
        read = {name: by_name[name] for name in source}
        return Design(columns, encoder, labels_of(table), read, levels)

    def at_rows(self, positions: np.ndarray) -> "Design":
        """The rows at these positions, without labels."""
        encoder, source, levels = self._encoder
        rows, read = taken(dict(self), positions), taken(source, positions)
        return Design(rows, encoder, source=read, levels=levels)


def design(
    table: Any, covariates: Sequence[Any] = (), categories: Mapping[Any, str] | None = None
) -> Design:
    """A constant, columns of numbers, and one column of 0 and 1 for each category of texts but the
    one that others are compared with.

    Args:
        table: anything that `read` takes, with names.
        covariates: names of the columns of numbers.
        categories: names of the columns of texts, and in each the text to compare with.

    Raises:
        ValueError: for a name that is not there, a missing value, or a text that is nowhere held.

    Example:
        >>> from truncgauss import tables
        >>> table = {"age": [30, 40, 50], "gender": ["male", "female", "male"]}
        >>> design = tables.design(table, ["age"], {"gender": "female"})
        >>> list(design), design["gender: male"]
        (['constant', 'age', 'gender: male'], array([1., 0., 1.]))
        >>> design.encode({"age": [60], "gender": ["female"]})["gender: male"]
        array([0.])
    """
    categories = categories or {}
    covariates = as_names(covariates)
    if not isinstance(categories, Mapping):
        raise TypeError(f"categories must be a dictionary {{column: text}}, got {categories!r}.")
    by_name = named(table)
    levels = {name: levels_of(by_name, name, first) for name, first in categories.items()}

    encoder = partial(coded, tuple(covariates), dict(categories), levels)
    columns = encoder(table)
    source = {name: by_name[name] for name in (*covariates, *categories)}
    every = {name: [categories[name], *others] for name, others in levels.items()}
    return Design(columns, encoder, labels_of(table), source, every)


def coded(
    covariates: Sequence[Any],
    categories: Mapping[Any, str],
    levels: Mapping[Any, list[str]],
    table: Any,
) -> dict[str, np.ndarray]:
    """The columns of `design`, of the table that is read for it or of another."""
    by_name = named(table)
    columns = {str(x): numbers(chosen(by_name, x, "design"), f"{x!r}") for x in covariates}
    for name, others in levels.items():
        cells = texts_of(table, name, [categories[name], *others])
        columns |= {f"{name}: {level}": (cells == level).astype(float) for level in others}
    size = len(next(iter(columns.values()))) if columns else len(next(iter(by_name.values())))
    return {"constant": np.ones(size)} | columns


def levels_of(columns: Mapping[Any, Any], name: Any, reference: str) -> list[str]:
    """The texts in a column, in order, without the one that others are compared with.

    Raises:
        ValueError: the column does not hold that one.
    """
    levels = kinds_of(columns, name)
    if reference not in levels:
        raise ValueError(
            f"categories: column {name!r} nowhere holds {reference!r}, but {levels[:20]}"
            f"{meant(reference, levels) or '.'}"
        )
    return [level for level in levels if level != reference]


def kinds_of(columns: Mapping[Any, Any], name: Any) -> list[str]:
    """The texts in a column: in the order of its categories, else in that of the alphabet."""
    held, declared = set(texts_of(columns, name).tolist()), categories_of(columns[name])
    order = sorted(held) if declared is None else list(map(str, declared[0]))
    return [text for text in order if text in held]


def named(table: Any) -> dict[Any, Any]:
    """The columns of a table by name."""
    by_name = named_columns(table)
    if not by_name:
        raise ValueError(
            "the data must be a table whose columns have names, such as a DataFrame or a "
            f"dictionary of columns, got a {type(table).__name__}."
        )
    return by_name


def column_or(values: Any, data: Any, what: str) -> Any:
    """Values as they are, or the column of the data that a text names."""
    if data is None or not isinstance(values, str):
        return values
    return chosen(named(data), values, what)


def bounds_or(bounds: Any, outcome: Any, data: Any, what: str) -> Any:
    """Bounds as they are, or the column of the data that a text names, which is refused beside an
    outcome that a formula makes of a column, such as np.log(y): its bounds are of the column."""
    values = column_or(bounds, data, what)
    if values is not bounds and (made := made_by(outcome, data)):
        raise ValueError(
            f"{what}: the bounds {bounds!r} are a column of the data, and the outcome is {made}. "
            f"Give numbers in the units of {made}, such as np.log(table[{bounds!r}]) of a log."
        )
    return values


def made_by(outcome: Any, data: Any) -> str:
    """The outcome that a formula makes of a column, such as np.log(y); empty of a column itself."""
    left = outcome.partition("~")[0].strip() if isinstance(outcome, str) else ""
    return "" if not left or data is None or left.strip("`") in named(data) else left


def missing_covariate(table: Any, name: Any, absent: np.ndarray) -> str:
    """Words on rows (n,) of a table that lack a covariate."""
    words = gaps(f"the covariate {name!r}", absent, dropped(table, name))
    return f"{words}, or complete them. Rows are never dropped silently."


def texts_of(table: Any, name: Any, levels: Sequence[str] | None = None) -> np.ndarray:
    """A column of texts, none of which may be missing, or another category than these."""
    column = chosen(named(table), name, "design")
    cells = np.asarray(column, object)
    absent = is_missing(column) | [isinstance(cell, str) and not cell for cell in cells]
    if absent.any():
        raise ValueError(f"design: {missing_covariate(table, name, absent)}")
    texts = np.array([str(cell) for cell in cells], str)
    for i in [] if levels is None else np.flatnonzero(~np.isin(texts, levels)):
        raise ValueError(
            f"design: column {str(name)!r} holds {str(texts[i])!r} in row {i}, a category without "
            f"an estimate; {suggestion(str(texts[i]), levels or ())}"
        )
    return texts


# ---------------------------------------------------------------- formulas


def formula(
    text: str, data: Any, categories: Mapping[str, str] | None = None
) -> tuple[np.ndarray | None, Design]:
    """The outcome, if there is one, and the design of a formula such as
    "log(wage) ~ age * education + `marital status`", by formulaic, which is optional.

    Args:
        text: the formula; columns whose names are no words stand in backticks, and those of texts
            and of categories become columns of 0 and 1, all but that of the first category: in the
            order of a Categorical of pandas or an Enum of polars, else of the alphabet.
            `C(site, contr.treatment("south"))` names another. Functions in it are those of
            formulaic and NumPy.
        data: a table with names.
        categories: of such columns, the text to compare with.

    Raises:
        ValueError: for a formula that cannot be read, a column that is not there, or one that lacks
            a value, since rows are never dropped. The outcome may be missing: that is for the fit.
        ImportError: formulaic is not installed.
    """
    if not isinstance(text, str):
        raise TypeError(f"formula: the text comes first, then data; got a {type(text).__name__}.")
    try:
        formulaic = importlib.import_module("formulaic")
    except ImportError as error:
        raise ImportError(
            "Formulas need formulaic, which is optional: pip install 'truncgauss[formula]'. "
            "Without it: tables.design(table, covariates, categories)."
        ) from error
    from truncgauss.tables.formula_words import RANDOM, refuse_numbers, refuse_words

    levels, by_name = {}, named(data)
    refuse_words(text, by_name)
    try:
        parsed = formulaic.Formula(text)
        left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", parsed)
        if type(right).__name__ == "StructuredFormula":  # parts between |, without an outcome
            right = right.root
        names = [] if isinstance(right, tuple) else variables(right, by_name)
    except (formulaic.errors.FormulaicError, SyntaxError) as error:
        words = str(error).splitlines()[0].rstrip(".")
        reason = RANDOM if "|" in text else f"{words}. Write it as 'y ~ x + z'."
        raise ValueError(f"formula {text!r} cannot be read: {reason}") from error
    if (known := re.search(r"(?<!\w)offset\((.+?)\)", text)) and "offset" not in by_name:
        y = text.partition("~")[0].strip() or "y"
        raise ValueError(
            f"formula {text!r}: {known[0]} is a term of coefficient 1, which a formula here cannot "
            f"have. Subtract it: the outcome is I({y} - {known[1]}) for {y}, bounds are less "
            f"{known[1]} too, and predictions are of that difference. Categories take no offset."
        )
    if isinstance(right, tuple):
        parts = f"one part right of ~, got {len(right)}"
        raise ValueError(f"formula {text!r} must have {parts}: {RANDOM}")
    for name in names:
        if is_text(chosen(by_name, name, f"formula {text!r}")):
            if name not in (categories or {}) and f"C({name}" not in text.replace("`", ""):
                refuse_numbers(by_name[name], kinds_of(by_name, name), name, text)
            first = (categories or {}).get(name) or kinds_of(by_name, name)[0]
            levels[name] = [first, *levels_of(by_name, name, first)]
    made = matrix_of(right, data, names, levels)

    encoder = partial(evaluated, made.model_spec, names, levels)
    columns = columns_of(made)
    first_use = [min((k for k, x in enumerate(columns) if names_in(x, [name])), default=0)
                 for name in names]  # fmt: skip
    source = {name: by_name[name] for _, name in sorted(zip(first_use, names))}
    every = levels | coded_levels(made, names)
    made_columns = Design(columns, encoder, labels_of(data), source, every)
    if left is None:
        return None, made_columns
    name = text.partition("~")[0].strip().strip("`")
    if name in by_name and is_text(by_name[name]):
        cells = [str(cell) for cell in np.asarray(by_name[name])]
        if limit := next(filter(limit_of, cells), None):
            raise ValueError(
                f"formula {text!r}: the outcome {name!r} holds censored values, such as {limit!r}. "
                f"Read them, rows = tg.Observations.from_table(table, {name!r}, censoring='text'), "
                "with log=True for their logarithms, and fit tg.fit_observations(rows, "
                f"'~{text.partition('~')[2]}', data=table); fit_clusters takes "
                "np.hstack([rows.lower, rows.upper]) as its outcome."
            )
        for cell in cells:
            if not is_float(cell) and (cure := misspelt(cell)):
                raise ValueError(
                    f"formula {text!r}: the outcome {name!r} holds {cell!r}, not a number. {cure}"
                )
        say = f"If they are numbers, convert them: table[{name!r}].astype(float). Else say"
        raise ValueError(
            f"formula {text!r}: the outcome {name!r} holds texts. "
            f"{say if all(map(is_float, cells)) else 'Say'} their order: "
            f"tg.Ordinal(table[{name!r}], levels=[...]) is the outcome then, and the design "
            f"'~{text.partition('~')[2]}'."
        )
    of_outcome = matrix_of(left, data, variables(left, by_name), {}, "ignore")
    outcome = list(columns_of(of_outcome).values())
    if len(outcome) != 1:
        raise ValueError(f"formula {text!r} must have one outcome, got {len(outcome)}.")
    return outcome[0], made_columns


def ordered_outcome(outcome: Any, design: Any, data: Any) -> tuple[str, Any, Any] | None:
    """The name, the column and the design of an outcome of ordered categories, an ordered
    Categorical of pandas or an Enum of polars, which a formula or its name says; else None."""
    if data is None or not isinstance(outcome, str):
        return None
    name, tilde, covariates = (part.strip() for part in outcome.partition("~"))
    column = named(data).get(name.strip("`"))
    if column is None or (tilde and design is not None):
        return None
    declared = categories_of(column)
    if declared is None or not declared[1]:
        return None
    native = column.to_native() if hasattr(column, "to_native") else column
    return name.strip("`"), native, f"~ {covariates}" if tilde else design


def by_formula(outcome: Any, design: Any, data: Any, what: str) -> tuple[Any, Any]:
    """An outcome and its design, of which either may be a formula, or the outcome the name of a
    column of the data; they are returned as they are where neither is a text."""
    texts = [text for text in (outcome, design) if isinstance(text, str)]
    if texts and data is None:
        if design is not None and not isinstance(design, str) and named_columns(design):
            raise ValueError(
                f"{what}: after the formula {outcome!r} came a table as the design. The formula "
                "has the design: give the table of its columns by name, data=table."
            )
        last = (
            " It comes first, as the outcome." if outcome is not None and texts[0] is design else ""
        )
        raise ValueError(
            f"{what}: {texts[0]!r} is a formula: give the table of its columns by name, data=table."
            f"{last if '~' in texts[0].lstrip()[1:] else ''}"
        )
    if isinstance(outcome, str) and outcome.lstrip().startswith("~"):
        raise ValueError(
            f"{what}: the formula {outcome!r} names no outcome. Write it before the ~; or give the "
            "outcome first, and the formula as the design."
        )
    if isinstance(outcome, str) and "~" in outcome and design is not None:
        raise ValueError(
            f"{what}: the formula {outcome!r} has the covariates: give no design beside it, and "
            "what else there is by name, such as data=table."
        )
    if isinstance(design, str):
        design = formula(design, data)[1]
    if not isinstance(outcome, str):
        return outcome, design
    if "~" not in outcome and "=" in outcome and outcome not in named(data):
        raise ValueError(f"{what}: {outcome!r} is no formula: write it as 'y ~ x + z'.")
    if "~" not in outcome:
        return numbers(column_or(outcome, data, what), f"{what}: {outcome!r}", True), design
    return formula(outcome, data)


def variables(part: Any, by_name: Mapping[Any, Any]) -> list[str]:
    """The columns that a part of a formula needs: formulaic does not list all of its functions',
    and ends a name at a dot."""
    found = names_in(str(part), by_name)
    beside = {*map(str, part.required_variables)} - {name.partition(".")[0] for name in found}
    return sorted({*found, *beside})


def names_in(text: str, names: Iterable[Any]) -> list[str]:
    """Names that stand in a formula."""
    words = [str(name) for name in names]
    return [x for x in words if re.search(rf"(?<!\w){re.escape(x)}(?!\w)", text)]


def matrix_of(
    part: Any,
    table: Any,
    names: list[str],
    levels: Mapping[str, list[str]],
    action: str = "raise",
) -> Any:
    """The matrix of a part of a formula, or of what was made of it before, with all rows of a table
    that has the named columns, of which some have levels."""
    errors = importlib.import_module("formulaic.errors")
    factors = [str(x) for term in getattr(part, "formula", part) for x in term.factors]
    codes = {x for text in factors if CATEGORIES.search(text) for x in names_in(text, names)}
    frame = frame_of(table, names, levels, codes)
    wrong = errors.FormulaicError, errors.DataMismatchWarning, SyntaxError, ValueError
    try:
        with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
            warnings.simplefilter("error", errors.DataMismatchWarning)  # a category that is new
            made = part.get_model_matrix(frame, na_action=action, context={})
    except wrong as error:
        formula = f"formula '{getattr(part, 'formula', part)}'"
        words = str(error).partition("They are being")[0].strip()
        factor = words.partition("`")[2].partition("`: ")[0]
        for name in names_in(factor, frame.columns) if "null values" in words else ():
            if (absent := frame[name].isna().to_numpy()).any():
                words = missing_covariate(table, name, absent)
                raise ValueError(f"{formula}: {words}") from error
        advice = DROPPED if "null values" in words else "Write that part of the formula otherwise."
        raise ValueError(f"{formula}: {words} {advice}") from error
    if len(made) != len(frame):
        raise ValueError(f"formula '{part}' drops {len(frame) - len(made)} rows. {DROPPED}")
    return made


def evaluated(
    spec: Any, names: list[str], levels: Mapping[str, list[str]], table: Any
) -> dict[str, np.ndarray]:
    """The columns of a formula for another table, by what was made of it before."""
    return columns_of(matrix_of(spec, table, names, levels))


def coded_levels(made: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """The categories of the columns that a formula codes as such, first the one that it compares
    the others with."""
    result = {}
    for factor, state in made.model_spec.factor_contrasts.items():
        base, levels = getattr(state.contrasts, "base", None), list(state.levels)
        first = base if base in levels else levels[0]
        for name in names:
            if re.match(rf"(C\()?\s*`?{re.escape(name)}`?\s*([,)]|$)", str(factor)):
                result[name] = [first, *(x for x in levels if x != first)]
    return result


def columns_of(matrix: Any) -> dict[str, np.ndarray]:
    """The columns of a matrix by name."""
    return dict(zip(map(str, matrix.columns), np.asarray(matrix, float).T))


def is_text(column: Any) -> bool:
    """Whether a column holds texts or categories."""
    if categories_of(column) is not None:
        return True
    cells = np.asarray(column)
    some = cells.dtype.kind == "O" and any(isinstance(cell, str) for cell in cells)
    return cells.dtype.kind in "US" or some


def frame_of(
    table: Any, names: list[str], levels: Mapping[str, list[str]], codes: Container[str]
) -> Any:
    """The named columns of a table as a DataFrame of categories and of numbers: in float64, as the
    powers and products of fewer bits overflow, but for the whole numbers that are codes of
    categories, which these are called by."""
    pandas, by_name = importlib.import_module("pandas"), named(table)
    columns = {}
    for name in names:
        column, what = chosen(by_name, name, "formula"), f"formula: column {name!r}"
        if name in levels:
            cells = texts_of(table, name, levels[name])
            columns[name] = pandas.Categorical(cells, levels[name])
        elif name in codes and (whole := np.asarray(column)).dtype.kind in "iu":
            columns[name] = whole.astype(np.int64) if np.all(whole < 2**63) else whole
        else:
            columns[name] = numbers(column, what, missing=True).astype(np.float64)
    num_rows = len(next(iter(by_name.values())))
    return pandas.DataFrame(columns, index=range(num_rows))  # "~ 1" needs no column
