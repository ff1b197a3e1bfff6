"""Mean and covariance of the truncated law, with standard errors.

Every route ends in the law of total mean and variance over a mixture: of quadrature nodes, of
weighted paths, of replicates. A sum of positive semi-definite matrices, it is one by construction,
in any tail. Deviations are counted from a point inside the region, so that a narrow region far out
keeps its digits.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import solve_triangular

from truncgauss.covariances import CovarianceMatrix
from truncgauss.points import lattice_uniforms, normal_points
from truncgauss.probability import sequential
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.exact_moments import exact_moments
from truncgauss.probability.expectation_propagation import ExpectationPropagation
from truncgauss.probability.method import Method
from truncgauss.probability.refinement import Goal
from truncgauss.probability.separation import PASS_SIZE, Separation, over_factors
from truncgauss.probability.sequential import SequentialMonteCarlo
from truncgauss.probability.soft import SoftMonteCarlo
from truncgauss.probability.structure import independent_parts
from truncgauss.probability.turns import in_turns
from truncgauss.problem import Problem, Region, as_key, as_problem, over_rows
from truncgauss.pytrees import is_concrete
from truncgauss.regions import Box, Polyhedron
from truncgauss.separation import expectation_propagation as ep
from truncgauss.separation import twisting
from truncgauss.separation.draw_offsets import Drawn, drawn_again, inner_point, intersected_draws
from truncgauss.separation.kernel import Constraints, paths
from truncgauss.separation.limits import linear_of
from truncgauss.separation.plan import Proposal, proposal_of
from truncgauss.separation.weights import unseen_share, weighed
from truncgauss.total_moments import (
    Moments,
    Pieces,
    assembled,
    corrected,
    pooled_moments,
    surprises,
    weighted_pieces,
    with_sample_errors,
    with_unseen,
)
from truncgauss.units import Standardized, standardized


def truncated_moments(
    loc: Any,
    covariance: Any,
    region: Region,
    method: Method = Automatic(rtol=1e-3),
    key: Array | None = None,
) -> Moments:
    r"""Mean and covariance of X ~ Normal(loc, covariance) given that X lies in a region.

    .. math:: m = E(X \mid X \in R), \qquad C = E\{(X - m)(X - m)^T \mid X \in R\}

    Args:
        loc: mean before truncation, shape (..., d).
        covariance: covariance matrix before truncation, shape (..., d, d), or one of the forms such
            as `ScaleTril` or `LowRank`.
        region: `Box`, `Polyhedron` or `Ball`, of batch shape (...). Leading axes broadcast.
        method: how to compute them. `Exact` integrates by quadrature; `Separation` and
            `SequentialMonteCarlo` weigh their paths; `SoftMonteCarlo` weighs samples and answers
            for the law cut off by its soft edge; `ExpectationPropagation` returns its Gaussian.
            `Automatic` takes the first of these that applies and, outside of a trace, more points
            until every standard error, over the truncated law's own standard deviations, is below
            its rtol or the budget is spent.
        key: JAX random key of a sampling method; None stands for jax.random.key(0). All rows of a
            batch share it.

    Returns:
        Moments(mean, covariance, mean_stderr, covariance_stderr). For an empty region all of it is
        NaN.

    Raises:
        ValueError: for disagreeing shapes, a covariance that is none, or a method that cannot
            answer; the message says what to use instead.

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
    if not isinstance(method, Method):
        raise TypeError(f"method must be one of tg's, such as tg.Exact(), got {method!r}.")
    problem = as_problem(loc, covariance, region)
    key = as_key(key)
    if isinstance(method, Automatic):
        return _chosen(method, problem, key)
    if type(method) not in _ROUTES:
        raise ValueError(
            f"truncated_moments knows no moments by {type(method).__name__}; use one of "
            f"{', '.join(route.__name__ for route in _ROUTES)} or Automatic."
        )
    method.check(*problem)
    return in_turns(_moments, method.settled(*problem), problem, key)


def _moments(method: Method, problem: Problem, key: Array) -> Moments:
    """The moments of every row of a problem, with one key for all rows."""
    if not jax.config.jax_debug_nans:
        return _of_rows(method, problem, key)
    with jax.debug_nans(False):  # a stderr of NaN is no failure
        mean, matrix, *errors = _of_rows(method, problem, key)
    return Moments(mean + 0.0, matrix + 0.0, *errors)


