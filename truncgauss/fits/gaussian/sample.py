"""The checked rows of a truncated sample, and what their likelihood needs of them."""

from typing import Any, NamedTuple

import jax
import numpy as np

from truncgauss import tables
from truncgauss.fits.gaussian.centring import check_units
from truncgauss.fits.gaussian.statistics import Statistics
from truncgauss.gaussian.regions.box import Box
from truncgauss.gaussian.regions.region import Region
from truncgauss.tables.columns import Table

UNCHECKED = (
    "The statistics do not hold the extremes of the sample: whether all lie inside the bounds "
    "was not checked."
)

MISSING = (
    "For missing entries take tg.fit_observations(tg.Observations.exact(data, nan_is_missing=True, "
    "region=tg.Box(low, high)))."
)


class Sample(NamedTuple):
    """Rows by the statistics of their likelihood, in units of their standard deviations."""

    num_rows: int
    weight: float  # of all rows together
    centre: np.ndarray  # (d,) mean, in the user's units
    scale: np.ndarray  # (d,) standard deviation
    root: jax.Array  # (d, d), the Cholesky factor of their correlation
    region: Box  # in standard units
    columns: tuple[str, ...]  # their names


def as_sample(
    statistics: Statistics, low: np.ndarray, high: np.ndarray, table: Table | None = None
) -> Sample:
    """The rows' number, mean and scatter in standard units, checked.

    Raises:
        ValueError: see `fit_truncated_normal`.
    """
    d = len(statistics.mean)
    low, high = np.broadcast_to(low, (d,)), np.broadcast_to(high, (d,))
    check_statistics(statistics, low, high, table)
    weight = float(statistics.weight)
    centre, scale = statistics.mean, np.sqrt(np.diagonal(statistics.scatter) / weight)
    columns = columns_of(table, d)
    check_units(scale, columns, "fit_truncated_normal")
    correlation = statistics.scatter / weight / np.outer(scale, scale)
    if np.linalg.eigvalsh(correlation)[0] < 1e-12 * d:
        raise ValueError(
            "data: the columns are linearly dependent, so that no covariance has an inverse. Drop "
            "a column."
        )
    region = Box((low - centre) / scale, (high - centre) / scale)
    root = jax.device_put(np.linalg.cholesky(correlation))
    return Sample(statistics.num_rows, weight, centre, scale, root, region, columns)


def columns_of(table: Table | None, d: int) -> tuple[str, ...]:
    """Names of the columns, or else their numbers."""
    return tuple(map(str, range(d) if table is None or table.names is None else table.names))


def as_rows(table: Table) -> np.ndarray:
    """Rows (n, d) of float64."""
    rows = table.values.astype(np.float64, copy=False)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or 0 in rows.shape:
        raise ValueError(
            "data must have shape (n, d), or (n,) for d = 1, with one row or more; got "
            f"{table.values.shape}."
        )
    return rows


