"""A tape of a JAX program: its primitives evaluated one at a time, with the graph of their results.

Each result becomes a `Node` with references to its parents. Arrays are stored only if they hold a
non-finite value, so the tape of a finite program is small; from a NaN or an infinity the graph is
followed back, element by element, to the primitive that produced it.

Reference:
    Griewank and Walther (2008), Evaluating Derivatives: computational graphs and tapes.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

Index = tuple[int, ...]
Test = Callable[[Any], Any]

# Calls whose bodies are evaluated primitive by primitive; one input for each operand of the call.
CALLS = frozenset(
    "jit pjit closed_call core_call core_closed_call checkpoint remat remat2 "
    "custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr".split()
)
# Element i of the result depends on element i of every operand, and on nothing else.
ELEMENTWISE = frozenset(
    "add add_any sub mul div rem pow integer_pow square sqrt rsqrt cbrt exp exp2 log log1p expm1 "
    "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh logistic erf erfc erf_inv "
    "lgamma digamma polygamma igamma igammac regularized_incomplete_beta max min neg sign abs "
    "floor ceil round clamp nextafter select_n convert_element_type reduce_precision copy "
    "one_minus_square real imag conj complex is_finite".split()
)
# The result holds the operand's elements in other positions, found by applying the primitive to
# the positions.
MOVES = frozenset("broadcast_in_dim reshape transpose squeeze expand_dims slice rev".split())

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))
_SILENT = (
    os.path.dirname(os.path.abspath(jax.__file__)) + os.sep,
    os.path.join(_DIRECTORY, "tape.py"),
    os.path.join(_DIRECTORY, "nonfinite.py"),
    "<",
)


class Node:
    """One result of one evaluated primitive, or an input of the program.

    Attributes:
        name: the primitive's name; empty for inputs, constants and rows of loops.
        parents: the nodes of its operands.
        value, operands: the arrays, where the result is not finite everywhere.
        peak: the largest magnitude in the result, NaN where one is present; 0 for what is not
            floating point.
        label: what to call an input.
        backward: whether it depends on the seed of the backward pass, that is, is a cotangent.
        callers: the calls and loops around it, outermost first: (what to call it, its equation).
    """

    def __init__(
        self,
        name: str,
        value: Any,
        callers: tuple[tuple[str, Any], ...],
        *,
        parents: Sequence[Node] = (),
        operands: Sequence[Any] = (),
        eqn: Any = None,
        label: str | None = None,
        backward: bool = False,
        route: Callable[[Index], tuple[int, Index]] | None = None,
    ):
        self.name, self.callers, self.eqn, self.label = name, callers, eqn, label
        self.parents, self.route = tuple(parents), route
        self.backward: bool = backward or any(p.backward for p in self.parents)
        array, self.peak = plain_array(value), 0.0
        if array.dtype.kind in "fc" and array.size:
            with np.errstate(all="ignore"):
                self.peak = float(np.max(np.abs(array)))
        nonfinite = not math.isfinite(self.peak)
        self.value = array if nonfinite else None
        self.operands = tuple(operands) if nonfinite else ()

    def first(self, test: Test) -> Index | None:
        """The first element that passes the test."""
        if self.value is None:
            return None
        passing = np.argwhere(test(self.value))
        return tuple(int(i) for i in passing[0]) if len(passing) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, () where it is not kept."""
        return () if self.value is None else self.value.shape

    def passes(self, test: Test, index: Index) -> bool:
        """Whether the element at `index` passes the test."""
        return self.value is not None and bool(test(self.value[index]))

    @property
    def entered(self) -> bool:
        """False for a primitive that holds a program of its own which was evaluated whole."""
        params = self.eqn.params.values() if self.eqn else ()
        inner = [p if isinstance(p, (tuple, list)) else (p,) for p in params]
        return not any(hasattr(p, "eqns") for group in inner for p in group)

    @property
    def source(self) -> str:
        """`file:line in function` of the user's code; of the call around it where JAX has none."""
        for eqn in (self.eqn, *(eqn for _, eqn in reversed(self.callers))):
            traceback = getattr(getattr(eqn, "source_info", None), "traceback", None)
            for frame in getattr(traceback, "frames", ()):
                if not frame.file_name.startswith(_SILENT):
                    relative = os.path.relpath(frame.file_name)
                    outside = relative.startswith(os.pardir)
                    shown = frame.file_name if outside else relative
                    function = frame.function_name.split("<locals>.")[-1]
                    return f"{shown}:{frame.line_num} in {function}"
        return "an unknown line"

    @property
    def inside(self) -> str:
        """The calls and loops around it, outermost first."""
        return " / ".join(name for name, _ in self.callers)


