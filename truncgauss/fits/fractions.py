"""Shifts and limits from the observed fractions of selected points, by maximum likelihood.

References:
    Wedderburn, "Quasi-likelihood functions, generalized linear models, and the Gauss-Newton
        method", Biometrika (1974).
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from scipy import special

from truncgauss import tables
from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.progress import reported
from truncgauss.arrays.pytrees import Estimate, check_numbers, frozen_pytree, static_field
from truncgauss.fitting import newton
from truncgauss.fitting.descent import Path
from truncgauss.fitting.engine import maximum_likelihood
from truncgauss.fitting.likelihood_fit import Ending, LikelihoodFit
from truncgauss.fitting.model import Model, arrays_of_start
from truncgauss.fitting.profile import Profile
from truncgauss.fitting.wald import estimates_at
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import Problem, as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region
from truncgauss.optimize.uncertainty import Certificate, ErrorBars
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.blocks import at_held_matrix
from truncgauss.probability.method import Method, estimate
from truncgauss.special.logspace import log1mexp
from truncgauss.special.tails import standardize
from truncgauss.words import earlier

if TYPE_CHECKING:
    from truncgauss.likelihood.observations import Observations

APART = 1e-3  # standard deviations between two solutions that are two
INDISTINCT = 1.92  # nats of log-likelihood: half of the 95 % point of chi-squared with one degree
EQUAL = 1e-8  # of the mean half-deviance: what rounding and a stopped search may leave
STATIONARY = 1e-12  # relative gradient: nothing is left to gain, also where no trial tells anything
FLAT = 1e-5  # relative gradient at which a fit may have converged
NOTHING = 1e-7  # sqrt of information a trial, in standard deviations: less than 1 in 1e14 trials
NO_DIGITS = 1e-2  # nats: rounding of the log-likelihood that hides where an interval ends
AT_INFINITY = (
    "Not converged: the optimum lies at infinity. Fractions of 0 or 1 are met the better the "
    "farther the parameters go, and bound them on one side only."
)


# ---------------------------------------------------------------- the fits


@earlier.argument("regions", "region")
@reported
def fit_shift(
    observed: Any,
    loc: Any,
    covariance: Any,
    region: Any,
    num_trials: Any = None,
    *,
    start: Mapping[str, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_starts: int = 6,
    num_steps: int = 300,
    progress: bool = True,
) -> "FractionsFit":
    """The shift of a Gaussian's mean that reproduces the observed fraction of each of k regions.

    With counts y_k out of n_k independent trials it maximises the binomial likelihood

        sum_k y_k log p_k + (n_k - y_k) log(1 - p_k),    p_k = P(X + shift in region_k);

    regions that share their trials are treated as if they did not. Fractions without trials are
    fitted by the same formula with n_k = 1, whose overall weight, hence the standard errors, then
    comes from the residuals (quasi-likelihood; it needs k greater than the number of unknowns).

    The likelihood may have several maxima, such as mirror images about the middle of an interval.
    The fit begins at several starts and at the mirror images of its best maximum: `params` is the
    best and, of equals, the nearest to 0; what the data cannot tell from it (within 1.92 nats; for
    fractions, of equal loss) is in `alternatives`.

    All options go together. Counts and fractions take every region, covariance, start and method.

    Args:
        observed: shape (k,) or a number: counts with num_trials, else fractions in [0, 1].
        loc: mean before the shift, shape (d,) or (k, d).
        covariance: (d, d), (k, d, d), or an object such as `tg.ScaleTril`.
        region: k regions, such as Box(low, high) with limits of shape (k, d); or one.
        num_trials: shape (k,) or a number.
        start: {"shift": (d,)} to begin with, as `dict(fit.parameters())`; others are tried if the
            steps from there do not converge.
        method: how probabilities are computed. Its plan and key are held in a fit.
        key: random key of a sampling method.
        num_starts: starts, the first near 0 and the others drawn around it.
        num_steps: the most steps from each start.
        progress: say on standard error what goes on, such as compiling, or how many starts were
            tried, if that takes more than a second: in one line on a terminal, else in few.

    Returns:
        FractionsFit with params and standard_errors of shape (d,). What the data cannot identify
        has an infinite standard error, and a sentence in `notes`.

    Raises:
        ValueError: for fractions outside [0, 1], counts above the trials, shapes that disagree, or
            a method that sees none of the regions from any start.

    Example:
        >>> result = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [jnp.inf]), num_trials=1000)
        >>> result.params.round(2), result.standard_errors.round(2)
        (Array([1.], dtype=float64), Array([0.05], dtype=float64))
    """
    Method.check_kind(method)
    observed, num_trials, loc = in_one_order("fit_shift", observed, num_trials, loc)
    dtype = as_problem(loc, covariance, region).loc.dtype
    with jax.enable_x64(True):
        problem = as_problem(*in_float64((loc, covariance, region)))
        fractions, trials, problem = as_fractions(observed, num_trials, problem)
        scale = np.sqrt(np.asarray(problem.covariance.variances).mean(axis=0))
        units = np.zeros_like(scale), scale
        model = ShiftModel(
            fractions, trials, *units, method, key, num_trials is not None, dtype, problem
        )
        x = None
        if start is not None:
            (shift,) = arrays_of_start("fit_shift", start, ("shift",))
            x = np.asarray(shift, float)
            if x.shape != scale.shape or not np.all(np.isfinite(x)):
                raise ValueError(
                    f"fit_shift: start must have a finite shift of shape {scale.shape}, got {x}."
                )
            x = x / scale
        return maximum_likelihood(
            model, start=x, num_starts=num_starts, num_steps=num_steps, progress=progress
        )


@reported
def fit_limits(
    observed: Any,
    loc: Any,
    covariance: Any,
    start: Mapping[str, Any],
    num_trials: Any = None,
    *,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_starts: int = 4,
    num_steps: int = 300,
    progress: bool = True,
) -> "FractionsFit":
    """The limits of a box that let the observed fraction of each of k Gaussians through.

    The likelihood and what is said of it are those of `fit_shift`; the unknowns are the finite ends
    of `start`. The infinite ones stay infinite, and low stays below high. All options go together.
    Methods are those for a `tg.Box`.

    Args:
        observed: shape (k,) or a number: counts with num_trials, else fractions in [0, 1].
        loc: means, shape (d,) or (k, d).
        covariance: (d, d), (k, d, d), or an object such as `tg.ScaleTril`.
        start: {"low": (d,), "high": (d,)}, the limits to begin with, as `dict(fit.parameters())` of
            another fit.
        num_trials: shape (k,) or a number.
        method, key, num_starts, num_steps, progress: as in `fit_shift`.

    Returns:
        FractionsFit whose params and standard_errors have `.low` and `.high`, each of shape (d,).
        The standard error of an infinite end is 0; of what the data cannot identify, inf.

    Raises:
        ValueError: as `fit_shift`, or for a start without a finite end.

    Example:
        >>> start = {"low": [-1.0], "high": [jnp.inf]}
        >>> result = tg.fit_limits([0.158655, 0.5], [[0.0], [1.0]], [[1.0]], start)
        >>> result.params.low.round(4)
        Array([1.], dtype=float64)
    """
    box: Any = start if isinstance(start, Region) and start.is_box else None  # the earlier form
    box = Box(*arrays_of_start("fit_limits", start, ("low", "high"), box and (box.low, box.high)))
    if box.batch_shape != ():
        got = f"bounds of shape {box.low.shape}"
        raise ValueError(f"fit_limits: start must have bounds of shape (d,), got {got}.")
    if not np.any(np.isfinite(box.low) | np.isfinite(box.high)):
        raise ValueError("fit_limits: start has no finite end, so there is nothing to fit.")
    Method.check_kind(method)
    observed, num_trials, loc = in_one_order("fit_limits", observed, num_trials, loc)
    dtype = as_problem(loc, covariance, box).loc.dtype
    with jax.enable_x64(True):
        problem = as_problem(*in_float64((loc, covariance, box)))
        fractions, trials, problem = as_fractions(observed, num_trials, problem)
        origin = np.asarray(problem.loc).mean(axis=0)
        scale = np.sqrt(np.asarray(problem.covariance.variances).mean(axis=0))
        matrix = problem.covariance.covariance_matrix / np.outer(scale, scale)
        box = in_float64(box)
        low, high = standardize(box.low, box.high, origin, scale)[:2]
        finite = np.isfinite(np.stack([low, high]))
        ends, coordinates = np.flatnonzero(finite), np.stack([finite.any(0), finite.all(0)])
        units = np.tile(origin, 2)[ends], np.tile(scale, 2)[ends]
        model = LimitsModel(
            fractions, trials, *units, method, key, num_trials is not None, dtype,
            (problem.loc - origin) / scale, CovarianceMatrix(matrix), Box(low, high), ends,
            np.flatnonzero(coordinates),
        )  # fmt: skip
        return maximum_likelihood(
            model, num_starts=num_starts, num_steps=num_steps, progress=progress
        )


# ---------------------------------------------------------------- the model


@frozen_pytree
class FractionsModel(Model):
    """k observed fractions whose expectations are the probabilities of Gaussians in regions.

    A subclass defines `problem(x)`, the Gaussians and regions; `standard(x)`, the estimates (p,) in
    standard deviations of the Gaussians; `params(estimates, fixed)`, these in the structure of the
    user's parameters, beside what is fixed; and `centre`, about which a mirrored x may be as
    likely, (q,), nan where there is none.

    Attributes:
        fractions: (k,).
        trials: of each fraction, (k,); 1 where they are not known.
        offset, units: estimates are offset + units * `standard(x)`, (p,).
        method, key: of the probabilities.
        counted: whether the trials are known.
        dtype: of the user's numbers.
    """

    fractions: Any
    trials: Any
    offset: Any
    units: Any
    method: Method
    key: jax.Array | None
    counted: bool = static_field()
    dtype: Any = static_field()

    problem: ClassVar[Any]
    standard: ClassVar[Any]
    params: ClassVar[Any]
    centre: ClassVar[Any]
    damping = 1.0  # of the first step, in the units of a `FractionPoint`
    rounds = 3
    no_start = (
        "The probabilities of the regions or their derivatives are not finite at any start: the "
        "method cannot see the regions from there. Use tg.Automatic(), or more samples."
    )

    def estimates(self, x: jax.Array) -> jax.Array:
        return self.offset + self.units * self.standard(x)

    def loss_at(self, x: np.ndarray) -> "FractionLoss":
        problem = self.problem(jnp.asarray(x))
        box, some_free = problem.region, False
        if not isinstance(self, LimitsModel) and box.is_box and box.dimension > 3:
            some_free = bool(np.any(np.isinf(box.low) & np.isinf(box.high)))
        key, size, method = as_key(self.key), np.sum(self.trials), self.method
        if not some_free:
            method.for_problem(problem)  # which refuses a plan of another problem
            return FractionLoss(self, at_held_matrix(method.hold(*problem)), key, size)
        # Coordinates of fixed boxes that have no limits are better left out: boxes are rows of
        # intervals, and one with one limited coordinate is an integral in one dimension.
        from truncgauss import likelihood  # which regions with limits everywhere do not need

        boxes = likelihood.Observations(box.low, box.high)
        held = likelihood.hold(method, boxes, problem.loc, problem.covariance)
        return FractionLoss(self, held, key, size, boxes)

    def points(self, loss: Any) -> Callable[[np.ndarray], "FractionPoint"]:
        return functools.partial(point, loss)

    def images(self, x: np.ndarray) -> list[np.ndarray]:
        """Every set of up to four coordinates mirrored; of more, each and all."""
        mirrored = np.flatnonzero(~np.isnan(self.centre))
        sizes = range(1, len(mirrored) + 1) if len(mirrored) <= 4 else (1, len(mirrored))
        subsets = (part for size in sizes for part in itertools.combinations(mirrored, size))
        chosen = (np.isin(np.arange(len(x)), subset) for subset in subsets)
        return [np.where(flip, 2 * self.centre - x, x) for flip in chosen]

    def rank(self, path: Path) -> tuple[Any, ...]:
        """Lower for a lower loss; of equal ones for the nearest to zero, then the positive one."""
        loss, vector = path.end.loss, self.standardized(path)
        loss = round(loss / EQUAL) if path.end.finite else np.inf
        return loss, round(float(np.linalg.norm(vector)), 6), tuple(-np.round(vector, 6))

    def standardized(self, path: Path) -> np.ndarray:
        """The estimates where a path ended, in standard deviations."""
        estimates = np.asarray(estimates_at(self, path.end.x)[0])
        return (estimates - np.asarray(self.offset)) / np.asarray(self.units)

    # ------------------------------------------------------------ the end of a path

    def is_endless(self, x: np.ndarray) -> bool:
        """Whether a step of one standard deviation from the end still lowers the loss.

        Only fractions of 0 or 1 can push that far. The slope itself tells nothing, since it
        vanishes at infinity as it does at an optimum.
        """
        fractions = np.asarray(self.fractions)
        if np.all((fractions > 0) & (fractions < 1)):
            return False
        evaluate = self.points(self.loss_at(x))
        end = evaluate(x)
        if not end.finite or end.loss == 0:  # met to the last digit: only beyond every tail
            return end.finite and bool(np.any(x != 0))
        slope = float(np.linalg.norm(end.gradient))
        partly = np.any(fractions * (1 - fractions) != 0)
        noise = 8 * np.finfo(float).eps * (1.0 if partly else end.loss)
        steps = [side * unit for unit in np.eye(len(x)) for side in (1.0, -1.0)]
        steps += [-end.gradient / slope] if slope > 0 else []
        steps += self.outward(x)
        return any(
            end.loss - evaluate(x + step).loss > 0.01 * abs(float(end.gradient @ step)) + noise
            for step in steps
        )

    def outward(self, x: np.ndarray) -> list[np.ndarray]:
        """Further steps of one standard deviation, which only some coordinates take together."""
        return []

    def obstacle(self, path: Path) -> str | None:
        return AT_INFINITY if path.endless else None

    def is_optimum(self, path: Path) -> bool:
        """Whether a path ended at an optimum, along which there may be others."""
        last: Any = path.end
        close = (
            last.decrement * float(path.loss.size) ** 0.5 <= newton.CLOSE
            and last.relative_gradient <= FLAT
        )
        return bool(last.finite and close and np.isfinite(last.noise) and not path.endless)

    def ending(self, path: Path, proof: Certificate, obstacle: str | None) -> tuple[bool, str]:
        if np.isinf(proof.stderr) or obstacle is not None:
            return super().ending(path, proof, obstacle)
        last: Any = path.end
        converged = self.is_optimum(path)
        verdict = f"Converged after {len(path.visited) - 1} steps" if converged else "Not converged"
        return converged, (
            f"{verdict}: the relative gradient is {last.relative_gradient:.1e}, the optimum "
            f"{last.decrement * float(path.loss.size) ** 0.5:.1e} standard errors away by estimate."
        ) + ("" if converged else " Allow more num_steps.")

    def total(self, path: Path) -> Estimate:
        """The log-likelihood of the trials, one by one; nan where their number is not known."""
        last: Any = path.end
        size, f = float(path.loss.size), self.fractions
        highest = np.sum(self.trials * (special.xlogy(f, f) + special.xlogy(1.0 - f, 1.0 - f)))
        value = highest - size * last.loss if self.counted else np.nan
        return Estimate(jnp.asarray(value), jnp.asarray(size * last.noise))

    def wald_coverages(self, path: Path, *arguments: Any) -> tuple[np.ndarray, tuple[str, ...]]:
        return np.zeros(0), ()

    # ------------------------------------------------------------ the fit

    def result(self, ending: Ending, path: Path) -> "FractionsFit":
        jacobian = np.asarray(estimates_at(self, path.end.x)[1])
        bars = ending.free_errors.of(jacobian)
        others = self.alternatives(path, bars)
        notes = self.notes_of(path, jacobian, bars, others)
        # The curvature is that of the expected information.
        ending = dataclasses.replace(ending, information="expected", notes=notes)
        if not self.counted:  # in units of the residuals
            spare = len(self.fractions) - bars.rank
            dispersion = self.chi_squared(path) / spare if spare > 0 else np.nan
            scaled: Any = lambda array, factor: np.where(np.isinf(array), array, array * factor)
            factor = ending.free_errors.factor / jnp.asarray(dispersion**0.5)
            with np.errstate(divide="ignore"):  # where all residuals are 0
                size = np.divide(ending.loss.size, dispersion)
            ending = dataclasses.replace(
                ending,
                errors=scaled(ending.errors, dispersion**0.5),
                parameter_covariance=scaled(ending.parameter_covariance, dispersion),
                free_errors=ending.free_errors._replace(factor=factor),
                loss=dataclasses.replace(ending.loss, size=size),
            )
        return FractionsFit(
            **vars(ending),
            params=self.params(ending.estimates, np.inf),
            standard_errors=self.params(ending.errors, 0.0),
            alternatives=tuple(
                self.params(estimates_at(self, other.end.x)[0], np.inf) for other in others
            ),
            gradient_norm_trace=np.array([np.linalg.norm(p.gradient) for p in path.visited]),
        )

    def alternatives(self, best: Path, bars: ErrorBars) -> list[Path]:
        """Paths to other parameters where the data could tell, which fit as well."""
        if best.endless or not bars.identified.any():
            return []
        allowed = EQUAL + (INDISTINCT / float(best.loss.size) if self.counted else 0.0)
        distinct = [best]

        def apart(one: Path, other: Path) -> float:
            steps = self.standardized(one) - self.standardized(other)
            return float(np.max(np.abs(steps)[bars.identified]))

        for other in sorted(best.others, key=self.rank):
            close = self.is_optimum(other) and other.end.loss - best.end.loss <= allowed
            if close and all(apart(other, old) > APART for old in distinct):
                distinct.append(other)
        return distinct[1:]

    def chi_squared(self, path: Path) -> float:
        last: Any = path.end
        p = np.exp(last.log_prob)
        squares = np.asarray(self.trials * (self.fractions - p) ** 2)
        variance = np.maximum(p * -np.expm1(last.log_prob), 1e-300)
        return float(np.sum(np.where(squares > 0, squares / variance, 0.0)))

    def notes_of(
        self, path: Path, jacobian: np.ndarray, bars: ErrorBars, others: list[Path]
    ) -> tuple[str, ...]:
        """Sentences on estimates that are not identified or explained, and what else fits."""
        notes, k = [], len(self.fractions)
        unknown = [name for name, known in zip(self.names, bars.identified) if not known]
        if unknown and not path.endless:
            notes.append(
                f"The data do not identify {', '.join(unknown)}: {k} fraction(s) determine "
                f"{bars.rank} of {bars.num_free} unknown(s). What is returned is one of many that "
                "fit as well."
            )
        if others:
            gap = max(other.end.loss for other in others) - path.end.loss
            notes.append(
                f"{len(others)} other solution(s) fit as well (log-likelihood within "
                f"{gap * float(path.loss.size):.1g}): see alternatives. Say beforehand which "
                "one is meant, or observe another region."
            )
        spare = k - bars.rank
        if not self.counted:
            if spare <= 0 and not path.endless:
                notes.append(
                    f"{k} fraction(s) for {bars.rank} unknown(s) leave no residuals, so the "
                    "standard errors are unknown (nan). Give num_trials."
                )
            return tuple(notes)
        if spare > 0:
            chi_squared = self.chi_squared(path)
            chance = float(jax.scipy.special.gammaincc(spare / 2, chi_squared / 2))
            if not chance >= 1e-3:
                notes.append(
                    f"The counts are not explained: chi-squared is {chi_squared:.1f} for {spare} "
                    f"degree(s) of freedom (chance {chance:.1g}). The standard errors do not cover "
                    "that."
                )
        # The method's own error: with H x = factor^T sqrt(weight) d(log p), an error of log p moves
        # the optimum like a residual.
        last: Any = path.end
        known = bars.identified
        if known.any() and np.any(last.stderr > 0) and not np.any(np.isinf(last.stderr)):
            # Each row of the factor is sqrt(w p / (1 - p)) d log p.
            odds = np.exp(last.log_prob) / np.maximum(-np.expm1(last.log_prob), 1e-300)
            roots = np.sqrt(np.asarray(self.trials) / float(path.loss.size) * odds)
            moves = np.linalg.pinv(last.factor, rcond=1e-8) * roots * last.stderr
            parts = np.linalg.norm(jacobian @ moves, axis=1)[known] / bars.standard_errors[known]
            if parts.max() > 0.1:
                notes.append(
                    f"The method's own sampling error moves the result by about {parts.max():.1g} "
                    "standard errors: give it more points."
                )
        return tuple(notes)


@frozen_pytree
class ShiftModel(FractionsModel):
    """k regions seen through one Gaussian, whose mean is shifted by x standard deviations."""

    unshifted: Problem
    names_of_start = ("shift",)

    def arrays(self, estimates: Any) -> dict[str, Any]:
        return {"shift": estimates}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"shift[{j}]" for j in range(len(self.units)))

    def problem(self, x: jax.Array) -> Problem:
        return self.unshifted._replace(loc=self.unshifted.loc + x * self.units)

    def standard(self, x: jax.Array) -> jax.Array:
        return x

    def params(self, estimates: Any, fixed: float) -> jax.Array:
        return jnp.asarray(estimates, self.dtype)

    def starts(self, count: int | None) -> list[np.ndarray]:
        d, first = len(self.units), 0.1 * 0.9 ** np.arange(len(self.units))
        if count is None or count == 1:
            return [first]
        return [first, *(1.5 * np.random.default_rng(1).normal(size=(count - 1, d)))]

    @property
    def centre(self) -> np.ndarray:
        middle = np.asarray(self.unshifted.region.middle)  # about which it may be symmetric
        gaps = middle - np.asarray(self.unshifted.loc)
        known = ~np.isnan(gaps)
        sums = np.sum(np.where(known, gaps, 0.0), axis=0)
        counts = np.maximum(known.sum(axis=0), 1)
        return np.where(known.any(axis=0), sums / counts, np.nan) / self.units


@frozen_pytree
class LimitsModel(FractionsModel):
    """k Gaussians, in standard units, seen through one box; x are the middles of its limits, and
    the logarithms of their distances, as far as ends are finite.

    Attributes:
        loc, covariance: of the Gaussians, (k, d) and (k, d, d).
        start: the box to begin with.
        ends: which of low (d,) and high (d,) are finite, (p,).
        moving: which of the middles (d,) and log distances (d,) are free, (q,).
    """

    loc: jax.Array
    covariance: Covariance
    start: Box
    ends: Any
    moving: Any
    names_of_start = ("low", "high")

    def arrays(self, estimates: Any) -> dict[str, Any]:
        held = jnp.repeat(jnp.array([-jnp.inf, jnp.inf]), self.start.dimension)
        return dict(zip(self.names_of_start, jnp.split(held.at[self.ends].set(estimates), 2)))

    @property
    def names(self) -> tuple[str, ...]:
        d = self.start.dimension
        return tuple(f"{'high' if j >= d else 'low'}[{j % d}]" for j in map(int, self.ends))

    def limits(self, x: jax.Array) -> dict[str, jax.Array]:
        """Both ends, each (d,)."""
        values = jnp.zeros(2 * self.start.dimension).at[self.moving].set(x)
        middle, log_width = jnp.split(values, 2)
        low, high = self.start.low, self.start.high
        finite = jnp.isfinite(high - low)
        half = jnp.where(finite, jnp.exp(log_width) / 2, 0.0)
        return {
            "low": jnp.where(jnp.isfinite(low), middle - half, low),
            "high": jnp.where(jnp.isfinite(high), middle + half, high),
        }

    def problem(self, x: jax.Array) -> Problem:
        limits = self.limits(x)  # which rounding may make equal, on the way to infinity
        return Problem(self.loc, self.covariance, self.unchecked(limits["low"], limits["high"]))

    def unchecked(self, *limits: jax.Array) -> Box:
        """A box of low and high in any order."""
        return jax.tree.unflatten(jax.tree.structure(self.start), limits)

    def standard(self, x: jax.Array) -> jax.Array:
        limits = self.limits(x)
        return jnp.concatenate([limits["low"], limits["high"]])[self.ends]

    def params(self, estimates: Any, fixed: float) -> Box:
        values = 0.0 + fixed * np.repeat([-1.0, 1.0], self.start.dimension)
        values[np.asarray(self.ends)] = estimates
        leaves = [jnp.asarray(part, self.dtype) for part in np.split(values, 2)]
        return self.unchecked(*leaves)  # errors need no order

    def starts(self, count: int | None) -> list[np.ndarray]:
        count, moving = count or 1, np.asarray(self.moving)
        first = middle_and_width(self.start.low, self.start.high)
        noise = np.random.default_rng(1).normal(size=(count - 1, self.start.dimension))
        return [first[moving], *((first + 0.5 * np.tile(each, 2))[moving] for each in noise)]

    def outward(self, x: np.ndarray) -> list[np.ndarray]:
        """One limit by itself, which moves the middle and the width."""
        limits, steps = self.limits(jnp.asarray(x)), []
        for j in self.ends:
            moved = np.array([limits["low"], limits["high"]])
            moved.flat[j] += 1.0 if j >= self.start.dimension else -1.0
            steps.append(middle_and_width(*moved)[np.asarray(self.moving)] - x)
        return steps

    @property
    def centre(self) -> np.ndarray:
        both = np.isfinite(self.start.low) & np.isfinite(self.start.high)
        middles = np.append(both, np.zeros(len(both), bool))
        return np.where(middles, 0.0, np.nan)[np.asarray(self.moving)]


def middle_and_width(low: Any, high: Any) -> np.ndarray:
    """The middles of limits (d,) and the logs of their distances, (2 d,), in which fits move; a
    single limit is its own middle, and none is at 0."""
    low, high = np.asarray(low), np.asarray(high)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    either = np.where(has_low, low, np.where(has_high, high, 0.0))
    both = has_low & has_high
    other = np.where(both, high, either)
    return np.concatenate([(either + other) / 2, np.log(np.where(both, other - either, 1.0))])


# ---------------------------------------------------------------- the likelihood


@frozen_pytree
class FractionLoss(newton.Loss):
    """The mean half-deviance of k observed fractions f_k with weights w_k that sum to 1,

        sum_k w_k [ f_k log(f_k / p_k) + (1 - f_k) log((1 - f_k) / (1 - p_k)) ],

    which for counts out of n_k trials is, up to a constant, the negative binomial log-likelihood
    over the number of trials. It is 0 where the fractions are met.

    Attributes:
        model: with the fractions.
        method, key: of the probabilities, with the plan held.
        size: the number of trials; by the dispersion, where that is estimated.
        boxes: the regions as rows of intervals, if their probabilities are likelihoods.
    """

    model: FractionsModel
    method: Method
    key: jax.Array
    size: Any
    boxes: "Observations | None" = None

    @property
    def weights(self) -> jax.Array:
        return self.model.trials / jnp.sum(self.model.trials)

    def of(self, log_prob: jax.Array) -> jax.Array:
        """The loss of k log probabilities."""
        inside, outside = self.model.fractions, 1.0 - self.model.fractions
        entropy = xlogy(inside, inside) + xlogy(outside, outside)
        seen = jnp.where(inside > 0, log_prob, 0.0)
        unseen = log1mexp(-jnp.where(outside > 0, log_prob, -1.0))
        return self.weights @ (entropy - inside * seen - outside * unseen)

    def probabilities(self, x: jax.Array) -> Estimate:
        """The log probabilities (k,) and their errors."""
        problem = self.model.problem(x)
        if self.boxes is None:
            return estimate(self.method, problem, self.key)
        from truncgauss import likelihood

        rows = self.boxes, problem.loc, problem.covariance
        return likelihood.log_likelihood(*rows, self.method, self.key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.of(self.probabilities(x).log_prob)


@dataclasses.dataclass(frozen=True)
class FractionPoint(newton.Point):
    """A loss of fractions at free coordinates x; its curvature is Fisher's.

    Attributes, besides those of `newton.Point`:
        factor: (k, q) with factor.T @ factor the expected Hessian, 0 where that tells nothing, as
            at the top of a probability.
        log_prob: (k,).
        stderr: (k,).
        pull: (k,), d loss / d log_prob.
    """

    factor: np.ndarray
    log_prob: np.ndarray
    stderr: np.ndarray
    pull: np.ndarray

    @property
    def units(self) -> np.ndarray:
        """One standard deviation. Far out in a tail the curvature says nothing; that of a log
        probability of a Gaussian is at most 1 there."""
        return np.ones_like(self.x)

    @property
    def noise(self) -> float:
        """The standard error of the loss; inf if it depends on a probability whose estimate has no
        effective samples."""
        return float(np.abs(self.pull) @ np.where(self.pull != 0, self.stderr, 0.0))

    @property
    def relative_gradient(self) -> float:
        return float(np.max(np.abs(self.gradient) * np.maximum(np.abs(self.x), 1.0), initial=0.0))

    @property
    def decrement(self) -> float:
        """Newton's, where the fractions tell of all coordinates; at least the gradient."""
        return max(super().decrement, self.relative_gradient)

    @property
    def settled(self) -> bool:
        return self.relative_gradient <= STATIONARY or super().settled


