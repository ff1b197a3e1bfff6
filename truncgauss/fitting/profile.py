"""Profile likelihoods: how far an estimate may move before the likelihood objects.

References:
    Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence intervals",
        Applied Statistics (1988).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from truncgauss.fitting.optimization.newton import Point, point

STAGES = 4  # of a way from the optimum to the end of an interval
MOST_STAGES = 128  # if some of them have to be divided
MOST_STEPS = 30  # of Newton's method in each
SMALL = 1e-7  # standard errors by which an end may be off


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile likelihood of an estimate.

    Attributes:
        loss: minus the mean log-likelihood, a callable pytree of a vector x.
        size: how many rows the mean is of.
        best: the point where it is lowest.
        estimate: a callable pytree, x -> a number.
        cheaper: makes x -> a point whose curvature costs less than the Hessian, which is computed
            only on ways on which that leads nowhere; None if nothing does.
    """

    loss: Any
    size: float
    best: Point
    estimate: Any
    cheaper: Callable[[], Callable[[np.ndarray], Point]] | None = None

    def interval(self, fall: float) -> tuple[float, float]:
        """The lowest and the highest value of the estimate among all parameters whose
        log-likelihood is within `fall` nats of the maximum; infinite where none is found, as where
        the likelihood is bounded."""
        whole = float(np.sqrt(2.0 * fall))
        low, high = (self.end(side, whole, self.to_fall) for side in (-1.0, 1.0))
        return (-np.inf if low is None else low[0]), (np.inf if high is None else high[0])

    def fall(self, value: float) -> float:
        """By how many nats the log-likelihood is below its maximum, at the most likely of all
        parameters with that value of the estimate; NaN where they are not found."""
        factor = np.linalg.cholesky(self.size * self.best.hessian)
        first = point(self.estimate, self.best.x)
        error = float(np.linalg.norm(np.linalg.solve(factor, first.gradient)))
        away = (value - first.loss) / error
        if away == 0.0:
            return 0.0
        end = self.end(float(np.sign(away)), abs(away), self.to_value)
        return np.nan if end is None else end[1]

    def end(self, side: float, whole: float, goal: Any) -> tuple[float, float] | None:
        """The estimate and the fall of the log-likelihood where a goal is reached on the way to
        lower (side -1) or higher estimates; None if it is not."""
        if self.cheaper is not None:
            end = self.way(self.cheaper(), side, whole, goal)
            if end is not None:
                return end
        return self.way(functools.partial(point, self.loss), side, whole, goal)

    def way(
        self, evaluate: Callable[[np.ndarray], Point], side: float, whole: float, goal: Any
    ) -> tuple[float, float] | None:
        """The end of the way on which the likelihood falls little by little.

        With y = factor^T (x - x_best) the log-likelihood falls by about |y|^2 / 2. On the way its
        gradient is parallel to that of the estimate: q equations in y and the ratio of the
        gradients, which Newton's method solves along with the goal of each stage.
        """
        root = np.linalg.inv(np.linalg.cholesky(self.size * self.best.hessian)).T
        first = point(self.estimate, self.best.x)
        start = root.T @ first.gradient
        unit = float(np.linalg.norm(start))

        def equations(z: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray, Any]:
            """Their values and Jacobian, and what was reached: x = x_best + root @ y."""
            x = self.best.x + root @ z[:-1]
            there, target = evaluate(x), point(self.estimate, x)
            gradient = root.T @ there.gradient * self.size
            hessian = root.T @ there.hessian @ root * self.size
            along = side / unit * (root.T @ target.gradient)
            bend = side / unit * (root.T @ target.hessian @ root)
            gone = side / unit * (target.loss - first.loss)
            fallen = self.size * (there.loss - self.best.loss)
            gap, row = goal(radius, gone, fallen, along, gradient)
            values = np.append(gradient - z[-1] * along, gap)
            upper = np.column_stack([hessian - z[-1] * bend, -along])
            return values, np.vstack([upper, np.append(row, 0.0)]), (target.loss, fallen)

        reached, end = 0.0, None
        direction, z = np.append(side * start / unit, 1.0), np.zeros(len(start) + 1)
        stage = whole / STAGES
        while reached < whole:
            radius = min(reached + stage, whole)
            guess = z * radius / reached if reached else direction * radius
            solved = solve(equations, guess, z, radius)
            if solved is None:
                stage *= 0.5
                if stage < whole / MOST_STAGES:
                    return None
                continue
            z, end = solved
            reached = radius
        return end

    @staticmethod
    def to_fall(
        radius: float, gone: float, fallen: float, along: np.ndarray, gradient: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """The goal that the log-likelihood has fallen by radius^2 / 2, and its gradient."""
        return fallen - 0.5 * radius**2, gradient

    @staticmethod
    def to_value(
        radius: float, gone: float, fallen: float, along: np.ndarray, gradient: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """The goal that the estimate has gone so many standard errors, and its gradient."""
        return gone - radius, along


def is_lowest(jacobian: np.ndarray, ratio: float) -> bool:
    """Whether the loss is lowest there among all points with that value of the estimate, and rises
    beyond: other points solve the equations too."""
    curvature, along = jacobian[:-1, :-1], jacobian[:-1, -1:]
    tangents = np.linalg.svd(along.T)[2][1:]
    values = np.linalg.eigvalsh(tangents @ curvature @ tangents.T)
    return ratio > 0 and bool(np.all(values > 0))


def solve(
    equations: Any, z: np.ndarray, finite: np.ndarray, radius: float
) -> tuple[np.ndarray, Any] | None:
    """Newton's method from z = (y, ratio), with steps no longer than half the way; None if it does
    not arrive. Where the loss is not finite the step back to `finite` is halved."""
    for _ in range(MOST_STEPS):
        values, jacobian, end = equations(z, radius)
        if not (np.all(np.isfinite(values)) and np.all(np.isfinite(jacobian))):
            z = 0.5 * (z + finite)
            continue
        finite = z
        if np.max(np.abs(values)) <= SMALL * max(radius, 1.0):
            return (z, end) if is_lowest(jacobian, z[-1]) else None
        try:
            step = -np.linalg.solve(jacobian, values)
        except np.linalg.LinAlgError:
            return None
        length = float(np.linalg.norm(step[:-1]))
        z = z + step * min(1.0, 0.5 * radius / length if length > 0 else 1.0)
    return None
