"""Plans: by sites of expectation propagation, and by a minimax tilt where these do not apply."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.compiling import Compiled, Cost
from truncgauss.arrays.linalg import (
    UNDETERMINED,
    diagonal_of,
    in_full_precision,
    nearly_determined,
    ranks_of,
    ranks_of_root,
    rounding,
    row_norms,
    times_vector,
)
from truncgauss.arrays.pytrees import is_concrete, varying_like
from truncgauss.gaussian.covariances import numbers_of
from truncgauss.gaussian.problem import Problem, over_rows, standardized
from truncgauss.gaussian.regions.region import GaussianLimits, as_linear
from truncgauss.separation.kernel import crossing_rounding
from truncgauss.separation.lattice import folded, lattice_points, open_uniforms
from truncgauss.separation.plan import Plan, arranged, input_rounding, proposal_of
from truncgauss.separation.tilting import saddle
from truncgauss.separation.twisting import sites_for
from truncgauss.separation.weights import log_weights
from truncgauss.special.logspace import log_mean_exp
from truncgauss.special.normal import quick_moments
from truncgauss.special.tails import fixed_interval, log_ndtr, standardize

LEAST_SHARE = 0.1  # the smallest fraction of a site's precision, see `sites_for`
MOST_ADDED = 1.0  # the largest precision that such sites may add, see `plan_with_sites`
LEAST_WEAKER = 1e-3  # the smallest fraction of them that is used
NUM_PILOT = 256  # points of the pilot run
GOLDEN = np.uint32(2654435769)  # the golden section of 2^32, whose multiples are spread evenly
BLOCK = 32  # variables that are ordered between two products of matrices
LARGEST_ROOT = 2**18  # entries; a larger root takes too long to read in every step
# Constraints from which on unoptimised matrix products cost more than their optimisation.
LARGE = 65


def plan_of(limits: GaussianLimits, tilted: bool, twisted: bool, rank: int) -> Plan:
    """The plan for limits on a Gaussian vector of this rank, by the settings of `Separation`."""
    if tilted and twisted and rank == len(limits.low) > 1:
        return plan_with_sites(limits)
    return solve_plan(limits, tilted, rank)


def solve_plan(limits: GaussianLimits, tilted: bool, rank: int) -> Plan:
    """The order by conditional mass and, if `tilted`, the minimax tilt of the first `rank` rows."""
    limits = lax.stop_gradient(limits)
    order, point = smallest_mass_first(limits, rank)
    if not tilted or rank < 2:
        none, unbounded = jnp.zeros_like(point[0]), jnp.full((), jnp.inf, point.dtype)
        plan = Plan(order, jnp.zeros_like(point[:rank]), unbounded, jnp.asarray(not tilted), none)
        return with_dependence(limits, plan)
    low, high, _ = fixed_interval(limits.low, limits.high, limits.loc)
    first = order[:rank]
    inner = limits.reordered(first)
    factor = inner.scale_tril
    tilt = saddle(factor, low[first], high[first], point[:rank])
    force = solve_triangular(factor.T, tilt.point, lower=False)
    rounding = jnp.zeros_like(tilt.bound)
    if rank < len(limits.low):
        rounding = crossing_rounding(*arranged(limits, order, rank), tilt.point)
    rounding = jnp.hypot(rounding, input_rounding(inner, force))
    plan = Plan(order, tilt.tilt, tilt.bound, tilt.converged, rounding)
    return with_dependence(limits, plan)


def with_dependence(limits: GaussianLimits, plan: Plan) -> Plan:
    """The plan with the errors from constraints that others determine, by a pilot.

    Such a constraint may have a residual standard deviation t by rounding, of which the draws take
    no account. With P(t) the probability with its limits further out by t, log P may be off by
    log{P(t) + P(-t)} / 2P(0), and rounding of the limits by a fraction of log P(t) - log P(0). If t
    is that of a variable which was left out, its value, of about (-2 log P)^(1/2) at most, moves
    the limits to one side.

    That a constraint fails at no point of the pilot does not show that it holds: it may cut off
    what lies outside, but not much more than one point of all.
    """
    rank = len(plan.tilt)
    if rank == len(limits.low):
        return plan
    proposal, ordered = proposal_of(limits, plan), limits.reordered(plan.order)
    extra, variances = proposal.extra, diagonal_of(ordered.covariance)[rank:]
    shift = np.arange(1, rank, dtype=np.uint32) * GOLDEN
    bits = folded(lattice_points(NUM_PILOT, rank - 1) + shift[None])
    uniforms = open_uniforms(bits.T, extra.low.dtype)
    eps = float(jnp.finfo(extra.low.dtype).eps)
    deviation = ordered.residual_rounding[rank:]
    factor = proposal.constraints.factor
    if ordered.root is None:
        left = variances - jnp.sum(extra.factor**2, axis=1)
        deviation = jnp.sqrt(jnp.maximum(left, 0.0) + 2.0 * eps * variances)
        below = solve_triangular(factor, ordered.covariance[:rank, rank:], lower=True).T
        dropped = row_norms(below - extra.factor)
    else:
        gain = solve_triangular(factor.T, extra.factor.T, lower=False).T
        dropped = row_norms(ordered.root[rank:] - gain @ ordered.root[:rank])
        deviation = jnp.hypot(deviation, dropped)

    def pilot(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        """The log weights and log P with other limits on the determined constraints."""
        moved = proposal._replace(extra=extra._replace(low=ends[0], high=ends[1]))
        weights, level = log_weights(moved, uniforms)
        return weights + level, log_mean_exp(weights) + level

    step = jnp.array([0.0, 1.0, -1.0], extra.low.dtype)[:, None] * deviation[None]
    without = jnp.where(jnp.eye(len(variances), dtype=bool), jnp.inf, 0.0).astype(step.dtype)
    step = jnp.concatenate([step, without])
    weights, log_probs = lax.map(pilot, (extra.low[None] - step, extra.high[None] + step))
    log_prob, wider, narrower = log_probs[:3]
    bend = jnp.logaddexp(wider, narrower) - math.log(2.0) - log_prob
    known = eps * jnp.sqrt(variances) / jnp.where(deviation > 0, deviation, 1.0)
    error = jnp.hypot(bend, jnp.max(known) * (wider - log_prob))
    # A coefficient that was left out moves the limits by itself times its variable.
    share = jnp.max(dropped / jnp.where(deviation > 0, deviation, 1.0))
    reach = 1.0 + jnp.sqrt(jnp.maximum(-2.0 * log_prob, 0.0))
    moved = share * reach * jnp.expm1(wider - log_prob)
    error = jnp.hypot(error, jnp.where(share > 0, moved, 0.0))
    error = jnp.where(wider == -jnp.inf, 0.0, error)
    a, b, _ = standardize(
        extra.low, extra.high, extra.loc, jnp.sqrt(jnp.maximum(variances, eps**2))
    )
    outside = jnp.exp(jnp.minimum(jnp.logaddexp(log_ndtr(a), log_ndtr(-b)) - log_prob, 0.0))
    seen = jnp.any(weights[3:] > weights[:1] + eps**0.5, axis=1)
    rare = jnp.sum(jnp.where(seen, 0.0, outside))
    return replace(plan, rounding=jnp.hypot(plan.rounding, error), rare=rare)


def plan_with_sites(limits: GaussianLimits) -> Plan:
    """The plan with the sites of expectation propagation, those of high precision first.

    Where sites at `LEAST_SHARE` would add more than `MOST_ADDED` to the precision of an earlier
    variable, which is 1 a priori, they are scaled down to add that: beyond 1 the weights have
    infinite variance along a direction without limits, and their sample variance underestimates
    the error. Where that leaves less than `LEAST_WEAKER` of them, or expectation propagation does
    not converge, all sites have precision 0 and the same forces, which is an exponential tilt. So
    it is for two constraints, of which one variable is drawn: the folded lattice is then so
    accurate that what is left are rare large weights, which no spread of 16 replicates shows.
    """
    limits = lax.stop_gradient(limits)
    sites = sites_for(limits, LEAST_SHARE)
    order = sites.order
    backwards = jnp.tril(limits.reordered(order).scale_tril, -1).T
    force, strong, precision = (x[order] for x in (sites.force, sites.strong, sites.precision))
    added = jnp.max(jnp.square(backwards) @ jnp.where(strong, precision, 0.0))
    weaker = jnp.minimum(1.0, MOST_ADDED / jnp.where(added > 0, added, 1.0))
    ahead = sites.converged & (weaker > LEAST_WEAKER) & (len(order) > 2)
    precision = jnp.where(ahead, jnp.where(strong, weaker, 1.0) * precision, 0.0)
    rounding = jnp.where(ahead, sites.rounding, 0.0)
    chosen = sites._replace(precision=precision, mean=sites.mean[order], force=force)
    twist = replace(chosen.twist(), rounding=rounding)
    tilt = times_vector(backwards, force)
    tilt = jnp.where(ahead | ~jnp.all(jnp.isfinite(tilt)), 0.0, tilt)
    bound = jnp.full((), jnp.inf, tilt.dtype)
    rounding = jnp.hypot(rounding, input_rounding(limits, sites.force))
    return Plan(order, tilt, bound, sites.converged, rounding, twist)


# --- The order of integration ---------------------------------------------------------------------


def smallest_mass_first(limits: GaussianLimits, rank: int | None = None) -> tuple[Array, Array]:
    """The order of increasing conditional mass, which makes the integrand vary least, and a point.

    The order has the variable of the outermost integral in front. The point, inside the region,
    has in that order the conditional means of the truncated standard normal variables. Each step
    takes the variable whose interval has the smallest probability given that the earlier variables
    are at their truncated means. A root of the covariance, where there is one, distinguishes
    conditional standard deviations below 1e-8 from zero. If the rank is less than the number of
    variables, those that are nearly determined come last.

    Reference:
        Gibson, Glasbey and Elston (1994), Monte Carlo evaluation of multivariate normal integrals
        and sensitivity to variate ordering.
    """
    low, high, _ = fixed_interval(limits.low, limits.high, limits.loc)
    covariance_matrix, root, d = limits.covariance, limits.root, len(low)
    if root is not None and root.size <= LARGEST_ROOT:
        rounded = UNDETERMINED**0.5 * limits.residual_rounding
        if rank is not None and rank < d:
            spread = jnp.sqrt(diagonal_of(covariance_matrix))
            rounded = jnp.maximum(rounded, d**0.5 * nearly_determined(spread.dtype) * spread)
        return _smallest_mass_first(root, rounded, low, high)
    num_blocks = -(-d // BLOCK)
    block = -(-d // num_blocks)
    variances = diagonal_of(covariance_matrix)
    floor = UNDETERMINED * rounding(covariance_matrix)

    def step(state: Any, position: Array) -> Any:
        remainder, columns, left, residual, mean = state
        known, scale, chosen, draw = _next(residual, floor, mean, left, low, high)
        column = (remainder[chosen] - columns[:, chosen] @ columns) / scale[chosen]
        left = left & (jnp.arange(d) != chosen)
        column = jnp.where(left & ~known[chosen], column, 0.0)
        columns = lax.dynamic_update_index_in_dim(columns, column, position, 0)
        state = remainder, columns, left, residual - column * column, mean + column * draw
        return state, (chosen, draw)

    def block_step(state: Any, _: None) -> Any:
        remainder, left, residual, mean = state
        columns = varying_like(jnp.zeros((block, d), low.dtype), low)
        state = remainder, columns, left, residual, mean
        (_, columns, left, residual, mean), taken = jax.lax.scan(step, state, jnp.arange(block))
        return (remainder - columns.T @ columns, left, residual, mean), taken

    state = covariance_matrix, jnp.ones(d, bool), variances, jnp.zeros(d, low.dtype)
    state = varying_like(state, low)
    if num_blocks == 1:
        _, (order, point) = block_step(state, None)
        return order, point
    _, (order, point) = jax.lax.scan(block_step, state, None, length=num_blocks)
    return order.ravel()[:d], point.ravel()[:d]


def _smallest_mass_first(
    root: Array, rounded: Array, low: Array, high: Array
) -> tuple[Array, Array]:
    """The same from a root, from which each step projects out the chosen variable.

    Variables of smaller conditional deviations than `rounded`, shape (d,), are determined.
    """
    d = len(low)
    floor = rounded**2

    def step(state: Any, _: None) -> Any:
        root, left, mean = state
        residual = jnp.sum(root * root, axis=1)
        known, scale, chosen, draw = _next(residual, floor, mean, left, low, high)
        direction = root[chosen] / scale[chosen]
        left = left & (jnp.arange(d) != chosen)
        column = jnp.where(left & ~known[chosen], root @ direction, 0.0)
        root = root - column[:, None] * direction[None, :]
        return (root, left, mean + column * draw), (chosen, draw)

    state = root, jnp.ones(d, bool), jnp.zeros(d, low.dtype)
    state = varying_like(state, root, low, high)
    _, (order, point) = jax.lax.scan(step, state, length=d)
    return order, point


def _next(
    residual: Array, floor: Array, mean: Array, left: Array, low: Array, high: Array
) -> tuple[Array, Array, Array, Array]:
    """Flags of the determined variables, conditional scales, the next variable and its mean."""
    known = residual <= floor
    scale = jnp.sqrt(jnp.maximum(residual, floor))
    scale = jnp.where(scale > 0, scale, 1.0)
    cut = quick_moments(fixed_interval(low, high, mean, scale))
    # A determined variable needs no integral, so it comes last.
    chosen = jnp.argmin(jnp.where(left, jnp.where(known, 1.0, cut.log_mass), jnp.inf))
    return known, scale, chosen, cut.mean[chosen]


# --- Plans of all rows ----------------------------------------------------------------------------


def _cost(problem: Problem, *settings: Any) -> Cost:
    return Cost(0, loops=as_linear(problem.region).num_constraints >= LARGE)


@partial(Compiled, cost=_cost, static=(1, 2, 3))
def _plans(problem: Problem, tilted: bool, twisted: bool, rank: int) -> Plan:
    def of_row(row: Problem) -> Plan:
        given = standardized(*row)
        plan = plan_of(given.problem.limits, tilted, twisted, rank)
        return plan.scaled(given.row_unit)

    return over_rows(of_row, problem)


@in_full_precision
def solved_plans(problem: Problem, tilted: bool, twisted: bool, rank: int | None) -> Plan:
    """The plan of every row of a problem; see `Separation` for the settings."""
    rank = full_rank(problem) if rank is None else rank
    if twisted or not is_concrete(problem):
        return _plans(problem, tilted, twisted, rank)
    with jax.enable_x64(True):  # for the minimax tilt; inside of a trace `vmap` would undo it
        plan = _plans(problem, tilted, twisted, rank)
    return jax.tree.map(lambda x: x.astype(jnp.int32) if x.dtype == jnp.int64 else x, plan)


# --- Ranks ----------------------------------------------------------------------------------------


def full_rank(problem: Problem) -> int:
    return min(as_linear(problem.region).num_constraints, problem.covariance.dimension)


def known_rank(problem: Problem) -> int | None:
    """The rank of the constraints' values below the largest possible one, None if not known."""
    if not is_concrete((problem.covariance, problem.region)):
        return None
    rank, _ = largest_ranks(problem)
    return rank if rank < full_rank(problem) else None


