"""Maximum likelihood of a mixture of Gaussians from rows known in part, behind a selection."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.pytrees import floats_as_float64
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.mixtures.certificate import coarse_notes, finished
from truncgauss.fitting.mixtures.curvature import MANY, point, rough_point
from truncgauss.fitting.mixtures.em import (
    Ascent,
    Components,
    ascended,
    components_at,
    has_collapsed,
)
from truncgauss.fitting.mixtures.factors import most_factors
from truncgauss.fitting.mixtures.likelihood import hold, row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss, divided, parts_of, shares, terms_at
from truncgauss.fitting.mixtures.parameters import STRUCTURES, MixtureCoordinates
from truncgauss.fitting.mixtures.result import MixtureFit
from truncgauss.fitting.mixtures.rising import Ascending, ascending_sentence, natural_end
from truncgauss.fitting.mixtures.starts import seeded, standard_rows
from truncgauss.fitting.optimization.newton import CLOSE, NEAR, Point, newton_steps
from truncgauss.fitting.optimization.progress import bar, watched
from truncgauss.fitting.optimization.uncertainty import certificate
from truncgauss.gaussian.problem import as_key
from truncgauss.likelihood import Observations, as_observations, local_rows, rows_of_fit
from truncgauss.probability.automatic import Automatic
from truncgauss.probability.method import Method

ENOUGH = 1e-2  # nats a step, below which EM has come near
ENOUGH_OF_MANY = 5e-3  # likewise for each parameter, if these are many
INFORMATION = ("observed", "sandwich")
# Steps by products of scores end so many standard errors from the maximum, after so many, or where
# one brings less than this part of what it promised.
ARRIVED, ROUGH_STEPS, KEPT_PROMISE = 0.1, 20, 0.25
# Unique parts of variances, from which searches for factors begin: of one entry, and of the others.
NEXT_TO_NONE, LEAST_PART = 0.02, 0.3
COLLAPSED = (
    "In every start a component shrank onto a few rows, where the likelihood has no maximum, or "
    "its derivatives were not finite. Use fewer components, more rows, "
    'covariance="tied" or "diagonal", or state the noise of the rows.'
)


class NoMaximum(ValueError):
    """The likelihood has no maximum that any start leads to."""


class Most(NamedTuple):
    """The most starts to make, and the most EM and Newton steps from each."""

    starts: int
    em_steps: int
    newton_steps: int


class End(NamedTuple):
    """Where a start led.

    Attributes:
        x: free coordinates.
        log_likelihood: -inf where a component shrank onto a few rows.
        trace: minus the mean log-likelihood of a row, and the Newton decrement, at each step of the
            finish, (m, 2).
        ascent: the EM steps before.
        hessian: of the loss there, (q, q); empty where none was computed.
        ascending: which component widens beyond all bounds, if one does.
    """

    x: np.ndarray
    log_likelihood: float
    trace: np.ndarray
    ascent: Ascent
    hessian: np.ndarray = np.zeros((0, 0))
    ascending: Ascending | None = None


def fit_mixture(
    observations: Observations,
    num_components: int,
    *,
    covariance: str = "full",
    rank: int | None = None,
    prior_rows: float = 0.0,
    num_starts: int = 8,
    start: tuple[Any, Any, Any] | None = None,
    method: Method = Automatic(),
    key: jax.Array | None = None,
    num_em_steps: int = 200,
    num_steps: int = 100,
    information: str = "observed",
    progress: bool = True,
) -> MixtureFit:
    """Maximum likelihood of a mixture of Gaussians from rows known in part, behind a selection.

    The likelihood is that of `mixture_log_likelihood`. From each start EM steps, of which none
    lowers it, lead near a maximum, and Newton steps (after steps by the products of scores, if
    parameters are many) to it. The result is the highest maximum found; what the other starts
    found, and what the estimates rest on, is said with it.

    Args:
        observations: the rows, `tg.Observations`: exact, censored, in intervals, missing, with
            noise, seen inside their regions. Their weights count rows.
        num_components: K.
        covariance: "full", "diagonal", "tied" for one matrix that all components share, or
            "low_rank" for factor analysers, diag(psi) + F F^T with `rank` columns in F.
        rank: of these.
        prior_rows: 0 for maximum likelihood; v > 0 for a prior that keeps components from
            collapsing, as if v more rows with the variances of all had been seen in each of them,
            log prior = -v/2 sum_k {log det(S^-1 Sigma_k) + tr(S Sigma_k^-1)} with S the diagonal
            matrix of the rows' variances (Chen and Tan, 2009). 1 is weak.
        num_starts: how many starts to make by k-means++ seeds, and of low rank from different
            unique variances too. One component of another structure has one start.
        start: (weights, locs, covariances), a start of one's own in place of these.
        method: how probabilities are computed; its plans and key are held.
        key: random key of the seeds and of the method.
        num_em_steps: the most EM steps of each start.
        num_steps: the most Newton steps of each start; behind a region as many again where these
            reach no maximum, to find out whether a component widens without an end.
        information: what the standard errors come from: "observed", the curvature of the
            log-likelihood; or "sandwich", which holds for many rows of another distribution too.
        progress: say on standard error what goes on, such as compiling, or the log-likelihood after
            each step, if the fit takes more than a second: in one line on a terminal, else in few.

    Returns:
        MixtureFit, with `converged` false and the reason where there is no maximum.

    Raises:
        ValueError: for rows that are impossible, more parameters than rows, entries that are all
            equal, or settings that make no sense; a `NoMaximum` where every start ends with a
            component on a few rows.

    Example:
        >>> y = jnp.concatenate([jnp.linspace(0.0, 2.0, 20), jnp.linspace(5.0, 8.0, 30)])
        >>> fit = tg.fit_mixture(tg.Observations.exact(y), 2, num_starts=2)
        >>> fit.converged, fit.locs.ravel().round(2), fit.weights.round(2)
        (True, array([6.5, 1. ]), array([0.6, 0.4]))
    """
    as_observations(observations, "fit_mixture")
    if information not in INFORMATION:
        raise ValueError(
            f'fit_mixture: information must be "observed" or "sandwich", got {information!r}.'
        )
    shape, most = (covariance, rank), Most(num_starts, num_em_steps, num_steps)
    asked = num_components, shape, prior_rows, repr(method), method, key
    read = functools.partial(local_rows, observations)
    with (
        jax.enable_x64(True),
        bar(None, "fit_mixture", progress),
        rows_of_fit("fit_mixture", observations, start, asked, read, lambda x: (x,)) as known,
    ):
        sums, rows = known
        loss, table = prepared_loss(
            floats_as_float64(rows), num_components, shape, method, key, prior_rows, sums
        )
        fit = fit_of_rows(loss, table, start, most, information, progress)
        coarse = coarse_notes(observations, fit.locs, fit.covariances)
        return dataclasses.replace(fit, notes=(*fit.notes, *coarse))


def fit_of_rows(
    loss: MixtureLoss,
    table: np.ndarray,
    start: tuple[Any, Any, Any] | None,
    most: Most,
    information: str,
    progress: bool,
) -> MixtureFit:
    """The fit of rows whose loss is known."""
    starts = seeded_starts(loss, table, most.starts) if start is None else [given(start, loss)]
    with loss.sums.checked():
        check_possible(loss, starts[0])
    climb = functools.partial(climbed, loss, table, most=most, progress=progress)
    best, reached = highest(climb, bar(starts, "starts", progress))
    return reported(loss, best, reached, most.newton_steps, information)


def seeded_starts(loss: MixtureLoss, table: np.ndarray, count: int) -> list[Components]:
    """So many starts by seeds, of rows in units of their own; one where there is one maximum."""
    place, starts = loss.coordinates, []
    weights = np.asarray(row_weights(loss.observations, jnp.float64))
    several = place.num_components > 1 or place.structure == "low_rank"
    for number in range(count if several else 1):
        own = jax.random.fold_in(loss.key, number)
        first = seeded(table, weights, place.num_components, own, loss.sums)
        starts.append(in_user_units(first, place, number))
    return starts


def highest(climb: Callable[[Components], End], starts: bar) -> tuple[End, np.ndarray]:
    """The best of the ends to which the starts of a bar lead, and what each of them reached."""
    ends = []
    for first in starts:
        ends.append(climb(first))
        starts.note = f"log-likelihood {ends[-1].log_likelihood:.8g}"
    reached = np.array([end.log_likelihood for end in ends])
    if not np.any(np.isfinite(reached)):
        raise NoMaximum(f"fit_mixture: {COLLAPSED}")
    return ends[int(np.argmax(np.where(np.isfinite(reached), reached, -np.inf)))], reached


def prepared_loss(
    observations: Observations,
    num_components: int,
    shape: tuple[str, int | None],
    method: Method = Automatic(),
    key: Any = None,
    prior_rows: float = 0.0,
    sums: RowSums = RowSums(),
) -> tuple[MixtureLoss, np.ndarray]:
    """The loss without plans, and the rows in units of their own; checked. The shape is that of
    covariances, and the rank."""
    check_shape(shape, observations.dimension)
    if not isinstance(num_components, int) or num_components < 1:
        raise ValueError(
            f"fit_mixture: num_components must be a positive int, got {num_components!r}."
        )
    if not 0 <= prior_rows < np.inf:
        raise ValueError(f"fit_mixture: prior_rows must be 0 or positive, got {prior_rows!r}.")
    table, centre, scale = standard_rows(observations, sums)
    coordinates = MixtureCoordinates(
        jnp.asarray(centre), jnp.asarray(scale), num_components, shape[0], shape[1] or 0
    )
    size = float(sums.sum(np.sum(np.asarray(row_weights(observations, np.float64)))))
    if coordinates.size >= size:
        raise ValueError(
            f"fit_mixture: {size:g} row(s) cannot determine {coordinates.size} parameters of "
            f"{num_components} component(s): use fewer components, a simpler covariance, or more "
            "rows."
        )
    prior = jnp.asarray(float(prior_rows)) if prior_rows else None
    loss = MixtureLoss(
        observations,
        coordinates,
        jnp.asarray(size),
        method,
        as_key(key),
        prior,
        sums=sums,
    )
    return divided(loss), table


def check_shape(shape: tuple[str, int | None], dimension: int) -> None:
    """Raise ValueError for covariances of no known kind, or a rank that does not belong to them."""
    structure, rank = shape
    if structure not in STRUCTURES:
        raise ValueError(
            'fit_mixture: covariance must be "full", "diagonal", "tied" or "low_rank", got '
            f"{structure!r}."
        )
    if (structure == "low_rank") != (rank is not None):
        raise ValueError(
            f'fit_mixture: covariance="low_rank" needs a rank, and no other has one; got {rank!r} '
            f"for {structure!r}."
        )
    most = most_factors(dimension)
    if rank is not None and (not isinstance(rank, int) or not 1 <= rank <= most):
        raise ValueError(
            f"fit_mixture: rank must be an int from 1 to {most} in {dimension} dimensions, where "
            f"more factors have more parameters than a full matrix; got {rank!r}. Use "
            'covariance="full" or "diagonal".'
        )


def given(start: tuple[Any, Any, Any], loss: MixtureLoss) -> Components:
    """A start of the user's own, checked."""
    coordinates = loss.coordinates
    k, d = coordinates.num_components, coordinates.dimension
    components = Components(*(np.asarray(part, np.float64) for part in start))
    shapes = tuple(part.shape for part in components[:3])
    if shapes != ((k,), (k, d), (k, d, d)):
        raise ValueError(
            f"fit_mixture: start must be (weights, locs, covariances) of shapes {(k,)}, {(k, d)} "
            f"and {(k, d, d)}, got {shapes}."
        )
    finite = all(np.all(np.isfinite(part)) for part in components[:3])
    if not finite or np.any(components.weights <= 0):
        raise ValueError("fit_mixture: start must be finite, with positive weights.")
    if not np.all(np.linalg.eigvalsh(components.covariances) > 0):
        raise ValueError("fit_mixture: the start's covariances must be positive definite.")
    own = coordinates.restricted(np.ones(k), components.covariances)
    return Components(components.weights / components.weights.sum(), components.locs, *own)