@Compiled
def derivatives(loss: FractionLoss, x: jax.Array) -> tuple[jax.Array, ...]:
    """The parts of a `FractionPoint`, by one forward pass for each free coordinate."""

    def with_value(x: jax.Array) -> tuple[jax.Array, Estimate]:
        estimate = loss.probabilities(x)
        return estimate.log_prob, estimate

    jacobian, estimate = jax.jacfwd(with_value, has_aux=True)(x)
    value, pull = jax.value_and_grad(loss.of)(estimate.log_prob)
    # p / (1 - p), and 0 where p is 1 to the last digit: nothing moves there.
    log_odds = estimate.log_prob - log1mexp(-estimate.log_prob)
    odds = jnp.where(estimate.log_prob < 0, jnp.exp(log_odds), 0.0)
    factor = jnp.sqrt(loss.weights * odds)[:, None] * jacobian
    factor = jnp.where(jnp.linalg.norm(factor, axis=0) <= NOTHING, 0.0, factor)
    gradient, hessian = pull @ jacobian, factor.T @ factor
    return value, gradient, hessian, factor, estimate.log_prob, estimate.stderr, pull


def point(loss: FractionLoss, x: np.ndarray) -> FractionPoint:
    value, *parts = map(np.asarray, derivatives(loss, x))
    return FractionPoint(np.asarray(x), float(value), *parts)


