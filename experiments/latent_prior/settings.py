"""The settings of `latent_prior`."""

from typing import Annotated

from pydantic import Field, model_validator

from truncgauss.runs.config import (
    Chains,
    Experiment,
    Gaussian,
    Limits,
    Matrix,
    Model,
    Number,
    Positive,
    Vector,
    problem,
)


class LatentShare(Model):
    """A truncated normal prior of one number."""

    loc: Number
    scale: Positive
    limits: Limits


class LatentVector(Model):
    """A truncated Gaussian prior of two numbers."""

    gaussian: Gaussian
    limits: Limits


class Latent(Model):
    """Three unknowns, and linear measurements of them with normal noise."""

    names: tuple[str, ...]
    share: LatentShare
    vector: LatentVector
    matrix: Matrix
    """A row of three numbers for each measurement."""
    noise: tuple[Positive, ...]
    """Standard deviation of each measurement."""
    observed: Vector

    @model_validator(mode="after")
    def _sizes_agree(self) -> "Latent":
        sizes = {
            ("names",): (self.names, 3),
            ("share", "limits", "low"): (self.share.limits.low, 1),
            ("vector", "gaussian", "loc"): (self.vector.gaussian.loc, 2),
            ("vector", "limits", "low"): (self.vector.limits.low, 2),
            ("noise",): (self.noise, len(self.matrix)),
            ("observed",): (self.observed, len(self.matrix)),
        }
        sizes |= {("matrix", i): (row, 3) for i, row in enumerate(self.matrix)}
        for where, (values, size) in sizes.items():
            if len(values) != size:
                raise problem(f"must have {size} entries", *where, got=values)
        return self


class Settings(Experiment):
    """Truncated priors of latent variables, against the closed form of their posterior."""

    latent: Latent
    num_nodes: Annotated[int, Field(ge=16)]
    chains: Chains
