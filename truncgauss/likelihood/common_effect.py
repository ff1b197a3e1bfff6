r"""Box probabilities with one or two common factors and independent noise, of many small problems.

By equally spaced nodes, whose error has a bound: with X_j = loc_j + w_j . F + s_j Y_j the integrand
:math:`g(f) = \phi(f) \prod_j P_j(f)` is entire, and
:math:`|g(f + i y)| \le g(f) e^{y^T P y / 2}` with :math:`P = 1 + \sum_j w_j w_j^T / s_j^2`. So
nodes at distances h_k along the eigenvectors of P, with eigenvalues p_k, leave a relative error
below :math:`2 \sum_k e^{-2 \pi^2 / (p_k h_k^2)}`, whatever the limits are. As log g + f^2/2 is
concave, g is at least exp(-D) of its maximum only inside of the ball about z + s of the square
radius s^2 + 2 (D + log g(z) - log max g), with s the gradient of log g at any z: nodes fill a box
that holds several of these, as many as make the error 0. Every problem has its own number, which
is summed in a loop, so that a program serves any.

Second derivatives are those of Louis (1982): with c and C the gradient and Hessian of the log
masses at f, and means over f by the weights of the nodes, :math:`E[C] + E[c c^T] - E[c] E[c]^T`.

References:
    Louis, "Finding the observed information matrix when using the EM algorithm", Journal of the
        Royal Statistical Society B (1982).
    Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule, theorem 5.1.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.linalg import in_full_precision
from truncgauss.special.normal import MassSlopes, log_mass_and_slopes
from truncgauss.special.tails import LOG_SQRT_2PI, Interval, hazard, log_ndtr, standardize

DROP = 34.0  # nats by which the integrand has fallen outside of the nodes
ERROR = 1e-12  # of a probability, which is not claimed
SPARE = 1.2  # nodes more than an error of `ERROR` takes, which leave one of 1e-17
MOST_COUNTED = {1: 2**16, 2: 384}  # nodes for each effect, by the number of effects
PROBES = (0.0, 2.0, 4.0, 8.0)  # deviations from the mode at which the balls are taken
MAX_STEPS = 60  # to the mode
BLOCK = 16  # nodes that are computed at once
AT_ONCE = 2**20  # masses, of all problems
MOST_BATCHES, LEAST_TOGETHER = 8, 32  # of problems of about as many nodes, and problems in each


class OneEnd(NamedTuple):
    """An `Interval` without a lower limit."""

    low: None
    high: jax.Array
    width: None


class EffectGrid(NamedTuple):
    """The position of the nodes, without derivatives.

    Attributes:
        axes: eigenvectors of P in columns, of decreasing eigenvalues, (r, r).
        low, high: ends of the box along them, (r,).
        precision: the eigenvalues, (r,).
        height: the log of the integrand near its mode.
    """

    axes: jax.Array
    low: jax.Array
    high: jax.Array
    precision: jax.Array
    height: jax.Array

    @property
    def counts(self) -> jax.Array:
        """The numbers of nodes along the axes, (r,); 1 where something is not finite."""
        r = len(self.low)
        logs = math.log(2.0 * r / ERROR) / (2.0 * math.pi**2)
        counts = jnp.ceil(SPARE * (self.high - self.low) * jnp.sqrt(self.precision * logs))
        return jnp.where(counts > 1, jnp.minimum(counts, MOST_COUNTED[r]), 1).astype(np.int32)

    @property
    def step(self) -> jax.Array:
        """The distances of the nodes, (r,)."""
        return (self.high - self.low) / self.counts


def log_probability(
    loc: jax.Array,
    factor: jax.Array,
    scale: jax.Array,
    low: jax.Array | None,
    high: jax.Array,
    moving: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """log P(low <= X <= high), and an upper bound of its error that is 0 below `ERROR`.

    Args:
        loc, scale, low, high: (d,), each low below its high; None for no lower limits, of which
            programs are a third smaller.
        factor: the loadings, (d, r), with r = 1 or 2.
        moving: whether the limits, both of them, have derivatives.
    """
    grid = grid_of(loc, factor, scale, low, high)
    if not moving:
        low, high = jax.lax.stop_gradient((low, high))
    total = integral(moving, loc, factor, scale, low, high, grid)
    error = 2.0 * jnp.sum(jnp.exp(-2.0 * math.pi**2 / (grid.precision * grid.step**2)))
    total += jnp.sum(jnp.log(grid.step)) - factor.shape[1] * LOG_SQRT_2PI
    return total, jnp.where(error < ERROR, 0.0, error)


def grid_of(
    loc: jax.Array, factor: jax.Array, scale: jax.Array, low: jax.Array | None, high: jax.Array
) -> EffectGrid:
    """The box that the nodes are to fill; without limits one node, at 0, of weight 1."""
    loc, factor, scale, low, high = jax.lax.stop_gradient((loc, factor, scale, low, high))
    ends, rates, r = ends_of(loc, scale, low, high), factor / scale[:, None], factor.shape[1]
    limited = functools.reduce(jnp.logical_or, map(jnp.isfinite, jax.tree.leaves((low, high))))
    bound = np.eye(r) + (jnp.where(limited[:, None], rates, 0.0).T @ rates)
    angle = 0.5 * jnp.arctan2(2.0 * bound[0, -1], bound[0, 0] - bound[-1, -1])
    axes = jnp.ones((1, 1))
    if r == 2:
        axes = jnp.stack([jnp.cos(angle), -jnp.sin(angle), jnp.sin(angle), jnp.cos(angle)])
        axes = axes.reshape(2, 2)
    rates = rates @ axes

    def around(points: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        heights, masses, _ = masses_at(ends, rates, points)
        return heights, masses.mean @ rates - points, masses.mean**2 - masses.spread

    def inverse_at(bends: jax.Array) -> jax.Array:
        matrix = jnp.eye(r) + (rates * bends[:, None]).T @ rates
        if r == 1:
            return jnp.reciprocal(matrix)
        turned = jnp.stack([matrix[1, 1], -matrix[0, 1], -matrix[1, 0], matrix[0, 0]])
        return turned.reshape(2, 2) / (matrix[0, 0] * matrix[1, 1] - matrix[0, 1] ** 2)

    def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
        z, move, before, size, inverse, count, _ = state
        there = z + size * move
        _, slope, bends = around(there[None])
        # A step far beyond the highest point along its line is halved.
        good = slope[0] @ move >= -0.5 * before
        inverse = jnp.where(good, inverse_at(bends[0]), inverse)
        newton = inverse @ slope[0]
        gain = newton @ slope[0]
        z, move = jnp.where(good, there, z), jnp.where(good, newton, move)
        size, before = jnp.where(good, 1.0, 0.5 * size), jnp.where(good, gain, before)
        return z, move, before, size, inverse, count + 1, good & (gain <= 1e-2)

    zero = jnp.zeros_like(rates[0])
    start = zero, zero, zero[0], zero[0] + 1.0, zero + bound, zero[0].astype(int), zero[0] > 0
    going = lambda state: ~state[-1] & (state[-2] < MAX_STEPS)
    mode, *_, inverse, _, _ = jax.lax.while_loop(going, step, start)
    ways = inverse / jnp.sqrt(jnp.diagonal(inverse))[:, None]
    sides = np.concatenate([np.kron(np.eye(r), side * np.array([PROBES]).T) for side in (-1, 1)])
    probes = mode + sides @ ways
    height, slope, _ = around(probes)
    centre = probes + slope
    radius = jnp.sum(slope**2, axis=1) + 2.0 * (DROP + height - height[0])
    radius = jnp.sqrt(jnp.maximum(radius, 0.0))[:, None]
    left, right = jnp.max(centre - radius, axis=0), jnp.min(centre + radius, axis=0)
    precision, some = jnp.diagonal(axes.T @ bound @ axes), jnp.any(limited)
    alone = math.sqrt(math.pi / 2.0)
    left, right = jnp.where(some, left, -alone), jnp.where(some, right, alone)
    return EffectGrid(axes, left, right, jnp.where(some, precision, 0.0), jnp.max(height))


def ends_of(loc: jax.Array, scale: jax.Array, low: Any, high: jax.Array) -> Any:
    """Standardised limits; the lower one and the width are None where `low` is."""
    if low is None:
        high = standardize(-jnp.inf, high, loc, scale).high
        return OneEnd(None, high, None)
    return standardize(low, high, loc, scale)


def masses_at(
    ends: Interval, rates: jax.Array, points: jax.Array
) -> tuple[jax.Array, MassSlopes, Interval]:
    """The log of the integrand at points (n, r), (n,); the masses there, of shape (n, d), and their
    intervals."""
    shift = jnp.sum(points[:, None, :] * rates, axis=2)
    if ends.low is None:
        end = ends.high - shift
        at_end, finite = hazard(-end), jnp.where(jnp.isinf(end), 0.0, end)
        logs = log_ndtr(end)
        masses = MassSlopes(logs, -at_end, -finite * at_end, jnp.zeros_like(end), at_end)
        height = jnp.sum(logs, axis=1) - 0.5 * jnp.sum(points**2, axis=1)
        return height, masses, OneEnd(None, end, None)
    low, high = ends.low - shift, ends.high - shift
    there = Interval(low, high, jnp.broadcast_to(ends.width, low.shape))
    masses = log_mass_and_slopes(*there)
    logs = jnp.sum(masses.relative_log - 0.5 * jnp.clip(0.0, low, high) ** 2, axis=1)
    return logs - 0.5 * jnp.sum(points**2, axis=1), masses, there


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def integral(moving: bool, *problem: Any) -> jax.Array:
    """The log of the sum over the nodes of a problem, which carry no derivative: its loc, factor,
    scale, low and high, and its `EffectGrid`."""
    return with_slopes(moving, *problem)[0]


@integral.defjvp
@in_full_precision
def _integral_jvp(
    moving: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[jax.Array, jax.Array]:
    value, slopes = with_slopes(moving, *primals)
    return value, jnp.sum(slopes * stacked(moving, tangents))


def stacked(moving: bool, parts: tuple[Any, ...]) -> jax.Array:
    """Rows of loc, factor, scale and, if these move, of limits, (r + 2, d) or (r + 4, d)."""
    loc, factor, scale, low, high = parts[:5]
    return jnp.stack([loc, *factor.T, scale, *(low, high)[: 2 * moving]])


def summed(moving: bool, change: jax.Array | None, *problem: Any) -> list[jax.Array]:
    """`node_sums`, of many problems in batches of about as many nodes each: a batch takes as long
    as the problem of most nodes in it."""
    sums_of = functools.partial(node_sums, moving)
    one = jax.custom_batching.custom_vmap(sums_of)

    @one.def_vmap
    def batches(size: int, batched: Any, *args: Any) -> tuple[list[jax.Array], list[bool]]:
        several, directions = any(jax.tree.leaves(batched[1:])), bool(batched[0])
        along = [several, several, several or directions, several][: 2 if change is None else 4]
        if size < 2 * LEAST_TOGETHER or not all(jax.tree.leaves(batched)):
            axes = jax.tree.map(lambda known: 0 if known else None, (batched, along))
            return jax.vmap(sums_of, *axes)(*args), along
        order = jnp.argsort(jax.vmap(lambda grid: jnp.prod(grid.counts))(args[-1]))
        together = max(LEAST_TOGETHER, -(-size // MOST_BATCHES))
        ordered = jax.tree.map(lambda leaf: leaf[order], args)
        results = in_batches(lambda args: sums_of(*args), ordered, AT_ONCE // together)
        return [leaf[jnp.argsort(order)] for leaf in results], along

    sums: list[jax.Array] = one(change, *problem)
    return sums


def node_sums(moving: bool, change: jax.Array | None, *problem: Any) -> list[jax.Array]:
    """Sums over the nodes, BLOCK of these at a time, so that a program serves any number of them.

    Args:
        change: a direction as `stacked`, (c, d), for second derivatives; None for first ones.

    Returns:
        The integrand, relative to its height at the mode. The derivatives of log masses as
        `stacked`, (c, d), with its weights; and for the second order these times their products
        with the direction, (c, d), and the second derivatives, (c (c + 1) / 2, d), of pairs of
        those rows.
    """
    loc, factor, scale, low, high, grid = problem
    ends, rates = ends_of(loc, scale, low, high), factor / scale[:, None]
    (d, r), counts, step = factor.shape, grid.counts, grid.step
    c, number = r + 2 + 2 * moving, jnp.prod(counts)
    pairs = list(itertools.combinations_with_replacement(range(c), 2))

    def add(k: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
        index = BLOCK * k + np.arange(BLOCK)
        places = jnp.stack([index // counts[-1], index % counts[-1]][-r:], axis=1)
        nodes = (grid.low + step * (places + 0.5)) @ grid.axes.T
        heights, masses, there = masses_at(ends, rates, nodes)
        weights = jnp.where(index < number, jnp.exp(heights - grid.height), 0.0)
        shifts = [jnp.ones_like(heights), *nodes.T]
        pulls = [masses.mean * shift[:, None] for shift in shifts]
        pulls += [masses.spread, *(-masses.at_low, masses.at_high)[: 2 * moving]]
        scores = jnp.stack(pulls, axis=1) / scale
        parts = [jnp.sum(weights), jnp.tensordot(weights, scores, 1)]
        if change is not None:
            # Of all products of two entries there are too many where d is in the hundreds.
            along, bends = jnp.tensordot(scores, change, 2), bends_of(masses, there)
            parts.append(jnp.tensordot(weights * along, scores, 1))
            # Of each pair the nodes by which it is weighted, and what of the masses. All in one
            # product: a program of one for each pair takes a fifth longer to compile.
            moved = [tuple(n for n in pair if 0 < n <= r) for pair in pairs]
            kinds = [tuple(max(n - r, 0) for n in pair) for pair in pairs]
            powers, known = list(dict.fromkeys(moved)), list(dict.fromkeys(kinds))
            weighted = [weights * math.prod(shifts[n] for n in power) for power in powers]
            within = jnp.stack([bends[kind] for kind in known], axis=1)
            products = jnp.tensordot(jnp.stack(weighted), within, 1)
            rows, columns = map(powers.index, moved), map(known.index, kinds)
            parts.append(products[np.array([*rows]), np.array([*columns])] / scale**2)
        return [total + part for total, part in zip(sums, parts)]

    shapes = (), (c, d), (c, d), (len(pairs), d)
    nothing = [jnp.zeros(shape, loc.dtype) for shape in shapes[: 2 if change is None else 4]]
    sums: list[jax.Array] = jax.lax.fori_loop(0, -(-number // BLOCK), add, nothing)
    return sums


def bends_of(masses: MassSlopes, ends: Interval) -> dict[tuple[int, int], jax.Array]:
    """Second derivatives of log masses by mean and scale of the noise, and both limits."""
    mean, spread, at_low, at_high = masses[1:]
    a, b, width = (0.0 if x is None else jnp.where(jnp.isinf(x), 0.0, x) for x in ends)
    # Of a^k phi(a) - b^k phi(b) each from the one before, without a difference of the ends.
    mirrored = True if ends.low is None else -ends.low > ends.high
    near, far = jnp.where(mirrored, b, a), jnp.where(mirrored, a, b)
    beyond = width * far * jnp.where(mirrored, at_low, at_high)
    third = near * spread - beyond
    fourth = near * third - far * beyond
    return {
        (0, 0): spread - mean**2,
        (0, 1): third - mean * (1.0 + spread),
        (1, 1): fourth - spread * (2.0 + spread),
        (0, 2): at_low * (mean - a),
        (1, 2): at_low * (1.0 - a**2 + spread),
        (2, 2): at_low * (a - at_low),
        (0, 3): at_high * (b - mean),
        (1, 3): at_high * (b**2 - 1.0 - spread),
        (2, 3): at_low * at_high,
        (3, 3): -at_high * (b + at_high),
    }


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def with_slopes(moving: bool, *problem: Any) -> tuple[jax.Array, jax.Array]:
    """`integral`, and its derivatives as `stacked`."""
    mass, slopes = summed(moving, None, *problem)
    return problem[5].height + jnp.log(mass), slopes / mass


@with_slopes.defjvp
@in_full_precision
def _with_slopes_jvp(
    moving: bool, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    change = stacked(moving, tangents)
    mass, *sums = summed(moving, change, *primals)
    slopes, products, bends = (x / mass for x in sums)
    c, along = len(slopes), jnp.sum(slopes * change)
    number = np.zeros((c, c), int)
    number[np.triu_indices(c)] = np.arange(len(bends))
    within = bends[np.maximum(number, number.T)]
    curved = products - slopes * along + jnp.sum(within * change, axis=1)
    return (primals[5].height + jnp.log(mass), slopes), (along, curved)


def in_batches(function: Any, problems: Any, size: int) -> Any:
    """function(problem) of all problems, so many at a time that they have at most `AT_ONCE`
    numbers, `size` each."""
    count = jax.tree.leaves(problems)[0].shape[0]
    batch = max(1, min(count, AT_ONCE // max(size, 1)))
    if batch == count:
        return jax.vmap(function)(problems)
    num_batches = -(-count // batch)
    batch = -(-count // num_batches)
    # Filled up to whole batches: for the rest `lax.map` would compile the function once more.
    index = np.minimum(np.arange(num_batches * batch), count - 1)
    whole = jax.tree.map(lambda leaf: leaf[index], problems)
    results = jax.lax.map(jax.checkpoint(function), whole, batch_size=batch)
    return jax.tree.map(lambda leaf: leaf[:count], results)
