"""Expectation propagation: a fast, deterministic approximation in any dimension."""

import jax
import jax.numpy as jnp

from truncgauss.covariances import Covariance
from truncgauss.probability.method import Method
from truncgauss.problem import Estimate, Region
from truncgauss.pytrees import frozen_pytree
from truncgauss.regions import Box, Polyhedron
from truncgauss.separation import expectation_propagation as ep
from truncgauss.separation.limits import linear_of


@frozen_pytree
class ExpectationPropagation(Method):
    """log P of a box or polyhedron by Gaussian sites, one a constraint; no sampling.

    Each constraint low_i <= a_i^T x <= high_i is replaced by the Gaussian factor that leaves mean
    and variance of a_i^T x right; with Z_i the mass of the i-th cavity N(m_i, v_i) between its
    limits, V_i the variance with all sites, and B = I + D K D,

        log P ~ sum_i ( log Z_i + log(v_i / V_i) / 2 - m_i f_i / 2 ) - log det(B) / 2.

    It is exact for independent coordinates and becomes exact in most tails. Elsewhere its error is
    not known (`stderr` is nan): 1e-3 is common, 0.03 occurs for 100 equicorrelated coordinates, and
    0.5 or more for walks, long chains of correlation 0.9, and coordinates that nearly repeat one
    another. Gradients and Hessians are those of the approximation itself, exactly. If the sites do
    not converge, log_prob is NaN and stderr inf.

    The cost is about ten linear solves of order 2 m, m being the number of constraints.

    Raises:
        ValueError: for a region that is neither `Box` nor `Polyhedron`.

    Reference:
        Cunningham, Hennig and Lacoste-Julien (2011), Gaussian Probabilities and Expectation
        Propagation. Minka (2001), Expectation Propagation for Approximate Bayesian Inference.

    Example:
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> tail = tg.Box([10.0, 10.0], [jnp.inf, jnp.inf])
        >>> estimate = tg.log_probability([0.0, 0.0], covariance, tail, tg.ExpectationPropagation())
        >>> round(float(estimate.log_prob), 3), float(estimate.stderr)  # truth: -72.197
        (-72.197, nan)
    """

    def check(self, loc: jax.Array, covariance: Covariance, region: Region) -> None:
        if not isinstance(region, (Box, Polyhedron)):
            raise ValueError(
                f"ExpectationPropagation needs limits on linear functions, a Box or a Polyhedron, "
                f"got {type(region).__name__}. Use tg.SoftMonteCarlo for other regions."
            )

    def replicate(self, loc, covariance: Covariance, region: Region, key=None) -> Estimate:
        """The approximation for one Gaussian and one region; the key is not used."""
        constraints, known = ep.constraints_of(linear_of(loc, covariance, region))
        solution = ep.fixed_point(jax.lax.stop_gradient(constraints))
        cavity = ep.differentiable(solution, constraints)
        decided = ~(known == 0)
        log_prob = ep.free_energy(cavity, constraints)
        log_prob = jnp.where(solution.converged, log_prob, jnp.nan)
        return Estimate(
            jnp.where(decided, known, log_prob),
            jnp.where(solution.converged | decided, jnp.nan, jnp.inf).astype(loc.dtype),
        )
