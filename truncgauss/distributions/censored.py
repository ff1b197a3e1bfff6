"""Censored distributions for NumPyro: values beyond a bound are known to lie there, and no more."""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Real
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from truncgauss.arrays.pytrees import check_limits, is_concrete
from truncgauss.distributions.checks import common_dtype
from truncgauss.distributions.supports import TruncatedDistribution
from truncgauss.distributions.univariate import TruncatedNormal, log_density, log_mass
from truncgauss.special.logspace import log1mexp, log_sigmoid
from truncgauss.special.student_t import log_t_mass
from truncgauss.special.tails import standardize, undefined
from truncgauss.words.arguments import explained_class


class Recorded(constraints.Constraint):
    """Values from low to high, which are taken with positive probability; or pairs in order."""

    def __init__(self, low: Array, high: Array, event_dim: int) -> None:
        self.low, self.high, self.event_dim = low, high, event_dim

    def __call__(self, x: Any) -> Array:
        if self.event_dim:
            return x[..., 0] <= x[..., 1]
        return (x >= self.low) & (x <= self.high)

    def tree_flatten(self) -> Any:
        return (self.low, self.high), (("low", "high"), {"event_dim": self.event_dim})


@biject_to.register(Recorded)
def _onto_recorded(constraint: Recorded) -> Transform:
    raise NotImplementedError(
        "a Censored takes its bounds with positive probability, so NUTS and SVI cannot use it for "
        "a latent variable; observed values and draws are fine. Sample the distribution itself "
        "as the latent variable, and clip it."
    )


