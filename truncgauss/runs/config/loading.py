"""Settings read from a YAML file, changed from the command line, written, and described.

Whatever is wrong with them ends in a `ConfigError`, one line for each mistake::

    x.yaml:8:10: limits.high[0]: must be greater than low, which is 3.0 (got 2.0)

Nothing here imports JAX: a file is checked in a moment.
"""

import contextlib
import copy
import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import PydanticCustomError

from truncgauss.runs.config import yaml
from truncgauss.runs.config.experiment import Experiment, is_file, names, settings_of
from truncgauss.runs.config.sections import problem, problems
from truncgauss.runs.config.yaml import ConfigError, Document, Place, Position
from truncgauss.words.names import closest, meant, suggestion
from truncgauss.words.numbers import of_percent

MOST_MEMBERS = 1000  # of a sweep


class Mistake(NamedTuple):
    """One mistake in the settings."""

    position: Position
    line: str
    at: Place
    of_key: bool
    """Whether there is no such key."""


def _complaint(item: Any, document: Document) -> Mistake | None:
    """One mistake that pydantic reports."""
    kind, message, got, of_key = item["type"], item["msg"], item["input"], False
    at, data = cast(Place, ()), document.data
    for step in item["loc"]:
        # The tag of a union is part of pydantic's address and of nothing in the file.
        many = range(len(data)) if isinstance(data, list | tuple) else ()
        if step in (data if isinstance(data, dict) else many):
            at, data = (*at, step), data[step]
    if kind == "problem":
        context = item.get("ctx", {})
        at, got = at + context.get("at", ()), context.get("got", got)
        of_key = context.get("of_key", False)
    elif kind in ("missing", "union_tag_not_found"):
        at += (item["loc"][-1] if kind == "missing" else "kind",)
        message, got = "is required", None
    elif kind == "union_tag_invalid":
        at += ("kind",)
        got = item["ctx"]["tag"]
        known = item["ctx"]["expected_tags"].replace("'", "").split(", ")
        message = f"unknown; {suggestion(got, known)}"
    elif kind == "too_short":
        least = item["ctx"]["min_length"]
        if len(got) >= least:  # pydantic counts what is valid, and what is not has its own line
            return None
        message = f"must have at least {least} entries" if got else "must not be empty"
    elif kind == "less_than" and item["ctx"]["lt"] == 1 and isinstance(got, int | float):
        percent = of_percent(got).strip(" .").replace("For", "; for")
        message = f"must be less than 1{percent}"
    elif kind in ("value_error", "assertion_error"):
        message = message.partition(", ")[2]
    elif kind == "literal_error":
        message += meant(got, re.findall("'([^']*)'", item["ctx"]["expected"]))
    elif kind == "tuple_type":
        message = "must be a list"
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "must be a section with keys of its own"
        if isinstance(got, str):
            if kind == "dict_type":
                form = f"{got}: {{}}" if re.fullmatch(r"[\w-]+", got) else "name: value"
                message = f"must have keys with a value each, such as `{at[-1]}: {{{form}}}`"
            message = yaml.without_space(got) or message
        if isinstance(got, list | tuple) and got and isinstance(got[0], str):
            message = (
                f"must have keys with a value each: `{at[-1]}: {{{got[0]}: ...}}`, and {{}} for a "
                "value without settings"
            )
    if kind.startswith("float") and str(got).lower().lstrip("+-") in ("inf", "infinity"):
        message += f"; write {'-' * str(got).startswith('-')}.inf"
    if kind == "string_type" and isinstance(got, int | float):
        message += f"; write '{got}'"
    if kind.startswith("int") and "," in str(got):
        message += f"; for a run of each write `sweep: {{{'.'.join(map(str, at))}: [{got}]}}`"
    message = message.replace("Input should be", "must be")
    message = message.replace("must be a valid boolean", "must be true or false")
    position = document.position(at, of_key)
    return Mistake(position, str(document.error(message, at, position, got)), at, of_key)


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
        truncgauss.runs.config.yaml.ConfigError: nowhere.yaml: cannot be read: No such file ...
    """
    document, folder = yaml.read(path), Path(os.path.abspath(path)).parent
    if "experiment" not in document.data:
        message = f"is required; known: {', '.join(names())}, or the path of a Python file"
        close = closest("experiment", document.data)
        fitting = [
            name for name in names() if {*document.data} <= {*settings_of(name).model_fields}
        ]
        if not close and document.data and len(fitting) == 1:
            message = f"is required; for these keys: `experiment: {fitting[0]}`"
        raise document.error(message, ("experiment",), got=close or None)
    name = document.data["experiment"]
    if isinstance(name, str) and is_file(name):
        document.data["experiment"] = os.path.abspath(folder / os.path.expanduser(name))
    try:
        model = settings_of(str(document.data["experiment"]))
    except ConfigError as error:
        raise document.error(str(error), ("experiment",), got=name) from error
    swept = document.data.get("sweep")
    for key, values in swept.items() if isinstance(swept, dict) else ():
        absent = key in model.model_fields and key not in document.data
        if absent and isinstance(values, tuple) and values:  # a key that is only there
            document.data[key] = values[0]
    defaults = model.model_construct().model_dump()
    mistakes, config, values = document.repeated, None, {**defaults, **document.data, "sweep": None}
    try:
        config = _validated(model, document, folder)
        swept, values = config.sweep, config.model_dump()
    except ConfigError as error:
        mistakes.append(str(error))
    mistakes += _mistakes_of_sweep(model, values, swept, document, folder)
    if mistakes or config is None:
        raise ConfigError("\n".join(mistakes))
    return config


def override(config: Experiment, words: Sequence[str]) -> Experiment:
    """Settings with some of them replaced, as on a command line.

    Args:
        config: the settings to start from.
        words: `--section.field value ...` or `--section.field=value`. Several values make a
            list; each is a word where the field holds text, and YAML elsewhere.

    Raises:
        ConfigError: a key or value that the experiment does not take, reported as `--key: ...`.
    """
    if not words:
        return config
    values, infinities = config.model_dump(), {"inf": ".inf", "+inf": ".inf", "-inf": "-.inf"}
    groups: list[list[str]] = []  # keys, and the words that follow each
    for word in words:
        if word.startswith("--") and len(word) > 2:
            groups.append(word[2:].split("=", 1))
        elif groups:
            groups[-1].append(word)
        else:
            raise ConfigError(f"{word}: must follow a --key (got {word!r})")
    for option, *texts in groups:
        key: Place = tuple(option.replace("-", "_").split("."))
        if not texts:
            raise Document(None).error("needs a value", key)
        *sections, field = map(str, key)
        inner: Any = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise Document(None).error(f"{section} has no keys", key, got=texts)
        kind: Any = type(config)  # of the setting; None inside of a union or a dictionary
        for name in key:
            known = getattr(kind, "model_fields", {}).get(name)
            kind = known and known.annotation
        before = inner.get(field)  # whose kind counts where there is no type
        many = isinstance(before, tuple)
        if kind == dict[str, str]:
            if len(texts) % 2:
                got = " ".join(texts)
                raise Document(None).error("needs pairs of a key and a text", key, got=got)
            inner[field] = dict(zip(texts[::2], texts[1::2]))
        elif kind == tuple[str, ...]:
            inner[field] = tuple(texts)
        elif isinstance(before[0] if many and before else before, str | Path):
            inner[field] = tuple(texts) if many else " ".join(texts)
        else:
            typed = tuple(yaml.parse(infinities.get(x, x), at=key).data for x in texts)
            single = len(typed) == 1 and not (many and not isinstance(typed[0], tuple))
            inner[field] = typed[0] if single else typed
    if values["experiment"] != config.experiment:
        message = "cannot be changed, name another config"
        raise Document(None).error(message, ("experiment",), got=values["experiment"])
    return _validated(type(config), Document(None, values), Path.cwd())


def _validated(model: type[Experiment], document: Document, folder: Path) -> Experiment:
    """The model of a document.

    Raises:
        ConfigError: every mistake in it, in the order of the file.
    """
    data, context = document.data, {"folder": folder}
    try:
        return model.model_validate(data, context=context)
    except ValidationError as error:
        items = error.errors()
    every = [(item, said) for item in items if (said := _complaint(item, document))]
    # Of a number or a text: a number that is wrong as such is not meant as a text.
    others = {said.at for item, said in every if item["type"] != "string_type"}
    told = [
        (item["loc"], said)
        for item, said in every
        if item["type"] != "string_type" or said.at not in others
    ]
    found, wrong = [said for _, said in told], [said.at for at, said in told if at and said.at]
    # Pydantic asks validators of several keys only where each key is right. Here one that meets a
    # key that is wrong has an AttributeError, and no say.
    right, values, bad = copy.deepcopy(data), dict[str, Any](), set[Any]()
    for at in wrong:
        section = functools.reduce(lambda inner, step: inner[step], at[:-1], right)
        if len(at) > 1 and isinstance(section, dict):
            section.pop(at[-1], None)
        else:
            bad.add(at[0])
    for name, field in model.model_fields.items():
        if name in right and name not in bad:
            with contextlib.suppress(ValidationError):  # without its wrong key it is no section
                kind: Any = TypeAdapter(cast(Any, Annotated[field.annotation, field]))
                values[name] = kind.validate_python(right[name], strict=True, context=context)
    partial, items = model.model_construct(**values), []
    for name in {*right, *bad} - {*values}:  # which has its default there, if it has one
        vars(partial).pop(name, None)
    for name, decorator in model.__pydantic_decorators__.model_validators.items():
        try:
            with contextlib.suppress(AttributeError):
                if decorator.info.mode == "after":
                    getattr(partial, name)()
        except ValidationError as error:
            items += error.errors()
        except (ValueError, AssertionError) as error:
            own = error if isinstance(error, PydanticCustomError) else None
            items += problems([own or problem(str(error), got=data)]).errors()
    for said in filter(None, (_complaint(item, document) for item in items)):
        if not any(at[: len(said.at)] == said.at[: len(at)] for at in wrong):
            found.append(said)
    found.sort(key=lambda mistake: mistake.position)
    mistakes = ConfigError("\n".join(dict.fromkeys(mistake.line for mistake in found)))
    mistakes.unknown = frozenset(mistake.line for mistake in found if mistake.of_key)
    raise mistakes


def members(config: Experiment) -> list[tuple[dict[str, Any], Experiment]]:
    """The settings of a sweep's runs, each with what distinguishes it, in the order of the product.

    Args:
        config: settings with `sweep`; without it they are the only member.

    Raises:
        ConfigError: for values that cannot be used, or too many of them.

    Example:
        >>> from truncgauss import config
        >>> bump = config.load(config.folder("configs") / "bump_width.yaml")
        >>> swept = bump.model_copy(update={"sweep": {"seed": (1, 2), "span": (3.0, 4.0)}})
        >>> [changes for changes, _ in config.members(swept)][1]
        {'seed': 1, 'span': 4.0}
    """
    model, values, folder = type(config), config.model_dump(), Path.cwd()
    return [
        (changes, _member(model, values, changes, folder))
        for changes in products(config.sweep or {})
    ]


def products(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Every choice of one value for each name."""
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_MEMBERS:
        raise ConfigError(f"makes {count} runs, at most {MOST_MEMBERS} are possible")
    return [dict(zip(axes, values)) for values in itertools.product(*axes.values())]


