"""Twisted proposals: each variable is drawn given approximations of the later constraints.

Take a Gaussian y, constraints low_k <= y_k <= high_k in their natural order, and for each of them a
Gaussian factor g_k(y_k), its site, that approximates it. Draw y_k from its Gaussian distribution
given the earlier draws and all *later* sites, truncated to its limits. With mass_k the mass of this
distribution between the limits and mean_k its expectation of g_k, a path has the importance weight

    g_0 prod_k mass_k / mean_k,   g_0 = E[ prod_k g_k(y_k) ].

mass_k and mean_k depend on the path only through the conditional mean of y_k. With good sites their
ratios are nearly constant; with any sites the estimate is unbiased. Without sites this is plain
separation of variables. The twisted distribution is Gaussian before truncation, so the kernel of
separation of variables applies to it.

Reference:
    Guarniero, Johansen and Lee (2017), The iterated auxiliary particle filter.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.execution.pytrees import Batched, frozen_pytree
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import diagonal_of, times_vector
from truncgauss.separation import expectation_propagation, kernel
from truncgauss.separation.arrangement import input_rounding
from truncgauss.special.normal import fixed_interval, quick_moments

# The largest precision of a site times the variance of its constraint, as a power of eps.
MOST_PRECISION = -0.375
REACH = 2.0  # standard deviations of a conditional mean within which curvatures are compared


@frozen_pytree
class Twist(Batched):
    """Sites exp(-precision (y - center)^2 / 2), one for each constraint; precision 0 for none.

    Attributes:
        precision: shape (m,).
        center: shape (m,), in the units of the constraints.
        rounding: standard error of log P from the rounding of the inputs and of the sites.
    """

    precision: Array
    center: Array
    rounding: Array

    event_ranks = {"precision": 1, "center": 1, "rounding": 0}

    def scaled(self, by: Array) -> "Twist":
        """The sites of the constraints multiplied by `by`, shape (m,)."""
        return replace(self, precision=self.precision / by / by, center=self.center * by)


class Chain(NamedTuple):
    """A twisted distribution and its sites.

    Attributes:
        constraints: the limits, and the twisted Gaussian before truncation.
        twist: the sites.
        log_start: log g_0.
    """

    constraints: kernel.Constraints
    twist: Twist
    log_start: Array


class SiteFit(NamedTuple):
    """Sites by expectation propagation, and whether they may be used.

    Attributes:
        twist: the sites, of precision 0 where they may not be used.
        converged: whether expectation propagation converged.
        usable: whether its sites may be used.
        height: the log density at the posterior mean, less that at the mean of the Gaussian: log P
            differs from it only by the logs of volumes.
        force: derivative of log P in the means of the constraints, shape (m,).
        factor: the lower-triangular factor of the covariance, shape (m, m).
    """

    twist: Twist
    converged: Array
    usable: Array
    height: Array
    force: Array
    factor: Array


def twist_of(limits: GaussianLimits, least_share: float) -> Twist:
    """Sites as of `sites_for` with the rounding of the inputs."""
    limits = lax.stop_gradient(limits)
    sites = sites_for(limits, least_share)
    rounding = jnp.hypot(input_rounding(limits, sites.force), sites.twist.rounding)
    return replace(sites.twist, rounding=rounding)


def sites_for(limits: GaussianLimits, least_share: float, most_added: float = jnp.inf) -> SiteFit:
    """Sites by expectation propagation, their precisions reduced to keep the weights' variance low.

    The log of each site keeps its slope at the posterior mean. As a function of the conditional
    mean, log mass is about as curved as a Gaussian between two limits, but flattens beyond a single
    limit. There a site of full precision would give the twisted distribution thinner tails than the
    truncated one, and importance weights of large variance, underestimated from few points. The
    precision is therefore multiplied by the ratio of the smallest curvature of log mass, within two
    standard deviations of the conditional mean, to that at the middle, but by no less than
    `least_share`. For nearly identical coordinates a tenth was small enough to estimate the
    variance of the weights, a fifth was not; with resampling a third is small enough.

    The sites are not used where expectation propagation does not converge, nor where sites at
    `least_share` add more than `most_added` to the precision of an earlier variable, which is 1 a
    priori: beyond 1 the weights have infinite variance along a direction without limits, and their
    sample variance underestimates the error.

    The precision of a site is bounded, at 7e5 over the variance in float64 and 400 in float32.
    Beyond that `twisted` loses the digits of the conditional precision from the other sites to
    cancellation, and the weights would be wrong although nearly equal. `rounding` is that of the
    sites only.

    References:
        Minka (2001), Expectation Propagation for Approximate Bayesian Inference. Cunningham, Hennig
        and Lacoste-Julien (2011), Gaussian Probabilities and Expectation Propagation.
    """
    limits = lax.stop_gradient(limits)
    scaled, _ = expectation_propagation.scaled_limits(limits)
    # A proposal needs few digits. A residual of a tenth was too large: with slow convergence the
    # precisions of nearly identical coordinates were still twice their final values.
    _, full, _, converged = expectation_propagation.fixed_point(scaled, rtol=0.02)
    post = expectation_propagation.posterior(full, scaled.correlation)
    mean, force = post.mean, post.force
    most = float(jnp.finfo(limits.loc.dtype).eps) ** MOST_PRECISION
    bounded = most / jnp.maximum(full.precision, most)

    def weakened(share: Array | float) -> Twist:
        precision = jnp.minimum(share, bounded) * full.precision
        # Not from full.center - mean, in a narrow interval a rounding error, divided by the share.
        distance = jnp.where(precision > 0, force / jnp.where(precision > 0, precision, 1.0), 0.0)
        center = scaled.loc + scaled.scale * (mean + distance)
        return Twist(precision / scaled.scale**2, center, jnp.zeros_like(mean[0]))

    factor = limits.scale_tril
    chain = chain_with(limits, factor, weakened(1.0))
    low, high, _, triangle = chain.constraints
    scale = diagonal_of(triangle)
    reach = REACH * jnp.linalg.norm(jnp.tril(triangle, -1), axis=1)
    middle = scaled.loc + scaled.scale * mean

    def curvature(means: Array) -> Array:
        """The negative second derivative of log mass in the conditional mean, times scale^2."""
        return 1.0 - quick_moments(fixed_interval(low, high, means, scale)).variance

    steps = jnp.linspace(-1.0, 1.0, 5, dtype=reach.dtype)[:, None]
    curvatures = curvature(middle[None] + steps * reach[None])
    # Where log mass is flat in the middle, all curvatures there are rounding.
    curved = expectation_propagation.is_curved(curvatures[2])
    share = jnp.min(curvatures, axis=0) / jnp.where(curved, curvatures[2], 1.0)
    share = jnp.where(curved, share, 0.0)
    twist = weakened(jnp.clip(share, least_share, 1.0))
    strong = jnp.where(share < least_share, twist.precision, 0.0)
    added = jnp.max(jnp.square(jnp.tril(factor, -1).T) @ strong)
    converged = converged & jnp.all(jnp.isfinite(twist.precision) & jnp.isfinite(twist.center))
    usable = converged & (added <= most_added)
    nothing = Twist(jnp.zeros_like(mean), scaled.loc, jnp.zeros_like(mean[0]))
    twist = jax.tree.map(lambda new, none: jnp.where(usable, new, none), twist, nothing)
    # The twisted distribution comes from matrices of condition 1 + precision times variance.
    condition = jnp.sum(twist.precision * scaled.scale**2)
    twist = replace(twist, rounding=float(jnp.finfo(mean.dtype).eps) * condition)
    height = -0.5 * jnp.sum(force * mean)
    return SiteFit(twist, converged, usable, height, force / scaled.scale, factor)


def chain_of(limits: GaussianLimits, twist: Twist | None) -> Chain:
    """The twisted distribution for limits, differentiable in the limits at fixed sites.

    It is NaN if the covariance is not symmetric positive semi-definite.
    """
    return chain_with(limits, limits.scale_tril, twist)


def chain_with(limits: GaussianLimits, factor: Array, twist: Twist | None) -> Chain:
    """The twisted distribution, given the lower-triangular factor of the covariance."""
    low, high, loc = limits[:3]
    if twist is None:
        nothing = jnp.zeros_like(loc)
        constraints = kernel.Constraints(low, high, loc, factor)
        return Chain(constraints, Twist(nothing, loc, nothing[0]), nothing[0])
    twist = lax.stop_gradient(twist)
    mean, triangle, log_start = twisted(factor, twist.precision, twist.center - loc)
    return Chain(kernel.Constraints(low, high, loc + mean, triangle), twist, log_start)


def twisted(factor: Array, precision: Array, distance: Array) -> tuple[Array, Array, Array]:
    """Mean (less loc) and factor of the twisted distribution, and log g_0.

    With y = loc + A z and site precisions T, the precision of z given all sites is
    M = I + A^T T A = N^T N, N lower triangular. Row k of N holds the conditional distribution of
    z_k given the earlier variables and the sites k, k + 1, ...; removing site k gives the
    conditional precision a_k, and the mean as a linear function of the earlier variables.

    Args:
        factor: A, lower triangular, shape (m, m).
        precision: the diagonal of T, shape (m,).
        distance: the centers of the sites less loc, shape (m,).
    """
    m = len(precision)
    identity = jnp.eye(m, dtype=factor.dtype)
    diagonal = diagonal_of(factor)
    pull = times_vector(factor.T, precision * distance)
    flipped = (identity + factor.T @ (precision[:, None] * factor))[::-1, ::-1]
    reverse = jnp.linalg.cholesky(flipped).T[::-1, ::-1]
    pivots = diagonal_of(reverse)
    scaled = pivots[:, None] * reverse
    site = precision * diagonal
    left = pivots * pivots - site * diagonal
    dependence = jnp.tril(site[:, None] * factor - scaled, -1) / left[:, None]
    drawn = solve_triangular(reverse.T, pull)
    offset = pivots * drawn - site * distance
    # The least sum of squares, at the mean of z given all sites, without a difference of two terms.
    mean = solve_triangular(reverse, drawn, lower=True)
    least = jnp.sum(mean**2) + jnp.sum(precision * (distance - times_vector(factor, mean)) ** 2)
    log_start = -jnp.sum(jnp.log(pivots)) - 0.5 * least
    right = jnp.concatenate([jnp.diag(1.0 / jnp.sqrt(left)), (offset / left)[:, None]], axis=1)
    both = factor @ solve_triangular(identity - dependence, right, lower=True, unit_diagonal=True)
    return both[:, m], jnp.tril(both[:, :m]), log_start


def log_site_mean(precision: Array, center: Array, mean: Array, scale: Array) -> Array:
    """log E[exp(-precision (y - center)^2 / 2)] for y ~ Normal(mean, scale^2), elementwise."""
    ratio = precision * scale * scale
    return -0.5 * jnp.log1p(ratio) - 0.5 * precision * (center - mean) ** 2 / (1.0 + ratio)


def log_weights(chain: Chain, uniforms: Array) -> Array:
    """The log importance weights of paths, shape (n,), from uniforms of shape (m - 1, n)."""
    constraints, twist = chain.constraints, chain.twist
    path = kernel.paths(constraints, jnp.zeros_like(constraints.loc), uniforms)
    loc, scale, precision, center = (
        x[:, None] for x in (constraints.loc, constraints.scale, twist.precision, twist.center)
    )
    site = log_site_mean(precision, center, loc + path.means, scale)
    return chain.log_start + jnp.sum(path.log_mass - site, axis=0)