def in_user_units(start: Components, place: MixtureCoordinates, number: int) -> Components:
    """A start in the units of the rows. The likelihood of factors may have several maxima, mostly
    with the unique variances of different entries near 0: all starts but the first seek these."""
    centre, scale = np.asarray(place.centre), np.asarray(place.scale)
    matrices, begin = start.covariances * np.outer(scale, scale), None
    if place.structure == "low_rank" and number > 0:
        rng, (k, d) = np.random.default_rng(number), start.locs.shape
        parts = np.exp(rng.uniform(np.log(LEAST_PART), 0.0, size=(k, d)))
        parts[np.arange(k), (number - 1 + np.arange(k)) % d] = NEXT_TO_NONE
        begin = parts * np.diagonal(matrices, axis1=1, axis2=2)
    restricted = place.restricted(start.weights, matrices, begin)
    return Components(start.weights, centre + scale * start.locs, *restricted)


def check_possible(loss: MixtureLoss, start: Components) -> None:
    """Raise ValueError if a row cannot be, or its likelihood is not finite."""
    own, rows = planned(loss, loss.method, start), loss.observations
    values = np.asarray(terms_at(own, loss.coordinates.free(*start)).log_prob)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        first = wrong[0]
        raise ValueError(
            f"fit_mixture: {len(wrong)} of {len(values)} row(s) are impossible, first row {first}: "
            f"lower {rows.lower[first]}, upper {rows.upper[first]} do not lie in its region, or no "
            "component does. Correct the region, or remove those rows."
        )


