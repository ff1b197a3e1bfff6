"""Soft edges: smooth approximations of the indicator function of a region's face.

An edge maps a margin (the signed distance inside a face) to a value between 0 and 1 and to its
logarithm. Estimates use the logarithm: the product of many small values underflows, the sum of
their logs does not. At margin +inf the value is 1 and its gradient is 0. A width that is not
positive, or an infinite steepness, as a trace may bring, has derivatives NaN.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.arrays.pytrees import as_float_array, check_numbers, frozen_pytree, is_concrete
from truncgauss.special.logspace import log_mean_exp, log_sigmoid, sigmoid
from truncgauss.special.tails import (
    FAR,
    as_floats,
    log_ndtr,
    ndtr,
    ratio,
    undefined,
    with_slopes_where,
)
from truncgauss.words.arguments import explained_class


class Edge:
    """The contract of an edge: `log_value(margin)`, elementwise; `value` is its exponential."""

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """Log of the weight of a point at `margin`, at most 0."""
        raise TypeError(f"{type(self).__name__} does not define log_value.")

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """The weight of a point at `margin`, between 0 and 1."""
        return jnp.exp(self.log_value(margin))

    def __call__(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """Raise TypeError: an edge has two values."""
        raise TypeError(
            f"{type(self).__name__} is an edge, not a function: write edge.value(margin), or "
            "edge.log_value(margin) for its logarithm."
        )

    @property
    def num_widths(self) -> int | None:
        """For how many margins there are different widths; None if all have the same."""
        if not any(map(jnp.ndim, jax.tree.leaves(self))):
            return None
        shape = jax.eval_shape(self.value, jax.ShapeDtypeStruct((), jnp.result_type(float))).shape
        return shape[-1] if shape else None

    def log_mean(self, margins: Float[Array, "n k m"]) -> tuple[Float[Array, ""], Array]:
        """Log of the mean over n points of the product over their faces, and the n log products."""
        log_weights = self.log_value(margins).sum((1, 2))
        return log_mean_exp(log_weights), log_weights

    def with_slopes(self) -> tuple["Edge", float]:
        """An edge and c: c P by it has the derivatives of P, and log P by it has them too."""
        return self, 1.0


def _finite(margin: ArrayLike) -> Array:
    """The margin, with 0 in place of infinity, which has no derivative."""
    margin = as_float_array(margin)
    return jnp.where(jnp.isinf(margin), 0.0, margin)


def with_limits(margin: ArrayLike, value: Array, below: float, above: float) -> Array:
    """The value, or its limits where the margin is infinite."""
    margin = as_float_array(margin)
    return jnp.where(margin == jnp.inf, above, jnp.where(margin == -jnp.inf, below, value))


@explained_class
@frozen_pytree
class Tanh(Edge):
    """The logistic edge, value = (1 + tanh(steepness * margin / 2)) / 2.

    It equals 1 / (1 + exp(-steepness * margin)); its log is computed as -log1p(exp(-z)) for z >= 0
    and z - log1p(exp(z)) below, which neither overflows nor underflows.

    Args:
        steepness: slope of the log odds per unit of margin, positive, shape () or one a face. May
            be traced and trained.

    Raises:
        ValueError: if steepness is not positive (while tracing, values are NaN if it is negative).

    Example:
        >>> float(tg.Tanh(100.0).value(0.0))
        0.5
    """

    steepness: Real[ArrayLike, "..."]

    def __post_init__(self) -> None:
        set_positive(self, "steepness")

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_limits(margin, log_sigmoid(self._log_odds(margin)), -jnp.inf, 0.0)

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_limits(margin, sigmoid(self._log_odds(margin)), 0.0, 1.0)

    def _log_odds(self, margin: ArrayLike) -> Array:
        margin, steepness = as_floats(_finite(margin), as_float_array(self.steepness))
        margin, steepness = with_slopes_where(jnp.isfinite(steepness), margin, steepness)
        return margin * undefined(steepness < 0, steepness)


@explained_class
@frozen_pytree
class Probit(Edge):
    """The normal edge, value = Phi(margin / width): a hard edge after Gaussian noise.

    With one face for each coordinate, the smoothed probability of a box is exactly that of a hard
    box under a covariance with width^2 added to the diagonal.

    Args:
        width: standard deviation of the noise, positive, shape () or one a face.

    Raises:
        ValueError: if width is not positive (while tracing, values are NaN if it is negative).

    Example:
        >>> round(float(tg.Probit(0.1).value(0.1)), 6)
        0.841345
    """

    width: Real[ArrayLike, "..."]

    def __post_init__(self) -> None:
        set_positive(self, "width")

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_limits(margin, log_ndtr(self._position(margin)), -jnp.inf, 0.0)

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_limits(margin, ndtr(self._position(margin, -FAR)), 0.0, 1.0)

    def _position(self, margin: ArrayLike, start: float = -jnp.inf) -> Array:
        """margin/width, constant where the edge is flat and the quotient's slope may overflow."""
        margin, width = as_floats(_finite(margin), as_float_array(self.width))
        margin, width = with_slopes_where(width > 0, margin, undefined(width < 0, width))
        below, above = margin < start * width, margin > FAR * width
        flat = jnp.where(below, start, FAR).astype(margin.dtype)
        outside = below | above
        return jnp.where(outside, flat, ratio(jnp.where(outside, 0.0, margin), width))


