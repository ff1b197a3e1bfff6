"""Exact probabilities: where a closed form or a quadrature to rounding exists."""

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.covariances import Covariance, LowRank, Markov, numerical_rank
from truncgauss.probability.method import Method
from truncgauss.problem import Estimate, Region
from truncgauss.pytrees import frozen_pytree, is_concrete
from truncgauss.quadrature import (
    bivariate,
    conditioning,
    markov_chain,
    one_factor,
    trivariate,
    two_factors,
)
from truncgauss.regions import Box
from truncgauss.special import log_interval_mass, standardize


@frozen_pytree
class Exact(Method):
    """The probability of a box to rounding, where the structure of the Gaussian allows it.

    In one dimension, and for independent coordinates,

        log P = sum_j log( Phi((high_j - loc_j) / s_j) - Phi((low_j - loc_j) / s_j) );

    in two and three dimensions by quadrature in logs, one coordinate after the other. In any
    dimension: for a `LowRank` covariance of rank one or two by quadrature over its factors; for a
    `Markov` one by carrying the law from place to place on a grid. Independence is read off a
    diagonal covariance, which is visible only outside of a trace: there, and for any other
    structure, ask for a method that needs none.

    Its stderr is 0, save for a long and weakly truncated chain, and for two factors with little
    noise beside them: there it comes from coarser grids and bounds the error from above, or is inf
    if no grid could follow. In up to three dimensions it is also more than 0 in far tails of a
    near-singular covariance, where one unit in the last place of the inputs moves log P by more
    than 1e-9 of it (1e-4 in float32): it is that move then.

    Raises:
        ValueError: if the problem is none of these.

    Example:
        >>> tg.log_probability([0.0], [[1.0]], tg.Box([5.0], [jnp.inf]), method=tg.Exact())
        Estimate(log_prob=Array(-15.06499839, dtype=float64), stderr=Array(0., dtype=float64))
    """

    def check(self, loc: jax.Array, covariance: Covariance, region: Region) -> None:
        if not applies(covariance, region):
            raise ValueError(
                "Exact answers for a Box in up to three dimensions (three of full rank), with a "
                "tg.Markov covariance, a tg.LowRank one of rank one or two, or independent ones (a "
                "diagonal covariance, visible outside of a trace); got a "
                f"{type(region).__name__} in {covariance.dimension} dimensions. Use tg.Automatic()."
            )

    def replicate(self, loc, covariance: Covariance, region: Region, key) -> Estimate:
        """log P and a stderr of 0; the key is not used."""
        low, high = region.low, region.high
        invalid = jnp.any(jnp.isnan(low) | jnp.isnan(high) | (low > high))
        empty = jnp.any(low == high)
        # The integral over nothing has no mode: it is answered here, not attempted.
        low = jnp.where(invalid | empty, -jnp.inf, low)
        high = jnp.where(invalid | empty, jnp.inf, high)
        if isinstance(covariance, Markov) and covariance.dimension > 3:
            log_prob, stderr = markov_chain.log_probability(loc, covariance, low, high)
        elif takes_grid(covariance):
            log_prob, stderr = two_factors.log_probability(loc, covariance, low, high)
        else:
            log_prob = box_log_probability(loc, covariance, low, high)
            stderr = jnp.zeros_like(log_prob)
            if covariance.dimension <= 3 and not isinstance(covariance, LowRank):
                stderr = conditioning.last_digit(log_prob, loc, covariance, low, high)
        log_prob = jnp.where(empty, log_prob - jnp.inf, log_prob)
        log_prob = jnp.where(invalid, jnp.nan, log_prob)
        return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, stderr))


def box_log_probability(loc, covariance: Covariance, low, high) -> jax.Array:
    """log P(low <= X <= high) with low < high, by the structure of the covariance."""
    if isinstance(covariance, LowRank) and covariance.rank == 1:
        return one_factor.log_probability(loc, covariance, low, high)
    if covariance.dimension == 2:
        return bivariate.log_probability(loc, bivariate.regression(covariance), low, high)
    if covariance.dimension == 3:
        return trivariate.log_probability(loc, covariance, low, high)
    # A coordinate without variance is inside or it is not.
    known = covariance.variances == 0
    met = jnp.where((low <= loc) & (loc <= high), 0.0, -jnp.inf) + 0.0 * loc
    limits = standardize(low, high, loc, jnp.sqrt(jnp.where(known, 1.0, covariance.variances)))
    return jnp.where(known, met, log_interval_mass(*limits)).sum(-1)


def applies(covariance: Covariance, region: Region) -> bool:
    """Whether `Exact` can answer, as far as can be seen."""
    if not isinstance(region, Box):
        return False
    if covariance.dimension <= 3:
        return not is_singular(covariance)
    if isinstance(covariance, Markov):
        return True
    if isinstance(covariance, LowRank):
        return covariance.rank <= 2
    return is_diagonal(covariance)


def takes_grid(covariance: Covariance) -> bool:
    """Whether the integral over two factors is the way; up to three coordinates have another."""
    return isinstance(covariance, LowRank) and covariance.rank == 2 and covariance.dimension > 3


def is_singular(covariance: Covariance) -> bool:
    """Whether three coordinates can be seen to determine each other: no quadrature knows how."""
    if covariance.dimension != 3 or not is_concrete(covariance):
        return False
    return numerical_rank(np.asarray(covariance.covariance_matrix)) < 3


def is_diagonal(covariance: Covariance) -> bool:
    """Whether the covariance can be seen to be diagonal."""
    if not is_concrete(covariance):
        return False
    matrix = np.asarray(covariance.covariance_matrix)
    return bool(np.all(matrix == matrix * np.eye(covariance.dimension)))
