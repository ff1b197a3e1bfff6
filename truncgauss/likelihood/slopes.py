"""Derivatives of the two terms of each row in the parameters of its Gaussian."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import Pattern
from truncgauss.likelihood.rows import RowTerms, row_terms
from truncgauss.probability.method import Method


class RowSlopes(NamedTuple):
    """Derivatives of one term of each row by mean, (n, d), and covariance matrix, (n, d, d)."""

    by_loc: jax.Array
    by_matrix: jax.Array


def row_slopes(
    observations: Observations, loc: jax.Array, matrix: jax.Array, method: Method, key: jax.Array
) -> tuple[RowTerms, RowSlopes, RowSlopes]:
    """The terms of each row, unweighted, and the derivatives of those of the data and the region.

    Each row gets a Gaussian of its own, of which one backward pass has all derivatives. Integrals
    that rows share are shared too: the first row of each kind has their derivatives, and the
    others get them from it.

    Args:
        observations: n rows.
        loc: mean of all rows, (d,).
        matrix: their covariance matrix, (d, d).
        method, key: as in `row_terms`.
    """
    n, d = observations.lower.shape

    def both(locs: jax.Array, matrices: jax.Array) -> tuple[tuple[jax.Array, ...], RowTerms]:
        covariance = CovarianceMatrix(matrices)
        terms = row_terms(observations, locs, covariance, method, key, equal=True)
        return (terms.data, terms.region), terms

    rows = jnp.broadcast_to(loc, (n, d)), jnp.broadcast_to(matrix, (n, d, d))
    _, pulled, terms = jax.vjp(both, *rows, has_aux=True)
    nothing = jnp.zeros(n, loc.dtype)
    is_first, source = _sources(observations.patterns or (), nothing)
    data = RowSlopes(*(leaf[source] for leaf in pulled((is_first, nothing))))
    is_first, source = _sources(observations.region_patterns or (), nothing)
    region = RowSlopes(*(leaf[source] for leaf in pulled((nothing, is_first))))
    return terms, data, region


def _sources(patterns: tuple[Pattern, ...], nothing: jax.Array) -> tuple[jax.Array, jax.Array]:
    """1 for rows whose integral is computed, 0 for others, and the row that has that of each,
    (n,)."""
    is_first, source = nothing, jnp.arange(len(nothing))
    for pattern in patterns:
        is_first = is_first.at[pattern.representatives].set(1.0)
        source = source.at[pattern.destinations].set(pattern.for_rows(pattern.representatives))
    return is_first, source
