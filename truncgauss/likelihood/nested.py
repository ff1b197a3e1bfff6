r"""Masses of boxes for the rows of fits: iterated quadratures that compile in a second, and say
where they do not reach.

Gauss-Legendre over z_1, ..., z_(l-1) of x = loc + L z, with the mass of the last variable given
these. The integrands are entire functions, which vary over the ratio of a conditional standard
deviation to the correlation with those before. What they are for complex z_k is bounded, see
`error_beforehand`, and with it the error of the rule: far below rounding where a standard deviation
given the other variables is no small part of that given the earlier ones.

Elsewhere their coefficients in Legendre polynomials, which fall faster than any power as soon as
the nodes resolve the integrand, tell: the error, about the coefficient of degree 2 N, is far below
those of degrees 3/4 N to N that the nodes can see. The root of the sum of squares of some of these,
along each variable, is the check: no position of a steep limit makes all of them small. Densities
where the part that is integrated was cut off are added to either.
`quadrature.bivariate` and `trivariate` serve any correlation and any tail, and take ten times as
long to compile.

Reference:
    Trefethen, "Is Gauss quadrature better than Clenshaw-Curtis?", SIAM Review (2008), for the
        coefficients and the error.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.batches import with_slopes
from truncgauss.arrays.pytrees import Estimate, frozen_pytree
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.probability.method import Method
from truncgauss.quadrature.log_concave import sums
from truncgauss.special.tails import LOG_SQRT_2PI

NODES = {1: 1, 2: 80, 3: 44, 4: 36}  # a dimension, by the number of variables
FEWER = {3: 32}  # likewise, for rows for which these are enough:
ENOUGH = 1e-11  # by a bound of their relative errors,
COARSE = 12  # from a coarse sum
WORTH = 2**8  # rows from which on that is worth a second program
ALIKE = 1e-7  # relative size of the check, which bounds the error, up to which none is claimed
BEYOND = 1e-2  # error from which nothing is known
BACK = (1, 3, 7, 12)  # degrees in the check, by how far below the number of nodes
WEIGHT = 30.0  # of their squares, for those that are left out
BLIND = 1e3  # bound beforehand from which nodes may step over what is steep, and see nothing
OUTSIDE = 1e5  # weight in the check of densities where the part that is integrated was cut
ROUNDED = 1e-11  # relative rounding that is none
DEPTH = 34.0  # by how many nats a density falls within that part
FARTHEST = 39.0  # standard deviations from 0, beyond which no mass is left


class Points(NamedTuple):
    """Nodes over all variables but the last, and the interval that is left to that one.

    Attributes:
        z: of the variables, of shapes that broadcast to (N, ..., N).
        weight, check: at the nodes, (N, ..., N), of the sum, and of one that adds what lies where
            the part that is integrated was cut off.
        below, above: ends of the last interval, likewise.
        halves: half the length of the part of each variable but the last, (), (N,), ...
        densities: weights of the nodes of those before, likewise.
    """

    z: list[jax.Array]
    weight: jax.Array
    check: jax.Array
    below: jax.Array
    above: jax.Array
    halves: list[jax.Array]
    densities: list[jax.Array]

    def tails(self) -> tuple[jax.Array, jax.Array]:
        """The masses of the last variable beyond the nearer and the farther end of its interval, on
        the side on which both are small; their difference is that of the interval."""
        low, high = self.below, self.above
        ends = jnp.stack([jnp.where(low > 0, low, -high), jnp.where(low > 0, high, -low)])
        larger, smaller = 0.5 * jax.lax.erfc(ends / 2.0**0.5)  # a sixth of the time of ndtr
        return larger, smaller

    def mass(self) -> jax.Array:
        """The sum over the nodes."""
        larger, smaller = self.tails()
        return jnp.sum(self.weight * (larger - smaller))


def points_in(
    low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array, count: int | None = None
) -> Points:
    """The nodes in a box, all (l,), for a Gaussian of this mean and Cholesky factor (l, l); of a
    dimension `NODES`, or so many."""
    *of_nodes, _ = rule(count or NODES[len(low)])
    z: list[jax.Array] = []
    halves: list[jax.Array] = []
    densities: list[jax.Array] = []
    weight = check = jnp.ones_like(low[0])
    for k in range(len(low) - 1):
        nodes, weights, ends = (np.expand_dims(x, (*range(-k - 1, -1),)) for x in of_nodes)
        below, above = standard_limits(k, low, high, loc, factor, z)
        # Beyond these the density has fallen by DEPTH from its largest value in the interval.
        most = jnp.sqrt(jnp.maximum(below, 0.0) ** 2 + 2.0 * DEPTH)
        least = -jnp.sqrt(jnp.minimum(above, 0.0) ** 2 + 2.0 * DEPTH)
        left, right = jnp.minimum(jnp.maximum(below, least), above), jnp.minimum(above, most)
        halves, densities = [*halves, 0.5 * (right - left)], [*densities, weight]
        half = halves[-1][..., None]
        at = (0.5 * (left + right))[..., None] + half * nodes
        density = jnp.exp(-0.5 * at**2 - LOG_SQRT_2PI)
        weight = weight[..., None] * density * (half * weights)
        cut = jnp.where((below < least)[..., None], ends[0], 0.0)
        cut += jnp.where((most < above)[..., None], ends[1], 0.0)
        check = check[..., None] * density * (half * weights + cut)
        z = [*(before[..., None] for before in z), at]
    limits = standard_limits(len(low) - 1, low, high, loc, factor, z)
    below, above = (jnp.clip(end, -FARTHEST, FARTHEST) for end in limits)
    return Points(z, weight, check, below, above, halves, densities)


class BoxIntegral(NamedTuple):
    """The log P(low < x < high) of a box, and its derivatives.

    Attributes:
        log_prob: log P; NaN where the nodes do not resolve the integrand.
        error: of it, likewise; 0 where it is known to be below 1e-7, and as a rule is below 1e-12.
        by_low, by_high: derivatives by the limits, (l,).
        by_loc: by the mean, (l,).
        by_factor: by the Cholesky factor, (l, l), 0 above its diagonal.
    """

    log_prob: jax.Array
    error: jax.Array
    by_low: jax.Array
    by_high: jax.Array
    by_loc: jax.Array
    by_factor: jax.Array


def log_boxes(many: bool, *boxes: jax.Array) -> BoxIntegral:
    """`log_box` of several boxes, low, high and loc (u, l) and factors (u, l, l); if these are many
    in half the time where all of them are known to need fewer nodes."""
    size = boxes[0].shape[-1]

    def by(count: int) -> BoxIntegral:
        return jax.vmap(functools.partial(log_box, count=count))(*boxes)

    if size not in FEWER or not many:
        return by(NODES[size])
    enough = jnp.all(jax.vmap(coarse_bound)(*boxes) <= ENOUGH)
    return jax.lax.cond(enough, lambda: by(FEWER[size]), lambda: by(NODES[size]))


def coarse_bound(low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array) -> jax.Array:
    """About the bound of the relative error with few nodes."""
    points = points_in(low, high, loc, factor, COARSE)
    return error_beforehand(points, factor, FEWER[len(low)]) / points.mass()


def log_box(
    low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array, count: int | None = None
) -> BoxIntegral:
    """log P(low < x < high) of x with this mean, all (l,), and Cholesky factor (l, l), its error,
    and its derivatives in closed form; by `NODES` a dimension, or by so many.

    Those by the Gaussian are means, in the box, of those of the log density: with x = loc + L z
    and K = L^-T they are K E[z] and K (E[z z^T] - 1). They are sums over the same nodes, quicker
    to compile than the derivative of the sum. Those by the limits follow: a shift and another unit
    of a variable, with its limits, leave P as it is.
    """
    count = count or NODES[len(low)]
    largest = float(jnp.finfo(low.dtype).max) ** 0.5  # inf times a derivative of 0 is NaN
    low, high = jnp.maximum(low, -largest), jnp.minimum(high, largest)
    points = points_in(low, high, loc, factor, count)
    larger, smaller = points.tails()
    below, above, inside, size = points.below, points.above, larger - smaller, len(low)
    # The integrals of z_l and its square over the last interval.
    first, second = (jnp.exp(-0.5 * x**2 - LOG_SQRT_2PI) for x in (below, above))
    last, square = first - second, inside + below * first - above * second
    mass = points.weight * inside
    moments = {(): mass, (size,): points.weight * last, (size, size): points.weight * square}
    # Narrow intervals of the last variable magnify the rounding of both tails.
    others = [points.check * inside, points.weight * larger]
    for k in reversed(range(size - 1)):
        moments, others = summed(moments, others, points.z[k].reshape(inside.shape[: k + 1]), k + 1)
    total = moments[()]
    # Not in one array: XLA would then compute the sums three times.
    check, tail, *coefficients = (x / total for x in others)
    squares = sum((x**2 for x in coefficients), jnp.zeros_like(total))
    known = error_beforehand(points, factor, count) / total
    gap = jnp.abs(check - 1.0) + jnp.minimum(jnp.sqrt(squares), known)
    rounding = jnp.finfo(low.dtype).eps * tail
    error = jnp.where((gap <= ALIKE) & (rounding <= ROUNDED), 0.0, jnp.maximum(gap, rounding))
    error = jnp.where(known <= BLIND, error, jnp.inf)
    log_prob, error = jnp.where(error <= BEYOND, jnp.stack([jnp.log(total), error]), jnp.nan)
    # E[z] and E[z z^T] - 1 beside each other.
    numbers = range(1, size + 1)
    each = [((i,), *((min(i, j), max(i, j)) for j in numbers)) for i in numbers]
    expected = jnp.stack([moments[pair] / total for row in each for pair in row])
    expected = expected.reshape(size, size + 1) - np.eye(size, size + 1, 1)
    slopes = jax.scipy.linalg.solve_triangular(factor, expected, trans=1, lower=True)
    by_loc, by_factor = slopes[:, 0], jnp.tril(slopes[:, 1:])
    by_high = -(jnp.sum(factor * by_factor, axis=1) + (loc - low) * by_loc) / (high - low)
    return BoxIntegral(log_prob, error, -by_loc - by_high, by_high, by_loc, by_factor)


def error_beforehand(points: Points, factor: jax.Array, count: int) -> jax.Array:
    r"""A bound of the error of the sum over so many nodes a dimension, from the Gaussian alone.

    For complex z_k = x + i y, and the variables after it in real limits, the densities of z_k and
    of these are exp(a y^2 / 2) times those at x at most, where a - 1 is the square of the change of
    the later means by z_k in units of their covariance, and a = L_kk^2 sum_j (L^-1)_jk^2. So the
    integrand is at most M = exp(a (h t)^2 / 2) / sqrt(2 pi) in an ellipse of semi-axes h t and
    h sqrt(1 + t^2) about the interval of half length h, and N nodes leave

    .. math:: \frac{64}{15} \frac{h M \rho^{-2N}}{1 - \rho^{-2}}, \quad
        \rho = t + \sqrt{1 + t^2},

    which is least where t sqrt(1 + t^2) = 2 N / (a h^2).
    """
    inverse = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(factor)), lower=True)
    growth = jnp.diagonal(factor) ** 2 * jnp.sum(inverse**2, axis=0)
    total = jnp.zeros_like(factor[0, 0])
    for rate, half, density in zip(growth, points.halves, points.densities):
        half = jnp.maximum(half, 1e-3)
        scale = rate * half**2
        square = 0.5 * (jnp.sqrt(1.0 + (4.0 * count / scale) ** 2) - 1.0)
        rho = jnp.sqrt(square) + jnp.sqrt(1.0 + square)
        size = half * jnp.exp(0.5 * scale * square - 2.0 * count * jnp.log(rho) - LOG_SQRT_2PI)
        total += jnp.sum(density * (64.0 / 15.0) * size / (1.0 - rho**-2.0))
    return total


def standard_limits(
    k: int, low: jax.Array, high: jax.Array, loc: jax.Array, factor: jax.Array, z: list[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """The limits of z_k, given those before."""
    mean = sum((factor[k, j] * before for j, before in enumerate(z)), loc[k])
    return (low[k] - mean) / factor[k, k], (high[k] - mean) / factor[k, k]


def summed(
    moments: dict[tuple[int, ...], jax.Array], others: list[jax.Array], z: jax.Array, k: int
) -> tuple[dict[tuple[int, ...], jax.Array], list[jax.Array]]:
    """Sums over the last axis of the nodes, that of z_k, all in one loop.

    Args:
        moments: of the variables after it, by their numbers, up to the second; (N, ..., N).
        others: what else is to be summed, likewise.
        z: z_k, likewise.
        k: its number, from 1 on.

    Returns:
        The moments with those of z_k among them; and the others, with the coefficients of `BACK`.
    """
    powers = [jnp.ones_like(z), z, z * z]
    products = {
        (k,) * power + numbers: part * powers[power]
        for numbers, part in moments.items()
        for power in range(3 - len(numbers))
    }
    high = [moments[()] * column for column in rule(z.shape[-1])[-1].T]
    along = sums
    for _ in range(z.ndim - 1):
        along = jax.vmap(along)
    results = along([*products.values(), *others, *high])
    return dict(zip(products, results)), results[len(products) :]


@functools.cache
def rule(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Nodes and weights of Gauss and Legendre, (count,) each; what the first and the last node add
    to the check where mass was cut off beyond them, (2, count); and the Legendre polynomials of
    high degrees, of mean square `WEIGHT`, at the nodes, (count, m)."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    degrees = count - np.array([back for back in BACK if back <= count])
    highest = np.polynomial.legendre.legvander(nodes, count)[:, degrees]
    ends = OUTSIDE * np.eye(count)[[0, -1]]
    return nodes, weights, ends, highest * np.sqrt(WEIGHT * (2.0 * degrees + 1.0))


@frozen_pytree
class NestedQuadrature(Method):
    """The probability of a box in up to four dimensions, by quadrature over all but the last.

    It compiles in a tenth of the time of `Exact`. stderr is 0 where log P is right to 1e-7, and as
    a rule to 1e-12; both are NaN where the nodes do not resolve the integrand. See
    the module.
    """

    def replicate(
        self, loc: jax.Array, covariance: Covariance, region: Region, key: jax.Array
    ) -> Estimate:
        box, factor = as_linear(region), jnp.linalg.cholesky(covariance.covariance_matrix)
        one = (x[None] for x in (box.low, box.high, loc, factor))
        return jax.tree.map(lambda x: x[0], in_boxes(False, *one))


def in_boxes(many: bool, *boxes: jax.Array) -> Estimate:
    """log P(low < x < high) and errors of several boxes, see `log_boxes`."""

    def sloped(_: list[int], *boxes: jax.Array) -> tuple[Estimate, list[jax.Array]]:
        log_prob, error, *slopes = log_boxes(many, *boxes)
        return Estimate(log_prob, error), slopes

    return with_slopes(lambda *boxes: sloped([], *boxes)[0], sloped, *boxes)
