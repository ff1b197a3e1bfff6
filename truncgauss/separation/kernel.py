"""Sequential draws of truncated normal variables: the kernel of separation of variables.

A path is one draw of all variables, one after the other, each truncated to the interval that its
limits and the earlier draws imply. `sweep` runs such a recursion for many lanes (points, particles)
at once, `substitution` solves the linear recursion of its derivative, and `paths` combines both.

References:
    Geweke (1989), Efficient simulation from the multivariate normal distribution subject to linear
    inequality constraints and the evaluation of constraint probabilities. Genz (1992), Numerical
    computation of multivariate normal probabilities. Hajivassiliou and McFadden (1998), The method
    of simulated scores for the estimation of LDV models.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from truncgauss.arrays.linalg import diagonal_of, in_full_precision
from truncgauss.arrays.pytrees import varying_like
from truncgauss.special.normal import separation_step
from truncgauss.special.tails import LOG_SQRT_2PI, Interval, standardize

BLOCK = 32
# Variables up to which draws under more constraints than variables are no loop: of a loop JAX would
# differentiate the derivative in reverse mode without the custom rules, which is made to be NaN.
MOST_UNROLLED = 6
BATCH_SIZE = 2**18  # numbers of an array at a time, on a CPU
# Lanes at a time, on a CPU. Pilot runs have as many, because XLA compiles equal loops once.
LANES = 256


class Constraints(NamedTuple):
    """Limits low <= loc + factor @ z <= high on standard normal z; shapes (d,) and (d, d)."""

    low: Array
    high: Array
    loc: Array
    factor: Array

    @property
    def limits(self) -> tuple[Array, Array, Array]:
        """The low and high limits of each variable, and its mean."""
        return self.low, self.high, self.loc

    @property
    def scale(self) -> Array:
        """The conditional standard deviation of each variable given the earlier ones."""
        return diagonal_of(self.factor)


class DrawnPaths(NamedTuple):
    """The draws of n paths, with conditional means and masses.

    Attributes:
        draws: z, shape (d - 1, n).
        means: conditional mean of each variable given the earlier ones, less loc, shape (d, n).
        log_mass: log probability of each interval given the earlier draws, shape (d, n).
    """

    draws: Array
    means: Array
    log_mass: Array


@jax.custom_jvp
def paths(constraints: Constraints, tilt: Array, uniforms: Array) -> DrawnPaths:
    """Draws of the variables one after the other, and the log masses of their intervals.

    Given the earlier ones, z_k is Normal(tilt_k, 1) truncated to the k-th constraint. Of the last
    variable a probability needs only the mass of its interval, and no draw is returned.

    Derivatives hold `tilt` and `uniforms` fixed. They need one triangular solve, forwards or
    transposed, and no more memory than the results.

    Args:
        constraints: with a lower-triangular factor.
        tilt: mean of each proposal, shape (d,).
        uniforms: points in the open unit cube, shape (d - 1, n).
    """
    return in_batches(partial(_paths, constraints, tilt), uniforms, most=LANES)


def in_batches(function: Callable[..., Any], *columns: Any, most: int | None = None) -> Any:
    """The result of `function` on arrays of lanes, computed in batches that fit a CPU's cache.

    On a CPU most of the time would otherwise go into fetching large buffers. The function must not
    be differentiated if it contains custom derivative rules, which a loop does not keep.

    Args:
        function: of arrays whose last axis runs over lanes; so do its results.
        columns: the arrays.
        most: lanes of a batch; by default as many as have `BATCH_SIZE` numbers.
    """
    height, lanes = jnp.shape(columns[0])
    most = BATCH_SIZE // max(height, 1) if most is None else most
    batches = 1
    while jax.default_backend() == "cpu" and lanes // batches > most:
        if lanes % (2 * batches):
            break
        batches *= 2
    if batches == 1:
        return function(*columns)

    def split(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(x.shape[0], batches, lanes // batches), 1, 0)

    def join(x: Array) -> Array:
        return jnp.moveaxis(x, 0, 1).reshape(x.shape[1], lanes)

    results = lax.map(lambda part: function(*part), jax.tree.map(split, columns))
    return jax.tree.map(join, results)


def _paths(constraints: Constraints, tilt: Array, uniforms: Array) -> DrawnPaths:
    low, high, loc, factor = constraints

    def step(mean: Array, row: Any) -> tuple[Array, tuple[Array, Array]]:
        (low, high, loc, scale, shift), uniform = row
        interval = standardize(low, high, loc + mean + scale * shift, scale)
        draw, log_mass = separation_step(interval.low, interval.high, uniform, interval.width)
        return shift + draw, (mean, log_mass)

    # The last variable is drawn too, for nothing: its mass alone would double what is compiled.
    uniforms = jnp.concatenate(
        [uniforms, jnp.full_like(uniforms, 0.5, shape=(1, uniforms.shape[1]))]
    )
    rows = (low, high, loc, constraints.scale, tilt), uniforms
    draws, (means, log_mass) = sweep(jnp.tril(factor, -1), step, rows, uniforms.shape[1])
    return DrawnPaths(draws[:-1], means, log_mass)


def intersected_paths(
    constraints: Constraints, extra: Constraints, tilt: Array, uniforms: Array
) -> tuple[Array, Array]:
    """Draws and log masses as of `paths`, with more constraints than variables.

    Each extra constraint limits the last variable that occurs in it, from below or from above
    according to the sign of its coefficient. The interval of a variable is the intersection of the
    intervals from all constraints on it.

    Args:
        constraints: d of them, with a lower-triangular factor.
        extra: m more, with a factor of shape (m, d).
        tilt: shape (d,).
        uniforms: shape (d - 1, n).

    Returns:
        z, shape (d - 1, n), and the log masses, shape (d, n).
    """
    d, num_lanes = len(tilt), uniforms.shape[1]
    all_uniforms = jnp.concatenate([uniforms, jnp.full((1, num_lanes), 0.5, uniforms.dtype)])

    def step(draws: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        k, tilt, uniform = row[0], *row[-2:]
        below, above, width = intersection(_intervals(extra, row[:-2], draws))
        below, above = below - tilt, above - tilt
        # With an empty interval the path has weight 0, so any draw will do.
        empty = below >= above
        below, above, width = (
            jnp.where(empty, some, x) for some, x in ((0.0, below), (1.0, above), (1.0, width))
        )
        draw, log_mass = separation_step(below, above, uniform, width)
        log_mass = jnp.where(empty, -jnp.inf, log_mass)
        return lax.dynamic_update_index_in_dim(draws, draw + tilt, k, 0), log_mass

    rows = *_rows(constraints), tilt, all_uniforms
    start = varying_like(jnp.zeros((d, num_lanes), uniforms.dtype), rows, extra)
    if d <= MOST_UNROLLED:
        draws, masses = start, []
        for k in range(d):
            draws, mass = step(draws, tuple(row[k] for row in rows))
            masses.append(mass)
        log_mass = jnp.stack(masses)
    else:
        draws, log_mass = lax.scan(step, start, rows)
    # Constraints of variance 0 are met or not, whatever the draws.
    broken = (_last(extra) < 0) & ~((extra.low <= extra.loc) & (extra.loc <= extra.high))
    return draws[:-1], jnp.where(jnp.any(broken), -jnp.inf, log_mass)


def with_free_end(
    constraints: Constraints, extra: Constraints, tilt: Array
) -> tuple[Constraints, Constraints, Array]:
    """The constraints with one more variable, without limits, so that all others are drawn."""
    low, high, loc, factor = constraints
    grown = jnp.pad(factor, (0, 1)).at[-1, -1].set(1.0)
    constraints = Constraints(
        jnp.append(low, -jnp.inf), jnp.append(high, jnp.inf), jnp.append(loc, 0.0), grown
    )
    extra = extra._replace(factor=jnp.pad(extra.factor, ((0, 0), (0, 1))))
    return constraints, extra, jnp.append(tilt, 0.0)


def _rows(constraints: Constraints) -> tuple[Array, ...]:
    """Index, weights of earlier variables, limits, loc and scale of each variable."""
    strict = jnp.tril(constraints.factor, -1)
    return jnp.arange(len(strict)), strict, *constraints.limits, constraints.scale


def _last(extra: Constraints) -> Array:
    """The index of the last variable that occurs in each constraint, -1 if none does."""
    return jnp.max(jnp.where(extra.factor != 0, jnp.arange(extra.factor.shape[1]), -1), axis=1)


def _intervals(extra: Constraints, row: Any, draws: Array) -> Interval:
    """The intervals of a variable under its constraint and each extra one, shape (1 + m, n)."""
    k, weights, low, high, loc, scale = row
    alone = standardize(low, high, loc + weights @ draws, scale)
    crossed = crossings(extra, extra.factor[:, k], _last(extra) == k, extra.factor @ draws)
    return Interval(*(jnp.concatenate([x[None], more]) for x, more in zip(alone, crossed)))


def crossing_rounding(constraints: Constraints, extra: Constraints, point: Array) -> Array:
    """The relative error of P from intervals whose two ends are limits of different constraints.

    Their width is a difference of rounded numbers.

    Args:
        constraints, extra: as of `intersected_paths`.
        point: standard-normal coordinates in or near the region, shape (d,).
    """

    def step(draws: Array, row: Any) -> tuple[Array, Array]:
        *row, middle = row
        intervals = _intervals(extra, row, draws)
        below, above, width = intersection(intervals)
        size = jnp.where(jnp.isfinite(width), jnp.abs(below) + jnp.abs(above), 0.0)
        alone = jnp.any(is_innermost(intervals, below, above), axis=0)
        lost = jnp.where(alone, 0.0, size / jnp.where(width > 0, width, jnp.inf))
        draw = jnp.clip(middle, below, above)
        return lax.dynamic_update_index_in_dim(draws, draw, row[0], 0), lost

    start = varying_like(jnp.zeros((len(point), 1), point.dtype), constraints, extra)
    _, lost = lax.scan(step, start, (*_rows(constraints), point))
    return float(jnp.finfo(point.dtype).eps) * jnp.linalg.norm(lost)


def crossings(extra: Constraints, slope: Array, active: Array, means: Array) -> Interval:
    """The interval of a variable under each constraint, shape (m, n); endless where inactive.

    Args:
        extra: the constraints, m of them.
        slope: the coefficients of the variable in them, shape (m,).
        active: which of them limit it, shape (m,).
        means: what the other variables contribute to them, shape (m, n).
    """
    slope = jnp.where(active, slope, 1.0)
    # Dividing by a negative coefficient turns a limit from below into one from above.
    flipped = slope < 0
    low = jnp.where(flipped, -extra.high, extra.low)[:, None]
    high = jnp.where(flipped, -extra.low, extra.high)[:, None]
    mean = jnp.where(flipped, -1.0, 1.0)[:, None] * (extra.loc[:, None] + means)
    limits = standardize(low, high, mean, jnp.abs(slope)[:, None])
    nothing = -jnp.inf, jnp.inf, jnp.inf
    return Interval(*(jnp.where(active[:, None], x, none) for x, none in zip(limits, nothing)))


def intersection(intervals: Interval) -> Interval:
    """The intersection over the first axis; of one interval inside all others its own width."""
    low, high, width = intervals
    below, above = low.max(0), high.min(0)
    inside = is_innermost(intervals, below, above)
    known = jnp.min(jnp.where(inside, width, jnp.inf), axis=0)
    return Interval(below, above, jnp.where(known < jnp.inf, known, above - below))


def is_innermost(intervals: Interval, below: Array, above: Array) -> Array:
    """A mask of the intervals, over the first axis, that have the ends of their intersection."""
    return (intervals.low == below[None]) & (intervals.high == above[None])


@paths.defjvp
@in_full_precision
def _paths_jvp(primals: Any, tangents: Any) -> tuple[DrawnPaths, DrawnPaths]:
    constraints, tilt, uniforms = primals
    # Named, so that rematerialisation may keep the draws.
    path = checkpoint_name(paths(*primals), "path")

    @jax.checkpoint  # slopes are cheaper to compute again than to keep
    def moved(uniforms: Array, draws: Array, means: Array, log_mass: Array) -> DrawnPaths:
        return _moved(constraints, tangents[0], tilt, uniforms, DrawnPaths(draws, means, log_mass))

    return path, in_batches(moved, uniforms, *path, most=LANES)


def _moved(
    constraints: Constraints, moved: Constraints, tilt: Array, uniforms: Array, path: DrawnPaths
) -> DrawnPaths:
    """Tangents of paths, `moved` being the tangent of the constraints."""
    scale = constraints.scale[:, None]
    low, high, loc, _ = constraints
    centers = loc[:, None] + path.means + scale * tilt[:, None]
    interval = standardize(low[:, None], high[:, None], centers, scale)
    nothing = jnp.zeros_like(path.means[:1])
    draw = jnp.concatenate([path.draws - tilt[:-1, None], nothing])
    uniforms = jnp.concatenate([uniforms, nothing + 0.5])
    slopes = interval_slopes(*interval, path.log_mass, draw, uniforms)
    # Tangents of the end points and of their common shift over the scale, at fixed means.
    d_low, d_high, d_loc = (x[:, None] / scale for x in moved.limits)
    growth = moved.scale[:, None] / scale
    d_draw, d_mass = end_tangents(slopes, interval, tilt[:, None], d_low, d_high, d_loc, growth)
    follow = (slopes.draw_low + slopes.draw_high) / scale
    strict, moved_strict = (jnp.tril(x.factor, -1)[:, :-1] for x in (constraints, moved))
    base = moved_strict @ path.draws
    d_draws, d_means = substitution(strict, follow[:-1], d_draw[:-1], base)
    return DrawnPaths(d_draws, d_means, d_mass - slopes.mass_shift / scale * d_means)


def end_tangents(
    slopes: "IntervalSlopes",
    interval: Interval,
    tilt: Array,
    d_low: Array,
    d_high: Array,
    d_loc: Array,
    growth: Array,
) -> tuple[Array, Array]:
    """Tangents of draws and log masses in limits, loc and scale, the conditional means held fixed.

    `growth` is the tangent of the scale, relative to the scale.
    """
    # A tangent of the scale moves the end points as they were before the tilt was subtracted.
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


class IntervalSlopes(NamedTuple):
    """Derivatives of the log mass and of the draw.

    `mass_shift` is the slope in a common shift of both end points. It is computed directly, because
    the sum of the slopes in the end points cancels in a narrow interval. Slopes in infinite end
    points are 0.
    """

    mass_low: Array
    mass_high: Array
    mass_shift: Array
    draw_low: Array
    draw_high: Array


def interval_slopes(
    low: Array, high: Array, width: Array, log_mass: Array, draw: Array, uniform: Array
) -> IntervalSlopes:
    """The slopes, in terms of the results.

    With e_a, e_b the truncated density at the two end points,

        d log Z = e_b db - e_a da,   dy = ( (1 - u) e_a da + u e_b db ) Z / phi(y).
    """
    a, b = jnp.where(jnp.isinf(low), 0.0, low), jnp.where(jnp.isinf(high), 0.0, high)
    finite_low, finite_high = jnp.isfinite(low), jnp.isfinite(high)

    def exponential(finite: Array, exponent: Array) -> Array:
        return jnp.where(finite, jnp.exp(jnp.where(finite, exponent, 0.0)), 0.0)

    e_a = exponential(finite_low, -0.5 * (a * a + 2.0 * LOG_SQRT_2PI) - log_mass)
    e_b = exponential(finite_high, -0.5 * (b * b + 2.0 * LOG_SQRT_2PI) - log_mass)
    both = finite_low & finite_high
    # e_b - e_a = -(e_a + e_b) tanh((b^2 - a^2)/4), without cancellation.
    gap = -(e_a + e_b) * jnp.tanh(0.25 * jnp.where(both, width, 0.0) * (a + b))
    return IntervalSlopes(
        mass_low=-e_a,
        mass_high=e_b,
        mass_shift=jnp.where(both, gap, e_b - e_a),
        draw_low=(1.0 - uniform) * exponential(finite_low, 0.5 * (draw - a) * (draw + a)),
        draw_high=uniform * exponential(finite_high, 0.5 * (draw - b) * (draw + b)),
    )


# --- Triangular recursions ------------------------------------------------------------------------


def substitution(strict: Array, follow: Array, right: Array, base: Array) -> tuple[Array, Array]:
    """The solution x, y of x + follow * y = right with y = base + strict @ x.

    Shapes are (h + 1, h) of `strict`, (h, n) of follow, right and x, (h + 1, n) of base and y.
    Above its last row `strict` is strictly lower triangular: x and y are solved row by row, the
    transposed system row by row from the last. As a custom linear solve it can be differentiated
    and transposed any number of times.
    """
    square, lanes = strict[:-1], right.shape[1]
    if len(square) == 0:
        return right, base

    Pair = tuple[Array, Array]

    def product(unknown: Pair) -> Pair:
        x, y = unknown
        return x + follow * y, y - square @ x

    def forwards(_: Any, right_sides: Pair) -> Pair:
        def step(mean: Array, row: tuple[Array, ...]) -> tuple[Array, Pair]:
            right, base, follow = row
            y = base + mean
            x = right - follow * y
            return x, (x, y)

        return sweep(square, step, (*right_sides, follow), lanes)[1]

    def backwards(_: Any, right_sides: Pair) -> Pair:
        def step(mean: Array, row: tuple[Array, ...]) -> tuple[Array, Pair]:
            right, base, follow = row
            x = right + mean
            y = base - follow * x
            return y, (x, y)

        def reverse(tree: Any) -> Any:
            return jax.tree.map(lambda x: x[::-1], tree)

        flipped = square.T[::-1, ::-1]
        return reverse(sweep(flipped, step, reverse((*right_sides, follow)), lanes)[1])

    # Transposition requires both parts to depend on the transposed input, hence the 0.
    right_sides = right, base[:-1] + 0.0 * right
    x, y = lax.custom_linear_solve(product, right_sides, forwards, transpose_solve=backwards)
    return x, jnp.concatenate([y, base[-1:] + strict[-1:] @ x])


def sweep(
    strict: Array, step: Callable[..., tuple[Array, Any]], rows: Any, num_lanes: int
) -> tuple[Array, Any]:
    """The results of `new[k], out[k] = step(strict[k] @ new, rows[k])` for k = 0, 1, ...

    `strict`, of shape (h, h), is strictly lower triangular, so row k needs only earlier rows. Rows
    are processed in blocks, so that most of the work is in products of matrices. `new` has shape
    (h, num_lanes).
    """
    height = len(strict)
    num_blocks = -(-height // BLOCK)
    block = -(-height // num_blocks)
    padding = num_blocks * block - height
    if padding:
        strict = jnp.pad(strict, (0, padding))
        rows = jax.tree.map(lambda x: jnp.concatenate([x, x[-1:].repeat(padding, 0)]), rows)
    zeros = varying_like(jnp.zeros((block, num_lanes), strict.dtype), strict, rows)

    def inner(within: Array, base: Array, rows: Any) -> tuple[Array, Any]:
        def one(new: Array, row: Any) -> tuple[Array, Any]:
            k, weights, base, row = row
            value, out = step(base + weights @ new, row)
            # A scatter, as of `new.at[k]`, reads the row it replaces, and is not vectorised.
            return lax.dynamic_update_index_in_dim(new, value, k, 0), out

        return lax.scan(one, zeros, (jnp.arange(block), within, base, rows))

    if num_blocks == 1:
        return inner(strict, zeros, rows)

    def outer(new: Array, part: Any) -> tuple[Array, Any]:
        start, weights, rows = part
        within = lax.dynamic_slice_in_dim(weights, start, block, axis=1)
        value, out = inner(within, weights @ new, rows)
        return lax.dynamic_update_slice_in_dim(new, value, start, axis=0), out

    def blocked(x: Array) -> Array:
        return x.reshape(num_blocks, block, *x.shape[1:])

    start = block * jnp.arange(num_blocks)
    parts = start, blocked(strict), jax.tree.map(blocked, rows)
    start = varying_like(jnp.zeros((num_blocks * block, num_lanes), strict.dtype), strict, rows)
    new, out = lax.scan(outer, start, parts)
    return new[:height], jax.tree.map(lambda x: x.reshape(-1, num_lanes)[:height], out)
