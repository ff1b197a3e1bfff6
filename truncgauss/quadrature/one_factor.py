r"""Box probabilities with one common factor and independent noise: one integral, for any d.

With X_j = loc_j + w_j F + s_j Y_j, F and Y_j standard normal,

.. math:: P = \int \phi(f) \prod_j \left[\Phi\left(\frac{h_j - m_j(f)}{s_j}\right)
    - \Phi\left(\frac{l_j - m_j(f)}{s_j}\right)\right] df, \qquad m_j(f) = \mu_j + w_j f

References:
    Dunnett and Sobel (1955), Approximations to the probability integral and certain percentage
    points of a multivariate analogue of Student's t-distribution.
    Tong (1990), The Multivariate Normal Distribution, chapter 8.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.gaussian.covariances import LowRank
from truncgauss.gaussian.total_moments import Nodes
from truncgauss.quadrature import log_concave
from truncgauss.quadrature.double_double import line
from truncgauss.quadrature.factor_integrand import components
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import LOG_SQRT_2PI, standardize

NUM_NODES = 16
NUM_PANELS = 27
NUM_CELLS = 24  # from either end, by which the panels are laid out
FAR = 9.0  # standard deviations from a limit, beyond which its factor is 0 or 1 to 1e-19
# The most scales in a panel that its nodes resolve to rounding. Of 150 random stacks of up to 100
# limits of scales from 1e-8 to 1/2, at one end, none with more in a panel was off by over 2e-7.
MOST_SCALES = 6.0
COARSE = 1e-6


class FactorNodes(NamedTuple):
    """The integrand at the quadrature nodes of the factor.

    Attributes:
        mean: conditional mean of X at the mode, shape (d,).
        shifts: the conditional means at the nodes less `mean`, shape (n, d).
        log_values: logs of the integrand, less `constant`, shape (n,).
        constant: log density of the factor at the mode, times sqrt(2 pi).
        weights: of the quadrature, shape (n,).
        error: a bound of the relative error of the integral, 0 where it is rounding.
    """

    mean: Array
    shifts: Array
    log_values: Array
    constant: Array
    weights: Array
    error: Array


def integrand_nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> FactorNodes:
    loading, scale = covariance.cov_factor[:, 0], jnp.sqrt(covariance.cov_diag)
    anchor, breakpoints, scales = plan(*jax.lax.stop_gradient((loc, loading, scale, low, high)))
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
    error = jnp.where(scales > MOST_SCALES, COARSE, jnp.zeros_like(scales))
    return FactorNodes(mean, shifts, log_values, -0.5 * anchor * anchor, weights, error)


def log_probability(
    loc: Array, covariance: LowRank, low: Array, high: Array
) -> tuple[Array, Array]:
    """log P(low <= X <= high) for rank one, all of shape (d,), each low below its high, and a bound
    of its error."""
    nodes = integrand_nodes(loc, covariance, low, high)
    log_sum = log_concave.log_weighted_sum(nodes.log_values, nodes.weights)
    return nodes.constant - LOG_SQRT_2PI + log_sum, nodes.error


def plan(
    loc: Array, loading: Array, scale: Array, low: Array, high: Array
) -> tuple[Array, Array, Array]:
    """The mode of the integrand, breakpoints as offsets from it, and the scales in each panel.

    The factor of a limit changes within a few times 1/rate of where the limit is. Since the
    integrand is log-concave, one that changes fast is near an end of the support, or does not
    matter; but another, of a scale between that and the support, may lie before it. In each of some
    cells, which grow from either end, the scale is that of the fastest factor that changes there,
    less where many do. All panels have as many of these scales.
    """
    ends = standardize(low, high, loc, scale)
    rate = loading / scale

    def log_density(f: Array) -> Array:
        mass = log_interval_mass(ends.low - rate * f, ends.high - rate * f, ends.width)
        return mass.sum() - 0.5 * f * f

    everywhere = jnp.asarray(jnp.inf, loc.dtype)
    left, mode, right, _ = log_concave.support(
        log_concave.with_slopes(log_density), -everywhere, everywhere
    )
    span, rates = right - left, jnp.abs(rate)
    narrowest = jnp.minimum(1.0 / jnp.max(rates), 0.25 * span)
    powers = jnp.linspace(0.0, 1.0, NUM_CELLS, dtype=loc.dtype)
    distances = narrowest * (0.5 * span / narrowest) ** powers
    lengths = jnp.diff(distances, prepend=jnp.zeros_like(distances[:1]))
    lengths = jnp.concatenate([lengths, lengths[::-1]])
    middles = jnp.concatenate([distances, span - distances[::-1]])
    middles = left + middles + 0.5 * jnp.concatenate([-lengths[:NUM_CELLS], lengths[NUM_CELLS:]])

    def density(f: Array, length: Array) -> Array:
        """The scales in a unit of the factor, in a cell about f."""
        near = FAR + 0.5 * length * rates
        low, high = (jnp.abs(end - rate * f) < near for end in (ends.low, ends.high))
        changing = low | high
        many = jnp.sqrt(1.0 + 2.0 * jnp.log(jnp.maximum(jnp.sum(changing, dtype=loc.dtype), 1.0)))
        return jnp.hypot(1.0, many * jnp.max(jnp.where(changing, rates, 0.0)))

    costs = jax.vmap(density)(middles, lengths) * lengths
    before = jnp.cumsum(costs) - costs
    cost = jnp.sum(costs)
    parts = cost * jnp.linspace(0.0, 1.0, NUM_PANELS + 1, dtype=loc.dtype)
    covered = jnp.clip(parts[:, None] - before[None], 0.0, costs[None])
    steps = jnp.sum(covered * (lengths / costs)[None], axis=1)
    return mode, (left - mode) + jnp.minimum(steps, span), cost / NUM_PANELS


def nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> tuple[Nodes, Array]:
    """The distribution of X given low <= X <= high as a mixture over the factor, for rank one, and
    a bound of the relative error of integrals by it.

    Given the factor the coordinates are independent.
    """
    integrand = integrand_nodes(loc, covariance, low, high)
    mixture = components(integrand.mean, integrand.shifts, covariance, low, high)
    return Nodes(*mixture, integrand.log_values, integrand.weights), integrand.error
