"""The settings of `coverage`."""

from typing import Annotated

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Limit, Model


class Kind(Model):
    """Samples of one kind."""

    dimension: Annotated[int, Field(ge=1, le=20)]
    """d."""
    low: Limit
    """The limit, in standard deviations from the mean, above which every entry of a row must lie to
    be seen."""
    num_rows: Count
    """Rows of a sample that are seen."""
    num_simulations: Annotated[int, Field(ge=2)]
    """How many samples are drawn and fitted."""


class Settings(Experiment):
    """How often intervals of a truncated fit hold the truth."""

    cases: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=12)]
    """The kinds of samples."""
    correlation: Annotated[float, Field(gt=-1, lt=1)]
    """Of neighbouring entries; of entries k apart its k-th power."""
