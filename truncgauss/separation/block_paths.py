"""Paths of separation of variables under a covariance in blocks, and their weights.

The conditional means of a block of variables given all earlier draws are products of matrices;
within a block the draws are made one variable after the other, by the kernel of `Separation`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.execution import parallel
from truncgauss.gaussian.linalg import in_full_precision, product
from truncgauss.separation import kernel
from truncgauss.separation.block_factor import block_at, transposed, with_block
from truncgauss.special import separation_step, standardize, truncated_mean
from truncgauss.special.logspace import less_level

# The uniforms of a block of variables, shape (b, n), given its index.
Uniforms = Callable[[Array], Array]


class BlockLimits(NamedTuple):
    """Limits low <= loc + L z <= high in blocks, each of shape (n, b).

    They are infinite for the variables that fill up the last block.
    """

    low: Array
    high: Array
    loc: Array

    def within(self, k: Any, factor: Array) -> kernel.Constraints:
        """The limits on block k, with its block on the diagonal of the factor."""
        corner = parallel.replicated(block_at(factor, k, k))
        return kernel.Constraints(self.low[k], self.high[k], self.loc[k], corner)


class BlockDraws(NamedTuple):
    """Draws, their means given earlier blocks (less loc), and log masses, each (N, b, n)."""

    draws: Array
    base: Array
    log_mass: Array


class BlockGradient(NamedTuple):
    """The gradient of a weighted sum of log weights in a factor, None if not wanted, and limits."""

    factor: Array | None
    limits: BlockLimits


def log_weights(
    factor: Array, limits: BlockLimits, tilt: Array, uniforms: Uniforms, num_lanes: int
) -> tuple[Array, Array, BlockDraws]:
    """The log importance weights of paths, shape (n,), less a common level; the level; the draws.

    Args:
        factor: of the covariance, in blocks.
        limits: on the variables.
        tilt: mean of the proposal of each variable, in blocks.
        uniforms: of each block, shape (b, n).
        num_lanes: n.
    """

    def of_lanes(lanes: tuple[Array, Array], shared: Any) -> tuple[Array, Array]:
        return block_paths(*shared, *lanes)

    def step(k: Array, drawn: BlockDraws) -> BlockDraws:
        base = block_means(factor, drawn.draws, k)
        constraints = limits.within(k, factor), tilt[k]
        draw, log_mass = parallel.over_lanes(of_lanes, (base, uniforms(k)), constraints)
        new = BlockDraws(draw, base, log_mass)
        return jax.tree.map(lambda x, y: x.at[k].set(y), drawn, new)

    nothing = jnp.zeros((*tilt.shape, num_lanes), tilt.dtype)
    nothing = parallel.with_axis_spread(nothing, 2)
    drawn = lax.fori_loop(0, len(tilt), step, BlockDraws(nothing, nothing, nothing))
    shift = tilt[:, :, None]
    # mu^2/2 - mu z, written around the draw so that large tilts do not cancel.
    terms = drawn.log_mass - shift * (drawn.draws - shift) - 0.5 * shift * shift
    return *less_level(terms.reshape(-1, num_lanes)), drawn


def with_gradient_of(
    weights: Array,
    drawn: BlockDraws,
    factor: Array,
    limits: BlockLimits,
    tilt: Array,
    uniforms: Uniforms,
    gradient: BlockGradient,
) -> BlockGradient:
    """The gradient plus that of the sum of log weights times given numbers, shape (n,).

    The blocks of `log_weights` in reverse order, tilt and uniforms held fixed: with z_j the draws
    of block j, m_k the means of block k given earlier blocks, and bars for derivatives,

        L_kj-bar += m_k-bar z_j^T,  z_j-bar += L_kj^T m_k-bar,  j < k.

    The blocks of the gradient are replaced in place.
    """
    last = len(tilt) - 1

    def step(count: Array, carry: tuple[BlockGradient, Array]) -> tuple[BlockGradient, Array]:
        (slope, bounds), draws_bar = carry
        k = last - count
        constraints, shift = limits.within(k, factor), tilt[k]
        lanes = drawn.base[k], uniforms(k), drawn.draws[k], drawn.log_mass[k]

        def moved(change: kernel.Constraints, d_base: Array) -> tuple[Array, Array]:
            def of_lanes(lanes: tuple[Array, ...], shared: Any) -> tuple[Array, Array]:
                return moved_paths(*shared, *lanes)

            return parallel.over_lanes(of_lanes, (d_base, *lanes), (constraints, change, shift))

        still = jax.tree.map(jnp.zeros_like, (constraints, lanes[0]))
        mass_bar = jnp.broadcast_to(weights, lanes[0].shape)
        change, base_bar = jax.vjp(moved, *still)[1]((draws_bar[k], mass_bar))
        if slope is not None:
            slope = with_block(slope, k, k, block_at(slope, k, k) + change.factor)
        bounds = jax.tree.map(lambda x, y: x.at[k].add(y), bounds, BlockLimits(*change[:3]))

        def earlier(j: Array, carry: Any) -> Any:
            slope, draws_bar = carry
            if slope is not None:
                block = block_at(slope, k, j) + product(base_bar, drawn.draws[j].T)
                slope = with_block(slope, k, j, block)
            right = transposed(parallel.replicated(block_at(factor, k, j)))
            return slope, draws_bar.at[j].add(product(right, base_bar))

        slope, draws_bar = lax.fori_loop(0, k, earlier, (slope, draws_bar))
        return BlockGradient(slope, bounds), draws_bar

    return lax.fori_loop(0, len(tilt), step, (gradient, -tilt[:, :, None] * weights))[0]


def block_means(factor: Array, draws: Array, k: Any) -> Array:
    """Means of block k given the draws of the blocks before it, shape (N, b, n), less loc."""

    def step(j: Array, total: Array) -> Array:
        return total + product(parallel.replicated(block_at(factor, k, j)), draws[j])

    return lax.fori_loop(0, k, step, jnp.zeros_like(draws[0]))


def inner_point(factor: Array, limits: BlockLimits) -> Array:
    """A point inside the limits, in standardised coordinates and in blocks.

    Each variable is at its mean given its limits and the variables before it.
    """

    def step(mean: Array, row: Any) -> tuple[Array, Array]:
        low, high, loc, scale, base = row
        interval = standardize(low, high, loc + base + mean, scale)
        return truncated_mean(0.0, 1.0, interval.low, interval.high), mean

    def block(k: Array, points: Array) -> Array:
        constraints = limits.within(k, factor)
        base = block_means(factor, points, k)
        columns = *constraints[:3], constraints.scale
        rows = *(column[:, None] for column in columns), base
        return points.at[k].set(kernel.sweep(jnp.tril(constraints.factor, -1), step, rows, 1)[0])

    start = jnp.zeros_like(limits.loc)[:, :, None]
    return lax.fori_loop(0, len(start), block, start)[:, :, 0]


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
        base: mean of each variable given earlier blocks, less loc, shape (b, n).
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
@in_full_precision
def _block_paths_jvp(
    primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    constraints, tilt, base, uniforms = primals
    change, _, d_base, _ = tangents
    result = block_paths(*primals)
    return result, moved_paths(constraints, change, tilt, d_base, base, uniforms, *result)


def moved_paths(
    constraints: kernel.Constraints, change: kernel.Constraints, tilt: Array, *columns: Array
) -> tuple[Array, Array]:
    """Tangents of draws and log masses, `change` being that of the constraints.

    Args:
        constraints, tilt: as of `block_paths`.
        change: the tangent of the constraints.
        columns: the tangent of base, base and uniforms, and the results of `block_paths`.
    """
    return kernel.in_batches(partial(_moved, constraints, change, tilt), *columns)


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