def _member(
    model: type[Experiment], before: dict[str, Any], changes: dict[str, Any], folder: Path
) -> Experiment:
    """The settings of one run of a sweep, of the values `before` it."""
    values: dict[str, Any] = copy.deepcopy(before) | {"sweep": None}
    for name, value in changes.items():
        *sections, field = name.split(".")
        inner = values
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None  # type: ignore[assignment]
        if name in ("experiment", "devices", "sweep") or not isinstance(inner, dict):
            why = "cannot be swept" if name in model.model_fields else "names no setting"
            raise Document(None).error(why, (name,), got=value)
        inner[field] = value
    return _validated(model, Document(None, values), folder)


def _mistakes_of_sweep(
    model: type[Experiment], before: dict[str, Any], sweep: Any, document: Document, folder: Path
) -> list[str]:
    """Lines about runs of a sweep, beside those about the values `before` it: for each key one at
    the first value with each kind of mistake."""
    if not isinstance(sweep, dict) or not all(isinstance(x, tuple) for x in sweep.values()):
        return []
    known, mistakes = dict[str, bool](), dict[Any, ConfigError]()

    def said(changes: dict[str, Any]) -> dict[str, bool]:
        """New lines about a run, without the value, and whether they are about a key."""
        try:
            _member(model, before, changes, folder)
        except ConfigError as error:
            lines = {line: line in error.unknown for line in str(error).splitlines()}
            new = {k.partition(" (got ")[0].removeprefix("--"): v for k, v in lines.items()}
            return {line: of_key for line, of_key in new.items() if line not in known}
        return {}

    try:
        runs = products(sweep)
    except ConfigError as error:
        return [str(document.error(str(error), ("sweep",), got=sweep))]
    known = said({})
    first = {name: values[0] for name, values in sweep.items() if values}
    for name, values in sweep.items():
        at: Place = ("sweep", name)
        if not values:
            mistakes[at] = document.error("must not be empty", at, got=())
        for i, value in enumerate(values):  # alone, else with the others', which it may have to fit
            if not (alone := said({name: value})) or not (beside := said(first | {name: value})):
                continue
            line = [*(line for line in beside if line.startswith(name)), *alone][0]
            if line.startswith(f"{name}: ") and (beside | alone)[line]:
                place, key = document.position(at, of_key=True), name.rpartition(".")[2]
                mistake = document.error(line[len(name) + 2 :], at, place, key)
                mistakes.setdefault(at, mistake)
            else:
                mistakes.setdefault((at, line), document.error(line, (*at, i), got=value))
    if mistakes or known:
        return [*map(str, mistakes.values())]
    wrong = next(filter(None, map(said, runs)), {})
    return [str(document.error(line, ("sweep",), got=sweep)) for line in [*wrong][:1]]


