"""Plans for every row of a problem, compiled, and the rank of what a region limits."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truncgauss.compiling import LIGHT, MEDIUM, Compiled
from truncgauss.covariances import CovarianceMatrix
from truncgauss.linalg import numerical_rank, rank_of_root
from truncgauss.problem import Problem, over_rows
from truncgauss.pytrees import Batched, frozen_pytree, is_concrete, static_field
from truncgauss.regions import Box
from truncgauss.separation.plan import Plan
from truncgauss.separation.planning import (
    GOOD_SHARE,
    Trial,
    looks_ahead,
    or_tilted,
    plan_of,
    with_sites,
)
from truncgauss.units import standardized

# Constraints; beyond, unoptimised products of matrices cost more than their optimisation.
MOST_LIGHT = 64


@frozen_pytree
class Settings:
    """Settings of `Separation` that are part of what is compiled: tilted, twisted and rank."""

    values: tuple[bool, bool, int] = static_field()


def _plans(settings: Settings, problem: Problem) -> Plan:
    """A plan for every row of a problem."""

    def of_row(row: Problem) -> Plan:
        given = standardized(*row)
        plan = plan_of(given.problem.limits, *settings.values)
        return plan.scaled(given.row_unit)

    return over_rows(of_row, problem)


@frozen_pytree
class Shares(Batched):
    """Effective shares, one a row."""

    share: Array

    event_ranks = {"share": 0}


def _site_plans(problem: Problem) -> Trial:
    """For every row the plan that looks ahead through sites."""

    def of_row(row: Problem) -> Trial:
        given = standardized(*row)
        plan, share = with_sites(given.problem.limits)
        return Trial(plan.scaled(given.row_unit), share)

    return over_rows(of_row, problem)


def _better_plans(problem: Problem, best: Plan, share: Shares) -> Plan:
    """For every row the minimax tilt, where it leaves more effective points."""

    def of_row(row: Problem, best: Plan, share: Shares) -> Plan:
        given = standardized(*row)
        before = Trial(best.scaled(1.0 / given.row_unit), share.share)
        return or_tilted(given.problem.limits, before).plan.scaled(given.row_unit)

    return over_rows(of_row, problem, best, share)


_compiled_plans = Compiled(_plans)
_compiled_site_plans = Compiled(_site_plans)
_compiled_better_plans = Compiled(_better_plans)


def solved_plans(problem: Problem, tilted: bool, twisted: bool, rank: int | None) -> Plan:
    """The plan of every row of a problem, see `Separation` for the settings."""
    m = problem.region.num_constraints
    rank = full_rank(problem) if rank is None else rank
    settings, effort = Settings((tilted, twisted, rank)), LIGHT if m <= MOST_LIGHT else MEDIUM
    if not is_concrete(problem):
        return _compiled_plans(settings, problem)
    if not (tilted and twisted and looks_ahead(rank, m)):
        return _compiled_plans(settings, problem, effort=effort)
    # One plan after the other: most problems need only the first, and so only its program.
    plan, share = _compiled_site_plans(problem, effort=effort)
    if bool(np.all(np.asarray(share) > GOOD_SHARE)):
        return plan
    return _compiled_better_plans(problem, plan, Shares(share), effort=effort)


# --- Ranks ----------------------------------------------------------------------------------------


def full_rank(problem: Problem) -> int:
    """The largest rank that is possible."""
    return min(problem.region.num_constraints, problem.covariance.dimension)


def rank_of_limits(problem: Problem) -> int:
    """The rank of the distribution of what a region limits, the largest of all rows."""
    loc, covariance, region = problem
    if isinstance(region, Box) and isinstance(covariance, CovarianceMatrix):
        matrix = np.asarray(covariance.matrix)
        # A coordinate without variance is released from its limits: a variable of its own.
        still = np.diagonal(matrix, axis1=-2, axis2=-1) == 0
        identity = np.eye(matrix.shape[-1])
        return numerical_rank(np.where(still[..., None] & (identity > 0), 1.0, matrix))
    with jax.ensure_compile_time_eval():
        if not is_concrete(loc):
            problem = problem._replace(loc=jnp.zeros(loc.shape[-1:], loc.dtype))
        matrix, root = _limited(problem)
    return numerical_rank(np.asarray(matrix)) if root is None else rank_of_root(np.asarray(root))


@jax.jit
def _limited(problem: Problem) -> tuple[Array, Array | None]:
    """The covariance, and its root if there is one, of what each row's region limits."""

    def of_row(row: Problem) -> tuple[Array, Array | None]:
        limits = standardized(*row).problem.limits
        return limits.covariance, limits.root

    return over_rows(of_row, problem)
