r"""Multivariate t probabilities: Gaussian ones, integrated over the common scale.

With S = sqrt(chi^2_df / df) independent of Z ~ Normal(0, Sigma), the vector is X = loc + Z / S
("shifted") or X = (loc + Z) / S ("Kshirsagar"). Given S it is Gaussian, so

.. math:: P(X \in R) = \int f(t)\, P(X \in R \mid S = e^t)\, dt.

As a function of S the integrand is log-concave for convex R: it has one mode, about which the
trapezoidal rule converges geometrically, in the centre and in any tail. Its nodes are rows of a
batch for whichever method serves the Gaussian, so each has its own tilt.

For the first kind, a convex R and k limited variables the nodes follow from one number, the
Mahalanobis distance rho from loc to R. With Y = S^2 E[|X - loc|^2 | X in R, S] in that metric, the
slope of log P in t is k - Y, where rho S <= sqrt(Y) <= (rho S + sqrt(rho^2 S^2 + 4 k)) / 2: the
first since no point is nearer, the second by the divergence theorem about the nearest point. Hence
the slope of the log integrand, df (1 - S^2) + k - Y, is between

.. math:: df - S^2 (df + \rho^2) - S \rho \sqrt k \quad\text{and}\quad
    df + k - S^2 (df + \rho^2),

whose roots enclose the mode, and whose integrals bound what lies beyond the ends. At complex t + ia
the integrand is at most cos(2a)^(-(df + k)/2) times that of a real t, which bounds the error of the
trapezoidal rule for a given step.

References:
    Genz and Bretz (2009), Computation of Multivariate Normal and t Probabilities. Trefethen and
    Weideman (2014), The exponentially convergent trapezoidal rule. Hildreth (1957), A quadratic
    programming procedure: the nearest point.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.linalg import cho_solve

from truncgauss.arrays.compiling import Compiled, Cost, closed_form, of_rows
from truncgauss.arrays.keys import PRNGKey
from truncgauss.arrays.linalg import power_of_two, times_vector
from truncgauss.arrays.pytrees import as_dtype, as_float_input, values_of
from truncgauss.gaussian.problem import Estimate, LocRows, Problem, as_problem, over_rows
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.outside import pieces_outside
from truncgauss.gaussian.regions.region import GaussianLimits, as_linear
from truncgauss.probability.complement import sum_of_pieces
from truncgauss.probability.exact import Exact, applies
from truncgauss.probability.expectation_propagation import ExpectationPropagation
from truncgauss.probability.method import average
from truncgauss.probability.structure import independent_parts, structured
from truncgauss.special.logspace import log_sum_exp
from truncgauss.special.student_t import log_t_mass
from truncgauss.special.tails import fixed_interval, standardize
from truncgauss.words.names import check_choice

KINDS = "shifted", "Kshirsagar"
LARGEST_DF = 1e30  # from here on the scale is 1 to rounding
SERIES = tuple(1.0 / math.factorial(n) for n in range(2, 18))
# Logs of the relative size of the integrand at the ends, of the relative error of the rule, and the
# most nodes: where the Gaussian is exact, and where it is sampled.
EXACT, SAMPLED = (38.0, 34.0, 2**15), (14.0, 12.0, 512)
UNKNOWN_DF = 2.0  # by which the number of nodes is chosen where df is traced
FEW = 16, 64  # dimensions and limits up to which nodes follow from the distance
FARTHEST = 2.0**-20  # of the largest number: a distance that is not exceeded
NUM_STEPS, NUM_HALVINGS = 30, 7
SETTLED = 1e-3  # of the reach: a step by which the mode is known well enough
BETWEEN = 32  # points of a grid for draws, from one node to the next


def checked_df(df: Any, kind: str, problem: Problem, outside: bool = False) -> Array:
    """The degrees of freedom as an array of the problem's dtype.

    Raises:
        ValueError: for degrees of freedom that are not positive, an unknown kind, a `Selection`, or
            an `Outside`, unless it is allowed.
    """
    number = isinstance(df, int | float)  # which a trace leaves concrete
    array: Any = as_dtype(as_float_input(np.array(df) if number else df, "df"), problem.loc.dtype)
    values = values_of(array)
    if values is not None and not bool(np.all(np.asarray(values) > 0)):
        least = np.min(np.asarray(values))
        normal = " For the normal distribution leave it out." if least == 0 else ""
        raise ValueError(f"df, the degrees of freedom, must be positive, got {least}.{normal}")
    check_choice(kind, KINDS, "noncentral")
    region = problem.region
    inside = region.enclosed if outside else region
    if not (inside.is_linear or inside.is_quadratic):
        also = ", or the Outside of one" if outside else ""
        raise ValueError(
            f"df applies to a Box, Polyhedron, Ball or Ellipsoid{also}, got a "
            f"{type(region).__name__}. Draw from the t distribution and average its function "
            "instead."
        )
    return array


def log_density(log_scale: Array, df: Array) -> Array:
    """The log density of t = log S, accurate for any df: with a = df / 2,
    log(2 a^a / Gamma(a)) + a (2 t - exp(2 t))."""
    df = jnp.minimum(df, LARGEST_DF)
    half, x = 0.5 * df, 2.0 * log_scale
    # x + 1 - exp(x) by its series, where the difference would lose digits.
    few = jnp.where(jnp.abs(x) < 0.5, x, 0.0)
    series = -few * few * jnp.polyval(jnp.array(SERIES[::-1], x.dtype), few)
    exponent = jnp.where(jnp.abs(x) < 0.5, series, x + 1.0 - jnp.exp(x))
    large = jnp.maximum(half, 16.0)
    inverse = 1.0 / large
    square = inverse * inverse
    binet = inverse / 12 - inverse * square * (1 / 360 - square * (1 / 1260 - square / 1680))
    binet = binet + inverse * square**4 * (1 / 1188 - square * 691 / 360360)
    small = jnp.minimum(half, 16.0)
    direct = small * jnp.log(small) - small - jax.scipy.special.gammaln(small) + math.log(2.0)
    stirling = math.log(2.0) + 0.5 * jnp.log(large / (2.0 * math.pi)) - binet
    return jnp.where(half > 16.0, stirling, direct) + half * exponent


def log_kernel(square: Array, df: Array, d: int) -> Array:
    """The log density of a t in d dimensions at a Mahalanobis distance, of that square, times
    |2 pi covariance|^(1/2): log Gamma(a + d / 2) - log Gamma(a) - d / 2 log a, a = df / 2, less
    (a + d / 2) log(1 + square / df). The first three by `log_density`, without cancellation."""
    df, extra = jnp.minimum(df, LARGEST_DF), 0.5 * d
    both, zero = 0.5 * df + extra, jnp.zeros_like(df)
    ratio = log_density(zero, df) - log_density(zero, 2.0 * both)
    ratio = ratio + both * jnp.log1p(2.0 * extra / df) - extra
    return ratio - both * jnp.log1p(square / df)


@partial(Compiled, cost=closed_form, static=(2,))
def at_scale(problem: Problem, log_scale: Array, kind: str) -> Problem:
    """The Gaussian problem given the scale; log scales have axes before those of the problem.

    For a box it is that of S (X - anchor) / unit, see `units_of`: one covariance for all scales,
    whose structure is recognised, and limits that are multiplied without losing the digits of a
    difference. For other regions the covariance is divided, by which narrow limits keep theirs.
    """
    loc, covariance, region = problem
    is_divided = kind == "Kshirsagar"
    if region.is_box:
        anchor, unit = units_of(problem)
        # In two steps, since the scale alone may underflow where limits are far. Where its root
        # would, as of fewer than .03 degrees of freedom, derivatives would be NaN, and no limit
        # differs from 0.
        least = 1.96 * math.log(float(jnp.finfo(log_scale.dtype).tiny))
        root = jnp.exp(0.5 * jnp.maximum(log_scale, least))[..., None]
        limits = as_linear(region)
        low, high, _ = standardize(limits.low, limits.high, anchor, unit)
        covariance = covariance.scaled(1.0 / unit)
        vectors = loc, anchor, unit, low, high
        loc, anchor, unit, low, high = (lax.broadcast_to_rank(x, root.ndim) for x in vectors)
        mean = loc / unit - anchor / unit * root * root
        mean = mean if is_divided else (loc - anchor) / unit * root * root
        box = Box(low * root * root, high * root * root)
        return Problem(mean, covariance, box)
    scale = jnp.exp(log_scale)[..., None]
    mean = loc / scale if is_divided else loc
    by = jnp.broadcast_to(1.0 / scale, (*scale.shape[:-1], loc.shape[-1]))
    return Problem(mean, covariance.scaled(by), region)


def units_of(problem: Problem) -> tuple[Array, Array]:
    """An anchor and units, shape (..., d), without derivatives: X = anchor + unit * x of a box.

    The anchor has the finite limits nearer to the mean for its coordinates. So the other limit is
    the width, and no product of it with a scale has to be subtracted from another: an interval of
    1e-13, or one far from 0, keeps its digits. Units are powers of two, free of rounding.
    """
    loc, covariance, region = lax.stop_gradient(problem)
    if not region.is_box:
        return jnp.zeros_like(loc), jnp.ones_like(loc)
    low, high = as_linear(region).low, as_linear(region).high
    nearer = jnp.where(loc - low <= high - loc, low, high)
    anchor = jnp.where(jnp.isfinite(nearer), nearer, loc)
    return anchor, power_of_two(covariance.variances)


def in_user_units(problem: Problem, log_scale: Array) -> tuple[Array, Array]:
    """The point and units by which X is found from the variable of `at_scale`."""
    rank = log_scale.ndim + 1
    anchor, unit = (lax.broadcast_to_rank(x, rank) for x in units_of(problem))
    return anchor, unit / jnp.exp(log_scale)[..., None] if problem.region.is_box else unit


class ScaleNodes(NamedTuple):
    """Equidistant nodes of the log scale, along a first axis, their distance, and a bound of the
    relative error of their rule, where their number was not chosen for the degrees of freedom."""

    log_scale: Array
    step: Array
    error: Array | None = None


def nodes_of(problem: Problem, df: Array, kind: str, moment: int = 0) -> ScaleNodes:
    """Nodes for every row: from the distance to a box or a polyhedron of few dimensions, else about
    the mode, which is found by the exact Gaussian probability or by expectation propagation;
    `moment` of X are to be integrated besides."""
    known = values_of(df)
    problem, df = lax.stop_gradient(problem), lax.stop_gradient(df)
    region, d = problem.region, problem.loc.shape[-1]
    parts = [part.problem for part in independent_parts(problem)]
    exact = all(applies(part.covariance, part.region) for part in parts)
    count = as_linear(region).num_constraints if region.is_linear else math.inf
    direct = kind == "shifted" and d <= FEW[0] and count <= FEW[1]
    if not direct:
        problem = recognised(problem)
    decay, digits, most = EXACT if exact else SAMPLED
    decay = min(decay, 2.0 - math.log(float(jnp.finfo(problem.loc.dtype).eps)))
    least = UNKNOWN_DF if known is None else float(np.min(np.asarray(known), initial=LARGEST_DF))
    lower = max(least - moment, 0.25 * least)
    length = sum(_reach(decay, np.array(lower), np))
    if direct:
        length = sum(_beyond(decay, np.array(least), lower, d, np))
        ends = _mode_between(1.0, 1.0, np.array(least), lower, d, np)  # the farthest apart
        length = length + ends[1] - ends[0]
    wanted = length * _density(least + d, min(digits, decay))
    if values_of(problem) is not None:  # by factors of sqrt(2), so that few programs are compiled
        wanted = 2.0 ** (math.ceil(2.0 * math.log2(wanted)) / 2.0)
    count = int(min(most, math.ceil(wanted)))
    method_is_exact = applies(problem.covariance, region)
    nodes: ScaleNodes = _nodes(problem, df, kind, method_is_exact, direct, decay, moment, count)
    if kind == "shifted" and (known is None or wanted > most):
        # The bound 2 exp(-2 pi a / h) cos(2a)^(-order / 2) of the relative error of a rule of step
        # h, at the a of the smallest, where tan(2a) = 2 pi / (h order); order is df + k. What half
        # of the nodes would change shows the error by its square, unless this change happens to be
        # near 0: of 369 intervals with a traced df from .3 to 3, it was up to 560 times too small.
        order = jnp.minimum(df, LARGEST_DF) + d
        slope = 2.0 * math.pi / (nodes.step * order)
        log_bound = -0.25 * order * (2.0 * slope * jnp.arctan(slope) - jnp.log1p(slope**2))
        return nodes._replace(error=2.0 * jnp.exp(log_bound))
    return nodes


def _density(order: float, digits: float) -> float:
    """Nodes for each unit of log scale by which the trapezoidal rule errs by exp(-digits) at most,
    and half of them by its root, nearly; see the bound at the top, order being df + k."""
    angle = np.geomspace(1e-18, 0.25 * math.pi * (1.0 - 1e-4), 4000)
    growth = -0.25 * order * np.log1p(-np.square(np.sin(2.0 * angle)))
    whole, half = (np.min((x + growth) / (2.0 * math.pi * angle)) for x in (digits, 0.42 * digits))
    return float(max(whole, 2.0 * half))


def _cost_of_nodes(
    problem: Problem, df: Array, kind: str, exact: bool, direct: bool, *others: Any
) -> Cost:
    return of_rows(problem, df)._replace(loops=not (exact or direct))


@partial(Compiled, cost=_cost_of_nodes, static=(2, 3, 4, 5, 6, 7))
def _nodes(
    problem: Problem,
    df: Array,
    kind: str,
    exact: bool,
    direct: bool,
    decay: float,
    moment: int,
    count: int,
) -> ScaleNodes:
    method = Exact() if exact else ExpectationPropagation()

    def of_row(row: Problem, degrees: LocRows) -> tuple[Array, Array]:
        if direct:
            return _direct_support(row, degrees.loc[0], decay, moment)
        return _support(row, degrees.loc[0], kind, method, decay, moment)

    low, high = over_rows(of_row, problem, LocRows(df[..., None]))
    fractions = jnp.linspace(0.0, 1.0, count, dtype=low.dtype)
    fractions = fractions.reshape(-1, *(1,) * low.ndim)
    return ScaleNodes(low + (high - low) * fractions, (high - low) / (count - 1))


def recognised(problem: Problem) -> Problem:
    """The problem with the structure of its matrix, where it is known and has one."""
    if not problem.region.is_box:
        return problem
    return problem._replace(covariance=structured(problem.covariance))


def _reach(decay: float, df: Any, numbers: Any = jnp) -> tuple[Any, Any]:
    """The distances from the mode by which the density of the log scale has fallen far enough."""
    spread = (decay / df) ** 0.5
    right = numbers.minimum(1.2 * spread, 1.0 + 0.5 * numbers.log1p(2.0 * decay / df))
    return 1.1 * decay / df + 2.0 * spread, right


def _beyond(decay: float, df: Any, lower: Any, k: int, numbers: Any = jnp) -> tuple[Any, Any]:
    """The distances from the enclosed mode by which the integrand has fallen by exp(-decay).

    To the left, where the slope is at least `lower` (1 - exp(-x)) at the distance x, and to the
    right, where it is at most (df + k) (1 - exp(2 x)).
    """
    left, right = decay / lower, decay / (df + k)
    curved = numbers.minimum(right**0.5, 0.5 + 0.5 * numbers.log1p(2.0 * right))
    return left + (2.0 * left) ** 0.5, curved


def _mode_between(
    share: Any, total: Any, df: Any, lower: Any, k: int, numbers: Any = jnp
) -> tuple[Any, Any]:
    """Log scales that enclose the mode for k limited variables.

    Args:
        share, total: the distance rho over `total`, which is sqrt(df + rho^2).
        df, lower: degrees of freedom, and less those that moments take.
        k, numbers: number of limited variables; numpy or jax.numpy.
    """
    root = k**0.5 * share + numbers.sqrt(k * share * share + 4.0 * lower)
    return numbers.log(2.0 * lower / total / root), numbers.log(numbers.sqrt(df + k) / total)


def _direct_support(row: Problem, df: Array, decay: float, moment: int) -> tuple[Array, Array]:
    """The interval of the log scale outside of which the integrand is negligible: see the top."""
    df = jnp.minimum(df, LARGEST_DF)
    lower, k = jnp.maximum(df - moment, 0.25 * df), row.loc.shape[-1]
    distance = distance_to(row.limits)
    total = jnp.hypot(distance, jnp.sqrt(df))
    ends = _mode_between(distance / total, total, df, lower, k)
    left, right = _beyond(decay, df, lower, k)
    low, high = ends[0] - left, ends[1] + right
    if row.region.is_box:
        return low, high
    # The covariance is divided by the squared scale, and must not overflow.
    bound = 0.4 * math.log(float(jnp.finfo(df.dtype).max))
    return jnp.where(ends[0] < -bound, jnp.nan, jnp.maximum(low, -bound)), high


def _in_deviations(limits: GaussianLimits) -> tuple[Array, Array, Array]:
    """Limits in standard deviations from the mean, infinite where that is 0, and these, or 1."""
    variances = jnp.diagonal(limits.covariance)
    limited = variances > 0
    scale = jnp.sqrt(jnp.where(limited, variances, 1.0))
    low, high, _ = fixed_interval(limits.low, limits.high, limits.loc, scale)
    return jnp.where(limited, low, -jnp.inf), jnp.where(limited, high, jnp.inf), scale


def farthest_limit(limits: GaussianLimits) -> Array:
    """The largest distance of an interval from its variable's mean, in standard deviations."""
    low, high, _ = _in_deviations(limits)
    largest = FARTHEST * float(jnp.finfo(low.dtype).max)
    return jnp.clip(jnp.max(jnp.maximum(low, -high)), 0.0, largest)


