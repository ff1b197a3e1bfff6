"""The settings of `bump_width`."""

from typing import Annotated

from pydantic import Field

from truncgauss.runs.config import Count, Dtype, Experiment, LogGrid, Positive


class Settings(Experiment):
    """The width of a bump learnt from inputs inside and beyond its support."""

    widths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """The true widths."""
    starts: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """The widths that each fit starts from."""
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    span: Positive
    """Inputs reach this many times the largest of the true width, the start and 1."""
    num_inputs: Count
    stranded_start: Positive
    """A start so narrow that no input lies inside."""
    num_steps: Count
    """The most steps of L-BFGS."""
    curve: LogGrid
    """Distances from the centre at which the bump is drawn."""
