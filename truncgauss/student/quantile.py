r"""The level at which a family of regions holds a given probability.

The log odds of the region are an increasing function of the level. Their root is bracketed and
found by secants, with the nodes, order, tilt and random key held: the function is then smooth, and
the quantile deterministic. Its derivatives are those of the implicit function, dq = -dF / F_q.

Reference:
    Brent (1973), Algorithms for Minimization without Derivatives, for the choice between a secant
    and half of the bracket.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy.special import ndtri
from jax.typing import ArrayLike
from jaxtyping import Float, Real

from truncgauss.arrays.batches import joined
from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.linalg import in_full_precision, ranks_of
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import (
    as_dtype,
    as_float_array,
    as_float_input,
    frozen_pytree,
    is_concrete,
    static_field,
    values_of,
)
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, as_covariance
from truncgauss.gaussian.problem import (
    NORMAL,
    CovarianceLike,
    Estimate,
    Loc,
    Problem,
    as_problem,
    is_gaussian,
    over_rows,
)
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.outside import pieces_outside
from truncgauss.gaussian.regions.polyhedron import Polyhedron
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.blocks import at_held_matrix
from truncgauss.probability.complement import sum_of_pieces
from truncgauss.probability.exact import applies
from truncgauss.probability.method import Method, estimate
from truncgauss.probability.structure import independent_parts, structured
from truncgauss.special.intervals import nan_slope
from truncgauss.special.logspace import log1mexp
from truncgauss.student import student
from truncgauss.student.directions import (
    NUM_REPLICATES,
    Directions,
    directions_to,
    is_served,
    log_outside,
)
from truncgauss.student.radial import LargestCoordinate, radial_quantile, range_of
from truncgauss.words.arguments import refuses_arithmetic
from truncgauss.words.names import check_choice
from truncgauss.words.numbers import of_percent

TAILS = "lower", "upper", "both"
MOST_OUTSIDE = 16  # dimensions up to which the outside is a sum of boxes
COMMON = 0.99  # up to which the distance of an exact probability from 1 has all but two digits
RARE = 1e-3  # of a smaller probability outside that sum is also sampled
MOST_STEPS, FIRST = 100, 2.0  # the most steps, and the length of the first one
NEAR = 0.05  # the length from a pilot
FEW_ROWS = 64  # of which each is served by the programs of one
MOST_SEPARATED = 64  # dimensions up to which full covariances are served by separation of variables
LOG_HALF = -math.log(2.0)
FAR = 0.9  # probabilities above which directions are as accurate
MARGIN = 0.1  # standard deviations
PILOT = 0.02  # of the log odds, by a function whose nodes and plan change with the level


@refuses_arithmetic
class Quantile(NamedTuple):
    """A quantile and its standard error.

    Attributes:
        value: the level, shape of the broadcast leading axes.
        stderr: its standard error, that of the probability over the density: 0 exact to rounding,
            nan unknown. It carries no gradient.
    """

    value: Float[Array, "*batch"]
    stderr: Float[Array, "*batch"]


@reported
@in_full_precision
def quantile(
    probability: Real[ArrayLike, "*#batch"],
    loc: Loc,
    covariance: CovarianceLike,
    tail: str = "lower",
    df: Real[ArrayLike, "*#batch"] = NORMAL,
    region: Callable[[Array], Region] | None = None,
    method: Method = Automatic(),
    key: PRNGKey | None = None,
    noncentral: str = "shifted",
) -> Quantile:
    r"""The equicoordinate quantile of a Gaussian or t vector, or the level of a family of regions.

    .. math:: P(X_1 \le q, \dots, X_d \le q) = p \ \text{(lower)}, \quad
        P(X_1 \ge q, \dots, X_d \ge q) = p \ \text{(upper)}, \quad
        P(|X_1| \le q, \dots, |X_d| \le q) = p \ \text{(both)}

    It is differentiable in probability, loc, covariance and df, and works under `jit` and `vmap`.
    Called with numbers it recognises structure as `log_probability` does: equal correlations and
    Dunnett's are exact in any dimension, and so are singular covariances of rank one and two. If
    many coordinates have no structure, the sampling error of `method` at its first number of points
    is reported; `tg.Separation(2**15)` takes more. Outside of a trace, centred vectors of more than
    64 coordinates, of a singular covariance, as Tukey's pairs of four groups, or of a probability
    above 0.9 are sampled by 65,536 directions with exact radii, and under `jit` Gaussian vectors of
    up to 256 coordinates (64 in float32) and a probability above 0.9 by 16,384. Elsewhere under
    `jit` sampled probabilities nearer to 1 than their error have no level: the value is NaN.

    Args:
        probability: p between 0 and 1, shape (...). In up to 16 dimensions the distance of p from 1
            keeps its relative accuracy where the probability is exact, or p above 0.999.
        loc: mean, shape (..., d).
        covariance: matrix, shape (..., d, d), or one of the forms such as `LowRank`; of a t the
            scale matrix.
        tail: "lower", "upper" or "both".
        df: degrees of freedom of a multivariate t; inf is the Gaussian.
        region: instead of a tail, a function of a positive level, of the shape (...), that returns
            the region, which grows with it: `lambda r: tg.Ball(center, r)`.
        method, key, noncentral: see `log_probability`.

    Returns:
        Quantile(value, stderr), each of the broadcast leading shape. The value is NaN where no
        level holds the probability, and infinite beyond the largest number.

    Raises:
        ValueError: for an unknown tail, or a probability that is not between 0 and 1.

    References:
        Genz and Bretz (2009), Computation of Multivariate Normal and t Probabilities. Bornkamp
        (2018), Calculating quantiles of noisy distribution functions using local linear
        regressions, for another approach.

    Example:
        >>> result = tg.quantile(0.95, [0.0, 0.0], jnp.eye(2), tail="both")
        >>> result.value.round(9), float(result.stderr)
        (Array(2.23647665, dtype=float64), 0.0)
        >>> radius = tg.quantile(0.95, [0.0, 0.0], jnp.eye(2), region=lambda r: tg.Ball([0, 0], r))
        >>> radius.value.round(6)  # the root of a quantile of chi squared
        Array(2.447747, dtype=float64)
    """
    check_choice(tail, TAILS, "tail")
    if not (region is None or callable(region)):
        raise TypeError(
            "region must be a function of the quantile, such as lambda r: tg.Ball(center, r), "
            f"got {region!r}."
        )
    check_choice(noncentral, student.KINDS, "noncentral")
    is_gaussian(df, noncentral)
    matrix: Any = None if isinstance(covariance, Covariance) else covariance
    if matrix is not None and np.ndim(matrix) == 0 < np.ndim(probability):
        raise ValueError(
            f"covariance must be a matrix, got {covariance!r}, and probability a number, got an "
            f"array of shape {np.shape(probability)}: the order is (probability, loc, covariance)."
        )
    if matrix is not None and np.ndim(matrix) == 1 and np.ndim(loc) == 2:
        raise ValueError(
            f"covariance must have shape (d, d), got {np.shape(matrix)}, and loc (d,), got "
            f"{np.shape(loc)}: they are exchanged. The order is (probability, loc, covariance)."
        )
    check_one_order(loc=loc, covariance=covariance)
    form = as_covariance(covariance)
    mean = as_float_array(loc, "loc")
    dtype = jnp.result_type(mean, *jax.tree.leaves(form), 0.0)
    number = np.array(probability) if isinstance(probability, int | float) else probability
    share: Any = as_dtype(as_float_input(number, "probability"), dtype)
    known = values_of(share)
    if known is not None and not bool(np.all((np.asarray(known) > 0) & (np.asarray(known) < 1))):
        given = np.asarray(probability, float)
        if np.all((given > 0) & (given < 1)):
            raise ValueError(
                f"probability: {probability!r} is 0 or 1 in {dtype}. Enable float64, or ask for "
                'the small share in the other tail, by tail="upper" or "lower".'
            )
        exchanged = np.ndim(loc) == 0 < np.ndim(probability)
        advice = " The order is (probability, loc, covariance)." if exchanged else ""
        advice = advice or of_percent(probability)
        raise ValueError(f"probability must lie between 0 and 1, got {probability!r}.{advice}")
    upper = region is None and tail == "upper"
    family = Family("both" if tail == "both" else "lower", region, noncentral)
    inputs = Inputs(share, -mean if upper else mean, form, df)
    result = _of_rows(inputs, family, method, as_key(key))
    return result._replace(value=-result.value) if upper else result


class Inputs(NamedTuple):
    """The inputs that a quantile depends on smoothly.

    Attributes:
        root: of a singular covariance of rank one or two, shape (d, rank).
    """

    share: Array
    loc: Array
    covariance: Covariance
    df: Any
    root: Array | None = None


@frozen_pytree
class Family:
    """Regions that grow with a level, which is a function of a real coordinate. All static.

    Attributes:
        outside: whether probabilities are those of the pieces of the outside and of the inside.
        half: whether of the pieces those above alone are computed, as those below are empty or have
            the same probabilities.
    """

    tail: str = static_field()
    region: Callable[[Array], Region] | None = static_field()
    kind: str = static_field()
    outside: bool = static_field(default=False)
    half: bool = static_field(default=False)

    def problem(self, inputs: Inputs, level: Array) -> Problem:
        if self.region is not None:
            return as_problem(inputs.loc, inputs.covariance, self.region(level))
        d = inputs.covariance.dimension
        high = jnp.broadcast_to(level[..., None], (*level.shape, d))
        low = -high if self.tail == "both" else jnp.full_like(high, -jnp.inf)
        return _of_few_ranks(inputs.loc, inputs.covariance, Box(low, high), inputs.root)

    def pieces(self, inputs: Inputs, coordinate: Array) -> tuple[Problem, Array | None]:
        """The problem at coordinates of the batch shape, or its outside."""
        if self.region is not None:  # which may depend on tracers
            return _pieces(self, inputs, coordinate)
        pieces: tuple[Problem, Array | None] = _compiled_pieces(self, inputs, coordinate)
        return pieces

    def log_odds(self, parts: Estimate, empty: Array | None) -> Estimate:
        """The log odds of the inside, from the log probabilities of what `pieces` returns."""
        if self.half:
            parts = jax.tree.map(lambda leaf: jnp.concatenate([leaf[:-1], leaf]), parts)
        result: Estimate = _log_odds(parts, empty)
        return result

    def level(self, inputs: Inputs, coordinate: Array) -> Array:
        """A positive level exp(y), or one of either sign, sinh(y), from the centre, in units."""
        loc, variances = lax.stop_gradient((inputs.loc, inputs.covariance.variances))
        unit = jnp.sqrt(jnp.mean(variances, axis=-1))
        if self.region is not None or self.tail == "both":
            return unit * jnp.exp(coordinate)
        return jnp.mean(loc, axis=-1) + unit * jnp.sinh(coordinate)

    def coordinate(self, inputs: Inputs, level: Array) -> Array:
        """The coordinate of a level of a tail."""
        unit = jnp.sqrt(jnp.mean(inputs.covariance.variances, axis=-1))
        if self.tail == "both":
            return jnp.log(level / unit)
        return jnp.arcsinh((level - jnp.mean(inputs.loc, axis=-1)) / unit)


def _few_ranks(covariance: Covariance) -> Array | None:
    """A root of few columns of a singular covariance matrix, differentiable within its range."""
    values = values_of(covariance) if covariance.is_matrix else None
    if values is None or covariance.dimension < 3 or covariance.batch_shape:
        return None
    scale, vectors = range_of(np.asarray(values.matrix))
    if len(scale) > 2:
        return None
    root = jnp.asarray(vectors * scale)
    if is_concrete(covariance):
        return root
    whitening = jnp.asarray(vectors / scale)
    return root @ jnp.linalg.cholesky(whitening.T @ covariance.covariance_matrix @ whitening)


def _of_few_ranks(loc: Array, covariance: Covariance, box: Box, root: Array | None) -> Problem:
    """The problem, in one or two independent variables if the covariance has such a root."""
    if root is None:
        return as_problem(loc, covariance, box)
    rank = root.shape[1]
    region = Polyhedron(root, box.low - loc, box.high - loc)
    independent = CovarianceMatrix(jnp.eye(rank, dtype=root.dtype))
    return Problem(jnp.zeros(rank, root.dtype), independent, region)


def _pieces(family: Family, inputs: Inputs, coordinate: Array) -> tuple[Problem, Array | None]:
    problem = family.problem(inputs, family.level(inputs, coordinate))
    if not family.outside:
        return problem, None
    pieces, empty = _outside(problem)
    if family.half:
        above = jax.tree.map(lambda leaf: leaf[len(empty) // 2 :], pieces.region)
        pieces = pieces._replace(region=above)
    return pieces, empty


_compiled_pieces = Compiled(_pieces, closed_form)


@functools.partial(Compiled, cost=closed_form)
def _outside(problem: Problem) -> tuple[Problem, Array]:
    """Disjoint pieces of the outside and the inside, along a first axis, and which of the outside
    are empty."""
    pieces, empty = pieces_outside(as_linear(problem.region))
    joined = lambda parts, whole: jnp.concatenate([parts, jnp.broadcast_to(whole, parts[:1].shape)])
    return problem._replace(region=jax.tree.map(joined, pieces, problem.region)), empty


@functools.partial(Compiled, cost=closed_form)
def _log_odds(estimate: Estimate, empty: Array | None) -> Estimate:
    """The log odds of the inside, from its log probability or those of parts of the outside and
    its own, the last one."""
    eps = float(jnp.finfo(estimate.log_prob.dtype).eps)
    if empty is None:
        # The distance from 1 has an absolute error of rounding.
        log_prob = jnp.minimum(estimate.log_prob, -0.25 * eps)
        other = log1mexp(-log_prob)
        error = jnp.where(
            other < math.log(1e-6), jnp.hypot(estimate.stderr, 4.0 * eps), estimate.stderr
        )
        return Estimate(log_prob - other, error * jnp.exp(-other))
    inside = jax.tree.map(lambda leaf: leaf[-1], estimate)
    other, error = sum_of_pieces(jax.tree.map(lambda leaf: leaf[:-1], estimate), empty)
    # Of the less likely one, whose logarithm has all digits.
    least = jnp.minimum(jnp.where(other < inside.log_prob, other, inside.log_prob), -0.25 * eps)
    error = jnp.where(other < inside.log_prob, error, inside.stderr)
    most = log1mexp(-least)
    sign = jnp.where(other < inside.log_prob, -1.0, 1.0)
    return Estimate(sign * (least - most), error * jnp.exp(-most))


def log_exceedance(
    limits: Any, covariance: Any, two_sided: bool, df: Any, method: Method, key: PRNGKey | None
) -> Estimate:
    """The log probability that some coordinate exceeds its limit, in absolute value if two-sided.

    Args:
        limits: shape (..., d).
        covariance: of the coordinates, of mean 0, shape (d, d).
        two_sided, df, method, key: as of `quantile`.
    """
    high: Any = as_float_array(limits)
    form = as_covariance(covariance)
    certain = jnp.any(high <= 0, axis=-1) & two_sided
    if certain.any():
        positive = jnp.where(certain[..., None], 1.0, high)
        others = log_exceedance(positive, form, two_sided, df, method, key)
        return jax.tree.map(lambda x: jnp.where(certain, 0.0, x), others)
    d = high.shape[-1]
    box = Box(-high if two_sided else jnp.full_like(high, -jnp.inf), high)
    root = _few_ranks(form)
    problem = _of_few_ranks(jnp.zeros(d, high.dtype), _with_factor(form), box, root)
    if d <= MOST_OUTSIDE and _is_exact(problem):
        if high.ndim == 1 or high[..., 0].size > FEW_ROWS:
            return _of_outside(problem, df, method, key)
        # One after the other, by the programs of the quantile.
        rows = [
            log_exceedance(jnp.asarray(row), form, two_sided, df, method, key)
            for row in np.reshape(high, (-1, d))
        ]
        return jax.tree.map(lambda *x: jnp.stack(x).reshape(high.shape[:-1]), *rows)
    inside = log_probability(*problem, method, key, df)
    log_prob = log1mexp(-jnp.minimum(inside.log_prob, 0.0))
    # The distance from 1 has an absolute error of rounding.
    eps = float(jnp.finfo(log_prob.dtype).eps)
    error = jnp.hypot(inside.stderr, jnp.where(log_prob < math.log(RARE), 16.0 * eps, 0.0))
    result = Estimate(log_prob, error * jnp.exp(inside.log_prob - log_prob))
    rare = np.asarray(log_prob) < math.log(RARE)
    if d > MOST_OUTSIDE or not rare.any():
        return result
    few = problem._replace(region=jax.tree.map(lambda x: x[rare], problem.region))
    refined = _of_outside(few, df, method, key)
    return jax.tree.map(lambda x, y: x.at[rare].set(y), result, refined)


def _of_outside(problem: Problem, df: Any, method: Method, key: PRNGKey | None) -> Estimate:
    pieces: Problem
    pieces, empty = _outside(problem)
    parts = log_probability(*pieces, method, key, df)
    result: Estimate = sum_of_pieces(jax.tree.map(lambda leaf: leaf[:-1], parts), empty)
    return result


def exceeds_exactly(covariance: Any, two_sided: bool) -> bool:
    """Whether `log_exceedance` of a covariance matrix (d, d) is exact to rounding."""
    high, form = jnp.ones(len(covariance)), as_covariance(covariance)
    box = Box(-high if two_sided else jnp.full_like(high, -jnp.inf), high)
    return _is_exact(_of_few_ranks(jnp.zeros_like(high), form, box, _few_ranks(form)))


def _of_rows(inputs: Inputs, family: Family, method: Method, key: Array) -> Quantile:
    """The quantiles of rows: of few one after the other, by the programs of one, and so are those
    of one or two ranks among many."""
    shape = np.broadcast_shapes(
        inputs.share.shape,
        inputs.loc.shape[:-1],
        inputs.covariance.batch_shape,
        np.shape(inputs.df),
    )
    known, count, d = values_of(inputs), math.prod(shape), inputs.covariance.dimension
    if family.region is not None or known is None or shape == () or count == 0:
        return _quantile(inputs, family, method, key)
    alone = np.full(count, count <= FEW_ROWS)
    if count > FEW_ROWS and d > 2 and inputs.covariance.batch_shape:
        matrices = np.broadcast_to(known.covariance.covariance_matrix, (*shape, d, d))
        alone = ranks_of(matrices.reshape(-1, d, d)) <= 2
    if not alone.any():
        return _quantile(inputs, family, method, key)

    def flat(leaf: Any, of_row: tuple[int, ...]) -> Array:
        xp: Any = np if is_concrete(leaf) else jnp
        return xp.reshape(xp.broadcast_to(leaf, (*shape, *of_row)), (count, *of_row))

    covariance = inputs.covariance.broadcast_to(shape)
    rows = Inputs(
        flat(inputs.share, ()),
        flat(inputs.loc, (d,)),
        jax.tree.map(lambda leaf: flat(leaf, leaf.shape[len(shape) :]), covariance),
        flat(inputs.df, ()),
    )
    groups = [*np.flatnonzero(alone)[:, None], np.flatnonzero(~alone)]
    groups = [chosen for chosen in groups if len(chosen)]

    def of_group(chosen: np.ndarray) -> Quantile:
        index = chosen[0] if len(chosen) == 1 else chosen
        some = jax.tree.map(lambda x: x[index], rows)
        of_some: Quantile = jax.tree.map(jnp.atleast_1d, _quantile(some, family, method, key))
        return of_some

    whole: Quantile = joined([of_group(chosen) for chosen in groups], groups, shape)
    return whole


def _quantile(inputs: Inputs, family: Family, method: Method, key: Array) -> Quantile:
    """The root of the log odds, with its derivatives where the inputs have any."""
    if family.region is None and family.kind == "shifted":
        # It moves the mean into the limits, which is another t if the mean is divided too.
        inputs = inputs._replace(root=_few_ranks(inputs.covariance))
    # What is known stays known: in a trace `stop_gradient` would make a tracer of it.
    fixed = jax.tree.map(lambda x: x if is_concrete(x) else lax.stop_gradient(x), inputs)
    if is_concrete(inputs):
        fixed = fixed._replace(covariance=_with_factor(inputs.covariance))
    # With the tracers of a derivative, also those in the function that returns the region.
    problem = family.problem(inputs, jnp.ones((), inputs.share.dtype))
    shape = np.broadcast_shapes(inputs.share.shape, problem.batch_shape, jnp.shape(inputs.df))
    numbers: Any = np if is_concrete(fixed.share) else jnp
    fixed = fixed._replace(share=numbers.broadcast_to(fixed.share, shape))
    share, d = values_of(inputs.share), inputs.covariance.dimension
    several = family.problem(inputs, jnp.ones(inputs.share.shape, inputs.loc.dtype))
    if share is not None and several.region.is_linear and d <= MOST_OUTSIDE:
        shares = np.asarray(share)
        rare = shares > 1.0 - RARE
        exact = _is_exact(several)
        outside = bool(np.any(shares > COMMON) if exact else np.all(rare))
        # Derivatives by the mean are not the same on both sides.
        known, both = is_concrete((problem, inputs)), family.tail == "both"
        alike = known and not np.any(inputs.loc) if both else True
        half = outside and exact and family.region is None and bool(alike)
        family = dataclasses.replace(family, outside=outside, half=half)
    staged = not is_concrete(lax.stop_gradient((problem, fixed)))
    directed = None if staged else _by_directions(fixed, family, method, key)
    if directed is not None:
        point, stderr = directed
        if is_concrete((problem, inputs)):
            return Quantile(family.level(fixed, point), stderr)
        held = _held(fixed, family, point, method, key)
    elif staged and _has_far_tail(fixed, family, method):
        held, point, stderr = _with_far_tail(fixed, family, method, key)
    else:
        held, point, stderr = _by_search(fixed, family, method, key, staged)
    if not is_concrete((problem, inputs)):

        def root(y: Array) -> Array:
            return held(inputs, y).log_prob - _logit(inputs.share)

        # Where JAX forgets this rule, in loops, a derivative is NaN, not that of a point at rest.
        moves = (jnp.where(jnp.isfinite(x), x, 0.0) for x in jax.tree.leaves((problem, inputs)))
        still = nan_slope(*(jnp.sum(x - lax.stop_gradient(x)) for x in moves)).astype(point.dtype)
        solved: Any = lax.custom_root
        point = solved(root, point, lambda f, y: y + still, lambda g, y: y / g(jnp.ones_like(y)))
    return Quantile(family.level(fixed, point), lax.stop_gradient(stderr))


def _by_search(
    fixed: Inputs, family: Family, method: Method, key: Array, staged: bool
) -> tuple[Callable[[Inputs, Array], Estimate], Array, Array]:
    """The log odds with plan and nodes held, the coordinate, and the quantile's standard error."""
    target = _logit(fixed.share)
    rough = Automatic(rtol=1e-3) if isinstance(method, Automatic) else method

    def moving(y: Array) -> Array:
        problem, empty = family.pieces(fixed, y)
        inside = log_probability(*problem, rough, key, fixed.df, family.kind)
        log_odds = family.log_odds(inside, empty).log_prob
        return lax.stop_gradient(log_odds) - target

    pilot = _root(moving, jnp.zeros(target.shape, target.dtype), PILOT, staged, FIRST)
    held = _held(fixed, family, pilot, method, key)

    def smooth(y: Array) -> Array:
        log_odds: Array = lax.stop_gradient(held(fixed, y).log_prob)
        return log_odds - target

    point = _root(smooth, pilot, 8.0 * float(jnp.finfo(target.dtype).eps), staged, NEAR)
    return held, *_with_error(held, fixed, family, point, target)


