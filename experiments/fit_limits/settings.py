"""The settings of `fit_limits`."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, Experiment, Gaussian, Limits, Vector, problem


class Settings(Experiment):
    """Shifts and limits recovered from the counts that they produced."""

    spreads: ClassVar[bool] = True

    num_trials: Count
    """Draws behind each count."""
    num_repeats: Annotated[int, Field(ge=0)]
    """New counts and fits, whose pulls check the standard errors."""
    num_steps: Count
    """The most steps of a fit."""
    gaussian: Gaussian
    shift: Vector
    """The true shift of the mean."""
    regions: Annotated[tuple[Limits, ...], Field(min_length=1)]
    """Known boxes whose counts identify the shift."""
    populations: Annotated[tuple[Vector, ...], Field(min_length=1)]
    """Means of known Gaussians, of the same covariance, whose counts identify the limits."""
    limits: Limits
    """The true limits."""
    start: Limits
    """Where the search for the limits starts."""

    @model_validator(mode="after")
    def _has_one_dimension(self) -> "Settings":
        vectors = {("gaussian", "loc"): self.gaussian.loc, ("shift",): self.shift}
        vectors |= {("limits", "low"): self.limits.low, ("start", "low"): self.start.low}
        vectors |= {("regions", i, "low"): box.low for i, box in enumerate(self.regions)}
        vectors |= {("populations", i): loc for i, loc in enumerate(self.populations)}
        for where, vector in vectors.items():
            if len(vector) != 1:
                raise problem("must be one number", *where, got=vector)
        return self
