"""Compare log probabilities on a GPU with those on the CPU, and print how many it computes.

`make bench-gpu`, some five minutes. `--device cpu` tries the script itself without a GPU.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

import truncgauss as tg

DIMENSIONS = 2, 3, 5, 20, 100
# The 1,024 points of a replicate, added one after the other, round by n eps / 2 at most: XLA adds
# the slopes of limits so, of 2,048 problems and more.
TOLERANCES = {"float64": 1e-12, "float32": 6e-5}
COMPARED = 32  # problems that the CPU computes too
MANY, MOST = 100_000, 4096  # problems of few points, and of many, where memory allows
FEW_POINTS, POINTS = 32, 16 * 1024  # of a coarse method, and of the default from four dimensions on
ARRAYS = 40  # numbers that a gradient keeps of one coordinate of a point, about
OPERATIONS = 80  # of one truncated draw and its weight, beside the product with the factor
CHAIN = 256  # multiplications, each with an addition, of one element where the limit is measured


def problems(n: int, d: int, dtype: str) -> list[np.ndarray]:
    """Means, covariance matrices and limits of n rectangles."""
    rng = np.random.default_rng(d)
    factor = rng.normal(size=(n, d, 2 * d))
    covariance = factor @ np.swapaxes(factor, 1, 2)
    scale = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    covariance /= scale[:, :, None] * scale[:, None, :]
    low = -1.0 + 0.5 * rng.normal(size=(n, d))
    high = low + 1.5 + rng.uniform(size=(n, d))
    return [np.asarray(x, dtype) for x in (np.zeros((n, d)), covariance, low, high)]


def value(
    method: tg.Method, loc: jax.Array, covariance: jax.Array, low: jax.Array, high: jax.Array
) -> jax.Array:
    """log P of one rectangle."""
    return tg.log_probability(loc, covariance, tg.Box(low, high), method).log_prob


def tasks(num_points: int) -> dict[str, Callable[..., Any]]:
    """Log probabilities, and these with their gradients, of a batch of rectangles."""
    coarse = tg.Separation(num_points=FEW_POINTS, num_replicates=1, tilted=False)
    of_row = partial(value, coarse if num_points == FEW_POINTS else tg.Automatic())
    with_gradient = jax.value_and_grad(of_row, argnums=(0, 1, 2, 3))
    return {"value": jax.jit(jax.vmap(of_row)), "gradient": jax.jit(jax.vmap(with_gradient))}


def on(device: jax.Device, arrays: list[np.ndarray]) -> list[jax.Array]:
    return [jax.device_put(x, device) for x in arrays]


def seconds(function: Callable[..., Any], arrays: list[jax.Array]) -> float:
    """The time of a warm call."""
    jax.block_until_ready(function(*arrays))
    start = time.perf_counter()
    jax.block_until_ready(function(*arrays))
    return time.perf_counter() - start


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference of the first results, relative to max(1, the size of an array)."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        x, y = np.asarray(x[: len(y)], np.float64), np.asarray(y, np.float64)
        if not np.array_equal(np.isnan(x), np.isnan(y)):
            return np.inf
        worst = max(worst, float(np.nanmax(np.abs(x - y)) / max(1.0, float(np.nanmax(np.abs(y))))))
    return worst


def batch(device: jax.Device, num_points: int, d: int, dtype: str) -> int:
    """The number of problems whose gradients take at most half of the device's memory."""
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**30)
    most = MANY if d <= 3 or num_points == FEW_POINTS else MOST
    each = ARRAYS * (512 if d <= 3 else num_points) * d * np.dtype(dtype).itemsize
    return int(np.clip(memory / 2 / each, COMPARED, most))


def peak(device: jax.Device, dtype: str) -> float:
    """Multiplications and additions a second of a chain of them, in registers."""
    x = jax.device_put(np.ones(2**25, dtype), device)

    @jax.jit
    def chain(x: jax.Array) -> jax.Array:
        for _ in range(CHAIN):  # in one kernel: a loop is one kernel a round
            x = 0.999 * x + 0.25
        return x

    return CHAIN * 2 * x.size / seconds(chain, [x])


def rows(
    device: jax.Device, num_points: int, d: int, dtype: str, limit: float
) -> Iterator[tuple[str, bool]]:
    """Lines of the table, and whether the devices agree."""
    functions = tasks(num_points)
    n = batch(device, num_points, d, dtype)
    arrays = problems(n, d, dtype)
    truth = functions["gradient"](*on(jax.devices("cpu")[0], [x[:COMPARED] for x in arrays]))
    for task, function in functions.items():
        given = on(device, arrays)
        ours = function(*given)
        apart = difference(ours, truth[0] if task == "value" else truth)
        rate = n / seconds(function, given)
        share = rate * num_points * d * (d + OPERATIONS) / limit if d > 3 else np.nan
        points = num_points if d > 3 else "exact"
        verdict = "" if apart <= TOLERANCES[dtype] else "   DIFFERS"
        numbers = f"{d:5}{points:>8}{n:9}{rate:14.4g}{share:10.2g}{apart:12.1e}"
        yield f"{task:9}{dtype:9}{numbers}{verdict}", not verdict


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
    print("task     dtype        d  points problems    problems/s  of limit  difference")
    right = True
    for dtype in TOLERANCES:
        limit = peak(device, dtype)
        cases = [(FEW_POINTS, 5)] + [(POINTS, d) for d in asked.dimensions]
        for num_points, d in cases:
            for line, agrees in rows(device, num_points, d, dtype, limit):
                print(line, flush=True)
                right &= agrees
    print(
        f"of limit: d (d + {OPERATIONS}) operations of a point, beside a chain of multiplications "
        "and additions; difference: from the CPU"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
