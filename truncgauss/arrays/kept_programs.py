"""Compiled programs of the library's own functions on disk: a later process neither traces nor
compiles what an earlier one did.

JAX's own persistent cache finds a program by its text, for which the function is traced and lowered
first, two thirds of the wait that is left; and it is one setting for the programs of everybody.
Here a program is found by what determines its text: the function, the kinds of its inputs and all
static parts of them, the source of this package, JAX's settings, and the versions of Python, JAX
and NumPy, the compiler's flags and the kind of processor. Where anything else could have a say,
such as a function or a class from outside of this package, no program is kept.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import os
import pickle
import platform
import secrets
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from truncgauss.arrays import parallel

SETTING = "TRUNCGAUSS_CACHE"  # of the environment: "off" for none, or a folder
MOST_BYTES = 256 * 2**20  # in the folder; above, what was used longest ago is removed
PACKAGE = __name__.partition(".")[0]
KNOWN = PACKAGE, "jax", "jaxlib", "numpy", "builtins", "collections"  # whose versions are known
# Settings of JAX that do not change what a program computes.
MUTE = "cache", "log", "traceback", "pprint", "locations", "dump", "guard", "pgle", "timeout"


class Unknown(Exception):
    """Something that determines a program is not known by its name."""


def folder() -> Path | None:
    """The folder of kept programs: that of TRUNCGAUSS_CACHE, or truncgauss/programs under
    XDG_CACHE_HOME or ~/.cache; None where it is "off" or there is no home."""
    stated = os.environ.get(SETTING, "")
    if stated.lower() in ("off", "0"):
        return None
    return Path(stated) if stated else own_folder("programs")


def own_folder(name: str) -> Path | None:
    """The folder of that name of ours under XDG_CACHE_HOME or ~/.cache; None without a home."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return home / PACKAGE / name if home.is_absolute() else None


def program_of(kind: tuple[Any, ...], compiled: Any, args: Any, arrays: Any) -> Any:
    """The program of a function as an earlier process kept it, or compiled and kept; None where it
    may not be kept.

    It is compiled under a name of its own, so that JAX does not find it in its persistent cache: a
    program from there is written without some of its functions (jaxlib 0.10.2).

    Args:
        kind: of its call, see `Compiled`: options of the compiler, static arguments, ...,
            `parallel.plan()` and `settings()`.
        compiled: the `Compiled` that is called.
        args, arrays: of the call, and those of them that are arrays.
    """
    options, fixed, *_, plan, settings = kind
    function = compiled.function
    if settings is None or plan != parallel.MeshPlan() or folder() is None:
        return None
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return None
    try:
        key = key_of(function, options, fixed, arrays)
    except Unknown:
        return None
    program = read(key)
    if program is None:
        anew = renamed(function, f"{function.__name__}_{secrets.token_hex(4)}")
        program = compiled.jitted(dict(options), anew).lower(*args).compile()
        write(key, program, arrays)
    return program


def renamed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function under another name, which is a part of the text of its program."""

    def same(*args: Any) -> Any:
        return function(*args)

    same.__name__ = name
    return same


def key_of(function: Callable[..., Any], options: Any, fixed: tuple[Any, ...], arrays: Any) -> str:
    """A text that determines the compiled program of a function of this package.

    Raises:
        Unknown: where a part of it comes from elsewhere, or an array is not on the first device.
    """
    leaves, structure = jax.tree.flatten(arrays)
    kinds = [kind_of(leaf) for leaf in leaves]
    parts = described(function), described(options), described(fixed), form_of(structure), kinds
    values = sorted(
        f"{name}={value!r}"
        for name, value in jax.config.values.items()
        if not any(word in name for word in MUTE)
    )
    # Those that a context of one thread sets are not among the values.
    local = [getattr(jax.config, name, None) for name in LOCAL]
    return "\n".join(map(str, (*parts, local, values, surroundings())))


LOCAL = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_rank_promotion",
    "jax_numpy_dtype_promotion",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_debug_key_reuse",
)
CHANGING = "jax_debug_nans", "jax_debug_infs", "jax_disable_jit", "jax_check_tracer_leaks"


def settings() -> tuple[Any, ...] | None:
    """Those of JAX's settings that a block of code may change; None where programs are not kept."""
    if jax.config.jax_default_device is not None:  # type: ignore[attr-defined]
        return None
    if any(getattr(jax.config, name, False) for name in CHANGING):
        return None
    return tuple(getattr(jax.config, name, None) for name in LOCAL)


def kind_of(leaf: Any) -> str:
    """The text of an array's shape and dtype."""
    if isinstance(leaf, jax.Array) and leaf.devices() != {jax.local_devices()[0]}:
        raise Unknown
    kind = jax.typeof(leaf)
    return f"{kind} {kind.weak_type}" if hasattr(kind, "weak_type") else str(kind)


def form_of(structure: Any) -> str:
    """The text of a tree's structure, with its static parts."""
    data = structure.node_data()
    inner = ", ".join(form_of(child) for child in structure.children())
    return f"*{inner}" if data is None else f"{described(data)}({inner})"


