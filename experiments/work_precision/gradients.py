"""The cost of a gradient: time and memory of value and gradient, over those of the value."""

import time

import jax
import jax.numpy as jnp

import truncgauss as tg

from ..timing import compiled
from .curves import columns
from .problems import answered, problem_of


def gradients(config):
    """Value and gradient against value, for a plan that is held, and the memory of either."""
    found = []
    for case in config.gradients:
        loc, covariance, region = problem_of(case, case.dimension, case.low, case.high, config.seed)
        method = tg.Separation(num_points=case.num_points[0]).hold(loc, covariance, region)
        key = jax.random.key(config.seed)

        def value(loc, covariance, low, high, method=method, key=key):
            return answered(loc, covariance, tg.Box(low, high), method, key).log_prob

        inputs = (loc, covariance, region.low, region.high)
        gradient = jax.value_and_grad(value, argnums=(0, 1, 2, 3))
        alone, both = (
            compiled(jax.jit(function), inputs, config.num_calls, time.process_time)
            for function in (value, gradient)
        )
        size = method.num_points * method.num_replicates
        found.append(
            {
                "dimension": case.dimension,
                "size": size,
                "value_seconds": alone["seconds"],
                "both_seconds": both["seconds"],
                "ratio": both["seconds"] / alone["seconds"],
                "first_seconds": both["first_seconds"],
                "value_bytes": alone["bytes"],
                "both_bytes": both["bytes"],
                "bytes_share": both["bytes"] / (case.dimension * size * loc.dtype.itemsize),
                "finite": all(bool(jnp.isfinite(x).all()) for x in both["output"][1]),
            }
        )
    return columns(found)


def gradients_table(found):
    row = "{:>5}{:>9}{:>10}{:>12}{:>8}{:>10}{:>12}{:>14}{:>16}{:>9}".format
    lines = [
        row("d", "points", "value/s", "gradient/s", "ratio", "first/s", "value/MiB",
            "gradient/MiB", "of d*n numbers", "finite")
    ]  # fmt: skip
    for i in range(len(found["dimension"])):
        x = {key: column[i] for key, column in found.items()}
        lines.append(
            row(
                x["dimension"], x["size"], f"{x['value_seconds']:.2g}", f"{x['both_seconds']:.2g}",
                f"{x['ratio']:.2f}", f"{x['first_seconds']:.2g}", f"{x['value_bytes'] / 2**20:.2f}",
                f"{x['both_bytes'] / 2**20:.1f}", f"{x['bytes_share']:.2f}", str(x["finite"]),
            )
        )  # fmt: skip
    return lines
