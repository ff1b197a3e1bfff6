"""Mean and covariance of a truncated Gaussian, with standard errors.

Every method computes them by the laws of total mean and total covariance over a mixture, whose
components are quadrature nodes, weighted draws or replicates. As a sum of positive semi-definite
matrices the covariance is positive semi-definite too, in any tail. Deviations are counted from a
point inside the region, so that a narrow region in a tail keeps its digits.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Real

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import in_batches
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import is_concrete
from truncgauss.gaussian.problem import (
    NORMAL,
    CovarianceLike,
    Estimate,
    Loc,
    Moments,
    Problem,
    as_problem,
    is_gaussian,
)
from truncgauss.gaussian.regions.region import Region
from truncgauss.gaussian.total_moments import assembled
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.method import Method, check_method, prepared
from truncgauss.probability.refinement import Goal, answer
from truncgauss.probability.row_moments import row_moments
from truncgauss.probability.structure import independent_parts
from truncgauss.special.tails import undefined
from truncgauss.student import student
from truncgauss.words.earlier import warn


@reported
@in_full_precision
def truncated_moments(
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    method: Method = Automatic(rtol=1e-3),
    key: PRNGKey | None = None,
    df: Real[ArrayLike, "*#batch"] = NORMAL,
    noncentral: str = "shifted",
) -> Moments:
    r"""Mean and covariance of a Gaussian, or a t, vector X given that X lies in a region.

    .. math:: m = E(X \mid X \in R), \qquad C = E\{(X - m)(X - m)^T \mid X \in R\}

    Args:
        loc: mean before truncation, shape (..., d).
        covariance: covariance matrix before truncation, shape (..., d, d), or one of the forms such
            as `ScaleTril` or `LowRank`.
        region: `Box`, `Polyhedron`, `Ball`, `Ellipsoid` or `Selection`, of batch shape (...).
            Leading axes broadcast.
        method: how to compute them. `Exact` integrates by quadrature; `Separation`,
            `SequentialMonteCarlo` and `ImportanceSampling` use their weighted draws;
            `SoftMonteCarlo` uses samples weighted by its soft edge, whose moments differ from those
            of the sharp region;
            `ExpectationPropagation` returns the moments of its Gaussian approximation. `Automatic`
            takes the first of these that applies and, outside of a trace, adds points until every
            standard error, in units of the truncated distribution's standard deviations, is below
            its rtol or its budget is spent.
        key: JAX random key of a sampling method; None stands for jax.random.key(0). All rows of a
            batch share it.
        df, noncentral: of a multivariate t, see `log_probability`. With k coordinates that have
            two finite limits, the others' means exist for df + k > 1 and their covariances for
            df + k > 2; else they are NaN. For a `Polyhedron` k is 0.

    Returns:
        Moments(mean, covariance, mean_stderr, covariance_stderr), all NaN for an empty region.

    Raises:
        ValueError: if shapes disagree, the covariance is not symmetric positive semi-definite, or
            the method does not apply; the message says what to use instead.

    Reference:
        Botev (2017), The normal law under linear restrictions: simulation and estimation via
        minimax tilting.

    Example:
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, jnp.inf])
        >>> moments = tg.truncated_moments([0.0, 0.0], jnp.array([[1.0, 0.5], [0.5, 1.0]]), region)
        >>> moments.mean.round(6)
        Array([0.89762, 0.89762], dtype=float64)
        >>> tg.truncated_moments([0.0], [[1.0]], tg.Box([100.0], [115.0])).mean.round(4)
        Array([100.01], dtype=float64)
    """
    check_method(method)
    problem = as_problem(loc, covariance, region)
    key = as_key(key)
    with parallel.like(problem):
        if not is_gaussian(df, noncentral):
            degrees = student.checked_df(df, noncentral, problem)
            return _of_t(method, problem, key, degrees, noncentral)
        if not isinstance(method, Automatic):
            return in_batches(row_moments, prepared(method, problem), problem, key)
        # Those of independent blocks, each by the method that applies, assembled.
        goal = Goal(row_moments, _errors)
        parts = independent_parts(problem) if is_concrete((problem, key)) else []
        if len(parts) < 2 and all(part.coordinates is None for part in parts):
            part = parts[0].problem if parts else problem
            whole: Moments = answer(method, part, key, goal).result
            return whole
        own = [(method.of_part(part.problem, problem), part.problem) for part in parts]
        answers = [answer(its_method, part, key, goal).result for its_method, part in own]
        indices = [part.coordinates for part in parts if part.coordinates is not None]
        return assembled(answers, indices, problem.loc, problem.covariance.covariance_matrix)


def _of_t(method: Method, problem: Problem, key: Array, df: Array, kind: str) -> Moments:
    """Moments of a t: those given the scale, by the laws of total mean and covariance."""
    open_ = jnp.where(problem.region.bounded, 0.0, 1.0)
    box = problem.region.is_box
    order = df[..., None] + (jnp.sum(1.0 - open_, axis=-1, keepdims=True) if box else 0.0)
    if is_concrete((open_, order)) and np.any((open_ > 0) & (order <= 2.0)):
        what = "means and covariances" if np.any((open_ > 0) & (order <= 1.0)) else "covariances"
        warn(
            f"truncated_moments: some {what} do not exist at df = {np.min(df):g}, and are NaN. "
            "Those of all coordinates exist for df above 2, or within two finite bounds each; "
            "with k coordinates bounded so, the others' means for df + k > 1."
        )
    nodes = student.nodes_of(problem, df, kind, moment=2)
    rows: Problem = student.at_scale(problem, nodes.log_scale, kind)
    given, parts = log_probability(*rows, method, key), truncated_moments(*rows, method, key)
    total = student.mixed(nodes, df, given)
    shares = jnp.exp(student.log_terms(nodes, df) + given.log_prob - total.log_prob)
    known = given.log_prob > -jnp.inf
    known = known & (shares > 0)  # where no unit overflows
    anchor, unit = student.in_user_units(problem, nodes.log_scale)
    weight = jnp.where(known, shares, 0.0)[..., None]
    means, errors = (jnp.where(known[..., None], unit * x, 0.0) for x in parts[::2])
    mean = jnp.sum(weight * means, axis=0)
    gaps, known = means - mean, known[..., None, None]
    units = unit[..., :, None], unit[..., None, :]
    matrices, spreads = (jnp.where(known, units[0] * units[1] * x, 0.0) for x in parts[1::2])
    mean = anchor[0] + mean
    matrices = matrices + gaps[..., :, None] * gaps[..., None, :]
    matrix = jnp.sum(weight[..., None] * matrices, axis=0)
    mean_error = _error_of_t(total, nodes, weight, gaps, errors, order - open_)
    excess = order[..., None] - (open_[..., :, None] + open_[..., None, :])
    stderr = _error_of_t(total, nodes, weight[..., None], matrices, spreads, excess)
    mean = undefined((open_ > 0) & ~(order > open_), mean)
    within = (open_[..., :, None] + open_[..., None, :]) == 0
    matrix = undefined(~(within | (excess > 0)), matrix)
    return Moments(
        mean,
        matrix,
        lax.stop_gradient(jnp.where(jnp.isnan(mean), jnp.nan, mean_error)),
        lax.stop_gradient(jnp.where(jnp.isnan(matrix), jnp.nan, stderr)),
    )


def _error_of_t(
    total: Estimate,
    nodes: student.ScaleNodes,
    weight: Array,
    each: Array,
    error: Array,
    excess: Any,
) -> Array:
    """The error of a mean over nodes: of the terms, the weights, and what is beyond the first.

    That falls as the power by which the moment exists.
    """
    axes = (..., *(None,) * (each.ndim - nodes.log_scale.ndim))
    sizes = weight * jnp.abs(each)
    beyond = sizes[0] / nodes.step[axes] / jnp.where(excess > 0, excess, 1.0)
    beyond = jnp.where(beyond > 1e-9 * jnp.sum(sizes, axis=0), beyond, 0.0)
    stderr = jnp.where(total.stderr > 0, total.stderr, 0.0)[axes]
    return jnp.sum(weight * error + sizes * stderr, axis=0) + beyond


def _errors(moments: Moments) -> np.ndarray:
    """The largest known standard error of each row, in the distribution's standard deviations."""
    _, matrix, mean_stderr, stderr = (np.asarray(x, float) for x in moments)
    scale = np.sqrt(np.diagonal(matrix, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    pairs = stderr / scale[..., None] / scale[..., None, :]
    flat = np.concatenate([mean_stderr / scale, pairs.reshape(*scale.shape[:-1], -1)], axis=-1)
    return np.asarray(np.max(np.where(np.isnan(flat), 0.0, flat), axis=-1, initial=0.0))
