"""Draws from a truncated Gaussian: exact and independent, or weighted and differentiable.

Proposals come from separation of variables with a minimax tilt: the standardised variables are
drawn one after the other from Normal(mu_k, 1) truncated to the conditional interval. Such a path z
has the importance weight exp(psi(z)), and the saddle point bounds it, psi <= bound: accepted with
probability exp(psi - bound), a path is an exact draw. If nearly all are rejected, Hamiltonian
chains make the remaining draws, which `effective_sample_size` and a warning report.

Reference:
    Botev (2017), The normal law under linear restrictions: simulation and estimation via minimax
    tilting.
"""

import math
import os
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.arrays.compiling import Compiled, Cost
from truncgauss.arrays.keys import PRNGKey, checked_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import Batched, frozen_pytree, is_concrete, varying_like
from truncgauss.draws.proposals import (
    GaussianSampler,
    Sampler,
    fresh_uniforms,
    plain_sampler_of,
    quadratic_sampler_of,
    sampler_of,
)
from truncgauss.draws.trajectories import NUM_CHAINS, Rounds, accepted, field_chains, filled
from truncgauss.gaussian.problem import (
    NORMAL,
    CovarianceLike,
    Loc,
    LocRows,
    Problem,
    Standardized,
    as_problem,
    is_gaussian,
    over_rows,
    standardized,
)
from truncgauss.gaussian.regions.region import QuadraticRegion, Region, as_linear
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.importance import check_probabilities
from truncgauss.probability.method import check_linear
from truncgauss.probability.separation import check_plan
from truncgauss.separation.lattice import lattice_points, shifted_uniforms
from truncgauss.separation.plan import Plan
from truncgauss.separation.planning import drawing_rank, solved_plans
from truncgauss.special.normal import truncated_quantile
from truncgauss.student import student
from truncgauss.words.arguments import answering, is_key
from truncgauss.words.earlier import warn
from truncgauss.words.names import check_choice

# The loop ends early after so many proposals with less than this fraction of them accepted.
MIN_PROPOSALS = 2**14
MIN_ACCEPTANCE = 1e-3
# Bounds of the number of proposals in a round, so that its arrays fit a cache. The draws of a key
# depend on them.
MIN_LANES, MAX_LANES, ROUND_SIZE = 32, 512, 2**16
MOST_PLANNED = 500  # coordinates of a field for which accept-reject is tried
MARGIN = 1e-9  # relative to the farthest limit, up to which limits leave no volume


@answering
class Draws(NamedTuple):
    """Draws, with their acceptance rate and effective sample size.

    Attributes:
        samples: shape (num_samples, ..., d).
        acceptance_rate: fraction of the proposals that were accepted, shape (...); 1 for direct
            draws without rejection, 0 where no bound of the weights was found.
        effective_sample_size: shape (...): the number of draws, unless some of them come from
            chains; then less, as estimated from the variance of the means of parallel chains. 0
            where there is no sample (NaN).
    """

    samples: Float[Array, " n *batch d"]
    acceptance_rate: Float[Array, "*batch"]
    effective_sample_size: Float[Array, "*batch"]


class Weighted(NamedTuple):
    """Draws with importance weights.

    Attributes:
        samples: shape (num_samples, ..., d).
        log_weights: shape (num_samples, ...); the mean of their exponentials is an unbiased
            estimate of the probability of the region.
    """

    samples: Float[Array, " n *batch d"]
    log_weights: Float[Array, " n *batch"]


