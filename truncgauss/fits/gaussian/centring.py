"""Outcomes and covariates near 0 and of one size, whatever the user's units, for rounding's sake.

A fit that counts from the year 0 or from Julian day 0 determines intercepts far from its rows, and
the curvature of its likelihood loses the digits in which the rows differ. So a middle is subtracted
from the outcomes, their limits and their regions, and the covariates are centred, where they span a
constant, and made orthogonal. The likelihood is the same; estimates and errors follow by linear
maps.

References:
    Golub and Van Loan, "Matrix Computations" (2013), section 5.3: least squares by QR.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truncgauss.arrays.pytrees import as_float_array, frozen_pytree
from truncgauss.covariates.whitening import FAR, Whitened
from truncgauss.fitting.existence import ROUNDING, sums_beyond_rounding
from truncgauss.fitting.least_squares import least_squares, median_of
from truncgauss.gaussian.regions.section import Section
from truncgauss.likelihood.observations import Observations
from truncgauss.words.earlier import warn

SMALLEST, LARGEST = 1e-75, 1e75  # spreads whose fourth powers are numbers in float64
NO_CONSTANT = (
    "The covariates hold no constant, so that the mean is 0 where all of them are. If that is not "
    "meant, give a column of ones too."
)
PILED_UP = (
    "{} of {} values{} equal the {}, {:.6g}: if that is a bound beyond which values are not "
    "measured, they are censored there, and must be given as such (`{}` of a regression); if it "
    "stands for missing values, leave these rows out, or write NaN there, with missing=True."
)
AT_THE_BOUND = (
    "{} of {} values{} equal their bound of truncation, {:.6g}, where a truncated sample holds "
    "next to none. Where values beyond a bound are recorded at it, they are censored, and "
    "must be given as such (`{}` of a regression): these estimates hold for truncation alone."
)
SIDES = (-1, "smallest", "censored_low"), (1, "largest", "censored_high")
NUM_PILED, SHARE_PILED, TIMES_PILED = 5, 0.05, 3  # values, of all, and as many as of the next one
COARSE = 1e-2  # of an outcome's spread: steps of float32 that a reader must hear of


@frozen_pytree
class UserUnits:
    """Free coordinates whose coefficients are in the units of the user.

    Attributes:
        inner: what the coordinates are to centred rows.
        transform: of their first estimates, the coefficients, (p, p).
        shift: what is added to these, (p,).
    """

    inner: Any
    transform: jax.Array
    shift: jax.Array

    def estimates(self, x: jax.Array) -> jax.Array:
        inner, p = self.inner.estimates(x), len(self.shift)
        return jnp.concatenate([self.shift + self.transform @ inner[:p], inner[p:]])

    def free(self, coefficients: np.ndarray, *rest: np.ndarray) -> np.ndarray:
        """The coordinates of the user's coefficients; the rest is what the inner ones ask for."""
        return np.asarray(self.inner.free(self.inwards(coefficients), *rest))

    def inwards(self, coefficients: np.ndarray) -> np.ndarray:
        """Coefficients of the user's as those of centred rows."""
        return np.linalg.solve(np.asarray(self.transform), coefficients - np.asarray(self.shift))


