"""Profile-likelihood intervals: how far an estimate may move before the likelihood objects.

References:
    Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence intervals",
        Applied Statistics (1988).
"""

from typing import Any

import numpy as np

from truncgauss.optimization.newton import Point, point

STAGES = 4  # of a way from the optimum to the end of an interval
MOST_STAGES = 128  # if some of them have to be divided
MOST_STEPS = 30  # of Newton's method in each
SMALL = 1e-7  # standard errors by which an end may be off


def profile_interval(
    loss: Any, size: float, best: Point, estimate: Any, fall: float
) -> tuple[float, float]:
    """The lowest and the highest value of an estimate among all parameters whose log-likelihood is
    within `fall` of the maximum; infinite where none is found, as where the likelihood is bounded.

    Args:
        loss: minus the mean log-likelihood, a callable pytree of a vector x.
        size: how many rows the mean is of.
        best: the point where it is lowest.
        estimate: a callable pytree, x -> a number.
        fall: nats of the whole sample, half of a quantile of chi-squared with one degree.
    """
    factor = np.linalg.cholesky(size * best.hessian)
    ends = [profile_end(loss, size, best, estimate, factor, fall, side) for side in (-1.0, 1.0)]
    return ends[0], ends[1]


def profile_end(
    loss: Any, size: float, best: Point, estimate: Any, factor: np.ndarray, fall: float, side: float
) -> float:
    """One end of an interval, on the way to which the likelihood falls little by little.

    With y = factor^T (x - x_best) the log-likelihood falls by about |y|^2 / 2. The end is where its
    gradient is parallel to that of the estimate, and the fall as large as allowed: q + 1 equations
    in y and the ratio of the gradients, solved by Newton's method.
    """
    root = np.linalg.inv(factor).T  # x = x_best + root @ y
    slope = root.T @ point(estimate, best.x).gradient
    unit = float(np.linalg.norm(slope))

    def equations(
        y: np.ndarray, ratio: float, radius: float
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Their values and Jacobian, and the estimate."""
        there = point(loss, best.x + root @ y)
        target = point(estimate, best.x + root @ y)
        gradient = root.T @ there.gradient * size
        hessian = root.T @ there.hessian @ root * size
        along = side / unit * (root.T @ target.gradient)
        bend = side / unit * (root.T @ target.hessian @ root)
        gap = size * (there.loss - best.loss) - 0.5 * radius**2
        values = np.append(gradient - ratio * along, gap)
        upper = np.column_stack([hessian - ratio * bend, -along])
        return values, np.vstack([upper, np.append(gradient, 0.0)]), target.loss

    whole, reached, end = float(np.sqrt(2.0 * fall)), 0.0, np.nan
    direction, z = np.append(side * slope / unit, 1.0), np.zeros(len(slope) + 1)
    stage = whole / STAGES
    while reached < whole:
        radius = min(reached + stage, whole)
        guess = z * radius / reached if reached else direction * radius
        solved = solve(equations, guess, z, radius)
        if solved is None:
            stage *= 0.5
            if stage < whole / MOST_STAGES:
                return side * np.inf
            continue
        z, end = solved
        reached = radius
    return end


def is_lowest(jacobian: np.ndarray, ratio: float) -> bool:
    """Whether the loss is lowest there among all points with that value of the estimate, and rises
    beyond: other points solve the equations too."""
    curvature, along = jacobian[:-1, :-1], jacobian[:-1, -1:]
    tangents = np.linalg.svd(along.T)[2][1:]
    values = np.linalg.eigvalsh(tangents @ curvature @ tangents.T)
    return ratio > 0 and bool(np.all(values > 0))


def solve(
    equations: Any, z: np.ndarray, finite: np.ndarray, radius: float
) -> tuple[np.ndarray, float] | None:
    """Newton's method from z = (y, ratio), with steps no longer than half the way; None if it does
    not arrive. Where the loss is not finite the step back to `finite` is halved."""
    for _ in range(MOST_STEPS):
        values, jacobian, end = equations(z[:-1], z[-1], radius)
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