class Cell(NamedTuple):
    """A value of the program, with the node that produced it."""

    value: Any
    node: Node


class Tape:
    """Evaluates jaxprs equation by equation; `nodes` are in the order of evaluation."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._callers: tuple[tuple[str, Any], ...] = ()

    def leaf(self, value: Any, label: str | None, backward: bool = False) -> Cell:
        """An input of the program."""
        return self._record("", value, label=label, backward=backward)

    def run(self, jaxpr: Any, args: Sequence[Cell]) -> list[Cell]:
        """Evaluates a jaxpr, closed or open."""
        consts = getattr(jaxpr, "consts", ())
        captured = [self.leaf(c, "a constant that the function captures") for c in consts]
        env = dict(zip(jaxpr.constvars, captured, strict=False))
        env.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Cell:
            if hasattr(atom, "val"):  # a number written into the program
                return self.leaf(np.asarray(atom.val, atom.aval.dtype), None)
            return env[atom]

        for eqn in jaxpr.eqns:
            outs = self._equation(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _record(self, name: str, value: Any, **more: Any) -> Cell:
        node = Node(name, value, self._callers, **more)
        self.nodes.append(node)
        return Cell(value, node)

    def _equation(self, eqn: Any, cells: list[Cell]) -> list[Cell]:
        name, params = eqn.primitive.name, eqn.params
        if name in CALLS:
            body = next(params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params)
            return self._entered(str(params.get("name", name)), eqn, body, cells)
        if name == "cond":
            which = int(cells[0].value)
            return self._entered(f"cond branch {which}", eqn, params["branches"][which], cells[1:])
        if name == "scan" and params["length"]:
            return self._scan(eqn, cells)
        if name == "while":
            return self._while(eqn, cells)
        if name == "custom_linear_solve":
            lengths = params["const_lengths"]
            start = lengths.matvec + lengths.vecmat
            needed = cells[start : start + lengths.solve] + cells[sum(lengths) :]
            return self._entered(name, eqn, params["jaxprs"].solve, needed)
        return self._evaluated(eqn, cells)

    def _evaluated(self, eqn: Any, cells: list[Cell]) -> list[Cell]:
        values = [c.value for c in cells]
        with getattr(eqn.ctx, "manager", contextlib.nullcontext()):
            outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
        outs = outs if eqn.primitive.multiple_results else [outs]
        provenance = {"parents": [c.node for c in cells], "operands": values, "eqn": eqn}
        return [self._record(eqn.primitive.name, out, **provenance) for out in outs]

    def _entered(self, name: str, eqn: Any, jaxpr: Any, cells: Sequence[Cell]) -> list[Cell]:
        outside = self._callers
        self._callers = (*outside, (name, eqn))
        outs = self.run(jaxpr, cells)
        self._callers = outside
        return outs

    def _scan(self, eqn: Any, cells: list[Cell]) -> list[Cell]:
        params = eqn.params
        if "ft_in" in params:  # JAX 0.12 replaced their counts by a tree
            consts, carry, xs = map(list, params["ft_in"].update(cells).unpack())
        else:
            first = params["num_consts"]
            second = first + params["num_carry"]
            consts, carry, xs = cells[:first], cells[first:second], cells[second:]
        order = range(params["length"])
        rows: dict[int, list[Cell]] = {}
        for i in reversed(order) if params["reverse"] else order:
            row = [
                self._record("", x.value[i], parents=[x.node], route=lambda at, i=i: (0, (i, *at)))
                for x in xs
            ]
            step = [*consts, *carry, *row]
            outs = self._entered(f"scan step {i}", eqn, params["jaxpr"], step)
            carry, rows[i] = outs[: len(carry)], outs[len(carry) :]
        stacks = [
            self._record(
                "",
                jnp.stack([c.value for c in column]),
                parents=[c.node for c in column],
                route=lambda at: (at[0], at[1:]),
            )
            for column in zip(*(rows[i] for i in order), strict=True)
        ]
        return [*carry, *stacks]

    def _while(self, eqn: Any, cells: list[Cell]) -> list[Cell]:
        params = eqn.params
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        test, body, carry = cells[:first], cells[first:second], cells[second:]
        step = 0
        while self._entered("while test", eqn, params["cond_jaxpr"], [*test, *carry])[0].value:
            step_args = [*body, *carry]
            carry = self._entered(f"while step {step}", eqn, params["body_jaxpr"], step_args)
            step += 1
        return carry


def step_back(node: Node, index: Index, test: Test) -> tuple[Node, Index] | None:
    """The operand element that an element's value came from, or None if it was produced here.

    Args:
        node, index: an element that passes the test.
        test: `np.isnan` or `np.isinf`, say; only operand elements that pass it are considered.
    """
    if node.route is not None:
        which, at = node.route(index)
        return (node.parents[which], at) if node.parents[which].passes(test, at) else None
    parents = [p for p in node.parents if p.value is not None]
    if node.name == "select_n":
        branch = np.asarray(node.operands[0])
        parents = [node.parents[1 + int(branch[index] if branch.ndim else branch)]]
    if node.name in MOVES and parents:
        shape = np.shape(node.operands[0])
        positions = jnp.arange(math.prod(shape), dtype=jnp.int32).reshape(shape)
        moved = node.eqn.primitive.bind(positions, *node.operands[1:], **node.eqn.params)
        at = tuple(int(i) for i in np.unravel_index(int(moved[index]), shape))
        return (parents[0], at) if parents[0].passes(test, at) else None
    for parent in parents:
        shape = parent.shape
        at = index if shape == node.shape else ()
        if len(shape) == len(at) and parent.passes(test, at):
            return parent, at
    if node.name in ELEMENTWISE:
        return None
    elements = ((p, p.first(test)) for p in parents)
    return next(((p, at) for p, at in elements if at is not None), None)


def way_back(node: Node, index: Index, test: Test) -> list[tuple[Node, Index]]:
    """The elements from one of a result back to the one where its value was produced, the last."""
    way = [(node, index)]
    while (step := step_back(*way[-1], test)) is not None:
        way.append(step)
    return way


def descent(node: Node) -> list[Node]:
    """A line of ancestors, from an argument if there is one, down to the node itself."""
    line = []
    while node.parents:
        line.append(node)
        alive = [p for p in node.parents if p.parents or p.label]
        if not alive:
            break
        node = max(alive, key=lambda p: not p.backward)
    return line[::-1]


def neighbourhood(node: Node, count: int) -> set[str]:
    """The primitives' names of about `count` nearest ancestors and of the node itself."""
    seen, queue = {id(node)}, [node]
    for ancestor in queue:
        if len(queue) > count:
            break
        fresh = [p for p in ancestor.parents if id(p) not in seen]
        seen.update(map(id, fresh))
        queue.extend(fresh)
    return {ancestor.name for ancestor in queue}


@contextlib.contextmanager
def evaluation_as_written() -> Iterator[None]:
    """A context without JAX's NaN checks, in which float64 parts of a float32 program stay so."""
    with jax.debug_nans(False), jax.debug_infs(False), jax.enable_x64(True):
        yield


def plain_array(x: Any) -> NDArray[Any]:
    """A NumPy array; keys become zeros, and float types that NumPy lacks become float32."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        return np.zeros(x.shape, np.int8)
    array = np.asarray(x)
    foreign = array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(np.float32) if foreign else array
