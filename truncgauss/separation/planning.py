"""The choice of a plan: sites of expectation propagation or a minimax tilt, by a small pilot."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.limits import GaussianLimits
from truncgauss.points import lattice_uniforms
from truncgauss.pytrees import varying_like
from truncgauss.separation.arrangement import input_rounding
from truncgauss.separation.ordering import smallest_mass_first
from truncgauss.separation.plan import Plan, proposal_of
from truncgauss.separation.tilting import saddle
from truncgauss.separation.twisting import Twist, twist_of
from truncgauss.separation.weights import log_weights
from truncgauss.special import effective_sample_size, log_mean_exp, standardize

LEAST_SHARE = 0.1  # of a site's precision
MOST_ADDED = 1.0  # by sites held at that share, to a precision of 1
NUM_PILOT = 128  # points
NO_HEIGHT = float("nan")  # not known: no comparison holds
MOST_VOLUME = 50.0  # the log of a volume, of each constraint
GOOD_SHARE = 0.8  # of effective points in a pilot: no other plan is tried


def plan_of(limits: GaussianLimits, tilted: bool, twisted: bool, rank: int) -> Plan:
    """The plan for limits on a Gaussian vector of a rank, as the settings of `Separation` ask."""
    if tilted and twisted and looks_ahead(rank, limits.num_constraints):
        return chosen_plan(limits)
    return solve_plan(limits, tilted, rank)


def looks_ahead(rank: int, num_constraints: int) -> bool:
    """Whether sites apply: to more than one constraint, none of which the others determine."""
    return rank == num_constraints > 1


def solve_plan(limits: GaussianLimits, tilted: bool, rank: int) -> Plan:
    """The order of least variation and, if wanted, the minimax tilt of the first `rank` rows."""
    limits = lax.stop_gradient(limits)
    low, high, _ = standardize(limits.low, limits.high, limits.loc)
    order, point = smallest_mass_first(limits)
    zero = jnp.zeros(rank, low.dtype)
    nothing = jnp.full((), jnp.inf, low.dtype), jnp.asarray(not tilted), jnp.asarray(0)
    if not tilted or rank < 2:
        return Plan(order, zero, *nothing[:2], zero[0])
    first = order[:rank]
    inner = limits.reordered(first)
    factor = inner.scale_tril
    tilt = saddle(factor, low[first], high[first], point[:rank])
    force = solve_triangular(factor.T, tilt.point, lower=False)
    return Plan(order, tilt.tilt, tilt.bound, tilt.converged, input_rounding(inner, force))


def twisted_plan(limits: GaussianLimits) -> tuple[Plan, Array, Array]:
    """Sites in the natural order, what has no limits last; whether they may be used; their height.

    The natural order is as good as others once the draws look ahead, and much better in chains.
    """
    low, high = lax.stop_gradient(limits[:2])
    order = jnp.argsort(jnp.isinf(low) & jnp.isinf(high), stable=True)
    found = twist_of(lax.stop_gradient(limits).reordered(order), LEAST_SHARE, MOST_ADDED)
    none = jnp.all(jnp.isinf(low) & jnp.isinf(high))
    bound = jnp.full((), jnp.inf, low.dtype)
    tilt = jnp.zeros_like(limits.loc)
    plan = Plan(order, tilt, bound, found.converged | none, found.rounding, found.twist)
    return plan, found.usable | none, found.height


class Trial(NamedTuple):
    """A plan and the share of a pilot's points that are effective; -1 where it may not be used."""

    plan: Plan
    share: Array


def with_sites(limits: GaussianLimits) -> Trial:
    """The plan that looks ahead through sites."""
    plan, usable, height = twisted_plan(limits)
    return Trial(plan, jnp.where(usable, pilot_share(limits, plan, height), -1.0))


def or_tilted(limits: GaussianLimits, best: Trial) -> Trial:
    """The minimax tilt where it leaves more effective points than what was found before.

    Where that is nearly all of them, no other plan is tried.
    """
    tilted = replace(solve_plan(limits, True, len(limits.loc)), twist=no_sites(limits))
    share = jnp.where(best.share > GOOD_SHARE, -1.0, pilot_share(limits, tilted, NO_HEIGHT))
    better = share > best.share
    return jax.tree.map(lambda new, old: jnp.where(better, new, old), Trial(tilted, share), best)


def no_sites(limits: GaussianLimits) -> Twist:
    """Sites of precision 0."""
    nothing = jnp.zeros_like(limits.loc)
    return Twist(nothing, nothing)


def chosen_plan(limits: GaussianLimits) -> Plan:
    """Sites or a minimax tilt, whichever leaves more effective points in a small pilot.

    As `or_tilted(limits, with_sites(limits))`, inside of one program: a loop in which the pilot is
    compiled once, and the tilt solved only where sites are refused or their weights far from equal.
    """
    limits = lax.stop_gradient(limits)
    m, dtype = len(limits.loc), limits.loc.dtype
    nothing = jnp.zeros(m, dtype)
    # Whatever is found is better than this.
    none = jnp.full((), jnp.inf, dtype), jnp.asarray(False), nothing[0], no_sites(limits)
    start = Trial(Plan(jnp.arange(m), nothing, *none), jnp.full((), -2.0, dtype))
    start = varying_like(start, limits)

    def ahead(best: Trial) -> tuple[Plan, Array, Array]:
        return varying_like(twisted_plan(limits), limits)

    def tilted(best: Trial) -> tuple[Plan, Array, Array]:
        tilt = lambda: replace(solve_plan(limits, True, m), twist=start.plan.twist)
        keep = best.share > GOOD_SHARE
        plan = lax.cond(keep, lambda: best.plan, lambda: varying_like(tilt(), limits))
        always = jnp.asarray(True), jnp.asarray(NO_HEIGHT, dtype)
        return plan, *varying_like(always, limits)

    def attempt(best: Trial, turn: Array) -> tuple[Trial, None]:
        plan, usable, height = lax.cond(turn == 0, ahead, tilted, best)
        found = Trial(plan, jnp.where(usable, pilot_share(limits, plan, height), -1.0))
        better = found.share > best.share
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), found, best), None

    best, _ = lax.scan(attempt, start, jnp.arange(2))
    return best.plan


def pilot_share(limits: GaussianLimits, plan: Plan, height: Array | float) -> Array:
    """The effective share of a few points under a plan; -1 where their weights make no sense.

    That is where a weight is no number, or where log P is farther from a known height than the logs
    of volumes can be. Where digits of draws are lost, weights may be equal and absurd.
    """
    proposal = proposal_of(limits, plan)
    keys = jax.random.key(0)[None]
    uniforms = lattice_uniforms(keys, NUM_PILOT, len(plan.tilt) - 1, plan.tilt.dtype)
    weights, level = log_weights(proposal, uniforms)
    share = effective_sample_size(weights) / NUM_PILOT
    gap = jnp.abs(level + log_mean_exp(weights) - height)
    absurd = gap > MOST_VOLUME * len(plan.order) + 0.5 * jnp.abs(height)
    return jnp.where(jnp.isnan(share) | absurd, -1.0, share)
