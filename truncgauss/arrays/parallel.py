"""Work spread over the devices of a mesh: the rows of a batch, or the replicates of one estimate.

The one object is a mesh. Within `with rows(mesh):` each device answers for its own rows, within
`with replicates(mesh):` it makes its own replicates. Values, derivatives, moments, draws and fits
are those of one device up to the order of a sum: random keys belong to a replicate or a row, not to
the device that happens to hold it. No device waits for another before its share is done, whatever
loops it runs, and a batch need not divide by the number of devices.

```python
tg.parallel.host_devices(4)  # before JAX starts; an accelerator's devices are there anyway
mesh = tg.parallel.device_mesh(4)
with tg.parallel.rows(mesh):
    estimates = tg.log_probability(means, covariance, region)  # means of shape (n, d)
with tg.parallel.replicates(mesh):
    estimate = tg.log_probability(mean, covariance, region)
```

Functions of your own are spread with JAX's own tools, and give the same numbers. With `jax.pmap`
each device takes one element of the leading axis, here a row of means:

>>> region, covariance = tg.Box([0.0, 0.0], [1.0, jnp.inf]), jnp.eye(2)
>>> def log_prob(means):
...     return tg.log_probability(means, covariance, region).log_prob
>>> means = jnp.linspace(-1.0, 1.0, 2 * jax.device_count()).reshape(-1, 2)
>>> bool(jnp.allclose(jax.pmap(log_prob)(means), log_prob(means)))
True

With `jax.shard_map` it takes its share of all of them. Derivatives are taken outside:

>>> from jax.sharding import PartitionSpec
>>> mesh, split = tg.parallel.device_mesh(), PartitionSpec(tg.parallel.AXIS)
>>> shared = jax.shard_map(log_prob, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
>>> of_sum = lambda f: jax.jit(jax.grad(lambda means: f(means).sum()))
>>> slope, plain = of_sum(shared)(means), of_sum(log_prob)(means)
>>> bool(jnp.allclose(slope, plain))
True

A derivative *inside* of a collective such as `jax.lax.psum` would silently be wrong. An array on an
explicit mesh, the default of `jax.make_mesh`, is gathered first: the results are right, but every
device computes all of them.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "pieces"


class MeshPlan(NamedTuple):
    """The meshes over which rows and replicates are spread, None for one device; and what becomes
    of the rows' results."""

    rows: Mesh | None = None
    replicates: Mesh | None = None
    gathered: bool = True  # whether every process gets the results of all rows


# On an overloaded machine a device may get no processor for the default of 40 seconds.
PATIENCE = "--xla_cpu_collective_call_terminate_timeout_seconds=86400"

_PLAN: Any = jax.make_user_context(default_value=MeshPlan())  # a part of what programs are known by


def host_devices(num_devices: int) -> None:
    """Split the host's CPU into `num_devices` JAX devices; to be called before any computation.

    XLA would end a process whose devices wait more than 40 seconds for each other; unless XLA_FLAGS
    says how long they may, it is set to a day.

    Args:
        num_devices: the number of devices, at least 1.

    Raises:
        ValueError: if num_devices is not positive.
        RuntimeError: if JAX has already started with another number of devices.

    Example:
        >>> tg.parallel.host_devices(jax.device_count())  # at the top of a script: a new number
    """
    if not hasattr(num_devices, "__index__") or num_devices < 1:
        raise ValueError(f"the number of devices must be a positive int, got {num_devices!r}.")
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
        flags = os.environ.get("XLA_FLAGS", "")
        if PATIENCE.partition("=")[0] not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}".strip()
    except RuntimeError:
        if jax.device_count() != num_devices:
            raise RuntimeError(
                f"JAX has already started with {jax.device_count()} device(s), so it cannot be "
                f"split into {num_devices}. Call host_devices before the first computation, or set "
                f"JAX_NUM_CPU_DEVICES={num_devices} in the environment."
            ) from None


