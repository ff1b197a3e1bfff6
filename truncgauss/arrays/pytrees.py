"""Values as JAX pytrees: frozen dataclasses whose fields are leaves, or static if they say so.

`jax.tree_util.register_dataclass` calls the constructor whenever a tree is rebuilt. A region
validates its limits there, but the *gradient* with respect to a region is a region too, whose "low"
may exceed its "high", and a tree of axis numbers has no valid limits at all. So trees are rebuilt
here without the constructor, which validates only what a user passes.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from truncgauss.arrays.importing import imported

T = TypeVar("T")
# What inputs are outside of a program: few numbers stay with NumPy, see `as_float_input`.
AnyArray: TypeAlias = jax.Array | np.ndarray
_INFINITE = 2**1024 - 2**970  # from which whole numbers on float64 has none
_ZERO = np.zeros((), np.float32)
MOST_ON_HOST = 2**12  # numbers that every call of a program may take to its device again


class Estimate(NamedTuple):
    """A log probability and its standard error.

    Attributes:
        log_prob: log P(X in region), shape of the broadcast leading axes.
        stderr: standard error of log_prob, so a relative error of the probability. 0 means exact
            to rounding, nan unknown, inf too few effective samples for an error estimate. It
            carries no gradient.
    """

    log_prob: Float[Array, "*batch"]
    stderr: Float[Array, "*batch"]


def static_field(**options: Any) -> Any:
    """A dataclass field that belongs to the tree's structure: part of what is compiled."""
    return dataclasses.field(metadata={"static": True}, **options)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(static_field,))
def frozen_pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass and a pytree that is rebuilt without its constructor.

    Two values with equal static fields share one compilation; their leaves may be traced, batched
    and differentiated. Identity is the only equality, because leaves may be arrays.
    """
    if "__repr__" not in vars(cls):
        shown: Any = lambda x: imported("truncgauss.words.terminal").summary_of(x)  # noqa: E731
        setattr(cls, "__repr__", shown)  # noqa: B010
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # the line above made it one
    leaves = tuple(field.name for field in fields if not field.metadata.get("static"))
    static = tuple(field.name for field in fields if field.metadata.get("static"))

    def flatten_with_keys(value: T) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children = [(jax.tree_util.GetAttrKey(name), getattr(value, name)) for name in leaves]
        return children, tuple(getattr(value, name) for name in static)

    def unflatten(settings: tuple[Any, ...], children: Iterable[Any]) -> T:
        value = object.__new__(cls)
        for name, content in (*zip(leaves, children), *zip(static, settings)):
            object.__setattr__(value, name, content)
        return value

    def flatten(value: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        both = (tuple(getattr(value, name) for name in names) for names in (leaves, static))
        return next(both), next(both)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Batched:
    """A pytree of which one value may hold a batch, along leading axes of every leaf.

    `event_ranks` names the leaves and says how many trailing axes of each belong to one element.
    """

    event_ranks: ClassVar[dict[str, int]]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The lengths of the leading axes."""
        name, rank = next(iter(self.event_ranks.items()))
        shape = jnp.shape(getattr(self, name))
        return shape[: len(shape) - rank]

    def broadcast_to(self, batch_shape: tuple[int, ...]) -> Self:
        """The same batch, broadcast to leading axes `batch_shape` on every leaf."""
        extra = len(self.batch_shape)
        return jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, batch_shape + leaf.shape[extra:]), self
        )

    def _set(self, **leaves: AnyArray) -> None:
        """Store leaves with one common batch shape and dtype (for constructors only)."""
        dtype = common_dtype(*leaves.values())
        ranks = self.event_ranks
        batches = [leaf.shape[: leaf.ndim - ranks[name]] for name, leaf in leaves.items()]
        try:
            batch_shape = common_shape(*batches)
        except ValueError:
            shapes = ", ".join(f"{name} {leaf.shape}" for name, leaf in leaves.items())
            raise ValueError(
                f"{type(self).__name__}: the leading axes do not broadcast: {shapes}."
            ) from None
        for (name, leaf), own in zip(leaves.items(), batches):
            full = batch_shape + leaf.shape[len(own) :]
            leaf = leaf if leaf.shape == full else jnp.broadcast_to(leaf, full)
            object.__setattr__(self, name, as_dtype(leaf, dtype))