def _with_error(
    held: Callable[[Inputs, Array], Estimate],
    fixed: Inputs,
    family: Family,
    point: Array,
    target: Array,
) -> tuple[Array, Array]:
    """The coordinate, NaN where the log odds are not those wanted, and the quantile's error."""
    width = 1e-3
    value, stderr = lax.stop_gradient(held(fixed, point))
    sound = jnp.abs(value - target) <= width
    if is_concrete(stderr) and not np.any(stderr):
        return jnp.where(sound, point, jnp.nan), stderr
    rise = lax.stop_gradient(held(fixed, point + width)).log_prob - value
    step = family.level(fixed, point + width) - family.level(fixed, point)
    stderr = jnp.where(sound, stderr * step / rise, jnp.nan)
    return jnp.where(sound, point, jnp.nan), stderr


def _by_directions(
    inputs: Inputs, family: Family, method: Method, key: Array
) -> tuple[Array, Array] | None:
    """The coordinate and the standard error by directions with exact radii, where these serve.

    They are quick for a t and in any dimension. `Separation` is ten times more accurate in up to
    some dozens of dimensions, unless the covariance is singular, and in far tails.
    """
    share, loc = np.asarray(inputs.share), np.asarray(inputs.loc)
    shape, matrix = share.shape, np.asarray(inputs.covariance.covariance_matrix, float)
    both, d = family.tail == "both", matrix.shape[-1]
    centred = np.all(loc == 0) if both else np.all(loc == loc[..., :1])
    shifted = family.kind == "shifted" or not np.any(loc)
    if family.region is not None or not (centred and shifted) or not np.isfinite(matrix).all():
        return None
    one = jnp.asarray(1.0, inputs.share.dtype)
    if not is_gaussian(inputs.df):
        student.checked_df(inputs.df, family.kind, family.problem(inputs, one))
    if d == 1:
        point = _of_one(
            share.astype(float), np.broadcast_to(np.asarray(inputs.df, float), shape), both
        )
        return jnp.asarray(point, inputs.share.dtype), jnp.zeros(shape, inputs.share.dtype)
    if not isinstance(method, Automatic):
        return None
    if _is_exact_in_parts(family.problem(inputs, one)):
        return None
    ranges = [range_of(part) for part in matrix.reshape(-1, d, d)]
    full = any(len(scale) == d for scale, _ in ranges)
    separated = not family.outside and d <= MOST_SEPARATED and full
    if family.outside and np.any(share <= FAR) or separated and np.all(share <= FAR):
        return None
    degrees = np.broadcast_to(np.asarray(inputs.df, float), shape)
    first = np.broadcast_to(loc[..., 0], shape)
    rows = np.broadcast_to(np.arange(matrix[..., 0, 0].size).reshape(matrix.shape[:-2]), shape)
    values = np.empty((2, *shape))
    for index in np.ndindex(shape):
        scale, vectors = ranges[rows[index]]
        factor, df = vectors * scale, float(degrees[index])
        unit = np.max(np.linalg.norm(factor, axis=1))
        vector = LargestCoordinate.of(factor, both, df, key)
        values[:, *index] = unit * np.array(vector.quantile(float(share[index])))
    if not np.all(values[0] > 0):  # few directions lead there
        return None
    unit = np.sqrt(np.mean(np.diagonal(matrix, axis1=-2, axis2=-1), -1))
    level = values[0] / unit + (first - np.mean(loc, -1)) / unit
    point = np.log(level) if both else np.arcsinh(level)
    return jnp.asarray(point, inputs.share.dtype), jnp.asarray(values[1], inputs.share.dtype)