@jax.jit
def _of_rows(method: Method, problem: Problem, key: Array) -> Moments:

    def of_row(row, method):
        route = _ROUTES[type(method)]
        if not method.own_units:
            return _finished(row, route(method, row, key))
        given = standardized(*row)
        own = Problem(*given.problem)
        found = _finished(own, route(method.scaled(1.0 / given.row_unit), own, key))
        return _in_user_units(found, given)

    return over_rows(of_row, problem, method)


def _in_user_units(moments: Moments, given: Standardized) -> Moments:
    """The moments of x = unit * y from those of y, and of the coordinates that do not vary."""
    unit, still = given.unit, given.still
    pair, pair_still = unit[:, None] * unit, still[:, None] | still
    mean, matrix, mean_stderr, stderr = moments
    # NaN where constraints without variance are not met, or are none.
    blank = jnp.where(given.known == 0, 0.0, jnp.nan)
    known = lambda error: jnp.where(jnp.isnan(blank), blank, error)
    return Moments(
        unit * jnp.where(still, given.loc, mean) + blank,
        pair * jnp.where(pair_still, 0.0, matrix) + blank,
        known(unit * jnp.where(still, 0.0, mean_stderr)),
        known(pair * jnp.where(pair_still, 0.0, stderr)),
    )


def _finished(row: Problem, moments: Moments) -> Moments:
    """Symmetric, inside the box, and the Gaussian's own moments where nothing is limited."""
    mean, matrix, *errors = moments
    matrix = 0.5 * (matrix + matrix.T)
    region = row.region
    if isinstance(region, Box):
        # Only rounding takes a mean out of its box: it still moves as a mean, not as the limit.
        mean = mean + lax.stop_gradient(jnp.clip(mean, region.low, region.high) - mean)
    if isinstance(region, (Box, Polyhedron)):
        free = jnp.all((region.low == -jnp.inf) & (region.high == jnp.inf))
        mean = jnp.where(free, row.loc, mean)
        matrix = jnp.where(free, row.covariance.covariance_matrix, matrix)
        errors = (jnp.where(free & ~jnp.isnan(error), 0.0, error) for error in errors)
    return Moments(mean, matrix, *map(lax.stop_gradient, errors))


# --- The choice -----------------------------------------------------------------------------------


def _chosen(method: Automatic, problem: Problem, key: Array) -> Moments:
    """The moments of independent parts, each by the method that fits, put together."""
    if not is_concrete((problem, key)):
        return _answer(method, problem, key)
    # Parts of a Gaussian whose mean says which coordinates they are.
    named = problem._replace(loc=jnp.arange(problem.covariance.dimension, dtype=problem.loc.dtype))
    parts = independent_parts(named)
    if parts[0] is named:
        return _answer(method, problem, key)
    places = [np.asarray(part.loc, int) for part in parts]
    parts = (part._replace(loc=problem.loc[..., own]) for part, own in zip(parts, places))
    answers = [_answer(method.of_part(part, problem), part, key) for part in parts]
    return assembled(answers, places, problem.loc, problem.covariance.covariance_matrix)


def _answer(method: Automatic, problem: Problem, key: Array) -> Moments:
    """The moments by the method that fits, refined until rtol is met or the budget spent."""
    method.choice(problem).check(*problem)
    return method.answer(problem, key, Goal(_moments, _errors)).result


def _errors(moments: Moments) -> np.ndarray:
    """The largest standard error of each row, in standard deviations of the law.

    Unknown ones do not count.
    """
    _, matrix, mean_stderr, stderr = (np.asarray(x, float) for x in moments)
    scale = np.sqrt(np.diagonal(matrix, axis1=-2, axis2=-1))
    scale = np.where(scale > 0, scale, 1.0)
    pairs = stderr / scale[..., None] / scale[..., None, :]
    flat = np.concatenate([mean_stderr / scale, pairs.reshape(*scale.shape[:-1], -1)], axis=-1)
    return np.max(np.where(np.isnan(flat), 0.0, flat), axis=-1, initial=0.0)


# --- Weighted paths -------------------------------------------------------------------------------


