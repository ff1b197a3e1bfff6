"""Exact probabilities, by closed forms and by quadratures accurate to rounding.

The module of a quadrature is imported where a problem needs it: none needs more than a few.
"""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from truncgauss.arrays.linalg import negligible, ranks_of
from truncgauss.arrays.pytrees import frozen_pytree, is_concrete
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix, ScaleTril, numbers_of
from truncgauss.gaussian.problem import Estimate, Moments, Problem
from truncgauss.gaussian.regions.polyhedron import Polyhedron
from truncgauss.gaussian.regions.region import LinearRegion, QuadraticRegion, Region, as_linear
from truncgauss.gaussian.total_moments import Nodes, total_moments
from truncgauss.probability import independence
from truncgauss.probability.method import Method
from truncgauss.special.normal import truncated_mean_and_variance
from truncgauss.words.arguments import explained_class

MANY_ROWS = 32
MOST_DIMENSIONS = 256  # of a ball: matrices of this size at each of 128 complex nodes


@explained_class
@frozen_pytree
class Exact(Method):
    """The probability of a box, polygon, ball or ellipsoid to rounding, where integrals allow it.

    In one dimension, and for independent coordinates,

        log P = sum_j log( Phi((high_j - loc_j) / s_j) - Phi((low_j - loc_j) / s_j) );

    in two and three dimensions by iterated quadrature in logs. In any dimension: for a `LowRank`
    covariance of rank one or two by quadrature over its factors; for a `Markov` covariance by a
    forward recursion on a grid. A covariance matrix is recognised as diagonal only outside of a
    trace; log P there has its derivatives of all orders in the covariances that are 0, too. In a
    trace, and for any other structure, use another method. For a `Polyhedron` in up to two
    dimensions, with any number of rows, by quadrature over one. For a `Ball` or `Ellipsoid` and any
    Gaussian in up to 256 dimensions by the Laplace transform of the quadratic form, inverted along
    a path through its saddle point.

    stderr is 0, except for long and weakly truncated Markov chains, and for two factors with little
    noise besides: there it is an upper bound of the error from coarser grids, or inf if no grid was
    fine enough. For one factor it is 1e-6 where limits of many scales lie together at one end of
    it. In up to three dimensions, and for balls and ellipsoids, it is also positive in far
    tails of a nearly singular covariance, where one unit in the last place of the inputs changes
    log P by more than 1e-9 of it (1e-4 in float32): it is then the size of that change.

    Raises:
        ValueError: if the method does not apply to the problem.

    Reference:
        Drezner and Wesolowsky (1990), On the computation of the bivariate normal integral. Genz
        (2004), Numerical computation of rectangular bivariate and trivariate normal and t
        probabilities, for the reduction to one-dimensional integrals. The quadratures in logs are
        this library's own.

    Example:
        >>> tg.log_probability([0.0], [[1.0]], tg.Box([5.0], [jnp.inf]), method=tg.Exact())
        Estimate(log_prob=Array(-15.06499839, dtype=float64), stderr=Array(0., dtype=float64))
    """

    loops = False

    @classmethod
    def candidate(cls, problem: Problem, num_points: int) -> "Exact | None":
        return cls() if applies(problem.covariance, problem.region) else None

    def reason(self, problem: Problem) -> str:
        if problem.region.enclosed.is_quadratic:
            return "a ball or an ellipsoid, integrated along a path in the complex plane"
        return self.route(problem.covariance, as_linear(problem.region)).reason

    def replicate(
        self, loc: Float[Array, " d"], covariance: Covariance, region: Region, key: Array
    ) -> Estimate:
        """log P and the bound of its error; the key is not used."""
        if region.enclosed.is_quadratic:
            solution, _ = _within(loc, covariance, region)
            log_prob = jnp.where(region.is_proper, solution.log_prob, jnp.nan)
            return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, solution.error))
        box = as_linear(region)
        low, high = box.low, box.high
        invalid = jnp.any(jnp.isnan(low) | jnp.isnan(high) | (low > high))
        # An integral over the empty set has no mode to integrate about.
        low, high = jnp.where(invalid, -jnp.inf, low), jnp.where(invalid, jnp.inf, high)
        log_prob, stderr = self.route(covariance, box).log_probability(loc, covariance, low, high)
        log_prob = jnp.where(invalid, jnp.nan, log_prob)
        return Estimate(log_prob, jnp.where(jnp.isnan(log_prob), jnp.nan, stderr))

    def route(self, covariance: Covariance, region: LinearRegion) -> "Route":
        return route_of(covariance, region)

    def for_problem(self, problem: Problem) -> "Exact":
        """`ExactPolygon` where one of two coordinates is known to determine the other, in one row
        at least."""
        _, covariance, region = problem
        if not applies(covariance, region):
            raise ValueError(
                "Exact applies to a Ball, an Ellipsoid or the Outside of one in up to 256 "
                "dimensions, to a Polyhedron in "
                "up to two, and to a Box in up to three (three of full rank), with a tg.Markov "
                "covariance, a tg.LowRank one of rank one or two, or independent ones (a diagonal "
                "covariance, recognised outside "
                f"of a trace); got a {type(region).__name__} in {covariance.dimension} dimensions. "
                "Use tg.Automatic()."
            )
        if not region.is_box or covariance.dimension != 2 or not is_concrete(covariance):
            return self
        if covariance.is_factor:
            singular = np.any(np.asarray(covariance.matrix)[..., [0, 1], [0, 1]] == 0)
            return ExactPolygon() if singular else self
        matrices = numbers_of(covariance).reshape(-1, 2, 2)
        first, second = matrices[:, 0, 0], matrices[:, 1, 1]
        product = 0.5 * (matrices[:, 0, 1] + matrices[:, 1, 0])
        size = np.sqrt(np.abs(first)) * np.sqrt(np.abs(second))
        close = (size > 0) & (np.abs(product) >= (1.0 - 64.0 * np.finfo(size.dtype).eps) * size)
        # Of these few the determinant is computed without rounding.
        rows = zip(*(map(Fraction, x[close].tolist()) for x in (first, second, product)))
        return ExactPolygon() if any(a * b <= c * c for a, b, c in rows) else self

    def for_rows(self, count: int) -> Method:
        return ExactForManyRows() if count >= MANY_ROWS and type(self) is Exact else self

    def moments(self, row: Problem, key: Array) -> Moments:
        if row.region.is_outside:
            return super().moments(row, key)
        if row.region.is_quadratic:
            return _moments_within(row.loc, row.covariance, row.region)
        loc, covariance, box = row.loc, row.covariance, as_linear(row.region)
        low, high = box.low, box.high
        broken = jnp.any(~(low < high))
        # An integral over the empty set has no mode to integrate about.
        low, high = jnp.where(broken, -jnp.inf, low), jnp.where(broken, jnp.inf, high)
        route = self.route(covariance, box)
        mean, matrix, *errors = route.moments(loc, covariance, low, high)
        mean, matrix = (jnp.where(broken, jnp.nan, x) for x in (mean, matrix))
        mean_error, error = errors or (jnp.zeros_like(mean), jnp.zeros_like(matrix))
        mean_error = jnp.where(jnp.isnan(mean), jnp.nan, mean_error)
        return Moments(mean, matrix, mean_error, jnp.where(jnp.isnan(matrix), jnp.nan, error))

    def numbers_held(self, dimension: int) -> int:
        return (1500 if dimension <= 2 else 8192) * dimension