def planned(loss: MixtureLoss, method: Method, at: Components) -> MixtureLoss:
    """The loss with a method's plans made at a mixture."""
    if loss.parts:
        parts = tuple(planned(part, method, at) for part in loss.parts)
        return dataclasses.replace(loss, parts=parts)
    held = hold(method, loss.observations, at.locs, at.covariances)
    return dataclasses.replace(loss, method=held)


def climbed(
    loss: MixtureLoss, table: np.ndarray, start: Components, most: Most, progress: bool
) -> End:
    """Where a start leads: EM steps near a maximum, then steps to it, so many of both at most; from
    an end that is none as many again in coordinates that end where a component has widened."""
    method, place = loss.method, loss.coordinates
    own = planned(loss, method, start)
    gain = max(ENOUGH, ENOUGH_OF_MANY * place.size * (place.size > MANY))
    ascent = ascended(own, start, most.em_steps, gain, progress)
    at = ascent.components
    if has_collapsed(loss, at):
        return End(np.zeros(place.size), -np.inf, np.zeros((0, 2)), ascent)
    if jax.tree.leaves(parts_of(own)[0].method):
        own = planned(loss, method, at)
    x = place.free(*at)
    here, trace, hessian = finish(own, x, most.newton_steps, progress)
    x, ascending = here.x, None
    collapsed = has_collapsed(loss, components_at(place, x))
    if not collapsed and widens(own, here):
        x, visited, ascending = natural_end(own, table, x, most.newton_steps)
        collapsed = has_collapsed(loss, components_at(place, x))
        trace, hessian = np.append(trace, traced(visited[1:]), axis=0), np.zeros((0, 0))
    value = -trace[-1, 0] * float(loss.size)
    if collapsed or not np.isfinite(value):
        value = -np.inf
    return End(x, value, trace, ascent, hessian, ascending)