def files(config: Experiment) -> list[Path]:
    """The data files that settings name."""

    def inside(value: Any) -> Iterator[Path]:
        if isinstance(value, Path):
            yield value
        elif isinstance(value, dict | tuple):
            for item in value.values() if isinstance(value, dict) else value:
                yield from inside(item)

    return list(dict.fromkeys(inside(config.model_dump())))


def dump(config: Experiment) -> str:
    """The YAML text of settings; `load` reads it back to an equal value."""
    values = config.model_dump()
    return yaml.write(
        values if values["sweep"] else {k: v for k, v in values.items() if k != "sweep"}
    )


def schema(experiment: str | None = None) -> dict[str, Any]:
    """The JSON schema of one experiment's settings, or of every built-in experiment's.

    Args:
        experiment: the name of a built-in experiment, or the path of a file of your own.

    Raises:
        ConfigError: there is no such experiment.

    Example:
        >>> from truncgauss import config
        >>> config.schema("bump_width")["properties"]["seed"]["type"]
        'integer'
    """
    if experiment is not None:
        file = is_file(experiment)
        try:
            model = settings_of(os.path.abspath(experiment) if file else experiment)
        except ConfigError as error:
            raise ConfigError(f"experiment {experiment}: {error}") from error
        schema = model.model_json_schema()
        return schema if file else _named(schema, experiment)
    models = {name: settings_of(name) for name in names()}
    references, all_of_them = models_json_schema(
        [(model, "validation") for model in models.values()]
    )
    chosen = [references[model, "validation"] for model in models.values()]
    for name, reference in zip(models, chosen, strict=True):
        _named(all_of_them["$defs"][reference["$ref"].rsplit("/", 1)[1]], name)
    return all_of_them | {"oneOf": chosen}


def _named(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """A schema whose key `experiment` admits one name only."""
    schema["title"] = schema["properties"]["experiment"]["const"] = name
    return schema
