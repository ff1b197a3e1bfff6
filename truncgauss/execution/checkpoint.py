"""Checkpoints: the state of long work in one file, so that what is interrupted goes on to the bit.

The file is written under another name, flushed to the disk and moved in one step: whatever
happens, the old state or the new one is there. A file belongs to one piece of work, known by its
fingerprint, and carries a digest of all its numbers: another's, or a damaged one, is refused.

A file is a `Record` of two things: results of calls, each of which is computed once through
`computed`, and the latest states of loops, which a `Checkpoint` moves on, as `tg.minimize` or a
Markov chain does. Within `resumable` all of them go to one file. What draws no other random numbers
than from keys comes out the same.
"""

import contextlib
import contextvars
import functools
import hashlib
import itertools
import json
import os
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from truncgauss.arrays import parallel

FORMAT = 2
HEADER = "header"
SAVE_EVERY = 10.0  # seconds
SHARE = 0.05  # of the time, at most, goes into writing
S = TypeVar("S")
T = TypeVar("T")


class Record:
    """Results of calls and states of loops, in the order in which they were begun.

    What is begun within a call is counted by itself, so that work behind a call that is not
    repeated finds its own results, and is forgotten once that call has its result.
    """

    def __init__(self, path: Path, fingerprint: dict[str, str], save_every: float) -> None:
        self.path, self.fingerprint, self.save_every = path, fingerprint, save_every
        self.last, self.cost = time.monotonic(), 0.0  # when it was written, and in how many seconds
        self.within = ""  # what the names begin with of calls within the one that is being made
        self.parts: list[str] = []  # these calls
        self.changed = False
        self.counts: dict[str, int] = {}
        self.entries: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}
        if path.exists():
            header, self.arrays = contents(path)
            refuse_foreign(path, header["fingerprint"], fingerprint)
            self.entries = header["entries"]

    def next_name(self, name: str) -> str:
        name = self.within + name
        self.counts[name] = self.counts.get(name, 0) + 1
        return f"{name}-{self.counts[name]}"

    def result(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        key, digest = self.next_name(name), source_digest((function, args))
        if key not in self.entries:
            value, parts = self.made(key, function, args)
            self.put(key, digest, value)
            for part in parts:  # calls within one that has its own result
                for number in itertools.count():
                    if self.arrays.pop(f"{part}.{number}", None) is None:
                        break
                del self.entries[part]
            if self.due():
                self.save()
        self.parts.append(key)
        entry = self.entries[key]
        if entry["mark"] != digest:
            raise ValueError(
                f"the checkpoint {self.path} belongs to other work: its call {key} was made with "
                "other data or other code. Give another path, or remove the file to start afresh."
            )
        return rebuilt(entry["result"], self.arrays)

    def put(self, key: str, digest: Any, value: Any) -> None:
        """Take the result of a call, or the next state of a loop, with what it belongs to."""
        arrays: dict[str, np.ndarray] = {}
        structure = described(value, key, arrays)
        # One step, which an interruption cannot part.
        self.arrays |= arrays
        self.entries[key] = {"mark": digest, "result": structure}
        self.changed = True

    def made(self, key: str, function: Callable[..., Any], args: Any) -> tuple[Any, list[str]]:
        """The result of a function, and the keys of the calls within it."""
        outside = self.within, self.parts
        self.within, self.parts = f"{key}.", []
        try:
            return function(*args), self.parts
        finally:
            self.within, self.parts = outside

    def due(self) -> bool:
        return time.monotonic() - self.last > max(self.save_every, self.cost / SHARE)

    def save(self) -> None:
        if self.changed:
            began = time.monotonic()
            write(self.path, dict(self.arrays), self.fingerprint, dict(self.entries))
            self.last = time.monotonic()
            self.cost, self.changed = self.last - began, False


RECORD: contextvars.ContextVar[Record | None] = contextvars.ContextVar("record", default=None)


@contextlib.contextmanager
def resumable(
    path: str | os.PathLike[str], save_every: float = SAVE_EVERY, **belongs_to: Any
) -> Iterator[Record]:
    """Within this context, `tg.minimize` and calls through `computed` are kept in a file and not
    done twice.

    The results of calls are written every `save_every` seconds and however the context ends. When
    the same work is done again with the same file, those calls are answered from it, and the work
    goes on where it ended, to the bit.

    Args:
        path: the file; what is too large for it is written to files beside it.
        save_every: seconds between two writings.
        belongs_to: pytrees, or texts, that the work depends on; with others the file is refused.

    Raises:
        ValueError: the file is damaged, or belongs to other work.

    Example:
        >>> import pathlib, tempfile
        >>> from truncgauss import fitting
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "fit.npz"
        >>> with fitting.resumable(file):
        ...     fit = tg.minimize(lambda x: jnp.cosh(x - 1.0), 0.0, progress=False)
        >>> file.exists()
        True
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f'resumable: needs the path of a file, such as "fit.npz", got {path!r}.')
    record = Record(Path(path), fingerprint(**belongs_to), save_every)
    before = RECORD.set(record)
    try:
        yield record
    finally:
        RECORD.reset(before)
        record.save()


def computed(name: str, function: Callable[..., T], *args: Any) -> T:
    """The result of a function: arrays, numbers, texts, None, lists and dictionaries of these.

    Within `resumable` it is read from there if an earlier attempt has computed it. Its arrays are
    NumPy's then. While JAX traces, and outside of `resumable`, this is a plain call.

    Args:
        name: of the kind of call. Calls of one name are told apart by their order.
        function: what to call.
        args: with what.

    Raises:
        ValueError: an earlier attempt made another call here.
        TypeError: the function returned something else.
    """
    record = RECORD.get()
    if record is None or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
        return function(*args)
    return record.result(name, function, args)


class Checkpoint(Generic[S]):
    """The state of a loop: in memory, and within `resumable` in its file too, every so many seconds
    and at the end.

    Args:
        start: the state to begin with, a pytree of arrays and random keys. Leaves under "traces"
            may grow along their leading axes, all others keep shape and dtype.
        fingerprint: what the state belongs to, see `fingerprint`.
        name: of the kind of loop. Loops of one name are told apart by their order.

    Raises:
        ValueError: on entering, if the file is damaged or belongs to something else.

    Example:
        >>> from truncgauss.execution.checkpoint import Checkpoint
        >>> with Checkpoint({"sum": jnp.zeros(())}, {}) as kept:
        ...     for _ in range(3):
        ...         kept.update({"sum": kept.state["sum"] + 1.0})
        >>> float(kept.state["sum"])
        3.0
    """

    def __init__(self, start: S, fingerprint: dict[str, str], name: str = "state") -> None:
        self.name, self.record = name, RECORD.get()
        self.state, self.fingerprint, self.unsaved = start, fingerprint, True

    def __enter__(self) -> "Checkpoint[S]":
        if self.record is not None:
            self.key = self.record.next_name(self.name)
            self.record.parts.append(self.key)
            if (entry := self.record.entries.get(self.key)) is not None:
                refuse_foreign(self.record.path, entry["mark"], self.fingerprint)
                leaves = rebuilt(entry["result"], self.record.arrays)
                self.state = restored(self.record.path, leaves, self.state)
                self.unsaved = False
        return self

    def update(self, state: S) -> None:
        """Take the next state, and write it if that is due."""
        self.state, self.unsaved = state, True
        if self.record is not None and self.record.due():
            self.save()

    def save(self) -> None:
        if self.record is not None and self.unsaved:
            leaves = {name: stored(leaf) for name, leaf in leaves_by_name(self.state).items()}
            self.record.put(self.key, self.fingerprint, leaves)
            self.record.save()
            self.unsaved = False

    def __exit__(self, *failure: object) -> None:
        self.save()


def described(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go to `arrays`, under names that begin with `name`."""
    if value is None or isinstance(value, bool | int | str) or type(value) is float:
        return value
    if isinstance(value, dict):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{name}: keys of a kept result must be texts, got {wrong[0]!r}")
        return {"dict": {key: described(item, name, arrays) for key, item in value.items()}}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return {type(value).__name__: [described(item, name, arrays) for item in value]}
    if not isinstance(value, np.ndarray | np.generic | jax.Array) or is_key(value):
        kind = type(value).__name__
        raise TypeError(f"{name}: a kept result must be numbers, texts and arrays, got {kind}")
    place = f"{name}.{len(arrays)}"
    arrays[place] = np.asarray(value)
    return {"array": place}


def rebuilt(structure: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `described` described."""
    if not isinstance(structure, dict):
        return structure
    ((kind, inside),) = structure.items()
    if kind == "array":
        array = arrays[inside]
        return array.copy() if array.ndim else array[()]
    if kind == "dict":
        return {key: rebuilt(item, arrays) for key, item in inside.items()}
    items = [rebuilt(item, arrays) for item in inside]
    return items if kind == "list" else tuple(items)


# ---------------------------------------------------------------- files


def write(
    path: Path, arrays: dict[str, np.ndarray], fingerprint: dict[str, str], entries: Any
) -> None:
    """Write arrays with a header and a digest of both."""
    from truncgauss.execution import writing

    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"format": FORMAT, "fingerprint": fingerprint, "entries": entries}
    header = json.dumps(about | {"digest": digest_of(about, arrays)})
    everything: dict[str, Any] = {HEADER: np.array(header), **arrays}
    writing.write_arrays(path, everything)
    if os.name == "posix":  # so that the renaming itself survives a power failure
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def restored(path: Path, arrays: dict[str, np.ndarray], like: S) -> S:
    """A state of the structure of `like` from its leaves by name.

    Args:
        path: the file that they come from.
        arrays: the leaves.
        like: a state of the expected structure, shapes and dtypes, such as the one at the start.
            Leading axes of leaves under "traces" may differ, since traces grow.

    Raises:
        ValueError: a leaf is not there, or of another shape or dtype.
    """
    leaves = []
    for name, leaf in leaves_by_name(like).items():
        expected, array = stored(leaf), arrays.get(name)
        grows = name.startswith("traces")
        if (
            array is None
            or array.dtype != expected.dtype
            or (not grows and array.shape != expected.shape)
        ):
            got = "nothing" if array is None else f"{array.dtype}{array.shape}"
            raise ValueError(
                f"the checkpoint {path} does not fit: {name} should be "
                f"{expected.dtype}{expected.shape}, got {got}. Another optimiser or version wrote "
                "it; give another path, or remove the file."
            )
        if is_key(leaf):
            implementation = jax.random.key_impl(leaf)
            leaves.append(jax.random.wrap_key_data(jnp.asarray(array), impl=implementation))
        else:
            leaves.append(array if isinstance(leaf, np.ndarray) else jnp.asarray(array))
    state: S = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return state


def refuse_foreign(path: Path, written: dict[str, str], fingerprint: dict[str, str]) -> None:
    differing = [part for part, value in fingerprint.items() if written.get(part) != value]
    if differing:
        raise ValueError(
            f"the checkpoint {path} belongs to another fit: {' and '.join(differing)} differ(s). "
            "Give another path, or remove the file to start afresh."
        )


def contents(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a checkpoint file."""
    from truncgauss.arrays.archive import DAMAGE, archive

    try:
        with archive(path) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop(HEADER)))
        known = header["format"] == FORMAT and isinstance(header["fingerprint"], dict)
        digest = header.pop("digest", None)
        if known and digest != digest_of(header, arrays):
            raise ValueError("its digest does not agree with its numbers")
    except (*DAMAGE, OSError) as error:
        raise ValueError(
            f"{path} is no checkpoint of a fit ({error}). Give another path, or remove the file."
        ) from error
    if not known:
        raise ValueError(
            f"the checkpoint {path} has format {header['format']}, this version reads {FORMAT}. "
            "Remove it to start afresh."
        )
    return header, arrays


def digest_of(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    text = json.dumps({key: about[key] for key in ("format", "fingerprint", "entries")})
    return hashlib.sha256((text + digest(dict(sorted(arrays.items())))).encode()).hexdigest()


# ---------------------------------------------------------------- digests


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
    """A digest of a pytree; of arrays that processes hold in parts it is one of those parts."""
    sha = hashlib.sha256()
    for name, leaf in leaves_by_name(tree).items():
        if parallel.is_elsewhere(leaf):
            own = b"".join(np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards)
            part = np.frombuffer(hashlib.sha256(own).digest(), np.uint8)
            sha.update(f"{leaf.shape}".encode())
            array = multihost_utils.process_allgather(part)
        else:
            array = stored(leaf)
        sha.update(f"{name}:{array.dtype}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]
