"""The settings of `comparisons`."""

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Model, Share


class Group(Model):
    """The observations of one group."""

    mean: float
    """Their mean."""
    size: Count
    """Their number."""


class Curve(Model):
    """A polynomial that is fitted to simulated points."""

    truth: tuple[float, ...] = Field(min_length=2)
    """Coefficients of 1, x, x^2 and so on, x between 0 and 1."""
    noise: float = Field(gt=0.0)
    """Standard deviation of the points."""
    num_points: Count
    """How many there are."""
    grid: Count
    """At how many x the band holds."""


class Settings(Experiment):
    """Groups against a control, and a band for a curve, each with one error for all intervals."""

    groups: dict[str, Group] = Field(min_length=3)
    """By name; the first one is the control."""
    variance: float = Field(gt=0.0)
    """Within groups."""
    df: float = Field(gt=0.0)
    """Its degrees of freedom."""
    curve: Curve
    """The curve."""
    level: Share
    """Probability that all intervals hold."""