def distance_to(limits: GaussianLimits) -> Array:
    """The Mahalanobis distance from the mean to the point within limits that is nearest to it.

    With C the correlations and a, b the limits in standard deviations, the nearest point is C f for
    the forces f that maximise the dual, 2 sum(max(f, 0) a - max(-f, 0) b) - f' C f. Sweeps over
    single forces, by Hildreth, find which limits are met with equality, and a step of Newton solves
    for the forces of these, shortened where one would change its sign. Both increase the dual.
    """
    low, high, scale = _in_deviations(limits)
    farthest = farthest_limit(limits)
    unit = jnp.where(farthest > 0, farthest, 1.0)
    low, high = low / unit, high / unit
    matrix = limits.covariance / scale[:, None] / scale[None, :]
    count = len(low)
    if count == 1:
        return farthest
    identity = jnp.eye(count, dtype=scale.dtype)

    def swept(i: Array, force: Array) -> Array:
        rest = jnp.sum(matrix[i] * force) - force[i]
        return force.at[i].set(jnp.maximum(low[i] - rest, 0.0) - jnp.maximum(rest - high[i], 0.0))

    def improved(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        steps, force, _ = state
        force = lax.fori_loop(0, count, swept, force)
        active = force != 0
        limit = jnp.where(active, jnp.where(force > 0, low, high), 0.0)
        some = jnp.where(active[:, None] & active[None, :], matrix, identity)
        solved = cho_solve((jnp.linalg.cholesky(some), True), limit)
        turned = force * solved < 0
        length = jnp.min(jnp.where(turned, force / jnp.where(turned, force - solved, 1.0), 1.0))
        moved = force + length * (solved - force)
        moved = jnp.where(force * moved > 0, moved, 0.0)
        force = jnp.where(jnp.all(jnp.isfinite(solved)), moved, force)
        point = times_vector(matrix, force)
        gap = jnp.where(active, jnp.abs(point - limit), jnp.maximum(low - point, point - high))
        return steps + 1, force, jnp.max(gap)

    start = jnp.zeros((), int), jnp.zeros_like(scale), jnp.full_like(unit, jnp.inf)
    unfinished = lambda state: (state[0] < 8 * count + 8) & (state[2] > 1e-4) & (farthest > 0)
    _, force, _ = lax.while_loop(unfinished, improved, start)
    size = jnp.sqrt(jnp.sum(force * times_vector(matrix, force)))
    largest = FARTHEST * float(jnp.finfo(size.dtype).max)
    return jnp.where(jnp.isfinite(size), jnp.minimum(size * farthest, largest), farthest)


def _support(
    row: Problem, df: Array, kind: str, method: Any, decay: float, moment: int
) -> tuple[Array, Array]:
    """The interval of the log scale outside of which the integrand is negligible.

    First the mode is approached, then the ends, in one loop, since most of the time of compilation
    goes into the Gaussian. The mode is the root of df (1 - exp(2 t)) + r, with r the slope of the
    Gaussian log probability. In most regimes r is a constant or a multiple of exp(2 t), and one
    step suffices.
    """
    key = jax.random.key(0)
    df = jnp.minimum(df, LARGEST_DF)
    bound = 0.4 * math.log(float(jnp.finfo(df.dtype).max))
    apart = float(jnp.finfo(df.dtype).eps) ** (1 / 3) * jnp.array([-1.0, 1.0], df.dtype)

    def gaussian(log_scale: Array) -> Array:
        return average(method, at_scale(row, log_scale, kind), key).log_prob

    # Broken approximations leave the whole reach, which costs nodes, and shows in the error.
    reach = jnp.stack(_reach(decay, jnp.maximum(df - moment, 0.25 * df))) * jnp.sign(apart)

    def advanced(search: Any) -> Any:
        # The mode with its bracket, and distances of the ends from it, two each, inside and outside
        # of where the log integrand is `enough`.
        steps, mode, low, high, inner, outer, enough = search
        middle = 0.5 * (inner + outer)
        distance = jnp.where(steps < NUM_STEPS, apart, jnp.where(steps > NUM_STEPS, middle, 0.0))
        points = mode + distance
        values = jax.vmap(gaussian)(points)
        r = (values[1] - values[0]) / (points[1] - points[0])
        r = jnp.where(jnp.isfinite(r), r, 0.0)
        rise = 0.5 * jnp.log1p(jnp.maximum(r, 0.0) / df)
        target = rise - 0.5 * jnp.log1p(jnp.maximum(-r, 0.0) / df * jnp.exp(-2.0 * mode))
        above = jnp.where(target > mode, mode, low), jnp.where(target > mode, high, mode)
        inside = (target >= above[0]) & (target <= above[1])
        step = jnp.where(inside, target, 0.5 * (above[0] + above[1]))
        sizes = log_density(points, df) + values - moment * jnp.minimum(distance, 0.0)
        below = sizes < enough
        ends = jnp.where(below, inner, middle), jnp.where(below, middle, outer)
        settled = jnp.abs(step - mode) < SETTLED * reach[1]
        following = jnp.where(settled, NUM_STEPS, steps + 1)
        moves = following, step, *above, inner, outer, enough
        halves = steps + 1, mode, low, high, *ends, enough
        reached = steps + 1, mode, low, high, inner, outer, sizes[0] - decay
        others = jax.tree.map(partial(jnp.where, steps > NUM_STEPS), halves, reached)
        return jax.tree.map(partial(jnp.where, steps < NUM_STEPS), moves, others)

    steps, zero = jnp.zeros_like(df, int), jnp.zeros_like(df)
    # Where a limit is far, log P at a scale of 1 may be -inf.
    far = farthest_limit(row.limits) if row.region.is_box else zero
    center = -0.5 * jnp.log1p(jnp.square(far / jnp.sqrt(df)))
    start = steps, center, center - bound, zero + bound, 0.0 * reach, reach, zero
    unfinished = lambda search: search[0] <= NUM_STEPS + NUM_HALVINGS
    _, mode, *_, outer, enough = lax.while_loop(unfinished, advanced, start)
    ends = mode + outer
    if not row.region.is_box:  # no region of another kind is empty: too far to be found
        ends = jnp.where(enough == -jnp.inf, jnp.nan, ends)
    return jnp.maximum(ends[0], center - bound), jnp.minimum(ends[1], bound)


def log_terms(nodes: ScaleNodes, df: Array) -> Array:
    return log_density(nodes.log_scale, df) + jnp.log(nodes.step)


@partial(Compiled, cost=closed_form)
def mixed(nodes: ScaleNodes, df: Array, conditional: Estimate) -> Estimate:
    """The log probability from those given the scale, along the first axis, with its error.

    The errors of all nodes may have one sign, as they share a key. That of the rule is the square
    of what half of the nodes would change, its bound if the nodes have one, and what may lie beyond
    the ends.
    """
    terms = log_terms(nodes, df) + conditional.log_prob
    total = log_sum_exp(terms, axis=0)
    log_prob = jnp.where(jnp.isnan(conditional.log_prob).any(0), jnp.nan, total)
    shares = lax.stop_gradient(jnp.exp(terms - jnp.where(jnp.isfinite(total), total, 0.0)))
    sampled = jnp.sum(jnp.where(shares > 1e-9, shares * conditional.stderr, 0.0), axis=0)
    half = 2.0 * shares[::2].sum(0)
    beyond = shares[0] / (nodes.step * jnp.minimum(df, LARGEST_DF)) + shares[-1]
    error = jnp.square(half - 1.0) + beyond
    if nodes.error is not None:
        error = error + nodes.error
    negligible = 1e4 * float(jnp.finfo(total.dtype).eps)
    error = lax.stop_gradient(jnp.where(error > negligible, error, 0.0))
    stderr = jnp.where(error > 0, jnp.hypot(sampled, error), sampled)
    stderr = jnp.where(total == -jnp.inf, sampled, stderr)
    return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, stderr))


