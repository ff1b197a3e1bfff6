"""The method that chooses a method, and the public functions of log probabilities."""

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.arrays import parallel
from truncgauss.arrays.batches import in_batches
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import check_numbers, frozen_pytree, is_concrete, static_field
from truncgauss.gaussian.problem import (
    NORMAL,
    CovarianceLike,
    Estimate,
    Loc,
    Problem,
    as_problem,
    checked_problem,
    is_gaussian,
    on_device,
)
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.method import (
    NUM_REPLICATES,
    Chooser,
    Method,
    check_method,
    estimate,
    prepared,
    with_fields,
)
from truncgauss.words.arguments import explained_class

REWEIGHTING = "truncgauss.probability.reweighting.Reweighting"
# In this order. Where `Exact` applies no other is tried; of the sampling methods the second is
# tried on rows where the first fails. A module is imported when its method is asked.
CANDIDATES = (
    "truncgauss.probability.exact.Exact",
    "truncgauss.probability.separation.Separation",
    "truncgauss.probability.sequential.SequentialMonteCarlo",
    "truncgauss.probability.complement.Complement",
    "truncgauss.probability.probit_scores.ProbitScores",
    "truncgauss.probability.logistic_scores.LogisticScores",
    "truncgauss.probability.importance.ImportanceSampling",
    REWEIGHTING,
)
OF_STUDENT_T = "truncgauss.student.student.log_probability"
MOST_POINTS, LEAST_POINTS = 1024, 32  # of the first lattice
# Points of each replicate by rtol: those of the largest that is not above the rtol asked for, or of
# the last; above 8 dimensions twice as many where they are below 1,024. docs/methods.md has the
# errors that were measured with them. Standard errors from fewer than 64 were too small.
POINTS = {1e-2: 64, 5e-3: 256, 2e-3: 512, 1e-4: 1024, 1e-5: 8192, 1e-6: 2**16}
FEW_DIMENSIONS = 8
LEAST_TO_GROW = 256  # where points may follow: a growing lattice has so many at a time on a CPU
LEAST_OF_MANY = 128  # where many rows, not many dimensions, are the reason for fewer points


