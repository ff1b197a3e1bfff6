"""What each row says of a Gaussian's parameters: the derivatives of its two terms."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.patterns import Pattern
from truncgauss.likelihood.rows import RowTerms, row_terms
from truncgauss.probability.method import Method


class Slopes(NamedTuple):
    """Derivatives of one term of each row by mean, (n, d), and covariance matrix, (n, d, d)."""

    by_loc: jax.Array
    by_matrix: jax.Array


def row_slopes(
    observations: Observations, loc: jax.Array, matrix: jax.Array, method: Method, key: jax.Array
) -> tuple[RowTerms, Slopes, Slopes]:
    """The terms of each row, unweighted, and the derivatives of what it shows and of its region.

    Each row gets a Gaussian of its own, of which one backward pass has all derivatives. Integrals
    that rows share are shared here too: the first row that asks has their derivatives, and the
    others get them from there.

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
    asked, source = _askers(observations.patterns or (), nothing)
    data = Slopes(*(leaf[source] for leaf in pulled((asked, nothing))))
    asked, source = _askers(observations.region_patterns or (), nothing)
    region = Slopes(*(leaf[source] for leaf in pulled((nothing, asked))))
    return terms, data, region


def _askers(patterns: tuple[Pattern, ...], nothing: jax.Array) -> tuple[jax.Array, jax.Array]:
    """1 for rows that ask for an integral themselves, 0 for others, and the row that asks for
    each, (n,)."""
    asked, source = nothing, jnp.arange(len(nothing))
    for pattern in patterns:
        asked = asked.at[pattern.asked].set(1.0)
        source = source.at[pattern.places].set(pattern.of_asked(pattern.asked))
    return asked, source
