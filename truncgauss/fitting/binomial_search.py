"""The loss of observed fractions, and a search of its minima from several starts.

References:
    Levenberg (1944), A method for the solution of certain non-linear problems in least squares.
    Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import xlogy

from truncgauss.execution.checkpoint import computed
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.fitting.held import Held, HeldLimited
from truncgauss.fitting.optimization import newton
from truncgauss.fitting.optimization.parameters import Constraint, Coordinates, coordinates
from truncgauss.fitting.optimization.progress import bar
from truncgauss.fitting.optimization.result import BASELESS, FitResult
from truncgauss.fitting.optimization.uncertainty import (
    Certificate,
    ErrorBars,
    certificate,
    error_bars,
)
from truncgauss.gaussian.problem import Estimate
from truncgauss.special import log1mexp

ROUNDS = 3  # how often the method's plan is made anew
APART = 1e-3  # standard deviations between two solutions that are two
INDISTINCT = 1.92  # nats of log-likelihood: half of the 95 % point of chi-squared with one degree
EQUAL = 1e-8  # of the mean half-deviance: what rounding and a stopped search may leave
STATIONARY = 1e-12  # relative gradient: nothing is left to gain, also where no trial tells anything
FLAT = 1e-5  # relative gradient at which a fit may have converged
NOTHING = 1e-7  # sqrt of information a trial, in standard deviations: less than 1 in 1e14 trials


@frozen_pytree
class FractionLoss:
    """The mean half-deviance of k observed fractions f_k with weights w_k that sum to 1,

        sum_k w_k [ f_k log(f_k / p_k) + (1 - f_k) log((1 - f_k) / (1 - p_k)) ],

    which for counts out of n_k trials is, up to a constant, the negative binomial log-likelihood
    over the number of trials. It is 0 where the fractions are met. `problem` says what the
    parameters are: `ShiftProblem` or `LimitsProblem`.
    """

    problem: Any
    fractions: jax.Array
    weights: jax.Array
    held: Held | HeldLimited

    def log_probs(self, params: Any) -> Estimate:
        """The estimated log probabilities of the k fractions."""
        return self.held.estimate(self.problem.rows(params))

    def of(self, log_prob: jax.Array) -> jax.Array:
        """The loss of k log probabilities."""
        inside, outside = self.fractions, 1.0 - self.fractions
        entropy = xlogy(inside, inside) + xlogy(outside, outside)
        seen = jnp.where(inside > 0, log_prob, 0.0)
        unseen = log1mexp(-jnp.where(outside > 0, log_prob, -1.0))
        return self.weights @ (entropy - inside * seen - outside * unseen)

    def __call__(self, params: Any) -> jax.Array:
        return self.of(self.log_probs(params).log_prob)


@frozen_pytree
class Flat:
    """A loss of the flat vector of its free coordinates."""

    loss: FractionLoss
    place: Coordinates

    def params(self, x: jax.Array) -> Any:
        return self.place.params(ravel_pytree(self.place.free(self.place.start))[1](x))


@dataclasses.dataclass(frozen=True)
class FractionPoint(newton.Point):
    """Everything that is known of a loss at free coordinates x; its curvature is Fisher's.

    Attributes, besides those of `newton.Point`:
        factor: (k, q) with factor.T @ factor the expected Hessian.
        log_prob: (k,).
        stderr: (k,).
        pull: (k,), d loss / d log_prob.
        params: (p, q), d params, flattened.
    """

    factor: np.ndarray
    log_prob: np.ndarray
    stderr: np.ndarray
    pull: np.ndarray
    params: np.ndarray

    @property
    def units(self) -> np.ndarray:
        """One standard deviation. Far out in a tail the curvature says nothing; that of a log
        probability of a Gaussian is at most 1 there."""
        return np.ones_like(self.x)

    @property
    def baseless(self) -> bool:
        """Whether the loss hangs on a probability whose estimate has no effective samples."""
        return bool(np.any(np.isinf(self.stderr) & (self.pull != 0)))

    @property
    def relative_gradient(self) -> float:
        return float(np.max(np.abs(self.gradient) * np.maximum(np.abs(self.x), 1.0), initial=0.0))

    @property
    def decrement(self) -> float:
        """sqrt(g . H^-1 g) in the directions that the fractions determine."""
        return float(np.linalg.norm(np.linalg.pinv(self.informative.T, rcond=1e-8) @ self.gradient))

    @property
    def settled(self) -> bool:
        return max(self.relative_gradient, self.decrement) <= newton.SETTLED

    @property
    def informative(self) -> np.ndarray:
        """`factor` without what tells nothing, as at the top of a probability."""
        return self.factor * (np.linalg.norm(self.factor, axis=0) > NOTHING)


@jax.jit
def derivatives(flat: Flat, x: jax.Array) -> tuple[jax.Array, ...]:
    """What `Point` needs. One forward pass for each free coordinate gives all of it."""

    def with_value(x: jax.Array) -> tuple[jax.Array, Estimate]:
        estimate = flat.loss.log_probs(flat.params(x))
        return estimate.log_prob, estimate

    jacobian, estimate = jax.jacfwd(with_value, has_aux=True)(x)
    loss, pull = jax.value_and_grad(flat.loss.of)(estimate.log_prob)
    # p / (1 - p), and 0 where p is 1 to the last digit: nothing moves there.
    log_odds = estimate.log_prob - log1mexp(-estimate.log_prob)
    odds = jnp.where(estimate.log_prob < 0, jnp.exp(log_odds), 0.0)
    factor = jnp.sqrt(flat.loss.weights * odds)[:, None] * jacobian
    params = jax.jacfwd(lambda x: ravel_pytree(flat.params(x))[0])(x)
    gradient, hessian = pull @ jacobian, factor.T @ factor
    return loss, gradient, hessian, factor, estimate.log_prob, estimate.stderr, pull, params


def point(flat: Flat, x: np.ndarray) -> FractionPoint:
    loss, *parts = map(np.asarray, computed("fractions", derivatives, flat, jnp.asarray(x)))
    return FractionPoint(np.asarray(x), float(loss), *parts)


class Solution(NamedTuple):
    """A local optimum of a search from one start."""

    params: Any
    point: FractionPoint
    visited: list[FractionPoint]
    endless: np.ndarray  # (q,) free coordinates in which there is no end to the improvement
    converged: bool


@dataclasses.dataclass(frozen=True)
class FractionSearch:
    """A search for the parameters that explain k fractions.

    Args:
        loss_at: params -> the loss, with the method's plan made there.
        constraints: of the parameters.
        mirror_images: params -> list of parameters to begin from again.
        trials: number of trials of each fraction (k,), or None.
        names: what to call each entry of the flattened parameters, (p,).
        num_steps: the most steps from each start.
        progress: see `optimization.progress.bar`; one tick for each start.
    """

    loss_at: Callable[[Any], FractionLoss]
    constraints: Constraint | None
    mirror_images: Callable[[Any], list[Any]]
    trials: np.ndarray | None
    names: list[str]
    num_steps: int
    progress: bool

    def result(self, starts: list[Any]) -> FitResult:
        """The best solution with its error bars, its equals and its certificate."""
        found = [self.solution(start) for start in bar(starts, "starts", self.progress)]
        best = min(found, key=order)
        if not best.endless.any():
            found += [self.solution(image) for image in self.mirror_images(best.params)]
            best = min(found, key=order)
        fractions = np.asarray(self.loss_at(best.params).fractions)
        bars = self.bars(fractions, best)
        others = self.alternatives(best, found, bars)
        return FitResult(
            params=best.params,
            loss=best.point.loss,
            gradient_norm=float(np.linalg.norm(best.point.gradient)),
            loss_trace=np.array([p.loss for p in best.visited]),
            gradient_norm_trace=np.array([np.linalg.norm(p.gradient) for p in best.visited]),
            num_steps=len(best.visited) - 1,
            converged=best.converged,
            reason=self.reason(best, fractions),
            standard_errors=ravel_pytree(best.params)[1](jnp.asarray(bars.standard_errors)),
            parameter_covariance=bars.covariance,
            certificate=self.certificate(best, fractions),
            alternatives=tuple(other.params for other in others),
            notes=self.notes(best, bars, others, fractions),
        )

    def solution(self, start: Any) -> Solution:
        """The optimum that a search from one start ends in."""
        place = coordinates(start, self.constraints)
        params: Any = start
        visited: list[FractionPoint] = []
        for _ in range(ROUNDS):
            before, flat = params, Flat(self.loss_at(params), place)
            evaluate = functools.partial(point, flat)
            here = evaluate(np.asarray(ravel_pytree(place.free(params))[0]))
            stop = lambda here: here.relative_gradient <= STATIONARY
            path = [here, *newton.newton_steps(evaluate, here, self.num_steps, 1.0, stop)]
            visited += path[bool(visited) :]
            params = flat.params(jnp.asarray(path[-1].x))
            if not flat.loss.held.planned or apart(before, params) < APART:
                break
        last = path[-1]
        endless = endless_directions(flat, last)
        n = self.sizes(np.asarray(flat.loss.fractions)).sum()
        near = last.decrement * n**0.5 <= newton.CLOSE and last.relative_gradient <= FLAT
        sound = last.finite and not last.baseless
        return Solution(params, last, visited, endless, sound and near and not endless.any())

    def bars(self, fractions: np.ndarray, best: Solution) -> ErrorBars:
        """Error bars from Fisher's information, in units of the residuals if trials are unknown."""
        n, last = self.sizes(fractions).sum(), best.point
        bars = error_bars(last.informative * n**0.5, last.params)
        if self.trials is None:
            bars = dispersed(bars, fractions, last.log_prob)
        boundless = np.any(last.params[:, best.endless] != 0, axis=1)
        return bars._replace(standard_errors=np.where(boundless, np.inf, bars.standard_errors))

    def sizes(self, fractions: np.ndarray) -> np.ndarray:
        return np.ones_like(fractions) if self.trials is None else self.trials

    def certificate(self, best: Solution, fractions: np.ndarray) -> Certificate:
        """The certificate of the whole sample's log-likelihood in free coordinates that matter."""
        last, n = best.point, float(self.sizes(fractions).sum())
        moving = np.any(last.params != 0, axis=0)
        factor = last.informative[:, moving] * n**0.5
        stderr = n * float(np.abs(last.pull) @ np.where(last.pull != 0, last.stderr, 0.0))
        return certificate(n * last.gradient[moving], factor.T @ factor, stderr)

    def alternatives(
        self, best: Solution, found: list[Solution], bars: ErrorBars
    ) -> list[Solution]:
        """Solutions that differ from the best where the data could tell, and fit as well."""
        if best.endless.any() or not bars.identified.any():
            return []
        allowed = EQUAL if self.trials is None else EQUAL + INDISTINCT / self.trials.sum()
        distinct = [best]
        for other in sorted(found, key=order):
            close = other.converged and other.point.loss - best.point.loss <= allowed
            new = all(apart(other.params, old.params, bars.identified) > APART for old in distinct)
            if close and new:
                distinct.append(other)
        return distinct[1:]

    def reason(self, best: Solution, fractions: np.ndarray) -> str:
        last, steps = best.point, len(best.visited) - 1
        if best.endless.any():
            return (
                "Not converged: the optimum lies at infinity. Fractions of 0 or 1 are met the "
                "better the farther the parameters go, and bound them on one side only."
            )
        if not last.finite:
            return (
                f"Not converged: the loss is {last.loss} at the start. The method cannot see the "
                "regions from there; use tg.Automatic(), or more samples."
            )
        if last.baseless:
            return BASELESS
        distance = last.decrement * float(self.sizes(fractions).sum()) ** 0.5
        where = (
            f"the relative gradient is {last.relative_gradient:.1e}, the optimum {distance:.1e} "
            "standard errors away by estimate"
        )
        verdict = f"Converged after {steps} steps" if best.converged else "Not converged"
        return f"{verdict}: {where}." + ("" if best.converged else " Allow more num_steps.")

    def notes(
        self, best: Solution, bars: ErrorBars, others: list[Solution], fractions: np.ndarray
    ) -> tuple[str, ...]:
        """What a reader of the numbers must know."""
        notes, k, last = [], len(fractions), best.point
        unknown = [name for name, known in zip(self.names, bars.identified) if not known]
        if unknown and not best.endless.any():
            notes.append(
                f"The data do not identify {', '.join(unknown)}: {k} fraction(s) determine "
                f"{bars.rank} of {bars.num_free} unknown(s). What is returned is one of many that "
                "fit as well."
            )
        if others:
            gap = max(other.point.loss for other in others) - last.loss
            notes.append(
                f"{len(others)} other solution(s) fit as well (log-likelihood within "
                f"{gap * self.sizes(fractions).sum():.1g}): see alternatives. Say beforehand which "
                "one is meant, or observe another region."
            )
        if self.trials is None and k <= bars.rank and not best.endless.any():
            notes.append(
                f"{k} fraction(s) for {bars.rank} unknown(s) leave no residuals, so the standard "
                "errors are unknown (nan). Give num_trials."
            )
        if self.trials is not None:
            notes += misfit(fractions, last.log_prob, self.trials, k - bars.rank)
            notes += sampling(last, bars, self.trials)
        return tuple(notes)