def device_mesh(num_devices: int | None = None) -> Mesh:
    """A one-axis mesh over the first `num_devices` devices, by default all of them.

    Args:
        num_devices: of this process, at most `jax.local_device_count()`; None for all devices of
            all processes.

    Raises:
        ValueError: if there are fewer devices.

    Example:
        >>> tg.parallel.device_mesh(1).size
        1
    """
    devices = jax.devices() if num_devices is None else jax.local_devices()
    num_devices = len(devices) if num_devices is None else num_devices
    if not hasattr(num_devices, "__index__") or not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"asked for {num_devices!r} device(s), JAX has {len(devices)}; give an int. For more "
            f"on a host call tg.parallel.host_devices({num_devices}) before the first computation."
        )
    return jax.make_mesh((num_devices,), (AXIS,), (AxisType.Auto,), devices=devices[:num_devices])


def spread(tree: Any, mesh: Mesh) -> Any:
    """The arrays of a pytree, sharded along their leading axes over the devices of a mesh.

    Args:
        tree: arrays, or a pytree of them, whose leading axes divide by the mesh's size.
        mesh: from `device_mesh`.

    Raises:
        ValueError: if a leading axis does not divide by the number of devices.

    Example:
        >>> samples = jax.random.normal(jax.random.key(0), (4096, 2))
        >>> sharded = tg.parallel.spread(samples, tg.parallel.device_mesh())
        >>> soft = tg.SoftMonteCarlo(samples=sharded)
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, jnp.inf])
        >>> p = tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), region, method=soft)
    """
    _automatic(mesh)  # which refuses what is no mesh
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        shape = np.shape(leaf)
        if not shape or shape[0] % mesh.size:
            raise ValueError(
                f"a leading axis must divide by the {mesh.size} devices of the mesh, got shape "
                f"{shape}{jax.tree_util.keystr(path)}. Take a multiple of {mesh.size} samples."
            )
    return jax.device_put(tree, sharding)


def rows(mesh: Mesh | None, gathered: bool = True) -> contextlib.AbstractContextManager[Any]:
    """A context in which the rows of every batch are spread over a mesh; None for one device.

    Each device answers for its rows alone: rows that need many iterations keep no other device
    waiting until the end. A number of rows that does not divide is padded. The rows of `jax.vmap`
    are spread as well, of values and of derivatives; a derivative inside of it computes the value
    once more.

    Args:
        mesh: from `device_mesh`, or any mesh of JAX, of which all axes are used.
        gathered: whether each of several processes gets the results of all rows. False leaves them
            where they are, for a sum over rows in the same jitted function: with a billion rows
            the results alone are 8 GB.

    Example:
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, jnp.inf])
        >>> shifts = jnp.array([[-0.5], [0.0], [0.5]]) + jnp.zeros(2)
        >>> with tg.parallel.rows(tg.parallel.device_mesh()):
        ...     fractions = tg.fraction_not_truncated(shifts, jnp.eye(2), region)
        >>> fractions.round(4)
        Array([0.0952, 0.25  , 0.4781], dtype=float64)
    """
    return _PLAN(_PLAN.value._replace(rows=_automatic(mesh), gathered=gathered))