@reported
@in_full_precision
def truncated_samples(
    key: PRNGKey,
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    num_samples: int,
    df: Real[ArrayLike, "*#batch"] = NORMAL,
    noncentral: str = "shifted",
) -> Float[Array, " n *batch d"]:
    r"""Independent exact draws from Normal(loc, covariance), or a t, truncated to a region.

    .. math:: X \sim \mathcal{N}(\mu, \Sigma) \quad \text{given} \quad X \in R

    One key gives the same draws on any number of devices. They have no derivative, except in one
    dimension and for independent coordinates of a `LowRank` covariance of rank 0, where they are
    differentiable in loc, covariance and limits. `weighted_samples` are differentiable always.

    Args:
        key: JAX random key.
        loc: mean, shape (d,), or (k, d) for k rows; leading axes of all inputs broadcast.
        covariance: matrix, shape (d, d), or `ScaleTril`, `LowRank`, `Markov`; may be singular.
        region: `Box`, `Polyhedron`, `Ball`, `Ellipsoid` or `Selection`, by which a draw is kept
            with the probability that its function gives.
        num_samples: draws for each row.
        df, noncentral: of a multivariate t, see `log_probability`. Its scale is drawn first, by
            inverting its distribution function given the region. That is interpolated between
            points, with an error of up to 1e-5, and has that of `log_probability` besides, 1e-3
            relative where it samples. Each draw given its scale is exact.

    Returns:
        Shape (num_samples, ..., d), never outside the region. NaN where fewer than one in a
        thousand proposals is accepted: for a ball or ellipsoid where log P is below -1e8, for a
        selection where P is below 1e-3; and, while tracing, where the region is empty.

    Warns:
        UserWarning: if some draws come from Hamiltonian chains, see `truncated_draws`; not while
            tracing.

    Raises:
        TypeError: for a key that is none, such as its seed.
        ValueError: if shapes disagree, num_samples is not positive, draws are differentiated, or
            limits contradict each other, so that the region is empty.

    References:
        Botev (2017), The normal law under linear restrictions: simulation and estimation via
        minimax tilting.

    Example:
        >>> region = tg.Box([8.0, 0.0], [jnp.inf, 1.0])
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> draws = tg.truncated_samples(jax.random.key(0), jnp.zeros(2), covariance, region, 1000)
        >>> draws.shape, bool(region.contains(draws).all())
        ((1000, 2), True)
    """
    check_order("truncated_samples", key, num_samples)
    if is_gaussian(df, noncentral):
        return truncated_draws(key, loc, covariance, region, num_samples).samples
    key, problem = checked_key(key), _checked(loc, covariance, region, num_samples)
    degrees = student.checked_df(df, noncentral, problem)
    problem, degrees = jax.tree.map(_without_derivative, (problem, degrees))
    first, second = jax.random.split(key)
    inner: Any = lambda rows: log_probability(
        rows.loc, rows.covariance, rows.region, Automatic(rtol=1e-3)
    )
    log_scale = student.drawn_log_scales(first, problem, degrees, noncentral, inner, num_samples)
    rows: Problem = student.at_scale(problem, log_scale, noncentral)
    draws = truncated_draws(second, *rows, 1).samples[0]
    if problem.region.is_box:
        anchor, unit = student.in_user_units(problem, log_scale)
        draws = problem.region.clipped(anchor + unit * draws)
    if is_concrete((problem, draws)):
        _refuse_empty(problem, np.asarray(np.isnan(draws).any(axis=(0, -1))))
    return draws