@frozen_pytree
class ExactForManyRows(Exact):
    """`Exact` by programs that take longer to compile and less time for each row."""

    def route(self, covariance: Covariance, region: LinearRegion) -> "Route":
        route = route_of(covariance, region)
        return route._replace(log_probability=route.of_many or route.log_probability)


@frozen_pytree
class ExactPolygon(Exact):
    """`Exact` for two coordinates where, in some rows, one determines the other: there the box is a
    polygon, elsewhere a box as ever."""

    def route(self, covariance: Covariance, region: LinearRegion) -> "Route":
        from truncgauss.quadrature import bivariate

        identity, is_factor = jnp.eye(2, dtype=region.low.dtype), covariance.is_factor
        singular = jnp.isnan(bivariate.regression(covariance).residual_scale)
        ways = polygon_route(identity), route_of(covariance, region)

        def by_either(name: str) -> Callable[..., Any]:
            def algorithm(loc: Array, matrix: Covariance, low: Array, high: Array) -> Any:
                known = matrix.scale_tril if is_factor else matrix.covariance_matrix
                form = ScaleTril if is_factor else CovarianceMatrix
                # What is not taken has derivatives that are no numbers, but for other covariances.
                results = [
                    getattr(way, name)(loc, form(jnp.where(taken, known, identity)), low, high)
                    for way, taken in zip(ways, (singular, ~singular))
                ]
                return tuple(jnp.where(singular, x, y) for x, y in zip(*results))

            return algorithm

        return Route(by_either("log_probability"), by_either("moments"), ways[0].reason)