# ---------------------------------------------------------------- the result


@dataclasses.dataclass(frozen=True, kw_only=True)
class FractionsFit(LikelihoodFit):
    """A shift or limits that explain observed fractions.

    Without `num_trials` the log-likelihood is not known (nan), and errors and profiles are those of
    a quasi-likelihood, whose weight comes from the residuals.

    Attributes, besides those of `LikelihoodFit`:
        params: the shift (d,), or the limits, a Box.
        standard_errors: in the structure of params. inf: the data do not identify it. nan: unknown.
            0: it was held fixed, as an infinite end.
        alternatives: other solutions which the data cannot tell from params.
        loss_trace: the mean half-deviance of a trial, 0 where the fractions are met.
        gradient_norm_trace: the Euclidean norm of its gradient at every step.
    """

    params: Any
    alternatives: tuple[Any, ...]
    gradient_norm_trace: np.ndarray

    @property
    def names_of_start(self) -> tuple[str, ...]:
        return self.coordinates.names_of_start

    @property
    def array_constants(self) -> Any:
        return getattr(self.coordinates, "start", ())

    def arrays_of(self, estimates: Any) -> dict[str, Any]:
        return self.coordinates.arrays(estimates)

    @property
    def gradient_norm(self) -> float:
        """The Euclidean norm of the loss's gradient in free coordinates."""
        return float(self.gradient_norm_trace[-1])

    def profile_along(self, number: int, function: Any = None) -> Profile:
        if not np.all(np.isfinite(self.errors)):
            raise ValueError(
                "profile: needs finite standard errors of all estimates, got "
                f"{dict(zip(self.names, self.errors.tolist()))}. {' '.join(self.notes)}"
            )
        if float(self.loss.size) * np.finfo(float).eps > NO_DIGITS:
            raise ValueError(
                "profile: the fractions are met to rounding, so that no digit of the likelihood is "
                "left to compare. Take wald(), or give num_trials."
            )
        points = functools.partial(point, self.loss)  # by the program of the fit
        return dataclasses.replace(super().profile_along(number, function), cheaper=lambda: points)


