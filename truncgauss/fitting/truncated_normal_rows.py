"""The checked rows of a truncated sample, and what their likelihood needs of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.regions import Box
from truncgauss.special import standardize


class Sample(NamedTuple):
    """What the likelihood needs of the rows, in units of their standard deviations."""

    num_rows: int
    centre: np.ndarray  # (d,) mean, in the user's units
    scale: np.ndarray  # (d,) standard deviation
    correlation: jax.Array  # (d, d)
    region: Box  # in standard units


def as_sample(data: Any, low: Any, high: Any) -> Sample:
    """The rows' number, mean and scatter in standard units, checked.

    Raises:
        ValueError: see `fit_truncated_normal`.
    """
    rows = np.asarray(data, np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"data must have shape (n, d), or (n,) for d = 1; got {np.shape(data)}.")
    n, d = rows.shape
    limits = [-np.inf if low is None else low, np.inf if high is None else high]
    low, high = (np.asarray(limit, np.float64) for limit in limits)
    if any(limit.shape not in ((), (d,)) for limit in (low, high)):
        raise ValueError(
            f"low and high must be numbers or of shape ({d},), as data has {d} column(s); got "
            f"shapes {low.shape} and {high.shape}."
        )
    box = Box(jnp.broadcast_to(low, (d,)), jnp.broadcast_to(high, (d,)))
    check_rows(rows, np.asarray(box.low), np.asarray(box.high))
    centre, scale = rows.mean(0), rows.std(0)
    standard = (rows - centre) / scale
    correlation = standard.T @ standard / n
    if np.linalg.eigvalsh(correlation)[0] < 1e-12 * d:
        raise ValueError(
            "data: the columns are linearly dependent, so that no covariance has an inverse. Drop "
            "a column."
        )
    region = Box(*standardize(box.low, box.high, centre, scale)[:2])
    return Sample(n, centre, scale, jnp.asarray(correlation), region)


def check_rows(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Raise ValueError with the number of offending rows and the first of them."""
    n, d = rows.shape

    def complain(wrong: np.ndarray, what: str, advice: str) -> None:
        offending = np.flatnonzero(wrong.any(axis=1))
        if len(offending):
            first = offending[0]
            raise ValueError(
                f"data: {len(offending)} of {n} row(s) {what}, first row {first}: {rows[first]}. "
                f"{advice}"
            )

    complain(~np.isfinite(rows), "hold NaN or infinity", "Remove or impute them yourself.")
    outside = (rows < low) | (rows > high)
    advice = f"The limits are {low} to {high}: correct them, or remove those rows."
    complain(outside, "lie outside the limits", advice)
    if n <= d:
        raise ValueError(
            f"data: {n} row(s) cannot determine a covariance in {d} dimension(s); more than {d} "
            "are needed."
        )
    spread, size = np.ptp(rows, axis=0), np.abs(rows).max(axis=0)
    constant = np.flatnonzero(spread <= 1e-14 * size)
    if len(constant):
        column = constant[0]
        raise ValueError(
            f"data: column {column} is constant at {rows[0, column]} in all {n} rows "
            f"({len(constant)} such column(s)). Drop it."
        )
