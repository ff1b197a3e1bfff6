"""The settings of `selected_sample`."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, DataFile, Experiment, Limits, problem
from truncgauss.tables import from_file

from ..columns import check_columns


class Settings(Experiment):
    """A truncated Gaussian fitted to rows of a table that lie inside limits."""

    spreads: ClassVar[bool] = True

    data: DataFile
    """A CSV, NPZ or Parquet table with named columns."""
    complete: bool = False
    """Whether the table holds the rows outside the limits too, against which the correction is
    judged. Otherwise such a row is an error."""
    where: dict[str, str] = {}
    """Keep only the rows whose column (the key) holds this text (the value)."""
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """The columns to fit."""
    unit: str = ""
    """Of the columns, for the labels."""
    limits: Limits
    """The selection, one pair of limits for each column."""
    num_steps: Count
    """The most Newton steps of a fit."""
    num_resamples: Annotated[int, Field(ge=0)]
    """Fits to resampled rows, whose spread checks the standard errors."""

    def read_data(self) -> dict[str, Any]:
        """The columns to fit."""
        return from_file(self.data, self.columns, self.where)

    @model_validator(mode="after")
    def _limits_fit_columns(self) -> "Settings":
        if len(self.limits.low) != len(self.columns):
            message = f"must have one number for each of the {len(self.columns)} columns"
            raise problem(message, "limits", "low", got=self.limits.low)
        return self

    @model_validator(mode="after")
    def _columns_are_in_the_header(self) -> "Settings":
        named = [(("columns", i), name) for i, name in enumerate(self.columns)]
        check_columns(self.data, [*named, *((("where", name), name) for name in self.where)])
        return self