@explained_class
@frozen_pytree
class Bump(Edge):
    """The smooth step made of bumps: 0 up to the face, 1 from `width` inside, smooth between.

    With f(t) = exp(-1/t) and t = margin / width, value = f(t) / (f(t) + f(1 - t)), so the log odds
    are 1/(1 - t) - 1/t: the logistic edge of a margin that runs from -inf to inf within the width.

    Args:
        width: thickness of the soft layer, positive, shape () or one a face.

    Raises:
        ValueError: if width is not positive (while tracing, values are NaN if it is negative).

    Reference:
        Tu (2011), An Introduction to Manifolds, section 13.

    Example:
        >>> tg.Bump(0.5).value(jnp.array([0.0, 0.25, 0.5]))
        Array([0. , 0.5, 1. ], dtype=float64)
    """

    width: Real[ArrayLike, "..."]

    def __post_init__(self) -> None:
        set_positive(self, "width")

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """log value at each margin; -inf with slopes of 0 at and outside the face.

        A slope that would overflow, as within a relative 1e-154 of the face, is the largest number:
        times a weight of 0 it is 0, and not NaN.
        """
        return self._step(margin, log_sigmoid, -jnp.inf, 0.0, start=0.0)

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """The weight of a point at `margin`; exactly 0 or 1 where the bump underflows."""
        return self._step(margin, sigmoid, 0.0, 1.0, start=1e-3)

    def _step(
        self,
        margin: ArrayLike,
        of_log_odds: Callable[[Array], Array],
        below: float,
        above: float,
        start: float,
    ) -> Array:
        margin, width = as_floats(as_float_array(margin), as_float_array(self.width))
        margin, width = with_slopes_where(width > 0, margin, undefined(width < 0, width))
        inside = (margin > start * width) & (margin < width)
        odds = _bump_log_odds(jnp.where(inside, margin, 0.5), jnp.where(inside, width, 1.0))
        # Only a NaN is on neither side; the sum propagates it.
        outside = jnp.where(margin >= width, above, margin + width)
        outside = jnp.where(margin <= start * width, below, outside)
        return jnp.where(inside, of_log_odds(odds), outside)


def _bounded(x: Array) -> Array:
    """x, or the largest number where it overflows."""
    return jnp.minimum(x, float(jnp.finfo(x.dtype).max))


@jax.custom_jvp
def _inverse(x: Array) -> Array:
    return 1.0 / x


_inverse.defjvps(lambda dx, value, x: -_bounded(value * value) * dx)


@jax.custom_jvp
def _pole(x: Array, height: Array) -> Array:
    """height/x^2, at most the largest number, and its derivatives likewise."""
    return _bounded((height / x) * (1.0 / x))


