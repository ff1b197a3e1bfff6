"""The contract of a method, and the average of its replicates.

A method answers for one Gaussian and one region. Batching is written once in `problem`, the average
over independent randomisations and its standard error here.
"""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truncgauss.compiling import MEDIUM, Compiled
from truncgauss.covariances import Covariance
from truncgauss.problem import Estimate, Problem, over_rows
from truncgauss.pytrees import Batched, is_concrete, values_of
from truncgauss.regions import LinearRegion, Region
from truncgauss.special import log_mean_exp
from truncgauss.total_moments import Moments
from truncgauss.units import Standardized, standardized

MOST_MEDIUM = 2**24  # numbers that a program holds; beyond, all effort is worth its time


class Growth(NamedTuple):
    """The count that buys accuracy.

    Attributes:
        count: the name of a static field of the method.
        rate: the standard error falls as count^(-1 / rate).
        price: what a draw costs, in lattice points.
    """

    count: str
    rate: float
    price: int = 1


class Method:
    """A way to compute P(X in region). A new method is a subclass of this, in one file.

    It is decorated with `frozen_pytree`: counts are static fields, so that equal settings share a
    compilation; arrays are leaves. `replicate` is the one thing that it must define: one
    independent randomisation for one problem without leading axes. A deterministic method has one
    replicate. All else has defaults. To be chosen by `Automatic`, it defines `candidate` and
    `reason` and is named in `automatic.CANDIDATES`.

    Example:
        >>> from truncgauss.pytrees import frozen_pytree
        >>> @frozen_pytree
        ... class UnionBound(tg.Method):
        ...     def replicate(self, loc, covariance, region, key):
        ...         scale = jnp.sqrt(covariance.variances)
        ...         inside = jnp.exp(
        ...             tg.special.truncated_log_mass(loc, scale, region.low, region.high)
        ...         )
        ...         bound = jnp.maximum(1.0 - jnp.sum(1.0 - inside), 0.0)
        ...         return tg.Estimate(jnp.log(bound), jnp.full_like(bound, jnp.nan))
        >>> box = tg.Box([-2.0, -2.0], [2.0, 2.0])
        >>> tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), box, UnionBound()).round(4)
        Array(0.909, dtype=float64)
    """

    num_replicates: int = 1
    batch_shape: tuple[int, ...] = ()  # of a held plan, if it has one for each of many rows
    # Whether problems with limits on linear functions come with standard deviations of about one.
    own_units: ClassVar[bool] = True
    growth: ClassVar[Growth | None] = None  # None: no count buys accuracy

    # --- What it is for

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Method | None":
        """The method as `Automatic` would try it, or None where it does not apply.

        Args:
            problem: arrays, or tracers: then shapes alone can be seen.
            num_points: lattice points a replicate that are affordable to begin with.
        """
        return None

    def reason(self, problem: Problem) -> str:
        """Why `Automatic` chose the method for a problem, for `explain`."""
        return "as asked for"

    def check(self, loc: Array, covariance: Covariance, region: Region) -> None:
        """Raise ValueError if this method cannot answer for such inputs."""

    # --- What is decided before it runs

    def serving(self, covariance: Covariance, region: Region) -> "Method":
        """The method that answers in place of this one for such a kind of covariance or region."""
        return self

    @property
    def is_held(self) -> bool:
        """Whether the method has a plan, or needs none."""
        return True

    def settled(self, loc: Array, covariance: Covariance, region: Region) -> "Method":
        """The method with settings that need concrete values, such as a rank, resolved."""
        return self

    def hold(self, loc: Array, covariance: Covariance, region: Region) -> "Method":
        """The method with its plan fixed, so that for one key it is one smooth function."""
        return self

    def scaled(self, by: Array) -> "Method":
        """The method with what it holds made to fit constraints multiplied by `by`, shape (m,)."""
        return self

    # --- How more of its count buys accuracy

    @property
    def count(self) -> int:
        """The count that buys accuracy; 1 if there is none."""
        return 1 if self.growth is None else getattr(self, self.growth.count)

    def growing(self) -> "Method":
        """The held method in a form whose count may grow without compiling again, if it has one.

        Its value may then not be differentiated.
        """
        return self

    def enlarged(self, factor: int) -> "Method":
        """The method with so many times the count that buys accuracy."""
        if self.growth is None:
            return self
        return dataclasses.replace(self, **{self.growth.count: factor * self.count})

    def grown(self) -> "Method":
        """What `growing` made of a method, with its count static again."""
        return self

    # --- What it answers

    def replicate(self, loc: Array, covariance: Covariance, region: Region, key: Array) -> Estimate:
        """One randomisation; its stderr is what it can say alone, nan if nothing."""
        raise NotImplementedError(f"{type(self).__name__} does not define replicate.")

    def replicates(
        self, loc: Array, covariance: Covariance, region: Region, keys: Array
    ) -> Estimate:
        """One replicate for each key, by default one after the other, in the memory of one."""
        one = jax.checkpoint(lambda key: self.replicate(loc, covariance, region, key))
        return jax.lax.map(one, keys)

    def combined_stderr(self, log_probs: Array, alone: Array) -> Array:
        """The standard error of the log of the replicates' mean, given what each says alone."""
        return spread(log_probs, alone)

    def moments(self, row: Problem, key: Array) -> Moments:
        r"""Mean and covariance given the region, for one problem without leading axes.

        By default they are the derivatives of log P that `replicate` defines, by the formulas

        .. math:: m = \mu + \Sigma \nabla, \qquad
                  C = \Sigma + \Sigma\, (\nabla \nabla^T \log P)\, \Sigma,

        with the gradient and the Hessian taken in the mean. Their standard errors are unknown, nan,
        unless log P is exact. In a tail, where C is much smaller than Sigma, digits cancel.
        """
        matrix = row.covariance.covariance_matrix

        def log_prob(loc: Array) -> Array:
            return average(self, row._replace(loc=loc), key).log_prob

        gradient, curve = jax.grad(log_prob)(row.loc), jax.hessian(log_prob)(row.loc)
        exact = average(self, row, key).stderr == 0
        error = jnp.where(exact, 0.0, jnp.nan).astype(row.loc.dtype)
        mean, spread_matrix = row.loc + matrix @ gradient, matrix + matrix @ curve @ matrix
        return Moments(mean, spread_matrix, error + 0.0 * mean, error + 0.0 * spread_matrix)

    # --- What it costs, and what it rests on

    def numbers_held(self, dimension: int) -> int:
        """About how many numbers one row holds at a time: bounds the rows of one turn."""
        return 8 * self.count * dimension

    def effort(self, problem: Problem) -> dict[str, Any] | None:
        """How much effort a compilation for numbers is worth, see `compiling`."""
        numbers = math.prod(problem.batch_shape) * self.numbers_held(problem.covariance.dimension)
        return MEDIUM if numbers <= MOST_MEDIUM else None

    def account(self, problem: Problem, key: Array) -> list[str]:
        """Lines for `explain` on what the estimate of one problem rests on."""
        return []


