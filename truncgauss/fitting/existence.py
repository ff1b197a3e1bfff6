"""Whether a maximum of the likelihood exists: directions along which it rises for ever.

For rows without a region the log-likelihood of one outcome is concave in (coefficients / sigma,
1 / sigma). It has a maximum unless it never falls along some direction (b, t) with t >= 0: one with

    t lower_i <= x_i . b <= t upper_i    in every row i,

of which not all are equations with t = 0. With t = 0 the rows are separated: some censored rows
are met the better the farther the coefficients go. With t > 0 the coefficients b / t meet every
row, and sigma falls to 0. Such a direction is the solution of a linear program.

References:
    Albert and Anderson, "On the existence of maximum likelihood estimates in logistic regression
        models", Biometrika (1984).
    Rockafellar, "Convex Analysis" (1970), section 27: directions of recession.
"""

import numpy as np
from scipy import optimize

MANY = 4000  # rows of a linear program; beyond, it is solved for some and the others are looked up
MOST_ROUNDS = 100
FEASIBLE = 1e-7  # of the largest entry: what the program's solver calls 0
MEANT = 1e-6  # by which the rows together must be met better


def rising_direction(
    lower: np.ndarray, upper: np.ndarray, design: np.ndarray, scale_known: bool
) -> np.ndarray | None:
    """A direction (b, t), (p + 1,), along which the likelihood of one outcome never falls; None if
    there is none, so that a maximum exists.

    Args:
        lower, upper: (n,), as in `Observations`, without a region.
        design: (n, p).
        scale_known: whether sigma cannot fall to 0: it is known, or there is noise; t is then 0.

    Example:
        >>> y, x = np.array([0.0, 0.0, 1.0, 1.0]), np.array([[1.0, -1], [1, 0], [1, 1], [1, 2]])
        >>> lower, upper = np.where(y > 0, 0.0, -np.inf), np.where(y > 0, np.inf, 0.0)
        >>> rising_direction(lower, upper, x, scale_known=True) is None
        False
    """
    known = np.isfinite(lower) | np.isfinite(upper)
    lower, upper, design = lower[known], upper[known], design[known]
    sizes = np.abs(design).max(axis=0, initial=0.0)
    finite = np.abs(np.concatenate([lower, upper]))
    unit = max(finite[np.isfinite(finite)].max(initial=0.0), np.finfo(float).tiny)
    sizes = np.append(np.where(sizes > 0, sizes, 1.0), unit)
    exact = lower == upper
    points = np.column_stack([design[exact], -lower[exact]]) / sizes
    if scale_known:
        points = points[:, :-1]
    if determined(points):
        return None
    sides = [
        np.column_stack([sign * design[side], -sign * limit[side]]) / sizes
        for sign, limit in ((1.0, lower), (-1.0, upper))
        for side in [np.isfinite(limit)]
    ]
    direction = recession(np.concatenate(sides), scale_known)
    return None if direction is None else direction / sizes


def determined(points: np.ndarray) -> bool:
    """Whether equations leave the zero only."""
    if len(points) < points.shape[1]:
        return False
    values = np.linalg.eigvalsh(points.T @ points)
    return bool(values[0] > 1e-10 * values[-1])


def recession(rows: np.ndarray, flat: bool) -> np.ndarray | None:
    """A direction v in the unit box with rows @ v >= 0, not all of them 0; None if there is none.

    With many rows the program is solved for some, and those that its solution violates are added.
    """
    n, q = rows.shape
    bounds = [(-1.0, 1.0)] * (q - 1) + [(0.0, 0.0 if flat else 1.0)]
    total = rows.sum(axis=0)
    aim = -total / max(np.abs(total).max(), 1.0)
    chosen = np.arange(n)
    if n > MANY:
        chosen = np.random.default_rng(0).choice(n, MANY // 2, replace=False)
    for _ in range(MOST_ROUNDS):
        found = optimize.linprog(
            aim, A_ub=-rows[chosen], b_ub=np.zeros(len(chosen)), bounds=bounds, method="highs"
        )
        if not found.success:
            raise RuntimeError(f"The linear program of existence failed: {found.message}")
        values = rows @ found.x
        if values.sum() <= MEANT:  # the most that any direction reaches
            return None
        violated = np.setdiff1d(np.flatnonzero(values < -FEASIBLE), chosen)
        if not len(violated):
            return np.where(np.abs(found.x) > FEASIBLE, found.x, 0.0)
        worst = violated[np.argsort(values[violated])][: MANY // 4]
        chosen = np.concatenate([chosen, worst])
    raise RuntimeError(f"Existence was not decided in {MOST_ROUNDS} linear programs.")
