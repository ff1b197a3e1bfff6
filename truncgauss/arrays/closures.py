"""Functions of users, of which the traced values that they close over become arguments.

A cache, a loop or a rule of derivatives that keeps a function fixed knows nothing of such values:
the derivative by them would be 0, and under `jax.jit` or `jax.vmap` there would be an error.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun

RULES = "custom_jvp_call", "custom_vjp_call"
MOVED = "JVPTracer", "LinearizeTracer"  # types of JAX's values that are differentiated
MOST_SEEN = 200  # objects in which traced values are looked for, to explain an error


class Hoisted(NamedTuple):
    """A function whose traced values are arguments.

    Attributes:
        function: of the constants and the arguments, `function(*constants, *args)`; the function
            itself where it closes over nothing traced.
        constants: the traced values.
        result: the shapes and dtypes of its result, as of `jax.eval_shape`.
    """

    function: Callable[..., Any]
    constants: tuple[jax.Array, ...]
    result: Any


class Program:
    """The operations of a traced function. Two with the same ones are equal, so that a function
    that is made anew in every call shares what is compiled.

    Args:
        closed: the operations on flat arguments, and the values over which they close.
        traced: which of these are arguments instead, before the others.
        structure: of the result.
    """

    def __init__(self, closed: ClosedJaxpr, traced: tuple[int, ...], structure: Any) -> None:
        self.jaxpr, self.traced, self.structure = closed.jaxpr, traced, structure
        self.others = [None if k in traced else c for k, c in enumerate(closed.consts)]
        self.form = traced, structure, form_of(self.jaxpr), tuple(map(id, self.others))
        self._hash = hash(self.form)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.form == other.form

    def __call__(self, *inputs: Any) -> Any:
        values, leaves = list(self.others), jax.tree.leaves(inputs)
        variables = [self.jaxpr.constvars[k] for k in self.traced] + list(self.jaxpr.invars)
        # As traced: a problem has all its numbers in one dtype.
        leaves = [jnp.asarray(x, v.aval.dtype) for x, v in zip(leaves, variables, strict=True)]
        for k, leaf in zip(self.traced, leaves):
            values[k] = leaf
        results = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, values))(*leaves[len(self.traced) :])
        return jax.tree.unflatten(self.structure, results)


def hoisted(function: Callable[..., Any], *args: Any) -> Hoisted:
    """A function without traced values that it closes over, traced for such arguments.

    Args:
        function: of arrays, or pytrees of them.
        args: example arguments, or their shapes and dtypes.

    Raises:
        TypeError: if such a value is no array of numbers, as a random key, or if it is
            differentiated and a rule of derivatives closes over it, which has no derivative by it.
    """
    closed, result = jax.make_jaxpr(function, return_shape=True)(*args)
    traced = [k for k, c in enumerate(closed.consts) if isinstance(c, jax.core.Tracer)]
    if not traced:
        return Hoisted(function, (), result)
    constants = tuple(closed.consts[k] for k in traced)
    for constant in constants:
        if constant.dtype != bool and not jnp.issubdtype(constant.dtype, jnp.number):
            raise TypeError(
                f"a function closes over a traced {constant.dtype}; of what JAX traces (grad, jit "
                "or vmap) it may close over numbers alone. Draw from a key before."
            )
    moved = {closed.jaxpr.constvars[k] for k in traced if type(closed.consts[k]).__name__ in MOVED}
    for equation in closed.jaxpr.eqns:
        inside = equation.invars[: equation.params.get("num_consts", 0)]
        if equation.primitive.name in RULES and any(
            isinstance(x, Var) and x in moved for x in inside
        ):
            raise TypeError(
                "a function with a rule of its own (jax.custom_jvp or jax.custom_vjp) closes over "
                "a traced number, by which it has no derivative; pass it as an argument: "
                "lambda x: mine(x, width)."
            )
    return Hoisted(Program(closed, tuple(traced), jax.tree.structure(result)), constants, result)


def without_slopes(traced: Hoisted, *args: Any) -> tuple[int, ...]:
    """The numbers of the constants that determine a function's value, but by which its operations
    have no derivative: those of comparisons alone, as of `x > c`."""
    if not traced.constants:
        return ()
    shapes = [jax.ShapeDtypeStruct(c.shape, c.dtype) for c in traced.constants]

    def steps_alone(k: int) -> bool:
        def moved(c: Any, dc: Any, *others: Any) -> Any:
            inputs = (*others[:k], c, *others[k + 1 :])
            return jax.jvp(lambda c: traced.function(*inputs[:k], c, *inputs[k + 1 :]), (c,), (dc,))

        jaxpr = jax.make_jaxpr(moved)(shapes[k], shapes[k], *shapes, *args).jaxpr
        by_value, by_change = reached(jaxpr, {0}), reached(jaxpr, {1})
        half = len(jaxpr.outvars) // 2
        reach_value = any(k in by_value for k in range(half))
        return reach_value and not any(k in by_change for k in range(half, 2 * half))

    floats = (k for k, x in enumerate(shapes) if jnp.issubdtype(x.dtype, jnp.floating))
    return tuple(filter(steps_alone, floats))


def reached(jaxpr: Jaxpr, numbers: set[int]) -> set[int]:
    """The numbers of the results that depend on some arguments, other than by `stop_gradient`.

    Of a function with a rule of its own those count that its value depends on.
    """
    variables: set[Any] = {jaxpr.invars[k] for k in numbers}

    def known(x: Any) -> bool:
        return not isinstance(x, Literal) and x in variables

    for equation in jaxpr.eqns:
        changed = {k for k, x in enumerate(equation.invars) if known(x)}
        if not changed or equation.primitive.name == "stop_gradient":
            continue
        inner = equation.params.get("call_jaxpr")
        if isinstance(inner, ClosedJaxpr) and len(inner.jaxpr.invars) == len(equation.invars):
            variables.update(equation.outvars[k] for k in reached(inner.jaxpr, changed))
        else:
            variables.update(equation.outvars)
    return {k for k, x in enumerate(jaxpr.outvars) if known(x)}


def closes_over_traced(value: Any) -> bool:
    """Whether a function closes over a traced value; or a method or a function in a field of an
    object, as of a class that a user defined."""
    stack: list[tuple[Any, bool]] = [(value, False)]
    seen: list[Any] = []
    while stack and len(seen) < MOST_SEEN:
        part, closed = stack.pop()
        if closed and isinstance(part, jax.core.Tracer):
            return True
        if isinstance(part, type | types.ModuleType | jax.Array) or any(part is x for x in seen):
            continue
        seen.append(part)
        if isinstance(part, list | tuple | dict):
            inside = part.values() if isinstance(part, dict) else part
        elif isinstance(part, types.FunctionType):
            inside, closed = [cell.cell_contents for cell in part.__closure__ or ()], True
        elif isinstance(part, types.MethodType | functools.partial):
            names = "__self__", "__func__", "func", "args", "keywords"
            inside = [getattr(part, name, None) for name in names]
            closed = closed or isinstance(part, functools.partial)
        else:
            inside = [*getattr(part, "__dict__", {}).values()]
            inside += filter(callable, vars(type(part)).values())
        stack += [(x, closed) for x in inside]
    return False


def explain_call(
    name: str,
    error: Exception,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Raise an error of a call again in words on its arguments: one that JAX traces, a function
    that closes over such a value, or what `words.misfits.explain` answers."""
    from truncgauss.words.misfits import explain

    untraceable = jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError
    leaves = jax.tree.leaves((args, kwargs))
    if isinstance(error, untraceable) and any(isinstance(x, jax.core.Tracer) for x in leaves):
        raise TypeError(
            f"{name}: an argument is traced by JAX (jit, vmap or grad), but {name} needs numbers: "
            "call it outside of these; it compiles by itself what it needs."
        ) from error
    hidden = isinstance(error, untraceable) or "compiler_options" in str(error)
    closing = [x for x in (*args, *kwargs.values()) if hidden and closes_over_traced(x)]
    if closing:
        what = getattr(closing[0], "__name__", type(closing[0]).__name__)
        raise TypeError(
            f"{name}: {what} closes over a value that JAX traces (grad, jit or vmap). Make it a "
            "field of the method or edge; a fit needs numbers, outside of these."
        ) from error
    explain(name, error, signature, args, kwargs)


def form_of(jaxpr: Jaxpr) -> tuple[Any, ...]:
    """The operations as a value that can be compared, with variables by their numbers."""
    numbers: dict[Any, int] = {}

    def atom(x: Any) -> Any:
        if isinstance(x, Literal):
            scalar = np.shape(x.val) == ()
            return x.aval, np.asarray(x.val).tobytes() if scalar else id(x.val)
        return x.aval, numbers.setdefault(x, len(numbers))

    def part(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return form_of(value.jaxpr), tuple(map(id, value.consts))
        if isinstance(value, Jaxpr):
            return form_of(value)
        if isinstance(value, tuple | list):
            return type(value), tuple(map(part, value))
        try:
            hash(value)
        except TypeError:  # an object that lives as long as the operations do
            return id(value)
        return type(value), value

    operations = [
        (
            equation.primitive,
            tuple(map(atom, equation.invars)),
            tuple((name, part(value)) for name, value in sorted(equation.params.items())),
            tuple(map(atom, equation.outvars)),
        )
        for equation in jaxpr.eqns
    ]
    inputs, outputs = (
        (*map(atom, ends),) for ends in ((*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars)
    )
    return inputs, tuple(operations), outputs
