"""The settings of `many_devices`."""

from typing import ClassVar

from truncgauss.runs.config import Count, Experiment, Gaussian, Grid, Limits, Positive


class Settings(Experiment):
    """The soft fraction and its gradient at many shifts, on one device and on several."""

    cached: ClassVar[bool] = False  # first calls are timed, with their compilation
    spreads: ClassVar[bool] = True

    gaussian: Gaussian
    limits: Limits
    shift: Grid
    steepness: Positive
    """Of the tanh edge."""
    num_samples: Count
    num_repeats: Count
    """Timed calls after the first, of which the median is reported."""