def drawing_rank(problem: Problem) -> int:
    """The number of constraints to draw by, so that those determine all others, of every row.

    By a covariance that is singular but for rounding more than its rank may be needed: residual
    variances fall with the order of the constraints, not as fast as eigenvalues.
    """
    full, rank = full_rank(problem), known_rank(problem)
    if rank is None:
        return full
    unknown = rank == 0 or 0 in problem.batch_shape or not is_concrete(problem)
    while not unknown and rank < full:
        with jax.ensure_compile_time_eval():
            left = _undetermined(problem, solved_plans(problem, True, False, rank))
        if (left := int(np.max(left))) == 0:
            break
        rank = min(rank + left, full)
    return rank


@jax.jit
def _undetermined(problem: Problem, plan: Plan) -> Array:
    """The number of constraints of each row that those drawn by do not determine."""

    def of_row(row: Problem, plan: Plan) -> Array:
        limits = standardized(*row).problem.limits
        _, extra = arranged(limits, plan.order, len(plan.tilt))
        return jnp.sum(jnp.isnan(extra.factor).any(axis=1))

    return over_rows(of_row, problem, plan)


def largest_ranks(problem: Problem) -> tuple[int, int]:
    """The largest of `ranks_of_limits` among all rows; full rank without rows."""
    full = full_rank(problem)
    rank, nearly = (int(x.max()) if x.size else full for x in ranks_of_limits(problem))
    return rank, nearly


