"""Files written in one step and named in every error."""

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from truncgauss.words.names import meant

# What is the matter with a path that somebody typed, and not with the machine.
_OF_THE_PATH = (
    FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError,
)  # fmt: skip


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The path of a new file, which takes the place of `path` when the context ends.

    Raises:
        OSError: the file cannot be written; the error names `path`, which Python's own leaves out
            where a disk is full or a file too large.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def write(path: str | os.PathLike[str], content: bytes | memoryview | str) -> None:
    """Write bytes, or a text as UTF-8: whatever happens, the file is the old one or the new one.

    Raises:
        OSError: see `replacing`.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss.execution import writing
        >>> path = pathlib.Path(tempfile.mkdtemp(), "x.txt")
        >>> writing.write(path, "text")
        >>> path.read_text()
        'text'
    """
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def write_arrays(path: Path, arrays: dict[str, Any], save: Callable[..., None] = np.savez) -> None:
    """Write an NPZ file, made in memory, so that a full disk is nothing but an OSError.

    Args:
        path: of the file.
        arrays: by name.
        save: `np.savez`, or `np.savez_compressed`.

    Raises:
        OSError: see `replacing`.
    """
    made = io.BytesIO()
    save(made, **arrays)
    # Released: of a view that an error keeps in its frames the garbage collector of Python 3.12
    # makes a segmentation fault.
    with made.getbuffer() as content:
        write(path, content)


def is_of_the_path(error: OSError) -> bool:
    """Whether an error is one of the path that was typed; else the machine failed, as a disk does
    that is full."""
    return isinstance(error, _OF_THE_PATH) or error.errno in (errno.EROFS, errno.ENAMETOOLONG)


def said(error: OSError) -> str:
    """An error with the file that it is of, in a sentence.

    Example:
        >>> from truncgauss.execution import writing
        >>> writing.said(OSError(28, "No space left on device", "x.npz"))
        'x.npz: No space left on device'
    """
    parts = (error.filename, error.strerror or str(error))
    near, path = "", Path(str(error.filename))
    if isinstance(error, FileNotFoundError) and path.parent.is_dir():
        names = sorted(os.listdir(path.parent))
        alike = [name for name in names if path.suffix and name.endswith(path.suffix)]
        near = meant(path.name, names) or f"; there are {', '.join(alike[:5])}" * bool(alike)
    return ": ".join(str(part) for part in parts if part is not None) + near
