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

Fits begin with clusters by k-means++ and with random rows, in turn.

References:
    Dempster, Laird and Rubin, "Maximum likelihood from incomplete data via the EM algorithm",
        Journal of the Royal Statistical Society B (1977), with truncation in section 4.2.
    Xu and Jordan, "On convergence properties of the EM algorithm for Gaussian mixtures", Neural
        Computation (1996).
    Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding" (2007).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.compiling import Compiled
from truncgauss.arrays.progress import bar
from truncgauss.fits.gaussian.centring import check_units
from truncgauss.fits.gaussian.gaussian_starts import middles
from truncgauss.fits.mixtures.curvature import Gaussians, scores
from truncgauss.fits.mixtures.likelihood import (
    MixtureLoss,
    mixture_terms,
    padded,
    row_weights,
    summed,
    total_of,
)
from truncgauss.fits.mixtures.parameters import Components, Mixture, log_prior
from truncgauss.gaussian.covariances import CovarianceMatrix
from truncgauss.likelihood.observations import Observations

SLACK = 1e-10  # of the log-likelihood, by which rounding may let it fall
FLAT = 1e-10  # variance of a component in units of the rows', at which it has no spread left
LLOYD_STEPS = 10
PARTS = 0.2, 1.0  # the widths of first components about random rows, over the spread of all rows
SHRUNK = 0.2  # part of each first covariance that is the spread of all rows


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


def ascended(
    loss: MixtureLoss, start: Components, num_steps: int, gain: float, progress: bool = False
) -> tuple[Components, np.ndarray, float]:
    """The mixture after EM steps, until one brings less than `gain` nats or a component has no
    spread left; the log-likelihoods at the start and after each step; and by how much the last step
    would have lowered it, which it never does by more than the error of the integrals."""
    mixture, expected = start, expectation(loss, start)
    values = [expected.log_likelihood + log_prior_of(loss, mixture)]
    with bar(range(num_steps), "EM steps", progress, num_steps) as shown:
        for _ in shown:
            moved = maximised(loss, mixture, expected)
            expected = expectation(loss, moved)
            if has_collapsed(loss, moved):
                return moved, np.array(values), 0.0
            value = expected.log_likelihood + log_prior_of(loss, moved)
            fell = values[-1] - value
            if not fell <= SLACK * max(abs(values[-1]), 1.0):
                return mixture, np.array(values), fell
            mixture = moved
            values.append(value)
            shown.note = f"log-likelihood {value:.8g}"
            if -fell < gain:
                break
    return mixture, np.array(values), 0.0


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
    return bool(noise_variance <= FLAT)


def expectation(loss: MixtureLoss, mixture: Components) -> Expectation:
    """Expectations over the rows at a mixture: one gradient of their log-likelihood."""
    of_filled = expectation_by_scores if loss.is_sampled else _expectation

    def of_part(part: MixtureLoss, at: Components) -> tuple[Any, Any, Any]:
        alike, numbers = padded(part)
        filled = Components(*(np.asarray(leaf)[np.maximum(numbers, 0)] for leaf in at))
        filled = filled._replace(weights=np.where(numbers >= 0, filled.weights, 0.0))
        value, gradient, hidden = of_filled(alike, filled, numbers)
        return value, tuple(np.asarray(leaf)[numbers >= 0] for leaf in gradient), hidden

    value, gradient, hidden = summed(of_part, loss, mixture)
    return Expectation(float(value), Components(*gradient), float(loss.size) + float(hidden))


def log_prior_of(loss: MixtureLoss, at: Components) -> float:
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


def expectation_by_scores(
    loss: MixtureLoss, at: Components, numbers: np.ndarray
) -> tuple[jax.Array, Components, np.ndarray]:
    """As `_expectation`, from the program that Newton steps use: where integrals are sampled, its
    time is mostly theirs too, and another program would take seconds to compile.

    The gradient by a matrix has the derivative by a free entry in the lower triangle, and 0 above.
    """
    k, d = at.locs.shape
    i, j = np.array(loss.coordinates.entries).T
    places = np.arange(len(i))
    by_loc, by_matrix = np.zeros((k, d, d + len(i))), np.zeros((k, d, d, d + len(i)))
    by_loc[:, range(d), range(d)] = 1.0
    by_matrix[:, i, j, d + places] = by_matrix[:, j, i, d + places] = 1.0
    gaussians = Gaussians(at.locs, at.covariances, by_loc, by_matrix)
    (value, total, *_), _, _, terms = scores(loss, at.weights, gaussians, numbers)
    by_weight, by_mean, by_entry = np.split(np.asarray(total).reshape(k, -1), [1, 1 + d], axis=1)
    matrices = np.zeros((k, d, d))
    matrices[:, i, j] = by_entry
    counts = np.asarray(row_weights(loss.observations, np.float64))
    hidden = counts @ np.expm1(-np.asarray(terms.log_region))
    return value, Components(by_weight[:, 0], by_mean, matrices), hidden


# ---------------------------------------------------------------- starts


