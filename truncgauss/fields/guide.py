r"""A Gaussian that guides the draws of a field: sites of the limits, and conditionals given them.

The limits of coordinate i are replaced by a site exp(-p_i f_i^2 / 2 + h_i f_i). With C the
covariance of a block and of the points ahead of it given the neighbours N, C = L L^T, and W their
regression, the distribution of all of them given f_N and their sites has

    S = (C^{-1} + P)^{-1} = L (I + L^T P L)^{-1} L^T,  mean  (I - S P) W f_N + S h.

With I + L^T P L = U U^T, U upper triangular, the Cholesky factor of S is F = L U^{-T}.

Reference:
    Minka (2001), Expectation Propagation for Approximate Bayesian Inference.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.special.normal import quick_moments
from truncgauss.special.tails import fixed_interval

NUM_PATHS = 64  # and their reflections, from which marginal variances are estimated
NUM_STEPS, DAMPING = 10, 0.8
LEAST_CAVITY = 0.05  # of a marginal precision, which is an estimate
LEAST_SHARE, MOST_SHARE = 0.25, 0.75  # of a site's precision
REACH = 2.0


class Rows(NamedTuple):
    """The limits of each coordinate less its mean, in blocks, shape (blocks, size).

    Attributes:
        low, high: limits.
        noise: variance of what is added to the field.
        exact: whether the coordinate is known, to be `low`.
    """

    low: Array
    high: Array
    noise: Array
    exact: Array


class FieldSites(NamedTuple):
    precision: Array
    force: Array


class BlockConditional(NamedTuple):
    """The guide's distribution of a block given its neighbours: Normal(weights f + shift, factor
    factor^T)."""

    weights: Array
    shift: Array
    factor: Array


def conditionals(field: Any, sites: FieldSites) -> BlockConditional:
    """The guide's distribution of each block given its neighbours."""
    size = sites.precision.shape[1]
    every = [jnp.append(part.reshape(-1), 0.0) for part in sites]

    def of_block(part: Any) -> BlockConditional:
        ahead, weights, factor, *own = part
        places = ahead.astype(int)
        precision, force = (jnp.concatenate([a, b[places]]) for a, b in zip(own, every))
        left = tilted_factor(factor, precision)[:, :size]
        spread = left[:size] @ left.T
        return BlockConditional(
            weights[:size] - (spread * precision[None]) @ weights, spread @ force, left[:size]
        )

    parts = field.ahead, field.weights, field.scale, *sites
    return lax.map(of_block, parts)


def tilted_factor(root: Array, precision: Array) -> Array:
    """The Cholesky factor of (C^{-1} + P)^{-1}, of which root is that of C.

    Its diagonal is that of root over that of U: no pivot is a difference of larger numbers.
    """
    inner = jnp.eye(len(root), dtype=root.dtype) + (root.T * precision[None]) @ root
    upper = jnp.linalg.cholesky(inner[::-1, ::-1])[::-1, ::-1]
    return solve_triangular(upper, root.T, lower=False).T


class WholeGuide(NamedTuple):
    """The guide of an exact field and of noise together: Normal(mean, factor factor^T).

    Attributes:
        root: Cholesky factor of the covariance before the sites.
        noise: variance of the noise that is not in it, in blocks.
        factor: that of the guide.
        mean: of the guide.
        log_mass: log of the integral of the density times the sites.
    """

    root: Array
    noise: Array
    factor: Array
    mean: Array
    log_mass: Array


def noisy_root(field: Any, rows: Rows) -> tuple[Array, Array]:
    """The factor of the covariance of field and noise, and the noise variances left outside.

    The noise of coordinates that are known stays outside: given the field it is an exact site. All
    of it does where the matrix is not positive definite to rounding.
    """
    root, noise = field.exact_root, jnp.where(rows.exact, 0.0, rows.noise).reshape(-1)
    whole = jnp.linalg.cholesky(root @ root.T + jnp.diag(noise))
    within = jnp.all(jnp.isfinite(whole)) & jnp.any(noise > 0)
    left = jnp.where(within & ~rows.exact, 0.0, rows.noise)
    return jnp.where(within, whole, root), left


def whole_guide(root: Array, noise: Array, sites: FieldSites) -> WholeGuide:
    """The guide by all coordinates, without neighbours."""
    precision, force = (part.reshape(-1) for part in sites)
    factor = tilted_factor(root, precision)
    pulled = factor.T @ force
    shrunk = jnp.log(jnp.diagonal(factor)) - jnp.log(jnp.diagonal(root))
    log_mass = jnp.sum(shrunk) + 0.5 * jnp.sum(pulled**2)
    return WholeGuide(root, noise, factor, factor @ pulled, log_mass)


