"""The settings of `fit_table`."""

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from truncgauss.runs.config import (
    Count,
    DataFile,
    Experiment,
    Limit,
    Model,
    Positive,
    Seed,
    columns_of,
    problem,
    problems,
)
from truncgauss.tables import (
    formula,
    levels_of,
    units,
)
from truncgauss.tables.censoring import advice, is_measurement
from truncgauss.tables.formulas import names_in, variables
from truncgauss.words.names import meant
from truncgauss.words.numbers import is_float

from ..columns import check_columns
from .table import Data, read

ColumnOrNumber = Limit | str
"""A number for all rows, or the name of the column that has one for each."""
Mark = Annotated[tuple[str, str], Field(min_length=2, max_length=2)]
"""A column, and the text in it that marks a row."""


class Entry(Model):
    """What the table says of one outcome; without any key its column is known exactly."""

    lower: ColumnOrNumber | None = None
    """The lower end, where the outcome is known to an interval."""
    upper: ColumnOrNumber | None = None
    """The upper end."""
    censored_low: ColumnOrNumber | None = None
    """At or below this limit a value is only known to be so."""
    censored_high: ColumnOrNumber | None = None
    """At or above this limit."""
    left_censored: Mark | None = None
    """[column, text]: where that column holds this text, the value is only an upper limit."""
    right_censored: Mark | None = None
    """Likewise, a lower bound."""
    truncated_low: ColumnOrNumber | None = None
    """The bound of truncation: below it nothing is observed at all."""
    truncated_high: ColumnOrNumber | None = None
    """Above this limit."""
    noise_scale: Positive | str | None = None
    """Standard deviation of the measurement errors."""
    not_detected: ColumnOrNumber | None = None
    """With `censoring: text`, the limit below which a value lies whose cell says nd, for these
    cells alone: numbers at or below it stay exact."""
    log: bool = False
    """Fit the natural logarithm of the outcome, as of concentrations; limits are those of the
    outcome itself."""


Known = Annotated[
    Entry,
    BeforeValidator(
        lambda entry: {} if entry is None else entry, json_schema_input_type=Entry | None
    ),
]
"""What is said of an outcome; nothing after its name is the same as {}."""


def no_estimate(name: str, names: list[str]) -> str:
    """Why an estimate cannot be profiled; empty if it is one of these names."""
    if name in names:
        return ""
    return f"there is no estimate {name!r}, but {', '.join(names)}{meant(name, names)}"


def names_of_formula(text: str, columns: Mapping[str, Any]) -> list[str]:
    """The columns that a formula names, also those that are not there: as far as it can be read."""
    try:
        formulaic = importlib.import_module("formulaic")
    except ImportError:  # which is said where the formula is used
        return names_in(text, columns)
    try:
        names = variables(formulaic.Formula(text), columns)
    except (formulaic.errors.FormulaicError, SyntaxError, ValueError):  # likewise
        return names_in(text, columns)
    return [x for x in names if x in columns or not re.search(rf"(?<!\w){x}\s*\(", text)]


