"""The loss of rows under a mixture, its derivatives, and the shares of its components."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import likelihood
from truncgauss.execution import row_sums
from truncgauss.execution.checkpoint import computed, computed_of_rows
from truncgauss.execution.compiling import Compiled, Cost, closed_form
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.mixtures.likelihood import (
    MixtureTerms,
    hold,
    mixture_terms,
    row_weights,
    total_of,
)
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates
from truncgauss.fitting.mixtures.prior import log_prior_at
from truncgauss.gaussian.regions import LinearRegion
from truncgauss.likelihood import Observations
from truncgauss.probability.method import Method

# The most rows of a block, and of numbers in one of its arrays of rows by components' coordinates.
BLOCK, BLOCK_NUMBERS = 2**17, 2**22
DRAWS = 2**16  # for the integral of a row over a region without linear limits
T = TypeVar("T")


@frozen_pytree
class MixtureLoss:
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
        sums: over the rows of all processes, of which these and the parts may be those of one.
    """

    observations: Observations
    coordinates: MixtureCoordinates
    size: jax.Array
    method: Method
    key: jax.Array
    prior_rows: jax.Array | None = None
    parts: tuple["MixtureLoss", ...] = ()
    numbers: jax.Array | None = None
    sums: RowSums = RowSums()

    def __call__(self, x: jax.Array) -> jax.Array:
        value = self.of_rows(x)
        if self.prior_rows is not None:
            value -= self.prior_rows * log_prior_at(self.coordinates, x) / self.size
        return value

    def of_rows(self, x: jax.Array) -> jax.Array:
        """The loss without the prior."""
        return -total_of(self.observations, self.terms(x)).log_prob / self.size

    def terms(self, x: jax.Array) -> MixtureTerms:
        mixture = self.coordinates.mixture(x)
        return mixture_terms(self.observations, mixture, self.method, self.key)

    @property
    def cost(self) -> Cost | None:
        """The work of its compiled forms, None where the sizes of the inputs tell it."""
        region = self.observations.region
        if region is None or isinstance(region, LinearRegion):
            return None
        return Cost(DRAWS * self.observations.lower.size)  # many points, however few rows

    def observed_weights(self, x: jax.Array) -> jax.Array:
        """The mean, over rows, of the share of each component in what can be seen there, (K,)."""
        weights = row_weights(self.observations, x.dtype)
        return weights @ self.terms(x).region_shares / self.size


