"""The settings of `completeness_curve`."""

from typing import Annotated

from pydantic import Field, model_validator

from truncgauss.runs.config import Experiment, Gaussian, Positive, problem


class Settings(Experiment):
    """A survey whose completeness curve is estimated with the population behind it."""

    names: tuple[str, str]
    """Of the two coordinates; the survey finds objects by the first."""
    gaussian: Gaussian
    """Of the population."""
    midpoint: float
    """Where half of the objects are found; below it more."""
    width: Positive
    """Of the logistic curve."""
    num_objects: Annotated[int, Field(ge=100)]
    """Found or not."""

    @model_validator(mode="after")
    def _two_coordinates(self) -> "Settings":
        if len(self.gaussian.loc) != 2:
            raise problem("must have two entries", "gaussian", "loc", got=self.gaussian.loc)
        return self
