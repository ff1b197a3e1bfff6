"""Text for the width of a terminal."""

import shutil
import sys
import textwrap


def wrapped(line: str) -> str:
    """A line that is too long for the terminal, broken between words and indented from its second
    line on. Rows of tables, whose words are apart by two blanks or more, and all that is not
    printed on a terminal stay as they are."""
    if sys.stdout is None or not sys.stdout.isatty():
        return line
    width = shutil.get_terminal_size().columns
    if len(line) <= width or "  " in line.strip():
        return line
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
