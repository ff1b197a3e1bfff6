"""The settings of an experiment: a YAML file read into frozen, strict models.

Whatever is wrong with a file ends in a `ConfigError`, one line for each mistake::

    configs/shift_curve.yaml:7:3: limits.low[0]: must be less than high (got 3.0, high is 2.0)

This is the only module that knows YAML and pydantic, and it does not import JAX: a file is
checked in a moment. A new experiment is one model here and one line in `EXPERIMENTS`.
"""

import difflib
import functools
import io
import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
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
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError


class ConfigError(ValueError):
    """Settings that cannot be used; its text is one line for each mistake."""


def problem(message: str, *where: str | int, got: Any = ...) -> PydanticCustomError:
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

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Dtype = Literal["float32", "float64"]
Vector = Annotated[tuple[Number, ...], Field(min_length=1)]
Bounds = Annotated[tuple[float, ...], Field(min_length=1)]
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
    limits: Limits
    """The selection, one pair of limits for each column."""
    fit: Fit
    shift: Grid
    """Shifts of the mean, in standard deviations, at which the fraction is drawn."""
    edge: Edge
    """The soft edge of the estimate drawn beside the exact fraction."""
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
    num_samples: Annotated[tuple[Count, ...], Field(min_length=1)]
    """Sizes of the soft estimate, a curve for each."""


class FitLimits(Experiment):
    """Shifts and limits recovered from the counts that they produced."""

    experiment: Literal["fit_limits"]
    gaussian: Gaussian
    limits: Limits
    """The true limits."""
    shift: Vector
    """The true shift of the mean."""
    regions: Annotated[tuple[Limits, ...], Field(min_length=1)]
    """Known boxes whose counts tell the shift."""
    start: Limits
    """Where the search for the limits starts."""
    num_trials: Count
    """Draws behind each count."""
    fit: Fit


class BumpWidth(Experiment):
    """The width of a bump learnt from inputs inside and beyond its support."""

    experiment: Literal["bump_width"]
    widths: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """The true widths."""
    starts: Annotated[tuple[Positive, ...], Field(min_length=1)]
    """Starting widths, in units of the true one."""
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1)]
    span: Positive
    """Inputs reach this many true widths to either side."""
    num_inputs: Count
    fit: Fit


class NanGallery(Experiment):
    """Five ways to a NaN gradient, naive beside safe."""

    experiment: Literal["nan_gallery"]
    points: Vector
    """Where values and gradients are shown."""


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

Place = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


@dataclass
class Document:
    """The values of a file and where each of them stands."""

    path: Path
    data: Any = None
    keys: dict[Place, tuple[int, int]] = field(default_factory=dict)
    values: dict[Place, tuple[int, int]] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)

    def line(
        self, message: str, at: Place = (), mark: tuple[int, int] | None = None, got: Any = ...
    ) -> str:
        """One mistake as `file:line:column: key: message (got ...)`."""
        row, column = mark or self.values.get(at) or self.keys.get(at[:-1]) or (1, 1)
        name = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in at).lstrip(".")
        seen = "" if got is ... else f" (got {_short(got)})"
        return f"{self.path}:{row}:{column}: {name or 'file'}: {' '.join(message.split())}{seen}"

    def fail(self, message: str, node: Node, at: Place, got: Any = ...) -> ConfigError:
        return ConfigError(self.line(message, at, _mark(node.start_mark), got))

    def build(self, node: Node, yaml: YAML, at: Place = ()) -> Any:
        """The plain value of a node: dictionaries, tuples, scalars; and its place, noted."""
        if id(node) in self.nodes:
            raise self.fail("write the value out instead of an alias", node, at)
        self.nodes.add(id(node))
        self.values[at] = _mark(node.start_mark)
        if isinstance(node, MappingNode):
            return self._mapping(node, yaml, at)
        if isinstance(node, SequenceNode):
            return tuple(self.build(item, yaml, (*at, i)) for i, item in enumerate(node.value))
        try:
            return yaml.constructor.construct_object(node)
        except (YAMLError, ValueError, TypeError) as error:
            raise self.fail("cannot be read as the type it claims", node, at, node.value) from error

    def _mapping(self, node: MappingNode, yaml: YAML, at: Place) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or not key.tag.endswith(":str"):
                raise self.fail("a key must be a word", key, at, str(key.value))
            place = (*at, key.value)
            if key.value in built:
                first = self.keys[place][0]
                raise self.fail(f"duplicate key, already given in line {first}", key, place)
            self.keys[place] = _mark(key.start_mark)
            built[key.value] = self.build(value, yaml, place)
        return built


