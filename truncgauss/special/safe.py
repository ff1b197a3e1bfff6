"""Functions whose automatic derivative is NaN or infinite somewhere, with derivatives that are not.

References:
    Blue (1978), A portable Fortran program to find the Euclidean norm of a vector: the scaling.
    Tu (2011), An Introduction to Manifolds, section 13: the bump.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, Real

from truncgauss.special.tails import Arrays, with_slopes_where
from truncgauss.words.arguments import explained as _explained

WIDTH = "To train it, train its logarithm: exp(log_width)."


def _as_floats(*values: ArrayLike) -> list[Array]:
    try:
        arrays = tuple(jnp.asarray(v) if isinstance(v, list | tuple | str) else v for v in values)
        dtype = jnp.result_type(*arrays, 0.0)
        return [jnp.asarray(value, dtype) for value in arrays]
    except (TypeError, ValueError):
        from truncgauss.words.misfits import refuse_no_numbers  # of which these alone have use

        for value in values:
            refuse_no_numbers("real numbers or arrays of them are expected", value)
        raise


def _refuse_sign(what: str, value: Array, advice: str) -> None:
    if isinstance(value, jax.core.Tracer) or not value.is_fully_addressable:
        return
    if np.any(np.asarray(value) <= 0):
        raise ValueError(f"{what} must be positive, got {float(jnp.min(value)):g}. {advice}")


# --- The norm -------------------------------------------------------------------------------------


def _scaled(x: Array, axis: int) -> tuple[Array, Array, Array]:
    """The largest magnitude, x over it, and the norm of that; zeros and infinities included."""
    largest = jnp.max(jnp.abs(x), axis, keepdims=True)
    # A compiler may multiply by the inverse, which underflows for the largest numbers.
    reach = 2.0 ** (jnp.finfo(x.dtype).maxexp // 2)
    unit = jnp.where(largest > reach, 1.0 / reach, jnp.where(largest * reach < 1.0, reach, 1.0))
    unit = unit.astype(x.dtype)
    divisor = jnp.where((largest == 0) | jnp.isinf(largest), 1.0, largest * unit)
    # If some entries are infinite, all others count as 0.
    ratios = jnp.where(
        jnp.isinf(largest), jnp.sign(x) * jnp.isinf(x).astype(x.dtype), x * unit / divisor
    )
    length = jnp.sqrt(jnp.sum(jnp.square(ratios), axis, keepdims=True))
    return largest, ratios, length


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _direction(x: Array, axis: int) -> Array:
    _, ratios, length = _scaled(x, axis)
    return ratios / jnp.where(length == 0, 1.0, length)


@_direction.defjvp
def _direction_jvp(axis: int, primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    direction = _direction(x, axis)
    norm = jnp.expand_dims(_norm(x, axis), axis)
    across = dx - direction * jnp.sum(direction * dx, axis, keepdims=True)
    return direction, jnp.where(norm == 0, 0.0, across / jnp.where(norm == 0, 1.0, norm))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _norm(x: Array, axis: int) -> Array:
    largest, _, length = _scaled(x, axis)
    return jnp.squeeze(jnp.where(largest == 0, largest, largest * length), axis)


@_norm.defjvp
def _norm_jvp(axis: int, primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _norm(x, axis), jnp.sum(_direction(x, axis) * dx, axis)


@_explained
def safe_norm(x: Num[ArrayLike, "..."], axis: int = -1) -> Float[Array, "..."]:
    r"""Euclidean norm with gradient 0 at zero, which neither overflows nor underflows.

    .. math:: \|x\| = s \sqrt{\textstyle\sum_i (x_i / s)^2}, \qquad s = \max_i |x_i|

    The gradient is the unit vector :math:`x / \|x\|`, and by convention 0 where x is 0, so that
    the distance of a point to itself has no NaN gradient. An infinite entry gives an infinite norm
    and a unit vector along the infinite entries.

    Args:
        x: array of any shape, real or complex.
        axis: the axis that is summed over.

    Returns:
        The norms, the shape of `x` without `axis`.

    Reference:
        Blue (1978), A portable Fortran program to find the Euclidean norm of a vector.

    Example:
        >>> float(tg.safe.safe_norm(jnp.array([3e-200, 4e-200])))
        5e-200
        >>> jax.grad(tg.safe.safe_norm)(jnp.zeros(2)).tolist()
        [0.0, 0.0]
    """
    (x,) = _as_floats(x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"safe_norm: axis must be one of x, of shape {x.shape}, got {axis}.")
    if jnp.iscomplexobj(x):
        x = jnp.concatenate([x.real, x.imag], axis)
    if jnp.finfo(x.dtype).bits < 32:  # the inverses of its smallest numbers overflow
        return _norm(x.astype(jnp.float32), axis).astype(x.dtype)
    return _norm(x, axis)


# --- The bump and the bell ------------------------------------------------------------------------


def _bump_parts(x: Array, width: Array) -> tuple[Array, Array, Array, Array]:
    """Whether the bump is above rounding, a safe x, u = x/width and 1 - u^2, kept factored."""
    # Where 1/(1 - u^2) exceeds this, the bump and its derivatives are below the smallest number.
    depth = 800.0 if x.dtype == jnp.float64 else 160.0
    within = jnp.abs(x) < jnp.abs(width)
    x = jnp.where(within, x, 0.0)
    infinite = jnp.isinf(width)
    width = jnp.where(infinite, 1.0, width)
    x = jnp.where(infinite, 0.0, x)
    u = x / width
    # (width - x) is exact near the edge, where 1 - u is not.
    room = ((width - x) / width) * ((width + x) / width)
    inside = within & (room * depth > 1.0)
    return inside, x, u, jnp.where(inside, room, 1.0)


@jax.custom_jvp
def _bump(x: Array, width: Array) -> Array:
    inside, _, _, room = _bump_parts(x, width)
    outside = jnp.where(jnp.isnan(x) | jnp.isnan(width), jnp.nan, 0.0).astype(x.dtype)
    return jnp.where(inside, jnp.exp(-1.0 / room), outside)


@_bump.defjvp
def _bump_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x, width), (dx, dwidth) = primals, tangents
    value = _bump(x, width)
    inside, _, u, room = _bump_parts(x, width)
    proper = inside & jnp.isfinite(width)
    u, safe_width = jnp.where(inside, u, 0.0), jnp.where(proper, width, 1.0)
    slope = value * 2.0 * u / (safe_width * room * room)
    return value, slope * (u * dwidth - dx)


@_explained
def bump(x: Real[ArrayLike, "*#shape"], width: Real[ArrayLike, "*#shape"]) -> Float[Array, "..."]:
    r"""The bump function: smooth, positive on (-width, width) and 0 elsewhere.

    .. math:: \Psi(x; \sigma) = \exp\{-1/(1 - u^2)\}, \quad u = x/\sigma, \quad |u| < 1

    Value and derivatives of any order are finite for every x, infinite ones included, so the width
    can be trained:
    :math:`\partial\Psi/\partial\sigma = 2 u^2 \Psi / (\sigma (1 - u^2)^2)`. Those of order k need
    a width whose k-th power is neither 0 nor infinite in its dtype.

    Args:
        x: array of any shape.
        width: half the width of the support, same shape or broadcastable, positive.

    Returns:
        The bump, at most exp(-1); NaN where an argument is NaN.

    Raises:
        ValueError: for a width that is not positive, outside of `jit` and gradients; inside the
            derivatives are NaN.

    Reference:
        Tu (2011), An Introduction to Manifolds, section 13.

    Example:
        >>> [round(float(v), 4) for v in tg.safe.bump(jnp.array([0.0, 0.5, 1.0, jnp.inf]), 1.0)]
        [0.3679, 0.2636, 0.0, 0.0]
    """
    x, width = _as_floats(x, width)
    _refuse_sign("bump: width", width, WIDTH)
    x, width = jnp.broadcast_arrays(x, width)
    return _bump(*with_slopes_where(width > 0, x, width))


@jax.custom_jvp
def _bell(x: Array, width: Array) -> Array:
    # Beyond 64 widths the bell is exactly 0 in either precision.
    u = jnp.clip(x / width, -64.0, 64.0)
    return jnp.exp(-0.5 * u * u)


@_bell.defjvp
def _bell_jvp(primals: Arrays, tangents: Arrays) -> tuple[Array, Array]:
    (x, width), (dx, dwidth) = primals, tangents
    value = _bell(x, width)
    near = ~(jnp.abs(x / width) >= 64.0)
    u = jnp.where(near, x, 0.0) / width
    return value, value * u / width * (u * dwidth - dx)


@_explained
def bell(x: Real[ArrayLike, "*#shape"], width: Real[ArrayLike, "*#shape"]) -> Float[Array, "..."]:
    r"""The Gaussian function, positive everywhere.

    .. math:: \exp\{-x^2 / (2\,\sigma^2)\}

    To train a width, it has the advantage over `bump` that every point has a gradient, until it
    underflows 38 widths away in float64; a point outside the support of a bump has none.

    Args:
        x: array of any shape.
        width: the standard deviation of the bell, same shape or broadcastable, positive.

    Returns:
        The bell, at most 1; NaN where an argument is NaN.

    Raises:
        ValueError: as `bump`.

    Example:
        >>> round(float(tg.safe.bell(2.0, 2.0)), 4)
        0.6065
    """
    x, width = _as_floats(x, width)
    _refuse_sign("bell: width", width, WIDTH)
    x, width = jnp.broadcast_arrays(x, width)
    return _bell(*with_slopes_where(width > 0, x, width))


# --- Guards of a softmax --------------------------------------------------------------------------


@jax.custom_vjp
def _clipped(x: Array, bound: Array) -> Array:
    return x


_clipped.defvjp(
    lambda x, bound: (x, bound),
    lambda bound, slope: (
        jnp.clip(slope, -bound, bound).astype(slope.dtype),
        jnp.zeros_like(bound),
    ),
)


@_explained
def clipped_gradient(
    x: Real[ArrayLike, "*shape"], bound: Real[ArrayLike, "..."]
) -> Float[Array, "*shape"]:
    r"""The identity, with a gradient that is clipped to [-bound, bound] element by element.

    .. math:: y = x, \qquad \bar x = \min(\max(\bar y, -\text{bound}), \text{bound})

    An infinite gradient becomes `bound`; a NaN stays a NaN. Since the clipped gradient is not a
    derivative, it exists in reverse mode only: forward mode raises a TypeError.

    Reference:
        Pascanu, Mikolov and Bengio (2013), On the difficulty of training recurrent neural networks.

    Args:
        x: array of any shape.
        bound: positive, a scalar or an array that broadcasts to `x`; it receives no gradient.

    Returns:
        `x`.

    Example:
        >>> float(jax.grad(lambda x: jnp.log(tg.safe.clipped_gradient(x, 10.0)))(1e-30))
        10.0
    """
    x, bound = _as_floats(x, bound)
    _refuse_sign("clipped_gradient: bound", bound, "Gradients are clipped to [-bound, bound].")
    return _clipped(x, bound)


@_explained
def clipped_logits(
    logits: Real[ArrayLike, "*shape"], span: Real[ArrayLike, "..."], axis: int = -1
) -> Float[Array, "*shape"]:
    r"""Logits raised to at least `span` below their maximum, so that a softmax of them is finite.

    .. math:: \max(\ell_i,\ \max_j \ell_j - \text{span})

    The clip is relative, so that adding a constant to all logits changes nothing; a clip at fixed
    values would hide an overflow and kill the gradient. Clipped entries have gradient 0. If some
    logits are +inf, these become 0 and all others -span; if all are -inf, all become 0. Logits of
    less than float32 become float32: in float16 the sums of a softmax and of its gradient overflow
    over 65,504 entries. Their gradient has their own dtype.

    Args:
        logits: array of any shape.
        span: positive, the largest distance below the maximum that is kept.
        axis: the axis that the softmax will normalise.

    Returns:
        The clipped logits, the shape of `logits`, at least float32; NaN where they are NaN.

    Example:
        >>> tg.safe.clipped_logits(jnp.array([1000.0, 990.0, -jnp.inf]), 30.0).tolist()
        [1000.0, 990.0, 970.0]
    """
    logits, span = _as_floats(logits, span)
    _refuse_sign("clipped_logits: span", span, "It is the largest distance below the maximum.")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    top = jax.lax.stop_gradient(jnp.max(logits, axis, keepdims=True))
    logits = jnp.where(jnp.isneginf(top), 0.0, logits)
    top = jnp.where(jnp.isneginf(top), 0.0, top)
    infinite = jnp.isposinf(logits)
    top = jnp.where(jnp.isposinf(top), 0.0, top)
    any_infinite = jnp.any(infinite, axis, keepdims=True)
    replaced = jnp.where(infinite, 0.0, jnp.where(jnp.isnan(logits), logits, -span))
    relative = jnp.where(any_infinite, replaced, logits)
    return jnp.where(relative < top - span, top - span, relative)


def __getattr__(name: str) -> Any:
    from truncgauss.words.misfits import absence_of_safe  # of which only wrong names have use

    raise AttributeError(absence_of_safe(name))
