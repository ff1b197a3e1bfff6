"""The settings of an experiment: a YAML file read into frozen, strict models.

Whatever is wrong with a file ends in a `ConfigError`, one line for each mistake::

    x.yaml:8:10: limits.high[0]: must be greater than low, which is 3.0 (got 2.0)

A new experiment is one model here and one line in `EXPERIMENTS`; the words for it are those of
`sections`. Nothing here imports JAX: a file is checked in a moment.
"""

import difflib
import functools
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from truncgauss.config.sections import (
    Batch,
    Case,
    Chains,
    Count,
    DataFile,
    Dtype,
    Edge,
    Fit,
    Gaussian,
    Grid,
    Latent,
    Limits,
    LogGrid,
    LowRankCase,
    Model,
    NormalPrior,
    OneSided,
    Population,
    Positive,
    Seed,
    Share,
    Sweep,
    UnstableTraining,
    Vector,
    problem,
    suggestion,
)
from truncgauss.config.yaml import ConfigError, Document, Place, parse, read, write

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
    parts: tuple[
        Literal[
            "curves", "ordering", "chain", "gradients", "batches", "low_rank", "shared",
            "accelerator",
        ],
        ...,
    ]  # fmt: skip
    """What to measure."""
    clock: Literal["cpu", "wall"]
    """Seconds of the processor, which other processes do not lengthen, or of the wall."""
    num_keys: Annotated[int, Field(ge=2)]
    """Keys behind a root-mean-square error."""
    num_calls: Count
    """Timed calls after the first, of which the median is told."""
    truth_points: Count
    """Points of each replicate of the long run that stands for a truth that has no formula."""
    peer_points: tuple[Count, ...]
    """The most points that a peer may use, one estimate for each count."""
    peer_seconds: Positive
    """A peer is given no larger count after all calls of one took longer."""
    curves: tuple[Case, ...]
    ordering: tuple[Case, ...]
    chain: tuple[Case, ...]
    gradients: tuple[Case, ...]
    batches: tuple[Batch, ...]
    low_rank: LowRankCase
    shared: Sweep
    accelerator: Batch


class SelectedPopulation(Experiment):
    """A population behind selected objects: a factor in the model against the truncated law."""

    experiment: Literal["selected_population"]
    population: Population
    chains: Chains


class SoftSelection(Experiment):
    """A selection with probit edges: a soft estimate against a box and a wider covariance."""

    experiment: Literal["soft_selection"]
    population: OneSided
    widths: tuple[Positive, Positive]
    num_samples: Count
    num_replicates: Count
    shift: Grid
    chains: Chains


class LatentPrior(Experiment):
    """Truncated laws of what is not seen, against the closed form of their posterior."""

    experiment: Literal["latent_prior"]
    latent: Latent
    num_nodes: Annotated[int, Field(ge=16)]
    chains: Chains


class Calibration(Experiment):
    """Simulation-based calibration of a truncated normal model."""

    experiment: Literal["calibration"]
    prior: NormalPrior
    limits: Limits
    num_simulations: Count
    thinning: Count
    level: Share
    num_curves: Count
    chains: Chains


EXPERIMENTS: dict[str, type[Experiment]] = {
    "selected_sample": SelectedSample,
    "shift_curve": ShiftCurve,
    "fit_limits": FitLimits,
    "bump_width": BumpWidth,
    "nan_gallery": NanGallery,
    "special_functions": SpecialFunctions,
    "work_precision": WorkPrecision,
    "selected_population": SelectedPopulation,
    "soft_selection": SoftSelection,
    "latent_prior": LatentPrior,
    "calibration": Calibration,
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
        truncgauss.config.yaml.ConfigError: nowhere.yaml:1:1: file: cannot be read: No such ...
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
