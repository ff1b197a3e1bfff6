"""Bounds on the effect of the inputs' rounding on box probabilities in up to three dimensions."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.arrays.linalg import beyond_rounding
from truncgauss.gaussian.covariances import Covariance
from truncgauss.quadrature.bivariate import BivariateRegression
from truncgauss.quadrature.double_double import difference_of_products, line


def peak(matrix: Array, loc: Array, low: Array, high: Array) -> tuple[Array, Array]:
    r"""The most likely point x of a box in three dimensions, by trying all sets of active limits.

    Its Lagrange multipliers f = Sigma^-1 (x - mu), positive at an active lower limit, negative at
    an active upper one, 0 elsewhere; and the active limits, 0 elsewhere. By the dual problem

    .. math:: \min_{l \le x \le h} \tfrac12 (x - \mu)^T \Sigma^{-1} (x - \mu)
        = \max_f \; f^T (b(f) - \mu) - \tfrac12 f^T \Sigma f,

    b(f) the lower limit where f > 0 and the upper one where f < 0. If the set A of limits is
    active, f is 0 off A and solves Sigma_AA f_A = b_A - mu_A on it. Each such f with the right
    signs is a lower bound, and one of the 27 is the solution; the primal feasibility, ill
    conditioned for a nearly singular Sigma, need not be checked.

    Reference:
        Boyd and Vandenberghe (2004), Convex Optimization, chapter 5.
    """
    sides = jnp.asarray(list(itertools.product((0, 1, -1), repeat=3)), loc.dtype)
    limits = jnp.where(sides > 0, low[None], jnp.where(sides < 0, high[None], loc[None]))
    active = sides != 0
    finite = jnp.all(jnp.isfinite(limits), axis=1)
    limits = jnp.where(finite[:, None], limits, loc[None])
    gaps = jnp.where(active, limits - loc[None], 0.0)

    def forces(active: Array, gaps: Array) -> Array:
        identity = jnp.eye(3, dtype=gaps.dtype)
        return solved(jnp.where(active[:, None] & active[None, :], matrix, identity), gaps)

    multipliers = jax.vmap(forces)(active, gaps)
    # A multiplier that should be 0 may come out with either sign.
    slack = float(np.finfo(loc.dtype).eps) ** 0.5 * jnp.max(
        jnp.abs(multipliers), axis=1, keepdims=True
    )
    proper = finite & jnp.all(jnp.isfinite(multipliers) & (multipliers * sides >= -slack), axis=1)
    best = jnp.argmax(jnp.where(proper, jnp.sum(multipliers * gaps, axis=1), -jnp.inf))
    return multipliers[best], jnp.where(active[best], limits[best], 0.0)


def solved(matrix: Array, right: Array) -> Array:
    """matrix^-1 right for a covariance of three coordinates, determinants without loss."""
    (first, a, b), (_, var_a, product), (_, _, var_b) = matrix
    r, r_a, r_b = right

    def differences(*terms: tuple[Array, ...]) -> Array:
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


def last_digit(
    log_prob: Array, loc: Array, covariance: Covariance, low: Array, high: Array
) -> Array:
    r"""A bound on the change of log P if every input changes by one unit in its last place.

    In a tail log P is minus half the squared distance of the most likely point x, up to terms that
    vary slowly. By the envelope theorem its derivatives are those at fixed active limits b: with
    f = Sigma^-1 (x - mu),

    .. math:: d \log P = \tfrac12 f^T (d\Sigma) f + f^T (d\mu - db), \qquad
        |d \log P| \le \epsilon \sum_i |f_i|
            \{\tfrac12 \sum_j |\Sigma_{ij}| |f_j| + |\mu_i| + |b_i|\}.

    If the mean lies inside, f is 0; there even a singular covariance moves P by no more than about
    sqrt(eps) times the density at a limit. One coordinate has its
    `independence.last_digit_of_one`, two have their `last_digit_of_two`.

    Args:
        log_prob: log P, shape ().
        loc, low, high: shape (3,).
        covariance: of these three coordinates.

    Returns:
        The bound, or 0 where it is below 1e-9 of max(1, |log P|), 1e-4 in float32, since every
        answer has that much rounding error. It carries no derivative.
    """
    inputs = log_prob, loc, covariance, low, high
    log_prob, loc, covariance, low, high = jax.lax.stop_gradient(inputs)
    matrix = covariance.covariance_matrix
    force, limits = peak(matrix, loc, low, high)
    size = jnp.abs(force)
    bound = size @ (0.5 * jnp.abs(matrix) @ size + jnp.abs(loc) + jnp.abs(limits))
    return beyond_rounding(float(np.finfo(loc.dtype).eps) * bound, log_prob)


SIDES = np.asarray(list(itertools.product((0, 1, -1), repeat=2)))  # active limits, lower ones: 1
CORNERS = np.prod(SIDES, axis=1)


def last_digit_of_two(
    log_prob: Array,
    loc: Array,
    form: BivariateRegression,
    low: Array,
    high: Array,
    is_factor: bool,
) -> Array:
    r"""`last_digit` for two coordinates, also counting what their correlation moves.

    Near a singular covariance that is large outside of tails too: where a corner of the rectangle
    lies within the layer that holds the mass, P depends on the thickness of that layer. With the
    densities f at the corners,

    .. math:: dP / dS_{12} = f(b_1, b_2) - f(a_1, b_2) - f(b_1, a_2) + f(a_1, a_2).

    For a Cholesky factor L that is used as such this is not counted, and a term is
    |L_ij| |(L^T f)_j| instead of |Sigma_ij| |f_j| / 2.

    Reference:
        Plackett (1954), A reduction formula for normal multivariate integrals, Biometrika 41.

    Args:
        log_prob, loc, low, high: as of `last_digit`.
        form: the regression of X2 on X1.
        is_factor: whether it is from a Cholesky factor.
    """
    inputs = log_prob, loc, form, low, high
    log_prob, loc, form, low, high = jax.lax.stop_gradient(inputs)
    scale, slope, residual, rest = form
    across = slope * scale
    # The multipliers, as in `peak`, of each of the nine sets of limits that may be active.
    limits = [
        jnp.where(side > 0, low[j], jnp.where(side < 0, high[j], loc[j]))
        for j, side in enumerate(SIDES.T)
    ]
    finite = jnp.isfinite(limits[0] + limits[1])
    gaps = [jnp.where(finite, limit - loc[j], 0.0) for j, limit in enumerate(limits)]
    value, remainder = line(jnp.zeros_like(scale), gaps[0], gaps[1], slope, rest)
    # The first, and the residual of the second given it, in standard deviations.
    z1, z2 = gaps[0] / scale, (value + remainder) / residual
    both = np.all(SIDES != 0, axis=1)
    variance = jnp.square(across) + jnp.square(residual)
    second = jnp.where(both, z2 / residual, gaps[1] / variance)
    first = (z1 - jnp.where(both, across * second, 0.0)) / scale
    # One that should be 0 may come out with either sign.
    slack = float(np.finfo(loc.dtype).eps) ** 0.5 * jnp.maximum(jnp.abs(first), jnp.abs(second))
    sides = SIDES.astype(loc.dtype)
    signed = jnp.minimum(first * sides[:, 0], second * sides[:, 1])
    proper = finite & jnp.isfinite(first + second) & (signed >= -slack)
    gain = jnp.where(proper, first * gaps[0] + second * gaps[1], -jnp.inf)
    bound = sum(
        jnp.abs(force) * (jnp.abs(loc[j]) + jnp.abs(limit))
        for j, (force, limit) in enumerate(zip((first, second), limits))
    )
    # Of equal gains the multipliers that differ are 0.
    best = gain == jnp.max(gain)
    if is_factor:
        turned = jnp.abs(scale * first + across * second), jnp.abs(residual * second)
        bound += jnp.abs(first * scale) * turned[0]
        bound += jnp.abs(second) * (jnp.abs(across) * turned[0] + residual * turned[1])
        of_corners = jnp.zeros_like(log_prob)
    else:
        product = jnp.abs(across * scale * first * second)
        bound += 0.5 * jnp.square(scale * first) + product
        bound += 0.5 * (jnp.square(across * second) + jnp.square(residual * second))
        density = -0.5 * (z1 * z1 + z2 * z2) - log_prob
        density -= jnp.log(2.0 * math.pi * scale * residual)
        known = finite & both & jnp.isfinite(log_prob) & (residual > 0)
        rate = jnp.sum(jnp.where(known, CORNERS.astype(loc.dtype) * jnp.exp(density), 0.0))
        of_corners = jnp.abs(across * scale * rate)
    bound = jnp.maximum(jnp.min(jnp.where(best, bound, jnp.inf)), of_corners)
    return beyond_rounding(float(np.finfo(loc.dtype).eps) * bound, log_prob)


def by_slopes(log_prob: Array, inputs: Any, slopes: Any) -> Array:
    """`last_digit` from the derivatives of log P in all inputs: the sum of eps |slope| |input|.

    Infinite inputs are limits that are not there. At a singular covariance, whose derivatives are
    NaN, the covariance is left out.
    """
    eps = float(np.finfo(log_prob.dtype).eps)
    parts = jax.tree.map(lambda x, slope: jnp.abs(slope * x), inputs, slopes)
    sums = [jnp.sum(jnp.where(jnp.isfinite(x), x, 0.0)) for x in jax.tree.leaves(parts)]
    return beyond_rounding(eps * jnp.sum(jnp.stack(sums)), log_prob)
