"""The settings of `shift_curve`."""

from typing import Annotated, ClassVar

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Gaussian, Grid, Limits, Positive


class Settings(Experiment):
    """The fraction inside limits and its gradient, along a shift of the mean."""

    cached: ClassVar[bool] = False  # first calls are timed, with their compilation
    spreads: ClassVar[bool] = True

    gaussian: Gaussian
    limits: Limits
    shift: Grid
    steepness: Positive
    """Of the naive sigmoid, and of the tanh that replaces it."""
    surrogate_steepness: Positive
    """Of the slope behind the hard fraction."""
    core: Positive
    """Errors are also reported for shifts within this of 0, where the fraction is no tail."""
    num_samples: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Sizes of the soft estimate, a curve for each."""
    num_repeats: Count
    """Timed calls after the first, of which the median is reported."""
