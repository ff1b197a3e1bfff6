"""Checkpoints: the state of a fit in one file, so that an interrupted fit goes on to the bit.

The file is written beside its place, flushed to the disk and moved there in one step: whatever
happens, the place holds the old state or the new one. A state belongs to one fit, known by its
fingerprint; resuming another fit from it is an error.
"""

import functools
import hashlib
import json
import os
import types
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FORMAT = 1
HEADER = "header"
DAMAGE = (ValueError, KeyError, TypeError, EOFError, OSError, NotImplementedError, RuntimeError)


def save(path: str | os.PathLike[str], state: Any, fingerprint: dict[str, str]) -> None:
    """Write a state, a pytree of arrays and random keys, to an npz file, atomically.

    Args:
        path: where; missing folders are made.
        state: any pytree of arrays. Each is stored under its path in the tree.
        fingerprint: what the state belongs to, see `fingerprint`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps({"format": FORMAT, "fingerprint": fingerprint})
    arrays = {name: stored(leaf) for name, leaf in leaves_by_name(state).items()}
    entries: dict[str, Any] = {HEADER: np.array(header), **arrays}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush_folder(path.parent)


def restore(path: str | os.PathLike[str], like: Any, fingerprint: dict[str, str]) -> Any:
    """The state in an npz file, in the structure of `like`, if it belongs to the same fit.

    Args:
        path: a file written by `save`.
        like: a state of the expected structure, shapes and dtypes, such as the one at the start.
            Leading axes of leaves under "traces" may differ, since traces grow.
        fingerprint: what the state must belong to.

    Raises:
        ValueError: if the file is no checkpoint, or one of another fit; the message says which
            part differs and what to do.
    """
    header, arrays = contents(path)
    differing = [
        part for part, value in fingerprint.items() if header["fingerprint"].get(part) != value
    ]
    if differing:
        raise ValueError(
            f"the checkpoint {path} belongs to another fit: {' and '.join(differing)} differ(s). "
            "Give another path, or remove the file to start afresh."
        )
    leaves = []
    for name, leaf in leaves_by_name(like).items():
        expected = stored(leaf)
        found = arrays.get(name)
        grows = name.startswith("traces")
        if (
            found is None
            or found.dtype != expected.dtype
            or (not grows and found.shape != expected.shape)
        ):
            got = "nothing" if found is None else f"{found.dtype}{found.shape}"
            raise ValueError(
                f"the checkpoint {path} does not fit: {name} should be "
                f"{expected.dtype}{expected.shape}, got {got}. Another optimiser or version wrote "
                "it; give another path, or remove the file."
            )
        leaves.append(unstored(found, leaf))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def fingerprint(**parts: Any) -> dict[str, str]:
    """A digest of each named pytree: structure, shapes, dtypes and the numbers themselves."""
    return {name: digest(tree) for name, tree in parts.items()}


def source_digest(function: Any) -> str:
    """A digest of what a function computes: its code, its closure, its defaults, and the numbers
    among the global names that it uses.

    Functions are told apart that differ in their code or their data; objects of other kinds count
    by their leaves if they are pytrees, and by their type.
    """
    sha, seen = hashlib.sha256(), set()

    def add(value: Any) -> None:
        if id(value) in seen:
            return
        if isinstance(value, type(add)):
            seen.add(id(value))
            inside = [cell.cell_contents for cell in value.__closure__ or () if not_empty(cell)]
            used = [value.__globals__.get(name) for name in value.__code__.co_names]
            data = [item for item in used if isinstance(item, np.ndarray | jax.Array | float | int)]
            for own in (value.__code__, value.__defaults__, inside, data):
                add(own)
        elif isinstance(value, types.CodeType):
            sha.update(value.co_code)
            add(value.co_names)
            add(value.co_consts)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                add(part)
        elif isinstance(value, list | tuple | dict):
            sha.update(f"{type(value).__name__}{len(value)}".encode())
            for part in value.items() if isinstance(value, dict) else value:
                add(part)
        elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
            sha.update(repr(value).encode())
        elif jax.tree_util.all_leaves([value]) and not isinstance(value, np.ndarray | jax.Array):
            sha.update(f"{type(value).__module__}.{type(value).__qualname__}".encode())
        else:
            sha.update(digest(value).encode())

    add(function)
    return sha.hexdigest()[:16]


def not_empty(cell: Any) -> bool:
    """Whether a variable of a closure has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def contents(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a checkpoint file."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop(HEADER)))
        known = header["format"] == FORMAT and isinstance(header["fingerprint"], dict)
    except (*DAMAGE, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is no checkpoint of a fit ({error}). Give another path, or remove the file."
        ) from error
    if not known:
        raise ValueError(
            f"the checkpoint {path} has format {header['format']}, this version reads {FORMAT}. "
            "Remove it to start afresh."
        )
    return header, arrays


def leaves_by_name(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def unstored(array: np.ndarray, like: Any) -> Any:
    if is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return array if isinstance(like, np.ndarray) else jnp.asarray(array)


def digest(tree: Any) -> str:
    sha = hashlib.sha256()
    for name, leaf in leaves_by_name(tree).items():
        array = stored(leaf)
        sha.update(f"{name}:{array.dtype}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def flush_folder(folder: Path) -> None:
    """Make the renaming itself survive a power failure, where the system allows it."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