def paths(field: Any, conditional: BlockConditional, normals: Array) -> Array:
    """Draws from the guide, shape (blocks, size, number), from standard normal ones."""
    blocks, size, number = normals.shape

    def step(paths: Array, part: Any) -> tuple[Array, None]:
        start, neighbours, (weights, shift, factor), normals = part
        drawn = weights @ paths[neighbours.astype(int)] + shift[:, None] + factor @ normals
        return lax.dynamic_update_slice_in_dim(paths, drawn, start, 0), None

    start = jnp.zeros((blocks * size + 1, number), normals.dtype)
    parts = size * jnp.arange(blocks), field.neighbours, conditional, normals
    return lax.scan(step, start, parts)[0][:-1].reshape(normals.shape)


def sites_of(field: Any, rows: Rows, key: Array, within: Array) -> FieldSites:
    """Sites by expectation propagation, their precisions reduced, most beyond a single limit.

    Marginal means and variances of the guide are those of the same few draws at every step, which
    is enough: sites decide the variance of an estimate, not its mean. The reduction is that of
    `separation.twisting.sites_for`, whose docstring has the reason. Between two limits a quarter
    less halved the variance of 900 sites. With noise of variance `within`, a site on field and
    noise says of the field what one of precision p / (1 + within p) and force h / (1 + within p)
    on the field does; the sites returned are on both.
    """
    blocks, size = rows.low.shape
    normals = jax.random.normal(key, (blocks, size, NUM_PATHS), rows.low.dtype)
    normals = jnp.concatenate([normals, -normals], axis=-1)
    normals = normals / jnp.sqrt(jnp.mean(normals**2, axis=-1, keepdims=True))
    pivots = jnp.diagonal(field.scale[:, :size, :size], axis1=-2, axis2=-1)
    # Beyond it the variance of a cavity would lose more than half of its digits to cancellation.
    most = 1.0 / (jnp.sqrt(jnp.finfo(pivots.dtype).eps) * pivots**2)
    known = jnp.where(
        rows.noise * most > 1.0, 1.0 / jnp.where(rows.noise > 0, rows.noise, 1.0), most
    )

    def cavities(sites: FieldSites) -> tuple[Array, Array, Array]:
        drawn = paths(field, conditionals(field, sites), normals)
        mean, variance = drawn.mean(-1), drawn.var(-1)
        left = 1.0 / variance - sites.precision
        spread = 1.0 / jnp.maximum(left, LEAST_CAVITY / variance)
        return mean, spread, spread * (mean / variance - sites.force)

    def slopes(mean: Array, variance: Array) -> tuple[Array, Array]:
        """Of the log mass in the mean: the first, and the negative of the second."""
        whole = variance + rows.noise
        root = jnp.sqrt(whole)
        low, high = jnp.where(rows.exact, -jnp.inf, rows.low), rows.high
        inner = quick_moments(fixed_interval(low, high, mean, root))
        return inner.mean / root, (1.0 - inner.variance) / whole

    def kept(sites: FieldSites) -> FieldSites:
        bound = jnp.minimum(1.0, most / jnp.maximum(sites.precision, most))
        force = known * jnp.where(rows.exact, rows.low, 0.0)
        return FieldSites(
            jnp.where(rows.exact, known, bound * sites.precision),
            jnp.where(rows.exact, force, bound * sites.force),
        )

    def step(_: Any, sites: FieldSites) -> FieldSites:
        _, variance, mean = cavities(sites)
        slope, curvature = slopes(mean, variance)
        left = 1.0 - variance * curvature
        new = FieldSites(curvature / left, (slope + curvature * mean) / left)
        return kept(FieldSites(*(old + DAMPING * (x - old) for old, x in zip(sites, new))))

    nothing = jnp.zeros_like(rows.low)
    sites = lax.fori_loop(0, NUM_STEPS, step, kept(FieldSites(nothing, nothing)))
    mean, variance, middle = cavities(sites)
    reach = REACH * jnp.sqrt(variance + rows.noise)
    around = jnp.stack([middle, middle - reach, middle + reach])
    curvature, *others = jax.vmap(slopes, (0, None))(around, variance)[1]
    least = jnp.minimum(*others)
    mean = mean + within * (sites.force - sites.precision * mean)
    rest = jnp.maximum(1.0 - within * sites.precision, jnp.sqrt(jnp.finfo(mean.dtype).eps))
    sites = FieldSites(*(part / rest for part in sites))
    share = jnp.clip(least / jnp.where(curvature > 0, curvature, 1.0), LEAST_SHARE, MOST_SHARE)
    precision = share * sites.precision
    # The log of a site keeps its slope at the mean.
    reduced = FieldSites(precision, sites.force - (sites.precision - precision) * mean)
    sound = jnp.all(jnp.isfinite(reduced.precision) & jnp.isfinite(reduced.force))
    return kept(FieldSites(*(jnp.where(sound, x, 0.0) for x in reduced)))
