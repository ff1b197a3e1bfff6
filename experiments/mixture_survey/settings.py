"""The settings of `mixture_survey`."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from truncgauss.runs.config import (
    Bounds,
    Count,
    Experiment,
    Gaussian,
    Matrix,
    Model,
    Positive,
    Share,
    problem,
)


class Component(Model):
    """One Gaussian of the population."""

    weight: Positive
    """In proportion to the others'."""
    gaussian: Gaussian


class Cuts(Model):
    """What a survey shows: low <= matrix x <= high."""

    matrix: Matrix
    low: Bounds
    high: Bounds


class Settings(Experiment):
    """A mixture behind the cuts, the noise and the gaps of a survey, naive and corrected."""

    spreads: ClassVar[bool] = True

    names: tuple[str, str]
    """Of the two coordinates, with their units."""
    components: Annotated[tuple[Component, ...], Field(min_length=2)]
    cuts: Cuts
    noise: tuple[Positive, Positive]
    """The least and the largest variance of a measurement's error."""
    missing: Share
    """Of the rows, how many lack one of the two entries."""
    num_rows: Annotated[int, Field(ge=50)]
    num_starts: Count
    num_repeats: Annotated[int, Field(ge=2)]
    """Surveys of the same population, whose estimates scatter."""
    num_imputations: Count
    """Seeds of the EM that draws the rows which the cuts hid."""

    @model_validator(mode="after")
    def _is_in_the_plane(self) -> "Settings":
        for i, component in enumerate(self.components):
            if len(component.gaussian.loc) != 2:
                raise problem("must have two entries", "components", i, got=component.gaussian.loc)
        faces = {len(self.cuts.matrix), len(self.cuts.low), len(self.cuts.high)}
        if len(faces) > 1 or any(len(row) != 2 for row in self.cuts.matrix):
            raise problem("must have a row of two numbers for each limit", "cuts", "matrix")
        return self
