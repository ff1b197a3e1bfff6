"""The truncated law behind two common factors, as a mixture over their grid."""

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.covariances import LowRank
from truncgauss.probability.bivariate import Nodes
from truncgauss.probability.factor_grid import NUM_SIDE, RESOLVED, error_bound, rectangle
from truncgauss.probability.factor_integrand import about, combined, mean_at, solve_plan
from truncgauss.special import standardize, truncated_mean, truncated_variance


def grid_nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> tuple[Nodes, Array]:
    """The law given low <= X <= high for rank two, all of shape (d,), each low below its high.

    Given the factors the coordinates are independent. The second result is 0 where the grid
    resolves the integrand, else about an upper bound of the relative error of its sums.
    """
    fixed = lax.stop_gradient((loc, covariance, low, high))
    plan = solve_plan(*fixed)
    left, right, found = rectangle(about(plan.anchor, *fixed), plan)
    index = jnp.arange(NUM_SIDE) + 0.5
    sides = (left[k] + (right[k] - left[k]) / NUM_SIDE * index for k in range(2))
    grid = jnp.stack(jnp.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    offsets = jnp.matmul(grid.astype(loc.dtype), plan.scale.T, precision="highest")
    heights, _ = about(plan.anchor, loc, covariance, low, high).heights(offsets)
    bound = error_bound(lax.stop_gradient(heights).reshape(NUM_SIDE, NUM_SIDE))
    bound = jnp.where(found, jnp.where(bound <= RESOLVED, 0.0, bound), jnp.inf)
    mean, rest = mean_at(plan.anchor, loc, covariance.cov_factor)
    point = lax.stop_gradient(jnp.clip(mean, low, high))
    near = standardize(low, high, point)
    center = (mean - point) + (combined(covariance.cov_factor, offsets) + rest)
    law = center, jnp.sqrt(covariance.cov_diag), near.low, near.high
    weights = jnp.ones_like(heights)
    return Nodes(point, truncated_mean(*law), truncated_variance(*law), heights, weights), bound
