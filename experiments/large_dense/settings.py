"""The settings of `large_dense`."""

from typing import Annotated, ClassVar

from pydantic import Field

from truncgauss.runs.config import Count, Experiment


class Settings(Experiment):
    """Time and memory of dense problems against the dimension."""

    spreads: ClassVar[bool] = True

    dimensions: Annotated[tuple[Count, ...], Field(min_length=2)]
    """Increasing, from 3,000 on."""
    largest_gradient: Count
    """The largest dimension in which the gradient is computed too."""
    least_of_exponent: Count
    """The least dimension of those from which the exponents of growth are found."""
    num_points: Count
    """Of each replicate."""
    num_replicates: Annotated[int, Field(ge=2)]
