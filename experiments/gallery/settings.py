"""The settings of `gallery`."""

from typing import Annotated

from pydantic import Field, model_validator

from truncgauss.runs.config import (
    Count,
    Experiment,
    Gaussian,
    Grid,
    Limits,
    LogGrid,
    Positive,
    problem,
)


class Settings(Experiment):
    """One truncated Gaussian in three dimensions, from which every kind of figure is drawn."""

    names: Annotated[tuple[str, ...], Field(min_length=3, max_length=3)]
    """What the coordinates are, with their units; a magnitude's axis runs backwards."""
    gaussian: Gaussian
    limits: Limits
    num_draws: Annotated[int, Field(ge=100)]
    """Draws of the corner plot."""
    num_rows: Annotated[int, Field(ge=10)]
    """Draws of the last coordinate, between its limits, to which a Gaussian is fitted."""
    shift: Grid
    """Shifts of the first coordinate's mean along which the fraction is drawn."""
    steepness: Positive
    """Of the edges along these shifts."""
    steepnesses: Annotated[tuple[Positive, ...], Field(min_length=2, max_length=7)]
    """Of the edges whose bias and spread are compared, in ascending order."""
    num_samples: Count
    """Samples of a soft estimate."""
    num_repeats: Annotated[int, Field(ge=2)]
    """Soft estimates from independent samples."""
    widths: LogGrid
    """Widths of the bump that grows."""

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Settings":
        for where, values in (
            (("gaussian", "loc"), self.gaussian.loc),
            (("limits", "low"), self.limits.low),
        ):
            if len(values) != 3:
                raise problem("must have 3 numbers", *where, got=values)
        return self