def log_probability(
    problem: Problem, df: Any, kind: str, gaussian: Callable[[Problem], Estimate]
) -> Estimate:
    """The log probability of a region under a multivariate t.

    Args:
        problem: loc, scale matrix and region, with any leading axes.
        df: degrees of freedom, which broadcast with them.
        kind: "shifted" or "Kshirsagar".
        gaussian: the estimates for the rows of a Gaussian problem.

    Raises:
        ValueError: see `checked_df`.
    """
    df, region = checked_df(df, kind, problem, outside=True), problem.region
    if region.is_outside and region.enclosed.is_linear:
        rows = np.broadcast_shapes(problem.batch_shape, df.shape)
        pieces, empty = pieces_outside(as_linear(region.enclosed.broadcast_to(rows)))
        parts = as_problem(problem.loc, problem.covariance, pieces)
        return sum_of_pieces(log_probability(parts, df, kind, gaussian), empty)
    one = problem.loc.shape[-1] == 1 and region.is_box and kind == "shifted"
    if one and values_of(df) is None:  # for which no number of nodes is chosen
        return of_one_variable(problem, df)
    nodes = nodes_of(problem, df, kind)

    def at(log_scale: Array) -> Estimate:
        return gaussian(at_scale(problem, log_scale, kind))

    if values_of(problem) is None and problem.loc.shape[-1] > 2:
        # One after the other: the program for many rows compiles for half as long again.
        return mixed(nodes, df, lax.map(at, nodes.log_scale))
    return mixed(nodes, df, at(nodes.log_scale))


