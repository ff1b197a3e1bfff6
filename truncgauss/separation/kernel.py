"""Paths through the constraints: the kernel of separation of variables, and its derivative.

A path draws one variable after the other, each inside the interval that the earlier ones leave it.
`sweep` runs such a recursion for many lanes (points, particles) at once, `substitution` solves the
linear one that its derivative needs, and `paths` puts both together.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from truncgauss.pytrees import varying_like
from truncgauss.special import log_interval_mass, separation_step, standardize
from truncgauss.special.tails import LOG_SQRT_2PI

BLOCK = 32
TURN_SIZE = 2**16  # numbers of an array at a time, on a processor


class Constraints(NamedTuple):
    """What a path must pass: low_k <= (loc + factor @ z)_k <= high_k, shapes (d,) and (d, d)."""

    low: Array
    high: Array
    loc: Array
    factor: Array

    @property
    def scale(self) -> Array:
        return jnp.diagonal(self.factor)


class Path(NamedTuple):
    """What happened along n paths.

    Attributes:
        draws: z, shape (d - 1, n).
        means: factor @ z over the earlier variables, shape (d, n).
        log_mass: log masses of the intervals, shape (d, n).
    """

    draws: Array
    means: Array
    log_mass: Array


@jax.custom_jvp
def paths(constraints: Constraints, tilt: Array, uniforms: Array) -> Path:
    """Draws of the variables one after the other, and the masses of their intervals.

    Given the earlier ones, z_k is Normal(tilt_k, 1) truncated to where the k-th constraint holds.
    The last variable is not drawn: its mass is all that a probability needs.

    Derivatives hold `tilt` and `uniforms` fixed. They need one triangular solve, forwards or
    transposed, and no more memory than the results.

    Args:
        constraints: with a lower-triangular factor.
        tilt: shape (d,).
        uniforms: points in the open unit cube, shape (d - 1, n).
    """
    return in_turns(lambda uniforms: _paths(constraints, tilt, uniforms), uniforms)


def in_turns(function: Callable, *columns: Any) -> Any:
    """`function` of arrays whose last axis are lanes, as many lanes at a time as stay in a cache.

    Large buffers are dear on a processor: most of the time would go into fetching them. What has
    derivative rules of its own must not stand in `function` when it is differentiated: loops lose
    such rules.
    """
    height, lanes = jnp.shape(columns[0])
    turns = 1
    while jax.default_backend() == "cpu" and height * lanes // turns > TURN_SIZE:
        if lanes % (2 * turns):
            break
        turns *= 2
    if turns == 1:
        return function(*columns)
    split = lambda x: jnp.moveaxis(x.reshape(x.shape[0], turns, lanes // turns), 1, 0)
    join = lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], lanes)
    results = lax.map(lambda part: function(*part), jax.tree.map(split, columns))
    return jax.tree.map(join, results)


def _paths(constraints: Constraints, tilt: Array, uniforms: Array) -> Path:
    factor = constraints.factor
    strict, last = jnp.tril(factor[:-1, :-1], -1), factor[-1, :-1]
    rows = (*constraints[:3], constraints.scale, tilt)

    def step(mean, row):
        (*row, tilt), uniform = row
        interval = _interval(mean, *row, tilt)
        draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
        return tilt + draw, (mean, log_mass)

    if len(strict) == 0:
        zero = jnp.zeros(uniforms.shape[1], uniforms.dtype)
        log_mass = log_interval_mass(*_interval(zero, *(row[-1] for row in rows)))
        # Made of the masses, since under vmap a rule's result must be batched as its tangent is.
        mean = jnp.where(jnp.isnan(log_mass), log_mass, 0.0)
        return Path(log_mass[None][:0], mean[None], log_mass[None])
    earlier = jax.tree.map(lambda row: row[:-1], rows)
    draws, (means, log_mass) = sweep(strict, step, (earlier, uniforms), uniforms.shape[1])
    mean = last @ draws
    last_mass = log_interval_mass(*_interval(mean, *(row[-1] for row in rows)))
    join = lambda above, row: jnp.concatenate([above, row[None]])
    return Path(draws, join(means, mean), join(log_mass, last_mass))


def intersected_paths(
    constraints: Constraints, extra: Constraints, tilt: Array, uniforms: Array
) -> tuple[Array, Array]:
    """As `paths`, with constraints that bring no variable of their own.

    Each limits the last variable that occurs in it, so that the interval of a variable is the
    intersection of what all constraints that end there leave; from below or above according to the
    sign of its coefficient.

    Args:
        constraints: d of them, with a lower-triangular factor.
        extra: m more, with a factor of shape (m, d).
        tilt: shape (d,).
        uniforms: shape (d - 1, n).

    Returns:
        z, shape (d - 1, n), and the log masses, shape (d, n).
    """
    d, num_lanes = len(tilt), uniforms.shape[1]
    index = jnp.arange(d)
    ends = jnp.max(jnp.where(extra.factor != 0, index, -1), axis=1)
    shares = jnp.concatenate([uniforms, jnp.full((1, num_lanes), 0.5, uniforms.dtype)])

    def step(draws, row):
        k, weights, low, high, loc, scale, tilt, share = row
        own = standardize(low, high, loc + weights @ draws, scale)
        below, above = crossings(extra, extra.factor[:, k], ends == k, extra.factor @ draws)
        below, above = jnp.maximum(own.low, below) - tilt, jnp.minimum(own.high, above) - tilt
        # An empty interval has no draw: any number will do, because the path has no weight.
        empty = below >= above
        below, above = jnp.where(empty, 0.0, below), jnp.where(empty, 1.0, above)
        draw, log_mass = separation_step(below, above, share)
        log_mass = jnp.where(empty, -jnp.inf, log_mass)
        return draws.at[k].set(draw + tilt), log_mass

    strict = jnp.tril(constraints.factor, -1)
    rows = index, strict, *constraints[:3], constraints.scale, tilt, shares
    start = varying_like(jnp.zeros((d, num_lanes), uniforms.dtype), rows, extra)
    draws, log_mass = lax.scan(step, start, rows)
    # Constraints on what does not vary hold or do not.
    broken = (ends < 0) & ~((extra.low <= extra.loc) & (extra.loc <= extra.high))
    return draws[:-1], jnp.where(jnp.any(broken), -jnp.inf, log_mass)


def crossings(extra: Constraints, slope: Array, active: Array, means: Array):
    """The interval that the active constraints leave a variable with these coefficients."""
    slope = jnp.where(active, slope, 1.0)
    # Dividing by a negative coefficient turns a limit from below into one from above.
    flipped = slope < 0
    low = jnp.where(flipped, -extra.high, extra.low)[:, None]
    high = jnp.where(flipped, -extra.low, extra.high)[:, None]
    mean = jnp.where(flipped, -1.0, 1.0)[:, None] * (extra.loc[:, None] + means)
    limits = standardize(low, high, mean, jnp.abs(slope)[:, None])
    below = jnp.where(active[:, None], limits.low, -jnp.inf)
    above = jnp.where(active[:, None], limits.high, jnp.inf)
    return below.max(0), above.min(0)


def _interval(mean: Array, low: Array, high: Array, loc: Array, scale: Array, tilt: Array):
    """The standardised interval that a variable with this conditional mean is drawn from."""
    return standardize(low, high, loc + mean + scale * tilt, scale)


@paths.defjvp
def _paths_jvp(primals, tangents):
    constraints, tilt, uniforms = primals
    # Named here, so that a pass that is taken again for its derivative keeps what was drawn.
    path = checkpoint_name(paths(*primals), "path")

    @jax.checkpoint  # slopes are cheaper to compute again than to keep
    def moved(uniforms, draws, means, log_mass):
        return _moved(constraints, tangents[0], tilt, uniforms, Path(draws, means, log_mass))

    return path, in_turns(moved, uniforms, *path)


def _moved(constraints: Constraints, moved: Constraints, tilt, uniforms, path: Path) -> Path:
    """Tangents of paths when the constraints move."""
    low, high, loc, scale = (x[:, None] for x in (*constraints[:3], constraints.scale))
    interval = _interval(path.means, low, high, loc, scale, tilt[:, None])
    nothing = jnp.zeros_like(path.means[:1])
    draw = jnp.concatenate([path.draws - tilt[:-1, None], nothing])
    slopes = interval_slopes(
        *interval, path.log_mass, draw, jnp.concatenate([uniforms, nothing + 0.5])
    )
    # Tangents of the two ends and of their shift, in units of the scale, the means held fixed.
    d_low, d_high, d_loc = (x[:, None] / scale for x in moved[:3])
    growth = moved.scale[:, None] / scale
    d_draw, d_mass = _ends(slopes, interval, tilt[:, None], d_low, d_high, d_loc, growth)
    follow = (slopes.draw_low + slopes.draw_high) / scale
    strict, moved_strict = (jnp.tril(x.factor, -1)[:, :-1] for x in (constraints, moved))
    base = moved_strict @ path.draws
    d_draws, d_means = substitution(strict, follow[:-1], d_draw[:-1], base)
    return Path(d_draws, d_means, d_mass - slopes.mass_shift / scale * d_means)


def _ends(slopes, interval, tilt, d_low, d_high, d_loc, growth) -> tuple[Array, Array]:
    """Tangents of draws and log masses when limits, loc and scale move and the means do not."""
    # The ends before the tilt was taken off are what the growth of the scale divides.
    low = jnp.where(jnp.isinf(interval.low), 0.0, interval.low + tilt)
    high = jnp.where(jnp.isinf(interval.high), 0.0, interval.high + tilt)
    width = jnp.where(jnp.isinf(interval.width), 0.0, interval.width)
    both = jnp.isfinite(interval.width)
    d_draw = slopes.draw_low * (d_low - d_loc - low * growth)
    d_draw += slopes.draw_high * (d_high - d_loc - high * growth)
    d_mass = slopes.mass_low * d_low + slopes.mass_high * d_high - slopes.mass_shift * d_loc
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
    half_gap = 0.5 * jnp.where(both, width, 0.0) * (a + b)
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


def substitution(strict: Array, follow: Array, right: Array, base: Array) -> tuple[Array, Array]:
    """The x with x + follow * y = right, where y = base + strict @ x has one row more than x.

    Shapes (h + 1, h) of `strict`, (h, n) of follow, right and x, (h + 1, n) of base and y. Above
    its last row `strict` is strictly lower triangular, so x and y follow row by row, and what
    solves the transposed problem row by row backwards. As a linear solve it can be differentiated
    and transposed any number of times.
    """
    square, lanes = strict[:-1], right.shape[1]
    if len(square) == 0:
        return right, base

    def product(unknown):
        x, y = unknown
        return x + follow * y, y - square @ x

    def forwards(_, given):
        def step(mean, row):
            right, base, follow = row
            y = base + mean
            x = right - follow * y
            return x, (x, y)

        return sweep(square, step, (*given, follow), lanes)[1]

    def backwards(_, given):
        def step(mean, row):
            right, base, follow = row
            x = right + mean
            y = base - follow * x
            return y, (x, y)

        reverse = lambda tree: jax.tree.map(lambda x: x[::-1], tree)
        flipped = square.T[::-1, ::-1]
        return reverse(sweep(flipped, step, reverse((*given, follow)), lanes)[1])

    # A transposed solve wants both parts to depend on what is transposed, hence the 0.
    given = right, base[:-1] + 0.0 * right
    x, y = lax.custom_linear_solve(product, given, forwards, transpose_solve=backwards)
    return x, jnp.concatenate([y, base[-1:] + strict[-1:] @ x])


def sweep(strict: Array, step: Callable, rows: Any, num_lanes: int) -> tuple[Array, Any]:
    """Run `new[k], out[k] = step(strict[k] @ new, rows[k])` for k = 0, 1, ..., n lanes at a time.

    `strict`, of shape (h, h), is strictly lower triangular: row k needs earlier rows alone. Rows go
    in blocks, so that most of the work is products of matrices rather than of vectors.
    """
    height = len(strict)
    num_blocks = -(-height // BLOCK)
    block = -(-height // num_blocks)
    padding = num_blocks * block - height
    if padding:
        strict = jnp.pad(strict, (0, padding))
        rows = jax.tree.map(lambda x: jnp.concatenate([x, x[-1:].repeat(padding, 0)]), rows)
    zeros = varying_like(jnp.zeros((block, num_lanes), strict.dtype), strict, rows)

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
    start = varying_like(jnp.zeros((num_blocks * block, num_lanes), strict.dtype), strict, rows)
    new, out = lax.scan(outer, start, parts)
    return new[:height], jax.tree.map(lambda x: x.reshape(-1, num_lanes)[:height], out)