def _mark(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _short(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(document: Document) -> str:
    """The characters of a file; UTF-8, with or without a byte-order mark."""
    try:
        raw = document.path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(document.line(f"cannot be read: {reason}")) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8", errors="replace")
        place = good.count("\n") + 1, len(good) - good.rfind("\n")
        line = document.line("is not UTF-8 text", mark=place, got=raw[error.start : error.end])
        raise ConfigError(line) from error


def _document(path: Path) -> Document:
    """A file as plain values with their places."""
    document = Document(path)
    text = _text(document)
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        document.data = None if root is None else document.build(root, yaml)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"is not YAML: {error.problem or error.context}"
        raise ConfigError(document.line(message, mark=mark and _mark(mark))) from error
    except ReaderError as error:
        good = text[: error.position]
        place = good.count("\n") + 1, len(good) - good.rfind("\n")
        message = "is not YAML: a character that is not printable"
        raise ConfigError(document.line(message, mark=place, got=text[error.position])) from error
    except RecursionError as error:
        raise ConfigError(document.line("is nested too deeply")) from error
    if not isinstance(document.data, dict):
        kind = "is empty" if document.data is None else "must be keys with values"
        raise ConfigError(document.line(f"{kind}; start with `experiment: ...`"))
    return document


def _complaints(error: ValidationError, document: Document) -> Iterator[tuple[Place, str]]:
    """Each mistake that pydantic found, with its place in the file and the line that tells it."""
    for item in error.errors():
        context = item.get("ctx", {})
        # The tag of a union is part of pydantic's address and of nothing in the file.
        at: Place = ()
        for step in item["loc"]:
            if (*at, step) in document.values:
                at = (*at, step)
        message, got, mark = item["msg"], item["input"], None
        if item["type"] == "problem":
            at = (*at, *context.get("at", ()))
            got = context.get("got", got)
            mark = document.keys.get(at) if message.startswith("unknown key") else None
        elif item["type"] in ("missing", "union_tag_not_found"):
            at = (*at, item["loc"][-1] if item["type"] == "missing" else "kind")
            message, got, mark = "is required", ..., document.keys.get(at[:-1])
        elif item["type"] == "union_tag_invalid":
            at = (*at, "kind")
            known = context["expected_tags"].replace("'", "").split(", ")
            message, got = f"unknown; {suggestion(context['tag'], known)}", context["tag"]
        elif item["type"] == "tuple_type":
            message = "must be a list"
        elif item["type"] in ("model_type", "dict_type", "model_attributes_type"):
            message = "must be a section with keys of its own"
        message = message.replace("Input should be", "must be").replace("Value should", "must")
        yield at, document.line(message, at, mark, got)


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
        truncgauss.config.ConfigError: nowhere.yaml:1:1: file: cannot be read: No such file ...
    """
    document = _document(Path(path))
    known = list(EXPERIMENTS)
    if "experiment" not in document.data:
        raise ConfigError(document.line(f"is required; known: {', '.join(known)}", ("experiment",)))
    name = document.data["experiment"]
    if not isinstance(name, str) or name not in EXPERIMENTS:
        message = f"unknown; {suggestion(name, known)}"
        raise ConfigError(document.line(message, ("experiment",), got=name))
    try:
        context = {"folder": Path(os.path.abspath(path)).parent}
        return EXPERIMENTS[name].model_validate(document.data, context=context)
    except ValidationError as error:
        lines = [line for _, line in _complaints(error, document)]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from error


def dump(config: Experiment) -> str:
    """The YAML text of settings; `load` reads it back to an equal value."""
    yaml = YAML(typ="safe", pure=True)
    yaml.sort_base_mapping_type_on_output = False
    yaml.default_flow_style = None
    yaml.allow_unicode = True
    out = io.StringIO()
    yaml.dump(_plain(config.model_dump()), out)
    return out.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


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
