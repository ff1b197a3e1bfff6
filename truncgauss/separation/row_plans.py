"""Compiled plans for every row of a problem, and the rank of its constraints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.execution.compiling import Compiled, Cost
from truncgauss.execution.pytrees import frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.linalg import in_full_precision, numerical_rank, ranks_of_root
from truncgauss.gaussian.problem import Problem, over_rows, standardized
from truncgauss.gaussian.regions import Box, as_linear
from truncgauss.separation.plan import Plan
from truncgauss.separation.planning import plan_of

LARGE = (
    65  # constraints from which on unoptimised matrix products cost more than their optimisation
)


@frozen_pytree
class Settings:
    """The static settings of `Separation` for a plan: tilted, twisted and rank."""

    values: tuple[bool, bool, int] = static_field()


def _plans(settings: Settings, problem: Problem) -> Plan:
    """The plan of every row of a problem."""

    def of_row(row: Problem) -> Plan:
        given = standardized(*row)
        plan = plan_of(given.problem.limits, *settings.values)
        return plan.scaled(given.row_unit)

    return over_rows(of_row, problem)


def _cost(settings: Settings, problem: Problem, *others: Any) -> Cost:
    return Cost(0, loops=as_linear(problem.region).num_constraints >= LARGE)


_compiled_plans = Compiled(_plans, _cost)


@in_full_precision
def solved_plans(problem: Problem, tilted: bool, twisted: bool, rank: int | None) -> Plan:
    """The plan of every row of a problem; see `Separation` for the settings."""
    rank = full_rank(problem) if rank is None else rank
    settings = Settings((tilted, twisted, rank))
    if twisted or not is_concrete(problem):
        return _compiled_plans(settings, problem)
    with jax.enable_x64(True):  # for the minimax tilt; inside of a trace `vmap` would undo it
        plan = _compiled_plans(settings, problem)
    return jax.tree.map(lambda x: x.astype(jnp.int32) if x.dtype == jnp.int64 else x, plan)


# --- Ranks ----------------------------------------------------------------------------------------


def full_rank(problem: Problem) -> int:
    """The largest possible rank of the values of the constraints."""
    return min(as_linear(problem.region).num_constraints, problem.covariance.dimension)


def known_rank(problem: Problem) -> int | None:
    """The rank of the constraints' values below the largest possible one, None if not known."""
    if not is_concrete((problem.covariance, problem.region)):
        return None
    rank, _ = ranks_of_limits(problem)
    return rank if rank < full_rank(problem) else None


def ranks_of_limits(problem: Problem) -> tuple[int, int]:
    """The rank of the covariance of the constraints' values, the largest of all rows.

    And the rank without constraints that others nearly determine, where a root shows them.
    """
    loc, covariance, region = problem
    if isinstance(region, Box) and isinstance(covariance, CovarianceMatrix):
        matrix = np.asarray(covariance.matrix)
        # A coordinate of variance 0 gets variance 1 and no limits.
        still = np.diagonal(matrix, axis1=-2, axis2=-1) == 0
        identity = np.eye(matrix.shape[-1])
        rank = numerical_rank(np.where(still[..., None] & (identity > 0), 1.0, matrix))
        return rank, rank
    with jax.ensure_compile_time_eval():
        if not is_concrete(loc):
            problem = problem._replace(loc=jnp.zeros(loc.shape[-1:], loc.dtype))
        matrix, *root = _limited(problem)
    if not root:
        rank = numerical_rank(np.asarray(matrix))
        return rank, rank
    return ranks_of_root(*map(np.asarray, root))


@jax.jit
def _limited(problem: Problem) -> tuple[Array, ...]:
    """The covariance of the constraints' values of each row, and its root and sizes if any."""

    def of_row(row: Problem) -> tuple[Array, ...]:
        limits = standardized(*row).problem.limits
        root = () if limits.root is None or limits.size is None else (limits.root, limits.size)
        return limits.covariance, *root

    return over_rows(of_row, problem)
