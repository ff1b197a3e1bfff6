r"""The probability that a Gaussian vector lies in the unit ball, by a contour integral.

For y ~ Normal(m, S) the Laplace transform of |y|^2 is

.. math:: \phi(s) = E e^{-s |y|^2} = \det(I + 2 s S)^{-1/2} \exp\{-s\, m^T (I + 2 s S)^{-1} m\},

and, on any path from below to above that passes 0 and the singularities of phi, all on the negative
real axis, on their right,

.. math:: P(|y| \le 1) = \frac{1}{2 \pi i} \int \phi(s)\, e^s\, \frac{ds}{s}.

On the real axis the logarithm of the integrand is convex. The paths are parabolas through its
minimum s_0, across which the integrand has its maximum there: nothing cancels, however small P is.

.. math:: s(u) = s_0 (1 + 2 i b u - u^2), \qquad u = \sigma \sinh t,

and the midpoint rule in t converges exponentially. A wide parabola (small b) soon leaves the
oscillations behind, a narrow one keeps clear of the singularities of a mean far from 0: four are
tried, and the one on which half the nodes agree best is taken. Moments are averages over the path
of those of the Gaussian distributions with density proportional to exp(-s |y|^2) times that of y.

References:
    Imhof (1961), Computing the distribution of quadratic forms in normal variables. Rice (1980),
    Distribution of quadratic forms in normal random variables: evaluation by numerical
    integration, for paths through the saddle point. Weideman and Trefethen (2007), Parabolic and
    hyperbolic contours for computing the Bromwich integral.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from truncgauss.execution.pytrees import varying_like
from truncgauss.gaussian.linalg import in_full_precision, is_symmetric
from truncgauss.quadrature import quadratic_tail
from truncgauss.quadrature.conditioning import negligible

WIDTHS = (1.0, 2.0, 4.0, 8.0)  # b of the parabolas
NUM_NODES, NUM_COARSE = 128, 64
DROP = 40.0  # fall of the log of the integrand at which a path ends
FARTHEST = 7.0  # u where exp(s) alone has fallen so far, since s_0 (1 - mean of |y|^2 at s_0) = 1
HIGHEST_64, HIGHEST_32 = 150.0, 36.0  # decimal logarithms of the largest s_0
MOST_ROUNDING = 0.02  # of the terms on a path; with more, only the saddle point is used
ROUNDINGS = 4.0  # times that a number is rounded between the inputs and an exponent


class ContourPath(NamedTuple):
    """Nodes of the upper half of a path, the lower half being its mirror image.

    Attributes:
        nodes: s, shape (n,).
        log_terms: log of each node's weight times exp(s) / (2 pi i s), without phi; shape (n,).
        error: the change of log P by leaving out every other node.
        rounding: the relative rounding error of a term, that of the exponents.
    """

    nodes: Array
    log_terms: Array
    error: Array
    rounding: Array


class Principal(NamedTuple):
    """The Gaussian along its principal axes, S nearly diagonal there, for derivatives.

    Attributes:
        axes: the principal axes as columns, shape (d, d); a constant.
        variances: along them, shape (d,); a constant.
        mean: m, shape (d,), and `covariance`, S, shape (d, d), in these coordinates.
        spread: what the rounding of the axes may add to each variance, over eps; shape ().
    """

    axes: Array
    variances: Array
    mean: Array
    covariance: Array
    spread: Array


def principal(mean: Array, covariance: Array) -> Principal:
    """The Gaussian along its principal axes, which carry no derivative.

    It is NaN if the covariance is not symmetric positive semi-definite.
    """
    covariance = jnp.where(is_symmetric(covariance), covariance, jnp.nan)
    variances, axes = jnp.linalg.eigh(lax.stop_gradient(covariance))
    eps = float(jnp.finfo(mean.dtype).eps)
    rounding = 64 * len(mean) * eps * variances[-1]
    # The axes of a diagonal matrix are exact; of others, smaller variances are only rounding.
    is_diagonal = jnp.all(covariance == jnp.diag(jnp.diagonal(covariance)))
    spread = jnp.where(is_diagonal, 0.0, 2.0 * variances[-1])
    least = jnp.where(variances < -rounding, jnp.nan, 0.5 * eps * spread)
    variances = jnp.maximum(variances, least)
    return Principal(axes, variances, axes.T @ mean, axes.T @ covariance @ axes, spread)


# --- The Laplace transform ------------------------------------------------------------------------


@jax.custom_jvp
def resolvents(nodes: Array, variances: Array, covariance: Array) -> Array:
    """(I + 2 s S)^-1 for every node s, shape (n, d, d); S is diagonal up to its derivative."""
    inverse = 1.0 / _spread(nodes, variances)
    return inverse[:, :, None] * jnp.eye(len(variances), dtype=inverse.dtype)[None]


def _spread(nodes: Array, variances: Array) -> Array:
    """1 + 2 s v for every node s and variance v, shape (n, d)."""
    return 1.0 + 2.0 * nodes[:, None] * variances.astype(nodes.dtype)[None, :]


@resolvents.defjvp
@in_full_precision
def _resolvents_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    nodes, _, _ = primals
    inverse = resolvents(*primals)
    change = tangents[2].astype(inverse.dtype)
    return inverse, -2.0 * nodes[:, None, None] * (inverse @ change[None] @ inverse)


@jax.custom_jvp
def log_transform(nodes: Array, variances: Array, mean: Array, covariance: Array) -> Array:
    """log phi(s) at every node s, shape (n,), where S is diagonal up to its derivative."""
    spread = _spread(nodes, variances)
    squares = (mean * mean)[None].astype(spread.dtype)
    return -jnp.sum(0.5 * jnp.log(spread) + nodes[:, None] * squares / spread, axis=1)


@log_transform.defjvp
@in_full_precision
def _log_transform_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[Array, Array]:
    nodes, variances, mean, covariance = primals
    inverse = resolvents(nodes, variances, covariance)
    d_mean, d_covariance = (x.astype(inverse.dtype) for x in tangents[2:])
    moved = inverse @ mean.astype(inverse.dtype)
    by_mean = -2.0 * nodes * (moved @ d_mean)
    trace = jnp.einsum("nij,ji->n", inverse, d_covariance)
    square = jnp.einsum("ni,ij,nj->n", moved, d_covariance, moved)
    slope = by_mean - nodes * trace + 2.0 * nodes**2 * square
    return log_transform(*primals), slope


# --- The path -------------------------------------------------------------------------------------


def saddle(variances: Array, mean: Array) -> tuple[Array, Array]:
    """The minimum s_0 of s + log phi(s) - log s on the positive axis, and the second derivative.

    By bisection in log s and Newton steps; s_0 is 1 at least. It is at the upper end of the bracket
    if P = 0.
    """
    squares = mean * mean

    def slopes(s: Array) -> tuple[Array, Array]:
        spread = 1.0 + 2.0 * s * variances
        share, away = variances / spread, squares / spread / spread
        bend = 2.0 * jnp.sum(share**2) + 4.0 * jnp.sum(away * share) + 1.0 / s / s
        return 1.0 - jnp.sum(share + away) - 1.0 / s, bend

    def rising(log_s: Array) -> Array:
        return slopes(jnp.exp(log_s))[0] > 0

    def halved(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        up = rising(middle)
        return jnp.where(up, low, middle), jnp.where(up, middle, high)

    zero = varying_like(jnp.zeros((), mean.dtype), variances, mean)
    ends = zero, zero + math.log(_highest(mean.dtype))
    low, high = lax.fori_loop(0, 48, halved, ends)
    s = jnp.exp(0.5 * (low + high))
    for _ in range(3):
        slope, bend = slopes(s)
        step = jnp.where(bend > 0, slope / jnp.where(bend > 0, bend, 1.0), 0.0)
        s = jnp.clip(s - step, 0.9 * s, 1.1 * s)
    return s, slopes(s)[1]


def path_of(variances: Array, mean: Array) -> tuple[ContourPath, Array]:
    """The best of the parabolas, and a real number near log P which its log terms leave out."""
    top, bend = saddle(variances, mean)

    def whole(nodes: Array) -> Array:
        flat = log_transform(nodes.reshape(-1), variances, mean, jnp.diag(variances))
        return flat.reshape(nodes.shape) + nodes - jnp.log(nodes)

    level = jnp.real(whole(lax.complex(top, 0.0 * top)))

    def log_integrand(nodes: Array) -> Array:
        return whole(nodes) - level.astype(nodes.dtype)

    b = jnp.asarray(WIDTHS, mean.dtype)[:, None]
    scale = jnp.minimum(1.0, 0.5 / (b * top * jnp.sqrt(bend)))

    def placed(end: Array, count: int) -> tuple[Array, Array, Array]:
        """s and log ds of the nodes up to the end in t, and t; shape (paths, count)."""
        middles = jnp.asarray((np.arange(count) + 0.5) / count, mean.dtype)
        t = end * middles[None]
        u, du = scale * jnp.sinh(t), scale * jnp.cosh(t) * end / count
        nodes = lax.complex(top * (1.0 - u * u), 2.0 * top * b * u)
        return nodes, jnp.log(lax.complex(-2.0 * top * du * u, 2.0 * top * du * b)), t

    coarse, _, t = placed(jnp.arcsinh(FARTHEST / scale), NUM_COARSE)
    alive = jnp.real(log_integrand(coarse)) > -DROP
    ends = jnp.max(jnp.where(alive, t, 0.0), axis=1, keepdims=True) + t[:, 1:2] - t[:, :1]

    nodes, steps, _ = placed(ends, NUM_NODES)
    sums = _sums(log_integrand(nodes) + steps)
    halves, half_steps, _ = placed(ends, NUM_NODES // 2)
    rough = _sums(log_integrand(halves) + half_steps)
    error = jnp.abs(rough / sums - 1.0)
    error = jnp.where((sums > 0) & (rough > 0), error, jnp.inf)
    best = jnp.argmin(error)
    nodes = nodes[best]
    # The lower half of the path doubles the real part of ds / (2 pi i s).
    constant = jnp.asarray(complex(math.log(math.pi), 0.5 * math.pi), nodes.dtype)
    log_terms = nodes - jnp.log(nodes) + steps[best] - level.astype(nodes.dtype) - constant
    sizes = top * (1.0 + jnp.sum(mean * mean / (1.0 + 2.0 * top * variances)))
    rounding = ROUNDINGS * float(jnp.finfo(mean.dtype).eps) * (sizes + jnp.abs(level))
    paths = (
        _saddle_alone(top, bend, level, rounding),
        ContourPath(nodes, log_terms, error[best], rounding),
    )
    few = ~(rounding <= MOST_ROUNDING)
    return jax.tree.map(lambda one, many: jnp.where(few, one, many), *paths), level


def _saddle_alone(top: Array, bend: Array, level: Array, rounding: Array) -> ContourPath:
    """All nodes at the saddle point: the leading term of the integral for large exponents.

    That is the maximum over the root of 2 pi times the curvature. Nothing is known where s_0 was
    not found.
    """
    nodes = jnp.broadcast_to(lax.complex(top, 0.0 * top), (NUM_NODES,))
    leading = -0.5 * jnp.log(2.0 * math.pi * NUM_NODES**2 * bend) - level
    log_terms = nodes - jnp.log(nodes) + leading.astype(nodes.dtype)
    proper = top < 0.1 * _highest(top.dtype)
    return ContourPath(
        nodes, log_terms, jnp.where(proper, 1.0 / (top * top * bend), jnp.inf), rounding
    )


def _highest(dtype: np.dtype) -> float:
    """The largest s_0 that is looked for."""
    return float(10.0 ** (HIGHEST_64 if dtype == jnp.float64 else HIGHEST_32))


def _sums(log_terms: Array) -> Array:
    """The imaginary parts of the sums, of terms that do not overflow."""
    largest = 0.5 * math.log(float(jnp.finfo(log_terms.dtype).max))
    size = jnp.minimum(jnp.real(log_terms), largest)
    return jnp.sum(jnp.exp(size) * jnp.sin(jnp.imag(log_terms)), axis=-1)


# --- Results --------------------------------------------------------------------------------------


class ContourIntegral(NamedTuple):
    """The path for a Gaussian, with differentiable results.

    Attributes:
        gaussian: along its principal axes.
        path: for it.
        shares: of each node in P, complex; their real parts add up to 1.
        log_prob: log P.
        error: an upper bound of the error of log P, 0 where it is within ordinary rounding.
    """

    gaussian: Principal
    path: ContourPath
    shares: Array
    log_prob: Array
    error: Array


class Sizes(NamedTuple):
    """Sizes of the numbers that a Gaussian was computed from, each of which has a last digit.

    Attributes:
        mean: of those whose differences m is, shape (d,).
        covariance: of those that S is a sum of, shape (d, d).
        shape: likewise of the unit matrix, which is that of the ellipsoid in these coordinates.
    """

    mean: Array
    covariance: Array
    shape: Array


def solve(
    mean: Array, covariance: Array, sizes: Sizes | None = None, outside: bool = False
) -> ContourIntegral:
    """log P(|y| <= 1), or log P(|y| > 1) with the path as in `quadratic_tail`, of a Gaussian y.

    Args:
        mean: m, shape (d,).
        covariance: S, shape (d, d), positive semi-definite.
        sizes: of the inputs; those of m and S themselves by default.
        outside: whether P(|y| > 1) is computed.
    """
    if sizes is None:
        identity = jnp.eye(len(mean), dtype=mean.dtype)
        sizes = lax.stop_gradient(Sizes(jnp.abs(mean), jnp.abs(covariance), identity))
    gaussian = principal(mean, covariance)
    if outside:
        return _solve_outside(gaussian, sizes)
    path, level = path_of(gaussian.variances, lax.stop_gradient(gaussian.mean))
    path, level = lax.stop_gradient((path, level))
    exponent = log_transform(path.nodes, gaussian.variances, *gaussian[2:4]) + path.log_terms
    terms = jnp.exp(exponent)
    total = jnp.sum(jnp.real(terms))
    weights = terms / total.astype(terms.dtype)
    log_prob = jnp.log(jnp.where(total > 0, total, 1.0)) + level
    # P exceeds 1 by no more than rounding; and nothing is known where no path has a positive sum.
    log_prob = log_prob - lax.stop_gradient(jnp.maximum(log_prob, 0.0))
    log_prob = jnp.where(total > 0, log_prob, jnp.nan)
    error = path.error + path.rounding + _effect(lax.stop_gradient(gaussian), path, weights, sizes)
    size = jnp.maximum(1.0, jnp.abs(lax.stop_gradient(log_prob)))
    bound = lax.stop_gradient(jnp.where(jnp.isnan(error), jnp.inf, error))
    bound = jnp.where(bound <= negligible(mean.dtype) * size, 0.0, bound)
    known, certain = _of_constants(lax.stop_gradient(mean), lax.stop_gradient(covariance))
    log_prob = jnp.where(certain, known, log_prob)
    return ContourIntegral(gaussian, path, weights, log_prob, jnp.where(certain, 0.0, bound))


def _solve_outside(gaussian: Principal, sizes: Sizes) -> ContourIntegral:
    fixed = lax.stop_gradient(gaussian)
    one = jnp.ones((), fixed.mean.dtype)
    form = quadratic_tail.QuadraticForm(fixed.variances, one, fixed.mean**2)
    path = lax.stop_gradient(quadratic_tail.best_path(form, one))
    nodes = -path.nodes
    exponents = log_transform(nodes, gaussian.variances, *gaussian[2:4]) + nodes
    log_prob, error, shares = quadratic_tail.log_tail(path, exponents)
    shares = lax.stop_gradient(shares)
    contour = ContourPath(nodes, jnp.log(path.factors), error, path.rounding)
    effect = jnp.where(path.certain, 0.0, _effect(fixed, contour, shares, sizes))
    size = jnp.maximum(1.0, jnp.abs(lax.stop_gradient(log_prob)))
    effect = jnp.where(effect <= negligible(log_prob.dtype) * size, 0.0, effect)
    return ContourIntegral(gaussian, contour, shares, log_prob, error + lax.stop_gradient(effect))


def _of_constants(mean: Array, covariance: Array) -> tuple[Array, Array]:
    """log P where coordinates of variance 0 decide it, and whether they do."""
    still = jnp.diagonal(covariance) == 0
    taken = jnp.sum(jnp.where(still, mean * mean, 0.0))
    alone = jnp.all(still)
    known = jnp.where(alone & (taken <= 1), 0.0, -jnp.inf)
    return known.astype(mean.dtype), alone & (taken >= 0) | (taken >= 1)


def _effect(gaussian: Principal, path: ContourPath, weights: Array, sizes: Sizes) -> Array:
    """A bound on the change of log P by one unit in the last place of the inputs."""
    axes, variances, mean, _, spread = gaussian
    turned = jnp.abs(axes)
    entries, shape = (turned.T @ x @ turned for x in sizes[1:])
    d_mean = turned.T @ sizes.mean + 0.5 * shape @ jnp.abs(mean)
    d_variance = jnp.diagonal(entries) + shape @ variances + spread
    inverse = 1.0 / _spread(path.nodes, gaussian.variances)
    first = jnp.abs(jnp.real(jnp.sum((weights * path.nodes)[:, None] * inverse, axis=0)))
    second = jnp.abs(jnp.real(jnp.sum((weights * path.nodes**2)[:, None] * inverse**2, axis=0)))
    by_mean, by_variance = 2.0 * jnp.abs(mean) * first, first + 2.0 * mean**2 * second
    eps = ROUNDINGS * float(jnp.finfo(mean.dtype).eps)
    return eps * jnp.sum(by_mean * d_mean + by_variance * d_variance)


class InnerMoments(NamedTuple):
    """Mean and covariance given |y| <= 1, and bounds of their errors, shapes (d,) and (d, d)."""

    mean: Array
    covariance: Array
    mean_error: Array
    covariance_error: Array


def moments(solution: ContourIntegral) -> InnerMoments:
    """The moments of y given |y| <= 1.

    In a tail the covariance is much smaller than its terms on the path; the bounds say how many of
    its digits that leaves.
    """
    axes, variances, mean, covariance, _ = solution.gaussian
    inverse = resolvents(solution.path.nodes, variances, covariance)
    means = inverse @ mean.astype(inverse.dtype)
    weights = solution.shares

    def average(x: Array) -> tuple[Any, Any]:
        """The average over the path, and that of the absolute values."""
        sizes = jnp.einsum("n,n...->...", jnp.abs(weights), jnp.abs(x))
        return jnp.real(jnp.einsum("n,n...->...", weights, x)), sizes

    middle, _ = average(means)
    away = means - middle[None].astype(means.dtype)
    of_node = covariance.astype(inverse.dtype)[None] @ inverse
    spread, sizes = average(of_node + away[:, :, None] * away[:, None, :])
    rounding = solution.path.rounding
    eps = ROUNDINGS * float(jnp.finfo(mean.dtype).eps) + rounding
    eps = jnp.where(rounding <= MOST_ROUNDING, eps, 2.0)  # nothing is known from the saddle alone
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(spread), 0.0))
    pairs = scale[:, None] * scale[None, :]
    turned = jnp.abs(axes)
    mean_error = turned @ (eps * (average(away)[1] + jnp.abs(middle)) + solution.error * scale)
    error = turned @ (eps * sizes + solution.error * pairs) @ turned.T
    return InnerMoments(axes @ middle, axes @ spread @ axes.T, mean_error, error)


def _divided(root: Array, columns: Array) -> Array:
    return lax.linalg.triangular_solve(root, columns, left_side=True, lower=True)


def ball_coordinates(
    loc: Array, covariance: Array, center: Array, root: Array
) -> tuple[Array, Array]:
    """Mean and covariance of y = root^-1 (x - center), shapes (d,) and (d, d)."""
    matrix = _divided(root, _divided(root, covariance).T)
    return _divided(root, (loc - center)[:, None])[:, 0], matrix


def within(
    loc: Array, covariance: Array, center: Array, root: Array, outside: bool = False
) -> tuple[ContourIntegral, Callable[[], InnerMoments]]:
    """The solution for |root^-1 (x - center)| <= 1, and a function for the moments of x.

    With `outside` it is for the complement, for which the function does not serve.

    Args:
        loc, center: mean and centre, shape (d,).
        covariance: shape (d, d).
        root: lower triangular, shape (d, d).
    """

    inverse = jnp.abs(_divided(root, jnp.eye(len(loc), dtype=loc.dtype)))
    stretch = inverse @ jnp.abs(root)
    mean, matrix = ball_coordinates(loc, covariance, center, root)
    # Substitution, twice for the matrix, rounds as much as what it multiplies does.
    entries = inverse @ jnp.abs(covariance) @ inverse.T + stretch @ jnp.abs(matrix) @ stretch.T
    offsets = inverse @ (jnp.abs(loc) + jnp.abs(center)) + stretch @ jnp.abs(mean)
    sizes = Sizes(offsets, 2.0 * entries, 2.0 * stretch @ stretch.T)
    solution = solve(mean, matrix, lax.stop_gradient(sizes), outside)

    def of_x() -> InnerMoments:
        mean, matrix, mean_error, error = moments(solution)
        matrix, error = root @ matrix @ root.T, jnp.abs(root) @ error @ jnp.abs(root).T
        # Rounding may have made variances negative.
        diagonal = jnp.diagonal(matrix)
        matrix = matrix + jnp.diag(jnp.maximum(diagonal, 0.0) - diagonal)
        return InnerMoments(center + root @ mean, matrix, jnp.abs(root) @ mean_error, error)

    return solution, of_x
