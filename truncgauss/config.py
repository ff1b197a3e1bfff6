"""The settings of an experiment: a YAML file read into frozen, strict models.

Whatever is wrong with a file ends in a `ConfigError`, one line for each mistake::

    configs/shift_curve.yaml:7:3: limits.low[0]: must be less than high (got 3.0, high is 2.0)

This is the only module that knows pydantic, and it does not import JAX: a file is checked in a
moment. A new experiment is one model here and one line in `EXPERIMENTS`.
"""

import difflib
import functools
import math
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from truncgauss.documents import ConfigError, Document, Place, parse, read, write


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


# ---------------------------------------------------------------- one model for each experiment


class Experiment(Model):
    """What every experiment says."""

    seed: Seed
    """The only source of randomness."""
    devices: Count = 1
    """Devices of the host to start; the samples are spread over them."""
    dtype: Dtype = "float64"
    """The precision of the run."""


class SelectedSample(Experiment):
    """A truncated Gaussian fitted to rows of a table that lie inside limits."""

    experiment: Literal["selected_sample"]
    data: DataFile
    """A CSV table with a header."""
    where: dict[str, str] = {}
    """Keep only the rows whose column (the key) holds this text (the value)."""
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    """The columns to fit."""
    unit: str = ""
    """Of the columns, for the labels."""
    limits: Limits
    """The selection, one pair of limits for each column."""
    num_steps: Count
    """The most Newton steps of a fit."""
    num_resamples: Annotated[int, Field(ge=0)]
    """Fits to resampled rows, whose spread checks the standard errors."""
    shift: Grid
    """Shifts of the mean, in standard deviations, at which the fraction is drawn."""
    edge: Edge
    """The soft edge of the estimate drawn beside the best one."""
    num_samples: Count
    """The samples of that estimate."""

    @model_validator(mode="after")
    def _limits_fit_columns(self) -> "SelectedSample":
        if len(self.limits.low) != len(self.columns):
            message = f"must have one number for each of the {len(self.columns)} columns"
            raise problem(message, "limits", "low", got=self.limits.low)
        return self


class ShiftCurve(Experiment):
    """The fraction inside limits and its gradient, along a shift of the mean."""

    experiment: Literal["shift_curve"]
    gaussian: Gaussian
    limits: Limits
    shift: Grid
    steepness: Positive
    """Of the naive sigmoid, and of the tanh that replaces it."""
    surrogate_steepness: Positive
    """Of the slope behind the hard fraction."""
    core: Positive
    """Errors are also told for shifts within this of 0, where the fraction is no tail."""
    num_samples: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Sizes of the soft estimate, a curve for each."""
    num_repeats: Count
    """Timed calls after the first, of which the median is told."""


class FitLimits(Experiment):
    """Shifts and limits recovered from the counts that they produced."""

    experiment: Literal["fit_limits"]
    num_trials: Count
    """Draws behind each count."""
    num_repeats: Annotated[int, Field(ge=0)]
    """New counts and fits, whose pulls check the standard errors."""
    num_steps: Count
    """The most steps of a fit."""
    gaussian: Gaussian
    shift: Vector
    """The true shift of the mean."""
    regions: Annotated[tuple[Limits, ...], Field(min_length=1)]
    """Known boxes whose counts tell the shift."""
    populations: Annotated[tuple[Vector, ...], Field(min_length=1)]
    """Means of known Gaussians, of the same covariance, whose counts tell the limits."""
    limits: Limits
    """The true limits."""
    start: Limits
    """Where the search for the limits starts."""

    @model_validator(mode="after")
    def _has_one_dimension(self) -> "FitLimits":
        d = len(self.gaussian.loc)
        vectors = {("shift",): self.shift, ("limits", "low"): self.limits.low}
        vectors |= {("start", "low"): self.start.low}
        vectors |= {("regions", i, "low"): box.low for i, box in enumerate(self.regions)}
        vectors |= {("populations", i): loc for i, loc in enumerate(self.populations)}
        for where, vector in vectors.items():
            if len(vector) != d:
                raise problem(f"must be as long as gaussian.loc, {d}", *where, got=vector)
        return self


class BumpWidth(Experiment):
    """The width of a bump learnt from inputs inside and beyond its support."""

    experiment: Literal["bump_width"]
    widths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """The true widths."""
    starts: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """The widths that each fit starts from."""
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    span: Positive
    """Inputs reach this many times the largest of the true width, the start and 1."""
    num_inputs: Count
    stranded_start: Positive
    """A start so narrow that no input lies inside."""
    fit: Fit
    curve: LogGrid
    """Distances from the centre at which the bump is drawn."""


class UnstableTraining(Model):
    """A softmax of the logits (w ** depth, 0), trained by gradient descent on w."""

    depth: Count
    share: Annotated[float, Field(gt=0, lt=1)]
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


class NanGallery(Experiment):
    """Five ways to a NaN gradient, naive beside safe."""

    experiment: Literal["nan_gallery"]
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
    def _has_one_pair(self) -> "NanGallery":
        if len(self.limits.low) != 1:
            raise problem("must be one number", "limits", "low", got=self.limits.low)
        return self


class SpecialFunctions(Experiment):
    """Accuracy and speed of the normal law in one dimension."""

    experiment: Literal["special_functions"]
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    grid: Grid
    """Arguments at which errors are drawn."""
    num_points: Count
    """Elements of a timed call."""
    num_repeats: Count
    """Timed calls, of which the median is told."""


class WorkPrecision(Experiment):
    """Error against time, ours and the peers', in one run."""

    experiment: Literal["work_precision"]
    problems: Annotated[tuple[str, ...], Field(min_length=1)]
    num_points: Annotated[tuple[Count, ...], Field(min_length=1)]
    num_replicates: Annotated[int, Field(ge=2)]
    num_keys: Count
    """Keys behind a root-mean-square error."""


