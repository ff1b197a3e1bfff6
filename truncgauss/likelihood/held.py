"""Methods held for the integrals of a likelihood, so that it is one smooth function."""

from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.gaussian.problem import Problem
from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.integrals import settled
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method


@frozen_pytree
class HeldMethods(Method):
    """A method for each kind of integral of a likelihood, with its plans fixed; made by `hold`."""

    methods: dict[str, Method]

    def of(self, kind: str) -> Method:
        """The method for a kind of integral.

        Raises:
            ValueError: if it was held for other observations.
        """
        if kind not in self.methods:
            raise ValueError(
                "log_likelihood: the method was held for observations of another pattern: of "
                f"dimensions {sorted(self.methods)}, not {kind}. Hold it for these."
            )
        return self.methods[kind]


def held(method: Method, integrals: dict[str, Integrals]) -> HeldMethods:
    """The method with a plan for each of the integrals, by kind.

    `Automatic` chooses by shapes: structure that it would recognise in the numbers, such as a
    correlation of 0, is none of the covariances to come.
    """
    return HeldMethods({kind: _held(method, asked) for kind, asked in integrals.items()})


def _held(method: Method, asked: Integrals) -> Method:
    problem = Problem(asked.loc, asked.covariance, asked.region)
    chosen = settled(method, asked)
    if isinstance(chosen, Automatic):
        chosen = chosen.choice(problem)
    return chosen.hold(*problem)
