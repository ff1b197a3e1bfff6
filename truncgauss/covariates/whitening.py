"""Covariates that are centred, where they span a constant, and orthogonal over the rows.

So coefficients have no correlation from the covariates alone, whatever the user's units and origin;
`fits.gaussian.centring` does the same for outcomes.

References:
    Golub and Van Loan, "Matrix Computations" (2013), section 5.3: least squares by QR.
"""

from typing import Any, NamedTuple

import numpy as np

from truncgauss.fitting.existence import ROUNDING
from truncgauss.fitting.least_squares import (
    BLOCK,
    blocks,
    least_squares,
    lengths_of,
    median_of,
    triangle,
)
from truncgauss.tables.columns import Table

FAR = 16.0  # spreads from 0, up to which columns stay where they are
CONSTANT = 1e-12  # how near to 1 a sum of covariates must be to count as constant
DEPENDENT, MOST_REASONS = 1e-8, 5  # part of a column that others leave; columns in a message
COLLINEAR = 1e-10  # smallest singular value of columns of length 1, over the largest


class Whitened(NamedTuple):
    """Covariates whose mean square is the identity matrix, and the way back.

    Attributes:
        design: Q = X T, (n, p).
        transform: T, (p, p): coefficients b of Q are T b of X.
        constant: c with X c = 1 in every row, (p,); None if there is none.
        columns: X, (n, p).
        names: of the covariates, if they have some.
        encoder: the function that makes these columns of another table, if there is one.
        inflation: how many times larger the variance of each coefficient is than it were if the
            other covariates said nothing of its own, (p,).
    """

    design: np.ndarray
    transform: np.ndarray
    constant: np.ndarray | None
    columns: np.ndarray
    names: tuple[str, ...] | None = None
    encoder: Any = None
    inflation: np.ndarray | None = None


def whitened(table: Table, weights: np.ndarray | None, what: str) -> Whitened:
    """Covariates (n, p), centred if they span a constant, and made orthogonal over the rows of
    positive weight.

    Raises:
        ValueError: if the columns are collinear, or vary by rounding only.
    """
    design, names = table.values, None if table.names is None else tuple(map(str, table.names))
    counted = slice(None) if weights is None else weights > 0
    rows, constant = design[counted], constant_of(design)
    change, centred = np.eye(design.shape[1]), design
    if constant is not None:
        sizes, spans = np.zeros(len(constant)), np.flatnonzero(constant)
        sizes[spans] = np.abs(constant[spans]) * np.abs(design[:, spans]).max(axis=0)
        replaced = int(np.argmax(sizes))  # the column whose position the constant takes
        middles = np.array([median_of(column) for column in rows.T])
        change = change - np.outer(constant, middles)
        change[:, replaced] = constant
        centred = design - middles
        centred[:, replaced] = 1.0
    used = centred[counted]
    lengths, total = lengths_of(used), len(used)
    units = np.where(lengths > 0, lengths, 1.0) / total**0.5
    factor = triangle(used, units * total**0.5)
    values = np.linalg.svd(factor, compute_uv=False)
    before = lengths_of(rows)
    rounding = ROUNDING * before
    if total < len(lengths) or np.any(lengths <= rounding) or values[-1] < COLLINEAR * values[0]:
        if total < len(lengths):
            raise ValueError(
                f"{what} are collinear: there are more of them ({len(lengths)}) than observations "
                f"that count ({total}). Leave some out."
            )
        factor[:, lengths <= rounding] = 0.0
        sizes = before[:, None] * change / units
        raise ValueError(f"{what} are collinear: {dependence(factor, sizes, names)}")
    inverse = np.linalg.inv(factor) / units[:, None]
    reused = centred is not design and centred.flags.c_contiguous  # rows of a table may lie apart
    white = centred if reused else np.empty(design.shape)
    for block in blocks(len(white)):
        white[block] = centred[block] @ inverse
    inflation = np.sum((units[:, None] * inverse) ** 2, axis=1)
    if constant is not None:
        inflation[replaced] = 1.0
    return Whitened(white, change @ inverse, constant, design, names, table.encoder, inflation)


def dependence(triangle: np.ndarray, sizes: np.ndarray, names: tuple[str, ...] | None) -> str:
    """The columns that others determine, in words.

    Args:
        triangle: R of columns of length 1, (p, p).
        sizes: those of the user's columns in the place of each, (p, p).
        names: of the user's.
    """
    words = [f"column {j}" for j in range(len(sizes))] if names is None else list(map(repr, names))
    kept: list[int] = []
    reasons, cells = [], False
    for j, column in enumerate(triangle.T):
        solution = np.linalg.lstsq(triangle[:, kept], column)[0]
        if np.linalg.norm(column - triangle[:, kept] @ solution) > DEPENDENT:
            kept.append(j)
            continue
        none = np.zeros(len(sizes))
        none[kept], none[j] = -solution, 1.0
        parts = np.abs(sizes @ none)
        others = [words[k] for k in np.flatnonzero(parts > DEPENDENT * parts.max()) if k != j]
        by = f"determined by {', '.join(others)}" if others else "0 in every row"
        reasons.append(f"{words[j]} is {by}")
        cells |= ":" in words[j]
    some = "; ".join(reasons[:MOST_REASONS])
    hint = " Of a combination of categories that no row has (an empty cell), no effect shows."
    more = "; ..." if len(reasons) > MOST_REASONS else ""
    return f"{some}{more}. Leave that out.{hint * cells}"


def constant_of(design: np.ndarray) -> np.ndarray | None:
    """Coefficients whose sum of covariates is 1 in every row; None if there are none."""
    first, p = design[0], design.shape[1]
    varies = np.any(design[:BLOCK] != first, axis=0)
    varies[~varies] = np.any(design[:, ~varies] != first[~varies], axis=0)
    for j in np.flatnonzero(~varies & (first != 0)):
        return np.eye(p)[j] / first[j]
    # Members of groups; what lies far off is as good as constant, and would blur them.
    sizes = np.abs(design).max(axis=0)
    varying = np.std(design, axis=0) > sizes / FAR
    part = design[:, varying] / sizes[varying]
    solution = least_squares(part, np.ones(len(part)))
    constant = np.zeros(p)
    constant[varying] = np.where(np.abs(solution) > CONSTANT, solution, 0.0) / sizes[varying]
    return constant if np.all(np.abs(design @ constant - 1.0) <= CONSTANT) else None
