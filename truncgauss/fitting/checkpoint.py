"""Checkpoints: the state of a fit in one file, so that an interrupted fit goes on to the bit.

The file is written beside its place, flushed to the disk and moved there in one step: whatever
happens, the place holds the old state or the new one. A state belongs to one fit, known by its
fingerprint; resuming another fit from it is an error.
"""

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FORMAT = 1
HEADER = "header"


def save(path: str | os.PathLike, state: Any, fingerprint: dict[str, str]) -> None:
    """Write a state, a pytree of arrays and random keys, to an npz file, atomically.

    Args:
        path: where; missing folders are made.
        state: any pytree of arrays. Each is stored under its path in the tree.
        fingerprint: what the state belongs to, see `fingerprint`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {name: stored(leaf) for name, leaf in leaves_by_name(state).items()}
    header = json.dumps({"format": FORMAT, "fingerprint": fingerprint})
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **{HEADER: np.array(header)}, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush_folder(path.parent)


def restore(path: str | os.PathLike, like: Any, fingerprint: dict[str, str]) -> Any:
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


def contents(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a checkpoint file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop(HEADER)))
        known = header["format"] == FORMAT
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
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
