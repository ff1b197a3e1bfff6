"""The base class of the truncated distributions, their supports, and bijections onto these.

References:
    Carpenter et al. (2017), Stan: a probabilistic programming language: constrained parameters.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from numpyro.distributions import Distribution, Independent, biject_to, constraints
from numpyro.distributions.transforms import Transform
from numpyro.util import is_prng_key

from truncgauss.special.logspace import log1mexp, log_sigmoid


class Between(constraints.interval):
    """Finite x, low <= x <= high, for each coordinate; limits may be infinite, and may be traced.

    A subclass of NumPyro's interval, so that inference knows that the limits may depend on other
    sites, and applies the bijection again for each draw.

    Args:
        low, high: limits, arrays that broadcast.
        event_dim: trailing axes of x that make up one event.
    """

    def __init__(self, low: Array, high: Array, event_dim: int = 0) -> None:
        super().__init__(low, high)
        self.event_dim = event_dim

    def __call__(self, x: Any) -> Any:
        return _is_between(x, self.lower_bound, self.upper_bound, self.event_dim)

    def feasible_like(self, prototype: Any) -> Array:
        return biject_to(self)(jnp.zeros_like(prototype))

    def __repr__(self) -> str:
        ends = f"low={self.lower_bound}, high={self.upper_bound}"
        return f"Between({ends}, event_dim={self.event_dim})"

    def eq(self, other: object, static: bool = False) -> Any:
        alike = isinstance(other, Between) and self.event_dim == other.event_dim
        return super().eq(other, static=static) if alike else False

    def tree_flatten(self) -> Any:
        leaves = ("lower_bound", "upper_bound")
        return (self.lower_bound, self.upper_bound), (leaves, {"event_dim": self.event_dim})


class Inside(constraints.Constraint):
    """Finite vectors in a region onto which there is no coordinatewise bijection."""

    event_dim = 1

    def __init__(self, region: Any) -> None:  # a `Region`
        self.region = region

    def __call__(self, x: Any) -> Array:
        return self.region.contains(x) & jnp.isfinite(x).all(-1)

    def __repr__(self) -> str:
        return f"Inside({self.region})"

    def tree_flatten(self) -> Any:
        return (self.region,), (("region",), {})


class BetweenTransform(Transform):
    r"""An increasing bijection of the real line onto [low, high], for each coordinate.

    .. math:: l + (h - l)\, s(x), \qquad l + \log(1 + e^x), \qquad h - \log(1 + e^{-x}), \qquad x

    for two finite limits, a lower one, an upper one and none, with s(x) = 1/(1 + e^{-x}). Onto a
    half-line it is log(1 + e^x), not e^x: for large x it grows as x does, so that a Gaussian tail
    stays Gaussian and nothing overflows. Rounding may give a limit itself, never a value beyond it.
    """

    sign = 1

    def __init__(self, low: Array, high: Array, event_dim: int = 0) -> None:
        self.low, self.high, self.event_dim = low, high, event_dim

    @property
    def domain(self) -> constraints.Constraint:
        return constraints.independent(constraints.real, self.event_dim)

    @property
    def codomain(self) -> constraints.Constraint:
        return Between(self.low, self.high, self.event_dim)

    def __call__(self, x: Any) -> Array:
        return _between(x, self.low, self.high)

    def _inverse(self, y: Any) -> Array:
        return _inverse_of_between(y, self.low, self.high)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Array:
        return _log_slope(x, self.low, self.high).sum(tuple(range(-self.event_dim, 0)))

    def tree_flatten(self) -> Any:
        return (self.low, self.high), (("low", "high"), {"event_dim": self.event_dim})


# Under `jit`, so that calls outside of a trace compile one program and not one an operation.
@partial(jax.jit, static_argnames="event_dim", inline=True)
def _is_between(x: Any, low: Array, high: Array, event_dim: int) -> Array:
    x, low, high = jnp.broadcast_arrays(x, low, high)
    inside = (x >= low) & (x <= high) & jnp.isfinite(x)
    return inside.all(tuple(range(-event_dim, 0))) if event_dim else inside


def _parts(x: Any, low: Array, high: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Points; limits, 0 if infinite; half their distance, else 1; which limits are finite."""
    x, low, high = jnp.broadcast_arrays(x, low, high)
    has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
    low, high = jnp.where(has_low, low, 0.0), jnp.where(has_high, high, 0.0)
    half = jnp.where(has_low & has_high, 0.5 * high - 0.5 * low, 1.0)
    return x, low, high, half, has_low, has_high


@partial(jax.jit, inline=True)
def _between(x: Any, low: Array, high: Array) -> Array:
    x, low, high, half, has_low, has_high = _parts(x, low, high)
    # From the nearer limit, so that rounding does not lead beyond the other one. The factor 2
    # is in the exponent, as the distance of the limits may overflow.
    part = half * jnp.exp(log_sigmoid(jnp.where(x < 0, x, -x)) + math.log(2.0))
    both = jnp.where(x < 0, low + part, high - part)
    one = jnp.where(has_low, low - log_sigmoid(-x), high + log_sigmoid(x))
    return jnp.where(has_low & has_high, both, jnp.where(has_low | has_high, one, x))


