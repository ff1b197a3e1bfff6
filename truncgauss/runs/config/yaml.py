"""YAML read into plain values that know where they stand, for errors with a line and a column.

The YAML is version 1.2: `1e-3` is a number, `yes` is a word, `.inf` is infinity. Aliases, unknown
tags and keys given twice are refused, each at its place.
"""

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter


class ConfigError(ValueError):
    """Settings that cannot be used; its text is one line for each mistake."""


Place = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""


@dataclass
class Document:
    """The values of a file and where each of them stands; without a path, of a command line."""

    path: Path | None
    data: Any = None
    keys: dict[Place, tuple[int, int]] = field(default_factory=dict)
    values: dict[Place, tuple[int, int]] = field(default_factory=dict)
    nodes: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Document":
        """Values that stand in no file, with all their places."""
        document = cls(None, values)
        document._visit(values, ())
        return document

    def _visit(self, value: Any, at: Place) -> None:
        self.values[at] = (1, 1)
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, tuple):
            items = enumerate(value)
        for key, inner in items:
            self._visit(inner, (*at, key))

    def line(
        self, message: str, at: Place = (), mark: tuple[int, int] | None = None, got: Any = None
    ) -> str:
        """One mistake: `file:line:column: key: message (got ...)`, or `--key: ...`."""
        name = "".join(f"[{k}]" if isinstance(k, int) else f".{_key(k)}" for k in at)
        name = name.removeprefix(".")
        text = f"{name or 'file'}: {' '.join(message.split())} (got {_short(got)})"
        if self.path is None:
            return f"--{text}"
        row, column = mark or self.values.get(at) or self.keys.get(at[:-1]) or (1, 1)
        return f"{self.path}:{row}:{column}: {text}"

    def fail(self, message: str, node: Node, at: Place, got: Any = None) -> ConfigError:
        return ConfigError(self.line(message, at, _mark(node.start_mark), got))

    def build(self, node: Node, yaml: YAML, at: Place = ()) -> Any:
        """The plain value of a node: dictionaries, tuples, scalars; and its place, noted."""
        if id(node) in self.nodes:
            raise self.fail("write the value out instead of an alias", node, at, "alias")
        self.nodes.add(id(node))
        self.values[at] = _mark(node.start_mark)
        if isinstance(node, MappingNode):
            return self._mapping(node, yaml, at)
        if isinstance(node, SequenceNode):
            return tuple(self.build(item, yaml, (*at, i)) for i, item in enumerate(node.value))
        try:
            return yaml.constructor.construct_object(node)
        except (YAMLError, ValueError, TypeError) as error:
            raise self.fail(f"cannot be read as {node.tag}", node, at, node.value) from error

    def _mapping(self, node: MappingNode, yaml: YAML, at: Place) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or not str(key.tag).endswith(":str"):
                raise self.fail("a key must be a word", key, at, str(key.value))
            place = (*at, key.value)
            if key.value in built:
                first = self.keys[place][0]
                message = f"duplicate key, already given in line {first}"
                raise self.fail(message, key, place, key.value)
            self.keys[place] = _mark(key.start_mark)
            built[key.value] = self.build(value, yaml, place)
            if value.start_mark.index == value.end_mark.index:  # nothing there: the key's place
                self.values[place] = self.keys[place]
        return built


def _mark(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _short(value: Any) -> str:
    text = "nothing" if value is None else repr(_plain(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _key(key: str) -> str:
    """A key as it is, unless it would break or blur the line that names it."""
    plain = key.isprintable() and key == key.strip() != "" and len(key) <= 60
    return key if plain else _short(key)


def _quoted(text: str, row: int) -> str:
    """A line of a file, for errors of its very characters."""
    return ([*text.splitlines(), ""][min(row, text.count("\n") + 1) - 1]).strip()


def _text(path: Path) -> str:
    """The characters of a file; UTF-8, with or without a byte-order mark."""
    document = Document(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        message = f"cannot be read: {error.strerror or type(error).__name__}"
        raise ConfigError(document.line(message, got=str(path))) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _end(raw[: error.start].decode("utf-8", errors="replace"))
        line = document.line("is not UTF-8 text", mark=place, got=raw[error.start : error.end])
        raise ConfigError(line) from error


def _end(text: str) -> tuple[int, int]:
    """Line and column of what comes after a text."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def read(path: str | Path) -> Document:
    """A file as plain values with their places.

    Raises:
        ConfigError: a file that is not there, not UTF-8, not YAML, or not keys with values.

    Example:
        >>> from truncgauss.runs.config import yaml
        >>> yaml.read("nowhere.yaml")
        Traceback (most recent call last):
        truncgauss.runs.config.yaml.ConfigError: nowhere.yaml:1:1: file: cannot be read: No such ...
    """
    document = parse(_text(Path(path)), Path(path))
    if not isinstance(document.data, dict):
        kind = "is empty" if document.data is None else "must be keys with values"
        raise ConfigError(document.line(f"{kind}; start with `experiment: ...`", got=document.data))
    return document


def parse(text: str, path: Path | None = None, at: Place = ()) -> Document:
    """YAML text as plain values with their places.

    Args:
        text: a single YAML document.
        path: the file that errors name; without one they name a `--key`.
        at: the key that the text belongs to.

    Raises:
        ConfigError: the text is not YAML, or uses what is refused here.

    Example:
        >>> from truncgauss.runs.config import yaml
        >>> yaml.parse("{low: [-.inf, 1e-3]}").data
        {'low': (-inf, 0.001)}
    """
    document = Document(path)
    yaml = YAML(typ="safe", pure=True)
    try:
        with warnings.catch_warnings():
            # Harmless: aliases, which anchors are for, are refused.
            warnings.simplefilter("ignore", ReusedAnchorWarning)
            root = yaml.compose(text)
        document.data = None if root is None else document.build(root, yaml, at)
    except MarkedYAMLError as error:
        place = _mark(error.problem_mark or error.context_mark)
        message = f"is not YAML: {error.problem or error.context}"
        line = document.line(message, at, place, _quoted(text, place[0]))
        raise ConfigError(line) from error
    except ReaderError as error:
        message = "is not YAML: a character that is not printable"
        place = _end(text[: error.position])
        raise ConfigError(document.line(message, at, place, text[error.position])) from error
    except RecursionError as error:
        line = document.line("is nested too deeply", at, (1, 1), _quoted(text, 1))
        raise ConfigError(line) from error
    return document


def write(values: dict[str, Any]) -> str:
    """The YAML text of plain values; `read` gives them back.

    Example:
        >>> from truncgauss.runs.config import yaml
        >>> yaml.write({"limits": {"low": (0.0, float("-inf"))}})
        'limits:\\n  low: [0.0, -.inf]\\n'
    """
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.sort_base_mapping_type_on_output = False
    yaml.default_flow_style = None
    yaml.allow_unicode = True
    out = io.StringIO()
    yaml.dump(_plain(values), out)
    return out.getvalue()


class _Representer(SafeRepresenter):
    """Quotes words that begin like something else; left alone, `{a: ?0}` cannot be read again."""

    def word(self, text: str) -> ScalarNode:
        style = '"' if text.startswith(("?", "-", ":")) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Representer.add_representer(str, _Representer.word)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
