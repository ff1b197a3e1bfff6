"""The terms of a log-likelihood: what rows show, and that they lie where they could be seen."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.regions import Box, Polyhedron, Region
from truncgauss.likelihood.conditioning import Integrals, Rows, conditioned
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import Pattern


class Term(NamedTuple):
    """What the rows of a pattern add to the likelihood, or take from it.

    Attributes:
        pattern: the rows.
        sign: 1 for what was observed, -1 for the region.
        density: of exact entries, (g,).
        integrals: what the limited entries ask for, if there are any.
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
) -> list[Term]:
    """The terms of the likelihood, whose integrals are still to be answered.

    `equal` says that the Gaussians of all rows are, so that rows share integrals nevertheless.
    """
    if observations.patterns is None:
        raise ValueError(
            "log_likelihood: the rows are spread over processes, so that none of them sees which "
            "entries are exact or missing. Call it with numbers, outside of jit and derivatives; "
            "or use fit_observations, or the rows of one process."
        )
    data, region = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    parts = [(observations.patterns or (), data_rows(observations, loc, covariance), data, 1.0)]
    if observations.region is not None:
        rows = region_rows(observations, loc, covariance)
        parts.append((observations.region_patterns or (), rows, region, -1.0))
    terms = []
    for patterns, rows, own_key, sign in parts:
        for pattern in patterns:
            if not equal and (loc.ndim == 2 or covariance.batch_shape):
                pattern = pattern.each_by_itself()
            terms.append(Term(pattern, sign, *conditioned(rows, pattern, own_key)))
    return terms


def data_rows(observations: Observations, loc: jax.Array, covariance: Covariance) -> Rows:
    """What was observed: y in its intervals and its region, or (y, x) if that limits x."""
    lower, upper, region = observations.lower, observations.upper, observations.region
    total = noisy(covariance, observations.noise)
    if observations.latent:
        return _joint_rows(observations, loc, covariance, total)
    if isinstance(region, Box):
        exact = lower == upper
        lower = jnp.where(exact, lower, jnp.maximum(lower, region.low))
        upper = jnp.where(exact, upper, jnp.minimum(upper, region.high))
    return Rows(loc, total, lower, upper, unboxed(region))


def unboxed(region: Region | None) -> Region | None:
    """The region unless it is a box, whose limits are those of the rows."""
    return None if isinstance(region, Box) else region


def _joint_rows(
    observations: Observations, loc: jax.Array, covariance: Covariance, total: Covariance
) -> Rows:
    """Rows of (y, x) with y in its intervals and x in the region."""
    n, d = observations.lower.shape
    matrix, whole = jnp.broadcast_arrays(covariance.covariance_matrix, total.covariance_matrix)
    joint = jnp.block([[whole, matrix], [matrix, matrix]])
    low, high = jnp.full((n, d), -jnp.inf, loc.dtype), jnp.full((n, d), jnp.inf, loc.dtype)
    region = observations.region
    if isinstance(region, Box):
        low, high = jnp.broadcast_to(region.low, (n, d)), jnp.broadcast_to(region.high, (n, d))
    if isinstance(region, Polyhedron):
        both = jnp.concatenate([jnp.zeros_like(region.matrix), region.matrix], axis=-1)
        region = Polyhedron(both, region.low, region.high)
    lower = jnp.concatenate([observations.lower, low], axis=1)
    upper = jnp.concatenate([observations.upper, high], axis=1)
    return Rows(jnp.tile(loc, 2), CovarianceMatrix(joint), lower, upper, unboxed(region))


def region_rows(observations: Observations, loc: jax.Array, covariance: Covariance) -> Rows:
    """Where a row could have been seen: all of it missing but for its region."""
    shape, region = observations.lower.shape, observations.region
    if not observations.latent:
        covariance = noisy(covariance, observations.noise)
    low, high = jnp.asarray(-jnp.inf, loc.dtype), jnp.asarray(jnp.inf, loc.dtype)
    if isinstance(region, Box):
        low, high = region.low, region.high
    low, high = jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    return Rows(loc, covariance, low, high, unboxed(region))


def noisy(covariance: Covariance, noise: jax.Array | None) -> Covariance:
    """The covariance of what is measured with noise."""
    return covariance if noise is None else CovarianceMatrix(covariance.covariance_matrix + noise)


def outside(observations: Observations) -> jax.Array:
    """Whether an exact entry lies outside the row's box, (n,)."""
    lower, upper, region = observations.lower, observations.upper, observations.region
    if not isinstance(region, Box) or observations.latent:
        return jnp.zeros(len(lower), bool)
    beyond = (lower < region.low) | (lower > region.high)
    return jnp.any((lower == upper) & beyond, axis=-1)
