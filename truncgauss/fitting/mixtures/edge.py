"""Maxima of a mixture's likelihood at an edge: some variance has fallen to 0.

With noise a component may be without a spread of its own; the likelihood then rises as its variance
falls, and has a finite limit. The logarithm of such a variance has no maximum, and no standard
error.
"""

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


def edge_of(loss: MixtureLoss, x: np.ndarray) -> str | None:
    """Sentence that the likelihood is highest with some variance at 0; None if it is not."""
    edge = None if loss.observations.noise is None else small_spread(loss, x)
    if edge is None:
        return None
    parts, sentence = edge
    mixture = components_at(loss.coordinates, x)

    def log_likelihood(factor: float) -> float:
        smaller = mixture._replace(covariances=mixture.covariances - (1 - factor**2) * parts)
        return expectation(loss, smaller).log_likelihood + log_prior_of(loss, smaller)

    return sentence if explained(log_likelihood) else None


def small_spread(loss: MixtureLoss, x: np.ndarray) -> tuple[np.ndarray, str] | None:
    """The part (K, d, d) of covariance matrices along eigenvalues that are small in units of the
    rows, and a sentence that says what it means if these are 0; None if there are none."""
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
    return parts, BY_NOISE.format(who, where, more)
