"""The settings of `nan_gallery`."""

from pydantic import model_validator

from truncgauss.runs.config import (
    Count,
    Experiment,
    Grid,
    Limits,
    Model,
    Number,
    Positive,
    Share,
    problem,
)


class UnstableTraining(Model):
    """A softmax of the logits (w ** depth, 0), trained by gradient descent on w."""

    depth: Count
    share: Share
    """The share of the first logit that is to be learnt."""
    start: Number
    """The first w."""
    learning_rate: Positive
    """Of the first step; it falls to 0 along a line."""
    num_steps: Count
    bound: Positive
    """Of the safe gradient."""
    span: Positive
    """Of the safe logits."""


class Settings(Experiment):
    """Five ways to a NaN gradient, naive beside safe."""

    limits: Limits
    """Of the filter, one pair."""
    steepness: Positive
    """Of the filter's sigmoids."""
    filter_points: Grid
    log_points: Grid
    """Where log(1 + exp(x)) is shown."""
    norm_points: Grid
    """First coordinate of the points (x, 0) whose norm is masked at 0."""
    bump_points: Grid
    bump_width: Positive
    training: UnstableTraining

    @model_validator(mode="after")
    def _has_one_pair(self) -> "Settings":
        if len(self.limits.low) != 1:
            raise problem("must be one number", "limits", "low", got=self.limits.low)
        return self
