"""What paths have drawn, in units that keep the digits of a narrow interval far from the mean."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.pytrees import varying_like
from truncgauss.separation.kernel import Constraints, intersected_paths
from truncgauss.special import (
    standardize,
    truncated_mean,
    truncated_quantile,
    truncated_variance,
)


class Drawn(NamedTuple):
    """Draws less a point, the last one integrated, and the laws they were drawn from: (k, n)."""

    deviations: Array
    expected: Array
    variances: Array


def inner_point(constraints: Constraints, tilt: Array) -> Array:
    """A point inside the constraints: the most likely draw of each variable, one after another."""

    def step(z, row):
        k, weights, low, high, loc, scale, tilt = row
        mean = loc + weights @ z
        y = jnp.clip(mean + scale * tilt, low, high)
        return z.at[k].set((y - mean) / scale), y

    strict = jnp.tril(constraints.factor, -1)
    rows = jnp.arange(len(tilt)), strict, *constraints[:3], constraints.scale, tilt
    return lax.stop_gradient(lax.scan(step, varying_like(jnp.zeros_like(tilt), rows), rows)[1])


def drawn_again(constraints: Constraints, tilt, uniforms, means, point: Array) -> Drawn:
    """The draws once more, in the units of their limits.

    They come from the same uniforms: z has lost the digits of a narrow interval far from the mean.
    """
    low, high, loc, _ = constraints
    scale = constraints.scale[:, None]
    near = standardize(low, high, point)
    center = (loc - point)[:, None] + means + scale * tilt[:, None]
    law = center, scale, near.low[:, None], near.high[:, None]
    expected, variances = truncated_mean(*law), truncated_variance(*law)
    draws = truncated_quantile(uniforms, *(x[:-1] for x in law))
    return Drawn(jnp.concatenate([draws, expected[-1:]]), expected, variances)


def intersected_draws(
    constraints: Constraints, extra: Constraints, tilt: Array, uniforms: Array
) -> tuple[Array, Array]:
    """Draws of all variables, and log masses, under more constraints than variables."""
    rank, zero, endless = len(tilt), jnp.zeros(1, tilt.dtype), jnp.full(1, jnp.inf, tilt.dtype)
    factor = jnp.pad(constraints.factor, (0, 1)).at[rank, rank].set(1.0)
    ends = zip(constraints[:3], (-endless, endless, zero))
    longer = Constraints(*(jnp.append(*pair) for pair in ends), factor)
    wider = extra._replace(factor=jnp.pad(extra.factor, ((0, 0), (0, 1))))
    draws, log_mass = intersected_paths(longer, wider, jnp.append(tilt, zero), uniforms)
    return draws, log_mass[:-1]
