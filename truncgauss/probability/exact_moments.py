"""Moments of the truncated law to rounding, by the quadratures of the probability."""

import jax.numpy as jnp
from jax import Array

from truncgauss.covariances import LowRank, Markov
from truncgauss.probability.exact import takes_grid
from truncgauss.problem import Problem
from truncgauss.quadrature import bivariate, markov_chain, one_factor, trivariate
from truncgauss.quadrature.two_factors import grid_nodes
from truncgauss.special import standardize, truncated_mean, truncated_variance
from truncgauss.total_moments import Moments, Nodes, total_moments


def exact_moments(row: Problem) -> Moments:
    """Mean and covariance to rounding, by the structure of the covariance as `Exact` sees it."""
    loc, covariance, (low, high) = row.loc, row.covariance, (row.region.low, row.region.high)
    broken = jnp.any(~(low < high))
    # The law on nothing is answered here; integrals over it have no mode.
    low, high = jnp.where(broken, -jnp.inf, low), jnp.where(broken, jnp.inf, high)
    d, errors = covariance.dimension, None
    if isinstance(covariance, Markov) and d > 3:
        point, mean, matrix, *errors = markov_chain.moments(loc, covariance, low, high)
    elif d > 1 and isinstance(covariance, LowRank) and covariance.rank == 1:
        nodes = Nodes(*one_factor.nodes(loc, covariance, low, high))
        point, (mean, matrix) = nodes.point, total_moments(nodes)
    elif takes_grid(covariance):
        nodes, bound = grid_nodes(loc, covariance, low, high)
        point, (mean, matrix) = nodes.point, total_moments(nodes)
        scale = jnp.sqrt(jnp.diagonal(matrix))
        errors = bound * scale, bound * scale[:, None] * scale
    elif d == 2:
        point, mean, matrix = _bivariate(loc, bivariate.regression(covariance), low, high)
    elif d == 3:
        point, mean, matrix = trivariate.moments(loc, covariance, low, high)
    else:
        law = loc, jnp.sqrt(covariance.variances), low, high
        point, mean, matrix = 0.0, truncated_mean(*law), jnp.diag(truncated_variance(*law))
    mean, matrix = (jnp.where(broken, jnp.nan, x) for x in (point + mean, matrix))
    errors = (jnp.zeros_like(mean), jnp.zeros_like(matrix)) if errors is None else errors
    blank = lambda error, value: jnp.where(jnp.isnan(value), jnp.nan, error)
    return Moments(mean, matrix, blank(errors[0], mean), blank(errors[1], matrix))


def _bivariate(loc, form: bivariate.Regression, low, high) -> tuple[Array, Array, Array]:
    """Two coordinates, also where they determine each other."""
    singular = form.residual_scale == 0
    safe = form._replace(residual_scale=jnp.where(singular, 1.0, form.residual_scale))
    point = bivariate.inner_point(loc, safe, low, high)
    _, mean, matrix = bivariate.moments(loc, safe, low, high, point)
    # X2 = loc2 + slope (X1 - loc1): limits on X2 are limits on X1.
    slope = jnp.where(singular & (form.slope != 0), form.slope, 1.0)
    other = standardize(low[1], high[1], loc[1], jnp.abs(slope))
    below = jnp.where(slope < 0, -other.high, other.low) + loc[0]
    above = jnp.where(slope < 0, -other.low, other.high) + loc[0]
    below = jnp.where(form.slope == 0, low[0], jnp.maximum(low[0], below))
    above = jnp.where(form.slope == 0, high[0], jnp.minimum(high[0], above))
    first = loc[0], form.scale, below, above
    line = jnp.stack([jnp.ones_like(form.slope), form.slope])
    on_line = loc + line * (truncated_mean(*first) - loc[0]) - point
    rank_one = truncated_variance(*first) * line[:, None] * line
    return (
        point,
        jnp.where(singular, on_line, mean),
        jnp.where(singular, rank_one, matrix),
    )
