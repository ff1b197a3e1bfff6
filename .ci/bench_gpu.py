"""Compare log probabilities on a GPU with those on the CPU, and print how many it computes.

`make bench-gpu`, some five minutes. `--device cpu` tries the script itself without a GPU.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import truncgauss as tg

DIMENSIONS = 2, 3, 5, 10, 20, 50, 100
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}
COMPARED = 32  # problems that the CPU computes too
SECONDS = 2.0  # of a timed batch, about
POINTS = 16 * 1024  # of the default method from four dimensions on
OPERATIONS = 80  # of one truncated draw and its weight, beside the product with the factor
CHAIN = 256  # multiplications, each with an addition, of one element where the limit is measured


def problems(n: int, d: int, dtype: str) -> list[np.ndarray]:
    """Means, covariance matrices and limits of n rectangles."""
    rng = np.random.default_rng(d)
    factor = rng.normal(size=(n, d, d + 2))
    covariance = factor @ np.swapaxes(factor, 1, 2)
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    covariance /= scale[:, :, None] * scale[:, None, :]
    low = -1.0 + 0.5 * rng.normal(size=(n, d))
    high = low + 1.5 + rng.uniform(size=(n, d))
    return [np.asarray(x, dtype) for x in (np.zeros((n, d)), covariance, low, high)]


def value(loc: jax.Array, covariance: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """log P of one rectangle."""
    return tg.log_probability(loc, covariance, tg.Box(low, high)).log_prob


TASKS: dict[str, Callable[..., Any]] = {
    "value": jax.jit(jax.vmap(value)),
    "gradient": jax.jit(jax.vmap(jax.value_and_grad(value, argnums=(0, 1, 2, 3)))),
}


def on(device: jax.Device, arrays: list[np.ndarray]) -> list[jax.Array]:
    return [jax.device_put(x, device) for x in arrays]


def seconds(function: Callable[..., Any], arrays: list[jax.Array]) -> float:
    """The time of a warm call."""
    jax.block_until_ready(function(*arrays))
    start = time.perf_counter()
    jax.block_until_ready(function(*arrays))
    return time.perf_counter() - start


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of two results, relative to max(1, the size of an array)."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    worst = 0.0
    for x, y in pairs:
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return np.inf
        worst = max(worst, float(np.nanmax(np.abs(x - y)) / max(1.0, float(np.nanmax(np.abs(y))))))
    return worst


def largest_batch(program: Any, device: jax.Device) -> int:
    """Problems that take half of the device's memory, by the needs of a program of a few."""
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**32)
    each = program.memory_analysis().temp_size_in_bytes / COMPARED
    return max(COMPARED, int(memory / 2 / max(each, 1.0)))


def peak(device: jax.Device, dtype: str) -> float:
    """Multiplications and additions a second of a chain of them, in registers."""
    x = jax.device_put(np.ones(2**22, dtype), device)

    @jax.jit
    def chain(x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):  # in one kernel: a loop is one kernel a round
            x = x * x + 0.25
        return x

    return CHAIN * 2 * x.size / seconds(chain, [x])


def row(task: str, d: int, dtype: str, device: jax.Device, limit: float) -> tuple[str, bool]:
    """A line of the table, and whether the devices agree."""
    function, cpu = TASKS[task], jax.devices("cpu")[0]
    few = problems(COMPARED, d, dtype)
    theirs, ours = function(*on(cpu, few)), on(device, few)
    program = function.lower(*ours).compile()
    apart = difference(program(*ours), theirs)
    each = seconds(program, ours) / COMPARED
    n = int(np.clip(SECONDS / each, COMPARED, min(largest_batch(program, device), 10**5)))
    rate = n / seconds(function, on(device, problems(n, d, dtype)))
    share = rate * POINTS * d * (d + OPERATIONS) / limit if d > 3 else np.nan
    agrees = apart <= TOLERANCES[dtype]
    verdict = "" if agrees else "   DIFFERS"
    return (
        f"{task:9}{dtype:9}{d:5}{n:9}{rate:14.4g}{share:10.2g}{apart:12.1e}{verdict}",
        agrees,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS)
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    try:
        device = jax.devices(asked.device)[0]
    except RuntimeError as error:
        print(
            f"bench-gpu: {error}. Install truncgauss[cuda12] or truncgauss[cuda13].",
            file=sys.stderr,
        )
        return 2
    print(f"{device.device_kind}, jax {jax.__version__}")
    print("task     dtype        d problems  problems/s of limit  difference")
    right = True
    for dtype in TOLERANCES:
        limit = peak(device, dtype)
        for d in asked.dimensions:
            for task in TASKS:
                line, agrees = row(task, d, dtype, device, limit)
                print(line, flush=True)
                right &= agrees
    print(
        f"of limit: {POINTS} points of d (d + {OPERATIONS}) operations, beside a chain of "
        "multiplications and additions; difference: from the CPU"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
