r"""Trivariate box probabilities by integrals of one variable, where nothing cancels.

With z the standardised X1, and Q(z) the probability of the limits of X2 and X3 given it,

.. math:: P = A(a)\,Q(a) + \int_a^b A(z)\,Q'(z)\,dz, \qquad A(z) = P(z < X_1 < b)

and the same from the other end. Q' is a sum over the limits of X2 and X3: a density at the limit
times the probability of the one that is left, Q(a) an integral over X2. If the limits are one-sided
and both correlations with X1 pull one way, all terms are positive; there always is such an X1.
Elsewhere terms cancel. The result counts only where it is not much less than their sizes, where the
nodes resolve all integrands, and far from any tail.

References:
    Plackett (1954), A reduction formula for normal multivariate integrals.
    Gassmann (2003), Multivariate normal probabilities: implementing an old idea of Plackett's.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.linalg import is_symmetric
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import Arrays, Interval, density, standardize

NUM_NODES = 56
# Beyond so many standard deviations lies 1e-19.
REACH = 9.0
# The length of the variable of integration, in scales of the integrand, up to which the nodes
# resolve it to rounding.
CAPACITY = 24.0
LEAST = 1e-5  # probability
MOST = 16.0  # times the probability: the sum of the sizes of the terms
# Standard deviations, beyond which a limit that excludes the mean leaves less than LEAST, and one
# that does not has density 0. Slopes by limits between, which exclude next to nothing, are right to
# 1e-11, as all are here, and not to their last digits.
FURTHEST = 5.0
INFINITE = 38.6


class Terms(NamedTuple):
    """Integrals of phi(p + q z) P(low - r z < Y < high - r z) A(z), and their weights, shape (5,).

    Y is standard normal. The first is that of Q at the end of X1, over X2. The weights of the
    others are q or -q, whose derivative counts where q is 0 too.
    """

    weight: Array
    used: Array
    p: Array
    q: Array
    inner: Interval
    r: Array
    start: Array
    stop: Array


@jax.jit  # traced once for all its uses
def log_probability(loc: Array, matrix: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """log P(low <= X <= high), and whether it counts; where it does not, it is finite.

    Limits and loc are of shape (3,), each low below its high.
    """
    variances = jnp.diagonal(matrix)
    scales = jnp.sqrt(jnp.where(variances > 0, variances, 1.0))
    limits = standardize(low, high, loc, scales)
    products = 0.5 * (matrix + matrix.T) / scales[:, None] / scales[None, :]
    pairs = jnp.stack([products[0, 1], products[0, 2], products[1, 2]])
    # Whether limits and correlations are such that the derivatives keep their digits.
    suits = is_symmetric(matrix) & jnp.all(variances > 0) & jnp.all(jnp.abs(pairs) < 1.0)
    suits &= jnp.all((limits.low <= FURTHEST) & (limits.high >= -FURTHEST) & (limits.width > 0))
    determinant = 1.0 - jnp.sum(jnp.square(pairs)) + 2.0 * jnp.prod(pairs)
    # 1e-3 in float64, 0.05 in float32: it is a difference.
    suits &= determinant > float(jnp.finfo(pairs.dtype).eps) ** 0.19
    suits = jax.lax.stop_gradient(suits)
    pairs = jnp.where(suits, pairs, 0.0)
    limits = Interval(
        jnp.where(suits, limits.low, -1.0),
        jnp.where(suits, limits.high, 1.0),
        jnp.where(suits, limits.width, 2.0),
    )
    order, upwards = jax.lax.stop_gradient(best_order(limits, pairs))
    # Pairs (1, 2), (1, 3), (2, 3) by their sum less one.
    both = order[np.array([0, 0, 1])] + order[np.array([1, 2, 2])] - 1
    limits, pairs = jax.tree.map(lambda x: x[order], limits), pairs[both]
    outer, terms = reduced(limits, pairs, upwards)
    values = terms.weight * integrals(outer, terms, upwards)
    total, size = jnp.sum(values), jnp.sum(jnp.abs(values))
    # The base has q = 1 and no A.
    shift = (np.arange(5) > 0).astype(pairs.dtype)
    spread = jnp.sqrt(jnp.square(terms.q) + jnp.square(terms.r) + shift)
    lengths = (terms.stop - terms.start) * spread
    resolved = jnp.all((lengths <= CAPACITY) | ~terms.used)
    counts = suits & resolved & (total >= LEAST) & (size <= MOST * total)
    return jnp.log(jnp.where(counts, total, 1.0)), jax.lax.stop_gradient(counts)


def best_order(limits: Interval, pairs: Array) -> tuple[Array, Array]:
    """The order of the coordinates, and whether Q mostly rises with X1.

    Of those in which both others pull one way, that with the least partial correlation.
    """
    orders = (np.arange(3)[:, None] + np.arange(3)[None, :]) % 3
    by_low = jnp.where(jnp.abs(limits.low) <= jnp.abs(limits.high), 1.0, -1.0)
    firsts = pairs[np.array([[0, 1], [2, 0], [1, 2]])]
    opposite = pairs[np.array([2, 1, 0])]
    rests = 1.0 - jnp.square(firsts)
    pulls = firsts * by_low[orders[:, 1:]] / jnp.sqrt(rests)
    partial = (opposite - jnp.prod(firsts, 1)) / jnp.sqrt(jnp.prod(rests, 1))
    apart = jnp.prod(pulls, 1) < 0
    best = jnp.argmin(jnp.abs(partial) + jnp.where(apart, 1.0, 0.0))
    return jnp.asarray(orders)[best], (jnp.sum(pulls, 1) >= 0)[best]


def reduced(limits: Interval, pairs: Array, upwards: Array) -> tuple[Interval, Terms]:
    """The limits of X1, and the terms, of a problem in the best order."""
    outer = jax.tree.map(lambda x: x[0], limits)
    first = pairs[:2]
    variances = (1.0 - first) * (1.0 + first)
    scales = jnp.sqrt(variances)
    product = pairs[2] - pairs[0] * pairs[1]
    slopes = product / variances
    rest = jnp.sqrt(variances[::-1] - product * slopes)
    ends = jnp.clip(jnp.stack([outer.low, outer.high]), -REACH, REACH)
    end = jnp.where(upwards, ends[0], ends[1])
    # Sides: the low limits of X2 and X3, then the high ones.
    at = jnp.concatenate([limits.low[1:], limits.high[1:]])
    finite = jnp.abs(at) < INFINITE
    at = jnp.where(finite, at, 0.0)
    # The density of one at its limit given X1, and the mean of the other given both.
    p, q = at / jnp.tile(scales, 2), -jnp.tile(first / scales, 2)
    mean = jnp.tile(slopes, 2) * at
    r = jnp.tile((first[::-1] - slopes * first) / rest, 2)
    below, above = (jnp.tile(x[:0:-1], 2) for x in (limits.low, limits.high))
    sides = standardize(below, above, mean, jnp.tile(rest, 2))
    # Of Q at the end: X2 = first[0] * end + scales[0] * z.
    base_mean = first[1] * end
    base = standardize(limits.low[2], limits.high[2], base_mean, rest[0])
    second = standardize(limits.low[1], limits.high[1], first[0] * end, scales[0])
    weight = -q * jnp.array([1.0, 1.0, -1.0, -1.0], q.dtype)
    weight = jnp.where(upwards, weight, -weight)
    start, stop = within(p, q, ends, upwards)
    first_ends = jnp.clip(jnp.stack([second.low, second.high]), -REACH, REACH)
    start, stop = jnp.append(first_ends[0], start), jnp.append(first_ends[1], stop)
    empty = ~(start < stop)
    used = ~empty & jnp.append(True, finite)
    terms = Terms(
        jnp.where(used, jnp.append(1.0, weight), 0.0),
        used,
        jnp.append(0.0, p),
        jnp.append(1.0, jnp.where(finite, q, 0.0)),
        Interval(*map(jnp.append, base, sides)),
        jnp.append(slopes[0] * scales[0] / rest[0], r),
        jnp.where(empty, ends[0], start),
        jnp.where(empty, ends[1], stop),
    )
    return outer, terms


def within(p: Array, q: Array, ends: Array, upwards: Array) -> tuple[Array, Array]:
    """The part of an interval for z in which a term counts; ends that are not the limits are fixed.

    There both (p + q z)^2 and, on the side where A falls, z^2 + (p + q z)^2 are at most REACH^2.
    """
    p, q = jax.lax.stop_gradient((p, jnp.where(jnp.abs(q) < 1e-30, 1e-30, q)))
    roots = jnp.stack([(-REACH - p) / q, (REACH - p) / q])
    left, right = jnp.min(roots, 0), jnp.max(roots, 0)
    norm = 1.0 + q * q
    reach = jnp.sqrt(jnp.maximum(norm * REACH**2 - p * p, 0.0)) / norm
    fall = jnp.stack([-reach - p * q / norm, reach - p * q / norm])
    left = jnp.where(upwards, left, jnp.maximum(left, jnp.minimum(fall[0], 0.0)))
    right = jnp.where(upwards, jnp.minimum(right, jnp.maximum(fall[1], 0.0)), right)
    fixed = jax.lax.stop_gradient(ends)
    return (
        jnp.where(left > fixed[0], jnp.minimum(left, fixed[1]), ends[0]),
        jnp.where(right < fixed[1], jnp.maximum(right, fixed[0]), ends[1]),
    )


def integrals(outer: Interval, terms: Terms, upwards: Array) -> Array:
    """The integrals without their weights, shape (5,)."""
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    half = 0.5 * (terms.stop - terms.start)
    nodes, weights = (x[None, :].astype(half.dtype) for x in (nodes, weights))
    z = (0.5 * (terms.stop + terms.start))[:, None] + half[:, None] * nodes
    shift = terms.r[:, None] * z
    is_base = np.arange(5)[:, None] == 0
    a_low = jnp.where(is_base | ~upwards, outer.low, z)
    a_high = jnp.where(is_base | upwards, outer.high, z)
    inner = terms.inner.low[:, None] - shift, terms.inner.high[:, None] - shift
    widths = terms.inner.width[:, None] + 0.0 * shift, standardize(a_low, a_high).width
    pairs = (inner[0], a_low), (inner[1], a_high), widths
    masses = mass(*(jnp.stack(pair) for pair in pairs))
    y = terms.p[:, None] + terms.q[:, None] * z
    integrand = masses[0] * masses[1] * jnp.exp(-0.5 * y * y)
    sums = jnp.sum(integrand * weights, 1)
    return sums * (half / math.sqrt(2.0 * math.pi))


@jax.custom_jvp
def mass(low: Array, high: Array, width: Array) -> Array:
    """Probability of an interval under the standard normal distribution."""
    return jnp.exp(log_interval_mass(low, high, width))


@mass.defjvp
def _mass_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (low, high, width), (dlow, dhigh, dwidth) = primals, tangents
    at_low, at_high, finite = density(low), density(high), jnp.isfinite(width)
    # phi(high) - phi(low) of a narrow interval, by the density at the end nearer to 0.
    bend = 0.5 * jnp.where(finite, width, 0.0) * (jnp.where(finite, low + high, 0.0))
    rises = bend < 0
    near = jnp.where(rises, -at_high, at_low)
    by_shift = near * jnp.expm1(jnp.where(rises, bend, -bend))
    change = jnp.where(finite, at_high * dwidth + by_shift * dlow, at_high * dhigh - at_low * dlow)
    return mass(*primals), change