def widens(loss: MixtureLoss, here: Point) -> bool:
    """Whether steps may have ended on the way to a component that widens beyond all bounds: behind
    a region, at a point that is no maximum."""
    place, size = loss.coordinates, float(loss.size)
    several = place.num_components > 1 and place.structure != "low_rank"
    if loss.observations.region is None or not several or place.size > MANY or not here.finite:
        return False
    proof = certificate(size * here.gradient, size * here.hessian)
    return not (proof.positive_definite and proof.distance <= CLOSE)


def finish(
    loss: MixtureLoss, x: np.ndarray, num_steps: int, progress: bool = False
) -> tuple[Point, np.ndarray, np.ndarray]:
    """The maximum near x, the loss and the decrement at each step, and its last Hessian."""

    def stop(here: Point) -> bool:
        return has_collapsed(loss, components_at(loss.coordinates, here.x))

    visited = rough_steps(loss, x, stop) if len(x) > MANY else []
    evaluate = NearMinimum(loss)
    here = evaluate(visited[-1].x if visited else x)
    if not here.finite:
        return here, np.full((1, 2), np.nan), here.hessian
    steps = newton_steps(evaluate, here, num_steps, stop=stop)
    path = [*visited[:-1], here, *watched(steps, float(loss.size), progress)]
    return path[-1], traced(path), evaluate.hessian_for(path[-1].x)


