"""The vocabulary of settings: checked numbers and the sections that experiments share.

A validator that looks at several keys raises `problem(message, *keys, got=...)`, so that the error
is told at the line of the key that it names.
"""

import difflib
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError


def problem(message: str, *where: str | int, got: Any) -> PydanticCustomError:
    """The error of one key of a section, for validators that look at several keys at once."""
    context = {"message": message, "at": where, "got": got}
    return PydanticCustomError("problem", "{message}", context)


def suggestion(word: object, known: list[str]) -> str:
    """A guess at what was meant, else what there is to choose from."""
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


class Model(BaseModel):
    """A section of a file: frozen, strict about types, and no key that it does not know."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _knows_every_key(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                message = f"unknown key; {suggestion(key, list(cls.model_fields))}"
                raise problem(message, key, got=key)
        return data


# ---------------------------------------------------------------- numbers, vectors, files


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise PydanticCustomError("problem", "must be a number or an infinity")
    return value


Number = Annotated[float, Field(allow_inf_nan=False)]
Limit = Annotated[float, AfterValidator(_not_nan)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Dtype = Literal["float32", "float64"]
Vector = Annotated[tuple[Number, ...], Field(min_length=1)]
Bounds = Annotated[tuple[Limit, ...], Field(min_length=1)]
Matrix = Annotated[tuple[Vector, ...], Field(min_length=1)]


def _existing(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str | Path):
        raise PydanticCustomError("problem", "must be the path of a file")
    folders = list(dict.fromkeys([(info.context or {}).get("folder", Path.cwd()), Path.cwd()]))
    for folder in folders:
        found = Path(folder, Path(value).expanduser())
        if found.is_file():
            return Path(os.path.abspath(found))
    looked = " and ".join(str(folder) for folder in folders)
    raise problem(f"no such file, looked in {looked}", got=str(value))


DataFile = Annotated[Path, BeforeValidator(_existing)]
"""A file that exists; a relative path starts at the config file's folder, else at the current."""


# ---------------------------------------------------------------- sections that experiments share


class Gaussian(Model):
    """A Gaussian in d dimensions."""

    loc: Vector
    """The mean, d numbers."""
    covariance: Matrix
    """The covariance matrix, d rows of d numbers."""

    @model_validator(mode="after")
    def _is_positive_definite(self) -> "Gaussian":
        d = len(self.loc)
        if len(self.covariance) != d:
            message = f"must have as many rows as loc has numbers, {d}"
            raise problem(message, "covariance", got=f"{len(self.covariance)} rows")
        for i, row in enumerate(self.covariance):
            if len(row) != d:
                raise problem(f"must be {d} numbers", "covariance", i, got=row)
            if row[i] <= 0:
                raise problem("a variance must be positive", "covariance", i, i, got=row[i])
        matrix = np.array(self.covariance)
        if not np.array_equal(matrix, matrix.T):
            raise problem("must be symmetric", "covariance", got=self.covariance)
        if np.linalg.eigvalsh(matrix).min() <= 0:
            raise problem("must be positive definite", "covariance", got=self.covariance)
        return self


class Limits(Model):
    """A box: one lower and one upper limit for each coordinate, -.inf and .inf among them."""

    low: Bounds
    """The lower limits."""
    high: Bounds
    """The upper limits."""

    @model_validator(mode="after")
    def _is_ordered(self) -> "Limits":
        if len(self.low) != len(self.high):
            message = f"must have as many numbers as low, {len(self.low)}"
            raise problem(message, "high", got=self.high)
        for i, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if not low < high:
                raise problem(f"must be greater than low, which is {low}", "high", i, got=high)
        return self


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
    """Whether peers are asked too."""


class Sweep(Model):
    """Every family in every dimension between all pairs of limits."""

    families: tuple[Family, ...]
    dimensions: tuple[Count, ...]
    limits: dict[str, tuple[Limit, Limit]]
    """A lower and an upper limit for every coordinate, by name."""


class Batch(Model):
    """Many different boxes at once."""

    dimension: Count
    num_problems: Count
    num_points: Count
    """Untilted, in a single replicate."""
    num_judged: Count
    """How many of them are held against a long run."""
    at_once: Count
    """How many share one pass."""