# ---------------------------------------------------------------- inputs


def in_one_order(what: str, observed: Any, num_trials: Any, loc: Any) -> tuple[Any, ...]:
    """The arguments that may have a value for each region, by its label."""
    each = {"loc": loc} if np.ndim(loc) == 2 else {}
    rows = tables.in_one_order(what, observed=observed, num_trials=num_trials, **each)
    return (*rows[:2], rows[2] if each else loc)


def as_fractions(
    observed: Any, num_trials: Any, problem: Problem
) -> tuple[np.ndarray, np.ndarray, Problem]:
    """Fractions and trials (k,), 1 if they are not known, and the problem with leading axis k.

    Raises:
        ValueError: see `fit_shift`.
    """
    check_numbers(observed, "observed")
    check_numbers(num_trials, "num_trials")
    observed = np.asarray(observed, np.float64)
    if observed.ndim > 1 or observed.size == 0:
        raise ValueError(f"observed must have shape (k,), or be a number; got {observed.shape}.")
    k = max(observed.size, *problem.batch_shape, 1)
    if observed.shape not in ((), (k,)) or problem.batch_shape not in ((), (1,), (k,)):
        wanted = " x ".join(map(str, problem.batch_shape))
        raise ValueError(
            f"observed has {observed.size} value(s), but loc, covariance and region are of "
            f"{wanted}: give one value for each, along one axis."
        )
    observed, trials = np.broadcast_to(observed, (k,)), np.ones(k)
    if num_trials is not None:
        trials = np.asarray(num_trials, np.float64)
        if trials.shape not in ((), (k,)) or not np.all(trials > 0):
            raise ValueError(f"num_trials must be positive, one or {k} of them; got {num_trials}.")
        trials = np.broadcast_to(trials, (k,))
        if np.all(observed <= 1) and np.any(observed != np.round(observed)):
            raise ValueError(
                f"observed holds fractions, {observed}, but num_trials asks for counts: give "
                "counts, such as fractions * num_trials."
            )
    wrong = np.flatnonzero(~((observed >= 0) & (observed <= trials)))
    if len(wrong):
        counted = num_trials is not None
        kind = "counts" if counted else "fractions in [0, 1] (for counts, give num_trials)"
        raise ValueError(
            f"observed must be {kind} between 0 and the number of trials; {len(wrong)} of {k} are "
            f"not, first {observed[wrong[0]]} at index {wrong[0]}."
        )
    loc = jnp.broadcast_to(problem.loc, (k, problem.loc.shape[-1]))
    rows = Problem(loc, problem.covariance.broadcast_to((k,)), problem.region.broadcast_to((k,)))
    return observed / trials, trials, rows


def in_float64(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)
