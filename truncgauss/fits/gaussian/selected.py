"""The Gaussian behind a selected sample, and the curve by which it was selected."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.linalg import cholesky, namespace, solve_lower
from truncgauss.arrays.pytrees import Estimate, as_float_array, frozen_pytree, static_field
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates
from truncgauss.fits.gaussian.sample import (
    as_rows,
    check_rows,
    check_statistics,
    columns_of,
    limits_of,
    limits_of_box,
)
from truncgauss.fits.gaussian.statistics import Statistics, as_weights
from truncgauss.fitting.derived import gaussian_arrays
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import check_count, maximum_likelihood
from truncgauss.fitting.likelihood_fit import Ending, LikelihoodFit
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.fitting.newton import Loss
from truncgauss.fitting.widening import WIDEST
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.problem import Problem, as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.patterns import filled_length
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method, estimate
from truncgauss.special.logspace import log1mexp
from truncgauss.words.names import meant

LEAST_KEPT = 0.02  # probability of a row, below which it counts no more in the first guess
MANY = 1e4  # not observed, from which a binomial coefficient comes from a beta function
STEEP = 1e-6  # of the deviation of a curve's scores: a width below it is on its way to 0
STEEPENING = "slope", "scale"  # parameters of a curve that make it so
WIDTHS = 0.03, 3.0  # of a steep and a flat curve in starts, by the deviation of their scores
STEP = 1e-4  # of a coordinate's unit, between gradients whose differences are a Hessian
FLAT = "The observations do not tell the curve from the shape of the Gaussian."
FLAT_OF_COUNT = (
    "The rows and the number that was not observed may agree with several Gaussians, or with none: "
    "check num_unobserved= and the bounds, or give a start=."
)
WIDENS = (
    "There is no maximum: the likelihood grows as the Gaussian widens, as the curve alone explains "
    "the sample. Know more of the curve, or give a prior= or num_unobserved=."
)
STEEPENS = (
    "There is no maximum: the likelihood grows as the width of the curve falls to 0, where it is a "
    "step. Give the step as bounds, low= or high=, know the width, or give a prior= of it."
)
POSTERIOR = (
    "Estimates, errors and intervals are those of the likelihood times the prior, which gives {} "
    "of the information on it."
)


# ---------------------------------------------------------------- the parameters of a curve


class CurveParameter(NamedTuple):
    """A parameter of a region that is estimated.

    Attributes:
        name: of the leaf.
        number: among the leaves of the parameters.
        shape: without the axis of rows.
        rows: whether it has one.
        role: location, scale, whose logarithm is free, slope, or None.
    """

    name: str
    number: int
    shape: tuple[int, ...]
    rows: bool
    role: str | None

    @property
    def positive(self) -> bool:
        return self.role == "scale"

    @property
    def names(self) -> list[str]:
        word = (" factor" if self.positive else " shift") * self.rows
        several = math.prod(self.shape) > 1
        return [
            f"{self.name}{word}" + f"[{', '.join(map(str, k))}]" * several
            for k in np.ndindex(self.shape)
        ]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def parts_of(region: Any, estimate: Any, what: str) -> tuple[CurveParameter, ...]:
    """The parameters that are estimated, by the names that a user gives.

    Raises:
        ValueError: for a name that is none, or weights and width together, which have no scale.
    """
    wanted = (estimate,) if isinstance(estimate, str) else estimate
    if not isinstance(wanted, list | tuple):
        raise TypeError(f"{what}: estimate holds names of parameters, got {estimate!r}.")
    leaves = jax.tree_util.tree_leaves_with_path(getattr(region, "parameters", None))
    keystr: Any = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
    names = [keystr(path) or "parameter" for path, _ in leaves]
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(
            f"{what}: estimate={unknown[0]!r} is no parameter of the region, which has "
            + (f"{', '.join(names)}{meant(unknown[0], names) or '.'}" if names else "none.")
            + " A tg.Selection takes parameters={name: start}." * (not names)
        )
    roles, rows = getattr(region, "parameter_roles", {}), bool(region.batch_shape)
    if {"slope", "scale"} <= {roles.get(name) for name in wanted}:
        raise ValueError(
            f"{what}: weights and width of a curve have one scale in common: estimate one of them."
        )
    jumps = getattr(region, "jumps", ())
    parts = []
    for number, (name, (_, leaf)) in enumerate(zip(names, leaves)):
        if name not in wanted:
            continue
        if number + getattr(region, "_num_closed", 0) in jumps:
            raise ValueError(
                f"{what}: the region depends on {name} by a step, whose derivative is no number. "
                "Estimate parameters of smooth curves."
            )
        if rows and roles.get(name) not in ("location", "scale"):
            raise ValueError(
                f"{what}: {name} has one value a row. Of tg.Selection.probit and logistic the "
                "midpoint and width of all rows are moved together; of another region write what "
                "differs between rows into the function, and one number for what is estimated."
            )
        shape = leaf.shape[len(region.batch_shape) :]
        parts.append(CurveParameter(name, number, shape, rows, roles.get(name)))
    return tuple(parts)


@frozen_pytree
class CurveCoordinates:
    """Free coordinates of the parameters of a region: logarithms of those known to be positive; of
    a region for each row what is added to those of all rows, or multiplies them.

    Attributes:
        region: with the values of parameters that are known, and with starts.
        parts: the parameters that are estimated (static).
    """

    region: Any
    parts: tuple[CurveParameter, ...] = static_field()

    @property
    def names(self) -> list[str]:
        return [name for part in self.parts for name in part.names]

    def start(self, width: Any = 1.0, shift: Any = 0.0) -> np.ndarray:
        """The region's values, of curves so many times as wide, whose midpoints are moved."""
        leaves = jax.tree.leaves(self.region.parameters) if self.parts else []
        slopes = any(part.role == "slope" for part in self.parts)
        free = [np.zeros(0)]
        for part in self.parts:
            value = float(part.positive) if part.rows else np.asarray(leaves[part.number])
            value = np.broadcast_to(value, part.shape)
            if part.positive:
                value = np.log(value * width)
            elif part.role == "slope":
                value = value / np.reshape(width, (-1, 1))
            elif part.role == "location":
                value = (value + shift) / (width if slopes else 1.0)
            free.append(np.ravel(value))
        return np.concatenate(free)

    def starts(self, gaps: np.ndarray | None) -> list[np.ndarray]:
        """The region's values; where widths or slopes are estimated also those of flat curves, of
        each one steep at the edge of the rows and, with free slopes, of curves turned around. Rows
        lie so far above the midpoints, (n, r), or are missing."""
        roles = {part.role for part in self.parts}
        if gaps is None or not roles & {*STEEPENING}:
            return [self.start()]
        gaps = np.where(np.all(np.isnan(gaps), axis=0), 0.0, gaps)
        widths = np.atleast_2d(np.asarray(self.region.score_selection().width))
        times = np.nanstd(gaps, axis=0) / np.mean(widths, axis=0)
        times = np.where(times > 0, times, 1.0)  # of a curve without slopes as yet
        steep, flat = WIDTHS
        starts = [self.start(), self.start(flat * times)]
        for one in np.eye(len(times), dtype=bool):
            starts.append(
                self.start(np.where(one, steep * times, 1.0), one * np.nanmin(gaps, axis=0))
            )
        return [*starts, self.start(-1.0)] if "slope" in roles else starts

    def pieces(self, x: Any) -> list[Any]:
        """The numbers of each part, in its shape; in NumPy as in JAX."""
        xp, ends = namespace(x), np.cumsum([part.size for part in self.parts])[:-1]
        pieces = xp.split(x, ends) if self.parts else []
        return [piece.reshape(part.shape) for part, piece in zip(self.parts, pieces)]

    def split(self, x: Any) -> list[Any]:
        """The estimates of each part; of numbers in NumPy, as all that follows."""
        exp, both = namespace(x).exp, zip(self.parts, self.pieces(x))
        return [exp(piece) if part.positive else piece for part, piece in both]

    def estimates(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.zeros(0, x.dtype), *map(jnp.ravel, self.split(x))])

    def by_name(self, values: list[Any]) -> dict[str, Any]:
        """The values of all parts by the names of parameters, scalars of one number."""
        return {
            part.name: value.reshape(())[()] if part.size == 1 else value
            for part, value in zip(self.parts, values)
        }

    def region_at(self, x: Any) -> Any:
        """The region with these parameters."""
        if not self.parts:
            return self.region
        parameters = self.region.parameters
        leaves, structure = jax.tree.flatten(parameters)
        for part, value in zip(self.parts, self.split(x)):
            old = leaves[part.number]
            if part.rows:
                old = np.asarray(old) if namespace(x) is np else old
                value = old * value if part.positive else old + value
            leaves[part.number] = as_float_array(value.astype(old.dtype))
        return self.region.with_parameters(jax.tree.unflatten(structure, leaves))