def order(solution: Solution) -> tuple[Any, ...]:
    """Best first: a lower loss, then nearer to zero, then the positive one."""
    loss = solution.point.loss
    vector = np.nan_to_num(ravel_pytree(solution.params)[0], posinf=0.0, neginf=0.0)
    size = float(np.linalg.norm(vector))
    loss = round(loss / EQUAL) if np.isfinite(loss) else np.inf
    return loss, round(size, 6), tuple(-np.round(vector, 6))


def apart(params: Any, other: Any, entries: Any = slice(None)) -> float:
    """The largest distance between entries of two parameter trees, equal infinities being 0."""
    a, b = (np.asarray(ravel_pytree(tree)[0])[entries] for tree in (params, other))
    same = a == b
    return float(np.max(np.abs(np.where(same, 0.0, a) - np.where(same, 0.0, b)), initial=0.0))


def endless_directions(flat: Flat, here: FractionPoint) -> np.ndarray:
    """Free coordinates (q,) along which a step of one standard deviation still lowers the loss.

    Only fractions of 0 or 1 can push that far: a fraction between has its place. The slope itself
    tells nothing, since it vanishes at infinity as it does at an optimum.
    """
    fractions, q = np.asarray(flat.loss.fractions), len(here.x)
    if np.all((fractions > 0) & (fractions < 1)) or not here.finite:
        return np.zeros(q, bool)
    if here.loss == 0:  # met to the last digit: only beyond every tail
        return here.x != 0
    slope = float(np.linalg.norm(here.gradient))
    noise = 8 * np.finfo(float).eps * (here.loss if np.all(fractions * (1 - fractions) == 0) else 1)

    def falls(step: np.ndarray) -> bool:
        there = point(flat, here.x + step).loss
        promised = abs(float(here.gradient @ step))
        return bool(here.loss - there > 0.01 * promised + noise)

    units = np.eye(q)
    alone = np.array([falls(unit) or falls(-unit) for unit in units])
    if alone.any() or slope == 0:
        return alone
    return np.full(q, falls(-here.gradient / slope))


