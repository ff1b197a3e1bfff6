r"""Box probabilities with r common factors and independent noise: the integrand over the factors.

With X_j = loc_j + w_j . F + s_j Y_j, F in r dimensions and Y_j standard normal,

.. math:: P = \int \phi(f) \prod_j \left[\Phi\left(\frac{h_j - m_j(f)}{s_j}\right)
    - \Phi\left(\frac{l_j - m_j(f)}{s_j}\right)\right] df, \qquad m_j(f) = \mu_j + w_j \cdot f

The integrand is log-concave for any d. It is written about an anchor near its mean, so that limits
many noise scales away from loc cancel only once.

References:
    Tong (1990), The Multivariate Normal Distribution, chapter 8.
    Minka (2001), Expectation propagation for approximate Bayesian inference.
    Cunningham, Hennig and Lacoste-Julien (2011), Gaussian probabilities and expectation
    propagation.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.pytrees import Batched, frozen_pytree, varying_like
from truncgauss.gaussian.covariances import LowRank
from truncgauss.quadrature.double_double import exact_sum, products
from truncgauss.special.normal import log_interval_mass, quick_moments, truncated_mean_and_variance
from truncgauss.special.tails import LOG_SQRT_2PI, Arrays, standardize

MAX_STEPS = 100
MAX_SWEEPS = 40
DAMPING = 0.8
# Elements of an array that are computed at once: few enough for a processor's cache, and for the
# memory of many problems in a batch.
CHUNK_SIZE = 2**12


@jax.custom_jvp
def mean_at(anchor: Array, loc: Array, loadings: Array) -> tuple[Array, Array]:
    """loc + loadings @ anchor, rounded, and the rounding errors, which carry no derivative."""
    parts = [part for w, a in zip(loadings.T, anchor) for part in products(w, jnp.full_like(w, a))]
    return exact_sum([loc, *parts])


@mean_at.defjvp
def _mean_at_jvp(
    primals: Arrays, tangents: Arrays
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    (anchor, _, loadings), (d_anchor, d_loc, d_loadings) = primals, tangents
    value, rest = mean_at(*primals)
    move = combined(d_loadings, anchor) + combined(loadings, d_anchor)
    return (value, rest), (d_loc + move, jnp.zeros_like(rest))


def combined(loadings: Array, factors: Array) -> Array:
    """loadings (d, r) times factors (..., r), shape (..., d), in full precision on any device."""
    return jnp.matmul(factors, loadings.T, precision="highest")


def components(
    mean: Array, shifts: Array, covariance: LowRank, low: Array, high: Array
) -> tuple[Array, Array, Array]:
    """A point of the region, and means less the point and variances of X given n factors.

    `mean` is that of X before truncation at an anchor, `shifts`, (n, d), its changes from there.
    """
    point = lax.stop_gradient(jnp.clip(mean, low, high))
    centred = standardize(low, high, point)
    means, variances = truncated_mean_and_variance(
        (mean - point)[None] + shifts, jnp.sqrt(covariance.cov_diag), centred.low, centred.high
    )
    return point, means, variances


class Integrand(NamedTuple):
    """phi(f) times all masses, for f = anchor + offset and in units of the noise."""

    anchor: Array  # (r,)
    low: Array  # limits less the mean at the anchor, (d,)
    high: Array
    width: Array
    rates: Array  # loadings over the noise, (d, r)
    rest: Array  # rounding errors of the mean at the anchor

    def log_masses(self, offsets: Array) -> Array:
        """Log probability of every coordinate's interval, offsets (n, r) -> (n, d)."""
        shift = combined(self.rates, offsets) + self.rest[None]
        return log_interval_mass(self.low[None] - shift, self.high[None] - shift, self.width[None])

    def log_prior(self, offsets: Array) -> Array:
        """log phi(anchor + offset) - log phi(anchor), with no cancellation for large anchors."""
        return -jnp.sum((self.anchor[None] + 0.5 * offsets) * offsets, axis=-1)

    def heights(self, offsets: Array) -> tuple[Array, Array]:
        """Log integrand at each offset (n, r), less a common level; and that level.

        The level is the value at the anchor, subtracted for each coordinate before summation: in
        float32 a sum of thousands would otherwise round off the differences between points.
        """
        levels = lax.stop_gradient(self.log_masses(jnp.zeros_like(self.anchor)[None])[0])
        levels = jnp.where(jnp.isfinite(levels), levels, 0.0)

        def relative(offsets: Array) -> Array:
            return jnp.sum(self.log_masses(offsets) - levels[None], axis=-1)

        heights = in_chunks(relative, offsets, len(levels)) + self.log_prior(offsets)
        at_anchor = -0.5 * jnp.sum(self.anchor**2) - len(self.anchor) * LOG_SQRT_2PI
        return heights, jnp.sum(levels) + at_anchor


