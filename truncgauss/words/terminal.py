"""Text for the width of a terminal."""

import contextlib
import dataclasses
import re
import shutil
import sys
import textwrap
from typing import Any

MOST_SHOWN = 30  # numbers of an array in a repr


def summary_of(value: Any) -> str:
    """The repr of a dataclass, with the type and shape in the place of an array of many numbers."""
    fields = [field.name for field in dataclasses.fields(value) if field.repr]
    parts = [f"{name}={short(getattr(value, name))}" for name in fields]
    return f"{type(value).__qualname__}({', '.join(parts)})"


def short(value: Any) -> str:
    """The repr of a value; of an array of more than `MOST_SHOWN` numbers its type and shape."""
    if getattr(value, "size", 0) > MOST_SHOWN and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return repr(value)


def wrapped(line: str, indent: str = "  ") -> str:
    """A line that is too long for the terminal, broken between words and indented from its second
    line on. Rows of tables, whose words are apart by two blanks or more, and all that is not
    printed on a terminal stay as they are."""
    if sys.stdout is None or not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    if len(line) <= width or "  " in line.strip():
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def paragraphs() -> contextlib.AbstractContextManager[Any]:
    """A context in which lines of words that are printed are wrapped; frames, and what begins with
    a colour, are not."""
    if sys.stdout is None:
        return contextlib.nullcontext()
    return contextlib.redirect_stdout(_Paragraphs(sys.stdout))


class _Paragraphs:
    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> None:
        lines = (wrapped(x, "") if re.match(r"[\w`]", x) else x for x in text.split("\n"))
        self.stream.write("\n".join(lines))
