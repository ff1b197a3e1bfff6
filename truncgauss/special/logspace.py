"""Sums of exponentials in logs, and the logistic function and its logs, accurate in the tails.

Each derivative rule is written in functions of this file, so that derivatives of any order are as
accurate as the first: `jax.nn.sigmoid` multiplies by 1 - s, which rounds to 0 for large x long
before the slope does.

References:
    Blanchard, Higham and Higham (2021), Accurately computing the log-sum-exp and softmax functions.
    Maechler (2012), Accurately computing log(1 - exp(-|a|)).
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from truncgauss.special.tails import Arrays, as_floats

WIDENING = 3.0  # of a standard error, times the squared skewness over the count


# --- Sums -----------------------------------------------------------------------------------------


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    top = jnp.max(x, axes, keepdims=True)
    top = jnp.where(jnp.isinf(top), 0.0, top)
    # Of float16 a sum of 65,520 ones overflows, of bfloat16 one of 256 no longer grows.
    wide = x.dtype if jnp.finfo(x.dtype).bits >= 32 else jnp.float32
    total = jnp.sum(jnp.exp((x - top).astype(wide)), axes)
    return (jnp.log(total) + jnp.squeeze(top, axes).astype(wide)).astype(x.dtype)


@_log_sum_exp.defjvp
def _log_sum_exp_jvp(
    axes: tuple[int, ...], primals: Arrays, tangents: Arrays
) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    total = _log_sum_exp(x, axes)
    level = jnp.expand_dims(total, axes)
    # All terms zero: every weight is 0. Some terms infinite: these have equal weights.
    infinite = jnp.isposinf(x)
    count = jnp.maximum(jnp.sum(infinite, axes, keepdims=True), 1).astype(x.dtype)
    no_level = jnp.isinf(level)
    weights = jnp.exp(jnp.where(no_level, -jnp.inf, x) - jnp.where(no_level, 0.0, level))
    weights = jnp.where(no_level & infinite, 1.0 / count, weights)
    return total, jnp.sum(weights * dx, axes)


def log_sum_exp(
    x: Real[ArrayLike, "..."], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    r"""Log of a sum of exponentials, whose gradient is 0 where all terms are zero.

    .. math:: \log \textstyle\sum_i e^{x_i}

    Args:
        x: array of any shape, not empty along `axis`; -inf stands for a zero term.
        axis: the axes that are summed over; all by default.

    Returns:
        The logs, the shape of `x` without `axis`; -inf where all terms are -inf, inf where one is
        inf, NaN where one is NaN.

    Reference:
        Blanchard, Higham and Higham (2021), Accurately computing the log-sum-exp and softmax
        functions.

    Example:
        >>> float(tg.special.log_sum_exp(jnp.array([-1000.0, -1000.0])))
        -999.3068528194401
        >>> jax.grad(tg.special.log_sum_exp)(jnp.array([-jnp.inf, -jnp.inf])).tolist()
        [0.0, 0.0]
    """
    (x,) = as_floats(x)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    if any(not -x.ndim <= k < x.ndim for k in axes):
        raise ValueError(f"log_sum_exp: x of shape {x.shape} has no axis {axis}.")
    return _log_sum_exp(x, tuple(k % x.ndim for k in axes))


def log_mean_exp(
    x: Real[ArrayLike, "..."], axis: int | tuple[int, ...] | None = None
) -> Float[Array, "..."]:
    r"""Log of a mean of exponentials: `log_sum_exp` less the log of the number of terms.

    .. math:: \log \frac{1}{n} \textstyle\sum_i e^{x_i}

    Args:
        x: array of any shape, not empty along `axis`; -inf stands for a zero term.
        axis: the axes that are averaged over; all by default.

    Returns:
        The logs, the shape of `x` without `axis`.

    Example:
        >>> float(tg.special.log_mean_exp(jnp.array([-1000.0, -1000.0])))
        -1000.0
    """
    total = log_sum_exp(x, axis)
    return total - math.log(jnp.size(x) // max(1, total.size))


def less_level(terms: Float[Array, "d n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The sums over the steps of the terms of log weights, (d, n), less a common level; the level.

    The sums differ by little but may be in the thousands: to keep the digits of the differences,
    the terms of the path of the largest weight are subtracted from those of every path. A mean over
    paths would not do: under nearly dependent constraints the terms of paths that do not count are
    as large as one over the square of a conditional deviation, and would leave no digits.
    """
    fixed = jax.lax.stop_gradient(terms)
    level = fixed[:, jnp.argmax(jnp.sum(fixed, axis=0)), None]
    level = jnp.where(jnp.isfinite(level), level, 0.0)
    return jnp.sum(terms - level, axis=0), jnp.sum(level)


def effective_sample_size(
    log_weights: Real[ArrayLike, "..."], axis: int = -1
) -> Float[Array, "..."]:
    """Effective sample size of importance weights, given their logs.

    It is (sum w)^2 / sum w^2 along an axis: n if all n weights are equal, near 1 if one outweighs
    the others, 0 if all are 0. It carries no derivative.

    Reference:
        Kish (1965), Survey Sampling, section 8.2; Kong (1992), A note on importance sampling using
        standardized weights.
    """
    log_weights = jax.lax.stop_gradient(jnp.asarray(log_weights))
    top = jnp.max(log_weights, axis=axis, keepdims=True)
    weights = jnp.exp(log_weights - jnp.where(top == -jnp.inf, 0.0, top))
    squares = jnp.sum(weights**2, axis=axis)
    none = squares == 0
    return jnp.where(none, 0.0, weights.sum(axis) ** 2 / jnp.where(none, 1.0, squares))


