"""Moments of every row of a problem by one method."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.compiling import Compiled
from truncgauss.probability.method import Method
from truncgauss.problem import Problem, over_rows
from truncgauss.regions import LinearRegion
from truncgauss.total_moments import Moments
from truncgauss.units import Standardized, standardized


def row_moments(method: Method, problem: Problem, key: Array) -> Moments:
    """The moments of every row of a problem, with one key for all rows."""
    effort = method.effort(problem)
    if not jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        return _of_rows(method, problem, key, effort=effort)
    with jax.debug_nans(False):  # a stderr of NaN is no error
        mean, matrix, *errors = _of_rows(method, problem, key, effort=effort)
    return Moments(mean + 0.0, matrix + 0.0, *errors)


@Compiled
def _of_rows(method: Method, problem: Problem, key: Array) -> Moments:

    def of_row(row: Problem, method: Method) -> Moments:
        if not (method.own_units and isinstance(row.region, LinearRegion)):
            return _finished(row, method.moments(row, key))
        given = standardized(*row)
        own = given.problem
        found = _finished(own, method.scaled(1.0 / given.row_unit).moments(own, key))
        return _in_user_units(found, given)

    return over_rows(of_row, problem, method)


def _in_user_units(moments: Moments, given: Standardized) -> Moments:
    """The moments of x = unit * y from those of y, with those of coordinates of variance 0."""
    unit, still = given.unit, given.still
    pair, pair_still = unit[:, None] * unit[None, :], still[:, None] | still[None, :]
    mean, matrix, mean_stderr, stderr = moments
    # NaN where constraints of variance 0 are not met.
    nan_propagator = jnp.where(given.known == 0, 0.0, jnp.nan)

    def known(error: Array) -> Array:
        return jnp.where(jnp.isnan(nan_propagator), nan_propagator, error)

    return Moments(
        unit * jnp.where(still, given.loc, mean) + nan_propagator,
        pair * jnp.where(pair_still, 0.0, matrix) + nan_propagator,
        known(unit * jnp.where(still, 0.0, mean_stderr)),
        known(pair * jnp.where(pair_still, 0.0, stderr)),
    )


def _finished(row: Problem, moments: Moments) -> Moments:
    """The moments made symmetric and inside the box; those of the Gaussian without limits."""
    mean, matrix, *errors = moments
    matrix = 0.5 * (matrix + matrix.T)
    mean = row.region.clipped(mean)
    if isinstance(row.region, LinearRegion):
        free = row.region.is_everything
        mean = jnp.where(free, row.loc, mean)
        matrix = jnp.where(free, row.covariance.covariance_matrix, matrix)
        errors = [jnp.where(free & ~jnp.isnan(error), 0.0, error) for error in errors]
    return Moments(mean, matrix, *map(lax.stop_gradient, errors))
