"""The choice of a plan by a pilot run: sites of expectation propagation, or a minimax tilt."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.execution.pytrees import varying_like
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.gaussian.linalg import row_norms
from truncgauss.separation.arrangement import arranged, input_rounding
from truncgauss.separation.kernel import crossing_rounding
from truncgauss.separation.lattice import lattice_uniforms
from truncgauss.separation.ordering import smallest_mass_first
from truncgauss.separation.plan import Plan, proposal_of
from truncgauss.separation.tilting import saddle
from truncgauss.separation.twisting import Twist, twist_of
from truncgauss.separation.weights import log_weights
from truncgauss.special import effective_sample_size, log_mean_exp, log_ndtr, standardize

LEAST_SHARE = 0.1  # the smallest fraction of a site's precision, see `twist_of`
MOST_ADDED = 1.0  # the largest precision that sites at that fraction may add, see `twist_of`
NUM_PILOT = 128  # points of the pilot run
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


def solve_plan(limits: GaussianLimits, tilted: bool, rank: int) -> Plan:
    """The order by conditional mass and, if `tilted`, the minimax tilt of the first `rank` rows."""
    limits = lax.stop_gradient(limits)
    low, high, _ = standardize(limits.low, limits.high, limits.loc)
    order, point = smallest_mass_first(limits, rank)
    zero = jnp.zeros(rank, low.dtype)
    if not tilted or rank < 2:
        unbounded = jnp.full((), jnp.inf, low.dtype)
        plan = Plan(order, zero, unbounded, jnp.asarray(not tilted), jnp.zeros((), low.dtype))
        return with_dependence(limits, plan)
    first = order[:rank]
    inner = limits.reordered(first)
    factor = inner.scale_tril
    tilt = saddle(factor, low[first], high[first], point[:rank])
    force = solve_triangular(factor.T, tilt.point, lower=False)
    rounding = input_rounding(inner, force)
    if rank < limits.num_constraints:
        crossing = crossing_rounding(*arranged(limits, order, rank), tilt.point)
        rounding = jnp.hypot(rounding, crossing)
    return with_dependence(limits, Plan(order, tilt.tilt, tilt.bound, tilt.converged, rounding))


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
    extra, variances = proposal.extra, jnp.diagonal(ordered.covariance)[rank:]
    uniforms = lattice_uniforms(jax.random.key(0)[None], NUM_PILOT, rank - 1, extra.low.dtype)
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


def twisted_plan(limits: GaussianLimits) -> tuple[Plan, Array, Array]:
    """The plan with Gaussian sites, whether they may be used, and their height (see `SiteFit`).

    The variables stay in their natural order, those without limits last. With sites it is as good
    as other orders, and much better in Markov chains.
    """
    low, high = lax.stop_gradient(limits[:2])
    order = jnp.argsort(jnp.isinf(low) & jnp.isinf(high), stable=True)
    sites = twist_of(lax.stop_gradient(limits).reordered(order), LEAST_SHARE, MOST_ADDED)
    none = jnp.all(jnp.isinf(low) & jnp.isinf(high))
    bound = jnp.full((), jnp.inf, low.dtype)
    tilt = jnp.zeros_like(limits.loc)
    plan = Plan(order, tilt, bound, sites.converged | none, sites.twist.rounding, sites.twist)
    return plan, sites.usable | none, sites.height


class Trial(NamedTuple):
    """A plan and the effective fraction of its pilot's points; -1 where it may not be used."""

    plan: Plan
    share: Array


def with_sites(limits: GaussianLimits) -> Trial:
    """The plan with Gaussian sites."""
    plan, usable, height = twisted_plan(limits)
    return Trial(plan, jnp.where(usable, pilot_share(limits, plan, height), -1.0))


def or_tilted(limits: GaussianLimits, best: Trial) -> Trial:
    """The minimax tilt where its effective fraction is larger than the best so far, else that.

    Where the best so far is above `GOOD_SHARE` it is kept.
    """
    tilted = replace(solve_plan(limits, True, len(limits.loc)), twist=no_sites(limits))
    share = jnp.where(best.share > GOOD_SHARE, -1.0, pilot_share(limits, tilted, NO_HEIGHT))
    better = share > best.share
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), Trial(tilted, share), best)


def no_sites(limits: GaussianLimits) -> Twist:
    """Sites of precision 0."""
    nothing = jnp.zeros_like(limits.loc)
    return Twist(nothing, nothing, nothing[0])


def chosen_plan(limits: GaussianLimits) -> Plan:
    """The plan with sites or with a minimax tilt, whichever has the larger effective fraction.

    It is `or_tilted(limits, with_sites(limits))` as one program: a loop in which the pilot is
    compiled once, and the tilt is solved only where the sites are unusable or below `GOOD_SHARE`.
    """
    limits = lax.stop_gradient(limits)
    m, dtype = len(limits.loc), limits.loc.dtype
    nothing = jnp.zeros(m, dtype)
    # Any plan with a pilot is better than this one.
    none = jnp.full((), jnp.inf, dtype), jnp.asarray(False), nothing[0], no_sites(limits)
    start = Trial(Plan(jnp.arange(m), nothing, *none), jnp.full((), -2.0, dtype))
    start = varying_like(start, limits)

    def ahead(best: Trial) -> tuple[Plan, Array, Array]:
        return varying_like(twisted_plan(limits), limits)

    def tilted(best: Trial) -> tuple[Plan, Array, Array]:
        def tilt() -> Plan:
            plan = replace(solve_plan(limits, True, m), twist=start.plan.twist)
            return varying_like(plan, limits)

        plan = lax.cond(best.share > GOOD_SHARE, lambda: best.plan, tilt)
        always = jnp.asarray(True), jnp.asarray(NO_HEIGHT, dtype)
        return plan, *varying_like(always, limits)

    def attempt(best: Trial, index: Array) -> tuple[Trial, None]:
        plan, usable, height = lax.cond(index == 0, ahead, tilted, best)
        trial = Trial(plan, jnp.where(usable, pilot_share(limits, plan, height), -1.0))
        better = trial.share > best.share
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), trial, best), None

    best, _ = lax.scan(attempt, start, jnp.arange(2))
    return best.plan


def pilot_share(limits: GaussianLimits, plan: Plan, height: Array | float) -> Array:
    """The effective fraction of the pilot's points under a plan; -1 where it cannot be trusted.

    That is where a weight is NaN, or where log P differs from a known height by more than the logs
    of volumes can, or exceeds the plan's bound. Draws that have lost their digits may have equal
    but wrong weights.
    """
    proposal = proposal_of(limits, plan)
    keys = jax.random.key(0)[None]
    uniforms = lattice_uniforms(keys, NUM_PILOT, len(plan.tilt) - 1, plan.tilt.dtype)
    weights, level = log_weights(proposal, uniforms)
    share = effective_sample_size(weights) / NUM_PILOT
    log_prob = level + log_mean_exp(weights)
    gap = jnp.abs(log_prob - height)
    implausible = gap > MOST_VOLUME * len(plan.order) + 0.5 * jnp.abs(height)
    # No weight exceeds the bound, but for rounding.
    slack = float(jnp.finfo(level.dtype).eps) ** 0.5 * (1.0 + jnp.abs(plan.bound))
    implausible |= log_prob > plan.bound + slack
    return jnp.where(jnp.isnan(share) | implausible, -1.0, share)