def ranks_of_limits(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The rank of the covariance of the constraints' values, of each row, or of all that share it.

    And the rank without constraints that others nearly determine, where a root shows them.
    """
    loc, covariance, region = problem
    if region.is_box and covariance.is_matrix:
        matrix = numbers_of(covariance)
        # A coordinate of variance 0 gets variance 1 and no limits.
        still = np.diagonal(matrix, axis1=-2, axis2=-1) == 0
        identity = np.eye(matrix.shape[-1])
        rank = ranks_of(np.where(still[..., None] & (identity > 0), 1.0, matrix))
        return rank, rank
    with jax.ensure_compile_time_eval():
        if not is_concrete(loc):
            problem = problem._replace(loc=jnp.zeros(loc.shape[-1:], loc.dtype))
        matrix, *root = _limited(problem)
    if not root:
        rank = ranks_of(np.asarray(matrix))
        return rank, rank
    return ranks_of_root(*map(np.asarray, root))


@jax.jit
def _limited(problem: Problem) -> tuple[Array, ...]:
    """The covariance of the constraints' values of each row, and its root and sizes if any."""

    def of_row(row: Problem) -> tuple[Array, ...]:
        limits = standardized(*row).problem.limits
        root = () if limits.root is None or limits.size is None else (limits.root, limits.size)
        return limits.covariance, *root

    return over_rows(of_row, problem)
