"""The choice of a plan by a pilot run: sites of expectation propagation, or a minimax tilt."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.execution.pytrees import varying_like
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import diagonal_of, row_norms
from truncgauss.separation.arrangement import arranged, input_rounding
from truncgauss.separation.kernel import Constraints, crossing_rounding
from truncgauss.separation.lattice import pilot_uniforms
from truncgauss.separation.ordering import smallest_mass_first
from truncgauss.separation.plan import Plan, proposal_from, proposal_of
from truncgauss.separation.tilting import saddle
from truncgauss.separation.twisting import Twist, sites_for
from truncgauss.separation.weights import log_weights
from truncgauss.special import log_mean_exp, log_ndtr, standardize
from truncgauss.special.normal import fixed_interval

LEAST_SHARE = 0.1  # the smallest fraction of a site's precision, see `sites_for`
MOST_ADDED = 1.0  # the largest precision that sites at that fraction may add, see `sites_for`
NUM_PILOT = 256  # points of the pilot run
NO_HEIGHT = float("nan")  # unknown: every comparison with it is false
MOST_VOLUME = 50.0  # the log of a volume, for each constraint
GOOD_SHARE = 0.8  # with a larger effective fraction of these no other plan is tried


def plan_of(limits: GaussianLimits, tilted: bool, twisted: bool, rank: int) -> Plan:
    """The plan for limits on a Gaussian vector of this rank, by the settings of `Separation`."""
    if tilted and twisted and looks_ahead(rank, limits.num_constraints):
        return chosen_plan(limits)
    return solve_plan(limits, tilted, rank)


def looks_ahead(rank: int, num_constraints: int) -> bool:
    """Whether sites apply: to more than one constraint on a nonsingular vector."""
    return rank == num_constraints > 1


class Proposed(NamedTuple):
    """A plan whose rounding leaves out that of the inputs, and by what it is judged.

    Attributes:
        plan: the plan of the first r variables.
        force: derivative of log P in their means, in the order of the plan, shape (r,).
        factor: the lower-triangular factor of their covariance, shape (r, r).
        usable: whether it may be used.
        height: see `SiteFit`; NaN if unknown.
    """

    plan: Plan
    force: Array
    factor: Array
    usable: Array
    height: Array


def solve_plan(limits: GaussianLimits, tilted: bool, rank: int) -> Plan:
    """The order by conditional mass and, if `tilted`, the minimax tilt of the first `rank` rows."""
    limits = lax.stop_gradient(limits)
    if tilted and rank >= 2:
        attempt = tilted_attempt(limits, rank)
        return with_dependence(limits, with_rounding(limits, attempt.plan, attempt.force))
    order, point = smallest_mass_first(limits, rank)
    none, unbounded = jnp.zeros_like(point[0]), jnp.full((), jnp.inf, point.dtype)
    plan = Plan(order, jnp.zeros_like(point[:rank]), unbounded, jnp.asarray(not tilted), none)
    return with_dependence(limits, plan)


def tilted_attempt(limits: GaussianLimits, rank: int) -> Proposed:
    """The order by conditional mass, and the minimax tilt of the first `rank` rows."""
    low, high, _ = fixed_interval(limits.low, limits.high, limits.loc)
    order, point = smallest_mass_first(limits, rank)
    first = order[:rank]
    factor = limits.reordered(first).scale_tril
    tilt = saddle(factor, low[first], high[first], point[:rank])
    force = solve_triangular(factor.T, tilt.point, lower=False)
    rounding = jnp.zeros_like(tilt.bound)
    if rank < limits.num_constraints:
        rounding = crossing_rounding(*arranged(limits, order, rank), tilt.point)
    plan = Plan(order, tilt.tilt, tilt.bound, tilt.converged, rounding)
    return Proposed(plan, force, factor, jnp.asarray(True), jnp.asarray(NO_HEIGHT, point.dtype))


def with_rounding(limits: GaussianLimits, plan: Plan, force: Array) -> Plan:
    """The plan with the standard error of log P from the rounding of the inputs."""
    inner = limits.reordered(plan.order[: len(force)])
    return replace(plan, rounding=jnp.hypot(plan.rounding, input_rounding(inner, force)))


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


def twisted_attempt(limits: GaussianLimits) -> Proposed:
    """The plan with Gaussian sites.

    The variables stay in their natural order, those without limits last. With sites it is as good
    as other orders, and much better in Markov chains.
    """
    low, high = limits[:2]
    unlimited = jnp.isinf(low) & jnp.isinf(high)
    order = jnp.argsort(unlimited, stable=True)
    sites = sites_for(limits.reordered(order), LEAST_SHARE, MOST_ADDED)
    none = jnp.all(unlimited)
    bound = jnp.full((), jnp.inf, low.dtype)
    tilt, rounding = jnp.zeros_like(limits.loc), sites.twist.rounding
    plan = Plan(order, tilt, bound, sites.converged | none, rounding, sites.twist)
    return Proposed(plan, sites.force, sites.factor, sites.usable | none, sites.height)


class Trial(NamedTuple):
    """A plan and the effective fraction of its pilot's points; -1 where it may not be used."""

    plan: Plan
    share: Array


