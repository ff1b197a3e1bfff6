"""The profile likelihood of an estimate of a mixture, whose components keep their labels."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy import optimize

from truncgauss.fitting.derived import DerivedCoordinates
from truncgauss.fitting.mixtures.curvature import terms_at
from truncgauss.fitting.mixtures.likelihood import row_weights
from truncgauss.fitting.mixtures.loss import MixtureLoss
from truncgauss.fitting.mixtures.rising import natural_coordinates
from truncgauss.fitting.mixtures.starts import standard_rows
from truncgauss.fitting.profile import Profile, Unbounded

EXCHANGED = 0.05  # part of the rows that may change their component between two values


def profile_of(loss: MixtureLoss, best: np.ndarray, number: int, function: Any = None) -> Profile:
    """The profile likelihood of an estimate of a mixture, or of a function of all.

    Args:
        loss: minus the mean log-likelihood of a row.
        best: free coordinates where it is lowest.
        number: of the estimate, or the entry of the function.
        function: of the vector of estimates.
    """
    coordinates: Any = loss.coordinates
    kind = "number" if function else coordinates.kinds[number]
    several = coordinates.num_components > 1
    rows = standard_rows(loss.observations, loss.sums)[0]
    coordinates = natural_coordinates(loss, rows, best)  # in which ridges are straight
    evaluate, start = functools.partial(coordinates.point, loss), coordinates.natural(best)
    free = coordinates.mixture_coordinates

    def same_labels(one: np.ndarray, other: np.ndarray) -> bool:
        weights = np.asarray(row_weights(loss.observations, np.float64))[:, None]
        first, second = (np.asarray(terms_at(loss, free(x)).responsibilities) for x in (one, other))
        shared = loss.sums.sum(first.T @ (weights * second))
        best_match = shared[optimize.linear_sum_assignment(shared, maximize=True)].sum()
        return bool(np.trace(shared) >= (1.0 - EXCHANGED) * best_match)

    if function is not None:
        coordinates = DerivedCoordinates(coordinates, function)
    estimate = Unbounded(coordinates, jnp.asarray(number), kind)
    labels = same_labels if several else None
    size = float(loss.size)
    return Profile(evaluate, size, evaluate(start), estimate, same_labels=labels)
