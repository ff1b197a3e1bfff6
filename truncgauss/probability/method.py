"""The contract of a method, and the average of its replicates.

A method estimates the probability for one Gaussian and one region. Batching is written once in
`problem`, the average over independent replicates and its standard error here.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import moved_along, slopes_of, vmapped_in_turns, with_slopes
from truncgauss.arrays.compiling import FULL, Compiled, Cost, effort_of
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import Batched, is_concrete, values_of
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import (
    CovarianceLike,
    Estimate,
    Loc,
    Moments,
    Problem,
    as_problem,
    over_rows,
    standardized,
)
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.special.logspace import log_mean_exp, standard_error
from truncgauss.words.arguments import refuses_arithmetic

refuses_arithmetic(Estimate)  # whose file those read that have no use for words
NUM_REPLICATES = 16  # of methods whose error is seen in the scatter of their replicates


@dataclasses.dataclass(frozen=True)
class Growth:
    """The count of a method that determines its accuracy.

    Attributes:
        count: the name of that static field of the method.
        rate: the standard error decreases as count^(-1 / rate).
        price: the cost of one more, in lattice points.
    """

    count: str
    rate: float
    price: int = 1


class Method:
    """The base class of methods for P(X in region). A new method is a subclass, in one file.

    It is decorated with `frozen_pytree`: counts are static fields, so that equal settings share a
    compilation; arrays are leaves. It must define only `replicate`: one independent randomised
    estimate for one problem without leading axes. A deterministic method has one replicate.
    Everything else has defaults. To be chosen by `Automatic`, a method defines `candidate` and
    `reason` and is listed in `automatic.CANDIDATES`.

    Example:
        >>> from truncgauss.arrays.pytrees import frozen_pytree
        >>> @frozen_pytree
        ... class UnionBound(tg.Method):
        ...     def replicate(self, loc, covariance, region, key):
        ...         scale = jnp.sqrt(covariance.variances)
        ...         log_p = tg.special.truncated_log_mass(loc, scale, region.low, region.high)
        ...         bound = jnp.maximum(1.0 + jnp.sum(jnp.expm1(log_p)), 0.0)
        ...         return tg.Estimate(jnp.log(bound), jnp.full_like(bound, jnp.nan))
        >>> box = tg.Box([-2.0, -2.0], [2.0, 2.0])
        >>> tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), box, UnionBound()).round(4)
        Array(0.909, dtype=float64)
    """

    num_replicates: int = 1
    # Whether problems with linear constraints are passed in units of about one standard deviation.
    own_units: ClassVar[bool] = True
    growth: ClassVar[Growth | None] = None  # None: no count determines the accuracy
    # Whether more points are another program, so that `Automatic` begins with all at once.
    starts_full: ClassVar[bool] = False
    grows_by_pieces: ClassVar[bool] = False  # whether `in_pieces` has a form that compiles nothing
    of_any_region: ClassVar[bool] = False  # whether each row has points of its own in any region
    loops: ClassVar[bool] = True  # over points, or products of large matrices, see `Cost`
    is_drawn: ClassVar[bool] = False  # whether it holds the points of one region and key
    is_smoothed: ClassVar[bool] = False  # whether P is of a smoothed region: no face bounds it
    # Whether the stderr of a replicate alone is an error that all replicates have in common.
    common_error: ClassVar[bool] = False
    # The fields that `hold` fills, each a `Batched` or None; the first is that of the plan.
    held_fields: ClassVar[tuple[str, ...]] = ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Leading axes of a held plan, if it has one for each row."""
        plan: Any = getattr(self, self.held_fields[0]) if self.held_fields else None
        return () if plan is None else plan.batch_shape

    def broadcast_to(self: "MethodT", batch_shape: tuple[int, ...]) -> "MethodT":
        """The method with its plan, if any, broadcast to leading axes."""
        held = {name: getattr(self, name) for name in self.held_fields}
        spread = lambda part: part.broadcast_to(batch_shape)
        is_whole = lambda part: isinstance(part, Batched)
        return with_fields(self, **jax.tree.map(spread, held, is_leaf=is_whole)) if held else self

    # --- When it applies

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Method | None":
        """The method with the settings for `Automatic`, or None where it does not apply.

        Args:
            problem: of arrays, or of tracers, of which only shapes are known.
            num_points: lattice points per replicate to begin with.
        """
        return None

    def reason(self, problem: Problem) -> str:
        """The reason why `Automatic` chose the method for a problem, for `explain`."""
        return "as asked for"

    @staticmethod
    def check_kind(method: Any) -> None:
        """Raise TypeError for an argument `method` that is none."""
        check_method(method, after_region=False)

    # --- Preparation

    def for_problem(self, problem: Problem) -> "Method":
        """The method, or one that replaces it, with settings that need concrete values, as a rank.

        Raises:
            ValueError: if the method does not apply to such inputs.
        """
        return self

    @property
    def is_held(self) -> bool:
        """Whether the method has its plan, or needs none."""
        return not self.held_fields or getattr(self, self.held_fields[0]) is not None

    def hold(self, loc: Loc, covariance: CovarianceLike, region: Region) -> "Method":
        """The method with its plan fixed, so that for one key it is one smooth function."""
        problem = as_problem(loc, covariance, region)
        served = with_fields(self, **dict.fromkeys(self.held_fields)).for_problem(problem)
        return served.planned(problem) if self.held_fields else self

    def planned(self, problem: Problem) -> "Method":
        """The method with its plan for every row of a problem that it applies to."""
        return self

    def scaled(self, by: Array) -> "Method":
        """The method with its plan for the constraints multiplied by `by`, shape (m,)."""
        return self

    # --- More accuracy

    @property
    def count(self) -> int:
        """The count that determines the accuracy; 1 if there is none."""
        return 1 if self.growth is None else int(getattr(self, self.growth.count))

    def enlarged(self, factor: int) -> "Method":
        """The method with `factor` times the count that determines its accuracy."""
        if self.growth is None:
            return self
        return with_fields(self, **{self.growth.count: factor * self.count})

    def in_pieces(self, factor: int) -> "Method":
        """The held method as by `enlarged`, in a form of which more points run the same program.

        Derivatives of that form are not known, but for the first ones of `Separation`.
        """
        return self.enlarged(factor)

    # --- Estimates

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        """One randomised estimate; its stderr is known from it alone, nan if unknown.

        By default it is that of `replicates` for one key, which can only show too few points.
        """
        if type(self).replicates is Method.replicates:
            raise NotImplementedError(f"{type(self).__name__} does not define replicate.")
        single = with_fields(self, num_replicates=1)
        log_probs, alone = single.replicates(loc, covariance, region, key[None])
        return Estimate(log_probs[0], jnp.where(jnp.isinf(alone[0]), jnp.inf, jnp.nan))

    def replicates(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One estimate for each key, by default one after the other, in the memory of one."""
        one = jax.checkpoint(lambda key: self.replicate(loc, covariance, region, key))
        return lax.map(one, keys)

    def averaged(self, row: Problem, key: Array) -> Estimate:
        """The log of the mean of the replicates' probabilities, and its standard error."""
        if self.num_replicates == 1:
            log_prob, stderr = self.replicate(*row, key)
            return Estimate(log_prob, lax.stop_gradient(stderr))
        keys = jax.random.split(key, self.num_replicates)
        some = lambda keys, method, row: method.replicates(*row, keys)
        log_probs, alone = parallel.over_replicates(some, keys, self, row)
        stderr = lax.stop_gradient(self.combined_stderr(log_probs, alone))
        return Estimate(log_mean_exp(log_probs, axis=0), stderr)

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """The standard error of the log of the replicates' mean, given the stderr of each alone."""
        stderr = spread(log_probs, alone)
        if not self.common_error:
            return stderr
        common = jnp.min(alone)
        return jnp.hypot(stderr, jnp.where(jnp.isfinite(common), common, 0.0))

    def fraction(self, log_prob: Array, log_prob_of: Callable[["Method"], Array]) -> Array:
        """P, given its log by this method, and the function that gives that by another one."""
        return jnp.exp(log_prob)

    def for_rows(self, count: int) -> "Method":
        """The method for one of so many rows; it returns the same numbers, to their accuracy."""
        return self

    def moments(self, row: Problem, key: Array) -> Moments:
        r"""Mean and covariance given the region, for one problem without leading axes.

        By default they come from derivatives of the log P of `replicate` in the mean, by

        .. math:: m = \mu + \Sigma \nabla, \qquad
                  C = \Sigma + \Sigma\, (\nabla \nabla^T \log P)\, \Sigma,

        Their standard errors are unknown, nan, unless log P is exact. In a tail, where C is much
        smaller than Sigma, the formula for C loses digits to cancellation.
        """
        matrix = row.covariance.covariance_matrix

        def log_prob(loc: Array) -> Array:
            return average(self, row._replace(loc=loc), key).log_prob

        gradient, curve = jax.grad(log_prob)(row.loc), jax.hessian(log_prob)(row.loc)
        exact = average(self, row, key).stderr == 0
        error = jnp.where(exact, 0.0, jnp.nan).astype(row.loc.dtype)
        mean, spread_matrix = row.loc + matrix @ gradient, matrix + matrix @ curve @ matrix
        return Moments(mean, spread_matrix, error + 0.0 * mean, error + 0.0 * spread_matrix)

    # --- Cost and diagnostics

    def numbers_held(self, dimension: int) -> int:
        """The approximate size of the arrays of one row, which bounds the rows of a batch."""
        return 8 * self.count * dimension

    def rows_in_turn(self, dimension: int) -> int | None:
        """The number of rows that are computed at a time under `jax.vmap`; None for all.

        Their derivatives are then those in the inputs: a plan is held fixed.
        """
        return None

    def account(self, problem: Problem, key: Array) -> list[str]:
        """Lines for `explain`: diagnostics of the estimate for one problem."""
        return []


MethodT = TypeVar("MethodT", bound=Method)


def with_fields(method: MethodT, **fields: Any) -> MethodT:
    """The method with other values of some fields; methods are dataclasses, their base is not."""
    values: Any = method
    return dataclasses.replace(values, **fields)


class Chooser(Method):
    """The base class of `Automatic`, a method that chooses others and their points by `candidates`
    and `counts`, for an error and within a budget of draws."""

    rtol: float
    max_draws: int

    def counts(self, problem: Problem, num_rows: int | None = None) -> tuple[int, int]:
        raise NotImplementedError

    def candidates(self, problem: Problem, num_rows: int | None = None) -> Iterator[Method]:
        raise NotImplementedError

    def choice(self, problem: Problem) -> Method:
        method = next(self.candidates(problem), None)
        if method is None:
            raise ValueError(
                f"no method applies to {type(problem.region).__name__} in "
                f"{problem.covariance.dimension} dimensions: the outside of a Ball or Ellipsoid is "
                "computed in up to 256."
            )
        return method

    def of_part(self, part: Problem, whole: Problem) -> "Chooser":
        """The same for a block of coordinates, with its share of the draws."""
        share = part.covariance.dimension / whole.covariance.dimension
        return with_fields(self, max_draws=max(1, int(share * self.max_draws)))


def prepared(method: Method, problem: Problem) -> Method:
    """The method for a problem: checked, replaced where another serves, and with its plan held.

    The plan is held where the inputs are numbers, also inside a derivative: a value and its
    gradient are then those of one function.

    Raises:
        ValueError: if the method does not apply.
    """
    method = method.for_problem(problem)
    values = values_of(problem)
    if values is None or 0 in problem.batch_shape or method.is_held:
        return method
    return method.planned(values)


def check_method(method: Any, after_region: bool = True) -> None:
    """Raise TypeError for what is no method, such as the second of two limits."""
    if isinstance(method, Method):
        return
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"method must be an object, not a class: write tg.{method.__name__}().")
    if hasattr(method, "log_value"):
        raise TypeError(f"an edge is a setting: write tg.SoftMonteCarlo(edge={method!r}).")
    kinds = "tg.Automatic(), tg.Exact(), tg.Separation() or another of the methods of truncgauss"
    if isinstance(method, str) or not after_region:
        raise TypeError(f"method must be {kinds}, got {method!r}.")
    raise TypeError(
        f"The order is (loc, covariance, region), and bounds are one argument, the region: write "
        "tg.Box(low, high). What follows the region is "
        f"the method, {kinds}; got {method!r}."
    )