def _has_far_tail(inputs: Inputs, family: Family, method: Method) -> bool:
    if family.region is not None or not isinstance(method, Automatic):
        return False
    problem = family.problem(inputs, jnp.ones((), inputs.share.dtype))
    known = values_of(inputs.share)
    some = known is None or bool(np.any(np.asarray(known) > FAR))
    gaussian = is_gaussian(inputs.df)
    return some and gaussian and is_served(problem) and not _is_exact_in_parts(problem)


def _with_far_tail(
    fixed: Inputs, family: Family, method: Method, key: Array
) -> tuple[Callable[[Inputs, Array], Estimate], Array, Array]:
    """As `_by_search`, with the log odds of probabilities near 1 from the outside by directions."""
    far, known = fixed.share > FAR, values_of(fixed.share)
    held, point, stderr = _in_far_tail(fixed, family, key)
    if known is not None and bool(np.all(np.asarray(known) > FAR)):
        return held, point, stderr
    below = fixed._replace(share=jnp.minimum(fixed.share, FAR))
    near_held, near_point, near_stderr = _by_search(below, family, method, key, True)

    def either(inputs: Inputs, y: Array) -> Estimate:
        # Neither is used where it is not meant, nor are its derivatives.
        outside = held(inputs, jnp.where(far, y, lax.stop_gradient(point)))
        inside = near_held(inputs, jnp.where(far, lax.stop_gradient(near_point), y))
        return jax.tree.map(lambda x, z: jnp.where(far, x, z), outside, inside)

    return either, jnp.where(far, point, near_point), jnp.where(far, stderr, near_stderr)


