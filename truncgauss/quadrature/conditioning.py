"""Bounds on the effect of the inputs' rounding on box probabilities in up to three dimensions."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.gaussian.covariances import Covariance, ScaleTril
from truncgauss.quadrature.double_double import difference_of_products

# Below this fraction of max(1, |log P|) the effect counts as ordinary rounding.
NEGLIGIBLE_64, NEGLIGIBLE_32 = 1e-9, 1e-4


class Peak(NamedTuple):
    """The most likely point x of a box: its Lagrange multipliers and the active limits.

    `force` is Sigma^-1 (x - loc), the multipliers: positive at an active lower limit, negative at
    an active upper one, 0 elsewhere. `limits` are the active limits, 0 elsewhere. Shape (d,).
    """

    force: jax.Array
    limits: jax.Array


def peak(
    forces: Callable[[jax.Array, jax.Array], jax.Array],
    loc: jax.Array,
    low: jax.Array,
    high: jax.Array,
) -> Peak:
    r"""The most likely point of a box, from the dual problem, by trying all sets of active limits.

    .. math:: \min_{l \le x \le h} \tfrac12 (x - \mu)^T \Sigma^{-1} (x - \mu)
        = \max_f \; f^T (b(f) - \mu) - \tfrac12 f^T \Sigma f,

    b(f) the lower limit where f > 0 and the upper one where f < 0. If the set A of limits is
    active, f is 0 off A and solves Sigma_AA f_A = b_A - mu_A on it. Each such f with the right
    signs is a lower bound, and one of the 3^d is the solution; the primal feasibility, ill
    conditioned for a nearly singular Sigma, need not be checked. `forces(held, gaps)` solves for f,
    given which limits are active and their distances from the mean.

    Reference:
        Boyd and Vandenberghe (2004), Convex Optimization, chapter 5.
    """
    d = len(loc)
    sides = jnp.asarray(list(itertools.product((0, 1, -1), repeat=d)), loc.dtype)
    limits = jnp.where(sides > 0, low[None], jnp.where(sides < 0, high[None], loc[None]))
    active = sides != 0
    finite = jnp.all(jnp.isfinite(limits), axis=1)
    limits = jnp.where(finite[:, None], limits, loc[None])
    gaps = jnp.where(active, limits - loc[None], 0.0)
    multipliers = jax.vmap(forces)(active, gaps)
    # A multiplier that should be 0 may come out with either sign.
    slack = float(np.finfo(loc.dtype).eps) ** 0.5 * jnp.max(
        jnp.abs(multipliers), axis=1, keepdims=True
    )
    proper = finite & jnp.all(jnp.isfinite(multipliers) & (multipliers * sides >= -slack), axis=1)
    best = jnp.argmax(jnp.where(proper, jnp.sum(multipliers * gaps, axis=1), -jnp.inf))
    return Peak(multipliers[best], jnp.where(active[best], limits[best], 0.0))


def by_factor(factor: jax.Array, active: jax.Array, gaps: jax.Array) -> jax.Array:
    """The multipliers in two dimensions from a Cholesky factor."""
    (first, _), (slope, second) = factor
    other = difference_of_products(gaps[1], first, slope, gaps[0]) / (first * second * second)
    both = jnp.stack([(gaps[0] / first - slope * other) / first, other])
    alone = gaps / jnp.stack([first * first, slope * slope + second * second])
    return jnp.where(jnp.all(active), both, alone)


def by_matrix(matrix: jax.Array, active: jax.Array, gaps: jax.Array) -> jax.Array:
    """The multipliers in up to three dimensions from the covariance matrix."""
    identity = jnp.eye(len(gaps), dtype=gaps.dtype)
    return solved(jnp.where(active[:, None] & active[None, :], matrix, identity), gaps)


def solved(matrix: jax.Array, right: jax.Array) -> jax.Array:
    """matrix^-1 right for a covariance of up to three coordinates, determinants without loss."""
    d = len(right)
    if d < 3:
        padded = jnp.eye(3, dtype=right.dtype).at[:d, :d].set(matrix)
        return solved(padded, jnp.zeros(3, right.dtype).at[:d].set(right))[:d]
    (first, a, b), (_, var_a, product), (_, _, var_b) = matrix
    r, r_a, r_b = right

    def differences(*terms: tuple[jax.Array, ...]) -> jax.Array:
        """x y - z w of each term, as one operation on vectors: fewer to compile."""
        return difference_of_products(*(jnp.stack(column) for column in zip(*terms)))

    # Given the first coordinate: variances, covariance, and what is left of the right-hand side.
    conditional = differences(
        (var_a, first, a, a),
        (var_b, first, b, b),
        (product, first, a, b),
        (r_a, first, a, r),
        (r_b, first, b, r),
    )
    var_a, var_b, product, r_a, r_b = conditional / first
    determinant, second, third = differences(
        (var_a, var_b, product, product),
        (r_a, var_b, product, r_b),
        (r_b, var_a, product, r_a),
    )
    second, third = second / determinant, third / determinant
    return jnp.stack([(r - a * second - b * third) / first, second, third])


def negligible(dtype: np.dtype) -> float:
    """The relative rounding error that every result may have."""
    return NEGLIGIBLE_64 if float(np.finfo(dtype).eps) < 1e-12 else NEGLIGIBLE_32


def last_digit(
    log_prob: jax.Array, loc: jax.Array, covariance: Covariance, low: jax.Array, high: jax.Array
) -> jax.Array:
    r"""A bound on the change of log P if every input changes by one unit in its last place.

    In a tail log P is minus half the squared distance of the most likely point x, up to terms that
    vary slowly. By the envelope theorem its derivatives are those at fixed active limits b: with
    f = Sigma^-1 (x - mu),

    .. math:: d \log P = \tfrac12 f^T (d\Sigma) f + f^T (d\mu - db), \qquad
        |d \log P| \le \epsilon \sum_i |f_i|
            \{\tfrac12 \sum_j |\Sigma_{ij}| |f_j| + |\mu_i| + |b_i|\},

    and |L_ij| |(L^T f)_j| instead of the first term for a Cholesky factor L that is used as such,
    as in two dimensions. If the mean lies inside, f is 0; there even a singular covariance moves P
    by no more than about sqrt(eps) times the density at a limit, which in two dimensions is counted
    where it is more, see `by_correlation`.

    Args:
        log_prob: log P, shape ().
        loc, low, high: shape (d,), d up to 3.
        covariance: of these d coordinates.

    Returns:
        The bound, or 0 where it is below 1e-9 of max(1, |log P|), 1e-4 in float32, since every
        answer has that much rounding error. It carries no derivative.
    """
    inputs = log_prob, loc, covariance, low, high
    log_prob, loc, covariance, low, high = jax.lax.stop_gradient(inputs)
    if isinstance(covariance, ScaleTril) and len(loc) == 2:
        factor = covariance.scale_tril
        force, limits = peak(partial(by_factor, factor), loc, low, high)
        shape = jnp.abs(factor) @ jnp.abs(force @ factor)
    else:
        matrix = covariance.covariance_matrix
        force, limits = peak(partial(by_matrix, matrix), loc, low, high)
        shape = 0.5 * jnp.abs(matrix) @ jnp.abs(force)
    bound = jnp.abs(force) @ (shape + jnp.abs(loc) + jnp.abs(limits))
    if len(loc) == 2 and not isinstance(covariance, ScaleTril):
        bound = jnp.maximum(bound, by_correlation(log_prob, loc, covariance, low, high))
    return beyond_rounding(float(np.finfo(loc.dtype).eps) * bound, log_prob)


def by_correlation(
    log_prob: jax.Array, loc: jax.Array, covariance: Covariance, low: jax.Array, high: jax.Array
) -> jax.Array:
    r"""|S12 d log P / d S12| for a rectangle, by the densities f at its corners.

    .. math:: dP / dS_{12} = f(b_1, b_2) - f(a_1, b_2) - f(b_1, a_2) + f(a_1, a_2)

    Near a singular covariance it is large outside of tails too: where a corner lies within the
    layer that holds the mass, P depends on the thickness of that layer. 0 for a singular one.

    Reference:
        Plackett (1954), A reduction formula for normal multivariate integrals, Biometrika 41.
    """
    (first, _), (slope, second) = covariance.scale_tril
    safe = jnp.where(second > 0, second, 1.0)
    corners = jnp.stack([low - loc, high - loc])
    z1 = corners[:, None, 0] / first
    z2 = (corners[None, :, 1] - slope * z1) / safe
    log_density = -0.5 * (z1 * z1 + z2 * z2) - jnp.log(2.0 * math.pi * first * safe) - log_prob
    finite = jnp.isfinite(z1 + z2) & jnp.isfinite(log_prob) & (second > 0)
    signs = jnp.asarray([[1.0, -1.0], [-1.0, 1.0]], z1.dtype)
    rate = jnp.sum(signs * jnp.where(finite, jnp.exp(jnp.where(finite, log_density, 0.0)), 0.0))
    return jnp.abs(first * slope * rate)


def beyond_rounding(bound: jax.Array, log_prob: jax.Array) -> jax.Array:
    """A bound of an error where it is more than every result has, else 0."""
    least = negligible(log_prob.dtype) * jnp.maximum(1.0, jnp.abs(log_prob))
    return jnp.where(bound > least, bound, 0.0)


def by_slopes(log_prob: jax.Array, inputs: Any, slopes: Any) -> jax.Array:
    """`last_digit` from the derivatives of log P in all inputs: the sum of eps |slope| |input|.

    Infinite inputs are limits that are not there. At a singular covariance, whose derivatives are
    NaN, the covariance is left out.
    """
    eps = float(np.finfo(log_prob.dtype).eps)
    parts = jax.tree.map(lambda x, slope: jnp.abs(slope * x), inputs, slopes)
    sums = [jnp.sum(jnp.where(jnp.isfinite(x), x, 0.0)) for x in jax.tree.leaves(parts)]
    return beyond_rounding(eps * jnp.sum(jnp.stack(sums)), log_prob)