def prepared(method: Method, problem: Problem) -> Method:
    """The method that answers for a problem, checked, and with all that numbers can settle.

    Where there are numbers, also behind a derivative, its plan is held: a value and its gradient
    are then those of one function.

    Raises:
        ValueError: if it cannot answer.
    """
    method = method.serving(problem.covariance, problem.region)
    method.check(*problem)
    values = values_of(problem)
    if values is None or 0 in problem.batch_shape:
        return method.settled(*problem)
    return method if method.is_held else method.hold(*values)


def check_linear(owner: str, region: Region) -> None:
    """Raise ValueError unless a region is made of limits on linear functions."""
    if not isinstance(region, LinearRegion):
        raise ValueError(
            f"{owner} answers for limits on linear functions, a tg.Box or a tg.Polyhedron; got "
            f"{type(region).__name__}. Use tg.SoftMonteCarlo for other regions."
        )


def check_counts(method: Method, *names: str) -> None:
    """Raise ValueError unless these fields of a method are positive ints."""
    for name in names:
        count = getattr(method, name)
        if not isinstance(count, int) or count < 1:
            raise ValueError(
                f"{type(method).__name__}: {name} must be a positive int, got {count!r}."
            )


def check_held(owner: str, plan: Batched, counts: dict[str, tuple], problem: Problem) -> None:
    """Raise ValueError unless a held plan can serve a problem, as far as their shapes tell.

    Args:
        owner: the method's name.
        plan: what it holds.
        counts: what was counted -> how many there are in the plan, how many the problem has.
        problem: what is asked.
    """
    remedy = "Hold the method for this problem: method.hold(loc, covariance, region)."
    for what, (planned, asked) in counts.items():
        if planned != asked:
            raise ValueError(
                f"{owner}: the plan that is held was made for {planned} {what}, this problem has "
                f"{asked}. {remedy}"
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
    if not jax.config.jax_debug_nans:
        return _evaluated(method, problem, key)
    with jax.debug_nans(False):  # a stderr of NaN is no failure
        log_prob, stderr = _evaluated(method, problem, key)
    return Estimate(log_prob + 0.0, stderr)


def _evaluated(method: Method, problem: Problem, key: Array) -> Estimate:
    effort = method.effort(problem)
    if is_concrete(problem) or not is_concrete((method, key)) or effort is None:
        return _estimate(method, problem, key, effort=effort)
    if values_of(problem) is None:
        return _estimate(method, problem, key)
    return _differentiable(method, problem, key)


@Compiled
def _estimate(method: Method, problem: Problem, key: Array) -> Estimate:
    return over_rows(lambda row, method: average(method, row, key), problem, method)


@Compiled
def _with_gradient(method: Method, problem: Problem, key: Array) -> tuple[Estimate, Problem]:
    """The estimate for every row, and the derivatives of each row's log P in the problem."""

    def of_row(row: Problem, method: Method) -> tuple[Estimate, Problem]:
        def log_prob(row: Problem) -> tuple[Array, Array]:
            return tuple(average(method, row, key))

        (value, stderr), gradient = jax.value_and_grad(log_prob, has_aux=True)(row)
        return Estimate(value, stderr), gradient

    return over_rows(of_row, problem, method)


def _differentiable(method: Method, problem: Problem, key: Array) -> Estimate:
    """The estimate where a derivative is taken at numbers that are there.

    Value and gradient then come from one program, compiled with the effort of a value.
    """

    @jax.custom_jvp
    def value(problem: Problem) -> Estimate:
        return _estimate(method, problem, key, effort=method.effort(problem))

    @value.defjvp
    def value_jvp(primals, tangents):
        (problem,), (change,) = primals, tangents
        if not is_concrete(problem):  # of a second derivative
            plain = lambda problem: _estimate(method, problem, key)
            return jax.jvp(plain, primals, tangents)
        found, gradient = _with_gradient(method, problem, key, effort=method.effort(problem))
        rank = found.log_prob.ndim

        def along(slope: Array, change: Array) -> Array:
            return jnp.sum(slope * change, axis=tuple(range(rank, slope.ndim)))

        slopes = jax.tree.leaves(jax.tree.map(along, gradient, change))
        return found, Estimate(sum(slopes), jnp.zeros_like(found.stderr))

    return value(problem)


def average(method: Method, problem: Problem, key: Array) -> Estimate:
    """The log of the mean of the replicates' probabilities, and its standard error.

    With p_r the R replicates and p their mean, stderr = sd(p_r) / (sqrt(R) p), computed from
    exp(log p_r - max). A single replicate speaks for itself. If replicates that call their own
    result baseless (stderr inf) carry more than half of the mean, so is the average.
    """
    if method.own_units and isinstance(problem.region, LinearRegion):
        row = standardized(*problem)
        result = _average(method.scaled(1.0 / row.row_unit), row.problem, key)
        return decided(row, result)
    return _average(method, problem, key)


def decided(row: Standardized, result: Estimate) -> Estimate:
    """The estimate together with what constraints without variance say."""
    certain = jax.lax.stop_gradient(row.known != 0)
    stderr = jnp.where(jnp.isnan(row.known), jnp.nan, 0.0)
    return Estimate(
        jnp.where(certain, row.known, result.log_prob), jnp.where(certain, stderr, result.stderr)
    )


def _average(method: Method, problem: tuple, key: Array) -> Estimate:
    if method.num_replicates == 1:
        log_prob, stderr = method.replicate(*problem, key)
        return Estimate(log_prob, jax.lax.stop_gradient(stderr))
    keys = jax.random.split(key, method.num_replicates)
    log_probs, alone = method.replicates(*problem, keys)
    stderr = jax.lax.stop_gradient(method.combined_stderr(log_probs, alone))
    return Estimate(log_mean_exp(log_probs, axis=0), stderr)


def spread(log_probs: Array, alone: Array) -> Array:
    """Standard error of the log of the mean of exp(log_probs), shape (R,) -> ()."""
    size = jnp.max(log_probs)
    shares = jnp.exp(log_probs - jnp.where(jnp.isfinite(size), size, 0.0))
    total = shares.sum()
    stderr = jnp.std(shares, ddof=1) * len(log_probs) ** 0.5 / total
    baseless = jnp.sum(jnp.where(jnp.isinf(alone), shares, 0.0)) > 0.5 * total
    baseless = baseless | (size == -jnp.inf)
    return jnp.where(baseless, jnp.inf, stderr)