def _in_far_tail(
    fixed: Inputs, family: Family, key: Array
) -> tuple[Callable[[Inputs, Array], Estimate], Array, Array]:
    """The same where all probabilities are above `FAR`, or taken to be.

    Levels are searched from halfway between the quantiles of one coordinate and of all if they
    excluded each other, and once more by directions to what is found.
    """
    both, share = family.tail == "both", jnp.maximum(fixed.share, FAR)
    target, count = _logit(share), fixed.loc.shape[-1] * (2 if both else 1)
    keys = jax.random.split(key, NUM_REPLICATES)
    centre = jnp.abs(fixed.loc) if both else fixed.loc
    deviations = jnp.sqrt(fixed.covariance.variances)

    def end(outside: Array, further: float) -> Array:
        deviates = further - ndtri(outside)[..., None]
        level = jnp.max(centre + deviations * deviates, axis=-1)
        return lax.stop_gradient(family.coordinate(fixed, level))

    # Of samples the level may lie beyond the ends.
    low, high = end(1.0 - share, -MARGIN), end((1.0 - share) / count, MARGIN)

    def log_odds(directions: Directions, inputs: Inputs, y: Array) -> Estimate:
        problem = family.problem(inputs, family.level(inputs, y))
        one = lambda row, directions: log_outside(row, both, directions)
        outside: Estimate = over_rows(one, problem, directions)
        of_outside: Estimate = _log_odds(outside, None)
        return of_outside._replace(log_prob=-of_outside.log_prob)

    def improved(start: Array, _: None) -> tuple[Array, Directions]:
        one = lambda row: directions_to(row, both, keys)
        directions = over_rows(one, family.problem(fixed, family.level(fixed, start)))

        def excess(y: Array) -> Array:
            within = jnp.clip(y, low, high)
            return log_odds(directions, fixed, within).log_prob - target + (y - within)

        tolerance = 8.0 * float(jnp.finfo(target.dtype).eps)
        return _root(excess, start, tolerance, True, FIRST), directions

    point, every = lax.scan(improved, 0.5 * (low + high), None, length=2)
    held = functools.partial(log_odds, jax.tree.map(lambda x: x[-1], every))
    return held, *_with_error(held, fixed, family, point, target)


