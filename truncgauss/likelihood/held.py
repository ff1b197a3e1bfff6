"""Methods held for the integrals of a likelihood, so that it is one smooth function."""

from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.integrals import settled
from truncgauss.probability.method import Method
from truncgauss.pytrees import frozen_pytree


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
    """The method with a plan for each of the integrals, by kind."""
    return HeldMethods(
        {
            kind: settled(method, asked).hold(asked.loc, asked.covariance, asked.region)
            for kind, asked in integrals.items()
        }
    )
