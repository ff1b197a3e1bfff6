"""Shifts and limits from the observed fractions of selected points."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.pytrees import frozen_pytree, refuse_text
from truncgauss.fitting.binomial_search import FractionLoss, FractionSearch
from truncgauss.fitting.held import hold, hold_limited
from truncgauss.fitting.optimization.parameters import Limits, coordinates
from truncgauss.fitting.optimization.progress import bar
from truncgauss.fitting.optimization.result import FitResult
from truncgauss.gaussian.covariances import Covariance, CovarianceMatrix
from truncgauss.gaussian.problem import Problem, as_problem
from truncgauss.gaussian.regions import Ball, Box
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method
from truncgauss.special import standardize


@frozen_pytree
class ShiftProblem:
    """k regions seen through one Gaussian, whose mean is shifted by parameters x scale."""

    loc: jax.Array  # (k, d)
    covariance: Covariance
    region: Any
    scale: jax.Array  # (d,)

    def rows(self, params: jax.Array) -> Problem:
        return Problem(self.loc + params * self.scale, self.covariance, self.region)


@frozen_pytree
class LimitsProblem:
    """k Gaussians seen through one box, which is the parameter."""

    loc: jax.Array  # (k, d)
    covariance: Covariance

    def rows(self, params: Box) -> Problem:
        return Problem(self.loc, self.covariance, params)


def fit_shift(
    observed: Any,
    loc: Any,
    covariance: Any,
    regions: Any,
    num_trials: Any = None,
    *,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_starts: int = 6,
    num_steps: int = 300,
    progress: bool = True,
) -> FitResult:
    """The shift of a Gaussian's mean that reproduces the observed fraction of each of k regions.

    With counts y_k out of n_k independent trials it maximises the binomial likelihood

        sum_k y_k log p_k + (n_k - y_k) log(1 - p_k),    p_k = P(X + shift in region_k);

    regions that share their trials are treated as if they did not. Fractions without trials are
    fitted by the same formula with n_k = 1, whose overall weight, hence the standard errors, then
    comes from the residuals (quasi-likelihood; it needs k greater than the number of unknowns).

    The likelihood may have several maxima, such as mirror images about the middle of an interval.
    The fit begins at several starts and at the mirror images of what it found: `params` is the best
    and, of equals, the nearest to 0; what the data cannot tell from it (within 1.92 nats; for
    fractions, of equal loss) is in `alternatives`.

    Args:
        observed: shape (k,) or a number: counts with num_trials, else fractions in [0, 1].
        loc: mean before the shift, shape (d,) or (k, d).
        covariance: (d, d), (k, d, d), or an object such as `tg.ScaleTril`.
        regions: k regions, such as Box(low, high) with limits of shape (k, d); or one.
        num_trials: shape (k,) or a number.
        method: how probabilities are computed. Its plan and key are held in a fit.
        key: random key of a sampling method.
        num_starts: starts, the first near 0 and the others drawn around it.
        num_steps: the most steps from each start.
        progress: say on standard error what goes on, such as compiling, or how many starts were
            tried, if that takes more than a second: in one line on a terminal, else in few.

    Returns:
        FitResult with params and standard_errors of shape (d,). What the data cannot identify has
        an infinite standard error, and a sentence in `notes`.

    Raises:
        ValueError: for fractions outside [0, 1], counts above the trials, or shapes that disagree.

    Example:
        >>> result = tg.fit_shift([841], [0.0], [[1.0]], tg.Box([0.0], [jnp.inf]), num_trials=1000)
        >>> result.params.round(2), result.standard_errors.round(2)
        (Array([1.], dtype=float64), Array([0.05], dtype=float64))

    References:
        Wedderburn, "Quasi-likelihood functions", Biometrika (1974).
    """
    dtype = as_problem(loc, covariance, regions).loc.dtype
    with jax.enable_x64(True), bar(None, "fit_shift", progress):
        problem = as_problem(*in_float64((loc, covariance, regions)))
        fractions, trials, problem = as_fractions(observed, num_trials, problem)
        scale = jnp.sqrt(problem.covariance.variances.mean(axis=0))
        d = len(scale)

        kept: list[FractionLoss] = []

        def loss_at(params: jax.Array) -> FractionLoss:
            question = ShiftProblem(problem.loc, problem.covariance, problem.region, scale)
            if not kept:
                loss = as_loss(question, params, fractions, trials, method, key)
                if loss.held.planned:
                    return loss
                kept.append(loss)  # without a plan it is the same at any parameters
            return kept[0]

        def mirror_images(params: jax.Array) -> list[jax.Array]:
            centre = jnp.nanmean(middle(problem.region) - problem.loc, axis=0) / scale
            mirrored = jnp.where(jnp.isnan(centre), params, 2 * centre - params)
            return [jnp.where(flip, mirrored, params) for flip in flips(~np.isnan(centre))]

        noise = jax.random.normal(jax.random.key(1), (num_starts - 1, d), scale.dtype)
        starts = [0.1 * 0.9 ** jnp.arange(d, dtype=scale.dtype), *(1.5 * noise)]
        names = [f"shift[{j}]" for j in range(d)]
        search = FractionSearch(loss_at, None, mirror_images, trials, names, num_steps, progress)
        return in_units(search.result(starts), scale, jnp.zeros(d), dtype)


def fit_limits(
    observed: Any,
    loc: Any,
    covariance: Any,
    start: Box,
    num_trials: Any = None,
    *,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_starts: int = 4,
    num_steps: int = 300,
    progress: bool = True,
) -> FitResult:
    """The limits of a box that let the observed fraction of each of k Gaussians through.

    The likelihood and what is said of it are those of `fit_shift`; the unknowns are the finite ends
    of `start`. The infinite ones stay infinite, and low stays below high.

    Args:
        observed: shape (k,) or a number: counts with num_trials, else fractions in [0, 1].
        loc: means, shape (d,) or (k, d).
        covariance: (d, d), (k, d, d), or an object such as `tg.ScaleTril`.
        start: the limits to begin with, a `Box` with limits of shape (d,).
        num_trials: shape (k,) or a number.
        method, key, num_starts, num_steps, progress: as in `fit_shift`.

    Returns:
        FitResult whose params and standard_errors have `.low` and `.high`, each of shape (d,). The
        standard error of an infinite end is 0; of what the data cannot identify, inf.

    Raises:
        ValueError: for fractions outside [0, 1], counts above the trials, shapes that disagree, or
            a start without a finite end.

    Example:
        >>> start = tg.Box([-1.0], [jnp.inf])
        >>> result = tg.fit_limits([0.158655, 0.5], [[0.0], [1.0]], [[1.0]], start)
        >>> result.params.low.round(4)
        Array([1.], dtype=float64)
    """
    if not isinstance(start, Box) or start.batch_shape != ():
        got = f"limits of shape {start.low.shape}" if isinstance(start, Box) else f"{start!r}"
        raise ValueError(
            f"fit_limits: start must be one tg.Box with limits of shape (d,), got {got}."
        )
    if not np.any(np.isfinite(start.low) | np.isfinite(start.high)):
        raise ValueError("fit_limits: start has no finite end, so there is nothing to fit.")
    dtype = as_problem(loc, covariance, start).loc.dtype
    with jax.enable_x64(True), bar(None, "fit_limits", progress):
        problem = as_problem(*in_float64((loc, covariance, start)))
        fractions, trials, problem = as_fractions(observed, num_trials, problem)
        origin = problem.loc.mean(axis=0)
        scale = jnp.sqrt(problem.covariance.variances.mean(axis=0))
        matrix = problem.covariance.covariance_matrix / jnp.outer(scale, scale)
        question = LimitsProblem((problem.loc - origin) / scale, CovarianceMatrix(matrix))
        box = jax.tree.map(lambda leaf: leaf[0], problem.region)
        box = Box(*standardize(box.low, box.high, origin, scale)[:2])

        def loss_at(params: Box) -> FractionLoss:
            return as_loss(question, params, fractions, trials, method, key)

        names = [f"{end}[{j}]" for end in ("low", "high") for j in range(len(scale))]
        search = FractionSearch(
            loss_at, Limits(), mirrored_boxes, trials, names, num_steps, progress
        )
        return in_units(search.result(scattered(box, num_starts)), scale, origin, dtype)


def as_fractions(
    observed: Any, num_trials: Any, problem: Problem
) -> tuple[np.ndarray, np.ndarray | None, Problem]:
    """Fractions (k,), trials (k,) or None, and the problem with the leading axis k, checked.

    Raises:
        ValueError: see `fit_shift`.
    """
    refuse_text(observed, "observed")
    refuse_text(num_trials, "num_trials")
    observed = np.asarray(observed, np.float64)
    if observed.ndim > 1 or observed.size == 0:
        raise ValueError(f"observed must have shape (k,), or be a number; got {observed.shape}.")
    try:
        (k,) = np.broadcast_shapes(observed.shape, problem.batch_shape, (1,))
    except ValueError:
        raise ValueError(
            f"observed has shape {observed.shape}, which does not fit the leading axes "
            f"{problem.batch_shape} of loc, covariance and regions; expected one value for each."
        ) from None
    if observed.ndim and observed.shape != (k,):
        raise ValueError(f"observed has shape {observed.shape}, but there are {k} regions.")
    observed, trials = np.broadcast_to(observed, (k,)), None
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
    most = 1.0 if trials is None else trials
    wrong = np.flatnonzero(~((observed >= 0) & (observed <= most)))
    if len(wrong):
        kind = "fractions in [0, 1] (for counts, give num_trials)" if trials is None else "counts"
        raise ValueError(
            f"observed must be {kind} between 0 and the number of trials; {len(wrong)} of {k} are "
            f"not, first {observed[wrong[0]]} at index {wrong[0]}."
        )
    loc = jnp.broadcast_to(problem.loc, (k, problem.loc.shape[-1]))
    rows = Problem(loc, problem.covariance.broadcast_to((k,)), problem.region.broadcast_to((k,)))
    return observed / most, trials, rows


def as_loss(
    question: ShiftProblem | LimitsProblem,
    params: Any,
    fractions: np.ndarray,
    trials: np.ndarray | None,
    method: Method,
    key: jax.Array | None,
) -> FractionLoss:
    """The loss of fractions, with the method's plan made at params."""
    sizes = np.ones_like(fractions) if trials is None else trials
    problem = question.rows(params)
    fixed = isinstance(question, ShiftProblem) and leaves_free(problem)
    held = (hold_limited if fixed else hold)(method, key, problem)
    return FractionLoss(question, jnp.asarray(fractions), jnp.asarray(sizes / sizes.sum()), held)


