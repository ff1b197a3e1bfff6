"""Data parallelism: a device mesh, and samples or rows sharded over it.

The largest array of a computation, the samples or the data rows, is sharded over the devices of a
mesh; `jit` then computes each shard where it lies and adds the sums across devices. Values and
derivatives are those of one device up to the order of a sum. No derivative is taken inside a
collective, which would silently be wrong.

`jax.shard_map` over rows works as well, with derivatives taken outside of it. An array on an
explicit mesh, the default of `jax.make_mesh`, is gathered first: the results are right, but every
device computes all of them. A mesh from `device_mesh` shares the work.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "pieces"


def host_devices(num_devices: int) -> None:
    """Split the host's CPU into `num_devices` JAX devices; to be called before any computation.

    Args:
        num_devices: the number of devices, at least 1.

    Raises:
        ValueError: if num_devices is not positive.
        RuntimeError: if JAX has already started with another number of devices.

    Example:
        >>> tg.parallel.host_devices(jax.device_count())  # at the top of a script: a new number
    """
    if num_devices < 1:
        raise ValueError(f"the number of devices must be positive, got {num_devices}.")
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
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
        num_devices: the number of devices, at most `jax.device_count()`.

    Raises:
        ValueError: if there are fewer devices.

    Example:
        >>> tg.parallel.device_mesh(1).size
        1
    """
    devices = jax.devices()
    num_devices = len(devices) if num_devices is None else num_devices
    if not 1 <= num_devices <= len(devices):
        raise ValueError(
            f"asked for {num_devices} device(s), JAX has {len(devices)}. For more on one host call "
            f"tg.parallel.host_devices({num_devices}) before the first computation."
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
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        shape = np.shape(leaf)
        if not shape or shape[0] % mesh.size:
            raise ValueError(
                f"a leading axis must divide by the {mesh.size} devices of the mesh, got shape "
                f"{shape}{jax.tree_util.keystr(path)}. Take a multiple of {mesh.size} samples."
            )
    return jax.device_put(tree, sharding)