def in_chunks(function: Callable[[Array], Array], points: Array, size: int) -> Array:
    """function(points), in chunks if all points at once would need too much memory.

    Args:
        function: of points (n, r), returning shape (n,).
        points: shape (num_points, r).
        size: numbers that the function computes for each point.
    """
    num_points = len(points)
    if num_points * size <= CHUNK_SIZE:
        return function(points)
    chunk = min(max(1, CHUNK_SIZE // size), num_points)
    num_chunks = -(-num_points // chunk)
    spare = num_chunks * chunk - num_points
    # The last chunk is filled up with the first points, whose results are dropped.
    full = jnp.concatenate([points, points[:spare]]).reshape(num_chunks, chunk, -1)
    return lax.map(jax.checkpoint(function), full).reshape(-1)[:num_points]


def about(anchor: Array, loc: Array, covariance: LowRank, low: Array, high: Array) -> Integrand:
    scale = jnp.sqrt(covariance.cov_diag)
    mean, rest = mean_at(anchor, loc, covariance.cov_factor)
    rates = covariance.cov_factor / scale[:, None]
    return Integrand(anchor, *standardize(low, high, mean, scale), rates, rest / scale)


@frozen_pytree
class FactorPlan(Batched):
    """Mean and covariance of the integrand, for a grid or lattice; any plan is unbiased.

    A good one needs few points.

    Attributes:
        anchor: approximate mean of the normalised integrand, shape (r,).
        scale: lower Cholesky factor of its approximate covariance, shape (r, r).
        mode: its mode, shape (r,).
    """

    anchor: Array
    scale: Array
    mode: Array

    event_ranks = {"anchor": 1, "scale": 2, "mode": 1}


def solve_plan(loc: Array, covariance: LowRank, low: Array, high: Array) -> FactorPlan:
    """The plan from expectation propagation or, if that fails, from the curvature at the mode."""
    inputs = lax.stop_gradient((loc, covariance, low, high))
    origin = jnp.zeros(covariance.rank, loc.dtype)
    integrand = about(origin, *inputs)
    mode, sites = highest(integrand)
    anchor, scale = propagated(integrand, sites)
    _, steep = moments(integrand.rates, sites)
    fine = jnp.all(jnp.isfinite(scale)) & jnp.all(jnp.isfinite(anchor))
    return FactorPlan(jnp.where(fine, anchor, mode), jnp.where(fine, scale, steep), mode)


# --- The mode -------------------------------------------------------------------------------------


class GaussianSites(NamedTuple):
    """A Gaussian factor exp(linear x - precision x^2 / 2) in place of each mass; shape (d,)."""

    precision: Array
    linear: Array


def tangent_sites(integrand: Integrand, factors: Array) -> GaussianSites:
    """The second-order Taylor expansions of the log masses as sites."""
    x = combined(integrand.rates, factors)

    def log_mass(x: Array) -> Array:
        return log_interval_mass(integrand.low - x, integrand.high - x, integrand.width)

    def slope(x: Array) -> Array:
        return jax.jvp(log_mass, (x,), (jnp.ones_like(x),))[1]

    first, second = jax.jvp(slope, (x,), (jnp.ones_like(x),))
    precision = jnp.clip(-second, 0.0, 1.0)
    return GaussianSites(precision, first + precision * x)


def moments(rates: Array, sites: GaussianSites) -> tuple[Array, Array]:
    """Mean of phi times all sites, and the lower Cholesky factor of its covariance."""
    identity = jnp.eye(rates.shape[1], dtype=rates.dtype)
    weighted = rates * sites.precision[:, None]
    precision = identity + jnp.matmul(rates.T, weighted, precision="highest")
    # With the order of the factors reversed, the inverse of an upper triangle is a lower one.
    root = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    scale = solve_triangular(root, identity, lower=False).T
    pull = jnp.matmul(sites.linear, rates, precision="highest")
    return scale @ (scale.T @ pull), scale


def highest(integrand: Integrand) -> tuple[Array, GaussianSites]:
    """The mode by Newton's method, and the sites there.

    A step that goes far beyond the maximum along its line is halved, judged by slopes: they keep
    their digits where log values in the millions have lost them.
    """
    State = tuple[Array, GaussianSites, Array, Array, Array, Array]
    rates = integrand.rates
    eps = jnp.finfo(rates.dtype).eps

    def slopes(sites: GaussianSites, factors: Array) -> Array:
        x = combined(rates, factors)
        residual = sites.linear - sites.precision * x
        return jnp.matmul(residual, rates, precision="highest") - factors

    def step(state: State) -> State:
        factors, sites, move, size, count, _ = state
        there = factors + size * move
        sites_there = tangent_sites(integrand, there)
        before = slopes(sites, factors) @ move
        after = slopes(sites_there, there) @ move
        good = after >= -0.5 * before
        newton, scale = moments(rates, sites_there)
        newton = newton - there
        far = jnp.linalg.norm(solve_triangular(scale, newton, lower=True))
        still = jnp.linalg.norm(size * move) <= 16 * eps * jnp.linalg.norm(factors)
        done = (good & (far <= 1e-3)) | (still & (count > 0))
        accepted = jax.tree.map(
            lambda new, old: jnp.where(good, new, old),
            (there, sites_there, newton),
            (factors, sites, move),
        )
        return *accepted, jnp.where(good, 1.0, 0.5 * size), count + 1, done

    # The first step has length 0, and finds the sites at the origin.
    origin = jnp.zeros(rates.shape[1], rates.dtype)
    none, one = jnp.zeros_like(integrand.low), jnp.ones((), rates.dtype)
    start = (origin, GaussianSites(none, none), origin, one, jnp.asarray(0), jnp.asarray(False))
    unfinished = lambda state: ~state[-1] & (state[-2] < MAX_STEPS)
    factors, sites, *_ = lax.while_loop(unfinished, step, varying_like(start, integrand))
    return factors, sites


# --- Mean and covariance --------------------------------------------------------------------------


def propagated(integrand: Integrand, sites: GaussianSites) -> tuple[Array, Array]:
    """Mean and Cholesky factor of the integrand by expectation propagation, parallel updates.

    The mode and the curvature there are no substitute where limits are sharp, as the mode is then
    in a corner.
    """
    State = tuple[GaussianSites, Array, Array, Array, Array]
    rates = integrand.rates
    most = jnp.sum(rates**2, axis=1)

    def sweep(state: State) -> State:
        sites, mean, scale, count, _ = state
        x = combined(rates, mean)
        variance = jnp.sum(jnp.matmul(rates, scale, precision="highest") ** 2, axis=1)
        left = jnp.maximum(1.0 - sites.precision * variance, jnp.finfo(x.dtype).eps)
        cavity = jnp.minimum(variance / left, most)
        centre = x + cavity * (sites.precision * x - sites.linear)
        wanted = matched(integrand, centre, cavity)
        sites = jax.tree.map(lambda new, old: old + DAMPING * (new - old), wanted, sites)
        new_mean, new_scale = moments(rates, sites)
        move = solve_triangular(scale, new_mean - mean, lower=True)
        grown = solve_triangular(scale, new_scale, lower=True) - jnp.eye(
            len(mean), dtype=mean.dtype
        )
        done = ~(jnp.max(jnp.abs(move)) + jnp.max(jnp.abs(grown)) > 1e-2)
        return sites, new_mean, new_scale, count + 1, done

    start = (sites, *moments(rates, sites), jnp.asarray(0), jnp.asarray(False))
    start = varying_like(start, integrand)
    unfinished = lambda state: ~state[-1] & (state[-2] < MAX_SWEEPS)
    _, mean, scale, _, _ = lax.while_loop(unfinished, sweep, start)
    return mean, scale


def matched(integrand: Integrand, centre: Array, cavity: Array) -> GaussianSites:
    """The sites that match mean and variance of x, given its cavity distribution.

    With x ~ Normal(centre, cavity) and x + Y within the limits. The variance of x + Y enters as a
    ratio to 1 + cavity, so that no difference cancels.
    """
    total = 1.0 + cavity
    scale = jnp.sqrt(total)
    cut = quick_moments(standardize(integrand.low, integrand.high, centre, scale))
    ratio = jnp.minimum(cut.variance, 1.0)
    left = 1.0 + cavity * ratio
    precision = (1.0 - ratio) / left
    return GaussianSites(precision, precision * centre + scale * cut.mean / left)
