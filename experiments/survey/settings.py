"""The settings of `survey`."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, Experiment, Gaussian, Grid, LogGrid, problem


class Settings(Experiment):
    """A survey that sees an object if its measured brightness passes a limit of its own."""

    spreads: ClassVar[bool] = True

    population: Gaussian
    """What is to be found out: brightness first, then what goes along with it."""
    names: Annotated[tuple[str, ...], Field(min_length=1)]
    """Of the coordinates."""
    num_objects: Count
    """Objects that there are, seen or not."""
    noise: LogGrid
    """Standard deviations of the measurement errors, drawn evenly in their logarithm; `num` is
    not used."""
    limit: Grid
    """Limits of the measured brightness, drawn evenly; `num` is not used."""

    @model_validator(mode="after")
    def _has_names(self) -> "Settings":
        if len(self.names) != len(self.population.loc):
            message = f"must be {len(self.population.loc)} names, as the population has coordinates"
            raise problem(message, "names", got=self.names)
        return self
