"""The settings of `tobin`."""

from pydantic import model_validator

from truncgauss.config import Count, DataFile, Experiment, Share, columns_of, problem
from truncgauss.tables import mismatch

COLUMNS = ("durable", "age", "quant")


class Settings(Experiment):
    """Tobin's table of durable goods, fitted by the model that has his name."""

    data: DataFile
    """The table, with the columns durable, age and quant."""
    level: Share
    """Of the intervals."""
    num_residuals: Count
    """Randomisations of the residuals that are drawn."""

    @model_validator(mode="after")
    def _has_the_columns(self) -> "Settings":
        names = columns_of(self.data)
        for name in COLUMNS:
            if why := mismatch(name, names):
                raise problem(why, "data", got=str(self.data))
        return self