@explained_class
@frozen_pytree
class Automatic(Chooser):
    """The method chosen for the problem: `Exact` where it applies, else a sampling method.

    Outside of a trace the choice depends on the numbers. Coordinates without limits are left out,
    independent blocks are separated, and a Markov chain or a common factor in a covariance matrix
    is recognised: these are exact in any dimension, and differentiated as functions of every entry
    (a second derivative in a matrix of blocks, a chain or a common factor is refused). Other
    problems begin with `Separation`, 16 replicates of 256 points for an rtol of 5e-3 or more, of
    512 for 2e-3, else of 1,024, which rows above rtol get in any case. Rows whose stderr is then
    above 0.05, as of long and weakly truncated chains, are also estimated by
    `SequentialMonteCarlo`, and the estimate of smaller stderr is kept. Then rows whose stderr is
    above rtol get more points until it is below, until it falls more slowly than n^(-1/4), or until
    max_draws are spent. stderr reports the accuracy reached.

    In a trace only shapes and rtol are known. Shapes determine the method; the points of each of
    16 replicates are 64 for an rtol of 1e-2 or more, 256 for 5e-3, 512 for 2e-3, 1,024 for 1e-4,
    8,192 for 1e-5 and 65,536 below, of the first three numbers twice as many above 8 dimensions.
    They are final, as are those of `hold`, at least 256. A `Ball` or `Ellipsoid` is exact, a
    `Selection` is estimated by `ImportanceSampling`.

    Args:
        rtol: relative error of the probability to aim at (static).
        max_draws: budget of a call, in points x replicates x dimensions x rows; the draws of
            sequential Monte Carlo count four times (static). The default takes about three seconds
            of one core in float64. The first estimate by each method is always made: with fewer
            points if it would exceed the budget, but with at least 128 per row and replicate (32 in
            tens of thousands of dimensions).

    Raises:
        ValueError: if rtol is not positive or above 1, or max_draws is not a positive int.

    Example:
        >>> region = tg.Box([0.0, 0.0], [jnp.inf, 1000.0])
        >>> tg.fraction_not_truncated([0.0, 0.0], jnp.eye(2), region)
        Array(0.25, dtype=float64)
    """

    rtol: float = static_field(default=1e-4)
    max_draws: int = static_field(default=2**26)

    def __post_init__(self) -> None:
        check_numbers(self.rtol, "Automatic: rtol")
        if not self.rtol > 0:
            raise ValueError(f"Automatic: rtol must be positive, got {self.rtol!r}.")
        if self.rtol > 1:
            points = f"tg.Separation(num_points={max(int(self.rtol), 64)})"
            raise ValueError(
                f"Automatic: rtol is a relative error, at most 1, got {self.rtol!r}. A number of "
                f"points is an argument of another method, such as {points}."
            )
        if not isinstance(self.max_draws, int) or self.max_draws < 1:
            raise ValueError(
                f"Automatic: max_draws must be a positive int, got {self.max_draws!r}."
            )

    def counts(self, problem: Problem, num_rows: int | None = None) -> tuple[int, int]:
        """The points of each replicate to begin with, and those that rows above rtol get at once.

        Without a number of rows both are the points for rtol, as none are added later.
        """
        d = problem.covariance.dimension
        asked = max((rtol for rtol in POINTS if rtol <= self.rtol), default=min(POINTS))
        few = POINTS[asked] < MOST_POINTS and d > FEW_DIMENSIONS
        first = (1 + few) * POINTS[asked]
        # What `hold` returns is then what the call with numbers begins with.
        if is_concrete(problem):
            first = max(first, LEAST_TO_GROW, 2 ** (d - 1).bit_length())
        wanted = (first, first) if num_rows is None else (min(first, MOST_POINTS), MOST_POINTS)
        most = max(1, self.max_draws // (NUM_REPLICATES * d))
        alone = max(LEAST_POINTS, 2 ** int(math.log2(most)))
        of_many = max(LEAST_OF_MANY, 2 ** int(math.log2(max(1, most // (num_rows or 1)))))
        begin, full = (min(count, alone, of_many) for count in wanted)
        return begin, full

    def candidates(self, problem: Problem, num_rows: int | None = None) -> Iterator[Method]:
        """The methods that apply to a problem, in order of preference, see `counts`."""
        begin, full = self.counts(problem, num_rows)
        own = problem.covariance.methods
        for kind in itertools.chain(own, map(imported, CANDIDATES)):
            method = kind.candidate(problem, full if kind.starts_full else begin)
            if method is not None:
                method = method.for_problem(problem)
                if method.of_any_region and num_rows:
                    method = self.affordable(method, problem, num_rows)
                late = method.starts_full and not kind.starts_full
                yield method.enlarged(full // begin) if late else method

    def affordable(self, method: Method, problem: Problem, num_rows: int) -> Method:
        """The method with fewer points, a power of two, if those of all rows exceed the budget."""
        from truncgauss.probability.refinement import cost

        most = method.count * self.max_draws // (cost(method, problem) * num_rows)
        count = max(LEAST_OF_MANY, 2 ** int(math.log2(max(1, most))))
        return with_fields(method, num_points=min(method.count, count))

    def hold(self, loc: Loc, covariance: CovarianceLike, region: Region) -> Method:
        """The chosen method with its plan held; `HeldParts` where structure is recognised.

        Either is one smooth function of the mean, the covariance and the region. Of many
        covariances that are all diagonal what is held is `Exact`, which refuses others.
        """
        from truncgauss.probability.blocks import held_parts

        return held_parts(self, as_problem(loc, covariance, region))

    def estimate(self, problem: Problem, key: jax.Array) -> Estimate:
        """The estimate of every row: the sum over independent blocks of coordinates."""
        from truncgauss.probability.blocks import estimate_of_parts

        return estimate_of_parts(self, problem, key)


def imported(name: str) -> Any:
    """The object of that dotted name, whose module is imported only now."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@reported
@in_full_precision
def log_probability(
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    method: Method = Automatic(),
    key: PRNGKey | None = None,
    df: Real[ArrayLike, "*#batch"] = NORMAL,
    noncentral: str = "shifted",
) -> Estimate:
    r"""The log probability of a region under a Gaussian or a multivariate t, with its error.

    .. math:: \log P(X \in R), \qquad X \sim \mathcal{N}(\mu, \Sigma)
        \quad\text{or}\quad X \sim t_{df}(\mu, \Sigma)

    Args:
        loc: mean, shape (..., d).
        covariance: covariance matrix, shape (..., d, d), or `ScaleTril`, `LowRank`, `Markov`.
        region: `Box`, `Polyhedron`, `Ball`, `Ellipsoid`, `Outside` of one of these,
            or `Selection`, of batch shape (...).
            Leading axes broadcast.
        method: how to compute it; `Automatic` by default.
        key: JAX random key of a sampling method. None stands for jax.random.key(0): the same call
            gives the same number. Under `jit`, where `Automatic` knows only shapes, it may differ
            within the standard errors. All rows of a batch share the key.
        df: degrees of freedom of a multivariate t, any positive numbers of shape (...); inf is the
            Gaussian. It applies to all regions but a `Selection`. The covariance is then its scale
            matrix. With S = sqrt(chi^2_df / df) the
            method serves every S of a quadrature. In a trace in which df is no number the
            quadrature has as many nodes as df = 2 needs; stderr includes its error.
        noncentral: for a t, "shifted", X = loc + Z / S, or "Kshirsagar", X = (loc + Z) / S.

    Returns:
        Estimate(log_prob, stderr), each of the broadcast leading shape. stderr is the standard
        error of log_prob: 0 exact to rounding, nan unknown, inf too few effective samples for an
        error estimate. The probability of a `Selection` is the mean of its function.

    Raises:
        ValueError: if shapes disagree, the covariance is not symmetric positive semi-definite, or
            the method does not apply; the message says what to use instead.

    Example:
        >>> region = tg.Box([1.0], [jnp.inf])
        >>> gradient = jax.grad(lambda loc: tg.log_probability(loc, [[1.0]], region).log_prob)
        >>> gradient(jnp.zeros(1))
        Array([1.52513528], dtype=float64)
    """
    check_method(method)
    problem = checked_problem(loc, covariance, region)
    key = as_key(key)

    def gaussian(problem: Problem) -> Estimate:
        if isinstance(method, Automatic):
            return method.estimate(problem, key)
        problem = on_device(problem)
        return in_batches(estimate, prepared(method, problem), problem, key)

    with parallel.like(problem):
        if is_gaussian(df, noncentral):
            return checked(gaussian(problem), problem.region)
        if not problem.region.answers_points and noncentral == "shifted":
            of_points = prepared(imported(REWEIGHTING)(df), problem)
            return checked(in_batches(estimate, of_points, on_device(problem), key), problem.region)
        of_t = imported(OF_STUDENT_T)
        under_t: Estimate = of_t(on_device(problem), df, noncentral, gaussian)
        return under_t


def checked(result: Estimate, region: Any) -> Estimate:
    """The estimate; ValueError where injections give, in numbers, a probability above 1."""
    if not region.answers_points and is_concrete(result):
        region.check_probability("log_probability", *result)
    return result


@reported
def fraction_not_truncated(
    loc: Loc,
    covariance: CovarianceLike,
    region: Region,
    method: Method = Automatic(),
    key: PRNGKey | None = None,
    df: Real[ArrayLike, "*#batch"] = NORMAL,
    noncentral: str = "shifted",
) -> Float[Array, "*batch"]:
    """The probability P(X in region), the fraction of a Gaussian or a t that a truncation keeps.

    It is the exponential of `log_probability`, which has the same arguments.

    Returns:
        The probability, shape of the broadcast leading axes.

    Raises:
        ValueError: as `log_probability`.

    Example:
        >>> shifts = jnp.array([[-1.0], [0.0], [1.0]])
        >>> tg.fraction_not_truncated(shifts, [[1.0]], tg.Box([0.0], [1000.0]))
        Array([0.15865525, 0.5       , 0.84134475], dtype=float64)
    """
    args = key, df, noncentral
    of: Callable[[Method], Array] = lambda m: log_probability(loc, covariance, region, m, *args)[0]
    log_prob = of(method)
    return method.fraction(log_prob, of)