class LowRankCase(Model):
    """A Gaussian of a few factors and private noise, above one limit in every coordinate."""

    dimension: Count
    rank: Count
    low: Number
    num_points: tuple[Count, ...]
    """Of each replicate, one estimate for each count."""
    num_replicates: Count
    most_bytes: Positive
    """It is not attempted if it takes more memory than this."""


class Grid(Model):
    """Evenly spaced numbers, both ends included."""

    start: Number
    stop: Number
    num: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _is_ordered(self) -> "Grid":
        if not self.start < self.stop:
            message = f"must be greater than start, which is {self.start}"
            raise problem(message, "stop", got=self.stop)
        return self


class LogGrid(Grid):
    """Positive numbers, evenly spaced in their logarithms, both ends included."""

    start: Positive
    stop: Positive


class Tanh(Model):
    """The edge (1 + tanh(steepness * margin / 2)) / 2."""

    kind: Literal["tanh"]
    steepness: Positive


class Probit(Model):
    """The edge Phi(margin / width)."""

    kind: Literal["probit"]
    width: Positive


class Bump(Model):
    """The smooth step: 0 below a margin of 0, 1 above the width."""

    kind: Literal["bump"]
    width: Positive


class Hard(Model):
    """The step itself."""

    kind: Literal["hard"]


Edge = Annotated[Tanh | Probit | Bump | Hard, Field(discriminator="kind")]


class Lbfgs(Model):
    """L-BFGS with a line search."""

    kind: Literal["lbfgs"]


class Adam(Model):
    """Adam at a constant rate."""

    kind: Literal["adam"]
    learning_rate: Positive


Optimizer = Annotated[Lbfgs | Adam, Field(discriminator="kind")]


class Fit(Model):
    """How to fit."""

    optimizer: Optimizer
    num_steps: Count
    """The most steps that the optimiser may take."""


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


class Chains(Model):
    """Runs of NUTS."""

    num_chains: Annotated[int, Field(ge=2)]
    num_warmup: Count
    num_samples: Annotated[int, Field(ge=4)]
    """Kept draws of each chain."""
    target_accept: Share


class PopulationPrior(Model):
    """What is known of a population before it is seen."""

    loc: Vector
    """Its mean is normal about this one,"""
    loc_scale: tuple[Positive, ...]
    """with these standard deviations;"""
    scale: tuple[Positive, ...]
    """its standard deviations are half normal with these;"""
    concentration: Positive
    """its correlation has an LKJ law."""


class Population(Model):
    """A Gaussian in the plane, of which every field shows what lies inside its limits."""

    names: tuple[str, ...]
    """Of the two coordinates, with their units."""
    gaussian: Gaussian
    fields: Annotated[tuple[Limits, ...], Field(min_length=1)]
    num_objects: Annotated[int, Field(ge=3)]
    """Seen in each field."""
    prior: PopulationPrior

    @model_validator(mode="after")
    def _is_in_the_plane(self) -> "Population":
        vectors = {("names",): self.names, ("gaussian", "loc"): self.gaussian.loc}
        vectors |= {("fields", i, "low"): box.low for i, box in enumerate(self.fields)}
        for name in ("loc", "loc_scale", "scale"):
            vectors["prior", name] = getattr(self.prior, name)
        for where, vector in vectors.items():
            if len(vector) != 2:
                raise problem("must have two entries, one a coordinate", *where, got=vector)
        return self


class OneSided(Population):
    """A population behind at most one limit a coordinate in every field."""

    @model_validator(mode="after")
    def _has_one_limit_a_coordinate(self) -> "OneSided":
        for i, box in enumerate(self.fields):
            for j, (low, high) in enumerate(zip(box.low, box.high, strict=True)):
                if math.isfinite(low) and math.isfinite(high):
                    message = f"must be infinite beside low, which is {low}"
                    raise problem(message, "fields", i, "high", j, got=high)
        return self


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


class NormalPrior(Model):
    """What is known of the mean and the standard deviation of one number."""

    loc: Number
    """The mean is normal about this one,"""
    loc_scale: Positive
    """with this standard deviation;"""
    scale: Positive
    """the standard deviation is lognormal with this median,"""
    scale_spread: Positive
    """and its log has this standard deviation."""
