"""Ways up the likelihood of a mixture: EM steps near a maximum, then Newton steps to it."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from truncgauss.execution.progress import bar, watched
from truncgauss.fitting.mixtures.curvature import (
    MANY,
    MixtureSummary,
    point,
    rough_point,
    shares,
    summary_at,
)
from truncgauss.fitting.mixtures.em import (
    Ascent,
    Components,
    ascended,
    components_at,
    has_collapsed,
)
from truncgauss.fitting.mixtures.loss import MixtureLoss, parts_of, planned
from truncgauss.fitting.mixtures.rising import Ascending, natural_end
from truncgauss.fitting.optimization.descent import Descent, Path
from truncgauss.fitting.optimization.newton import CLOSE, NEAR, Point, newton_steps
from truncgauss.fitting.optimization.uncertainty import certificate

ENOUGH = 1e-2  # nats a step, below which EM has come near
ENOUGH_OF_MANY = 5e-3  # likewise for each parameter, if these are many
# Steps by products of scores end so many standard errors from the maximum, after so many, or where
# one brings less than this part of what it promised.
ARRIVED, ROUGH_STEPS, KEPT_PROMISE = 0.1, 20, 0.25
POLISHING = 20  # the most steps after components are sorted and plans made anew
COLLAPSED = (
    "In every start a component shrank onto a few rows, where the likelihood has no maximum, or "
    "its derivatives were not finite. Use fewer components, more rows, "
    'covariance="tied" or "diagonal", or state the noise of the rows.'
)


class NoMaximum(ValueError):
    """The likelihood has no maximum that any start leads to."""


class Visited(NamedTuple):
    """Summary of a point on the way."""

    loss: float
    decrement: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Climb(Path):
    """The way from one start of a mixture.

    Attributes, besides those of `Path`:
        ascent: the EM steps, before the points that were visited.
        hessian: of the loss at the end, (q, q); None where none was computed.
        ascending: which component widens beyond all bounds, if one does.
        reached: the log-likelihood at the end of each start.
        summary: the sums over all rows at the end of the best way; None of others.
    """

    ascent: Ascent
    hessian: np.ndarray | None = None
    ascending: Ascending | None = None
    reached: Any = ()
    summary: MixtureSummary | None = None

    @property
    def log_likelihood(self) -> float:
        """With the log prior, if there is one; -inf where a component shrank onto a few rows."""
        value = -self.end.loss * float(self.loss.size)
        return value if np.isfinite(value) else -np.inf


class MixtureDescent(Descent):
    """The ways from mixtures up the likelihood of a `MixtureRows`, see `Descent`."""

    def path(self, x: Any, known: tuple[Path, ...] = ()) -> Climb:
        """The way from a mixture: EM steps near a maximum, then steps to it; from an end that is
        none as many again in coordinates that end where a component has widened."""
        loss: MixtureLoss = self.model.loss
        coordinates, start = loss.coordinates, x
        planned_loss = planned(loss, loss.method, start)
        gain = max(ENOUGH, ENOUGH_OF_MANY * coordinates.size * (coordinates.size > MANY))
        ascent = ascended(planned_loss, start, self.model.num_em_steps, gain, self.progress)
        at = ascent.components
        if has_collapsed(loss, at):
            zeros = np.zeros(coordinates.size)
            nowhere = Point(zeros, np.inf, zeros, np.zeros((0, 0)))
            return Climb(planned_loss, [nowhere], False, ascent=ascent)
        if jax.tree.leaves(parts_of(planned_loss)[0].method):
            planned_loss = planned(loss, loss.method, at)
        visited, hessian = self.finish(planned_loss, coordinates.free(*at))
        end, ascending = visited[-1], None
        if not flattened(planned_loss, end) and widens(planned_loss, end):
            x, steps, ascending = natural_end(planned_loss, self.model.table, end.x, self.num_steps)
            visited += steps[1:]
            end, hessian = point(planned_loss, x), None
        if flattened(planned_loss, end):
            end = dataclasses.replace(end, loss=np.inf)
        way = [*traced(visited[:-1]), end]
        endless = ascending is not None
        return Climb(
            planned_loss, way, endless, ascent=ascent, hessian=hessian, ascending=ascending
        )

    def finish(self, loss: MixtureLoss, x: np.ndarray) -> tuple[list[Point], np.ndarray | None]:
        """The points of the steps to the maximum near x, and the last Hessian."""
        stop = functools.partial(flattened, loss)
        visited = rough_steps(loss, x, stop) if len(x) > MANY else []
        evaluate = NearMinimum(loss)
        first = evaluate(visited[-1].x if visited else x)
        if not first.finite:
            return [dataclasses.replace(first, loss=np.nan)], None
        steps = newton_steps(evaluate, first, self.num_steps, stop=stop)
        way = [*visited[:-1], first, *watched(steps, float(loss.size), self.progress)]
        return way, evaluate.hessian_for(way[-1].x)

    def best(self, starts: list[Any]) -> Climb:
        """The best of the ways from several starts, its components sorted, its plans made there.

        Raises:
            NoMaximum: if a component shrinks onto a few rows in each.
        """
        best, reached = None, []
        shown = bar(starts, "starts", self.progress)
        for start in shown:
            climb = self.path(start)
            reached.append(climb.log_likelihood)
            shown.note = f"log-likelihood {reached[-1]:.8g}"
            if reached[-1] > max(reached[:-1], default=-np.inf):
                best = climb
        if best is None:
            raise NoMaximum(f"fit_mixture: {COLLAPSED}")
        return self.settled(best, np.array(reached))

    def settled(self, best: Climb, reached: np.ndarray) -> Climb:
        """A way with its components sorted by their observed weights, and the last steps."""
        loss: MixtureLoss = self.model.loss
        coordinates, x = loss.coordinates, best.end.x
        at = components_at(coordinates, x)
        observed = shares(planned(loss, loss.method, at), x)[0]
        order = np.argsort(-observed, kind="stable")
        planned_loss = planned(loss, loss.method, Components(*(part[order] for part in at)))
        evaluate, change = NearMinimum(planned_loss), coordinates.reordered(order)
        if len(x) > MANY and best.hessian is not None:
            back = np.linalg.inv(change)
            evaluate.kept = back.T @ best.hessian @ back
        first, ascending = evaluate(change @ x), best.ascending
        if ascending is not None:
            number = int(np.flatnonzero(order == ascending.component)[0])
            ascending = ascending._replace(component=number)
        more = 0 if best.endless else min(self.num_steps, POLISHING)
        path = [first, *newton_steps(evaluate, first, more)]
        visited = [*best.visited[:-1], *traced(path[:-1]), path[-1]]
        changed: dict[str, Any] = {"visited": visited, "ascending": ascending, "reached": reached}
        # Processes exchange their sums here, all at the same time.
        summary = summary_at(planned_loss, visited[-1].x)
        return dataclasses.replace(best, loss=planned_loss, summary=summary, **changed)


def flattened(loss: MixtureLoss, end: Point) -> bool:
    """Whether a component has no spread in some direction at a point; see `has_collapsed`."""
    return has_collapsed(loss, components_at(loss.coordinates, end.x))


def traced(points: Iterable[Any]) -> list[Visited]:
    """Summaries of points, whose Hessians of many parameters need not be kept."""
    return [Visited(visited_point.loss, visited_point.decrement) for visited_point in points]


def widens(loss: MixtureLoss, end: Point) -> bool:
    """Whether steps may have ended on the way to a component that widens beyond all bounds: behind
    a region, at a point that is no maximum."""
    coordinates, size = loss.coordinates, float(loss.size)
    several = coordinates.num_components > 1
    if loss.observations.region is None or not several or coordinates.size > MANY or not end.finite:
        return False
    proof = certificate(size * end.gradient, size * end.hessian)
    return not (proof.positive_definite and proof.distance <= CLOSE)


def rough_steps(loss: MixtureLoss, x: np.ndarray, stop: Callable[[Point], bool]) -> list[Point]:
    """x and the points of steps by the products of scores, as long as these keep what they promise.

    Such a step costs about as much as one of EM, however many parameters there are.
    """
    visited, evaluate = [rough_point(loss, x)], functools.partial(rough_point, loss)
    if not visited[0].finite:
        return visited
    for reached in newton_steps(evaluate, visited[0], ROUGH_STEPS, stop=stop):
        promised, gain = visited[-1].decrement ** 2 / 2, visited[-1].loss - reached.loss
        visited.append(reached)
        if gain < KEPT_PROMISE * promised or reached.decrement * float(loss.size) ** 0.5 < ARRIVED:
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
        end = point(self.loss, x)
        self.kept, self.at, self.lowest = end.hessian, end.x, min(end.loss, self.lowest)
        return end

    def hessian_for(self, x: np.ndarray) -> np.ndarray | None:
        """The last Hessian if it was computed a part of a standard error from x, where it is that
        of x for all that errors show; else none."""
        if self.kept is None or self.at is None:
            return None
        gap = x - self.at
        near = float(self.loss.size) * gap @ self.kept @ gap <= ARRIVED**2
        return self.kept if near else None