def with_sites(limits: GaussianLimits) -> Trial:
    """The plan with Gaussian sites."""
    limits = lax.stop_gradient(limits)
    attempt = twisted_attempt(limits)
    plan = with_rounding(limits, attempt.plan, attempt.force)
    return Trial(plan, pilot_share(limits, attempt))


def or_tilted(limits: GaussianLimits, best: Trial) -> Trial:
    """The minimax tilt where its effective fraction is larger than the best so far, else that.

    Where the best so far is above `GOOD_SHARE` it is kept.
    """
    limits = lax.stop_gradient(limits)
    attempt = without_sites(limits)
    plan = with_rounding(limits, attempt.plan, attempt.force)
    share = jnp.where(best.share > GOOD_SHARE, -1.0, pilot_share(limits, attempt))
    return better(Trial(plan, share), best)


def better(trial: Any, best: Any) -> Any:
    """The one of larger `share` of two alike."""
    return lax.cond(trial.share > best.share, lambda: trial, lambda: best)


def without_sites(limits: GaussianLimits) -> Proposed:
    """The plan with the minimax tilt, and sites of precision 0."""
    attempt, nothing = tilted_attempt(limits, len(limits.loc)), jnp.zeros_like(limits.loc)
    plan = replace(attempt.plan, twist=Twist(nothing, nothing, nothing[0]))
    return attempt._replace(plan=plan)


class Tried(NamedTuple):
    """The best attempt so far, and the effective fraction of its pilot's points."""

    attempt: Proposed
    share: Array


def chosen_plan(limits: GaussianLimits) -> Plan:
    """The plan with sites or with a minimax tilt, whichever has the larger effective fraction.

    It is `or_tilted(limits, with_sites(limits))` as one program: a loop in which the pilot is
    compiled once, and the tilt is solved only where the sites are unusable or below `GOOD_SHARE`.
    """
    limits = lax.stop_gradient(limits)
    # Any plan with a pilot is better than this one.
    none = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(without_sites, limits)
    )
    start = varying_like(Tried(none, jnp.full((), -2.0, limits.loc.dtype)), limits)

    def ahead(best: Tried) -> Proposed:
        return varying_like(twisted_attempt(limits), limits)

    def tilted(best: Tried) -> Proposed:
        good, solve = best.share > GOOD_SHARE, lambda: varying_like(without_sites(limits), limits)
        return lax.cond(good, lambda: best.attempt, solve)

    def attempted(best: Tried, index: Array) -> tuple[Tried, None]:
        attempt = lax.cond(index == 0, ahead, tilted, best)
        return better(Tried(attempt, pilot_share(limits, attempt)), best), None

    best, _ = lax.scan(attempted, start, jnp.arange(2))
    return with_rounding(limits, best.attempt.plan, best.attempt.force)


def pilot_share(limits: GaussianLimits, attempt: Proposed) -> Array:
    """The effective fraction of the pilot's points under a plan; -1 where it cannot be trusted.

    That is where it may not be used, where a weight is NaN, or where log P differs from a known
    height by more than the logs of volumes can, or exceeds the plan's bound. Draws that have lost
    their digits may have equal but wrong weights.
    """
    plan, height = attempt.plan, attempt.height
    low, high, loc = (x[plan.order] for x in limits[:3])
    constraints = Constraints(low, high, loc, attempt.factor)
    proposal = proposal_from(plan, constraints, jax.tree.map(lambda x: x[:0], constraints))
    uniforms = pilot_uniforms(NUM_PILOT, len(plan.tilt) - 1, plan.tilt.dtype)
    logs, level = log_weights(proposal, uniforms)
    weights = jnp.exp(logs)  # of which the largest is 1
    total = jnp.sum(weights)
    share = total * total / (jnp.sum(weights * weights) * NUM_PILOT)
    log_prob = level + jnp.log(total / NUM_PILOT)
    gap = jnp.abs(log_prob - height)
    implausible = gap > MOST_VOLUME * len(plan.order) + 0.5 * jnp.abs(height)
    # No weight exceeds the bound, but for rounding.
    slack = float(jnp.finfo(level.dtype).eps) ** 0.5 * (1.0 + jnp.abs(plan.bound))
    implausible |= log_prob > plan.bound + slack
    return jnp.where(jnp.isnan(share) | implausible | ~attempt.usable, -1.0, share)
