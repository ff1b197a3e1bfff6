"""Soft edges: how far inside a face a point must be to count, and how smoothly that sets in.

An edge maps a margin (the signed distance inside a face) to a value between 0 and 1 and to its
logarithm. The logarithm is what estimates use: the product of many small values underflows, the
sum of their logs does not. At margin +inf the value is 1 and takes no part in any gradient.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.pytrees import as_float_array, frozen_pytree, is_concrete
from truncgauss.special import log_ndtr, log_sigmoid, ndtr, sigmoid


class Edge:
    """The contract of an edge: `log_value(margin)`, elementwise; `value` is its exponential."""

    def log_value(self, margin: jax.Array) -> jax.Array:
        raise TypeError(f"{type(self).__name__} does not define log_value.")

    def value(self, margin: jax.Array) -> jax.Array:
        """The weight of a point at `margin`, between 0 and 1; same shape."""
        return jnp.exp(self.log_value(margin))


def scaled_margin(margin: jax.Array, factor: jax.Array) -> jax.Array:
    """margin * factor, with gradient 0 for the factor where the margin is infinite."""
    margin = jnp.asarray(margin)
    finite = jnp.where(jnp.isinf(margin), 0.0, margin)
    return jnp.where(jnp.isinf(margin), margin, finite * factor)


@frozen_pytree
class Tanh(Edge):
    """The logistic edge, value = (1 + tanh(steepness * margin / 2)) / 2.

    It equals 1 / (1 + exp(-steepness * margin)); its log is -log1p(exp(-z)) for z >= 0 and
    z - log1p(exp(z)) below, which neither overflows nor dies in a tail.

    Args:
        steepness: slope of the log odds per unit of margin, positive, shape () or one a face. May
            be traced and trained.

    Raises:
        ValueError: if steepness is not positive (not while tracing).

    Example:
        >>> float(tg.Tanh(100.0).value(0.0))
        0.5
    """

    steepness: Any

    def __post_init__(self) -> None:
        check_positive("Tanh", "steepness", self.steepness)

    def log_value(self, margin: jax.Array) -> jax.Array:
        """log value at each margin; same shape."""
        return log_sigmoid(scaled_margin(margin, self.steepness))


@frozen_pytree
class Probit(Edge):
    """The normal edge, value = Phi(margin / width): a hard edge seen with Gaussian noise.

    With one face a coordinate its smoothed box probability is exactly a hard one whose covariance
    is inflated by width^2 on the diagonal.

    Args:
        width: standard deviation of the noise, positive, shape () or one a face.

    Raises:
        ValueError: if width is not positive (not while tracing).

    Example:
        >>> round(float(tg.Probit(0.1).value(0.1)), 6)
        0.841345
    """

    width: Any

    def __post_init__(self) -> None:
        check_positive("Probit", "width", self.width)

    def log_value(self, margin: jax.Array) -> jax.Array:
        """log value at each margin; same shape."""
        return log_ndtr(self._position(margin))

    def value(self, margin: jax.Array) -> jax.Array:
        """The weight of a point at `margin`, between 0 and 1; same shape."""
        return ndtr(self._position(margin))

    def _position(self, margin: jax.Array) -> jax.Array:
        return scaled_margin(margin, 1.0 / as_float_array(self.width))


@frozen_pytree
class Bump(Edge):
    """The smooth step made of bumps: 0 up to the face, 1 from `width` inside, C-infinity between.

    With f(t) = exp(-1/t) and t = margin / width, value = f(t) / (f(t) + f(1 - t)), so the log odds
    are 1/(1 - t) - 1/t: the logistic edge of a margin that runs from -inf to inf within the width.

    Args:
        width: thickness of the soft layer, positive, shape () or one a face.

    Raises:
        ValueError: if width is not positive (not while tracing).

    Reference:
        Tu (2011), An Introduction to Manifolds, section 13.

    Example:
        >>> tg.Bump(0.5).value(jnp.array([0.0, 0.25, 0.5]))
        Array([0. , 0.5, 1. ], dtype=float64)
    """

    width: Any

    def __post_init__(self) -> None:
        check_positive("Bump", "width", self.width)

    def log_value(self, margin: jax.Array) -> jax.Array:
        """log value at each margin; same shape; -inf at and outside the face.

        So is it within a relative 1e-154 (float64; 1e-19 in float32) of the face, where the slope,
        1/t^2, is no longer a number.
        """
        return self._step(margin, log_sigmoid, -jnp.inf, 0.0, edge=None)

    def value(self, margin: jax.Array) -> jax.Array:
        """The weight of a point at `margin`; exactly 0 or 1 where the bump underflows."""
        return self._step(margin, sigmoid, 0.0, 1.0, edge=1e-3)

    def _step(self, margin, of_log_odds, below: float, above: float, edge: float | None):
        position = scaled_margin(margin, 1.0 / as_float_array(self.width))
        edge = 4 * float(jnp.finfo(position.dtype).tiny) ** 0.5 if edge is None else edge
        inside = (position > edge) & (position < 1)
        t = jnp.where(inside, position, 0.5)
        soft = of_log_odds(1.0 / (1.0 - t) - 1.0 / t)
        outside = jnp.where(position <= edge, below, jnp.where(position >= 1, above, jnp.nan))
        return jnp.where(inside, soft, outside)


@frozen_pytree
class Hard(Edge):
    """The indicator itself: 1 inside and on the face, 0 outside. Its gradient is 0 everywhere.

    Example:
        >>> tg.Hard().value(jnp.array([-0.1, 0.0, 0.1]))
        Array([0., 1., 1.], dtype=float64)
    """

    def log_value(self, margin: jax.Array) -> jax.Array:
        """0 inside, -inf outside, NaN for NaN; same shape."""
        margin = as_float_array(margin)
        hard = jnp.where(margin >= 0, 0.0, -jnp.inf)
        return jnp.where(jnp.isnan(margin), jnp.nan, hard).astype(margin.dtype)


@frozen_pytree
class Surrogate(Edge):
    """Hard forward, soft backward: the value of `Hard`, the derivative of another edge.

    `SoftMonteCarlo` takes it at the level of the whole estimate,
    log P_soft + stop_gradient(log P_hard - log P_soft): the hard fraction with the gradient of the
    soft one. The gradient is biased by the softness of `edge`: it belongs to another function than
    the value, so a line search may be misled, and finite differences of the value are no check.

    Args:
        edge: the edge whose derivative is used.

    Example:
        >>> jax.grad(tg.Surrogate(tg.Tanh(4.0)).value)(0.0)
        Array(1., dtype=float64, weak_type=True)
    """

    edge: Edge

    def value(self, margin: jax.Array) -> jax.Array:
        """The hard value with the derivative of the soft one."""
        return with_slope_of(Hard().value(margin), self.edge.value(margin))

    def log_value(self, margin: jax.Array) -> jax.Array:
        """The hard log value with the derivative of the soft one."""
        return with_slope_of(Hard().log_value(margin), self.edge.log_value(margin))


def with_slope_of(value: jax.Array, soft: jax.Array) -> jax.Array:
    """`value` with the derivatives of `soft`, exactly, also where either is infinite."""
    slope = soft - jax.lax.stop_gradient(soft)
    return jax.lax.stop_gradient(value) + jnp.where(jnp.isfinite(soft), slope, 0.0)


def check_positive(owner: str, name: str, value: Any) -> None:
    if is_concrete(value) and np.any(np.asarray(value) <= 0):
        raise ValueError(f"{owner}: {name} must be positive, got {value}.")