def divided(loss: MixtureLoss) -> MixtureLoss:
    """The loss with its rows filled up to one of few lengths, or in blocks if they are many."""
    place, n = loss.coordinates, loss.observations.num_rows
    own = place.num_components * (1 + place.own.shape[1])
    size = min(BLOCK, max(1, BLOCK_NUMBERS // own))
    if n <= size:
        (rows,) = likelihood.filled_up(loss.observations)
        numbers = np.minimum(np.arange(rows.num_rows), n)
        blocks = [likelihood.RowBlock(rows, numbers)]
    else:
        blocks = likelihood.blocks(loss.observations, size)
    parts = tuple(
        dataclasses.replace(loss, observations=block.rows, numbers=jnp.asarray(block.numbers))
        for block in blocks
    )
    return dataclasses.replace(loss, parts=parts)


def planned(loss: MixtureLoss, method: Method, at: Any) -> MixtureLoss:
    """The loss with a method's plans made at a mixture, with `locs` and `covariances`."""
    if loss.parts:
        parts = tuple(planned(part, method, at) for part in loss.parts)
        return dataclasses.replace(loss, parts=parts)
    held = hold(method, loss.observations, at.locs, at.covariances)
    return dataclasses.replace(loss, method=held)


def parts_of(loss: MixtureLoss) -> tuple[MixtureLoss, ...]:
    """The losses whose sum a loss is, but for the prior: itself if it is no sum."""
    return loss.parts or (loss,)


def summed(name: str, function: Callable[[MixtureLoss, Any], T], loss: MixtureLoss, at: Any) -> T:
    """The sum of function(part, at) over the parts of a loss, and over the processes that have rows
    of it; kept where fits are resumable.

    Args:
        name: of such calls.
        function: what rows tell as a sum over them: arrays, or a tuple of arrays.
        loss: whose rows.
        at: a pytree of arrays.
    """
    if loss.sums.fingerprint is not None:
        return computed_of_rows(name, over_parts(function), loss, at)
    return sum_of([computed(name, function, part, at) for part in parts_of(loss)])


def sum_of(found: list[T]) -> T:
    """The sum of pytrees of arrays."""
    return jax.tree.map(lambda *parts: np.sum([*map(np.asarray, parts)], axis=0), *found)


def in_place(loss: MixtureLoss, found: Sequence[Any]) -> Any:
    """What the parts tell of their rows, pytrees of arrays (m, ...), as arrays of all rows."""
    if not loss.parts:
        return found[0]
    numbers = np.concatenate([np.asarray(part.numbers) for part in loss.parts])
    real, n = numbers < loss.observations.num_rows, loss.observations.num_rows

    def whole(*leaves: Any) -> np.ndarray:
        joined = np.concatenate(leaves)
        result = np.empty((n, *joined.shape[1:]), joined.dtype)
        result[numbers[real]] = joined[real]
        return result

    return jax.tree.map(whole, *found)


def shares(loss: MixtureLoss, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The observed weights (K,) and their Jacobian (K, q)."""
    return sum_over(_shares, loss, x)


def sum_over(function: Callable[[MixtureLoss, Any], T], loss: MixtureLoss, x: np.ndarray) -> T:
    """As `summed`, computed each time."""
    return row_sums.evaluated(over_parts(function), loss, jnp.asarray(x))


def over_parts(function: Callable[[MixtureLoss, Any], T]) -> Callable[[MixtureLoss, Any], T]:
    """The function of a loss that is the sum of one of its parts."""
    return lambda loss, at: sum_of([function(part, at) for part in parts_of(loss)])


def terms_at(loss: MixtureLoss, x: np.ndarray) -> MixtureTerms:
    """What the mixture at x says of each row."""
    found = [_terms(part, jnp.asarray(x)) for part in parts_of(loss)]
    return transposed(in_place(loss, [transposed(part) for part in found]))


def transposed(terms: MixtureTerms) -> MixtureTerms:
    """Terms whose components have the rows' axis first rather than last, or the reverse."""
    return terms._replace(components=jax.tree.map(np.transpose, terms.components))


class MixtureSummary(NamedTuple):
    """The sums over rows, of all processes, of what a mixture says of each.

    Attributes:
        log_prob, stderr: the log-likelihood of all rows, and its sampling error.
        counts: the expected number of rows of each component, (K,).
        inside: the sum over rows of the probability that each component lies in their region, (K,).
        entropy: of the components of all rows, in nats.
        responsibilities: P(component | what a row shows) of the rows of this process, (n, K).
    """

    log_prob: float
    stderr: float
    counts: np.ndarray
    inside: np.ndarray
    entropy: float
    responsibilities: np.ndarray


def summary_at(loss: MixtureLoss, x: np.ndarray) -> MixtureSummary:
    """The summary of the rows at free coordinates."""
    terms = terms_at(loss, x)
    rows, filled = likelihood.filled_up(loss.observations, transposed(terms))
    value, stderr = map(np.asarray, _total(rows, transposed(filled)))
    weights = np.asarray(row_weights(loss.observations, jnp.float64))
    responsible = np.asarray(terms.responsibilities)
    inside = weights @ np.exp(np.asarray(terms.components.region).T)
    logs = np.log(np.where(responsible > 0, responsible, 1.0))
    local = (
        value,
        stderr**2,
        weights @ responsible,
        inside,
        -weights @ np.sum(responsible * logs, axis=1),
    )
    value, variance, counts, inside, entropy = loss.sums.sum(local)
    stderr = float(variance) ** 0.5
    return MixtureSummary(float(value), stderr, counts, inside, float(entropy), responsible)


@Compiled
def _shares(loss: MixtureLoss, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, pulled = jax.vjp(loss.observed_weights, x)
    return value, jax.lax.map(lambda row: pulled(row)[0], jnp.eye(len(value), dtype=x.dtype))


_total = Compiled(total_of, closed_form)


@Compiled
def _terms(loss: MixtureLoss, x: jax.Array) -> MixtureTerms:
    return loss.terms(x)
