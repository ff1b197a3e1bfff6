"""Independent noise on top of two common factors: their integral on a grid, in any dimension.

The integrand is log-concave and analytic and falls off on all sides, so that the midpoint rule on a
grid that fits it converges faster than any power of the number of points, and says itself whether
it has. Where the noise is next to none the integrand is a polygon with all but sharp edges: there
the rule does not resolve it, and its stderr says so.
"""

import math

import jax.numpy as jnp
from jax import Array, lax

from truncgauss.covariances import LowRank
from truncgauss.probability.factor_integrand import Integrand, Plan, about, solve_plan
from truncgauss.special import log_sum_exp

NUM_SIDE = 64  # points along each side of the grid
NUM_RAYS = 32
RESOLVED = 1e-6  # disagreement, the square of which is the error
DROP = 42.0  # in logs: what lies below reaches no digit
MAX_STEPS = 80


def log_probability(
    loc: Array, covariance: LowRank, low: Array, high: Array
) -> tuple[Array, Array]:
    """log P(low <= X <= high) for rank two, and its stderr; each low below its high, shape (d,).

    The error of a grid twice as coarse is seen in the differences between the four that make up
    this one; the square of it, about, is the error of this one. stderr is 0 where that is nothing,
    else twice the difference.
    """
    fixed = lax.stop_gradient((loc, covariance, low, high))
    plan = solve_plan(*fixed)
    left, right, found = rectangle(about(plan.anchor, *fixed), plan)
    step = (right - left) / NUM_SIDE
    index = jnp.arange(NUM_SIDE) + 0.5
    sides = (left[k] + step[k] * index for k in range(2))
    grid = jnp.stack(jnp.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    offsets = jnp.matmul(grid.astype(loc.dtype), plan.scale.T, precision="highest")
    heights, level = about(plan.anchor, loc, covariance, low, high).heights(offsets)
    area = step[0] * step[1] * plan.scale[0, 0] * plan.scale[1, 1]
    log_prob = log_sum_exp(heights) + jnp.log(area) + level
    error = disagreement(lax.stop_gradient(heights))
    resolved = error <= max(RESOLVED, 64.0 * float(jnp.finfo(loc.dtype).eps))
    stderr = jnp.where(resolved, 0.0, 2.0 * error)
    return log_prob, jnp.where(found, stderr, jnp.inf)


def disagreement(heights: Array) -> Array:
    """The largest relative difference between sums over every other row, column or diagonal."""
    shares = jnp.exp(heights - jnp.max(heights)).reshape(NUM_SIDE // 2, 2, NUM_SIDE // 2, 2)
    sums = shares.sum((0, 2)) / shares.sum()
    rows, columns = sums[0] - sums[1], sums[:, 0] - sums[:, 1]
    return jnp.max(jnp.abs(jnp.stack([rows.sum(), columns.sum(), rows[0] - rows[1]])))


def rectangle(integrand: Integrand, plan: Plan) -> tuple[Array, Array, Array]:
    """Corners, in units of the plan, of a rectangle outside of which nothing is left; and whether
    it was found.

    Along rays from the anchor the integrand falls but once, since it is log-concave.
    """
    angles = jnp.arange(NUM_RAYS, dtype=plan.anchor.dtype) * (2.0 * math.pi / NUM_RAYS)
    rays = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=-1)
    directions = rays @ plan.scale.T

    def heights(offsets):
        return integrand.log_masses(offsets).sum(-1) + integrand.log_prior(offsets)

    offset = plan.mode - plan.anchor
    at_mode, at_anchor = heights(jnp.stack([offset, jnp.zeros_like(offset)]))
    floor = at_mode - DROP

    def step(state):
        near, far, probe, count = state
        outside = heights(probe[:, None] * directions) < floor
        near, far = jnp.where(outside, near, probe), jnp.where(outside, probe, far)
        return near, far, jnp.where(jnp.isinf(far), 2.0 * probe, 0.5 * (near + far)), count + 1

    def unfinished(state):
        near, far, _, count = state
        return jnp.any(~(far <= 1.05 * near)) & (count < MAX_STEPS)

    start = jnp.zeros(NUM_RAYS, angles.dtype)
    start = (start, start + jnp.inf, start + 4.0, jnp.asarray(0))
    _, far, _, _ = lax.while_loop(unfinished, step, start)
    found = (at_anchor > floor) & jnp.all(jnp.isfinite(far))
    corners = far[:, None] * rays
    return corners.min(0), corners.max(0), found
