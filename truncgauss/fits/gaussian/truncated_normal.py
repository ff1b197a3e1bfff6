"""The Gaussian behind a truncated sample, by its natural parameters."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.arrays import parallel
from truncgauss.arrays.compiling import Cost
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import cholesky, namespace, solve_lower
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import Estimate, frozen_pytree
from truncgauss.fits.gaussian.centring import UserUnits, piled_up
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates, White
from truncgauss.fits.gaussian.observations_fit import ObservationsFit, fit_observations
from truncgauss.fits.gaussian.sample import (
    UNCHECKED,
    Sample,
    as_rows,
    as_sample,
    check_rows,
    check_statistics,
    columns_of,
    limits_of,
    limits_of_box,
)
from truncgauss.fits.gaussian.statistics import Statistics, as_weights
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import check_settings, maximum_likelihood
from truncgauss.fitting.likelihood_fit import Ending
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.fitting.newton import Loss, sloped
from truncgauss.fitting.widening import WIDEST, Precision, direction_in_words
from truncgauss.gaussian.covariances import ScaleTril
from truncgauss.gaussian.problem import Problem, as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region
from truncgauss.likelihood.observations import Observations
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.exact import Exact
from truncgauss.probability.method import Method, estimate
from truncgauss.probability.separation import Separation
from truncgauss.tables.columns import Table

STEP = 2e-5  # of a Gaussian's own size, between gradients whose difference is a Hessian
NARROW = 1e-2  # least eigenvalue of the inverse covariance of white rows, for which they are
UNUSED_START = (
    "The start is no covariance matrix, or too far from the sample; the sample's mean and "
    "covariance were used instead. The maximum does not depend on it."
)
WIDENS = (
    "There is no maximum: the likelihood grows as the Gaussian widens, already to "
    f"{WIDEST:.0f} standard deviations of the sample. Inside these bounds the observations look as "
    "spread as an exponential or uniform distribution. A Gaussian cannot be told from its "
    "slope: use wider bounds, more observations, or a prior in NumPyro."
)
FELT = 0.1  # standard errors: an error of the integral that moves the estimates by more is told
SMALL = 0.05  # of a standard deviation or a variance: so small errors are those of a quadratic
MOST_COMPARED = 100  # estimates
NOT_COMPARED = "Wald intervals of covariances off the diagonal were not compared, as they are many."
ROUGHLY_FOUND = (
    "The estimates may be off by {:.2g} of their standard errors, as P is an estimate: give the "
    "method more points, as in method=tg.Separation(num_points=8192)."
)


@reported
def fit_truncated_normal(
    data: Any = None,
    low: Any = None,
    high: Any = None,
    *,
    region: Region | None = None,
    estimate: Sequence[str] = (),
    prior: Callable[[Any], Any] | None = None,
    num_unobserved: int | None = None,
    statistics: Statistics | None = None,
    noise: Any = None,
    weights: Any = None,
    start: Mapping[str, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_steps: int = 100,
    num_profiles: int = 10,
    progress: bool = True,
) -> Any:
    """Maximum likelihood of loc and covariance from a sample truncated to bounds.

    For rows x_i in the box B the log-likelihood is

        sum_i log N(x_i; loc, covariance) - n log P(X in B),

    a function of n, the mean and the scatter alone and concave in (covariance^-1 loc,
    covariance^-1): damped Newton steps there reach its maximum from any start, if there is one.
    There is none where the rows look as spread as an exponential or uniform
    distribution in the box; the likelihood then grows for ever as the Gaussian widens, and the fit
    says so. Everything happens in units of the sample's standard deviations, and in a time that
    does not depend on n.

    Rows with limits of their own, or measured with noise, are fitted one by one, as by
    `fit_observations`, whose coordinates are those of the covariance.

    All options go together, but for `region` with `low` and `high`, and `statistics` with data,
    `noise` and `weights`.

    Args:
        data: shape (n, d), or (n,) for one dimension; every row inside the limits. An array or a
            table, such as a DataFrame, all of whose columns are numbers.
        low: limits below, shape (d,) or a number; (n, d) for limits of each row, or (n,) if d = 1
            and n > 1. None or -inf leaves a side open. A dictionary or a Series goes by the names
            of the columns, of which it may leave some out.
        high: limits above, likewise.
        region: in place of both, a `tg.Box`; or a `tg.Selection`, which keeps a row with some
            probability, one for all rows or, with leading axis n, one for each.
        estimate: names of parameters of the selection that are estimated too, such as
            ("midpoint", "width") of `tg.Selection.probit` and `logistic`, or those of
            `parameters`; their values are the start. Of such curves for each row the estimates are
            a shift of all midpoints and a factor of all widths. A selected sample alone tells its
            curve only through the Gaussian shape: intervals say how much.
        prior: the log density of these, a function of a dictionary of them, in JAX.
        num_unobserved: how many objects of the population are known not to have been kept; then
            rows are not conditioned on being kept.
        statistics: in place of data, `tg.Statistics` of the rows.
        noise: covariance of a row's measurement error: (d, d) for all rows, (n, d, d), or
            variances (n, d). The estimates are those without noise; the limits act on what was
            measured.
        weights: shape (n,): how often each row counts.
        start: {"loc": (d,), "covariance": (d, d)} to begin with, as `dict(fit.parameters())`; the
            sample's mean and covariance by default.
        method: how P is computed. The edge of a soft method is in standard units.
        key: its random key.
        num_steps: the most Newton steps.
        num_profiles: up to how many estimates get a profile interval in the table at once where
            their Wald intervals are not to be trusted. Each takes as long as one to three fits; 0
            for none: `profile(name)` has them later.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        ObservationsFit; without the rows where these share their limits. With a selection, or
        num_unobserved, a SelectedFit, which has `curve` and `region` besides.

    Raises:
        ValueError: for rows outside the limits, NaN, a constant or linearly dependent column, too
            few rows or wrong shapes. Nothing is dropped silently.

    Example:
        >>> rows = [[0.2], [0.9], [1.1], [0.4], [1.6], [0.3], [0.8], [1.2]]
        >>> fit = tg.fit_truncated_normal(rows, low=0.0)
        >>> fit.converged, fit.loc.round(3)
        (True, array([0.717]))
        >>> parts = tg.Statistics.from_rows(rows[:3]) + tg.Statistics.from_rows(rows[3:])
        >>> tg.fit_truncated_normal(statistics=parts, low=0.0).loc.round(3)
        array([0.717])

    References:
        Cohen, "Truncated and Censored Samples" (1991).
    """
    what = "fit_truncated_normal"
    check_settings("observed", num_profiles)
    Method.check_kind(method)
    settings: Any = dict(num_steps=num_steps, num_profiles=num_profiles, progress=progress)
    asked = bool(estimate) or prior is not None or num_unobserved is not None
    if asked or hasattr(region, "with_parameters"):
        from truncgauss.fits.gaussian.selected import fit_selected  # which others do not need

        return fit_selected(
            what, data, (low, high), region, (statistics, noise), weights, estimate=estimate,
            prior=prior, num_unobserved=num_unobserved, start=start, method=method, key=key,
            **settings,
        )  # fmt: skip
    low, high = limits_of_box(what, region, (low, high), "low and high")
    if statistics is not None and not isinstance(statistics, Statistics):
        raise TypeError(f"{what}: statistics must be tg.Statistics; rows come first, as data.")
    if statistics is not None and not (data is None and noise is None and weights is None):
        raise ValueError(
            f"{what}: statistics stand in place of data, noise and weights. Rows "
            "with noise have no statistics; weights belong to tg.Statistics.from_rows."
        )
    if statistics is None and data is None:
        raise ValueError(f"{what}: give data, or statistics.")
    table = tables.read(data) if statistics is None else None
    with jax.enable_x64(True):  # half a dozen sums, where float32 would lose the curvature
        if table is not None:
            rows = as_rows(table)
            low, high = limits_of(low, high, table)
            check_rows(rows, low, high)
            if weights is not None:
                weights = tables.in_order(weights, table.labels, "weights", "the data")
                weights = as_weights(tables.each_row(weights, len(rows), "weights"), len(rows))
            statistics = Statistics.from_rows(rows, weights)
        else:
            assert statistics is not None
            names = statistics.coordinate_names
            low, high = limits_of(low, high, Table(statistics.mean[None], names))
        if table is not None and (noise is not None or max(low.ndim, high.ndim) == 2):
            check_statistics(statistics, np.array([-np.inf]), np.array([np.inf]), table)
            if noise is not None:
                noise = tables.aligned(noise, table._replace(values=rows), "noise")
            limited = np.isfinite(low).any() or np.isfinite(high).any()
            box = Box(*np.broadcast_arrays(low, high, rows[0])[:2]) if limited else None
            names = columns_of(table, rows.shape[1])
            observations = Observations.exact(
                rows, region=box, noise=noise, weights=weights, names=names
            )
            return fit_observations(observations, start=start, method=method, key=key, **settings)
        if table is not None:  # which warns of values at a bound
            counted = rows if weights is None else rows[weights > 0]
            bounds = [np.broadcast_to(side, rows.shape[1]) for side in (low, high)]
            for j, (column, *ends) in enumerate(zip(counted.T, *bounds)):
                piled_up(column, ends, f" of column {j}" if rows.shape[1] > 1 else "")
        sample = as_sample(statistics, low, high, table)
        parallel.agreed(f"{what}: the rows and the start", (sample, start))
        model = TruncatedSample(sample=sample, method=method, key=as_key(key))
        x = None if start is None else model.as_start(start)
        remarks = (UNUSED_START,) * (start is not None and x is None)
        remarks += (UNCHECKED,) * (statistics.lowest is None)
        model = dataclasses.replace(model, remarks=remarks)
        fit: ObservationsFit = maximum_likelihood(model, start=x, **settings)
        return fit


# ---------------------------------------------------------------- the likelihood


@frozen_pytree
class TruncatedLoss(Loss):
    """Minus the mean log-likelihood of rows that were seen only inside a region,

        l(eta, Lambda) = tr(Lambda M) / 2 - eta . m + A(eta, Lambda),
        A = eta . Lambda^-1 eta / 2 - log det(Lambda) / 2 + d log(2 pi) / 2 + log P(X in region),

    with m the rows' mean and M their mean of x x^T, a convex function of the natural parameters
    eta = Lambda loc and Lambda, the inverse covariance (Barndorff-Nielsen, 1978). Both stand in one
    vector, eta first, then the lower triangle of Lambda by rows.

    The rows x are white, m = 0 and M the identity: columns that nearly depend on each other would
    cost the curvature all its digits. What limits see is root @ x.

    Attributes:
        root: the Cholesky factor (d, d) of the rows' correlation.
        region: of the rows in standard units.
        method, key: of P, with the plan held.
        size: the total weight of the rows.
        log_units: logarithm of the volume that white units have in the user's.
    """

    root: jax.Array
    region: Any
    method: Method
    key: jax.Array
    size: jax.Array
    log_units: jax.Array

    def total(self, natural: jax.Array) -> Estimate:
        log_prob, stderr = self.fraction(natural)
        value = self.without_region(natural) + log_prob
        return Estimate(-self.size * value, self.size * stderr)

    def without_region(self, natural: Any) -> Any:
        """The loss less log P; of numbers in NumPy."""
        xp = namespace(natural)
        eta, precision = unpacked(natural, self.root.shape[0])
        factor = cholesky(precision)
        whitened = solve_lower(factor, eta)
        log_normaliser = (
            0.5 * whitened @ whitened
            - xp.sum(xp.log(xp.diagonal(factor)))
            + 0.5 * len(eta) * math.log(2 * math.pi)
        )
        return 0.5 * xp.trace(precision) + log_normaliser + xp.asarray(self.log_units)

    iterated = True  # the program of a Hessian takes long to compile

    def steps(self, natural: np.ndarray) -> np.ndarray | None:
        """Moves by which the Gaussian changes by equal parts of itself, (q, q); None where it is so
        wide that differences would cancel, or P is not known to change smoothly."""
        d = self.root.shape[0]
        _, precision = unpacked(natural, d)
        wide = np.linalg.eigvalsh(precision)[0] < NARROW
        if wide or not isinstance(self.method, Exact | Separation):
            return None
        factor = np.linalg.cholesky(precision)
        moves = (unpacked(unit, d) for unit in np.eye(len(natural)))
        return STEP * np.stack([packed(factor @ v, factor @ m @ factor.T) for v, m in moves])

    def rough_hessian(self, natural: np.ndarray) -> np.ndarray:
        """The Hessian without the region, from which the steps begin to learn: the covariance of x,
        -x_i x_j and -x_i^2 / 2 of a Gaussian."""
        loc, covariance = white_gaussian(natural, self.root.shape[0])
        i, j = np.tril_indices(len(loc))
        sizes = np.where(i == j, -0.5, -1.0)
        second, products = covariance + np.outer(loc, loc), loc[i] * loc[j]
        pairs = second[np.ix_(i, i)] * second[np.ix_(j, j)]
        pairs += second[np.ix_(i, j)] * second[np.ix_(j, i)] - 2.0 * np.outer(products, products)
        side = sizes * (loc[i] * covariance[:, j] + loc[j] * covariance[:, i])
        return np.block([[covariance, side], [side.T, sizes[:, None] * pairs * sizes]])

    @property
    def cost(self) -> Cost:
        """The work of its compiled forms: little for an exact integral."""
        return Cost(0, loops=bool(jax.tree.leaves(self.method)))

    def fraction(self, natural: jax.Array) -> Estimate:
        """The estimated log P(X in region) and its error."""
        loc, covariance = white_gaussian(natural, self.root.shape[0])
        factor = ScaleTril(self.root @ jnp.linalg.cholesky(covariance))
        problem = Problem(self.root @ loc, factor, self.region)
        return estimate(self.method, problem, self.key)


def packed(vector: Any, matrix: Any) -> Any:
    """A vector (d,) and a symmetric matrix (d, d) as one vector: the lower triangle by rows."""
    return namespace(vector).concatenate([vector, matrix[triangle(len(vector))[0]]])


def unpacked(values: Any, dimension: int) -> tuple[Any, Any]:
    """The vector and the symmetric matrix that `packed` took."""
    return values[:dimension], values[dimension:][triangle(dimension)[1]]


@functools.cache  # asked for at each step, for each move
def triangle(dimension: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Rows and columns of a lower triangle, and where each entry of the matrix stands in it."""
    lower, order = np.tril_indices(dimension), np.zeros((dimension, dimension), int)
    order[lower] = np.arange(len(lower[0]))
    return lower, np.maximum(order, order.T)


