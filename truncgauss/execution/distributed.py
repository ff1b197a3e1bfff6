"""One computation by several processes, on one host or on many, through `jax.distributed`.

Every process runs the same program on the same data, and `parallel.device_mesh()` has the devices
of all of them. Within `parallel.rows` or `parallel.replicates` over that mesh they share the work,
and each gets all of the result. JAX would average parameters that differ between processes without
a word; calls and fits compare theirs first, and a difference is an error on every process.

The command line does all of this: `truncgauss run config.yaml --distributed`. In a script:

```python
tg.distributed.join()  # before any computation; or with an address, a count and an index
mesh = tg.parallel.device_mesh()
rows = tg.distributed.gathered(own_rows)  # of all processes, in their order
spread = tg.distributed.from_file("rows.parquet", ["x", "low"])  # each process reads its own
with tg.parallel.rows(mesh):
    fit = tg.fit_observations(tg.Observations.exact(rows, region=region))
statistics = sum(tg.distributed.exchanged(tg.Statistics.from_rows(own_rows)))
```

When a process ends, the others fail at their next exchange, or are aborted by JAX within
`HEARTBEAT` seconds and a few more.
"""

import io
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from truncgauss import tables
from truncgauss.arrays import parallel
from truncgauss.arrays.parallel import SpreadRows

PATIENCE = 120  # seconds to wait for all processes to start
LATER = 60  # seconds after that JAX gives up too
DRAWING = 600  # seconds that the others wait at the end for the one that writes the files
GRACE = 2  # seconds by which the first process goes later: its end aborts the others
HEARTBEAT = 20  # seconds without a sign of life, after which a process is taken for dead

# Variables of which the first two say how many processes there are and which is this one. JAX finds
# the address of the first process in the others.
ENVIRONMENTS = {
    "slurm": ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_STEP_NODELIST",
              "SLURM_LOCALID"),
    "ompi": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri",
             "OMPI_COMM_WORLD_LOCAL_RANK"),
    "k8s": ("JOB_COMPLETION_COUNT", "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST"),
}  # fmt: skip
NAMES = {"slurm": "Slurm", "ompi": "Open MPI", "k8s": "Kubernetes"}


class Address(NamedTuple):
    """The meeting point of the processes, their number, and which of them this one is.

    Attributes:
        coordinator: "host:port" of the first process; None where the cluster knows it.
        num_processes, process_index: likewise.
        cluster: the environment that they come from, as JAX calls it; None for explicit numbers.
    """

    coordinator: str | None
    num_processes: int | None
    process_index: int | None
    cluster: str | None = None

    def __str__(self) -> str:
        if self.cluster is None:
            source = f"given: coordinator {self.coordinator}"
        elif self.num_processes is None:
            source = f"found: {NAMES.get(self.cluster, self.cluster)}"
        else:
            source = f"found: {NAMES[self.cluster]}"
        if self.num_processes is None:
            return source
        return f"{source}, process {self.process_index} of {self.num_processes}"