def as_float_input(value: Any, name: str = "this value") -> Any:
    """`value` as by `as_float_array`, but few numbers of NumPy or Python as a NumPy array.

    A compiled program takes them to its device with the call, in a tenth of the time of a transfer
    of their own. The array is a copy and can't be written to.

    Raises:
        ValueError: as `as_float_array`.
    """
    array = _as_host_array(value)
    if array is None or array.size > MOST_ON_HOST:
        return as_float_array(value, name)
    dtype = array.dtype if array.dtype.kind == "f" else np.dtype(float)
    with np.errstate(over="ignore"):  # a number beyond this precision is infinite
        copy: Any = np.array(array, jax.dtypes.canonicalize_dtype(dtype))
    copy.flags.writeable = False
    return copy


def as_float_array(value: Any, name: str = "this value") -> jax.Array:
    """`value` as an array of a floating dtype: its own, or JAX's default for integers.

    An array that is sharded over an explicit mesh is gathered, since few operations can infer the
    sharding of their results.

    Raises:
        ValueError: for complex numbers and for text, which is named so.
    """
    # Like `jnp.asarray(value)`, without its compilation of a small program for every shape.
    on_host = _as_host_array(value)
    if on_host is None:
        check_numbers(value, name)  # a text JAX would take for the name of a dtype
        try:
            with np.errstate(over="ignore"):
                # A whole number may be too large for JAX's integers.
                array = jnp.asarray(float(value) if type(value) is int else value)
        except (TypeError, ValueError):
            from truncgauss.words.misfits import refuse_value

            refuse_value(value, name)
    else:
        # Of whole numbers at once: JAX's integers may be narrower than NumPy's.
        dtype = on_host.dtype if on_host.dtype.kind == "f" else np.dtype(float)
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        with np.errstate(over="ignore"):
            array = as_jax_array(on_host.astype(dtype, copy=False))
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    if not is_float and not str(array.dtype).startswith(("int", "uint", "bool")):
        imported("truncgauss.words.misfits").refuse_value(array, name)
    place = jax.typeof(array).sharding
    if any(axis is not None for axis in place.spec):
        whole = jax.sharding.PartitionSpec(*[None] * array.ndim)
        array = jax.sharding.reshard(array, jax.sharding.NamedSharding(place.mesh, whole))
    return array if is_float else array.astype(jnp.result_type(float))


def check_numbers(value: Any, name: str) -> None:
    """Raise an error for what is no number of JAX in a value, or in a tree of values.

    Raises:
        ValueError: for text, True, complex or masked numbers, and whole ones beyond float64.
        TypeError: for NumPy's long doubles.
    """
    for leaf in () if isinstance(value, jax.Array) else jax.tree.leaves(value):
        dtype = leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else np.dtype(float)
        if (
            isinstance(leaf, str | bytes | complex | bool | np.bool_ | np.ma.MaskedArray)
            or hasattr(leaf, "axes")
            or dtype.kind not in "biuf"
            or (dtype.kind == "f" and dtype.itemsize > 8)
            or (type(leaf) is int and abs(leaf) >= _INFINITE)
        ):
            imported("truncgauss.words.misfits").refuse_leaf(leaf, name)  # of no use to others


def host_numbers(value: Any, name: str) -> np.ndarray:
    """Real numbers as an array of NumPy in float64; ValueError for all else, which is named."""
    from truncgauss.words.misfits import refuse_no_numbers

    refuse_no_numbers(f"{name} must be numbers or an array of them", value)
    return np.asarray(value, np.float64)


def check_digits(*arrays: AnyArray) -> None:
    """Raise ValueError if an array has too few digits for the factors of a covariance."""
    for array in arrays:
        if array.dtype.itemsize < 4:
            raise ValueError(
                f"{array.dtype} has too few digits for a covariance: pass float32 or float64, as "
                "in loc.astype(jnp.float32)."
            )


def check_limits(owner: str, low: AnyArray, high: AnyArray) -> None:
    """Raise ValueError naming the first index at which low < high does not hold (NaN passes)."""
    if not is_concrete((low, high)):
        return
    empty = np.asarray(low) >= np.asarray(high)
    if empty.any():
        wrong = np.argwhere(empty)
        where = tuple(int(i) for i in wrong[0])
        index: Any = where[0] if len(where) == 1 else where
        place = f" at index {index} ({len(wrong)} such place(s))" if where else ""
        cure = (
            "Condition on a coordinate that is known exactly."
            if low[where] == high[where]
            else "Exchange the two there; for an open side use -inf or inf."
        )
        raise ValueError(
            f"{owner}: low must be below high in every coordinate, got low={low[where]} and "
            f"high={high[where]}{place}. {cure}"
        )


def no_numbers(needed: str, *values: Any, advice: str = "") -> TypeError:
    """The error that says what was needed and came in the place of numbers."""
    got = [
        f"the text {value!r}" if isinstance(value, str)
        else "None" if value is None else f"a {type(value).__name__}"
        for value in values
    ]  # fmt: skip
    return TypeError(f"{needed}; got {' and '.join(got)}.{advice}")


