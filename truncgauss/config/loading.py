"""Settings read from a YAML file, changed from the command line, written, and described.

Whatever is wrong with them ends in a `ConfigError`, one line for each mistake::

    x.yaml:8:10: limits.high[0]: must be greater than low, which is 3.0 (got 2.0)

Nothing here imports JAX: a file is checked in a moment.
"""

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from truncgauss.config.experiment import Experiment, is_file, names, settings_of
from truncgauss.config.sections import suggestion
from truncgauss.config.yaml import ConfigError, Document, Place, parse, read, write


def _complaint(item: Any, document: Document) -> str | None:
    """One mistake that pydantic found, as a line with its place in the file."""
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
    elif kind in ("value_error", "assertion_error"):
        message = message.partition(", ")[2]
    elif kind == "tuple_type":
        message = "must be a list"
    elif kind in ("model_type", "dict_type", "model_attributes_type"):
        message = "must be a section with keys of its own"
    if kind.startswith("float") and str(got).lower().lstrip("+-") in ("inf", "infinity"):
        message += f"; write {'-' * str(got).startswith('-')}.inf"
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
    document, folder = read(path), Path(os.path.abspath(path)).parent
    if "experiment" not in document.data:
        near = difflib.get_close_matches("experiment", list(document.data), n=1)
        message = f"is required; known: {', '.join(names())}, or the path of a Python file"
        raise ConfigError(document.line(message, ("experiment",), got=near[0] if near else None))
    given = document.data["experiment"]
    if isinstance(given, str) and is_file(given):
        document.data["experiment"] = os.path.abspath(folder / os.path.expanduser(given))
    try:
        model = settings_of(str(document.data["experiment"]))
    except ConfigError as error:
        raise ConfigError(document.line(str(error), ("experiment",), got=given)) from error
    return _validated(model, document, folder)


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
    values = config.model_dump()
    for key, given in _options(words):
        *sections, field = map(str, key)
        inner: Any = values
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(Document(None).line(f"{section} has no keys", key, got=given))
        inner[field] = _typed(given, inner.get(field), key)
    if values["experiment"] != config.experiment:
        message = "cannot be changed, name another config"
        line = Document(None).line(message, ("experiment",), got=values["experiment"])
        raise ConfigError(line)
    return _validated(type(config), Document.of(values), Path.cwd())


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


def _validated(model: type[Experiment], document: Document, folder: Path) -> Experiment:
    """The model of a document, or every mistake in it."""
    try:
        return model.model_validate(document.data, context={"folder": folder})
    except ValidationError as error:
        lines = (_complaint(item, document) for item in error.errors())
        raise ConfigError("\n".join(line for line in lines if line)) from error


def dump(config: Experiment) -> str:
    """The YAML text of settings; `load` reads it back to an equal value."""
    return write(config.model_dump())


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
        return _named(model.model_json_schema(), None if file else experiment)
    models = {name: settings_of(name) for name in names()}
    references, all_of_them = models_json_schema(
        [(model, "validation") for model in models.values()]
    )
    chosen = [references[model, "validation"] for model in models.values()]
    for name, reference in zip(models, chosen, strict=True):
        _named(all_of_them["$defs"][reference["$ref"].rsplit("/", 1)[1]], name)
    return all_of_them | {"oneOf": chosen}


def _named(found: dict[str, Any], name: str | None) -> dict[str, Any]:
    """A schema whose key `experiment` admits one name only, if there is one."""
    if name:
        found["title"] = name
        found["properties"]["experiment"]["const"] = name
    return found
