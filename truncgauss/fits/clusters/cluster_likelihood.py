"""The log-likelihood of clusters of rows under a sum of covariance terms.

Of a cluster some entries are exact, some limited, some missing. With a covariance A A^T + D, D
diagonal and A of one or two columns, the effects given the exact entries are Gaussian again, so
that the limited ones keep this form and their probability is an integral over one or two effects.
Under any other covariance it is one over the limited entries.

Reference:
    Henderson and Searle, "On deriving the inverse of a sum of matrices", SIAM Review (1981).
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from truncgauss.arrays.compiling import Compiled, closed_form
from truncgauss.arrays.progress import bar
from truncgauss.arrays.pytrees import Estimate, frozen_pytree, static_field
from truncgauss.draws.truncated_moments import truncated_moments
from truncgauss.fits.clusters.terms.random_effects import RandomEffects
from truncgauss.fits.clusters.terms.residual import Residual
from truncgauss.fits.clusters.terms.term import CovarianceTerm, Parts
from truncgauss.fits.gaussian.linear_gaussian import MOST_NODES, RESOLVED
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood import common_effect
from truncgauss.likelihood.conditioning import Integrals
from truncgauss.likelihood.integrals import FEW, held_for, in_chunks, probabilities
from truncgauss.likelihood.nested import NODES, NestedQuadrature
from truncgauss.likelihood.ordinal import between_cuts
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.probability.separation import Separation
from truncgauss.special.normal import log_interval_mass
from truncgauss.special.tails import LOG_SQRT_2PI, standardize

EXACT_SIZES = (0, 4, 8, 16, 64, 256, 1024)  # to which numbers of exact entries are filled up
FACTOR_SIZES = (0, 1, 4, 8, 32, 48, 64, 80, 96, 128, 192, 256, 384, 512)  # and of limited ones
DENSE_SIZES = (0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64)
MOST_EXACT = 3  # limited entries of a dense covariance whose probability is by quadrature
MOST_NESTED = 4  # likewise, by nested quadratures, where these reach
MOVE = 2e-3  # of a deviation given the others, between derivatives of log probabilities
REPLICATES = 64  # of draws for all other clusters, up to `FEW`, whose errors average out


@frozen_pytree
class ClusterRows:
    """Clusters with as many exact and limited entries, or filled up to as many.

    Attributes:
        index: rows of the long table, exact ones first, (k, e + l); -1 where filled up.
        values: of exact entries, (k, e).
        lower, upper: limits of the others, (k, l); infinite where filled up.
        design: covariates, (k, e + l, p).
        columns: what each term needs of the rows, each (k, e + l, ...).
        noise: known variances of errors of measurement, (k, e + l).
        shift: what is added to the means, (k, e + l).
        codes: levels of limited entries that are ordered categories, (k, l), -1 for limits of
            `lower` and `upper`; None if none is.
    """

    index: jax.Array
    values: jax.Array
    lower: jax.Array
    upper: jax.Array
    design: jax.Array
    columns: tuple[jax.Array, ...]
    noise: jax.Array
    shift: jax.Array
    codes: jax.Array | None = None

    @property
    def num_exact(self) -> int:
        return self.values.shape[1]

    @property
    def num_limited(self) -> int:
        return self.lower.shape[1]


class MeanParameters(NamedTuple):
    """Coefficients of the covariates, and the cuts between ordered categories, if there are any."""

    coefficients: jax.Array
    cuts: Any = None


class Cluster(NamedTuple):
    """One cluster and its covariance, see `ClusterRows`; `seen` are its exact entries, and `alike`
    is () where all variances are one, else None: a choice of formulas that is static."""

    loc: jax.Array
    seen: jax.Array
    values: jax.Array
    lower: jax.Array
    upper: jax.Array
    covariance: Parts
    alike: tuple[()] | None = None


@frozen_pytree
class CovarianceSum:
    """A sum of terms, and their free coordinates.

    Attributes:
        terms: prepared ones.
        sizes: numbers of their coordinates (static).
        alike: whether all variances of noise are known to be one (static).
    """

    terms: tuple[CovarianceTerm, ...]
    sizes: tuple[int, ...] = static_field()
    alike: bool = static_field(default=False)

    def split(self, x: Any) -> list[Any]:
        """The coordinates of each term, of a vector or of one with leading coordinates."""
        ends = len(x) - sum(self.sizes) + np.cumsum([0, *self.sizes])
        return [x[begin:end] for begin, end in zip(ends, ends[1:])]

    def parts(self, x: jax.Array, columns: tuple[jax.Array, ...]) -> Parts:
        """The covariance of one cluster."""
        total = Parts()
        for term, coordinates, values in zip(self.terms, self.split(x), columns):
            total += term.parts(coordinates, values)
        return total

    def form(self, columns: tuple[Any, ...]) -> int | None:
        """The number of effects of a covariance of effects and variances; None of another."""
        shapes = jax.eval_shape(
            lambda x, columns: self.parts(x, jax.tree.map(lambda leaf: leaf[0], columns)),
            np.zeros(sum(self.sizes)),
            columns,
        )
        if shapes.matrix is not None or shapes.variances is None:
            return None
        rank = 0 if shapes.factor is None else shapes.factor.shape[-1]
        return rank if rank <= 2 else None


def clusters_at(
    rows: ClusterRows, covariance: CovarianceSum, mean: MeanParameters, x: jax.Array
) -> Cluster:
    """All clusters of one shape, along a leading axis, with their covariances."""
    parts = jax.vmap(lambda columns: covariance.parts(x, columns))(rows.columns)
    parts += Parts(variances=rows.noise)
    seen = rows.index[:, : rows.num_exact] >= 0
    loc = rows.design @ mean.coefficients + rows.shift
    limits = rows.lower, rows.upper
    if rows.codes is not None:
        limits = between_cuts(rows.codes, mean.cuts, *limits, jnp)
    return Cluster(loc, seen, rows.values, *limits, parts, () if covariance.alike else None)


# ---------------------------------------------------------------- effects and variances


class OneEntry(NamedTuple):
    """Effects of one entry x = loadings . g + noise, and what that says of them.

    Attributes:
        density: of the entry.
        moves: of the means of g.
        spreads: the variances of independent effects h.
        slope: g is h, but for slope times the other effect that is added to effect `main`.
    """

    density: Any
    moves: list[Any]
    spreads: list[Any]
    slope: Any


def on_entry(spreads: list[Any], row: list[Any], rest: Any, noise: Any, main: int) -> OneEntry:
    """Independent effects of such variances given one entry, by Bierman's step, which is smooth in
    a noise of 0."""
    gains = [d * x for d, x in zip(spreads, row)]
    partial = noise + gains[main] * row[main]
    total, slope = partial, 0.0
    after = [spreads[main] * noise / partial]
    if len(row) == 2:
        other = 1 - main
        total = partial + gains[other] * row[other]
        slope = -gains[main] * row[other] / partial
        after.insert(other, spreads[other] * partial / total)
    density = -0.5 * (rest**2 / total + jnp.log(total))
    return OneEntry(density, [gain * rest / total for gain in gains], after, slope)


def least_noise(size: Any, variances: Any, free: Any = True) -> Any:
    """A mask of the entry that says most of effects, which give it a variance of such a size."""
    noise = jnp.where((size > 0) & free, variances / jnp.where(size > 0, size, 1.0), jnp.inf)
    return (jnp.arange(len(noise)) == jnp.argmin(noise)) & free


def first_entries(columns: list[Any], variances: Any) -> tuple[list[Any], tuple[Any, Any]]:
    """Masks of the entries that say most of the effects, as many as there are; and the direction
    of the first in the plane of two."""
    variances, *columns = jax.lax.stop_gradient((variances, *columns))
    first = least_noise(sum(x**2 for x in columns), variances)
    if len(columns) == 1:
        return [first], (1.0, 0.0)
    noise, x, y = (jnp.sum(jnp.where(first, part, 0.0)) for part in (variances, *columns))
    size = x**2 + y**2
    root = jnp.sqrt(jnp.where(size > 0, size, 1.0))
    x, y = jnp.where(size > 0, x / root, 1.0), y / root
    along, across = x * columns[0] + y * columns[1], x * columns[1] - y * columns[0]
    size = jnp.where(size > 0, noise / (noise + size), 1.0) * along**2 + across**2
    return [first, least_noise(size, variances, ~first)], (x, y)


def given_exact(
    seen: Any, rest: Any, factor: Any, variances: Any, alike: bool
) -> tuple[Any, Any, Any]:
    """The log density of the entries that are seen, of means 0, and mean and root of the standard
    normal effects given these: x = factor f + noise, of at most two effects.

    Beside an entry of little noise 1 + factor^T D^-1 factor loses what the others say. So effects
    are first conditioned on the entries that say most, as many as there are effects; what all
    others say of what is left is no large number. Of variances that are alike none is small beside
    others, and half of the time is enough.

    Args:
        seen: a mask of entries, (e,).
        rest: of entries, without their means, (e,).
        factor: (e, r).
        variances: of the noise, (e,).
        alike: whether these are one number.

    Returns:
        The density; the mean, (r,); and a root R of the covariance R R^T of these, (r, r).

    Reference:
        Bierman, "Factorization methods for discrete sequential estimation" (1977).
    """
    rank, density = factor.shape[1], -LOG_SQRT_2PI * jnp.sum(seen)
    variances, rest = jnp.where(seen, variances, 1.0), jnp.where(seen, rest, 0.0)
    if not rank:
        density -= 0.5 * jnp.sum(rest**2 / variances + jnp.log(variances))
        return density, jnp.zeros(0), jnp.zeros((0, 0))
    columns = [jnp.where(seen, factor[:, k], 0.0) for k in range(rank)]
    if alike:
        known = jnp.where(seen, variances, jnp.inf)
        value, mean, root = on_others([1.0] * rank, columns, rest, known)
        return density + value, mean, root
    masks, (x, y) = first_entries(columns, variances)
    if rank == 1:
        firsts = [[jnp.sum(jnp.where(masks[0], z, 0.0)) for z in (*columns, rest, variances)]]
    else:  # effects along the first entry's direction and across it
        columns = [x * columns[0] + y * columns[1], x * columns[1] - y * columns[0]]
        # A product, as the Hessian of sums takes four times as long.
        table = jnp.stack([*columns, rest, variances], axis=1)
        firsts = [list(row) for row in jnp.stack(masks).astype(float) @ table]
    *row, gap, noise = firsts[0]
    one = on_entry([1.0] * rank, row, gap, noise, main=0)
    density, means, d, slopes = density + one.density, one.moves, one.spreads, [one.slope]
    if rank == 2:
        *row, gap, noise = firsts[1]
        gap -= row[0] * means[0] + row[1] * means[1]
        noise += 1.0 - jnp.any(masks[1])  # where there is no second one
        two = on_entry(d, [row[0], row[1] + one.slope * row[0]], gap, noise, main=1)
        density, d, slopes = density + two.density, two.spreads, [one.slope, two.slope]
        means = [means[0] + two.moves[0] + one.slope * two.moves[1], means[1] + two.moves[1]]
    rest -= sum(column * mean for column, mean in zip(columns, means))
    variances = jnp.where(functools.reduce(jnp.logical_or, masks), jnp.inf, variances)
    if rank == 2:
        columns[1] += slopes[0] * columns[0]
        columns[0] += slopes[1] * columns[1]
    value, moves, root = on_others(d, columns, rest, variances)
    mean = jnp.stack(means)
    if rank == 1:
        return density + value, mean + moves, root
    turn, change = jnp.array([[x, -y], [y, x]]), jnp.array([[1.0, slopes[0]], [0.0, 1.0]])
    change = change.at[:, 0].add(slopes[1] * change[:, 1])
    return density + value, turn @ (mean + change @ moves), turn @ change @ root


def on_others(d: list[Any], columns: list[Any], rest: Any, variances: Any) -> tuple[Any, Any, Any]:
    """The log density, but for a constant, of entries of such loadings on independent effects of
    variances d, where those of variance infinity are left out; mean, and root of the covariance,
    of the effects given these."""
    others = jnp.isfinite(variances)
    variances = jnp.where(others, variances, 1.0)
    weights = others / variances
    weighted = [column * weights for column in columns]
    pulls = [jnp.sum(column * rest) for column in weighted]
    grown = [1.0 + v * jnp.sum(a * b) for v, a, b in zip(d, weighted, columns)]
    roots = [jnp.sqrt(jnp.where(v > 0, v, 1.0)) * (v > 0) for v in d]
    if len(d) == 1:
        whole = grown[0]
        pushes, root = [pulls[0] / whole], (roots[0] / jnp.sqrt(whole))[None, None]
    else:
        both = jnp.sum(weighted[0] * columns[1])
        whole = grown[0] * grown[1] - d[0] * d[1] * both**2
        pushes = [
            (grown[1] * pulls[0] - d[1] * both * pulls[1]) / whole,
            (grown[0] * pulls[1] - d[0] * both * pulls[0]) / whole,
        ]
        first, last = roots[0] * jnp.sqrt(grown[1] / whole), roots[1] / jnp.sqrt(grown[1])
        root = jnp.array([[first, 0.0], [-first * d[1] * both / grown[1], last]])
    moves = [v * push for v, push in zip(d, pushes)]
    # A sum of squares; the difference of two large numbers that equals it would lose its digits.
    left = rest - sum(column * move for column, move in zip(columns, moves))
    energy = jnp.sum(weights * left**2) + sum(a * b for a, b in zip(moves, pushes))
    logs = jnp.sum(jnp.log(variances)) + jnp.log(whole)
    return -0.5 * (energy + logs), jnp.stack(moves), root


def limited_given_exact(cluster: Cluster) -> tuple[Any, Any, Any, Any]:
    """The log density of the exact entries of a cluster of at most two effects; and of the limited
    ones given these mean, loadings and scale: they are loc + factor f + noise."""
    variances, e = cluster.covariance.variances, len(cluster.values)
    factor = cluster.covariance.factor
    factor = jnp.zeros((len(variances), 0)) if factor is None else factor
    if not e:
        return jnp.zeros(()), cluster.loc, factor, jnp.sqrt(variances)
    rest = cluster.values - cluster.loc[:e]
    alike = cluster.alike is not None
    density, mean, root = given_exact(cluster.seen, rest, factor[:e], variances[:e], alike)
    loc = cluster.loc[e:] + jnp.sum(factor[e:] * mean, axis=1)
    return density, loc, factor[e:] @ root, jnp.sqrt(variances[e:])


def of_effects(cluster: Cluster, moving: bool) -> Estimate:
    """The log-likelihood of a cluster of at most two effects, and a bound of its error; `moving`
    says whether its limits are parameters."""
    density, loc, factor, scale = limited_given_exact(cluster)
    low, high = cluster.lower, cluster.upper
    if is_summed(factor.shape[1], len(low)):
        value, error = common_effect.log_probability(loc, factor, scale, low, high, moving)
        return Estimate(density + value, jax.lax.stop_gradient(error))
    scale = jnp.sqrt(scale**2 + jnp.sum(factor**2, axis=1))
    masses = log_interval_mass(*standardize(low, high, loc, scale))
    return Estimate(density + jnp.sum(masses), jnp.zeros(()))


def before_sums(
    shapes: tuple[ClusterRows, ...], covariance: CovarianceSum, mean: MeanParameters, x: jax.Array
) -> tuple[jax.Array, list[jax.Array]]:
    """The log-likelihood of each cluster without integrals over effects, and what these are of:
    both limits and the loadings in units of the noise, (k, 3, l), of each shape that has some."""
    values, ends = [], []
    for rows in shapes:
        clusters = clusters_at(rows, covariance, mean, x)
        if not is_summed(covariance.form(rows.columns), rows.num_limited):
            of = functools.partial(of_effects, moving=rows.codes is not None)
            values.append(jax.vmap(of)(clusters).log_prob)
            continue
        density, loc, factor, scale = jax.vmap(limited_given_exact)(clusters)
        low, high, _ = standardize(clusters.lower, clusters.upper, loc, scale)
        values.append(density)
        ends.append(jnp.stack([low, high, factor[..., 0] / scale], axis=1))
    return jnp.concatenate(values), ends


def linear_ends(
    shapes: tuple[ClusterRows, ...], covariance: CovarianceSum, cuts: int
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Of each shape the limits and loadings of `before_sums` where all parameters are 0, (k, 3, l),
    and their derivatives by the coefficients, so many free cuts and the deviation of the effect,
    (k, 3, l, q); None unless they are linear in these, as without exact entries under one effect
    and errors of a known deviation."""
    effects = [k for k, t in enumerate(covariance.terms) if isinstance(t, RandomEffects)]
    errors = [t.sigma for t in covariance.terms if isinstance(t, Residual)]
    known = bool(errors) and None not in errors and not any(s.num_exact for s in shapes)
    if not known or len(effects) != 1 or len(effects) + len(errors) != len(covariance.terms):
        return None
    effect, results = covariance.terms[effects[0]], []
    if not isinstance(effect, RandomEffects) or effect.rank > 1 or effect.sigma is not None:
        return None
    for rows in shapes:
        design, columns = np.asarray(rows.design), np.asarray(rows.columns[effects[0]])
        scale = np.sqrt(np.sum(np.square(np.array(errors, float))) + np.asarray(rows.noise))
        (k, size, p), shift = design.shape, np.asarray(rows.shift)
        slopes, zeros = np.zeros((k, 3, size, p + cuts + 1)), np.zeros(1 + cuts)
        limits = np.asarray(rows.lower), np.asarray(rows.upper)
        if rows.codes is not None:
            codes = np.asarray(rows.codes)
            limits = between_cuts(codes, zeros, *limits)
            for j in range(cuts):  # of which the first is not free
                slopes[:, 0, :, p + j] = codes == j + 2
                slopes[:, 1, :, p + j] = codes == j + 1
        slopes[:, :2, :, :p] = np.where(np.isfinite(limits).swapaxes(0, 1)[..., None], -1.0, 0.0)
        slopes[:, :2, :, :p] *= design[:, None]
        slopes[:, 2, :, -1] = columns[..., 0]
        ends = np.stack([limits[0] - shift, limits[1] - shift, 0.0 * shift], axis=1)
        results.append((ends / scale[:, None], slopes / scale[:, None, :, None]))
    return results


