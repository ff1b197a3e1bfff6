"""Limits on a Gaussian vector: what boxes and polyhedra come down to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.covariances import Covariance, CovarianceMatrix, is_symmetric, rounding
from truncgauss.regions import Box, Polyhedron
from truncgauss.separation.kernel import Constraints
from truncgauss.units import product

UNKNOWN = 64.0  # times the rounding of a variance: what is left of one that is not determined


class Linear(NamedTuple):
    """low <= y <= high for y ~ Normal(loc, covariance), one row a constraint.

    Attributes:
        low, high, loc: shape (m,).
        covariance: shape (m, m).
        root: a matrix of shape (m, q) with root @ root.T = covariance, where one is known from
            which the covariance was formed, else None. Forming it squares the condition number, so
            triangular factors are taken from the root.
    """

    low: Array
    high: Array
    loc: Array
    covariance: Array
    root: Array | None


def linear_of(loc: Array, covariance: Covariance, region: Box | Polyhedron) -> Linear:
    """The distribution of what a region limits; NaN if the covariance is not symmetric."""
    if isinstance(region, Box) and isinstance(covariance, CovarianceMatrix):
        matrix = covariance.covariance_matrix
        matrix = jnp.where(is_symmetric(matrix), matrix, jnp.nan)
        return Linear(region.low, region.high, loc, matrix, None)
    root = covariance.root
    if isinstance(region, Polyhedron):
        loc, root = product(region.matrix, loc), product(region.matrix, root)
    return Linear(region.low, region.high, loc, product(root, root.T), root)


def reordered(linear: Linear, order: Array) -> Linear:
    """The same constraints in another order."""
    low, high, loc = (x[order] for x in linear[:3])
    root = None if linear.root is None else linear.root[order]
    return Linear(low, high, loc, linear.covariance[order][:, order], root)


def factored(covariance: Array) -> Array:
    """The Cholesky factor, also of a covariance that is singular up to rounding."""
    fixed = lax.stop_gradient(covariance)
    failed = jnp.any(jnp.isnan(jnp.linalg.cholesky(fixed)))
    return jnp.linalg.cholesky(covariance + jnp.diag(jnp.where(failed, rounding(fixed), 0.0)))


@jax.custom_jvp
def triangle(root: Array) -> tuple[Array, Array]:
    """Lower-triangular L and Q with orthonormal columns, root = L @ Q.T; shape (r, q), r <= q.

    A row of zeros, which is limited by nothing, is given a variance of 1. With F the root and Phi
    the lower triangle less half of the diagonal,

        dL = L Phi(L^-1 dF Q + Q^T dF^T L^-T),   dQ^T = L^-1 (dF - dL Q^T).

    Reference:
        Murray (2016), Differentiation of the Cholesky decomposition, for L, the Cholesky factor of
        F F^T.
    """
    q, r = jnp.linalg.qr(root.T)
    sign = jnp.where(jnp.diagonal(r) < 0, -1.0, 1.0).astype(root.dtype)
    still = jnp.all(root == 0, axis=1).astype(root.dtype)
    return jnp.tril((sign[:, None] * r).T) + jnp.diag(still), q * sign


@triangle.defjvp
def _triangle_jvp(primals, tangents):
    (root,), (change,) = primals, tangents
    factor, q = triangle(root)
    change = jnp.where(jnp.all(root == 0, axis=1)[:, None], 0.0, change)
    part = solve_triangular(factor, change, lower=True)
    inner = product(part, q)
    half = jnp.tril(inner + inner.T) - jnp.diag(jnp.diagonal(inner))
    return (factor, q), (product(factor, half), (part - product(half, q.T)).T)


def lower_factor(linear: Linear) -> Array:
    """The lower-triangular factor of the covariance, shape (m, m)."""
    root = linear.root
    if root is None or root.shape[0] > root.shape[1]:
        return factored(linear.covariance)
    return triangle(root)[0]


def arranged(linear: Linear, order: Array, rank: int) -> tuple[Constraints, Constraints]:
    """The constraints in order: those that a new variable enters, and those without one.

    Together their factors are lower trapezoidal: the rows below the triangle are combinations of
    the rows in it. Where such a row varies although all others are known, the rank is that of
    another problem, and the rows are NaN.
    """
    low, high, loc, covariance, root = reordered(linear, order)
    if root is None:
        factor = factored(covariance[:rank, :rank])
        below = solve_triangular(factor, covariance[:rank, rank:], lower=True).T
    else:
        factor, q = triangle(root[:rank])
        below = product(root[rank:], q)
    # Coefficients that are 0 but for rounding would make a constraint end later than it does.
    tiny = jnp.sqrt(rounding(covariance)[rank:, None])
    below = jnp.where(jnp.abs(below) > lax.stop_gradient(tiny), below, 0.0)
    left = lax.stop_gradient(jnp.diagonal(covariance)[rank:] - jnp.sum(below**2, axis=1))
    known = left <= UNKNOWN * rounding(lax.stop_gradient(covariance))[rank:]
    below = jnp.where(known[:, None], below, jnp.nan)
    parts = (low, high, loc)
    return (
        Constraints(*(x[:rank] for x in parts), factor),
        Constraints(*(x[rank:] for x in parts), below),
    )


def input_rounding(linear: Linear, force: Array) -> Array:
    """The standard error of log P that the last digits of the inputs stand for.

    With f the derivative of log P in loc, `force`, and z = root^T f, log P changes by about

        f^T dS f / 2 = f^T d(root) z   and   f^T d(limits),

    in a tail, where P is about the density at its most likely point. Independent relative errors of
    eps in every entry add as squares.
    """
    low, high, loc, covariance, root = linear
    eps = float(jnp.finfo(loc.dtype).eps)
    place = jnp.abs(loc) + jnp.abs(product(covariance, force))
    limits = jnp.sum(jnp.square(force * place))
    if root is None:
        entries = 0.25 * jnp.square(force) @ jnp.square(covariance) @ jnp.square(force)
    else:
        entries = jnp.square(force) @ jnp.square(root) @ jnp.square(product(root.T, force))
    size = eps * jnp.sqrt(limits + entries)
    return jnp.where(jnp.isfinite(size), size, 0.0)
