"""The truncated normal distribution in one dimension for NumPyro."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Real
from numpyro.distributions import constraints

from truncgauss.arrays.pytrees import Estimate, check_limits, is_concrete
from truncgauss.distributions.checks import as_value, common_arrays, is_positive, require
from truncgauss.distributions.supports import Between, TruncatedDistribution
from truncgauss.special.normal import (
    truncated_entropy,
    truncated_log_density,
    truncated_log_mass,
    truncated_mean,
    truncated_quantile,
    truncated_variance,
)
from truncgauss.special.tails import undefined
from truncgauss.words.arguments import explained_class

# Compiled for calls outside of a trace too: one program is a hundred times faster than its parts.
log_density = jax.jit(truncated_log_density, inline=True)
log_mass = jax.jit(truncated_log_mass, inline=True)
quantile = jax.jit(truncated_quantile, inline=True)
mean = jax.jit(truncated_mean, inline=True)
variance = jax.jit(truncated_variance, inline=True)
entropy = jax.jit(truncated_entropy, inline=True)


@explained_class
class TruncatedNormal(TruncatedDistribution):
    r"""A normal variable truncated to [low, high], accurate in any tail.

    .. math:: p(x) = \frac{\phi\{(x - \mu)/\sigma\}}{\sigma Z}, \quad l \le x \le h, \qquad
        Z = \Phi\{(h - \mu)/\sigma\} - \Phi\{(l - \mu)/\sigma\}

    Args:
        loc, scale: mean and standard deviation before truncation; all arguments broadcast, and
            the result has their common dtype (numbers and lists of numbers follow the arrays).
        low, high: limits; None, -inf or inf leave a side open.
        validate_args: whether loc and scale are checked, and points outside warned about; the
            default is NumPyro's.

    Raises:
        ValueError: for limits that are equal or inverted, or shapes that do not broadcast; with
            validation, for a scale that is not positive or values that are not finite. Traced
            limits cannot be checked: where they are equal or inverted log_prob is NaN.

    The density outside the limits is 0: `log_prob` is -inf, with or without validation. `mean`,
    `variance`, `entropy`, `cdf` and `icdf` are exact to rounding, and draws are differentiable.

    Reference:
        Johnson, Kotz and Balakrishnan (1994), Continuous Univariate Distributions 1, section
        13.10.1.

    Example:
        >>> tail = tg.TruncatedNormal(0.0, 1.0, low=9.0, high=10.0)
        >>> float(tail.log_prob(9.1).round(11)), float(tail.icdf(1.0))
        (1.30427809908, 10.0)
    """

    arg_constraints = {
        "loc": constraints.real,
        "scale": constraints.positive,
        "low": constraints.dependent(is_discrete=False, event_dim=0),
        "high": constraints.dependent(is_discrete=False, event_dim=0),
    }
    reparametrized_params = ["loc", "scale", "low", "high"]

    def __init__(
        self,
        loc: Real[ArrayLike, "..."] | Sequence[Any] = 0.0,
        scale: Real[ArrayLike, "..."] | Sequence[Any] = 1.0,
        low: Real[ArrayLike, "..."] | Sequence[Any] | None = None,
        high: Real[ArrayLike, "..."] | Sequence[Any] | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        from truncgauss.arrays.coordinates import check_one_order

        low, high = -math.inf if low is None else low, math.inf if high is None else high
        parameters = {"loc": loc, "scale": scale, "low": low, "high": high}
        self.coordinate_names = check_one_order(**parameters)
        self.loc, self.scale, self.low, self.high = common_arrays("TruncatedNormal", **parameters)
        check_limits("TruncatedNormal", self.low, self.high)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def _parameters(self) -> tuple[Array, ...]:
        return self.loc, self.scale, self.low, self.high

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> Between:
        """The interval [low, high]."""
        return Between(self.low, self.high)

    def validate_args(self, strict: bool = True) -> None:
        """Raise ValueError for a loc or scale that is not finite, or a scale not positive."""
        require(type(self).__name__, "loc", self.loc, np.isfinite, "finite")
        require(type(self).__name__, "scale", self.scale, is_positive, "positive and finite")
        if not is_concrete(self._parameters):  # else NumPyro would ask the same again
            super().validate_args(strict)

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        """Log density; -inf outside the limits and at infinity, where its gradients are 0."""
        value = as_value(self, value, self.loc)
        if self._validate_args:
            self._validate_sample(value)  # warns; what follows needs no mask
        return log_density(value, *self._parameters)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Independent draws by inversion, differentiable in every parameter."""
        self._check_draw(key, sample_shape)
        dtype = self.loc.dtype
        uniform = jax.random.uniform(key, tuple(sample_shape) + self.batch_shape, dtype)
        # The middles of the cells, as their left ends would include 0.
        return quantile(uniform + 0.5 * float(jnp.finfo(dtype).eps), *self._parameters)

    def cdf(self, value: Any) -> Array:
        """P(X <= value); its derivatives are 0 at and outside the limits, as from outside."""
        value = as_value(self, value, self.loc)
        return _cdf(value, *self._parameters)

    def icdf(self, q: Any) -> Array:
        """The quantile of q in [0, 1], within the limits and at them for 0 and 1; else NaN."""
        q = as_value(self, q, self.loc)
        proper = (q >= 0) & (q <= 1)
        return undefined(~proper, quantile(jnp.where(proper, q, 0.5), *self._parameters))

    @property
    def log_normalizer(self) -> Estimate:
        """log P(low <= X <= high) before truncation, exact to rounding, so with a stderr of 0."""
        log_prob = log_mass(*self._parameters)
        return Estimate(log_prob, jnp.zeros_like(log_prob))

    @property
    def mean(self) -> Array:
        """Mean after truncation."""
        return mean(*self._parameters)

    @property
    def variance(self) -> Array:
        """Variance after truncation."""
        return variance(*self._parameters)

    def entropy(self) -> Array:
        """Differential entropy in nats."""
        return entropy(*self._parameters)


@partial(jax.jit, inline=True)
def _cdf(value: Array, loc: Array, scale: Array, low: Array, high: Array) -> Array:
    """A ratio of two masses, each relative to the density at the mode of both intervals."""
    value, loc, scale, low, high = jnp.broadcast_arrays(value, loc, scale, low, high)
    inside = (value > low) & (value < high)
    # A replacement inside the limits, so that the branch not taken has no NaN slope.
    top = jnp.where(inside, value, jnp.where(jnp.isfinite(high), high, low + scale))
    top = jnp.where(jnp.isfinite(top), top, loc)
    peak = jax.lax.stop_gradient(jnp.clip(loc, low, top))
    whole = truncated_log_density(peak, loc, scale, low, high)
    part = truncated_log_density(peak, loc, scale, low, top)
    share = jnp.exp(jnp.minimum(whole - part, 0.0))
    probability = jnp.where(inside, share, jnp.where(value >= high, 1.0, 0.0))
    return undefined(jnp.isnan(value) | ~((low <= high) & (scale > 0)), probability)
