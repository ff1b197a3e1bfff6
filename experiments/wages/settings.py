"""The settings of `wages`."""

from typing import Any

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, DataFile, Experiment, Model, Share
from truncgauss.tables import from_file

from ..columns import check_columns

COVARIATES = ("married", "children", "education", "age")


class Truth(Model):
    """The parameters of the simulated rows."""

    wage: dict[str, float]
    """Coefficients of the wage: constant, education and age."""
    employed: dict[str, float]
    """Coefficients of the selection: constant, married, children, education and age."""
    rho: float = Field(gt=-1.0, lt=1.0)
    """Correlation of the errors of the two."""
    sigma: float = Field(gt=0.0)
    """Standard deviation of the wage's errors."""


class Settings(Experiment):
    """Wages that are seen of the employed only, and the wage line of everyone."""

    data: DataFile | None = None
    """A table with the columns wage, which is empty where none is seen, married, children,
    education and age. Without it such a table is simulated."""
    num_rows: Count
    """Rows of a simulated table."""
    truth: Truth
    """Parameters of a simulated table."""
    level: Share
    """Of the intervals."""

    def read_data(self) -> dict[str, Any]:
        """The columns of the table, wages that are not seen as NaN; none where it is simulated."""
        if self.data is None:
            return {}
        return from_file(self.data, ("wage", *COVARIATES), missing={"wage": ("", "NA")})

    @model_validator(mode="after")
    def _has_the_columns(self) -> "Settings":
        if self.data is not None:
            check_columns(self.data, [(("data",), name) for name in ("wage", *COVARIATES)])
        return self
