"""The settings of `residuals`."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, DataFile, Experiment, Limit, Model, Positive, problem
from truncgauss.tables import from_file

from ..columns import check_columns


class Sample(Model):
    """A column of a table, of which the values inside bounds are taken for observed."""

    data: DataFile
    """A CSV, NPZ or Parquet table."""
    where: dict[str, str] = {}
    """Keep only the rows whose column (the key) holds this text (the value)."""
    column: str
    """The column."""
    label: str
    """What to call it."""
    rounding: Positive | None = None
    """The step to which values were rounded: each stands for an interval of that width."""
    low: Limit
    """Below, rows are left out."""
    high: Limit
    """Above."""

    @model_validator(mode="after")
    def _column_is_in_the_header(self) -> "Sample":
        where = [(("where", name), name) for name in self.where]
        check_columns(self.data, [(("column",), self.column), *where])
        if not self.low < self.high:
            raise problem(f"must be greater than low, which is {self.low}", "high", got=self.high)
        return self


class Settings(Experiment):
    """Quantile residuals of a sample that is Gaussian and of one that is not."""

    samples: Annotated[tuple[Sample, ...], Field(min_length=1, max_length=6)]
    """The samples."""
    num_draws: Count
    """Randomisations of the residuals that are drawn."""

    def read_data(self) -> list[Any]:
        """The values of each sample."""
        return [
            from_file(sample.data, [sample.column], sample.where)[sample.column]
            for sample in self.samples
        ]
