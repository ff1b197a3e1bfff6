"""The plan of separation of variables, and the proposal distribution that it defines."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.linalg import UNDETERMINED, diagonal_of, factored, product, rounding
from truncgauss.arrays.pytrees import Batched, frozen_pytree
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.separation.kernel import Constraints
from truncgauss.separation.twisting import Twist, twisted

DETERMINED = 0.1  # largest rounding, relative to it, of a conditional variance that counts
MOST_CHANGE = 0.25  # of log P, to which its change by rounding is linear in that of the covariance


@frozen_pytree
class Plan(Batched):
    """The order and the proposal of `Separation` for one problem; any plan is unbiased.

    Attributes:
        order: indices of the constraints, the one of the first variable in front, shape (d,).
        tilt: mean of the proposal of each standardised variable in that order, shape (d,).
        bound: an upper bound of log P, inf where none was computed.
        converged: whether the solver of the tilt or of the sites converged; if not, a minimax tilt
            is 0 and so is the precision of the sites.
        rounding: standard error of log P from the rounding of the inputs.
        twist: Gaussian sites in the units of the constraints, or None. The tilt, or the precision
            of all sites, is 0.
        rare: the probability outside of constraints that cut off nothing in the pilot, over P and
            at most 1 for each, or None where no constraint is determined by others.
    """

    order: Array
    tilt: Array
    bound: Array
    converged: Array
    rounding: Array
    twist: Twist | None = None
    rare: Array | None = None

    event_ranks = {"order": 1, "tilt": 1, "bound": 0, "converged": 0, "rounding": 0}

    def scaled(self, by: Array) -> "Plan":
        twist = None if self.twist is None else self.twist.scaled(by[self.order])
        return replace(self, twist=twist)


class Proposal(NamedTuple):
    """The distribution that paths are drawn from, in the order of a plan.

    Attributes:
        constraints: limits on the first `rank` variables under the twisted distribution.
        extra: limits on linear functions of these variables.
        tilt: shape (rank,).
        twist: the sites of the twisted distribution, or None.
        log_start: log of the expectation of the product of the sites, a factor of all weights.
    """

    constraints: Constraints
    extra: Constraints
    tilt: Array
    twist: Twist | None
    log_start: Array | float

    @property
    def path_inputs(self) -> tuple[Constraints, Constraints, Array]:
        """The constraints, extra ones and tilt: what paths are drawn by."""
        return self.constraints, self.extra, self.tilt


def proposal_of(limits: GaussianLimits, plan: Plan) -> Proposal:
    """The proposal of a plan for limits on a Gaussian vector, differentiable in the limits."""
    constraints, extra = arranged(limits, plan.order, len(plan.tilt))
    if plan.twist is None:
        return Proposal(constraints, extra, plan.tilt, None, 0.0)
    constraints, log_start = twisted(constraints, plan.twist)
    return Proposal(constraints, extra, plan.tilt, plan.twist, log_start)


def arranged(limits: GaussianLimits, order: Array, rank: int) -> tuple[Constraints, Constraints]:
    """The constraints in order: the first `rank` of them, and the others, which these determine.

    Together their factors are lower trapezoidal: the rows below the triangle are linear
    combinations of the rows in it. A row with a residual variance, as for a rank that is too
    small, is NaN.
    """
    ordered = limits.reordered(order)
    low, high, loc, covariance, root, _ = ordered
    if root is None:
        factor = factored(covariance[:rank, :rank])
        below = solve_triangular(factor, covariance[:rank, rank:], lower=True).T
    else:
        factor, q = ordered.triangle(rank)
        below = product(root[rank:], q)
    # A coefficient that is only rounding would count as the last variable of the constraint.
    tiny = jnp.sqrt(rounding(covariance)[rank:, None])
    below = jnp.where(jnp.abs(below) > lax.stop_gradient(tiny), below, 0.0)
    left = lax.stop_gradient(diagonal_of(covariance)[rank:] - jnp.sum(below**2, axis=1))
    # The rounding of a pivot moves the variance that is left by its own share of this row.
    shares = lax.stop_gradient(below / diagonal_of(factor)[None]) ** 2
    rounded = UNDETERMINED * rounding(lax.stop_gradient(covariance))
    known = left <= rounded[rank:] + jnp.sum(shares * rounded[None, :rank], axis=1)
    below = jnp.where(known[:, None], below, jnp.nan)
    return (
        Constraints(low[:rank], high[:rank], loc[:rank], factor),
        Constraints(low[rank:], high[rank:], loc[rank:], below),
    )


def input_rounding(limits: GaussianLimits, force: Array) -> Array:
    """The standard error of log P from the rounding of the inputs.

    With f the derivative of log P in loc, `force`, and T the precisions of Gaussians that resemble
    the limits, the derivative in the covariance S is about (f f^T - Q) / 2, Q = (S + T^-1)^-1. With
    z = root^T f, log P changes by about

        f^T dS f / 2 = f^T d(root) z,   f^T d(limits)   and   tr(Q dS) / 2.

    Independent relative errors of size eps in all entries are added in quadrature. Q is large where
    several limits narrow one direction. A variable that others determine up to rounding is drawn
    with a standard deviation of its rounding, which moves log P by that over the scale of the
    narrowest limits. The error is inf where such a change is no longer small, and where f is
    unknown.
    """
    loc, covariance, root = limits.loc, limits.covariance, limits.root
    eps = float(jnp.finfo(loc.dtype).eps)
    magnitudes = jnp.abs(loc) + jnp.abs(product(covariance, force))
    of_limits = jnp.sum(jnp.square(force * magnitudes))
    # Of Gaussians that resemble the limits: they have their width and the force.
    width, variances = limits.high - limits.low, diagonal_of(covariance)
    bounded = jnp.isfinite(width) & (width > 0)
    of_width = jnp.where(bounded, 12.0 / jnp.square(jnp.where(bounded, width, 1.0)), 0.0)
    most = eps**-2 / jnp.where(variances > 0, variances, 1.0)
    precision = jnp.minimum(jnp.square(force) + of_width, most)
    if root is None:
        entries = 0.25 * jnp.square(force) @ jnp.square(covariance) @ jnp.square(force)
        least = rounding(covariance)
        both = jnp.stack([precision, jnp.where(least > 0, 1.0 / least, 0.0)])
        narrowing, inverse = jax.vmap(_narrowing, (None, 0))(covariance, both)
        changes = 0.25 * jnp.sum(jnp.square(covariance * narrowing))
        determined = least * diagonal_of(inverse) < DETERMINED
        narrowest = jnp.max(jnp.where(determined, 0.0, precision))
        layers = jnp.sum(jnp.where(determined, 0.0, least)) * narrowest
    else:
        entries = jnp.square(force) @ jnp.square(root) @ jnp.square(product(root.T, force))
        changes = jnp.sum(jnp.square(root * product(_narrowing(covariance, precision), root)))
        layers = jnp.zeros_like(changes)
    change = eps**2 * changes + layers
    change = jnp.where(change < MOST_CHANGE**2, change, jnp.inf)
    size = jnp.sqrt(eps**2 * (of_limits + entries) + change)
    unknown = jnp.isnan(jnp.sum(covariance) + jnp.sum(loc))
    size = jnp.where(jnp.all(jnp.isfinite(force * magnitudes)), size, jnp.inf)
    return jnp.where(unknown, 0.0, size)


def _narrowing(covariance: Array, precision: Array) -> Array:
    """(S + T^-1)^-1 for a covariance S and the diagonal of T."""
    root = jnp.sqrt(precision)
    identity = jnp.eye(len(root), dtype=root.dtype)
    factor = jnp.linalg.cholesky(identity + root[:, None] * covariance * root[None, :])
    half = solve_triangular(factor, jnp.diag(root), lower=True)
    return product(half.T, half)
