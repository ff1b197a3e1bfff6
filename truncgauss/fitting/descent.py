"""Newton steps down minus a log-likelihood, from one start or several, and where they end."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from truncgauss.arrays.progress import bar
from truncgauss.fitting.newton import CLOSE, Loss, Point, Secant, newton_steps, point, sloped
from truncgauss.optimize.uncertainty import certificate

MANY_STARTS = 4  # by default, where one outcome may have several maxima
MOST_ROWS = 10**5  # for so many starts
JOINED = 0.1  # standard errors from a known maximum, from where steps lead to it
PLANNED = 1e-4  # standard errors from a minimum, from where a last plan of the loss is made
SAME = 1e-3  # nats of the whole sample between two maxima that are one


@dataclasses.dataclass(frozen=True)
class Path:
    """Newton steps from one start.

    Attributes:
        loss: with the plans made where they ended.
        visited: the points, the start first; of those before the last, `loss` and `decrement` at
            least.
        endless: whether the loss still falls as the Gaussian widens beyond all bounds.
        starts: what several starts led to, in a sentence.
        others: all paths of which this is the best.
        agreed: how many of them led to this maximum.
    """

    loss: Any
    visited: list[Any]
    endless: bool
    starts: str = ""
    others: tuple["Path", ...] = ()
    agreed: int = 0

    @property
    def end(self) -> Point:
        current: Point = self.visited[-1]
        return current

    @property
    def arrived(self) -> bool:
        """Whether this is a minimum, near enough."""
        size, end = float(self.loss.size), self.end
        proof = certificate(size * end.gradient, size * end.hessian)
        return proof.positive_definite and proof.distance <= CLOSE and not self.endless


def joined(current: Point, known: tuple[Path, ...]) -> Path | None:
    """The way to whose end, a minimum, Newton steps lead from a point: it is less than `JOINED`
    standard errors away, where the loss is quadratic and has no other."""
    for path in known:
        gap, size = current.x - path.end.x, float(path.loss.size)
        if current.finite and size * gap @ path.end.hessian @ gap < JOINED**2:
            close = size * abs(current.loss - path.end.loss) < JOINED**2
            return path if close else None
    return None


@dataclasses.dataclass(frozen=True)
class Descent:
    """Newton steps down the loss of a model.

    Attributes:
        model: a `fitting.Model`.
        num_steps: the most Newton steps.
        progress: see `progress.bar`.
    """

    model: Any
    num_steps: int
    progress: bool

    def path(self, x: np.ndarray, known: tuple[Path, ...] = ()) -> Path:
        """The path from x, with the method's plans made anew where it leads; x alone if the loss is
        not finite there. It ends where it comes so close to a known minimum that it leads there."""
        model, precision = self.model, self.model.precision
        visited: list[Point] = []
        lost, rounds = False, model.rounds
        while rounds > 0:
            loss = model.loss_that_reaches(x) if lost else model.loss_at(x)
            points, learns = model.points(loss), self.learns(loss, x)
            if not learns:
                current = points(x)
            elif visited and visited[-1].finite:  # of a loss with other plans
                current = dataclasses.replace(sloped(loss, x), hessian=visited[-1].hessian)
            elif (rough := loss.rough_hessian(x)) is not None:
                current = dataclasses.replace(sloped(loss, x), hessian=rough)
            else:
                current = point(loss, x, order=1)
            if not current.finite:
                visited += [current][bool(visited) :]
                break
            moves = current.decrement * float(loss.size) ** 0.5 > CLOSE
            planned = bool(jax.tree.leaves(loss.method))
            left = self.num_steps - max(len(visited) - 1, 0)
            enough = PLANNED if moves and planned and rounds > 1 else 0.0
            steps = self.steps(points, loss, current, left, known, enough)
            old = joined(steps[-1], known)
            if old is not None:
                way = [*visited, *steps[bool(visited) :], old.end]
                return dataclasses.replace(old, visited=way)
            narrowed = self.too_wide(steps[-1])
            if narrowed:  # by chance, or is there no maximum?
                steps.append(precision.settled_but_for_width(points, steps[-1], left))
            visited += steps[bool(visited) :]
            x = visited[-1].x
            if not lost and not loss.reaches(visited[-1]):
                lost = True
                continue
            again, rounds = moves and (narrowed or planned), rounds - 1
            if not again or self.too_wide(visited[-1]) or len(visited) > self.num_steps:
                break
        if (learns or loss.steps(x) is not None) and visited[-1].finite:
            order = 2 if learns else 4
            end = point(loss, visited[-1].x, order=order)
            # A curvature that is not finite, next to the end of the domain, tells nothing.
            visited[-1] = dataclasses.replace(
                end, hessian=np.where(np.isfinite(end.hessian), end.hessian, 0.0)
            )
        return Path(loss, visited, model.is_endless(x))

    def learns(self, loss: Loss, x: np.ndarray) -> bool:
        """Whether the curvature on the way to a minimum is learnt from gradients, of whose
        differences a Hessian takes as long as many steps."""
        return bool(loss.iterated) and loss.steps(np.asarray(x)) is not None

    def steps(
        self,
        points: Callable[[np.ndarray], Point],
        loss: Loss,
        current: Point,
        left: int,
        known: tuple[Path, ...],
        enough: float,
    ) -> list[Point]:
        """The points of so many steps at most down a loss, from a point on, to so many standard
        errors from a minimum."""
        path = [current]

        def stop(current: Point) -> bool:
            near = current.decrement * float(loss.size) ** 0.5 < enough
            return near or self.too_wide(current) or joined(current, known) is not None

        learns = self.learns(loss, current.x)
        if learns or (self.model.expensive and not current.settled):
            secant = Secant(loss, current)
            steps = newton_steps(secant, current, left, stop=stop, admits=self.admits)
            path += watched(steps, float(loss.size), self.progress)
            if stop(path[-1]) or (learns and path[-1].settled):
                return path
            renewed = points(path[-1].x)
            if not renewed.finite:  # its curvature: the loss ends close by
                return path if loss.reaches(renewed) else [*path[:-1], renewed]
            path[-1] = renewed
        steps = newton_steps(
            points, path[-1], left, self.model.damping, stop=stop, admits=self.admits
        )
        return path + list(watched(steps, float(loss.size), self.progress))

    def too_wide(self, current: Point) -> bool:
        """Whether to give up on a Gaussian that widens without an end."""
        precision = self.model.precision
        return precision is not None and bool(precision.too_wide(current))

    def admits(self, current: Point, x: np.ndarray) -> bool:
        precision = self.model.precision
        return precision is None or bool(precision.admits(current, x))

    def best(self, starts: list[Any]) -> Path:
        """The best of the ways from several starts, with the others and a sentence about them.

        Raises:
            ValueError: if the likelihood is not finite at any start.
        """
        paths: list[Path] = []

        def follow(x: np.ndarray) -> None:
            paths.append(self.path(x, tuple(path for path in paths if path.arrived)))

        for x in bar(starts, "starts", self.progress and len(starts) > 1):
            follow(x)
        best = min(paths, key=self.model.rank)
        if not best.end.finite:
            raise ValueError(self.model.no_start)
        maxima = sorted(filter(lambda path: path.arrived, paths), key=self.model.rank)
        ends = [] if best.endless else [best, *(maxima[:1] if not best.arrived else ())]
        for x in [x for path in ends for x in self.model.images(path.end.x)]:
            follow(x)
        best = min(paths, key=self.model.rank)
        if not paths[1:]:
            return dataclasses.replace(best, others=tuple(paths), agreed=1)
        sentence, agreed = told_of(best, paths)
        return dataclasses.replace(best, starts=sentence, others=tuple(paths), agreed=agreed)


def told_of(best: Path, paths: list[Path]) -> tuple[str, int]:
    """A sentence on the ends that several starts led to, and how many led to the best."""
    size, arrived = float(best.loss.size), [path for path in paths if path.arrived]
    gaps = [size * (path.end.loss - best.end.loss) for path in arrived]
    agreed = sum(gap <= SAME for gap in gaps)
    others = sorted({round(gap, 2) for gap in gaps if gap > SAME})
    if not best.arrived and arrived:
        return (
            f"From one of {len(paths)} starts the likelihood rose to {min(gaps):.3g} nats "
            "above the best of the maxima that others reached."
        ), 0
    sentence = (
        f"{agreed} of {len(paths)} starts reached this maximum; "
        f"{len(paths) - len(arrived)} did not converge."
    )
    if others:
        listed = ", ".join(f"{gap:.3g}" for gap in others[:5])
        sentence += f" {len(others)} other maxima are lower by {listed} nats."
    return sentence, agreed


def watched(points: Iterable[Point], size: float, progress: bool) -> Iterator[Point]:
    """The points of Newton steps down a loss, with their log-likelihood in the line.

    Args:
        points: of the steps, one at a time.
        size: how many rows the loss is the mean of.
        progress: see `bar`.
    """
    shown = bar(points, "Newton steps", progress)
    for at in shown:
        value, away = -size * at.loss, at.decrement * size**0.5
        shown.note = f"log-likelihood {value:.8g}, about {away:.1e} standard errors to go"
        yield at