def replicates(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which the replicates of every estimate are spread over a mesh.

    A method with as many replicates as devices, or a multiple of them, wastes nothing; `Automatic`
    makes 16. For a batch of many rows `rows` shares more of the work: the plan of an estimate is
    solved on every device.

    Args:
        mesh: as in `rows`; None for one device.

    Example:
        >>> d = 10
        >>> region, covariance = tg.Box(jnp.zeros(d), jnp.inf), 0.5 * jnp.eye(d) + 0.5
        >>> with tg.parallel.replicates(tg.parallel.device_mesh()):
        ...     estimate = tg.log_probability(jnp.zeros(d), covariance, region)
        >>> bool(jnp.abs(jnp.exp(estimate.log_prob) * 11 - 1) < 1e-4)
        True
    """
    return _PLAN(_PLAN.value._replace(replicates=_automatic(mesh)))


def over_rows(function: Callable[..., Any], args: tuple[Any, ...], axes: tuple[Any, ...]) -> Any:
    """`function(*args)`, whose leading axis each device computes for its own part of.

    Args:
        function: of the arguments; the leading axis of all that it returns is theirs.
        args: pytrees of arrays.
        axes: of each argument 0 if its leading axis is split, None if all devices need all of it.
    """
    return _divided(_PLAN.value.rows, function, args, axes, _PLAN.value.gathered)


def over_replicates(function: Callable[..., Any], keys: jax.Array, *shared: Any) -> Any:
    """`function(keys, *shared)`, whose leading axis is that of the keys, some on each device.

    Args:
        function: of some of the keys, and of all else.
        keys: one a replicate.
        shared: pytrees of arrays that every replicate needs.
    """
    axes = (0, *(None for _ in shared))
    return _divided(_PLAN.value.replicates, function, (keys, *shared), axes)


def each_replicate(function: Callable[[jax.Array], Any], keys: jax.Array) -> Any:
    """`function` of each key, one after the other on each device, in the memory of one."""
    return over_replicates(lambda keys: jax.lax.map(jax.checkpoint(function), keys), keys)


def like(tree: Any) -> contextlib.AbstractContextManager[Any]:
    """The context `rows` for the mesh over which arrays of a tree are spread, if they are.

    Work that is spread over processes is compared between them first, see `agreed`.
    """
    if any(mesh is not None and mesh.is_multi_process for mesh in plan()[:2]):
        agreed("the arguments", tree)
    for leaf in jax.tree.leaves(tree):
        mesh = leaf.sharding.mesh if is_spread(leaf) and hasattr(leaf.sharding, "mesh") else None
        if isinstance(mesh, Mesh):
            return rows(mesh)
    return contextlib.nullcontext()


def is_spread(array: Any) -> bool:
    """Whether the elements of an array lie on different devices; False under a trace."""
    concrete = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return concrete and not array.sharding.is_fully_replicated


def agreed(what: str, tree: Any) -> None:
    """Compare values that all processes must have in common; nothing to do for one, or in a trace.

    Raises:
        ValueError: on every process, if they differ on some.
        RuntimeError: if another process has ended.
    """
    leaves = jax.tree.leaves(tree)
    if jax.process_count() == 1 or any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return
    digest = hashlib.sha256()
    for leaf in leaves:
        if is_elsewhere(leaf):
            continue  # one array of all processes
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    try:
        every = multihost_utils.process_allgather(np.frombuffer(digest.digest(), np.uint8))
    except ValueError as error:  # as which JAX reports a connection that broke, now and then
        raise RuntimeError(
            f"the processes could not exchange numbers, since another one has ended: {error}"
        ) from error
    differing = np.flatnonzero((every != every[0]).any(axis=1))
    if len(differing):
        raise ValueError(
            f"{what} of process(es) {', '.join(map(str, differing))} differ from those of process "
            "0. All processes must run the same program on the same numbers."
        )


def is_elsewhere(leaf: Any) -> bool:
    """Whether an array has elements on other processes that are not here; False under a trace."""
    concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return concrete and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def plan() -> MeshPlan:
    return _PLAN.value


def planned(plan: MeshPlan) -> contextlib.AbstractContextManager[Any]:
    """The context in which `plan()` was this one."""
    return _PLAN(plan)


def _automatic(mesh: Mesh | None) -> Mesh | None:
    """The mesh with the axis type that `jax.shard_map` wants; None if it has one device."""
    if not isinstance(mesh, Mesh | None):
        raise TypeError(f"expected a mesh, tg.parallel.device_mesh(num_devices), got {mesh!r:.60}.")
    if mesh is None or mesh.size == 1:
        return None
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def _divided(
    mesh: Mesh | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    axes: tuple[Any, ...],
    gathered: bool = True,
) -> Any:
    if mesh is None or jax.sharding.get_abstract_mesh().manual_axes:
        return function(*args)  # one device, or the part of one device
    size = next(len(jax.tree.leaves(arg)[0]) for arg, axis in zip(args, axes) if axis == 0)
    missing = -size % mesh.size

    def longer(leaf: jax.Array) -> jax.Array:
        # The last row repeated, rather than zeros, which may be no problem with a solution.
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (missing, *leaf.shape[1:]))])

    if missing:
        args = tuple(jax.tree.map(longer, x) if axis == 0 else x for x, axis in zip(args, axes))
    split, whole = PartitionSpec(mesh.axis_names), PartitionSpec()

    def local(*args: Any) -> Any:
        with _PLAN(MeshPlan()):
            return function(*args)

    specs = tuple(split if axis == 0 else whole for axis in axes)
    # Derivatives are taken outside or wholly inside, where nothing is exchanged.
    each = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
    result = each(*args)
    if mesh.is_multi_process and gathered:  # so that each process can read all of it
        result = jax.lax.with_sharding_constraint(result, NamedSharding(mesh, whole))
    return jax.tree.map(lambda leaf: leaf[:size], result) if missing else result