@explained_class
class Censored(TruncatedDistribution):
    r"""A variable of which values beyond a bound are recorded as that bound.

    .. math:: Y = \min\{\max(X, l), h\}, \qquad \log p(y) = \begin{cases}
        \log P(X \le l) & y \le l \\ \log p_X(y) & l < y < h \\ \log P(X \ge h) & y \ge h
        \end{cases}

    Probabilities and their derivatives are right in any tail. The distribution is a Normal,
    LogNormal, StudentT, Exponential, Weibull or Logistic of NumPyro, a `TruncatedNormal`, or one of
    your own with methods `log_cdf(x)` and `log_sf(x)`, the logs of P(X <= x) and of P(X > x).

    Args:
        distribution: of X, one number; its batch shape and those of the bounds broadcast.
        low, high: the bounds, of all values or of each (the detection limit of a sample, the end of
            the observation of a subject); None, -inf or inf where there is none. A value at or
            beyond a bound stands for all that lies beyond it.
        intervals: whether values are pairs (lower, upper), in a last axis of two, between which X
            is known to lie: their log probability, or the log density where the two are equal.
            Draws are pairs too: (x, x) between the bounds, (-inf, low) and (high, inf) beyond.
        validate_args: as of any distribution of NumPyro.

    Raises:
        TypeError: for a distribution of which probabilities in its tails are not known.
        ValueError: for bounds that are equal or inverted, or shapes that do not broadcast.

    Reference:
        Tobin (1958), Estimation of relationships for limited dependent variables.

    Example:
        >>> import numpyro.distributions as dist
        >>> measured = tg.Censored(dist.Normal(0.0, 1.0), low=-20.0)
        >>> float(measured.log_prob(-20.0).round(4)), float(measured.log_prob(0.0).round(4))
        (-203.9172, -0.9189)
    """

    arg_constraints: dict[str, Any] = {}
    pytree_data_fields = ("distribution", "low", "high")
    pytree_aux_fields = ("intervals",)

    def __init__(
        self,
        distribution: dist.Distribution,
        low: Real[ArrayLike, "..."] | None = None,
        high: Real[ArrayLike, "..."] | None = None,
        *,
        intervals: bool = False,
        validate_args: bool | None = None,
    ) -> None:
        check_supported(distribution)
        self.distribution, self.intervals = distribution, intervals
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        dtype = common_dtype({"low": low, "high": high, "distribution": distribution})
        self.low, self.high = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
        check_limits("Censored", self.low, self.high)
        shape = jnp.broadcast_shapes(distribution.batch_shape, self.low.shape, self.high.shape)
        super().__init__(shape, (2,) if intervals else (), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> Recorded:
        """Values between the bounds, or with `intervals` pairs of any numbers."""
        return Recorded(self.low, self.high, int(self.intervals))

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        """Log density between the bounds, log probability at them, see the class.

        Raises:
            ValueError: for a pair whose lower end is above the upper one. While tracing, values are
                unknown: its log probability is then NaN.
        """
        if not isinstance(value, jax.Array | np.ndarray | float | int):
            from truncgauss.words.misfits import refuse_no_numbers

            refuse_no_numbers("Censored: value must be numbers", value)
        pairs, value = value, jnp.asarray(value)
        value = value.astype(jnp.result_type(value, self.low, 0.0))
        if self.intervals:
            if value.shape[-1:] != (2,):
                raise ValueError(
                    "Censored: with intervals=True values are pairs (lower, upper) in a last axis "
                    f"of length 2, got shape {value.shape}."
                )
            lower, upper = value[..., 0], value[..., 1]
            if is_concrete(pairs):
                check_pairs(np.asarray(pairs))
            if is_concrete((pairs, self.low, self.high)):
                check_beyond(np.asarray(pairs), np.asarray(self.low), np.asarray(self.high))
        else:
            lower = jnp.where(value <= self.low, -jnp.inf, value)
            upper = jnp.where(value >= self.high, jnp.inf, value)
            lower = jnp.where(value >= self.high, self.high, lower)
            upper = jnp.where(value <= self.low, self.low, upper)
        shape = jnp.broadcast_shapes(self.batch_shape, lower.shape)
        lower, upper = jnp.broadcast_to(lower, shape), jnp.broadcast_to(upper, shape)
        exact, finite = lower == upper, jnp.isfinite(lower)
        between = ~exact & ((lower > -jnp.inf) | (upper < jnp.inf))
        # Where a branch is not taken, numbers at which it is finite, as are its derivatives.
        inside = self.distribution.support.feasible_like(lower)
        density = self.distribution.log_prob(jnp.where(exact & finite, lower, inside))
        density = jnp.where(finite, density, -jnp.inf)
        ends = jnp.where(between, lower, inside), jnp.where(between, upper, jnp.inf)
        mass = jnp.where(between, log_probability(self.distribution, *ends), 0.0)
        sound = (lower <= upper) & (self.low < self.high)
        return undefined(~sound, jnp.where(exact, density, mass))

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Independent draws, clipped; or pairs of bounds with `intervals`."""
        self._check_draw(key, sample_shape)
        x = self.distribution.expand(self.batch_shape).sample(key, sample_shape)
        if not self.intervals:
            return jnp.clip(x, self.low, self.high)
        lower = jnp.where(x <= self.low, -jnp.inf, jnp.minimum(x, self.high))
        upper = jnp.where(x >= self.high, jnp.inf, jnp.maximum(x, self.low))
        return jnp.stack([lower, upper], axis=-1)


def check_pairs(pairs: np.ndarray) -> None:
    """Raise ValueError if one of the pairs (lower, upper), (..., 2), has no number between."""
    crossed = pairs[..., 0] > pairs[..., 1]
    if crossed.any():
        first = tuple(np.argwhere(crossed)[0].tolist())
        raise ValueError(
            f"Censored: lower must not be above upper, got {pairs[first].tolist()} in "
            f"{crossed.sum()} pair(s), first at index {first}. Exchange them."
        )


def check_beyond(pairs: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Raise ValueError if an exact pair lies beyond a bound, where no value is known exactly."""
    ends = pairs[..., 0], pairs[..., 1]
    for side, write, beyond in (
        ("low", "(-inf, low)", ends[0] < low),
        ("high", "(high, inf)", ends[1] > high),
    ):
        exact = beyond & (ends[0] == ends[1]) & np.isfinite(ends[0])
        if exact.any():
            first = tuple(np.argwhere(exact)[0].tolist())
            got = np.broadcast_to(ends[0], exact.shape)[first]
            raise ValueError(
                f"Censored: {exact.sum()} pair(s) are exact beyond {side}, first {got:g} at index "
                f"{first}, where values are recorded as the bound. Write them {write}, or leave "
                f"{side} out: with intervals=True pairs say themselves what is known."
            )


def check_supported(distribution: Any) -> None:
    """Raise TypeError if the probabilities of a distribution in its tails are not known."""
    inner = distribution
    while isinstance(inner, dist.ExpandedDistribution):
        inner = inner.base_dist
    if not isinstance(inner, dist.Distribution) or inner.event_shape or inner.is_discrete:
        raise TypeError(f"Censored: a distribution of one real number is expected, got {inner!r}.")
    known = log_probability.dispatch(type(inner)) is not log_probability.dispatch(object)
    if not known and not all(
        callable(getattr(inner, name, None)) for name in ("log_cdf", "log_sf")
    ):
        raise TypeError(
            f"Censored: {type(inner).__name__} has no probabilities that are right in its tails; "
            "the logs of a cdf, or of one less it, are not. Use a Normal, LogNormal, StudentT, "
            "Exponential, Weibull, Logistic or tg.TruncatedNormal, or give a subclass methods "
            "log_cdf(x) and log_sf(x)."
        )


# --- Log probabilities of intervals ---------------------------------------------------------------


@singledispatch
def log_probability(distribution: Any, low: Array, high: Array) -> Array:
    """log P(low <= X <= high), of which one limit may be infinite; low < high."""
    return _from_tails(distribution.log_cdf, distribution.log_sf, low, high)


def _from_tails(
    log_cdf: Callable[[Array], Array], log_sf: Callable[[Array], Array], low: Array, high: Array
) -> Array:
    """From the logs of the probabilities of both tails, as a difference in the smaller one."""
    no_low, no_high = low == -jnp.inf, high == jnp.inf
    a, b = jnp.where(no_low, high, low), jnp.where(no_high, low, high)
    below = jnp.where(no_high, log_sf(a), log_cdf(b))
    within = ~(no_low | no_high)
    upper = log_sf(a), log_sf(b)
    lower = log_cdf(b), log_cdf(a)
    larger, smaller = (jnp.where(upper[0] < lower[0], x, y) for x, y in zip(upper, lower))
    nothing = smaller == -jnp.inf
    gap = jnp.where(within & ~nothing, larger - jnp.where(nothing, 0.0, smaller), 1.0)
    return jnp.where(within, larger + jnp.where(nothing, 0.0, log1mexp(gap)), below)


@log_probability.register
def _(distribution: dist.ExpandedDistribution, low: Array, high: Array) -> Array:
    return log_probability(distribution.base_dist, low, high)


@log_probability.register
def _(distribution: dist.Normal, low: Array, high: Array) -> Array:
    return log_mass(distribution.loc, distribution.scale, low, high)


@log_probability.register
def _(distribution: dist.LogNormal, low: Array, high: Array) -> Array:
    low, high = (jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf) for x in (low, high))
    return log_probability(distribution.base_dist, low, high)


