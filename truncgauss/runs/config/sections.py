"""Checked numbers, and the sections of settings that experiments share.

A validator that looks at several keys raises `problem(message, *keys, got=...)`, so that the error
is reported at the line of the key that it names.
"""

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
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from truncgauss.tables.files import header
from truncgauss.words.names import closest, suggestion


def problem(message: str, *where: str | int, got: Any, of_key: bool = False) -> PydanticCustomError:
    """The error of one key of a section, for validators that look at several keys at once; with
    `of_key` the key itself is wrong, not its value."""
    context = {"message": message, "at": where, "got": got, "of_key": of_key}
    return PydanticCustomError("problem", "{message}", context)


def problems(errors: list[PydanticCustomError]) -> ValidationError:
    """Several such errors of one section, to be reported together."""
    lines = [InitErrorDetails(type=error, input=None) for error in errors]
    return ValidationError.from_exception_data("section", lines)


class Model(BaseModel):
    """A section of a file: frozen, strict about types, and no key that it does not know."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _knows_every_key(cls, data: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Say of a key that there is not which one may have been meant, and not that that one is
        missing."""
        try:
            return handler(data)
        except ValidationError as error:
            known, unknown = list(cls.model_fields), "extra_forbidden"
            items: list[Any] = sorted(error.errors(), key=lambda item: item["type"] != unknown)
            meant = {closest(x["loc"][0], known) for x in items if x["type"] == unknown}
            if not meant:
                raise
        errors = list[InitErrorDetails]()
        for item in items:
            at, kind, context = item["loc"], item["type"], item.get("ctx", {})
            if kind == "missing" and at[0] in meant:
                continue
            if kind == unknown:
                message = f"unknown key; {suggestion(at[0], known)}"
                kind, at = problem(message, at[0], got=at[0], of_key=True), ()
            elif kind == "problem":
                kind = PydanticCustomError(kind, "{message}", context)
            errors.append(InitErrorDetails(type=kind, loc=at, input=item["input"], ctx=context))
        raise ValidationError.from_exception_data("section", errors)


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
Swept = Annotated[dict[str, tuple[Any, ...]], Field(min_length=1)]
Matrix = Annotated[tuple[Vector, ...], Field(min_length=1)]


def _existing(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str | Path):
        raise PydanticCustomError("problem", "must be the path of a file")
    folders = list(dict.fromkeys([(info.context or {}).get("folder", Path.cwd()), Path.cwd()]))
    for folder in folders:
        # os.path, unlike pathlib, takes an unknown user or an impossible name for no file.
        path = os.path.join(folder, os.path.expanduser(value))
        if os.path.isfile(path):
            return Path(os.path.abspath(path))
    looked = " and ".join(str(folder) for folder in folders)
    raise problem(f"no such file, looked in {looked}", got=str(value))


DataFile = Annotated[Path, BeforeValidator(_existing)]
"""A file that exists; a relative path starts at the config file's folder, else at the current."""


def columns_of(data: Path) -> list[str]:
    """The columns of a data file; if it has none that can be read, a problem of the key `data`."""
    try:
        return header(data)
    except (ValueError, OSError) as error:
        raise problem(str(error), "data", got=str(data)) from error


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
        wrong = []
        for i, row in enumerate(self.covariance):
            if len(row) != d:
                wrong.append(problem(f"must be {d} numbers", "covariance", i, got=row))
            elif row[i] <= 0:
                wrong.append(problem("a variance must be positive", "covariance", i, i, got=row[i]))
        if wrong:
            raise problems(wrong)
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
        wrong = [
            problem(f"must be greater than low, which is {low}", "high", i, got=high)
            for i, (low, high) in enumerate(zip(self.low, self.high, strict=True))
            if not low < high
        ]
        if wrong:
            raise problems(wrong)
        return self


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


class Chains(Model):
    """Runs of NUTS."""

    num_chains: Annotated[int, Field(ge=2)]
    num_warmup: Count
    num_samples: Annotated[int, Field(ge=4)]
    """Kept draws of each chain."""
    target_accept: Share