@reported
@in_full_precision
def truncated_draws(
    key: PRNGKey,
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    num_samples: int,
    plan: Plan | None = None,
) -> Draws:
    r"""The draws of `truncated_samples`, with acceptance rate and effective sample size.

    .. math:: P(\text{accept} \mid z) = \exp\{\psi(z, \mu) - \max_x \psi(x, \mu)\}

    Rounds of proposals are made until there are enough draws or, after at least 2^14 proposals,
    fewer than one in a thousand was accepted. If none was, as for a covariance that is singular but
    for rounding, draws from the Gaussian itself are tried, of which those in the region are taken:
    enough where P is above 1e-3. The remaining draws else come from Hamiltonian chains in the
    whitened coordinates, started at proposals resampled by weight, and `effective_sample_size` is
    below num_samples, under a trace too: the least of all coordinates, their mean and the log
    density. A `Box` under a `Directed` covariance of more than 500 coordinates has chains alone,
    from one point inside, with the sum of squares in place of the log density; that they are still
    on their way from there lowers the size.

    Args:
        key, loc, covariance, region, num_samples: see `truncated_samples`.
        plan: order and tilt, from `Separation(twisted=False).hold(loc, covariance, region).plan`,
            saves solving for them. A plan without a minimax tilt has no bound and is ignored.

    Raises:
        TypeError, ValueError: as `truncated_samples`, or for a plan of another problem.

    Example:
        >>> region = tg.Box([0.0, 0.0], jnp.inf)
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> draws = tg.truncated_draws(jax.random.key(0), jnp.zeros(2), covariance, region, 1000)
        >>> bool(draws.acceptance_rate > 0.9), float(draws.effective_sample_size)
        (True, 1000.0)
    """
    check_order("truncated_draws", key, num_samples)
    key, problem = checked_key(key), _checked(loc, covariance, region, num_samples)
    plan = _usable(plan, problem)
    others = () if plan is None else (plan,)
    if not _is_direct(problem):
        problem = jax.tree.map(_without_derivative, problem)
    known = is_concrete((problem, key, plan)) and 0 not in problem.batch_shape
    rank, alone = _rank_of_work(problem, plan), _is_large_field(problem)
    limited = region.is_linear and not _is_direct(problem) and not alone
    if known and plan is None and limited and rank > 0:
        others = (solved_plans(problem, True, False, rank),)
    inputs = problem, _Keys.of(key, problem), *others
    draws = _draws(num_samples, rank, alone or not known, *inputs)
    if known and not alone and np.any(_is_short(draws, num_samples)):
        # Chains are rarely needed, and are half of the program to compile.
        draws = _draws(num_samples, rank, True, *inputs)
    if known and not alone:
        _refuse_empty(problem, np.asarray(draws.effective_sample_size == 0))
    if known and not (region.is_linear or region.is_quadratic):
        check_probabilities(region, draws.samples)
    if not is_concrete(draws.effective_sample_size):
        return draws
    short = _is_short(draws, num_samples)
    if short.any():
        samples, *numbers = map(np.asarray, draws)
        rate, size = (x[short].min() for x in numbers)
        rest = "comes from Hamiltonian chains"
        if np.isnan(samples).any((0, -1))[short].all():
            rest = "is NaN: there are no points of a box or polyhedron to start chains from"
        warn(
            f"accept-reject could not make all {num_samples} draws of {int(short.sum())} row(s): "
            f"the smallest acceptance rate is {rate:.2g} (0: no bound of the weights was found"
            f"{' or sought' if alone else ''}). "
            f"The rest {rest}; the smallest effective sample size is {size:.0f}. For expectations "
            "use tg.weighted_samples; else report effective_sample_size with the draws."
        )
    return draws


@reported
@in_full_precision
def weighted_samples(
    key: PRNGKey,
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    num_samples: int,
    points: str = "random",
    plan: Plan | None = None,
) -> Weighted:
    r"""Draws with importance weights, both smooth in loc, covariance and limits for one key.

    .. math:: P = E[w], \qquad E[f(X) \mid X \in R] = E[f(x)\, w] / P

    They are all proposals of accept-reject with their weights, which are nearly equal where the
    acceptance rate is high. Gradients of weighted means estimate those of the expectations.

    Args:
        key, loc, covariance, region, num_samples: see `truncated_samples`; the region a
            `Box` or `Polyhedron`.
        points: "random" for independent proposals, or "lattice" for those of one randomly shifted
            lattice, whose means have much smaller errors; a power of two is best for num_samples.
        plan: see `truncated_draws`.

    Raises:
        TypeError: for a key that is none, such as its seed.
        ValueError: if shapes disagree, num_samples is not positive, the region is a `Ball` or
            `Ellipsoid`, or for other points.

    Example:
        >>> region = tg.Box([0.0, 0.0], jnp.inf)
        >>> covariance = jnp.array([[1.0, 0.5], [0.5, 1.0]])
        >>> draws = tg.weighted_samples(
        ...     jax.random.key(0), jnp.zeros(2), covariance, region, 4096, points="lattice"
        ... )
        >>> round(float(jnp.exp(draws.log_weights).mean()), 4)  # 1/3
        0.3333
    """
    check_order("weighted_samples", key, num_samples)
    key, problem = checked_key(key), _checked(loc, covariance, region, num_samples)
    check_choice(points, ("random", "lattice"), "points")
    check_linear("Separation", problem.region)
    plan = _usable(plan, problem)
    others = () if plan is None else (plan,)
    rank, keys = _rank_of_work(problem, plan), _Keys.of(key, problem)
    return _weighted(num_samples, rank, points == "lattice", problem, keys, *others)


