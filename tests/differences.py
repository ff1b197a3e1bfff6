"""Derivatives by every route, against differences of values extrapolated to a step of 0."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

INF = np.inf
STEPS, FEWEST = 6, 1e-5  # halvings of the step; the accuracy that a difference needs to prove a 0


class Case(NamedTuple):
    """A function of named arrays, and the points at which it is differentiated.

    `symmetric` arguments are moved as symmetric matrices, `triangular` ones as lower factors.
    Where `differences` is a function, it gives the values in place of the function, to `tol`.
    """

    names: str  # the public names that it covers
    function: Callable
    points: dict
    symmetric: str = ""
    triangular: str = ""
    routes: str = "backward forward jit vmap single"
    step: float = 2e-2
    tol: float = 1e-6
    differences: Callable | None = None
    prepare: Callable | None = None  # returns fields that take time, such as plans
    directions: int = 0  # random ones, for values that take long; else along each entry


# --- Differences ----------------------------------------------------------------------------------


def moves(case, point):
    """The directions in which the arguments may move, as rows over all entries of a point."""
    rows, start, size = [], 0, sum(np.size(x) for x in point.values())
    for name in sorted(point):
        entries = start + np.arange(np.size(point[name])).reshape(np.shape(point[name]))
        start += np.size(point[name])
        matrix = name in case.symmetric.split() + case.triangular.split()
        indices = np.argwhere(np.tri(*entries.shape) > 0) if matrix else np.ndindex(entries.shape)
        for index in indices:
            row = np.zeros(size)
            row[entries[tuple(index)]] = 1.0
            if name in case.symmetric.split():
                row[entries.T[tuple(index)]] = 1.0
            rows.append(row)
    return np.array(rows)


def directions(count, rows, start):
    """Random directions of all entries that are finite, in which a wrong one shows too."""
    finite = np.array([np.all(np.isfinite(start[row != 0])) for row in rows])
    weights = np.random.default_rng(1).normal(size=(count, finite.sum()))
    return weights @ rows[finite] / np.sqrt(finite.sum())


def flat(point, dtype=float):
    return np.concatenate([np.ravel(point[name]).astype(dtype) for name in sorted(point)])


def unflat(vectors, point):
    """A point of each row of vectors."""
    parts, start = {}, 0
    for name in sorted(point):
        shape = np.shape(point[name])
        count = int(np.prod(shape))
        parts[name] = vectors[..., start : start + count].reshape(*vectors.shape[:-1], *shape)
        start += count
    return parts


def extrapolated(estimates, power):
    """The limit for a step of 0 of estimates at halved steps (k, ...), and its error (Ridders)."""
    best, error = estimates[0], np.full_like(estimates[0], INF)
    before = [estimates[0]]
    for estimate in estimates[1:]:
        row = [estimate]
        for k, previous in enumerate(before[:4], 1):
            factor = 2.0 ** (power * k)
            row.append((factor * row[-1] - previous) / (factor - 1.0))
            change = np.maximum(abs(row[-1] - row[-2]), abs(row[-1] - previous))
            better = change < error
            best, error = np.where(better, row[-1], best), np.where(better, change, error)
        before = row
    return best, error


def shifted(start, move):
    return start + np.where(move != 0, move, 0.0)  # an infinite entry may stay


def differences(values, start, rows, step):
    """First derivatives along the rows and their errors: central, or one-sided at a bound.

    Where the two sides differ, or neither is finite, the error is NaN: there is no derivative.
    """
    sizes = step * np.maximum(1.0, [np.max(abs(start[row != 0])) for row in rows])
    sizes = np.where(np.isfinite(sizes), sizes, 1.0)
    halved = sizes / 2.0 ** np.arange(STEPS)[:, None]
    ends = [
        [[shifted(start, s * h * row) for s in (1, -1)] for h, row in zip(hs, rows)]
        for hs in halved
    ]
    all_points = np.concatenate([np.reshape(ends, (-1, len(start))), start[None]])
    results = values(all_points)
    middle, ends = results[-1], results[:-1].reshape(STEPS, len(rows), 2, *results.shape[1:])
    h = halved.reshape(STEPS, len(rows), *(1,) * middle.ndim)
    central = extrapolated((ends[:, :, 0] - ends[:, :, 1]) / (2.0 * h), 2)
    above = extrapolated((ends[:, :, 0] - middle) / h, 1)
    below = extrapolated((middle - ends[:, :, 1]) / h, 1)
    kink = abs(above[0] - below[0]) > 1e-4 * (1 + abs(above[0])) + 10 * (above[1] + below[1])
    known = np.isfinite(central[1])
    one = np.where(np.isfinite(above[1]), above, below)
    slope, error = np.where(known, central, one)
    error = np.where(kink & known | ~np.isfinite(slope), np.nan, error)
    return middle, slope, error, np.isfinite(ends).any((0, 2))


def second_differences(values, start, rows, step, pairs):
    ends = [
        shifted(start, s * step / 2**k * rows[i]) + shifted(0 * start, t * step / 2**k * rows[j])
        for k in range(STEPS - 1)
        for i, j in pairs
        for s in (1, -1)
        for t in (1, -1)
    ]
    pp, pm, mp, mm = values(np.array(ends)).reshape(STEPS - 1, len(pairs), 4).transpose(2, 0, 1)
    return extrapolated(
        (pp - pm - mp + mm) / (2 * step / 2.0 ** np.arange(STEPS - 1)[:, None]) ** 2, 2
    )


# --- Derivatives by each route --------------------------------------------------------------------


class Law:
    """The comparison of one case: compiled functions are shared by its points."""

    def __init__(self, case):
        case = case._replace(**case.prepare()) if case.prepare else case
        self.case, self.count, self.zeros = case, 0, 0
        self.failures: list[str] = []
        template = next(iter(case.points.values()))
        self.of_vector = lambda vector: case.function(unflat(vector, template))
        plain = self.of_vector
        if case.differences:
            plain = lambda vector: case.differences(unflat(vector, template))
        self.values_of = jax.jit(jax.vmap(plain))
        self.compiled = jax.jit(jax.jacrev(self.of_vector))
        self.twice = jax.jit(jax.hessian(self.of_vector))

    def values(self, points):
        count = 1 << (len(points) - 1).bit_length()  # few shapes, so few programs
        padded = np.concatenate([points, np.repeat(points[:1], count - len(points), 0)])
        return np.asarray(self.values_of(padded))[: len(points)]

    def slopes(self, route, start, rows):
        """Derivatives along the rows (of which `forward` has one, in a random direction)."""
        of_vector, dtype = self.of_vector, np.float32 if route == "single" else np.float64
        x = jnp.asarray(start, dtype)
        if route == "forward":
            return np.asarray(jax.jvp(of_vector, (x,), (jnp.asarray(rows[0]),))[1])[None]
        if route == "jit":
            jacobian = self.compiled(x)
        elif route == "vmap":
            jacobian = jax.vmap(jax.jacrev(of_vector))(jnp.stack([x, x]))[0]
        else:
            jacobian = jax.jacrev(of_vector)(x)
        jacobian = np.moveaxis(np.asarray(jacobian, float), -1, 0)
        pick = lambda row: np.sum(
            jacobian[row != 0] * row[row != 0].reshape(-1, *(1,) * (jacobian.ndim - 1)), 0
        )
        return np.array([pick(row) for row in rows])

    def compare(self, where, ours, truth, error, value, tol, reached=True):
        """Record what differs: an exact 0 needs a difference that is accurate itself."""
        ours, truth, error, value = np.broadcast_arrays(ours, truth, error, value)
        self.count += ours.size
        self.zeros += int(np.sum(ours == 0))
        known = np.isfinite(error) & np.isfinite(value)
        slack = tol * (1 + abs(truth)) + 5 * error
        wrong = known & ~(abs(ours - truth) <= slack)
        unproved = known & (ours == 0) & ~(error <= max(FEWEST, tol))
        # Where the value is NaN, or leaves -inf in this direction, a derivative of 0 hides it.
        hidden = (ours == 0) & (np.isnan(value) | np.isneginf(value) & reached)
        # A value that no move leaves finite is no function of its arguments.
        alone = np.isfinite(value) & ~np.broadcast_to(reached, ours.shape)
        for index in np.argwhere(wrong | unproved | hidden | alone):
            k = tuple(index)
            self.failures.append(
                f"{where} {list(index)}: {ours[k]:.8g}, by differences {truth[k]:.8g} +- "
                f"{error[k]:.1g}, value {value[k]:.6g}"
            )

    def at(self, label, point):
        case, rows, start = self.case, moves(self.case, point), flat(point)
        if case.directions:
            rows = directions(case.directions, rows, start)
        with np.errstate(all="ignore"):
            value, truth, error, reached = differences(self.values, start, rows, case.step)
            for route in case.routes.split():
                if route == "twice":
                    self.twice_at(label, start, rows, value)
                    continue
                along, true, bound, into = rows, truth, error, reached
                if route == "forward":
                    weights = np.random.default_rng(0).normal(size=len(rows))
                    along = (weights @ rows)[None]
                    true = np.tensordot(weights, truth, 1)[None]
                    bound = np.tensordot(abs(weights), error, 1)[None]
                    into = True
                ours = self.slopes(route, start, along)
                tol = 5e-3 if route == "single" else case.tol
                self.compare(f"{label} {route}", ours, true, bound, value, tol, into)

    def twice_at(self, label, start, rows, value):
        hessian = np.asarray(self.twice(start))
        pairs = [(i, j) for i in range(len(rows)) for j in range(i + 1)]
        pairs = [pairs[k] for k in np.random.default_rng(0).permutation(len(pairs))[:12]]
        ours = []
        for i, j in pairs:
            both = np.outer(rows[i], rows[j])
            ours.append(np.sum(np.where(both != 0, hessian * both, 0.0)))
        truth, error = second_differences(self.values, start, rows, 2 * self.case.step, pairs)
        error = np.where(np.isfinite(truth), error, np.nan)
        # At a value of -inf slopes may be constant, as that of a log sigmoid is.
        known = np.isfinite(value)
        self.compare(f"{label} twice", ours, truth, error, value, 100 * self.case.tol, known)


def run(case):
    law = Law(case)
    for label, point in case.points.items():
        law.at(label, {name: np.asarray(x, float) for name, x in point.items()})
    return law