@dataclasses.dataclass(frozen=True)
class Centred:
    """Rows as they are fitted.

    Attributes:
        rows: with a middle subtracted from outcomes, limits and regions.
        designs: covariates of each outcome, whitened; None for a constant mean.
        shifts: of each outcome, the user's coefficients of what was subtracted.
        exact: whether every entry is known exactly.
        limited: how many entries of each row are limited, neither exact nor missing, (n,).
        piled_up: a sentence for each outcome whose values repeat an extreme one.
    """

    rows: Observations
    designs: tuple[Whitened, ...] | None
    shifts: tuple[np.ndarray, ...]
    exact: bool
    limited: np.ndarray
    piled_up: tuple[str, ...]

    @property
    def size(self) -> jax.Array:
        return jax.device_put(np.asarray(float(np.sum(self.rows.row_weights))))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the covariates, and on values that may be limits."""
        lacking = any(whitened.constant is None for whitened in self.designs or ())
        return (NO_CONSTANT,) * lacking + self.piled_up

    @property
    def covariates(self) -> tuple[jax.Array, ...] | None:
        """The whitened covariates of each outcome."""
        if self.designs is None:
            return None
        return tuple(as_float_array(whitened.design) for whitened in self.designs)

    def design_of(self, j: int) -> np.ndarray:
        """The whitened covariates of outcome j, (n, p)."""
        return np.ones((self.rows.num_rows, 1)) if self.designs is None else self.designs[j].design

    def transform_of(self, j: int) -> np.ndarray:
        """The matrix that makes coefficients of outcome j the user's."""
        return np.eye(1) if self.designs is None else self.designs[j].transform

    def direction_of(self, j: int, direction: np.ndarray) -> np.ndarray:
        """A direction of outcome j, (coefficients, t) with values t y, in the user's units."""
        slopes, t = direction[:-1], direction[-1]
        parts = np.column_stack([self.transform_of(j) * slopes, t * self.shifts[j]])
        return np.append(sums_beyond_rounding(parts), t)

    def coordinates(self, inner: Any, *others: np.ndarray) -> UserUnits:
        """Free coordinates in the user's units; `others` are transforms of further coefficients."""
        blocks = [self.transform_of(j) for j in range(len(self.shifts))] + list(others)
        ends = np.cumsum([0, *map(len, blocks)])
        whole, shift = np.zeros((ends[-1], ends[-1])), np.zeros(ends[-1])
        for start, block in zip(ends, blocks):
            whole[start : start + len(block), start : start + len(block)] = block
        shift[: sum(map(len, self.shifts))] = np.concatenate(self.shifts)
        return UserUnits(inner, *jax.device_put((whole, shift)))


def centred(
    rows: Observations, designs: tuple[Whitened, ...] | None, scale: np.ndarray, by_line: bool
) -> Centred:
    """Rows with a middle subtracted from each outcome that is far from 0.

    Args:
        rows: the observations.
        designs: whitened covariates of each outcome, or None.
        scale: known standard deviations of outcomes, (d,), 0 where they are to be estimated.
        by_line: whether rows may be moved one by one, so that a line may be subtracted too.

    Raises:
        ValueError: if limits that differ are the same after the subtraction.
    """
    shifts, moves, repeated = [], [], tuple[str, ...]()
    bounds = rows.region_limits(np)[:2]
    for j in range(rows.dimension):
        design = None if designs is None else designs[j]
        constant = np.ones(1) if design is None else design.constant
        lower, upper = (np.asarray(side)[:, j] for side in (rows.lower, rows.upper))
        counted = rows.row_weights > 0
        of = f" of {rows.labels[j]}" if rows.names or rows.dimension > 1 else ""
        known = (lower == upper) & np.isfinite(lower) & counted
        repeated += piled_up(lower[known], [side[known, j] for side in bounds], of)
        shift, middle = np.zeros(1 if design is None else len(design.transform)), 0.0
        if constant is not None:  # the median of the ends, if it is far from 0 in units of theirs
            ends = np.concatenate([lower[counted], upper[counted]])
            ends = ends[np.isfinite(ends)]
            if len(ends):
                median = median_of(ends)
                spread = median_of(np.abs(ends - median)) or float(np.std(ends))
                middle = median if worth(abs(median), max(spread, scale[j])) else 0.0
            shift = shift + middle * constant
        move: Any = middle
        if by_line and design is not None:  # least squares through exact rows near a line far off
            lower, upper, columns = lower - middle, upper - middle, design.design
            exact, line = counted & (lower == upper), np.zeros(columns.shape[1])
            count = exact.sum()
            if count > len(line):
                outcome = np.where(exact, lower, 0.0)
                found = least_squares(columns, outcome, exact.astype(float))
                fitted = (columns @ found)[exact]
                squares = np.sum((lower[exact] - fitted) ** 2)
                farthest = float(np.abs(fitted).max(initial=0.0))
                line = found if worth(farthest, float(np.sqrt(squares / count))) else line
            shift, move = shift + design.transform @ line, middle + columns @ line
            move = move if line.any() else middle
        shifts.append(shift)
        moves.append(move)
    rows = moved(rows.unnamed(), moves)
    lower, upper = np.asarray(rows.lower), np.asarray(rows.upper)
    limited = np.sum((lower < upper) & (np.isfinite(lower) | np.isfinite(upper)), axis=1)
    exact = bool(np.all(lower == upper))
    return Centred(rows, designs, tuple(shifts), exact, limited, repeated)


