"""The settings of `existence`."""

from typing import Annotated

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Number

Size = Annotated[int, Field(ge=3)]


class Settings(Experiment):
    """How often a truncated sample has no maximum-likelihood fit."""

    cuts: Annotated[tuple[Number, ...], Field(min_length=1, max_length=6)]
    """Bounds below which nothing is observed, in standard deviations from the mean."""
    sizes: Annotated[tuple[Size, ...], Field(min_length=2)]
    """Numbers of observations."""
    num_samples: Count
    """Samples of each size and cut that are judged by the criterion."""
    num_fits: Count
    """How many of these are fitted too."""
