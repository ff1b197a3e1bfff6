"""Damped Newton steps: the optimiser of every likelihood whose curvature is at hand.

The curvature is the Hessian, or Fisher's expected one. Far from an optimum, where the quadratic
model is wrong, Levenberg's and Marquardt's damping shortens the step and turns it downhill.

References:
    Levenberg, "A method for the solution of certain non-linear problems in least squares",
        Quarterly of Applied Mathematics (1944).
    Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", SIAM Journal on
        Applied Mathematics (1963).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import pooling
from truncgauss.compiling import MEDIUM, Compiled
from truncgauss.optimization.checkpoint import computed

# The tolerances of all fits by Newton steps. Losses are means over rows or trials, so that a
# decrement times sqrt(n) is a distance in standard errors.
SETTLED = 1e-9  # decrement at which the steps end, after one more
CLOSE = 1e-3  # standard errors: a fit has converged if its optimum is estimated to be as near
SUFFICIENT = 0.05  # part of the decrease that the slope promises, which a step must bring
FEW_NUMBERS = 2**14  # of a loss that runs for milliseconds, but compiles for seconds
NEAR = 0.02  # decrement below which the curvature is kept: it changes little from there on
LEAST_DAMPING, MOST_DAMPING = 1e-2, 1e12  # the first after an undamped failure, and the last tried


@dataclasses.dataclass(frozen=True)
class Point:
    """A loss with its gradient (q,) and curvature (q, q) at parameters x (q,)."""

    x: np.ndarray
    loss: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def finite(self) -> bool:
        parts = (self.loss, self.gradient, self.hessian)
        return all(bool(np.all(np.isfinite(part))) for part in parts)

    @property
    def units(self) -> np.ndarray:
        """What one unit of damping is compared with, in each parameter: here its own curvature."""
        units = np.sqrt(np.abs(np.diagonal(self.hessian)))
        return np.where(units > 0, units, 1.0)

    @functools.cached_property
    def spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and vectors of the curvature in units, which every step from here takes."""
        units = self.units
        return np.linalg.eigh(self.hessian / units[:, None] / units)

    def step(self, damping: float = 0.0) -> np.ndarray:
        """-(|H| + damping)^-1 g in units: downhill also where H is not positive, and nowhere along
        what does not move the loss."""
        units, (values, vectors) = self.units, self.spectrum
        sizes = np.abs(values)
        floor = 64 * np.finfo(self.hessian.dtype).eps * sizes.max(initial=0.0)
        sizes = np.where(sizes > floor, sizes, 0.0) + damping
        inverse = np.where(sizes > 0, 1.0 / np.where(sizes > 0, sizes, 1.0), 0.0)
        return -(vectors * inverse) @ (vectors.T @ (self.gradient / units)) / units

    @property
    def decrement(self) -> float:
        """sqrt(g . |H|^-1 g): a full step should gain half of its square."""
        return float(np.sqrt(max(-self.gradient @ self.step(), 0.0)))

    @property
    def settled(self) -> bool:
        """Whether no step can gain what a reader would see."""
        return self.decrement <= SETTLED


P = TypeVar("P", bound=Point)