def of_one_variable(problem: Problem, df: Array) -> Estimate:
    """The log probability of an interval under Student's t, by `log_t_mass`."""
    loc, covariance, box = *problem[:2], as_linear(problem.region)
    scale = jnp.sqrt(covariance.variances)
    interval = standardize(*(x[..., 0] for x in (box.low, box.high, loc, scale)))
    log_prob = log_t_mass(jnp.minimum(df, LARGEST_DF), interval)
    return Estimate(log_prob, lax.stop_gradient(jnp.where(jnp.isnan(log_prob), jnp.nan, 0.0)))


def drawn_log_scales(
    key: PRNGKey,
    problem: Problem,
    df: Array,
    kind: str,
    gaussian: Callable[[Problem], Estimate],
    num_samples: int,
) -> Array:
    """Draws of t = log S given that X is in the region, shape (num_samples, ...).

    They invert the distribution function on a grid, in which log P given S is interpolated by
    cubics; its error there is below that of P.
    """
    nodes = nodes_of(problem, df, kind)
    inside = gaussian(at_scale(problem, nodes.log_scale, kind)).log_prob
    ends = 2.0 * inside[:1] - inside[1:2], 2.0 * inside[-1:] - inside[-2:-1]
    padded = jnp.concatenate([ends[0], inside, ends[1]])
    fractions = np.arange(BETWEEN) / BETWEEN
    points, count = np.array([-1.0, 0.0, 1.0, 2.0]), len(inside) - 1
    others = [np.delete(points, k) for k in range(4)]
    cubics = [np.prod((fractions[:, None] - x) / (p - x), -1) for p, x in zip(points, others)]
    shape = (BETWEEN, 1, *(1,) * (inside.ndim - 1))
    log_prob = sum(c.reshape(shape) * padded[None, k : k + count] for k, c in enumerate(cubics))
    steps = jnp.asarray(fractions, inside.dtype).reshape(shape) * nodes.step
    log_scale = nodes.log_scale[None, :-1] + steps
    terms = (log_density(log_scale, df) + log_prob).swapaxes(0, 1)
    terms = terms.reshape(-1, math.prod(inside.shape[1:]))
    sizes = jnp.exp(jnp.maximum(terms - terms.max(0, keepdims=True), -1e3))  # NaN where P is 0
    masses = jnp.cumsum(0.5 * (sizes[1:] + sizes[:-1]), axis=0)
    shares = jnp.concatenate([jnp.zeros_like(masses[:1]), masses]) / masses[-1:]
    uniforms = jax.random.uniform(key, (num_samples, sizes.shape[1]), inside.dtype)
    grid = log_scale.swapaxes(0, 1).reshape(sizes.shape)
    draws = jax.vmap(jnp.interp, in_axes=1, out_axes=1)(uniforms, shares, grid)
    return draws.reshape(num_samples, *inside.shape[1:])