def described(value: Any) -> str:
    """A text that determines a static value.

    Raises:
        Unknown: for what is not a plain value, or is defined outside of this package.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.dtype):
        if type(value).__module__ not in ("builtins", "numpy.dtypes", "numpy"):
            raise Unknown
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.tobytes().hex()}"
    if isinstance(value, type | types.FunctionType | np.ufunc) or hasattr(value, "__wrapped__"):
        return named(value)
    if isinstance(value, functools.partial):
        return f"partial {described((value.func, value.args, value.keywords))}"
    name = named(type(value))
    if isinstance(value, enum.Enum):
        return f"{name} {value.name}"
    if isinstance(value, tuple | list):
        return f"{name} ({', '.join(map(described, value))})"
    if isinstance(value, dict):
        return f"{name} {{{', '.join(described(item) for item in value.items())}}}"
    if isinstance(value, frozenset):
        return f"{name} {sorted(map(described, value))}"
    if dataclasses.is_dataclass(value):
        fields = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return f"{name} {described(fields)}"
    raise Unknown


def named(value: Any) -> str:
    """The dotted name of a class or function of a package whose version is known."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not name or module.partition(".")[0] not in KNOWN:
        raise Unknown
    if module == "builtins":  # such as NoneType, which is found nowhere
        return str(name)
    defined: Any = importlib.import_module(module)
    for part in name.split("."):
        defined = getattr(defined, part, None)
    # Others may carry its name: what `functools.wraps`, or `jax.grad` of a known function.
    if defined is not value and getattr(defined, "function", None) is not value:  # of `Compiled`
        raise Unknown
    return f"{module}.{name}"


@functools.cache
def surroundings() -> str:
    """A digest of the source of this package, versions, flags of the compiler, and processor."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "JAX_PLATFORMS")]
    traced = "jax", "jaxlib", "numpy", "scipy", "optax", "numpyro"  # or what is called meanwhile
    versions = [importlib.metadata.version(name) for name in traced]
    machine = platform.python_version(), platform.platform(), processor(), jax.devices()
    digest.update(repr((versions, flags, machine)).encode())
    return digest.hexdigest()


def processor() -> str:
    """The model and features of the processors, which do not run each other's programs, and their
    number."""
    text = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        text += "".join(sorted({x for x in lines if x.startswith(("model name", "flags", "Feat"))}))
    return f"{text} {os.cpu_count()}"


def read(key: str) -> Any:
    """The program that was kept, or None; one that cannot be read is removed."""
    path = place_of(key)
    if path is None:
        return None
    try:
        kept, of_lapack, *stored = pickle.loads(path.read_bytes())
        if kept != key:
            return None
        if of_lapack:
            ready_kernels()
        program = _loaded(*stored)
        os.utime(path)
    except FileNotFoundError:
        return None
    except Exception:
        # A file that was cut off, or by a version of JAX with another form: compiled again.
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return program


def _loaded(payload: bytes, arguments: Any, results: Any) -> Any:
    from jax.experimental import serialize_executable

    devices = jax.local_devices()[:1]
    return serialize_executable.deserialize_and_load(
        payload, arguments, results, execution_devices=devices
    )


@functools.cache
def ready_kernels() -> None:
    """Have JAX find the addresses of LAPACK's functions, which lowering does otherwise.

    A program with a Cholesky factor that is read ends the process without them. JAX imports
    `scipy.linalg` for them, a quarter of a second.
    """
    jax.jit(jax.lax.linalg.cholesky).lower(jax.ShapeDtypeStruct((1, 1), np.float32))


def write(key: str, program: Any, arrays: Any) -> None:
    """Keep a program, if JAX can and the folder takes it; room is made for it.

    It is read and run once first, since only a run tells whether all of its functions were written.
    """
    from jax.experimental import serialize_executable

    path = place_of(key)
    if path is None:
        return
    try:
        stored = serialize_executable.serialize(program)
        jax.block_until_ready(_loaded(*stored)(*arrays))
        text = pickle.dumps((key, "lapack" in program.as_text(), *stored))
    except (ValueError, TypeError, AttributeError, NotImplementedError, pickle.PicklingError):
        return  # with constants, callbacks, or a static part that has no name
    except jax.errors.JaxRuntimeError:
        return
    with contextlib.suppress(OSError):  # a full or read-only disk
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(text)
            os.replace(name, path)  # whole, also for another process that reads it now
        except OSError:
            os.unlink(name)
            raise
        make_room(path.parent)


def make_room(kept: Path) -> None:
    """Remove what was used longest ago, down to MOST_BYTES."""
    files = []
    for entry in os.scandir(kept):
        with contextlib.suppress(FileNotFoundError):  # another process makes room too
            files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    excess = sum(size for _, size, _ in files) - MOST_BYTES
    for _, size, path in sorted(files):
        if excess <= 0:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        excess -= size


def place_of(key: str) -> Path | None:
    kept = folder()
    return kept and kept / hashlib.sha256(key.encode()).hexdigest()
