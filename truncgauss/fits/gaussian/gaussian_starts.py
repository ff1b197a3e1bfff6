"""Covariates of a fit of observed rows, checked, and its starts."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss import tables
from truncgauss.covariates.whitening import Whitened, whitened
from truncgauss.fits.gaussian.centring import check_units
from truncgauss.fits.gaussian.linear_gaussian import GaussianCoordinates, White
from truncgauss.fitting.existence import ROUNDING
from truncgauss.fitting.least_squares import least_squares, median_of
from truncgauss.likelihood.observations import Observations, check_names
from truncgauss.tables.columns import DROPPED, ONE_COLUMN
from truncgauss.words.names import check_choice, closest

SINGULAR = 1e-12  # smallest eigenvalue of a correlation matrix without an inverse
STRUCTURES = ("full", "diagonal")
OF_DROPOUT = ' "exchangeable" is for rows with observed=, whose entries are observed by a curve.'
OR_MATRIX = " or a matrix with NaN where it is free"
STAND_IN = 1e4  # median absolute deviations, beyond which a limit stands for infinity


def as_designs(
    design: Any, n: int, d: int, weights: Any, what: str = "fit_observations", name: str = "design"
) -> tuple[Whitened, ...] | None:
    """Covariates of each outcome, checked and whitened; None for a constant mean.

    Raises:
        ValueError: for NaN, wrong shapes, more columns than rows, or collinear columns.
    """
    if design is None:
        return None
    read, shared = each_design(design, what)
    read = read * d if shared else read
    parts = [table.values for table in read]
    check_designs(parts, n, d, what, name)
    whitened_designs: list[Whitened] = []
    for j, table in enumerate(read):
        columns = f"{what}: the columns of the {name} of outcome {j}"
        design_j = whitened_designs[0] if shared and j else whitened(table, weights, columns)
        whitened_designs.append(design_j)
    return tuple(whitened_designs)


def each_design(design: Any, what: str) -> tuple[list[tables.Table], bool]:
    """The designs of all outcomes, and whether it is one for all."""
    if isinstance(design, list) and design and isinstance(design[0], list):  # its rows
        design = np.asarray(design)
    shared = isinstance(design, tables.Table) or not isinstance(design, tuple | list)
    return [as_columns(part, what) for part in ([design] if shared else design)], shared


def check_designs(parts: list[np.ndarray], n: int, d: int, what: str, name: str) -> None:
    """Raise ValueError for covariates of wrong shapes, or that are not finite."""
    if len(parts) != d or any(part.ndim != 2 or part.shape[0] != n for part in parts):
        several = f", or be a tuple of {d} such, one for each outcome" if d > 1 else ""
        got = ", ".join(str(part.shape) for part in parts)
        cure = f" {ONE_COLUMN.format(name)}" if any(part.ndim == 1 for part in parts) else ""
        raise ValueError(
            f"{what}: {name} must have shape ({n}, p), for the outcome has {n} rows{several}; got "
            f"{got}.{cure}"
        )
    for j, part in enumerate(parts):
        if len(wrong := np.argwhere(~np.isfinite(part))):
            raise ValueError(
                f"{what}: the {name} of outcome {j} holds NaN or infinity, first in row "
                f"{wrong[0, 0]}, column {wrong[0, 1]}. {DROPPED}"
            )


def as_columns(design: Any, what: str) -> tables.Table:
    """Covariates as numbers, with their names if they have some."""
    if isinstance(design, tables.Table):
        return design
    plain = type(design) is np.ndarray and design.dtype.kind in "biuf"  # without a mask
    if plain or isinstance(design, jax.Array):
        return tables.Table(np.asarray(design, np.float64), None, None)
    table = tables.read(design, what=f"{what}: design")
    return table._replace(values=np.asarray(table.values, np.float64))


def as_coordinates(
    covariance: Any, sizes: tuple[int, ...], observations: Observations
) -> GaussianCoordinates:
    """The free coordinates of a covariance structure, checked.

    Raises:
        ValueError: for an unknown word, or fixed entries that no covariance matrix can have.
    """
    d = len(sizes)
    if isinstance(covariance, str):
        cure = OF_DROPOUT if closest(covariance, ["exchangeable"]) else ""
        check_choice(covariance, STRUCTURES, "fit_observations: covariance", cure, OR_MATRIX)
        template = np.full((d, d), np.nan)
        if covariance == "diagonal":
            template[~np.eye(d, dtype=bool)] = 0.0
    else:
        check_names(observations, covariance=covariance)
        template = np.asarray(covariance, np.float64)
        if template.shape != (d, d) or not np.array_equal(template, template.T, equal_nan=True):
            cure = " Of independent entries write np.diag(variances) or np.diag(sds**2)."
            raise ValueError(
                f"fit_observations: covariance must be a symmetric matrix of shape ({d}, {d}) with "
                f"NaN where it is free, got {template}.{cure if template.ndim == 1 else ''}"
            )
    free = np.isnan(template)
    variances = np.diagonal(template)
    if np.any(variances <= 0) or np.any(np.isinf(template)):
        raise ValueError(
            f"fit_observations: fixed variances must be positive and finite, got {variances}."
        )
    scales = tuple(int(j) for j in np.flatnonzero(np.diagonal(free)))
    pairs = tuple((int(i), int(j)) for i, j in np.argwhere(np.triu(free, 1)))
    fixed = np.where(free, np.eye(d), template)
    # Censored rows that are truncated too are concave in neither; natural parameters have an end
    # where the Gaussian becomes an exponential.
    power = 1 if observations.region is None else 2
    return GaussianCoordinates(jax.device_put(fixed), sizes, scales, pairs, power)


def finite_medians(columns: np.ndarray) -> np.ndarray:
    """The median of what is finite in each column, (d,), 0 where nothing is."""
    finite = [column[np.isfinite(column)] for column in columns.T]
    return np.array([median_of(part) if len(part) else 0.0 for part in finite])


def middles(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The middles of intervals (n, d): of censored entries their limits, of missing ones 0."""
    low = np.where(np.isfinite(lower), lower, np.where(np.isfinite(upper), upper, 0.0))
    return 0.5 * low + 0.5 * np.where(np.isfinite(upper), upper, low)


