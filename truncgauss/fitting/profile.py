r"""Profile likelihoods: an estimate is held at a value, all else is at its likeliest.

A likelihood may have ridges, as where a component of a mixture leaves the rows, and several maxima.
So the value moves away from the estimate little by little, and at each damped Newton steps lead
from the constrained maximum before to the next: labels of components stay what they were. With y
coordinates in which the log-likelihood falls by about |y|^2 / 2, a the gradient and A the Hessian
of the estimate, g and H those of minus the log-likelihood, and z coordinates tangent to the surface
where the estimate has its value, the derivatives on that surface are

.. math:: J^T g, \qquad J^T (H - \lambda A) J, \qquad J = \partial y / \partial z, \quad a^T J = 0,

with lambda the derivative of the profile log-likelihood by the value (the envelope theorem), from
which the next value follows. Standard deviations and variances of components move in logarithms,
weights in logits.

References:
    Venzon and Moolgavkar, "A method for computing profile-likelihood-based confidence intervals",
        Applied Statistics (1988). Gill, Murray and Wright, "Practical Optimization" (1981), chapter
        6, for the Newton step on a surface.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from truncgauss.arrays.pytrees import frozen_pytree, static_field
from truncgauss.fitting.newton import Loss, Point, newton_steps, point

MOST_STEPS = 40  # of Newton's method at one value
SETTLED = 1e-4  # standard errors from a constrained maximum, at which its steps end
ROUGH = 0.05  # likewise, at which a fall still has two digits
ON_SURFACE = 1e-9  # standard errors, to which the value is held
ROUNDED = 5e-3  # likewise, where rounding lets it come no closer
MOST_VALUES = 100  # on the way to an end
CLOSE_BY = 1e-4  # standard errors from an end, where a step by the rate of the fall reaches it
JUMP = 1e-12  # likewise: between values on both sides of an end, where the fall is no function
LEAST_STEP = 1e-4  # standard errors: where no longer step leads to a maximum the way ends
STRAIGHT, CLOSE = 0.5, 0.25  # parts of a step, and standard errors, by which its end may be missed
# Part of the fall that is left, of which twice the way must bring more, or it is taken for one that
# reaches no end once it has become so many times longer.
LITTLE, LONGER = 0.02, 4.0


@frozen_pytree
class Unbounded(Loss):
    """One of the estimates as a number without bounds, which is differentiated as a loss is.

    Attributes:
        coordinates, index: of which estimate.
        kind: "weight" for its logit, "variance" for its logarithm, or "number" (static).
    """

    coordinates: Any
    index: jax.Array
    kind: str = static_field()

    def __call__(self, x: jax.Array) -> jax.Array:
        value = self.coordinates.estimates(x)[self.index]
        if self.kind == "weight":
            return jnp.log(value) - jnp.log1p(-value)
        return jnp.log(value) if self.kind == "variance" else value

    def of(self, value: float) -> float:
        """A value on that scale; infinite at a bound, NaN beyond."""
        forward = {"weight": special.logit, "variance": np.log, "number": float}[self.kind]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(forward(value))

    def back(self, value: float) -> float:
        """The estimate whose value on that scale is this; infinite for infinity."""
        inverse = {"weight": special.expit, "variance": np.exp}.get(self.kind, float)
        with np.errstate(over="ignore"):
            return float(inverse(value)) if np.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class ConstrainedPoint(Point):
    """A point of the surface where the estimate has its value, in coordinates z of that surface.

    Attributes, besides those of `Point`, whose loss is the fall of the log-likelihood in nats:
        y: where it is.
        value: of the estimate.
        rate: the derivative of the profile's fall by the value, at a constrained maximum.
    """

    y: np.ndarray
    value: float
    rate: float

    @property
    def root(self) -> float:
        """sqrt(2 fall), which is the distance in standard errors if the fall is quadratic."""
        return float(np.sqrt(2.0 * max(self.loss, 0.0)))

    def value_at(self, root: float) -> float:
        """The value at which Newton's method has such a root."""
        return self.value + (root - self.root) * self.root / self.rate


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile likelihood of one estimate.

    Attributes:
        evaluate: x -> minus the mean log-likelihood of a row, with its derivatives.
        size: how many rows that is the mean of.
        best: the point where it is lowest.
        estimate: x -> a number without bounds.
        cheaper: makes a function like `evaluate` whose curvature costs less than the Hessian, which
            is computed only on ways on which that leads nowhere; None if nothing does.
        same_labels: two x -> whether parameters stand for about the same rows at both; None if
            they cannot be exchanged.
    """

    evaluate: Callable[[np.ndarray], Point]
    size: float
    best: Point
    estimate: Unbounded
    cheaper: Callable[[], Callable[[np.ndarray], Point]] | None = None
    same_labels: Callable[[np.ndarray, np.ndarray], bool] | None = None

    def interval(self, fall: float) -> tuple[float, float]:
        """The ends of all values next to the estimate whose log-likelihood is within `fall` nats of
        the maximum; infinite where it does not fall that far."""
        return self.reach(-1.0, fall), self.reach(1.0, fall)

    def reach(self, side: float, fall: float) -> float:
        """The end of that interval on one side."""
        return self.estimate.back(self.by_cheaper(Profile.end, side, fall))

    def fall(self, value: float) -> float:
        """Nats by which the log-likelihood is below its maximum at the most likely of all
        parameters with that value of the estimate; NaN where they are not found, or the value
        cannot be."""
        return self.by_cheaper(Profile.fall_at, self.estimate.of(value))

    def by_cheaper(self, function: Callable[..., float], *arguments: float) -> float:
        """A number from the profile by a cheaper curvature or, if that fails, by Hessians."""
        with np.errstate(over="ignore", invalid="ignore"):  # of points that are not finite
            if self.cheaper is not None:
                alike = dataclasses.replace(self, evaluate=self.cheaper(), cheaper=None)
                result = function(alike, *arguments)
                if np.isfinite(result):
                    return result
            return function(self, *arguments)

    def fall_at(self, goal: float) -> float:
        """`fall` of a number without bounds."""
        before, last = None, self.maximum
        longest = 0.5 * self.error
        while last.value != goal and longest > LEAST_STEP * self.error and np.isfinite(goal):
            step = goal - last.value
            if abs(step) > longest:
                step = float(np.copysign(longest, step))
            reached = self.at(
                goal if step == goal - last.value else last.value + step, last, before
            )
            if reached is None:
                longest = abs(step) / 4
            else:
                before, last, longest = last, reached, 2 * longest
        return last.loss if last.value == goal else np.nan

    @functools.cached_property
    def root(self) -> np.ndarray:
        """R with x = best.x + R y."""
        return np.asarray(np.linalg.inv(np.linalg.cholesky(self.size * self.best.hessian)).T)

    @functools.cached_property
    def maximum(self) -> ConstrainedPoint:
        y = np.zeros(len(self.best.x))
        return ConstrainedPoint(y[1:], 0.0, y[1:], np.diag(y[1:]), y, self.target(y)[0], 0.0)

    @functools.cached_property
    def error(self) -> float:
        return float(np.linalg.norm(self.target(self.maximum.y)[1]))

    def target(self, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The estimate at y with its gradient and Hessian."""
        current, root = point(self.estimate, self.x(y)), self.root
        return current.loss, root.T @ current.gradient, root.T @ current.hessian @ root

    def end(self, side: float, goal: float) -> float:
        """The nearest value on one side at which the log-likelihood has fallen by `goal` nats;
        infinite where it does not, or no constrained maxima are found so far away."""
        whole, nowhere = float(np.sqrt(2.0 * goal)), side * np.inf
        before, last, beyond = None, self.maximum, None
        longest = step = 0.5 * whole * self.error
        steep = step  # the farthest from the maximum where the fall grew enough
        for _ in range(MOST_VALUES):
            reached = self.at(last.value + side * step, last, before)
            if reached is None:
                longest = step = step / 4
                # Near a bound of the estimate the fall is steep: there a standard error is long.
                steepest = abs(last.rate) / last.root if last.root > 0 else 0.0
                if step * max(1.0 / self.error, steepest) < LEAST_STEP:
                    return nowhere
                continue
            if abs(reached.root - whole) < CLOSE_BY and side * reached.rate > 0:
                return reached.value_at(whole)
            if reached.loss > goal:
                beyond = reached
            else:
                gone = abs(reached.value - self.maximum.value)
                if (reached.loss - last.loss) * gone >= LITTLE * (goal - reached.loss) * step:
                    steep = gone
                if beyond is None and gone > LONGER * steep:
                    return nowhere
                before, last, longest = last, reached, max(2 * step, longest)
            # As Newton's method for the root of the fall has it, from the point that was reached;
            # between values on both sides of the end, or at most as far again as all the way.
            step = np.inf
            if side * reached.rate > 0:
                step = side * (reached.value_at(whole) - last.value)
            if beyond is None:
                most = min(longest, abs(last.value - self.maximum.value))
                step = float(step if 0.0 < step < most else most)
            else:
                room = abs(beyond.value - last.value)
                inside = 0.02 * room < step < 0.98 * room
                step = float(step if inside else min(longest, 0.5 * room))
            if beyond is not None and abs(beyond.value - last.value) < JUMP * self.error:
                return last.value  # where the fall jumps
        return nowhere

    def at(
        self, value: float, last: ConstrainedPoint, before: ConstrainedPoint | None
    ) -> ConstrainedPoint | None:
        """The constrained maximum at a value, from the last ones on the way; None if steps lead to
        none, to components whose labels are exchanged, or off the way to a lower maximum."""
        slope = self.target(last.y)[1]
        direction, rise = slope / (slope @ slope), 1.0 / self.error
        if before is not None and last.value != before.value:
            direction = (last.y - before.y) / (last.value - before.value)
            rise = abs(last.rate) / last.root if last.root > 0 else rise
        start = last.y + (value - last.value) * direction
        reached = self.climbed(start, value)
        if reached is None:
            return None
        if self.same_labels is not None and not self.same_labels(self.x(last.y), self.x(reached.y)):
            return None
        missed = float(np.linalg.norm(reached.y - start))
        on_way = missed <= max(STRAIGHT * float(np.linalg.norm(reached.y - last.y)), CLOSE)
        higher = reached.root <= last.root + rise * abs(value - last.value)
        return reached if on_way or higher else None

    def x(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(self.best.x + self.root @ y)

    def climbed(self, start: np.ndarray, value: float) -> ConstrainedPoint | None:
        """The constrained maximum to which steps lead from a start near the surface."""
        slope = self.target(start)[1]
        if not (np.all(np.isfinite(slope)) and np.any(slope != 0.0)):
            return None
        normal = slope / np.linalg.norm(slope)
        tangents = np.linalg.svd(normal[None])[2][1:].T

        def evaluate(z: np.ndarray) -> ConstrainedPoint:
            """The point of the surface along the normal above start + tangents @ z; NaN if there
            is none."""
            y, nothing = start + tangents @ z, np.full(len(z), np.nan)
            matrix = np.outer(nothing, nothing)
            nowhere = ConstrainedPoint(z, np.nan, nothing, matrix, y, value, np.nan)
            closest = np.inf
            for _ in range(MOST_STEPS):
                estimate, slope, bend = self.target(y)
                along = float(slope @ normal)
                if not np.isfinite(estimate) or not np.isfinite(along) or along == 0.0:
                    return nowhere
                missed = abs(value - estimate)
                least = ROUNDED if missed >= closest else ON_SURFACE
                if missed <= least * self.error:
                    break
                closest = missed
                y = y + (value - estimate) / along * normal
            else:
                return nowhere
            current = self.evaluate(self.x(y))
            if not current.finite:
                return nowhere
            gradient = self.size * (self.root.T @ current.gradient)
            hessian = self.size * (self.root.T @ current.hessian @ self.root)
            rate = float(gradient @ normal) / along
            moves = tangents - np.outer(normal, slope @ tangents) / along
            curvature = moves.T @ (hessian - rate * bend) @ moves
            fall = self.size * (current.loss - self.best.loss)
            return ConstrainedPoint(z, fall, moves.T @ gradient, curvature, y, value, rate)

        with jax.debug_nans(False):  # by which a step out of the domain is known
            current = evaluate(np.zeros(len(start) - 1))
            if not current.finite:
                return None
            stop = lambda current: current.decrement < SETTLED
            *_, current = current, *newton_steps(evaluate, current, MOST_STEPS, stop=stop)
        return None if current.decrement > ROUGH else current