def _of_one(share: np.ndarray, df: np.ndarray, both: bool) -> np.ndarray:
    """The coordinates of quantiles of one standardised variable, from the smallest of the
    probabilities of |X|, which has all digits."""
    with np.errstate(divide="ignore"):
        beyond = np.log(1.0 - share if both else 2.0 * np.minimum(share, 1.0 - share))
        within = np.log(share if both else np.abs(2.0 * share - 1.0))
    log_size = np.empty_like(share)
    for one in np.unique(df):
        rows = df == one
        log_size[rows] = np.where(
            within[rows] < beyond[rows],
            radial_quantile(np.minimum(within[rows], LOG_HALF), 1, one, above=False),
            radial_quantile(np.minimum(beyond[rows], LOG_HALF), 1, one),
        )
    # arcsinh(exp(y)) of large y is y + log 2.
    small = np.arcsinh(np.exp(np.minimum(log_size, 30.0)))
    size = np.where(log_size > 30.0, log_size + math.log(2.0), small)
    return log_size if both else np.where(share < 0.5, -size, size)


def _is_exact_in_parts(problem: Problem) -> bool:
    return all(_is_exact(part.problem) for part in independent_parts(problem))


def _with_factor(covariance: Covariance) -> Covariance:
    """The covariance of three coordinates with its common factor, if it has one."""
    return structured(covariance, smallest=3) if covariance.dimension == 3 else covariance


