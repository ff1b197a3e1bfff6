"""Constraints in order of integration, with their lower-triangular factor."""

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.limits import GaussianLimits
from truncgauss.linalg import UNDETERMINED, factored, product, rounding, triangle
from truncgauss.separation.kernel import Constraints


def arranged(limits: GaussianLimits, order: Array, rank: int) -> tuple[Constraints, Constraints]:
    """The constraints in order: the first `rank` of them, and the others, which these determine.

    Together their factors are lower trapezoidal: the rows below the triangle are linear
    combinations of the rows in it. A row with a residual variance, as for a rank that is too
    small, is NaN.
    """
    low, high, loc, covariance, root, _ = limits.reordered(order)
    if root is None:
        factor = factored(covariance[:rank, :rank])
        below = solve_triangular(factor, covariance[:rank, rank:], lower=True).T
    else:
        factor, q = triangle(root[:rank])
        below = product(root[rank:], q)
    # A coefficient that is only rounding would count as the last variable of the constraint.
    tiny = jnp.sqrt(rounding(covariance)[rank:, None])
    below = jnp.where(jnp.abs(below) > lax.stop_gradient(tiny), below, 0.0)
    left = lax.stop_gradient(jnp.diagonal(covariance)[rank:] - jnp.sum(below**2, axis=1))
    known = left <= UNDETERMINED * rounding(lax.stop_gradient(covariance))[rank:]
    below = jnp.where(known[:, None], below, jnp.nan)
    return (
        Constraints(low[:rank], high[:rank], loc[:rank], factor),
        Constraints(low[rank:], high[rank:], loc[rank:], below),
    )


def input_rounding(limits: GaussianLimits, force: Array) -> Array:
    """The standard error of log P from the rounding of the inputs.

    With f the derivative of log P in loc, `force`, and z = root^T f, log P changes by about

        f^T dS f / 2 = f^T d(root) z   and   f^T d(limits),

    in a tail, where P is about the density at its most likely point. Independent relative errors of
    size eps in all entries are added in quadrature.
    """
    loc, covariance, root = limits.loc, limits.covariance, limits.root
    eps = float(jnp.finfo(loc.dtype).eps)
    place = jnp.abs(loc) + jnp.abs(product(covariance, force))
    of_limits = jnp.sum(jnp.square(force * place))
    if root is None:
        entries = 0.25 * jnp.square(force) @ jnp.square(covariance) @ jnp.square(force)
    else:
        entries = jnp.square(force) @ jnp.square(root) @ jnp.square(product(root.T, force))
    size = eps * jnp.sqrt(of_limits + entries)
    return jnp.where(jnp.isfinite(size), size, 0.0)