def standard_error(deviations: Real[Array, "..."]) -> Float[Array, "..."]:
    r"""Standard error of the mean of n numbers, from their deviations, widened for skewness.

    .. math:: \frac{s}{\sqrt n} \Bigl(1 + 3\, \frac{G^2}{n}\Bigr)

    with s the standard deviation and G the adjusted skewness of the n numbers. To order 1/n an
    interval by Student's law holds the expectation in 95 % of cases with the factor
    (z^4 + 2 z^2 - 3) / 18 = 1.08 for z = 1.96 in place of 3. But few numbers rarely show the tail
    that makes them skewed: of 16 exponential ones the intervals hold in 91 % of cases by Student's
    law alone, 93 % with 1.08 and 95 % with 3; of 16 normal ones in 95, 95 and 96 %. It carries no
    derivative; nan for n = 1.

    Args:
        deviations: from the mean, or of a ratio's terms from its value, shape (n, ...).

    Reference:
        Hall (1992), The Bootstrap and Edgeworth Expansion, section 2.6, for Student's statistic.
        The factor 3 is from simulations of normal, exponential, gamma and log-normal numbers.
    """
    deviations = jax.lax.stop_gradient(*as_floats(deviations))
    n = deviations.shape[0]
    if n < 2:
        return jnp.full(deviations.shape[1:], jnp.nan, deviations.dtype)
    size = jnp.max(jnp.abs(deviations), axis=0)
    unit = deviations / jnp.where(size > 0, size, 1.0)[None]
    square = jnp.mean(unit**2, axis=0)
    stderr = jnp.sqrt(square / (n - 1)) * size
    if n < 3:
        return stderr
    skewness = jnp.mean(unit**3, axis=0) / jnp.where(square > 0, square, 1.0) ** 1.5
    return stderr * (1.0 + WIDENING * (n - 1) / (n - 2) ** 2 * skewness**2)


# --- The logistic function and its logs -----------------------------------------------------------


@jax.custom_jvp
def _sigmoid(x: Array) -> Array:
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x < 0, small, 1.0) / (1.0 + small)


@jax.custom_jvp
def _logistic(x: Array) -> Array:
    """The logistic density, s(x) s(-x)."""
    small = jnp.exp(-jnp.abs(x))
    return small / jnp.square(1.0 + small)


_sigmoid.defjvps(lambda dx, value, x: _logistic(x) * dx)


# The hyperbolic tangent is s(x) - s(-x), without the rounding of the two near 0.
_logistic.defjvps(lambda dx, value, x: -value * jnp.tanh(0.5 * x) * dx)


@jax.custom_jvp
def _log1pexp(x: Array) -> Array:
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


_log1pexp.defjvps(lambda dx, value, x: _sigmoid(x) * dx)


@jax.custom_jvp
def _inverse_expm1(x: Array) -> Array:
    return 1.0 / jnp.expm1(x)


_inverse_expm1.defjvps(lambda dx, value, x: -value * (1.0 + value) * dx)


@jax.custom_jvp
def _log1mexp(x: Array) -> Array:
    small = x < math.log(2.0)
    inner, outer = jnp.where(small, x, 1.0), jnp.where(small, 1.0, x)
    return jnp.where(small, jnp.log(-jnp.expm1(-inner)), jnp.log1p(-jnp.exp(-outer)))


_log1mexp.defjvps(lambda dx, value, x: _inverse_expm1(x) * dx)


def sigmoid(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""The logistic function, whose derivatives keep their relative accuracy in either tail.

    .. math:: s(x) = \frac{1}{1 + e^{-x}}, \qquad s'(x) = s(x)\, s(-x)

    Args:
        x: array of any shape, infinite values welcome.

    Example:
        >>> float(jax.grad(tg.special.sigmoid)(100.0)) > 0
        True
    """
    return _sigmoid(*as_floats(x))


def log_sigmoid(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""Log of the logistic function.

    .. math:: \log s(x) = -\log(1 + e^{-x}), \qquad \frac{d}{dx} = s(-x)

    Args:
        x: array of any shape, infinite values welcome.

    Example:
        >>> float(tg.special.log_sigmoid(-1000.0))
        -1000.0
    """
    (x,) = as_floats(x)
    return -_log1pexp(-x)


def log1pexp(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""Log of one plus an exponential, also known as softplus.

    .. math:: \log(1 + e^x), \qquad \frac{d}{dx} = s(x)

    Args:
        x: array of any shape, infinite values welcome.

    Reference:
        Maechler (2012), Accurately computing log(1 - exp(-|a|)).

    Example:
        >>> float(tg.special.log1pexp(1000.0))
        1000.0
    """
    return _log1pexp(*as_floats(x))


def log1mexp(x: Real[ArrayLike, "*shape"]) -> Float[Array, "*shape"]:
    r"""Log of one minus an exponential, with the sign of `jax.nn.log1mexp`.

    .. math:: \log(1 - e^{-x}), \quad x \ge 0, \qquad \frac{d}{dx} = \frac{1}{e^x - 1}

    Args:
        x: array of any shape, not negative; infinite values welcome.

    Returns:
        The logs; -inf at 0, NaN where x is negative or NaN.

    Reference:
        Maechler (2012), Accurately computing log(1 - exp(-|a|)).

    Example:
        >>> float(tg.special.log1mexp(1e-20)) == float(jnp.log(1e-20))
        True
    """
    return _log1mexp(*as_floats(x))