def leaves_free(problem: Problem) -> bool:
    """Whether some coordinates of a box have no limits, and are better left out."""
    region = problem.region
    if not isinstance(region, Box) or region.dimension <= 3:
        return False
    return bool(np.any(np.isinf(region.low) & np.isinf(region.high)))


def in_float64(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), tree)


def in_units(result: FitResult, scale: jax.Array, origin: jax.Array, dtype: Any) -> FitResult:
    """A result in standard units, put into the user's."""

    def placed(leaf: jax.Array) -> jax.Array:
        return (leaf * scale + origin).astype(dtype)

    units = np.tile(np.asarray(scale), len(jax.tree.leaves(result.params)))
    return dataclasses.replace(
        result,
        params=jax.tree.map(placed, result.params),
        standard_errors=jax.tree.map(lambda e: (e * scale).astype(dtype), result.standard_errors),
        parameter_covariance=result.parameter_covariance * np.outer(units, units),
        alternatives=tuple(jax.tree.map(placed, other) for other in result.alternatives),
    )


def middle(region: Any) -> jax.Array:
    """The point about which a region is symmetric; nan in coordinates where it has none."""
    if isinstance(region, Ball):
        return region.center
    if not isinstance(region, Box):
        return jnp.full((*region.batch_shape, region.dimension), jnp.nan)
    both = jnp.isfinite(region.low) & jnp.isfinite(region.high)
    return jnp.where(both, region.low + region.high, jnp.nan) / 2


