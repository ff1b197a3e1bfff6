"""A probability method held for a fit: its plan and its key fixed, so that a loss is smooth."""

import jax

from truncgauss import likelihood
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.gaussian.problem import Estimate, Problem, as_key
from truncgauss.gaussian.regions import Box
from truncgauss.likelihood import Observations
from truncgauss.probability.method import Method, estimate


@frozen_pytree
class Held:
    """A method with its plan fixed, for each row of a problem if that has rows, and its key.

    It is one smooth function of the parameters, on which a line search and a Hessian may rely.
    """

    method: Method
    key: jax.Array

    def estimate(self, problem: Problem) -> Estimate:
        return estimate(self.method, problem, self.key)

    @property
    def planned(self) -> bool:
        """Whether there may be a plan, made for other parameters than those in use."""
        return bool(jax.tree.leaves(self.method))


def hold(method: Method, key: jax.Array | None, problem: Problem) -> Held:
    """The method, with its plan made for a problem.

    Raises:
        ValueError: if the method cannot answer for such a problem.
    """
    method.check(*problem)
    return Held(method.hold(*problem), as_key(key))


@frozen_pytree
class HeldLimited:
    """A method held for the limited coordinates of boxes, one a row, and its key.

    Coordinates without limits are left out: a row with one limited coordinate is an integral in one
    dimension, however many there are. Boxes are rows of intervals, and so their probabilities are
    likelihoods.
    """

    boxes: Observations
    method: likelihood.HeldMethods
    key: jax.Array

    def estimate(self, problem: Problem) -> Estimate:
        rows = self.boxes, problem.loc, problem.covariance
        return likelihood.log_likelihood(*rows, self.method, self.key)


def hold_limited(method: Method, key: jax.Array | None, problem: Problem) -> HeldLimited:
    """The method held for a problem whose rows are boxes that do not change."""
    if not isinstance(problem.region, Box):
        raise TypeError(f"hold_limited: the region must be a tg.Box, got {problem.region!r}.")
    boxes = Observations(problem.region.low, problem.region.high)
    held = likelihood.hold(method, boxes, problem.loc, problem.covariance)
    return HeldLimited(boxes, held, as_key(key))
