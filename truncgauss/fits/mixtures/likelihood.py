"""The log-likelihood of observed rows, given a mixture of Gaussians, and the loss of its fit."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import likelihood
from truncgauss.arrays.compiling import Compiled, Cost
from truncgauss.arrays.coordinates import check_one_order
from truncgauss.arrays.keys import as_key
from truncgauss.arrays.pytrees import (
    Estimate,
    as_float_array,
    as_jax_array,
    frozen_pytree,
    is_concrete,
)
from truncgauss.fits.mixtures.parameters import Mixture, MixtureCoordinates, log_prior_at
from truncgauss.fitting.newton import Loss
from truncgauss.gaussian.problem import as_problem
from truncgauss.gaussian.regions.box import Box
from truncgauss.likelihood.integrals import HeldMethods
from truncgauss.likelihood.observations import Observations
from truncgauss.likelihood.rows import RowTerms, held_for_key, prepared, row_terms
from truncgauss.probability.automatic import Automatic, log_probability
from truncgauss.probability.method import Method

KEPT = 2**25  # numbers that a gradient may keep of all components; beyond, each is computed twice
# The most rows of a block, and of numbers in one of its arrays of rows by components' coordinates.
BLOCK, BLOCK_NUMBERS = 2**17, 2**22
# Components, to multiples of which they are filled up, and the most rows of which that is so:
# beyond, what it saves in compilation is less than what it costs.
PADDED, MOST_PADDED = 4, 2**13
DRAWS = 2**16  # for the integral of a row over a region without linear limits
T = TypeVar("T")


@frozen_pytree
class HeldComponents(Method):
    """Methods held for each component, along a leading axis of every leaf; made by `hold`."""

    components: HeldMethods


class MixtureTerms(NamedTuple):
    """Terms of each row under a mixture, unweighted.

    Attributes:
        log_prob: (n,), -inf where a row is impossible.
        responsibilities: P(component | what the row shows), (n, K).
        region_shares: P(component | a row lies in this region), (n, K).
        log_region: log P(Y in R), (n,).
        components: the terms of each component, (K, n).
    """

    log_prob: jax.Array
    responsibilities: jax.Array
    region_shares: jax.Array
    log_region: jax.Array
    components: RowTerms


def mixture_log_likelihood(
    observations: Observations,
    weights: Any,
    locs: Any,
    covariances: Any,
    method: Method = Automatic(),
    key: jax.Array | None = None,
) -> Estimate:
    r"""The log-likelihood of each observed row under a mixture of Gaussians, and its error.

    .. math:: \log \sum_k w_k f_k(y) - \log \sum_k w_k P_k(Y \in R)

    with f_k what component k says of the row's entries (exact, censored, in intervals, missing;
    with its noise), and P_k(Y in R) the probability that a row of that component lies in the row's
    region; times the row's weight. Rows that share region and noise share these probabilities.

    Args:
        observations: n rows of d entries.
        weights: of the K components in the whole population, observed or not, shape (K,); only
            their proportions matter.
        locs: means, shape (K, d).
        covariances: shape (K, d, d), or an object such as `tg.ScaleTril` of batch shape (K,).
        method: as in `log_likelihood`; `tg.mixtures.hold` fixes its plans.
        key: JAX random key; each component and row gets its own.

    Returns:
        Estimate(log_prob, stderr), each (n,); -inf where a row is
        impossible under all components.

    Raises:
        ValueError: for shapes that disagree, negative weights or a covariance that is none.

    Reference:
        McLachlan and Peel, "Finite Mixture Models" (2000). Melchior and Goulding, "Filling the
        gaps: Gaussian mixture models from noisy, truncated or incomplete samples", Astronomy and
        Computing (2018).

    Example:
        >>> rows = tg.Observations.exact([0.5, 1.5], region=tg.Box([0.0], [jnp.inf]))
        >>> weights, locs, covariances = [0.3, 0.7], [[0.0], [2.0]], [[[1.0]], [[0.5]]]
        >>> tg.mixtures.mixture_log_likelihood(rows, weights, locs, covariances).log_prob.round(6)
        Array([-1.751209, -0.89563 ], dtype=float64)
    """
    rows, mixture = prepared_mixture(observations, weights, locs, covariances)
    result: Estimate = of_filled(_rows, rows, mixture, method, as_key(key))
    if is_concrete((rows, result)):
        check_enough("mixture_log_likelihood", rows, mixture.locs, mixture.covariance)
    return result


def check_enough(caller: str, observations: Observations, locs: Any, covariances: Any) -> None:
    """Raise ValueError if a component, given as numbers, has too few injections for the rows."""
    region: Any = observations.region
    if region is not None and not region.answers_points:
        region.check_enough(caller, None, *log_probability(locs, covariances, region))


def of_filled(function: Compiled, observations: Observations, *others: Any) -> Any:
    """Results of a compiled function for rows, as arrays (n, ...), computed for rows filled up to
    one of few lengths."""
    rows = observations
    if is_concrete(others):
        (rows,) = likelihood.filled_up(observations)
    return likelihood.first_rows(function(rows, *others), observations.num_rows)


def hold(method: Method, observations: Observations, locs: Any, covariances: Any) -> HeldComponents:
    """The method with its plans fixed for these observations and components.

    Given to `mixture_log_likelihood`, and with one key, that is one smooth function of its
    parameters, whose gradient is exactly its own. Arguments as there.

    Example:
        >>> rows = tg.Observations([[0.0] * 4], [[jnp.inf] * 4])
        >>> mixture = [1.0], jnp.zeros((1, 4)), 0.5 * (jnp.eye(4)[None] + 1.0)
        >>> method = tg.mixtures.hold(tg.Separation(), rows, *mixture[1:])
        >>> tg.mixtures.mixture_log_likelihood(rows, *mixture, method).log_prob.round(3)  # -log 5
        Array([-1.609], dtype=float64)
    """
    return held_for(range(np.shape(locs)[0]), method, observations, locs, covariances, None)


def held_for(
    numbers: Any,
    method: Method,
    observations: Observations,
    locs: Any,
    covariances: Any,
    key: jax.Array | None,
) -> HeldComponents:
    """As `hold`, for the components of these numbers; those of -1 have the plans of the first. With
    a key also the points of importance sampling, see `likelihood.rows.held_for_key`."""
    ones = np.ones(np.shape(locs)[0])
    observations, mixture = prepared_mixture(observations, ones, locs, covariances)
    parts, held = (mixture.locs, mixture.covariance), []
    for k in range(len(ones)):
        own_key = None if key is None else jax.random.fold_in(key, k)
        loc, covariance = part_of(parts, k)
        held.append(held_for_key(method, observations, loc, covariance, own_key))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(held[max(k, 0)] for k in numbers))
    return HeldComponents(stacked)


def part_of(tree: Any, k: int) -> Any:
    """Entry k of the first axis of every leaf."""
    numbers = np.asarray if is_concrete(tree) else jnp.asarray  # NumPy compiles nothing
    return jax.tree.map(lambda leaf: numbers(leaf)[k], tree)


def prepared_mixture(
    observations: Observations, weights: Any, locs: Any, covariances: Any
) -> tuple[Observations, Mixture]:
    """The arguments of `mixture_log_likelihood`, checked and in one dtype."""
    d, shapes = observations.dimension, (np.shape(weights), np.shape(locs))
    if len(shapes[0]) != 1 or shapes[1] != (*shapes[0], d) or 0 in shapes[0]:
        raise ValueError(
            "mixture_log_likelihood: weights must have shape (K,) and locs (K, d), one row for "
            f"each component; got {shapes[0]} and {shapes[1]} for observations of {d} entries."
        )
    check_one_order(observations=observations, region=observations.region, locs=locs)
    everywhere = Box(np.full(shapes[1], -jnp.inf), jnp.inf)
    locs, covariance, _ = as_problem(locs, covariances, everywhere)
    covariance = covariance.broadcast_to(shapes[0])
    first = part_of((locs, covariance), 0)
    observations = prepared(observations, *first)[0]
    weights = as_float_array(weights, "weights").astype(locs.dtype)
    if is_concrete(weights):
        values = np.asarray(weights)  # a comparison in JAX would be traced under jit
        if np.any(values < 0) or not np.any(values != 0):
            raise ValueError(
                f"mixture_log_likelihood: weights must not be negative, nor all zero; got {values}."
            )
    return observations, Mixture(weights, locs, covariance)


def mixture_terms(
    observations: Observations,
    mixture: Mixture,
    method: Method,
    key: jax.Array,
    numbers: jax.Array | None = None,
) -> MixtureTerms:
    """The terms of each row; arguments as `prepared_mixture` returns them, and the numbers of the
    components, (K,), if some of weight 0 fill it up and have -1."""
    num_components, d = mixture.locs.shape

    def one(component: Any) -> RowTerms:
        number, loc, covariance, held = component
        own_key = jax.random.fold_in(key, number)
        return row_terms(observations, loc, covariance, held or method, own_key)

    if observations.num_rows * d * d * num_components > KEPT:
        one = jax.checkpoint(one)
    parts = mixture.locs, mixture.covariance, held_of(method)
    if numbers is None:
        components = jax.lax.map(one, (jnp.arange(num_components), *parts))
    else:
        components = over_components(one, (numbers, *parts))
    data, responsibilities = log_mean(components.data.T, mixture.weights)
    region, shares = log_mean(components.region.T, mixture.weights)
    total = data - region
    total += 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(mixture))  # NaN stays
    return MixtureTerms(total, responsibilities, shares, region, components)


def over_components(function: Callable[[Any], Any], parts: tuple[Any, ...]) -> Any:
    """The function of the parts of each component, of which the first is its number; 0 for those
    that have -1, which are not computed."""
    function = jax.jit(function)  # which is traced once, for its shapes and for what it computes

    def one(part: Any) -> Any:
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, part))
        return jax.lax.cond(part[0] >= 0, function, lambda part: nothing, part)

    return jax.lax.map(one, parts)


def held_of(method: Method) -> HeldMethods | None:
    return method.components if isinstance(method, HeldComponents) else None


def log_mean(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log of the weighted mean of exp(values), (n, K) -> (n,), and the share of each in it.

    -inf, with shares of 0 and no gradient, where no value of positive weight is finite. The
    derivative in a weight of 0 is that from above.
    """
    weights = jax.lax.broadcast_to_rank(weights, values.ndim)
    possible = jnp.any((weights > 0) & (values != -jnp.inf), axis=-1, keepdims=True)
    known = possible & (values != -jnp.inf)
    safe = jnp.where(known, values, 0.0)
    largest = jnp.max(jnp.where(known & (weights > 0), values, -jnp.inf), axis=-1, keepdims=True)
    largest = jax.lax.stop_gradient(jnp.where(possible, largest, 0.0))
    # A value of weight 0 may be larger, but not so much that it overflows.
    most = 0.5 * math.log(float(jnp.finfo(values.dtype).max))
    parts = jnp.where(known, weights * jnp.exp(jnp.minimum(safe - largest, most)), 0.0)
    total = jnp.where(possible, jnp.sum(parts, axis=-1, keepdims=True), 1.0)
    result = jnp.log(total) + largest - jnp.log(jnp.sum(weights))
    return jnp.where(possible, result, -jnp.inf)[..., 0], parts / total


