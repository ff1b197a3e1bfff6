"""Compilation with little effort for programs that run for milliseconds, and programs on disk."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays import parallel
from truncgauss.arrays.importing import uncollected
from truncgauss.arrays.pytrees import is_concrete, is_staged

# Most of XLA's compilation time goes into fusions. For small arrays they save microseconds and cost
# seconds: without them a program compiles three to five times sooner. LIGHT also leaves out the
# optimisation of loops over points, which makes these several times slower. Its programs are not
# worth dividing among threads either: every part begins with a copy of the whole. The library
# YNNPACK is not used: its sums are slower, and its products of matrices, fused with what follows,
# gave NaN in `SequentialMonteCarlo` (jaxlib 0.10.2).
LIGHT = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,  # unknown to jaxlib 0.11.1 and newer
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_experimental_ynn_fusion_type": "",
}
# Eight numbers at a time, where a processor can: loops over points become 1.5 times faster.
FULL = {"xla_cpu_prefer_vector_width": 512}
MEDIUM = LIGHT | FULL | {"xla_backend_optimization_level": 1}
# In float32 level 1 ends the process where two numbers are repeated in a vector of eight: LLVM
# "cannot select" their load (jaxlib 0.10.2). Level 2 takes as long to compile.
SINGLE = MEDIUM | {"xla_backend_optimization_level": 2}


def is_accepted(options: dict[str, Any]) -> bool:
    """Whether the compiler takes these options, tried on a program without operations."""
    try:
        jax.jit(lambda: ()).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


@functools.cache
def accepted_names() -> frozenset[str]:
    """Names of those options of LIGHT and MEDIUM that this jaxlib's compiler takes.

    Compiler options are no interface: they come and go with each release of jaxlib. The compiler is
    asked once in a process, for all of them together first, since it takes all of them as a rule.
    """
    options = LIGHT | MEDIUM
    if is_accepted(options):
        return frozenset(options)
    return frozenset(name for name, value in options.items() if is_accepted({name: value}))


def cache_folder() -> Path | None:
    """The folder for compiled programs: JAX's, if one is set, or truncgauss/jax under
    XDG_CACHE_HOME or ~/.cache; None without a home."""
    stated: str | None = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    from truncgauss.arrays import kept_programs

    return Path(stated) if stated else kept_programs.own_folder("jax")


def use_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep every program that JAX compiles from now on in a folder, from which later processes read
    it: a first call then waits for tracing only.

    It turns on JAX's own persistent cache, for programs of all libraries, and has it keep those
    that compile in less than a second too, which JAX leaves out and most of ours are. Call it once
    at the top of a script or notebook. The command line does so by itself.

    Nothing is ever removed from the folder, unless `jax_compilation_cache_max_size` limits its
    bytes. Programs belong to a version of jaxlib and to a kind of processor: where machines of
    several kinds share a home folder, give each kind a folder of its own.

    Args:
        folder: where; made if it is not there. By default JAX's own, if one is set by
            JAX_COMPILATION_CACHE_DIR say, or else truncgauss/jax under XDG_CACHE_HOME or ~/.cache.

    Returns:
        The folder.

    Raises:
        ValueError: if no folder is given and the user has no home.
        OSError: if the folder cannot be written.

    Example:
        >>> tg.use_compilation_cache("programs")  # doctest: +SKIP
        PosixPath('programs')
    """
    if not isinstance(folder, str | os.PathLike | None):
        raise TypeError(f"use_compilation_cache: needs the path of a folder, got {folder!r}.")
    chosen = folder or cache_folder()
    if chosen is None:
        raise ValueError("use_compilation_cache: this user has no home folder; give folder=.")
    if "://" not in str(chosen):  # JAX takes addresses of object stores too
        try:
            Path(chosen).mkdir(parents=True, exist_ok=True)
            writable = os.access(chosen, os.W_OK | os.X_OK)
        except OSError:
            writable = False
        if not writable:
            raise PermissionError(f"{chosen} cannot be written; give another folder.")
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return Path(chosen)


