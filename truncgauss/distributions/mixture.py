"""A truncated mixture of Gaussians for NumPyro."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import MultivariateNormal, constraints

from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.keys import checked_key
from truncgauss.arrays.pytrees import Estimate, check_digits, is_concrete
from truncgauss.distributions.checks import as_value, common_dtype, of_equal_ranks
from truncgauss.distributions.multivariate_normal import one_region
from truncgauss.distributions.supports import Between, Inside, TruncatedDistribution
from truncgauss.draws.sampling import truncated_samples
from truncgauss.draws.truncated_moments import truncated_moments
from truncgauss.fits.mixtures.likelihood import log_mean
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.gaussian.regions.region import Region, as_linear
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.method import Method
from truncgauss.words.arguments import explained_class

MOST_ATTEMPTS = 100_000  # proposals for one draw from a region without linear constraints


@explained_class
class TruncatedMixture(TruncatedDistribution):
    r"""A mixture of K Gaussians, truncated to a region.

    .. math:: p(x) = s(x) \frac{\sum_k w_k N(x; \mu_k, \Sigma_k)}{\sum_k w_k P_k(R)}

    with s(x) the probability that x is observed: 1 inside the region and 0 outside, or what a
    `tg.Selection` gives, of which P_k is the mean over component k.

    The weights are those of the whole population. Labels can be exchanged: a model that is to be
    sampled needs an order, such as a first entry of the means that is
    `constraints.ordered_vector`.

    Args:
        weights: shape (K,), with sum 1.
        locs: means before truncation, (K, d).
        covariances: covariance matrices before truncation, (K, d, d).
        low, high: limits, shape (d,) or a number; None leaves a side open.
        region: in place of limits. Draws from one without linear constraints are draws from the
            population, kept with probability s(x): NaN where none of 100,000 is.
        method: how probabilities are computed.
        key: its random key.

    Raises:
        ValueError: for shapes that disagree, or limits together with a region.

    Example:
        >>> mixture = tg.TruncatedMixture(
        ...     jnp.array([0.3, 0.7]), jnp.array([[0.0], [2.0]]), jnp.ones((2, 1, 1)), low=0.0
        ... )
        >>> mixture.log_prob(jnp.array([0.5])).round(4)
        Array(-1.4468, dtype=float64)
        >>> mixture.mean.round(4)
        Array([1.8291], dtype=float64)
    """

    arg_constraints = {
        "weights": constraints.simplex,
        "locs": constraints.independent(constraints.real_vector, 1),
        "covariances": constraints.independent(constraints.positive_definite, 1),
    }
    pytree_data_fields = ("weights", "locs", "covariances", "region", "method", "key")
    coordinate_names: list[Any] | None = None  # of labelled parameters; trees keep none

    def __init__(
        self,
        weights: Any,
        locs: Any,
        covariances: Any,
        low: Any = None,
        high: Any = None,
        region: Region | None = None,
        method: Method | None = None,
        key: Array | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        parameters = {"weights": weights, "locs": locs, "covariances": covariances}
        self.coordinate_names = check_one_order(locs=locs, low=low, high=high, region=region)
        dtype = common_dtype(parameters | {"low": low, "high": high, "region": region})
        self.weights, self.locs, self.covariances = (
            jnp.asarray(value, dtype) for value in parameters.values()
        )
        check_digits(self.locs)
        k, d = self.locs.shape if self.locs.ndim == 2 else (0, 0)
        shapes = self.weights.shape, self.locs.shape, self.covariances.shape
        if shapes != ((k,), (k, d), (k, d, d)) or 0 in (k, d):
            raise ValueError(
                "TruncatedMixture: weights, locs and covariances need shapes (K,), (K, d) and "
                f"(K, d, d), got {shapes}."
            )
        if validate_args is not False and is_concrete(self.weights):
            numbers = np.asarray(self.weights)
            if np.any(numbers < 0) or not abs(numbers.sum() - 1.0) <= 1e-6:
                cure = (
                    "Divide them by their sum."
                    if np.all(numbers >= 0)
                    else "If these are logits, write jax.nn.softmax(logits)."
                )
                raise ValueError(
                    "TruncatedMixture: weights must not be negative, and sum to 1; got "
                    f"{numbers.tolist()}. {cure}"
                )
        if validate_args is not False:
            CovarianceMatrix(self.covariances).check("TruncatedMixture: covariances")
        region = one_region("TruncatedMixture", None, low, high, region, d)
        if region.dimension != d or region.batch_shape:
            raise ValueError(
                f"TruncatedMixture: the region must be one of dimension {d}, got dimension "
                f"{region.dimension} and leading axes {region.batch_shape}."
            )
        self.region = region.simplified()
        self.method, self.key = Automatic() if method is None else method, key
        super().__init__((), (d,), validate_args=validate_args)

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        """The region as a NumPyro constraint."""
        if self.region.is_box:
            box = as_linear(self.region)
            return Between(box.low, box.high, event_dim=1)
        return Inside(self.region)

    @property
    def component_log_prob(self) -> Estimate:
        """log P_k(X in region) of each component before truncation, (K,)."""
        covariance = CovarianceMatrix(self.covariances)
        return log_probability(self.locs, covariance, self.region, self.method, self.key)

    @property
    def observed_weights(self) -> Array:
        """P(component | X in region), (K,)."""
        return log_mean(self.component_log_prob.log_prob, self.weights)[1]

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        """Log density; -inf outside the region and at infinity, where its gradients are 0."""
        value = as_value(self, value, self.locs)
        if value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"TruncatedMixture: a value needs shape (..., {self.event_shape[0]}), got "
                f"{value.shape}."
            )
        inside, log_kept = self.support(value), jnp.zeros((), value.dtype)
        safe = jnp.where(inside[..., None], value, self.locs[0])
        if not self.region.is_linear:
            log_kept = jnp.log(jnp.where(inside, self.region.kept(safe), 1.0))
        points, locs = of_equal_ranks(safe[..., None, :], self.locs)
        parts = MultivariateNormal(locs, self.covariances).log_prob(points)
        weights = jax.lax.broadcast_to_rank(self.weights, parts.ndim)
        density = log_mean(parts, weights)[0]
        whole = log_mean(self.component_log_prob.log_prob, self.weights)[0]
        whole += 0.0 * jnp.sum(self.weights)  # NaN stays
        outside = jnp.where(jnp.any(jnp.isnan(value), axis=-1), jnp.nan, -jnp.inf)
        return jnp.where(inside, density - whole + log_kept, outside)

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Independent exact draws, shape sample_shape + (d,); see `truncated_samples`."""
        self._check_draw(key, sample_shape)
        choice, draw = jax.random.split(checked_key(key))
        count = math.prod(sample_shape)
        if not self.region.is_linear:
            draws = jax.vmap(self._population_draw)(jax.random.split(draw, count))
            return draws.reshape(tuple(sample_shape) + self.event_shape)
        labels = jax.random.categorical(choice, jnp.log(self.observed_weights), shape=(count,))
        parts = jax.lax.stop_gradient((self.locs, CovarianceMatrix(self.covariances), self.region))
        draws = truncated_samples(draw, *parts, max(count, 1))[:count]
        return draws[jnp.arange(count), labels].reshape(tuple(sample_shape) + self.event_shape)

    def _population_draw(self, key: Array) -> Array:
        """One draw from the population that the region keeps, (d,)."""
        factors, logs = jnp.linalg.cholesky(self.covariances), jnp.log(self.weights)

        def attempt(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            count, _, _ = state
            choice, normal, chance = jax.random.split(jax.random.fold_in(key, count), 3)
            k = jax.random.categorical(choice, logs)
            x = self.locs[k] + factors[k] @ jax.random.normal(normal, self.event_shape, logs.dtype)
            probability = self.region.kept(x[None])[0]
            return count + 1, jax.random.uniform(chance, dtype=logs.dtype) < probability, x

        start = jnp.zeros((), jnp.int32), jnp.zeros((), bool), self.locs[0]
        more = lambda state: ~state[1] & (state[0] < MOST_ATTEMPTS)
        _, accepted, x = jax.lax.while_loop(more, attempt, start)
        return jnp.where(accepted, x, jnp.nan)

    @property
    def mean(self) -> Array:
        """Mean after truncation, (d,)."""
        return self.observed_weights @ self._moments[0]

    @property
    def variance(self) -> Array:
        """Variances after truncation, (d,)."""
        means, matrices = self._moments
        squares = jnp.diagonal(matrices, axis1=-2, axis2=-1) + (means - self.mean) ** 2
        return self.observed_weights @ squares

    @property
    def _moments(self) -> tuple[Array, Array]:
        covariance = CovarianceMatrix(self.covariances)
        moments = truncated_moments(self.locs, covariance, self.region, self.method, self.key)
        return moments.mean, moments.covariance
