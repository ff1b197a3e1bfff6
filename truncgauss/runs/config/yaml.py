"""YAML read into plain values that know where they stand, for errors with a line and a column.

The YAML is version 1.2: `1e-3` is a number, `yes` is a word, `.inf` is infinity. Aliases, unknown
tags and keys given twice are refused, each at its place.
"""

import io
import os
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter

from truncgauss.words.names import meant


class ConfigError(ValueError):
    """Settings that cannot be used; its text is one line for each mistake."""

    unknown: frozenset[str] = frozenset()
    """Those of the lines that say that there is no such key."""


Place = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""

Position = tuple[int, int]
"""Line and column in a file, from 1."""


@dataclass
class Document:
    """The values of a file and where they stand; without a path, of a command line."""

    path: Path | None
    data: Any = None
    positions: dict[Place, tuple[Position, Position]] = field(default_factory=dict)
    """Positions of the key and of the value; a value without any text stands where its key does."""
    repeated: list[str] = field(default_factory=list)
    """Lines about keys that are given twice; `data` has the first value of each."""

    def position(self, at: Place, of_key: bool = False) -> Position:
        """Line and column of a value, or of its key; of what is not there, of its section's key."""
        for end in range(len(at), 0, -1):
            if at[:end] in self.positions:
                key, value = self.positions[at[:end]]
                return key if of_key or end < len(at) else value
        return 1, 1

    def error(
        self, message: str, at: Place = (), position: Position | None = None, got: Any = None
    ) -> ConfigError:
        """One mistake: `file:line:column: key: message (got ...)`, or `--key: ...`."""
        name = "".join(f"[{k}]" if isinstance(k, int) else f".{_key(k)}" for k in at)
        name = name.removeprefix(".")
        text = f"{name or 'file'}: {' '.join(message.split())} (got {_short(got)})"
        if self.path is None:
            return ConfigError(f"--{text}")
        row, column = position or self.position(at)
        return ConfigError(f"{self.path}:{row}:{column}: {text}")

    def build(
        self, node: Node, yaml: YAML, seen: set[int], at: Place = (), key_at: Position = (1, 1)
    ) -> Any:
        """The plain value of a node: dictionaries, tuples, scalars; noting where they stand."""
        if id(node) in seen:
            message = "write the value out instead of an alias"
            raise self.error(message, at, _position(node.start_mark), "alias")
        seen.add(id(node))
        has_text = node.start_mark.index != node.end_mark.index
        self.positions[at] = key_at, _position(node.start_mark) if has_text else key_at
        if isinstance(node, SequenceNode):
            items = enumerate(node.value)
            return tuple(self.build(item, yaml, seen, (*at, i)) for i, item in items)
        if not isinstance(node, MappingNode):
            try:
                return yaml.constructor.construct_object(node)
            except (YAMLError, ValueError, TypeError) as error:
                message, position = f"cannot be read as {node.tag}", _position(node.start_mark)
                raise self.error(message, at, position, node.value) from error
        built: dict[str, Any] = {}
        for key, value in node.value:
            position = _position(key.start_mark)
            if value.tag.endswith(":null") and (message := without_space(str(key.value))):
                raise self.error(message, (*at, key.value), position, key.value)
            if not isinstance(key, ScalarNode) or not str(key.tag).endswith(":str"):
                point = "; decimals are written with a point" * str(key.value).isdigit()
                raise self.error(f"a key must be a word{point}", at, position, str(key.value))
            location = (*at, key.value)
            if key.value in built:
                message = f"duplicate key, already given in line {self.positions[location][0][0]}"
                self.repeated.append(str(self.error(message, location, position, key.value)))
                continue
            built[key.value] = self.build(value, yaml, seen, location, position)
        return built


def without_space(text: str) -> str:
    """The message about a key and a value that nothing but a colon divides; empty for others."""
    found = re.fullmatch(r"\s*(\w+):([^\s:/\\].*)", text)
    return f"after a colon comes a space: write `{found[1]}: {found[2]}`" if found else ""


def _position(read: Any) -> Position:
    return read.line + 1, read.column + 1


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


def _end(text: str) -> Position:
    """Line and column of what comes after a text."""
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def read(path: str | Path) -> Document:
    """A file as plain values with their places.

    Raises:
        ConfigError: a file that is not there, not UTF-8, not YAML, or not keys with values.
    """
    path = Path(path)
    document = Document(path)
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")  # with or without a byte-order mark
    except OSError as error:
        reason = error.strerror or type(error).__name__
        if isinstance(error, FileNotFoundError):
            folder = path.absolute().parent
            names = sorted(os.listdir(folder)) if folder.is_dir() else []
            configs = [name for name in names if name.endswith((".yaml", ".yml"))][:10]
            there = f"; there are {', '.join(configs)}" if configs else ""
            reason += f", looked in {folder}{meant(path.name, names) or there}"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        location = _end(raw[: error.start].decode("utf-8", errors="replace"))
        got = raw[error.start : error.end]
        raise document.error("is not UTF-8 text", position=location, got=got) from error
    document = parse(text, path)
    if not isinstance(document.data, dict):
        kind = "is empty" if document.data is None else "must be keys with values"
        more = "; `truncgauss new my.csv` writes one for a table" if document.data is None else ""
        raise document.error(f"{kind}; start with `experiment: ...`{more}", got=document.data)
    return document


def parse(text: str, path: Path | None = None, at: Place = ()) -> Document:
    """A single YAML document as plain values with their places. Errors name the file; without one,
    the `--key` that the text belongs to.

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
        if root is not None:
            document.data = document.build(root, yaml, set(), at)
        if document.repeated and path is None:
            raise ConfigError("\n".join(document.repeated))
    except MarkedYAMLError as error:
        location = _position(error.problem_mark or error.context_mark)
        message = f"is not YAML: {error.problem or error.context}"
        before = enumerate(text.splitlines()[: location[0]], 1)
        if joined := [(row, line) for row, line in before if without_space(line)]:
            message, location = without_space(joined[-1][1]), (joined[-1][0], 1)
        if "character '\\t'" in message:
            message = "is not YAML: indented by a tab, where only spaces are allowed"
        if "escape" in message:
            message = (
                "is not YAML: between double quotes a backslash begins a special character; write "
                "'single quotes', or / in the place of \\"
            )
        raise document.error(message, at, location, _quoted(text, location[0])) from error
    except ReaderError as error:
        message = "is not YAML: a character that is not printable"
        location = _end(text[: error.position])
        raise document.error(message, at, location, text[error.position]) from error
    except RecursionError as error:
        raise document.error("is nested too deeply", at, (1, 1), _quoted(text, 1)) from error
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