class Route(NamedTuple):
    """An exact algorithm for one structure.

    Attributes:
        log_probability: (loc, covariance, low, high) -> log P and a bound of its error.
        moments: likewise -> mean and covariance, and bounds of their errors unless these are 0.
        reason: the problems it serves, for `explain`.
        of_many: `log_probability` for one of many rows, if that is another.
    """

    log_probability: Callable[..., tuple[Array, Array]]
    moments: Callable[..., tuple[Array, ...]]
    reason: str
    of_many: Callable[..., tuple[Array, Array]] | None = None


def route_of(covariance: Covariance, region: LinearRegion) -> Route:
    """The exact algorithm, by the region, and by the form and the dimension of the covariance."""
    d = covariance.dimension
    if not region.is_box:
        return polygon_route(region.matrix)
    if covariance.is_chain and d > 3:
        return chain_route()
    if covariance.num_factors == 1 and d > 1:
        return one_factor_route()
    if covariance.num_factors == 2 and d > 3:
        return two_factors_route()
    return {2: TWO_DIMENSIONS, 3: THREE_DIMENSIONS}.get(d, INDEPENDENT)


def applies(covariance: Covariance, region: Region) -> bool:
    """Whether `Exact` applies, as far as is known in a trace."""
    if region.enclosed.is_quadratic:
        return covariance.dimension <= MOST_DIMENSIONS
    if not region.is_box:
        return region.is_linear and covariance.dimension <= 2
    known = is_concrete(covariance)
    if covariance.dimension <= 3:  # three that are singular are beyond the quadrature
        of_three = covariance.dimension == 3 and known
        return not of_three or bool(np.any(ranks_of(numbers_of(covariance)) == 3))
    if covariance.is_chain:
        return True
    if covariance.num_factors is not None:
        return covariance.num_factors <= 2
    if not known:
        return False
    matrix = numbers_of(covariance)
    return bool(np.all(matrix == matrix * np.eye(covariance.dimension)))


# --- The algorithms -------------------------------------------------------------------------------


def _within(
    loc: Array, covariance: Covariance, region: Region
) -> tuple[Any, Callable[[], Moments]]:
    from truncgauss.quadrature import quadratic_form

    inner, matrix = cast(QuadraticRegion, region.enclosed), covariance.covariance_matrix
    return quadratic_form.within(loc, matrix, inner.center, inner.root, region.is_outside)


def polygon_route(rows: Array) -> Route:
    """The algorithm for a polygon of such rows, with its error from the rounding of the inputs."""
    from truncgauss.quadrature import input_rounding, polygon

    def log_probability(
        loc: Array, covariance: Covariance, low: Array, high: Array
    ) -> tuple[Array, Array]:
        inputs = loc, covariance, Polyhedron(rows, low, high)
        fixed = lax.stop_gradient(inputs)
        slopes = jax.grad(lambda inputs: polygon.log_probability(*inputs))(fixed)
        log_prob = polygon.log_probability(*inputs)
        return log_prob, input_rounding.by_slopes(lax.stop_gradient(log_prob), fixed, slopes)

    def moments(loc: Array, covariance: Covariance, low: Array, high: Array) -> tuple[Array, ...]:
        return polygon.moments(loc, covariance, Polyhedron(rows, low, high))

    reason = "a polyhedron in up to two dimensions, integrated by quadrature"
    return Route(log_probability, moments, reason)


def _moments_within(loc: Array, covariance: Covariance, region: Region) -> Moments:
    found, of_x = _within(loc, covariance, region)
    known = region.is_proper & jnp.isfinite(found.log_prob)
    mean, matrix, mean_error, error = (jnp.where(known, x, jnp.nan) for x in of_x())
    scale = jnp.sqrt(jnp.diagonal(matrix))

    def beyond_rounding(error: Array, size: Array) -> Array:
        """The error where it is more than every result has; inf where nothing is known."""
        error = jnp.where(error <= negligible(error.dtype) * size, 0.0, error)
        return jnp.where(error >= size, jnp.inf, error)

    mean_error = beyond_rounding(mean_error, scale)
    error = beyond_rounding(error, scale[:, None] * scale[None, :])
    return Moments(mean, matrix, lax.stop_gradient(mean_error), lax.stop_gradient(error))


def _certain(log_prob: Array) -> tuple[Array, Array]:
    return log_prob, jnp.zeros_like(log_prob)


def _with_last_digit(
    covariance: Covariance, last_digit: Callable[..., Array], log_prob: Array, *inputs: Any
) -> tuple[Array, Array]:
    """The log probability with its change by the last digit of the inputs; none of factors, in
    which a covariance is never singular by rounding."""
    if covariance.num_factors is not None:
        return _certain(log_prob)
    return log_prob, last_digit(log_prob, *inputs)


