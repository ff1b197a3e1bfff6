"""What steers the draws of separation of variables: a plan, and the proposal that it makes."""

from dataclasses import replace
from typing import NamedTuple

from jax import Array

from truncgauss.limits import GaussianLimits
from truncgauss.pytrees import Batched, frozen_pytree
from truncgauss.separation.arrangement import arranged
from truncgauss.separation.kernel import Constraints
from truncgauss.separation.twisting import Twist, twisted


@frozen_pytree
class Plan(Batched):
    """How `Separation` goes about one problem: any plan gives an unbiased estimate.

    Attributes:
        order: the constraints, the one to meet first in front, shape (d,).
        tilt: the shift of each standardised variable in that order, shape (d,).
        bound: an upper bound of log P, inf where none was sought or found.
        converged: whether what was sought, a minimax tilt or sites, was found; if not, the tilt
            is 0 and so is the precision of the sites.
        rounding: standard error of log P that the last digits of the inputs stand for.
        twist: sites to look ahead through, in the units of the constraints, or None. One of tilt
            and sites is 0.
    """

    order: Array
    tilt: Array
    bound: Array
    converged: Array
    rounding: Array
    twist: Twist | None = None

    event_ranks = {"order": 1, "tilt": 1, "bound": 0, "converged": 0, "rounding": 0}

    def scaled(self, by: Array) -> "Plan":
        """The plan for constraints multiplied by `by`, shape (m,)."""
        twist = None if self.twist is None else self.twist.scaled(by[self.order])
        return replace(self, twist=twist)


class Proposal(NamedTuple):
    """What paths are drawn from, in the order of a plan.

    Attributes:
        constraints: those that a new variable enters, of the twisted law.
        extra: those that add none.
        tilt: shape (rank,).
        twist: the sites that the law is twisted by, or None.
        log_start: log E of the product of the sites, which all weights share.
    """

    constraints: Constraints
    extra: Constraints
    tilt: Array
    twist: Twist | None
    log_start: Array | float


def proposal_of(limits: GaussianLimits, plan: Plan) -> Proposal:
    """A plan applied to its constraints; differentiable in these."""
    constraints, extra = arranged(limits, plan.order, len(plan.tilt))
    if plan.twist is None:
        return Proposal(constraints, extra, plan.tilt, None, 0.0)
    twist, (low, high, loc, factor) = plan.twist, constraints
    mean, factor, log_start = twisted(factor, twist.precision, twist.center - loc)
    law = Constraints(low, high, loc + mean, factor)
    return Proposal(law, extra, plan.tilt, twist, log_start)