def address(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Address:
    """The address to join at: the one given, or that of the cluster that started this process.

    Args:
        coordinator: "host:port" of the first process, reachable from all.
        num_processes: how many there are.
        process_index: from 0 to num_processes - 1.
        environment: the variables of the process.

    Raises:
        ValueError: if some of the three are given, but not all; or if none is, and the environment
            is that of no cluster, or only a part of one, as in a login shell.

    Example:
        >>> str(tg.distributed.address("10.0.0.1:1234", 2, 0, {"SLURM_JOB_ID": "7"}))
        'given: coordinator 10.0.0.1:1234, process 0 of 2'
        >>> variables = ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "SLURM_LOCALID"]
        >>> found = dict.fromkeys(variables, "3") | {"SLURM_STEP_NODELIST": "node[1-4]"}
        >>> tg.distributed.address(environment=found).cluster
        'slurm'
    """
    given = (coordinator, num_processes, process_index)
    if coordinator is not None and num_processes is not None and process_index is not None:
        if not 0 <= process_index < num_processes:
            raise ValueError(
                f"distributed: the process index must be from 0 to {num_processes - 1}, got "
                f"{process_index}."
            )
        if not coordinator.rpartition(":")[2].isdigit():
            raise ValueError(
                f"distributed: the coordinator must be HOST:PORT, got {coordinator!r}."
            )
        return Address(coordinator, num_processes, process_index)
    if any(part is not None for part in given):
        raise ValueError(
            "distributed: a coordinator, a number of processes and a process index belong "
            f"together, got {coordinator}, {num_processes} and {process_index}."
        )
    for cluster, variables in ENVIRONMENTS.items():
        if all(name in environment for name in variables):
            count, index = (int(environment[name]) for name in variables[:2])
            return Address(None, count, index, cluster)
    missing = "the environment is that of no cluster (Slurm, Open MPI, Kubernetes)"
    for cluster, variables in reversed(ENVIRONMENTS.items()):
        present = [name for name in variables if name in environment]
        if present:
            absent = [name for name in variables if name not in environment]
            missing = (
                f"of the variables of {NAMES[cluster]} there is {', '.join(present)}, but not "
                f"{', '.join(absent)}, as in a shell of its own beside the job"
            )
    raise ValueError(
        f"distributed: {missing}. Start the processes by srun or mpirun, or give --coordinator "
        "HOST:PORT, --num-processes and --process-index."
    )


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    *,
    patience: int = PATIENCE,
    heartbeat: int = HEARTBEAT,
) -> Address:
    """Join the other processes of a computation; to be called before any, and `address` returned.

    Args:
        coordinator, num_processes, process_index: see `address`; all or none.
        patience: seconds to wait for all processes.
        heartbeat: seconds without a sign of life after which a process is taken for dead, and the
            others are ended.

    Raises:
        ValueError: see `address`; if the first process cannot listen at its port; or if JAX has
            already computed something.

    Where others have not come within `patience`, the process ends with a line about it.
    """
    where = address(coordinator, num_processes, process_index)
    if where.coordinator is not None and where.process_index == 0:
        port = int(where.coordinator.rpartition(":")[2])
        try:
            socket.create_server(("", port)).close()
        except OSError as error:  # on which some versions of JAX end by a segmentation fault
            raise ValueError(
                f"distributed: the first process cannot listen at port {port}: {error.strerror}."
            ) from error
    # Its handler would swallow SIGTERM, on which runs save their state.
    jax.config.update("jax_enable_preemption_service", False)
    last = threading.Timer(patience, _give_up, (where, patience))
    last.daemon = True
    last.start()
    try:
        jax.distributed.initialize(
            where.coordinator,
            None if where.cluster else where.num_processes,
            None if where.cluster else where.process_index,
            cluster_detection_method=where.cluster or "deactivate",
            initialization_timeout=patience + LATER,
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=max(patience, DRAWING),
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise ValueError(
            "distributed: JAX has already computed something in this process. Join the others "
            "first; an experiment's file should make its arrays in run, not when it is imported."
        ) from error
    finally:
        last.cancel()
    return where


def _give_up(where: Address, patience: int) -> NoReturn:
    """End this process, which JAX would do a little later with a trace of its C++ code."""
    print(
        f"truncgauss: error: distributed: not all processes came within {patience} seconds; this "
        f"is one that did ({where}). See what the others said, and start all of them again.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


def exchanged(tree: Any) -> list[Any]:
    """The values of a pytree on every process, in their order; the same list on all of them.

    Numbers arrive as they are, bit by bit, in NumPy's dtype, whatever JAX's precision is. Shapes
    may differ between processes, structures may not.

    Args:
        tree: a pytree of numbers and arrays, such as `tg.Statistics` of a process's own rows.

    Raises:
        ValueError: if the structures differ.

    Example:
        >>> sum(tg.distributed.exchanged(tg.Statistics.from_rows([1.0, 2.0, 6.0]))).mean
        array([3.])
    """
    if jax.process_count() == 1:
        return [tree]
    leaves, structure = jax.tree.flatten(tree)
    file = io.BytesIO()
    np.savez(file, structure=str(structure), **{f"{i}": leaf for i, leaf in enumerate(leaves)})
    trees = []
    for index, content in enumerate(parallel.all_bytes(file.getvalue())):
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if str(arrays["structure"]) != str(structure):
                raise ValueError(
                    f"distributed: process {index} exchanges {arrays['structure']}, this one "
                    f"{structure}."
                )
            found = [arrays[f"{i}"] for i in range(len(leaves))]
        trees.append(jax.tree.unflatten(structure, found))
    return trees


def gathered(rows: Any) -> np.ndarray:
    """The rows of all processes, one process after the other, on each of them.

    Args:
        rows: (n, ...) of this process, with an n of its own; or a `jax.Array` that is spread over
            the devices of all processes.

    Example:
        >>> tg.distributed.gathered([[1.0], [2.0]])
        array([[1.],
               [2.]])
    """
    if isinstance(rows, jax.Array) and not rows.is_fully_addressable:
        return parallel.everywhere(rows)
    return np.concatenate(exchanged(np.asarray(rows)))


def from_file(
    path: str | Path, columns: Sequence[str] | None = None, mesh: Mesh | None = None
) -> SpreadRows:
    """The rows of a file, of which each process reads and holds those of its own devices alone.

    `log_likelihood` takes such arrays, and each process works on its own rows. For sums over rows
    in a jitted function or in `tg.minimize`, use them within `parallel.rows(mesh, gathered=False)`
    where they hold probabilities, and write squares as products with an inverse: for a triangular
    solve XLA sends all rows to all devices. Fits, and whatever else needs all rows in one place,
    take `gathered(rows.values)`; a mean and a covariance, `tg.Statistics.from_file`, needs no
    array.

    Args:
        path: a Parquet, NPY, NPZ or CSV file of numbers that all processes can read, as in
            `tables.chunks`. Of Parquet those row groups are read that hold rows of this process; of
            the others its rows, after counting those before them.
        columns: names of the columns; None for all.
        mesh: from `parallel.device_mesh`, by default over all devices of all processes.

    Raises:
        ValueError: for a file without rows, what `tables.chunks` refuses, or a mesh in which the
            devices of this process do not stand side by side.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "rows.csv")
        ...     _ = path.write_text("x,low\\n1,0\\n3,2\\n", "utf-8")
        ...     rows = tg.distributed.from_file(path, ["x", "low"])
        >>> def loss(loc, rows):
        ...     x, low = rows.values.T
        ...     seen = tg.special.truncated_log_mass(loc, 1.0, low, jnp.inf)
        ...     return jnp.sum(rows.weights * (0.5 * (x - loc) ** 2 + seen))
        >>> fit = tg.minimize(jax.tree_util.Partial(lambda rows, loc: loss(loc, rows), rows), 0.0)
        >>> fit.params.round(4)  # where both truncated means together are 4
        Array(1.2144, dtype=float64)
    """
    mesh = parallel.device_mesh() if mesh is None else mesh
    length = tables.num_rows(path, columns)
    if length == 0:
        raise ValueError(f"{path} has no row.")
    total = -(-length // mesh.size) * mesh.size
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    own = [part[0] for part in sharding.addressable_devices_indices_map((total,)).values() if part]
    begin = min(part.start or 0 for part in own)
    end = max(total if part.stop is None else part.stop for part in own)
    if end - begin != len(own) * total // mesh.size:
        raise ValueError(
            "distributed: the devices of this process do not stand side by side in the mesh. Use "
            "tg.parallel.device_mesh()."
        )
    kept = slice(min(begin, length - 1), min(end, length))  # at least one row, to repeat
    rows = np.concatenate(list(tables.chunks(path, columns, rows=kept)))
    rows = rows[np.minimum(np.arange(begin, end), length - 1) - kept.start]
    weights = (np.arange(begin, end) < length).astype(float)
    values, counted = (
        jax.make_array_from_process_local_data(sharding, x, (total, *x.shape[1:]))
        for x in (rows, weights)
    )
    return SpreadRows(values, counted)


def share(num_rows: int) -> slice:
    """The rows of a file of `num_rows` that this process should read.

    Example:
        >>> tg.distributed.share(10)
        slice(0, 10, None)
    """
    index, count = jax.process_index(), jax.process_count()
    return slice(num_rows * index // count, num_rows * (index + 1) // count)


def first() -> bool:
    """Whether this process is the one that writes files and prints."""
    return jax.process_index() == 0


def joined() -> bool:
    """Whether this process has joined others."""
    return jax.distributed.is_initialized()


def leave(code: int) -> NoReturn:
    """End this process at once after a failure; the others fail at their next exchange.

    A Python process that ends in the usual way waits for the others, which wait for it.
    """
    if first():
        time.sleep(GRACE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