@Compiled
def derivatives(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Loss, gradient and Hessian of a callable pytree at x; its own if it has `derivatives`."""
    if hasattr(loss, "derivatives"):
        return loss.derivatives(x)

    def with_value(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(loss)(x)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(with_value, has_aux=True)(x)
    return value, gradient, hessian


def point(loss: Any, x: np.ndarray) -> Point:
    """A callable pytree's loss with its exact derivatives at x, in float64."""
    size = sum(jnp.size(leaf) for leaf in jax.tree.leaves(loss))
    effort = MEDIUM if size <= FEW_NUMBERS else None
    compiled, at = functools.partial(derivatives, effort=effort), jnp.asarray(x, jnp.float64)
    mark = getattr(loss, "mark", None)
    if mark is None:
        parts = computed("derivatives", compiled, loss, at)
    else:
        every = pooling.OfAllRows(compiled, loss)
        parts = computed("derivatives", every, type(loss).__name__, np.asarray(mark), at)
    value, gradient, hessian = map(np.asarray, parts)
    return Point(np.asarray(x), float(value), gradient, (hessian + hessian.T) / 2)


@Compiled
def slope(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Loss and gradient of a callable pytree at x."""
    return jax.value_and_grad(loss)(x)


@dataclasses.dataclass
class Chord:
    """Points of a loss whose curvature comes from cheaper estimates of it, and is kept near the
    minimum: value and gradient, which say where that is, are those of the loss.

    A Hessian by q gradients costs more than all steps that it saves there (Shamanskii's and the
    chord method: Kelley, "Iterative Methods for Linear and Nonlinear Equations", 1995, chapter 5).

    Attributes:
        loss: a callable pytree of a vector.
        rough: likewise, each with about the same curvature. The first serves for steps.
        kept: the last curvature.
    """

    loss: Any
    rough: tuple[Any, ...]
    kept: np.ndarray | None = None

    def __call__(self, x: np.ndarray) -> Point:
        at = jnp.asarray(x, jnp.float64)
        value, gradient = map(np.asarray, slope(self.loss, at, effort=MEDIUM))
        here = Point(np.asarray(x), float(value), gradient, np.zeros((0, 0)))
        if self.kept is not None:
            near = dataclasses.replace(here, hessian=self.kept)
            if near.finite and near.decrement < NEAR:
                return near
        return self.renewed(here)

    def renewed(self, here: Point, count: int = 1) -> Point:
        """A point with its own curvature, the mean of so many estimates."""
        found = [point(loss, here.x).hessian for loss in self.rough[:count]]
        there = dataclasses.replace(here, hessian=np.mean(found, axis=0))
        if there.finite:
            self.kept = there.hessian
        return there


def newton_steps(
    evaluate: Callable[[np.ndarray], P],
    here: P,
    num_steps: int,
    damping: float = 0.0,
    stop: Callable[[P], bool] = lambda here: False,
    admits: Callable[[P, np.ndarray], bool] = lambda here, x: True,
) -> Iterator[P]:
    """The points that damped Newton steps visit, from `here` on, one at a time.

    A step that does not bring a part of what its slope promises is tried again with four times the
    damping; after one that does, the damping is an eighth. A loss that is not finite has not
    fallen. The steps end where the point is settled, where `stop(point)` holds, or where rounding
    leaves no lower loss.

    Args:
        evaluate: x -> the point there.
        here: the point to start from.
        num_steps: the most evaluations to make.
        damping: to begin with, in units of `here.units`.
        stop: point -> whether to give up there.
        admits: (point, x) -> whether a step from the point may lead to x.
    """
    eps = float(np.finfo(float).eps)
    while num_steps > 0 and not stop(here):
        step = here.step(damping)
        if here.settled:
            there = evaluate(here.x + step)
            if there.finite and there.decrement < here.decrement:
                yield there
            return
        enough = -SUFFICIENT * float(here.gradient @ step) - 8 * eps * max(abs(here.loss), 1.0)
        tried: P | None = None
        if admits(here, here.x + step):
            tried, num_steps = evaluate(here.x + step), num_steps - 1
        if tried is not None and tried.finite and here.loss - tried.loss >= enough:
            here, damping = tried, damping / 8
            yield here
        elif damping > MOST_DAMPING:
            return
        else:
            damping = max(4 * damping, LEAST_DAMPING)


def settled_within(
    evaluate: Callable[[np.ndarray], P], here: P, basis: np.ndarray, num_steps: int
) -> P:
    """The point where Newton steps end that may only move along the columns of `basis`, (q, k)."""

    def part(z: np.ndarray) -> Point:
        whole = evaluate(here.x + basis @ z)
        return Point(z, whole.loss, whole.gradient @ basis, basis.T @ whole.hessian @ basis)

    first = part(np.zeros(basis.shape[1]))
    *_, last = first, *newton_steps(part, first, num_steps)
    return evaluate(here.x + basis @ last.x)


def verdict(distance: float, num_steps: int) -> tuple[bool, str]:
    """Whether a fit has converged, and a sentence, from its estimated distance to the optimum in
    standard errors."""
    away = f"the optimum is {distance:.1e} standard errors away by estimate"
    if distance <= CLOSE:
        return True, f"Converged after {num_steps} steps: {away}."
    return False, (f"Not converged: {away}. Allow more num_steps, or give the method more points.")
