"""The settings of `latency`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from truncgauss.runs.config import Count, Experiment

Task = Literal["value", "gradient", "moments", "draws"]


class Settings(Experiment):
    """The cost of a first and of a warm call."""

    cached: ClassVar[bool] = False  # compilations are what is measured

    dimensions: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Dimensions of the problem."""
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]
    """What is asked: log P, its value and gradient, moments, 1,000 draws."""
    num_calls: Count
    """Warm calls, of which the fastest counts."""
    baseline: str | None = None
    """A folder with an earlier version of truncgauss, to be measured beside this one."""