def row_weights(observations: Observations, dtype: Any) -> jax.Array:
    """Weights of the rows, (n,)."""
    weights, n = observations.weights, observations.num_rows
    if weights is not None:
        return weights.astype(dtype)
    ones = jax.device_put(np.ones(n)) if is_concrete(observations.lower) else jnp.ones(n)
    return ones.astype(dtype)


def total_of(observations: Observations, terms: MixtureTerms) -> Estimate:
    """The log-likelihood of all rows together, with the standard error of that sum."""
    weights = row_weights(observations, terms.log_prob.dtype)
    rows = jnp.where(weights == 0, 0.0, weights * terms.log_prob)

    def variance(components: RowTerms, on_data: jax.Array, on_region: jax.Array) -> jax.Array:
        often = weights * on_data, weights * on_region
        return likelihood.variance_of_sum(observations, components, *often)

    shares = terms.responsibilities.T, terms.region_shares.T
    square = jnp.sum(jax.vmap(variance)(terms.components, *shares))
    return Estimate(jnp.sum(rows), jax.lax.stop_gradient(jnp.sqrt(square)))


@Compiled
def _rows(observations: Observations, mixture: Mixture, method: Method, key: jax.Array) -> Estimate:
    terms = mixture_terms(observations, mixture, method, key)
    weights = row_weights(observations, terms.log_prob.dtype)
    value = jnp.where(weights == 0, 0.0, weights * terms.log_prob)
    parts = terms.components
    variance = jnp.sum(terms.responsibilities**2 * parts.data_variance.T, axis=-1)
    variance += jnp.sum(terms.region_shares**2 * parts.region_variance.T, axis=-1)
    return Estimate(value, jax.lax.stop_gradient(weights * jnp.sqrt(variance)))


