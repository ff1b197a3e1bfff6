"""Compilation with little effort for programs that run for milliseconds, and their inner loops."""

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from truncgauss import parallel
from truncgauss.garbage import uncollected
from truncgauss.pytrees import is_concrete, is_staged

# Most of XLA's compilation time goes into fusions. For small arrays they save microseconds and cost
# seconds: without them a program compiles three to five times sooner. LIGHT also leaves out the
# optimisation of loops over points, which makes these several times slower. Its programs are not
# worth dividing among threads either: every part begins with a copy of the whole. The library
# YNNPACK is not used: its sums are slower, `in_one_kernel` could not hold them, and its products of
# matrices, fused with what follows, gave NaN in `SequentialMonteCarlo` (jaxlib 0.10.2).
LIGHT = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_experimental_ynn_fusion_type": "",
}
# Eight numbers at a time, where a processor can: loops over points become 1.5 times faster.
MEDIUM = LIGHT | {"xla_backend_optimization_level": 1, "xla_cpu_prefer_vector_width": 512}

# Whether what is traced becomes a program of these options. Part of the key of JAX's caches.
_LITTLE_EFFORT = jax.make_user_context(default_value=False)


def in_one_kernel(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, in programs of little effort as one kernel with all of its loops.

    Without it every operation in the body of a loop is a kernel of its own, which XLA hands to its
    threads one by one: a third of the time of a recursion over a few hundred points. The function
    may consist of loops, elementwise operations and products of vectors. XLA (of jaxlib 0.10) ends
    the process at sums along an axis, and refuses factorisations, sorts and scatters; products of
    matrices are slow there. So it is for functions whose operations are known, in all shapes that
    `tests/test_compiling.py` tries.
    """
    if not _LITTLE_EFFORT.value:
        return function(*args)
    found = jax.jit(function)(*args)
    return set_xla_metadata(found, xla_cpu_small_call="true", inlineable="false")


class Compiled:
    """A function under `jax.jit`, compiled with less effort for calls with numbers on a CPU.

    Called with numbers and an effort it returns numbers, also while another function is traced. On
    other devices, and where XLA_FLAGS are set, every effort is that of `jax.jit(function)`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.traced = jax.jit(function)
        self.light = jax.jit(function, compiler_options=LIGHT)
        self.medium = jax.jit(function, compiler_options=MEDIUM)
        self.ahead: dict[Any, Any] = {}  # programs by the kinds of their inputs
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, effort: dict[str, Any] | None = None) -> Any:
        """The function's value; `effort` is LIGHT, MEDIUM, or None for XLA's own default."""
        if effort is None or not is_concrete(args):
            return self.traced(*args)
        with uncollected():
            return self._called(*args, effort=effort)

    def _called(self, *args: Any, effort: dict[str, Any]) -> Any:
        compiled = self.light if effort is LIGHT else self.medium
        if jax.default_backend() != "cpu" or os.environ.get("XLA_FLAGS"):
            compiled = self.traced
        with _LITTLE_EFFORT(compiled is not self.traced):
            if not is_staged():
                return compiled(*args)
            # A call would be traced as well, and may not have compiler options of its own there.
            leaves, structure = jax.tree.flatten(args)
            kinds = tuple((jax.typeof(leaf), getattr(leaf, "sharding", None)) for leaf in leaves)
            effort_of = compiled is self.light, compiled is self.medium
            kind = effort_of, structure, kinds, parallel.plan()
            if kind not in self.ahead:
                self.ahead[kind] = compiled.lower(*args).compile()
            return self.ahead[kind](*args)
