"""The loss of rows under a mixture, its derivatives, and the shares of its components."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import likelihood
from truncgauss.execution import row_sums
from truncgauss.execution.checkpoint import computed, computed_of_rows
from truncgauss.execution.compiling import Cost
from truncgauss.execution.pytrees import frozen_pytree
from truncgauss.execution.row_sums import RowSums
from truncgauss.fitting.mixtures.likelihood import (
    HeldComponents,
    MixtureTerms,
    held_of,
    hold,
    mixture_terms,
    total_of,
)
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates
from truncgauss.fitting.mixtures.prior import log_prior_at
from truncgauss.gaussian.regions import LinearRegion
from truncgauss.likelihood import Observations
from truncgauss.probability.method import Method

# The most rows of a block, and of numbers in one of its arrays of rows by components' coordinates.
BLOCK, BLOCK_NUMBERS = 2**17, 2**22
# Components, to multiples of which they are filled up, and the most rows of which that is so:
# beyond, what it saves in compilation is less than what it costs.
PADDED, MOST_PADDED = 4, 2**13
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
        value = -total_of(self.observations, self.terms(x)).log_prob / self.size
        if self.prior_rows is not None:
            value -= self.prior_rows * log_prior_at(self.coordinates, x) / self.size
        return value

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
        dataclasses.replace(loss, observations=block.rows, numbers=jnp.asarray(block.numbers))
        for block in blocks
    )
    return dataclasses.replace(loss, parts=parts)


def padded(loss: MixtureLoss) -> tuple[MixtureLoss, np.ndarray]:
    """The loss of one of few numbers of components, so that a program for few rows serves several,
    and the numbers of these, of which -1 counts with weight 0 and is not computed."""
    coordinates, method, held = loss.coordinates, loss.method, held_of(loss.method)
    k, few = coordinates.num_components, loss.observations.num_rows <= MOST_PADDED
    numbers = np.arange(-(-k // PADDED) * PADDED if few else k)
    numbers[k:] = -1
    if held is not None:
        components = jax.tree.map(lambda leaf: leaf[np.maximum(numbers, 0)], held)
        method = HeldComponents(components)
    coordinates = dataclasses.replace(coordinates, num_components=len(numbers))
    return MixtureLoss(loss.observations, coordinates, loss.size, method, loss.key), numbers


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


def sum_of(terms: list[T]) -> T:
    """The sum of pytrees of arrays."""
    return jax.tree.map(lambda *parts: np.sum([*map(np.asarray, parts)], axis=0), *terms)


def in_place(loss: MixtureLoss, values: Sequence[Any]) -> Any:
    """Terms of the parts' rows, pytrees of arrays (m, ...), as arrays of all rows."""
    if not loss.parts:
        return values[0]
    numbers = np.concatenate([np.asarray(part.numbers) for part in loss.parts])
    real, n = numbers < loss.observations.num_rows, loss.observations.num_rows

    def whole(*leaves: Any) -> np.ndarray:
        joined = np.concatenate(leaves)
        result = np.empty((n, *joined.shape[1:]), joined.dtype)
        result[numbers[real]] = joined[real]
        return result

    return jax.tree.map(whole, *values)


def sum_over(function: Callable[[MixtureLoss, Any], T], loss: MixtureLoss, x: np.ndarray) -> T:
    """Sums as `summed`, computed each time."""
    return row_sums.evaluated(over_parts(function), loss, jnp.asarray(x))


def over_parts(function: Callable[[MixtureLoss, Any], T]) -> Callable[[MixtureLoss, Any], T]:
    """The function of a loss that is the sum of one of its parts."""
    return lambda loss, at: sum_of([function(part, at) for part in parts_of(loss)])


def transposed(terms: MixtureTerms) -> MixtureTerms:
    """Terms whose components have the rows' axis first rather than last, or the reverse."""
    return terms._replace(components=jax.tree.map(np.transpose, terms.components))