# ---------------------------------------------------------------- the loss of a fit


@frozen_pytree
class MixtureLoss(Loss):
    """Minus the mean log-likelihood of a row, by free coordinates; with the prior, if there is one.

    Attributes:
        observations: the rows.
        coordinates: what x stands for.
        size: the total weight of the rows.
        method: how probabilities are computed, with its plans held.
        key: its random key.
        prior_rows: how many rows the prior of each covariance matrix stands for, (); None for none.
        parts: losses whose sum this is: of the rows filled up to one of few lengths or, if they are
            many, of blocks of one shape; derivatives are computed for one after the other, in the
            memory of one.
        numbers: of the rows in the whole sample, if this is a part, (m,).
    """

    observations: Observations
    coordinates: MixtureCoordinates
    size: jax.Array
    method: Method
    key: jax.Array
    prior_rows: jax.Array | None = None
    parts: tuple["MixtureLoss", ...] = ()
    numbers: jax.Array | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        mixture = self.coordinates.mixture(x)
        terms = mixture_terms(self.observations, mixture, self.method, self.key)
        value = -total_of(self.observations, terms).log_prob / self.size
        if self.prior_rows is not None:
            value -= self.prior_rows * log_prior_at(self.coordinates, x) / self.size
        return value

    @property
    def cost(self) -> Cost | None:
        """The work of its compiled forms, None where the sizes of the inputs tell it."""
        if not self.is_sampled:
            return None
        rows = self.observations
        patterns = (*(rows.patterns or ()), *(rows.region_patterns or ()))
        integrals = sum(each.num_integrals for each in patterns if each.limited)
        return Cost(DRAWS * rows.dimension * max(1, integrals))  # many points, however few rows

    @property
    def is_sampled(self) -> bool:
        """Whether its integrals are means over many points, as those of regions without linear
        limits are."""
        region = self.observations.region
        return region is not None and not region.is_linear


