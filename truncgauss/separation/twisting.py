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

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.linalg import diagonal_of, times_vector
from truncgauss.arrays.pytrees import Batched, frozen_pytree
from truncgauss.gaussian.regions.region import GaussianLimits
from truncgauss.separation import sites
from truncgauss.separation.kernel import Constraints
from truncgauss.special.normal import quick_moments
from truncgauss.special.tails import fixed_interval

# The largest precision of a site times the variance of its constraint, as a power of eps.
MOST_PRECISION = -0.375
REACH = 2.0  # standard deviations of a cavity within which curvatures are compared


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


class SiteFit(NamedTuple):
    """Sites by expectation propagation.

    Attributes:
        precision: shape (m,); 0 if it did not converge.
        mean: of the Gaussian with all sites, shape (m,).
        force: the slopes of the logs of the sites there, shape (m,): the derivative of log P in the
            means of the constraints.
        strong: whether the precision would have been reduced further, but for `least_share`.
        order: the constraints by decreasing precision of their full sites, in units of their
            variances, shape (m,).
        converged: whether it did.
        rounding: standard error of log P from the rounding of the sites.
    """

    precision: Array
    mean: Array
    force: Array
    strong: Array
    order: Array
    converged: Array
    rounding: Array

    def twist(self) -> Twist:
        """The sites by their centers."""
        # Not from differences of means, in a narrow interval a rounding error.
        active = self.precision > 0
        distance = jnp.where(active, self.force / jnp.where(active, self.precision, 1.0), 0.0)
        return Twist(self.precision, self.mean + distance, self.rounding)


def sites_for(limits: GaussianLimits, least_share: float) -> SiteFit:
    """Sites by expectation propagation, their precisions reduced to keep the weights' variance low.

    The log of each site keeps its slope at the posterior mean. As a function of the conditional
    mean, log mass is about as curved as a Gaussian between two limits, but flattens beyond a single
    limit. There a site of full precision would give the twisted distribution thinner tails than the
    truncated one, and importance weights of large variance, underestimated from few points. The
    precision is therefore multiplied by the ratio of the smallest curvature of log mass, within two
    standard deviations of the mean of the cavity, to that at the mean, but by no less than
    `least_share`. For nearly identical coordinates a tenth was small enough to estimate the
    variance of the weights, a fifth was not; with resampling a third is small enough.

    The precision of a site is bounded, at 7e5 over the variance in float64 and 400 in float32.
    Beyond that `twisted` loses the digits of the conditional precision from the other sites to
    cancellation, and the weights would be wrong although nearly equal. `rounding` is that of the
    sites only.

    References:
        Minka (2001), Expectation Propagation for Approximate Bayesian Inference. Cunningham, Hennig
        and Lacoste-Julien (2011), Gaussian Probabilities and Expectation Propagation.
    """
    scaled, _ = sites.scaled_limits(lax.stop_gradient(limits))
    # A proposal needs few digits. A residual of a tenth was too large: with slow convergence the
    # precisions of nearly identical coordinates were still twice their final values.
    fit = sites.fixed_point(scaled, rtol=0.02)
    cavity, full, mean, force, converged = fit
    spread = scaled.scale * jnp.exp(0.5 * cavity.log_variance)
    middle = scaled.loc + scaled.scale * cavity.mean
    steps = jnp.array([[-REACH], [REACH]], spread.dtype)
    means = middle[None] + steps * spread[None]
    moved = fixed_interval(scaled.low, scaled.high, means, spread)
    curvatures = 1.0 - quick_moments(moved).variance
    curved = full.precision > 0
    ratio = jnp.where(curved, full.precision, 1.0) * jnp.exp(cavity.log_variance)
    share = jnp.where(curved, jnp.min(curvatures, axis=0) * (1.0 + ratio) / ratio, 0.0)
    most = float(jnp.finfo(mean.dtype).eps) ** MOST_PRECISION
    bounded = most / jnp.maximum(full.precision, most)
    precision = jnp.minimum(jnp.clip(share, least_share, 1.0), bounded) * full.precision
    converged = converged & jnp.all(jnp.isfinite(precision) & jnp.isfinite(force + mean))
    precision, mean = (jnp.where(converged, x, 0.0) for x in (precision, mean))
    # The twisted distribution comes from matrices of condition 1 + precision times variance.
    rounding = float(jnp.finfo(mean.dtype).eps) * jnp.sum(precision)
    # In seven digits: which of two equal precisions is larger by rounding must not move estimates.
    order = jnp.argsort(full.precision.astype(jnp.float32), descending=True, stable=True)
    precision, force = precision / scaled.scale**2, force / scaled.scale
    mean, strong = scaled.loc + scaled.scale * mean, share < least_share
    return SiteFit(precision, mean, force, strong, order, converged, rounding)


def twisted(constraints: Constraints, twist: Twist) -> tuple[Constraints, Array]:
    """The limits with the twisted distribution in place of the Gaussian one, and log g_0.

    With y = loc + A z and site precisions T, the precision of z given all sites is
    M = I + A^T T A = N^T N, N lower triangular. Row k of N holds the conditional distribution of
    z_k given the earlier variables and the sites k, k + 1, ...; removing site k gives the
    conditional precision a_k, and the mean as a linear function of the earlier variables.
    """
    low, high, loc, factor = constraints
    precision, distance = twist.precision, twist.center - loc
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
    return Constraints(low, high, loc + both[:, m], jnp.tril(both[:, :m])), log_start


def log_site_mean(precision: Array, center: Array, mean: Array, scale: Array) -> Array:
    """log E[exp(-precision (y - center)^2 / 2)] for y ~ Normal(mean, scale^2), elementwise."""
    ratio = precision * scale * scale
    return -0.5 * jnp.log1p(ratio) - 0.5 * precision * (center - mean) ** 2 / (1.0 + ratio)
