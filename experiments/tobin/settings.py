"""The settings of `tobin`."""

from typing import Any

from pydantic import model_validator

from truncgauss.runs.config import Count, DataFile, Experiment, Share
from truncgauss.tables import from_file

from ..columns import check_columns

COLUMNS = ("durable", "age", "quant")


class Settings(Experiment):
    """Tobin's table of durable goods, fitted by the model that has his name."""

    data: DataFile
    """The table, with the columns durable, age and quant."""
    level: Share
    """Of the intervals."""
    num_residuals: Count
    """Randomisations of the residuals that are drawn."""

    def read_data(self) -> dict[str, Any]:
        """The three columns."""
        return from_file(self.data, COLUMNS)

    @model_validator(mode="after")
    def _has_the_columns(self) -> "Settings":
        check_columns(self.data, [(("data",), name) for name in COLUMNS])
        return self