@_pole.defjvp
def _pole_jvp(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (x, height), (dx, dheight) = primals, tangents
    inverse, value = 1.0 / x, _pole(x, height)
    by_x = _bounded(2.0 * (height * inverse) * inverse * inverse)
    return value, _bounded(inverse * inverse) * dheight - by_x * dx


@jax.custom_jvp
def _bump_log_odds(margin: Array, width: Array) -> Array:
    """1/(1 - t) - 1/t at t = margin/width."""
    return width / (width - margin) - width / margin


@_bump_log_odds.defjvp
def _bump_log_odds_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[Array, Array]:
    (margin, width), (dmargin, dwidth) = primals, tangents
    rest = width - margin
    by_margin = _pole(rest, width) + _pole(margin, width)
    by_width = _pole(rest, margin) + _inverse(margin)
    return _bump_log_odds(margin, width), by_margin * dmargin - by_width * dwidth


@frozen_pytree
class Hard(Edge):
    """The indicator itself: 1 inside and on the face, 0 outside. Its gradient is 0 everywhere.

    Example:
        >>> tg.Hard().value(jnp.array([-0.1, 0.0, 0.1]))
        Array([0., 1., 1.], dtype=float64)
    """

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        """0 inside, -inf outside, NaN for NaN; same shape."""
        margin = as_float_array(margin)
        hard = jnp.where(margin >= 0, 0.0, -jnp.inf)
        return jnp.where(jnp.isnan(margin), jnp.nan, hard).astype(margin.dtype)


@explained_class
@frozen_pytree
class Surrogate(Edge):
    """The value of `Hard` with the derivative of another edge.

    `SoftMonteCarlo` applies it to the whole estimate,
    log P_soft + stop_gradient(log P_hard - log P_soft): the hard fraction, whose log has the
    gradient of that of the soft one. P has P_hard times it, 0 where no sample is inside. It is
    biased: it belongs to another function than the value, so a line search may be misled, and it
    does not agree with finite differences of the value.

    Reference:
        Bengio, Leonard and Courville (2013), Estimating or propagating gradients through stochastic
        neurons for conditional computation: straight-through estimators.

    Args:
        edge: the edge whose derivative is used.

    Example:
        >>> jax.grad(tg.Surrogate(tg.Tanh(4.0)).value)(0.0)
        Array(1., dtype=float64, weak_type=True)
    """

    edge: Edge

    def __post_init__(self) -> None:
        if not isinstance(self.edge, Edge):
            raise ValueError(
                "Surrogate: edge must be an edge, tg.Tanh(100.0) or tg.EdgeFunction(function) "
                f"of a function of the margin, got {self.edge!r}."
            )

    def value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_slope_of(Hard().value(margin), self.edge.value(margin))

    def log_value(self, margin: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
        return with_slope_of(Hard().log_value(margin), self.edge.log_value(margin))


def with_slope_of(value: Array, soft: Array) -> Array:
    """`value` with the derivatives of `soft`, exactly, also where either is infinite."""
    slope = soft - jax.lax.stop_gradient(soft)
    return jax.lax.stop_gradient(value) + jnp.where(jnp.isfinite(soft), slope, 0.0)


def set_positive(edge: Edge, name: str) -> None:
    """Make a list of widths an array, and raise ValueError unless all are positive and finite,
    which is not known while tracing."""
    value, what = getattr(edge, name), f"{type(edge).__name__}: {name}"
    check_numbers(value, what)
    # Of a list each number were a leaf of one width; a Series of pandas is no array of JAX.
    if isinstance(value, list | tuple) or hasattr(value, "iloc"):
        value = np.asarray(value, float) if is_concrete(value) else as_float_array(value, what)
        object.__setattr__(edge, name, value)
    if is_concrete(value):
        number = np.asarray(value)
        if not np.all((number > 0) & (number < np.inf)):
            raise ValueError(f"{what} must be positive and finite, got {value}.")
