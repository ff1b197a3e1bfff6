"""The settings of `work_precision`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Limit, Model, Positive, Vector


class Family(Model):
    """Centred Gaussians of a named family, of any dimension."""

    family: Literal[
        "identity", "equicorrelated", "autoregressive", "one_factor", "tridiagonal", "wishart"
    ]
    """autoregressive: correlation^|i-j|; one_factor: unit variances; tridiagonal: 2 and beside it
    -1; wishart: the correlations of twice as many draws as dimensions."""
    correlation: Annotated[float, Field(gt=-1, lt=1)] = 0.5
    """Of two neighbours, where the family has such a number."""
    loadings: Vector = (0.2, 0.9)
    """Of the one factor; between fewer numbers than coordinates, straight lines."""


class Case(Family):
    """One Gaussian, one pair of limits for every coordinate, and what to spend on it."""

    name: str
    dimension: Count
    low: Limit
    high: Limit
    num_points: tuple[Count, ...] = ()
    """Lattice points of each replicate of `Separation`, one estimate for each count."""
    num_replicates: tuple[Annotated[int, Field(ge=2)], ...] = (16,)
    """Replicates that share as many points in all as the first of these numbers has."""
    num_particles: tuple[Count, ...] = ()
    """Likewise of `SequentialMonteCarlo`."""
    peers: bool = True
    """Whether SciPy is measured too."""


class Sweep(Model):
    """Every family in every dimension between all pairs of limits."""

    families: tuple[Family, ...]
    dimensions: tuple[Count, ...]
    limits: dict[str, tuple[Limit, Limit]]
    """A lower and an upper limit for every coordinate, by name."""


class Settings(Experiment):
    """Error against time, of our methods and SciPy, in one run."""

    cached: ClassVar[bool] = False  # first calls are timed, with their compilation

    parts: Annotated[tuple[Literal["curves", "gradients", "shared"], ...], Field(min_length=1)]
    """What to measure, in processor seconds, which other processes do not lengthen."""
    num_keys: Annotated[int, Field(ge=2)]
    """Keys behind a root-mean-square error."""
    num_calls: Count
    """Timed calls after the first, of which the median is reported."""
    truth_points: Count
    """Points of each replicate of the long run that is the truth where there is no formula."""
    peer_points: tuple[Count, ...]
    """The most points that SciPy may use, one estimate for each count."""
    peer_seconds: Positive
    """No larger count is tried once all calls of one took longer than this."""
    curves: tuple[Case, ...]
    gradients: tuple[Case, ...]
    shared: Sweep