def _logit(share: Array) -> Array:
    return jnp.log(share) - jnp.log1p(-share)


def _is_exact(problem: Problem) -> bool:
    return applies(student.recognised(problem).covariance, problem.region)


def _held(
    inputs: Inputs, family: Family, y: Array, method: Method, key: Array
) -> Callable[[Inputs, Array], Estimate]:
    """The log odds as a smooth function of inputs and coordinate, with nodes and plan of this."""
    gaussian = is_gaussian(inputs.df)
    problem = lax.stop_gradient(family.pieces(inputs, y)[0])
    nodes: Any = None
    if not gaussian:
        degrees = student.checked_df(inputs.df, family.kind, problem)
        nodes = student.nodes_of(problem, degrees, family.kind)
        problem = student.at_scale(problem, nodes.log_scale, family.kind)
    plan = at_held_matrix(method.hold(*problem))

    def log_odds(inputs: Inputs, y: Array) -> Estimate:
        problem, empty = family.pieces(inputs, y)
        given = problem if gaussian else student.at_scale(problem, nodes.log_scale, family.kind)
        inside = estimate(plan, given, key)
        if not gaussian:
            degrees = student.checked_df(inputs.df, family.kind, problem)
            inside = student.mixed(nodes, degrees, inside)
        return family.log_odds(inside, empty)

    return log_odds


