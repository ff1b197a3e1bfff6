"""Box probabilities with two common factors and independent noise: a grid over the factors.

The integrand is log-concave and analytic and decays on all sides, so that the midpoint rule on a
grid that fits it converges faster than any power of the number of points, and coarser grids show
whether it has converged. With very little noise the integrand is nearly the indicator of a polygon:
the rule does not resolve its edges, and its stderr says so.

References:
    Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.pytrees import varying_like
from truncgauss.gaussian.covariances import LowRank
from truncgauss.gaussian.total_moments import Nodes
from truncgauss.quadrature.factor_integrand import (
    FactorPlan,
    Integrand,
    about,
    combined,
    components,
    mean_at,
    solve_plan,
)
from truncgauss.special.logspace import log_sum_exp

NUM_SIDE = 96  # points along each side of the grid, a multiple of 4
NUM_RAYS = 32
RESOLVED = 1e-8  # where the rule converges its error is far below this estimate of it
DROP = 42.0  # in logs: what lies below does not reach the last digit
MAX_STEPS = 80


def log_probability(
    loc: Array, covariance: LowRank, low: Array, high: Array
) -> tuple[Array, Array]:
    """log P(low <= X <= high) for rank two, and its stderr; each low below its high, shape (d,).

    stderr is 0 where the rule has converged, else an approximate upper bound of its error.
    """
    plan, step, _, heights, level, bound = on_grid(loc, covariance, low, high)
    area = step[0] * step[1] * plan.scale[0, 0] * plan.scale[1, 1]
    return log_sum_exp(heights) + jnp.log(area) + level, bound


def on_grid(loc: Array, covariance: LowRank, low: Array, high: Array) -> tuple[Any, ...]:
    """The integrand on the grid.

    Returns:
        The plan; the spacing, shape (2,), in its units; offsets of the points from its anchor,
        shape (n, 2); logs of the integrand there less a level, and the level, see
        `Integrand.heights`; and the error of `error_bound`, 0 where the rule has converged.
    """
    fixed = lax.stop_gradient((loc, covariance, low, high))
    plan = solve_plan(*fixed)
    left, right, enclosed = rectangle(about(plan.anchor, *fixed), plan)
    step = (right - left) / NUM_SIDE
    index = jnp.arange(NUM_SIDE, dtype=loc.dtype) + 0.5
    sides = (left[k] + step[k] * index for k in range(2))
    grid = jnp.stack(jnp.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    offsets = jnp.matmul(grid.astype(loc.dtype), plan.scale.T, precision="highest")
    heights, level = about(plan.anchor, loc, covariance, low, high).heights(offsets)
    bound = error_bound(lax.stop_gradient(heights).reshape(NUM_SIDE, NUM_SIDE))
    bound = jnp.where(enclosed, jnp.where(bound <= RESOLVED, 0.0, bound), jnp.inf)
    return plan, step, offsets, heights, level, bound


def error_bound(heights: Array) -> Array:
    """An approximate upper bound of the rule's relative error, from its coarser subgrids.

    The subgrids of twice the spacing differ by their error, and those of four times the spacing by
    theirs. Where the rule converges, the first difference is about the square of the second, and
    the rule's error about the square of the first. Across a sharp edge all three are of one size,
    and any one of them may be small by chance; the geometric mean of two rarely is.
    """
    coarse = disagreement(heights)
    parts = [heights[i::2, j::2] for i in range(2) for j in range(2)]
    coarser = jnp.max(jnp.stack([disagreement(part) for part in parts]))
    rounding = 64.0 * float(jnp.finfo(heights.dtype).eps)
    return 4.0 * jnp.sqrt(jnp.maximum(coarse - rounding, 0.0) * coarser)


def disagreement(heights: Array) -> Array:
    """The largest relative difference between sums over every other row, column or diagonal."""
    half = len(heights) // 2
    values = jnp.exp(heights - jnp.max(heights)).reshape(half, 2, half, 2)
    sums = values.sum((0, 2)) / values.sum()
    rows, columns = sums[0] - sums[1], sums[:, 0] - sums[:, 1]
    return jnp.max(jnp.abs(jnp.stack([rows.sum(), columns.sum(), rows[0] - rows[1]])))


def rectangle(integrand: Integrand, plan: FactorPlan) -> tuple[Array, Array, Array]:
    """Corners of a rectangle that holds the integrand to rounding, and whether there is one.

    In units of the plan's scale. Along each ray from the anchor the integrand falls below a level
    only once, since it is log-concave: bisection finds where.
    """
    State = tuple[Array, Array, Array, Array]
    angles = jnp.arange(NUM_RAYS, dtype=plan.anchor.dtype) * (2.0 * math.pi / NUM_RAYS)
    rays = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    directions = rays @ plan.scale.T

    def heights(offsets: Array) -> Array:
        return integrand.log_masses(offsets).sum(-1) + integrand.log_prior(offsets)

    offset = plan.mode - plan.anchor
    at_mode, at_anchor = heights(jnp.stack([offset, jnp.zeros_like(offset)]))
    floor = at_mode - DROP

    def step(state: State) -> State:
        inner, outer, probe, count = state
        outside = heights(probe[:, None] * directions) < floor
        inner, outer = jnp.where(outside, inner, probe), jnp.where(outside, probe, outer)
        probe = jnp.where(jnp.isinf(outer), 2.0 * probe, 0.5 * (inner + outer))
        return inner, outer, probe, count + 1

    def unfinished(state: State) -> Array:
        inner, outer, _, count = state
        return jnp.any(~(outer <= 1.05 * inner)) & (count < MAX_STEPS)

    none = jnp.zeros(NUM_RAYS, angles.dtype)
    start = varying_like((none, none + jnp.inf, none + 4.0, jnp.asarray(0)), floor)
    _, outer, _, _ = lax.while_loop(unfinished, step, start)
    enclosed = (at_anchor > floor) & jnp.all(jnp.isfinite(outer))
    corners = outer[:, None] * rays
    return corners.min(0), corners.max(0), enclosed


def grid_nodes(loc: Array, covariance: LowRank, low: Array, high: Array) -> tuple[Nodes, Array]:
    """The distribution of X given low <= X <= high as a mixture over two factors, and an error.

    All of shape (d,), each low below its high. Given the factors the coordinates are independent.
    The error is 0 where the grid resolves the integrand, else an approximate upper bound of the
    relative error of its sums.
    """
    plan, _, offsets, heights, _, bound = on_grid(loc, covariance, low, high)
    mean, rest = mean_at(plan.anchor, loc, covariance.cov_factor)
    shifts = combined(covariance.cov_factor, offsets) + rest[None]
    mixture = components(mean, shifts, covariance, low, high)
    return Nodes(*mixture, heights, jnp.ones_like(heights)), bound
