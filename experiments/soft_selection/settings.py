"""The settings of `soft_selection`."""

import math

from pydantic import model_validator

from truncgauss.runs.config import Chains, Count, Experiment, Grid, Positive, problem

from ..selected_population.settings import Population


class OneSided(Population):
    """A population behind at most one limit a coordinate in every field."""

    @model_validator(mode="after")
    def _has_one_limit_a_coordinate(self) -> "OneSided":
        for i, box in enumerate(self.fields):
            for j, (low, high) in enumerate(zip(box.low, box.high, strict=True)):
                if math.isfinite(low) and math.isfinite(high):
                    message = f"must be infinite beside low, which is {low}"
                    raise problem(message, "fields", i, "high", j, got=high)
        return self


class Settings(Experiment):
    """A selection with probit edges: a soft estimate against a box and a wider covariance."""

    population: OneSided
    widths: tuple[Positive, Positive]
    num_samples: Count
    num_replicates: Count
    shift: Grid
    chains: Chains