@frozen_pytree
class SelectedCoordinates:
    """Free coordinates of a Gaussian, then of a curve.

    Attributes:
        inner: of the Gaussian.
        curve: of the region.
        split: how many belong to the Gaussian (static).
    """

    inner: GaussianCoordinates
    curve: CurveCoordinates
    split: int = static_field()

    def estimates(self, x: jax.Array) -> jax.Array:
        gaussian, curve = x[: self.split], x[self.split :]
        return jnp.concatenate([self.inner.estimates(gaussian), self.curve.estimates(curve)])

    def values(self, x: Any) -> tuple[tuple[Any, ...], Any]:
        """Means, and the covariance matrix; of numbers in NumPy."""
        return self.inner.values(x[: self.split])

    def gaussian(self, x: Any) -> tuple[Any, Any]:
        """Mean and covariance matrix."""
        parts, matrix = self.values(x)
        return jnp.concatenate(parts), matrix

    def units(self, x: np.ndarray) -> np.ndarray | None:
        """Moves of each coordinate where the Gaussian, or the curve, changes by about itself."""
        gaussian, scores = self.inner.units(x[: self.split]), self.curve.region.score_selection()
        width = 1.0 if scores is None else float(np.mean(scores.width))
        units = [np.full(p.size, 1.0 if p.positive else width) for p in self.curve.parts]
        return None if gaussian is None else np.concatenate([gaussian, *units])

    def log_prior(self, prior: Callable[[Any], Any] | None, x: jax.Array) -> jax.Array:
        """The log density of the curve's estimates."""
        if prior is None:
            return jnp.zeros((), x.dtype)
        return jnp.asarray(
            prior(self.curve.by_name(self.curve.split(x[self.split :]))), x.dtype
        ).reshape(())

    def region(self, x: Any) -> Any:
        return self.curve.region_at(x[self.split :])


