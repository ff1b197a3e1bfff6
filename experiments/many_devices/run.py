"""Soft fractions and their gradients at many shifts, spread over the devices of this machine.

The rows are elements of a leading axis, or those of `jax.vmap`; each device computes its own, from
samples that all share. The numbers are held against those of one device, and the exact ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import truncgauss as tg
from truncgauss import parallel

from ..timing import timed

TOLERANCE = 1e-12  # of numbers on several devices beside those on one, relative to the largest


def run(config):
    """Numbers, differences and seconds on each number of devices of each kind."""
    shifts = np.linspace(config.shift.start, config.shift.stop, config.shift.num)
    locs = shifts[:, None] + np.array(config.gaussian.loc)
    covariance, box = np.array(config.gaussian.covariance), tg.Box(**dict(config.limits))
    samples = jax.random.normal(jax.random.key(config.seed), (config.num_samples, locs.shape[1]))
    soft = tg.SoftMonteCarlo(samples=np.asarray(samples), edge=tg.Tanh(config.steepness))

    def fraction(loc, method=soft):
        return tg.fraction_not_truncated(loc, covariance, box, method)

    ways = {"leading axis": fraction, "vmap, gradients": jax.vmap(jax.value_and_grad(fraction))}
    names, numbers, seconds = [], [], []
    for mesh in meshes():
        with parallel.rows(mesh):
            costs = [
                timed(jax.jit(lambda x, way=way: way(x)), (locs,), config.num_repeats)
                for way in ways.values()
            ]
        value, (again, slope) = (cost["output"] for cost in costs)
        names.append(f"{mesh.size} {mesh.devices[0].platform}")
        numbers.append(np.stack([np.asarray(x) for x in (value, again, slope.sum(-1))]))
        seconds.append([cost["seconds"] for cost in costs])
    exact = jax.vmap(jax.value_and_grad(lambda x: fraction(x, tg.Automatic())))(jnp.asarray(locs))
    difference = np.abs(np.array(numbers) - numbers[0]).max((1, 2)) / np.abs(numbers[0]).max()
    row = "{:<10}{:>18}{:>18}{:>13}".format
    table = zip(names, *np.round(np.transpose(seconds), 3), difference)
    return {
        "shift": shifts,
        "devices": np.array(names),
        "ways": np.array(list(ways)),
        "value": numbers[0][1],
        "gradient": numbers[0][2],
        "exact": {"value": exact[0], "gradient": exact[1].sum(-1)},
        "seconds": np.array(seconds),
        "difference": difference,
        "summary": [row("seconds on", *ways, "difference"), *(row(*each) for each in table)],
        "failed": "" if (difference <= TOLERANCE).all() else "devices differ in their numbers",
    }


def meshes():
    """Of 1, 2, 4, ... devices of the kind that JAX uses, and of the host where that is another."""
    kinds = {devices[0].platform: devices for devices in (jax.local_devices(), jax.devices("cpu"))}
    return [
        Mesh(np.array(devices[: 2**k]), (parallel.AXIS,))
        for devices in kinds.values()
        for k in range(len(devices).bit_length())
    ]
