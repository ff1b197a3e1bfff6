"""Paths of separation of variables under a covariance in block columns, and their weights.

The conditional means of a block of variables given all earlier draws are products of matrices;
within a block the draws are made one variable after the other, by the kernel of `Separation`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss import parallel
from truncgauss.linalg import product
from truncgauss.separation import kernel
from truncgauss.separation.block_factor import Columns
from truncgauss.special import separation_step, standardize, truncated_mean


class BlockLimits(NamedTuple):
    """Limits low <= loc + L z <= high in blocks, each of shape (n, b).

    They are infinite for the variables that fill up the last block.
    """

    low: Array
    high: Array
    loc: Array

    def within(self, k: int, factor: Columns) -> kernel.Constraints:
        """The limits on block k, with its block on the diagonal of the factor."""
        corner = parallel.replicated(factor[k][0])
        return kernel.Constraints(self.low[k], self.high[k], self.loc[k], corner)


def log_weights(
    factor: Columns, limits: BlockLimits, tilt: Array, uniforms: tuple[Array, ...]
) -> tuple[Array, Array]:
    """The log importance weights of paths, shape (n,), less a common level; and the level.

    Args:
        factor: of the covariance.
        limits: on the variables.
        tilt: mean of the proposal of each variable, in blocks.
        uniforms: of each block, shape (b, n).
    """

    def of_lanes(lanes: tuple[Array, Array], shared: Any) -> tuple[Array, Array]:
        return block_paths(*shared, *lanes)

    draws: Columns = ()
    total, level = jnp.zeros_like(uniforms[0][0]), jnp.zeros_like(tilt[0, 0])
    for k, uniform in enumerate(uniforms):
        # Blocks are cheaper to take out of their columns again than to keep.
        means = jax.checkpoint(means_given)(factor[:k], draws) if k else jnp.zeros_like(uniform)
        own = limits.within(k, factor), tilt[k]
        draw, log_mass = parallel.over_lanes(of_lanes, (means, uniform), own)
        shift = tilt[k][:, None]
        # mu^2/2 - mu z, written around the draw so that large tilts do not cancel.
        terms = log_mass - shift * (draw - shift) - 0.5 * shift * shift
        fixed = lax.stop_gradient(terms)
        height = jnp.mean(fixed, axis=1, where=jnp.isfinite(fixed), keepdims=True)
        height = jnp.where(jnp.isfinite(height), height, 0.0)
        total, level = total + jnp.sum(terms - height, axis=0), level + jnp.sum(height)
        draws = *draws, draw
    return total, level


def means_given(factor: Columns, draws: tuple[Array, ...]) -> Array:
    """What the draws of the first blocks, at least one, add to the means of the next block."""
    k = len(draws)
    parts = [
        product(parallel.replicated(column[k - j]), draw)
        for j, (column, draw) in enumerate(zip(factor, draws))
    ]
    return sum(parts[1:], parts[0])


def inner_point(factor: Columns, limits: BlockLimits) -> Array:
    """A point inside the limits, in standardised coordinates and in blocks.

    Each variable is at its mean given its limits and the variables before it.
    """

    def step(mean: Array, row: Any) -> tuple[Array, Array]:
        low, high, loc, scale, base = row
        interval = standardize(low, high, loc + base + mean, scale)
        return truncated_mean(0.0, 1.0, interval.low, interval.high), mean

    points: tuple[Array, ...] = ()
    for k in range(len(factor)):
        own = limits.within(k, factor)
        base = means_given(factor[:k], points) if k else jnp.zeros_like(own.loc)[:, None]
        rows = *(row[:, None] for row in (own.low, own.high, own.loc, own.scale)), base
        points = *points, kernel.sweep(jnp.tril(own.factor, -1), step, rows, 1)[0]
    return jnp.concatenate(points, axis=1).T


# --- One block ------------------------------------------------------------------------------------


@jax.custom_jvp
def block_paths(
    constraints: kernel.Constraints, tilt: Array, base: Array, uniforms: Array
) -> tuple[Array, Array]:
    """The draws of a block of variables one after the other, and the log masses of their intervals.

    It is `kernel.paths` with all variables drawn, and with means from earlier blocks.

    Args:
        constraints: on the variables of the block.
        tilt: shape (b,); it is held fixed in derivatives.
        base: what earlier blocks add to the mean of each variable, shape (b, n).
        uniforms: shape (b, n); held fixed too.
    """
    return kernel.in_batches(partial(_drawn, constraints, tilt), base, uniforms)


def _drawn(
    constraints: kernel.Constraints, tilt: Array, base: Array, uniforms: Array
) -> tuple[Array, Array]:
    low, high, loc, factor = constraints

    def step(mean: Array, row: Any) -> tuple[Array, Array]:
        low, high, loc, scale, tilt, base, uniform = row
        interval = standardize(low, high, loc + base + mean + scale * tilt, scale)
        draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
        return tilt + draw, log_mass

    rows = low, high, loc, constraints.scale, tilt, base, uniforms
    return kernel.sweep(jnp.tril(factor, -1), step, rows, uniforms.shape[1])


@block_paths.defjvp
def _block_paths_jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    constraints, tilt, base, uniforms = primals
    change, _, d_base, _ = tangents
    result = block_paths(*primals)

    @jax.checkpoint  # slopes are cheaper to compute again than to keep
    def moved(*columns: Array) -> tuple[Array, Array]:
        return kernel.in_batches(partial(_moved, constraints, change, tilt), *columns)

    return result, moved(d_base, base, uniforms, *result)


def _moved(
    constraints: kernel.Constraints,
    change: kernel.Constraints,
    tilt: Array,
    d_base: Array,
    base: Array,
    uniforms: Array,
    draws: Array,
    log_mass: Array,
) -> tuple[Array, Array]:
    """Tangents of draws and log masses, `change` being that of the constraints."""
    low, high, loc = (x[:, None] for x in constraints[:3])
    scale, shift = constraints.scale[:, None], tilt[:, None]
    strict, d_strict = (jnp.tril(x.factor, -1) for x in (constraints, change))
    means = base + product(strict, draws)
    interval = standardize(low, high, loc + means + scale * shift, scale)
    slopes = kernel.interval_slopes(*interval, log_mass, draws - shift, uniforms)
    d_low, d_high, d_loc, growth = (x[:, None] / scale for x in (*change[:3], change.scale))
    d_draw, d_mass = kernel.end_tangents(slopes, interval, shift, d_low, d_high, d_loc, growth)
    follow = (slopes.draw_low + slopes.draw_high) / scale
    right = d_base + product(d_strict, draws)
    none = jnp.zeros_like(strict[:1]), jnp.zeros_like(right[:1])  # no variable after the last
    system = jnp.concatenate([strict, none[0]]), jnp.concatenate([right, none[1]])
    d_draws, d_means = kernel.substitution(system[0], follow, d_draw, system[1])
    return d_draws, d_mass - slopes.mass_shift / scale * d_means[:-1]