def limits_of(low: Any, high: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Limits of shape (), (d,) or, one a row, (n, d), of a table, by the names of its columns where
    they have names; None is open."""
    matrix = table._replace(values=as_rows(table))
    sides = (("low", low, -np.inf), ("high", high, np.inf))
    low, high = (
        None if end is None else tables.aligned(end, matrix, name, fill)
        for name, end, fill in sides
    )
    (n, d), ends = matrix.values.shape, [-np.inf if low is None else low]
    ends.append(np.inf if high is None else high)
    low, high = (np.asarray(end, np.float64) for end in ends)
    if d == 1:
        low, high = (end[:, None] if end.shape == (n,) != (1,) else end for end in (low, high))
    if any(end.shape not in ((), (d,), (n, d)) for end in (low, high)):
        raise ValueError(
            f"low and high must be numbers or of shape ({d},), as data has {d} column(s), or "
            f"({n}, {d}), one a row; got shapes {low.shape} and {high.shape}."
            + " Observations are rows: give the transpose, data.T."
            * (low.shape == (n,) != (d,))
        )
    return low, high


def limits_of_box(what: str, region: Any, limits: tuple[Any, Any], names: str) -> tuple[Any, Any]:
    """Limits of truncation: those of a box, if one is given in their place.

    Raises:
        ValueError: for another region, limits beside it, or a region in the place of limits.
    """
    if isinstance(limits[0], Region):
        raise ValueError(f"{what}: the bounds are a tg.{type(limits[0]).__name__}: say region=...")
    if region is None:
        return limits
    box = region.linear() if isinstance(region, Region) else None
    if box is None or not box.is_box:
        raise ValueError(
            f"{what}: region must be a tg.Box, got {type(region).__name__}. With other regions use "
            "tg.fit_observations(tg.Observations.exact(rows, region=region))."
        )
    if any(end is not None for end in limits):
        raise ValueError(f"{what}: give either region or {names}, not both.")
    columns: list[Any] = [*getattr(region, "coordinate_names", ())]
    if len(columns) < 2 or columns == [*range(len(columns))]:
        return box.low, box.high
    low, high = (dict(zip(columns, np.asarray(end).T)) for end in (box.low, box.high))
    return low, high


def check_rows(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Raise ValueError with the number of offending rows and the first of them."""
    n, d = rows.shape

    def complain(wrong: np.ndarray, what: str, advice: str) -> None:
        offending = np.flatnonzero(wrong.any(axis=1))
        if len(offending):
            first = offending[0]
            limits = [np.broadcast_to(end, (n, d))[first] for end in (low, high)]
            raise ValueError(
                f"data: {len(offending)} of {n} observation(s) {what}, first row {first}: "
                f"{rows[first]}. {advice.format(*limits)}"
            )

    complain(~np.isfinite(rows), "hold NaN or infinity", MISSING)
    if np.any(low >= high) or np.any(np.isnan(low) | np.isnan(high)):
        first = np.flatnonzero(~np.broadcast_to(low < high, (n, d)).all(axis=1))[0]
        low, high = (np.broadcast_to(end, (n, d))[first] for end in (low, high))
        cure = " Exchange them." if np.all(low > high) else ""
        raise ValueError(f"low must be below high, got {low} and {high} (row {first}).{cure}")
    outside = (rows < low) | (rows > high)
    advice = "Its bounds are {} to {}: correct them, or remove those observations."
    if outside.any(axis=1).all():
        advice = "Its bounds are {} to {}: are these of the same unit as the data?"
    complain(outside, "lie outside the bounds", advice)


def check_statistics(
    statistics: Statistics, low: np.ndarray, high: np.ndarray, table: Table | None = None
) -> None:
    """Raise ValueError where no Gaussian can be fitted, in a sentence that names the column."""
    n, d, mean = statistics.num_rows, len(statistics.mean), statistics.mean
    name = str if table is None else table.name
    if n <= d:
        raise ValueError(
            f"data: {n} observation(s) cannot determine a covariance in {d} dimension(s); more "
            f"than {d} are needed.{' If a column is an observation, write data.T.' * (n < d)}"
        )
    if 2 * n <= d + 3:  # no more numbers than parameters
        raise ValueError(
            f"data: {n} observation(s) cannot determine {d * (d + 3) // 2} parameters; more are "
            "needed."
        )
    spread = np.sqrt(np.maximum(np.diagonal(statistics.scatter), 0.0) / statistics.weight)
    lowest, highest = mean, mean
    if statistics.lowest is not None and statistics.highest is not None:
        lowest, highest = statistics.lowest, statistics.highest
        spread = highest - lowest
    constant = np.flatnonzero(spread <= 1e-14 * np.maximum(np.abs(lowest), np.abs(highest)))
    if len(constant):
        column = constant[0]
        raise ValueError(
            f"data: column {name(column)} is constant at {mean[column]} in all {n} observations "
            f"({len(constant)} such column(s)). Drop it."
        )
    outside = np.flatnonzero((lowest < low) | (highest > high))
    if len(outside):
        column = outside[0]
        raise ValueError(
            f"data: the values of column {name(column)} reach from {lowest[column]} to "
            f"{highest[column]}, outside the bounds {low[column]} to {high[column]}. Correct the "
            "bounds, or remove those observations."
        )
