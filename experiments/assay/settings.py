"""The settings of `assay`."""

from pydantic import Field

from truncgauss.runs.config import Count, Experiment, Model, Share


class Course(Model):
    """The logarithm, to base 10, of what is measured in a patient, week by week."""

    start: float
    """Mean at week 0."""
    slope: float
    """Change in a week."""
    between: float = Field(gt=0.0)
    """Standard deviation between patients."""
    within: float = Field(gt=0.0)
    """Standard deviation between measurements of a patient."""


class Settings(Experiment):
    """Repeated measurements with a detection limit: half of the limit in its place, or the
    likelihood."""

    num_patients: Count
    """In each trial."""
    num_weeks: Count
    """Measurements of a patient, one a week."""
    limit: float
    """Logarithm of the smallest value that the assay can measure."""
    course: Course
    """The truth."""
    num_trials: Count
    """How many are simulated and fitted both ways."""
    level: Share
    """Of the intervals."""