def standard_rows(observations: Observations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows (n, d) in units of their own centre (d,) and spread (d,), NaN where missing.

    An interval counts by its middle, a censored entry by its limit.

    Raises:
        ValueError: for an entry that no row has, or of which all are equal.
    """
    lower, upper = np.asarray(observations.lower), np.asarray(observations.upper)
    known, table = np.isfinite(lower) | np.isfinite(upper), middles(lower, upper)
    weights = np.asarray(row_weights(observations, lower.dtype))[:, None] * known
    count = weights.sum(axis=0)
    if np.any(count == 0):
        raise ValueError(
            f"fit_mixture: no observation has entry {int(np.argmin(count))}. Remove that column."
        )
    centre = (weights * table).sum(axis=0) / count
    largest = np.abs(np.where(weights > 0, table, 0.0)).max(axis=0, initial=1e-300)
    gaps = np.where(weights > 0, (table - centre) / largest, 0.0)  # whose squares are numbers
    scale = largest * np.sqrt((weights * gaps**2).sum(axis=0) / count)
    flat = np.flatnonzero(~(scale > 1e-9 * largest))
    exact = ((lower == upper) & (weights > 0)).sum(axis=0)
    if len(flat) and not exact[flat[0]]:
        raise ValueError(
            f"fit_mixture: no observation knows entry {observations.labels[flat[0]]} exactly, and "
            f"all have the same bound or interval, about {centre[flat[0]]:.6g}: they tell neither "
            "its mean nor its spread. Add observations that are not censored there, or leave that "
            "entry out."
        )
    if len(flat):
        raise ValueError(
            f"fit_mixture: all observations have the same entry {flat[0]}, {centre[flat[0]]:.6g}, "
            "so that it has no spread to be fitted. Remove that column."
        )
    check_units(scale, observations.labels, "fit_mixture")
    return np.where(known, (table - centre) / scale, np.nan), centre, scale


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator of random numbers that belongs to a key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())


def seeded(
    table: np.ndarray, weights: np.ndarray, num_components: int, rng: np.random.Generator
) -> Components:
    """A mixture around centres by k-means++, in the units of the table (n, d), NaN if missing."""
    d = table.shape[1]
    known, filled = ~np.isnan(table), np.nan_to_num(table)

    def squares(centre: np.ndarray) -> np.ndarray:
        gaps = np.where(known, filled - centre, 0.0)
        return (gaps**2).sum(axis=1) * d / np.maximum(known.sum(axis=1), 1)

    centres = [drawn(filled, weights, rng.random())]
    while len(centres) < num_components:
        nearest = np.min([squares(centre) for centre in centres], axis=0) * weights
        chance = nearest if nearest.sum() > 0 else weights
        centres.append(drawn(filled, chance, rng.random()))
    locs = np.array(centres)
    for _ in range(LLOYD_STEPS):
        labels = np.argmin([squares(centre) for centre in locs], axis=0)
        masses = weights[:, None] * known
        groups = [labels == k for k in range(num_components)]
        parts = [
            [part[group].sum(axis=0) for group in groups] for part in (masses, masses * filled)
        ]
        mass, totals = np.array(parts)
        locs = np.where(mass > 0, totals / np.where(mass > 0, mass, 1.0), locs)
    gaps = np.where(known, table - locs[labels], 0.0)
    counts = np.array([weights[group].sum() for group in groups])
    products = np.array([(weights[group, None] * gaps[group]).T @ gaps[group] for group in groups])
    # Covariances are drawn towards that of all rows.
    whole = products.sum(axis=0) / counts.sum() + 1e-3 * np.eye(d)
    scatter = (products + (d + 1) * whole) / (counts + d + 1)[:, None, None]
    share = counts + counts.sum() / (10 * num_components)
    return Components(share / share.sum(), locs, (1 - SHRUNK) * scatter + SHRUNK * whole)


def scattered(
    table: np.ndarray, weights: np.ndarray, num_components: int, rng: np.random.Generator
) -> Components:
    """A mixture of equal weights around rows of the table (n, d), NaN if missing, drawn at random,
    with different parts of the spread of all rows.

    Clusters by k-means are nearly the same from most seeds, and of much the same width: a narrow
    component within a wide one is none of them.
    """
    d = table.shape[1]
    filled = np.nan_to_num(table)
    locs = np.array([drawn(filled, weights, rng.random()) for _ in range(num_components)])
    known = weights[:, None] * ~np.isnan(table)
    mean = np.sum(known * filled, axis=0) / np.maximum(known.sum(axis=0), 1e-300)
    gaps = np.where(np.isnan(table), 0.0, filled - mean)
    whole = (weights[:, None] * gaps).T @ gaps / weights.sum() + 1e-3 * np.eye(d)
    parts = rng.uniform(*PARTS, num_components) ** 2
    return Components(
        np.full(num_components, 1.0 / num_components), locs, parts[:, None, None] * whole
    )


def drawn(rows: np.ndarray, weights: np.ndarray, uniform: float) -> np.ndarray:
    """The row at which the sum of weights (n,) before it passes a part of the whole."""
    below = np.cumsum(weights)
    at = np.searchsorted(below, uniform * below[-1], side="right")
    last = np.flatnonzero(weights).max(initial=0)  # beyond it only by rounding
    return np.asarray(rows[min(at, last)])
