"""Newton steps down minus a log-likelihood, from one start or several, and where they end."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np

from truncgauss.execution import pooling
from truncgauss.fitting.optimization.newton import CLOSE, Point, Secant, newton_steps, point
from truncgauss.fitting.optimization.progress import bar, watched
from truncgauss.fitting.optimization.result import Fit
from truncgauss.fitting.optimization.uncertainty import certificate
from truncgauss.fitting.optimization.widening import WIDEST, Precision

ROUNDS = 4  # how often the method's plans are made anew
MANY_STARTS = 4  # by default, where one outcome may have several maxima
MOST_ROWS = 10**5  # for so many starts
UNUSED_START = (
    "From the start that was given the steps did not converge; these began at least squares."
)
JOINED = 0.1  # standard errors from a known maximum, from where steps lead to it
SAME = 1e-3  # nats of the whole sample between two maxima that are one

R = TypeVar("R", bound=Fit, covariant=True)


class Path(NamedTuple):
    """Where the steps from one start led.

    Attributes:
        loss: with the plans made where they ended.
        visited: the points, the start first.
        endless: whether the loss still falls as the Gaussian widens beyond all bounds.
    """

    loss: Any
    visited: list[Point]
    endless: bool

    @property
    def end(self) -> Point:
        return self.visited[-1]

    @property
    def arrived(self) -> bool:
        """Whether this is a minimum, near enough."""
        size, here = float(self.loss.size), self.end
        proof = certificate(size * here.gradient, size * here.hessian)
        return proof.positive_definite and proof.distance <= CLOSE and not self.endless


def joined(here: Point, known: tuple[Path, ...]) -> Path | None:
    """The way to whose end, a minimum, Newton steps lead from here: it is less than `JOINED`
    standard errors away, where the loss is quadratic and has no other."""
    for path in known:
        gap, size = here.x - path.end.x, float(path.loss.size)
        if here.finite and size * gap @ path.end.hessian @ gap < JOINED**2:
            near = size * abs(here.loss - path.end.loss) < JOINED**2
            return path if near else None
    return None


@dataclasses.dataclass(frozen=True)
class Descent:
    """How to go down a loss.

    Attributes:
        renewed: x -> the loss, with the plans of its method made at x.
        width: x -> by how much the Gaussian is wider than its rows.
        precision: where the inverse covariance, or scale, stands in x, which a step may only lower
            so far; None if it stands nowhere.
        num_steps: the most Newton steps.
        progress: see `progress.bar`.
        dear: whether a Hessian takes so much longer than a gradient that it is to be learnt from
            gradients until a minimum is near.
    """

    renewed: Callable[[np.ndarray], Any]
    width: Callable[[np.ndarray], float]
    precision: Precision | None
    num_steps: int
    progress: bool
    dear: bool = False

    def path(self, x: np.ndarray, known: tuple[Path, ...] = ()) -> Path:
        """The way from x, with the method's plans made anew where it leads; x alone if the loss is
        not finite there. It ends where it comes so near to a known minimum that it leads there."""
        visited: list[Point] = []
        for _ in range(ROUNDS):
            loss = self.renewed(x)
            evaluate = functools.partial(point, loss)
            here = evaluate(x)
            if not here.finite:
                visited += [here][bool(visited) :]
                break
            moves = here.decrement * float(loss.size) ** 0.5 > CLOSE
            left = self.num_steps - len(visited) + (not visited)
            path = self.steps(evaluate, loss, here, left, known)
            old = joined(path[-1], known)
            if old is not None:
                return old._replace(visited=[*visited, *path[bool(visited) :], old.end])
            narrowed = self.stop(path[-1])
            if self.precision is not None and narrowed:  # by chance, or is there no maximum?
                path.append(self.precision.settled_but_for_width(evaluate, path[-1], left))
            visited += path[bool(visited) :]
            x = visited[-1].x
            planned = pooling.some(jax.tree.leaves(getattr(loss, "method", None)))
            again = moves and (narrowed or planned)
            if not again or self.stop(visited[-1]) or len(visited) > self.num_steps:
                break
        return Path(loss, visited, self.is_wide(x))

    def steps(
        self,
        evaluate: Callable[[np.ndarray], Point],
        loss: Any,
        here: Point,
        left: int,
        known: tuple[Path, ...],
    ) -> list[Point]:
        """The points of so many steps at most down a loss, from here on."""
        path = [here]

        def stop(here: Point) -> bool:
            return self.stop(here) or joined(here, known) is not None

        if self.dear and not here.settled:
            steps = newton_steps(Secant(loss, here), here, left, stop=stop, admits=self.admits)
            path += watched(steps, float(loss.size), self.progress)
            if stop(path[-1]):
                return path
            path[-1] = evaluate(path[-1].x)
        steps = newton_steps(evaluate, path[-1], left, stop=stop, admits=self.admits)
        return path + list(watched(steps, float(loss.size), self.progress))

    def stop(self, here: Point) -> bool:
        """Whether to give up on a Gaussian that widens without an end."""
        return self.precision is not None and self.precision.too_wide(here)

    def admits(self, here: Point, x: np.ndarray) -> bool:
        return self.precision is None or self.precision.admits(here, x)

    def is_wide(self, x: np.ndarray) -> bool:
        """Whether the Gaussian is a straight slope across the rows, in some direction."""
        if self.precision is None:
            return self.width(x) > WIDEST
        return bool(self.precision.wide(x).size)

    def best(self, starts: list[np.ndarray]) -> tuple[Path, str]:
        """The best of the ways from several starts, and what the others found, in a sentence.

        A way that rises higher than every maximum, but has none, is the best: what the others
        found are no estimates then.
        """
        paths: list[Path] = []
        for x in bar(starts, "starts", self.progress and len(starts) > 1):
            paths.append(self.path(x, tuple(path for path in paths if path.arrived)))

        def rank(path: Path) -> tuple[bool, float]:
            beyond = 0.0 if path.arrived else SAME / float(path.loss.size)
            return not path.end.finite, path.end.loss + beyond

        best = min(paths, key=rank)
        size, arrived = float(best.loss.size), [path for path in paths if path.arrived]
        gaps = [size * (path.end.loss - best.end.loss) for path in arrived]
        others = sorted({round(gap, 2) for gap in gaps if gap > SAME})
        sentence = (
            f"{sum(gap <= SAME for gap in gaps)} of {len(paths)} starts reached this maximum; "
            f"{len(paths) - len(arrived)} did not converge."
        )
        if not best.arrived and arrived:
            sentence = (
                f"From one of {len(paths)} starts the likelihood rose to {min(gaps):.3g} nats "
                "above the best of the maxima that others reached."
            )
        elif others:
            listed = ", ".join(f"{gap:.3g}" for gap in others[:5])
            sentence += f" {len(others)} other maxima are lower by {listed} nats."
        return best, sentence


class Problem(Protocol[R]):
    """What is to be fitted, as far as `fitted` needs to know."""

    def result(self, path: Path, information: str, starts: str) -> R: ...


def fitted(
    problem: Problem[R],
    descent: Descent,
    given: np.ndarray | None,
    starts: list[np.ndarray],
    information: str,
) -> R:
    """The fit from a start that was given or, if that leads nowhere, the best from the others.

    Raises:
        ValueError: if the likelihood is not finite at any of these.
    """
    if given is not None:
        path = descent.path(given)
        if path.arrived:
            return problem.result(path, information, "")
    best, sentence = descent.best(starts)
    if not best.end.finite:
        raise ValueError(
            "The likelihood or its derivatives are not finite at the start. Give another start, or "
            "another method."
        )
    result = problem.result(best, information, sentence if len(starts) > 1 else "")
    if given is None:
        return result
    return dataclasses.replace(result, notes=(UNUSED_START, *result.notes))
