r"""Profile likelihoods of mixtures: an estimate is held at a value, all else is at its likeliest.

The likelihood of a mixture has ridges, along which a component leaves the rows, and several maxima.
So the value moves away from the estimate little by little, and at each damped Newton steps lead
from the constrained maximum before to the next: labels of components stay what they were. With y
coordinates in which the log-likelihood falls by about |y|^2 / 2, a the gradient and A the Hessian
of the estimate, g and H those of minus the log-likelihood, and z coordinates tangent to the surface
where the estimate has its value, the derivatives on that surface are

.. math:: J^T g, \qquad J^T (H - \lambda A) J, \qquad J = \partial y / \partial z, \quad a^T J = 0,

with lambda the derivative of the profile log-likelihood by the value (the envelope theorem), from
which the next value follows. Variances move in logarithms and weights in logits.

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
from scipy import optimize, special

from truncgauss.execution.pytrees import frozen_pytree, static_field
from truncgauss.fitting.derived import DerivedCoordinates
from truncgauss.fitting.mixtures.curvature import point as point_at
from truncgauss.fitting.mixtures.curvature import terms_at
from truncgauss.fitting.mixtures.likelihood import row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss
from truncgauss.fitting.mixtures.rising import natural_coordinates
from truncgauss.fitting.mixtures.starts import standard_rows
from truncgauss.fitting.optimization.newton import Point, newton_steps, point

MOST_STEPS = 40  # of Newton's method at one value
SETTLED = 1e-4  # standard errors from a constrained maximum, at which its steps end
ROUGH = 0.05  # likewise, at which a fall still has two digits
ON_SURFACE = 1e-12  # of the value, to which it is held
MOST_VALUES = 100  # on the way to an end
SMALL = 1e-6  # standard errors by which an end may be off
LEAST_STEP = 1e-4  # standard errors: where no longer step leads to a maximum the way ends
STRAIGHT, CLOSE = 0.5, 0.25  # parts of a step, and standard errors, by which its end may be missed
# Part of the fall that is left, of which twice the way must bring more, or it is taken for one that
# reaches no end once it has become so many times longer.
LITTLE, LONGER = 0.02, 4.0


@frozen_pytree
class Unbounded:
    """One of the estimates as a number without bounds.

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
        """The estimate whose value on that scale is this."""
        with np.errstate(over="ignore"):
            return float({"weight": special.expit, "variance": np.exp}.get(self.kind, float)(value))


@dataclasses.dataclass(frozen=True)
class OnSurface(Point):
    """A point of the surface where the estimate has its value, in coordinates z of that surface.

    Attributes, besides those of `Point`, whose loss is the fall of the log-likelihood in nats:
        y: where it is.
        rate: the derivative of the profile's fall by the value, at a constrained maximum.
    """

    y: np.ndarray
    rate: float


@dataclasses.dataclass(frozen=True)
class ConstrainedMaximum:
    """The highest point with an estimate at a value, by how many nats that is below the maximum,
    and the derivative of this fall by the value."""

    y: np.ndarray
    value: float
    fall: float
    rate: float

    @property
    def root(self) -> float:
        """sqrt(2 fall), which is the distance in standard errors if the fall is quadratic."""
        return float(np.sqrt(2.0 * max(self.fall, 0.0)))


