"""Digests of data and of functions, by which work is known again."""

import functools
import hashlib
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution import distributed, parallel, row_sums
from truncgauss.execution.distributed import SpreadRows


def fingerprint(**parts: Any) -> dict[str, str]:
    """A digest of each named pytree: structure, shapes, dtypes and the numbers themselves."""
    return {
        name: hashlib.sha256(tree.encode()).hexdigest()[:16]
        if isinstance(tree, str)
        else digest(tree)
        for name, tree in parts.items()
    }


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
        if isinstance(value, SpreadRows):
            sha.update(digest(value).encode())
        elif isinstance(value, type(add)):
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


def leaves_by_name(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def digest(tree: Any) -> str:
    """A digest of a pytree; of rows of a file it is the same on any number of devices and
    processes, though these fill them up to different lengths."""
    sha = hashlib.sha256()
    tree = jax.tree.map(
        lambda node: marked(node) if isinstance(node, SpreadRows) else node,
        tree,
        is_leaf=lambda node: isinstance(node, SpreadRows),
    )
    for name, leaf in leaves_by_name(tree).items():
        spread = parallel.is_elsewhere(leaf)  # over processes, none of which has all of it
        array = words_of(leaf) if spread else stored(leaf)
        about = leaf if spread else array
        sha.update(f"{name}:{about.dtype}:{about.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def words_of(array: jax.Array) -> np.ndarray:
    """Words that tell an array from others of its shape and dtype, of which each process has some
    elements; the same on all of them."""
    total = np.zeros(1, np.uint64)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            sides = [range(size)[part] for part, size in zip(shard.index, array.shape, strict=True)]
            numbers = np.asarray(np.ravel_multi_index(np.ix_(*sides), array.shape), np.uint64)
            bits = np.asarray(shard.data).view(np.dtype(f"u{array.dtype.itemsize}"))
            total += row_sums.hashed(bits.astype(np.uint64), numbers).sum(dtype=np.uint64)
    return np.asarray(sum(distributed.exchanged(total)))


def marked(rows: SpreadRows) -> dict[str, Any]:
    """Identity of the rows of a file; numbers may be traced or in other processes."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in rows):
        return rows._asdict()
    values, weights = rows
    sums = row_sums.of_spread("checkpoint", rows)
    counted = np.asarray(sums.local(weights)) > 0
    words = row_sums.fingerprint_of([sums.local(values)], counted, sums.begin)
    return {"rows": words, "d": values.shape[1:]}
