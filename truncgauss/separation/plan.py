"""The plan of separation of variables, and the proposal distribution that it defines."""

from dataclasses import replace
from typing import NamedTuple

from jax import Array

from truncgauss.execution.pytrees import Batched, frozen_pytree
from truncgauss.gaussian.limits import GaussianLimits
from truncgauss.separation.arrangement import arranged
from truncgauss.separation.kernel import Constraints
from truncgauss.separation.twisting import Twist, twisted


@frozen_pytree
class Plan(Batched):
    """The order and the proposal of `Separation` for one problem; any plan is unbiased.

    Attributes:
        order: indices of the constraints, the one of the first variable in front, shape (d,).
        tilt: mean of the proposal of each standardised variable in that order, shape (d,).
        bound: an upper bound of log P, inf where none was computed.
        converged: whether the solver of the tilt or of the sites converged; if not, a minimax tilt
            is 0 and so is the precision of the sites.
        rounding: standard error of log P from the rounding of the inputs.
        twist: Gaussian sites in the units of the constraints, or None. The tilt, or the precision
            of all sites, is 0.
        rare: the probability outside of constraints that cut off nothing in the pilot, over P and
            at most 1 for each, or None where no constraint is determined by others.
    """

    order: Array
    tilt: Array
    bound: Array
    converged: Array
    rounding: Array
    twist: Twist | None = None
    rare: Array | None = None

    event_ranks = {"order": 1, "tilt": 1, "bound": 0, "converged": 0, "rounding": 0}

    def scaled(self, by: Array) -> "Plan":
        """The plan of the same problem with its constraints multiplied by `by`, shape (m,)."""
        twist = None if self.twist is None else self.twist.scaled(by[self.order])
        return replace(self, twist=twist)


class Proposal(NamedTuple):
    """The distribution that paths are drawn from, in the order of a plan.

    Attributes:
        constraints: limits on the first `rank` variables under the twisted distribution.
        extra: limits on linear functions of these variables.
        tilt: shape (rank,).
        twist: the sites of the twisted distribution, or None.
        log_start: log of the expectation of the product of the sites, a factor of all weights.
    """

    constraints: Constraints
    extra: Constraints
    tilt: Array
    twist: Twist | None
    log_start: Array | float


def proposal_of(limits: GaussianLimits, plan: Plan) -> Proposal:
    """The proposal of a plan for limits on a Gaussian vector, differentiable in the limits."""
    constraints, extra = arranged(limits, plan.order, len(plan.tilt))
    if plan.twist is None:
        return Proposal(constraints, extra, plan.tilt, None, 0.0)
    twist, (low, high, loc, factor) = plan.twist, constraints
    mean, factor, log_start = twisted(factor, twist.precision, twist.center - loc)
    moved = Constraints(low, high, loc + mean, factor)
    return Proposal(moved, extra, plan.tilt, twist, log_start)