def _factor_moments(nodes: Nodes, bound: Array) -> tuple[Array, ...]:
    """Mean and covariance of a mixture over factors, with a bound of their relative errors."""
    mean, matrix = total_moments(nodes)
    scale = jnp.sqrt(jnp.diagonal(matrix))
    return nodes.point + mean, matrix, bound * scale, bound * scale[:, None] * scale[None, :]


def _bivariate_log_probability(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, Array]:
    from truncgauss.quadrature import bivariate, input_rounding

    # A coordinate without limits makes no difference, however close to singular they are together.
    free = jnp.isinf(low) & jnp.isinf(high)
    form = bivariate.regression(covariance, apart=jnp.any(free))
    log_prob = bivariate.log_probability(loc, form, low, high)
    log_prob = jnp.where(jnp.all(free) & ~jnp.isnan(log_prob), 0.0, log_prob)
    inputs = log_prob, loc, form, low, high, covariance.is_factor
    return _with_last_digit(covariance, input_rounding.last_digit_of_two, *inputs)


def _bivariate_moments(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, Array]:
    from truncgauss.quadrature import bivariate

    form = bivariate.regression(covariance)
    point = bivariate.inner_point(loc, form, low, high)
    _, mean, matrix = bivariate.moments(loc, form, low, high, point)
    return point + mean, matrix


def _trivariate_log_probability(
    loc: Array, covariance: Covariance, low: Array, high: Array, many: bool = False
) -> tuple[Array, Array]:
    from truncgauss.quadrature import input_rounding, trivariate

    quadrature = trivariate.log_probability_of_many if many else trivariate.log_probability
    matrix = covariance.covariance_matrix
    log_prob = quadrature(loc, matrix, low, high)
    inputs = log_prob, loc, covariance, low, high
    log_prob, error = _with_last_digit(covariance, input_rounding.last_digit, *inputs)
    # A coordinate of density f that the others determine is within t Y of where it was, Y standard
    # normal, which changes P by at most 2 f t E|Y|.
    moved = trivariate.thickness(matrix) * jnp.exp(-lax.stop_gradient(log_prob))
    return log_prob, jnp.hypot(error, jnp.where(jnp.isnan(moved), 0.0, moved))


def _trivariate_moments(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, ...]:
    from truncgauss.quadrature import trivariate

    point, mean, matrix = trivariate.moments(loc, covariance, low, high)
    thin = trivariate.thickness(covariance.covariance_matrix) > 0
    unknown = jnp.where(thin, jnp.inf, jnp.zeros_like(matrix))
    return point + mean, matrix, unknown[0], unknown


def _independent_log_probability(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, Array]:
    if covariance.dimension > 1 and covariance.num_factors is None:
        matrix = covariance.covariance_matrix
        return _certain(independence.log_probability(loc, matrix, low, high))
    inputs = loc, covariance.variances, low, high
    log_masses, digit = independence.log_masses_of(*inputs), independence.last_digit_of_one
    if covariance.dimension > 1:  # without factors, by its form
        return _certain(log_masses.sum(-1))
    log_prob, error = _with_last_digit(covariance, digit, log_masses, *inputs)
    return log_prob[0], error[0]


def _independent_moments(
    loc: Array, covariance: Covariance, low: Array, high: Array
) -> tuple[Array, Array]:
    inputs = loc, jnp.sqrt(covariance.variances), low, high
    mean, variance = truncated_mean_and_variance(*inputs)
    return mean, jnp.diag(variance)


def chain_route() -> Route:
    from truncgauss.quadrature import markov_chain

    reason = "a Markov chain, integrated by a forward recursion"
    return Route(markov_chain.log_probability, markov_chain.moments, reason)


def one_factor_route() -> Route:
    from truncgauss.quadrature import one_factor

    moments = lambda *inputs: _factor_moments(*one_factor.nodes(*inputs))
    reason = "one common factor, integrated by quadrature"
    return Route(one_factor.log_probability, moments, reason)


def two_factors_route() -> Route:
    from truncgauss.quadrature import two_factors

    moments = lambda *inputs: _factor_moments(*two_factors.grid_nodes(*inputs))
    return Route(two_factors.log_probability, moments, "two common factors, integrated on a grid")


TWO_DIMENSIONS = Route(
    _bivariate_log_probability,
    _bivariate_moments,
    "a box in two dimensions, integrated by quadrature",
)
THREE_DIMENSIONS = Route(
    _trivariate_log_probability,
    _trivariate_moments,
    "a box in three dimensions, integrated by quadrature",
    partial(_trivariate_log_probability, many=True),
)
INDEPENDENT = Route(
    _independent_log_probability, _independent_moments, "independent coordinates, in closed form"
)
