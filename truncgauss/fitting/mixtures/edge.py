"""Maxima of a mixture's likelihood at an edge: some variance has fallen to 0.

With noise a component may be without a spread of its own; the likelihood then rises as its variance
falls, and has a finite limit. Likewise a unique variance of factor analysis may fall to 0, which is
called a Heywood case. The logarithm of such a variance has no maximum, and no standard error.

Reference:
    Heywood, "On finite sequences of real numbers", Proceedings of the Royal Society A (1931).
"""

from typing import NamedTuple

import numpy as np

from truncgauss.fitting.existence import explained
from truncgauss.fitting.mixtures.em import components_at, expectation, log_prior_of
from truncgauss.fitting.mixtures.loss import MixtureLoss

# In units of the variance of all rows: smaller ones are taken away, to see what that costs.
SMALL = 1e-4
NO_ERRORS = "Standard errors and intervals do not hold there"
BY_NOISE = (
    "The likelihood is highest at the edge of what can be, where {} has variance 0{}: the noise "
    "alone explains how far its rows spread. " + NO_ERRORS + "; the noise may be overstated{}."
)
TOO_MANY = ", or there may be a component too many"
BY_FACTORS = (
    "The likelihood is highest at the edge of what can be, where the unique variance of {} is 0 "
    "(a Heywood case): {} alone explain it. " + NO_ERRORS + "; use a smaller rank, or more rows."
)


class Vanishing(NamedTuple):
    """Variances of covariance matrices that are small beside the spread of the rows.

    Attributes:
        parts: what they contribute to the matrices, (K, d, d).
        sentence: what it means if they are 0.
    """

    parts: np.ndarray
    sentence: str


def edge_of(loss: MixtureLoss, x: np.ndarray) -> str | None:
    """Sentence that the likelihood is highest with some variance at 0; None if it is not."""
    low_rank = loss.coordinates.structure == "low_rank"
    if loss.observations.noise is None and not low_rank:
        return None
    edge = small_unique(loss, x) if low_rank else small_spread(loss, x)
    if edge is None:
        return None
    mixture = components_at(loss.coordinates, x)

    def log_likelihood(factor: float) -> float:
        smaller = mixture._replace(covariances=mixture.covariances - (1 - factor**2) * edge.parts)
        return expectation(loss, smaller).log_likelihood + log_prior_of(loss, smaller)

    return edge.sentence if explained(log_likelihood) else None


def small_unique(loss: MixtureLoss, x: np.ndarray) -> Vanishing | None:
    """Small unique variances of factors."""
    coordinates, d = loss.coordinates, loss.coordinates.dimension
    unique = np.exp(np.asarray(x)[coordinates.by_component][:, d : 2 * d])
    small = np.where(unique < SMALL, unique, 0.0)
    if not small.any():
        return None
    labels = loss.observations.labels
    named = [f"entry {labels[j]} of component {k}" for k, j in np.argwhere(small)]
    explaining = "the factors" if loss.observations.noise is None else "the factors and the noise"
    parts = small[:, :, None] * np.diag(np.asarray(coordinates.scale) ** 2)
    return Vanishing(parts, BY_FACTORS.format(" and of ".join(named), explaining))


def small_spread(loss: MixtureLoss, x: np.ndarray) -> Vanishing | None:
    """Small eigenvalues of covariance matrices in units of the rows; the smallest is named."""
    coordinates = loss.coordinates
    units = np.outer(coordinates.scale, coordinates.scale)
    values, vectors = np.linalg.eigh(components_at(coordinates, x).covariances / units)
    small = values < SMALL
    if not small.any():
        return None
    parts = np.einsum("kij,kj,klj->kil", vectors, np.where(small, values, 0.0), vectors) * units
    k, where = int(np.argmax(small.any(axis=1))), ""
    if not small[k].all():
        listed = ", ".join(f"{entry:.3g}" for entry in vectors[k, :, 0])
        where = f" along ({listed}), in units of the rows' spread"
    who = "every component" if coordinates.structure == "tied" else f"component {k}"
    more = TOO_MANY if coordinates.num_components > 1 else ""
    return Vanishing(parts, BY_NOISE.format(who, where, more))