# ---------------------------------------------------------------- the likelihood


@frozen_pytree
class SelectedLoss(Loss):
    r"""Minus the mean log-likelihood of rows that a curve s kept, with u others it did not, or an
    unknown number:

    .. math:: \sum_i \{\log N(x_i) + \log s(x_i)\} - n \log P, \qquad
        \sum_i \{\log N(x_i) + \log s(x_i)\} + u \log(1 - P) + \log \binom{n+u}{n}

    with P = E s(X): the second is the first plus the binomial probability of n among n + u.

    Attributes:
        rows, weights: (n, d) and (n,).
        mean, scatter: of the rows, and their covariance matrix with the divisor n.
        coordinates: what x stands for.
        unobserved: u, or None.
        prior: the log density of the estimated parameters by name, or None (static).
        method, key: of P, with the plan held.
        size: the total weight of the rows.
    """

    rows: jax.Array
    weights: jax.Array
    mean: jax.Array
    scatter: jax.Array
    coordinates: SelectedCoordinates
    unobserved: jax.Array | None
    method: Method
    key: jax.Array
    size: jax.Array
    prior: Callable[[Any], Any] | None = static_field(default=None)
    iterated: bool = static_field(default=False)

    def total(self, x: jax.Array) -> Estimate:
        value, stderr = self.of_rows(x)
        return Estimate(value + self.coordinates.log_prior(self.prior, x), stderr)

    def of_rows(self, x: jax.Array) -> Estimate:
        """The log-likelihood without the prior."""
        loc, covariance = self.coordinates.gaussian(x)
        region = self.coordinates.region(x)
        factor = jnp.linalg.cholesky(covariance)
        white = solve_lower(factor, self.mean - loc)
        inverse = solve_lower(factor, jnp.eye(len(loc)))
        square = white @ white + jnp.sum((inverse @ self.scatter) * inverse)
        constant = jnp.sum(jnp.log(jnp.diagonal(factor))) + 0.5 * len(loc) * math.log(2 * math.pi)
        kept = self.weights @ log_kept(region, self.rows)
        log_prob, stderr = self.probability(loc, covariance, region)
        of_data = kept - self.size * (0.5 * square + constant)
        if self.unobserved is None:
            weights = self.weights if region.batch_shape else self.size
            return Estimate(of_data - jnp.sum(weights * log_prob), jnp.sum(weights * stderr))
        u, n = self.unobserved, self.size
        ways = log_ways(n, u)
        lost = self.log_lost(loc, covariance, region, log_prob)
        # Of none unobserved the term is 0, whatever is lost.
        term = jnp.where(u > 0, u * jnp.where(u > 0, lost, 0.0), 0.0)
        return Estimate(of_data + ways + term, u * stderr * jnp.exp(log_prob - lost))

    def probability(self, loc: Any, covariance: Any, region: Any) -> Estimate:
        """The log of P, one for each row if they differ in region."""
        problem = Problem(loc, CovarianceMatrix(covariance), region)
        result = estimate(self.method, problem, self.key)
        return Estimate(result.log_prob, jax.lax.stop_gradient(result.stderr))

    def log_lost(self, loc: Any, covariance: Any, region: Any, log_prob: Any) -> jax.Array:
        """log(1 - P), of one curve with all digits where that is small."""
        if is_one_curve(region):
            return self.probability(loc, covariance, region.score_selection().flipped()).log_prob
        return log1mexp(-log_prob)

    def steps(self, x: np.ndarray) -> np.ndarray | None:
        """Moves between gradients whose differences are the Hessian, where that is expensive."""
        if not self.iterated:
            return None
        units = self.coordinates.units(np.asarray(x))
        return None if units is None else STEP * units