def is_summed(rank: int | None, limited: int) -> bool:
    """Whether so many limited entries take a sum over so many effects."""
    return bool(rank) and limited > 1


# ---------------------------------------------------------------- any covariance


def dense_given_exact(cluster: Cluster) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The log density of the exact entries, and mean and covariance of the others given these."""
    matrix, e = cluster.covariance.dense, len(cluster.values)
    both = cluster.seen[:, None] & cluster.seen
    triangle = jnp.linalg.cholesky(jnp.where(both, matrix[:e, :e], jnp.eye(e)))
    rest = jnp.where(cluster.seen, cluster.values - cluster.loc[:e], 0.0)
    z = solve_triangular(triangle, rest, lower=True)
    density = -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log(jnp.diagonal(triangle)))
    density = density - LOG_SQRT_2PI * jnp.sum(cluster.seen)
    across = jnp.where(cluster.seen[:, None], matrix[:e, e:], 0.0)
    slopes = solve_triangular(triangle, across, lower=True)
    limited = jnp.isfinite(cluster.lower) | jnp.isfinite(cluster.upper)
    inner = matrix[e:, e:] - slopes.T @ slopes
    # What is filled up has no limits, and the columns of another row, which may be an exact one.
    inner = jnp.where(limited[:, None] & limited, inner, jnp.eye(len(inner)))
    return density, cluster.loc[e:] + z @ slopes, inner


def integrals_of(clusters: Cluster, number: int) -> tuple[jax.Array, Integrals | None]:
    """The log densities of the exact entries of all clusters, and the integrals over the others."""
    density, loc, matrix = jax.vmap(dense_given_exact)(clusters)
    if not loc.shape[1]:
        return density, None
    k = len(density)
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), number), k)
    region = Box(clusters.lower, clusters.upper)
    return density, Integrals(loc, CovarianceMatrix(matrix), region, keys, jnp.zeros(k, bool))


def of_any(clusters: Cluster, method: Any, number: int) -> Estimate:
    """The log-likelihoods of clusters under any covariance."""
    density, integrals = integrals_of(clusters, number)
    if integrals is None:
        return Estimate(density, jnp.zeros_like(density))
    result = of_limited(integrals, method)
    return Estimate(density + result.log_prob, jax.lax.stop_gradient(result.stderr))


def of_limited(integrals: Integrals, method: Any) -> Estimate:
    """The probabilities of limited entries; NaN where nested quadratures do not resolve them."""
    rows, size = (integrals, method), method.rows_in_turn(integrals.loc.shape[1])
    # By a quarter of a turn, so that few that count share theirs with those that fill a shape up.
    result = probabilities(*rows) if size is None else in_chunks(of_some, rows, max(size // 4, 1))
    if isinstance(method, NestedQuadrature):
        value = jnp.where(result.stderr <= RESOLVED, result.log_prob, jnp.nan)
        result = Estimate(value, result.stderr)
    return result


def of_some(rows: tuple[Integrals, Method]) -> Estimate:
    """The probabilities of rows by a method, which are not computed if no row has limits."""
    region: Any = rows[0].region
    limited = jnp.any(jnp.isfinite(region.low) | jnp.isfinite(region.high))
    nothing = jnp.zeros(len(region.low))
    return jax.lax.cond(limited, probabilities, lambda *_: Estimate(nothing, nothing), *rows)


class LimitedMoments(NamedTuple):
    """The limited entries of clusters given all that is known of each.

    Attributes:
        gap: the mean less that given the exact entries alone, (k, l).
        covariance: (k, l, l).
    """

    gap: Any
    covariance: Any


@Compiled
def slopes_of_means(integrals: Integrals, method: Method, moves: jax.Array) -> jax.Array:
    """Derivatives of the log probabilities by the means, (k, l), at means moved so."""

    def total(loc: jax.Array) -> jax.Array:
        return jnp.sum(of_limited(integrals._replace(loc=loc), method).log_prob)

    return jax.grad(total)(integrals.loc + moves)


def moments_by_slopes(integrals: Integrals, method: Method) -> LimitedMoments:
    """Moments by the derivatives g and H of the log probabilities by the means: with S the
    covariance, S g and S + S H S. H is by differences of the fourth order: a program of second
    derivatives takes several times as long to compile."""
    matrix = np.asarray(integrals.covariance.covariance_matrix)
    k, size = integrals.loc.shape
    moves = MOVE / np.sqrt(np.diagonal(np.linalg.inv(matrix), axis1=1, axis2=2))  # (k, l)

    def slopes(steps: float, j: int = 0) -> np.ndarray:
        moved = np.zeros((k, size))
        moved[:, j] = steps * moves[:, j]
        return np.asarray(slopes_of_means(integrals, method, moved))

    bends = np.empty((k, size, size))
    for j in range(size):
        near, far = (slopes(n, j) - slopes(-n, j) for n in (1.0, 2.0))
        bends[:, j] = (8.0 * near - far) / (12.0 * moves[:, j, None])
    bends = 0.5 * (bends + bends.swapaxes(1, 2))
    gap = np.einsum("kij,kj->ki", matrix, slopes(0.0))
    return LimitedMoments(gap, matrix + matrix @ bends @ matrix)


def limited_moments(
    rows: ClusterRows,
    covariance: CovarianceSum,
    method: Method | None,
    mean: MeanParameters,
    x: Any,
    number: int,
) -> LimitedMoments:
    """The moments of the limited entries of all clusters of one shape, under any covariance: to
    ten digits where the method is a quadrature, else to a thousandth of their deviations."""
    integrals = _integrals(rows, covariance, mean, x, number)
    if integrals is None:
        k = len(rows.index)
        return LimitedMoments(np.zeros((k, 0)), np.zeros((k, 0, 0)))
    k, size = integrals.loc.shape
    if size <= MOST_EXACT or isinstance(method, NestedQuadrature):
        assert method is not None
        return moments_by_slopes(integrals, method)
    parts = []
    for begin in bar(range(0, k, FEW), "clusters", k > FEW):
        # The last ones are filled up rather than compiled for fewer.
        some = np.arange(begin, begin + min(k, FEW)) % k
        problem = integrals.loc, integrals.covariance, integrals.region
        loc, matrix, region = jax.tree.map(lambda leaf, some=some: leaf[some], problem)
        moments = truncated_moments(loc, matrix, region)
        parts.append((moments.mean - loc, moments.covariance))
    return LimitedMoments(*(np.concatenate(part)[:k] for part in zip(*parts)))


# ---------------------------------------------------------------- all clusters


@frozen_pytree
class ClusterPlan:
    """Methods with fixed plans for the integrals of clusters of each shape.

    Attributes:
        methods: for shapes under any covariance, else None.
    """

    methods: tuple[Method | None, ...]

    @property
    def nested(self) -> bool:
        """Whether some integrals are nested quadratures, which are NaN where they do not reach."""
        return any(isinstance(method, NestedQuadrature) for method in self.methods)


@functools.partial(Compiled, cost=closed_form)
def _integrals(
    rows: ClusterRows, covariance: CovarianceSum, mean: MeanParameters, x: jax.Array, number: int
) -> Integrals | None:
    return integrals_of(clusters_at(rows, covariance, mean, x), number)[1]


def plan_of(
    shapes: tuple[ClusterRows, ...],
    covariance: CovarianceSum,
    mean: MeanParameters,
    x: Any,
    nested: bool = True,
) -> ClusterPlan:
    """Methods for the integrals at parameters that are numbers; `nested` says whether
    nested quadratures may serve, which do not reach everywhere."""
    methods: list[Method | None] = []
    for number, rows in enumerate(shapes):
        method: Method | None = None
        rank, size = covariance.form(rows.columns), rows.num_limited
        quick = nested and 1 < size <= MOST_NESTED
        if rank is None and quick and len(rows.index) * NODES[size] ** (size - 1) <= MOST_NODES:
            method = NestedQuadrature()
        elif rank is None and size:
            integrals = _integrals(rows, covariance, mean, x, number)
            some = size > MOST_EXACT and len(rows.index) <= FEW
            few = Separation(num_replicates=min(max(REPLICATES // len(rows.index), 4), 16))
            method = held_for(few if some else Automatic(), integrals)
        methods.append(method)
    return ClusterPlan(tuple(methods))


def log_likelihoods(
    shapes: tuple[ClusterRows, ...],
    covariance: CovarianceSum,
    plan: ClusterPlan,
    mean: MeanParameters,
    x: jax.Array,
) -> Estimate:
    """The log-likelihood of each cluster, those of one shape after the other, and its error."""
    results = []
    for number, rows in enumerate(shapes):
        clusters = clusters_at(rows, covariance, mean, x)
        rank = covariance.form(rows.columns)
        if rank is None:
            results.append(of_any(clusters, plan.methods[number], number))
            continue
        function = functools.partial(of_effects, moving=rows.codes is not None)
        nodes = common_effect.BLOCK if is_summed(rank, rows.num_limited) else 1
        size = nodes * max(rows.num_limited, rows.num_exact, 1)
        results.append(common_effect.in_batches(function, clusters, size))
    return Estimate(*(jnp.concatenate(parts) for parts in zip(*results)))