class Cost(NamedTuple):
    """The work of one call of a program, by which the effort of its compilation is chosen.

    Attributes:
        numbers: numbers in the arrays that the program computes with.
        loops: whether it loops over points, or multiplies large matrices.
    """

    numbers: int
    loops: bool = True


MOST_LIGHT = 2**21  # numbers of a program without loops that runs for about a millisecond
MOST_MEDIUM = 2**24  # numbers; above, the work of all of XLA's optimisation pays off
PER_INPUT = 2**9  # numbers computed from each number of rows, as by a likelihood


def effort_of(cost: Cost) -> dict[str, Any]:
    """Compiler options for a program that does so much work."""
    if cost.numbers <= MOST_LIGHT and not cost.loops:
        return LIGHT
    return MEDIUM if cost.numbers <= MOST_MEDIUM else FULL


def closed_form(*args: Any) -> Cost:
    """The cost of formulas that use each number of the inputs a few times."""
    return Cost(sum(map(np.size, jax.tree.leaves(args))), loops=False)


def of_rows(*args: Any) -> Cost:
    """The cost of integrals for rows of data; a loss may have its own as its attribute `cost`."""
    stated: Cost | None = getattr(args[0], "cost", None)
    return Cost(PER_INPUT * closed_form(*args).numbers) if stated is None else stated


class Compiled:
    """A function under `jax.jit`, compiled for calls with numbers on a CPU by their work.

    Called with numbers it returns numbers, also while another function is traced. On other devices
    every effort is that of `jax.jit(function)`. Options of an effort that the compiler does not
    know are left out.

    Args:
        function: of pytrees of arrays.
        cost: (the same arguments) -> the work of a call, from the sizes of the arguments.
        static: the positions of arguments that are no arrays, as of `jax.jit`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        cost: Callable[..., Cost] = of_rows,
        static: tuple[int, ...] = (),
    ) -> None:
        self.function, self.cost, self.static = function, cost, static
        self.traced = jax.jit(function, static_argnums=static)
        self.programs: dict[Any, Any] = {}  # by the efforts of their compilation
        self.ahead: dict[Any, Any] = {}  # compiled ones by the kinds of their inputs
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        if not is_concrete(args):
            return self.traced(*args)
        from truncgauss.arrays import kept_programs  # of no use until something is computed

        with uncollected():
            effort = effort_of(self.cost(*args))
            dtypes = (getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(args))
            if effort is MEDIUM and np.float32 in (jnp.result_type(float), *dtypes):
                effort = SINGLE
            fixed = tuple(args[k] for k in self.static)
            arrays = [arg for k, arg in enumerate(args) if k not in self.static]
            leaves, structure = jax.tree.flatten(arrays)
            names = "shape", "dtype", "weak_type", "sharding"  # sooner known than `jax.typeof`
            kinds = tuple((type(x), *(getattr(x, n, None) for n in names)) for x in leaves)
            settings = kept_programs.settings()
            kind = tuple(effort.items()), fixed, structure, kinds, parallel.plan(), settings
            program = self.ahead.get(kind, self)  # by one look, as a kind is long to compare
            if program is self:
                program = self.ahead[kind] = kept_programs.program_of(kind, self, args, arrays)
            if program is None:
                if not is_staged():
                    return self.program(effort)(*args)
                # It would be traced as well, and may not have compiler options of its own there.
                program = self.ahead[kind] = self.program(effort).lower(*args).compile()
            return program(*arrays)

    def program(self, effort: dict[str, Any]) -> Any:
        """The function under `jax.jit`, to be compiled with one of the efforts."""
        if jax.default_backend() != "cpu":
            return self.traced
        key = tuple(effort.items())
        if key not in self.programs:
            self.programs[key] = self.jitted(effort, self.function)
        return self.programs[key]

    def jitted(self, effort: dict[str, Any], function: Callable[..., Any]) -> Any:
        names = accepted_names()
        options = {name: value for name, value in effort.items() if name in names}
        return jax.jit(function, static_argnums=self.static, compiler_options=options)