# --- Keys and checks ------------------------------------------------------------------------------


@frozen_pytree
class _Keys(Batched):
    """A key for each row, so that rows are independent."""

    key: PRNGKey

    event_ranks = {"key": 0}

    @classmethod
    def of(cls, key: PRNGKey, problem: Problem) -> "_Keys":
        key = jnp.asarray(key)
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        if key.ndim:
            raise ValueError(f"key must be one key, got an array of shape {key.shape}; use vmap.")
        shape = problem.batch_shape
        rows = jnp.arange(int(np.prod(shape)))
        return cls(jax.vmap(partial(jax.random.fold_in, key))(rows).reshape(shape))


def check_order(function: str, key: Any, num_samples: Any) -> None:
    """Raise TypeError if the key is not the first of the arguments."""
    counted = isinstance(key, int) and not isinstance(num_samples, int)
    if counted or (is_key(num_samples) and not is_key(key)):
        raise TypeError(
            f"{function}: the order is (key, loc, covariance, region, num_samples), as in "
            f"tg.{function}(jax.random.key(0), loc, covariance, tg.Box(low, high), 1000)."
        )


def _checked(loc: Loc, covariance: CovarianceLike, region: Region, num_samples: int) -> Problem:
    whole = isinstance(num_samples, (int, np.integer)) and not isinstance(num_samples, bool)
    if not whole or num_samples < 1:
        order = " The order is (key, loc, covariance, region, num_samples)."
        more = order if isinstance(num_samples, Region) else ""
        if isinstance(num_samples, tuple | list):
            more = f" Draw {np.prod(num_samples)}, and reshape them."
        if isinstance(num_samples, float) and float(num_samples).is_integer():
            more = f" Write {int(num_samples)}."
        got = repr(num_samples)
        if not is_concrete(num_samples):
            got = "a traced value"
            more = ' It is a shape: under jax.jit name it in static_argnames="num_samples".'
        raise ValueError(f"num_samples must be a positive int, got {got}.{more}")
    problem = as_problem(loc, covariance, region)
    shape = *problem.batch_shape, problem.covariance.dimension
    needed = float(num_samples) * math.prod(shape) * problem.loc.dtype.itemsize
    if needed > 1e9 and needed > memory_of_host():
        raise ValueError(
            f"num_samples: {num_samples} draws take {needed / 1e9:.4g} GB, more than this machine "
            "has. Draw fewer at a time, each part with a key of its own (jax.random.split)."
        )
    return problem


def memory_of_host() -> float:
    """Bytes of memory of this machine, or of its device; infinity where that is not known."""
    stats = jax.devices()[0].memory_stats() or {}
    try:
        host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf
    return max(host, float(stats.get("bytes_limit", 0)))


def _refuse_empty(problem: Problem, absent: np.ndarray) -> None:
    """Raise ValueError if limits that no point meets are why a row, marked in `absent`, has no
    draws."""
    if not problem.region.is_linear:
        return
    parts: tuple[Any, ...] = LocRows(problem.loc), problem.covariance, problem.region
    whole = [part.broadcast_to(problem.batch_shape) for part in parts]
    for index in np.argwhere(absent):
        loc, covariance, region = jax.tree.map(itemgetter(tuple(index)), whole)
        limits = as_linear(region).limits_in(loc.loc, covariance)
        root = as_linear(region).rows(covariance.root)
        numbers = [np.asarray(x, float) for x in (limits.low, limits.high, limits.loc, root)]
        if any(np.isnan(x).any() for x in numbers):
            continue
        which = contradiction(*numbers)
        if which is not None:
            row = f" in row {index.tolist()}" if len(index) else ""
            raise ValueError(
                f"the region is empty{row}: no value of the Gaussian meets the constraints "
                f"{which.tolist()} of the {type(region).__name__} together, so that there is "
                "nothing to draw, and tg.log_probability is -inf."
            )


