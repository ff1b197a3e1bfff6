"""Newton's method, damped: for few parameters and a smooth loss, digits to the last."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Point(NamedTuple):
    """A loss and its derivatives at x, a vector of q parameters."""

    x: np.ndarray
    loss: float
    gradient: np.ndarray
    hessian: np.ndarray

    @property
    def finite(self) -> bool:
        return all(bool(np.all(np.isfinite(part))) for part in self)

    @property
    def step(self) -> np.ndarray:
        """-|H|^-1 g with H scaled to a unit diagonal: downhill also where H is not positive, and
        nowhere along what does not move the loss."""
        units = np.sqrt(np.abs(np.diagonal(self.hessian)))
        units = np.where(units > 0, units, 1.0)
        values, vectors = np.linalg.eigh(self.hessian / units[:, None] / units)
        sizes = np.abs(values)
        floor = 64 * np.finfo(self.hessian.dtype).eps * sizes.max(initial=0.0)
        inverse = np.where(sizes > floor, 1.0 / np.where(sizes > floor, sizes, 1.0), 0.0)
        return -(vectors * inverse) @ (vectors.T @ (self.gradient / units)) / units

    @property
    def decrement(self) -> float:
        """sqrt(g . |H|^-1 g): twice its square is what a step should gain."""
        return float(np.sqrt(max(-self.gradient @ self.step, 0.0)))


@jax.jit
def derivatives(loss: Any, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Loss, gradient and Hessian of a callable pytree at x."""

    def with_value(x):
        value, gradient = jax.value_and_grad(loss)(x)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(with_value, has_aux=True)(x)
    return value, gradient, hessian


def point(loss: Any, x: np.ndarray, dtype: Any) -> Point:
    value, gradient, hessian = (
        np.asarray(part) for part in derivatives(loss, jnp.asarray(x, dtype))
    )
    return Point(np.asarray(x), float(value), gradient, (hessian + hessian.T) / 2)


def newton_steps(loss: Any, here: Point, num_steps: int, enough: float, stop: Any = None):
    """The points that damped Newton steps visit, from `here` on, one at a time.

    A step is halved until the loss falls by a part of what its slope promises; a loss that is not
    finite has not fallen. The steps end where the decrement is below `enough`, where `stop(point)`
    holds, or where rounding leaves no lower loss.

    Args:
        loss: a callable pytree of a vector, jitted here.
        here: the point to start from.
        num_steps: the most steps to make.
        enough: decrement that is small enough; one more full step is then made and kept if the
            gradient shrank.
        stop: point -> whether to give up there.
    """
    dtype = here.gradient.dtype
    noise = 8 * float(np.finfo(dtype).eps)
    for _ in range(num_steps):
        if stop is not None and stop(here):
            return
        step, slope = here.step, float(here.gradient @ here.step)
        size, there = 1.0, point(loss, here.x + here.step, dtype)
        if here.decrement <= enough:
            if there.finite and there.decrement < here.decrement:
                yield there
            return
        allowed = noise * max(abs(here.loss), 1.0)
        while not (there.finite and there.loss <= here.loss + 1e-4 * size * slope + allowed):
            size /= 2
            if size < 1e-10:
                return
            there = point(loss, here.x + size * step, dtype)
        here = there
        yield here