def log_ways(n: jax.Array, u: jax.Array) -> jax.Array:
    """The log of the binomial coefficient of n among n + u, to rounding for any number u: the
    logs of large factorials have lost the digits of their difference."""
    direct = gammaln(n + u + 1.0) - gammaln(n + 1.0) - gammaln(u + 1.0)
    return jnp.where(u < MANY, direct, -jnp.log(n + u + 1.0) - betaln(n + 1.0, u + 1.0))


def is_one_curve(region: Any) -> bool:
    scores = region.score_selection()
    return scores is not None and scores.width.shape[-1] == 1


def log_kept(region: Any, rows: jax.Array) -> jax.Array:
    """The log of the probability with which each row is kept, (n,); that of a box is 0 or -inf."""
    if region.batch_shape:
        of_row: Any = lambda region, x: log_kept(region, x[None])[0]
        return jax.vmap(of_row)(region, rows)
    if (scores := region.score_selection()) is not None:
        return scores.closeness(rows)
    kept = region.kept(rows)
    return jnp.where(kept == 0, -jnp.inf, jnp.log(jnp.where(kept == 0, 1.0, kept)))


# ---------------------------------------------------------------- the model and the fit


class SelectedErrors(NamedTuple):
    """Standard errors, in the shapes of the estimates."""

    loc: np.ndarray
    covariance_matrix: np.ndarray
    curve: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectedFit(LikelihoodFit):
    """The Gaussian behind a selected sample and the curve that selected it; `print` shows a table.

    Attributes, besides those of `fitting.LikelihoodFit`:
        loc, covariance_matrix: of the population, (d,) and (d, d).
        curve: the estimated parameters of the region, by name.
        region: the selection with these.
        standard_errors: `.loc`, `.covariance_matrix` and `.curve` likewise.
    """

    loc: np.ndarray
    covariance_matrix: np.ndarray
    curve: dict[str, np.ndarray]
    region: Any
    standard_errors: SelectedErrors

    names_of_start = "loc", "covariance"  # of the curve its own values are the start
    seen_word = "fraction observed"

    @property
    def array_constants(self) -> Any:
        return self.coordinates.inner.fixed

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        inner = self.coordinates.inner
        parts, matrix = inner.of_estimates(estimates[: len(self.loc) + len(inner.entries)])
        return gaussian_arrays(jnp.concatenate(parts), matrix)

    def kind_of(self, number: int) -> str:
        positive = self.range_of(number)[0] == 0.0
        return "variance" if positive else super().kind_of(number)

    def range_of(self, number: int) -> tuple[float, float]:
        curve = number - len(self.names) + len(self.coordinates.curve.names)
        positive = [part.positive for part in self.coordinates.curve.parts for _ in part.names]
        if curve < 0:
            return super().range_of(number)
        return (0.0 if positive[curve] else -np.inf), np.inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectedSample(Model):
    """Complete rows that a region kept, each with some probability.

    Attributes, besides those of `Model`:
        rows: (n, d).
        weights: how often each counts, (n,).
        labels: of the columns.
        curve: the region, with starts of what is estimated.
        unobserved, prior: as `SelectedLoss` has them.
        method, key: of P.
    """

    rows: np.ndarray
    weights: np.ndarray
    curve: CurveCoordinates
    unobserved: float | None
    prior: Callable[[Any], Any] | None
    labels: tuple[str, ...] = ()
    method: Method = Automatic()
    key: Any = None
    what = "fit_truncated_normal"  # fits it, for messages

    @property
    def flat(self) -> str:
        """A sentence on a likelihood without one maximum, with what may be known and is not."""
        if self.unobserved is not None and not self.curve.parts:
            return FLAT_OF_COUNT
        cures = ["Leave a parameter out of estimate="]
        cures += ["give a prior="] * (self.prior is None)
        if self.unobserved is None:
            verb = "" if self.prior is None else "give "
            cures.append(f"{verb}num_unobserved= if it is known how many were not observed")
        *first, last = cures
        return f"{FLAT} {', '.join([*first, f'or {last}' if first else last])}."

    @functools.cached_property
    def inner(self) -> GaussianCoordinates:
        d = self.rows.shape[1]
        pairs = tuple((j, i) for i in range(d) for j in range(i))
        return GaussianCoordinates(jnp.asarray(np.eye(d)), (1,) * d, tuple(range(d)), pairs)

    @property
    def quick(self) -> bool:
        """Whether log P has a closed form of one variable; else profiles may take long."""
        return is_one_curve(self.curve.region)

    @functools.cached_property
    def coordinates(self) -> SelectedCoordinates:
        split = self.rows.shape[1] + len(self.inner.entries)
        return SelectedCoordinates(self.inner, self.curve, split)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.inner.names(False, self.labels), *self.curve.names)

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        return moments_of(self.rows, self.weights)

    @property
    def gaps(self) -> np.ndarray | None:
        """By how much scores of rows that count exceed the midpoints of curves, (n, r)."""
        scores = self.curve.region.score_selection()
        if scores is None:
            return None
        w, m = map(np.asarray, (scores.weights, scores.midpoint))
        gaps: np.ndarray = np.einsum("...rd,...d->...r", w, self.rows) - m
        return gaps[self.weights > 0]

    def starts(self, count: int | None) -> list[np.ndarray]:
        """The moments of the rows and, first, of rows weighted by the inverse of the probability
        with which they are kept; the former beside other curves too."""
        kept = np.exp(np.asarray(log_kept_by(self.curve.region, self.rows)))
        inverse = self.weights / np.maximum(kept, LEAST_KEPT)
        mean, matrix = self.moments
        guesses = [(*moments_of(self.rows, inverse), self.curve.start())]
        guesses += [(mean, matrix, curve) for curve in self.curve.starts(self.gaps)]
        count, random = count or len(guesses), np.random.default_rng(0)
        for _ in range(count - len(guesses)):
            moved = mean + np.sqrt(np.diagonal(matrix)) * random.normal(size=len(mean))
            size, width = np.exp(random.normal(size=2))
            guesses.append((moved, matrix * size, self.curve.start(width)))
        return [np.append(self.inner.free(m, c), curve) for m, c, curve in guesses[:count]]

    def as_start(self, start: Any) -> np.ndarray:
        """Free coordinates of a mean and a covariance matrix, by name or in this order."""
        d = self.rows.shape[1]
        parts = arrays_of_start(self.what, start, ("loc", "covariance"))
        loc, matrix = (np.asarray(part, np.float64) for part in parts)
        if loc.shape != (d,) or matrix.shape != (d, d) or not np.linalg.eigvalsh(matrix)[0] > 0:
            raise ValueError(
                f"start must have loc and covariance of shapes ({d},) and ({d}, {d}), the "
                f"covariance positive definite; got {loc.shape} and {matrix.shape}."
            )
        return np.append(self.inner.free(loc, matrix), self.curve.start())

    def loss_at(self, x: np.ndarray) -> Any:
        coordinates, n = self.coordinates, len(self.rows)
        # Filled up by rows that do not count, so that samples of about as many share programs.
        number = n if self.curve.region.batch_shape else filled_length(n)
        more = ((0, number - n), (0, 0))
        rows = np.pad(self.rows, more, mode="edge")
        weights = jnp.asarray(np.pad(self.weights, more[0]))
        region = coordinates.region(np.asarray(x))
        parts, matrix = self.inner.values(np.asarray(x[: coordinates.split]))
        problem = as_problem(np.concatenate(parts), matrix, region)
        method = self.method
        if isinstance(method, Automatic):  # by shapes: zeros are those of one matrix alone
            method = method.choice(problem)
        method.for_problem(problem)  # which refuses a plan of another problem
        mean, scatter = map(jnp.asarray, self.moments)
        size = jnp.asarray(np.sum(self.weights))
        unobserved = None if self.unobserved is None else jnp.asarray(self.unobserved)
        return SelectedLoss(
            jnp.asarray(rows), weights, mean, scatter, coordinates, unobserved,
            method.hold(*problem), self.key, size, self.prior, not self.quick,
        )  # fmt: skip

    def log_density(self, x: np.ndarray) -> float:
        """The log density of all rows times the probability with which each is kept: all of the
        log-likelihood but log P, by programs that there are."""
        parts, matrix = self.inner.values(x[: self.coordinates.split])
        factor, (mean, scatter) = cholesky(matrix), self.moments
        gap, inverse = mean - np.concatenate(parts), np.linalg.inv(factor)
        square = np.sum((inverse @ gap) ** 2) + np.sum((inverse @ scatter) * inverse)
        constant = np.sum(np.log(np.diagonal(factor))) + 0.5 * len(gap) * math.log(2 * math.pi)
        kept = np.asarray(log_kept_by(self.coordinates.region(x), self.rows))
        return float(self.weights @ kept - self.weights.sum() * (0.5 * square + constant))

    def is_endless(self, x: np.ndarray) -> bool:
        matrix = self.inner.values(x[: self.coordinates.split])[1]  # by NumPy
        spread = np.sqrt(np.diagonal(self.moments[1]))
        if not np.all(np.isfinite(matrix)):
            return False
        return bool(np.linalg.eigvalsh(matrix / np.outer(spread, spread))[-1] > WIDEST**2)

    def obstacle(self, path: Path) -> str | None:
        if path.endless:
            return WIDENS
        scores = self.coordinates.region(path.end.x).score_selection()
        if scores is None or not any(p.role in STEEPENING for p in self.curve.parts):
            return None
        matrix, w = self.inner.values(path.end.x[: self.coordinates.split])[1], scores.weights
        spread = np.sqrt(np.einsum("...rd,de,...re->...r", w, matrix, w))
        return STEEPENS if np.any(np.asarray(scores.width) < STEEP * spread) else None

    def total(self, path: Path) -> Any:
        """Without the prior, which is none of the rows'."""
        if self.prior is None:
            return None
        loss, x = path.loss, jnp.asarray(path.end.x)
        value = -float(loss.size) * path.end.loss - self.coordinates.log_prior(self.prior, x)
        return Estimate(value, jnp.sqrt(path.end.variance))

    def judged(self, path: Path, total: Any, converged: bool) -> tuple[float, None]:
        if self.unobserved is None and self.prior is None and not self.curve.region.batch_shape:
            of_rows = self.log_density(path.end.x) + float(path.loss.size) * path.end.loss
            return float(np.exp(of_rows / float(path.loss.size))), None
        seen = np.exp(np.asarray(log_seen(path.loss, path.end.x)))
        weights = self.weights if seen.ndim else np.ones(1)
        return float(np.average(np.atleast_1d(seen), weights=weights)), None

    def notes(self, ending: Ending, common: tuple[str, ...], path: Path) -> tuple[str, ...]:
        if self.prior is None or not ending.converged:
            return common
        x = jnp.asarray(path.end.x)
        log_prior = functools.partial(self.coordinates.log_prior, self.prior)
        bends = -np.diagonal(np.asarray(jax.hessian(log_prior)(x)))
        covariance = np.linalg.inv(float(path.loss.size) * path.end.hessian)
        shares = (bends * np.diagonal(covariance))[self.coordinates.split :]
        words = [f"{share:.0%} on {name}" for name, share in zip(self.curve.names, shares)]
        return (*common, POSTERIOR.format(", ".join(words)))

    def result(self, ending: Ending, path: Path) -> SelectedFit:
        x, curve, split = path.end.x, self.curve, self.coordinates.split
        parts, matrix = self.inner.values(x[:split])
        loc = np.concatenate(parts)
        of_loc, of_entries, of_curve = np.split(ending.errors, [loc.size, split])
        return SelectedFit(
            **vars(ending),
            loc=loc,
            covariance_matrix=matrix,
            curve=curve.by_name(curve.split(x[split:])),
            region=self.coordinates.region(x),
            standard_errors=SelectedErrors(
                of_loc,
                self.inner.standard_errors(of_entries, matrix),
                curve.by_name(curve.pieces(of_curve)),
            ),
        )