def as_jax_array(array: AnyArray) -> jax.Array:
    """The array itself, or the numbers of a NumPy array on the default device."""
    # Without its dtype a small program would be compiled for every shape.
    return array if isinstance(array, jax.Array) else jnp.asarray(array, array.dtype)


def _as_host_array(value: Any) -> np.ndarray | None:
    """Real numbers of NumPy, or nested lists of Python's, as a NumPy array; None for all else."""
    if isinstance(value, list | tuple):
        leaves = jax.tree.leaves(value)
        if not leaves or not all(type(leaf) in (int, float) for leaf in leaves):
            return None
        if any(type(leaf) is int and abs(leaf) >= _INFINITE for leaf in leaves):
            return None  # for `check_numbers` to say so
        try:
            value = np.asarray(value)
        except ValueError:  # of lists of different lengths
            return None
        if value.dtype.kind == "O":  # to NumPy whole numbers beyond 64 bits are objects, and None
            value = None if None in value.ravel() else value.astype(float)
    if type(value) is not np.ndarray or value.dtype.kind not in "iuf" or value.itemsize > 8:
        return None
    # Arrays read from a file may have the byte order of another machine, which JAX does not know.
    return value.astype(value.dtype.newbyteorder("="), copy=False)


def floats_as_float64(tree: T) -> T:
    """The tree with its arrays of floating numbers in float64, which must be enabled."""

    def wide(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype == jnp.float64:
            return leaf
        if isinstance(leaf, np.ndarray):  # as of a region that was given as one
            return leaf.astype(np.float64)
        if not is_concrete(leaf) or not leaf.sharding.is_fully_addressable:
            return leaf.astype(jnp.float64)
        return jax.device_put(np.asarray(leaf, np.float64), leaf.sharding)

    return jax.tree.map(wide, tree)


def common_shape(first: tuple[int, ...], *others: tuple[int, ...]) -> tuple[int, ...]:
    """`jnp.broadcast_shapes`, in less time where all shapes are equal.

    Raises:
        ValueError: if the shapes do not broadcast.
    """
    if all(shape == first for shape in others):
        return first
    return jnp.broadcast_shapes(first, *others)


def common_dtype(first: AnyArray, *others: AnyArray) -> np.dtype:
    """`jnp.result_type`, in less time where all dtypes are equal."""
    if all(array.dtype == first.dtype for array in others):
        return first.dtype
    return jnp.result_type(first, *others)


def as_dtype(array: AnyArray, dtype: Any) -> AnyArray:
    """The array in a dtype; the same object if it has that dtype, which saves an operation."""
    return array if array.dtype == dtype else array.astype(dtype)


def varying_like(tree: T, *others: Any) -> T:
    """The tree with the mesh type of the others, as the initial value of a loop needs it.

    The type of an array includes the mesh axes that it varies over under `jax.shard_map`, and its
    placement on an explicit mesh. The initial and the final value of a loop must have the same
    type. Constants get it by adding a zero made of the others.
    """
    leaves = jax.tree.leaves(others)
    if all(jax.typeof(leaf).sharding.mesh.empty for leaf in leaves):
        return tree
    zeros = [jnp.zeros_like(leaf, shape=(), dtype=bool) for leaf in leaves]
    zero = functools.reduce(jnp.logical_or, zeros)

    def moved(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if leaf.dtype == bool:
            return leaf | zero
        is_number = jnp.issubdtype(leaf.dtype, jnp.number)
        return leaf + zero.astype(leaf.dtype) if is_number else leaf

    return jax.tree.map(moved, tree)


def is_staged() -> bool:
    """Whether operations are being recorded, as under `jax.jit`, rather than run."""
    return isinstance(jax.lax.stop_gradient(_ZERO), jax.core.Tracer)


def values_of(tree: T) -> T | None:
    """The numbers of a tree, also those behind the tracers of differentiation, or None.

    Outside of `jax.jit` and `jax.vmap` a derivative is taken at numbers that are there.
    """
    values = tree if is_concrete(tree) else jax.lax.stop_gradient(tree)
    return values if is_concrete(values) else None


def is_concrete(tree: Any) -> bool:
    """Whether every leaf holds numbers that are here, rather than traced or in other processes."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.core.Tracer):
            return False
        # An import may ask, and must not start JAX's devices; and the placement of a random key
        # takes microseconds to ask for.
        if isinstance(leaf, jax.Array) and jax.process_count() > 1:
            place = getattr(leaf, "sharding", None)
            if not (place is None or place.is_fully_addressable or place.is_fully_replicated):
                return False
    return True
