"""The settings of `ordinal`."""

from pydantic import Field, model_validator

from truncgauss.runs.config import Count, Experiment, Model, Share, problem


class Item(Model):
    """One question, answered in ordered categories."""

    loading: float = Field(gt=-1.0, lt=1.0)
    """Correlation of the variable behind it with the common factor."""
    cuts: tuple[float, ...] = Field(min_length=1)
    """Limits of the categories of that variable, which is standard normal; ascending."""

    @model_validator(mode="after")
    def _ascends(self) -> "Item":
        if any(a >= b for a, b in zip(self.cuts, self.cuts[1:])):
            raise problem("must ascend", "cuts", got=str(list(self.cuts)))
        return self


class Settings(Experiment):
    """Pearson's correlation of ordered categories beside the polychoric one, with intervals."""

    num_rows: Count
    """Respondents that are simulated."""
    missing: float = Field(ge=0.0, lt=1.0)
    """Share of answers that are missing."""
    items: dict[str, Item] = Field(min_length=3)
    """The questions, by name."""
    level: Share
    """Of the intervals."""
