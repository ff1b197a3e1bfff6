"""The settings of `special_functions`."""

from typing import Annotated

from pydantic import Field

from truncgauss.runs.config import Dtype, Experiment, Grid


class Settings(Experiment):
    """Accuracy of the normal distribution in one dimension."""

    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    grid: Grid
    """Arguments at which errors are drawn."""