class _Frame(NamedTuple):
    """x = origin + matrix (y - point) + what y says nothing of, whose covariance is `rest`."""

    origin: Array
    matrix: Array
    rest: Array

    def of(self, pieces: Pieces) -> Pieces:
        matrices = self.matrix @ pieces.covariances @ self.matrix.T + self.rest
        return pieces._replace(means=pieces.means @ self.matrix.T, covariances=matrices)


def _frame(row: Problem, order: Array, constraints: Constraints, extra, point: Array) -> _Frame:
    """How the coordinates follow from the constrained y, in order, of which `point` is one."""
    loc, covariance, region = row
    rank = len(point)
    nothing = jnp.zeros((len(loc), len(loc)), loc.dtype)
    if isinstance(region, Polyhedron):
        root = covariance.root
        rows = region.matrix[order[:rank]]
        image = rows @ root
        inverse = jnp.linalg.pinv(image)
        matrix = root @ inverse
        left = root - root @ (inverse @ image)
        rest = nothing if rank >= len(loc) else left @ left.T
        return _Frame(loc + matrix @ (point - rows @ loc), matrix, rest)
    own = jnp.eye(rank, dtype=loc.dtype)
    below = solve_triangular(constraints.factor.T, extra.factor.T, lower=False).T
    follow = loc[order[rank:]] + below @ (point - loc[order[:rank]])
    back = jnp.argsort(order)
    return _Frame(jnp.append(point, follow)[back], jnp.concatenate([own, below])[back], nothing)


