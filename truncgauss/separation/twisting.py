"""Twisting: let each variable know, before it is drawn, what the later constraints will ask.

Take a Gaussian y, constraints low_k <= y_k <= high_k in their natural order, and for each of them a
Gaussian site g_k(y_k) that resembles it. Draw y_k from the Gaussian law that the earlier draws and
all *later* sites give it, truncated to its limits. With mass_k that law's mass between the limits
and mean_k its expectation of the site g_k which the limits replace, a path has the weight

    g_0 prod_k mass_k / mean_k,   g_0 = E[ prod_k g_k(y_k) ].

Both factors depend on the path only through the mean of y_k. Good sites make them nearly equal,
and any sites give an unbiased estimate. Without sites this is plain separation of variables. The
twisted law is Gaussian before it is truncated, so the kernel of separation of variables serves it.

Reference:
    Guarniero, Johansen and Lee (2017), The iterated auxiliary particle filter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.limits import GaussianLimits
from truncgauss.pytrees import Batched, frozen_pytree
from truncgauss.separation import expectation_propagation, kernel
from truncgauss.separation.arrangement import input_rounding
from truncgauss.special import truncated_variance

# Of a site times the variance of its constraint, in powers of eps: `twisted` keeps other digits.
MOST_PRECISION = -0.375
REACH = 2.0  # standard deviations of a conditional mean within which a site is held to its limits


@frozen_pytree
class Twist(Batched):
    """Sites exp(-precision (y - center)^2 / 2), one a constraint; precision 0 for none.

    Attributes:
        precision: shape (m,).
        center: shape (m,), in the units of the constraints.
    """

    precision: Array
    center: Array

    event_ranks = {"precision": 1, "center": 1}

    def scaled(self, by: Array) -> "Twist":
        """The sites of constraints multiplied by `by`, shape (m,)."""
        return Twist(self.precision / by / by, self.center * by)


class Chain(NamedTuple):
    """A twisted law and its sites."""

    law: kernel.Constraints  # limits, and the law before it is truncated
    twist: Twist
    log_start: Array  # log g_0


class Found(NamedTuple):
    """What expectation propagation says of limits on a Gaussian vector.

    Attributes:
        twist: sites, of precision 0 where there are none to use.
        converged: whether propagation converged.
        usable: whether its sites may be used.
        rounding: standard error of log P from the last digits of the inputs.
        height: the log density at the mean that propagation finds, less that at the mean of the
            Gaussian: log P differs from it by the logs of volumes alone.
    """

    twist: Twist
    converged: Array
    usable: Array
    rounding: Array
    height: Array


def twist_of(limits: GaussianLimits, least_share: float, most_added: float = jnp.inf) -> Found:
    """Sites of the slope that expectation propagation finds, and of as much precision as is safe.

    At the propagated mean the logarithm of each site keeps its slope. Log mass bends like a
    Gaussian between two limits and before a far one, but flattens beyond a single limit: a site of
    full precision would leave the twisted law with thinner tails than the truncated one there, and
    weights whose variance is large and badly seen. So a site has that share of the precision which
    the least bend of log mass, within two standard deviations of the conditional mean, is of the
    bend at the middle; but at least `least_share`. With a tenth the weights of near-duplicates were
    still well seen, with a fifth no longer; resampling is content with a third. Where propagation
    does not converge there are no sites.

    Nor are there any where sites held at the least share add more than `most_added` to the
    precision of a variable drawn before them, which is 1 a priori. Such sites have long lost their
    bend where they are wanted: beyond 1 the weights have no finite variance along a direction in
    which no limit ends, and their spread says too little of their error.

    The site of a narrow interval would be as sharp as the interval. Its precision is bounded, at
    7e5 over the variance in float64 and 400 in float32: beyond, `twisted` loses the precision that
    the other sites alone leave a variable, and the weights would be wrong and look equal.
    """
    limits = lax.stop_gradient(limits)
    constraints, _ = expectation_propagation.scaled_limits(limits)
    # Far from the digits that a value would need. A residual of a tenth was not enough: where it
    # shrinks slowly, the sites of near-duplicates were still twice as strong as they end.
    _, full, mean, found = expectation_propagation.fixed_point(constraints, rtol=0.02)
    most = float(jnp.finfo(limits.loc.dtype).eps) ** MOST_PRECISION
    bounded = most / jnp.maximum(full.precision, most)

    def weakened(share) -> Twist:
        share = jnp.minimum(share, bounded)
        precision = share * full.precision / constraints.scale**2
        center = constraints.loc + constraints.scale * (mean + (full.center - mean) / share)
        return Twist(precision, center)

    factor = limits.scale_tril
    law = chain_with(limits, factor, weakened(1.0)).law
    scale = jnp.diagonal(law.factor)
    reach = REACH * jnp.linalg.norm(jnp.tril(law.factor, -1), axis=1)
    middle = constraints.loc + constraints.scale * mean

    def bend(place):
        """Minus the second derivative of log mass in the conditional mean, times scale^2."""
        limits = (law.low / scale)[None], (law.high / scale)[None]
        return 1.0 - truncated_variance(place / scale[None], 1.0, *limits)

    steps = jnp.linspace(-1.0, 1.0, 5, dtype=reach.dtype)[:, None]
    bends = bend(middle[None] + steps * reach[None])
    share = jnp.min(bends, axis=0) / jnp.maximum(bends[2], float(jnp.finfo(scale.dtype).tiny))
    twist = weakened(jnp.clip(share, least_share, 1.0))
    held = jnp.where(share < least_share, twist.precision, 0.0)
    added = jnp.max(jnp.square(jnp.tril(factor, -1).T) @ held)
    found = found & jnp.all(jnp.isfinite(twist.precision) & jnp.isfinite(twist.center))
    usable = found & (added <= most_added)
    nothing = Twist(jnp.zeros_like(mean), constraints.loc)
    twist = jax.tree.map(lambda new, none: jnp.where(usable, new, none), twist, nothing)
    force = jnp.where(full.precision == 0, 0.0, full.precision * (full.center - mean))
    rounding = input_rounding(limits, force / constraints.scale)
    return Found(twist, found, usable, rounding, -0.5 * jnp.sum(force * mean))


def chain_of(limits: GaussianLimits, twist: Twist | None) -> Chain:
    """The twisted law of constraints; differentiable, the twist held.

    NaN if the covariance is not symmetric or not positive semi-definite.
    """
    return chain_with(limits, limits.scale_tril, twist)


def chain_with(limits: GaussianLimits, factor: Array, twist: Twist | None) -> Chain:
    """The twisted law, given the lower-triangular factor of the covariance."""
    low, high, loc = limits[:3]
    if twist is None:
        nothing = jnp.zeros_like(loc)
        law = kernel.Constraints(low, high, loc, factor)
        return Chain(law, Twist(nothing, loc), nothing.sum())
    twist = lax.stop_gradient(twist)
    mean, triangle, log_start = twisted(factor, twist.precision, twist.center - loc)
    return Chain(kernel.Constraints(low, high, loc + mean, triangle), twist, log_start)


def twisted(factor: Array, precision: Array, distance: Array) -> tuple[Array, Array, Array]:
    """Mean (beyond loc) and factor of the twisted law, and log g_0; sites lie `distance` from loc.

    In y = loc + A z the sites turn the precision of z into M = I + A^T T A = N^T N, N lower
    triangular, which holds z_k's law given earlier variables and sites k, k + 1, ... in its row k.
    Taking site k out leaves the conditional precision a_k and the mean as a linear function of
    earlier variables.
    """
    m = len(precision)
    identity = jnp.eye(m, dtype=factor.dtype)
    own = jnp.diagonal(factor)
    pull = factor.T @ (precision * distance)
    flipped = (identity + factor.T @ (precision[:, None] * factor))[::-1, ::-1]
    reverse = jnp.linalg.cholesky(flipped).T[::-1, ::-1]
    scaled = jnp.diagonal(reverse)[:, None] * reverse
    site = precision * own
    left = jnp.diagonal(scaled) - site * own
    dependence = jnp.tril(site[:, None] * factor - scaled, -1) / left[:, None]
    offset = jnp.diagonal(reverse) * solve_triangular(reverse.T, pull) - site * distance
    unwind = lambda right: (
        factor @ solve_triangular(identity - dependence, right, lower=True, unit_diagonal=True)
    )
    root = jnp.where(precision > 0, jnp.sqrt(jnp.where(precision > 0, precision, 1.0)), 0.0)
    cover = jnp.linalg.cholesky(identity + root[:, None] * (factor @ factor.T) * root[None, :])
    gap = solve_triangular(cover, root * distance, lower=True)
    log_start = -jnp.sum(jnp.log(jnp.diagonal(cover))) - 0.5 * jnp.sum(gap**2)
    triangle = jnp.tril(unwind(jnp.diag(1.0 / jnp.sqrt(left))))
    return unwind(offset / left), triangle, log_start


def log_site_mean(precision: Array, center: Array, mean: Array, scale: Array) -> Array:
    """log E[exp(-precision (y - center)^2 / 2)] for y ~ Normal(mean, scale^2), elementwise."""
    ratio = precision * scale * scale
    return -0.5 * jnp.log1p(ratio) - 0.5 * precision * (center - mean) ** 2 / (1.0 + ratio)


def log_weights(chain: Chain, uniforms: Array) -> Array:
    """The log weight of the path through each point; uniforms (m - 1, n), result (n,)."""
    law, twist = chain.law, chain.twist
    path = kernel.paths(law, jnp.zeros_like(law.loc), uniforms)
    loc, scale, precision, center = (
        x[:, None] for x in (law.loc, jnp.diagonal(law.factor), twist.precision, twist.center)
    )
    site = log_site_mean(precision, center, loc + path.means, scale)
    return chain.log_start + jnp.sum(path.log_mass - site, axis=0)
