"""The base class of the truncated distributions: batch axes as events, and checks of keys."""

from collections.abc import Sequence
from typing import Any

from numpyro.distributions import Distribution, Independent, constraints
from numpyro.util import is_prng_key

from truncgauss.distributions.supports import Between


class TruncatedDistribution(Distribution):
    """Base class of the truncated distributions."""

    def to_event(self, reinterpreted_batch_ndims: int | None = None) -> Distribution:
        """The same distribution with batch axes reinterpreted as axes of one event."""
        ndims = reinterpreted_batch_ndims
        ndims = len(self.batch_shape) if ndims is None else ndims
        return Event(self, ndims) if ndims else self

    def _check_key(self, key: Any) -> None:
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
