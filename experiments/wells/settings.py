"""The settings of `wells`."""

from typing import Annotated, Any

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, DataFile, Experiment, Model, Number, Positive, Share
from truncgauss.tables import from_file

from ..columns import check_columns


class Columns(Model):
    """Names of the columns of a table."""

    east: str
    """Coordinates in the plane, such as longitudes, ..."""
    north: str
    """... and latitudes."""
    date: str
    """Days as YYYY-MM-DD."""
    value: str
    """Concentrations, empty where they are below the limit."""
    limit: str
    """Limits, where there is no concentration; elsewhere they are not read."""


class Process(Model):
    """The covariance sill (k(r) + nugget [same well]), k(r) = (1 + r) exp(-r), with r the distance
    in space and in time in units of two ranges."""

    sill: Positive
    space: Positive
    """Range, as a share of the extent of the region, as `time` is of the years."""
    time: Positive
    nugget: Positive
    """As a share of the sill."""


class Scaling(Model):
    """Concentrations are y = (log value - center) / scale, of which the mean is 0."""

    center: Number
    scale: Positive


class Settings(Experiment):
    """Concentrations in wells, most of them below a limit, and where they exceed a level."""

    data: DataFile | None = None
    """A table with the columns below. Without it such a table is simulated."""
    columns: Columns
    scaling: Scaling | None = None
    """By default the mean and the standard deviation of the logs of what was detected."""
    num_wells: Count
    """Of a simulated table."""
    truth: Process
    """Of a simulated table."""
    limits: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Of laboratories that a simulated well comes to by chance."""
    start: Process
    """Where the fit starts."""
    neighbours: Count
    """Of each block of wells; the log-likelihood's error says whether they are enough."""
    block: Count
    """Wells that have their neighbours in common."""
    num_particles: Count
    num_replicates: Annotated[int, Field(ge=2)]
    level: Share
    """Of the intervals."""
    threshold: Positive
    """The concentration that the map is about."""
    map_sides: tuple[Count, Count]
    """Places of the map along east and north."""
    num_maps: Annotated[int, Field(ge=2)]
    """Maps by parameters drawn within their errors, whose scatter is the standard error."""

    def read_data(self) -> dict[str, Any]:
        """The columns of the table, by the names of `Columns`; none where it is simulated."""
        if self.data is None:
            return {}
        names = self.columns.model_dump()
        date = names.pop("date")
        missing = {names["value"]: ("", "NA"), names["limit"]: ("", "NA")}
        table = from_file(self.data, tuple(names.values()), text=(date,), missing=missing)
        return {name: table[column] for name, column in names.items()} | {"date": table[date]}

    @model_validator(mode="after")
    def _has_the_columns(self) -> "Settings":
        if self.data is not None:
            named = self.columns.model_dump().items()
            check_columns(self.data, [(("columns", name), column) for name, column in named])
        return self