@log_probability.register
def _(distribution: dist.StudentT, low: Array, high: Array) -> Array:
    return log_t_mass(distribution.df, standardize(low, high, distribution.loc, distribution.scale))


@log_probability.register
def _(distribution: TruncatedNormal, low: Array, high: Array) -> Array:
    """A ratio of two masses, by the densities at the mode between the inner limits."""
    loc, scale, least, most = distribution._parameters
    low, high = jnp.maximum(low, least), jnp.minimum(high, most)
    empty = ~(low < high)
    low, high = jnp.where(empty, least, low), jnp.where(empty, most, high)
    mode = jax.lax.stop_gradient(jnp.clip(loc, low, high))
    whole = log_density(mode, loc, scale, least, most)
    return jnp.where(empty, -jnp.inf, whole - log_density(mode, loc, scale, low, high))


@log_probability.register
def _(distribution: dist.Logistic, low: Array, high: Array) -> Array:
    low, high, _ = standardize(low, high, distribution.loc, distribution.scale)
    return _from_tails(log_sigmoid, lambda x: log_sigmoid(-x), low, high)


@log_probability.register(dist.Exponential)
@log_probability.register(dist.Weibull)
def _(distribution: Any, low: Array, high: Array) -> Array:
    """By the cumulative hazard, the negative log of P(X > x)."""

    def hazard(x: Array) -> Array:
        x = jnp.where(x > 0, x, 1.0)
        if isinstance(distribution, dist.Exponential):
            return distribution.rate * x
        return (x / distribution.scale) ** distribution.concentration

    def log_cdf(x: Array) -> Array:
        return jnp.where(x > 0, log1mexp(hazard(x)), -jnp.inf)

    def log_sf(x: Array) -> Array:
        return jnp.where(x > 0, -hazard(x), 0.0)

    return _from_tails(log_cdf, log_sf, low, high)