EXPERIMENTS: dict[str, type[Experiment]] = {
    "selected_sample": SelectedSample,
    "shift_curve": ShiftCurve,
    "fit_limits": FitLimits,
    "bump_width": BumpWidth,
    "nan_gallery": NanGallery,
    "special_functions": SpecialFunctions,
    "work_precision": WorkPrecision,
}


# ---------------------------------------------------------------- reading and writing


def _complaint(item: dict[str, Any], document: Document) -> str | None:
    """One mistake that pydantic found, told in our words and at its place in the file."""
    kind, message, got, mark = item["type"], item["msg"], item["input"], None
    # The tag of a union is part of pydantic's address and of nothing in the file.
    at: Place = ()
    for step in item["loc"]:
        at = (*at, step) if (*at, step) in document.values else at
    if kind == "problem":
        context = item.get("ctx", {})
        at, got = at + context.get("at", ()), context.get("got", got)
        mark = document.keys.get(at) if message.startswith("unknown key") else None
    elif kind in ("missing", "union_tag_not_found"):
        mark = document.keys.get(at)
        at += (item["loc"][-1] if kind == "missing" else "kind",)
        message, got = "is required", None
    elif kind == "union_tag_invalid":
        at += ("kind",)
        got = item["ctx"]["tag"]
        known = item["ctx"]["expected_tags"].replace("'", "").split(", ")
        message = f"unknown; {suggestion(got, known)}"
    elif kind == "too_short":
        if got:  # pydantic counts what is valid, and what is not has its own line
            return None
        message = "must not be empty"
    elif kind == "tuple_type":
        message = "must be a list"
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "must be a section with keys of its own"
    return document.line(message.replace("Input should be", "must be"), at, mark, got)


def load(path: str | Path) -> Experiment:
    """The settings in a YAML file, as the model of the experiment that the file names.

    Args:
        path: a UTF-8 file whose top level holds `experiment:` and that experiment's keys.

    Raises:
        ConfigError: whatever is wrong with the file, one line for each mistake.

    Example:
        >>> from truncgauss import config
        >>> config.load("nowhere.yaml")
        Traceback (most recent call last):
        truncgauss.documents.ConfigError: nowhere.yaml:1:1: file: cannot be read: No such ...
    """
    document = read(path)
    known = list(EXPERIMENTS)
    if "experiment" not in document.data:
        near = difflib.get_close_matches("experiment", list(document.data), n=1)
        message = f"is required; known: {', '.join(known)}"
        raise ConfigError(document.line(message, ("experiment",), got=near[0] if near else None))
    name = document.data["experiment"]
    if not isinstance(name, str) or name not in EXPERIMENTS:
        message = f"unknown; {suggestion(name, known)}"
        raise ConfigError(document.line(message, ("experiment",), got=name))
    return _judged(EXPERIMENTS[name], document, Path(os.path.abspath(path)).parent)


def override(config: Experiment, words: Sequence[str]) -> Experiment:
    """Settings with some of them replaced, as on a command line.

    Args:
        config: the settings to start from.
        words: `--section.field value ...` or `--section.field=value`. Several values make a
            list; each is a word where the field holds text, and YAML elsewhere.

    Raises:
        ConfigError: a key or value that the experiment does not take, told as `--key: ...`.
    """
    values = config.model_dump()
    for key, given in _options(words):
        *sections, field = key
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(Document(None).line(f"{section} has no keys", key, got=given))
        inner[field] = _typed(given, inner.get(field), key)
    return _judged(type(config), parse(write(values)), Path.cwd())


def _options(words: Sequence[str]) -> Iterator[tuple[Place, list[str]]]:
    """Keys and the words given to each."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            groups.append(word[2:].split("=", 1))
        elif groups:
            groups[-1].append(word)
        else:
            raise ConfigError(f"{word}: must follow a --key (got {word!r})")
    for key, *given in groups:
        place = tuple(key.replace("-", "_").split("."))
        if not given:
            raise ConfigError(Document(None).line("needs a value", place))
        yield place, given


def _typed(given: list[str], before: Any, key: Place) -> Any:
    """Words as the kind of value that stood there before."""
    many = isinstance(before, tuple)
    if isinstance(before[0] if many and before else before, str | Path):
        return tuple(given) if many else " ".join(given)
    infinities = {"inf": ".inf", "+inf": ".inf", "-inf": "-.inf"}
    typed = tuple(parse(infinities.get(word, word), at=key).data for word in given)
    if len(typed) > 1 or (many and not isinstance(typed[0], tuple)):
        return typed
    return typed[0]


def _judged(model: type[Experiment], document: Document, folder: Path) -> Experiment:
    """The model of a document, or every mistake in it."""
    try:
        return model.model_validate(document.data, context={"folder": folder})
    except ValidationError as error:
        lines = (_complaint(item, document) for item in error.errors())
        raise ConfigError("\n".join(line for line in lines if line)) from error


def dump(config: Experiment) -> str:
    """The YAML text of settings; `load` reads it back to an equal value."""
    return write(config.model_dump())


def schema(name: str | None = None) -> dict[str, Any]:
    """The JSON schema of one experiment's settings, or of every experiment's.

    Example:
        >>> from truncgauss import config
        >>> config.schema("bump_width")["properties"]["seed"]["type"]
        'integer'
    """
    if name is None:
        any_of_them = functools.reduce(operator.or_, EXPERIMENTS.values())
        tagged = Annotated[any_of_them, Field(discriminator="experiment")]
        return TypeAdapter(tagged).json_schema()
    if name not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {name!r}; {suggestion(name, list(EXPERIMENTS))}")
    return EXPERIMENTS[name].model_json_schema()
