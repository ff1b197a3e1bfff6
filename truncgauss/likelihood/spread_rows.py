"""The likelihood of rows that are spread over processes, each of which holds its own."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from truncgauss.arrays import parallel
from truncgauss.gaussian.problem import Estimate
from truncgauss.likelihood.observations import Observations


def over_processes(
    what: str, function: Callable[[Observations, Any], Estimate], rows: Observations, loc: Any
) -> Estimate:
    """A likelihood of each row, (n,) and spread as the rows are, computed where they lie.

    Args:
        what: who asks, for messages.
        function: of rows and their means, or the one of all, their likelihoods.
        rows: all of them.
        loc: (d,), or (n, d).

    Raises:
        ValueError: on every process, if arrays are spread in different ways, along another axis
            than that of the rows, or such that a process has no rows or not a single run of them.
    """
    spread = [leaf for leaf in jax.tree.leaves((rows, loc)) if parallel.is_elsewhere(leaf)]
    if not spread:
        return function(rows, loc)
    from truncgauss.execution import distributed  # which rows of one process do not need

    runs = {run_of(leaf) for leaf in spread}
    begin, end, total = run = runs.pop()
    parts = [tuple(map(int, part)) for part in distributed.exchanged(run)]
    alone = not runs and sum(part[1] - part[0] for part in parts) == total
    if not all(distributed.exchanged(bool(alone and begin < end))):
        raise ValueError(
            f"{what}: the rows must be spread over the processes along their leading axis, the "
            "same way in all arrays, each on one process. Use tg.distributed.from_file, or "
            "jax.make_array_from_process_local_data with the sharding of "
            "tg.parallel.device_mesh()."
        )

    def local(array: Any) -> Any:
        if array is None or np.ndim(array) == 0:
            return array
        if not parallel.is_elsewhere(array):
            return array[begin:end]
        return np.concatenate([part for _, part in sorted(parallel.local_shards(array).items())])

    mesh = parallel.device_mesh(jax.local_device_count())
    with parallel.rows(mesh), parallel.replicates(None):
        with raised_on_all():
            region, noise = rows.region, rows.noise
            if region is not None and region.batch_shape:
                region = jax.tree.map(lambda leaf: jnp.asarray(local(leaf)), region)
            own = Observations(
                jnp.asarray(local(rows.lower)),
                jnp.asarray(local(rows.upper)),
                region,
                local(noise) if noise is not None and noise.ndim == 3 else noise,
                local(rows.weights),
                rows.limits_on,
                names=rows.names,
            )
            for name in ("patterns", "region_patterns"):  # with the keys of rows among all
                numbered = tuple(part.numbered(begin) for part in getattr(own, name))
                object.__setattr__(own, name, numbered)
        result = function(own, local(loc) if np.ndim(loc) == 2 else loc)
    sharding = rows.lower.sharding
    if not isinstance(sharding, NamedSharding):
        raise ValueError(f"the rows must be spread over a mesh, got {sharding}.")
    placement = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))
    return Estimate(
        *(
            jax.make_array_from_process_local_data(placement, np.asarray(leaf), (total,))
            for leaf in result
        )
    )


def run_of(array: jax.Array) -> tuple[int, int, int]:
    """Begin and end of the rows of this process, 0 and 0 if they are no single run of whole rows,
    and the number of all."""
    shards = parallel.local_shards(array)
    begin = end = min(shards, default=0)
    for start, data in sorted(shards.items()):
        if start != end or data.shape[1:] != array.shape[1:]:
            return 0, 0, len(array)
        end = start + len(data)
    return begin, end, len(array)


@contextlib.contextmanager
def raised_on_all() -> Iterator[None]:
    """A context whose ValueError on one process is raised on all; nothing within may exchange."""
    message = ""
    try:
        yield
    except ValueError as error:
        message = str(error)
    every = [content.decode() for content in parallel.all_bytes(message.encode())]
    for index, text in enumerate(every):
        if text:
            raise ValueError(f"process {index}, of its own rows: {text}")