@dataclasses.dataclass(frozen=True)
class MixtureProfile:
    """The profile likelihood of one estimate of a mixture.

    Attributes:
        evaluate: x -> minus the mean log-likelihood of a row, with its derivatives.
        size: how many rows that is the mean of.
        best: the point where it is lowest.
        estimate: x -> a number without bounds.
        same_labels: two x -> whether each component stands for about the same rows at both.
    """

    evaluate: Callable[[np.ndarray], Point]
    size: float
    best: Point
    estimate: Unbounded
    same_labels: Callable[[np.ndarray, np.ndarray], bool]

    def interval(self, fall: float) -> tuple[float, float]:
        """The ends of all values next to the estimate whose log-likelihood is within `fall` nats of
        the maximum; infinite where it does not fall that far."""
        ends = [self.end(side, fall) for side in (-1.0, 1.0)]
        low, high = (end if np.isinf(end) else self.estimate.back(end) for end in ends)
        return low, high

    def fall(self, value: float) -> float:
        """By how many nats the log-likelihood is below its maximum at the most likely of all
        parameters with that value of the estimate; NaN where they are not found, or the value
        cannot be."""
        goal, before, last = self.estimate.of(value), None, self.maximum
        longest = 0.5 * self.error
        while last.value != goal and longest > LEAST_STEP * self.error and np.isfinite(goal):
            step = goal - last.value
            if abs(step) > longest:
                step = float(np.copysign(longest, step))
            there = self.at(goal if step == goal - last.value else last.value + step, last, before)
            if there is None:
                longest = abs(step) / 4
            else:
                before, last, longest = last, there, 2 * longest
        return last.fall if last.value == goal else np.nan

    @functools.cached_property
    def root(self) -> np.ndarray:
        """R with x = best.x + R y."""
        return np.asarray(np.linalg.inv(np.linalg.cholesky(self.size * self.best.hessian)).T)

    @functools.cached_property
    def maximum(self) -> ConstrainedMaximum:
        y = np.zeros(len(self.best.x))
        return ConstrainedMaximum(y, self.target(y)[0], 0.0, 0.0)

    @functools.cached_property
    def error(self) -> float:
        """The standard error of the number without bounds."""
        return float(np.linalg.norm(self.target(self.maximum.y)[1]))

    def target(self, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """The estimate at y with its gradient and Hessian."""
        there = point(self.estimate, self.x(y))
        return there.loss, self.root.T @ there.gradient, self.root.T @ there.hessian @ self.root

    def end(self, side: float, goal: float) -> float:
        """The nearest value on one side at which the log-likelihood has fallen by `goal` nats;
        infinite where it does not, or no constrained maxima are found so far away."""
        whole, nowhere = float(np.sqrt(2.0 * goal)), side * np.inf
        before, last, beyond = None, self.maximum, None
        longest = step = 0.5 * whole * self.error
        steep = step  # the farthest from the maximum where the fall grew enough
        for _ in range(MOST_VALUES):
            there = self.at(last.value + side * step, last, before)
            if there is None:
                longest = step = step / 4
                if step < LEAST_STEP * self.error:
                    return nowhere
                continue
            if abs(there.root - whole) < SMALL:
                return there.value
            if there.fall > goal:
                beyond = there
            else:
                gone = abs(there.value - self.maximum.value)
                if (there.fall - last.fall) * gone >= LITTLE * (goal - there.fall) * step:
                    steep = gone
                if beyond is None and gone > LONGER * steep:
                    return nowhere
                before, last, longest = last, there, max(2 * step, longest)
            step = self.next_step(there, last, beyond, side, whole, longest)
            if beyond is not None and abs(beyond.value - last.value) < SMALL**2 * self.error:
                return last.value  # where the fall jumps
        return nowhere

    def next_step(
        self,
        there: ConstrainedMaximum,
        last: ConstrainedMaximum,
        beyond: ConstrainedMaximum | None,
        side: float,
        whole: float,
        longest: float,
    ) -> float:
        """How far to go from the last value: as Newton's method for the root of the fall has it,
        from the point `there` that was reached; between values on both sides of the end, or at most
        so far and as far again as all the way before."""
        rate, step = side * there.rate, np.inf
        if rate > 0:
            aim = there.value + side * (whole - there.root) * there.root / rate
            step = side * (aim - last.value)
        if beyond is None:
            most = min(longest, abs(last.value - self.maximum.value))
            return float(step if 0.0 < step < most else most)
        room = abs(beyond.value - last.value)
        return float(step if 0.02 * room < step < 0.98 * room else min(longest, 0.5 * room))

    def at(
        self, value: float, last: ConstrainedMaximum, before: ConstrainedMaximum | None
    ) -> ConstrainedMaximum | None:
        """The constrained maximum at a value, from the last ones on the way; None if steps lead to
        none, to components whose labels are exchanged, or off the way to a lower maximum."""
        slope = self.target(last.y)[1]
        direction, rise = slope / (slope @ slope), 1.0 / self.error
        if before is not None:
            direction = (last.y - before.y) / (last.value - before.value)
            rise = abs(last.rate) / last.root if last.root > 0 else rise
        start = last.y + (value - last.value) * direction
        there = self.climbed(start, value)
        if there is None or not self.same_labels(self.x(last.y), self.x(there.y)):
            return None
        missed = float(np.linalg.norm(there.y - start))
        on_way = missed <= max(STRAIGHT * float(np.linalg.norm(there.y - last.y)), CLOSE)
        higher = there.root <= last.root + rise * abs(value - last.value)
        return there if on_way or higher else None

    def x(self, y: np.ndarray) -> np.ndarray:
        """The coordinates of the loss at y."""
        return np.asarray(self.best.x + self.root @ y)

    def climbed(self, start: np.ndarray, value: float) -> ConstrainedMaximum | None:
        """The constrained maximum to which steps lead from a start near the surface."""
        slope = self.target(start)[1]
        if not (np.all(np.isfinite(slope)) and np.any(slope != 0.0)):
            return None
        normal = slope / np.linalg.norm(slope)
        tangents = np.linalg.svd(normal[None])[2][1:].T
        evaluate = functools.partial(self.on_surface, start, value, normal, tangents)
        with jax.debug_nans(False):  # by which a step out of the domain is known
            here = evaluate(np.zeros(len(start) - 1))
            if not here.finite:
                return None
            stop = lambda there: there.decrement < SETTLED
            *_, here = here, *newton_steps(evaluate, here, MOST_STEPS, stop=stop)
        if here.decrement > ROUGH:
            return None
        return ConstrainedMaximum(here.y, value, here.loss, here.rate)

    def on_surface(
        self,
        start: np.ndarray,
        value: float,
        normal: np.ndarray,
        tangents: np.ndarray,
        z: np.ndarray,
    ) -> OnSurface:
        """The point of the surface along the normal above start + tangents @ z; NaN if there is
        none."""
        y, nothing = start + tangents @ z, np.full(len(z), np.nan)
        nowhere = OnSurface(z, np.nan, nothing, np.outer(nothing, nothing), y, np.nan)
        for _ in range(MOST_STEPS):
            reached, slope, bend = self.target(y)
            along = float(slope @ normal)
            if not np.isfinite(reached) or not np.isfinite(along) or along == 0.0:
                return nowhere
            if abs(value - reached) <= ON_SURFACE * max(1.0, abs(value)):
                break
            y = y + (value - reached) / along * normal
        else:
            return nowhere
        there = self.evaluate(self.x(y))
        if not there.finite:
            return nowhere
        gradient = self.size * (self.root.T @ there.gradient)
        hessian = self.size * (self.root.T @ there.hessian @ self.root)
        rate = float(gradient @ normal) / along
        moves = tangents - np.outer(normal, slope @ tangents) / along
        curvature = moves.T @ (hessian - rate * bend) @ moves
        fall = self.size * (there.loss - self.best.loss)
        return OnSurface(z, fall, moves.T @ gradient, curvature, y, rate)


def profile_of(
    loss: MixtureLoss, best: np.ndarray, number: int, function: Any = None
) -> MixtureProfile:
    """The profile likelihood of an estimate of a mixture, or of a function of all.

    Args:
        loss: minus the mean log-likelihood of a row.
        best: free coordinates where it is lowest.
        number: of the estimate, or the entry of the function.
        function: of the vector of estimates.
    """
    place: Any = loss.coordinates
    kind, several = "number" if function else place.kinds[number], place.num_components > 1
    if place.structure == "low_rank":
        evaluate, start, free = functools.partial(point_at, loss), best, np.asarray
    else:  # ridges are straight in natural coordinates
        rows = standard_rows(loss.observations, loss.sums)[0]
        place = natural_coordinates(loss, rows, best)
        evaluate, start = functools.partial(place.point, loss), place.natural(best)
        free = place.mixture_coordinates

    def same_labels(one: np.ndarray, other: np.ndarray) -> bool:
        weights = np.asarray(row_weights(loss.observations, np.float64))[:, None]
        first, second = (np.asarray(terms_at(loss, free(x)).responsibilities) for x in (one, other))
        shared = loss.sums.sum(first.T @ (weights * second))
        best_match = shared[optimize.linear_sum_assignment(shared, maximize=True)].sum()
        return bool(np.trace(shared) >= (1.0 - ROUGH) * best_match)

    if function is not None:
        place = DerivedCoordinates(place, function)
    estimate = Unbounded(place, jnp.asarray(number), kind)
    labels = same_labels if several else lambda one, other: True
    return MixtureProfile(evaluate, float(loss.size), evaluate(start), estimate, labels)