def traced(points: Sequence[Point]) -> np.ndarray:
    """The loss and the Newton decrement at each of some points, (m, 2)."""
    return np.array([(here.loss, here.decrement) for here in points]).reshape(-1, 2)


def rough_steps(loss: MixtureLoss, x: np.ndarray, stop: Callable[[Point], bool]) -> list[Point]:
    """x and the points of steps by the products of scores, as long as these keep what they promise.

    Such a step costs about as much as one of EM, however many parameters there are.
    """
    visited, evaluate = [rough_point(loss, x)], functools.partial(rough_point, loss)
    if not visited[0].finite:
        return visited
    for there in newton_steps(evaluate, visited[0], ROUGH_STEPS, stop=stop):
        promised, gain = visited[-1].decrement ** 2 / 2, visited[-1].loss - there.loss
        visited.append(there)
        if gain < KEPT_PROMISE * promised or there.decrement * float(loss.size) ** 0.5 < ARRIVED:
            break
    return visited


@dataclasses.dataclass
class NearMinimum:
    """Points of a loss with their Hessians. That of many parameters is computed again only at lower
    points from which a step would still be long: elsewhere the last one does."""

    loss: MixtureLoss
    kept: np.ndarray | None = None
    at: np.ndarray | None = None
    lowest: float = np.inf

    def __call__(self, x: np.ndarray) -> Point:
        if self.kept is not None and len(x) > MANY:
            near = dataclasses.replace(rough_point(self.loss, x), hessian=self.kept)
            lower, self.lowest = near.loss < self.lowest, min(near.loss, self.lowest)
            if not near.finite or not lower or near.decrement < NEAR:
                return near
        here = point(self.loss, x)
        self.kept, self.at, self.lowest = here.hessian, here.x, min(here.loss, self.lowest)
        return here

    def hessian_for(self, x: np.ndarray) -> np.ndarray:
        """The last Hessian if it was computed a part of a standard error from x, where it is that
        of x for all that errors show; else none."""
        if self.kept is None or self.at is None:
            return np.zeros((0, 0))
        gap = x - self.at
        near = float(self.loss.size) * gap @ self.kept @ gap <= ARRIVED**2
        return self.kept if near else np.zeros((0, 0))


def reported(
    loss: MixtureLoss, best: End, reached: np.ndarray, num_steps: int, information: str
) -> MixtureFit:
    """The result at the best end, its components sorted, its plans made there."""
    place = loss.coordinates
    at = components_at(place, best.x)
    observed = shares(planned(loss, loss.method, at), best.x)[0]
    order = np.argsort(-observed, kind="stable")
    at = Components(*(part[order] for part in at[:3]))
    own = planned(loss, loss.method, at)
    evaluate = NearMinimum(own)
    if len(best.x) > MANY and len(best.hessian):
        back = np.linalg.inv(place.reordered(order))
        evaluate.kept = back.T @ best.hessian @ back
    here, endless = evaluate(place.reordered(order) @ best.x), None
    if best.ascending is not None:
        endless = ascending_sentence(own, here.x, best.ascending, order)
    more = 0 if endless else min(num_steps, 20)
    path = [here, *newton_steps(evaluate, here, more)]
    trace = np.append(best.trace, traced(path[1:]), axis=0)
    return finished(own, path[-1], reached, best.ascent, trace, information, endless)