def contradiction(
    low: np.ndarray, high: np.ndarray, loc: np.ndarray, root: np.ndarray
) -> np.ndarray | None:
    """Indices of limits low <= loc + root @ z <= high that no z meets together; None if one does.

    The widest margin that a point can have is found by linear programming, in standard deviations.
    Limits of which it is 0, so that they leave no volume, are taken for a contradiction too.
    """
    spread = np.linalg.norm(root, axis=1)
    unit = np.where(spread > 0, spread, 1.0)
    a, b, rows = (low - loc) / unit, (high - loc) / unit, root / unit[:, None]
    index = np.concatenate([np.flatnonzero(a > -np.inf), np.flatnonzero(b < np.inf)])
    ends = np.concatenate([-a[a > -np.inf], b[b < np.inf]])
    left = np.concatenate([-rows[a > -np.inf], rows[b < np.inf]])
    size = max(1.0, np.abs(ends).max(initial=0.0))
    left = np.column_stack([left, np.ones(len(left))])
    aim = np.zeros(left.shape[1])
    aim[-1] = -1.0
    bounds = [(None, None)] * (len(aim) - 1) + [(None, 1.0)]
    best = scipy.optimize.linprog(aim, A_ub=left, b_ub=ends / size, bounds=bounds, method="highs")
    if best.status != 0 or -best.fun > MARGIN:
        return None
    return np.unique(index[best.ineqlin.marginals < -MARGIN])


def _usable(plan: Plan | None, problem: Problem) -> Plan | None:
    """The plan if it has a minimax tilt, which bounds the weights, else None.

    Raises:
        ValueError: if it was made for another problem.
    """
    if plan is not None and problem.region.is_linear:
        check_plan(plan, problem)
    return plan if isinstance(plan, Plan) and plan.twist is None else None


def _is_direct(problem: Problem) -> bool:
    """Whether coordinates are independent by the form of the covariance: drawn by quantiles."""
    _, covariance, region = problem
    one = covariance.dimension == 1 or covariance.num_factors == 0
    return one and region.is_box


def _is_large_field(problem: Problem) -> bool:
    """Whether all draws come from chains, without a plan or a dense factor."""
    _, covariance, region = problem
    return covariance.is_sparse and covariance.dimension > MOST_PLANNED and region.is_box


def _rank_of_work(problem: Problem, plan: Plan | None) -> int:
    if not problem.region.is_linear or _is_direct(problem) or _is_large_field(problem):
        return problem.covariance.dimension
    if plan is not None:
        return plan.tilt.shape[-1]
    return drawing_rank(problem)


@jax.custom_jvp
def _without_derivative(x: Array) -> Array:
    return x


