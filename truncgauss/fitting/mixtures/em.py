r"""Expectation and maximisation for mixtures behind a selection, whatever is known of the rows.

The complete data are the true values of the rows seen and of those that the selection hid, with the
components that they come from. Their expected sums follow from the gradient of the log-likelihood L
of what was seen (Fisher's identity): with N_k the expected number of rows of component k, seen or
hidden,

.. math::

    \sum E(x - \mu_k) = \Sigma_k \frac{\partial L}{\partial \mu_k}, \qquad
    \sum E(x - \mu_k)(x - \mu_k)^T = N_k \Sigma_k
        + 2 \Sigma_k \frac{\partial L}{\partial \Sigma_k} \Sigma_k, \qquad
    N_k = \frac{\partial L}{\partial \log w_k} + w_k \sum_i \frac{1}{P_i}

with P_i the probability that a row of the population lies in row i's region. So the moments of
noisy, missing, censored and hidden values are exact wherever the likelihood is.

References:
    Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm",
        Journal of the Royal Statistical Society B (1977), with truncation in section 4.2.
    Xu and Jordan, "On convergence properties of the EM algorithm for Gaussian mixtures", Neural
        Computation (1996).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.execution.compiling import Compiled
from truncgauss.execution.progress import bar
from truncgauss.fitting.mixtures.likelihood import Mixture, mixture_terms, row_weights, total_of
from truncgauss.fitting.mixtures.loss import MixtureLoss, padded, summed
from truncgauss.fitting.mixtures.parameters import MixtureCoordinates, mixture_at
from truncgauss.fitting.mixtures.prior import log_prior
from truncgauss.gaussian.covariances import CovarianceMatrix

SLACK = 1e-10  # of the log-likelihood, by which rounding may let it fall
FLAT = 1e-10  # variance of a component in units of the rows', at which it has no spread left


class Components(NamedTuple):
    """Weights (K,), means (K, d) and covariance matrices (K, d, d) of a mixture."""

    weights: np.ndarray
    locs: np.ndarray
    covariances: np.ndarray


def components_at(coordinates: MixtureCoordinates, x: np.ndarray) -> Components:
    """The mixture at free coordinates."""
    mixture = mixture_at(coordinates, jnp.asarray(x))
    parts = mixture.weights, mixture.locs, mixture.covariance.covariance_matrix
    return Components(*map(np.asarray, parts))


class Expectation(NamedTuple):
    """The log-likelihood of all rows with its gradient, and the expected size of the population.

    Attributes:
        log_likelihood: of all rows.
        gradient: by log weights (K,), means (K, d) and covariance matrices (K, d, d).
        population: the expected number of rows, seen or hidden.
    """

    log_likelihood: float
    gradient: Components
    population: float


@dataclasses.dataclass(frozen=True)
class Ascent:
    """The end of some EM steps.

    Attributes:
        components: the mixture there.
        log_likelihoods: at the start and after each step.
        fell: by how much the last step would have lowered it, which it never does by more than
            the error of the integrals.
    """

    components: Components
    log_likelihoods: np.ndarray
    fell: float = 0.0


def ascended(
    loss: MixtureLoss, start: Components, num_steps: int, gain: float, progress: bool = False
) -> Ascent:
    """The mixture after EM steps, until one brings less than `gain` nats or a component has no
    spread left."""
    values, mixture = [], start
    expected = expectation(loss, mixture)
    values.append(expected.log_likelihood + log_prior_of(loss, mixture))
    shown = bar(em_steps(loss, mixture, expected, num_steps), "EM steps", progress, num_steps)
    with shown:
        for moved, after in shown:
            if has_collapsed(loss, moved):
                return Ascent(moved, np.array(values))
            value = after.log_likelihood + log_prior_of(loss, moved)
            fell = values[-1] - value
            if not fell <= SLACK * max(abs(values[-1]), 1.0):
                return Ascent(mixture, np.array(values), fell)
            mixture = moved
            values.append(value)
            shown.note = f"log-likelihood {value:.8g}"
            if -fell < gain:
                break
    return Ascent(mixture, np.array(values))


def em_steps(
    loss: MixtureLoss, mixture: Components, expected: Expectation, num_steps: int
) -> Iterator[tuple[Components, Expectation]]:
    """The mixtures that EM steps visit, from `here` on, each with its expectation."""
    for _ in range(num_steps):
        mixture = maximised(loss, mixture, expected)
        expected = expectation(loss, mixture)
        yield mixture, expected


def has_collapsed(loss: MixtureLoss, at: Components) -> bool:
    """Whether a component has no spread in some direction, where rows without noise have an
    infinite likelihood."""
    scale, noise = np.asarray(loss.coordinates.scale), loss.observations.noise
    standard = at.covariances / np.outer(scale, scale)
    if not np.all(np.isfinite(standard)):
        return True
    least = np.linalg.eigvalsh(standard).min()
    if noise is None or least > 0:
        return bool(noise is None and least <= FLAT)
    # By rounding: with noise in every direction of every row that is a maximum like others.
    noise_variance = np.linalg.eigvalsh(np.asarray(noise) / np.outer(scale, scale)).min()
    return loss.sums.any(noise_variance <= FLAT)


def expectation(loss: MixtureLoss, mixture: Components) -> Expectation:
    """Expectations over the rows at a mixture: one gradient of their log-likelihood."""
    arrays = jax.tree.map(jnp.asarray, mixture)
    value, gradient, hidden = summed("expectation", _expected, loss, arrays)
    return Expectation(float(value), Components(*gradient), float(loss.size) + float(hidden))


def _expected(loss: MixtureLoss, mixture: Components) -> tuple[Any, tuple[np.ndarray, ...], Any]:
    alike, numbers = padded(loss)
    parts = (np.asarray(part)[np.maximum(numbers, 0)] for part in mixture)
    filled = Components(*parts)
    filled = filled._replace(weights=np.where(numbers >= 0, filled.weights, 0.0))
    value, gradient, hidden = _expectation(alike, filled, numbers)
    every = tuple(np.asarray(part)[numbers >= 0] for part in gradient)
    return np.asarray(value), every, np.asarray(hidden)


def log_prior_of(loss: MixtureLoss, at: Components) -> float:
    """The logarithm of the prior of a mixture, 0 if there is none."""
    if loss.prior_rows is None:
        return 0.0
    covariances = at.covariances[: loss.coordinates.num_factors]
    return float(loss.prior_rows * log_prior(loss.coordinates.scale, jnp.asarray(covariances)))


def maximised(loss: MixtureLoss, mixture: Components, expected: Expectation) -> Components:
    """The mixture that maximises the expected log-likelihood of the complete data, with the log
    prior."""
    weights, locs, matrices = mixture
    by_weight, by_loc, by_matrix = expected.gradient
    counts = np.maximum(by_weight + weights * expected.population, np.finfo(float).tiny)
    shift = np.einsum("kij,kj->ki", matrices, by_loc) / counts[:, None]
    inner = matrices @ (by_matrix + np.swapaxes(by_matrix, 1, 2)) @ matrices
    spread = matrices + inner / counts[:, None, None] - shift[:, :, None] * shift[:, None, :]
    spread = (spread + np.swapaxes(spread, 1, 2)) / 2
    coordinates, prior = loss.coordinates, float(loss.prior_rows or 0.0)
    if prior:
        # That of a tied matrix counts once.
        shares = counts / counts.sum() if coordinates.structure == "tied" else 1.0
        extra = prior * shares + 0.0 * counts
        units = np.diag(np.asarray(coordinates.scale) ** 2)
        both = counts[:, None, None] * spread + extra[:, None, None] * units
        spread = both / (counts + extra)[:, None, None]
    covariances = coordinates.restricted(counts, spread)
    return Components(counts / counts.sum(), locs + shift, covariances)


@Compiled
def _expectation(
    loss: MixtureLoss, components: Components, numbers: jax.Array | None
) -> tuple[jax.Array, Components, jax.Array]:
    rows = loss.observations

    def total(point: Components) -> tuple[jax.Array, jax.Array]:
        weights, locs, covariances = map(jnp.asarray, point)
        mixture = Mixture(jnp.exp(weights), locs, CovarianceMatrix(covariances))
        terms = mixture_terms(rows, mixture, loss.method, loss.key, numbers)
        counts = row_weights(rows, locs.dtype)
        hidden = counts @ jnp.expm1(-terms.log_region)
        return total_of(rows, terms).log_prob, hidden

    inputs = Components(jnp.log(components.weights), components.locs, components.covariances)  # type: ignore[arg-type]
    (value, hidden), gradient = jax.value_and_grad(total, has_aux=True)(inputs)
    return value, gradient, hidden
