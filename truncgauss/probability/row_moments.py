"""The moments of every row by a method, with the error from the rounding of the inputs."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.linalg import negligible
from truncgauss.gaussian.problem import Moments, Problem, Standardized, over_rows, standardized
from truncgauss.gaussian.regions.region import as_linear
from truncgauss.probability.method import Method, cost_of


def row_moments(method: Method, problem: Problem, key: Array) -> Moments:
    if not jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return _of_rows(method, problem, key)
    with jax.debug_nans(False):  # a stderr of NaN is no error
        mean, matrix, *errors = _of_rows(method, problem, key)
    return Moments(mean + 0.0, matrix + 0.0, *errors)


@functools.partial(Compiled, cost=cost_of)
def _of_rows(method: Method, problem: Problem, key: Array) -> Moments:

    def of_row(row: Problem, method: Method) -> Moments:
        if not (method.own_units and row.region.is_linear):
            return _finished(row, method.moments(row, key))
        standard = standardized(*row)
        row, method = standard.problem, method.scaled(1.0 / standard.row_unit)
        moments = _finished(row, method.moments(row, key))
        return _in_user_units(moments, standard)

    return over_rows(of_row, problem, method)


def _in_user_units(moments: Moments, standard: Standardized) -> Moments:
    """The moments of x = unit * y from those of y, with those of coordinates of variance 0."""
    unit, still = standard.unit, standard.still
    pair, pair_still = unit[:, None] * unit[None, :], still[:, None] | still[None, :]
    mean, matrix, mean_stderr, stderr = moments
    # NaN where constraints of variance 0 are not met.
    nan_propagator = jnp.where(standard.known == 0, 0.0, jnp.nan)

    def known(error: Array) -> Array:
        return jnp.where(jnp.isnan(nan_propagator), nan_propagator, error)

    return Moments(
        unit * jnp.where(still, standard.problem.loc, mean) + nan_propagator,
        pair * jnp.where(pair_still, 0.0, matrix) + nan_propagator,
        known(unit * jnp.where(still, 0.0, mean_stderr)),
        known(pair * jnp.where(pair_still, 0.0, stderr)),
    )


def _finished(row: Problem, moments: Moments) -> Moments:
    """The moments made symmetric and inside the box; those of the Gaussian without limits."""
    mean, matrix, *errors = moments
    matrix = 0.5 * (matrix + matrix.T)
    mean = row.region.clipped(mean)
    if row.region.is_linear:
        free = as_linear(row.region).is_everything
        mean = jnp.where(free, row.loc, mean)
        matrix = jnp.where(free, row.covariance.covariance_matrix, matrix)
        errors = [jnp.where(free & ~jnp.isnan(error), 0.0, error) for error in errors]
    found = Moments(mean, matrix, *map(lax.stop_gradient, errors))
    return with_rounding(found, lax.stop_gradient(row))


def with_rounding(moments: Moments, row: Problem) -> Moments:
    r"""The moments with standard errors that include the rounding of the inputs.

    A change of the covariance matrix S changes the log density at x by w^T dS w / 2 and a constant,
    w = S^{-1} (x - mu), and one of the mean by w^T dmu. To first order the truncated mean changes
    by its covariance with that. With C the truncated covariance, B = C S^{-1}, w at the truncated
    mean, v the diagonal of S^{-1} C S^{-1}, and independent relative errors eps in all entries,

    .. math:: e_i^2 = \epsilon^2 \Bigl\{ \sum_{jk} B_{ij}^2 S_{jk}^2 (w_k^2 + v_k)
        + \sum_j B_{ij}^2 \mu_j^2 + b_i^2 \Bigr\}

    where v stands for third moments, and b for the limits of a box, with which the mean moves. An
    entry of C changes by about e_i s_k + s_i e_k, s^2 the diagonal of C. What is below the rounding
    that every result has counts as 0, and so does the rounding of a low-rank or Markov form.
    """
    if not row.covariance.is_dense:
        return moments
    loc, covariance, _ = row
    eps, factor, linalg = float(jnp.finfo(loc.dtype).eps), covariance.scale_tril, jax.scipy.linalg
    mean, inner = lax.stop_gradient((moments.mean, moments.covariance))
    response = linalg.cho_solve((factor, True), inner).T
    force = linalg.cho_solve((factor, True), mean - loc)
    if covariance.is_factor and len(loc) != 3:  # three go by their covariance matrix
        # With y = L^T w, a change of L changes the log density by w^T dL y.
        along = linalg.solve_triangular(factor, inner, lower=True)
        spread = jnp.diagonal(linalg.solve_triangular(factor, along.T, lower=True))
        sizes = (factor.T @ force) ** 2 + spread
        squares = response**2 @ (factor**2 @ sizes) + along.T**2 @ ((factor**2).T @ force**2)
    else:
        spread = jnp.diagonal(linalg.cho_solve((factor, True), response))
        squares = response**2 @ (covariance.covariance_matrix**2 @ (force**2 + spread))
    squares = squares + response**2 @ loc**2
    if row.region.is_box:
        for limit in (row.limits.low, row.limits.high):
            squares = squares + jnp.where(jnp.isfinite(limit), limit, 0.0) ** 2
    scale = jnp.sqrt(jnp.diagonal(inner))
    share = eps * jnp.sqrt(squares) / jnp.where(scale > 0, scale, jnp.inf)
    share = jnp.where(share > negligible(row.loc.dtype), share, 0.0)
    pairs = (share[:, None] + share[None, :]) * scale[:, None] * scale[None, :]
    return moments._replace(
        mean_stderr=jnp.hypot(moments.mean_stderr, share * scale),
        covariance_stderr=jnp.hypot(moments.covariance_stderr, pairs),
    )
