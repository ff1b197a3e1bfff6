"""The settings of `special_functions`."""

from typing import Annotated

from pydantic import Field

from truncgauss.runs.config import Count, Dtype, Experiment, Grid


class Settings(Experiment):
    """Accuracy and speed of the normal distribution in one dimension."""

    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    grid: Grid
    """Arguments at which errors are drawn."""
    num_points: Count
    """Elements of a timed call."""
    num_repeats: Count
    """Timed calls, of which the median is reported."""
