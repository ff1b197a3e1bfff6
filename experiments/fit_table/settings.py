"""The settings of `fit_table`."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from truncgauss.config import (
    Count,
    DataFile,
    Experiment,
    Limit,
    Model,
    Positive,
    columns_of,
    problem,
)
from truncgauss.tables import from_file, mismatch

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
    """Likewise, a lower limit."""
    truncated_low: ColumnOrNumber | None = None
    """Below this limit no row could be seen at all."""
    truncated_high: ColumnOrNumber | None = None
    """Above this limit."""
    noise_scale: Positive | str | None = None
    """Standard deviation of the measurement errors."""


class Settings(Experiment):
    """A Gaussian, or a Gaussian regression, fitted to a table of one's own."""

    spreads: ClassVar[bool] = True

    data: DataFile
    """A CSV, NPZ or Parquet table with named columns."""
    where: dict[str, str] = {}
    """Keep only the rows whose column (the key) holds this text (the value)."""
    missing: tuple[str, ...] = ()
    """Texts that stand for a missing number. An outcome may be missing, at random; nothing else."""
    outcomes: Annotated[dict[str, Entry], Field(min_length=1)]
    """What is known of each outcome, by its column."""
    covariates: tuple[str, ...] = ()
    """Columns of numbers that the mean is linear in, besides a constant."""
    categories: dict[str, str] = {}
    """Columns of texts that the mean depends on (the key), and the text that others are compared
    with (the value)."""
    scale_covariates: tuple[str, ...] = ()
    """Columns that the log of the standard deviation is linear in, besides a constant; with one
    outcome. Its estimates are called `log_scale[column]`."""
    weights: str = ""
    """The column that says how often each row counts."""
    covariance: Literal["full", "diagonal", "tied"] = "full"
    """Of the outcomes, given the covariates; tied: one matrix that all components share."""
    components: Count = 1
    """How many Gaussians the rows are a mixture of."""
    num_starts: Count = 8
    """From how many starts a mixture is fitted."""
    information: Literal["observed", "expected", "sandwich"] = "observed"
    """What standard errors come from."""
    stray_rows: Literal["refuse", "drop"] = "refuse"
    """What to do with rows outside of where a row could be seen. Dropped rows are named."""
    profile: tuple[str, ...] = ()
    """Estimates to give profile-likelihood intervals of, by their names in the table."""
    num_steps: Count = 100
    """The most Newton steps."""
    num_residuals: Count = 20
    """Randomisations of the residuals that are drawn."""

    def numbers(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The columns of numbers: where each is named in the settings, and its name."""
        for name, entry in self.outcomes.items():
            if entry.lower is None and entry.upper is None:
                yield ("outcomes", name), name
            for key in Entry.model_fields:
                value = getattr(entry, key)
                if isinstance(value, str):
                    yield ("outcomes", name, key), value
        for key in ("covariates", "scale_covariates"):
            for name in getattr(self, key):
                yield (key,), name
        if self.weights:
            yield ("weights",), self.weights

    def texts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """The columns of texts, likewise."""
        for name, entry in self.outcomes.items():
            for key in ("left_censored", "right_censored"):
                if mark := getattr(entry, key):
                    yield ("outcomes", name, key), mark[0]
        for name in self.categories:
            yield ("categories", name), name

    def read_data(self, part: tuple[int, int] = (0, 1)) -> dict[str, Any]:
        """The columns that the settings name, of the i-th of k parts of the rows."""
        numbers = dict.fromkeys(name for _, name in self.numbers())
        texts = dict.fromkeys(name for _, name in self.texts())
        return from_file(
            self.data, list(numbers), self.where, text=list(texts), missing=self.missing, part=part
        )

    @model_validator(mode="after")
    def _columns_are_in_the_header(self) -> "Settings":
        names = columns_of(self.data)
        where = [(("where", name), name) for name in self.where]
        for place, name in (*self.numbers(), *self.texts(), *where):
            if why := mismatch(name, names):
                raise problem(why, *place, got=name)
        return self

    @model_validator(mode="after")
    def _one_scale(self) -> "Settings":
        if self.scale_covariates and len(self.outcomes) > 1:
            message = f"needs one outcome, but there are {len(self.outcomes)}"
            raise problem(message, "scale_covariates", got=list(self.scale_covariates))
        return self

    @model_validator(mode="after")
    def _a_mixture_has_no_covariates(self) -> "Settings":
        if self.components == 1:
            if self.covariance == "tied":
                raise problem("needs several components", "covariance", got="tied")
            return self
        for key in ("covariates", "categories", "scale_covariates", "profile"):
            if getattr(self, key):
                message = "is not for a mixture: leave it out, or set components to 1"
                raise problem(message, key, got=getattr(self, key))
        if self.information == "expected":
            message = "a mixture has observed or sandwich"
            raise problem(message, "information", got="expected")
        return self

    @model_validator(mode="after")
    def _limits_are_ordered(self) -> "Settings":
        for name, entry in self.outcomes.items():
            for kind in ("censored", "truncated"):
                low, high = (getattr(entry, f"{kind}_{side}") for side in ("low", "high"))
                numbers = isinstance(low, float | int) and isinstance(high, float | int)
                if numbers and not low < high:
                    message = f"must be greater than {kind}_low, which is {low}"
                    raise problem(message, "outcomes", name, f"{kind}_high", got=high)
        return self
