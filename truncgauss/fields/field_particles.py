"""The method for fields, and the log-likelihood of one row of a field."""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from truncgauss.arrays.batches import undifferentiated
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.importing import imported
from truncgauss.arrays.keys import PRNGKey, as_key
from truncgauss.arrays.linalg import in_full_precision
from truncgauss.arrays.pytrees import as_float_array, frozen_pytree, static_field
from truncgauss.fields import building, correction, guide, passes
from truncgauss.gaussian.covariances import Covariance
from truncgauss.gaussian.problem import Estimate, Problem
from truncgauss.gaussian.regions.region import Region
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import NUM_REPLICATES, Method, check_counts
from truncgauss.special.logspace import log_mean_exp, standard_error
from truncgauss.words.arguments import explained_class

RESAMPLED = (
    "{} has no second derivatives: particles are resampled. Use differences of gradients at one "
    "key, or a dense covariance with tg.Separation()."
)
LEAST_EFFECTIVE = 10.0
MOST_LEFT = 0.1  # of the correction by a Gaussian integral
# Of the root of the sum of squares of the changes of blocks, which may cancel. Of 27 fields of 196
# points by 32 neighbours the error of seven was 3 to 40 times their sum, of all .3 times that root.
CANCELLED = 0.5
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

    def for_problem(self, problem: Problem) -> "Particles":
        _, covariance, region = problem
        if not self.serves(covariance, region):
            raise ValueError(
                f"{type(self).__name__} applies to a tg.Box under a covariance of "
                f"{self.builder}, got {type(region).__name__} and {type(covariance).__name__}."
            )
        return self

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
    with Gaussian sites in place of the limits, and half of the root of the sum of squares of what
    each block adds to that, as some may cancel. That exceeds the error of the approximation where
    it falls with their number at least as 1/m. stderr is inf where that change is above 3, as of
    coordinates that all depend on each other (`corrected` makes few neighbours good), or too few
    particles were effective.

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
            rows, empty = _between(field, lower, upper, loc)
            moving = passes.FieldSlopes(field.weights, field.scale, field.exact_root, rows[:3])
            return moving, (lax.stop_gradient((field, rows)), empty)

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

    @in_full_precision
    def weighted_draws(
        self, field: Any, lower: Any, upper: Any, loc: Any = 0.0, key: PRNGKey | None = None
    ) -> tuple[Array, Array]:
        """Draws of a field less its mean given what is known, and the logs of their weights.

        Where nothing is known, between infinite limits, the field is drawn all the same: that is a
        prediction. They have no noise. Draws of one replicate depend on each other, those of two do
        not: the scatter of the weighted means of replicates is their error.

        Args:
            field: a `Directed`.
            lower, upper: limits of each coordinate, equal where it is known, shape (n,).
            loc: the mean, a number or shape (n,).
            key: of the random numbers.

        Returns:
            Draws, (num_replicates, num_particles, n), and log weights without the last axis, whose
            exponentials have the probability, or the density, for their mean.

        Example:
            >>> kernel = lambda x, y: jnp.exp(-abs(x - y)[0])
            >>> line = tg.Directed.from_points(jnp.arange(2.0), kernel)
            >>> draws, log_weights = tg.FieldParticles(1000, 2).weighted_draws(
            ...     line, jnp.array([1.0, -jnp.inf]), jnp.array([1.0, jnp.inf])
            ... )
            >>> shares = jax.nn.softmax(log_weights, axis=1)
            >>> means = jnp.sum(shares * draws[..., 1], axis=1)
            >>> bool(jnp.allclose(means, jnp.exp(-1.0), atol=0.02))
            True
        """
        rows, _ = _between(field, lower, upper, loc)
        return _weighted_paths(field, rows, as_key(key), self.num_particles, self.num_replicates)

    @in_full_precision
    def corrected(
        self,
        points: Any,
        kernel: Callable[[Array, Array], Array],
        lower: Any,
        upper: Any,
        loc: Any = 0.0,
        noise: Any = 0.0,
        neighbours: int = 256,
        key: PRNGKey | None = None,
        **settings: Any,
    ) -> Estimate:
        """A log-likelihood or log P of the kernel itself, of some 25,000 points at most.

        To log P by few neighbours is added what Gaussian integrals with sites in place of the
        limits change from that field to the whole one, by one dense factor of 4 n^2 bytes. Of 4,000
        wells log P by 64 neighbours was 34.7 off, corrected 1.8; by 128, 2.77 and .06. Of 24,701
        wells it was -10573.05 by 128, -10574.91 by 256 and -10574.88 by 512 neighbours.

        What is left of the error of few neighbours falls with them. stderr is the scatter of
        replicates, in quadrature with the change by half of the neighbours (at the same sites and
        random numbers), or a tenth of the correction where that is more: the most that was seen to
        be left is the twentieth part, of 64 neighbours above, where the change said .5.

        Args:
            points: shape (n, p). Numbers, not tracers, as are all that follow.
            kernel: the covariance of the field at two points of shape (p,).
            lower, upper: limits of each coordinate, equal where it is known, shape (n,).
            loc: the mean, a number or shape (n,).
            noise, neighbours: as of `Directed.from_points`.
            key: of the random numbers.
            settings: `block` and `neighbour_points` of `Directed.from_points`.

        Raises:
            ValueError: for a lower limit above the upper one, a kernel that is not positive
                definite on the points, or fewer than four neighbours.

        Example:
            >>> points = jnp.arange(60.0)[:, None]
            >>> kernel = lambda x, y: jnp.exp(-jnp.sum((x - y) ** 2) / 50.0)
            >>> below = jnp.full(60, -jnp.inf), jnp.zeros(60)
            >>> few = dict(noise=0.3, neighbours=8, block=10)
            >>> found = tg.FieldParticles().corrected(points, kernel, *below, **few)
            >>> exact = tg.Directed.from_points(points, kernel, noise=0.3)
            >>> truth = tg.log_probability(jnp.zeros(60), exact, tg.Box(*below))
            >>> bool(abs(found.log_prob - truth.log_prob) < 3 * found.stderr < 0.5)
            True
        """
        points = as_float_array(points, "corrected: points")
        if not isinstance(neighbours, int) or neighbours < 4:
            raise ValueError(
                f"corrected: neighbours must be an int of at least 4, got {neighbours!r}."
            )
        if bool(jnp.any(jnp.asarray(lower) > jnp.asarray(upper))):
            raise ValueError("corrected: lower must not be above upper; equal ones are values.")
        directed = imported("truncgauss.fields.directed")  # whose fields have this method
        finer, coarser = (
            directed.Directed.from_points(points, kernel, m, noise, exact=False, **settings)
            for m in (neighbours, neighbours // 2)
        )
        if finer.guide_weights.shape[-1] < finer.weights.shape[-1]:
            raise ValueError(
                "corrected: draws of this field are guided by "
                f"{finer.guide_weights.shape[-1]} of its neighbours: give it no more than these."
            )
        rows, _ = _between(finer, lower, upper, loc)
        first, second = jax.random.split(as_key(key))
        sites = jax.jit(guide.sites_of)(finer, rows, first, jnp.zeros_like(rows.noise))
        placed, n = finer.order.astype(int), finer.dimension
        parts = *sites, rows.exact
        flat = (jnp.zeros(n, x.dtype).at[placed].set(x.reshape(-1)[:n]) for x in parts)
        share = building.SHARE / (1.0 - building.SHARE)
        whole = correction.whole_log_mass(points, kernel, share * finer.noise**2, tuple(flat))
        counts = self.num_particles, self.num_replicates
        (value, scatter, mass), (other, _, less) = (
            _beside_sites(field, rows, sites, second, *counts) for field in (finer, coarser)
        )
        change = jnp.abs((value - mass) - (other - less))
        left = jnp.maximum(change, MOST_LEFT * jnp.abs(whole - mass))
        return Estimate(value + (whole - mass), jnp.hypot(scatter, left))


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


def _between(field: Any, lower: Any, upper: Any, loc: Any) -> tuple[guide.Rows, Array]:
    """Rows in blocks between limits, equal where a coordinate is known, and whether some lower one
    is above the upper one."""
    each = field.noise.shape
    loc, low, high = (jnp.broadcast_to(jnp.asarray(x), each) for x in (loc, lower, upper))
    return in_blocks(field, _rows(field, low, high, loc, low == high)), jnp.any(low > high)


def in_blocks(field: Any, asked: guide.Rows) -> guide.Rows:
    """Rows of the coordinates in blocks of the order, filled up with sites of which nothing is
    asked."""
    fills = guide.Rows(-jnp.inf, jnp.inf, 0.0, False)  # type: ignore[arg-type]
    return guide.Rows(*(field.in_blocks(x, fill) for x, fill in zip(asked, fills)))


def _less(limits: Array, loc: Array) -> Array:
    """Limits less the mean; an infinite one has no derivative in either."""
    finite = jnp.isfinite(limits)
    return jnp.where(finite, jnp.where(finite, limits, 0.0) - loc, lax.stop_gradient(limits))


def _guided(field: Any, rows: guide.Rows, key: Array) -> tuple[guide.FieldSites, Any, Array]:
    """The sites, the guide of draws, and the size of a change by half of its neighbours."""
    if field.exact_root.size:
        root, noise = guide.noisy_root(field, rows)
        sites = guide.sites_of(field, rows, key, rows.noise - noise)
        return sites, guide.whole_guide(root, noise, rows, sites), jnp.zeros((), rows.low.dtype)
    sites = guide.sites_of(field, rows, key, jnp.zeros_like(rows.noise))
    law = guide.conditionals(field, sites)
    parts = guide.changes_by_half(field, rows, sites, law)
    change = jnp.hypot(jnp.sum(parts), CANCELLED * jnp.sqrt(jnp.sum(parts**2)))
    return sites, law._replace(shift=building.after(law.shift, change)), change


@functools.partial(jax.jit, static_argnums=(3, 4))
def _weighted_paths(
    field: Any, rows: guide.Rows, key: Array, num_particles: int, num_replicates: int
) -> tuple[Array, Array]:
    first, *keys = jax.random.split(key, 1 + num_replicates)
    sites, law, _ = _guided(field, rows, first)
    places = jnp.argsort(field.order)

    def one(key: Array) -> tuple[Array, Array]:
        record = passes.run(field, rows, sites, law, key, num_particles)
        shares = jax.nn.log_softmax(record.log_weights) + math.log(num_particles)
        return record.paths[places].T, record.log_prob + shares

    return lax.map(one, jnp.stack(keys))


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
    sites, law, change = _guided(field, rows, first)

    def one(key: Array) -> Any:
        record = passes.run(field, rows, sites, law, key, num_particles)
        found = record.log_prob, record.least
        return found, along(passes.slopes(field, rows, record)) if along else None

    (log_probs, least), slopes = lax.map(one, jnp.stack(keys))
    shares = jax.nn.softmax(log_probs)
    value, scatter = _mean(log_probs)
    unknown = (jnp.min(least) < min(LEAST_EFFECTIVE, num_particles)) | ~(change <= LARGEST_CHANGE)
    stderr = jnp.where(unknown, jnp.inf, jnp.hypot(scatter, change))
    return Estimate(value, stderr), (shares, slopes)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _beside_sites(
    field: Any,
    rows: guide.Rows,
    sites: guide.FieldSites,
    key: Array,
    num_particles: int,
    num_replicates: int,
) -> tuple[Array, Array, Array]:
    """log P of a field, the scatter of replicates, and the log of the integral with the sites."""
    law = guide.conditionals(field, sites)
    run = lambda key: passes.run(field, rows, sites, law, key, num_particles)[:2]
    log_probs, least = lax.map(run, jax.random.split(key, num_replicates))
    value, scatter = _mean(log_probs)
    unknown = jnp.min(least) < min(LEAST_EFFECTIVE, num_particles)
    return (
        value,
        jnp.where(unknown, jnp.inf, scatter),
        jnp.sum(guide.log_masses(field, rows, sites, law)),
    )


def _mean(log_probs: Array) -> tuple[Array, Array]:
    """log of the mean of the replicates, and its standard error."""
    value = log_mean_exp(log_probs, axis=0)
    several = len(log_probs) > 1
    return value, standard_error(jnp.expm1(log_probs - value)) if several else jnp.asarray(jnp.nan)


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
    field, rows, key = undifferentiated(primals, RESAMPLED.format("FieldParticles"))
    counts, (moved, moved_rows, _) = (num_particles, num_replicates), tangents
    value, (shares, each) = _with_slopes(field, rows, key, *counts, lambda slopes: slopes)
    slopes = jax.tree.map(lambda x: jnp.tensordot(shares, x, 1), each)
    change = jnp.vdot(slopes.weights, moved.weights) + jnp.vdot(slopes.scale, moved.scale)
    change += jnp.vdot(slopes.exact_root, moved.exact_root)
    change += sum(map(jnp.vdot, slopes.rows, moved_rows[:3]))
    return value, Estimate(change, jnp.zeros_like(value.stderr))


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
