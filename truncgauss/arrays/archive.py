"""Arrays of an NPZ file, and what is raised where it is torn."""

import contextlib
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

# What NumPy and the libraries under it raise when an archive is torn or overwritten.
DAMAGE = (
    ValueError, KeyError, TypeError, EOFError, NotImplementedError, RuntimeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@contextlib.contextmanager
def archive(path: str | os.PathLike[str]) -> Iterator[Any]:
    """The arrays of an NPZ file by name, to be read within the context.

    Raises:
        ValueError: the file is torn, or holds something else; said of "it", without the path.
        OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            zipfile.ZipFile(file)  # NumPy takes what is no archive for a pickle, and suggests that
            file.seek(0)
            with np.load(file, allow_pickle=False) as stored:
                yield stored
        except (*DAMAGE, OSError) as error:
            raise ValueError("it is torn, or holds more than plain arrays") from error