def _separation(method: Separation, row: Problem, key: Array) -> Moments:
    if over_factors(row.covariance, row.region):
        # Paths go through the coordinates, whose plan is not that of the factors.
        dense = CovarianceMatrix(row.covariance.covariance_matrix)
        method, row = replace(method, plan=None), row._replace(covariance=dense)
    plan = method.plan_of(*row) if method.plan is None else method.plan
    plan = lax.stop_gradient(plan)
    proposal = proposal_of(linear_of(*row), plan)
    constraints, extra, tilt = proposal[:3]
    # With extra constraints the last variable is drawn too, for the sake of a free one behind it.
    height = len(tilt) if len(extra.low) else len(tilt) - 1
    point = inner_point(constraints, tilt)
    n, count = method.num_points, method.num_replicates

    def some(keys):
        uniforms = lattice_uniforms(keys, n, height, tilt.dtype)
        log_weights, level, drawn = _weighted(proposal, uniforms, point)
        split = lambda x: jnp.moveaxis(x.reshape(*x.shape[:-1], len(keys), n), -2, 0)
        drawn = jax.tree.map(split, drawn)
        pieces = weighted_pieces(split(log_weights), drawn.deviations, drawn.variances[:, -1])
        return pieces, surprises(*drawn), level

    at_once = max(1, min(count, PASS_SIZE // (n * len(tilt))))
    while count % at_once:
        at_once -= 1
    turns = jax.random.split(key, count).reshape(count // at_once, at_once)
    pieces, found, levels = lax.map(jax.checkpoint(some), turns)
    log_shares = pieces.log_shares + (levels - levels[0])[:, None]
    pieces = pieces._replace(log_shares=log_shares)
    pieces, found = jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), (pieces, found))
    frame = _frame(row, plan.order, constraints, extra, point)
    moments = pooled_moments(frame.of(corrected(pieces, found)), frame.origin)
    return with_unseen(moments, unseen_share(constraints, count * n))


def _weighted(proposal: Proposal, uniforms: Array, point: Array) -> tuple[Array, Array, Drawn]:
    """Log weights of paths less their common level, that level, and what the paths drew."""
    constraints, extra, tilt = proposal[:3]
    if len(extra.low):
        draws, log_mass = intersected_draws(constraints, extra, tilt, uniforms)
        deviations = (constraints.loc - point)[:, None] + constraints.factor @ draws
        # Of an interval that several constraints cut, no more is known than the draw.
        drawn = Drawn(deviations, deviations, jnp.zeros_like(deviations))
        return *weighed(proposal, draws, None, log_mass), drawn
    path = paths(constraints, tilt, uniforms)
    drawn = drawn_again(constraints, tilt, uniforms, path.means, point)
    return *weighed(proposal, *path), drawn


def _sequential(method: SequentialMonteCarlo, row: Problem, key: Array) -> Moments:
    twist = method.twist
    if method.twisted and twist is None:
        twist = twisting.twist_of(linear_of(*row), sequential.LEAST_SHARE).twist
    chain = twisting.chain_of(linear_of(*row), twist)
    law, d = chain.law, len(chain.law.loc)
    extra = Constraints(*(x[:0] for x in law))
    tilt = jnp.zeros_like(law.loc)
    point = inner_point(law, tilt)

    def one(key):
        record = lax.stop_gradient(sequential.particles(chain, key, method.num_particles))
        uniforms = sequential.surviving(record)
        means = paths(law, tilt, uniforms).means
        moved = twisting.log_weights(chain, uniforms)
        log_weights = record.log_weights + (moved - lax.stop_gradient(moved))
        drawn = drawn_again(law, tilt, uniforms, means, point)
        last_variance = drawn.variances[-1:]
        pieces = weighted_pieces(log_weights[None], drawn.deviations[None], last_variance)
        pieces = jax.tree.map(lambda x: x[0], pieces)
        effective = jnp.minimum(record.least_effective, pieces.num_effective)
        return pieces._replace(log_shares=record.log_prob, num_effective=effective)

    pieces = lax.map(jax.checkpoint(one), jax.random.split(key, method.num_replicates))
    frame = _frame(row, jnp.arange(d), law, extra, point)
    return pooled_moments(frame.of(pieces), frame.origin)


# --- Samples and sites ----------------------------------------------------------------------------


def _soft(method: SoftMonteCarlo, row: Problem, key: Array) -> Moments:
    loc, covariance, region = row
    factor, kind = covariance.scale_tril, method.points

    def one(key):
        z = method.samples
        if z is None:
            z = normal_points(key, method.num_samples, len(loc), kind, loc.dtype)
        deviations = z.astype(loc.dtype) @ factor.T
        log_weights = method.edge.log_value(region.margins(loc + deviations)).sum(-1)
        return log_weights, deviations.T

    if method.num_replicates > 1:
        keys = jax.random.split(key, method.num_replicates)
        of_key = lambda key: weighted_pieces(*(x[None] for x in one(key)))
        pieces = lax.map(jax.checkpoint(of_key), keys)
        return pooled_moments(jax.tree.map(lambda x: x[:, 0], pieces), loc)
    log_weights, deviations = one(key)
    pieces = weighted_pieces(log_weights[None], deviations[None])
    moments = pooled_moments(pieces, loc)
    if kind != "random" and method.samples is None:
        return moments  # samples that are not independent do not tell their error
    return with_sample_errors(moments, log_weights, deviations, pieces.num_effective[0])


def _propagated(method: ExpectationPropagation, row: Problem, key: Array) -> Moments:
    """Mean and covariance of the Gaussian with its sites, by a factor of its precision."""
    loc, covariance, region = row
    constraints, known = ep.constraints_of(linear_of(loc, covariance, region))
    solution = ep.fixed_point(lax.stop_gradient(constraints))
    cavity = ep.differentiable(solution, constraints)
    found = ep.sites_of(cavity, constraints)
    force = ep.posterior(found, constraints.correlation).force / constraints.scale
    root = covariance.root
    image = root if isinstance(region, Box) else region.matrix @ root
    mean = loc + root @ (image.T @ force)
    strength = jnp.where(found.precision > 0, found.precision, 1.0) ** 0.5 / constraints.scale
    strength = jnp.where(found.precision > 0, strength, 0.0)
    stacked = jnp.concatenate([strength[:, None] * image, jnp.eye(root.shape[1], dtype=loc.dtype)])
    # The factor of 1 + image^T T image without that product, which would square its range.
    precision = jnp.linalg.qr(stacked, mode="r")
    half = solve_triangular(precision.T, root.T, lower=True)
    usable = solution.converged & (known == 0)
    mean, matrix = (jnp.where(usable, x, jnp.nan) for x in (mean, half.T @ half))
    error = jnp.where(usable, jnp.nan, jnp.inf)
    return Moments(mean, matrix, error + 0.0 * loc, error + 0.0 * matrix)


_ROUTES = {
    Exact: lambda method, row, key: exact_moments(row),
    Separation: _separation,
    SequentialMonteCarlo: _sequential,
    ExpectationPropagation: _propagated,
    SoftMonteCarlo: _soft,
}
