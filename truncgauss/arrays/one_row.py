"""A function of one row, of which `jax.vmap` spreads the rows over the devices of `parallel.rows`.

`jax.vmap` of `jax.grad` differentiates first: what is mapped is a derivative then. So the function
is a primitive of JAX, with derivatives that are functions of one row themselves, forwards and
backwards, to any order. They compute the function once more rather than store what it computed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import mapped
from truncgauss.arrays.pytrees import as_jax_array, is_concrete

Function = Callable[..., Sequence[Array]]  # of arrays


def of_one_row(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`, of which `jax.vmap` within `parallel.rows` spreads the rows.

    Args:
        function: of pytrees of arrays; traced numbers that it closes over become arguments too.
        args: one row of each.
    """
    plan, inside = parallel.plan(), jax.sharding.get_abstract_mesh().manual_axes
    if plan.rows is None or inside or is_concrete(args):
        return function(*args)
    leaves, structure = jax.tree.flatten(args)
    leaves = [as_jax_array(leaf) for leaf in leaves]
    traced, shapes = jax.make_jaxpr(
        lambda *leaves: function(*jax.tree.unflatten(structure, leaves)), return_shape=True
    )(*map(_anywhere, leaves))
    count = len(traced.consts)

    def flat(*values: Array) -> Sequence[Array]:
        closed = ClosedJaxpr(traced.jaxpr, list(values[:count]))
        return list(jaxpr_as_fun(closed)(*values[count:]))

    results = ROW.bind(*traced.consts, *leaves, function=flat, plan=plan)
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def _anywhere(leaf: Array) -> Any:
    """The array, or its shape and type alone, by which a function is traced.

    The type of an array includes the mesh that it is spread over, for which programs within the
    function would be traced; each device is to run them by itself.
    """
    kind: Any = jax.typeof(leaf)
    if kind.sharding.mesh.explicit_axes:
        return leaf
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def _evaluated(*values: Array, function: Function, **_: Any) -> Sequence[Array]:
    return function(*values)


def _shapes(*avals: Any, function: Function, **_: Any) -> list[Any]:
    return list(jax.make_jaxpr(function)(*avals).out_avals)


def _spread(
    values: Sequence[Array], axes: Sequence[Any], *, function: Function, plan: Any, **_: Any
) -> tuple[Sequence[Array], list[int]]:
    """The function of every row, each device computing its own."""
    rows = [x if axis in (None, 0) else jnp.moveaxis(x, axis, 0) for x, axis in zip(values, axes)]
    in_axes = tuple(None if axis is None else 0 for axis in axes)
    if not any(len(row) for row, axis in zip(rows, in_axes) if axis == 0):
        results = jax.vmap(function, in_axes)(*rows)
    else:
        with parallel.planned(plan):
            results = mapped(function, tuple(rows), in_axes)
    return results, [0] * len(results)


def _derivative(
    primitive: Primitive, values: Sequence[Array], changes: Sequence[Any], **parameters: Any
) -> tuple[Sequence[Array], list[Any]]:
    """The results, and a linear function of the changes, `SLOPE`."""
    function, plan, count = parameters["function"], parameters["plan"], len(values)
    moved = [k for k, change in enumerate(changes) if not isinstance(change, ad.Zero)]
    results = primitive.bind(*values, **parameters)
    real = [k for k, x in enumerate(results) if jnp.issubdtype(x.dtype, jnp.floating)]

    def parts(values: Sequence[Array]) -> tuple[Function, list[Array]]:
        """The real results as a function of what is moved, and its arguments."""

        def of_moved(*some: Array) -> list[Array]:
            replaced = dict(zip(moved, some))
            results = function(*(replaced.get(k, value) for k, value in enumerate(values)))
            return [results[k] for k in real]

        return of_moved, [values[k] for k in moved]

    def forward(*numbers: Array) -> Sequence[Array]:
        of_moved, some = parts(numbers[:count])
        return list(jax.jvp(of_moved, some, list(numbers[count:]))[1])

    def backward(*numbers: Array) -> Sequence[Array]:
        of_moved, some = parts(numbers[:count])
        return list(jax.vjp(of_moved, *some)[1](list(numbers[count:])))

    slopes = SLOPE.bind(
        *values, *(changes[k] for k in moved),
        function=forward, backward=backward, count=count, plan=plan,
    )  # fmt: skip
    by_index = dict(zip(real, slopes))
    none = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    return results, [by_index.get(k, zero) for k, zero in enumerate(none)]


def _transposed(
    slopes: Sequence[Any], *values: Any, backward: Function, count: int, plan: Any, **_: Any
) -> list[Any]:
    slopes = [ad.instantiate_zeros(slope) for slope in slopes]
    changes = ROW.bind(*values[:count], *slopes, function=backward, plan=plan)
    return [None] * count + list(changes)


ROW, SLOPE = Primitive("row"), Primitive("row_slope")
for _primitive in (ROW, SLOPE):
    _primitive.multiple_results = True
    _primitive.def_impl(_evaluated)
    _primitive.def_abstract_eval(_shapes)
    batching.primitive_batchers[_primitive] = _spread
    ad.primitive_jvps[_primitive] = partial(_derivative, _primitive)
    mlir.register_lowering(_primitive, mlir.lower_fun(_evaluated, multiple_results=True))
ad.primitive_transposes[SLOPE] = _transposed
