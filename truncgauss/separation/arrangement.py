"""Constraints in an order, with the factor that makes each depend on earlier variables alone."""

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.limits import GaussianLimits
from truncgauss.linalg import factored, product, rounding, triangle
from truncgauss.separation.kernel import Constraints

UNKNOWN = 64.0  # times the rounding of a variance: what is left of one that is not determined


def arranged(limits: GaussianLimits, order: Array, rank: int) -> tuple[Constraints, Constraints]:
    """The constraints in order: those that a new variable enters, and those without one.

    Together their factors are lower trapezoidal: the rows below the triangle are combinations of
    the rows in it. Where such a row varies although all others are known, the rank is that of
    another problem, and the rows are NaN.
    """
    low, high, loc, covariance, root = limits.reordered(order)
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


def input_rounding(limits: GaussianLimits, force: Array) -> Array:
    """The standard error of log P that the last digits of the inputs stand for.

    With f the derivative of log P in loc, `force`, and z = root^T f, log P changes by about

        f^T dS f / 2 = f^T d(root) z   and   f^T d(limits),

    in a tail, where P is about the density at its most likely point. Independent relative errors of
    eps in every entry add as squares.
    """
    low, high, loc, covariance, root = limits
    eps = float(jnp.finfo(loc.dtype).eps)
    place = jnp.abs(loc) + jnp.abs(product(covariance, force))
    of_limits = jnp.sum(jnp.square(force * place))
    if root is None:
        entries = 0.25 * jnp.square(force) @ jnp.square(covariance) @ jnp.square(force)
    else:
        entries = jnp.square(force) @ jnp.square(root) @ jnp.square(product(root.T, force))
    size = eps * jnp.sqrt(of_limits + entries)
    return jnp.where(jnp.isfinite(size), size, 0.0)