def white_gaussian(natural: Any, dimension: int) -> tuple[Any, Any]:
    """loc and covariance matrix of packed (eta, Lambda)."""
    eta, precision = unpacked(natural, dimension)
    covariance = inverse(precision)
    return covariance @ eta, covariance


def inverse(matrix: Any) -> Any:
    """The inverse of a positive definite matrix, symmetric to the bit; NaN for any other."""
    root = solve_lower(cholesky(matrix), np.eye(matrix.shape[-1], dtype=matrix.dtype))
    return root.T @ root


# ---------------------------------------------------------------- the model


@dataclasses.dataclass(frozen=True, kw_only=True)
class TruncatedSample(Model):
    """Complete rows that share their limits, by their number, mean and scatter.

    Attributes, besides those of `Model`:
        sample: the rows.
        method: how the probability of the limits is computed.
        key: its random key.
        remarks: what is to be said of the rows and the start.
    """

    sample: Sample
    method: Method
    key: jax.Array
    remarks: tuple[str, ...] = ()
    unique = True
    rounds = 10

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.inner.names(False, self.sample.columns))

    @property
    def precision(self) -> Precision | None:
        return self.inner.precision(self.sample.scale)

    @property
    def coordinates(self) -> UserUnits:
        d = len(self.sample.centre)
        return UserUnits(self.inner, *jax.device_put((np.eye(d), np.zeros(d))))

    @functools.cached_property
    def inner(self) -> GaussianCoordinates:
        """Natural parameters of the rows made white, packed."""
        sample = self.sample
        centre, scale, root = map(np.asarray, (sample.centre, sample.scale, sample.root))
        d, root = len(centre), scale[:, None] * root  # in NumPy, where nothing is compiled
        pairs = tuple((j, i) for i in range(d) for j in range(i))
        centre, root, fixed = jax.device_put((centre, root, np.eye(d)))
        return GaussianCoordinates(
            fixed, (1,) * d, tuple(range(d)), pairs, white=White(centre, root)
        )

    def starts(self, count: int | None) -> list[np.ndarray]:
        d = len(self.sample.centre)
        return [packed(np.zeros(d), np.eye(d))]

    def as_start(self, start: Any) -> np.ndarray | None:
        """Free coordinates of the user's mean and covariance; None if that is no covariance matrix,
        or too far from the sample."""
        d = len(self.sample.centre)
        parts = arrays_of_start("fit_truncated_normal", start, ("loc", "covariance"))
        loc, covariance = (np.asarray(part, np.float64) for part in parts)
        if loc.shape != (d,) or covariance.shape != (d, d):
            raise ValueError(
                f"start must have loc and covariance of shapes ({d},) and ({d}, {d}), got "
                f"{loc.shape} and {covariance.shape}."
            )
        try:
            x = self.inner.free(loc, covariance)
        except np.linalg.LinAlgError:
            return None
        if not np.all(np.isfinite(x)):
            return None
        values = np.linalg.eigvalsh(unpacked(x, d)[1])
        return x if values[0] > WIDEST**-2 and values[-1] < WIDEST**2 else None

    def loss_at(self, x: np.ndarray) -> TruncatedLoss:
        sample, method, root = self.sample, self.method, np.asarray(self.sample.root)
        loc, covariance = white_gaussian(x, len(root))
        covariance = root @ covariance @ root.T
        covariance = (covariance + covariance.T) / 2
        # A method that sees zeros may take independence for a property of every covariance to come.
        small = 1e-7 * np.sqrt(np.outer(*[np.diagonal(covariance)] * 2))
        dense = np.where(covariance == 0, small, covariance)
        problem = as_problem(root @ loc, dense, sample.region)
        if isinstance(method, Automatic):  # by shapes, for the same reason
            method = method.choice(problem)
        log_units = np.log(sample.scale).sum() + np.log(np.diagonal(root)).sum()
        size, units = jax.device_put((np.asarray(sample.weight), np.asarray(log_units)))
        method.for_problem(problem)  # which refuses a plan of another problem
        method = method.hold(*problem)
        return TruncatedLoss(sample.root, sample.region, method, self.key, size, units)

    def obstacle(self, path: Path) -> str | None:
        precision = self.precision
        assert precision is not None  # of natural parameters
        wide = np.asarray(self.sample.root) @ precision.wide(path.end.x)
        return WIDENS + direction_in_words(wide[:, 0]) if wide.size else None

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, None]:
        return math.exp(path.end.loss - float(path.loss.without_region(path.end.x))), None

    def wald_coverages(self, path: Path, total: Any, errors: Any, compare: Any) -> Any:
        """Of estimates whose errors are not small; of very many, off the diagonal of the covariance
        none; and none where P is an estimate, which is expensive and not smooth enough."""
        d = len(self.sample.columns)
        rows, columns = np.tril_indices(d)
        estimates = self.inner.estimates(path.end.x)
        roots = estimates[1:] if d == 1 else np.diagonal(unpacked(estimates, d)[1]) ** 0.5
        units = roots if d == 1 else roots[rows] * roots[columns]
        asked = np.flatnonzero(errors / np.concatenate([roots, units]) > SMALL)
        remarks = tuple[str, ...]()
        if len(asked) > MOST_COMPARED:
            asked = asked[(np.append(np.zeros(d, int), rows - columns) == 0)[asked]]
            remarks = (NOT_COMPARED,)
        coverages = np.full(len(errors), 0.95)
        if not len(asked):
            return coverages, remarks
        if float(total.stderr) != 0:
            return np.zeros(0), ("Wald intervals were not compared with the likelihood.",)
        coverages[asked] = compare(asked)
        return coverages, remarks

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        if not ending.converged:
            return self.remarks
        stderr, notes = ending.log_likelihood_stderr, tuple[str, ...]()
        if 0 < stderr < np.inf:
            # The Newton step to the maximum with another key, over the root of two.
            loss, end = path.loss, path.end
            other = dataclasses.replace(loss, key=jax.random.fold_in(loss.key, 1))
            gap = sloped(other, end.x).gradient - end.gradient
            squared = 0.5 * float(loss.size) * gap @ np.linalg.solve(end.hessian, gap)
            off = math.sqrt(max(0.0, squared))
            notes = (ROUGHLY_FOUND.format(off),) if off > FELT else ()
        return (*self.remarks, *common, *notes)

    def result(self, ending: Ending, path: Path) -> ObservationsFit:
        return ObservationsFit.of(self.inner, self.inner.values(path.end.x)[1], ending)
