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

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.covariances import Covariance, is_symmetric
from truncgauss.ordering import rounding
from truncgauss.probability import paths, sites
from truncgauss.pytrees import Batched, frozen_pytree
from truncgauss.regions import Polyhedron

# Of the precision of each propagated site.
SHARE = 1 / 3


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


class Chain(NamedTuple):
    """A twisted law and its sites."""

    law: paths.Constraints  # limits, and the law before it is truncated
    twist: Twist
    log_start: Array  # log g_0


def twist_of(loc: Array, covariance: Covariance, region) -> Twist:
    """Sites of a third of the precision that expectation propagation finds, and of equal slope.

    At the propagated mean the logarithm of each site keeps its slope. Sites of full precision leave
    the twisted law with thinner tails than the truncated one, and weights whose variance is large
    and badly seen: with a third the error was 2 to 40 times smaller for correlated coordinates.
    Where propagation does not converge there are no sites.
    """
    constraints, _ = lax.stop_gradient(sites.constraints_of(loc, covariance, region))
    # Far from the digits that a value would need, and a few steps fewer.
    cavity, usable = sites.fixed_point(constraints, rtol=0.1)
    full = sites.sites_of(cavity, constraints)
    mean = sites.posterior(full, constraints.correlation).mean
    precision = SHARE * full.precision / constraints.scale**2
    center = constraints.loc + constraints.scale * (mean + (full.center - mean) / SHARE)
    usable = usable & jnp.all(jnp.isfinite(precision) & jnp.isfinite(center))
    return Twist(jnp.where(usable, precision, 0.0), jnp.where(usable, center, constraints.loc))


def chain_of(loc: Array, covariance: Covariance, region, twist: Twist | None) -> Chain:
    """The twisted law of a box or polyhedron's constraints; differentiable, the twist held.

    NaN if the covariance is not symmetric or not positive semi-definite.
    """
    matrix = covariance.covariance_matrix
    matrix = jnp.where(is_symmetric(matrix), matrix, jnp.nan)
    if isinstance(region, Polyhedron):
        loc, matrix = region.matrix @ loc, region.matrix @ matrix @ region.matrix.T
    factor = jnp.linalg.cholesky(matrix + jnp.diag(lax.stop_gradient(rounding(matrix))))
    if twist is None:
        nothing = jnp.zeros_like(loc)
        law = paths.Constraints(region.low, region.high, loc, factor)
        return Chain(law, Twist(nothing, loc), nothing.sum())
    twist = lax.stop_gradient(twist)
    mean, triangle, log_start = _twisted(factor, twist.precision, twist.center - loc)
    return Chain(paths.Constraints(region.low, region.high, loc + mean, triangle), twist, log_start)


def _twisted(factor: Array, precision: Array, distance: Array) -> tuple[Array, Array, Array]:
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
    cover = jnp.linalg.cholesky(identity + root[:, None] * (factor @ factor.T) * root)
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
    path = paths.paths(law, jnp.zeros_like(law.loc), uniforms)
    loc, scale, precision, center = (
        x[:, None] for x in (law.loc, jnp.diagonal(law.factor), twist.precision, twist.center)
    )
    site = log_site_mean(precision, center, loc + path.means, scale)
    return chain.log_start + jnp.sum(path.log_mass - site, axis=0)