def first_guess(
    observations: Observations,
    designs: tuple[jax.Array, ...] | None,
    coordinates: GaussianCoordinates,
    what: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Free coordinates of least squares through what is known of each entry, and the scale of each
    outcome, (d,).

    An interval counts by its middle, a censored entry by its limit, and a limit that is a stand-in
    for infinity as none: one that is 10^4 median absolute deviations from the median of all finite
    ends of the outcome. Half of the correlations is taken.

    Raises:
        ValueError: if the entries that are fixed belong to no positive definite matrix.
    """
    lower, upper = np.asarray(observations.lower), np.asarray(observations.upper)
    ends = np.concatenate([lower, upper])
    middle = finite_medians(ends)
    away = STAND_IN * finite_medians(np.abs(ends - middle))
    interval = (lower < upper) & (away > 0)
    # Not both ends on one side: an interval far out is an observation.
    far_below = interval & (lower < middle - away) & (upper >= middle - away)
    far_above = interval & (upper > middle + away) & (lower <= middle + away)
    lower, upper = np.where(far_below, -np.inf, lower), np.where(far_above, np.inf, upper)
    weights = observations.row_weights
    known = (np.isfinite(lower) | np.isfinite(upper)) & (weights > 0)[:, None]
    total = (weights[:, None] * known).sum(axis=0)
    filled = np.where(known, middles(lower, upper), 0.0)
    coefficients, residuals = by_least_squares(filled, known, weights, designs)
    with np.errstate(over="ignore"):
        squares = np.sum(weights[:, None] * residuals**2, axis=0)
    largest = np.abs(filled).max(axis=0, initial=0.0)
    scale, fixed = np.sqrt(squares / np.maximum(total, 1e-300)), np.asarray(coordinates.fixed)
    # Rows met exactly, but for rounding, say of the scale no more than that it is less than they.
    scale = np.where(scale > ROUNDING * largest, scale, np.where(largest > 0, largest, 1.0))
    free = np.isin(np.arange(len(scale)), coordinates.scales)
    scale = np.where(free, scale, np.sqrt(np.diagonal(fixed)))
    check_units(scale, observations.labels, what)
    matrix, standard = fixed.copy(), residuals / scale
    matrix[np.diag_indices(len(scale))] = scale**2
    products, weight = (weights[:, None] * standard).T @ standard, weights.sum()
    correlation = 0.5 * products / weight
    for i, j in coordinates.pairs:
        matrix[i, j] = matrix[j, i] = np.clip(correlation[i, j], -0.9, 0.9) * scale[i] * scale[j]
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        for i, j in coordinates.pairs:
            matrix[i, j] = matrix[j, i] = 0.0
    if np.linalg.eigvalsh(matrix)[0] <= 0:
        raise ValueError(
            "fit_observations: the fixed entries belong to no positive definite covariance matrix "
            "with variances like those of the sample. Give the variances too, or a start."
        )
    return coordinates.free(coefficients, matrix), scale


def by_least_squares(
    values: np.ndarray,
    known: np.ndarray,
    weights: np.ndarray,
    designs: tuple[jax.Array, ...] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of all outcomes, one after the other, and residuals (n, d), 0 where the values
    are not known."""
    (n, d), coefficients, residuals = values.shape, [], np.zeros(values.shape)
    for j in range(d):
        columns = np.ones((n, 1)) if designs is None else np.asarray(designs[j])
        outcome, counted = values[:, j], np.where(known[:, j], weights, 0.0)
        part = least_squares(columns, outcome, counted)
        coefficients.append(part)
        residuals[:, j] = np.where(known[:, j], outcome - columns @ part, 0.0)
    return np.concatenate(coefficients), residuals


def in_natural(
    observations: Observations,
    designs: tuple[jax.Array, ...] | None,
    coordinates: GaussianCoordinates,
) -> tuple[GaussianCoordinates, np.ndarray] | None:
    """Natural coordinates of exact rows, made white by least squares, and that fit in them; None
    if its covariance matrix is singular."""
    values, d = np.asarray(observations.lower), observations.dimension
    weights, known = observations.row_weights, np.ones(values.shape, bool)
    coefficients, residuals = by_least_squares(values, known, weights, designs)
    residuals = np.sqrt(weights)[:, None] * residuals
    matrix = residuals.T @ residuals / np.sum(weights)
    free = np.eye(d, dtype=bool)
    for i, j in coordinates.pairs:
        free[i, j] = free[j, i] = True
    matrix = np.where(free, matrix, 0.0)
    scale = np.sqrt(np.diagonal(matrix))
    if not np.all(scale > 0) or np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] < SINGULAR:
        return None
    white = White(jnp.asarray(coefficients), jnp.asarray(np.linalg.cholesky(matrix)))
    coordinates = dataclasses.replace(coordinates, white=white)
    return coordinates, coordinates.free(coefficients, matrix)
