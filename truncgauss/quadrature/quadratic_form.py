r"""The probability that a Gaussian vector lies in the unit ball, by a contour integral.

For y ~ Normal(m, S) the Laplace transform of |y|^2 is

.. math:: \phi(s) = E e^{-s |y|^2} = \det(I + 2 s S)^{-1/2} \exp\{-s\, m^T (I + 2 s S)^{-1} m\},

and, on the path of `quadratic_tail` for the lower tail of |y|^2, with s = -t,

.. math:: P(|y| \le 1) = \frac{1}{2 \pi i} \int \phi(s)\, e^s\, \frac{ds}{s}.

A wide parabola soon leaves the oscillations behind, a narrow one keeps clear of the singularities
of a mean far from 0: four are tried, and the one on which half the nodes agree best is taken. The
path is laid along the principal axes of S; derivatives are those in a full matrix. Moments are
averages over the path of those of the Gaussian distributions with density proportional to
exp(-s |y|^2) times that of y.

References:
    Imhof (1961), Computing the distribution of quadratic forms in normal variables. Weideman and
    Trefethen (2007), Parabolic and hyperbolic contours for computing the Bromwich integral.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.linalg import in_full_precision, is_symmetric, negligible
from truncgauss.gaussian.problem import Moments
from truncgauss.quadrature.quadratic_tail import (
    MOST_ROUNDING,
    ROUNDINGS,
    QuadraticForm,
    best_path,
    log_tail,
)
from truncgauss.special.tails import Arrays, undefined

BENDS = tuple(0.25**k for k in range(1, 5))  # of wide and narrow parabolas, see `quadratic_tail`
NUM_STEPS = 128


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
    covariance = undefined(~is_symmetric(covariance), covariance)
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
    """(I + 2 s S)^-1 for every node s, shape (n, d, d); S is diagonal up to its derivative.

    The first derivative of these operations is that of the rule: where a loop is differentiated in
    reverse, JAX forgets the rule before a second derivative is taken.
    """
    inverse = 1.0 / _spread(nodes, variances)
    diagonal = inverse[:, :, None] * jnp.eye(len(variances), dtype=inverse.dtype)[None]
    left, right = nodes[:, None, None] * inverse[:, :, None], inverse[:, None, :]
    return diagonal - 2.0 * left * _nothing(covariance, inverse)[None] * right


def _nothing(covariance: Array, like: Array) -> Array:
    """0, of which the derivative is that of the covariance."""
    return (covariance - lax.stop_gradient(covariance)).astype(like.dtype)


def _spread(nodes: Array, variances: Array) -> Array:
    """1 + 2 s v for every node s and variance v, shape (n, d)."""
    return 1.0 + 2.0 * nodes[:, None] * variances.astype(nodes.dtype)[None, :]


@resolvents.defjvp
@in_full_precision
def _resolvents_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    nodes, _, _ = primals
    inverse = resolvents(*primals)
    change = tangents[2].astype(inverse.dtype)
    return inverse, -2.0 * nodes[:, None, None] * (inverse @ change[None] @ inverse)


@jax.custom_jvp
def log_transform(nodes: Array, variances: Array, mean: Array, covariance: Array) -> Array:
    """log phi(s) at every node s, shape (n,), where S is diagonal up to its derivative.

    As in `resolvents` the first derivative of these operations is that of the rule.
    """
    spread = _spread(nodes, variances)
    squares = (mean * mean)[None].astype(spread.dtype)
    value = -jnp.sum(0.5 * jnp.log(spread) + nodes[:, None] * squares / spread, axis=1)
    nothing, moved = _nothing(covariance, spread), mean.astype(spread.dtype)[None] / spread
    trace, square = (1.0 / spread) @ jnp.diagonal(nothing), jnp.sum(moved @ nothing * moved, axis=1)
    return value - nodes * trace + 2.0 * nodes**2 * square


@log_transform.defjvp
@in_full_precision
def _log_transform_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    nodes, variances, mean, covariance = primals
    inverse = resolvents(nodes, variances, covariance)
    d_mean, d_covariance = (x.astype(inverse.dtype) for x in tangents[2:])
    moved = inverse @ mean.astype(inverse.dtype)
    by_mean = -2.0 * nodes * (moved @ d_mean)
    trace = jnp.einsum("nij,ji->n", inverse, d_covariance)
    square = jnp.einsum("ni,ij,nj->n", moved, d_covariance, moved)
    slope = by_mean - nodes * trace + 2.0 * nodes**2 * square
    return log_transform(*primals), slope


# --- Results --------------------------------------------------------------------------------------


class ContourIntegral(NamedTuple):
    """The path for a Gaussian, with differentiable results.

    Attributes:
        gaussian: along its principal axes.
        nodes: s, on one half of the path, shape (n,).
        rounding: the relative rounding error of a term, that of the exponents.
        shares: of each node in P, complex; inside their real parts add up to 1.
        log_prob: log P.
        error: an upper bound of the error of log P, 0 where it is within ordinary rounding.
    """

    gaussian: Principal
    nodes: Array
    rounding: Array
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
    """log P(|y| <= 1), or log P(|y| > 1), of a Gaussian y.

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
    fixed = lax.stop_gradient(gaussian)
    form, one = form_of(fixed), jnp.ones((), mean.dtype)
    path = best_path(form, one) if outside else best_path(form, one, BENDS, NUM_STEPS, lower=True)
    path = lax.stop_gradient(path)
    nodes = -path.nodes
    exponents = log_transform(nodes, gaussian.variances, *gaussian[2:4]) + nodes
    log_prob, error, shares = log_tail(path, exponents)
    effect = _effect(fixed, nodes, lax.stop_gradient(shares), sizes)
    size = jnp.maximum(1.0, jnp.abs(lax.stop_gradient(log_prob)))
    effect = jnp.where(path.certain | (effect <= negligible(mean.dtype) * size), 0.0, effect)
    error = error + lax.stop_gradient(effect)
    if not outside:
        # Coordinates of variance 0 may decide it.
        mean, covariance = lax.stop_gradient((mean, covariance))
        still = jnp.diagonal(covariance) == 0
        taken, alone = jnp.sum(jnp.where(still, mean * mean, 0.0)), jnp.all(still)
        certain = alone & (taken >= 0) | (taken >= 1)
        known = jnp.where(alone & (taken <= 1), 0.0, -jnp.inf).astype(mean.dtype)
        log_prob = jnp.where(certain, known, log_prob)
        error = jnp.where(certain, 0.0, jnp.where(jnp.isnan(error), jnp.inf, error))
    return ContourIntegral(gaussian, nodes, path.rounding, shares, log_prob, error)


