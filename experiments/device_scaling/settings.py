"""The settings of `device_scaling`."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, Experiment, Model, Positive, problem


class Rows(Model):
    """A batch of boxes, one probability each."""

    num_rows: Count
    dimension: Count
    num_points: Count
    """Of each probability, in one replicate."""


class Points(Model):
    """One large estimate."""

    dimension: Count
    num_points: Count
    """Of each replicate."""
    num_replicates: Annotated[int, Field(ge=2)]


class File(Rows):
    """The likelihood of the rows of a file, each seen above lower limits of its own."""


class Larger(Model):
    """A fit for which bytes and seconds are computed from what was measured of `file`."""

    num_rows: Count
    num_devices: Count
    num_gradients: Count
    """Values with gradients that the fit takes."""
    latency: Positive
    """Seconds of a sum over all devices, assumed."""
    gigabytes: Positive
    """Memory of a device for arrays besides the rows, assumed."""


class Settings(Experiment):
    """Strong and weak scaling over the devices of one process, and over processes."""

    cached: ClassVar[bool] = False

    num_devices: Annotated[tuple[Count, ...], Field(min_length=2)]
    """Devices of one process, 1 first."""
    num_processes: tuple[Count, ...]
    """Processes of one device each, that share the same work."""
    rows: Rows
    points: Points
    file: File
    larger: Larger
    num_calls: Count
    """Warm calls of a fresh process, of which the fastest counts."""
    num_repeats: Count
    """Fresh processes for each number of devices, in turn; their median is reported."""

    @model_validator(mode="after")
    def _sizes_divide(self) -> "Settings":
        if self.num_devices[0] != 1:
            raise problem("must begin with 1", "num_devices", got=self.num_devices)
        for number in (*self.num_devices, *self.num_processes):
            for place, size in (
                ("rows", self.rows.num_rows),
                ("points", self.points.num_replicates),
            ):
                if size % number:
                    raise problem(f"must be divided by {number} devices", place, got=size)
        return self