def divided(loss: MixtureLoss) -> MixtureLoss:
    """The loss with its rows filled up to one of few lengths, or in blocks if they are many."""
    coordinates, n = loss.coordinates, loss.observations.num_rows
    num_numbers = coordinates.num_components * (1 + coordinates.by_component.shape[1])
    size = min(BLOCK, max(1, BLOCK_NUMBERS // num_numbers))
    if n <= size:
        (rows,) = likelihood.filled_up(loss.observations)
        numbers = np.minimum(np.arange(rows.num_rows), n)
        blocks = [likelihood.RowBlock(rows, numbers)]
    else:
        blocks = likelihood.blocks(loss.observations, size)
    parts = tuple(
        dataclasses.replace(loss, observations=block.rows, numbers=as_jax_array(block.numbers))
        for block in blocks
    )
    return dataclasses.replace(loss, parts=parts)


def padded(loss: MixtureLoss) -> tuple[MixtureLoss, np.ndarray]:
    """The loss of one of few numbers of components, so that a program for few rows serves several,
    and the numbers of these, of which -1 counts with weight 0 and is not computed."""
    k, few = loss.coordinates.num_components, loss.observations.num_rows
    numbers = np.arange(-(-k // PADDED) * PADDED if few <= MOST_PADDED else k)
    numbers[k:] = -1
    coordinates = dataclasses.replace(loss.coordinates, num_components=len(numbers))
    return MixtureLoss(loss.observations, coordinates, loss.size, loss.method, loss.key), numbers


def planned(loss: MixtureLoss, method: Method, at: Any) -> MixtureLoss:
    """The loss with a method's plans made at a mixture, with `locs` and `covariances`, for the
    components of `padded`."""
    if loss.parts:
        parts = tuple(planned(part, method, at) for part in loss.parts)
        return dataclasses.replace(loss, parts=parts)
    numbers = padded(loss)[1]
    held = held_for(numbers, method, loss.observations, at.locs, at.covariances, loss.key)
    return dataclasses.replace(loss, method=held)


def parts_of(loss: MixtureLoss) -> tuple[MixtureLoss, ...]:
    """The losses whose sum a loss is, but for the prior: itself if it is no sum."""
    return loss.parts or (loss,)


def summed(function: Callable[[MixtureLoss, Any], T], loss: MixtureLoss, at: Any) -> T:
    """The sum of function(part, at), pytrees of arrays, over the parts of a loss."""
    terms = [function(part, at) for part in parts_of(loss)]
    return jax.tree.map(lambda *parts: np.sum([*map(np.asarray, parts)], axis=0), *terms)
