"""The first line of a config, by which editors find the schema of its keys."""

import re
import urllib.parse
from pathlib import Path

from truncgauss.runs.config.experiment import folder, is_file

_BEGINS = "# yaml-language-server: $schema="


def schema_line(experiment: str) -> str:
    """The line of a config of a built-in experiment, valid wherever the config lies on this
    machine; none for an experiment of the user's own, whose schema changes with its file."""
    if is_file(experiment):
        return ""
    return f"{_BEGINS}{(folder('configs') / 'schema.json').as_uri()}\n"


def with_schema(text: str, experiment: str) -> str:
    """The text of a config with the line of `schema_line`, in place of one that it may have."""
    return schema_line(experiment) + re.sub(rf"\A{re.escape(_BEGINS)}.*\n", "", text)


def lost_schema(path: Path, experiment: str) -> str:
    """Advice about the line of a config that was copied away from its schema; empty otherwise."""
    match = re.match(rf"{re.escape(_BEGINS)}(\S+)", path.read_text("utf-8"))
    place = match[1] if match else ""
    name = urllib.parse.unquote(place.removeprefix("file://"))
    if not place or (path.parent / name).exists() or "://" in name:
        return ""
    line = schema_line(experiment).strip()
    instead = f"write {line}" if line else "leave the line out"
    return f"{path}:1: editors do not find the schema {place}; {instead}"
