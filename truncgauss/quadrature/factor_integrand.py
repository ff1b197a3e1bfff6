"""Independent noise on top of a few common factors: the integrand of the factors alone.

With X_j = loc_j + w_j . F + s_j Y_j, F in r dimensions and Y_j standard normal,

    P = integral of phi(f) prod_j [Phi((high_j - m_j(f))/s_j) - Phi((low_j - m_j(f))/s_j)],

m_j(f) = loc_j + w_j . f. The integrand is log-concave, whatever d is. It is written about an anchor
near its bulk, so that limits many noise scales away from loc cancel only once.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.covariances import LowRank
from truncgauss.pytrees import Batched, frozen_pytree, varying_like
from truncgauss.quadrature.double_double import exact_sum, products
from truncgauss.special import log_interval_mass, standardize, truncated_mean, truncated_variance

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
MAX_STEPS = 100
MAX_SWEEPS = 40
DAMPING = 0.8
# Numbers in an array that are made at once: few enough for the cache of a processor, and for the
# memory where many problems go side by side.
TURN_SIZE = 2**12


@jax.custom_jvp
def mean_at(anchor: Array, loc: Array, loadings: Array) -> tuple[Array, Array]:
    """loc + loadings @ anchor as numbers and what rounding took from them, without derivative."""
    parts = [part for w, a in zip(loadings.T, anchor) for part in products(w, jnp.full_like(w, a))]
    return exact_sum([loc, *parts])


@mean_at.defjvp
def _mean_at_jvp(primals, tangents):
    (anchor, _, loadings), (d_anchor, d_loc, d_loadings) = primals, tangents
    value, rest = mean_at(*primals)
    move = combined(d_loadings, anchor) + combined(loadings, d_anchor)
    return (value, rest), (d_loc + move, jnp.zeros_like(rest))


def combined(loadings: Array, factors: Array) -> Array:
    """loadings (d, r) times factors (..., r), shape (..., d), in full precision on any device."""
    return jnp.matmul(factors, loadings.T, precision="highest")


class Integrand(NamedTuple):
    """phi(f) times all masses, for f = anchor + offset and in units of the noise."""

    anchor: Array  # (r,)
    low: Array  # limits less the mean at the anchor, (d,)
    high: Array
    width: Array
    rates: Array  # loadings over the noise, (d, r)
    rest: Array

    def log_masses(self, offsets: Array) -> Array:
        """The log mass of every coordinate, offsets (..., r) -> (..., d)."""
        shift = combined(self.rates, offsets) + self.rest
        return log_interval_mass(self.low - shift, self.high - shift, self.width)

    def log_prior(self, offsets: Array) -> Array:
        """log phi(anchor + offset) - log phi(anchor), written so that large anchors cancel."""
        return -jnp.sum((self.anchor + 0.5 * offsets) * offsets, axis=-1)

    def heights(self, offsets: Array) -> tuple[Array, Array]:
        """The log of the integrand at each offset (n, r), less a common level; and that level.

        The level is the value at the anchor, taken coordinate by coordinate: in float32 a sum of
        thousands would otherwise lose the digits of what differs from point to point.
        """
        levels = lax.stop_gradient(self.log_masses(jnp.zeros_like(self.anchor)))
        levels = jnp.where(jnp.isfinite(levels), levels, 0.0)

        def some(offsets):
            return jnp.sum(self.log_masses(offsets) - levels, axis=-1)

        heights = in_turns(some, offsets, len(levels)) + self.log_prior(offsets)
        at_anchor = -0.5 * jnp.sum(self.anchor**2) - len(self.anchor) * LOG_SQRT_2PI
        return heights, jnp.sum(levels) + at_anchor


def in_turns(function, points: Array, size: int) -> Array:
    """function(points), in turns where all points at once would fill the memory."""
    num_points = len(points)
    if num_points * size <= TURN_SIZE:
        return function(points)
    at_once = min(max(1, TURN_SIZE // size), num_points)
    turns = -(-num_points // at_once)
    spare = turns * at_once - num_points
    # Points that fill the last turn repeat the first ones, and are left out again.
    full = jnp.concatenate([points, points[:spare]]).reshape(turns, at_once, -1)
    return lax.map(jax.checkpoint(function), full).reshape(-1)[:num_points]


def about(anchor: Array, loc: Array, covariance: LowRank, low: Array, high: Array) -> Integrand:
    """The integrand written about an anchor."""
    scale = jnp.sqrt(covariance.cov_diag)
    mean, rest = mean_at(anchor, loc, covariance.cov_factor)
    rates = covariance.cov_factor / scale[:, None]
    return Integrand(anchor, *standardize(low, high, mean, scale), rates, rest / scale)


@frozen_pytree
class Plan(Batched):
    """Where the bulk of the integrand lies: any plan will do, a good one needs few points.

    Attributes:
        anchor: about its mean, shape (r,).
        scale: a lower-triangular factor of about its covariance, shape (r, r).
        mode: where it is highest, shape (r,).
    """

    anchor: Array
    scale: Array
    mode: Array

    event_ranks = {"anchor": 1, "scale": 2, "mode": 1}


def solve_plan(loc: Array, covariance: LowRank, low: Array, high: Array) -> Plan:
    """Mean and covariance by expectation propagation, else by the curvature at the mode."""
    inputs = lax.stop_gradient((loc, covariance, low, high))
    origin = jnp.zeros(covariance.rank, loc.dtype)
    integrand = about(origin, *inputs)
    mode, sites = highest(integrand)
    anchor, scale = propagated(integrand, sites)
    _, steep = moments(integrand.rates, sites)
    fine = jnp.all(jnp.isfinite(scale)) & jnp.all(jnp.isfinite(anchor))
    return Plan(jnp.where(fine, anchor, mode), jnp.where(fine, scale, steep), mode)


# --- The mode -------------------------------------------------------------------------------------


class Sites(NamedTuple):
    """A Gaussian factor exp(linear x - precision x^2 / 2) in place of each mass, both (d,)."""

    precision: Array
    linear: Array


def tangent_sites(integrand: Integrand, factors: Array) -> Sites:
    """The sites that touch the log masses to second order."""
    x = combined(integrand.rates, factors)

    def log_mass(x):
        return log_interval_mass(integrand.low - x, integrand.high - x, integrand.width)

    def slope(x):
        return jax.jvp(log_mass, (x,), (jnp.ones_like(x),))[1]

    first, second = jax.jvp(slope, (x,), (jnp.ones_like(x),))
    precision = jnp.clip(-second, 0.0, 1.0)
    return Sites(precision, first + precision * x)


def moments(rates: Array, sites: Sites) -> tuple[Array, Array]:
    """Mean of phi times all sites, and a lower-triangular factor of its covariance."""
    identity = jnp.eye(rates.shape[1], dtype=rates.dtype)
    weighted = rates * sites.precision[:, None]
    precision = identity + jnp.matmul(rates.T, weighted, precision="highest")
    # With the order of the factors reversed, the inverse of an upper triangle is a lower one.
    root = jnp.linalg.cholesky(precision[::-1, ::-1])[::-1, ::-1]
    scale = solve_triangular(root, identity, lower=False).T
    pull = jnp.matmul(sites.linear, rates, precision="highest")
    return scale @ (scale.T @ pull), scale


def highest(integrand: Integrand) -> tuple[Array, Sites]:
    """The mode by Newton's method, and the sites there.

    A step that passes the mode along its line by far is halved: slopes tell, which keep their
    digits where values in the millions have lost them.
    """
    rates = integrand.rates
    eps = jnp.finfo(rates.dtype).eps

    def slopes(sites, factors):
        x = combined(rates, factors)
        residual = sites.linear - sites.precision * x
        return jnp.matmul(residual, rates, precision="highest") - factors

    def step(state):
        factors, sites, move, size, count, _ = state
        there = factors + size * move
        sites_there = tangent_sites(integrand, there)
        before = slopes(sites, factors) @ move
        after = slopes(sites_there, there) @ move
        good = after >= -0.5 * before
        newton, scale = moments(rates, sites_there)
        newton = newton - there
        far = jnp.linalg.norm(solve_triangular(scale, newton, lower=True))
        near = jnp.linalg.norm(size * move) <= 16 * eps * jnp.linalg.norm(factors)
        done = (good & (far <= 1e-3)) | (near & (count > 0))
        keep = lambda new, old: jnp.where(good, new, old)
        state = (keep(there, factors), jax.tree.map(keep, sites_there, sites), keep(newton, move))
        return *state, jnp.where(good, 1.0, 0.5 * size), count + 1, done

    def unfinished(state):
        return ~state[-1] & (state[-2] < MAX_STEPS)

    # The first step goes nowhere, and finds the sites at the origin.
    origin = jnp.zeros(rates.shape[1], rates.dtype)
    none = jnp.zeros_like(integrand.low)
    start = (origin, Sites(none, none), origin, jnp.ones((), rates.dtype))
    start = varying_like((*start, jnp.asarray(0), jnp.asarray(False)), integrand)
    factors, sites, *_ = lax.while_loop(unfinished, step, start)
    return factors, sites


# --- Mean and covariance --------------------------------------------------------------------------


def propagated(integrand: Integrand, sites: Sites) -> tuple[Array, Array]:
    """Mean and scale of the integrand by expectation propagation, all sites at once.

    The mode and the curvature there say little where limits are sharp: there the mode is a corner.
    """
    rates = integrand.rates
    most = jnp.sum(rates**2, axis=1)

    def sweep(state):
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
        grown = solve_triangular(scale, new_scale, lower=True) - jnp.eye(len(mean))
        done = ~(jnp.max(jnp.abs(move)) + jnp.max(jnp.abs(grown)) > 1e-2)
        return sites, new_mean, new_scale, count + 1, done

    def unfinished(state):
        return ~state[-1] & (state[-2] < MAX_SWEEPS)

    start = (sites, *moments(rates, sites), jnp.asarray(0), jnp.asarray(False))
    start = varying_like(start, integrand)
    _, mean, scale, _, _ = lax.while_loop(unfinished, sweep, start)
    return mean, scale


def matched(integrand: Integrand, centre: Array, cavity: Array) -> Sites:
    """The sites that leave mean and variance of x right, given its law without the own mass.

    With x ~ Normal(centre, cavity) and x + Y within the limits, of which the variance is a share
    of 1 + cavity: nothing is subtracted that nearly cancels.
    """
    total = 1.0 + cavity
    law = (centre, jnp.sqrt(total), integrand.low, integrand.high)
    share = jnp.clip(truncated_variance(*law) / total, 0.0, 1.0)
    left = 1.0 + cavity * share
    precision = (1.0 - share) / left
    return Sites(precision, precision * centre + (truncated_mean(*law) - centre) / left)