def dispersed(bars: ErrorBars, fractions: np.ndarray, log_prob: np.ndarray) -> ErrorBars:
    """Error bars in units of the residuals, for fractions whose trials are not known."""
    spare = len(fractions) - bars.rank
    chi_squared = pearson(fractions, log_prob, np.ones_like(fractions))
    dispersion = chi_squared / spare if spare > 0 else np.nan
    known = np.outer(bars.identified, bars.identified)
    covariance = np.where(known, bars.covariance * dispersion, bars.covariance)
    errors = np.where(bars.identified, np.sqrt(np.diagonal(covariance)), np.inf)
    return bars._replace(standard_errors=errors, covariance=covariance)


def pearson(fractions: np.ndarray, log_prob: np.ndarray, trials: np.ndarray) -> float:
    """Pearson's chi-squared of fractions out of trials."""
    p = np.exp(log_prob)
    variance = p * -np.expm1(log_prob)
    squares = trials * (fractions - p) ** 2
    return float(np.sum(np.where(squares > 0, squares / np.maximum(variance, 1e-300), 0.0)))


def misfit(
    fractions: np.ndarray, log_prob: np.ndarray, trials: np.ndarray, spare: int
) -> list[str]:
    """A sentence if the Gaussian does not explain the counts."""
    if spare <= 0:
        return []
    chi_squared = pearson(fractions, log_prob, trials)
    chance = float(jax.scipy.special.gammaincc(spare / 2, chi_squared / 2))
    if chance >= 1e-3:
        return []
    return [
        f"The counts are not explained: chi-squared is {chi_squared:.1f} for {spare} degree(s) of "
        f"freedom (chance {chance:.1g}). The standard errors do not cover that."
    ]


def sampling(last: FractionPoint, bars: ErrorBars, trials: np.ndarray) -> list[str]:
    """A sentence if the method's own error is no small part of a standard error.

    With H x = factor^T sqrt(weight) d(log p), an error of log p moves the optimum like a residual.
    """
    known = bars.identified
    if not known.any() or not np.any(last.stderr > 0) or np.any(np.isinf(last.stderr)):
        return []
    # Each row of the factor is sqrt(w p / (1 - p)) d log p.
    odds = np.exp(last.log_prob) / np.maximum(-np.expm1(last.log_prob), 1e-300)
    roots = np.sqrt(trials / trials.sum() * odds)
    moves = np.linalg.pinv(last.informative, rcond=1e-8) * roots * last.stderr
    parts = np.linalg.norm(last.params @ moves, axis=1)[known] / bars.standard_errors[known]
    if not parts.max() > 0.1:
        return []
    return [
        f"The method's own sampling error moves the result by about {parts.max():.1g} standard "
        "errors: give it more points."
    ]