log_kept_by = Compiled(log_kept)


@Compiled
def log_seen(loss: SelectedLoss, x: jax.Array) -> jax.Array:
    """The log of P, of one row or of each."""
    return loss.probability(*loss.coordinates.gaussian(x), loss.coordinates.region(x)).log_prob


def moments_of(rows: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = weights @ rows / weights.sum()
    gaps = rows - mean
    return mean, (weights[:, None] * gaps).T @ gaps / weights.sum()


def fit_selected(
    what: str,
    data: Any,
    limits: tuple[Any, Any],
    region: Any,
    others: tuple[Any, Any],
    weights: Any,
    *,
    estimate: Any,
    prior: Any,
    num_unobserved: Any,
    start: Any,
    method: Method,
    key: jax.Array | None,
    **settings: Any,
) -> SelectedFit:
    """The fit of complete rows that a region kept; arguments as `fit_truncated_normal` has them,
    `others` being statistics and noise, which are refused."""
    if data is None or any(other is not None for other in others):
        raise ValueError(
            f"{what}: a selection needs data, the rows, in place of statistics and without noise."
        )
    if not hasattr(region, "with_parameters"):
        if num_unobserved is None:
            raise ValueError(
                f"{what}: estimate and prior are of the parameters of a selection: give "
                "region=tg.Selection(...)."
            )
        limits = limits_of_box(what, region, limits, "low and high")
    elif any(end is not None for end in limits):
        raise ValueError(f"{what}: give either region or low and high, not both.")
    table = tables.read(data)
    with jax.enable_x64(True):
        rows = as_rows(table)
        low, high = limits_of(*limits, table)
        check_rows(rows, low, high)
        n, d = rows.shape
        if not hasattr(region, "with_parameters"):
            region = Box(*np.broadcast_arrays(low, high, rows[0])[:2])
        if weights is not None:
            weights = tables.in_order(weights, table.labels, "weights", "the data")
            weights = as_weights(tables.each_row(weights, n, "weights"), n)
        if region.dimension != d or region.batch_shape not in ((), (n,)):
            raise ValueError(
                f"{what}: there are {n} rows of {d} entries, but the region has dimension "
                f"{region.dimension} and leading axes {region.batch_shape}; expected () or ({n},)."
            )
        model = model_of(what, rows, weights, region, estimate, prior, num_unobserved)
        labels = columns_of(table, d)
        model = dataclasses.replace(model, labels=labels, method=method, key=as_key(key))
        statistics = Statistics.from_rows(rows, weights)
        check_statistics(statistics, np.array([-np.inf]), np.array([np.inf]), table)
        if n <= len(model.names):
            raise ValueError(f"{what}: {n} rows cannot determine {len(model.names)} estimates.")
        x = None if start is None else model.as_start(start)
        fit: SelectedFit = maximum_likelihood(model, start=x, **settings)
        return fit


def in_float64(region: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), region)


