"""The method for fields, and the log-likelihood of one row of a field."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, static_field
from truncgauss.fields import guide, passes
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import NUM_REPLICATES, Method, check_counts
from truncgauss.special.logspace import log_mean_exp, standard_error
from truncgauss.words.arguments import explained_class

LEAST_EFFECTIVE = 10.0
LARGEST_CHANGE = 3.0  # of log P by half of the neighbours, beyond which no error is known


class Particles(Method):
    """Sequential Monte Carlo for a `Box` under the covariances that have the method.

    A subclass has the numbers of particles and replicates, `builder`, by which users make such a
    covariance, and `value_of`, of limits less the mean in the order of the coordinates.
    """

    num_particles: int
    num_replicates: int

    own_units = False
    builder: ClassVar[str]

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Particles | None":
        return cls() if cls.serves(problem.covariance, problem.region) else None

    @classmethod
    def serves(cls, covariance: Covariance, region: Region) -> bool:
        """Whether the method is of the covariance, and the region a box."""
        return region.is_box and cls in covariance.methods

    def check(self, loc: Float[Array, "*batch d"], covariance: Covariance, region: Region) -> None:
        if not self.serves(covariance, region):
            raise ValueError(
                f"{type(self).__name__} applies to a tg.Box under a covariance of "
                f"{self.builder}, got {type(region).__name__} and {type(covariance).__name__}."
            )

    def numbers_held(self, dimension: int) -> int:
        return 3 * self.num_particles * dimension

    def value_of(self, field: Any, asked: guide.Rows, key: Array) -> Estimate:
        """The estimate of one row, (n,)."""
        raise NotImplementedError(f"{type(self).__name__} defines no value_of(field, asked, key).")

    def averaged(self, row: Problem, key: Array) -> Estimate:
        none = jnp.zeros(row.loc.shape, bool)
        box: Any = row.region
        return self.of_rows(row.covariance, box.low, box.high, row.loc, none, key)

    def of_rows(
        self, field: Any, low: Array, high: Array, loc: Array, exact: Array, key: Array
    ) -> Estimate:
        """The log of the probability of limits, times the density of the coordinates known."""
        log_prob, stderr = self.value_of(field, _rows(field, low, high, loc, exact), key)
        empty = jnp.any((low >= high) & ~exact)
        log_prob = jnp.where(empty, -jnp.inf, log_prob)
        return Estimate(log_prob, lax.stop_gradient(jnp.where(empty, 0.0, stderr)))


@explained_class
@frozen_pytree
class FieldParticles(Particles):
    """Sequential Monte Carlo over the blocks of a `Directed` covariance, guided by Gaussian sites.

    Of `tg.Automatic`, too, it is the method for a `Box` under such a covariance. stderr is the
    scatter of the replicates. Of a field of `from_points` that is not exact it has a second part,
    in quadrature: how much log P changes with half of the neighbours by which draws are guided,
    with Gaussian sites in place of the limits. That exceeds the error of the approximation where it
    falls with their number at least as 1/m. stderr is inf where that change is above 3, as of
    coordinates that all depend on each other, or too few particles were effective.

    The value is discontinuous where resampling changes. `grad` returns an estimate of the gradient
    by Fisher's identity, with an error of its own, which more particles reduce and the method
    `gradient` states; second derivatives raise.

    Args:
        num_particles: of each replicate (static).
        num_replicates: independent runs, whose scatter gives the error (static).

    Raises:
        ValueError: for another covariance, or a region other than a `Box`.

    Example:
        >>> line = tg.Directed.from_points(
        ...     jnp.arange(200.0), lambda x, y: jnp.exp(-jnp.abs(x - y)[0] / 5.0), neighbours=4
        ... )
        >>> below = tg.Box(jnp.full(200, -jnp.inf), 1.0)
        >>> found = tg.log_probability(jnp.zeros(200), line, below)
        >>> bool(abs(found.log_prob + 10.117) < 0.05)  # as by tg.Markov, exactly
        True
    """

    # Of 8 times 1,000, in the same time, the error was stated 1.2 times too large: few replicates
    # cannot show that they are not skewed, for which `standard_error` allows.
    num_particles: int = static_field(default=500)
    num_replicates: int = static_field(default=NUM_REPLICATES)

    builder = "tg.Directed.from_points"

    def __post_init__(self) -> None:
        check_counts(self, "num_particles", "num_replicates")

    def reason(self, problem: Problem) -> str:
        return "a field, block by block given its neighbours"

    def value_of(self, field: Any, asked: guide.Rows, key: Array) -> Estimate:
        rows = in_blocks(field, asked)
        return _estimate(field, rows, key, self.num_particles, self.num_replicates)

    @in_full_precision
    def gradient(
        self,
        question: Callable[[Any], tuple[Any, Any, Any, Any]],
        parameters: Any,
        key: PRNGKey | None = None,
    ) -> "FieldGradient":
        """A log-likelihood or log P, its gradient in parameters, and standard errors of both.

        Each replicate's gradient, by Fisher's identity, is taken through `question` to the
        parameters, so that the errors of thousands of weights are not added as if independent.
        With w_r the replicates' shares of P and g_r their gradients, g = sum w_r g_r and, to first
        order, stderr^2 = R / (R - 1) sum w_r^2 (g_r - g)^2, as in `log_probability_and_gradient`.
        It is the error of sampling: of what more neighbours would change the gradient says nothing.

        Args:
            question: of the parameters, returns (loc, field, lower, upper): the mean, a `Directed`,
                and of each coordinate the limits, equal where it is known, as in `Observations`.
            parameters: a float array or a pytree of them.
            key: of the random numbers.

        Raises:
            ValueError: for one replicate, which shows no error, or for another covariance.

        Example:
            >>> def line(reach):
            ...     kernel = lambda x, y: jnp.exp(-jnp.abs(x - y)[0] / reach)
            ...     field = tg.Directed.from_points(jnp.arange(9.0), kernel, neighbours=8)
            ...     return 0.0, field, jnp.zeros(9), jnp.full(9, jnp.inf)
            >>> slope = tg.FieldParticles().gradient(line, 2.0)
            >>> bool(0.0 < slope.stderr < 0.02 * slope.gradient)
            True
        """
        if self.num_replicates < 2:
            raise ValueError("FieldParticles: gradient needs at least 2 replicates for its error.")

        def asked(parameters: Any) -> tuple[Any, tuple[Any, Array]]:
            loc, field, lower, upper = question(parameters)
            if FieldParticles not in getattr(field, "methods", ()) or field.batch_shape:
                raise ValueError(
                    "FieldParticles: gradient needs a question that returns (loc, field, lower, "
                    "upper), of which field is one tg.Directed, as of from_points."
                )
            each = field.noise.shape
            loc, low, high = (jnp.broadcast_to(jnp.asarray(x), each) for x in (loc, lower, upper))
            rows = in_blocks(field, _rows(field, low, high, loc, low == high))
            moving = passes.FieldSlopes(field.weights, field.scale, field.exact_root, rows[:3])
            return moving, (lax.stop_gradient((field, rows)), jnp.any(low > high))

        parameters = jax.tree.map(lambda x: as_float_array(x, "parameters"), parameters)
        _, pull, ((field, rows), empty) = jax.vjp(asked, parameters, has_aux=True)
        counts = self.num_particles, self.num_replicates
        value, (shares, slopes) = _with_slopes(field, rows, as_key(key), *counts, pull)
        gradient = jax.tree.map(lambda x: jnp.tensordot(shares, x, 1), slopes)
        unknown = jnp.where(empty, jnp.nan, jnp.where(jnp.isinf(value.stderr), jnp.inf, 0.0))

        def error(each: Array, mean: Array) -> Array:
            squares = jnp.tensordot(shares**2, (each - mean[None]) ** 2, 1)
            return jnp.sqrt(squares * counts[1] / (counts[1] - 1)) + unknown

        [stderr], [mean] = jax.tree.map(error, slopes, gradient), gradient
        log_prob = jnp.where(empty, -jnp.inf, value.log_prob)
        return FieldGradient(Estimate(log_prob, jnp.where(empty, 0.0, value.stderr)), mean, stderr)


class FieldGradient(NamedTuple):
    """A log probability or log-likelihood with its gradient, and the standard errors of both.

    Attributes:
        estimate: the value and its standard error.
        gradient: in the parameters, of their shapes.
        stderr: the standard error of every entry of the gradient.
    """

    estimate: Estimate
    gradient: Any
    stderr: Any


def _rows(field: Any, low: Array, high: Array, loc: Array, exact: Array) -> guide.Rows:
    return guide.Rows(_less(low, loc), _less(high, loc), field.noise**2, exact)


def in_blocks(field: Any, asked: guide.Rows) -> guide.Rows:
    """Rows of the coordinates in blocks of the order, filled up with sites of which nothing is
    asked."""
    fills = guide.Rows(-jnp.inf, jnp.inf, 0.0, False)  # type: ignore[arg-type]
    return guide.Rows(*(field.in_blocks(x, fill) for x, fill in zip(asked, fills)))


def _less(limits: Array, loc: Array) -> Array:
    """Limits less the mean; an infinite one has no derivative in either."""
    finite = jnp.isfinite(limits)
    return jnp.where(finite, jnp.where(finite, limits, 0.0) - loc, lax.stop_gradient(limits))


def _with_slopes(
    field: Any,
    rows: guide.Rows,
    key: Array,
    num_particles: int,
    num_replicates: int,
    along: Callable[[passes.FieldSlopes], Any] | None,
) -> tuple[Estimate, tuple[Array, Any]]:
    """The estimate, each replicate's share of it, and `along` of each replicate's slopes."""
    first, *keys = jax.random.split(key, 1 + num_replicates)
    if field.exact_root.size:
        root, noise = guide.noisy_root(field, rows)
        sites = guide.sites_of(field, rows, first, rows.noise - noise)
        law: Any = guide.whole_guide(root, noise, sites)
        change = jnp.zeros((), rows.low.dtype)
    else:
        sites = guide.sites_of(field, rows, first, jnp.zeros_like(rows.noise))
        law = guide.conditionals(field, sites)
        change = jnp.abs(guide.change_by_half(field, sites, law))

    def one(key: Array) -> Any:
        record = passes.run(field, rows, sites, law, key, num_particles)
        found = record.log_prob, record.least
        return found, along(passes.slopes(field, rows, record)) if along else None

    (log_probs, least), slopes = lax.map(one, jnp.stack(keys))
    shares = jax.nn.softmax(log_probs)
    value = log_mean_exp(log_probs, axis=0)
    scatter = standard_error(jnp.expm1(log_probs - value)) if num_replicates > 1 else jnp.nan
    unknown = (jnp.min(least) < min(LEAST_EFFECTIVE, num_particles)) | ~(change <= LARGEST_CHANGE)
    stderr = jnp.where(unknown, jnp.inf, jnp.hypot(scatter, change))
    return Estimate(value, stderr), (shares, slopes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _estimate(
    field: Any, rows: guide.Rows, key: Array, num_particles: int, num_replicates: int
) -> Estimate:
    return _with_slopes(field, rows, key, num_particles, num_replicates, None)[0]


@_estimate.defjvp
@in_full_precision
def _estimate_jvp(
    num_particles: int, num_replicates: int, primals: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Estimate, Estimate]:
    field, rows, key = primals
    moved, moved_rows, _ = tangents
    value, slopes = _once(field, rows, key, num_particles, num_replicates)
    change = jnp.vdot(slopes.weights, moved.weights) + jnp.vdot(slopes.scale, moved.scale)
    change += jnp.vdot(slopes.exact_root, moved.exact_root)
    change += sum(map(jnp.vdot, slopes.rows, moved_rows[:3]))
    return value, Estimate(change, jnp.zeros_like(value.stderr))


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def _once(
    field: Any, rows: guide.Rows, key: Array, num_particles: int, num_replicates: int
) -> tuple[Estimate, Any]:
    counts = num_particles, num_replicates
    value, (shares, slopes) = _with_slopes(field, rows, key, *counts, lambda slopes: slopes)
    return value, jax.tree.map(lambda x: jnp.tensordot(shares, x, 1), slopes)


@_once.defjvp
def _once_jvp(*_: Any) -> Any:
    raise ValueError(
        "FieldParticles has no second derivatives: particles are resampled. Use differences of "
        "gradients at one key, or a dense covariance with tg.Separation()."
    )


def likelihood(
    kind: Any, field: Any, observations: Any, loc: Any, method: Method, key: Array
) -> Estimate:
    """The log-likelihood of each row, of values that are known, limited or missing, by a kind of
    method that has `of_rows`."""
    name, builder = kind.__name__, kind.builder
    if observations.region is not None or observations.noise is not None or field.batch_shape:
        raise ValueError(
            f"log_likelihood: under a covariance of {builder}() observations have neither region "
            "nor noise nor observed=, and there is one covariance: give the field its noise, "
            f"{builder}(..., noise=...)."
        )
    if not isinstance(method, kind | Automatic):
        raise ValueError(
            f"log_likelihood: of a covariance of {builder}() tg.{name}() computes it, got "
            f"{type(method).__name__}. Leave method out, or give the matrix: "
            "field.covariance_matrix."
        )
    chosen = method if isinstance(method, kind) else kind()
    lower, upper = observations.lower, observations.upper
    locs = jnp.broadcast_to(jnp.asarray(loc, lower.dtype), lower.shape)
    log_prob, stderr = _of_each(chosen, field, lower, upper, locs, key)
    weights = 1.0 if observations.weights is None else observations.weights
    return Estimate(weights * log_prob, weights * stderr)


@Compiled
def _of_each(
    method: Any, field: Any, lower: Array, upper: Array, locs: Array, key: Array
) -> Estimate:
    """The estimate of each row, by a key of its own."""

    def of_row(part: Any) -> Estimate:
        low, high, mean, number = part
        own = jax.random.fold_in(key, number)
        return method.of_rows(field, low, high, mean, low == high, own)

    return lax.map(of_row, (lower, upper, locs, jnp.arange(len(lower))))