def check_linear(owner: str, region: Region) -> None:
    if not region.is_linear:
        other = "ImportanceSampling() for other regions" if region.answers_points else "Automatic()"
        raise ValueError(
            f"{owner} applies to bounds on linear functions, a tg.Box or a tg.Polyhedron; got "
            f"{type(region).__name__}. Use tg.{other}."
        )


def check_counts(method: Method, *names: str) -> None:
    for name in names:
        count = getattr(method, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            whole = isinstance(count, float) and count >= 1 and count.is_integer()
            cure = (
                f" Write {count:.0f}." if whole else " Give it as edge=." * hasattr(count, "width")
            )
            raise ValueError(
                f"{type(method).__name__}: {name} must be a positive int, got {count!r}.{cure}"
            )


def check_held(
    owner: str, plan: Batched, counts: dict[str, tuple[int, int]], problem: Problem
) -> None:
    """Raise ValueError unless the shapes of a held plan fit a problem.

    Args:
        owner: the method's name.
        plan: the held plan.
        counts: name of a size -> its value in the plan, and in the problem.
        problem: the problem.
    """
    remedy = "Hold the method for this problem: method.hold(loc, covariance, region)."
    for what, (planned, actual) in counts.items():
        if planned != actual:
            raise ValueError(
                f"{owner}: the plan that is held was made for {planned} {what}, this problem has "
                f"{actual}. {remedy}"
            )
    rows, batch = plan.batch_shape, problem.batch_shape
    try:
        fits = jnp.broadcast_shapes(rows, batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{owner}: the plan that is held has leading axes {rows}, one plan a row, which do not "
            f"broadcast to the problem's {batch}. {remedy}"
        )


def estimate(method: Method, problem: Problem, key: Array) -> Estimate:
    """The method's estimate for every row of a problem, with one key for all rows."""
    if jax.config.jax_debug_nans:  # type: ignore[attr-defined]
        with jax.debug_nans(False):  # a stderr of NaN is no error
            log_prob, stderr = estimate(method, problem, key)
        return Estimate(log_prob + 0.0, stderr)
    inside = values_of(problem) is not None and not is_concrete(problem)
    if (
        not inside
        or not is_concrete((method, key))
        or effort_of(cost_of(method, problem, key)) is FULL
    ):
        return _estimate(method, problem, key)
    # Value and gradient from one program, compiled like that of a value.
    plain = lambda problem: _estimate(method, problem, key)
    sloped = lambda _, problem: estimate_with_gradient(method, problem, key)
    return with_slopes(plain, sloped, problem, traced=plain)


def cost_of(method: Method, problem: Problem, key: Array) -> Cost:
    """The work of a call, by which its compilation is chosen, see `compiling`."""
    rows = math.prod(problem.batch_shape)
    return Cost(rows * method.numbers_held(problem.covariance.dimension), method.loops)


@functools.partial(Compiled, cost=cost_of)
def _estimate(method: Method, problem: Problem, key: Array) -> Estimate:
    count = math.prod(problem.batch_shape)
    function = lambda row, method: average_in_turns(method.for_rows(count), row, key)
    return over_rows(function, problem, method)


@functools.partial(Compiled, cost=cost_of)
def effective_share(method: Any, problem: Problem, key: Array) -> Array:
    """The effective sample size of one replicate of a method over its number of points."""
    return method.effective_share(problem, key)


def average_in_turns(method: Method, row: Problem, key: Array) -> Estimate:
    """As `average`, of which `jax.vmap` computes as many rows at a time as the method says."""
    width = method.rows_in_turn(row.covariance.dimension)
    if width is None:
        return average(method, row, key)
    return with_derivative(average, width, method, row, key)


def with_derivative(
    function: Callable[..., Estimate],
    width: int,
    *arguments: Any,
    smooth: Callable[..., Array] | None = None,
) -> Estimate:
    """An estimate, of which `jax.vmap` computes `width` rows at a time, and whose derivative is
    computed along with it, where one is needed.

    The rule stands outside of the loop over rows: where a loop is differentiated in reverse, JAX
    forgets the rules of what is computed in it, and derivatives of the gradient would be those of
    the functions that the rules are for.

    Args:
        function: of the arguments.
        width: the number of rows.
        arguments: pytrees, for one row.
        smooth: log P once more, from which derivatives of the gradient are taken.
    """
    leaves, structure = jax.tree.flatten(arguments)

    def plain(*leaves: Array) -> Estimate:
        return function(*jax.tree.unflatten(structure, leaves))

    def other(*leaves: Array) -> Estimate:
        assert smooth is not None
        log_prob = smooth(*jax.tree.unflatten(structure, leaves))
        return Estimate(log_prob, jnp.zeros_like(log_prob))

    def sloped(moved: list[int], *leaves: Array) -> tuple[Estimate, list[Array]]:
        return _slopes_in_turns(plain, plain if smooth is None else other, moved, width)(*leaves)

    return with_slopes(vmapped_in_turns(plain, width), sloped, *leaves)


def _slopes_in_turns(
    function: Callable[..., Estimate], smooth: Callable[..., Estimate], moved: list[int], width: int
) -> Callable[..., tuple[Estimate, list[Array]]]:
    """An estimate and its slopes in some of its arguments, `width` rows of a batch at a time.

    Derivatives of the slopes are those of the slopes of `smooth`.
    """

    @jax.custom_jvp
    def computed(*leaves: Array) -> tuple[Estimate, list[Array]]:
        some = functools.partial(slopes_of, function, moved)
        return cast(Any, vmapped_in_turns(some, width)(*leaves))

    @in_full_precision
    def computed_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
        changed = [k for k, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]
        again = functools.partial(slopes_of, smooth, moved)
        results, changes = moved_along(again, changed, primals, tangents)
        return (results if smooth is function else computed(*primals)), changes

    computed.defjvp(computed_jvp, symbolic_zeros=True)
    return computed


@functools.partial(Compiled, cost=cost_of)
def _with_gradient(method: Method, problem: Problem, key: Array) -> tuple[Estimate, Problem]:
    count = math.prod(problem.batch_shape)

    def of_row(row: Problem, method: Method) -> tuple[Estimate, Problem]:
        def log_prob(row: Problem) -> tuple[Array, Array]:
            result = average(method.for_rows(count), row, key)
            return result.log_prob, result.stderr

        (value, stderr), gradient = jax.value_and_grad(log_prob, has_aux=True)(row)
        return Estimate(value, stderr), gradient

    return over_rows(of_row, problem, method)


def estimate_with_gradient(
    method: Method, problem: Problem, key: Array
) -> tuple[Estimate, Problem]:
    with jax.debug_nans(False):  # a stderr of NaN is no error
        return _with_gradient(method, problem, key)


def average(method: Method, problem: Problem, key: Array) -> Estimate:
    """The log of the mean of the replicates' probabilities, and its standard error.

    With p_r the R replicates and p their mean, stderr = sd(p_r) / (sqrt(R) p), computed from
    exp(log p_r - max) and widened where the p_r are skewed, see `standard_error`. For a single
    replicate it is that of the replicate. If replicates with too few effective samples (stderr inf)
    make up more than half of the mean, stderr is inf. Reversed limits, which are known only in a
    trace, make the value NaN, and all its derivatives. Equal ones make it -inf, and its derivatives
    in the two limits the largest number, in place of infinity, of which a masked row adds 0.
    """
    if problem.region.is_linear:
        sound = jnp.where(lax.stop_gradient(problem.region.is_proper), 1.0, jnp.nan)
        problem = jax.tree.map(lambda x: x * sound.astype(x.dtype), problem)
    if not method.own_units or not problem.region.is_linear:
        return bounded(method, problem, method.averaged(problem, key))
    standard = standardized(*problem)
    result = method.scaled(1.0 / standard.row_unit).averaged(standard.problem, key)
    result = bounded(method, standard.problem, result)
    # Decided constraints determine the probability unless they are met.
    certain = lax.stop_gradient(standard.known != 0)
    stderr = jnp.where(jnp.isnan(standard.known), jnp.nan, 0.0)
    log_prob = jnp.where(certain, standard.known, result.log_prob)
    low, high = as_linear(problem.region).low, as_linear(problem.region).high
    equal = (low == high) & jnp.isfinite(low) & (log_prob == -jnp.inf)
    width = jnp.sum(jnp.where(equal, high - low, 0.0))
    none = -jnp.inf + float(jnp.finfo(width.dtype).max) * width
    return Estimate(
        jnp.where(jnp.any(equal), none, log_prob), jnp.where(certain, stderr, result.stderr)
    )


def bounded(method: Method, row: Problem, result: Estimate) -> Estimate:
    """The estimate, of infinite stderr if it lies above the smallest log probability of a single
    constraint, or above 0 for regions without.

    That is by more than rounding and six standard errors. Every estimate passes here, with its
    gradient or without: one above the bound shows that its stderr is wrong.
    """
    loc, covariance, region = row
    bound = jnp.zeros((), loc.dtype) if method.is_smoothed else region.log_bound(loc, covariance)
    log_prob, stderr = lax.stop_gradient((result.log_prob, result.stderr))
    slack = float(jnp.finfo(log_prob.dtype).eps) ** 0.5 * (1.0 + jnp.abs(bound))
    above = log_prob > lax.stop_gradient(bound) + 6.0 * stderr + slack
    return result._replace(stderr=jnp.where(above, jnp.inf, result.stderr))


def spread(log_probs: Array, alone: Array) -> Array:
    """The standard error of the log of the mean of exp(log_probs), shape (R,) -> ().

    It is inf if replicates with `alone` = inf make up more than half of the mean.
    """
    size = jnp.max(log_probs)
    shares = jnp.exp(log_probs - jnp.where(jnp.isfinite(size), size, 0.0))
    total = shares.sum()
    stderr = standard_error(shares - shares.mean()) * len(log_probs) / total
    unsupported = jnp.sum(jnp.where(jnp.isinf(alone), shares, 0.0)) > 0.5 * total
    unsupported = unsupported | (size == -jnp.inf)
    return jnp.where(unsupported, jnp.inf, stderr)