def flips(allowed: np.ndarray) -> list[np.ndarray]:
    """Sets of coordinates to mirror, as masks (d,): every set for up to four, else each and all."""
    places = np.flatnonzero(allowed)
    sizes = range(1, len(places) + 1) if len(places) <= 4 else (1, len(places))
    chosen = [subset for size in sizes for subset in itertools.combinations(places, size)]
    return [np.isin(np.arange(len(allowed)), subset) for subset in chosen]


def mirrored_boxes(box: Box) -> list[Box]:
    """A box, mirrored about the origin in coordinates with two finite ends."""
    both = np.isfinite(box.low) & np.isfinite(box.high)
    return [
        Box(jnp.where(flip, -box.high, box.low), jnp.where(flip, -box.low, box.high))
        for flip in flips(both)
    ]


def scattered(box: Box, num_starts: int) -> list[Box]:
    """Boxes around a box in standard units, itself first."""
    place = coordinates(box, Limits())
    free = place.free(box)
    keys = jax.random.split(jax.random.key(1), max(num_starts - 1, 1))[: num_starts - 1]

    def moved(key: jax.Array) -> Box:
        return place.params(
            jax.tree.map(lambda x: x + 0.5 * jax.random.normal(key, x.shape, x.dtype), free)
        )

    return [box, *(moved(key) for key in keys)]