def checked_parts(what: str, region: Any, estimate: Any, prior: Any) -> tuple[CurveParameter, ...]:
    """The parameters that are estimated, for which a prior may be given."""
    parts = parts_of(region, estimate, what)
    if prior is not None and not (callable(prior) and parts):
        raise ValueError(
            f"{what}: prior is the log density of what estimate= names, a function of a dictionary "
            f"of these, got {prior!r} with estimate={estimate!r}."
        )
    if prior is not None:
        curve = CurveCoordinates(region, parts)
        given = curve.by_name(curve.split(jnp.asarray(curve.start())))
        try:
            density = jax.eval_shape(prior, given)
        except KeyError as error:
            raise ValueError(
                f"{what}: prior asks for {error}; it gets {', '.join(given)}, as estimate= names."
            ) from error
        if getattr(density, "shape", None) not in ((), (1,)):
            raise ValueError(
                f"{what}: prior must return one number, the log density of all it is given "
                f"together, got {density}."
            )
    return parts


def model_of(
    what: str, rows: Any, weights: Any, region: Any, estimate: Any, prior: Any, num_unobserved: Any
) -> SelectedSample:
    """The model of rows, whose region, prior and count are checked."""
    n, region = len(rows), in_float64(region)
    parts = checked_parts(what, region, estimate, prior)
    if num_unobserved is not None:
        check_count(f"{what}: num_unobserved", num_unobserved)
        if region.batch_shape:
            raise ValueError(
                f"{what}: num_unobserved counts what one region did not keep, and there is one for "
                "each row: it is not known by which of them an object was lost."
            )
    kept = np.asarray(log_kept_by(region, rows))
    wrong = np.flatnonzero(~((kept <= 1e-9) & (kept > -np.inf)))
    if len(wrong):
        raise ValueError(
            f"{what}: {len(wrong)} of {n} rows are kept with what is no probability or 0, first "
            f"row {wrong[0]}, {rows[wrong[0]]}, with {np.exp(kept[wrong[0]]):.6g}. A row that is "
            "in the sample must be kept with a probability above 0 and up to 1."
        )
    return SelectedSample(
        rows=rows,
        weights=np.ones(n) if weights is None else weights,
        curve=CurveCoordinates(region, parts),
        unobserved=None if num_unobserved is None else float(num_unobserved),
        prior=prior,
    )
