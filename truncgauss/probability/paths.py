"""Paths through the constraints: the kernel of separation of variables, and its derivative.

A path draws one variable after the other, each inside the interval that the earlier ones leave it.
`sweep` runs such a recursion for many lanes (points, particles) at once, `substitution` solves the
linear one that its derivative needs, and `paths` puts both together.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.mills import LOG_SQRT_2PI
from truncgauss.special import log_interval_mass, separation_step, standardize

BLOCK = 32


class Constraints(NamedTuple):
    """What a path must pass: low_k <= (loc + factor @ z)_k <= high_k, shapes (d,) and (d, d)."""

    low: Array
    high: Array
    loc: Array
    factor: Array


@jax.custom_jvp
def paths(constraints: Constraints, tilt: Array, uniforms: Array) -> tuple[Array, Array]:
    """Draws of the variables one after the other, and the masses of their intervals.

    Given the earlier ones, z_k is Normal(tilt_k, 1) truncated to where the k-th constraint holds.
    The last variable is not drawn: its mass is all that a probability needs.

    Args:
        constraints: with a lower-triangular factor.
        tilt: shape (d,).
        uniforms: points in the open unit cube, shape (d - 1, n).

    Returns:
        z, shape (d - 1, n), and the log masses, shape (d, n). Their derivatives hold `tilt` and
        `uniforms` fixed. They need one triangular solve, forwards or transposed, and no more
        memory than the results.
    """
    low, high, loc, factor = constraints
    scale = jnp.diagonal(factor)
    rows = (low, high, loc + scale * tilt, scale, tilt)

    def step(mean, row):
        (low, high, loc, scale, tilt), uniform = row
        interval = standardize(low, high, loc + mean, scale)
        draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
        return tilt + draw, log_mass

    earlier = jax.tree.map(lambda row: row[:-1], rows)
    z, log_mass = sweep(
        jnp.tril(factor[:-1, :-1], -1), step, (earlier, uniforms), uniforms.shape[1]
    )
    low, high, loc, scale, _ = jax.tree.map(lambda row: row[-1], rows)
    last = log_interval_mass(*standardize(low, high, loc + factor[-1, :-1] @ z, scale))
    return z, jnp.concatenate([log_mass, last[None]])


@paths.defjvp
def _paths_jvp(primals, tangents):
    constraints, tilt, uniforms = primals
    moved: Constraints = tangents[0]
    z, log_mass = paths(*primals)
    strict = jnp.tril(constraints.factor, -1)[:, :-1]
    scale = jnp.diagonal(constraints.factor)[:, None]
    low, high, loc = (x[:, None] for x in constraints[:3])
    shift = scale * tilt[:, None]
    interval = standardize(low, high, loc + strict @ z + shift, scale)
    draw = jnp.concatenate([z - tilt[:-1, None], jnp.zeros_like(z[:1])])
    share = jnp.concatenate([uniforms, jnp.full_like(z[:1], 0.5)])
    slopes = interval_slopes(*interval, log_mass, draw, share)

    # Tangents of the two ends and of their common shift, in units of the scale, z held fixed.
    d_low, d_high, d_loc = (x[:, None] / scale for x in moved[:3])
    d_mean = d_loc + jnp.tril(moved.factor, -1)[:, :-1] @ z / scale
    growth = jnp.diagonal(moved.factor)[:, None] / scale
    d_draw, d_mass = _ends(slopes, interval, tilt[:, None], d_low, d_high, d_mean, growth)
    follow = (slopes.draw_low + slopes.draw_high) / scale
    dz = substitution(strict[:-1], follow[:-1], d_draw[:-1])
    return (z, log_mass), (dz, d_mass - slopes.mass_shift / scale * (strict @ dz))


def _ends(slopes, interval, tilt, d_low, d_high, d_mean, growth) -> tuple[Array, Array]:
    """Tangents of draws and log masses when limits, mean and scale move and z does not."""
    # The ends before the tilt was taken off are what the growth of the scale divides.
    low = jnp.where(jnp.isinf(interval.low), 0.0, interval.low + tilt)
    high = jnp.where(jnp.isinf(interval.high), 0.0, interval.high + tilt)
    width = jnp.where(jnp.isinf(interval.width), 0.0, interval.width)
    both = jnp.isfinite(interval.width)
    d_draw = slopes.draw_low * (d_low - d_mean - low * growth)
    d_draw += slopes.draw_high * (d_high - d_mean - high * growth)
    d_mass = slopes.mass_low * d_low + slopes.mass_high * d_high - slopes.mass_shift * d_mean
    one_sided = slopes.mass_low * low + slopes.mass_high * high
    two_sided = slopes.mass_shift * low + slopes.mass_high * width
    return d_draw, d_mass - growth * jnp.where(both, two_sided, one_sided)


# --- Slopes of one step ---------------------------------------------------------------------------


class Slopes(NamedTuple):
    """Derivatives of the log mass and of the draw.

    `shift` moves both ends of the interval by the same: it is computed directly, because the sum of
    the slopes of the ends loses every digit in a narrow interval. Slopes at infinite ends are 0.
    """

    mass_low: Array
    mass_high: Array
    mass_shift: Array
    draw_low: Array
    draw_high: Array


def interval_slopes(
    low: Array, high: Array, width: Array, log_mass: Array, draw: Array, uniform: Array
) -> Slopes:
    """The slopes in terms of the results: with e_a, e_b the truncated density at the two ends,

    d log Z = e_b db - e_a da, and dy = ( (1 - u) e_a da + u e_b db ) Z / phi(y).
    """
    a, b = jnp.where(jnp.isinf(low), 0.0, low), jnp.where(jnp.isinf(high), 0.0, high)
    finite_low, finite_high = jnp.isfinite(low), jnp.isfinite(high)

    def exponential(finite, exponent):
        return jnp.where(finite, jnp.exp(jnp.where(finite, exponent, 0.0)), 0.0)

    e_a = exponential(finite_low, -0.5 * (a * a + 2.0 * LOG_SQRT_2PI) - log_mass)
    e_b = exponential(finite_high, -0.5 * (b * b + 2.0 * LOG_SQRT_2PI) - log_mass)
    both = finite_low & finite_high
    half_gap = jnp.where(both, 0.5 * width * (a + b), 0.0)
    # e_b - e_a as a share of the larger of the two, so that near equals are not subtracted.
    gap = jnp.sign(half_gap) * jnp.maximum(e_a, e_b) * jnp.expm1(-jnp.abs(half_gap))
    return Slopes(
        mass_low=-e_a,
        mass_high=e_b,
        mass_shift=jnp.where(both, gap, e_b - e_a),
        draw_low=(1.0 - uniform) * exponential(finite_low, 0.5 * (draw - a) * (draw + a)),
        draw_high=uniform * exponential(finite_high, 0.5 * (draw - b) * (draw + b)),
    )


# --- Triangular recursions ------------------------------------------------------------------------


def substitution(strict: Array, follow: Array, right: Array) -> Array:
    """The x with x + follow * (strict @ x) = right, shapes (h, h), (h, n), (h, n).

    `strict` is strictly lower triangular, so x follows row by row; its transpose, backwards. As a
    linear solve it can be differentiated and transposed any number of times.
    """

    def product(x):
        return x + follow * (strict @ x)

    def forwards(_, right):
        def step(mean, row):
            right, follow = row
            x = right - follow * mean
            return x, x

        return sweep(strict, step, (right, follow), right.shape[1])[0]

    def backwards(_, right):
        def step(mean, row):
            right, follow = row
            x = right - mean
            return follow * x, x

        reverse = jax.tree.map(lambda x: x[::-1], (right, follow))
        return sweep(strict.T[::-1, ::-1], step, reverse, right.shape[1])[1][::-1]

    return lax.custom_linear_solve(product, right, forwards, transpose_solve=backwards)


def sweep(strict: Array, step, rows: Any, num_lanes: int) -> tuple[Array, Array]:
    """Run `new[k], out[k] = step(strict[k] @ new, rows[k])` for k = 0, 1, ..., n lanes at a time.

    `strict`, of shape (h, h), is strictly lower triangular: row k needs earlier rows alone. Rows go
    in blocks, so that most of the work is products of matrices rather than of vectors.
    """
    height = len(strict)
    if height == 0:
        empty = jnp.zeros((0, num_lanes), strict.dtype)
        return empty, empty
    num_blocks = -(-height // BLOCK)
    block = -(-height // num_blocks)
    padding = num_blocks * block - height
    if padding:
        strict = jnp.pad(strict, (0, padding))
        rows = jax.tree.map(lambda x: jnp.concatenate([x, x[-1:].repeat(padding, 0)]), rows)
    zeros = jnp.zeros((block, num_lanes), strict.dtype)

    def inner(within, base, rows):
        """One block, given what the blocks before it contribute."""

        def one(new, row):
            k, weights, base, row = row
            value, out = step(base + weights @ new, row)
            return new.at[k].set(value), out

        return lax.scan(one, zeros, (jnp.arange(block), within, base, rows))

    if num_blocks == 1:
        return inner(strict, zeros, rows)

    def outer(new, part):
        start, weights, rows = part
        within = lax.dynamic_slice_in_dim(weights, start, block, axis=1)
        value, out = inner(within, weights @ new, rows)
        return lax.dynamic_update_slice_in_dim(new, value, start, axis=0), out

    blocked = lambda x: x.reshape(num_blocks, block, *x.shape[1:])
    start = block * jnp.arange(num_blocks)
    parts = start, blocked(strict), jax.tree.map(blocked, rows)
    new, out = lax.scan(outer, jnp.zeros((num_blocks * block, num_lanes), strict.dtype), parts)
    return new[:height], out.reshape(-1, num_lanes)[:height]
