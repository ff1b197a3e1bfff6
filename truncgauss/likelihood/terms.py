"""The terms of a log-likelihood: of the observed data, and of the regions of truncation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.likelihood.conditioning import (
    ConditionedRows,
    Integrals,
    conditioned,
    conditioned_each,
    of_conditioned,
)
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import Pattern


class PatternTerm(NamedTuple):
    """The contribution of the rows of a pattern to the log-likelihood.

    Attributes:
        pattern: the rows.
        sign: 1 for what was observed, -1 for the region.
        density: of exact entries, (g,).
        integrals: of the limited entries, if there are any.
    """

    pattern: Pattern
    sign: float
    density: jax.Array
    integrals: Integrals | None


def terms_of(
    observations: Observations,
    loc: jax.Array,
    covariance: Covariance,
    key: jax.Array,
    equal: bool = False,
) -> list[PatternTerm]:
    """The terms of the likelihood, whose integrals are still to be evaluated.

    `equal` says that the Gaussians of all rows are, so that rows share integrals nevertheless.
    """
    data, region = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    # The observed y with its limits and region, or (y, x) if the region limits x.
    total, lower, upper, among = noisy(covariance, observations.noise), *observations.data_limits()
    rows = ConditionedRows(loc, total, lower, upper, among)
    if observations.latent:
        matrix, of_y = jnp.broadcast_arrays(covariance.covariance_matrix, total.covariance_matrix)
        joint = jnp.block([[of_y, matrix], [matrix, matrix]])
        rows = ConditionedRows(jnp.tile(loc, 2), CovarianceMatrix(joint), lower, upper, among)
    parts = [(observations.patterns or (), observations.orders, rows, data, 1.0)]
    if observations.region is not None:
        # With every entry missing, limited by the region alone.
        limited = covariance if observations.latent else total
        rows = ConditionedRows(loc, limited, *observations.region_limits())
        patterns = observations.region_patterns or ()
        parts.append((patterns, observations.region_orders, rows, region, -1.0))
    terms = []
    for patterns, orders, rows, part_key, sign in parts:
        joined = None if orders is None else conditioned_each(rows, orders)
        if joined is not None and sign > 0:  # nothing of a region is exact
            every = jnp.arange(len(rows.lower), dtype=jnp.int32)
            whole = Pattern(exact=None, limited=(), bounded=False, rows=every, destinations=every)
            terms.append(PatternTerm(whole, sign, joined.density, None))
        for pattern in patterns:
            if not equal and (loc.ndim == 2 or covariance.batch_shape):
                pattern = pattern.each_by_itself()
            if pattern.exact is not None:
                terms.append(PatternTerm(pattern, sign, *conditioned(rows, pattern, part_key)))
            elif joined is not None and pattern.limited:
                integrals = of_conditioned(joined, pattern, part_key)
                terms.append(PatternTerm(pattern, sign, jnp.zeros((), loc.dtype), integrals))
    return terms


def noisy(covariance: Covariance, noise: jax.Array | None) -> Covariance:
    """The covariance of what is measured with noise."""
    return covariance if noise is None else CovarianceMatrix(covariance.covariance_matrix + noise)


def outside(observations: Observations) -> jax.Array:
    """Whether an exact entry lies outside the row's box, (n,)."""
    lower, upper, box = observations.lower, observations.upper, observations.box
    if box is None or observations.latent:
        return jnp.zeros(len(lower), bool)
    low, high = (jnp.broadcast_to(x, lower.shape) for x in (box.low, box.high))
    beyond = (lower < low) | (lower > high)
    return jnp.any((lower == upper) & beyond, axis=-1)