def form_of(gaussian: Principal) -> QuadraticForm:
    """|y|^2 as a weighted sum of noncentral chi-squares."""
    return QuadraticForm(gaussian.variances, jnp.ones_like(gaussian.spread), gaussian.mean**2)


def _effect(gaussian: Principal, nodes: Array, weights: Array, sizes: Sizes) -> Array:
    """A bound on the change of log P by one unit in the last place of the inputs."""
    axes, variances, mean, _, spread = gaussian
    turned = jnp.abs(axes)
    entries, shape = (turned.T @ x @ turned for x in sizes[1:])
    d_mean = turned.T @ sizes.mean + 0.5 * shape @ jnp.abs(mean)
    d_variance = jnp.diagonal(entries) + shape @ variances + spread
    inverse = 1.0 / _spread(nodes, gaussian.variances)
    first = jnp.abs(jnp.real(jnp.sum((weights * nodes)[:, None] * inverse, axis=0)))
    second = jnp.abs(jnp.real(jnp.sum((weights * nodes**2)[:, None] * inverse**2, axis=0)))
    by_mean, by_variance = 2.0 * jnp.abs(mean) * first, first + 2.0 * mean**2 * second
    eps = ROUNDINGS * float(jnp.finfo(mean.dtype).eps)
    return eps * jnp.sum(by_mean * d_mean + by_variance * d_variance)


def moments(solution: ContourIntegral) -> Moments:
    """The moments of y given |y| <= 1, and bounds of their errors.

    In a tail the covariance is much smaller than its terms on the path; the bounds say how many of
    its digits that leaves.
    """
    axes, variances, mean, covariance, _ = solution.gaussian
    inverse = resolvents(solution.nodes, variances, covariance)
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
    rounding = solution.rounding
    eps = ROUNDINGS * float(jnp.finfo(mean.dtype).eps) + rounding
    eps = jnp.where(rounding <= MOST_ROUNDING, eps, 2.0)  # nothing is known from the saddle alone
    scale = jnp.sqrt(jnp.maximum(jnp.diagonal(spread), 0.0))
    pairs = scale[:, None] * scale[None, :]
    turned = jnp.abs(axes)
    mean_error = turned @ (eps * (average(away)[1] + jnp.abs(middle)) + solution.error * scale)
    error = turned @ (eps * sizes + solution.error * pairs) @ turned.T
    return Moments(axes @ middle, axes @ spread @ axes.T, mean_error, error)


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
) -> tuple[ContourIntegral, Callable[[], Moments]]:
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

    def of_x() -> Moments:
        mean, matrix, mean_error, error = moments(solution)
        matrix, error = root @ matrix @ root.T, jnp.abs(root) @ error @ jnp.abs(root).T
        # Rounding may have made variances negative.
        diagonal = jnp.diagonal(matrix)
        matrix = matrix + jnp.diag(jnp.maximum(diagonal, 0.0) - diagonal)
        return Moments(center + root @ mean, matrix, jnp.abs(root) @ mean_error, error)

    return solution, of_x
