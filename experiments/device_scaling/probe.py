"""Pieces of work on some devices, in a fresh process: a JSON line of what each cost.

Run as `python probe.py WORK NUM_CALLS NUM_DEVICES NUM_CORES [PLACE COUNT INDEX]`, where WORK is
JSON: by name what is spread (rows, points, or the rows of a file) and its settings. It is one of
COUNT processes then, which share the work if PLACE is the address of a coordinator. If PLACE is a
folder, each does all of the work by itself, at the same time as the others.
"""

import json
import math
import os
import re
import sys
import time
from pathlib import Path

COLLECTIVE = re.compile(
    r" = (.*) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
ARRAY = re.compile(r"[a-z]+(\d+)\[([\d,]*)\]")


def problems(num_rows, d):
    """Means of different problems, one covariance matrix, and limits on both sides."""
    import numpy as np

    rng = np.random.default_rng(0)
    factor = rng.normal(size=(d, d + 2))
    covariance = factor @ factor.T
    scale = np.sqrt(np.diag(covariance))
    return 0.3 * rng.normal(size=(num_rows, d)), covariance / np.outer(scale, scale)


def likelihood(given, mesh):
    """Minus the log-likelihood of a file's rows with its gradient, in mean and covariance."""
    import jax
    import jax.numpy as jnp

    import truncgauss as tg

    d = given["dimension"]
    means, covariance = problems(1, d)
    rows = tg.distributed.from_file(given["path"], mesh=mesh)
    method = tg.Separation(given["num_points"], 1, tilted=False)

    def loss(parameters, rows):
        (loc, matrix), (x, low) = parameters, jnp.split(rows.values, 2, axis=1)
        seen = tg.log_probability(loc, matrix, tg.Box(low, jnp.inf), method).log_prob
        # Products of matrices stay on their devices; for a triangular solve all rows would travel.
        apart = x - loc
        squares = jnp.sum(apart * (apart @ jnp.linalg.inv(matrix)), axis=1)
        level = 0.5 * (jnp.linalg.slogdet(matrix)[1] + d * math.log(2.0 * math.pi))
        return jnp.sum(rows.weights * (seen + 0.5 * squares + level))

    parameters = jnp.asarray(means[0]), jnp.asarray(covariance)
    context = tg.parallel.rows(mesh, gathered=False)
    return jax.jit(jax.value_and_grad(loss)), (parameters, rows), context


def work(kind, given, mesh):
    """A jitted function that is spread over a mesh, its arguments, and the context of its call."""
    import jax
    import numpy as np

    import truncgauss as tg

    if kind == "file":
        return likelihood(given, mesh)
    d = given["dimension"]
    means, covariance = problems(given.get("num_rows", 1), d)
    box = tg.Box(np.full(d, -1.0), np.full(d, 1.5))
    replicates = given.get("num_replicates", 1)
    method = tg.Separation(given["num_points"], replicates, tilted=False)
    value = lambda loc: tg.log_probability(loc, covariance, box, method).log_prob
    if kind == "rows":
        # Every process has all means, as a user's program would.
        return jax.jit(value), (means,), tg.parallel.rows(mesh)
    return jax.jit(value), (means[0],), tg.parallel.replicates(mesh)


class Others:
    """Independent processes that do the same work, which meet at files in a folder."""

    def __init__(self, folder, count, index):
        self.folder, self.count, self.index = Path(folder), int(count), int(index)

    def arrived(self, name):
        """Say that this process has come so far, and whether all have."""
        (self.folder / f"{name}.{self.index}").touch()
        return len(list(self.folder.glob(f"{name}.*"))) == self.count


def measured(kind, given, num_calls, name, others):
    """Seconds and processor seconds of the fastest of the warm calls, memory, and the numbers."""
    import jax
    import numpy as np

    import truncgauss as tg

    mesh, start = tg.parallel.device_mesh(), time.process_time()
    function, arguments, context = work(kind, given, mesh)
    made = time.process_time() - start
    with context:
        compiled = function.lower(*arguments).compile()
        memory = compiled.memory_analysis()
        result = jax.tree.leaves(jax.block_until_ready(compiled(*arguments)))
        held = {shard.device for shard in result[0].addressable_shards}
        calls = []
        while others and not others.arrived(f"{name}.begins"):
            time.sleep(0.001)
        for _ in range(num_calls):
            clock, start = time.perf_counter(), time.process_time()
            jax.block_until_ready(compiled(*arguments))
            calls.append((time.perf_counter() - clock, time.process_time() - start))
        while others and not others.arrived(f"{name}.ends"):
            jax.block_until_ready(compiled(*arguments))  # none of the others has the machine alone
    return {
        "made": made,
        "exchanged": exchanged(compiled.as_text()),
        "wall": min(wall for wall, _ in calls),
        "work": min(seconds for _, seconds in calls),
        "memory": memory.temp_size_in_bytes + memory.output_size_in_bytes,
        "held": len(held),
        "values": np.concatenate([np.ravel(leaf) for leaf in result])[:100].tolist(),
    }


def exchanged(program):
    """How many collectives a compiled program has, and the bytes of all their results."""
    sizes = [
        int(bits) // 8 * math.prod(int(n) for n in shape.split(",") if n)
        for line in program.splitlines()
        if (found := COLLECTIVE.search(line))
        for bits, shape in ARRAY.findall(found[1])
    ]
    return [sum(bool(COLLECTIVE.search(line)) for line in program.splitlines()), sum(sizes)]


def main(words):
    """Measure and print."""
    asked, (num_calls, num_devices, num_cores) = json.loads(words[0]), map(int, words[1:4])
    joining = words[4:]
    others = Others(*joining) if joining and os.path.isdir(joining[0]) else None
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores:  # a device of one process has a core of its own, as long as there are cores
        shift = int(joining[2]) if joining else 0
        os.sched_setaffinity(0, {cores[(shift + i) % len(cores)] for i in range(num_cores)})
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", num_devices)
    import truncgauss as tg

    if joining and others is None:
        tg.distributed.join(joining[0], int(joining[1]), int(joining[2]))
    print(
        json.dumps(
            {
                name: measured(kind, given, num_calls, name, others)
                for name, (kind, given) in asked.items()
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
