"""Plans: by sites of expectation propagation, and by a minimax tilt where these do not apply."""

import math
from dataclasses import replace

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import diagonal_of, row_norms, times_vector
from truncgauss.separation.arrangement import arranged, input_rounding
from truncgauss.separation.kernel import crossing_rounding
from truncgauss.separation.lattice import pilot_uniforms
from truncgauss.separation.ordering import smallest_mass_first
from truncgauss.separation.plan import Plan, proposal_of
from truncgauss.separation.tilting import saddle
from truncgauss.separation.twisting import sites_for
from truncgauss.separation.weights import log_weights
from truncgauss.special import log_mean_exp, log_ndtr, standardize
from truncgauss.special.normal import fixed_interval

LEAST_SHARE = 0.1  # the smallest fraction of a site's precision, see `sites_for`
MOST_ADDED = 1.0  # the largest precision that such sites may add, see `plan_with_sites`
LEAST_WEAKER = 1e-3  # the smallest fraction of them that is used
NUM_PILOT = 256  # points of the pilot run


def plan_of(limits: GaussianLimits, tilted: bool, twisted: bool, rank: int) -> Plan:
    """The plan for limits on a Gaussian vector of this rank, by the settings of `Separation`."""
    if tilted and twisted and rank == limits.num_constraints > 1:
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
    if rank < limits.num_constraints:
        rounding = crossing_rounding(*arranged(limits, order, rank), tilt.point)
    rounding = jnp.hypot(rounding, input_rounding(inner, force))
    plan = Plan(order, tilt.tilt, tilt.bound, tilt.converged, rounding)
    return with_dependence(limits, plan)


def with_dependence(limits: GaussianLimits, plan: Plan) -> Plan:
    """The plan with the errors from constraints that others determine, by a pilot.

    Such a constraint may have a residual standard deviation t by rounding, of which the draws take
    no account. With P(t) the probability with its limits further out by t, log P may be off by
    log{P(t) + P(-t)} / 2P(0), and rounding of the limits by a fraction of log P(t) - log P(0).

    That a constraint fails at no point of the pilot does not show that it holds: it may cut off
    what lies outside, but not much more than one point of all.
    """
    rank = len(plan.tilt)
    if rank == limits.num_constraints:
        return plan
    proposal, ordered = proposal_of(limits, plan), limits.reordered(plan.order)
    extra, variances = proposal.extra, diagonal_of(ordered.covariance)[rank:]
    uniforms = pilot_uniforms(NUM_PILOT, rank - 1, extra.low.dtype)
    eps = float(jnp.finfo(extra.low.dtype).eps)
    deviation = ordered.residual_rounding[rank:]
    if ordered.root is None:
        left = variances - jnp.sum(extra.factor**2, axis=1)
        deviation = jnp.sqrt(jnp.maximum(left, 0.0) + 2.0 * eps * variances)
    else:
        gain = solve_triangular(proposal.constraints.factor.T, extra.factor.T, lower=False).T
        left = ordered.root[rank:] - gain @ ordered.root[:rank]
        deviation = jnp.hypot(deviation, row_norms(left))

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