def piled_up(values: np.ndarray, bounds: Sequence[Any], of: str) -> tuple[str, ...]:
    """Sentences on exact values (n,) that repeat the smallest or the largest one far more often
    than the next one, as values do that were set to a limit.

    Args:
        values: of one outcome.
        bounds: of truncation, the lower and the upper, numbers or (n,).
        of: the outcome's name in the sentences.

    Warns:
        UserWarning: if that value is the bound of truncation.
    """
    notes, count = [], len(values)
    for (sign, word, option), bound in zip(SIDES, bounds):
        turned = sign * values
        extreme = turned.max(initial=-np.inf)
        rest = turned[turned < extreme]
        at, next_to = np.sum(turned == extreme), np.sum(rest == rest.max(initial=-np.inf))
        if at >= max(NUM_PILED, SHARE_PILED * count, TIMES_PILED * next_to) and next_to:
            if np.all(np.broadcast_to(bound, count)[turned == extreme] == sign * extreme):
                notes.append(AT_THE_BOUND.format(at, count, of, sign * extreme, option))
                warn(notes[-1])
            else:
                notes.append(PILED_UP.format(at, count, of, word, sign * extreme, option))
    return tuple(notes)


def worth(distance: float, spread: float) -> bool:
    """Whether values so far from 0 should be moved; not if they differ by rounding only."""
    return bool(ROUNDING * distance < spread < distance / FAR)


def moved(rows: Observations, moves: list[Any]) -> Observations:
    """Rows with a number, or one for each row, subtracted from each outcome.

    Raises:
        ValueError: if limits that differ are the same after that.
    """
    if not any(np.any(move) for move in moves):
        return rows
    by = np.stack([np.asarray(move, float) for move in moves], axis=-1)  # (d,), or (n, 1)
    ends = np.asarray(rows.lower), np.asarray(rows.upper)
    low, high = (end - by for end in ends)
    lost = np.flatnonzero(np.any((low == high) & (ends[0] < ends[1]), axis=1))
    if len(lost):
        raise ValueError(
            f"The bounds of {len(lost)} observation(s) are too close for their distance from the "
            f"others, first row {lost[0]}: lower {ends[0][lost[0]]}, upper {ends[1][lost[0]]}. "
            f"Measured from {by if by.ndim == 1 else by[lost[0]]}, where the outcomes lie, they "
            "are equal. Give an exact value instead, or correct them."
        )
    region = rows.region
    if region is not None:
        region = region.moved(-by) or Section(region, by, tuple(range(by.shape[-1])))
    lower, upper = as_float_array(low), as_float_array(high)
    observed = rows.observed
    if observed is not None:
        from truncgauss.likelihood.dropout import moved_curves  # which other rows do not need

        observed = moved_curves(observed, by)
    return dataclasses.replace(rows, lower=lower, upper=upper, region=region, observed=observed)


def check_units(spread: np.ndarray, labels: tuple[str, ...], what: str) -> None:
    """Raise ValueError if the powers of an outcome's spread (d,) leave float64: the square of the
    error of a variance is a fourth power."""
    wrong = np.flatnonzero(~((spread >= SMALLEST) & (spread <= LARGEST)))
    if len(wrong):
        size = "large" if not spread[wrong[0]] < SMALLEST else "small"
        raise ValueError(
            f"{what}: the values of {labels[wrong[0]]} spread over {spread[wrong[0]]:.2g}, too "
            f"{size} for their powers to be numbers in float64 ({SMALLEST:g} to {LARGEST:g}). Give "
            "it in other units, so that its spread is about 1."
        )


def coarse(rows: Observations) -> str | None:
    """A note that rows in float32 hide how outcomes differ, if so."""
    if rows.lower.dtype != jnp.float32:
        return None
    for j in range(rows.dimension):
        ends = np.concatenate([np.asarray(rows.lower)[:, j], np.asarray(rows.upper)[:, j]])
        ends = ends[np.isfinite(ends)]
        if not len(ends):
            continue
        step = float(np.spacing(np.float32(abs(median_of(ends)))))
        spread = float(np.std(ends.astype(float)))
        if step > COARSE * spread > 0:
            return (
                f"Outcome {j} is kept in float32, in steps of {step:.2g} where it lies, and its "
                f"spread is {spread:.2g}: errors do not count that rounding. Subtract a value from "
                'its middle, or set jax.config.update("jax_enable_x64", True) before making rows.'
            )
    return None