@partial(jax.jit, inline=True)
def _inverse_of_between(y: Any, low: Array, high: Array) -> Array:
    y, low, high, _, has_low, has_high = _parts(y, low, high)
    above = jnp.where(has_low, _off_zero(0.5 * y - 0.5 * low), 1.0)  # halves never overflow
    below = jnp.where(has_high, _off_zero(0.5 * high - 0.5 * y), 1.0)
    both = jnp.log(above) - jnp.log(below)
    one = jnp.where(has_low, _log_expm1(2 * above), -_log_expm1(2 * below))
    return jnp.where(has_low & has_high, both, jnp.where(has_low | has_high, one, y))


@partial(jax.jit, inline=True)
def _log_slope(x: Any, low: Array, high: Array) -> Array:
    x, _, _, half, has_low, has_high = _parts(x, low, high)
    both = jnp.log(half) + math.log(2.0) + log_sigmoid(x) + log_sigmoid(-x)
    one = log_sigmoid(jnp.where(has_low, x, -x))
    return jnp.where(has_low & has_high, both, jnp.where(has_low | has_high, one, 0.0 * x))


def _off_zero(distance: Array) -> Array:
    """The distance from a limit, with the smallest positive number in place of 0."""
    return jnp.where(distance == 0, jnp.finfo(distance.dtype).tiny, distance)


def _log_expm1(t: Array) -> Array:
    """The inverse of log(1 + e^x)."""
    return t + log1mexp(t)


@biject_to.register(Between)
def _onto_between(constraint: Between) -> BetweenTransform:
    return BetweenTransform(constraint.lower_bound, constraint.upper_bound, constraint.event_dim)


@biject_to.register(Inside)
def _onto_region(constraint: Inside) -> Transform:
    raise NotImplementedError(
        f"no bijection leads from the reals onto a {type(constraint.region).__name__}, so NUTS and "
        "SVI cannot use it for a latent variable; observed values and draws are fine. Use "
        "bounds on coordinates, or put a latent without bounds through numpyro.factor."
    )


# --- Batch axes as events -------------------------------------------------------------------------


def lacking(name: str) -> Callable[..., Any]:
    """A method that says of a distribution that it has none, and what to take instead."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        from truncgauss.words.misfits import refuse_method  # of which only wrong calls have use

        return refuse_method(self, name)

    method.__name__ = name
    return method


class TruncatedDistribution(Distribution):
    """Base class of the truncated distributions."""

    coordinate_names: list[Any] | None = None  # of labelled parameters; trees keep none
    # Of which one kind or another has none; the others have their own.
    cdf, icdf, entropy = lacking("cdf"), lacking("icdf"), lacking("entropy")
    mean, variance, mode = map(property, map(lacking, ("mean", "variance", "mode")))

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Distribution:
        """The same distribution with batch axes reinterpreted as axes of one event."""
        ndims = reinterpreted_batch_ndims
        ndims = len(self.batch_shape) if ndims is None else ndims
        return Event(self, ndims) if ndims else self

    def _check_draw(self, key: Any, sample_shape: Any) -> None:
        if isinstance(key, tuple | int) and is_prng_key(sample_shape):
            raise TypeError(
                f"{type(self).__name__}: key and sample_shape are exchanged: the key comes first, "
                f"then sample_shape={key if isinstance(key, tuple) else (key,)!r}."
            )
        if not isinstance(sample_shape, Sequence):
            raise TypeError(
                f"{type(self).__name__}: sample_shape must be a tuple, got {sample_shape!r}; "
                f"write ({sample_shape!r},)."
            )
        if not all(hasattr(count, "__index__") and count >= 0 for count in sample_shape):
            raise ValueError(
                f"{type(self).__name__}: sample_shape must be whole numbers from 0 on, such as "
                f"(1000,), got {sample_shape!r}."
            )
        if not is_prng_key(key):
            raise ValueError(
                f"{type(self).__name__}: a draw needs one JAX random key, got {key!r}. Pass "
                "jax.random.key(0), or seed the model with numpyro.handlers.seed."
            )


class Event(Independent):
    """Truncated distributions as one event.

    Its support is again a `Between`. With NumPyro's own support of an event, inference would not
    see that limits may depend on another site, and would transform draws by the limits of the first
    trace.
    """

    @property
    def support(self) -> constraints.Constraint:
        """The set on which the density is positive."""
        support = self.base_dist.support
        if not isinstance(support, Between):
            return super().support
        event_dim = support.event_dim + self.reinterpreted_batch_ndims
        return Between(support.lower_bound, support.upper_bound, event_dim)

    def expand(self, batch_shape: Sequence[int]) -> "Event":
        """The same distribution with another batch shape."""
        ndims = self.reinterpreted_batch_ndims
        shape = tuple(batch_shape) + self.event_shape[:ndims]
        return Event(self.base_dist.expand(shape), ndims)