class Settings(Experiment):
    """A Gaussian, or a Gaussian regression, fitted to a table of one's own."""

    spreads: ClassVar[bool] = True

    seed: Seed = 0
    """Of randomised residuals and the starts of mixtures; of nothing else."""
    data: DataFile
    """A CSV, NPZ or Parquet table with named columns."""
    units_row: bool = False
    """Whether the first row below the header of a CSV table holds units, which the figure shows."""
    where: dict[str, str] = {}
    """Keep only the rows whose column (the key) holds this text (the value)."""
    missing: tuple[str, ...] = ()
    """Texts that stand for a missing number. An outcome may be missing, at random; nothing else."""
    censoring: Literal["columns", "text"] = "columns"
    """Where it says what is censored: in the columns named under `outcomes`, or also in the text of
    an outcome's cell: <0.5, >100, or nd, which is at most its `not_detected` or `censored_low`; and
    by a laboratory's letters, 0.5 U (not detected at 0.5: below it), 0.5 UJ (likewise, the limit
    itself estimated), ND 0.5 (as U) and 0.5 J (detected, the value estimated: 0.5)."""
    outcomes: Annotated[dict[str, Known], Field(min_length=1)]
    """What is known of each outcome, by its column."""
    covariates: tuple[str, ...] = ()
    """Columns of numbers that the mean is linear in, besides a constant."""
    categories: dict[str, str] = {}
    """Columns of texts that the mean depends on (the key), and the text that others are compared
    with (the value)."""
    formula: str = ""
    """In place of covariates, such as `age * log(income) + gender`, by formulaic, which is
    optional; its columns of texts stand under `categories`, with the text to compare with."""
    scale_covariates: tuple[str, ...] = ()
    """Columns that the log of the standard deviation, sigma, is linear in, besides a constant; with
    one outcome. Its estimates are called `log_scale[column]`."""
    weights: str = ""
    """The column that says how often each row counts."""
    covariance: Literal["full", "diagonal", "tied"] = "full"
    """Of the outcomes, given the covariates; tied: one matrix that all components share."""
    components: Count = 1
    """How many Gaussians the rows are a mixture of."""
    num_starts: Count = 8
    """From how many starts a mixture is fitted."""
    information: Literal["observed", "sandwich"] = "observed"
    """What standard errors come from."""
    stray_rows: Literal["refuse", "drop"] = "refuse"
    """What to do with observations outside of bounds of truncation. Dropped ones are named."""
    incomplete_rows: Literal["refuse", "drop"] = "refuse"
    """What to do with rows that lack a covariate. Dropped rows are named."""
    profile: tuple[str, ...] = ()
    """Estimates to give profile-likelihood intervals of, by their names in the table."""
    num_steps: Count = 100
    """The most Newton steps."""
    num_residuals: Count = 20
    """Randomisations of the residuals that are drawn."""

    def numbers(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The columns of numbers: where each is named in the settings, and its name."""
        for name, entry in self.outcomes.items():
            if entry.lower is None and entry.upper is None and name not in self.by_text:
                yield ("outcomes", name), name
            for key in Entry.model_fields:
                value = getattr(entry, key)
                if isinstance(value, str):
                    yield ("outcomes", name, key), value
        for key, names in (
            ("covariates", self.covariates),
            ("scale_covariates", self.scale_covariates),
            ("formula", self.formula_numbers),
        ):
            for name in names:
                yield (key,), name
        if self.weights:
            yield ("weights",), self.weights

    def texts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The columns of texts, likewise."""
        for name in self.by_text:
            yield ("outcomes", name), name
        for name, entry in self.outcomes.items():
            for key in ("left_censored", "right_censored"):
                if mark := getattr(entry, key):
                    yield ("outcomes", name, key), mark[0]
        for name in self.categories:
            yield ("categories", name), name

    @property
    def formula_numbers(self) -> list[str]:
        """The columns of numbers that the formula names."""
        names = names_of_formula(self.formula, columns_of(self.data)) if self.formula else []
        return [name for name in names if name not in self.categories]

    @property
    def by_text(self) -> list[str]:
        """The outcomes whose cells may be texts such as <0.5."""
        entries = self.outcomes.items() if self.censoring == "text" else ()
        return [name for name, entry in entries if entry.lower is None and entry.upper is None]

    @property
    def labels(self) -> list[str]:
        """What the outcomes are called in the fit."""
        return [f"log({name})" if own.log else name for name, own in self.outcomes.items()]

    def units(self) -> dict[str, str]:
        """The units of the columns, as far as a row of the table says them."""
        return units(self.data) if self.units_row else {}

    def read_data(self) -> Data:
        """The rows to fit."""
        data = read(self)
        if self.components > 1:
            return data
        names = self.names(self.covariate_names(data.columns))
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two estimates would be called {name!r}: rename a column.")
        for name in self.profile:
            if why := no_estimate(name, names):
                raise ValueError(f"profile: {why}")
        return data

    def covariate_names(self, columns: dict[str, Any]) -> list[str]:
        """Names of the columns of the design, by the columns of the table."""
        if self.formula:
            return list(formula(self.formula, columns, self.categories)[1])
        levels = {key: levels_of(columns, key, own) for key, own in self.categories.items()}
        ends = [f"{key}: {level}" for key, others in levels.items() for level in others]
        return ["constant", *self.covariates, *ends]

    def names(self, design: list[str]) -> list[str]:
        """Names of the estimates of the fit, by those of the columns of its design."""
        outcomes = self.labels
        if self.scale_covariates:
            return [*design, *(f"log_scale[{x}]" for x in ("constant", *self.scale_covariates))]
        found = []
        for outcome in outcomes:
            several = [f"coefficients[{outcome}][{x}]" for x in design]
            linear = several if len(outcomes) > 1 else design
            found += linear if len(design) > 1 else [f"loc[{outcome}]"]
        if len(outcomes) == 1:
            return [*found, "sigma"]
        for i, outcome in enumerate(outcomes):
            others = outcomes[: i + 1] if self.covariance == "full" else [outcome]
            found += [f"covariance[{outcome}, {other}]" for other in others]
        return found

    @model_validator(mode="after")
    def _columns_are_in_the_header(self) -> "Settings":
        # A key that is wrong itself names no column.
        named = self.model_construct(**{"outcomes": {}, **vars(self)})
        where = [(("where", name), name) for name in named.where]
        check_columns(self.data, (*named.numbers(), *named.texts(), *where))
        return self

    @model_validator(mode="after")
    def _profiles_are_of_estimates(self) -> "Settings":
        if self.components > 1 or self.categories or self.formula:  # whose levels are in the data
            return self
        names = self.names(["constant", *self.covariates])
        whys = [(i, no_estimate(name, names)) for i, name in enumerate(self.profile)]
        found = [problem(why, "profile", i, got=self.profile[i]) for i, why in whys if why]
        if found:
            raise problems(found)
        return self

    @model_validator(mode="after")
    def _missing_texts_are_no_limits(self) -> "Settings":
        texts = enumerate(self.missing)
        wrong = [(i, text) for i, text in texts if is_measurement(text) and not is_float(text)]
        if found := [problem(advice(text), "missing", i, got=text) for i, text in wrong]:
            raise problems(found)
        return self

    @model_validator(mode="after")
    def _entries_are_possible(self) -> "Settings":
        found = []
        for name, entry in self.outcomes.items():
            if entry.log and entry.noise_scale is not None:
                message = "is not for a logarithm: errors of the outcome are no errors of its log"
                at = ("outcomes", name, "noise_scale")
                found.append(problem(message, *at, got=entry.noise_scale))
            if entry.not_detected is not None and name not in self.by_text:
                message = "is the limit of cells such as nd, for which say `censoring: text`"
                at = ("outcomes", name, "not_detected")
                found.append(problem(message, *at, got=entry.not_detected))
            for kind in ("censored", "truncated"):
                low, high = (getattr(entry, f"{kind}_{side}") for side in ("low", "high"))
                numbers = isinstance(low, float | int) and isinstance(high, float | int)
                if numbers and not low < high:
                    message = f"must be greater than {kind}_low, which is {low}"
                    found.append(problem(message, "outcomes", name, f"{kind}_high", got=high))
        if found:
            raise problems(found)
        return self

    @model_validator(mode="after")
    def _keys_go_together(self) -> "Settings":
        found = []

        def refuse(message: str, key: str, got: Any) -> None:
            found.append(problem(message, key, got=got))

        if self.units_row and self.data.suffix in (".npz", ".parquet"):
            refuse("is for CSV tables", "units_row", got=self.units_row)
        if self.formula and self.covariates:
            refuse("is not for a formula: name them in it", "covariates", got=self.covariates)
        if "~" in self.formula:
            own = self.formula.partition("~")[2].strip()
            message = f"has covariates only, {own!r}: the outcomes stand under `outcomes`"
            if "|" in own:
                message = "has no random effects, which tg.fit_clusters fits in Python"
            refuse(message, "formula", got=self.formula)
        if self.scale_covariates and len(self.outcomes) > 1:
            message = f"needs one outcome, but there are {len(self.outcomes)}"
            refuse(message, "scale_covariates", got=list(self.scale_covariates))
        if self.components == 1 and self.covariance == "tied":
            refuse("needs several components", "covariance", got="tied")
        for key in ("covariates", "categories", "formula", "scale_covariates", "profile"):
            if self.components > 1 and getattr(self, key):
                message = "is not for a mixture: leave it out, or set components to 1"
                refuse(message, key, got=getattr(self, key))
        if self.components == 1 and self.profile and self.information == "sandwich":
            message = (
                "presumes the model, which errors of the sandwich do not: leave one of them out"
            )
            refuse(message, "profile", got=list(self.profile))
        if found:
            raise problems(found)
        return self