def _root(
    function: Callable[[Any], Array], start: Array, tolerance: float, staged: bool, first: float
) -> Array:
    """The root of an increasing function of each of many numbers, to a tolerance in its value.

    The first step has a given length, and no later one is more than twice the longer of that and
    the one before.
    """
    xp: Any = jnp if staged else np
    eps = 4.0 * float(jnp.finfo(start.dtype).eps)

    def step(state: Any) -> Any:
        # The ends of the bracket, the previous point with its value, and the latest two steps.
        point, low, high, previous, height, steps, done = state
        value = function(point) if staged else np.asarray(function(jnp.asarray(point)))
        low, high = xp.where(value < 0, point, low), xp.where(value > 0, point, high)
        rise, run = value - height, point - previous
        usable = (rise * run > 0) & xp.isfinite(rise)
        longest = xp.where(xp.isfinite(steps[0]), xp.maximum(2.0 * xp.abs(steps[0]), first), first)
        change = -value * run / xp.where(usable, rise, 1.0)
        change = xp.where(usable, change, -xp.sign(value) * longest)
        change = xp.clip(change, -longest, longest)
        bounded = xp.isfinite(low) & xp.isfinite(high)
        middle = 0.5 * (xp.where(bounded, low, point) + xp.where(bounded, high, point))
        slow = xp.abs(change) > 0.5 * xp.abs(steps[1])
        across = (point + change <= low) | (point + change >= high)
        change = xp.where(bounded & (slow | across), middle - point, change)
        finished = (xp.abs(value) <= tolerance) | (xp.abs(change) <= eps * (1.0 + xp.abs(point)))
        done = done | finished | xp.isnan(value)
        following = xp.where(done, point, point + change)
        steps = xp.stack([change, steps[0]])
        return following, low, high, point, value, steps, done

    begin: Any = start if staged else np.asarray(start)
    nothing, endless = xp.full_like(begin, xp.nan), xp.full_like(begin, xp.inf)
    steps, done = xp.stack([endless, endless]), xp.zeros_like(begin, dtype=bool)
    state = begin, -endless, endless, nothing, nothing, steps, done
    if staged:
        counted = lambda both: (both[0] + 1, step(both[1]))
        unfinished = lambda both: (both[0] < MOST_STEPS) & ~jnp.all(both[1][-1])
        return lax.while_loop(unfinished, counted, (jnp.zeros((), int), state))[1][0]
    for _ in range(MOST_STEPS):
        if state[-1].all():
            break
        with np.errstate(invalid="ignore"):  # log odds are infinite where P is 0 or 1
            state = step(state)
    return jnp.asarray(state[0], start.dtype)