@partial(_without_derivative.defjvp, symbolic_zeros=True)
def _without_derivative_jvp(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    if not isinstance(tangents[0], SymbolicZero):
        raise ValueError(
            "draws by accept-reject have no derivative. For gradients of expectations use "
            "tg.weighted_samples; for draws that are to stay fixed wrap the inputs in "
            "jax.lax.stop_gradient."
        )
    return primals[0], tangents[0]


def _is_short(draws: Draws, num_samples: int) -> np.ndarray:
    size, rate = np.asarray(draws.effective_sample_size), np.asarray(draws.acceptance_rate)
    return np.asarray((size < num_samples) & ~np.isnan(rate))


def _cost(num_samples: int, rank: int, chains: bool, problem: Problem, *others: Any) -> Cost:
    numbers = math.prod(problem.batch_shape) * num_samples * problem.covariance.dimension
    return Cost(16 * numbers)  # for each number drawn


@partial(Compiled, cost=_cost, static=(0, 1, 2))
def _draws(
    num_samples: int, rank: int, chains: bool, problem: Problem, keys: _Keys, *plan: Plan
) -> Draws:
    """Draws for every row; the rest that accept-reject could not make from `chains`, or NaN."""
    settings = num_samples, rank, chains

    def of_row(row: Problem, key: _Keys, *plan: Plan) -> Draws:
        if not row.region.is_linear:
            return _standard_draws(*settings, row, key.key)
        standard = standardized(*row)
        draws = _standard_draws(*settings, standard.problem, key.key, *plan)
        met = standard.known == 0
        return Draws(
            jnp.where(met, _in_user_units(draws.samples, standard), jnp.nan),
            jnp.where(met, draws.acceptance_rate, jnp.nan),
            jnp.where(met, draws.effective_sample_size, 0.0),
        )

    draws = over_rows(of_row, problem, keys, *plan)
    return draws._replace(samples=jnp.moveaxis(draws.samples, -2, 0))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _weighted(
    num_samples: int, rank: int, lattice: bool, problem: Problem, keys: _Keys, *plan: Plan
) -> Weighted:
    def of_row(row: Problem, key: _Keys, *plan: Plan) -> Weighted:
        standard = standardized(*row)
        row = standard.problem
        sampler = sampler_of(row, rank, *plan)
        count = sampler.num_uniforms
        if lattice:
            points = lattice_points(num_samples, count)
            uniforms = shifted_uniforms(points, key.key[None], row.loc.dtype)
        else:
            uniforms = fresh_uniforms(key.key, 0, (count, num_samples), row.loc.dtype)
        proposals = sampler.proposals(uniforms)
        log_weights = proposals.log_weights + (proposals.level + standard.known)
        return Weighted(_in_user_units(proposals.points.T, standard), log_weights)

    samples, log_weights = over_rows(of_row, problem, keys, *plan)
    return Weighted(jnp.moveaxis(samples, -2, 0), jnp.moveaxis(log_weights, -1, 0))


def _in_user_units(points: Array, standard: Standardized) -> Array:
    """Points of shape (n, d) in the user's units; coordinates of variance 0 are at their mean."""
    return standard.unit[None] * jnp.where(standard.still[None], standard.problem.loc[None], points)


def _standard_draws(
    num_samples: int, rank: int, chains: bool, row: Problem, key: Array, plan: Plan | None = None
) -> Draws:
    """Draws for one row, in units of standard deviations if its region is linear."""
    if _is_direct(row):  # each coordinate by its quantile function
        uniforms = fresh_uniforms(key, 0, (num_samples, len(row.loc)), row.loc.dtype)
        box, scale = as_linear(row.region), jnp.sqrt(row.covariance.variances)
        samples = truncated_quantile(uniforms, row.loc, scale, box.low, box.high)
        samples = jnp.where(box.low == box.high, box.low, samples)
        whole = jnp.asarray(num_samples, samples.dtype)
        return Draws(samples, jnp.ones((), samples.dtype), whole)
    if _is_large_field(row):
        samples, efficiency = field_chains(row, num_samples, key)
        rate, effective = jnp.zeros((), samples.dtype), num_samples * efficiency
    else:
        samples, rate, effective = _rejected(num_samples, rank, chains, row, key, plan)
    numbers = jnp.array([jnp.any(jnp.isnan(leaf)) for leaf in jax.tree.leaves(row)])
    proper = ~jnp.any(numbers) & row.region.is_proper
    return Draws(
        jnp.where(proper, samples, jnp.nan),
        jnp.where(proper, rate, jnp.nan),
        jnp.where(proper, effective, 0.0),
    )


def _rejected(
    num_samples: int, rank: int, chains: bool, row: Problem, key: Array, plan: Plan | None
) -> Draws:
    """Draws by accept-reject, the rest from chains."""
    sampler: Sampler | GaussianSampler
    if row.region.is_quadratic:
        sampler = quadratic_sampler_of(row, cast(QuadraticRegion, row.region))
    elif row.region.is_linear:
        sampler = sampler_of(row, rank, plan)
    else:
        sampler = plain_sampler_of(row)
    rounds = _accepted(sampler, num_samples, key)
    if chains and isinstance(sampler, Sampler):
        # Of a covariance that is singular but for rounding no path may meet all limits.
        others = _accepted(
            plain_sampler_of(row), num_samples, jax.random.fold_in(key, 1), rounds.num_accepted == 0
        )
        enough = others.num_accepted >= num_samples
        names = ("buffer", "num_accepted", "num_tried")
        pairs = {name: (getattr(others, name), getattr(rounds, name)) for name in names}
        rounds = rounds._replace(**{k: jnp.where(enough, *pair) for k, pair in pairs.items()})
        samples, effective = filled(sampler, rounds, num_samples, key)
    else:
        samples, effective = accepted(rounds, num_samples)
    rate = rounds.num_accepted.astype(samples.dtype) / rounds.num_tried.astype(samples.dtype)
    return Draws(samples, rate, effective)


# --- Rounds of proposals --------------------------------------------------------------------------


def _accepted(
    sampler: Sampler | GaussianSampler, num_samples: int, key: Array, needed: ArrayLike = True
) -> Rounds:
    """The state after rounds of proposals, if needed, until enough or nearly none are accepted.

    Rounding may leave the bound too low. A weight above it raises it by twice the excess, and the
    draws begin again (Caffo, Booth and Davis, 2002, Empirical supremum rejection sampling).
    """
    d, r, dtype = sampler.dimension, sampler.num_draws, sampler.bound.dtype
    lanes = min(num_samples // 8, max(MAX_LANES, ROUND_SIZE // d))
    lanes = max(MIN_LANES, lanes // 64 * 64)
    some = min(lanes, 16 * NUM_CHAINS)

    def unfinished(rounds: Rounds) -> Array:
        count, tried = rounds.num_accepted, rounds.num_tried
        hopeful = (tried < MIN_PROPOSALS) | (
            count.astype(float) >= MIN_ACCEPTANCE * tried.astype(float)
        )
        more = (count < num_samples) & hopeful & jnp.isfinite(rounds.bound)
        return jnp.asarray(needed) & ((tried == 0) | more)

    def one_round(rounds: Rounds) -> Rounds:
        uniforms = fresh_uniforms(key, rounds.num_rounds, (sampler.num_uniforms + 1, lanes), dtype)
        proposals = sampler.proposals(uniforms[1:])
        inside = sampler.inside(proposals.points)
        log_weights = jnp.where(inside, proposals.log_weights, -jnp.inf)
        gap = log_weights + (proposals.level - rounds.bound)
        excess = jnp.max(jnp.where(gap > 0, gap, 0.0))
        count, tried = (
            jnp.where(excess > 0, 0, x) for x in (rounds.num_accepted, rounds.num_tried)
        )
        accept = jnp.log(uniforms[0]) < gap - 2.0 * excess
        chosen = jnp.nonzero(accept, size=lanes, fill_value=0)[0]
        points = proposals.points[:, chosen].T
        met = jnp.any(log_weights[:some] > -jnp.inf)
        return Rounds(
            lax.dynamic_update_slice_in_dim(rounds.buffer, points, count, axis=0),
            count + jnp.sum(accept, dtype=jnp.int32),
            tried + lanes,
            rounds.num_rounds + 1,
            rounds.bound + 2.0 * excess,
            jnp.where(met, proposals.draws[:, :some], rounds.paths),
            jnp.where(met, log_weights[:some], rounds.log_weights),
        )

    zero = jnp.zeros((), jnp.int32)
    buffer, kept = jnp.zeros((num_samples + lanes, d), dtype), jnp.zeros((r, some), dtype)
    nothing = jnp.full(some, -jnp.inf, dtype)
    start = Rounds(buffer, zero, zero, zero, sampler.bound, kept, nothing)
    start = varying_like(start, jax.tree.leaves(sampler))
    return lax.while_loop(unfinished, one_round, start)
