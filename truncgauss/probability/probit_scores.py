"""The probability of a selection by probit curves, as that of a box of noisy scores."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from truncgauss.arrays.linalg import product
from truncgauss.arrays.pytrees import frozen_pytree
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method, average
from truncgauss.probability.separation import Separation


@frozen_pytree
class ProbitScores(Method):
    r"""The log probability of a `Selection.probit`, without points in x.

    With e ~ Normal(0, 1) independent of X, Phi((w . x - m) / t) is P(w . x + t e >= m), so that

    .. math:: E \prod_j \Phi\{(w_j \cdot X - m_j)/t_j\} = P(Y \ge m), \qquad
        Y \sim \mathcal N(W\mu,\; W \Sigma W^T + \mathrm{diag}(t^2))

    which is exact for up to three curves, and by `Separation` for more.

    Reference:
        Butler and Moffitt (1982), A computationally efficient quadrature procedure for the
        one-factor multinomial probit model: a probit as an error that is added.
    """

    own_units = False

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "ProbitScores | None":
        return cls() if cls.applies(problem.region) else None

    @staticmethod
    def applies(region: Region) -> bool:
        scores = region.score_selection()
        return scores is not None and scores.curve == "probit"

    def reason(self, problem: Problem) -> str:
        return "a box of scores with the noise of their curves"

    def for_problem(self, problem: Problem) -> "ProbitScores":
        region = problem.region
        if not self.applies(region):
            raise ValueError(
                f"ProbitScores applies to a Selection.probit, got {type(region).__name__}."
            )
        return self

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        curves = region.score_selection()
        root = product(curves.weights, covariance.scale_tril)
        scores = CovarianceMatrix(product(root, root.T) + jnp.diag(curves.positive_width**2))
        box = Box(curves.midpoint, jnp.full_like(curves.midpoint, jnp.inf))
        method = Exact() if len(curves.midpoint) <= 3 else Separation()
        return average(method, Problem(product(curves.weights, loc), scores, box), key)
