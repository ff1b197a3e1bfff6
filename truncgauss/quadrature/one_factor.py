r"""Box probabilities with one common factor and independent noise: one integral, for any d.

With X_j = loc_j + w_j F + s_j Y_j, F and Y_j standard normal,

.. math:: P = \int \phi(f) \prod_j \left[\Phi\left(\frac{h_j - m_j(f)}{s_j}\right)
    - \Phi\left(\frac{l_j - m_j(f)}{s_j}\right)\right] df, \qquad m_j(f) = \mu_j + w_j f

References:
    Dunnett and Sobel (1955), Approximations to the probability integral and certain percentage
    points of a multivariate analogue of Student's t-distribution.
    Tong (1990), The Multivariate Normal Distribution, chapter 8.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.gaussian.covariances import LowRank
from truncgauss.quadrature import log_concave
from truncgauss.quadrature.double_double import line
from truncgauss.quadrature.factor_integrand import components
from truncgauss.special import log_interval_mass, standardize
from truncgauss.special.tails import LOG_SQRT_2PI

NUM_NODES = 16
NUM_WINDOWS = 10  # panels of different sizes, from either end
NUM_UNIFORM = 8  # panels of one size


class FactorNodes(NamedTuple):
    """The integrand at the quadrature nodes of the factor.

    Attributes:
        mean: conditional mean of X at the mode, shape (d,).
        shifts: the conditional means at the nodes less `mean`, shape (n, d).
        log_values: logs of the integrand, less `constant`, shape (n,).
        constant: log density of the factor at the mode, times sqrt(2 pi).
        weights: of the quadrature, shape (n,).
    """

    mean: Array
    shifts: Array
    log_values: Array
    constant: Array
    weights: Array


def integrand_nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> FactorNodes:
    """The integrand at the quadrature nodes of the factor."""
    loading, scale = covariance.cov_factor[:, 0], jnp.sqrt(covariance.cov_diag)
    anchor, breakpoints = plan(*jax.lax.stop_gradient((loc, loading, scale, low, high)))
    offsets, weights = log_concave.rule(breakpoints, NUM_NODES)
    none = jnp.zeros_like(loc)
    mean, rest = line(anchor, none, loc, loading, none)
    ends = standardize(low, high, mean, scale)

    def at(offset: Array) -> tuple[Array, Array]:
        shift = loading * offset + rest
        z = shift / scale
        return shift, log_interval_mass(ends.low - z, ends.high - z, ends.width).sum()

    shifts, log_mass = jax.vmap(at)(offsets)
    log_values = log_mass - (anchor + 0.5 * offsets) * offsets
    return FactorNodes(mean, shifts, log_values, -0.5 * anchor * anchor, weights)


def log_probability(loc: Array, covariance: LowRank, low: Array, high: Array) -> Array:
    """log P(low <= X <= high) for rank one, all of shape (d,), each low below its high."""
    nodes = integrand_nodes(loc, covariance, low, high)
    log_sum = log_concave.log_weighted_sum(nodes.log_values, nodes.weights)
    return nodes.constant - LOG_SQRT_2PI + log_sum


def plan(loc: Array, loading: Array, scale: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The mode of the integrand, and breakpoints as offsets from it."""
    ends = standardize(low, high, loc, scale)
    rate = loading / scale

    def log_density(f: Array) -> Array:
        mass = log_interval_mass(ends.low - rate * f, ends.high - rate * f, ends.width)
        return mass.sum() - 0.5 * f * f

    everywhere = jnp.asarray(jnp.inf, loc.dtype)
    left, mode, right, _ = log_concave.support(
        log_concave.with_slopes(log_density), -everywhere, everywhere
    )
    # Each factor of the integrand falls over a length 1/rate of its own, a product of many over a
    # shorter one: panels of all sizes between.
    widest = (right - left) / 16.0
    shortest = 1.0 / (jnp.max(jnp.abs(rate)) * (1.0 + math.log(len(loc))))
    narrowest = jnp.minimum(shortest, widest)
    powers = jnp.linspace(0.0, 1.0, NUM_WINDOWS, dtype=loc.dtype)
    widths = narrowest * (widest / narrowest) ** powers
    left, right = left - mode, right - mode
    span = right - left
    distances = jnp.minimum(2.0 * widths, span)
    even = left + span * jnp.linspace(0.0, 1.0, NUM_UNIFORM + 1, dtype=span.dtype)[1:-1]
    inner = jnp.clip(jnp.concatenate([even, left + distances, right - distances]), left, right)
    return mode, jnp.sort(jnp.concatenate([jnp.stack([left, right]), inner]))


def nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> tuple[Array, ...]:
    """The distribution of X given low <= X <= high as a mixture over the factor, for rank one.

    Given the factor the coordinates are independent.

    Returns:
        A point of the region, shape (d,); means, less the point, and variances of the mixture's
        components, shape (n, d); logs of the integrand and weights of the quadrature, shape (n,).
    """
    integrand = integrand_nodes(loc, covariance, low, high)
    mixture = components(integrand.mean, integrand.shifts, covariance, low, high)
    return *mixture, integrand.log_values, integrand.weights
